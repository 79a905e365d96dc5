//! Why a run goes no further.

use crate::error::Error;
use crate::postgres::PgError;

/// See the module.
#[derive(Debug)]
pub enum Halt {
    /// What could not be read: the run ends, and says nothing.
    Inconclusive(String),
    /// Another one audits. The run stays open, and that one goes on with it.
    NotOurs,
    /// It is to be tried again: the run stays open.
    Trouble(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Trouble(error)
    }
}

/// Of whatever is asked of the primary.
pub(super) fn trouble(error: PgError) -> Halt {
    Halt::Trouble(Error::retry(format!("audit: {error}")))
}

/// A column of a row.
pub(super) fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r tokio_postgres::Row,
    index: usize,
) -> Result<T, Halt> {
    row.try_get(index)
        .map_err(|error| Halt::Trouble(Error::retry(format!("audit: read column {index}: {error}"))))
}
