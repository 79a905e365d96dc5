//! A day in UTC.

use crate::utc::{date, days};
use core::fmt;
use core::str::FromStr;

/// Seconds of a day, wherever anybody lives.
pub const SECONDS: i64 = 86_400;
const US: i64 = 1_000_000;

/// Days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub i32);

impl Day {
    /// The day of a moment in Unix seconds.
    #[must_use]
    pub fn of_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS);
        Self(i32::try_from(days).unwrap_or(if days < 0 { i32::MIN } else { i32::MAX }))
    }

    /// The day of a moment in microseconds; of one before 1970 the first.
    #[must_use]
    pub fn of_us(us: i64) -> Self {
        Self::of_unix(us.max(0) / US)
    }

    /// When it begins, in Unix seconds.
    #[must_use]
    pub fn begins(self) -> i64 {
        i64::from(self.0) * SECONDS
    }

    /// When it has ended.
    #[must_use]
    pub fn ends(self) -> i64 {
        self.begins() + SECONDS
    }

    /// Its first microsecond.
    #[must_use]
    pub fn start_us(self) -> i64 {
        self.begins() * US
    }

    /// So many days before; the first at the least.
    #[must_use]
    pub fn before(self, days: u32) -> Self {
        Self(self.0.saturating_sub_unsigned(days).max(0))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(u64::try_from(self.0).unwrap_or_default());
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
        let found = i32::try_from(days(year, month, day))
            .map(Self)
            .map_err(|_| WANTED)?;
        // The 31st of a month with 30 days would be another day.
        (found.to_string() == text)
            .then_some(found)
            .ok_or("there is no such day")
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_of_the_same_day_in_seconds_and_in_microseconds() {
        assert_eq!(Day::of_us(951_782_399_999_999), Day::of_unix(951_782_399));
        assert_eq!((Day::of_us(-1), Day::of_unix(-1)), (Day(0), Day(-1)));
    }
}
