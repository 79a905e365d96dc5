//! What `idgenctl` changes: the clock that a daemon believes, and the format of a cell.

pub mod clock;
pub mod format;
