//! What `idgenctl` shows of a lease store, and what it changes: the clock that a daemon believes, the format of a cell,
//! its epoch, and the locks that commands run under.

pub mod approvals;
#[cfg(feature = "outbox")]
pub mod archive;
#[cfg(feature = "outbox")]
pub mod audit;
pub mod clock;
pub mod consent;
#[cfg(feature = "outbox")]
pub mod doctor;
pub mod epoch;
pub mod events;
pub mod format;
pub mod leases;
pub mod lock;
pub mod masters;
#[cfg(feature = "outbox")]
pub mod outbox;
pub mod region;
pub mod requests;
pub mod revoke;
pub mod server;
pub mod shards;
mod store;
pub mod stripes;
