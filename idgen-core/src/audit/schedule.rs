//! When the nightly audit runs: once for each night, whatever the clock does and however long nobody was there.

use crate::day::{Day, SECONDS};
use core::fmt;
use core::str::FromStr;

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weekday {
    /// The first.
    Monday,
    /// The second.
    Tuesday,
    /// The third.
    Wednesday,
    /// The fourth.
    Thursday,
    /// The fifth.
    Friday,
    /// The sixth.
    Saturday,
    /// The last.
    Sunday,
}

impl Weekday {
    /// In their order.
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// As a configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }

    /// Of a day.
    #[must_use]
    pub fn of(day: Day) -> Self {
        // 1970-01-01 was a Thursday.
        let place = (i64::from(day.0) + 3).rem_euclid(7);
        Self::ALL[usize::try_from(place).unwrap_or_default()]
    }
}

impl FromStr for Weekday {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL
            .into_iter()
            .find(|day| day.name().eq_ignore_ascii_case(text));
        found.ok_or("a day of the week is written as sunday")
    }
}

/// A time of the day in UTC, to the minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay {
    minutes: u16,
}

impl TimeOfDay {
    /// `None`: there is no such time.
    #[must_use]
    pub const fn new(hour: u16, minute: u16) -> Option<Self> {
        if hour < 24 && minute < 60 {
            Some(Self {
                minutes: hour * 60 + minute,
            })
        } else {
            None
        }
    }

    fn seconds(self) -> i64 {
        i64::from(self.minutes) * 60
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "a time of the day is written as 03:00, in UTC";
        let is_plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
        let (hour, minute) = text.split_once(':').filter(|_| is_plain).ok_or(WANTED)?;
        let number = |part: &str| part.parse::<u16>().map_err(|_| WANTED);
        Self::new(number(hour)?, number(minute)?).ok_or(WANTED)
    }
}

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What has come since the last conclusive run.
    Incremental,
    /// Everything.
    Full,
}

/// When it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The time at which a night's run is due.
    pub at: TimeOfDay,
    /// On which day everything is looked at.
    pub full: Weekday,
}

/// What has run so far. A night has the name of the UTC day on which it was due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History<'a> {
    /// The night of the last run.
    pub last: Option<Day>,
    /// That of the last full run that came to a verdict.
    pub last_full: Option<Day>,
    /// Nights that had a run, of those that may come in question.
    pub nights: &'a [Day],
}

/// A run that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Of which night.
    pub night: Day,
    /// How much is looked at.
    pub extent: Extent,
}

