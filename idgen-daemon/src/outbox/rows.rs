//! Moments as events have them.

use crate::error::{Error, Result};
use crate::postgres::PgError;
use idgen_core::clock::UnixMs;
use idgen_core::outbox::Day;
use idgen_core::utc::Utc;

/// UTC, RFC 3339, six digits of a second.
pub(super) fn moment(unix_us: i64) -> String {
    let us = u64::try_from(unix_us).unwrap_or_default();
    let seconds = Utc(UnixMs(us / 1_000)).to_string();
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), us % 1_000_000)
}

/// The day of UTC.
pub(super) fn day(unix_us: i64) -> Day {
    Day::of_unix(unix_us.div_euclid(1_000_000))
}

/// Everything that Postgres says here can be waited out.
pub(super) fn retry(error: PgError) -> Error {
    Error::retry(error.to_string())
}

/// A column of a row.
pub(super) fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r tokio_postgres::Row,
    index: usize,
) -> Result<T> {
    row.try_get(index)
        .map_err(|error| Error::retry(format!("read column {index}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_six_digits() {
        assert_eq!(moment(951_782_399_000_001), "2000-02-28T23:59:59.000001Z");
        assert_eq!(day(951_782_399_999_999), Day::of_unix(951_782_399));
    }
}
