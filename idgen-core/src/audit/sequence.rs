//! The numbers of one stream of events, as they come from a log that may repeat itself: what is new, what is a copy, what is
//! missing, and what was written anew.
//!
//! A producer that is begun anew sends again what was not acknowledged, so copies are normal. What a sequence number was given
//! for is one thing for ever: a second event with the same number and another content is a history that was changed.

use super::{Ranges, Span};

/// What one event is to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The next one.
    New,
    /// It was missing, and no longer is.
    Late,
    /// It was there already.
    Copy,
    /// Those before it are missing.
    Ahead {
        /// Their numbers.
        missing: Span,
    },
    /// No event has such a number: they begin at 1.
    Malformed,
}

impl Seen {
    /// Is its content news?
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::New | Self::Late | Self::Ahead { .. })
    }
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    last: i64,
    missing: Ranges,
}

impl Sequence {
    /// One of which everything up to `last` is known. 0: from its first event on.
    #[must_use]
    pub const fn after(last: i64) -> Self {
        Self {
            last,
            missing: Ranges::new(),
        }
    }

    /// One that was known up to `last` but for some; `None`: that cannot be.
    #[must_use]
    pub fn with(last: i64, missing: Ranges) -> Option<Self> {
        let fits = missing
            .hull()
            .is_none_or(|hull| hull.lo() >= 1 && hull.hi() < last);
        (fits && last >= 0).then_some(Self { last, missing })
    }

    /// The next event of the log.
    pub fn see(&mut self, number: i64) -> Seen {
        if number < 1 {
            return Seen::Malformed;
        }
        if number <= self.last {
            let was_missing = self.missing.remove(Span::of(number)) > 0;
            return if was_missing { Seen::Late } else { Seen::Copy };
        }
        let missing = Span::new(self.last + 1, number - 1);
        self.last = number;
        match missing {
            None => Seen::New,
            Some(missing) => {
                self.missing.insert(missing);
                Seen::Ahead { missing }
            }
        }
    }

    /// Were all of these seen?
    #[must_use]
    pub fn has_all(&self, numbers: Span) -> bool {
        numbers.lo() >= 1 && numbers.hi() <= self.last && self.missing.has_none_of(numbers)
    }

    /// The highest number so far.
    #[must_use]
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// What is missing below it.
    #[must_use]
    pub const fn missing(&self) -> &Ranges {
        &self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn new_copy_ahead_and_late_are_told_apart() {
        let mut stream = Sequence::after(0);
        assert_eq!(stream.see(1), Seen::New);
        assert_eq!(stream.see(1), Seen::Copy);
        let missing = Span::new(2, 4).unwrap();
        assert_eq!(stream.see(5), Seen::Ahead { missing });
        assert_eq!((stream.see(3), stream.see(3)), (Seen::Late, Seen::Copy));
        for (lo, hi, has_all) in [
            (3, 3, true),
            (3, 4, false),
            (1, 5, false),
            (5, 6, false),
            (0, 1, false),
        ] {
            assert_eq!(
                stream.has_all(Span::new(lo, hi).unwrap()),
                has_all,
                "{lo} to {hi}"
            );
        }
        assert_eq!(stream.missing().len(), 2);
        assert_eq!(
            (stream.see(0), stream.see(-4)),
            (Seen::Malformed, Seen::Malformed)
        );
        assert_eq!((stream.see(6), stream.last()), (Seen::New, 6));
    }

    #[test]
    fn what_is_missing_lies_below_the_last() {
        let missing = |lo, hi| {
            let mut ranges = Ranges::new();
            ranges.insert(Span::new(lo, hi).unwrap());
            ranges
        };
        let mut stream = Sequence::with(7, missing(2, 3)).unwrap();
        assert_eq!(
            (stream.see(3), stream.see(4), stream.see(8)),
            (Seen::Late, Seen::Copy, Seen::New)
        );
        for (last, missing) in [
            (7, missing(7, 7)),
            (7, missing(0, 1)),
            (7, missing(3, 9)),
            (-1, Ranges::new()),
        ] {
            assert_eq!(Sequence::with(last, missing.clone()), None, "{last} {missing:?}");
        }
    }

    #[test]
    fn a_stream_may_be_known_up_to_somewhere() {
        let mut stream = Sequence::after(7);
        assert_eq!((stream.see(7), stream.see(8)), (Seen::Copy, Seen::New));
        assert_eq!(Sequence::after(i64::MAX).see(i64::MAX), Seen::Copy);
    }

    proptest! {
        #[test]
        fn each_number_is_first_once_and_what_is_missing_is_what_was_never_seen(
            numbers in prop::collection::vec(1..30_i64, 1..100)
        ) {
            let (mut stream, mut seen) = (Sequence::after(0), BTreeSet::new());
            for number in numbers {
                let is_first = stream.see(number).is_first();
                prop_assert_eq!(is_first, seen.insert(number));
                let last = *seen.last().unwrap();
                prop_assert_eq!(stream.last(), last);
                for one in 1..=last {
                    prop_assert_eq!(stream.missing().contains(one), !seen.contains(&one));
                    let all = Span::new(one, last).unwrap();
                    prop_assert_eq!(stream.has_all(all), (one..=last).all(|number| seen.contains(&number)));
                }
            }
        }
    }
}
