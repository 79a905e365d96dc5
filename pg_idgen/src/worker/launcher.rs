//! The launcher: which databases get a refill worker, and when.

use super::{LIBRARY, bulk, idgen_worker_signals, sleep};
use crate::call::own_pid;
use crate::segment::failure::{Failure, Holder};
use crate::segment::wanted_in;
use crate::shmem::{Shared, shared};
use crate::{clock, guc};
use idgen_core::clock::BootMs;
use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The launcher looks around at least this often: a dead worker wakes nobody.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// … and this often while a database waits for a free worker.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Turns that are remembered; past it they are dealt anew. (Databases may have been dropped.)
const TURNS_MAX: usize = 10_000;

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
        looked_at: clock::boot(),
        turns: HashMap::new(),
        turn: 0,
    };
    loop {
        launcher.reap();
        launcher.look_after(clock::boot());
        let all_served = launcher.start_where_needed();
        sleep(if all_served { LOOK_AROUND } else { LOOK_AGAIN });
    }
}

struct Launcher {
    shared: &'static Shared,
    running: Vec<Running>,
    /// When the tags were looked after last.
    looked_at: BootMs,
    /// The number of each database's last turn.
    turns: HashMap<u32, u64>,
    turn: u64,
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
            entry.serving.store(0, Ordering::SeqCst);
            shared.bulk.answer_for_dead(running.entry);
            if !entry.served.load(Ordering::Acquire) {
                // It never got into its database, which may be gone: whoever still waits will ask again.
                fail_wanted(shared, running.database, running.entry);
            }
            false
        });
    }

    /// Which tags are in use, and how fast they are drawn from.
    fn look_after(&mut self, now: BootMs) {
        if now.since(self.looked_at) < LOOK_AROUND.as_millis() as u64 {
            return;
        }
        self.looked_at = now;
        for slot in self.shared.segments_in_use() {
            slot.look_after(now);
        }
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
        by_need.sort_by_key(|(database, tags)| {
            let last_turn = self.turns.get(database).copied().unwrap_or(0);
            (last_turn, std::cmp::Reverse(*tags), *database)
        });
        for (database, _) in &by_need {
            if self.running.len() >= guc::max_refill_workers() {
                // Those that are idle go at once.
                self.shared.set_databases_waiting(true);
                return false;
            }
            self.start(*database);
        }
        self.shared.set_databases_waiting(false);
        true
    }

    fn start(&mut self, database: u32) {
        if self.turns.len() >= TURNS_MAX {
            self.turns.clear();
        }
        self.turn += 1;
        self.turns.insert(database, self.turn);
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
        slot.note_failure(Failure::NoWorker, Holder::default());
        slot.wake_waiters();
    }
}
