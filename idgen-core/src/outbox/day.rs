//! The day tables of `idgen.audit_event`: until when rows may still come, and when one may be dropped.

use super::Retention;
use crate::day::{Day, SECONDS};

/// After its end a day stays open for so long: a transaction may have recorded before midnight and commit long after it.
const OPEN_S: i64 = 48 * 3_600;

/// What is known of the table of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayFacts {
    /// Which.
    pub day: Day,
    /// The first transaction that had not begun when somebody looked after the day's end.
    pub fence: Option<u64>,
    /// It was sealed.
    pub sealed: bool,
    /// It has rows that are not published.
    pub unpublished: bool,
}

/// What a day's table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayState {
    /// Rows may come; it is read at each look.
    Open,
    /// No transaction that could add a row is left, and everything is published: it may be sealed now.
    Sealable,
    /// It is read once a minute.
    Sealed,
}

/// Why a day's table is not dropped. In the order that they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// It is not old enough.
    Young,
    /// It is not sealed.
    Open,
    /// Rows of it are not published.
    Unpublished,
    /// The archive does not vouch for it.
    Archive,
    /// Somebody uses the tables: tried again later.
    Locked,
}

impl Gate {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Young,
        Self::Open,
        Self::Unpublished,
        Self::Archive,
        Self::Locked,
    ];

    /// As metrics and the SQL function name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Young => "young",
            Self::Open => "open",
            Self::Unpublished => "unpublished",
            Self::Archive => "archive",
            Self::Locked => "locked",
        }
    }

    /// The gate of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gate| gate.name() == name)
    }
}

impl DayFacts {
    /// What it is, at this time and with every transaction below `xmin` ended.
    #[must_use]
    pub fn state(&self, now_s: i64, xmin: u64) -> DayState {
        if self.sealed {
            return DayState::Sealed;
        }
        let waited = now_s >= self.day.ends() + OPEN_S;
        let nobody_left = self.fence.is_some_and(|fence| xmin >= fence);
        match waited && nobody_left && !self.unpublished {
            true => DayState::Sealable,
            false => DayState::Open,
        }
    }

    /// Is it time to note which transactions may still add to it?
    #[must_use]
    pub fn wants_fence(&self, now_s: i64) -> bool {
        self.fence.is_none() && now_s >= self.day.ends()
    }

    /// The first gate that keeps it; `None`: the archive is asked, and then it is dropped.
    #[must_use]
    pub fn kept_by(&self, now_s: i64, retention: Retention) -> Option<Gate> {
        if now_s < self.day.ends() + i64::from(retention.in_days()) * SECONDS {
            Some(Gate::Young)
        } else if !self.sealed {
            Some(Gate::Open)
        } else if self.unpublished {
            Some(Gate::Unpublished)
        } else {
            None
        }
    }
}

/// The table of a day, by its bounds: its name says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// For people.
    pub name: String,
    /// First moment, Unix seconds.
    pub from_s: i64,
    /// First moment after it.
    pub to_s: i64,
}

impl Leaf {
    /// The day, where its bounds are those of one day of UTC.
    #[must_use]
    pub fn day(&self) -> Option<Day> {
        let day = Day::of_unix(self.from_s);
        (day.begins() == self.from_s && day.ends() == self.to_s).then_some(day)
    }
}

/// Of the days after today so many have their table at the least, or somebody should look: more are made ahead.
pub const DAYS_AHEAD_MIN: i32 = 3;

/// How many days after today have their table, without a hole. Negative: today has none.
#[must_use]
pub fn days_ahead(leaves: &[Leaf], today: Day) -> i32 {
    let days: Vec<Day> = leaves.iter().filter_map(Leaf::day).collect();
    let mut ahead = -1;
    while days.contains(&Day(today.0.saturating_add(ahead + 1))) {
        ahead += 1;
    }
    ahead
}

