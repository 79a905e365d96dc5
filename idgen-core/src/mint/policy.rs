//! What formats and operators allow.

use super::SEQ_FULL;

/// The sequences of one tick, as a format has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Largest one (inclusive).
    pub max: u64,
    /// A new tick after an idle one starts its sequence at a mixed offset within this mask, so that ids made
    /// at a low rate are not all even. At most a quarter of the sequence space for 12 bits, half for fewer
    /// (smaller masks fail the evenness test).
    pub start_mask: u64,
}

impl Sequence {
    /// Of a format with this largest sequence.
    #[must_use]
    pub const fn with_max(max: u64) -> Self {
        let start_mask = if max == SEQ_FULL { max >> 2 } else { max >> 1 };
        Self { max, start_mask }
    }
}

/// What the formats and the operator allow.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Of ticks before `switch_tick`.
    pub before: Sequence,
    /// From this tick on ids are in another format (see [`crate::format::plan`]).
    pub switch_tick: u64,
    /// Of `switch_tick` and later.
    pub after: Sequence,
    /// How far a new tick may run ahead of the clock without waiting, in ms. Two, because a wait has a
    /// granularity of one: with less, a full sequence would idle for the rest of its millisecond.
    pub ahead_ms_max: u64,
    /// How far the clock may be behind its own maximum, or behind the last tick less `ahead_ms_max`, before minting is
    /// refused, in ms.
    pub rewind_ms_max: u64,
}

/// See [`Policy::ahead_ms_max`].
pub const AHEAD_MS_MAX: u64 = 2;

impl Policy {
    /// The policy of one format with this largest sequence.
    #[must_use]
    pub const fn for_seq_max(seq_max: u64, rewind_ms_max: u64) -> Self {
        let sequence = Sequence::with_max(seq_max);
        Self {
            before: sequence,
            switch_tick: 0,
            after: sequence,
            ahead_ms_max: AHEAD_MS_MAX,
            rewind_ms_max,
        }
    }

    /// The sequences of a tick.
    #[inline(always)]
    #[must_use]
    pub const fn sequence(&self, tick: u64) -> &Sequence {
        if tick < self.switch_tick {
            &self.before
        } else {
            &self.after
        }
    }
}
