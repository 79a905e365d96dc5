//! The archive: events as files that anybody can read, proved complete before their day leaves the database. The rules are in
//! `idgen_core::archive`.
//!
//! ```text
//!  feed/kafka.rs  a topic           \                                          /  objects/folder.rs
//!  feed/table.rs  unpublished rows   -> archiver -> pack -> ledger -> Objects  -> objects/s3.rs
//!  feed/trail.rs  lease events      /               (parquet)  (commits)
//!  verify.rs      reads every file of a day again, compares it with the table, and writes idgen.archive_day
//! ```
//! What is buffered is never the only copy: it is in the topic or the table until a commit has it. So whatever fails, the
//! archiver throws its buffer away and begins anew behind the last commit.

pub mod commit;
mod ledger;
pub mod objects;
mod pack;
pub mod parquet;
#[cfg(test)]
mod tests;

pub use self::ledger::{Appended, Batch, Ledger};
pub use self::pack::{Packed, pack};
