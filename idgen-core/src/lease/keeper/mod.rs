//! The keeper of one server's lease: what happened -> what to do next, as one total function.
//!
//! ```text
//!             Reading       Inspected          Probed
//!   Away ------------> Arriving ------> Vacant <---- Probing (claims an earlier daemon left open)
//!    ^                                    | ^            \
//!    | ServerLost                 Acquire | | Released    v
//!    | (from anywhere)                    v |          Fencing -> Releasing -> Vacant | Stopped
//!    |                    Granted     Acquiring                ^
//!    +---- Holding <--- Installing <------+                    | deadline passed, lease lost,
//!            |  ^                                              | refused, or Stop
//!     Renew  v  | Extended                                     |
//!         Renewing -> Extending -------------------------------+
//!
//!  of listed identities, while others stay:
//!         Holding -- Shedding (fences those that go) --> Returning (gives them back) --> Holding
//!         Holding -- Growing (asks for those that come) --> Installing (them alone) --> Holding
//! ```
//! The rules, each kept by a transition below and checked by the simulation beside it:
//! - A deadline counts from the clock reading made *before* the request was sent.
//! - A ceiling is published only after the store's commit of it is known.
//! - An unknown answer of the store is never assumed: the next request reads the store again first.
//! - A token whose deadline has passed, or whose boot id has changed, is never renewed nor installed
//!   again; it is replaced by a new grant.
//! - A release names the exact high water that a fence of the live shared memory returned.
//! - A lease that the store took away is not followed by another at once; see [`Loss::hold_off_ms`].
//! - While the wall clock is not believed nothing is acquired and no ceiling is raised; deadlines are. While it may
//!   be believed but no lease taken by it, what an earlier daemon left open is left alone: closing it would stop the
//!   minting, and nothing could follow.
//! - An answer to a request that is no longer waited for is dropped: each carries a [`Ticket`].
//!
//! All identities of a server are one lease: renewed together, and given up together when it ends. Listed ones
//! ([`Event::Want`]) come and go one by one, each under the token of its own grant, and no other waits for that.

mod arrival;
mod loss;
mod pause;
mod set;
mod transitions;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use super::ledger::{Attempt, Grant};
use super::timing::Timing;
use super::token::{BootId, Claim, Identity, Mark, Revision, Token};
use super::window::{Leased, Tenancy};
use crate::clock::{BootMs, ClockReading};
use core::fmt;

pub use loss::Loss;
pub use pause::{RETRY_MS, START_SPREAD_MS};
pub use set::Growth;
pub use transitions::next;

/// Names one request to the store, so that late answers can be told apart. 64 bits never wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// A lease that the store has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The shared memory it was granted for.
    pub boot_id: BootId,
    /// When minting must stop, on the server's boot clock. Never shrinks, of no identity in the server.
    pub deadline: BootMs,
    /// When the next renewal is due.
    pub renew_at: BootMs,
    /// Identities in rising order: tokens, guards of the next renewal, and committed windows.
    pub leased: Vec<Tenancy>,
    /// Granted beside them; the server has not confirmed it.
    pub arrivals: Vec<Tenancy>,
    /// Are to be closed and given back, beside those that stay. To close a claim twice gives the same mark.
    pub closing: Vec<Claim>,
    /// Not before this time.
    pub close_at: BootMs,
    /// The server has confirmed the installation.
    pub installed: bool,
    /// The server has confirmed the windows and the deadline as they stand here.
    pub published: bool,
    /// The answer to an earlier renewal is unknown: the guards may be out of date.
    pub doubt: bool,
}

/// What to do once a fence or release is through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Take a new lease, not before this time.
    Replace {
        /// On the server's boot clock.
        retry_at: BootMs,
    },
    /// End.
    Stop,
}

impl Held {
    /// A moment not after the reading that was made before the store was asked for what it last committed of this
    /// lease, while that is not published: on the server's boot clock.
    #[must_use]
    pub fn asked_after(&self, timing: &Timing) -> BootMs {
        self.renew_at.saturating_sub(timing.longest_period_ms())
    }

    /// All that may be open in the server.
    fn claims(&self) -> Vec<Claim> {
        let open = self.leased.iter().chain(&self.arrivals).map(Tenancy::claim);
        open.chain(self.closing.iter().copied()).collect()
    }
}

