//! `[authority]`: whether the lease store is the authority over the segments of the server.

use super::clock::is_shared;
use super::{Checked, PostgresConfig, StoreConfig};
use crate::lease::CEILINGS_AT_ONCE;
use idgen_core::lease::Timing;
use idgen_core::lease::named::lease_timing;
use serde::Deserialize;

/// Of the largest transaction with etcd: ceilings, and what guards them.
const OPS: usize = CEILINGS_AT_ONCE + 3;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAuthority {
    pub(super) leased: Option<bool>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) period_ms: Option<u64>,
}

impl RawAuthority {
    /// The times of its leases; `None`: nothing is leased.
    pub(super) fn check(&self, postgres: &PostgresConfig, store: &StoreConfig) -> Checked<Option<Timing>> {
        let timing = check_lease("authority", self.ttl_ms, self.period_ms, store)?;
        if !self.leased.unwrap_or(false) {
            return Ok(None);
        }
        if let StoreConfig::Etcd { txn_ops_max, .. } = store
            && *txn_ops_max < OPS
        {
            return Err(format!(
                "authority.leased = true needs transactions of {OPS} operations, and store.max_txn_ops is {txn_ops_max}"
            ));
        }
        if !is_shared(postgres, store) {
            return Err(
                "authority.leased = true needs a store elsewhere: tables in the very server that it is an authority \
                 over are lost, restored and copied together with it (hint: [store] in another server, or etcd)"
                    .into(),
            );
        }
        Ok(Some(timing))
    }
}

/// The times of a named lease; `section` is how errors call where they are set.
pub(super) fn check_lease(
    section: &str,
    ttl_ms: Option<u64>,
    period_ms: Option<u64>,
    store: &StoreConfig,
) -> Checked<Timing> {
    let mut spec = lease_timing(ttl_ms);
    spec.period_ms = period_ms.or(spec.period_ms);
    if matches!(store, StoreConfig::Etcd { .. }) && !spec.ttl_ms.is_multiple_of(1_000) {
        return Err(format!(
            "{section}.ttl_ms = {}: etcd keeps leases by whole seconds",
            spec.ttl_ms
        ));
    }
    Timing::new(spec).map_err(|error| format!("{section}.{error}"))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn authority(text: &str) -> Result<Option<Timing>, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n{text}");
        Config::parse("f", &text, [])
            .map(|config| config.authority)
            .map_err(|error| error.to_string())
    }

    const ETCD: &str = "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[authority]\n";
    const ELSEWHERE: &str = "[store]\nurl = \"postgres://u@other/d\"\n[authority]\n";

    #[test]
    fn nothing_is_leased_unless_asked_for() {
        assert_eq!(authority(""), Ok(None));
        assert_eq!(authority(&format!("{ETCD}leased = false")), Ok(None));
        for store in [ETCD, ELSEWHERE] {
            let timing = authority(&format!("{store}leased = true"))
                .unwrap()
                .expect("leased");
            assert_eq!(
                (timing.ttl_ms(), timing.period_ms(), timing.margin_ms()),
                (30_000, 5_000, 6_000)
            );
        }
    }

    #[test]
    fn a_store_in_the_server_itself_is_refused() {
        for store in ["", "[store]\nurl = \"postgres://v@h/e\"\n"] {
            let refused = authority(&format!("{store}[authority]\nleased = true")).unwrap_err();
            assert!(refused.contains("needs a store elsewhere"), "{refused}");
        }
    }

    #[test]
    fn transactions_must_be_large_enough_for_ceilings() {
        let with = |ops| {
            let store = ETCD.replace("[authority]", &format!("max_txn_ops = {ops}\n[authority]"));
            authority(&format!("{store}leased = true"))
        };
        assert!(with(103).is_ok());
        assert!(with(102).unwrap_err().contains("103 operations"));
    }

    #[test]
    fn times_are_checked() {
        for (lines, part) in [
            ("ttl_ms = 2500", "whole seconds"),
            ("ttl_ms = 500", "authority.ttl_ms"),
            ("period_ms = 24000", "authority.period_ms"),
            ("window_ms = 5", "unknown field"),
        ] {
            let refused = authority(&format!("{ETCD}{lines}")).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        let timing = authority(&format!("{ETCD}leased = true\nttl_ms = 8000")).unwrap();
        assert_eq!(timing.expect("leased").period_ms(), 2_000);
    }
}
