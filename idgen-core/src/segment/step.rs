//! How large the next range is, and what a grant takes from a tag.
//!
//! The size follows Leaf's rule (Meituan-Dianping/Leaf, `SegmentIDGenImpl`): a range should last about
//! [`RANGE_TARGET_MS`]. Leaf halves at most once per load, so a step of a million needs a day of loads to
//! come down after a busy hour; here the time that went by tells how often to halve.

use core::fmt;

use super::Range;

/// A range should last this long: one database write per quarter of an hour and tag, and no more than
/// that much of the axis burned by a crash.
pub const RANGE_TARGET_MS: u64 = 15 * 60 * 1_000;

/// Most values in one range, whatever a tag's `max_step` says: what one crash may burn twice over.
pub const HARD_STEP_MAX: u32 = 1_000_000;

/// Size of the range after one of `current` values that lasted `lasted_ms` (from the grant before it to
/// this one).
///
/// Under 15 minutes: double. Under 30: the same. Longer: halve until it would have lasted less than 30.
/// The result lies within `[step_min, step_max]`, both capped to `1..=`[`HARD_STEP_MAX`]; where they
/// contradict each other `step_max` wins, because it limits what is burned.
#[must_use]
pub fn next_step(current: u32, step_min: u32, step_max: u32, lasted_ms: u64) -> u32 {
    let upper = step_max.clamp(1, HARD_STEP_MAX);
    let lower = step_min.clamp(1, upper);
    if lasted_ms < RANGE_TARGET_MS {
        return current.saturating_mul(2).clamp(lower, upper);
    }
    let (mut step, mut lasted_ms) = (current, lasted_ms);
    while lasted_ms >= 2 * RANGE_TARGET_MS && step > lower {
        step /= 2;
        lasted_ms /= 2;
    }
    step.clamp(lower, upper)
}

/// The tag has no value left below its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exhausted {
    /// Highest value that was ever granted.
    pub max_id: i64,
    /// Highest value that may be granted.
    pub limit_id: i64,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no value is left: {} of at most {} is granted",
            self.max_id, self.limit_id
        )
    }
}

impl core::error::Error for Exhausted {}

/// The range after `max_id` (the highest value ever granted), at most `want` values, none above
/// `limit_id`. `want` 0 counts as 1: a grant is never empty.
///
/// # Errors
/// [`Exhausted`] when nothing is left; never a wrap, at any value of the three.
pub fn grant(max_id: i64, limit_id: i64, want: u64) -> Result<Range, Exhausted> {
    if max_id >= limit_id {
        return Err(Exhausted { max_id, limit_id });
    }
    // `max_id < limit_id`: the sum cannot overflow and at least one value is left.
    let left = limit_id.abs_diff(max_id);
    Ok(Range {
        first: max_id + 1,
        count: want.clamp(1, left),
    })
}

/// The next `count` values after `max_id`, all of them or none. `count` 0 counts as 1.
///
/// # Errors
/// [`Exhausted`] when fewer are left up to `limit_id`.
pub fn grant_exactly(max_id: i64, limit_id: i64, count: u64) -> Result<Range, Exhausted> {
    let range = grant(max_id, limit_id, count)?;
    if range.count < count {
        return Err(Exhausted { max_id, limit_id });
    }
    Ok(range)
}

/// Why a tag does not go on at the value that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeekRefused {
    /// It is not above the highest value that was granted: some of it may be in use.
    Granted {
        /// Highest value that was ever granted.
        max_id: i64,
    },
    /// It is above the tag's limit.
    AboveLimit {
        /// Highest value that may be granted.
        limit_id: i64,
    },
    /// More than half of the values that are left would be skipped, and nobody has insisted. A slip of the
    /// pen that uses up a tag cannot be taken back.
    Far {
        /// Values that would be skipped.
        skipped: u64,
        /// Values that are left now.
        left: u64,
    },
}

