//! Keeping leases: the shell around `idgen_core::lease`. Each class (workers, shards) has a keeper, a store
//! and sessions of its own, so that trouble of one does not reach the other.
//!
//! [`Keeper`] talks to the server that mints and asks the core what to do; its [`desk`](self) carries
//! one request at a time to the [`LeaseStore`], so that a slow store never delays a look at the server.

mod beacons;
mod clock;
mod desk;
mod history;
mod keeper;
mod open;
mod pinned;
pub(crate) mod ranges;
mod report;
#[cfg(test)]
mod schedules;
mod server;
mod store;
mod store_etcd;
#[cfg(test)]
#[allow(dead_code, reason = "the conformance suite uses the rest of it")]
pub(crate) mod store_memory;
mod store_named;
mod store_postgres;

pub use beacons::{Beacon, Heard, Shown};
pub use clock::{
    ANSWER_LIMIT, AcceptClock, AcceptRequests, ClockInputs, SyncSeen, accept_channel, ask_for_ever,
    host_clock,
};
pub use keeper::{Keeper, KeeperConfig};
pub use open::{AnyStore, listen};
pub(crate) use pinned::Pinned;
pub use report::Report;
pub use server::{Connect, MintingServer};
pub use store::{
    CellStore, Committed, Expected, HolderName, LeaseStore, Renewal, Seal, StoreError, StoreErrorKind,
};
pub use store_etcd::{EtcdConfig, EtcdSecurity, EtcdStore, EtcdUser, Password, Secret, identities_at_once};
pub use store_named::{CEILING_KEY_BYTES_MAX, CEILINGS_AT_ONCE, NamedStore, StripeStore};
pub use store_postgres::{PostgresStore, PostgresStoreConfig};

#[cfg(fuzzing)]
pub use store_etcd::fuzzing;
