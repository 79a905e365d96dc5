//! Pauses between requests, spread so that many daemons do not act together.

use super::Ticket;
use crate::lease::timing::spread;

/// Pause after the first failed attempt to get a lease, in ms: long against a round trip, short against
/// the 2 s that callers wait for a lease (`idgen.lease_wait_ms`). It doubles with every further one.
pub const RETRY_MS: u64 = 250;

/// The first grant of a daemon is asked for up to this much later than it could be, so that the daemons of
/// a whole site do not ask in one moment; nobody notices it in the start of one.
pub const START_SPREAD_MS: u64 = 250;

/// A pause is up to this much longer or shorter, in percent: who has failed together does not try again
/// together.
pub(super) const PAUSE_SPREAD_PERCENT: u64 = 25;

/// Up to 2^3 * 250 ms = 2 s while the store grants nothing: it may be back any moment.
pub(super) const GRANT_DOUBLINGS_MAX: u32 = 3;

/// Up to 2^7 * 250 ms = 32 s while the server refuses what was granted: each attempt leaves identities
/// behind that expire only in the store, and so a pool of 512 outlasts a refusal of any length at the
/// default TTL and number of identities.
pub(super) const REFUSAL_DOUBLINGS_MAX: u32 = 7;

/// After that many setbacks before this one.
pub(super) fn after_setbacks_ms(setbacks: u32, doublings_max: u32, random: u64) -> u64 {
    spread(
        RETRY_MS << setbacks.min(doublings_max),
        PAUSE_SPREAD_PERCENT,
        random,
    )
}

/// Before the first request of all. After a crash of the server callers wait, and there is none.
pub(super) fn at_start_ms(last: Ticket, random: u64) -> u64 {
    if last == Ticket::default() {
        random % (START_SPREAD_MS + 1)
    } else {
        0
    }
}
