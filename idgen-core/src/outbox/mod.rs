//! The rules of the outbox: which rows are read next, what is in flight, what becomes of what fails, and when the table of a
//! day may go.

mod retention;

pub use retention::{Retention, RetentionError};
