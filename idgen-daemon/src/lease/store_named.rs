//! What a lease store must be able to do for named leases: see `idgen_core::lease::named`.

use super::store::{Committed, StoreError};
use idgen_core::lease::named::{
    Acquisition, ClaimPlan, Held, JoinPlan, LeaseName, NamedLook, NamedRow, Raise, ReleasePlan, Stored,
    StripeClaim,
};
use idgen_core::lease::{Revision, Token};
use std::collections::BTreeMap;
use std::future::Future;

/// Ceilings that are read or raised at once, at the most: an etcd transaction takes 128 operations.
pub const CEILINGS_AT_ONCE: usize = 100;

/// Longest key of a ceiling, in bytes; as a tag.
pub const CEILING_KEY_BYTES_MAX: usize = 200;

type Result<T> = std::result::Result<T, StoreError>;

/// Named leases and their ceilings, in the same place and under the same cell as the others. It decides nothing, as
/// [`super::LeaseStore`]; whoever writes has looked before. No cell is made here: a store without one is `Denied`, a
/// sealed one, or one that has lost rows, is `Sealed`.
pub trait NamedStore: Send + 'static {
    /// The cell and the row of one name at one moment.
    fn look_at(&mut self, name: &LeaseName) -> impl Future<Output = Result<NamedLook>> + Send;

    /// All names below `prefix`, which is empty or ends in a slash, in their order.
    fn list(&mut self, prefix: &str) -> impl Future<Output = Result<Vec<NamedRow>>> + Send;

    /// Grants the name if the epoch is that of the plan, the row is as it was seen, and nobody holds it (or whoever does
    /// has expired by the store's clock), else `Conflict`.
    fn acquire(&mut self, plan: &Acquisition) -> impl Future<Output = Result<Committed>> + Send;

    /// Gives it another TTL if the epoch is that of the token, and it is held under the token with this guard, else
    /// `Conflict`. One that has expired without anybody taking it is renewed where the store still shows it.
    fn renew_held(&mut self, held: &Held) -> impl Future<Output = Result<Committed>> + Send;

    /// Gives it up if it is held under this token; false: it is not. The ceilings stay.
    fn give_up(&mut self, name: &LeaseName, token: Token) -> impl Future<Output = Result<bool>> + Send;

    /// The ceilings of these keys, at most [`CEILINGS_AT_ONCE`]; those that are missing have none.
    fn ceilings(
        &mut self,
        name: &LeaseName,
        keys: &[String],
    ) -> impl Future<Output = Result<BTreeMap<String, Stored>>> + Send;

    /// Raises all of these (at most [`CEILINGS_AT_ONCE`]) or none: if the epoch is that of the token, the name is held
    /// under it, and every ceiling is as it was seen and below what is asked for, else `Conflict`.
    fn raise(&mut self, held: &Held, raises: &[Raise]) -> impl Future<Output = Result<Revision>> + Send;
}

/// Which server has which stripe of a space.
pub trait StripeStore: NamedStore {
    /// All claims of a space, or of all spaces, by space and index.
    fn stripes(&mut self, space_id: Option<u128>) -> impl Future<Output = Result<Vec<StripeClaim>>> + Send;

    /// Writes a claim if what is there is as it was seen, else `Conflict`.
    fn claim_stripe(&mut self, plan: &ClaimPlan) -> impl Future<Output = Result<()>> + Send;

    /// Writes that the database of a claim begins to grant, if the claim is as it was seen and not given up, else
    /// `Conflict`.
    fn join_stripe(&mut self, plan: &JoinPlan) -> impl Future<Output = Result<()>> + Send;

    /// Writes that a claim was given up if it is as it was seen, else `Conflict`.
    fn release_stripe(&mut self, plan: &ReleasePlan) -> impl Future<Output = Result<()>> + Send;
}

/// Whoever leases names makes no cell: that is for those who know what their server was served from.
pub(super) fn no_cell() -> StoreError {
    let message =
        "the lease store is empty (hint: the first idgend that leases workers or shards makes the cell)";
    StoreError::new(super::store::StoreErrorKind::Denied, message)
}

/// What every store refuses alike before it is asked.
pub(super) fn check_raises(raises: &[Raise]) -> Result<()> {
    use super::store::StoreErrorKind::{Conflict, Denied};
    if raises.len() > CEILINGS_AT_ONCE {
        let message = format!("{} ceilings at once, of {CEILINGS_AT_ONCE}", raises.len());
        return Err(StoreError::new(Denied, message));
    }
    let is_long = |raise: &&Raise| !(1..=CEILING_KEY_BYTES_MAX).contains(&raise.key.len());
    if let Some(raise) = raises.iter().find(is_long) {
        let message = format!("the key of a ceiling has {} bytes", raise.key.len());
        return Err(StoreError::new(Denied, message));
    }
    let falls = |raise: &Raise| raise.to <= raise.seen.map_or(0, |seen| seen.ceiling);
    if raises.iter().any(falls) {
        return Err(StoreError::new(Conflict, "a ceiling would not rise"));
    }
    Ok(())
}
