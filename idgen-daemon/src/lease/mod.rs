//! Keeping leases: the shell around `idgen_core::lease`. Each class (workers, shards) has a keeper, a store
//! and sessions of its own, so that trouble of one does not reach the other.
//!
//! [`Keeper`] talks to the server that mints and asks the core what to do; its [`desk`](self) carries
//! one request at a time to the [`LeaseStore`], so that a slow store never delays a look at the server.

mod approver;
mod beacons;
mod clock;
mod desk;
pub mod events;
mod history;
mod holder;
mod keeper;
mod open;
mod orders;
mod pinned;
pub(crate) mod ranges;
mod report;
mod requests;
#[cfg(test)]
mod schedules;
mod server;
mod shards;
#[cfg(feature = "outbox")]
mod sole;
mod store;
mod store_drains;
mod store_etcd;
#[cfg(test)]
#[allow(dead_code, reason = "the conformance suite uses the rest of it")]
pub(crate) mod store_memory;
mod store_named;
mod store_orders;
mod store_postgres;
mod store_requests;
mod store_shards;

pub use approver::AnyApprover;
pub use beacons::{Beacon, Heard, Shown};
pub use clock::{
    ANSWER_LIMIT, AcceptClock, AcceptRequests, ClockInputs, SyncSeen, accept_channel, ask_for_ever,
    host_clock, host_ms, host_us,
};
pub(crate) use holder::{Hold, Holder, boot_now};
pub use keeper::{Keeper, KeeperConfig, ShardList};
pub use open::{AnyShards, AnyStore, listen, shards_of};
pub use orders::{Listeners, OrderPost, OrdersHeard, hear_orders, order_channel};
pub(crate) use pinned::Pinned;
pub use report::Report;
pub use server::{Connect, MintingServer};
pub(crate) use shards::place_json;
pub use shards::{MapFeeder, ShardBoard, ShardMap, ShardWatch, ShardWatchConfig};
#[cfg(feature = "outbox")]
pub(crate) use sole::Sole;
pub use store::{
    CellStore, Committed, Expected, HolderName, LeaseStore, Renewal, Seal, StoreError, StoreErrorKind,
};
pub use store_drains::DrainStore;
pub use store_etcd::{
    EtcdApprover, EtcdConfig, EtcdSecurity, EtcdShards, EtcdStore, EtcdUser, Password, identities_at_once,
};
pub use store_named::{CEILING_KEY_BYTES_MAX, CEILINGS_AT_ONCE, NamedStore, StripeStore};
pub use store_orders::OrderStore;
pub use store_postgres::{PostgresApprover, PostgresShards, PostgresStore, PostgresStoreConfig};
pub use store_requests::{Asked, RequestStore};
pub use store_shards::{AssignmentStore, RECORDS_AT_ONCE, Reassignment, ShardFeed, ShardLook};

#[cfg(fuzzing)]
pub use store_etcd::fuzzing;
