//! What `idgenctl` shows of a lease store, and what it changes: the clock that a daemon believes, the format of a cell, and
//! its epoch.

pub mod clock;
pub mod epoch;
pub mod format;
pub mod leases;
mod store;
pub mod stripes;
