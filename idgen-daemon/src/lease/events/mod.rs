//! Lease events: one follower reads the log of a lease store and writes the trail. The rules are in
//! `idgen_core::lease::events`.
//!
//! ```text
//!  store_etcd/log.rs      a watch with the value before      \                          / table.rs  tables of a Postgres
//!  store_postgres/log.rs  what triggers have written down    -> EventLog -> Follower -> Sink
//! ```
//! Daemons that share a sink have one follower: whoever has the named lease of that sink. The others stand by and go on from
//! the cursor, which the sink writes in one transaction with the events. So nothing is told twice and nothing is left out,
//! whatever the lease says: a second follower finds another cursor than it left, and begins anew from there.

mod decode;
mod follower;
mod open;
mod table;

pub(crate) use decode::{key_places, row_places, value_of};
pub use follower::{Follower, FollowerConfig};
pub use open::{AnyLog, EventsConfig, events, keep_short};
pub use table::{Read, TableSink, TrailEnd, sink_identity};

use super::store::StoreError;
use idgen_core::lease::events::{Commit, Head, Log, Place, Record, Seen, Tracked, When};
use idgen_core::lease::{CellId, StoreIdentity, Token};
use std::future::Future;
use std::time::Duration;

/// All keys of a store at one moment.
#[derive(Clone, Debug)]
pub struct Present {
    /// Its cell.
    pub cell: CellId,
    /// Which store it is.
    pub store: StoreIdentity,
    /// When that was.
    pub when: When,
    /// Its log is there from the first position on.
    pub has_all: bool,
    /// They.
    pub states: Vec<(Place, Seen)>,
}

/// What a log says next.
#[derive(Clone, Debug)]
pub enum Next {
    /// This happened; up to this position everything is told.
    Commits(Vec<Commit>, u64),
    /// Nothing, within the time: whether there is anything is not known.
    Nothing,
    /// Nothing: it was read up to its end.
    AtItsEnd,
    /// The log before this position is gone; the keys as they were there can be read.
    Gap(u64),
    /// It is another store, or an older state of it.
    Replaced(String),
}

/// The log of a store.
pub trait EventLog: Send {
    /// What is in it.
    const LOG: Log;

    /// The keys as they are; or as they were at a position that [`Next::Gap`] has named, where the store can tell.
    fn present(&mut self, at: Option<u64>) -> impl Future<Output = Result<Present, StoreError>> + Send;

    /// Goes on after this position.
    fn follow(&mut self, from: u64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What comes next. May be given up at any moment and asked again.
    fn next(&mut self, within: Duration) -> impl Future<Output = Result<Next, StoreError>> + Send;

    /// Removes some of what is older than anybody who follows may be behind. Is there more?
    fn prune(&mut self) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// Where a trail ends, and what its tracker has seen.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The store that was followed.
    pub store: StoreIdentity,
    /// Its history.
    pub branch: u64,
    /// Everything up to here is in the trail.
    pub cursor: When,
    /// Where the chain ends.
    pub head: Head,
    /// The keys.
    pub keys: Vec<(Place, Tracked)>,
}

/// What is added to a trail in one step.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose.
    pub cell: CellId,
    /// Where the trail ended when this was made; `None`: there was none.
    pub after: Option<(Head, u64)>,
    /// The store that was followed, and its history.
    pub store: (StoreIdentity, u64),
    /// The events.
    pub records: Vec<Record>,
    /// Everything up to here is in the trail then.
    pub cursor: When,
    /// Where the chain ends then.
    pub head: Head,
    /// Keys that have changed; `None`: it is gone.
    pub keys: Vec<(Place, Option<Tracked>)>,
    /// Under which lease it is written, and by whom.
    pub written: (Token, String),
}

/// Where a trail is kept.
pub trait Sink: Send {
    /// Where the trail of a cell ends.
    fn cursor(&mut self, cell: CellId) -> impl Future<Output = Result<Option<Kept>, StoreError>> + Send;

    /// Adds to it: all of the batch is durable then, or nothing. `Conflict`: the trail does not end where it did.
    fn append(&mut self, batch: &Batch) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes some of the events that are older than this. Are there more?
    fn prune(
        &mut self,
        cell: CellId,
        keep_days: u32,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
