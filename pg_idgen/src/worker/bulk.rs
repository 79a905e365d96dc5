//! Serving the requests for many ids at once: `shmem/bulk.rs` has them.

use super::in_transaction;
use crate::segment::grant::{Bulk, BulkGranted, Issuer, Refused, Wish, grant_exactly};
use crate::shmem::{BulkAnswer, BulkRequest, Shared};
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

/// Serve what is asked of `database`; how many requests there were. `entry`: of this worker.
pub fn serve(shared: &Shared, database: u32, entry: usize) -> usize {
    let mut served = 0;
    for place in shared.bulk.asked_in(database) {
        let Some((ticket, request)) = place.begin(entry) else {
            continue;
        };
        served += 1;
        let answer = grant(shared, &request);
        if let (BulkAnswer::Granted(range), false) = (answer, shared.bulk.answer(place, ticket, answer)) {
            pgrx::log!(
                "pg_idgen: granted ids {} to {} are burned unless their request is repeated by its key: whoever asked is gone",
                range.first,
                range.last()
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
fn grant(shared: &Shared, request: &BulkRequest) -> BulkAnswer {
    let slot = shared.segment_in_use(&request.key);
    let wish = Wish {
        segment_id: request.key.segment_id,
        space_id: request.key.space_id,
        source_id: None,
        issuer: Issuer::RefillWorker,
        above: slot.map_or(0, |slot| slot.high_water.load(Ordering::Acquire)),
    };
    let bulk = Bulk {
        n: request.n,
        request_key: request.request_key(),
        role: pg_sys::Oid::from(request.role),
        pid: request.pid,
    };
    match in_transaction(|client| grant_exactly(client, &wish, &bulk)) {
        Some(Ok(BulkGranted { range, is_new })) => {
            // A SIGTERM that ended a wait for the synchronous standby has left the commit unconfirmed: the process
            // ends here, and the launcher answers.
            pgrx::check_for_interrupts!();
            if let Some(slot) = slot.filter(|_| is_new) {
                slot.high_water.fetch_max(range.last(), Ordering::AcqRel);
                slot.granted_ids.fetch_add(range.count, Ordering::Relaxed);
            }
            BulkAnswer::Granted(range)
        }
        Some(Err(refused)) => answer_of(refused),
        None => BulkAnswer::Error,
    }
}

fn answer_of(refused: Refused) -> BulkAnswer {
    match refused {
        Refused::Locked { blocker_pid } => BulkAnswer::RowLocked { pid: blocker_pid },
        Refused::Gone => BulkAnswer::Gone,
        Refused::Exhausted(exhausted) => BulkAnswer::Exhausted {
            limit_id: exhausted.limit_id,
        },
        Refused::KeyTaken { n } => BulkAnswer::KeyTaken { n },
        Refused::Query(error) => {
            pgrx::log!("pg_idgen: bulk request: {error}");
            BulkAnswer::Error
        }
    }
}
