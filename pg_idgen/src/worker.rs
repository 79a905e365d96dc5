//! The launcher and the refill workers: they grant ranges so that callers do not have to.
//!
//! The launcher starts with the server, has no database, and starts at most `idgen.max_refill_workers`
//! workers at a time, one per database, the database with the most tags in need first. A worker serves its
//! database's requests one after the other (so one grant per tag is in flight) and goes after an idle second,
//! so that DROP DATABASE is not held up.
//!
//! No request is lost: a caller sets `wanted`, then looks for a registered worker to wake; a worker that goes
//! takes its registration back, then looks for `wanted` again. A worker that dies with a request leaves the
//! callers, who ask again every 100 ms.

mod bulk;

use crate::authority::{self, Permit};
use crate::call::own_pid;
use crate::owner::{AsOwner, Tables};
use crate::segment::failure::Failure;
use crate::segment::grant::{Granted, Issuer, Refused, Wish, grant};
use crate::segment::{leaf, requests, roles, wanted_in};
use crate::shmem::{RefillWorker, SegmentKey, SegmentSlot, Shared, shared};
use crate::{clock, guc};
use idgen_core::clock::BootMs;
use idgen_core::segment::Publication;
use idgen_core::segment::home::Verdict;
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A worker without work goes after this time.
const IDLE: Duration = Duration::from_secs(1);

/// The launcher looks around at least this often: a dead worker wakes nobody.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// … and this often while a database waits for a free worker.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A worker that goes on for so long keeps house again.
const KEEP_HOUSE_MS: u64 = 600_000;

const LIBRARY: &str = "pg_idgen";

