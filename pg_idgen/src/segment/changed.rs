//! Tags that the running transaction has changed, and what becomes of their ranges in shared memory at its end.
//!
//! A change waits for the lock of the tag's row and keeps it until the end of the transaction, so no worker grants
//! meanwhile. At the commit the ranges of a tag that was moved or dropped are discarded: what was published before
//! is not handed out after it, and a worker that granted before and has not published yet finds that the buffer is
//! of a later incarnation. A transaction that is prepared discards as it prepares; its row lock keeps the buffer
//! empty until it is finished.
//!
//! The transaction itself does not draw from a tag that it has changed: no worker could refill it, and a range that
//! it granted to itself would be taken back with a rollback, after its ids had been handed out.

use crate::shmem::{SegmentKey, shared};
use crate::transaction;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;

#[derive(Clone, Copy)]
struct Change {
    key: SegmentKey,
    /// The savepoint it was made under.
    level: pg_sys::SubTransactionId,
    /// The ranges in memory are void once it is committed.
    discards: bool,
}

thread_local! {
    static CHANGES: RefCell<Vec<Change>> = const { RefCell::new(Vec::new()) };
}

/// This transaction has changed the row of a tag and holds its lock.
pub fn note(key: SegmentKey, discards: bool) {
    // SAFETY: inside a transaction.
    let level = unsafe { pg_sys::GetCurrentSubTransactionId() };
    CHANGES.with_borrow_mut(|changes| {
        changes.push(Change { key, level, discards });
    });
}

pub fn has_changed(segment_id: [u8; 16]) -> bool {
    CHANGES.with_borrow(|changes| changes.iter().any(|change| change.key.segment_id == segment_id))
}

pub fn has_changed_any() -> bool {
    CHANGES.with_borrow(|changes| !changes.is_empty())
}

pub fn define_callbacks() {
    transaction::tell(on_transaction_end);
    transaction::tell_savepoints(on_savepoint_end);
}

#[pg_guard]
extern "C-unwind" fn on_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    if !matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        return;
    }
    let changes = CHANGES.take();
    let Some(shared) = shared().filter(|_| event != XACT_EVENT_ABORT) else {
        return;
    };
    for change in changes.iter().filter(|change| change.discards) {
        shared.discard(&change.key);
    }
}

#[pg_guard]
extern "C-unwind" fn on_savepoint_end(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    CHANGES.with_borrow_mut(|changes| match event {
        SUBXACT_EVENT_ABORT_SUB => changes.retain(|change| change.level != own),
        SUBXACT_EVENT_COMMIT_SUB => {
            for change in changes.iter_mut().filter(|change| change.level == own) {
                change.level = parent;
            }
        }
        _ => {}
    });
}
