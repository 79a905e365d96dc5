//! The shared memory of the extension: one struct, made by the postmaster, mapped by every process.
//!
//! What changes in it are atomics (and a few kinds of thing with an order of their own, see why `Shared` is `Sync`), so
//! there is no torn state to recover: a process that dies anywhere leaves words that are each valid. It starts without a lease and under a fresh random boot id, also after a
//! crash-restart (which rebuilds it under the same postmaster), so nothing that was installed before can be
//! used after. Two LWLocks order rare changes: `control` those of leases, `segments` the table of tags and
//! the publishing of ranges, and the leases that these are granted under. Under them there is arithmetic only. The path of an id takes neither.

mod authority;
mod bulk;
mod clock_note;
mod drain_note;
mod formats;
mod identities;
mod places;
mod segments;
mod stats;
mod tally;
mod waiters;

use crate::call::own_pid;
use crate::guc;
use idgen_core::audit::Duplicates;
use idgen_core::clock::{BootMs, ClockAnchor, ClockReading, UnixMs};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub use authority::{Authority, AuthorityName, LeasedPermit, NotInstalled};
pub use bulk::{Bulk, BulkAnswer, BulkRequest, leave_at_abort};
pub use clock_note::ClockWords;
pub use formats::Formats;
pub use identities::{Identity, Kind, Leases, SHARDS, TokenCell};
pub use places::{Place, Serving};
pub use segments::{RefillWorker, SegmentKey, SegmentSlot};
pub use stats::{ROLE_IDS_PER_S_MAX, Stats};
pub use tally::BurnCause;
pub use waiters::Waiters;

/// A daemon that was heard of within this time is expected to come back.
const DAEMON_PRESUMED_ALIVE_MS: u64 = 60_000;

/// A daemon that has just started needs less than this to read its store and install, where the store answers and its
/// shards were given back. Where it has to wait for a TTL or a window, callers get IG014 meanwhile.
const SETTLED_MS: u64 = 2_000;

const SHARED_NAME: &std::ffi::CStr = c"pg_idgen";

/// The whole of it.
#[repr(C)]
pub struct Shared {
    head: Head,
    /// What the mints of workers read beside their slot; hardly ever written.
    pub formats: Formats,
    pub stats: Stats,
    /// Errors of unique constraints.
    pub duplicates: Duplicates,
    pub refill_workers: [RefillWorker; guc::REFILL_WORKERS_MAX],
    leases: Leases,
    pub bulk: Bulk,
    /// By database; see [`authority`].
    authorities: [Authority; authority::AUTHORITIES],
    /// Counts the tokens that were installed for them.
    authority_generations: AtomicU64,
    /// `segments_len` of them follow.
    segments: [SegmentSlot; 0],
}

/// What is small.
struct Head {
    boot_id: [u8; 16],
    made_after_crash: bool,
    made_boot_ms: u64,
    segments_len: usize,
    control: *mut pg_sys::LWLock,
    segments_lock: *mut pg_sys::LWLock,
    /// Cell whose leases this server takes; all zero before the first. Kept on disk by [`crate::cell`].
    cell_id: [AtomicU64; 2],
    /// Process of the session that keeps the leases of a kind, by [`Kind`]; 0: none.
    daemon_pids: [AtomicI32; Kind::ALL.len()],
    /// BOOTTIME ms of that session's claim.
    claimed_boot_ms: [AtomicU64; Kind::ALL.len()],
    daemon_seen_boot_ms: AtomicU64,
    anchor_offset_ms: AtomicI64,
    anchor_boot_ms: AtomicU64,
    clock_note: clock_note::ClockNote,
    drain_note: drain_note::DrainNote,
    launcher_latch: AtomicPtr<pg_sys::Latch>,
    /// Databases wait for a refill worker, and there may be no more of them.
    databases_waiting: AtomicBool,
}

