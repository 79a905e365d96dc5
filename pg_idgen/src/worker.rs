//! The launcher and the refill workers: they grant ranges so that callers do not have to.
//!
//! The launcher starts with the server, has no database, and starts at most `idgen.max_refill_workers`
//! workers at a time, one per database: that whose last turn is longest ago first, of those that had none the one with
//! the most tags in need. A worker serves its
//! database's requests one after the other (so one grant per tag is in flight) and goes after an idle second,
//! so that DROP DATABASE is not held up. While other databases wait for a worker it goes as soon as it has nothing to
//! do, and after a short turn even so: then a server may have many more databases than workers.
//!
//! Within a database a tag that has nothing left comes before those that only fetch ahead.
//!
//! No request is lost: a caller sets `wanted`, then looks for a registered worker to wake; a worker that goes
//! takes its registration back, then looks for `wanted` again. A worker that dies with a request leaves the
//! callers, who ask again every 100 ms.

mod bulk;
mod launcher;
mod table_lock;

use crate::authority::{self, Permit};
use crate::call::current_database;
use crate::clock;
use crate::owner::{AsOwner, Tables};
use crate::segment::failure::{Failure, Holder};
use crate::segment::grant::{Granted, Issuer, Lost, Refused, Wish, grant};
use crate::segment::{leaf, requests, roles, wanted_in};
use crate::shmem::{BurnCause, RefillWorker, SegmentKey, SegmentSlot, Serving, Shared, shared};
use idgen_core::clock::BootMs;
use idgen_core::segment::Publication;
use idgen_core::segment::home::Verdict;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use launcher::register_launcher;

/// A worker without work goes after this time.
const IDLE: Duration = Duration::from_secs(1);

/// How long a busy worker stays while other databases wait for one: many refills, and a small part of
/// `idgen.segment_wait_ms`.
const TURN_MS: u64 = 100;

/// A worker that goes on for so long keeps house again.
const KEEP_HOUSE_MS: u64 = 600_000;

const LIBRARY: &str = "pg_idgen";

unsafe extern "C-unwind" {
    fn idgen_worker_signals();
}

