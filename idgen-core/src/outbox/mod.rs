//! The rules of the outbox: which rows are read next, what is in flight, what becomes of what fails, and when the table of a
//! day may go.
//!
//! Rows of the table are truth. What is known here is only ever less than that, so all of it may be forgotten at any moment:
//! then rows are sent again, in order, and readers pass over what they have seen.

mod backoff;
mod cursor;
mod day;
mod failure;
mod flight;
mod retention;

pub use backoff::Backoff;
pub use cursor::{Cursor, Look, Snapshot, SnapshotError};
pub use day::{DAYS_AHEAD_MIN, DayFacts, DayState, Gate, Leaf, days_ahead, holes};
pub use failure::{Poison, SendFault, Verdict};
pub use flight::{Flight, FlightLimits};
pub use retention::{Retention, RetentionError};
