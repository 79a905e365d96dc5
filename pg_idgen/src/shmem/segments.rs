//! The places of tags, and of the workers that refill them.

use super::authority::StretchWords;
use super::tally::{BurnCause, Tally};
use super::{Locked, Shared, Waiters, halves, load_id, store_id};
use crate::segment::failure::{Failure, Holder};
use idgen_core::clock::BootMs;
use idgen_core::segment::Buffer;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One refill worker at work.
#[derive(Default)]
pub struct RefillWorker {
    /// Oid of its database, 0: free.
    pub database: AtomicU32,
    /// The process that has this entry got into its database.
    pub served: AtomicBool,
    pub(super) latch: AtomicPtr<pg_sys::Latch>,
}

/// One tag in use: its ranges and what its refill knows.
#[repr(C, align(128))]
pub struct SegmentSlot {
    database: AtomicU32,
    segment_id: [AtomicU64; 2],
    /// The tag space it belongs to: a restore brings segment ids back, never the space.
    space_id: [AtomicU64; 2],
    /// What a leased authority may grant of it.
    pub(super) stretch: StretchWords,
    pub buffer: Buffer,
    /// Highest id that was ever published here; no grant begins at or below it, whatever the table says.
    pub high_water: AtomicI64,
    /// A refill is asked for and not yet begun.
    pub wanted: AtomicBool,
    /// So many ids above what is granted a ceiling was too low for: those of a bulk request, or of a burn; 0: none.
    pub ids_wanted: AtomicU64,
    /// Ids that were ever published here or granted in bulk, how many of them in bulk, and how many were drawn before
    /// the statistics began.
    pub granted_ids: AtomicU64,
    pub bulk_ids: AtomicU64,
    ids_before: AtomicU64,
    pub tally: Tally,
    /// BOOTTIME ms of the last grant; 0: none yet.
    pub granted_boot_ms: AtomicU64,
    pub step: AtomicU32,
    failure: AtomicU32,
    /// As `failure`, but left alone by those who begin to wait.
    held_up: AtomicU32,
    /// Limit of the tag when it was found exhausted.
    pub limit_id: AtomicI64,
    /// When the fetch limit of the tag allows the next range, and what it is.
    pub limited_until_boot_ms: AtomicU64,
    pub fetch_limit: AtomicU32,
    /// Who held the lock that the last refill has met: [`Holder`].
    holder_pid: AtomicU32,
    holder_xid: AtomicU32,
    waiters: Waiters,
}

// What the documentation of idgen.max_segments says.
const _: () = assert!(size_of::<SegmentSlot>() == 640);

impl Shared {
    /// Orders claims of a place for a tag, and publishes of ranges. Arithmetic only while it is held.
    pub fn lock_segments(&self) -> Locked {
        Locked::take(self.head.segments_lock)
    }

    fn segments(&self) -> &[SegmentSlot] {
        // SAFETY: `segments_len` slots were written behind the struct when it was made.
        unsafe { std::slice::from_raw_parts((&raw const self.segments).cast(), self.head.segments_len) }
    }

