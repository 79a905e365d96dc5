//! The formats that this server's workers mint in, over time: see `idgen_core::format::plan`.
//!
//! Entries are only ever added, each is written before it is counted and never changed after, so a reader needs
//! no lock. One that reads the table after it has claimed an id of a tick finds that tick's format: the ceiling
//! that allowed the tick was raised after the entry had been counted.

use idgen_core::clock::UnixMs;
use idgen_core::format::layout::{Layout, tick_of};
use idgen_core::format::plan::{Notes, PlanRefused};
use idgen_core::format::{CellFormat, FormatPlan};
use idgen_core::mint::Sequence;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Formats that one shared memory can get to know; each switch takes one, a restart starts anew.
const FORMATS_MAX: usize = 16;

/// One format, prepared.
#[derive(Clone, Copy)]
pub struct Entry {
    /// First moment of it; 0 of the first format.
    pub from: UnixMs,
    /// The same as a tick.
    pub from_tick: u64,
    pub layout: Layout,
    pub sequence: Sequence,
    /// Sequences of the ticks before.
    pub before: Sequence,
    pub cell_format: CellFormat,
}

/// See the module.
#[repr(C, align(64))]
pub struct Formats {
    len: AtomicUsize,
    entries: [UnsafeCell<MaybeUninit<Entry>>; FORMATS_MAX],
}

impl Formats {
    pub const fn new() -> Self {
        Self {
            len: AtomicUsize::new(0),
            entries: [const { UnsafeCell::new(MaybeUninit::uninit()) }; FORMATS_MAX],
        }
    }

    /// How many entries can be read.
    #[inline(always)]
    fn counted(&self) -> usize {
        self.len.load(Ordering::Acquire).min(FORMATS_MAX)
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> Option<&Entry> {
        let cell = self.entries[..self.counted()].get(index)?;
        // SAFETY: below a `len` that was loaded with Acquire: written before it was counted, and never again.
        Some(unsafe { (*cell.get()).assume_init_ref() })
    }

    /// The format of the latest ticks; `None` before the first lease.
    #[inline(always)]
    pub fn latest(&self) -> Option<&Entry> {
        self.entry(self.counted().checked_sub(1)?)
    }

    /// The format of a tick that was minted.
    #[inline(always)]
    pub fn at(&self, tick: u64) -> Option<&Entry> {
        let mut index = self.counted().checked_sub(1)?;
        loop {
            let entry = self.entry(index)?;
            if tick >= entry.from_tick || index == 0 {
                return Some(entry);
            }
            index -= 1;
        }
    }

    /// The plan that the latest entries make.
    pub fn plan_at(&self, now: UnixMs) -> Option<(&CellFormat, Option<(UnixMs, &CellFormat)>)> {
        let current = self.at(tick_of(now))?;
        let latest = self.latest()?;
        let next = (latest.from_tick > tick_of(now)).then_some((latest.from, &latest.cell_format));
        Some((&current.cell_format, next))
    }

    /// Follow `plan` from now on. `highest_ceiling`: of all that is installed here. Under the `control` lock:
    /// there is one writer.
    pub fn follow(
        &self,
        plan: &FormatPlan,
        highest_ceiling: impl FnOnce() -> UnixMs,
    ) -> Result<(), PlanRefused> {
        for (from, cell_format) in self.steps(plan, highest_ceiling)?.into_iter().flatten() {
            self.push(from, &cell_format)?;
        }
        Ok(())
    }

    /// Whether `plan` could be followed, under the same lock.
    pub fn check(
        &self,
        plan: &FormatPlan,
        highest_ceiling: impl FnOnce() -> UnixMs,
    ) -> Result<(), PlanRefused> {
        let steps = self.steps(plan, highest_ceiling)?.into_iter().flatten();
        let room = self.entries.len() - self.counted();
        if steps.count() > room {
            Err(PlanRefused::Full)
        } else {
            Ok(())
        }
    }

    /// What is new in `plan`.
    fn steps(
        &self,
        plan: &FormatPlan,
        highest_ceiling: impl FnOnce() -> UnixMs,
    ) -> Result<Notes, PlanRefused> {
        let latest = self.latest();
        let latest = latest.map(|latest| (latest.from, &latest.cell_format));
        plan.followed_from(latest, highest_ceiling)
    }

    fn push(&self, from: UnixMs, cell_format: &CellFormat) -> Result<(), PlanRefused> {
        let len = self.counted();
        let cell = self.entries.get(len).ok_or(PlanRefused::Full)?;
        let layout = Layout::of_cell(cell_format);
        let sequence = layout.sequence();
        let entry = Entry {
            from,
            from_tick: tick_of(from),
            layout,
            sequence,
            before: self.latest().map_or(sequence, |latest| latest.sequence),
            cell_format: *cell_format,
        };
        // SAFETY: nobody reads an entry that is not counted yet, and the lock keeps other writers out.
        unsafe { (*cell.get()).write(entry) };
        self.len.store(len + 1, Ordering::Release);
        Ok(())
    }
}
