//! The two clocks, as two types that do not mix, and how far the wall clock is believed.
//!
//! Wall time ([`UnixMs`]) goes into ids and windows: everybody can compare it, and anybody can step it.
//! Boot time ([`BootMs`]) is for deadlines: it only ever rises at about one second per second, suspend
//! included, but means nothing on another host or after a reboot. Nothing here reads a clock.
//!
//! A wall clock that jumps ahead would drag the ids with it: up to the end of the window in one call,
//! after which nothing is left to mint from until real time gets there. So a wall reading is capped by
//! a [`ClockAnchor`], an earlier pair of readings that the daemon found good: since then the wall can
//! have advanced by what boot time has, plus a slack. This protects availability and order only;
//! uniqueness rests on the granted window.

use crate::sync::{AtomicU64, Ordering::Relaxed};

/// Milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted (`CLOCK_REALTIME`). Never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMs(pub u64);

/// Milliseconds since this host booted, suspend included (Linux `CLOCK_BOOTTIME`). Comparable only with
/// readings of the same host since the same boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootMs(pub u64);

impl UnixMs {
    /// This instant plus `ms` milliseconds; stops at the end of the type instead of wrapping.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This instant minus `ms` milliseconds; stops at zero instead of wrapping.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to this instant; 0 when `earlier` is in fact later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds that this instant is ahead (positive) of another; stops at the ends of the type.
    #[must_use]
    pub fn ahead_of_ms(self, other: Self) -> i64 {
        let apart_ms = i64::try_from(self.0.abs_diff(other.0)).unwrap_or(i64::MAX);
        if self < other { -apart_ms } else { apart_ms }
    }
}

impl BootMs {
    /// This instant plus `ms` milliseconds; stops at the end of the type instead of wrapping.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This instant minus `ms` milliseconds; stops at zero instead of wrapping.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to this instant; 0 when `earlier` is in fact later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both clocks of one host, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ClockReading {
    /// Wall time.
    pub wall: UnixMs,
    /// Boot time of the same moment.
    pub boot: BootMs,
}

/// What the wall may be ahead of the anchor for free, in ms. An NTP step or a resumed virtual machine
/// corrects the wall by less than this on a server whose clock is looked after, and a second of lead is
/// small against any window (480 s).
pub const ANCHOR_SLACK_MS: u64 = 1_000;

/// What the wall may gain on boot time, in percent of the anchor's age. chrony and `adjtimex(2)` slew
/// the tick by at most 10 % (100,000 ppm), so a clock that is being slewed in is never held back; 10 %
/// of a 480 s window is 48 s, so a clock that runs away cannot use the window up.
pub const ANCHOR_DRIFT_PERCENT: u64 = 10;

/// A pair of readings whose wall time was found good; the measure for later wall readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ClockAnchor {
    /// Wall time when the anchor was taken.
    pub wall: UnixMs,
    /// Boot time of the same moment.
    pub boot: BootMs,
}

impl ClockAnchor {
    /// The latest wall time that is believed at boot time `boot`: the anchor's wall time, plus the time
    /// that has gone by, plus [`ANCHOR_SLACK_MS`], plus [`ANCHOR_DRIFT_PERCENT`] of the time gone by.
    /// A `boot` before the anchor counts as no time gone by. Saturates at the end of the type.
    #[inline]
    #[must_use]
    pub const fn ceiling(self, boot: BootMs) -> UnixMs {
        let age_ms = boot.since(self.boot);
        // Divided first, so that it cannot overflow; 10 % of an age in whole ms, rounded down.
        let drift_ms = age_ms / (100 / ANCHOR_DRIFT_PERCENT);
        self.wall
            .saturating_add(age_ms)
            .saturating_add(drift_ms)
            .saturating_add(ANCHOR_SLACK_MS)
    }
}

const _: () = assert!(
    100 % ANCHOR_DRIFT_PERCENT == 0,
    "the drift is computed by one division"
);

impl From<ClockReading> for ClockAnchor {
    fn from(reading: ClockReading) -> Self {
        Self {
            wall: reading.wall,
            boot: reading.boot,
        }
    }
}

