//! Numbers by chance.

use uuid::Uuid;

/// Any number: spreads renewals and choices. Quality does not matter, difference between daemons does.
pub(crate) fn random() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}
