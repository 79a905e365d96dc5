//! A place of shared memory that is handed from one tag to another, under every interleaving that loom finds within a
//! preemption bound: nobody draws ids of one tag for another.
//!
//! Whoever looks a tag up reads the place's owner and the incarnation of its buffer together, under the lock that orders
//! publishing, and draws with [`Buffer::take_of`]. The place changes hands under that lock: the buffer is discarded, the
//! owner written. A copy that looks up without the lock must be caught, in both orders of reading.
#![cfg(loom)]
#![allow(clippy::expect_used, reason = "a test crate")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed as Plain};

use idgen_core::segment::{Buffer, Publication, Take};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const PREEMPTIONS_MAX: usize = 3;
/// Ids of owner 1 begin at 1,000, those of owner 2 at 2,000.
const IDS_OF: i64 = 1_000;

#[derive(Clone, Copy)]
enum LookUp {
    /// Owner and incarnation together, under the lock: the rule.
    Locked,
    /// Without it, the owner first.
    OwnerFirst,
    /// Without it, the incarnation first.
    IncarnationFirst,
}

struct Place {
    owner: AtomicU64,
    buffer: Buffer,
    lock: Mutex<()>,
}

impl Place {
    fn look_up(&self, how: LookUp) -> (u64, u64) {
        let owner = || self.owner.load(Ordering::Acquire);
        match how {
            LookUp::Locked => {
                let _locked = self.lock.lock().expect("the lock");
                (owner(), self.buffer.incarnation())
            }
            LookUp::OwnerFirst => {
                let owner = owner();
                (owner, self.buffer.incarnation())
            }
            LookUp::IncarnationFirst => {
                let incarnation = self.buffer.incarnation();
                (owner(), incarnation)
            }
        }
    }

    fn publish(&self, owner: u64, incarnation: u64) {
        let _locked = self.lock.lock().expect("the lock");
        let range = Publication {
            base: owner as i64 * IDS_OF,
            len: 2,
            incarnation,
        };
        let published = self.buffer.publish(range);
        assert!(
            published.is_ok() || self.owner.load(Ordering::Relaxed) != owner,
            "a range of the owner finds room"
        );
    }

    /// From owner 1 to owner 2.
    fn hand_on(&self) -> u64 {
        let _locked = self.lock.lock().expect("the lock");
        let burned = self.buffer.discard();
        self.owner.store(2, Ordering::Release);
        burned.incarnation
    }
}

fn draw(place: &Place, how: LookUp) {
    let (owner, incarnation) = place.look_up(how);
    for _ in 0..2 {
        match place.buffer.take_of(incarnation, 1) {
            Some(Take::Ids { first, .. }) => {
                assert_eq!(first / IDS_OF, owner as i64, "an id of another tag");
            }
            // Void or empty: look up again, or wait.
            None | Some(Take::Empty { .. }) => return,
        }
    }
}

fn explore(how: LookUp) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let place = Arc::new(Place {
            owner: AtomicU64::new(1),
            buffer: Buffer::new(),
            lock: Mutex::new(()),
        });
        place.publish(1, place.buffer.incarnation());
        let drawers: Vec<_> = (0..1)
            .map(|_| {
                let place = Arc::clone(&place);
                thread::spawn(move || draw(&place, how))
            })
            .collect();
        // A refill of owner 1 that is late, as of a worker that nobody waits for.
        let late = {
            let place = Arc::clone(&place);
            let incarnation = place.buffer.incarnation();
            thread::spawn(move || place.publish(1, incarnation))
        };
        let incarnation = place.hand_on();
        place.publish(2, incarnation);
        for thread in drawers.into_iter().chain([late]) {
            thread.join().expect("a thread");
        }
    });
}

fn is_caught(how: LookUp) -> bool {
    let said = StdArc::new(AtomicBool::new(false));
    let found = catch_unwind(AssertUnwindSafe(|| explore(how)));
    if let Err(panic) = found {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        said.store(text.contains("an id of another tag"), Plain);
    }
    said.load(Plain)
}

#[test]
fn nobody_draws_ids_of_a_tag_for_another_while_a_place_changes_hands() {
    explore(LookUp::Locked);
}

#[test]
fn a_look_up_without_the_lock_is_caught() {
    assert!(is_caught(LookUp::IncarnationFirst), "incarnation first");
    assert!(is_caught(LookUp::OwnerFirst), "owner first");
}