/// The highest wall time that was seen, and how often the wall fell behind it. Shared by all processes of a
/// server; looked at when a tick is opened, at most once per ms and identity.
///
/// The maximum is loaded *before* the clock is read ([`WallWatch::seen`], then the reading, then
/// [`WallWatch::observe`]): a process that sleeps in between reads a later time, never one that seems to have
/// gone back.
#[derive(Debug)]
pub struct WallWatch {
    max: AtomicU64,
    behind_ms: AtomicU64,
    rewinds: AtomicU64,
    rewind_ms_max: AtomicU64,
}

/// A wall that is behind its maximum by at most this is jitter (two cores, a slew), not a rewind, in ms.
pub const REWIND_MS_MIN: u64 = 5;

/// What a [`WallWatch`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WallSeen {
    /// Highest wall time.
    pub max: UnixMs,
    /// How far the wall is behind it now, in ms.
    pub behind_ms: u64,
    /// How often it fell behind by more than [`REWIND_MS_MIN`].
    pub rewinds: u64,
    /// The largest distance since the last [`WallWatch::reset`], in ms.
    pub rewind_ms_max: u64,
}

impl WallWatch {
    /// Has seen nothing.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max: AtomicU64::new(0),
            behind_ms: AtomicU64::new(0),
            rewinds: AtomicU64::new(0),
            rewind_ms_max: AtomicU64::new(0),
        }
    }

    /// The maximum so far.
    #[must_use]
    pub fn seen(&self) -> UnixMs {
        UnixMs(self.max.load(Relaxed))
    }

    /// A reading of the wall that was made after `seen` was loaded, as far as it is believed. Returns how far
    /// it is behind, in ms.
    pub fn observe(&self, seen: UnixMs, wall: UnixMs) -> u64 {
        let behind_ms = seen.since(wall);
        if wall > seen {
            self.max.fetch_max(wall.0, Relaxed);
        }
        // Counted on the way down only: one rewind is one, however many ids are minted during it.
        if self.behind_ms.load(Relaxed) != behind_ms {
            let before = self.behind_ms.swap(behind_ms, Relaxed);
            if before <= REWIND_MS_MIN && behind_ms > REWIND_MS_MIN {
                self.rewinds.fetch_add(1, Relaxed);
            }
            self.rewind_ms_max.fetch_max(behind_ms, Relaxed);
        }
        behind_ms
    }

    /// `wall` was found good: a maximum above it came from a clock that was wrong, and being behind that is no
    /// rewind. (What was minted meanwhile keeps its order by the mint word, not by this.)
    pub fn believe(&self, wall: UnixMs) {
        self.max.fetch_min(wall.0, Relaxed);
    }

    /// For views.
    #[must_use]
    pub fn view(&self) -> WallSeen {
        WallSeen {
            max: self.seen(),
            behind_ms: self.behind_ms.load(Relaxed),
            rewinds: self.rewinds.load(Relaxed),
            rewind_ms_max: self.rewind_ms_max.load(Relaxed),
        }
    }

    /// Count from zero again. The maximum stays: it is no statistic.
    pub fn reset(&self) {
        self.rewinds.store(0, Relaxed);
        self.rewind_ms_max.store(0, Relaxed);
    }
}