// SAFETY: the raw pointers are to memory that every process maps at the same address for as long as the
// server runs. Everything else is atomic, or written before any other process exists, or an entry of `formats`
// (written once under the `control` lock, and read only after it was counted, Release and Acquire), or a condition
// variable, which has a spinlock of its own, or a request or answer of `bulk`, each of one process at a time by the
// phases of its `Exchange`.
unsafe impl Sync for Shared {}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// How often this postmaster has made shared memory: more than once means after a crash.
static TIMES_MADE: AtomicU32 = AtomicU32::new(0);

/// The shared memory, if the library was preloaded.
#[inline(always)]
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: the pointer is null or was set by `startup` to fully written memory that is never unmapped.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Whether this process is a postmaster that loads `shared_preload_libraries`.
pub fn preloading() -> bool {
    // SAFETY: a plain variable of this single-threaded process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

type PreviousHook = SingleThreaded<Option<unsafe extern "C-unwind" fn()>>;
static PREVIOUS_REQUEST: PreviousHook = SingleThreaded(UnsafeCell::new(None));
static PREVIOUS_STARTUP: PreviousHook = SingleThreaded(UnsafeCell::new(None));

/// Written by the postmaster while it loads libraries, and only read afterwards.
pub struct SingleThreaded<T>(pub UnsafeCell<T>);
// SAFETY: processes of Postgres have one thread.
unsafe impl<T> Sync for SingleThreaded<T> {}

/// Ask for shared memory; called once, by the postmaster.
pub fn request() {
    // SAFETY: the postmaster is single-threaded and the hooks are meant to be chained like this.
    unsafe {
        *PREVIOUS_REQUEST.0.get() = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request_hook);
        *PREVIOUS_STARTUP.0.get() = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup_hook);
    }
}

fn size() -> usize {
    size_of::<Shared>() + guc::max_segments() * size_of::<SegmentSlot>()
}

