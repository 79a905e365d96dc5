//! What the authority keeper tells the rest of the daemon about itself.

use idgen_core::clock::BootMs;
use idgen_core::lease::Token;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a database stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not reached yet, or not lately.
    Away,
    /// The extension is not in it.
    NoExtension,
    /// Its server is in recovery.
    Standby,
    /// The server's `idgen.authority` is local: nothing is leased.
    Local,
    /// The lease is wanted, and somebody else has it.
    Taken(String),
    /// The lease is wanted, and not there yet.
    Wanted,
    /// Ranges may be granted.
    Held,
}

impl Standing {
    /// As metrics and logs name it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::NoExtension => "no extension",
            Self::Standby => "standby",
            Self::Local => "local",
            Self::Taken(_) => "taken",
            Self::Wanted => "wanted",
            Self::Held => "held",
        }
    }
}

/// One look at the keeper of one database.
#[derive(Clone, Debug)]
pub struct DatabaseReport {
    /// How it stands.
    pub standing: Standing,
    /// The name that is leased, or to be.
    pub name: Option<String>,
    /// The token that is held.
    pub token: Option<Token>,
    /// When granting stops, unless the lease is renewed.
    pub deadline: Option<BootMs>,
    /// The last reading of the server's boot clock, and when it was made by ours.
    pub reading: Option<(BootMs, Instant)>,
    /// What is wrong.
    pub trouble: Option<String>,
}

impl DatabaseReport {
    /// Before anything has happened.
    #[must_use]
    pub fn starting() -> Self {
        Self {
            standing: Standing::Away,
            name: None,
            token: None,
            deadline: None,
            reading: None,
            trouble: None,
        }
    }

    /// Time until granting stops; zero when it has.
    #[must_use]
    pub fn to_deadline(&self, now: Instant) -> Option<Duration> {
        let (deadline, (clock, at)) = (self.deadline?, self.reading?);
        let left = Duration::from_millis(deadline.since(clock));
        Some(left.saturating_sub(now.saturating_duration_since(at)))
    }

    /// May ranges be granted, where they should be? The error says why not.
    pub fn readiness(&self, now: Instant) -> Result<(), String> {
        let because = |what: String| match &self.trouble {
            Some(trouble) => format!("{what}: {trouble}"),
            None => what,
        };
        match &self.standing {
            Standing::NoExtension | Standing::Standby | Standing::Local => Ok(()),
            Standing::Taken(holder) => Err(because(format!("no range is granted, {holder} has the lease"))),
            Standing::Away | Standing::Wanted => Err(because("no range is granted".to_owned())),
            Standing::Held => match self.to_deadline(now) {
                Some(left) if left.is_zero() => Err(because("the deadline has passed".to_owned())),
                _ => Ok(()),
            },
        }
    }

    /// What somebody should look at though ranges are granted.
    #[must_use]
    pub fn warning(&self, now: Instant) -> Option<String> {
        match (&self.standing, &self.trouble) {
            (Standing::Local, _) => {
                Some("idgen.authority of the server is local, so nothing is leased for it".to_owned())
            }
            (Standing::Held, Some(trouble)) => {
                let left = self.to_deadline(now).unwrap_or_default();
                Some(format!(
                    "ranges are granted for {} s more: {trouble}",
                    left.as_secs()
                ))
            }
            _ => None,
        }
    }
}

/// Where the keepers of all databases report, and whoever watches reads.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<BTreeMap<String, DatabaseReport>>>);

impl Board {
    fn reports(&self) -> MutexGuard<'_, BTreeMap<String, DatabaseReport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, database: &str, report: DatabaseReport) {
        self.reports().insert(database.to_owned(), report);
    }

    pub(super) fn remove(&self, database: &str) {
        self.reports().remove(database);
    }

    /// The last report of each database.
    #[must_use]
    pub fn read(&self) -> BTreeMap<String, DatabaseReport> {
        self.reports().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(at: Instant) -> DatabaseReport {
        DatabaseReport {
            standing: Standing::Held,
            deadline: Some(BootMs(24_000)),
            reading: Some((BootMs(4_000), at)),
            ..DatabaseReport::starting()
        }
    }

    #[test]
    fn a_database_is_ready_while_its_ranges_are_granted_and_where_none_should_be() {
        let at = Instant::now();
        let later = |seconds| at + Duration::from_secs(seconds);
        assert_eq!(held(at).readiness(later(19)), Ok(()));
        assert_eq!(held(at).to_deadline(later(19)), Some(Duration::from_secs(1)));
        assert_eq!(
            held(at).readiness(later(20)),
            Err("the deadline has passed".to_owned())
        );
        for (standing, ready) in [
            (Standing::Away, false),
            (Standing::Wanted, false),
            (Standing::Taken("north".to_owned()), false),
            (Standing::NoExtension, true),
            (Standing::Standby, true),
            (Standing::Local, true),
        ] {
            let report = DatabaseReport {
                standing,
                ..DatabaseReport::starting()
            };
            assert_eq!(report.readiness(at).is_ok(), ready, "{report:?}");
        }
    }

    #[test]
    fn trouble_is_told_while_ranges_are_granted() {
        let at = Instant::now();
        assert_eq!(held(at).warning(at), None);
        let troubled = DatabaseReport {
            trouble: Some("store away".to_owned()),
            ..held(at)
        };
        let told = troubled.warning(at + Duration::from_secs(5));
        assert_eq!(
            told.as_deref(),
            Some("ranges are granted for 15 s more: store away")
        );
        let local = DatabaseReport {
            standing: Standing::Local,
            ..DatabaseReport::starting()
        };
        assert!(local.warning(at).is_some());
    }
}
