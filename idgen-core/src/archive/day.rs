//! A day in UTC, and whether the archive has all of it.

use super::digest::IdDigest;
use crate::utc::{date, days};
use core::fmt;
use core::str::FromStr;

const DAY_US: i64 = 86_400_000_000;

/// Days since 1970-01-01. A day has 86,400 seconds here, wherever anybody lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u32);

impl Day {
    /// The day of a moment in microseconds; of one before 1970 the first.
    #[must_use]
    pub fn of_us(us: i64) -> Self {
        Self(u32::try_from(us.max(0) / DAY_US).unwrap_or(u32::MAX))
    }

    /// Its first microsecond.
    #[must_use]
    pub fn start_us(self) -> i64 {
        i64::from(self.0) * DAY_US
    }

    /// So many days before; the first at the least.
    #[must_use]
    pub fn before(self, days: u32) -> Self {
        Self(self.0.saturating_sub(days))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(u64::from(self.0));
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl FromStr for Day {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "a day is written as 2026-04-03";
        let mut parts = text.split('-').map(|part| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| part.parse::<u64>().ok()).flatten()
        });
        let mut next = || parts.next().flatten().ok_or(WANTED);
        let (year, month, day) = (next()?, next()?, next()?);
        if year < 1970 || !(1..=12).contains(&month) || text.len() != 10 {
            return Err(WANTED);
        }
        let found = u32::try_from(days(year, month, day))
            .map(Self)
            .map_err(|_| WANTED)?;
        // The 31st of a month with 30 days would be another day.
        (found.to_string() == text)
            .then_some(found)
            .ok_or("there is no such day")
    }
}

/// What is known of one day and one source of events.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DayEvidence {
    /// The first thing that is wrong with the chain or a file.
    pub broken: Option<String>,
    /// What the files have, each event once.
    pub archived: IdDigest,
    /// What the table has.
    pub table: IdDigest,
    /// Events of the table that the archive has not; known where the digests differ.
    pub missing: u64,
    /// Events of the archive that the table has not.
    pub extra: u64,
}

/// What a day is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DayVerdict {
    /// Every file is as it was written, and the archive has exactly the events of the table.
    Verified,
    /// Something was changed or lost, or the archive has what the table has not.
    Mismatch(String),
    /// The archive has not everything yet.
    Incomplete(String),
}

impl DayVerdict {
    /// As `idgen.archive_day.state` has it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Mismatch(_) => "mismatch",
            Self::Incomplete(_) => "incomplete",
        }
    }

    /// Why it is not verified.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Verified => None,
            Self::Mismatch(why) | Self::Incomplete(why) => Some(why),
        }
    }
}

/// Judges a day. What is broken outweighs what is missing.
#[must_use]
pub fn judge(evidence: &DayEvidence) -> DayVerdict {
    if let Some(broken) = &evidence.broken {
        return DayVerdict::Mismatch(broken.clone());
    }
    if evidence.extra > 0 {
        return DayVerdict::Mismatch(format!(
            "{} events are in the archive and not in the table",
            evidence.extra
        ));
    }
    if evidence.archived == evidence.table {
        return DayVerdict::Verified;
    }
    if evidence.missing == 0 {
        return DayVerdict::Mismatch(format!(
            "the archive has {} events and the table {}, and their digests differ",
            evidence.archived.rows, evidence.table.rows
        ));
    }
    DayVerdict::Incomplete(format!(
        "{} of {} events are not in the archive",
        evidence.missing, evidence.table.rows
    ))
}
