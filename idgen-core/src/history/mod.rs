//! Was the promise kept? What servers, daemons and the lease store did, as plain data, and the invariants that it is
//! judged by.
//!
//! ```text
//!  record   what was recorded: statements with their ids, the store's commits, what daemons told servers, faults
//!  grants   the store's commits as windows, and which of them an id belongs to
//!  ids      I1 no id twice, I4 ids rise
//!  windows  I2 inside a committed window, I3 windows in turn, I5 before the deadline, I6 not after a fence
//!  trail    I7 to I12: what the store and the servers may be asked to do
//!  alive    I13 minting is back in time
//! ```
//! Every check sorts and sweeps, so ten minutes of many servers are judged in seconds. A violation is only what is
//! certain: where the record leaves open which of two things came first, the order that breaks nothing is taken.
//!
//! What is absent: files, clocks, servers. The chaos runner records and reads (`idgen-daemon/tests/soak`).

pub mod alive;
mod grants;
mod ids;
mod record;
#[cfg(test)]
mod tests;
mod trail;
mod verdict;
mod windows;

pub use grants::Step;
pub use record::{
    Branch, Change, Commit, Deadline, Fault, Fence, HeldBy, History, Install, Moment, Piece, RowState, Run,
    Statement, Times,
};
pub use verdict::{Invariant, Verdict, Violation};

use grants::Grants;

/// Judges a history by every invariant, in their order.
#[must_use]
pub fn check(history: &History) -> Vec<Verdict> {
    let grants = Grants::of(&history.trail);
    let minted = windows::Minted::attribute(history, &grants);
    vec![
        ids::no_id_twice(history),
        windows::inside_a_committed_window(history, &grants, &minted),
        windows::windows_in_turn(&grants, &minted),
        ids::ids_rise(history),
        windows::before_the_deadline(history, &grants, &minted),
        windows::not_after_a_fence(history, &grants, &minted),
        trail::installs_rise(history),
        trail::ceilings_never_fall(history),
        trail::one_holder(history),
        trail::nothing_while_sealed(history),
        trail::no_holder_is_removed(history),
        trail::nothing_is_missing(history),
        alive::minting_is_back(history),
    ]
}
