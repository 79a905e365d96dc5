//! A worker format, prepared for the mint: shifts and constants, nothing to decide on the path of an id.
//!
//! The mint counts *ticks*: milliseconds since 2020-01-01 UTC, in 41 bits, whatever format the ids are in. So
//! ticks compare over a switch of formats, and a format of another epoch costs one addition.

use super::{CellFormat, EPOCH_2020, Format};
use crate::clock::UnixMs;
use crate::mint::{Sequence, TICK_MAX};

/// The tick of a moment; 0 before 2020. After the last one that the mint word holds it is above every ceiling.
#[inline(always)]
#[must_use]
pub const fn tick_of(at: UnixMs) -> u64 {
    at.since(EPOCH_2020)
}

/// The moment of a tick.
#[must_use]
pub const fn moment_of(tick: u64) -> UnixMs {
    EPOCH_2020.saturating_add(tick)
}

/// Makes ids out of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Added to a tick (modulo 2^64) gives the format's own.
    offset: u64,
    ts_shift: u32,
    node_shift: u32,
    /// Region and version.
    fixed: u64,
    /// Last tick that the format can carry.
    last_tick: u64,
    seq_max: u64,
}

impl Layout {
    /// Of a worker format.
    #[must_use]
    pub const fn of_cell(cell: &CellFormat) -> Self {
        Self::of(cell.format(), cell.fixed_bits())
    }

    /// Of a format whose ids all carry `fixed` bits.
    #[must_use]
    pub const fn of(format: &Format, fixed: u64) -> Self {
        Self {
            offset: EPOCH_2020.0.wrapping_sub(format.epoch.0),
            ts_shift: format.ts_shift(),
            node_shift: format.node_shift(),
            fixed,
            last_tick: {
                let last_tick = tick_of(format.last_ms());
                if last_tick < TICK_MAX { last_tick } else { TICK_MAX }
            },
            seq_max: format.seq_max(),
        }
    }

    /// The id of a tick that lies within the format's life, of a node and a sequence that fit.
    #[inline(always)]
    #[must_use]
    pub const fn id(&self, tick: u64, node: u64, seq: u64) -> i64 {
        let ts = tick.wrapping_add(self.offset);
        (ts << self.ts_shift | self.fixed | node << self.node_shift | seq).cast_signed()
    }

    /// Last tick of the format's life.
    #[must_use]
    pub const fn last_tick(&self) -> u64 {
        self.last_tick
    }

    /// Largest sequence.
    #[inline(always)]
    #[must_use]
    pub const fn seq_max(&self) -> u64 {
        self.seq_max
    }

    /// The sequences of a tick.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        Sequence::with_max(self.seq_max)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::{ALL, Format, Parts};
    use super::*;
    use proptest::prelude::*;

    fn parts(format: &Format, at: UnixMs, region: u64, node: u64, seq: u64) -> Parts {
        Parts {
            unix_ms: at,
            region: (format.region_bits > 0).then_some(region),
            version: (format.version_bits > 0).then_some(0),
            node,
            seq,
            is_shard: format.is_shard,
        }
    }

    proptest! {
        #[test]
        fn the_layout_makes_the_ids_that_the_format_composes(
            which in 0..6usize, ago: u64, region: u64, node: u64, seq: u64,
        ) {
            let registered = [
                // Twitter's, and two that begin after 2020, one of them with a region.
                "twitter(1288834974657,1,41,0,0,10,12)".parse::<Format>().unwrap(),
                "young(1704067200000,1,40,0,1,10,12)".parse().unwrap(),
                "younger(1735689600000,1,40,1,1,10,11)".parse().unwrap(),
            ];
            let format = ALL.iter().chain(&registered).nth(which).unwrap();
            // Any moment of its life that the mint has a tick for.
            let first = format.epoch.max(EPOCH_2020);
            let last = format.last_ms().min(moment_of(TICK_MAX));
            let at = first.saturating_add(ago % (last.since(first) + 1));
            let region = region & ((1 << format.region_bits) - 1);
            let (node, seq) = (node & format.node_max(), seq & format.seq_max());
            let parts = parts(format, at, region, node, seq);
            let fixed = parts.region.map_or(0, |region| region << format.region_shift());
            prop_assert_eq!(
                format.compose(parts),
                Ok(Layout::of(format, fixed).id(tick_of(at), node, seq))
            );
        }

        #[test]
        fn ticks_and_moments_are_each_others_inverse_within_the_word(tick in 0..=TICK_MAX) {
            prop_assert_eq!(tick_of(moment_of(tick)), tick);
        }
    }

    #[test]
    fn a_moment_that_no_tick_has_is_never_one_of_the_past() {
        assert_eq!(tick_of(UnixMs(0)), 0);
        assert_eq!(tick_of(EPOCH_2020), 0);
        assert!(tick_of(UnixMs(u64::MAX)) > TICK_MAX);
    }
}
