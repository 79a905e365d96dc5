//! The shared memory of the extension: one struct, made by the postmaster, mapped by every process.
//!
//! Everything in it is an atomic, so there is no torn state to recover: a process that dies anywhere leaves
//! words that are each valid. It starts without a lease and under a fresh random boot id, also after a
//! crash-restart (which rebuilds it under the same postmaster), so nothing that was installed before can be
//! used after. Two LWLocks order rare changes: `control` those of leases, `segments` the table of tags and
//! the publishing of ranges. Under them there is arithmetic only. The path of an id takes neither.

use crate::call::own_pid;
use crate::guc;
use crate::segment::failure::Failure;
use idgen_core::clock::{BootMs, ClockAnchor, ClockReading, UnixMs};
use idgen_core::mint::{Identities, Slot};
use idgen_core::segment::Buffer;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Worker identities of a cell (10 bits in every worker format).
pub const WORKERS: usize = 1_024;

/// A daemon that was heard of within this time is expected to come back.
const DAEMON_PRESUMED_ALIVE_MS: u64 = 60_000;

const SHARED_NAME: &std::ffi::CStr = c"pg_idgen";

/// Which lease an identity has, for the control functions and views. Written under the `control` lock.
#[derive(Default)]
pub struct TokenCell {
    pub epoch: AtomicU64,
    pub revision: AtomicU64,
    pub generation: AtomicU64,
    pub floor_tick: AtomicU64,
    /// It was installed at least once since this memory was made.
    pub known: AtomicBool,
}

/// One refill worker at work.
#[derive(Default)]
pub struct RefillWorker {
    /// Oid of its database, 0: free.
    pub database: AtomicU32,
    /// The process that has this entry got into its database.
    pub served: AtomicBool,
    latch: AtomicPtr<pg_sys::Latch>,
}

/// One tag in use: its ranges and what its refill knows.
#[repr(C, align(128))]
pub struct SegmentSlot {
    database: AtomicU32,
    segment_id: [AtomicU64; 2],
    /// The tag space it belongs to: a restore brings segment ids back, never the space.
    space_id: [AtomicU64; 2],
    pub buffer: Buffer,
    /// Highest id that was ever published here; no grant begins at or below it, whatever the table says.
    pub high_water: AtomicI64,
    /// A refill is asked for and not yet begun.
    pub wanted: AtomicBool,
    pub refills: AtomicU64,
    pub refill_failures: AtomicU64,
    pub refill_us_last: AtomicU64,
    /// BOOTTIME ms of the last grant; 0: none yet.
    pub granted_boot_ms: AtomicU64,
    pub step: AtomicU32,
    failure: AtomicU32,
    /// Limit of the tag when it was found exhausted.
    pub limit_id: AtomicI64,
    /// Process that held the tag's row when a refill found it locked; 0: unknown.
    pub blocker_pid: AtomicU32,
    waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

// What the documentation of idgen.max_segments says.
const _: () = assert!(size_of::<SegmentSlot>() == 384);

/// The whole of it.
#[repr(C)]
pub struct Shared {
    boot_id: [u8; 16],
    made_after_crash: bool,
    made_boot_ms: u64,
    segments_len: usize,
    control: *mut pg_sys::LWLock,
    segments_lock: *mut pg_sys::LWLock,
    /// Cell whose leases this server takes; all zero before the first. Kept on disk by [`crate::cell`].
    cell_id: [AtomicU64; 2],
    /// Process of the session that is the daemon's; 0: none.
    daemon_pid: AtomicI32,
    daemon_seen_boot_ms: AtomicU64,
    anchor_offset_ms: AtomicI64,
    anchor_boot_ms: AtomicU64,
    launcher_latch: AtomicPtr<pg_sys::Latch>,
    pub refill_workers: [RefillWorker; guc::REFILL_WORKERS_MAX],
    active: [AtomicU64; WORKERS / 64],
    pub tokens: [TokenCell; WORKERS],
    workers: [Slot; WORKERS],
    /// `segments_len` of them follow.
    segments: [SegmentSlot; 0],
}

// SAFETY: the raw pointers are to memory that every process maps at the same address for as long as the
// server runs; everything else is atomic or written before any other process exists.
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

static PREVIOUS_REQUEST: PreviousHook = PreviousHook(UnsafeCell::new(None));
static PREVIOUS_STARTUP: PreviousHook = PreviousHook(UnsafeCell::new(None));

struct PreviousHook(UnsafeCell<Option<unsafe extern "C-unwind" fn()>>);
// SAFETY: touched by the single-threaded postmaster only.
unsafe impl Sync for PreviousHook {}

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
        memory.write(Shared {
            boot_id,
            made_after_crash: TIMES_MADE.fetch_add(1, Ordering::Relaxed) > 0,
            made_boot_ms: crate::clock::boot().0,
            segments_len: guc::max_segments(),
            control: &raw mut (*locks).lock,
            segments_lock: &raw mut (*locks.add(1)).lock,
            cell_id: halves(crate::cell::remembered().unwrap_or_default()).map(AtomicU64::new),
            daemon_pid: AtomicI32::new(0),
            daemon_seen_boot_ms: AtomicU64::new(0),
            anchor_offset_ms: AtomicI64::new(0),
            anchor_boot_ms: AtomicU64::new(0),
            launcher_latch: AtomicPtr::default(),
            refill_workers: std::array::from_fn(|_| RefillWorker::default()),
            active: [const { AtomicU64::new(0) }; WORKERS / 64],
            tokens: std::array::from_fn(|_| TokenCell::default()),
            workers: [const { Slot::new() }; WORKERS],
            segments: [],
        });
        let first = (&raw mut (*memory).segments).cast::<SegmentSlot>();
        for index in 0..guc::max_segments() {
            first.add(index).write(SegmentSlot::vacant());
            pg_sys::ConditionVariableInit((*first.add(index)).waiters.get());
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
        self.boot_id
    }