#[cfg(not(loom))]
impl Default for WallWatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANCHOR: ClockAnchor = ClockAnchor {
        wall: UnixMs(1_700_000_000_000),
        boot: BootMs(5_000),
    };

    #[test]
    fn ceiling_is_the_slack_at_the_anchor_itself() {
        assert_eq!(ANCHOR.ceiling(BootMs(5_000)), UnixMs(1_700_000_001_000));
    }

    #[test]
    fn ceiling_grows_by_the_time_gone_by_and_a_tenth() {
        assert_eq!(ANCHOR.ceiling(BootMs(15_000)), UnixMs(1_700_000_012_000));
        assert_eq!(
            ANCHOR.ceiling(BootMs(5_009)),
            UnixMs(1_700_000_001_009),
            "the tenth is rounded down"
        );
    }

    #[test]
    fn a_boot_time_before_the_anchor_counts_as_no_time() {
        assert_eq!(ANCHOR.ceiling(BootMs(0)), UnixMs(1_700_000_001_000));
    }

    #[test]
    fn nothing_wraps_at_the_ends() {
        assert_eq!(UnixMs(u64::MAX).saturating_add(1), UnixMs(u64::MAX));
        assert_eq!(UnixMs(0).saturating_sub(1), UnixMs(0));
        assert_eq!(UnixMs(3).ahead_of_ms(UnixMs(5)), -2);
        assert_eq!(UnixMs(5).ahead_of_ms(UnixMs(3)), 2);
        assert_eq!(UnixMs(u64::MAX).ahead_of_ms(UnixMs(0)), i64::MAX);
        assert_eq!(UnixMs(0).ahead_of_ms(UnixMs(u64::MAX)), -i64::MAX);
        assert_eq!(UnixMs(1).since(UnixMs(2)), 0);
        assert_eq!(BootMs(u64::MAX).saturating_add(1), BootMs(u64::MAX));
        assert_eq!(BootMs(0).saturating_sub(1), BootMs(0));
        assert_eq!(BootMs(1).since(BootMs(2)), 0);
        assert_eq!(ANCHOR.ceiling(BootMs(u64::MAX)), UnixMs(u64::MAX));
    }

    #[test]
    fn a_rewind_is_counted_once_and_measured() {
        let watch = WallWatch::new();
        let at = |wall| watch.observe(watch.seen(), UnixMs(wall));
        assert_eq!([at(10_000), at(10_001), at(9_998)], [0, 0, 3]);
        assert_eq!([at(7_000), at(7_001), at(7_002)], [3_001, 3_000, 2_999]);
        assert_eq!(watch.view().rewinds, 1, "3 ms are jitter, the rest is one step");
        assert_eq!(at(10_002), 0);
        assert_eq!(at(9_000), 1_002);
        let want = WallSeen {
            max: UnixMs(10_002),
            behind_ms: 1_002,
            rewinds: 2,
            rewind_ms_max: 3_001,
        };
        assert_eq!(watch.view(), want);
        watch.reset();
        assert_eq!(watch.view().rewind_ms_max, 0);
        assert_eq!(watch.seen(), UnixMs(10_002));
    }

    /// A clock that was hours ahead, above every ceiling, must not count as a rewind for hours when it is right.
    #[test]
    fn a_clock_that_was_ahead_is_forgotten_once_it_is_found_good() {
        let watch = WallWatch::new();
        watch.observe(watch.seen(), UnixMs(3_600_000));
        assert_eq!(watch.observe(watch.seen(), UnixMs(5_000)), 3_595_000);
        watch.believe(UnixMs(5_010));
        assert_eq!(watch.observe(watch.seen(), UnixMs(5_020)), 0);
        watch.believe(UnixMs(9_000));
        assert_eq!(watch.seen(), UnixMs(5_020), "never raised by it");
    }

    #[test]
    fn a_process_that_slept_before_it_read_the_clock_sees_no_rewind() {
        let watch = WallWatch::new();
        let seen = watch.seen();
        watch.observe(watch.seen(), UnixMs(20_000));
        assert_eq!(watch.observe(seen, UnixMs(20_000)), 0);
        // One that slept after it is compared with what was true before.
        assert_eq!(watch.observe(seen, UnixMs(19_000)), 0);
        assert_eq!(watch.seen(), UnixMs(20_000));
    }

    proptest! {
        #[test]
        fn ceiling_is_the_formula_in_wide_arithmetic(wall: u64, at: u64, boot: u64) {
            let age = u128::from(boot.saturating_sub(at));
            let wide = u128::from(wall) + age + age / 10 + 1_000;
            let want = u64::try_from(wide).unwrap_or(u64::MAX);
            let anchor = ClockAnchor { wall: UnixMs(wall), boot: BootMs(at) };
            prop_assert_eq!(anchor.ceiling(BootMs(boot)), UnixMs(want));
        }

        #[test]
        fn ceiling_never_falls_as_boot_time_rises(wall: u64, at: u64, boot: u64, more: u64) {
            let anchor = ClockAnchor { wall: UnixMs(wall), boot: BootMs(at) };
            prop_assert!(anchor.ceiling(BootMs(boot)) <= anchor.ceiling(BootMs(boot).saturating_add(more)));
        }

        #[test]
        fn since_undoes_add(at in 0..=u64::MAX / 2, ms in 0..=u64::MAX / 2) {
            prop_assert_eq!(UnixMs(at).saturating_add(ms).since(UnixMs(at)), ms);
            prop_assert_eq!(BootMs(at).saturating_add(ms).since(BootMs(at)), ms);
        }
    }
}
