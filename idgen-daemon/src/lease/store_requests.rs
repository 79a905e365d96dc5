//! What a lease store must be able to do for what needs two people: see `idgen_core::lease::approval`.

use super::store::StoreError;
use super::store_orders::OrderStore;
use idgen_core::lease::approval::{Ask, Needed, Request};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{AdvancePlan, Order};
use std::future::Future;

type Result<T> = std::result::Result<T, StoreError>;

/// What a store knows of requests, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// How many people are needed.
    pub needed: Needed,
    /// Newest first.
    pub requests: Vec<Request>,
}

/// Requests and their approvals, in the same place as the leases, of a sealed store too. It decides nothing: whoever uses a
/// request has judged it, and it is used in the very step that does what it asks for, if it, and every approval of it, is
/// as it was read last, and it was not used before; else `Conflict`. Approvals are not written here, but by people: as
/// [`super::AnyApprover`].
pub trait RequestStore: OrderStore {
    /// All of them, and how many people are needed.
    fn asked(&mut self) -> impl Future<Output = Result<Asked>> + Send;

    /// Writes a new request down.
    fn ask(&mut self, ask: &Ask) -> impl Future<Output = Result<()>> + Send;

    /// Takes an identity from its holder, if its row is as it was surveyed: the ceiling stays, for the holder may have
    /// minted up to it. The order says so to the holder.
    fn force_release(
        &mut self,
        request: &Request,
        row: &Row,
        order: &Order,
    ) -> impl Future<Output = Result<()>> + Send;

    /// As [`super::CellStore::advance`], by a request.
    fn advance_by(
        &mut self,
        request: &Request,
        plan: &AdvancePlan,
    ) -> impl Future<Output = Result<()>> + Send;

    /// So many approvals are needed from now on.
    fn need(&mut self, request: &Request, approvals: u32) -> impl Future<Output = Result<()>> + Send;
}
