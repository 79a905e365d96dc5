//! A moment for people.

use crate::clock::UnixMs;
use core::fmt;

/// Shows as RFC 3339 in UTC, to the second that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc(pub UnixMs);

const DAYS_PER_ERA: u64 = 146_097;

/// Year, month and day of a day since 1970-01-01. Years are counted from March here, so that the leap day is the
/// last of its year (Howard Hinnant, "chrono-compatible low-level date algorithms", public domain).
pub(crate) fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Days since 1970-01-01 of a date; the way back.
pub(crate) fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day.saturating_sub(1);
    (era * DAYS_PER_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(719_468)
}

/// Microseconds since 1970 of a moment as events have it, `2026-04-03T10:11:12.123456Z`; `None`: it is not written so.
#[must_use]
pub fn parse_us(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let marks = [
        (4, b'-'),
        (7, b'-'),
        (10, b'T'),
        (13, b':'),
        (16, b':'),
        (19, b'.'),
        (26, b'Z'),
    ];
    if bytes.len() != 27 || marks.iter().any(|(at, mark)| bytes.get(*at) != Some(mark)) {
        return None;
    }
    let number = |from: usize, to: usize| {
        bytes.get(from..to)?.iter().try_fold(0_u64, |number, byte| {
            byte.is_ascii_digit()
                .then(|| number * 10 + u64::from(byte - b'0'))
        })
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days(year, month, day);
    if date(days) != (year, month, day) {
        return None;
    }
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    i64::try_from(seconds * 1_000_000 + number(20, 26)?).ok()
}

/// The way back of [`parse_us`]; before 1970 it shows 1970.
#[must_use]
pub fn show_us(us: i64) -> String {
    let us = us.max(0).cast_unsigned();
    let whole = Utc(UnixMs(us / 1_000)).to_string();
    format!("{}.{:06}Z", whole.trim_end_matches('Z'), us % 1_000_000)
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0 / 1_000;
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_as_the_calendar_has_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_999, "2000-02-28T23:59:59Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (951_868_800_000, "2000-03-01T00:00:00Z"),
            (1_795_992_006_500, "2026-11-29T22:40:06Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Utc(UnixMs(ms)).to_string(), text);
        }
    }

    #[test]
    fn moments_of_events_have_six_digits() {
        assert_eq!(show_us(951_782_399_000_001), "2000-02-28T23:59:59.000001Z");
    }
}
