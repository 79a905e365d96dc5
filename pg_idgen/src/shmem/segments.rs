//! The places of tags, and of the workers that refill them.

use super::authority::StretchWords;
use super::tally::Tally;
use super::{Locked, Shared, Waiters, load_id, store_id};
use crate::segment::failure::{Failure, Holder};
use idgen_core::clock::BootMs;
use idgen_core::segment::{Buffer, Stripes};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One refill worker at work.
#[derive(Default)]
pub struct RefillWorker {
    /// Oid of its database, 0: free.
    pub database: AtomicU32,
    /// The process that has this entry got into its database.
    pub served: AtomicBool,
    /// Number of the place that it is refilling, counted from 1; 0: none. Written under the `segments` lock, but for its
    /// end.
    pub serving: AtomicU32,
    pub(super) latch: AtomicPtr<pg_sys::Latch>,
}

/// One tag in use: its ranges and what its refill knows.
#[repr(C, align(128))]
pub struct SegmentSlot {
    database: AtomicU32,
    segment_id: [AtomicU64; 2],
    /// The tag space it belongs to: a restore brings segment ids back, never the space.
    space_id: [AtomicU64; 2],
    /// Which of the space's ids are this database's: index, count and size. Ranges here are in places.
    stripe: AtomicU32,
    stripes: AtomicU32,
    stripe_size: AtomicU64,
    /// What a leased authority may grant of it.
    pub(super) stretch: StretchWords,
    pub buffer: Buffer,
    /// When it was last drawn from, waited for or looked up, as the launcher and those who wait have seen it.
    pub(super) used_boot_ms: AtomicU64,
    /// Ids that had been drawn when the launcher looked last.
    pub(super) used_ids: AtomicU64,
    /// Highest id that was ever published here (an id, no place); no grant begins at or below it, whatever the table says.
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

    pub(super) fn segments(&self) -> &[SegmentSlot] {
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
}

/// What a place in shared memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentKey {
    pub database: u32,
    pub segment_id: [u8; 16],
    pub space_id: [u8; 16],
    /// A database that joins other masters in its own space counts in other places from then on.
    pub stripes: Stripes,
}

impl SegmentKey {
    /// Not a tag: the request of a database for the leaves of its audit events.
    pub fn leaves_of(database: u32) -> Self {
        Self {
            database,
            segment_id: [0; 16],
            space_id: [0; 16],
            stripes: Stripes::SINGLE,
        }
    }
}

impl RefillWorker {
    /// This process serves `database` from now on; 0 ends it.
    pub fn register(&self, database: u32) {
        // SAFETY: a variable of this process.
        self.latch.store(unsafe { pg_sys::MyLatch }, Ordering::SeqCst);
        self.serving.store(0, Ordering::SeqCst);
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
            stripe: AtomicU32::new(0),
            stripes: AtomicU32::new(0),
            stripe_size: AtomicU64::new(0),
            stretch: StretchWords::default(),
            buffer: Buffer::new(),
            used_boot_ms: AtomicU64::new(0),
            used_ids: AtomicU64::new(0),
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

    pub(super) fn set_key(&self, key: &SegmentKey) {
        store_id(&self.segment_id, key.segment_id);
        store_id(&self.space_id, key.space_id);
        self.stripe.store(key.stripes.index(), Ordering::Relaxed);
        self.stripes.store(key.stripes.count(), Ordering::Relaxed);
        self.stripe_size.store(key.stripes.size(), Ordering::Relaxed);
        self.database.store(key.database, Ordering::Release);
    }

    /// As it was with no tag; the buffer has been discarded, and waiters are left alone.
    pub(super) fn forget_all(&self) {
        self.stretch.forget();
        for word in [
            &self.ids_wanted,
            &self.granted_ids,
            &self.bulk_ids,
            &self.ids_before,
            &self.granted_boot_ms,
            &self.used_ids,
            &self.limited_until_boot_ms,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.step,
            &self.failure,
            &self.held_up,
            &self.holder_pid,
            &self.holder_xid,
            &self.fetch_limit,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.limit_id.store(0, Ordering::Relaxed);
        self.high_water.store(0, Ordering::Release);
        self.wanted.store(false, Ordering::SeqCst);
        self.tally.forget_all();
    }

    pub fn key(&self) -> SegmentKey {
        SegmentKey {
            database: self.database(),
            segment_id: load_id(&self.segment_id),
            space_id: load_id(&self.space_id),
            stripes: self.stripes(),
        }
    }

    fn stripes(&self) -> Stripes {
        // As they were in the key.
        let [index, count] = [&self.stripe, &self.stripes].map(|word| word.load(Ordering::Relaxed));
        Stripes::new(index, count, self.stripe_size.load(Ordering::Relaxed)).unwrap_or(Stripes::SINGLE)
    }

    /// Ids drawn (or burnt) since the statistics were reset.
    pub fn ids(&self) -> u64 {
        self.ids_ever()
            .saturating_sub(self.ids_before.load(Ordering::Relaxed))
    }

    pub(super) fn ids_ever(&self) -> u64 {
        // Granted last: a range that is published in between must not seem to have been drawn.
        let remaining = self.buffer.remaining();
        self.granted_ids.load(Ordering::Relaxed).saturating_sub(remaining)
    }

    /// By the launcher, about once a second: is it in use, and how fast are ids drawn from memory? The path of an id
    /// reads no clock and writes down no time.
    pub fn look_after(&self, now: BootMs) {
        let ids = self.ids_ever();
        if self.used_ids.swap(ids, Ordering::Relaxed) != ids {
            self.touch(now);
        }
        let bulk = self.bulk_ids.load(Ordering::Relaxed);
        self.tally.measure_pace(self.ids_ever().saturating_sub(bulk), now);
    }

    /// It is in use.
    pub fn touch(&self, now: BootMs) {
        self.used_boot_ms.fetch_max(now.0, Ordering::Relaxed);
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
