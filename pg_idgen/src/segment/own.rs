//! Tags that the running transaction has made itself: no worker can see their row, so it grants to itself.
//!
//! The ranges live in this process and end with the transaction; what is left of them is burned. What was
//! handed out counts whatever savepoints do: a rollback to one takes the row of the tag back to an older
//! `max_id`, never the ids, so before the commit the row is raised above them again.

use super::catalog::{self, Found};
use super::grant::{Bulk, Issuer, Refused, Wish, burn, grant, grant_exactly};
use super::leaf;
use crate::authority::Permit;
use crate::error::Error;
use crate::guc;
use crate::owner::{AsOwner, Tables, commit_durably};
use crate::transaction;
use idgen_core::segment::Places;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;
use std::cell::RefCell;
use std::collections::HashMap;

#[derive(Clone, Copy)]
struct Own {
    /// Place of the next id.
    next: i64,
    /// Last place of the range, inclusive; below `next` when it is used up.
    last: i64,
    /// Highest id granted in this transaction; 0: none.
    high_water: i64,
    /// A savepoint was rolled back since: the row may be below `high_water`.
    torn: bool,
}

/// A tag without a range.
const EMPTY: Own = Own {
    next: 1,
    last: 0,
    high_water: 0,
    torn: false,
};

thread_local! {
    /// The tags that this transaction has made.
    static RANGES: RefCell<HashMap<[u8; 16], Own>> = RefCell::default();
}

/// This transaction has inserted the row of a tag.
pub fn note_made(segment_id: [u8; 16]) {
    RANGES.with_borrow_mut(|ranges| ranges.insert(segment_id, EMPTY));
}

/// Whether this transaction has made any tag.
pub fn has_made_any() -> bool {
    RANGES.with_borrow(|ranges| !ranges.is_empty())
}

/// Whether this transaction has made the tag. (A row that it has merely changed is not its own: taking that
/// change back must not take ids back.)
pub fn has_made(segment_id: [u8; 16]) -> bool {
    RANGES.with_borrow(|ranges| ranges.contains_key(&segment_id))
}

/// The highest id that this transaction has granted itself of the tag, whatever savepoints were rolled back since;
/// 0: none.
pub fn high_water(segment_id: [u8; 16]) -> i64 {
    RANGES.with_borrow(|ranges| ranges.get(&segment_id).map_or(0, |own| own.high_water))
}

/// What is left of the range is not to be handed out: the tag was moved.
pub fn drop_rest(segment_id: [u8; 16]) {
    RANGES.with_borrow_mut(|ranges| {
        if let Some(own) = ranges.get_mut(&segment_id) {
            own.last = i64::MIN;
        }
    });
}

/// The next id of a tag that this transaction has made.
///
/// # Errors
/// Tag exhausted.
pub fn take(found: &Found) -> Result<i64, Error> {
    let mut own = RANGES
        .with_borrow(|ranges| ranges.get(&found.segment_id).copied())
        .unwrap_or(EMPTY);
    if own.next > own.last {
        own = refill(found, own)?;
    }
    let id = found.identity.stripes.id(own.next);
    // `last` may be the largest bigint: an empty range is then one whose last lies below.
    match own.next.checked_add(1) {
        Some(next) => own.next = next,
        None => own.last = i64::MIN,
    }
    RANGES.with_borrow_mut(|ranges| ranges.insert(found.segment_id, own));
    Ok(id)
}

fn refill(found: &Found, own: Own) -> Result<Own, Error> {
    let lasted_ms = (own.high_water > 0).then_some(0);
    let granted = granted(found, own, |client, wish| grant(client, wish, lasted_ms))?;
    let range = granted.ids.range;
    Ok(Own {
        next: range.first,
        last: range.last(),
        high_water: granted.ids.last_id(),
        torn: own.torn,
    })
}

