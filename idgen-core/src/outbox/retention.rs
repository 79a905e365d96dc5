//! For how long a day of events stays in the database.

use core::fmt;

/// A whole number of days, at least a week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retention(u32);

/// Why a number is no retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionError(u64);

impl fmt::Display for RetentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (Retention::MIN_DAYS, Retention::MAX_DAYS);
        write!(f, "{} days is not in {min} to {max}", self.0)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self(90)
    }
}

impl Retention {
    /// A day is sealed two days after its end and checked after that: with less there would be no time to look at what is
    /// wrong.
    pub const MIN_DAYS: u32 = 7;
    /// A century.
    pub const MAX_DAYS: u32 = 36_500;

    /// So many days.
    ///
    /// # Errors
    /// Less than a week, or more than a century.
    pub fn days(days: u64) -> Result<Self, RetentionError> {
        u32::try_from(days)
            .ok()
            .filter(|days| (Self::MIN_DAYS..=Self::MAX_DAYS).contains(days))
            .map(Self)
            .ok_or(RetentionError(days))
    }

    /// The number.
    #[must_use]
    pub fn in_days(self) -> u32 {
        self.0
    }
}
