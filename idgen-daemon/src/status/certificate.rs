//! When our own certificates end, for whoever looks.

use crate::tls::Deadline;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long before its end a certificate is marked. The log warns from two weeks on.
const MARK_AHEAD: Duration = Duration::from_secs(7 * 86_400);

/// A client certificate of the configuration, as it is on disk: the next connection is made with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateStatus {
    /// Where it is.
    pub file: String,
    /// Not valid from then on, in RFC 3339; of its chain the first to end. `None`: it cannot be read.
    pub expires: Option<String>,
    /// Until then; negative: it has passed.
    pub expires_in_s: Option<i64>,
    /// What somebody has to see to: it has expired, does within 7 days, or cannot be read.
    pub warning: Option<String>,
}

impl CertificateStatus {
    /// Looks at it.
    #[must_use]
    pub fn read(path: &Path, now: SystemTime) -> Self {
        let file = path.display().to_string();
        match Deadline::read(path) {
            Ok(deadline) => Self::of(file, deadline, now),
            Err(why) => Self {
                file,
                expires: None,
                expires_in_s: None,
                warning: Some(why),
            },
        }
    }

    fn of(file: String, deadline: Deadline, now: SystemTime) -> Self {
        let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        let left = deadline.at.duration_since(now);
        let warning = match &left {
            Err(_) => Some("expired: put a new one in place".to_owned()),
            Ok(left) if *left < MARK_AHEAD => {
                Some("expires within 7 days: put a new one in place".to_owned())
            }
            Ok(_) => None,
        };
        Self {
            file,
            expires: Some(deadline.to_string()),
            expires_in_s: Some(match left {
                Ok(left) => seconds(left),
                Err(over) => -seconds(over.duration()),
            }),
            warning,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_last_week_and_what_is_over_are_marked() {
        let at = UNIX_EPOCH + Duration::from_secs(1_795_910_400);
        let week = MARK_AHEAD.as_secs();
        let shown = |left_s: i64| {
            let now = UNIX_EPOCH + Duration::from_secs(1_795_910_400u64.saturating_add_signed(-left_s));
            CertificateStatus::of("c.pem".to_owned(), Deadline { at }, now)
        };
        let week_s = week.cast_signed();
        assert_eq!(shown(week_s).warning, None);
        assert_eq!(shown(week_s).expires.as_deref(), Some("2026-11-29T00:00:00Z"));
        let soon = shown(week_s - 1);
        assert_eq!(soon.expires_in_s, Some(week_s - 1));
        assert!(
            soon.warning
                .is_some_and(|warning| warning.contains("within 7 days"))
        );
        let over = shown(-60);
        assert_eq!(over.expires_in_s, Some(-60));
        assert!(over.warning.is_some_and(|warning| warning.contains("expired")));
    }

    #[test]
    fn one_that_cannot_be_read_says_why() {
        let none = CertificateStatus::read(Path::new("/nowhere/client.pem"), SystemTime::now());
        assert_eq!((none.expires, none.expires_in_s), (None, None));
        let why = none.warning.expect("a reason");
        assert!(why.contains("/nowhere/client.pem"), "{why}");
    }
}