/// Many ids at once of a tag that this transaction has made; what is left of its range goes on after them.
///
/// # Errors
/// Tag exhausted; the request key is taken.
pub fn take_range(found: &Found, bulk: &Bulk<'_>) -> Result<Places, Error> {
    let mut own = RANGES
        .with_borrow(|ranges| ranges.get(&found.segment_id).copied())
        .unwrap_or(EMPTY);
    let ids = granted(found, own, |client, wish| grant_exactly(client, wish, bulk))
        .map_err(|error| match error {
            Error::TagExhausted { tag, limit_id } => Error::TooFewLeft {
                tag,
                n: bulk.n,
                limit_id,
            },
            other => other,
        })?
        .ids;
    // A repeated request brings what was granted before.
    own.high_water = own.high_water.max(ids.last_id());
    RANGES.with_borrow_mut(|ranges| ranges.insert(found.segment_id, own));
    Ok(ids)
}

fn granted<R>(
    found: &Found,
    own: Own,
    grant: impl FnOnce(&mut SpiClient<'_>, &Wish) -> Result<R, Refused>,
) -> Result<R, Error> {
    if guc::authority() == guc::Authority::Leased {
        // The ceiling of a tag is raised by its name, which only this transaction sees.
        return Err(Error::NoAuthority {
            tag: found.tag.clone(),
            waited_ms: 0,
            cause: "The running transaction has made the tag; under a leased authority it must be committed first.".into(),
        });
    }
    leaf::ensure(&found.tag, found.tables)?;
    let wish = Wish {
        segment_id: found.segment_id,
        space_id: found.identity.space_id,
        stripes: found.identity.stripes,
        source_id: Some(found.identity.source_id),
        issuer: Issuer::OwnTransaction,
        above: own.high_water,
        permit: Permit::Local,
        fetches: None,
    };
    commit_durably();
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| grant(client, &wish)).map_err(|refused| explain(found, refused))
}

fn explain(found: &Found, refused: Refused) -> Error {
    let tag = found.tag.clone();
    match refused {
        Refused::Exhausted(exhausted) => Error::TagExhausted {
            tag,
            limit_id: exhausted.limit_id,
        },
        Refused::Copy => Error::CopyOfDatabase,
        Refused::NotCut => Error::NotCut { tag },
        Refused::Gone => Error::UnknownTag { tag },
        Refused::KeyTaken { n } => Error::RequestKeyTaken { n },
        other => Error::Internal {
            message: format!("grant of segment tag \"{tag}\": {other}"),
        },
    }
}

pub fn define_callbacks() {
    transaction::tell(on_transaction_end);
    transaction::tell_savepoints(on_savepoint_end);
}

#[pg_guard]
extern "C-unwind" fn on_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PRE_PREPARE,
        XACT_EVENT_PREPARE,
    };
    if matches!(event, XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE) {
        mend_torn();
    }
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_COMMIT | XACT_EVENT_PREPARE) {
        RANGES.with_borrow_mut(HashMap::clear);
    }
    if matches!(event, XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        leaf::forget();
    }
}

/// Raise the rows above what was handed out under savepoints that are rolled back.
fn mend_torn() {
    let torn: Vec<([u8; 16], i64)> = RANGES.with_borrow(|ranges| {
        ranges
            .iter()
            .filter(|(_, own)| own.torn)
            .map(|(id, own)| (*id, own.high_water))
            .collect()
    });
    if torn.is_empty() {
        return;
    }
    // The rollback to the savepoint has taken this back too.
    commit_durably();
    // SAFETY: the transaction is still in progress; the snapshot is popped below or by its abort.
    unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
    if let Err(error) = mend(&torn) {
        pgrx::error!("could not keep the ids of a rolled back savepoint from coming again: {error:?}");
    }
    // SAFETY: pushed above.
    unsafe { pg_sys::PopActiveSnapshot() };
}

fn mend(torn: &[([u8; 16], i64)]) -> Result<(), Error> {
    let Some(tables) = Tables::of_this_database() else {
        return Ok(());
    };
    let identity = catalog::identity(tables)?;
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| {
        torn.iter()
            .try_for_each(|(segment_id, high_water)| burn(client, identity, *segment_id, *high_water))
    })?;
    Ok(())
}

#[pg_guard]
extern "C-unwind" fn on_savepoint_end(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        RANGES.with_borrow_mut(|ranges| {
            for own in ranges.values_mut().filter(|own| own.high_water > 0) {
                // What is left of the range is no longer covered by the row.
                (own.last, own.torn) = (i64::MIN, true);
            }
        });
        leaf::forget();
    }
}
