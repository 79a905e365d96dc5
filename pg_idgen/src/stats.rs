//! `idgen.stats`: who has drawn how many ids, what was refused, what the clocks did.

use crate::call::{Call, current_user, text_datum, unsigned_datum, v1_function};
use crate::clock;
use crate::error::{Error, REFUSALS};
use crate::shmem::{Kind, ROLE_IDS_PER_S_MAX, Shared, shared};
use idgen_core::clock::BootMs;
use idgen_core::format::layout::moment_of;
use idgen_core::rate::RateView;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

v1_function!(idgen_stat_values, stat_values);
v1_function!(idgen_reset_stats, reset_stats);

/// A warning stays up this long.
const WARNING_MS: u64 = 60_000;

/// An error of class IG was raised.
pub fn count_refusal(sqlstate: &str) {
    let position = REFUSALS.iter().position(|code| *code == sqlstate);
    if let (Some(shared), Some(position)) = (shared(), position) {
        shared.stats.refusals[position].fetch_add(1, Relaxed);
    }
}

fn reset_stats(_call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    shared.stats.reset(clock::wall().0);
    shared.duplicates.reset();
    for (_, token, _) in shared.leases().known() {
        token.ids.store(0, Relaxed);
    }
    for slot in shared.segments_in_use() {
        slot.forget_ids();
    }
    Ok(pg_sys::Datum::null())
}

/// One row of `idgen.stats`: scope, object, role, counter, value, warning.
type Row = [Option<pg_sys::Datum>; 6];

fn stat_values(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    if let Some(shared) = shared() {
        let now = clock::boot();
        let user = current_user();
        server_rows(shared).for_each(|row| rows.push(row));
        identity_rows(shared).for_each(|row| rows.push(row));
        role_rows(shared, user, now).for_each(|row| rows.push(row));
        refusal_rows(shared).for_each(|row| rows.push(row));
    }
    Ok(rows.done())
}

fn row(scope: &str, object: Option<&str>, counter: &str, value: u64) -> Row {
    [
        text_datum(scope),
        object.and_then(text_datum),
        None,
        text_datum(counter),
        unsigned_datum(value),
        None,
    ]
}

fn server_rows(shared: &Shared) -> impl Iterator<Item = Row> {
    let stats = &shared.stats;
    let wall = stats.wall.view();
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    let workers = shared
        .leases()
        .known()
        .filter(|(identity, ..)| identity.kind == Kind::Worker);
    let last = workers
        .map(|(.., slot)| slot.view())
        .filter(|view| view.open)
        .map(|view| moment_of(view.tick))
        .max();
    [
        ("counted_since_ms", load(&stats.since_ms)),
        // Of all roles: theirs only rise, whereas a tag's place in memory may be given to another one.
        ("ids", stats.roles().map(|entry| entry.ids.view().total).sum()),
        ("clock_behind_ms", wall.behind_ms),
        ("clock_rewinds", wall.rewinds),
        ("clock_rewind_ms_max", wall.rewind_ms_max),
        ("lead_ms", last.map_or(0, |last| last.since(wall.max))),
        ("lead_ms_max", load(&stats.lead_ms_max)),
        ("exhaustions", load(&stats.exhaustions)),
        ("lease_waits", load(&stats.lease_waits)),
        ("waited_ms", load(&stats.waited_ms)),
        ("burnt_ids", load(&stats.burnt)),
        ("evictions", load(&stats.evictions)),
    ]
    .into_iter()
    .map(|(counter, value)| row("server", None, counter, value))
}

fn identity_rows(shared: &Shared) -> impl Iterator<Item = Row> {
    shared.leases().known().map(|(identity, token, _)| {
        let number = identity.number.to_string();
        row(
            identity.kind.name(),
            Some(&number),
            "ids",
            token.ids.load(Relaxed),
        )
    })
}

/// Everybody sees the roles that they have, members of pg_monitor see all.
fn is_shown(user: pg_sys::Oid, role: u32) -> bool {
    // SAFETY: catalogue look-ups inside a transaction.
    unsafe {
        pg_sys::has_privs_of_role(user, pg_sys::Oid::from(role))
            || pg_sys::has_privs_of_role(user, pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR))
    }
}

fn exists(role: u32) -> bool {
    // SAFETY: a catalogue look-up inside a transaction; what it finds is released.
    unsafe {
        let found = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::AUTHOID as i32,
            pg_sys::Oid::from(role).into(),
        );
        if found.is_null() {
            return false;
        }
        pg_sys::ReleaseSysCache(found);
        true
    }
}

/// Roles by name; what has none any more (dropped, or too many to be counted apart) is one role, "others".
fn role_rows(shared: &Shared, user: pg_sys::Oid, now: BootMs) -> impl Iterator<Item = Row> {
    let (mut named, mut others) = (Vec::new(), None::<RateView>);
    for entry in shared.stats.roles() {
        let (role, view) = (entry.role.load(Relaxed), entry.ids.view());
        if role == 0 || !exists(role) {
            others = Some(others.unwrap_or_default().and(&view));
        } else if is_shown(user, role) {
            named.push((Some(role), view));
        }
    }
    named.extend(others.map(|view| (None, view)));
    named
        .into_iter()
        .flat_map(move |(role, view)| rows_of_role(role, &view, now))
}

fn rows_of_role(role: Option<u32>, view: &RateView, now: BootMs) -> [Row; 2] {
    let warned = view.above_limit.is_some_and(|at| now.since(at) < WARNING_MS);
    let warning = warned.then(|| {
        format!(
            "more than {ROLE_IDS_PER_S_MAX} ids in a second within the last minute: let backfills use slots of their own (idgen.bulk_slots)"
        )
    });
    [
        ("ids", view.total, None),
        ("ids_per_s_max", view.peak_per_s, warning),
    ]
    .map(|(counter, value, warning)| {
        [
            text_datum("role"),
            None,
            role.map(pg_sys::Datum::from),
            text_datum(counter),
            unsigned_datum(value),
            warning.as_deref().and_then(text_datum),
        ]
    })
}

fn refusal_rows(shared: &Shared) -> impl Iterator<Item = Row> {
    REFUSALS
        .iter()
        .zip(&shared.stats.refusals)
        .map(|(code, counter)| row("error", Some(code), "raised", counter.load(Relaxed)))
}
