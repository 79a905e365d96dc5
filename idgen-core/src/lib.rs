//! The pure rules of pg_idgen.
//!
//! Architecture invariants: nothing here reads a clock, does I/O, logs, blocks, or knows Postgres or
//! tokio; nothing on the id path allocates. Time is always an argument. The extension and the daemon
//! share these rules and nothing else but the SQL in `sql/`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod archive;
pub mod audit;
pub mod base32;
pub mod base62;
pub mod checked_line;
pub mod clock;
pub mod contract;
pub mod day;
pub mod forensics;
pub mod format;
pub mod history;
pub mod lease;
pub mod mint;
mod mix;
pub mod outbox;
pub mod public_id;
pub mod rate;
pub mod seal;
pub mod segment;
mod sync;
pub mod utc;
pub mod uuid;
pub mod uuidv7;
