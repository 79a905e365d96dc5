//! `[locks.CLASS]`: what commands may run under a lock of the lease store, `idgenctl lock run --class CLASS`.

use super::authority::check_lease;
use super::{Checked, StoreConfig};
use idgen_core::lease::Timing;
use idgen_core::lease::named::{LeaseName, LockMode};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A class of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockClass {
    /// What keeps out a holder whose time is over.
    pub mode: LockMode,
    /// TTL, margin and period of each lock.
    pub timing: Timing,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLock {
    mode: Option<String>,
    ttl_ms: Option<u64>,
    period_ms: Option<u64>,
}

/// The classes by their names.
pub(super) fn check(
    locks: &BTreeMap<String, RawLock>,
    store: &StoreConfig,
) -> Checked<BTreeMap<String, LockClass>> {
    let check = |(name, raw): (&String, &RawLock)| Ok((name.clone(), raw.check(name, store)?));
    locks.iter().map(check).collect()
}

impl RawLock {
    fn check(&self, name: &str, store: &StoreConfig) -> Checked<LockClass> {
        let section = format!("locks.{name}");
        if name.contains('/') || LeaseName::lock(name, None).is_err() {
            return Err(format!(
                "[{section}]: a class is a word of letters, digits, \".\", \"_\" and \"-\""
            ));
        }
        let mode = match self.mode.as_deref().unwrap_or("fenced") {
            "fenced" => LockMode::Fenced,
            "advisory" => LockMode::Advisory,
            other => {
                return Err(format!(
                    "{section}.mode = \"{other}\" is neither \"fenced\" nor \"advisory\""
                ));
            }
        };
        let timing = check_lease(&section, self.ttl_ms, self.period_ms, store)?;
        Ok(LockClass { mode, timing })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn locks(text: &str) -> Result<BTreeMap<String, LockClass>, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n{text}");
        Config::parse("f", &text, [])
            .map(|config| config.locks)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_class_is_fenced_unless_it_says_otherwise() {
        assert_eq!(locks(""), Ok(BTreeMap::new()));
        let classes =
            locks("[locks.settlement]\n[locks.report]\nmode = \"advisory\"\nttl_ms = 6000").unwrap();
        let (settlement, report) = (classes["settlement"], classes["report"]);
        assert_eq!(
            (settlement.mode, settlement.timing.ttl_ms()),
            (LockMode::Fenced, 30_000)
        );
        assert_eq!(
            (report.mode, report.timing.period_ms()),
            (LockMode::Advisory, 1_500)
        );
    }

    #[test]
    fn what_is_no_class_is_refused() {
        for (lines, part) in [
            ("[locks.\"a b\"]", "a class is a word"),
            ("[locks.\"a/b\"]", "a class is a word"),
            (
                "[locks.a]\nmode = \"shared\"",
                "neither \"fenced\" nor \"advisory\"",
            ),
            ("[locks.a]\nttl_ms = 10", "locks.a.ttl_ms"),
            ("[locks.a]\nperiod_ms = 0", "locks.a.period_ms"),
            ("[locks.a]\nwindow_ms = 5", "unknown field"),
            (
                "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[locks.a]\nttl_ms = 2500",
                "whole seconds",
            ),
        ] {
            let refused = locks(lines).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
