//! What `idgen.segments` shows of shared memory.

use crate::as_of_now;
use crate::call::{
    Call, boolean_datum, current_database, current_user, integer_datum, text_datum, unsigned_datum,
    uuid_datum, v1_function,
};
use crate::clock;
use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use crate::shmem::{SegmentSlot, shared};
use idgen_core::clock::BootMs;
use idgen_core::segment::fetches::ALERTS;
use pgrx::IntoDatum;
use pgrx::pg_sys;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

v1_function!(idgen_segment_buffers, segment_buffers);

/// The tags that role $1 may see: those that it owns, all for members of pg_monitor. As view idgen.segments.
const VISIBLE: &str = "
    SELECT array_agg(s.segment_id)
      FROM idgen.segment s CROSS JOIN idgen.space p
     WHERE pg_has_role($1, 'pg_monitor', 'USAGE')
        OR pg_has_role($1, CASE WHEN s.role_space = p.space_id THEN s.owner_oid
                                ELSE (SELECT n.oid FROM pg_roles n WHERE n.rolname = s.owner) END, 'USAGE')";

fn segment_buffers(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    let (Some(shared), Some(tables)) = (shared(), Tables::of_this_database()) else {
        return Ok(rows.done());
    };
    let database = current_database();
    let visible = visible(tables, current_user())?;
    let now = clock::boot().0;
    for slot in shared
        .segments_in_use()
        .filter(|slot| slot.database() == database && visible.contains(&slot.key().segment_id))
    {
        rows.push(row(slot, now));
    }
    Ok(rows.done())
}

fn visible(tables: Tables, user: pg_sys::Oid) -> Result<HashSet<[u8; 16]>, Error> {
    let as_owner = AsOwner::begin(tables.owner);
    // Without statistics of the tables Postgres takes it for a large query: compiling it took half a second.
    as_owner.pin(c"jit", c"off");
    let read = |row: &as_of_now::Row| row.get::<Vec<pgrx::Uuid>>(1);
    let ids = as_of_now::first_row(VISIBLE, &[user.into()], read)?.flatten();
    Ok(ids.into_iter().flatten().map(|id| *id.as_bytes()).collect())
}

fn row(slot: &SegmentSlot, now_ms: u64) -> [Option<pg_sys::Datum>; 20] {
    let granted_ms = slot.granted_boot_ms.load(Relaxed);
    let remaining = slot.buffer.remaining();
    let tally = slot.tally.view();
    let [last_ms, max_ms, mean_ms] = match tally.refill_us {
        Some(us) => us.map(|us| (us as f64 / 1_000.0).into_datum()),
        None => [None; 3],
    };
    let holder = slot.holder();
    let held_up = slot.held_up().name(holder);
    let unless_zero = |number: u32| (number != 0 && held_up.is_some()).then_some(number);
    [
        uuid_datum(slot.key().segment_id),
        uuid_datum(slot.key().space_id),
        unsigned_datum(remaining),
        integer_datum(slot.step.load(Relaxed) as i32),
        unsigned_datum(tally.refills),
        unsigned_datum(tally.refill_failures),
        last_ms,
        max_ms,
        mean_ms,
        if granted_ms == 0 {
            None
        } else {
            unsigned_datum(now_ms.saturating_sub(granted_ms))
        },
        boolean_datum(slot.wanted.load(Relaxed)),
        held_up.and_then(text_datum),
        unless_zero(holder.pid).and_then(|pid| integer_datum(pid as i32)),
        unless_zero(holder.prepared_xid).and_then(|xid| unsigned_datum(u64::from(xid))),
        unsigned_datum(slot.ids()),
        rounded(tally.ids_per_s).into_datum(),
        tally
            .seconds_left(remaining)
            .and_then(|s| rounded(s).into_datum()),
        text_datum(&slot.tally.burned_json()),
        integer_datum(i32::try_from(tally.fetches.per_minute(BootMs(now_ms))).unwrap_or(i32::MAX)),
        warning(tally.alerts).as_deref().and_then(text_datum),
    ]
}

/// What somebody should look into.
fn warning(alerts: usize) -> Option<String> {
    let alert = ALERTS.get(alerts.checked_sub(1)?)?;
    Some(format!(
        "more than {alert} ranges a minute are fetched from the database: raise max_step"
    ))
}

/// To three decimals: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