pub fn register_launcher() {
    BackgroundWorkerBuilder::new("pg_idgen launcher")
        .set_type("pg_idgen launcher")
        .set_library(LIBRARY)
        .set_function("idgen_launcher_main")
        .enable_shmem_access(None)
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

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
pub extern "C-unwind" fn idgen_launcher_main(_argument: pg_sys::Datum) {
    // SAFETY: first thing in a background worker, as Postgres wants it.
    unsafe { idgen_worker_signals() };
    let Some(shared) = shared() else { return };
    // SAFETY: this process's own latch.
    shared.set_launcher_latch(unsafe { pg_sys::MyLatch });
    let mut launcher = Launcher {
        shared,
        running: Vec::new(),
    };
    loop {
        launcher.reap();
        let all_served = launcher.start_where_needed();
        sleep(if all_served { LOOK_AROUND } else { LOOK_AGAIN });
    }
}

struct Launcher {
    shared: &'static Shared,
    running: Vec<Running>,
}

struct Running {
    database: u32,
    entry: usize,
    worker: DynamicBackgroundWorker,
}

impl Launcher {
    /// Forget the workers that are gone.
    fn reap(&mut self) {
        let shared = self.shared;
        self.running.retain(|running| {
            if !matches!(running.worker.pid(), Err(BackgroundWorkerStatus::Stopped)) {
                return true;
            }
            let entry = &shared.refill_workers[running.entry];
            // A worker that died has not taken its registration back.
            entry.database.store(0, Ordering::SeqCst);
            shared.bulk.answer_for_dead(running.entry);
            if !entry.served.load(Ordering::Acquire) {
                // It never got into its database, which may be gone: whoever still waits will ask again.
                fail_wanted(shared, running.database, running.entry);
            }
            false
        });
    }

    /// `false`: a database in need has to wait for its turn.
    fn start_where_needed(&mut self) -> bool {
        let mut needs: HashMap<u32, usize> = HashMap::new();
        for slot in self
            .shared
            .segments_in_use()
            .filter(|slot| slot.wanted.load(Ordering::SeqCst))
        {
            *needs.entry(slot.database()).or_default() += 1;
        }
        for database in self.shared.bulk.databases() {
            *needs.entry(database).or_default() += 1;
        }
        needs.retain(|database, _| self.running.iter().all(|running| running.database != *database));
        let mut by_need: Vec<(u32, usize)> = needs.into_iter().collect();
        by_need.sort_by_key(|(database, tags)| (std::cmp::Reverse(*tags), *database));
        for (database, _) in &by_need {
            if self.running.len() >= guc::max_refill_workers() {
                return false;
            }
            self.start(*database);
        }
        true
    }

    fn start(&mut self, database: u32) {
        let taken = |entry: &usize| self.running.iter().any(|running| running.entry == *entry);
        let Some(entry) = (0..guc::REFILL_WORKERS_MAX).find(|entry| !taken(entry)) else {
            return;
        };
        self.shared.refill_workers[entry]
            .served
            .store(false, Ordering::Release);
        let worker = BackgroundWorkerBuilder::new("pg_idgen refill worker")
            .set_type("pg_idgen refill worker")
            .set_library(LIBRARY)
            .set_function("idgen_refill_main")
            .enable_spi_access()
            .set_argument(Some(pg_sys::Datum::from(
                (entry as u64) << 32 | u64::from(database),
            )))
            .set_notify_pid(own_pid())
            .load_dynamic();
        match worker {
            Ok(worker) => self.running.push(Running {
                database,
                entry,
                worker,
            }),
            Err(_) => fail_wanted(self.shared, database, entry),
        }
    }
}

fn fail_wanted(shared: &Shared, database: u32, entry: usize) {
    bulk::fail(shared, database, entry);
    for slot in wanted_in(shared, database) {
        slot.wanted.store(false, Ordering::SeqCst);
        slot.set_failure(Failure::NoWorker);
        slot.wake_waiters();
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
    let mut idle_since = clock::boot();
    let mut kept_house_at = None;
    while clock::boot().since(idle_since) < IDLE.as_millis() as u64 {
        let served = wanted_in(shared, database)
            .map(|slot| refill(shared, slot, &mut settled))
            .count()
            + bulk::serve(shared, database, number, &mut settled);
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
fn refill(shared: &Shared, slot: &SegmentSlot, settled: &mut Settled) {
    slot.wanted.store(false, Ordering::SeqCst);
    let key = slot.key();
    if key == SegmentKey::leaves_of(key.database) {
        slot.set_failure(if make_leaves() {
            Failure::None
        } else {
            Failure::Error
        });
        slot.wake_waiters();
        return;
    }
    let incarnation = slot.buffer.incarnation();
    let has_room = {
        let _locked = shared.lock_segments();
        slot.buffer.has_room()
    };
    if !has_room {
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
        source_id: None,
        issuer: Issuer::RefillWorker,
        above: slot.high_water.load(Ordering::Acquire),
        permit,
    };
    let began_ns = clock::wall_ns();
    match grant_settled(settled, |client| grant(client, &wish, lasted_ms)) {
        Some(Ok(granted)) => {
            // A SIGTERM that ended a wait for the synchronous standby has left the commit unconfirmed: the
            // process ends here and the range is burned.
            pgrx::check_for_interrupts!();
            if let Err(error) = authority::anchor::note(wish.space_id, wish.segment_id, granted.range.last())
            {
                note_failure(slot, Failure::Error);
                pgrx::log!("pg_idgen: a range is burned: {error:?}");
                slot.wake_waiters();
                return;
            }
            publish(shared, slot, &wish, &granted, incarnation);
            slot.granted_boot_ms.store(began.0, Ordering::Relaxed);
            slot.refill_us_last.store(
                clock::wall_ns().saturating_sub(began_ns) / 1_000,
                Ordering::Relaxed,
            );
        }
        Some(Err(refused)) => note_refusal(slot, &refused),
        None => note_failure(slot, Failure::Error),
    }
    slot.wake_waiters();
}

fn publish(shared: &Shared, slot: &SegmentSlot, wish: &Wish, granted: &Granted, incarnation: u64) {
    let range = Publication {
        base: granted.range.first,
        len: granted.range.count,
        incarnation,
    };
    let published = {
        let locked = shared.lock_segments();
        slot.high_water.fetch_max(granted.range.last(), Ordering::AcqRel);
        match &wish.permit {
            // The commit took so long that somebody else may grant by now.
            Permit::Leased(permit)
                if !shared.still_permits(slot.database(), permit, clock::boot(), &locked) =>
            {
                None
            }
            _ => {
                slot.granted_ids.fetch_add(range.len, Ordering::Relaxed);
                Some(slot.buffer.publish(range))
            }
        }
    };
    match published {
        None => {
            note_failure(slot, Failure::NoAuthority);
            let last = granted.range.last();
            pgrx::log!(
                "pg_idgen: granted ids {} to {last} are burned: the lease has ended",
                range.base
            );
        }
        Some(Ok(())) => {
            slot.step.store(granted.step, Ordering::Relaxed);
            slot.refills.fetch_add(1, Ordering::Relaxed);
            slot.blocker_pid.store(0, Ordering::Relaxed);
            slot.set_failure(Failure::None);
        }
        Some(Err(error)) => {
            note_failure(slot, Failure::Error);
            pgrx::log!(
                "pg_idgen: granted ids {} to {} are burned: {error}",
                range.base,
                granted.range.last()
            );
        }
    }
}

fn note_refusal(slot: &SegmentSlot, refused: &Refused) {
    match refused {
        Refused::Locked { blocker_pid } => {
            slot.blocker_pid.store(*blocker_pid, Ordering::Release);
            note_failure(slot, Failure::RowLocked);
        }
        Refused::Gone => note_failure(slot, Failure::Gone),
        Refused::NoCeiling => note_failure(slot, Failure::NoCeiling),
        Refused::Copy => note_failure(slot, Failure::Copy),
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
    slot.refill_failures.fetch_add(1, Ordering::Relaxed);
    slot.set_failure(failure);
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
        Some(outcome)
    }))
    .catch_others(|error| {
        // SAFETY: the error was caught in the main loop, where aborting is what Postgres' own workers do.
        unsafe { pg_sys::AbortCurrentTransaction() };
        report(&error);
        None
    })
    .execute()
}

fn report(error: &pg_sys::panic::CaughtError) {
    use pg_sys::panic::CaughtError;
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
            pgrx::log!("pg_idgen: refill: {}", report.message());
        }
        CaughtError::RustPanic { ereport, .. } => pgrx::log!("pg_idgen: refill: {}", ereport.message()),
    }
}
