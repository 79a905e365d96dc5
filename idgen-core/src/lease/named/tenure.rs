//! The life of one named lease at its holder: asked for, held, renewed, in doubt, lost.
//!
//! ```text
//!  idle --acquired--> held --renewed--> held        held --deadline, boot id, refused--> idle
//!   |                  `--no answer--> held, in doubt --look--> held or idle
//!   `--no answer--> asked --look--> held or idle
//! ```
//! The deadline counts from a reading of the server's clock that was made before the request was sent, and is moved only
//! when the commit is known. While it is in doubt the old one stands.

use super::super::timing::Timing;
use super::super::token::{BootId, Revision, Token};
use super::LeaseName;
use super::ledger::{Acquisition, Held, NamedLook, Occupant, Standing, Who};
use crate::clock::BootMs;

/// A grant that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What.
    pub acquisition: Acquisition,
    /// The server's clock before the request was sent.
    pub reading: BootMs,
}

/// A lease, and until when it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    held: Held,
    deadline: BootMs,
    renew_at: BootMs,
    doubt: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// No answer came.
    Asked(Attempt),
    Held(Term),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look at the store, and ask [`Tenure::looked`].
    Look,
    /// Read the server's clock and renew this.
    Renew(Held),
    /// Nothing before this.
    RestUntil(BootMs),
}

/// What follows from a look at the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Read the server's clock and ask for this.
    Acquire(Acquisition),
    /// It is held by this daemon or for this shared memory, under a token that is of no use any more: close that in the
    /// server, give it up, and look again.
    GiveUp(Token),
    /// Somebody else has it.
    Wait(Occupant),
    /// It is held: what was in doubt is settled.
    Hold,
}

/// Why a lease is held no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenureLoss {
    /// Its deadline has passed.
    Deadline,
    /// The shared memory that it was for is gone.
    BootIdChanged,
    /// The store does not show it any more.
    StoreLost,
    /// The server refuses it.
    Refused,
}

impl TenureLoss {
    /// As metrics and logs name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline_passed",
            Self::BootIdChanged => "boot_id_changed",
            Self::StoreLost => "store_lost",
            Self::Refused => "server_refused",
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Tenure {
    name: LeaseName,
    timing: Timing,
    phase: Phase,
    /// The shared memory that it was last looked at for.
    boot_id: Option<BootId>,
    /// Nothing is asked for before.
    hold_off: BootMs,
}

impl Tenure {
    /// Nothing is held.
    #[must_use]
    pub fn new(name: LeaseName, timing: Timing) -> Self {
        Self {
            name,
            timing,
            phase: Phase::Idle,
            boot_id: None,
            hold_off: BootMs(0),
        }
    }

    /// What it is the life of.
    #[must_use]
    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// What is held, and until when it may be used. Whoever asks has called [`Tenure::pass`] with a fresh reading.
    #[must_use]
    pub fn held(&self) -> Option<(&Held, BootMs)> {
        match &self.phase {
            Phase::Held(term) => Some((&term.held, term.deadline)),
            _ => None,
        }
    }

    /// May ceilings be raised under it? Not while it is in doubt whether the store still shows it.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        matches!(&self.phase, Phase::Held(term) if !term.doubt)
    }

    /// Time goes by, and shared memory may be made anew: is it lost?
    pub fn pass(&mut self, now: BootMs, boot_id: BootId) -> Option<TenureLoss> {
        let held_until = self.held().map(|(_, deadline)| deadline);
        if self.boot_id.replace(boot_id) != Some(boot_id) {
            self.phase = Phase::Idle;
            // Readings of another life say nothing of this one.
            self.hold_off = BootMs(0);
            return held_until.map(|_| TenureLoss::BootIdChanged);
        }
        if held_until.is_some_and(|deadline| now >= deadline) {
            self.phase = Phase::Idle;
            return Some(TenureLoss::Deadline);
        }
        None
    }

    /// What is to be done now.
    #[must_use]
    pub fn step(&self, now: BootMs) -> Step {
        match &self.phase {
            Phase::Idle if now < self.hold_off => Step::RestUntil(self.hold_off),
            Phase::Idle | Phase::Asked(_) => Step::Look,
            Phase::Held(term) if term.doubt => Step::Look,
            Phase::Held(term) if now >= term.renew_at => Step::Renew(term.held.clone()),
            Phase::Held(term) => Step::RestUntil(term.renew_at),
        }
    }

    /// The store was looked at, after this reading of the server's clock.
    pub fn looked(&mut self, look: &NamedLook, who: Who, random: u64) -> (Decision, Option<TenureLoss>) {
        let mut lost = None;
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Asked(attempt) => {
                if let Some(held) = look.settle(&attempt.acquisition, who) {
                    self.hold(held, attempt.reading, self.timing.ttl_ms(), random);
                    return (Decision::Hold, None);
                }
            }
            Phase::Held(mut term) => match look.guard_of(&term.held, who) {
                Some(guard) => {
                    term.held.guard = guard;
                    term.doubt = false;
                    self.phase = Phase::Held(term);
                    return (Decision::Hold, None);
                }
                None => lost = Some(TenureLoss::StoreLost),
            },
        }
        let decision = match look.standing(&self.name, who) {
            Standing::Free(acquisition) => Decision::Acquire(acquisition),
            Standing::Ours(occupant) => Decision::GiveUp(occupant.holder.token),
            Standing::Taken(occupant) => Decision::Wait(occupant),
        };
        (decision, lost)
    }

    /// The grant is committed at `revision`, for `ttl_ms` by the store's word.
    pub fn acquired(&mut self, attempt: Attempt, revision: Revision, ttl_ms: u64, random: u64) {
        let Attempt { acquisition, reading } = attempt;
        let token = Token {
            epoch: acquisition.epoch,
            revision,
        };
        let held = Held {
            name: acquisition.name,
            boot_id: acquisition.boot_id,
            token,
            epoch_nonce: acquisition.epoch_nonce,
            guard: revision,
        };
        self.hold(held, reading, ttl_ms, random);
    }

    /// No answer came to a grant.
    pub fn acquire_unknown(&mut self, attempt: Attempt) {
        self.phase = Phase::Asked(attempt);
    }

    /// The renewal that was asked for after `reading` is committed.
    pub fn renewed(&mut self, reading: BootMs, revision: Revision, ttl_ms: u64, random: u64) {
        if let Phase::Held(term) = &self.phase {
            let held = Held {
                guard: revision,
                ..term.held.clone()
            };
            let before = term.deadline;
            self.hold(held, reading, ttl_ms, random);
            // The deadline of a token never falls.
            if let Phase::Held(term) = &mut self.phase {
                term.deadline = term.deadline.max(before);
            }
        }
    }

    /// It may or may not have been renewed, or the store shows something else.
    pub fn doubt(&mut self) {
        if let Phase::Held(term) = &mut self.phase {
            term.doubt = true;
        }
    }

    /// The store or the server does not honour it. Nothing is asked for during a while.
    pub fn lose(&mut self, now: BootMs) {
        self.phase = Phase::Idle;
        self.hold_off = now.saturating_add(self.timing.hold_off_ms());
    }

    fn hold(&mut self, held: Held, reading: BootMs, ttl_ms: u64, random: u64) {
        self.phase = Phase::Held(Term {
            held,
            deadline: self.timing.deadline(reading, ttl_ms),
            renew_at: reading.saturating_add(self.timing.jittered_period_ms(random)),
            doubt: false,
        });
    }
}

#[cfg(test)]
mod tests;