    pub fn segments_max(&self) -> usize {
        self.head.segments_len
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

    /// The place of a tag, if it has one.
    pub fn segment_in_use(&self, key: &SegmentKey) -> Option<&SegmentSlot> {
        match self.probe(key) {
            Probe::Found(slot) => Some(slot),
            Probe::Free(_) | Probe::Full => None,
        }
    }

    /// From its return on nothing is handed out that was published in this place before, nor is what a worker is
    /// just granting. Whoever waits there looks again.
    pub fn discard(&self, slot: &SegmentSlot) {
        let burned = {
            let _locked = self.lock_segments();
            slot.buffer.discard()
        };
        // Nobody has drawn them.
        slot.granted_ids.fetch_sub(burned.count(), Ordering::Relaxed);
        slot.tally.burned(BurnCause::Seek, burned.count());
        slot.wake_waiters();
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

impl RefillWorker {
    /// This process serves `database` from now on; 0 ends it.
    pub fn register(&self, database: u32) {
        // SAFETY: a variable of this process.
        self.latch.store(unsafe { pg_sys::MyLatch }, Ordering::SeqCst);
        self.database.store(database, Ordering::SeqCst);
    }
}

impl SegmentSlot {
    /// Of no tag yet.
    ///
    /// # Safety
    /// `memory` must be writable, aligned, and unseen by anybody else.
    pub(super) unsafe fn write_vacant(memory: *mut Self) {
        // SAFETY: by the caller's promise; the condition variable is in memory that is written.
        unsafe {
            memory.write(Self::vacant());
            Waiters::initialise(&raw mut (*memory).waiters);
        }
    }

    fn vacant() -> Self {
        Self {
            database: AtomicU32::new(0),
            segment_id: [const { AtomicU64::new(0) }; 2],
            space_id: [const { AtomicU64::new(0) }; 2],
            stretch: StretchWords::default(),
            buffer: Buffer::new(),
            high_water: AtomicI64::new(0),
            wanted: AtomicBool::new(false),
            ids_wanted: AtomicU64::new(0),
            granted_ids: AtomicU64::new(0),
            bulk_ids: AtomicU64::new(0),
            ids_before: AtomicU64::new(0),
            tally: Tally::default(),
            granted_boot_ms: AtomicU64::new(0),
            step: AtomicU32::new(0),
            failure: AtomicU32::new(0),
            held_up: AtomicU32::new(0),
            limit_id: AtomicI64::new(0),
            limited_until_boot_ms: AtomicU64::new(0),
            fetch_limit: AtomicU32::new(0),
            holder_pid: AtomicU32::new(0),
            holder_xid: AtomicU32::new(0),
            waiters: Waiters::default(),
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

    /// Ids drawn (or burnt) since the statistics were reset.
    pub fn ids(&self) -> u64 {
        self.ids_ever()
            .saturating_sub(self.ids_before.load(Ordering::Relaxed))
    }

    fn ids_ever(&self) -> u64 {
        // Granted last: a range that is published in between must not seem to have been drawn.
        let remaining = self.buffer.remaining();
        self.granted_ids.load(Ordering::Relaxed).saturating_sub(remaining)
    }

    /// By the launcher: how fast ids are drawn from memory.
    pub fn measure_pace(&self, now: BootMs) {
        let bulk = self.bulk_ids.load(Ordering::Relaxed);
        self.tally.measure_pace(self.ids_ever().saturating_sub(bulk), now);
    }

    /// Count ids from zero again.
    pub fn forget_ids(&self) {
        self.ids_before.store(self.ids_ever(), Ordering::Relaxed);
    }

    pub fn failure(&self) -> Failure {
        Failure::from_code(self.failure.load(Ordering::Acquire))
    }

    pub fn set_failure(&self, failure: Failure) {
        self.failure.store(failure.code(), Ordering::Release);
    }

    /// A refill has brought nothing, because of this.
    pub fn note_failure(&self, failure: Failure, holder: Holder) {
        self.tally.failed();
        self.holder_pid.store(holder.pid, Ordering::Relaxed);
        self.holder_xid.store(holder.prepared_xid, Ordering::Relaxed);
        self.held_up.store(failure.code(), Ordering::Release);
        self.set_failure(failure);
    }

    /// Nothing holds the refill up (any more).
    pub fn note_success(&self) {
        self.held_up.store(Failure::None.code(), Ordering::Release);
        self.set_failure(Failure::None);
    }

    /// What the last refill has met, whoever waits since.
    pub fn held_up(&self) -> Failure {
        Failure::from_code(self.held_up.load(Ordering::Acquire))
    }

    /// Who held the lock, where that is what it has met.
    pub fn holder(&self) -> Holder {
        Holder {
            pid: self.holder_pid.load(Ordering::Relaxed),
            prepared_xid: self.holder_xid.load(Ordering::Relaxed),
        }
    }

    /// Register for the next [`Self::wake_waiters`]; look at the buffer again before sleeping.
    pub fn prepare_to_wait(&self) {
        self.waiters.prepare();
    }

    /// Sleep until woken or `ms` are over; serves interrupts.
    pub fn wait(&self, ms: u64) {
        self.waiters.wait(ms);
    }

    pub fn stop_waiting(&self) {
        self.waiters.stop();
    }

    pub fn wake_waiters(&self) {
        self.waiters.wake();
    }
}
