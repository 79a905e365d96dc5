//! Requests for many ids at once, under every interleaving that loom finds, against the real
//! [`idgen_core::segment::Exchange`]. Run it with
//! `RUSTFLAGS="--cfg loom" cargo test -p idgen-core --release --test exchange_loom`.
//!
//! A server grants numbers that rise; what it has granted is read by the caller that asked, or lost, never read by
//! another and never twice. Request and answer are plain memory: two that touch them at once are caught. At the
//! end the place is free again. Callers may go away at any moment, and a second server may stand in for the first.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test crate")]

use idgen_core::segment::{Exchange, Left, Ticket};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

#[derive(Default)]
struct Place {
    exchange: Exchange,
    /// What the caller is called.
    request: UnsafeCell<u64>,
    /// Who was answered, and the number granted.
    answer: UnsafeCell<(u64, u64)>,
    granted: AtomicU64,
}

impl Place {
    /// The number granted to this caller; `None`: the place was taken, or the caller did not wait.
    fn ask(&self, name: u64, looks: usize) -> Option<u64> {
        let ticket = self.exchange.claim()?;
        // SAFETY: the place is being filled, by this caller.
        self.request.with_mut(|request| unsafe { *request = name });
        self.exchange.ask(ticket);
        for _ in 0..looks {
            if self.exchange.is_answered(ticket) {
                return Some(self.read(name, ticket));
            }
            thread::yield_now();
        }
        // Whoever leaves may find the answer there, as one that is cancelled does; it is lost.
        self.exchange.leave(ticket);
        None
    }

    fn read(&self, name: u64, ticket: Ticket) -> u64 {
        // SAFETY: answered, and this caller has not left.
        let (whom, number) = self.answer.with(|answer| unsafe { *answer });
        assert_eq!(whom, name, "the answer is this caller's");
        assert_eq!(self.exchange.leave(ticket), Left::Answered);
        number
    }

    /// Serve what is asked; how many numbers were granted.
    fn serve(&self) -> u64 {
        let Some(ticket) = self.exchange.begin() else {
            return 0;
        };
        // SAFETY: being served, by this server.
        let whom = self.request.with(|request| unsafe { *request });
        let number = self.granted.fetch_add(1, Ordering::Relaxed) + 1;
        // SAFETY: as above; also when the caller has gone.
        self.answer.with_mut(|answer| unsafe { *answer = (whom, number) });
        self.exchange.answer(ticket);
        1
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn assert_free(place: &Place) {
    let ticket = place.exchange.claim().unwrap();
    assert_eq!(place.exchange.leave(ticket), Left::Withdrawn);
}

#[test]
fn two_callers_and_two_servers_each_number_is_read_once_by_whom_it_was_granted_to() {
    explore(|| {
        let place = Arc::new(Place::default());
        let spawn = |name| {
            let place = Arc::clone(&place);
            thread::spawn(move || place.ask(name, 1))
        };
        let (first, second) = (spawn(1), spawn(2));
        let server = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.serve())
        };
        let served = place.serve() + server.join().expect("server");
        let mut read: Vec<u64> = [first, second]
            .into_iter()
            .filter_map(|caller| caller.join().expect("caller"))
            .collect();
        // Nobody serves any more, and nobody waits: what is still asked was left behind by nobody.
        assert!(!place.exchange.is_asked());
        assert_free(&place);
        read.sort_unstable();
        assert!(
            read.windows(2).all(|pair| pair[0] < pair[1]),
            "one number twice: {read:?}"
        );
        assert!(
            read.iter().all(|number| (1..=served).contains(number)),
            "what is read was granted"
        );
    });
}

#[test]
fn a_caller_that_leaves_while_it_is_served_leaves_no_place_taken() {
    explore(|| {
        let place = Arc::new(Place::default());
        let caller = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.ask(1, 0))
        };
        place.serve();
        assert_eq!(caller.join().expect("caller"), None);
        assert_free(&place);
    });
}

/// The launcher answers for a worker that has died in the middle.
#[test]
fn a_place_whose_server_died_is_freed_by_whoever_stands_in() {
    explore(|| {
        let place = Arc::new(Place::default());
        let caller = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.ask(1, 1))
        };
        let died = place.exchange.begin();
        assert_eq!(place.exchange.begun(), died);
        if let Some(ticket) = place.exchange.begun() {
            // SAFETY: being served, and the server is dead.
            place.answer.with_mut(|answer| unsafe { *answer = (1, 0) });
            place.exchange.answer(ticket);
        }
        caller.join().expect("caller");
        assert_free(&place);
    });
}