    /// Orders installs, extends and fences. Arithmetic only while it is held.
    pub fn lock_control(&self) -> Locked {
        Locked::take(self.control)
    }

    /// Orders claims of a place for a tag, and publishes of ranges. Arithmetic only while it is held.
    pub fn lock_segments(&self) -> Locked {
        Locked::take(self.segments_lock)
    }

    /// The cell of the first install.
    pub fn cell_id(&self) -> Option<[u8; 16]> {
        let cell_id = load_id(&self.cell_id);
        (cell_id != [0; 16]).then_some(cell_id)
    }

    /// Once, before the first lease opens and after [`crate::cell::remember`].
    pub fn set_cell_id(&self, cell_id: [u8; 16]) {
        store_id(&self.cell_id, cell_id);
    }

    /// Let this session be the daemon's until it ends. `false`: another one is.
    pub fn claim_for_this_session(&self) -> bool {
        let pid = own_pid();
        match self
            .daemon_pid
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                // SAFETY: the callback has the right signature and is never unloaded. A process that dies
                // without it takes the whole shared memory along.
                unsafe { pg_sys::before_shmem_exit(Some(end_claim), pg_sys::Datum::null()) };
                true
            }
            Err(holder) => holder == pid,
        }
    }

    pub fn note_daemon(&self, now: BootMs) {
        self.daemon_seen_boot_ms.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Since when no daemon has been heard of; `None`: never.
    pub fn daemon_silent_ms(&self, now: BootMs) -> Option<u64> {
        match self.daemon_seen_boot_ms.load(Ordering::Relaxed) {
            0 => None,
            seen => Some(now.0.saturating_sub(seen)),
        }
    }

    /// A lease is likely to come (back) soon. A crash-restart has forgotten whether there is a daemon, so it
    /// is presumed for as long as one that was seen.
    pub fn daemon_presumed(&self, now: BootMs) -> bool {
        let fresh =
            self.made_after_crash && now.0.saturating_sub(self.made_boot_ms) < DAEMON_PRESUMED_ALIVE_MS;
        fresh
            || self
                .daemon_silent_ms(now)
                .is_some_and(|silent_ms| silent_ms < DAEMON_PRESUMED_ALIVE_MS)
    }

    /// The wall clock was found good at `reading`.
    pub fn set_anchor(&self, reading: ClockReading) {
        // Two words: a reader may see the offset of one reading with the time of another, both of which were
        // found good; the difference is far below the slack.
        self.anchor_offset_ms.store(
            reading.wall.0.cast_signed() - reading.boot.0.cast_signed(),
            Ordering::Relaxed,
        );
        self.anchor_boot_ms.store(reading.boot.0, Ordering::Relaxed);
    }

    pub fn anchor(&self) -> ClockAnchor {
        let boot = self.anchor_boot_ms.load(Ordering::Relaxed);
        let wall = self
            .anchor_offset_ms
            .load(Ordering::Relaxed)
            .saturating_add_unsigned(boot);
        ClockAnchor {
            wall: UnixMs(wall.cast_unsigned()),
            boot: BootMs(boot),
        }
    }

    /// Let mints try this identity, or no more.
    pub fn set_active(&self, identity: usize, active: bool) {
        let (word, bit) = (&self.active[identity / 64], 1 << (identity % 64));
        if active {
            word.fetch_or(bit, Ordering::AcqRel)
        } else {
            word.fetch_and(!bit, Ordering::AcqRel)
        };
    }

    pub fn active_count(&self) -> u32 {
        self.active
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    fn segments(&self) -> &[SegmentSlot] {
        // SAFETY: `segments_len` slots were written behind the struct when it was made.
        unsafe { std::slice::from_raw_parts((&raw const self.segments).cast(), self.segments_len) }
    }

    pub fn segments_max(&self) -> usize {
        self.segments_len
    }

    /// The slots that are in use.
    pub fn segments_in_use(&self) -> impl Iterator<Item = &SegmentSlot> {
        self.segments()
            .iter()
            .filter(|slot| slot.database.load(Ordering::Acquire) != 0)
    }

    /// The place of a tag, claimed if it has none. `None`: all are taken. Places are kept until the server
    /// restarts, so a reference never comes to mean another tag.
    pub fn segment(&self, key: &SegmentKey) -> Option<&SegmentSlot> {
        if let Probe::Found(slot) = self.probe(key) {
            return Some(slot);
        }
        let _locked = self.lock_segments();
        match self.probe(key) {
            Probe::Found(slot) => Some(slot),
            Probe::Free(slot) => {
                store_id(&slot.segment_id, key.segment_id);
                store_id(&slot.space_id, key.space_id);
                slot.database.store(key.database, Ordering::Release);
                Some(slot)
            }
            Probe::Full => None,
        }
    }

    /// Open addressing; slots are never given back, so a free one ends the search.
    fn probe(&self, key: &SegmentKey) -> Probe<'_> {
        let slots = self.segments();
        let start = (halves(key.segment_id)[1] ^ u64::from(key.database)) as usize % slots.len();
        for slot in slots[start..].iter().chain(&slots[..start]) {
            match slot.database.load(Ordering::Acquire) {
                0 => return Probe::Free(slot),
                _ if slot.key() == *key => return Probe::Found(slot),
                _ => {}
            }
        }
        Probe::Full
    }

    /// Name the launcher's latch; null when it goes.
    pub fn set_launcher_latch(&self, latch: *mut pg_sys::Latch) {
        self.launcher_latch.store(latch, Ordering::SeqCst);
    }

    /// Wake whoever refills this database: its worker, else the launcher, which starts one.
    pub fn wake_refill(&self, database: u32) {
        let worker = self
            .refill_workers
            .iter()
            .find(|worker| worker.database.load(Ordering::SeqCst) == database);
        wake(worker.map_or(&self.launcher_latch, |worker| &worker.latch));
    }

    pub fn wake_launcher(&self) {
        wake(&self.launcher_latch);
    }
}

