//! What others met with segments and steps, where arithmetic alone decides: see docs/incidents.md.
#![cfg(not(loom))]

use idgen_core::segment::stripes::{BadStripes, MASTERS_MAX, SIZE_MIN, Stripes};
use idgen_core::segment::{grant, grant_exactly};
use proptest::prelude::*;

/// tidb#52622: after a restart, with an increment of 66 and an offset of 9527, numbers came again. Hazard H6 (tinyid): a
/// remainder that is no remainder never matches, and the numbers leave their class.
#[test]
fn incident_55_and_hazard_h6_an_offset_beyond_the_number_of_masters_is_refused() {
    assert_eq!(Stripes::new(9_527, 64, SIZE_MIN), Err(BadStripes::Index(9_527)));
    for count in 1..=MASTERS_MAX {
        assert_eq!(
            Stripes::new(count, count, SIZE_MIN),
            Err(BadStripes::Index(count))
        );
    }
}

/// Hazard H9: in PD the last block was cut to the end of the axis, its base was reckoned back from there by a whole
/// step, and what lay before it was issued again. Their test began at multiples of the step only.
fn the_rest_of_an_axis(begin: i64, limit_id: i64, wants: &[u64]) -> Vec<i64> {
    let mut max_id = begin;
    let mut ids = Vec::new();
    for want in wants.iter().cycle() {
        let Ok(range) = grant(max_id, limit_id, *want) else {
            break;
        };
        ids.extend(range.first..=range.last());
        max_id = range.last();
    }
    ids
}

proptest! {
    /// Wherever a master finds the count after a restart (its own, or one that was raised into another's stripe), it goes
    /// on above it and in its own stripes.
    #[test]
    fn incident_55_a_master_that_restarts_anywhere_goes_on_in_its_own_stripes(
        count in 1..=MASTERS_MAX, index: u32, size in SIZE_MIN..50_000_u64,
        restarts in prop::collection::vec((0..2_000_000_i64, 1..3_000_u64), 1..20),
    ) {
        let own = Stripes::new(index % count, count, size).unwrap();
        let (mut max_id, mut before) = (0_i64, 0_i64);
        for (raised, want) in restarts {
            max_id += raised;
            let range = grant(own.places_to(max_id), i64::MAX, want).unwrap();
            for run in own.runs(range) {
                prop_assert!(run.first > max_id.max(before), "{run:?} after {before}, count at {max_id}");
                for id in [run.first, run.last()] {
                    let stripe = (id - 1).unsigned_abs() / size;
                    prop_assert_eq!(stripe % u64::from(count), u64::from(own.index()));
                }
                before = run.last();
            }
            max_id = before;
        }
    }

    #[test]
    fn hazard_h9_up_to_the_limit_every_number_comes_once_wherever_it_begins(
        begin in 0..5_000_i64, left in 1..3_000_i64, wants in prop::collection::vec(1..700_u64, 1..5), at_the_end: bool,
    ) {
        // The end of the type too, where sums would wrap.
        let (begin, limit_id) = if at_the_end { (i64::MAX - left, i64::MAX) } else { (begin, begin + left) };
        let ids = the_rest_of_an_axis(begin, limit_id, &wants);
        let all: Vec<i64> = (0..left).map(|n| begin + 1 + n).collect();
        prop_assert_eq!(ids, all);
        prop_assert!(grant(limit_id, limit_id, 1).is_err() && grant_exactly(limit_id, limit_id, 1).is_err());
    }
}
