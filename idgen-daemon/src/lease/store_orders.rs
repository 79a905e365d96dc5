//! What a lease store must be able to do for operators who end leases: see `idgen_core::lease::order`.

use super::store::{CellStore, StoreError};
use idgen_core::lease::Order;
use std::future::Future;

/// Orders of operators, in the same place as the leases that they are against. It decides nothing. That a renewal is
/// refused while an order stands against its token is a promise of [`super::LeaseStore::renew`].
pub trait OrderStore: CellStore {
    /// The last order of each identity of both classes, of a sealed store too.
    fn orders(&mut self) -> impl Future<Output = Result<Vec<Order>, StoreError>> + Send;

    /// Records the order if the identity is held under its token, else `Conflict`; whoever listens hears of it at once. A
    /// sealed store takes it as well. What was ordered before of the identity is forgotten. Whoever orders has read the
    /// orders or surveyed before.
    fn order(&mut self, order: &Order) -> impl Future<Output = Result<(), StoreError>> + Send;
}
