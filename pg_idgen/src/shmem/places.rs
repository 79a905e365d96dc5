//! The table of places: which tag has which, and what happens when all are taken.
//!
//! Every look-up is under the `segments` lock, because a place may go from one tag to another: the buffer is discarded,
//! which makes void what anybody remembers of it (see `idgen_core::segment::Buffer`), and the key is written. Whoever
//! looks a tag up is given the incarnation of the buffer together with the place, and draws from no other one. A worker
//! says under the lock which place it serves, and that one stays.

use super::{BurnCause, SegmentKey, SegmentSlot, Shared, halves};
use crate::clock;
use idgen_core::clock::BootMs;
use idgen_core::segment::places::{Use, idlest};
use idgen_core::segment::{Stripes, Take};
use std::sync::atomic::Ordering;

/// The place of a tag, as it was when it was looked up.
#[derive(Clone, Copy)]
pub struct Place {
    pub slot: &'static SegmentSlot,
    incarnation: u64,
    /// Which ids the places in its ranges are; part of the key.
    stripes: Stripes,
}

impl Place {
    /// The next of what is in memory, counted in places. `None`: the ranges were discarded, or another tag has the place; look it up again.
    #[inline(always)]
    pub fn take(self) -> Option<Take> {
        self.slot.buffer.take_of(self.incarnation, 1)
    }

    /// The id of a place that was taken.
    #[inline(always)]
    pub fn id(self, place: i64) -> i64 {
        self.stripes.id(place)
    }

    /// What it shows is of this tag, and of no earlier life of it.
    pub fn is_current(self) -> bool {
        self.slot.buffer.incarnation() == self.incarnation
    }
}

/// Every place is in use.
pub struct Full;

/// A place that a worker refills: nobody takes it away until this is dropped.
pub struct Serving<'s> {
    shared: &'s Shared,
    entry: usize,
    pub slot: &'s SegmentSlot,
    pub key: SegmentKey,
    pub incarnation: u64,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let worker = &self.shared.refill_workers[self.entry];
        worker.serving.store(0, Ordering::SeqCst);
    }
}

enum Probe {
    Found(usize),
    Free(usize),
    Full,
}

impl Shared {
    /// The place of a tag, claimed if it has none, if need be from the tag that was used least recently, of those that
    /// were idle for `idle_ms_min`.
    ///
    /// # Errors
    /// All are in use.
    pub fn segment(&'static self, key: &SegmentKey, idle_ms_min: u64) -> Result<Place, Full> {
        let now = clock::boot();
        let _locked = self.lock_segments();
        let slot = match self.probe(key) {
            Probe::Found(number) => &self.segments()[number],
            Probe::Free(number) => {
                let slot = &self.segments()[number];
                slot.set_key(key);
                slot
            }
            Probe::Full => {
                let slot = self.idlest(now, idle_ms_min).ok_or(Full)?;
                self.evict(slot);
                slot.set_key(key);
                slot
            }
        };
        slot.touch(now);
        Ok(Place {
            slot,
            incarnation: slot.buffer.incarnation(),
            stripes: key.stripes,
        })
    }

    /// The place of a tag, if it has one. It may be another tag's when the caller looks at it.
    pub fn segment_in_use(&self, key: &SegmentKey) -> Option<&SegmentSlot> {
        let _locked = self.lock_segments();
        match self.probe(key) {
            Probe::Found(number) => Some(&self.segments()[number]),
            Probe::Free(_) | Probe::Full => None,
        }
    }

    /// From its return on nothing is handed out that was published of the tag before, nor is what a worker is just
    /// granting. Whoever waits for it looks again.
    pub fn discard(&self, key: &SegmentKey) {
        let discarded = {
            let _locked = self.lock_segments();
            match self.probe(key) {
                Probe::Found(number) => {
                    let slot = &self.segments()[number];
                    Some((slot, slot.buffer.discard()))
                }
                Probe::Free(_) | Probe::Full => None,
            }
        };
        if let Some((slot, burned)) = discarded {
            // Nobody has drawn them.
            slot.granted_ids.fetch_sub(burned.count(), Ordering::Relaxed);
            slot.tally.burned(BurnCause::Seek, burned.count());
            slot.wake_waiters();
        }
    }

    /// Worker `entry` refills this place from now on, for the tag that has it.
    pub fn serve<'s>(&'s self, entry: usize, slot: &'s SegmentSlot) -> Serving<'s> {
        let _locked = self.lock_segments();
        self.pin(entry, slot)
    }

    /// The same by the tag. `None`: it has no place.
    pub fn serve_tag(&self, entry: usize, key: &SegmentKey) -> Option<Serving<'_>> {
        let _locked = self.lock_segments();
        match self.probe(key) {
            Probe::Found(number) => Some(self.pin(entry, &self.segments()[number])),
            Probe::Free(_) | Probe::Full => None,
        }
    }

    /// Under the lock.
    fn pin<'s>(&'s self, entry: usize, slot: &'s SegmentSlot) -> Serving<'s> {
        self.refill_workers[entry]
            .serving
            .store(self.number_of(slot), Ordering::SeqCst);
        Serving {
            shared: self,
            entry,
            slot,
            key: slot.key(),
            incarnation: slot.buffer.incarnation(),
        }
    }

    /// Counted from 1.
    fn number_of(&self, slot: &SegmentSlot) -> u32 {
        let bytes = std::ptr::from_ref(slot).addr() - self.segments().as_ptr().addr();
        (bytes / size_of::<SegmentSlot>()) as u32 + 1
    }

    /// Under the lock.
    fn idlest(&self, now: BootMs, idle_ms_min: u64) -> Option<&SegmentSlot> {
        let served = self
            .refill_workers
            .each_ref()
            .map(|worker| worker.serving.load(Ordering::SeqCst));
        let places = self.segments().iter().map(|slot| {
            let is_served = served.contains(&self.number_of(slot));
            // What was drawn since the launcher has looked counts too.
            let is_drawn_from = slot.used_ids.load(Ordering::Relaxed) != slot.ids_ever();
            let used = Use {
                idle_ms: now.since(BootMs(slot.used_boot_ms.load(Ordering::Relaxed))),
                is_busy: is_served || is_drawn_from || slot.wanted.load(Ordering::SeqCst),
            };
            (slot, used)
        });
        idlest(places, idle_ms_min)
    }

    /// Under the lock. The rest of what was granted is never drawn: the tag's next grant records that.
    fn evict(&self, slot: &SegmentSlot) {
        slot.buffer.discard();
        slot.forget_all();
        self.stats.evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Under the lock. Open addressing; a place is never free again, so a free one ends the search.
    fn probe(&self, key: &SegmentKey) -> Probe {
        let slots = self.segments();
        let start = (halves(key.segment_id)[1] ^ u64::from(key.database)) as usize % slots.len();
        for number in (start..slots.len()).chain(0..start) {
            match slots[number].database() {
                0 => return Probe::Free(number),
                _ if slots[number].key() == *key => return Probe::Found(number),
                _ => {}
            }
        }
        Probe::Full
    }
}
