//! Named leases: who alone may do a thing that has a name, and until when.
//!
//! A named lease is exclusive: one holder at a time, under a fencing token (epoch, revision of the store at the grant).
//! Beside it the store keeps a bag of *ceilings*, key -> number, that only the holder can raise and that nobody can
//! lower. They outlive the lease. What a holder does is bounded by ceilings that were committed before, and its
//! successor begins above those that it finds; so nothing is done twice, however wrong clocks and deadlines are. The
//! lease in time is for order and for whoever has nothing to count.
//!
//! ```text
//!  name      what is leased            tenure    held, renewed, in doubt, lost: what to do next
//!  ledger    the store's rows, and what they allow      ceilings  what may be raised, and what is known of it
//!  stripes   which index of a space belongs to which server
//!  lock      commands of callers that run under a name
//! ```
//!
//! What is absent: windows on the time axis, as workers and shards have them.

pub mod ceilings;
pub mod ledger;
pub mod lock;
pub mod name;
pub mod stripes;
pub mod tenure;

#[cfg(test)]
mod simulation;

pub use ceilings::{Ceilings, Raise, Stored, Want};
pub use ledger::{Acquisition, Held, NamedLook, NamedRow, Occupant, Standing, Who};
pub use lock::LockMode;
pub use name::{BadName, LeaseName};
pub use stripes::{
    ClaimPlan, ClaimRefused, Cut, JoinPlan, JoinRefused, ReleasePlan, ReleaseRefused, StripeClaim, StripeWish,
};
pub use tenure::{Attempt, Decision, Step, Tenure, TenureLoss};

use super::timing::TimingSpec;

/// Times of a named lease, where nothing else is asked for. Whoever comes after a holder that died waits for the rest of
/// the TTL; an outage of the store of TTL - margin - period is not noticed.
#[must_use]
pub fn lease_timing(ttl_ms: Option<u64>) -> TimingSpec {
    const TTL_MS: u64 = 30_000;
    const PERIOD_MS: u64 = 5_000;
    let spec = TimingSpec::of_ttl(ttl_ms.unwrap_or(TTL_MS));
    TimingSpec {
        period_ms: Some((spec.ttl_ms / 4).min(PERIOD_MS)),
        ..spec
    }
}