/// Where the keeper is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No contact with the server, or no lease can be taken by its clock.
    Away {
        /// A lease that may still be installed there.
        held: Option<Held>,
    },
    /// Asking the server which claims an earlier daemon left open.
    Arriving {
        /// The server's shared memory.
        boot_id: BootId,
    },
    /// Such claims are there; is the store within reach? Fencing them while it is not would stop
    /// minting for nothing.
    Probing {
        /// The server's shared memory.
        boot_id: BootId,
        /// The open claims.
        claims: Vec<Claim>,
        /// The question to the store.
        ticket: Ticket,
    },
    /// No lease.
    Vacant {
        /// The server's shared memory.
        boot_id: BootId,
        /// Not before this time.
        retry_at: BootMs,
        /// A grant that was sent and whose answer got lost.
        doubt: Option<Attempt>,
    },
    /// A grant was asked for.
    Acquiring {
        /// The shared memory it is for.
        boot_id: BootId,
        /// The request.
        ticket: Ticket,
    },
    /// The store has committed the grant; the server is being told.
    Installing {
        /// The lease.
        held: Held,
    },
    /// The server mints.
    Holding {
        /// The lease.
        held: Held,
    },
    /// A renewal was asked for.
    Renewing {
        /// The lease as it was before.
        held: Held,
        /// The request.
        ticket: Ticket,
        /// The reading made before it was sent.
        asked: ClockReading,
        /// Whether the wall clock of that reading was believed.
        clock_good: bool,
        /// When the renewal after this one is due.
        renew_at: BootMs,
    },
    /// The store has committed the renewal; the server is being told.
    Extending {
        /// The lease.
        held: Held,
    },
    /// The server is closing those that go.
    Shedding {
        /// The lease without them; they are its `closing`.
        held: Held,
    },
    /// The store is told their exact high waters.
    Returning {
        /// The lease without them.
        held: Held,
        /// The request.
        ticket: Ticket,
        /// What is being given back.
        claims: Vec<Claim>,
    },
    /// A grant of those that come was asked for.
    Growing {
        /// The lease without them.
        held: Held,
        /// The request.
        ticket: Ticket,
    },
    /// The server is closing the claims.
    Fencing {
        /// The shared memory they are in.
        boot_id: BootId,
        /// What is being closed.
        claims: Vec<Claim>,
        /// What comes after.
        goal: Goal,
    },
    /// The store is told the exact high waters.
    Releasing {
        /// The shared memory they were fenced in.
        boot_id: BootId,
        /// The request.
        ticket: Ticket,
        /// What comes after.
        goal: Goal,
    },
    /// The end.
    Stopped,
}

impl Phase {
    /// Its name, for logs and errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Away { .. } => "away",
            Self::Arriving { .. } => "arriving",
            Self::Probing { .. } => "probing",
            Self::Vacant { .. } => "vacant",
            Self::Acquiring { .. } => "acquiring",
            Self::Installing { .. } => "installing",
            Self::Holding { .. } => "holding",
            Self::Renewing { .. } => "renewing",
            Self::Extending { .. } => "extending",
            Self::Shedding { .. } => "shedding",
            Self::Returning { .. } => "returning",
            Self::Growing { .. } => "growing",
            Self::Fencing { .. } => "fencing",
            Self::Releasing { .. } => "releasing",
            Self::Stopped => "stopped",
        }
    }

    /// The request that is waited for.
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Probing { ticket, .. }
            | Self::Acquiring { ticket, .. }
            | Self::Renewing { ticket, .. }
            | Self::Returning { ticket, .. }
            | Self::Growing { ticket, .. }
            | Self::Releasing { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// The lease, where there is one that has not been given up.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        match self {
            Self::Away { held } => held.as_ref(),
            Self::Installing { held }
            | Self::Holding { held }
            | Self::Renewing { held, .. }
            | Self::Extending { held }
            | Self::Shedding { held }
            | Self::Returning { held, .. }
            | Self::Growing { held, .. } => Some(held),
            Self::Arriving { .. }
            | Self::Probing { .. }
            | Self::Vacant { .. }
            | Self::Acquiring { .. }
            | Self::Fencing { .. }
            | Self::Releasing { .. }
            | Self::Stopped => None,
        }
    }
}

/// The keeper's whole memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Where it is.
    pub phase: Phase,
    /// The last ticket that was given out.
    pub ticket: Ticket,
    /// Boot time of the last reading: what "now" means between two of them.
    pub now: BootMs,
    /// Grants that failed and installations that were refused since the last lease: the pauses between
    /// them grow.
    pub setbacks: u32,
    /// The random number of the last reading: spreads the pauses.
    pub random: u64,
    /// Which identities are wanted, in rising order; `None`: whichever the pool has.
    pub want: Option<Vec<Identity>>,
    /// How those of them that are missing are asked for.
    pub growth: Growth,
}

