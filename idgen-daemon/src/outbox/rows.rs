//! What is read from Postgres.

use crate::error::{Error, Result};
use crate::postgres::PgError;

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
