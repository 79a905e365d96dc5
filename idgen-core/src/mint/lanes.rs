//! Which identity mints: order within a session, spreading over a server's identities, lanes for bulk.

use super::{NO_LIMIT, Refusal, Request, Run, Session, Slot};

/// The identities that a server holds, lowest first.
pub trait Identities {
    /// The slot of an identity.
    fn slot(&self, identity: u64) -> &Slot;
    /// The lowest active identity at or above `from`.
    fn next_active(&self, from: u64) -> Option<u64>;
}

/// What [`mint`] gives: a run and the identity it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minted {
    /// The run.
    pub run: Run,
    /// The identity (worker or shard) that its ids carry.
    pub identity: u64,
}

/// Which identities a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Where its new ticks are opened: from the first on, below the second.
    pub home: (u64, u64),
    /// Where it goes on within a tick when its own identity is used up: the same, and never below `home`.
    pub spill: (u64, u64),
}

impl Lanes {
    /// Everywhere.
    pub const ALL: Self = Self {
        home: (0, u64::MAX),
        spill: (0, u64::MAX),
    };

    const fn is_home(&self, identity: u64) -> bool {
        identity >= self.home.0 && identity < self.home.1
    }
}

/// Mint as requested: from the session's own identity, in this tick from the higher ones, then in a new tick
/// from the lowest.
///
/// `preferred` is where a session begins each tick; sessions should differ so that they do not contend.
///
/// # Errors
/// The most hopeful [`Refusal`] of all identities.
#[inline(always)]
pub fn mint(
    identities: &impl Identities,
    request: &Request<'_>,
    preferred: u64,
    session: &mut Session,
) -> Result<Minted, Refusal> {
    mint_within(identities, request, &Lanes::ALL, preferred, session)
}

/// [`mint`], with higher identities of `lanes.spill` and the lowest of `lanes.home` only.
///
/// # Errors
/// As [`mint`].
#[inline(always)]
pub fn mint_within(
    identities: &impl Identities,
    request: &Request<'_>,
    lanes: &Lanes,
    preferred: u64,
    session: &mut Session,
) -> Result<Minted, Refusal> {
    // Within a tick a session goes on where it is, since a lower identity would not rise. With the next tick it
    // comes home, so that sessions which spill over do not end up on the same identities.
    let start = if session.tick >= request.wall_tick && lanes.is_home(session.identity) {
        session.identity
    } else {
        preferred
    };
    let Some(identity) =
        next_within(identities, start, lanes.home).or_else(|| next_within(identities, 0, lanes.home))
    else {
        return Err(Refusal::NoLease);
    };
    match identities
        .slot(identity)
        .reserve(request, identity, session, session.this_tick(request))
    {
        Ok(run) => Ok(session.took(run, identity)),
        Err(refusal) => mint_elsewhere(identities, request, lanes, identity, refusal, session),
    }
}

/// The lowest active identity at or above `from` within a lane.
#[inline(always)]
fn next_within(identities: &impl Identities, from: u64, lane: (u64, u64)) -> Option<u64> {
    identities
        .next_active(from.max(lane.0))
        .filter(|identity| *identity < lane.1)
}

/// The session's own identity has nothing in this tick.
#[cold]
#[inline(never)]
fn mint_elsewhere(
    identities: &impl Identities,
    request: &Request<'_>,
    lanes: &Lanes,
    own: u64,
    own_refusal: Refusal,
    session: &mut Session,
) -> Result<Minted, Refusal> {
    let mut best = own_refusal;
    let rounds = [
        (own + 1, lanes.spill, session.this_tick(request)),
        (0, lanes.home, NO_LIMIT),
    ];
    for (from, lane, tick_limit) in rounds {
        let mut candidate = next_within(identities, from, lane);
        while let Some(identity) = candidate {
            match identities
                .slot(identity)
                .reserve(request, identity, session, tick_limit)
            {
                Ok(run) => return Ok(session.took(run, identity)),
                Err(refusal) => best = best.max(refusal),
            }
            candidate = next_within(identities, identity + 1, lane);
        }
        if tick_limit != NO_LIMIT && best == Refusal::TickFull {
            // Full for this tick only: the second round may open the next one and gives the final word.
            best = Refusal::NoLease;
        }
    }
    Err(best)
}

impl Session {
    /// The tick that a session may go on with without opening one ahead of both its clock and its last id.
    #[inline(always)]
    fn this_tick(&self, request: &Request<'_>) -> u64 {
        request.wall_tick.max(self.tick)
    }

    #[inline(always)]
    fn took(&mut self, run: Run, identity: u64) -> Minted {
        self.tick = run.tick;
        self.identity = identity;
        Minted { run, identity }
    }
}