impl State {
    /// The beginning: no contact with the server, nothing held.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Phase::Away { held: None },
            ticket: Ticket(0),
            now: BootMs(0),
            setbacks: 0,
            random: 0,
            want: None,
            growth: Growth::default(),
        }
    }

    /// The same; these are wanted.
    #[must_use]
    pub fn wanting(mut identities: Vec<Identity>) -> Self {
        identities.sort_unstable();
        Self {
            want: Some(identities),
            ..Self::new()
        }
    }

    /// After a stale answer: whatever is held may have changed in the store.
    fn distrusting(mut self) -> Self {
        match &mut self.phase {
            Phase::Holding { held } | Phase::Away { held: Some(held) } => held.doubt = true,
            _ => {}
        }
        self
    }

    /// When the next reading is needed at the latest, on the server's boot clock; `None`: no hurry.
    #[must_use]
    pub fn wake_at(&self) -> Option<BootMs> {
        match &self.phase {
            Phase::Holding { held } => {
                let due = held.renew_at.min(held.deadline);
                Some(self.set_due(held).map_or(due, |at| due.min(at)))
            }
            Phase::Renewing { held, .. } | Phase::Returning { held, .. } | Phase::Growing { held, .. } => {
                Some(held.deadline)
            }
            Phase::Vacant { retry_at, .. } => self.wants_any().then_some(*retry_at),
            _ => None,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// A reading of the server's clocks, and whose shared memory it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Both clocks.
    pub clock: ClockReading,
    /// The server's shared memory.
    pub boot_id: BootId,
    /// Whether the wall clock is believed: it may raise ceilings (see [`super::ClockMonitor`]).
    pub clock_good: bool,
    /// Whether a lease may be taken by it.
    pub may_acquire: bool,
    /// Any number; spreads renewals and pauses.
    pub random: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server answered.
    Reading(Reading),
    /// The connection to the server is gone, it cannot be used now, or it is in recovery.
    ServerLost,
    /// The server says that it has another boot id than the one named in an install, extend or fence.
    ServerForgot,
    /// The claims in shared memory that are not fenced.
    Inspected {
        /// Their identities and tokens.
        claims: Vec<Claim>,
    },
    /// The store is within reach.
    Probed {
        /// Which request.
        ticket: Ticket,
    },
    /// It is not.
    ProbeFailed {
        /// Which request.
        ticket: Ticket,
    },
    /// The store has committed a grant.
    Granted {
        /// Which request.
        ticket: Ticket,
        /// The grant.
        grant: Grant,
    },
    /// No grant, or none that is known of.
    GrantFailed {
        /// Which request.
        ticket: Ticket,
        /// The attempt, when it may have been committed all the same.
        doubt: Option<Attempt>,
    },
    /// The server has installed all identities.
    Installed,
    /// The server has refused one of them.
    InstallRefused,
    /// The store has committed a renewal.
    Renewed {
        /// Which request.
        ticket: Ticket,
        /// Revision of the rows.
        guard: Revision,
        /// TTL that the store says it granted.
        ttl_ms: u64,
        /// The committed windows.
        leased: Vec<Leased>,
    },
    /// No renewal, or none that is known of.
    RenewFailed {
        /// Which request.
        ticket: Ticket,
        /// It may have been committed all the same.
        doubt: bool,
    },
    /// The store shows that the lease is no longer ours.
    RenewLost {
        /// Which request.
        ticket: Ticket,
        /// `StoreLost`, `EpochAdvanced` or `Revoked`.
        why: Loss,
    },
    /// The server has published the renewal.
    Extended,
    /// The token is not the open one there.
    ExtendRefused,
    /// The server has closed the claims; it gave the exact high water of these.
    Fenced {
        /// A subset of the claims.
        marks: Vec<Mark>,
    },
    /// The release is through, or nothing was left to release.
    Released {
        /// Which request.
        ticket: Ticket,
    },
    /// It is not; the leases expire by themselves.
    ReleaseFailed {
        /// Which request.
        ticket: Ticket,
    },
    /// An operator has ordered that the lease of this token ends. May be told at any time, and again.
    Ordered {
        /// The token.
        token: Token,
    },
    /// These are wanted from now on, in any order. Said again, it means that one which was not free may be now.
    Want {
        /// Instead of whatever was wanted before.
        identities: Vec<Identity>,
    },
    /// Release what is held, and end.
    Stop,
}

impl Event {
    /// Its name, for logs and errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reading(_) => "reading",
            Self::ServerLost => "server lost",
            Self::ServerForgot => "server forgot",
            Self::Inspected { .. } => "inspected",
            Self::Probed { .. } => "probed",
            Self::ProbeFailed { .. } => "probe failed",
            Self::Granted { .. } => "granted",
            Self::GrantFailed { .. } => "grant failed",
            Self::Installed => "installed",
            Self::InstallRefused => "install refused",
            Self::Renewed { .. } => "renewed",
            Self::RenewFailed { .. } => "renew failed",
            Self::RenewLost { .. } => "renew lost",
            Self::Extended => "extended",
            Self::ExtendRefused => "extend refused",
            Self::Fenced { .. } => "fenced",
            Self::Released { .. } => "released",
            Self::ReleaseFailed { .. } => "release failed",
            Self::Ordered { .. } => "ordered",
            Self::Want { .. } => "want",
            Self::Stop => "stop",
        }
    }

    /// The request it answers; `None` for what is not an answer of the store.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Probed { ticket }
            | Self::ProbeFailed { ticket }
            | Self::Granted { ticket, .. }
            | Self::GrantFailed { ticket, .. }
            | Self::Renewed { ticket, .. }
            | Self::RenewFailed { ticket, .. }
            | Self::RenewLost { ticket, .. }
            | Self::Released { ticket }
            | Self::ReleaseFailed { ticket } => Some(*ticket),
            _ => None,
        }
    }
}

