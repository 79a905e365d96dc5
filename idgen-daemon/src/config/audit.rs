//! `[audit]`: whether this daemon audits its server, when, and where it reads.

use super::{Checked, parse_url};
use crate::error::Error;
use crate::postgres::PostgresUrl;
use crate::secret::Secret;
use idgen_core::audit::{Schedule, TimeOfDay, Weekday};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Unless configured: when nobody is awake, and backups are done.
const NIGHTLY: TimeOfDay = TimeOfDay::new(3, 0).expect("a time");
/// Ranges a second on the primary: a hundredth of what a core can.
const RATE: u64 = 50_000;
const RATE_MAX: u64 = 10_000_000;
const LAG_MINUTES: u64 = 30;
const LAG_MINUTES_MAX: u64 = 1_440;
const PROMOTION_WAIT_S: u64 = 30;
const PROMOTION_WAIT_S_MAX: u64 = 86_400;
const PROBE_MEMORY_MIB: u64 = 200;
const PROBE_MEMORY_MIB_MAX: u64 = 65_536;

/// What is audited, and how.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    /// When the databases are audited.
    pub schedule: Schedule,
    /// The replica that is read; `None`: the primary.
    pub replica: Option<PostgresUrl>,
    /// The primary is read where the replica cannot be.
    pub fall_back: bool,
    /// Ranges a second that are read from the primary.
    pub rate: u64,
    /// For so long the replica may be behind before a run is given up.
    pub lag_max: Duration,
    /// So long tags wait after a promotion until topic and archive were asked what it has lost.
    pub promotion_wait: Duration,
    /// The topic is read as it grows, where there is one.
    pub probe: bool,
    /// Where the probe keeps how far it has come; `None`: it begins anew from the archive.
    pub checkpoint_dir: Option<PathBuf>,
    /// What the probe may take.
    pub probe_memory_mib: u64,
}

