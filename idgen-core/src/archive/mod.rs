//! Rules of the archive: files of events, and the chain of commits that says which files count.
//!
//! A *chain* is the archive of one log: a topic, or the outbox of one database. Commit `seq` is made by a conditional create,
//! so at most one writer makes it (**L1**). It says which offsets of each partition it covers, begins exactly where the commit
//! before it ends (**L2**), and has that commit's SHA-256 in it. So each offset is in exactly one commit, whatever clocks,
//! restarts or a second writer do; and whoever notes the head of a chain notices when anything before it is changed.
//!
//! Files are named after their content. One that no commit names does not count, and does no harm.

mod answer;
mod chain;
mod cut;
mod day;
mod digest;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use answer::{Answer, Found, Step, after_answer, after_look};
pub use chain::{Chain, ChainError, Covered, Gap, Head, Link};
pub use cut::{Cut, CutRule, Cutter};
pub use day::{DayEvidence, DayVerdict, judge};
pub use digest::{EventKey, IdDigest, mix_id};

/// Name of the data format, as folders have it.
pub const FORM: &str = "v1";