#[pg_guard]
extern "C-unwind" fn end_claim(_code: i32, _argument: pg_sys::Datum) {
    if let Some(shared) = shared() {
        let pid = own_pid();
        // Nothing to do if it is not this process's: there is one claim per session.
        let _ = shared
            .daemon_pid
            .compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// What a place in shared memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKey {
    pub database: u32,
    pub segment_id: [u8; 16],
    pub space_id: [u8; 16],
}

impl SegmentKey {
    /// Not a tag: the request of a database for the leaves of its audit events.
    pub fn leaves_of(database: u32) -> Self {
        Self {
            database,
            segment_id: [0; 16],
            space_id: [0; 16],
        }
    }
}

enum Probe<'s> {
    Found(&'s SegmentSlot),
    Free(&'s SegmentSlot),
    Full,
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

impl RefillWorker {
    /// This process serves `database` from now on; 0 ends it.
    pub fn register(&self, database: u32) {
        // SAFETY: a variable of this process.
        self.latch.store(unsafe { pg_sys::MyLatch }, Ordering::SeqCst);
        self.database.store(database, Ordering::SeqCst);
    }
}

impl Identities for Shared {
    #[inline(always)]
    fn slot(&self, identity: u64) -> &Slot {
        &self.workers[identity as usize % WORKERS]
    }

    #[inline(always)]
    fn next_active(&self, from: u64) -> Option<u64> {
        let from = from as usize;
        if from >= WORKERS {
            return None;
        }
        let first = self.active[from / 64].load(Ordering::Acquire) & (u64::MAX << (from % 64));
        if first != 0 {
            return Some((from / 64 * 64) as u64 + u64::from(first.trailing_zeros()));
        }
        (from / 64 + 1..WORKERS / 64).find_map(|index| {
            let word = self.active[index].load(Ordering::Acquire);
            (word != 0).then(|| (index * 64) as u64 + u64::from(word.trailing_zeros()))
        })
    }
}

impl SegmentSlot {
    fn vacant() -> Self {
        Self {
            database: AtomicU32::new(0),
            segment_id: [const { AtomicU64::new(0) }; 2],
            space_id: [const { AtomicU64::new(0) }; 2],
            buffer: Buffer::new(),
            high_water: AtomicI64::new(0),
            wanted: AtomicBool::new(false),
            refills: AtomicU64::new(0),
            refill_failures: AtomicU64::new(0),
            refill_us_last: AtomicU64::new(0),
            granted_boot_ms: AtomicU64::new(0),
            step: AtomicU32::new(0),
            failure: AtomicU32::new(0),
            limit_id: AtomicI64::new(0),
            blocker_pid: AtomicU32::new(0),
            waiters: UnsafeCell::default(),
        }
    }

    pub fn database(&self) -> u32 {
        self.database.load(Ordering::Acquire)
    }

    pub fn key(&self) -> SegmentKey {
        SegmentKey {
            database: self.database(),
            segment_id: load_id(&self.segment_id),
            space_id: load_id(&self.space_id),
        }
    }

    pub fn failure(&self) -> Failure {
        Failure::from_code(self.failure.load(Ordering::Acquire))
    }

    pub fn set_failure(&self, failure: Failure) {
        self.failure.store(failure.code(), Ordering::Release);
    }

    /// Register for the next [`Self::wake_waiters`]; look at the buffer again before sleeping.
    pub fn prepare_to_wait(&self) {
        // SAFETY: initialised when shared memory was made.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.waiters.get()) };
    }

    /// Sleep until woken or `ms` are over; serves interrupts.
    pub fn wait(&self, ms: u64) {
        let timeout = i64::try_from(ms).unwrap_or(i64::MAX);
        // SAFETY: initialised when shared memory was made.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.waiters.get(), timeout, pg_sys::PG_WAIT_EXTENSION);
        }
    }

    pub fn stop_waiting(&self) {
        // SAFETY: no precondition.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }

    pub fn wake_waiters(&self) {
        // SAFETY: initialised when shared memory was made.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }
}