impl AuditConfig {
    /// Where nothing is configured, and somebody asks for an audit all the same.
    ///
    /// # Errors
    /// None.
    pub fn standard() -> Result<Self, Error> {
        RawAudit::default().check().map_err(Error::usage)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAudit {
    pub(super) nightly: Option<String>,
    pub(super) full: Option<String>,
    pub(super) replica: Option<Secret>,
    pub(super) fall_back: Option<bool>,
    pub(super) rate: Option<u64>,
    pub(super) lag_max_minutes: Option<u64>,
    pub(super) promotion_wait_seconds: Option<u64>,
    pub(super) probe: Option<bool>,
    pub(super) checkpoint_dir: Option<String>,
    pub(super) probe_memory_mib: Option<u64>,
}

impl RawAudit {
    pub(super) fn check(self) -> Checked<AuditConfig> {
        let at = match &self.nightly {
            None => NIGHTLY,
            Some(text) => text
                .parse()
                .map_err(|why| format!("audit.nightly = \"{text}\": {why}"))?,
        };
        let full = match &self.full {
            None => Weekday::Sunday,
            Some(text) => text
                .parse()
                .map_err(|why| format!("audit.full = \"{text}\": {why}"))?,
        };
        let replica = match &self.replica {
            None => None,
            Some(url) => Some(parse_url("audit.replica", url.expose())?),
        };
        if replica.is_none() && (self.fall_back.is_some() || self.lag_max_minutes.is_some()) {
            let key = if self.fall_back.is_some() {
                "fall_back"
            } else {
                "lag_max_minutes"
            };
            return Err(format!(
                "audit.{key} needs audit.replica: without one the primary is read"
            ));
        }
        let checkpoint_dir = self.checkpoint_dir.as_deref().map(PathBuf::from);
        if let Some(dir) = checkpoint_dir.as_ref().filter(|dir| !dir.is_absolute()) {
            return Err(format!(
                "audit.checkpoint_dir = \"{}\" does not begin with a slash",
                dir.display()
            ));
        }
        let lag_minutes = within(
            "lag_max_minutes",
            self.lag_max_minutes,
            LAG_MINUTES,
            0,
            LAG_MINUTES_MAX,
        )?;
        Ok(AuditConfig {
            schedule: Schedule { at, full },
            replica,
            fall_back: self.fall_back.unwrap_or(false),
            rate: within("rate", self.rate, RATE, 1, RATE_MAX)?,
            lag_max: Duration::from_secs(lag_minutes * 60),
            promotion_wait: Duration::from_secs(within(
                "promotion_wait_seconds",
                self.promotion_wait_seconds,
                PROMOTION_WAIT_S,
                0,
                PROMOTION_WAIT_S_MAX,
            )?),
            probe: self.probe.unwrap_or(true),
            checkpoint_dir,
            probe_memory_mib: within(
                "probe_memory_mib",
                self.probe_memory_mib,
                PROBE_MEMORY_MIB,
                1,
                PROBE_MEMORY_MIB_MAX,
            )?,
        })
    }
}

fn within(key: &str, given: Option<u64>, default: u64, min: u64, max: u64) -> Checked<u64> {
    let value = given.unwrap_or(default);
    (min..=max)
        .contains(&value)
        .then_some(value)
        .ok_or_else(|| format!("audit.{key} = {value} is not in {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn config(text: &str, vars: &[(&str, &str)]) -> Result<Option<AuditConfig>, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n{text}");
        let vars = vars
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::parse("f", &text, vars).map_err(|error| error.to_string())?;
        Ok(config.audit)
    }

    #[test]
    fn nothing_is_audited_unless_asked_for_and_then_at_three_with_sundays_in_full() {
        assert!(config("", &[]).unwrap().is_none());
        let audit = config("[audit]", &[]).unwrap().unwrap();
        assert_eq!(audit.schedule.at.to_string(), "03:00");
        assert_eq!(audit.schedule.full, Weekday::Sunday);
        assert!(audit.replica.is_none() && !audit.fall_back && audit.probe && audit.checkpoint_dir.is_none());
        assert_eq!((audit.rate, audit.probe_memory_mib), (50_000, 200));
        assert_eq!(audit.lag_max, Duration::from_secs(1_800));
        assert_eq!(audit.promotion_wait, Duration::from_secs(30));
    }

    #[test]
    fn each_key_is_read_from_the_file_and_from_the_environment() {
        let text = "[audit]\nnightly = \"23:30\"\nfull = \"Monday\"\nreplica = \"postgres://u@r/d\"\nfall_back = true\nrate = 7\n\
                    lag_max_minutes = 0\nprobe = false\npromotion_wait_seconds = 0\ncheckpoint_dir = \"/c\"\nprobe_memory_mib = 9";
        let variables = [
            ("IDGEND_AUDIT__NIGHTLY", "23:30"),
            ("IDGEND_AUDIT__FULL", "Monday"),
            ("IDGEND_AUDIT__REPLICA", "postgres://u@r/d"),
            ("IDGEND_AUDIT__FALL_BACK", "true"),
            ("IDGEND_AUDIT__RATE", "7"),
            ("IDGEND_AUDIT__LAG_MAX_MINUTES", "0"),
            ("IDGEND_AUDIT__PROBE", "false"),
            ("IDGEND_AUDIT__PROMOTION_WAIT_SECONDS", "0"),
            ("IDGEND_AUDIT__CHECKPOINT_DIR", "/c"),
            ("IDGEND_AUDIT__PROBE_MEMORY_MIB", "9"),
        ];
        for audit in [config(text, &[]), config("", &variables)] {
            let audit = audit.unwrap().unwrap();
            assert_eq!(audit.schedule.at.to_string(), "23:30");
            assert_eq!(audit.schedule.full, Weekday::Monday);
            assert!(audit.replica.is_some() && audit.fall_back && !audit.probe);
            assert_eq!((audit.rate, audit.lag_max), (7, Duration::ZERO));
            assert_eq!(audit.promotion_wait, Duration::ZERO);
            assert_eq!(audit.checkpoint_dir, Some("/c".into()));
            assert_eq!(audit.probe_memory_mib, 9);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("nightly = \"3:00\"", "audit.nightly = \"3:00\""),
            ("full = \"sun\"", "audit.full = \"sun\""),
            ("replica = \"mysql://a\"", "audit.replica"),
            ("fall_back = true", "audit.fall_back needs audit.replica"),
            ("lag_max_minutes = 5", "audit.lag_max_minutes needs audit.replica"),
            ("rate = 0", "audit.rate = 0 is not in 1"),
            ("checkpoint_dir = \"c\"", "does not begin with a slash"),
            (
                "promotion_wait_seconds = 86401",
                "audit.promotion_wait_seconds = 86401",
            ),
            ("probe_memory_mib = 0", "audit.probe_memory_mib = 0"),
            ("foo = 1", "unknown field"),
        ] {
            let refused = config(&format!("[audit]\n{text}"), &[]).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        let refused = config("", &[("IDGEND_AUDIT__RATE", "fast")]).unwrap_err();
        assert!(refused.contains("IDGEND_AUDIT__RATE"), "{refused}");
    }
}