/// What is wrong with the tables, for people: bounds that are no day of UTC, and days that are missing between others.
#[must_use]
pub fn holes(leaves: &[Leaf]) -> Vec<String> {
    let mut wrong: Vec<String> = leaves
        .iter()
        .filter(|leaf| leaf.day().is_none())
        .map(|leaf| format!("the bounds of {} are not those of one day of UTC", leaf.name))
        .collect();
    let mut days: Vec<(Day, &str)> = leaves
        .iter()
        .filter_map(|leaf| Some((leaf.day()?, leaf.name.as_str())))
        .collect();
    days.sort_unstable();
    for pair in days.windows(2) {
        if let [(before, from), (after, to)] = pair
            && after.0 - before.0 > 1
        {
            let missing = after.0 - before.0 - 1;
            wrong.push(format!("{missing} days are missing between {from} and {to}"));
        }
    }
    wrong
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Day = Day(9_800);

    fn facts() -> DayFacts {
        DayFacts {
            day: DAY,
            fence: Some(50),
            sealed: false,
            unpublished: false,
        }
    }

    fn leaf(day: i32) -> Leaf {
        Leaf {
            name: format!("d{day}"),
            from_s: Day(day).begins(),
            to_s: Day(day).ends(),
        }
    }

    /// AUDIT.md 33: a transaction of 23:59:59 commits into yesterday.
    #[test]
    fn a33_a_day_is_open_until_two_days_have_gone_and_everybody_who_could_add_to_it() {
        let late = DAY.ends() + OPEN_S;
        assert_eq!(facts().state(late - 1, 99), DayState::Open);
        assert_eq!(
            facts().state(late, 49),
            DayState::Open,
            "a transaction of before the fence runs"
        );
        assert_eq!(facts().state(late, 50), DayState::Sealable);
        let unpublished = DayFacts {
            unpublished: true,
            ..facts()
        };
        assert_eq!(unpublished.state(late, 99), DayState::Open);
        let unfenced = DayFacts {
            fence: None,
            ..facts()
        };
        assert_eq!(unfenced.state(late, 99), DayState::Open);
        assert!(unfenced.wants_fence(DAY.ends()) && !unfenced.wants_fence(DAY.ends() - 1));
    }

    #[test]
    fn gates_are_named_in_order() {
        let old = DAY.ends() + 90 * SECONDS;
        let retention = Retention::default();
        let sealed = DayFacts {
            sealed: true,
            ..facts()
        };
        assert_eq!(sealed.kept_by(old - 1, retention), Some(Gate::Young));
        assert_eq!(facts().kept_by(old, retention), Some(Gate::Open));
        let late = DayFacts {
            unpublished: true,
            ..sealed
        };
        assert_eq!(late.kept_by(old, retention), Some(Gate::Unpublished));
        assert_eq!(sealed.kept_by(old, retention), None);
        for gate in Gate::ALL {
            assert_eq!(Gate::named(gate.name()), Some(gate));
        }
    }

    /// AUDIT.md 31 and 32: bounds that took a session's time zone left a hole, and days that were made ahead ran out.
    #[test]
    fn a31_a32_days_are_counted_by_their_bounds() {
        let mut leaves: Vec<Leaf> = (9_799..=9_807).map(leaf).collect();
        assert_eq!((days_ahead(&leaves, DAY), holes(&leaves)), (7, Vec::new()));
        assert_eq!(
            days_ahead(&leaves, Day(9_805)),
            2,
            "the creator has stood still for five days"
        );
        assert_eq!(days_ahead(&leaves, Day(9_808)), -1);
        leaves[4].from_s += 3_600;
        assert_eq!(days_ahead(&leaves, DAY), 2);
        let wrong = holes(&leaves);
        assert!(
            wrong[0].contains("d9803") && wrong[1].contains("1 days are missing"),
            "{wrong:?}"
        );
    }

    proptest! {
        /// AUDIT.md 30: over all dates and retentions nothing that is younger than the retention is let go.
        #[test]
        fn a30_nothing_younger_than_the_retention_is_dropped(
            day in -100_000_i32..100_000, days in 7_u64..36_500, second in 0_i64..SECONDS,
            more in prop_oneof![-1_i64..=1, -40_000_i64..80_000],
        ) {
            let retention = Retention::days(days).unwrap();
            let facts = DayFacts { day: Day(day), fence: Some(1), sealed: true, unpublished: false };
            let now = Day(day).ends() + (i64::try_from(days).unwrap() + more) * SECONDS + second;
            let kept = facts.kept_by(now, retention);
            prop_assert_eq!(kept.is_none(), more >= 0);
            prop_assert_eq!(Day::of_unix(Day(day).begins() + second), Day(day));
        }
    }
}
