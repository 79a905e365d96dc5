//! Connections to Postgres: everything has a limit, and every session has the same settings.

mod control;
mod session;
mod url;

pub(crate) use control::column;
pub use control::{
    Control, InstallOutcome, OpenSlot, ServerClock, ServerMemory, explain, read_anchors, server_wall,
};
pub use session::{PgError, Session, describe};
pub use url::{PostgresUrl, UrlError};

#[cfg(feature = "outbox")]
use crate::error::{Error, Result};
#[cfg(feature = "outbox")]
use std::time::Duration;

/// Is the extension in the database of a session?
pub(crate) const HAS_EXTENSION: &str = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_idgen')";

/// Opens a session that whoever wants it can wait for.
///
/// # Errors
/// `Retry`: it is away, and where that was.
#[cfg(feature = "outbox")]
pub(crate) async fn reach(
    url: &PostgresUrl,
    application_name: &str,
    connect_timeout: Duration,
    limit: Duration,
) -> Result<Session> {
    let opened = Session::open(url, application_name, connect_timeout, limit).await;
    opened.map_err(|error| Error::retry(format!("connect to {}: {error}", describe(url))))
}