/// What to do. Server actions are answered by the event named with them before anything else happens;
/// store actions are answered later, under their ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the server's clocks now. Answer: `Reading`, `ServerLost`.
    ReadClock,
    /// List the claims that are not fenced. Answer: `Inspected`, `ServerLost`.
    Inspect,
    /// Is the store within reach? Answer: `Probed`, `ProbeFailed`.
    Probe {
        /// Goes into the answer.
        ticket: Ticket,
    },
    /// Ask for a grant. Answer: `Granted`, `GrantFailed`.
    Acquire {
        /// Goes into the answer.
        ticket: Ticket,
        /// The shared memory it is for.
        boot_id: BootId,
        /// The reading that the deadline counts from.
        reading: ClockReading,
        /// Look first whether this one was made.
        doubt: Option<Attempt>,
        /// Which, where they are listed: as many of them as are free. `None`: from the pool.
        identities: Option<Vec<Identity>>,
    },
    /// Install every identity of the lease. Answer: `Installed`, `InstallRefused`, `ServerForgot`,
    /// `ServerLost`.
    Install {
        /// The lease.
        held: Held,
        /// A reading whose wall clock was believed.
        anchor: ClockReading,
    },
    /// Renew. Answer: `Renewed`, `RenewFailed`, `RenewLost`.
    Renew {
        /// Goes into the answer.
        ticket: Ticket,
        /// The lease as it is committed.
        held: Held,
        /// The windows to commit.
        wanted: Vec<Leased>,
    },
    /// Publish the committed windows and the deadline. Answer: `Extended`, `ExtendRefused`,
    /// `ServerForgot`, `ServerLost`.
    Extend {
        /// The lease.
        held: Held,
        /// A reading whose wall clock was believed; `None`: keep the older anchor.
        anchor: Option<ClockReading>,
    },
    /// Close the claims. Answer: `Fenced`, `ServerForgot`, `ServerLost`.
    Fence {
        /// The shared memory they are in.
        boot_id: BootId,
        /// What to close.
        claims: Vec<Claim>,
    },
    /// Give the identities back with their exact high waters. Answer: `Released`, `ReleaseFailed`.
    Release {
        /// Goes into the answer.
        ticket: Ticket,
        /// The shared memory they were fenced in.
        boot_id: BootId,
        /// The proofs.
        marks: Vec<Mark>,
    },
    /// Remember and report that a lease was given up. No answer.
    Lost {
        /// Its identities.
        leased: Vec<Tenancy>,
        /// Why.
        why: Loss,
    },
}

/// An event that cannot follow: the shell has a bug, and the only safe thing left is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalTransition {
    /// Where the keeper was.
    pub phase: &'static str,
    /// What it was told.
    pub event: &'static str,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event \"{}\" cannot happen while {}", self.event, self.phase)
    }
}

impl core::error::Error for IllegalTransition {}