/// Sleep until woken or the time is over; serves interrupts (a SIGTERM ends the process here).
fn sleep(time: Duration) {
    crate::call::nap(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    reload_settings();
}

fn reload_settings() {
    // SAFETY: plain variables and the function meant for them, in the main loop of a worker.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_refill_main(argument: pg_sys::Datum) {
    // SAFETY: first thing in a background worker, as Postgres wants it.
    unsafe { idgen_worker_signals() };
    let Some(shared) = shared() else { return };
    let argument = argument.value() as u64;
    let (entry, database) = ((argument >> 32) as usize, argument as u32);
    BackgroundWorker::connect_worker_to_spi_by_oid(Some(pg_sys::Oid::from(database)), None);
    pin_settings();
    let number = entry;
    let entry: &RefillWorker = &shared.refill_workers[number];
    entry.served.store(true, Ordering::Release);
    entry.register(database);
    make_leaves_ahead();
    let mut settled = settle();
    let began = clock::boot();
    let mut idle_since = began;
    let mut kept_house_at = None;
    while clock::boot().since(idle_since) < IDLE.as_millis() as u64 {
        let served = serve(shared, database, number, &mut settled);
        let others_wait = shared.databases_waiting();
        if others_wait && (served == 0 || clock::boot().since(began) >= TURN_MS) {
            break;
        }
        if served == 0 {
            keep_house(&mut kept_house_at);
            sleep(IDLE);
        } else {
            idle_since = clock::boot();
            make_leaves_ahead();
            reload_settings();
            // Autovacuum must see what a busy worker leaves behind.
            // SAFETY: in the main loop, outside any transaction.
            unsafe { pg_sys::pgstat_report_stat(false) };
        }
    }
    entry.register(0);
    let asked = shared.bulk.asked_in(database).next().is_some();
    if asked || wanted_in(shared, database).next().is_some() {
        shared.wake_launcher();
    }
}

/// Every request once; how many there were. Whoever waits comes before a range that is only fetched ahead: a thousand tags may
/// want one at the same moment.
fn serve(shared: &Shared, database: u32, number: usize, settled: &mut Settled) -> usize {
    let mut served = serve_waiting(shared, database, number, settled);
    for slot in wanted_in(shared, database) {
        refill(shared, &shared.serve(number, slot), settled);
        served += 1 + serve_waiting(shared, database, number, settled);
    }
    served
}

fn serve_waiting(shared: &Shared, database: u32, number: usize, settled: &mut Settled) -> usize {
    wanted_in(shared, database)
        .filter(|slot| slot.buffer.remaining() == 0)
        .map(|slot| refill(shared, &shared.serve(number, slot), settled))
        .count()
        + bulk::serve(shared, database, number, settled)
}

/// Whatever the database, the role or the server has set: a grant is durable before it is used, short, and
/// reads what is committed.
fn pin_settings() {
    for (name, value) in [
        (c"synchronous_commit", c"on"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_deferrable", c"off"),
        (c"lock_timeout", c"100ms"),
        (c"statement_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"session_replication_role", c"origin"),
        (c"default_tablespace", c""),
        (c"default_table_access_method", c"heap"),
    ] {
        // SAFETY: constants; the worker runs as the bootstrap superuser.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

/// Serve one request: one short transaction, then publish. `settled`: see [`settle`].
fn refill(shared: &Shared, serving: &Serving<'_>, settled: &mut Settled) {
    let (slot, key, incarnation) = (serving.slot, serving.key, serving.incarnation);
    slot.wanted.store(false, Ordering::SeqCst);
    if key.database != current_database() {
        // Given to a tag of another database a moment ago, which asks again.
        return;
    }
    if key == SegmentKey::leaves_of(key.database) {
        // Whoever asks for nothing else wants what has changed about the database to be settled.
        *settled = settle();
        slot.set_failure(if make_leaves() {
            Failure::None
        } else {
            Failure::Error
        });
        slot.wake_waiters();
        return;
    }
    let has_room = {
        let _locked = shared.lock_segments();
        slot.buffer.has_room()
    };
    if !has_room {
        slot.note_success();
        slot.wake_waiters();
        return;
    }
    let permit = match Permit::now(shared, slot) {
        Ok(permit) => permit,
        Err(failure) => {
            note_failure(slot, failure);
            slot.wake_waiters();
            return;
        }
    };
    let began = clock::boot();
    let lasted_ms = match slot.granted_boot_ms.load(Ordering::Relaxed) {
        0 => None,
        granted_ms => Some(began.0.saturating_sub(granted_ms)),
    };
    let wish = Wish {
        segment_id: key.segment_id,
        space_id: key.space_id,
        stripes: key.stripes,
        source_id: None,
        issuer: Issuer::RefillWorker,
        above: slot.high_water.load(Ordering::Acquire),
        permit,
        fetches: Some((slot.tally.fetches(), began)),
    };
    let began_us = clock::boot_us();
    match grant_settled(settled, |client| grant(client, &wish, lasted_ms)) {
        Some(Ok(granted)) => {
            // A SIGTERM that ended a wait for the synchronous standby has left the commit unconfirmed: the
            // process ends here and the range is burned.
            pgrx::check_for_interrupts!();
            if let Err(error) = authority::anchor::note(wish.space_id, wish.segment_id, granted.ids.last_id())
            {
                note_failure(slot, Failure::Error);
                slot.tally.burned(BurnCause::Refill, granted.ids.range.count);
                pgrx::log!("pg_idgen: a range is burned: {error:?}");
                slot.wake_waiters();
                return;
            }
            count_lost(slot, granted.lost);
            count_fetch(slot, &granted.tag, began);
            publish(shared, slot, &wish, &granted, incarnation, began_us);
            slot.granted_boot_ms.store(began.0, Ordering::Relaxed);
        }
        Some(Err(refused)) => note_refusal(slot, &refused),
        None => note_failure(slot, Failure::Error),
    }
    slot.wake_waiters();
}

/// What the transaction of a grant has found to be lost, once it has committed.
fn count_lost(slot: &SegmentSlot, lost: Lost) {
    slot.tally.burned(BurnCause::Restart, lost.by_restart);
    slot.tally.burned(BurnCause::Eviction, lost.by_eviction);
    slot.tally.burned(BurnCause::Safety, lost.passed_over);
}

/// A range was granted; so many that somebody should know of it are told once, until they have become far fewer.
fn count_fetch(slot: &SegmentSlot, tag: &str, now: BootMs) {
    if let Some(per_minute) = slot.tally.fetched(now) {
        pgrx::warning!(
            "pg_idgen: {per_minute} ranges of segment tag \"{}\" were fetched from the database within a minute: raise its max_step",
            crate::error::clip(tag)
        );
    }
}

/// `began_us`: when the refill began.
fn publish(
    shared: &Shared,
    slot: &SegmentSlot,
    wish: &Wish,
    granted: &Granted,
    incarnation: u64,
    began_us: u64,
) {
    let range = Publication {
        base: granted.ids.range.first,
        len: granted.ids.range.count,
        incarnation,
    };
    let (first, last) = (granted.ids.first_id(), granted.ids.last_id());
    let published = {
        let locked = shared.lock_segments();
        slot.high_water.fetch_max(last, Ordering::AcqRel);
        match &wish.permit {
            // The commit took so long that somebody else may grant by now.
            Permit::Leased(permit)
                if !shared.still_permits(slot.database(), permit, clock::boot(), &locked) =>
            {
                None
            }
            _ => {
                // Before it can be drawn from; taken back if it is not.
                slot.granted_ids.fetch_add(range.len, Ordering::Relaxed);
                let published = slot.buffer.publish(range);
                if published.is_err() {
                    slot.granted_ids.fetch_sub(range.len, Ordering::Relaxed);
                }
                Some(published)
            }
        }
    };
    if published != Some(Ok(())) {
        slot.tally.burned(BurnCause::Refill, range.len);
    }
    match published {
        None => {
            note_failure(slot, Failure::NoAuthority);
            pgrx::log!("pg_idgen: granted ids {first} to {last} are burned: the lease has ended");
        }
        Some(Ok(())) => {
            slot.step.store(granted.step, Ordering::Relaxed);
            slot.tally.refilled(clock::boot_us().saturating_sub(began_us));
            slot.note_success();
            slot.ids_wanted.store(0, Ordering::Relaxed);
        }
        Some(Err(error)) => {
            note_failure(slot, Failure::Error);
            pgrx::log!("pg_idgen: granted ids {first} to {last} are burned: {error}");
        }
    }
}

fn note_refusal(slot: &SegmentSlot, refused: &Refused) {
    match refused {
        Refused::Locked(holder) => slot.note_failure(Failure::RowLocked, *holder),
        Refused::TableLocked(holder) => slot.note_failure(Failure::TableLocked, *holder),
        Refused::Gone => note_failure(slot, Failure::Gone),
        Refused::NoCeiling { ids } => {
            slot.ids_wanted.fetch_max(*ids, Ordering::Relaxed);
            note_failure(slot, Failure::NoCeiling);
        }
        Refused::RateLimited { limit, until } => {
            slot.fetch_limit.store(*limit, Ordering::Relaxed);
            slot.limited_until_boot_ms.store(until.0, Ordering::Release);
            note_failure(slot, Failure::RateLimited);
        }
        Refused::Copy => note_failure(slot, Failure::Copy),
        Refused::Unwitnessed => note_failure(slot, Failure::Unwitnessed),
        Refused::NotCut => note_failure(slot, Failure::NotCut),
        Refused::BurnTooLarge { limit_id } => {
            slot.limit_id.store(*limit_id, Ordering::Release);
            note_failure(slot, Failure::BurnTooLarge);
        }
        Refused::Exhausted(exhausted) => {
            slot.limit_id.store(exhausted.limit_id, Ordering::Release);
            note_failure(slot, Failure::Exhausted);
        }
        Refused::Unsettled | Refused::Home(_) | Refused::Query(_) | Refused::KeyTaken { .. } => {
            note_failure(slot, Failure::Error);
            pgrx::log!("pg_idgen: refill: {refused}");
        }
    }
}

fn note_failure(slot: &SegmentSlot, failure: Failure) {
    slot.note_failure(failure, Holder::default());
}

/// What this worker knows of its database's home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// As it was remembered, or remembered anew.
    Yes,
    /// Nothing is granted until an administrator says so.
    Copy,
    /// It did not work; the server log says why.
    Unknown,
}

/// Look whether the database is where it was when it granted last, and do what follows from that.
fn settle() -> Settled {
    let verdict = in_transaction(|client| {
        leaf::own_identity(client).map_err(Refused::Query)?;
        authority::settle::settle(client).map_err(|error| Refused::Home(format!("{error:?}")))
    });
    match verdict {
        Some(Ok(Verdict::Copy(moved))) => {
            pgrx::log!("pg_idgen: no ranges are granted: this may be a copy, {moved}");
            Settled::Copy
        }
        // The evidence stays until the burn is committed.
        Some(Ok(Verdict::Burn(_))) => begin_anchor(),
        Some(Ok(_)) => Settled::Yes,
        Some(Err(refused)) => {
            pgrx::log!("pg_idgen: settle: {refused}");
            Settled::Unknown
        }
        None => Settled::Unknown,
    }
}

fn begin_anchor() -> Settled {
    let begun = in_transaction(|client| {
        authority::anchor::begin(client).map_err(|error| Refused::Home(format!("{error:?}")))
    });
    match begun {
        Some(Ok(())) => Settled::Yes,
        Some(Err(refused)) => {
            pgrx::log!("pg_idgen: settle: {refused}");
            Settled::Unknown
        }
        None => Settled::Unknown,
    }
}

/// Grant in a transaction of its own, after what has changed about the database was settled: it may be adopted, promoted
/// or found to be a clone while this worker runs. `None`: nothing was granted, or nobody can know, and the range is burned.
fn grant_settled<R>(
    settled: &mut Settled,
    grant: impl Fn(&mut SpiClient<'_>) -> Result<R, Refused>,
) -> Option<Result<R, Refused>> {
    if *settled == Settled::Unknown {
        *settled = settle();
    }
    let granted = in_transaction(&grant);
    if !matches!(granted, Some(Err(Refused::Unsettled))) {
        return granted;
    }
    *settled = settle();
    in_transaction(&grant)
}

/// Leaves for the coming days, before they are needed. May fail (somebody holds the table's lock): the grants
/// of today do not depend on it.
fn make_leaves_ahead() {
    if leaf::ahead_is_due() {
        make_leaves();
    }
}

/// What nobody waits for, when nothing else is to be done: names of roles, and requests that are no longer kept.
fn keep_house(kept_at: &mut Option<BootMs>) {
    let now = clock::boot();
    if kept_at.is_none_or(|kept_at| now.since(kept_at) >= KEEP_HOUSE_MS) {
        *kept_at = Some(now);
        in_transaction(|client| {
            roles::refresh(client)?;
            requests::forget_old(client).map_err(Refused::Query)
        });
    }
}

/// `false`: it did not work; the server log says why.
fn make_leaves() -> bool {
    matches!(
        in_transaction(|client| leaf::make_ahead(client).map_err(Refused::Query)),
        Some(Ok(()))
    )
}

/// One short transaction of the extension's own. `None`: an error, which is in the server log.
fn in_transaction<R>(
    work: impl FnOnce(&mut SpiClient<'_>) -> Result<R, Refused>,
) -> Option<Result<R, Refused>> {
    match attempt(work) {
        Ok(outcome) => Some(outcome),
        Err(Caught::LockTimeout) => Some(Err(Refused::TableLocked(table_lock::holder()))),
        Err(Caught::Other) => None,
    }
}

/// An error that was caught and reported.
enum Caught {
    /// Rows are never waited for, so it was a table.
    LockTimeout,
    Other,
}

fn attempt<R>(
    work: impl FnOnce(&mut SpiClient<'_>) -> Result<R, Refused>,
) -> Result<Result<R, Refused>, Caught> {
    PgTryBuilder::new(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the worker's main loop, outside any transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let outcome = match Tables::of_this_database() {
            None => Err(Refused::Gone),
            Some(tables) => {
                let _as_owner = AsOwner::begin(tables.owner);
                Spi::connect_mut(work)
            }
        };
        // SAFETY: what was begun above. A refusal leaves nothing behind, whatever it had begun.
        unsafe {
            pg_sys::PopActiveSnapshot();
            match &outcome {
                Ok(_) => pg_sys::CommitTransactionCommand(),
                Err(_) => pg_sys::AbortCurrentTransaction(),
            }
        }
        Ok(outcome)
    }))
    .catch_others(|error| {
        // SAFETY: the error was caught in the main loop, where aborting is what Postgres' own workers do.
        unsafe { pg_sys::AbortCurrentTransaction() };
        Err(report(&error))
    })
    .execute()
}

fn report(error: &pg_sys::panic::CaughtError) -> Caught {
    use pg_sys::panic::CaughtError;
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic { ereport: report, .. }) = error;
    pgrx::log!("pg_idgen: refill: {}", report.message());
    match report.sql_error_code() {
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE => Caught::LockTimeout,
        _ => Caught::Other,
    }
}
