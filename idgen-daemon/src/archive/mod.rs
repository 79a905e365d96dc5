//! The archive: events as files that anybody can read, proved complete before their day leaves the database. The rules are in
//! `idgen_core::archive`.
//!
//! ```text
//!  kafka.rs   a topic                        \                                        /  objects/folder.rs
//!  tables.rs  feed_table.rs unpublished rows  -> pack.rs   -> ledger.rs -> Objects   -> objects/s3.rs
//!             feed_trail.rs lease events     /   (parquet/)   (commit.rs)
//!  verify/    reads every file of a day again, compares it with the table, and writes idgen.archive_day
//! ```
//! What is buffered is never the only copy: it is in the topic or the table until a commit has it. So whatever fails, the
//! archiver throws its buffer away and begins anew behind the last commit.

pub mod backfill;
pub mod commit;
mod feed_table;
mod feed_trail;
pub mod index;
pub(crate) mod kafka;
mod ledger;
mod metrics;
pub mod objects;
mod pack;
pub mod parquet;
mod run;
mod tables;
#[cfg(test)]
mod tests;
pub mod verify;

pub use self::feed_table::mark_under;
pub use self::kafka::Trouble;
pub use self::ledger::{Appended, Batch, Ledger};
pub use self::metrics::ArchiveMetrics;
pub use self::pack::{Packed, pack};
pub(crate) use self::run::Failing;
pub use self::run::{Archiver, archive};
pub(crate) use self::tables::{has_extension, open as open_database};
