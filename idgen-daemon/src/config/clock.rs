//! `[clock]`: how strictly the wall clock is looked at before a lease is taken.

use super::{Checked, PostgresConfig, StoreConfig};
use idgen_core::lease::Gate;
use serde::Deserialize;
use std::net::SocketAddr;

/// Where chronyd answers when nobody has changed that.
const CHRONY: &str = "127.0.0.1:323";

/// What is asked of the clock.
#[derive(Clone, Debug)]
pub struct ClockConfig {
    /// What is done about a clock that nobody vouches for.
    pub gate: Gate,
    /// A wall clock that was set is believed again when the kernel says that it is synchronised.
    pub accept_synchronised: bool,
    /// Where chronyd is asked; `None`: the kernel alone is.
    pub chrony: Option<SocketAddr>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawClock {
    pub(super) check: Option<String>,
    pub(super) accept_synchronised: Option<bool>,
    pub(super) chrony: Option<String>,
}

impl RawClock {
    pub(super) fn check(self, postgres: &PostgresConfig, store: &StoreConfig) -> Checked<ClockConfig> {
        let gate = match self.check.as_deref().unwrap_or("auto") {
            "auto" if is_shared(postgres, store) => Gate::Refuse,
            "auto" | "warn" => Gate::Warn,
            "on" => Gate::Refuse,
            "off" => Gate::Off,
            other => {
                return Err(format!(
                    "clock.check = \"{other}\" is none of \"auto\", \"on\", \"warn\" and \"off\""
                ));
            }
        };
        let chrony = self.chrony.unwrap_or_else(|| CHRONY.to_owned());
        let chrony = if chrony.is_empty() {
            None
        } else {
            let wrong =
                |_| format!("clock.chrony = \"{chrony}\" is not an address and port such as {CHRONY}");
            Some(chrony.parse().map_err(wrong)?)
        };
        Ok(ClockConfig {
            gate,
            accept_synchronised: self.accept_synchronised.unwrap_or(true),
            chrony,
        })
    }
}

/// Do other servers lease from this store? One that is in the server itself is taken for its own: a wrong clock then
/// leaves its marks nowhere else, and `CREATE EXTENSION` on a machine without time synchronisation just works.
pub(super) fn is_shared(postgres: &PostgresConfig, store: &StoreConfig) -> bool {
    match store {
        StoreConfig::Etcd { .. } => true,
        StoreConfig::Postgres { url, .. } => {
            (url.get_hosts(), url.get_ports()) != (postgres.url.get_hosts(), postgres.url.get_ports())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn clock(text: &str) -> std::result::Result<ClockConfig, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n{text}");
        Config::parse("f", &text, [])
            .map(|config| config.clock)
            .map_err(|error| error.to_string())
    }

    fn gate(text: &str) -> Gate {
        clock(text).unwrap().gate
    }

    const ETCD: &str = "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n";

    #[test]
    fn a_store_that_others_use_too_is_strict_unless_told_otherwise() {
        assert_eq!(gate(""), Gate::Warn);
        assert_eq!(gate("[store]\nurl = \"postgres://v@h/e\""), Gate::Warn);
        assert_eq!(gate("[store]\nurl = \"postgres://u@other/d\""), Gate::Refuse);
        assert_eq!(gate("[store]\nurl = \"postgres://u@h:5433/d\""), Gate::Refuse);
        assert_eq!(gate(ETCD), Gate::Refuse);
        assert_eq!(gate(&format!("{ETCD}[clock]\ncheck = \"off\"")), Gate::Off);
        assert_eq!(gate(&format!("{ETCD}[clock]\ncheck = \"warn\"")), Gate::Warn);
        assert_eq!(gate("[clock]\ncheck = \"on\""), Gate::Refuse);
    }

    #[test]
    fn chronyd_is_asked_at_its_usual_address_another_or_not_at_all() {
        let chrony = |text: &str| clock(text).map(|clock| clock.chrony.map(|addr| addr.to_string()));
        assert_eq!(chrony(""), Ok(Some(CHRONY.to_owned())));
        assert_eq!(
            chrony("[clock]\nchrony = \"[::1]:3230\""),
            Ok(Some("[::1]:3230".to_owned()))
        );
        assert_eq!(chrony("[clock]\nchrony = \"\""), Ok(None));
        for (text, part) in [
            ("[clock]\nchrony = \"here\"", "clock.chrony"),
            ("[clock]\ncheck = \"maybe\"", "clock.check"),
        ] {
            let error = clock(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
