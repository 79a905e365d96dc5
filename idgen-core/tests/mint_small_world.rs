//! The mint, the lease and the store's rules in a world so small that every sequence of events up to a bound
//! is tried: two identities, three ids a tick, windows of two ticks, a clock of a few ticks that goes on,
//! back and ahead. `mint_loom` tries every interleaving of a few operations; here the operations are whole,
//! and what is exhausted is their order. The models of the design (a breadth-first search over the protocol,
//! and traces of a reference mint) have the same events and mutations; this one runs the real code: [`Slot`],
//! [`mint`] and the window arithmetic of the daemon.
//!
//! Breadth first, so that the trace that is printed is a shortest one. A state that was reached before is not
//! followed again: all that later events can see of a world is in its [`Key`]. Atomics cannot be copied, so a
//! state is kept as the events that lead to it.
//!
//! What must hold after every event: no id twice, by any server and any identity; every id in a window that
//! the store had committed, of the lease that is installed, at or above its floor and never above its
//! ceiling; no tick opened after the deadline; each session rising; an exact high water; and no refusal
//! without its reason.
//!
//! A checker that never objects proves nothing: each rule of the protocol is switched off once, and the
//! search must find the harm.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test crate")]

#[path = "mint_small_world/search.rs"]
mod search;
#[path = "mint_small_world/world.rs"]
mod world;

use search::{explore, found};
use world::{Fault, Op};

/// Events after the first lease: 18^6 or 34 million sequences, which are 300,000 states and some seconds without
/// optimisation. One more is ten times as much, and was tried once.
const DEPTH: usize = 6;

#[test]
fn no_sequence_of_events_breaks_a_rule() {
    let seen = explore(Fault::None, DEPTH).unwrap_or_else(|broken| panic!("{broken}"));
    println!("{seen:?}");
    // Fewer states than this would mean that the world has become smaller than it was.
    assert!(seen.states > 100_000, "{seen:?}");
    assert!(seen.minted > 50_000 && seen.refused > 50_000, "{seen:?}");
    for op in Op::ALL {
        let must_not = matches!(op, Op::LateExtend(_) | Op::InstallBelow(_));
        assert_eq!(
            seen.changed_by.contains(op),
            !must_not,
            "{op:?}: does it change anything?"
        );
    }
}

/// A floor at the old ceiling instead of above it.
#[test]
fn a_floor_on_the_old_ceiling_is_found() {
    found(Fault::FloorOnCeiling, "twice");
}

/// The server is told of a ceiling before the store has it.
#[test]
fn a_ceiling_before_its_commit_is_found() {
    found(Fault::CeilingBeforeCommit, "not committed");
}

/// The store is told of a release by whom has not fenced.
#[test]
fn a_release_without_a_fence_is_found() {
    found(Fault::ReleaseUnfenced, "twice");
}

/// The store renews what it has given to somebody else.
#[test]
fn a_renewal_without_a_guard_is_found() {
    found(Fault::RenewUnguarded, "twice");
}

/// New shared memory goes on with the lease of the old one.
#[test]
fn a_lease_carried_into_new_shared_memory_is_found() {
    found(Fault::LeaseCarriedOver, "twice");
}

/// Leaf and a dozen others: what was given out is not remembered, the clock is.
#[test]
fn a_high_water_taken_from_the_clock_is_found() {
    found(Fault::HighWaterFromClock, "twice");
}
