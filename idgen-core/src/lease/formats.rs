//! Which of the plans of formats that are remembered of one cell is the furthest.
//!
//! The plan of a cell only grows: each switch comes later than the one before it (see [`super::switch`]). A store that
//! was restored to a time before a switch shows an older plan, and ids that are minted by it meet those of servers that
//! have followed the switch: the two halves of the pool keep apart workers, not layouts. So whoever remembers the switch
//! says so, and the next epoch goes on with it.
//!
//! A plan names one switch, the last one, and the format before it. That is enough to see that one plan follows from
//! another where at most one switch lies between them, or where the earlier one is that of a new cell. Of two others
//! nobody can say which one holds: a person decides.

use crate::clock::UnixMs;
use crate::format::FormatPlan;
use core::fmt;

/// When the last switch of a plan takes place; 0: the format of a new cell.
fn moment(plan: &FormatPlan) -> UnixMs {
    plan.switch().map_or(UnixMs(0), |(at, _)| at)
}

/// Do the formats of `earlier` go on as `later` says? Not of a plan that cannot be read.
fn follows(earlier: &str, later: &str) -> bool {
    let (Ok(earlier), Ok(later)) = (earlier.parse::<FormatPlan>(), later.parse::<FormatPlan>()) else {
        return false;
    };
    let goes_on = match earlier.switch() {
        Some((_, last)) => later.first() == last,
        None => true,
    };
    moment(&earlier) < moment(&later) && goes_on
}

/// Was a switch of `was` lost, or made otherwise, in a store that shows `is`? `same_epoch`: nobody has decided anything
/// in between. With a later epoch an operator has vouched for the store, and may have given up a plan that contradicts;
/// but never one that follows from what the store shows.
pub(super) fn is_lost(was: &str, is: &str, same_epoch: bool) -> bool {
    if was == is {
        return false;
    }
    if !same_epoch {
        return follows(is, was);
    }
    match (was.parse::<FormatPlan>(), is.parse::<FormatPlan>()) {
        (Ok(was), Ok(is)) => moment(&is) <= moment(&was),
        // The store's may be of a later release, which whoever follows it must know.
        _ => false,
    }
}

/// All that is known: each plan once, in the order of their texts. Left out is what everything follows from: a plan
/// without a switch is that of a new cell.
#[must_use]
pub fn together<'a>(plans: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let of_new_cell = |plan: &str| {
        plan.parse::<FormatPlan>()
            .is_ok_and(|plan| plan.switch().is_none())
    };
    let switched = plans.into_iter().filter(|plan| !of_new_cell(plan));
    let mut plans: Vec<String> = switched.map(str::to_owned).collect();
    plans.sort_unstable();
    plans.dedup();
    plans
}

/// None of the plans that are known of a cell is the furthest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlansApart {
    /// Those from which no other one follows.
    pub plans: Vec<String>,
}

impl fmt::Display for PlansApart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "it cannot be seen which plan of formats holds, because none of those that are known follows from another: ",
        )?;
        for (index, plan) in self.plans.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}\"{plan}\"")?;
        }
        Ok(())
    }
}

impl core::error::Error for PlansApart {}

/// The plan that all others lead to. `chosen`: by a person, where there is none.
///
/// # Errors
/// [`PlansApart`], also when what was chosen is none of those that could hold.
pub(super) fn furthest<'a>(
    plans: impl IntoIterator<Item = &'a str>,
    chosen: Option<&str>,
) -> Result<&'a str, PlansApart> {
    let plans: Vec<&str> = plans.into_iter().collect();
    let is_end = |plan: &&str| !plans.iter().any(|other| follows(plan, other));
    let mut ends: Vec<&str> = plans.iter().copied().filter(is_end).collect();
    ends.sort_unstable();
    ends.dedup();
    let held = match (chosen, &ends[..]) {
        (None, [end]) => Some(*end),
        (Some(chosen), ends) => ends.iter().copied().find(|end| *end == chosen),
        _ => None,
    };
    held.ok_or_else(|| PlansApart {
        plans: ends.into_iter().map(str::to_owned).collect(),
    })
}

