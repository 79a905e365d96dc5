//! The formats that this server's workers mint in, over time: see `idgen_core::format::plan`.
//!
//! Entries are only ever added, each is written before it is counted and never changed after, so a reader needs
//! no lock. One that reads the table after it has claimed an id of a tick finds that tick's format: the ceiling
//! that allowed the tick was raised after the entry had been counted.

use idgen_core::clock::UnixMs;
use idgen_core::format::layout::{Layout, moment_of, tick_of};
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
    /// First tick of it.
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

/// Why a plan cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRefused {
    /// It contradicts what this server has been told before.
    Other,
    /// Ids of the old format may have been granted from the switch on.
    TooLate,
    /// [`FORMATS_MAX`] since the server started.
    Full,
}

impl Formats {
    pub const fn new() -> Self {
        Self {
            len: AtomicUsize::new(0),
            entries: [const { UnsafeCell::new(MaybeUninit::uninit()) }; FORMATS_MAX],
        }
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> Option<&Entry> {
        let cell = self.entries.get(index)?;
        // SAFETY: callers pass an index below a `len` that they have loaded with Acquire: written before it was
        // counted, and never again.
        Some(unsafe { (*cell.get()).assume_init_ref() })
    }

    /// The format of the latest ticks; `None` before the first lease.
    #[inline(always)]
    pub fn latest(&self) -> Option<&Entry> {
        let len = self.len.load(Ordering::Acquire);
        self.entry(len.checked_sub(1)?)
    }

    /// The format of a tick that was minted.
    #[inline(always)]
    pub fn at(&self, tick: u64) -> Option<&Entry> {
        let mut index = self.len.load(Ordering::Acquire).checked_sub(1)?;
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
        let next =
            (latest.from_tick > tick_of(now)).then(|| (moment_of(latest.from_tick), &latest.cell_format));
        Some((&current.cell_format, next))
    }

    /// Follow `plan` from now on. `highest_ceiling`: of all that is installed here. Under the `control` lock:
    /// there is one writer.
    pub fn follow(
        &self,
        plan: &FormatPlan,
        highest_ceiling: impl FnOnce() -> u64,
    ) -> Result<(), PlanRefused> {
        let Some(latest) = self.latest() else {
            self.push(0, plan.first())?;
            return match plan.switch() {
                Some((at, then)) => self.push(tick_of(at), then),
                None => Ok(()),
            };
        };
        match plan.switch() {
            None if *plan.first() == latest.cell_format => Ok(()),
            None => Err(PlanRefused::Other),
            Some((at, then)) if tick_of(at) == latest.from_tick && *then == latest.cell_format => Ok(()),
            Some((at, _)) if *plan.first() != latest.cell_format || tick_of(at) <= latest.from_tick => {
                Err(PlanRefused::Other)
            }
            Some((at, _)) if tick_of(at) <= highest_ceiling() => Err(PlanRefused::TooLate),
            Some((at, then)) => self.push(tick_of(at), then),
        }
    }

    fn push(&self, from_tick: u64, cell_format: &CellFormat) -> Result<(), PlanRefused> {
        let len = self.len.load(Ordering::Acquire);
        let cell = self.entries.get(len).ok_or(PlanRefused::Full)?;
        let layout = Layout::of_cell(cell_format);
        let sequence = layout.sequence();
        let entry = Entry {
            from_tick,
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
