//! Tags that the running transaction has made itself: no worker can see their row, so it grants to itself.
//!
//! The ranges live in this process and end with the transaction; what is left of them is burned. What was
//! handed out is remembered above savepoints: a rollback to one takes the grant's row back, never the ids.

use super::catalog::Found;
use super::grant::{Issuer, Refused, Wish, grant};
use super::leaf;
use crate::error::Error;
use crate::owner::AsOwner;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

#[derive(Clone, Copy)]
struct Own {
    next: i64,
    /// Last id of the range, inclusive; below `next` when it is used up.
    last: i64,
    /// Highest id granted in this transaction.
    high_water: i64,
}

thread_local! {
    static RANGES: RefCell<HashMap<[u8; 16], Own>> = RefCell::default();
}

/// The next id of a tag that this transaction has made.
///
/// # Errors
/// Tag exhausted.
pub fn take(found: &Found) -> Result<i64, Error> {
    let known = RANGES.with_borrow(|ranges| ranges.get(&found.segment_id).copied());
    let mut own = match known {
        Some(own) if own.next <= own.last => own,
        known => refill(found, known)?,
    };
    let id = own.next;
    // `last` may be the largest bigint: an empty range is then one whose last lies below.
    match own.next.checked_add(1) {
        Some(next) => own.next = next,
        None => own.last = i64::MIN,
    }
    RANGES.with_borrow_mut(|ranges| ranges.insert(found.segment_id, own));
    Ok(id)
}

fn refill(found: &Found, known: Option<Own>) -> Result<Own, Error> {
    let wish = Wish {
        segment_id: found.segment_id,
        issuer: Issuer::OwnTransaction,
        lasted_ms: known.map(|_| 0),
        above: known.map(|own| own.high_water),
    };
    let _as_owner = AsOwner::begin(found.owner);
    let granted = Spi::connect_mut(|client| grant(client, &wish)).map_err(|refused| match refused {
        Refused::Exhausted(exhausted) => Error::TagExhausted {
            tag: found.tag.clone(),
            limit_id: exhausted.limit_id,
        },
        Refused::Gone => Error::UnknownTag {
            tag: found.tag.clone(),
        },
        other => Error::Internal {
            message: format!("grant of segment tag \"{}\": {other}", found.tag),
        },
    })?;
    // The ids are out before the commit: a caller with synchronous_commit = off must not lose the row that
    // covers them.
    // SAFETY: sets a flag of the running transaction, which ends with it.
    unsafe { pg_sys::ForceSyncCommit() };
    let (first, last) = (granted.range.first, granted.range.last());
    Ok(Own {
        next: first,
        last,
        high_water: last,
    })
}

pub fn define_callbacks() {
    // SAFETY: the callbacks have the right signatures, touch Rust memory only, and are never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_savepoint_end), std::ptr::null_mut());
    }
}

#[pg_guard]
extern "C-unwind" fn on_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_COMMIT | XACT_EVENT_PREPARE) {
        RANGES.with_borrow_mut(HashMap::clear);
    }
    if event == XACT_EVENT_ABORT {
        leaf::forget();
    }
}

#[pg_guard]
extern "C-unwind" fn on_savepoint_end(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // The row may be back at an older max_id, so what is left of the range is no longer covered by it.
        RANGES.with_borrow_mut(|ranges| ranges.values_mut().for_each(|own| own.last = i64::MIN));
        leaf::forget();
    }
}
