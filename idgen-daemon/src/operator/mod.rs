//! What `idgenctl` shows of a lease store, and what it changes: the clock that a daemon believes, and the format of a
//! cell.

pub mod clock;
pub mod format;
pub mod leases;
mod store;
