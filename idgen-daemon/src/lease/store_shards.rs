//! What a lease store must be able to do for shards that move: see `idgen_core::lease::assigned`.

use super::store::StoreError;
use idgen_core::clock::UnixMs;
use idgen_core::lease::{Assigned, Assignment, Identity, InstanceId, Presence, Revision};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Instant;

type Result<T> = std::result::Result<T, StoreError>;

/// Records that are written in one step, at the most: an etcd transaction takes 128 operations.
pub const RECORDS_AT_ONCE: usize = 100;

/// A record, and the version that it takes the place of; 0: there was none.
pub type Reassignment = (Identity, u64, Assignment);

/// Who is to have which shard, by order. It decides nothing; whoever writes has read before. No cell is made here: a
/// store without one is `Denied`, a sealed one is `Sealed`.
pub trait AssignmentStore: Send + 'static {
    /// All records.
    fn assignments(&mut self) -> impl Future<Output = Result<BTreeMap<Identity, Assignment>>> + Send;

    /// Writes these, at most [`RECORDS_AT_ONCE`], all or none: if each takes the place of the version that was seen, else
    /// `Conflict`.
    fn assign(&mut self, records: &[Reassignment]) -> impl Future<Output = Result<()>> + Send;
}

/// All that is known of who has which shard.
#[derive(Clone, Debug)]
pub struct ShardLook {
    /// Records and servers.
    pub assigned: Assigned,
    /// The store's revision that it is true for.
    pub revision: Revision,
    /// It was all there was at this moment.
    pub known_at: Instant,
}

/// The same from then on: whoever follows looks once, and again whenever something was heard.
pub trait ShardFeed: Send + 'static {
    /// What is known now; asks the store where it has to.
    fn look(&mut self) -> impl Future<Output = Result<ShardLook>> + Send;

    /// Waits until there is something new to look at. May be dropped and called again: nothing is missed.
    fn heard(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Shows a server for so long. `news`: what it shows has changed, so others are to hear of it at once.
    fn show(
        &mut self,
        presence: &Presence,
        ttl_ms: u64,
        news: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Shows it no longer.
    fn withdraw(&mut self, instance: InstanceId) -> impl Future<Output = Result<()>> + Send;

    /// When a server was shown that has been heard of since; `None`: nothing that was shown was heard yet.
    fn heard_own(&self) -> Option<UnixMs>;

    /// Forgets the connection: the next look begins anew, elsewhere where it can.
    fn start_over(&mut self);
}
