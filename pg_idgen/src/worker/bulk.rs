//! Serving the requests for many ids at once: `shmem/bulk.rs` has them.

use super::{Settled, grant_settled};
use crate::authority::{self, Permit};
use crate::clock;
use crate::segment::failure::Failure;
use crate::segment::grant::{Bulk, BulkGranted, Issuer, Refused, Wish, grant_exactly};
use crate::shmem::{BulkAnswer, BulkRequest, BurnCause, SegmentSlot, Shared};
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

/// Serve what is asked of `database`; how many requests there were. `entry`: of this worker.
pub fn serve(shared: &Shared, database: u32, entry: usize, settled: &mut Settled) -> usize {
    let mut served = 0;
    for place in shared.bulk.asked_in(database) {
        let Some((ticket, request)) = place.begin(entry) else {
            continue;
        };
        served += 1;
        let answer = grant(shared, &request, entry, settled);
        if let (BulkAnswer::Granted(ids), false) = (answer, shared.bulk.answer(place, ticket, answer)) {
            if request.request_key().is_none()
                && let Some(slot) = shared.segment_in_use(&request.key)
            {
                slot.tally.burned(BurnCause::Bulk, ids.range.count);
            }
            pgrx::log!(
                "pg_idgen: granted ids {} to {} are burned unless their request is repeated by its key: whoever asked is gone",
                ids.first_id(),
                ids.last_id()
            );
        }
    }
    served
}

/// Nobody can serve what is asked of `database`.
pub fn fail(shared: &Shared, database: u32, entry: usize) {
    for place in shared.bulk.asked_in(database) {
        if let Some((ticket, _)) = place.begin(entry) {
            shared.bulk.answer(place, ticket, BulkAnswer::NoWorker);
        }
    }
}

/// One short transaction.
fn grant(shared: &Shared, request: &BulkRequest, entry: usize, settled: &mut Settled) -> BulkAnswer {
    // Whoever asks has found or made the tag's place, and makes it again if another tag was given it.
    let Some(serving) = shared.serve_tag(entry, &request.key) else {
        return BulkAnswer::Gone;
    };
    let slot = serving.slot;
    let Ok(permit) = Permit::now(shared, slot) else {
        return BulkAnswer::NoAuthority;
    };
    let wish = Wish {
        segment_id: request.key.segment_id,
        space_id: request.key.space_id,
        stripes: request.key.stripes,
        source_id: None,
        issuer: Issuer::RefillWorker,
        above: slot.high_water.load(Ordering::Acquire),
        permit,
        fetches: Some((slot.tally.fetches(), clock::boot())),
    };
    let bulk = Bulk {
        n: request.n,
        request_key: request.request_key(),
        role: pg_sys::Oid::from(request.role),
        pid: request.pid,
    };
    match grant_settled(settled, |client| grant_exactly(client, &wish, &bulk)) {
        Some(Ok(granted)) => {
            // A SIGTERM that ended a wait for the synchronous standby has left the commit unconfirmed: the process
            // ends here, and the launcher answers.
            pgrx::check_for_interrupts!();
            hand_over(shared, slot, &wish, &granted)
        }
        Some(Err(Refused::NoCeiling { ids })) => {
            let ids = ids.saturating_add(request.n);
            slot.ids_wanted.store(ids, Ordering::Relaxed);
            BulkAnswer::NoCeiling
        }
        Some(Err(refused)) => answer_of(refused),
        None => BulkAnswer::Error,
    }
}

/// The grant is committed: may its ids be used?
fn hand_over(shared: &Shared, slot: &SegmentSlot, wish: &Wish, granted: &BulkGranted) -> BulkAnswer {
    let ids = granted.ids;
    if !granted.is_new {
        return BulkAnswer::Granted(ids);
    }
    super::count_lost(slot, granted.lost);
    super::count_fetch(slot, &granted.tag, clock::boot());
    if let Err(error) = authority::anchor::note(wish.space_id, wish.segment_id, ids.last_id()) {
        pgrx::log!("pg_idgen: a range is burned: {error:?}");
        slot.tally.burned(BurnCause::Refill, ids.range.count);
        return BulkAnswer::Error;
    }
    let locked = shared.lock_segments();
    slot.high_water.fetch_max(ids.last_id(), Ordering::AcqRel);
    match &wish.permit {
        // The commit took so long that somebody else may grant by now.
        Permit::Leased(permit) if !shared.still_permits(slot.database(), permit, clock::boot(), &locked) => {
            slot.tally.burned(BurnCause::Refill, ids.range.count);
            BulkAnswer::NoAuthority
        }
        _ => {
            slot.granted_ids.fetch_add(ids.range.count, Ordering::Relaxed);
            slot.bulk_ids.fetch_add(ids.range.count, Ordering::Relaxed);
            slot.ids_wanted.store(0, Ordering::Relaxed);
            BulkAnswer::Granted(ids)
        }
    }
}

fn answer_of(refused: Refused) -> BulkAnswer {
    match refused {
        Refused::Locked(holder) => BulkAnswer::Locked {
            failure: Failure::RowLocked,
            holder,
        },
        Refused::TableLocked(holder) => BulkAnswer::Locked {
            failure: Failure::TableLocked,
            holder,
        },
        Refused::Gone => BulkAnswer::Gone,
        Refused::Exhausted(exhausted) => BulkAnswer::Exhausted {
            limit_id: exhausted.limit_id,
        },
        Refused::RateLimited { limit, until } => BulkAnswer::RateLimited { limit, until },
        Refused::KeyTaken { n } => BulkAnswer::KeyTaken { n },
        Refused::NoCeiling { .. } => BulkAnswer::NoCeiling,
        Refused::Copy => BulkAnswer::Copy,
        Refused::Unwitnessed => BulkAnswer::Unwitnessed,
        Refused::NotCut => BulkAnswer::NotCut,
        Refused::BurnTooLarge { limit_id } => BulkAnswer::BurnTooLarge { limit_id },
        Refused::Unsettled | Refused::Home(_) | Refused::Query(_) => {
            pgrx::log!("pg_idgen: bulk request: {refused}");
            BulkAnswer::Error
        }
    }
}
