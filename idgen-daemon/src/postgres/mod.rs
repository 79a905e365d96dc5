//! Connections to Postgres: everything has a limit, and every session has the same settings.

mod control;
mod session;
mod url;

pub use control::{
    Control, InstallOutcome, OpenSlot, ServerClock, ServerMemory, explain, read_anchors, server_wall,
};
pub use session::{PgError, Session, describe};
pub use url::{PostgresUrl, UrlError};
