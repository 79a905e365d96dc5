//! What `idgen.slots` and `idgen.health` show of shared memory.

use super::{VERSION, is_open};
use crate::call::{
    Call, bigint_datum, boolean_datum, in_recovery, integer_datum, text_datum, unsigned_datum, uuid_datum,
    v1_function,
};
use crate::clock;
use crate::error::Error;
use crate::shmem::{Identity, Kind, Shared, TokenCell, shared};
use idgen_core::clock::BootMs;
use idgen_core::contract::CONTRACT_VERSION;
use idgen_core::format::layout::moment_of;
use idgen_core::mint::Slot;
use pgrx::pg_sys;
use std::sync::atomic::Ordering::Relaxed;

v1_function!(idgen_slot_states, slot_states);
v1_function!(idgen_server_state, server_state);

fn slot_states(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    if let Some(shared) = shared() {
        let now = clock::boot();
        for (identity, cell, slot) in shared.leases().known() {
            rows.push(slot_row(identity, cell, slot, now));
        }
    }
    Ok(rows.done())
}

fn slot_row(identity: Identity, cell: &TokenCell, slot: &Slot, now: BootMs) -> [Option<pg_sys::Datum>; 12] {
    let (view, open) = (slot.view(), is_open(cell, slot));
    let (epoch, revision) = cell.token().unwrap_or_default();
    let state = match (open, now.0 < view.dead_boot_ms) {
        (true, true) => "open",
        (true, false) => "expired",
        (false, _) => "fenced",
    };
    let unix_ms = |tick| unsigned_datum(moment_of(tick).0);
    let deadline_in_ms = view.dead_boot_ms.cast_signed() - now.0.cast_signed();
    let while_open = |datum| if open { datum } else { None };
    [
        text_datum(identity.kind.name()),
        integer_datum(i32::from(identity.number)),
        text_datum(state),
        integer_datum(view.generation as i32),
        unsigned_datum(epoch),
        unsigned_datum(revision),
        unix_ms(cell.floor_tick.load(Relaxed)),
        unix_ms(view.tick),
        while_open(unix_ms(view.ceiling_tick)),
        while_open(unsigned_datum(view.dead_boot_ms)),
        while_open(bigint_datum(deadline_in_ms)),
        unsigned_datum(cell.ids.load(Relaxed)),
    ]
}

/// What `idgen.health` shows; answers without shared memory too.
fn server_state(call: Call) -> Result<pg_sys::Datum, Error> {
    match shared() {
        Some(shared) => call.record(health(shared)),
        None => call.record([
            text_datum(VERSION),
            integer_datum(CONTRACT_VERSION),
            boolean_datum(false),
            boolean_datum(in_recovery()),
            None,
            None,
            None,
            None,
            None,
            None,
            integer_datum(0),
            integer_datum(0),
            None,
            text_datum("not preloaded"),
            None,
            None,
            None,
            None,
            None,
        ]),
    }
}

fn health(shared: &Shared) -> [Option<pg_sys::Datum>; 19] {
    let now = clock::boot();
    let open = |kind| {
        let known = shared.leases().known();
        let views = known
            .filter(move |(identity, ..)| identity.kind == kind)
            .map(|(.., slot)| slot.view());
        views.filter(move |view| view.open && now.0 < view.dead_boot_ms)
    };
    let (workers, shards) = (open(Kind::Worker).count(), open(Kind::Shard).count());
    let state = match (in_recovery(), workers + shards) {
        (true, _) => "in recovery",
        (false, 0) if shared.is_drained() => "drained",
        (false, 0) => "no lease",
        (false, _) => "serving",
    };
    let plan = shared.formats.plan_at(clock::wall());
    let next = plan.and_then(|(_, next)| next);
    let deadlines = open(Kind::Worker)
        .chain(open(Kind::Shard))
        .map(|view| view.dead_boot_ms - now.0);
    let said = shared.clock_note(now);
    let said = said.as_ref();
    [
        text_datum(VERSION),
        integer_datum(CONTRACT_VERSION),
        boolean_datum(true),
        boolean_datum(in_recovery()),
        uuid_datum(shared.boot_id()),
        shared.cell_id().and_then(uuid_datum),
        plan.and_then(|(current, _)| text_datum(&current.to_string())),
        next.and_then(|(_, format)| text_datum(&format.to_string())),
        next.and_then(|(from, _)| unsigned_datum(from.0)),
        shared.daemon_silent_ms(now).and_then(unsigned_datum),
        integer_datum(workers as i32),
        integer_datum(shards as i32),
        deadlines.max().and_then(unsigned_datum),
        text_datum(state),
        said.and_then(|said| text_datum(&said.state)),
        said.and_then(|said| text_datum(&said.reason)),
        said.and_then(|said| said.offset_us).and_then(bigint_datum),
        said.and_then(|said| said.error_us).and_then(bigint_datum),
        shared.drained().and_then(|why| text_datum(&why)),
    ]
}
