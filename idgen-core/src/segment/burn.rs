//! How much a tag passes over when ranges may have been granted that nobody here knows of.
//!
//! The *safety burn* is what the tag could have granted in a stated time at its measured rate, and two of its
//! largest ranges: those that the other side may hold in memory. It makes a promotion safe against an old primary that is
//! fenced within that time (counted from the moment whose state the new one has), at up to the measured rate.

use super::RANGE_TARGET_MS;

/// The shortest time that a rate is taken over: a tag that is new grants two ranges within a moment.
pub const RATE_WINDOW_MS: u64 = 60_000;

/// The stated time when nobody has set another, in seconds.
pub const SAFETY_TIME_S: u32 = 600;

/// How fast a tag is used, kept beside its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rate {
    /// Ids per minute: the highest of late; halved for every quarter of an hour without such a rate.
    pub per_minute: u64,
    /// When the open window began, Unix ms; 0: none has.
    pub since_ms: u64,
    /// Highest id granted then.
    pub since_id: i64,
}

impl Rate {
    /// Begin to measure at `max_id`: what lies below was passed over, not used.
    #[must_use]
    pub fn from_here(self, now_ms: u64, max_id: i64) -> Self {
        Self {
            per_minute: self.per_minute,
            since_ms: now_ms,
            since_id: max_id,
        }
    }

    /// After a grant up to `max_id` at `now_ms` (Unix ms). A clock that went back begins a new window.
    #[must_use]
    pub fn granted(self, now_ms: u64, max_id: i64) -> Self {
        if self.since_ms == 0 || now_ms < self.since_ms {
            return self.from_here(now_ms, max_id);
        }
        let elapsed_ms = now_ms - self.since_ms;
        if elapsed_ms < RATE_WINDOW_MS {
            return self;
        }
        let decay = u32::try_from(elapsed_ms / RANGE_TARGET_MS).unwrap_or(u32::MAX);
        Self {
            per_minute: self
                .open_window(elapsed_ms, max_id)
                .max(self.per_minute.checked_shr(decay).unwrap_or(0)),
            since_ms: now_ms,
            since_id: max_id,
        }
    }

    /// The rate of the open window, taken over a minute at least; rounded up, as if the clock had been read a ms
    /// early and a ms late.
    fn open_window(self, elapsed_ms: u64, max_id: i64) -> u64 {
        let ids = u128::from(max_id.saturating_sub(self.since_id).max(0).unsigned_abs());
        let elapsed_ms = u128::from(elapsed_ms.max(RATE_WINDOW_MS) - 1);
        u64::try_from((ids * 60_000).div_ceil(elapsed_ms)).unwrap_or(u64::MAX)
    }

    /// Ids per minute that have to be reckoned with, when the row stands at `max_id`.
    #[must_use]
    pub fn reckoned(self, max_id: i64) -> u64 {
        if self.since_ms == 0 {
            return self.per_minute;
        }
        // What was granted since the window began, as if it had been within one minute.
        self.per_minute.max(self.open_window(RATE_WINDOW_MS, max_id))
    }
}

/// Ids to pass over: what `rate` makes of `time_s` seconds, and two ranges of `max_step`. Saturates.
#[must_use]
pub fn safety_burn(rate: Rate, max_id: i64, time_s: u32, max_step: u32) -> u64 {
    let used = u128::from(rate.reckoned(max_id)) * u128::from(time_s) / 60;
    let burn = used + 2 * u128::from(max_step);
    u64::try_from(burn).unwrap_or(u64::MAX)
}

/// Where a tag goes on after a burn of `ids` above `max_id`. `None`: nothing would be left below `limit_id`, and so
/// nothing is passed over: somebody has to decide.
#[must_use]
pub fn burn_to(max_id: i64, ids: u64, limit_id: i64) -> Option<i64> {
    max_id.checked_add_unsigned(ids).filter(|to| *to < limit_id)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T0: u64 = 1_700_000_000_000;

    #[test]
    fn a_new_tag_burns_its_ranges_and_what_it_has_granted() {
        let rate = Rate::default();
        assert_eq!(safety_burn(rate, 0, SAFETY_TIME_S, 10_000), 20_000);
        let rate = rate.granted(T0, 1_000).granted(T0 + 10, 3_000);
        assert_eq!(rate.per_minute, 0, "ten ms are no measure");
        assert_eq!(safety_burn(rate, 3_000, 600, 10_000), 20_000 + 2_001 * 10);
    }

    #[test]
    fn the_rate_rises_at_once_and_falls_by_half_in_a_quarter_of_an_hour() {
        let rate = Rate::default().granted(T0, 0).granted(T0 + 60_000, 6_000);
        assert_eq!(rate.per_minute, 6_001, "rounded up");
        let idle = rate.granted(T0 + 60_000 + 15 * 60_000, 6_100);
        assert_eq!(idle.per_minute, 3_000);
        let asleep = rate.granted(T0 + 10 * 86_400_000, 6_200);
        assert_eq!(asleep.per_minute, 1, "100 ids in ten days");
    }

    #[test]
    fn a_clock_that_goes_back_begins_anew_and_keeps_the_rate() {
        let rate = Rate::default().granted(T0, 0).granted(T0 + 60_000, 6_000);
        let back = rate.granted(T0 - 5, 7_000);
        assert_eq!(
            (back.per_minute, back.since_ms, back.since_id),
            (6_001, T0 - 5, 7_000)
        );
    }

    #[test]
    fn a_burn_never_eats_the_rest_of_a_tag() {
        assert_eq!(burn_to(100, 50, 1_000), Some(150));
        assert_eq!(burn_to(100, 899, 1_000), Some(999));
        assert_eq!(burn_to(100, 900, 1_000), None);
        assert_eq!(burn_to(i64::MAX - 1, u64::MAX, i64::MAX), None);
    }

    proptest! {
        /// The promise: an old side that goes on at no more than the rate it had is passed over, if it is fenced
        /// within the stated time. Seeds are printed by proptest.
        #[test]
        fn a_steady_old_side_is_passed_over(
            per_minute in 1..1_000_000_u64, step in 100..10_000_u32, time_s in 60..3_600_u32,
            seen_min in 3..60_u64, fenced_s in 0..3_600_u64,
        ) {
            prop_assume!(fenced_s <= u64::from(time_s));
            // Ranges of one size, two at once and then one whenever one is used up.
            let step_ids = u64::from(step);
            let grants_until = |ms: u64| per_minute * ms / 60_000 / step_ids + 2;
            let seen_ms = seen_min * 60_000;
            let grants = grants_until(seen_ms);
            let rate = (1..=grants).fold(Rate::default(), |rate, grant| {
                let ms = (grant.saturating_sub(2) * step_ids * 60_000).div_ceil(per_minute);
                rate.granted(T0 + ms, (grant * step_ids).cast_signed())
            });
            let max_id = (grants * step_ids).cast_signed();
            let to = burn_to(max_id, safety_burn(rate, max_id, time_s, step), i64::MAX).unwrap();
            let old_side = grants_until(seen_ms + fenced_s * 1_000) * step_ids;
            prop_assert!(to.unsigned_abs() >= old_side, "burnt to {to}, granted {old_side}: {rate:?}");
        }
    }
}
