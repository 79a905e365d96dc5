//! How often ranges of a tag are fetched from the database: counted for the last minute, limited if somebody wants it,
//! and worth a warning from [`ALERTS`] on.
//!
//! Counts lie in buckets of [`BUCKET_MS`]. Those that touch the last minute are added up, so what is counted are the
//! fetches of the last 60 to 65 seconds, and a limit is never exceeded within any 60 of them.

use crate::clock::BootMs;

const MINUTE_MS: u64 = 60_000;
/// Width of a bucket; how late a limit may let go again.
pub const BUCKET_MS: u64 = 5_000;
/// The bucket that is being filled, and a minute's before it.
pub const BUCKETS: usize = 1 + (MINUTE_MS / BUCKET_MS) as usize;
const _: () = assert!(MINUTE_MS.is_multiple_of(BUCKET_MS), "whole buckets make a minute");

/// Fetches per minute that somebody should know of: the ranges are too small for the load, and past the second the
/// database does little else for the tag.
pub const ALERTS: [u32; 2] = [1_000, 5_000];

/// The fetches of one tag. All zero: none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetches {
    /// Number of the bucket that was counted into last.
    pub bucket: u64,
    /// By the number of their bucket, modulo [`BUCKETS`].
    pub counts: [u32; BUCKETS],
}

impl Fetches {
    /// One more.
    pub fn note(&mut self, now: BootMs) {
        let bucket = (now.0 / BUCKET_MS).max(self.bucket);
        for passed in (self.bucket + 1..=bucket).rev().take(BUCKETS) {
            self.counts[index(passed)] = 0;
        }
        self.bucket = bucket;
        let count = &mut self.counts[index(bucket)];
        *count = count.saturating_add(1);
    }

    /// Those of the last 60 to 65 seconds.
    #[must_use]
    pub fn per_minute(&self, now: BootMs) -> u32 {
        let bucket = now.0 / BUCKET_MS;
        self.since(bucket.saturating_sub(BUCKETS as u64 - 1))
    }

    /// Those in buckets from this one on.
    fn since(&self, bucket: u64) -> u32 {
        let oldest = (self.bucket + 1).saturating_sub(BUCKETS as u64);
        let counts = (oldest.max(bucket)..=self.bucket).map(|bucket| self.counts[index(bucket)]);
        counts.fold(0, u32::saturating_add)
    }

    /// In how many ms a limit of so many per minute allows the next; `None`: now. (A limit of 0 never does.)
    #[must_use]
    pub fn wait_ms(&self, limit: u32, now: BootMs) -> Option<u64> {
        if self.per_minute(now) < limit {
            return None;
        }
        // The bucket that has to leave, so that fewer than the limit stay: one of those that are counted, or all.
        let first = (now.0 / BUCKET_MS).saturating_sub(BUCKETS as u64 - 1);
        let leaves = (first..=self.bucket).find(|bucket| self.since(bucket + 1) < limit);
        let leaves = leaves.unwrap_or(self.bucket.max(first));
        let allowed_at = (leaves + BUCKETS as u64) * BUCKET_MS;
        Some(allowed_at.saturating_sub(now.0).max(1))
    }
}

const fn index(bucket: u64) -> usize {
    (bucket % BUCKETS as u64) as usize
}

/// How many of [`ALERTS`] are up. One comes up when it is reached, and goes down at half of it: it does not flutter.
#[must_use]
pub fn alerts_up(before: usize, per_minute: u32) -> usize {
    let reached = ALERTS.iter().filter(|alert| per_minute >= **alert).count();
    let held = ALERTS.iter().filter(|alert| per_minute > **alert / 2).count();
    reached.max(before.min(held))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START_MS: u64 = 1_000_000;

    fn at(ms: u64) -> BootMs {
        BootMs(START_MS + ms)
    }

    #[test]
    fn a_minute_is_counted_and_then_forgotten() {
        let mut fetches = Fetches::default();
        assert_eq!(fetches.per_minute(at(0)), 0);
        for n in 0..30 {
            fetches.note(at(n * 1_000));
        }
        assert_eq!(fetches.per_minute(at(30_000)), 30);
        assert_eq!(fetches.per_minute(at(59_000)), 30);
        assert_eq!(fetches.per_minute(at(94_999)), 0, "all are older than a minute");
        fetches.note(at(3_600_000));
        assert_eq!(fetches.per_minute(at(3_600_000)), 1, "nothing of an hour ago");
    }

    #[test]
    fn a_limit_says_when_it_lets_go() {
        let mut fetches = Fetches::default();
        assert_eq!(fetches.wait_ms(3, at(0)), None);
        for ms in [0, 10, 20_000] {
            assert_eq!(fetches.wait_ms(3, at(ms)), None);
            fetches.note(at(ms));
        }
        let wait_ms = fetches.wait_ms(3, at(21_000)).expect("three are enough");
        assert_eq!(wait_ms, 44_000, "when the first two are 65 s old");
        assert_eq!(
            fetches.wait_ms(4, at(21_000)),
            None,
            "a higher limit counts at once"
        );
        assert_eq!(fetches.wait_ms(3, at(21_000 + wait_ms)), None);
        assert!(fetches.wait_ms(3, at(21_000 + wait_ms - 1)).is_some());
        assert!(
            fetches.wait_ms(0, at(1_000_000)).is_some(),
            "a limit of none is none"
        );
    }

    #[test]
    fn an_alert_comes_up_when_it_is_reached_and_goes_down_at_half() {
        assert_eq!(alerts_up(0, 999), 0);
        assert_eq!(alerts_up(0, 1_000), 1);
        assert_eq!(alerts_up(1, 999), 1);
        assert_eq!(alerts_up(1, 501), 1);
        assert_eq!(alerts_up(1, 500), 0);
        assert_eq!(alerts_up(1, 5_000), 2);
        assert_eq!(alerts_up(2, 2_501), 2);
        assert_eq!(alerts_up(2, 2_500), 1);
        assert_eq!(alerts_up(2, 0), 0);
        assert_eq!(alerts_up(0, u32::MAX), 2);
    }

    proptest! {
        /// Whoever asks before each fetch never exceeds the limit within a minute, wherever that begins, and is not held
        /// up when it is far from it.
        #[test]
        fn no_minute_has_more_than_the_limit(
            limit in 1..40_u32, pauses in proptest::collection::vec(0..9_000_u64, 1..400), start in 0..100_000_u64,
        ) {
            let (mut fetches, mut now) = (Fetches::default(), start);
            let mut made: Vec<u64> = Vec::new();
            for pause in pauses {
                now += pause;
                let of_65_s = made.iter().filter(|at| **at + 65_000 > now).count();
                if let Some(wait_ms) = fetches.wait_ms(limit, BootMs(now)) {
                    prop_assert!(of_65_s >= limit as usize, "held up for nothing");
                    now += wait_ms;
                    prop_assert_eq!(fetches.wait_ms(limit, BootMs(now)), None);
                }
                fetches.note(BootMs(now));
                made.push(now);
                let of_60_s = made.iter().filter(|at| **at + 60_000 > now).count();
                prop_assert!(of_60_s <= limit as usize, "{} in a minute", of_60_s);
                prop_assert!(fetches.per_minute(BootMs(now)) as usize >= of_60_s);
            }
        }
    }
}
