//! What `idgenctl` changes: the clock that a daemon believes, the format of a cell, and its epoch.

pub mod clock;
pub mod epoch;
pub mod format;
mod store;
