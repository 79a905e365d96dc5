//! How many per second: counted in the second it happens in, shared by all processes, without a lock.

use crate::clock::BootMs;
use crate::sync::{AtomicU64, Ordering::Relaxed};

const MS_PER_S: u64 = 1_000;

/// Counts of the current and the last busy second. Two processes that meet at the turn of a second may count a
/// few events into the wrong one; sums are exact.
#[derive(Debug)]
pub struct RateMeter {
    total: AtomicU64,
    second: AtomicU64,
    in_second: AtomicU64,
    peak: AtomicU64,
    above_limit_ms: AtomicU64,
}

/// A [`RateMeter`] as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RateView {
    /// All of them.
    pub total: u64,
    /// Most in one second.
    pub peak_per_s: u64,
    /// When the limit was last exceeded.
    pub above_limit: Option<BootMs>,
}

impl RateView {
    /// Of two at once: the peaks may have been in different seconds, so their sum says nothing.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            total: self.total + other.total,
            peak_per_s: self.peak_per_s.max(other.peak_per_s),
            above_limit: self.above_limit.max(other.above_limit),
        }
    }
}

impl RateMeter {
    /// Nothing counted yet.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            total: AtomicU64::new(0),
            second: AtomicU64::new(0),
            in_second: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            above_limit_ms: AtomicU64::new(0),
        }
    }

    /// `n` more at `now`; more than `limit` in one second is noted.
    pub fn add(&self, n: u64, now: BootMs, limit: u64) {
        self.total.fetch_add(n, Relaxed);
        let second = now.0 / MS_PER_S;
        let counted = self.second.load(Relaxed);
        let turned = second != counted
            && self
                .second
                .compare_exchange(counted, second, Relaxed, Relaxed)
                .is_ok();
        let in_second = if turned {
            self.in_second.store(n, Relaxed);
            n
        } else {
            self.in_second.fetch_add(n, Relaxed) + n
        };
        self.peak.fetch_max(in_second, Relaxed);
        if in_second > limit {
            self.above_limit_ms.fetch_max(now.0, Relaxed);
        }
    }

    /// For views.
    #[must_use]
    pub fn view(&self) -> RateView {
        let above = self.above_limit_ms.load(Relaxed);
        RateView {
            total: self.total.load(Relaxed),
            peak_per_s: self.peak.load(Relaxed),
            above_limit: (above > 0).then_some(BootMs(above)),
        }
    }

    /// Count from zero again.
    pub fn reset(&self) {
        for word in [
            &self.total,
            &self.second,
            &self.in_second,
            &self.peak,
            &self.above_limit_ms,
        ] {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(not(loom))]
impl Default for RateMeter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const LIMIT: u64 = 1_000;

    #[test]
    fn the_busiest_second_is_the_peak() {
        let meter = RateMeter::new();
        for (n, at_ms) in [(400, 5_000), (300, 5_999), (600, 6_000), (1, 9_000)] {
            meter.add(n, BootMs(at_ms), LIMIT);
        }
        let want = RateView {
            total: 1_301,
            peak_per_s: 700,
            above_limit: None,
        };
        assert_eq!(meter.view(), want);
    }

    #[test]
    fn more_than_the_limit_in_one_second_is_noted_with_its_time() {
        let meter = RateMeter::new();
        meter.add(LIMIT, BootMs(5_100), LIMIT);
        assert_eq!(meter.view().above_limit, None, "the limit itself is allowed");
        meter.add(1, BootMs(5_200), LIMIT);
        assert_eq!(meter.view().above_limit, Some(BootMs(5_200)));
        meter.add(5, BootMs(8_000), LIMIT);
        assert_eq!(meter.view().above_limit, Some(BootMs(5_200)));
        meter.reset();
        assert_eq!(meter.view(), RateView::default());
    }

    #[test]
    fn two_views_are_one() {
        let (one, two) = (RateMeter::new(), RateMeter::new());
        one.add(LIMIT + 1, BootMs(5_000), LIMIT);
        two.add(7, BootMs(9_000), LIMIT);
        let both = RateView {
            total: LIMIT + 8,
            peak_per_s: LIMIT + 1,
            above_limit: Some(BootMs(5_000)),
        };
        assert_eq!(one.view().and(&two.view()), both);
        assert_eq!(RateView::default().and(&one.view()), one.view());
    }

    #[test]
    fn sums_are_exact_over_threads() {
        let meter = RateMeter::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|at_ms| meter.add(3, BootMs(at_ms), LIMIT)));
            }
        });
        assert_eq!(meter.view().total, 4 * 10_000 * 3);
    }
}