/// When the last switch of the plan takes place; `None`: it has none, or cannot be read.
pub(super) fn switches_at(plan: &str) -> Option<UnixMs> {
    let plan: FormatPlan = plan.parse().ok()?;
    plan.switch().map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "classic";
    const FIRST: &str = "classic; regional/1 from 1790000000000";
    const SECOND: &str = "regional/1; regional/2 from 1790001000000";
    const THIRD: &str = "regional/2; regional/3 from 1790002000000";
    /// Made in a store that had lost the first.
    const OTHERWISE: &str = "classic; regional/3 from 1790000500000";
    const LATER_RELEASE: &str = "classic; regional/1 from 1790000000000; weekly from 1790003000000";

    #[test]
    fn a_store_whose_plan_is_behind_has_lost_a_switch() {
        for (was, is) in [(FIRST, NEW), (SECOND, NEW), (SECOND, FIRST), (THIRD, SECOND)] {
            assert!(is_lost(was, is, true), "{was} -> {is}");
            assert!(is_lost(was, is, false), "nobody has given {was} up for {is}");
            assert!(!is_lost(is, was, true), "{is} -> {was} is a switch");
            assert!(!is_lost(is, was, false));
            assert!(!is_lost(was, was, true));
        }
    }

    #[test]
    fn who_slept_through_two_switches_sees_no_loss() {
        assert!(!is_lost(FIRST, THIRD, true));
        assert!(
            !is_lost(FIRST, LATER_RELEASE, true),
            "and cannot read a later release's"
        );
        assert!(!is_lost(LATER_RELEASE, FIRST, true));
    }

    #[test]
    fn a_plan_that_contradicts_is_a_loss_until_an_operator_has_decided() {
        let at_the_same_time = FIRST.replace("/1", "/2");
        for (was, is) in [
            (FIRST, at_the_same_time.as_str()),
            (OTHERWISE, FIRST),
            (THIRD, FIRST),
        ] {
            assert!(is_lost(was, is, true), "{was} -> {is}");
            assert!(!is_lost(was, is, false), "{was} -> {is}");
        }
    }

    #[test]
    fn the_furthest_plan_is_the_one_that_all_lead_to() {
        assert_eq!(furthest([NEW], None), Ok(NEW));
        assert_eq!(furthest([NEW, FIRST, NEW], None), Ok(FIRST));
        assert_eq!(furthest([SECOND, NEW, FIRST, SECOND], None), Ok(SECOND));
        assert_eq!(furthest([FIRST, THIRD, SECOND], None), Ok(THIRD));
        assert_eq!(furthest([NEW, SECOND], None), Ok(SECOND), "two were lost");
        assert_eq!(furthest([LATER_RELEASE, LATER_RELEASE], None), Ok(LATER_RELEASE));
    }

    #[test]
    fn of_plans_that_contradict_a_person_names_one() {
        let apart = |plans: &[&str]| {
            Err(PlansApart {
                plans: plans.iter().map(|plan| (*plan).to_owned()).collect(),
            })
        };
        assert_eq!(
            furthest([NEW, FIRST, OTHERWISE], None),
            apart(&[FIRST, OTHERWISE])
        );
        assert_eq!(
            furthest([FIRST, THIRD], None),
            apart(&[FIRST, THIRD]),
            "what lies between is not known"
        );
        assert_eq!(furthest([NEW, LATER_RELEASE], None), apart(&[NEW, LATER_RELEASE]));
        assert_eq!(furthest([NEW, FIRST, OTHERWISE], Some(FIRST)), Ok(FIRST));
        for not_an_end in [NEW, SECOND, ""] {
            assert_eq!(
                furthest([NEW, FIRST, OTHERWISE], Some(not_an_end)),
                apart(&[FIRST, OTHERWISE])
            );
        }
        assert_eq!(
            furthest([NEW, FIRST], Some(FIRST)),
            Ok(FIRST),
            "there was no need to"
        );
        let text = furthest([FIRST, OTHERWISE], None).unwrap_err().to_string();
        assert!(text.ends_with(&format!("\"{FIRST}\", \"{OTHERWISE}\"")), "{text}");
    }

    #[test]
    fn what_is_told_are_switches_once_each() {
        assert_eq!(
            together([NEW, SECOND, FIRST, SECOND, LATER_RELEASE]),
            [FIRST, LATER_RELEASE, SECOND]
        );
        assert_eq!(switches_at(FIRST), Some(UnixMs(1_790_000_000_000)));
        assert_eq!(switches_at(NEW), None);
    }
}
