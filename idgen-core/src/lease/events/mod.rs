//! Lease events: what happened to leases, derived from the store's own log, in a trail that shows when a part of it is missing
//! or was changed.
//!
//! ```text
//!  the store's log                  the trail
//!  commits of keys  --- Tracker ---> events --- Chain ---> records, each with the hash of the one before
//! ```
//! A store counts the changes of each of its keys: etcd's version, or the column of that name. So whoever follows the log knows
//! of each key whether a change is missing, and how many are, also when the log itself is gone.
//!
//! ```text
//!  place    which keys there are, and what is in them      steps    does a change follow on the one before?
//!  derive   one commit -> what it did                      tracker  the keys as they were last seen; renewals are folded
//!  record   an event as it is kept                         chain    hashes, and where they break
//! ```
//! **Renewals are no events.** They are most of the log (every 2 s for each shard), and each says what the one before did.
//! They are counted: an event says how many changes of its key there were since the last one.
//!
//! What is absent: stores, tables, clocks. Nothing here stops at a value that it cannot read.

mod chain;
mod derive;
mod place;
mod record;
mod steps;
mod tracker;

#[cfg(test)]
mod tests;

pub use chain::{Broken, Chain, Head, Verifier};
pub use place::{HighWater, Holding, Ordered, Place, Value};
pub use record::{Detail, Event, Finding, Kind, Record, When};
pub use steps::{Before, Lost, Seen};
pub use tracker::{Commit, KeyChange, Log, Replaced, SUSPECT_MS, Suspect, Tracked, Tracker};