impl Schedule {
    /// The last night that was due at `now_s` (Unix seconds).
    #[must_use]
    pub fn night(&self, now_s: i64) -> Day {
        Day::of_unix(now_s.saturating_sub(self.at.seconds()))
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_s(&self, now_s: i64) -> i64 {
        self.night(now_s).begins() + SECONDS + self.at.seconds()
    }

    /// What is to be run now, if anything. Of nights that were missed only the last is caught up: it looks at what has come
    /// in all of them.
    #[must_use]
    pub fn due(&self, now_s: i64, history: &History<'_>) -> Option<Due> {
        let night = self.night(now_s);
        let has_run = match history.last {
            None => false,
            // The clock was set back since, or was ahead then: this night may have had its run before that.
            Some(last) if last > night => history.nights.contains(&night),
            Some(last) => last == night,
        };
        (!has_run).then(|| Due {
            night,
            extent: self.extent(night, history.last_full),
        })
    }

    /// Everything, if the day for that has come since everything was looked at last.
    fn extent(&self, night: Day, last_full: Option<Day>) -> Extent {
        let since = |last: Day| i64::from(night.0) - i64::from(last.0);
        let is_full = match last_full {
            None => true,
            // It ran by a clock that was ahead.
            Some(last) if last > night => Weekday::of(night) == self.full,
            Some(last) if since(last) >= 7 => true,
            Some(last) => (1..=since(last)).any(|after| {
                let after = i32::try_from(after).unwrap_or_default();
                Weekday::of(Day(last.0.saturating_add(after))) == self.full
            }),
        };
        if is_full {
            Extent::Full
        } else {
            Extent::Incremental
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const AT_THREE: Schedule = Schedule {
        at: TimeOfDay { minutes: 180 },
        full: Weekday::Sunday,
    };

    fn day(text: &str) -> Day {
        text.parse().unwrap()
    }

    fn at(text: &str, hour: i64, minute: i64, second: i64) -> i64 {
        day(text).begins() + hour * 3_600 + minute * 60 + second
    }

    fn after(last: &str) -> History<'static> {
        History {
            last: Some(day(last)),
            last_full: Some(day(last)),
            nights: &[],
        }
    }

    #[test]
    fn days_of_the_week_are_those_of_the_calendar() {
        assert_eq!(Weekday::of(Day(0)), Weekday::Thursday);
        assert_eq!(Weekday::of(day("2024-02-29")), Weekday::Thursday);
        assert_eq!(Weekday::of(day("2026-11-29")), Weekday::Sunday);
        assert_eq!(Weekday::of(Day(-1)), Weekday::Wednesday);
        assert_eq!("Sunday".parse(), Ok(Weekday::Sunday));
        assert!("sun".parse::<Weekday>().is_err());
    }

    #[test]
    fn a_time_is_two_numbers_with_two_digits() {
        assert_eq!("03:00".parse::<TimeOfDay>().unwrap().to_string(), "03:00");
        for wrong in ["3:00", "24:00", "03:60", "03.00", "+3:00", "03:00Z", ""] {
            assert!(wrong.parse::<TimeOfDay>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_night_is_due_at_its_time_and_once() {
        let before = at("2026-04-03", 2, 59, 59);
        assert_eq!(AT_THREE.night(before), day("2026-04-02"));
        assert_eq!(AT_THREE.due(before, &after("2026-04-02")), None);
        let due = AT_THREE.due(before + 1, &after("2026-04-02")).unwrap();
        assert_eq!(due.night, day("2026-04-03"));
        assert_eq!(AT_THREE.due(before + 1, &after("2026-04-03")), None);
        assert_eq!(AT_THREE.next_s(before), before + 1);
        assert_eq!(AT_THREE.next_s(before + 1), before + 1 + SECONDS);
    }

    #[test]
    fn one_that_began_late_is_caught_up() {
        let evening = at("2026-04-03", 23, 0, 0);
        let due = AT_THREE.due(evening, &after("2026-04-01")).unwrap();
        assert_eq!(due.night, day("2026-04-03"));
        let next = at("2026-04-04", 1, 0, 0);
        assert_eq!(
            AT_THREE.due(next, &after("2026-04-02")).unwrap().night,
            day("2026-04-03")
        );
    }

    #[test]
    fn midnight_and_a_leap_day_are_as_other_times() {
        let midnight = Schedule {
            at: "00:00".parse().unwrap(),
            ..AT_THREE
        };
        let leap = day("2024-02-29").begins();
        assert_eq!(midnight.night(leap - 1), day("2024-02-28"));
        assert_eq!(midnight.night(leap), day("2024-02-29"));
        assert_eq!(midnight.due(leap, &after("2024-02-29")), None);
        assert_eq!(
            midnight.due(leap + SECONDS, &after("2024-02-29")).unwrap().night,
            day("2024-03-01")
        );
        let late = Schedule {
            at: "23:59".parse().unwrap(),
            ..AT_THREE
        };
        assert_eq!(late.night(leap + SECONDS - 60), day("2024-02-29"));
    }

    #[test]
    fn everything_is_looked_at_when_the_day_for_it_has_come_or_was_missed() {
        let sunday = day("2026-04-05");
        let history = |last_full: i32| History {
            last: Some(Day(sunday.0 - 1)),
            last_full: Some(Day(last_full)),
            nights: &[],
        };
        let extent = |after: i32, last_full: i32| {
            let now = Day(sunday.0 + after).begins() + 4 * 3_600;
            AT_THREE.due(now, &history(last_full)).unwrap().extent
        };
        assert_eq!(extent(0, sunday.0 - 7), Extent::Full);
        assert_eq!(extent(1, sunday.0), Extent::Incremental);
        assert_eq!(extent(1, sunday.0 - 7), Extent::Full, "Sunday came to nothing");
        let first = AT_THREE.due(sunday.begins() + SECONDS, &History::default());
        assert_eq!(first.unwrap().extent, Extent::Full, "there was none before");
    }

    #[test]
    fn a_clock_that_is_set_back_over_the_time_gives_no_second_run() {
        let night = day("2026-04-03");
        let nights = [Day(night.0 - 1), night];
        let history = History {
            last: Some(night),
            last_full: Some(night),
            nights: &nights,
        };
        let back = night.begins() + 3 * 3_600 - 10;
        assert_eq!(AT_THREE.due(back, &history), None);
        assert_eq!(AT_THREE.due(back + 10, &history), None);
    }

    /// A clock that jumps days ahead, and back again: each of these nights has its run when it comes.
    #[test]
    fn nights_that_a_wrong_clock_has_passed_over_have_their_runs() {
        let mut ran: Vec<Day> = Vec::new();
        let mut look = |now: i64| {
            let nights = ran.clone();
            let history = History {
                last: ran.last().copied(),
                last_full: None,
                nights: &nights,
            };
            ran.extend(AT_THREE.due(now, &history).map(|due| due.night));
        };
        let start = at("2026-04-03", 4, 0, 0);
        look(start);
        look(start + 10 * SECONDS);
        for after in 0..=10 {
            look(start + after * SECONDS);
        }
        let nights: Vec<i32> = ran.iter().map(|night| night.0 - ran[0].0).collect();
        assert_eq!(nights, [0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    proptest! {
        /// Somebody looks at any times, the clock never goes back: each night at most once, and the last that is due always.
        #[test]
        fn no_night_has_two_runs_and_the_last_one_always_has_its_own(
            minutes in 0..1_440_u16, start in 0..4_000_000_000_i64, steps in prop::collection::vec(0..200_000_i64, 1..60)
        ) {
            let schedule = Schedule { at: TimeOfDay { minutes }, full: Weekday::Sunday };
            let (mut now, mut ran) = (start, BTreeMap::new());
            let (mut last, mut last_full) = (None, None);
            for step in steps {
                now += step;
                if let Some(due) = schedule.due(now, &History { last, last_full, nights: &[] }) {
                    *ran.entry(due.night).or_insert(0) += 1;
                    last = Some(due.night);
                    if due.extent == Extent::Full {
                        last_full = last;
                    }
                }
                prop_assert!(ran.contains_key(&schedule.night(now)));
                let full = last_full.expect("the first is full");
                prop_assert!(schedule.night(now).0 - full.0 < 7, "a week without a full one");
            }
            prop_assert!(ran.values().all(|count| *count == 1));
        }
    }
}
