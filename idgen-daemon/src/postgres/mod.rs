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

/// Is the extension in the database of a session?
pub(crate) const HAS_EXTENSION: &str = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_idgen')";
