//! A place in shared memory where one process leaves a request and another the answer, or both go away.
//!
//! ```text
//!            claim          ask          begin            answer            leave
//!     free --------> filling ---> asked -------> serving --------> answered ------> free
//!                      |            |               |
//!                      `-- leave ---'               | leave
//!                            free                   v
//!                                               abandoned -- answer --> free
//!
//! word         ticket 56 bits | phase 8 bits
//! ```
//!
//! The caller writes the request while the phase is *filling*; it reads the answer while it is *answered*. The
//! server reads the request and writes the answer while the phase is *serving* or *abandoned*. Nobody else
//! touches them then, and every change of the phase is a release that the next one acquires. Each claim has
//! a new ticket, so whoever was late by a whole round changes nothing.
//!
//! Each side may die: a caller that goes away before the server has begun takes its request back
//! ([`Left::Withdrawn`]: it was not and will not be served), later it leaves the place to the server
//! ([`Left::Abandoned`]: it may have been served, and the answer is lost). For a server that died while it
//! served, whoever notices calls [`Exchange::answer`] in its stead.

use crate::sync::{AtomicU64, Ordering};

const PHASE_BITS: u32 = 8;

const FREE: u64 = 0;
const FILLING: u64 = 1;
const ASKED: u64 = 2;
const SERVING: u64 = 3;
const ANSWERED: u64 = 4;
const ABANDONED: u64 = 5;

const fn pack(ticket: Ticket, phase: u64) -> u64 {
    ticket.0 << PHASE_BITS | phase
}

const fn unpack(word: u64) -> (Ticket, u64) {
    (Ticket(word >> PHASE_BITS), word & ((1 << PHASE_BITS) - 1))
}

/// Names one use of a place. (56 bits: at a use per microsecond 2,000 years.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// See the module.
#[derive(Debug)]
pub struct Exchange {
    word: AtomicU64,
}

/// How a caller has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// Nobody had begun to serve the request, and nobody will.
    Withdrawn,
    /// It is being served, or was and its server has died; nobody will read the answer.
    Abandoned,
    /// It had been answered.
    Answered,
    /// The place is not the caller's (any more).
    Nothing,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

impl Exchange {
    /// A free place.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    /// A free place. (loom's atomics are not made at compile time.)
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    fn load(&self) -> (Ticket, u64) {
        unpack(self.word.load(Ordering::Acquire))
    }

    fn step(&self, ticket: Ticket, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(
                pack(ticket, from),
                pack(ticket, to),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// Caller: take the place if it is free. The caller owns the request until [`Exchange::ask`].
    #[must_use]
    pub fn claim(&self) -> Option<Ticket> {
        let word = self.word.load(Ordering::Acquire);
        let (Ticket(last), phase) = unpack(word);
        if phase != FREE {
            return None;
        }
        let ticket = Ticket(last + 1);
        self.word
            .compare_exchange(word, pack(ticket, FILLING), Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| ticket)
    }

    /// Caller: the request is written.
    pub fn ask(&self, ticket: Ticket) {
        self.step(ticket, FILLING, ASKED);
    }

    /// Is a request waiting for a server?
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.load().1 == ASKED
    }

    /// Server: begin to serve what is asked here. `None`: nothing is (any more). Of several servers one wins.
    #[must_use]
    pub fn begin(&self) -> Option<Ticket> {
        let (ticket, phase) = self.load();
        (phase == ASKED && self.step(ticket, ASKED, SERVING)).then_some(ticket)
    }

    /// Whoever stands in for servers that die: the request that was begun and not answered.
    #[must_use]
    pub fn begun(&self) -> Option<Ticket> {
        let (ticket, phase) = self.load();
        matches!(phase, SERVING | ABANDONED).then_some(ticket)
    }

    /// Server: the answer is written. `false`: the caller is gone, nobody will read it.
    pub fn answer(&self, ticket: Ticket) -> bool {
        if self.step(ticket, SERVING, ANSWERED) {
            return true;
        }
        self.step(ticket, ABANDONED, FREE);
        false
    }

    /// Caller: may the answer be read?
    #[must_use]
    pub fn is_answered(&self, ticket: Ticket) -> bool {
        self.load() == (ticket, ANSWERED)
    }

    /// Caller: go away, at whatever point this is. A second call does nothing.
    pub fn leave(&self, ticket: Ticket) -> Left {
        loop {
            let (found, phase) = self.load();
            if found != ticket {
                return Left::Nothing;
            }
            let (next, left) = match phase {
                FILLING | ASKED => (FREE, Left::Withdrawn),
                SERVING => (ABANDONED, Left::Abandoned),
                ANSWERED => (FREE, Left::Answered),
                _ => return Left::Nothing,
            };
            // It fails only when the server has gone a step further: look again.
            if self.step(ticket, phase, next) {
                return left;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn asked() -> (Exchange, Ticket) {
        let place = Exchange::new();
        let ticket = place.claim().expect("free");
        place.ask(ticket);
        (place, ticket)
    }

    #[test]
    fn a_request_is_served_and_its_place_used_again() {
        let (place, ticket) = asked();
        assert_eq!(place.claim(), None, "it is taken");
        assert!(place.is_asked());
        assert!(!place.is_answered(ticket));
        assert_eq!(place.begin(), Some(ticket));
        assert_eq!(place.begin(), None, "one server");
        assert!(place.answer(ticket));
        assert!(place.is_answered(ticket));
        assert_eq!(place.leave(ticket), Left::Answered);
        assert_eq!(place.leave(ticket), Left::Nothing);
        let next = place.claim().expect("free again");
        assert_ne!(next, ticket);
        assert!(!place.is_answered(ticket));
        assert_eq!(place.leave(ticket), Left::Nothing, "it is another's");
    }

    #[test]
    fn what_nobody_has_begun_is_withdrawn() {
        let (place, ticket) = asked();
        assert_eq!(place.leave(ticket), Left::Withdrawn);
        assert_eq!(place.begin(), None);
        let filling = place.claim().expect("free again");
        assert_eq!(place.begin(), None, "it is not written yet");
        assert_eq!(place.leave(filling), Left::Withdrawn);
    }

    #[test]
    fn what_was_begun_is_left_to_the_server() {
        let (place, ticket) = asked();
        assert_eq!(place.begun(), None);
        place.begin().expect("asked");
        assert_eq!(place.begun(), Some(ticket));
        assert_eq!(place.leave(ticket), Left::Abandoned);
        assert_eq!(place.claim(), None, "the server still writes");
        assert_eq!(place.begun(), Some(ticket));
        assert!(!place.answer(ticket), "nobody reads it");
        assert!(place.claim().is_some());
    }
}