#[pg_guard]
extern "C-unwind" fn request_hook() {
    // SAFETY: called by Postgres at the time when such requests are allowed.
    unsafe {
        if let Some(previous) = *PREVIOUS_REQUEST.0.get() {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(size());
        pg_sys::RequestNamedLWLockTranche(SHARED_NAME.as_ptr(), 2);
    }
}

#[pg_guard]
extern "C-unwind" fn startup_hook() {
    // SAFETY: called by the postmaster when shared memory exists and before any child does; `found` is false
    // then. The struct is written whole before its address is published.
    unsafe {
        if let Some(previous) = *PREVIOUS_STARTUP.0.get() {
            previous();
        }
        let mut found = false;
        let memory = pg_sys::ShmemInitStruct(SHARED_NAME.as_ptr(), size(), &raw mut found).cast::<Shared>();
        if !found {
            initialise(memory);
        }
        SHARED.store(memory, Ordering::Release);
    }
}

/// # Safety
/// `memory` must be `size()` bytes, aligned to a cache line, that nobody else looks at yet.
unsafe fn initialise(memory: *mut Shared) {
    let mut boot_id = [0u8; 16];
    // SAFETY: writes 16 bytes into the array.
    let random = unsafe { pg_sys::pg_strong_random(boot_id.as_mut_ptr().cast(), boot_id.len()) };
    if !random {
        ereport!(
            FATAL,
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            "no strong random source for the boot id of pg_idgen"
        );
    }
    let boot_id = uuid::Builder::from_random_bytes(boot_id).into_uuid().into_bytes();
    // SAFETY: the tranche was requested with two locks; memory is ours (see above).
    unsafe {
        let locks = pg_sys::GetNamedLWLockTranche(SHARED_NAME.as_ptr());
        (&raw mut (*memory).head).write(Head {
            boot_id,
            made_after_crash: TIMES_MADE.fetch_add(1, Ordering::Relaxed) > 0,
            made_boot_ms: crate::clock::boot().0,
            segments_len: guc::max_segments(),
            control: &raw mut (*locks).lock,
            segments_lock: &raw mut (*locks.add(1)).lock,
            cell_id: halves(crate::cell::remembered().unwrap_or_default()).map(AtomicU64::new),
            daemon_pids: Default::default(),
            claimed_boot_ms: Default::default(),
            daemon_seen_boot_ms: AtomicU64::new(0),
            anchor_offset_ms: AtomicI64::new(0),
            anchor_boot_ms: AtomicU64::new(0),
            clock_note: clock_note::ClockNote::new(),
            drain_note: drain_note::DrainNote::new(),
            launcher_latch: AtomicPtr::default(),
            databases_waiting: AtomicBool::new(false),
        });
        (&raw mut (*memory).formats).write(Formats::new());
        (&raw mut (*memory).stats).write(Stats::new(crate::clock::wall().0));
        (&raw mut (*memory).duplicates).write(Duplicates::new());
        (&raw mut (*memory).refill_workers).write(std::array::from_fn(|_| RefillWorker::default()));
        Leases::write(&raw mut (*memory).leases);
        Bulk::write(&raw mut (*memory).bulk);
        (&raw mut (*memory).authorities).write(std::array::from_fn(|_| Authority::default()));
        (&raw mut (*memory).authority_generations).write(AtomicU64::new(0));
        let first = (&raw mut (*memory).segments).cast::<SegmentSlot>();
        for index in 0..guc::max_segments() {
            SegmentSlot::write_vacant(first.add(index));
        }
    }
}

/// Holds an LWLock; releases it when dropped.
pub struct Locked(*mut pg_sys::LWLock);

impl Locked {
    fn take(lock: *mut pg_sys::LWLock) -> Self {
        // SAFETY: the locks of our tranche live as long as the server.
        unsafe { pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Self(lock)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: taken by this process in `take`.
        unsafe { pg_sys::LWLockRelease(self.0) };
    }
}

impl Shared {
    /// Random name of this shared memory.
    pub fn boot_id(&self) -> [u8; 16] {
        self.head.boot_id
    }

    /// Orders installs, extends and fences. Arithmetic only while it is held.
    pub fn lock_control(&self) -> Locked {
        Locked::take(self.head.control)
    }

    /// The cell of the first install.
    pub fn cell_id(&self) -> Option<[u8; 16]> {
        let cell_id = load_id(&self.head.cell_id);
        (cell_id != [0; 16]).then_some(cell_id)
    }

    /// Once, before the first lease opens and after [`crate::cell::remember`].
    pub fn set_cell_id(&self, cell_id: [u8; 16]) {
        store_id(&self.head.cell_id, cell_id);
    }

    /// Let this session keep the leases of this kind until it ends. `false`: another one does.
    pub fn claim_for_this_session(&self, kind: Kind) -> bool {
        let pid = own_pid();
        let holder = &self.head.daemon_pids[kind as usize];
        match holder.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.head.claimed_boot_ms[kind as usize].store(crate::clock::boot().0, Ordering::Relaxed);
                // SAFETY: the callback has the right signature and is never unloaded. A process that dies
                // without it takes the whole shared memory along.
                unsafe { pg_sys::before_shmem_exit(Some(end_claim), pg_sys::Datum::null()) };
                true
            }
            Err(holder) => holder == pid,
        }
    }

    pub fn note_daemon(&self, now: BootMs) {
        self.head.daemon_seen_boot_ms.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Since when no daemon has been heard of; `None`: never.
    pub fn daemon_silent_ms(&self, now: BootMs) -> Option<u64> {
        match self.head.daemon_seen_boot_ms.load(Ordering::Relaxed) {
            0 => None,
            seen => Some(now.0.saturating_sub(seen)),
        }
    }

    /// A lease is likely to come (back) soon. A crash-restart has forgotten whether there is a daemon, so it
    /// is presumed for as long as one that was seen.
    pub fn daemon_presumed(&self, now: BootMs) -> bool {
        let fresh = self.head.made_after_crash && self.is_young(now);
        fresh
            || self
                .daemon_silent_ms(now)
                .is_some_and(|silent_ms| silent_ms < DAEMON_PRESUMED_ALIVE_MS)
    }

    /// A daemon has kept the leases of this kind for long enough to have installed all that it has.
    pub fn is_settled(&self, kind: Kind, now: BootMs) -> bool {
        let claimed_ms = self.head.claimed_boot_ms[kind as usize].load(Ordering::Relaxed);
        self.head.daemon_pids[kind as usize].load(Ordering::Acquire) != 0
            && now.0.saturating_sub(claimed_ms) > SETTLED_MS
    }

    /// This memory was made less than a minute ago: a daemon may not have got to all of it yet.
    pub fn is_young(&self, now: BootMs) -> bool {
        now.0.saturating_sub(self.head.made_boot_ms) < DAEMON_PRESUMED_ALIVE_MS
    }

    /// The wall clock was found good at `reading`.
    pub fn set_anchor(&self, reading: ClockReading) {
        // What it showed before was wrong if it was later.
        self.stats.wall.believe(reading.wall);
        // Two words: a reader may see the offset of one reading with the time of another, both of which were
        // found good; the difference is far below the slack.
        self.head.anchor_offset_ms.store(
            reading.wall.0.cast_signed() - reading.boot.0.cast_signed(),
            Ordering::Relaxed,
        );
        self.head.anchor_boot_ms.store(reading.boot.0, Ordering::Relaxed);
    }

    pub fn anchor(&self) -> ClockAnchor {
        let boot = self.head.anchor_boot_ms.load(Ordering::Relaxed);
        let wall = self
            .head
            .anchor_offset_ms
            .load(Ordering::Relaxed)
            .saturating_add_unsigned(boot);
        ClockAnchor {
            wall: UnixMs(wall.cast_unsigned()),
            boot: BootMs(boot),
        }
    }

    /// Name the launcher's latch; null when it goes.
    pub fn set_launcher_latch(&self, latch: *mut pg_sys::Latch) {
        self.head.launcher_latch.store(latch, Ordering::SeqCst);
    }

    /// Wake whoever refills this database: its worker, else the launcher, which starts one.
    pub fn wake_refill(&self, database: u32) {
        let worker = self
            .refill_workers
            .iter()
            .find(|worker| worker.database.load(Ordering::SeqCst) == database);
        wake(worker.map_or(&self.head.launcher_latch, |worker| &worker.latch));
    }

    /// By the launcher: whether databases wait for a worker to go. Those that sleep are woken.
    pub fn set_databases_waiting(&self, waiting: bool) {
        self.head.databases_waiting.store(waiting, Ordering::SeqCst);
        if waiting {
            for worker in &self.refill_workers {
                wake(&worker.latch);
            }
        }
    }

    /// Whether a worker that is idle should go.
    pub fn databases_waiting(&self) -> bool {
        self.head.databases_waiting.load(Ordering::SeqCst)
    }

    pub fn wake_launcher(&self) {
        wake(&self.head.launcher_latch);
    }
}

#[pg_guard]
extern "C-unwind" fn end_claim(_code: i32, _argument: pg_sys::Datum) {
    if let Some(shared) = shared() {
        let pid = own_pid();
        for holder in &shared.head.daemon_pids {
            // Nothing to do where it is not this process's.
            let _ = holder.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn wake(latch: &AtomicPtr<pg_sys::Latch>) {
    let latch = latch.load(Ordering::SeqCst);
    if !latch.is_null() {
        // SAFETY: a latch of a PGPROC, which stays in shared memory when its process is gone; a wake that
        // comes too late wakes whoever has the entry now, for nothing.
        unsafe { pg_sys::SetLatch(latch) };
    }
}

fn store_id(words: &[AtomicU64; 2], id: [u8; 16]) {
    for (half, value) in words.iter().zip(halves(id)) {
        half.store(value, Ordering::Relaxed);
    }
}

fn load_id(words: &[AtomicU64; 2]) -> [u8; 16] {
    join([words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)])
}

fn halves(id: [u8; 16]) -> [u64; 2] {
    let (high, low) = uuid::Uuid::from_bytes(id).as_u64_pair();
    [high, low]
}

fn join([high, low]: [u64; 2]) -> [u8; 16] {
    uuid::Uuid::from_u64_pair(high, low).into_bytes()
}
