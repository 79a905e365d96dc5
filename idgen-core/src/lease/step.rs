//! Was the wall clock stepped?
//!
//! Wall and boot time of one host are slewed together, so between two readings they advance alike
//! unless somebody *sets* the wall clock. A wall clock that was set ahead must not become a high water:
//! the store keeps that for ever, and the identity would be unusable until the real time gets there. So
//! every reading is compared with the last accepted one; on a difference the guard latches, and opens
//! again when the clock comes back.
//!
//! A clock that was *corrected* by a step does not come back. It is believed again when an operator says so, or
//! when the kernel does: [`KernelClock::proves`](super::sync::KernelClock::proves).
//!
//! Limit: a clock that was wrong from the start is not noticed here, but by [`super::sync`] and [`super::peers`].

use crate::clock::ClockReading;

/// Difference of the two advances that counts as a step, in ms. CockroachDB's maximum offset; two orders
/// above what reading two clocks one after the other can differ.
pub const STEP_MS_MAX: u64 = 500;

/// Age at which an accepted reading is replaced, in ms. Comparing with the reading just before would let
/// a wall clock that runs at double speed pass in small bites.
const REBASE_MS: u64 = 3_000;

/// Whether the wall clock may be used for new ceilings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockVerdict {
    /// It advanced as boot time did.
    Good,
    /// It was set by this many ms, ahead (positive) or back.
    Stepped {
        /// Advance of the wall clock minus that of boot time.
        by_ms: i64,
    },
}

impl ClockVerdict {
    /// True for [`ClockVerdict::Good`].
    #[must_use]
    pub fn is_good(self) -> bool {
        matches!(self, Self::Good)
    }
}

/// Remembers the last accepted reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepGuard {
    accepted: Option<ClockReading>,
    stepped_by_ms: Option<i64>,
}

impl StepGuard {
    /// A guard that accepts the first reading it sees.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// By how much the clock was set; `None` while it is believed.
    #[must_use]
    pub fn stepped_by_ms(&self) -> Option<i64> {
        self.stepped_by_ms
    }

    /// Believes the clock again, from the next reading on, whatever it shows.
    pub fn accept(&mut self) {
        *self = Self::new();
    }

    /// Judges a reading. Boot time that went back is another boot of the host: the reading is accepted.
    pub fn observe(&mut self, reading: ClockReading) -> ClockVerdict {
        let verdict = self.judge(reading);
        self.stepped_by_ms = match verdict {
            ClockVerdict::Good => None,
            ClockVerdict::Stepped { by_ms } => Some(by_ms),
        };
        verdict
    }

    fn judge(&mut self, reading: ClockReading) -> ClockVerdict {
        let Some(base) = self.accepted.filter(|base| base.boot <= reading.boot) else {
            self.accepted = Some(reading);
            return ClockVerdict::Good;
        };
        let elapsed_ms = reading.boot.since(base.boot);
        let by_ms = reading.wall.ahead_of_ms(base.wall.saturating_add(elapsed_ms));
        if by_ms.unsigned_abs() > STEP_MS_MAX {
            return ClockVerdict::Stepped { by_ms };
        }
        if elapsed_ms >= REBASE_MS {
            self.accepted = Some(reading);
        }
        ClockVerdict::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootMs, UnixMs};

    fn at(wall: u64, boot: u64) -> ClockReading {
        ClockReading {
            wall: UnixMs(wall),
            boot: BootMs(boot),
        }
    }

    #[test]
    fn a_step_latches_and_the_way_back_opens() {
        let mut guard = StepGuard::new();
        assert!(guard.observe(at(100_000, 0)).is_good());
        assert!(
            guard.observe(at(110_400, 10_000)).is_good(),
            "400 ms are tolerated"
        );
        assert_eq!(
            guard.observe(at(3_711_400, 11_000)),
            ClockVerdict::Stepped { by_ms: 3_600_000 }
        );
        assert!(
            !guard.observe(at(3_712_400, 12_000)).is_good(),
            "it stays latched"
        );
        assert!(
            guard.observe(at(113_400, 13_000)).is_good(),
            "and opens when the clock comes back"
        );
    }

    #[test]
    fn a_step_back_latches_too() {
        let mut guard = StepGuard::new();
        guard.observe(at(100_000, 0));
        assert_eq!(
            guard.observe(at(71_000, 1_000)),
            ClockVerdict::Stepped { by_ms: -30_000 }
        );
    }

    #[test]
    fn a_clock_at_double_speed_is_found_however_often_it_is_read() {
        let mut guard = StepGuard::new();
        let found = (0..100).find(|n| !guard.observe(at(100_000 + 200 * n, 100 * n)).is_good());
        assert_eq!(found, Some(6), "after more than 500 ms gained");
    }

    #[test]
    fn another_boot_of_the_host_starts_anew() {
        let mut guard = StepGuard::new();
        guard.observe(at(100_000, 50_000));
        assert!(guard.observe(at(900_000, 10)).is_good());
    }

    #[test]
    fn what_is_accepted_is_where_the_next_reading_is_compared_with() {
        let mut guard = StepGuard::new();
        guard.observe(at(100_000, 0));
        guard.observe(at(3_701_000, 1_000));
        assert_eq!(guard.stepped_by_ms(), Some(3_600_000));
        guard.accept();
        assert_eq!(guard.stepped_by_ms(), None);
        assert!(guard.observe(at(3_702_000, 2_000)).is_good());
        assert_eq!(
            guard.observe(at(103_000, 3_000)),
            ClockVerdict::Stepped { by_ms: -3_600_000 },
            "the way back is a step now"
        );
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut guard = StepGuard::new();
        guard.observe(at(0, 0));
        assert!(!guard.observe(at(u64::MAX, 0)).is_good());
        assert!(!guard.observe(at(0, u64::MAX)).is_good());
    }
}
