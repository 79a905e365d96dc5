//! What `idgen.segments` shows of shared memory.

use crate::call::{
    Call, boolean_datum, current_database, integer_datum, unsigned_datum, uuid_datum, v1_function,
};
use crate::clock;
use crate::error::Error;
use crate::shmem::{SegmentSlot, shared};
use pgrx::pg_sys;
use std::sync::atomic::Ordering::Relaxed;

v1_function!(idgen_segment_buffers, segment_buffers);

fn segment_buffers(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    let database = current_database();
    if let Some(shared) = shared() {
        let now = clock::boot().0;
        for slot in shared
            .segments_in_use()
            .filter(|slot| slot.database() == database)
        {
            rows.push(row(slot, now));
        }
    }
    Ok(rows.done())
}

fn row(slot: &SegmentSlot, now_ms: u64) -> [Option<pg_sys::Datum>; 11] {
    let granted_ms = slot.granted_boot_ms.load(Relaxed);
    let blocker_pid = slot.blocker_pid.load(Relaxed) as i32;
    [
        uuid_datum(slot.key().segment_id),
        uuid_datum(slot.key().space_id),
        unsigned_datum(slot.buffer.remaining()),
        integer_datum(slot.step.load(Relaxed) as i32),
        unsigned_datum(slot.refills.load(Relaxed)),
        unsigned_datum(slot.refill_failures.load(Relaxed)),
        unsigned_datum(slot.refill_us_last.load(Relaxed)),
        if granted_ms == 0 {
            None
        } else {
            unsigned_datum(now_ms.saturating_sub(granted_ms))
        },
        boolean_datum(slot.wanted.load(Relaxed)),
        if blocker_pid == 0 {
            None
        } else {
            integer_datum(blocker_pid)
        },
        unsigned_datum(slot.ids()),
    ]
}