/// What is skipped when the next value of a tag is to be `next_id`; `None`: nothing, it is the next one
/// anyhow.
///
/// # Errors
/// [`SeekRefused`]; `force` overrules only [`SeekRefused::Far`].
pub fn seek(max_id: i64, limit_id: i64, next_id: i64, force: bool) -> Result<Option<Range>, SeekRefused> {
    if next_id <= max_id {
        return Err(SeekRefused::Granted { max_id });
    }
    if next_id > limit_id {
        return Err(SeekRefused::AboveLimit { limit_id });
    }
    // `max_id < next_id <= limit_id`: neither difference overflows, and `left` is at least 1.
    let (skipped, left) = (next_id.abs_diff(max_id) - 1, limit_id.abs_diff(max_id));
    if skipped > left / 2 && !force {
        return Err(SeekRefused::Far { skipped, left });
    }
    Ok((skipped > 0).then(|| Range {
        first: max_id + 1,
        count: skipped,
    }))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE_MS: u64 = 60_000;

    #[test]
    fn leafs_rule() {
        let step = |current, lasted_min| next_step(current, 1_000, 100_000, lasted_min * MINUTE_MS);
        assert_eq!(step(1_000, 0), 2_000);
        assert_eq!(next_step(1_000, 1_000, 100_000, RANGE_TARGET_MS - 1), 2_000);
        assert_eq!(step(4_000, 15), 4_000);
        assert_eq!(next_step(4_000, 1_000, 100_000, 2 * RANGE_TARGET_MS - 1), 4_000);
        assert_eq!(step(4_000, 30), 2_000);
        assert_eq!(step(4_000, 59), 2_000);
        assert_eq!(step(4_000, 60), 1_000);
        assert_eq!(step(60_000, 0), 100_000, "max_step");
        assert_eq!(step(1_000, 600), 1_000, "step");
        assert_eq!(step(1_500, 600), 1_000, "step, not 750");
    }

    /// Leaf halves once per load; an idle night must be enough to come all the way down.
    #[test]
    fn a_large_step_comes_down_at_once_after_an_idle_night() {
        assert_eq!(next_step(1_000_000, 1_000, 1_000_000, 8 * 60 * MINUTE_MS), 31_250);
        assert_eq!(next_step(1_000_000, 1_000, 1_000_000, u64::MAX), 1_000);
    }

    #[test]
    fn limits_that_make_no_sense_still_give_a_step() {
        assert_eq!(next_step(0, 0, 0, 0), 1);
        assert_eq!(next_step(u32::MAX, u32::MAX, u32::MAX, 0), HARD_STEP_MAX);
        assert_eq!(next_step(10, 500, 100, 0), 100, "max_step wins");
        assert_eq!(next_step(10, 500, 1_000, 0), 500, "an operator raised step");
    }

    #[test]
    fn a_grant_of_many_is_all_or_nothing() {
        let range = |first, count| Ok(Range { first, count });
        assert_eq!(grant_exactly(10, 20, 10), range(11, 10));
        let (max_id, limit_id) = (10, 20);
        assert_eq!(grant_exactly(10, 20, 11), Err(Exhausted { max_id, limit_id }));
        assert_eq!(
            grant_exactly(0, i64::MAX, i64::MAX as u64),
            range(1, i64::MAX as u64)
        );
        assert!(grant_exactly(1, i64::MAX, i64::MAX as u64).is_err());
        assert!(grant_exactly(i64::MAX, i64::MAX, 1).is_err());
    }

    #[test]
    fn a_tag_is_moved_up_only_and_far_only_on_purpose() {
        use SeekRefused::{AboveLimit, Far, Granted};
        assert_eq!(seek(10, 100, 11, false), Ok(None), "the next one anyhow");
        assert_eq!(seek(10, 100, 21, false), Ok(Some(Range { first: 11, count: 10 })));
        assert_eq!(seek(10, 100, 10, true), Err(Granted { max_id: 10 }));
        assert_eq!(seek(10, 100, i64::MIN, true), Err(Granted { max_id: 10 }));
        assert_eq!(seek(10, 100, 101, true), Err(AboveLimit { limit_id: 100 }));
        // 90 are left: 45 may be skipped unasked.
        assert!(seek(10, 100, 56, false).is_ok());
        let far = Far {
            skipped: 46,
            left: 90,
        };
        assert_eq!(seek(10, 100, 57, false), Err(far));
        let all_but_one = Range { first: 11, count: 89 };
        assert_eq!(seek(10, 100, 100, true), Ok(Some(all_but_one)));
        assert_eq!(seek(99, 100, 100, false), Ok(None), "the last one");
    }

    proptest! {
        /// Whatever a seek skips, the next grant begins at the value asked for, and nothing is in both.
        #[test]
        fn after_a_seek_the_next_grant_begins_there(
            max_id in 0..i64::MAX, up in any::<u64>(), room in any::<u64>(), force in any::<bool>()
        ) {
            let limit_id = max_id.saturating_add_unsigned(room);
            let next_id = max_id.saturating_add_unsigned(up);
            if let Ok(skipped) = seek(max_id, limit_id, next_id, force) {
                let last = skipped.map_or(max_id, Range::last);
                prop_assert_eq!(last, next_id - 1);
                prop_assert_eq!(grant(last, limit_id, 1), Ok(Range { first: next_id, count: 1 }));
                prop_assert!(skipped.is_none_or(|range| range.first == max_id + 1));
            } else {
                prop_assert!(next_id <= max_id || next_id > limit_id || !force);
            }
        }
    }

    #[test]
    fn grant_takes_what_follows_and_stops_at_the_limit() {
        assert_eq!(
            grant(0, i64::MAX, 1_000),
            Ok(Range {
                first: 1,
                count: 1_000
            })
        );
        assert_eq!(
            grant(1_000, 1_500, 1_000),
            Ok(Range {
                first: 1_001,
                count: 500
            })
        );
        assert_eq!(
            grant(1_499, 1_500, 1_000),
            Ok(Range {
                first: 1_500,
                count: 1
            })
        );
        assert_eq!(
            grant(1_500, 1_500, 1_000),
            Err(Exhausted {
                max_id: 1_500,
                limit_id: 1_500
            })
        );
        assert_eq!(
            grant(1_501, 1_500, 1),
            Err(Exhausted {
                max_id: 1_501,
                limit_id: 1_500
            })
        );
    }

    /// incubator-seata#1731: an overflow must be an error, under any arithmetic.
    #[test]
    fn grant_does_not_wrap_at_the_ends_of_the_type() {
        let end = Range {
            first: i64::MAX,
            count: 1,
        };
        assert_eq!(grant(i64::MAX - 1, i64::MAX, u64::MAX), Ok(end));
        assert!(grant(i64::MAX, i64::MAX, 1).is_err());
        let all = Range {
            first: i64::MIN + 1,
            count: u64::MAX,
        };
        assert_eq!(grant(i64::MIN, i64::MAX, u64::MAX), Ok(all));
        assert_eq!(all.last(), i64::MAX);
        assert_eq!(grant(0, 10, 0), Ok(Range { first: 1, count: 1 }));
    }

    proptest! {
        #[test]
        fn next_step_stays_within_its_limits(current: u32, min: u32, max: u32, lasted_ms: u64) {
            let step = next_step(current, min, max, lasted_ms);
            prop_assert!((1..=HARD_STEP_MAX.min(max.max(1))).contains(&step));
            prop_assert!(step >= min.min(max).clamp(1, HARD_STEP_MAX));
        }

        #[test]
        fn next_step_never_rises_with_the_time_a_range_lasted(
            current in 1..=HARD_STEP_MAX, min in 1..=10_000_u32, max in 10_000..=HARD_STEP_MAX,
            a: u64, b: u64, narrow in 0..44_u32,
        ) {
            let (a, b) = (a >> narrow, b >> narrow);
            let (short, long) = (a.min(b), a.max(b));
            prop_assert!(next_step(current, min, max, short) >= next_step(current, min, max, long));
        }

        #[test]
        fn next_step_aims_at_a_range_of_15_to_30_minutes(per_min in 100..60_000_u64, start in 1..=HARD_STEP_MAX) {
            // A steady rate: after a few ranges the step has settled where a range lasts 15 to 30 minutes.
            let mut step = start;
            for _ in 0..40 {
                step = next_step(step, 1, HARD_STEP_MAX, u64::from(step) * MINUTE_MS / per_min);
            }
            let lasts_ms = u64::from(step) * MINUTE_MS / per_min;
            prop_assert!((RANGE_TARGET_MS..2 * RANGE_TARGET_MS).contains(&lasts_ms), "{step}: {lasts_ms} ms");
        }

        #[test]
        fn grants_in_a_row_are_dense_and_disjoint(
            start: i64, span in 1..100_000_u64, wants in prop::collection::vec(1..5_000_u64, 1..100),
        ) {
            let limit_id = start.saturating_add_unsigned(span);
            let mut max_id = start;
            for want in wants {
                match grant(max_id, limit_id, want) {
                    Ok(range) => {
                        prop_assert_eq!(range.first, max_id + 1);
                        prop_assert!(range.count >= 1 && range.count <= want);
                        prop_assert!(range.last() <= limit_id);
                        prop_assert!(range.count == want || range.last() == limit_id);
                        max_id = range.last();
                    }
                    Err(_) => prop_assert_eq!(max_id, limit_id),
                }
            }
        }
    }
}
