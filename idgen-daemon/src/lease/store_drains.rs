//! What a lease store must be able to do for servers that are drained: see `idgen_core::lease::drain`.

use super::store::{CellStore, StoreError};
use idgen_core::lease::Drain;
use std::future::Future;

/// Records of who is drained, in the same place as the leases. That a server which is drained is granted nothing is a promise of
/// [`super::LeaseStore::grant`], to whoever asks by the name of that server; what is said of it is part of each
/// [`super::LeaseStore::read`].
pub trait DrainStore: CellStore {
    /// What was said last of each server of which anything was, in the order of their names; of a sealed store too.
    fn drains(&mut self) -> impl Future<Output = Result<Vec<Drain>, StoreError>> + Send;

    /// Writes the record if the one before has the version before, else `Conflict`. No grant that was planned without it comes
    /// after. A sealed store takes it as well. Whoever writes has surveyed before.
    fn set_drain(&mut self, drain: &Drain) -> impl Future<Output = Result<(), StoreError>> + Send;
}
