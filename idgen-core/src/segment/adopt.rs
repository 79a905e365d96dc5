//! Where a tag begins that takes the place of a sequence, and where the sequence goes on when it takes its place
//! back: never at or below what either has given out, nor what the columns hold.

use core::fmt;

/// What an integer type of SQL holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// `smallint`
    Small,
    /// `integer`
    Integer,
    /// `bigint`
    Big,
}

impl Width {
    /// The highest value of the type; the default `MAXVALUE` of a sequence of it.
    #[must_use]
    pub const fn max(self) -> i64 {
        match self {
            Self::Small => i16::MAX as i64,
            Self::Integer => i32::MAX as i64,
            Self::Big => i64::MAX,
        }
    }
}

/// A sequence as its definition and its one row say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// Its own type, which may be narrower than a column's.
    pub width: Width,
    /// `MAXVALUE`
    pub max: i64,
    /// `INCREMENT`
    pub increment: i64,
    /// `CYCLE`
    pub cycles: bool,
    /// With a `CACHE` the last value of the latest cache that a session took: none has a higher one.
    pub last_value: i64,
    /// `false`: `last_value` is the next value.
    pub is_called: bool,
}

impl Sequence {
    /// The highest value that it has given out or may have, if it counts up by one.
    const fn highest(&self) -> i64 {
        if self.is_called {
            self.last_value
        } else {
            self.last_value.saturating_sub(1)
        }
    }

    /// `MAXVALUE`, if it is not the one that every sequence of the type has.
    fn own_max(&self) -> Option<i64> {
        (self.max != self.width.max()).then_some(self.max)
    }
}

/// A column whose default draws from the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// Its type.
    pub width: Width,
    /// The highest value in it; `None`: it is empty.
    pub highest: Option<i64>,
}

/// Where the sequence stands still, at its `MAXVALUE`. Below every id, so that whoever restarts it all the same (as
/// `TRUNCATE ... RESTART IDENTITY` does) gets no number that was given out, and then the error.
pub const STANDS_AT: i64 = 0;

/// Bounds of the tag that takes the place of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adoption {
    /// Nothing at or below has to be expected of the tag; at least 0.
    pub floor: i64,
    /// Highest id of the tag; above `floor`.
    pub limit_id: i64,
}

/// Why a tag cannot take the place of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// It does not count up by one. A tag would fill the gaps, which others may have filled in their way.
    Increment(i64),
    /// It begins anew after its end.
    Cycles,
    /// Its next value is below 1, where a tag begins.
    BelowOne {
        /// What it would give out next.
        next: i64,
    },
    /// All values up to the limit are behind the sequence or the columns.
    NoneLeft {
        /// The highest value that was given out or is in a column.
        floor: i64,
        /// The highest value that all columns can hold, and the sequence may give.
        limit_id: i64,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Increment(increment) => write!(f, "it counts by {increment}, a tag counts up by 1"),
            Self::Cycles => write!(f, "it cycles, and a tag never gives a number twice"),
            Self::BelowOne { next } => write!(f, "its next value is {next}, and a tag begins at 1 or above"),
            Self::NoneLeft { floor, limit_id } => write!(
                f,
                "sequence and columns have come to {floor}, and the highest number that fits is {limit_id}"
            ),
        }
    }
}

/// The tag's bounds: above what the sequence has given out and what the columns hold, and up to what
/// all of the columns can hold, or to the `MAXVALUE` that somebody has chosen.
///
/// # Errors
/// A sequence that a tag cannot stand for.
pub fn adoption(sequence: &Sequence, columns: &[Column]) -> Result<Adoption, Unfit> {
    if sequence.increment != 1 {
        return Err(Unfit::Increment(sequence.increment));
    }
    if sequence.cycles {
        return Err(Unfit::Cycles);
    }
    let drawn = sequence.highest();
    if drawn < 0 {
        return Err(Unfit::BelowOne {
            next: drawn.saturating_add(1),
        });
    }
    let floor = columns
        .iter()
        .filter_map(|column| column.highest)
        .fold(drawn, i64::max);
    let limit_id = columns
        .iter()
        .map(|column| column.width.max())
        .chain(sequence.own_max())
        .fold(i64::MAX, i64::min);
    if floor >= limit_id {
        return Err(Unfit::NoneLeft { floor, limit_id });
    }
    Ok(Adoption { floor, limit_id })
}

/// Type of a sequence that goes on above `floor`, where nobody has chosen its maximum: a wider one if its own does not
/// hold the next number and all columns do (`columns`: the narrowest of them). Else it would stand below
/// numbers that were given out, and whoever adopts it once more would begin there.
#[must_use]
pub fn widened(width: Width, columns: Width, floor: i64) -> Width {
    let mut wider = width;
    for next in [Width::Small, Width::Integer, Width::Big] {
        if floor >= wider.max() && wider.max() < next.max() && next.max() <= columns.max() {
            wider = next;
        }
    }
    wider
}

/// Last value and `is_called` of a sequence that goes on above `floor`. At its `max` it is used up, as
/// the tag was.
#[must_use]
pub const fn goes_on(floor: i64, min: i64, max: i64) -> (i64, bool) {
    if floor >= max {
        (max, true)
    } else if floor < min {
        (min, false)
    } else {
        (floor + 1, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BIGSERIAL: Sequence = Sequence {
        width: Width::Big,
        max: i64::MAX,
        increment: 1,
        cycles: false,
        last_value: 1,
        is_called: false,
    };

    fn column(width: Width, highest: Option<i64>) -> Column {
        Column { width, highest }
    }

    #[test]
    fn a_sequence_that_was_never_used_begins_where_it_would_have() {
        let fresh = adoption(&BIGSERIAL, &[column(Width::Big, None)]).unwrap();
        assert_eq!((fresh.floor, fresh.limit_id), (0, i64::MAX));
        let later = Sequence {
            last_value: 1_000,
            ..BIGSERIAL
        };
        assert_eq!(adoption(&later, &[]).unwrap().floor, 999);
    }

    #[test]
    fn the_highest_of_sequence_and_columns_counts() {
        let used = Sequence {
            last_value: 50,
            is_called: true,
            ..BIGSERIAL
        };
        for (highest, floor) in [(None, 50), (Some(-7), 50), (Some(49), 50), (Some(51), 51)] {
            let columns = [column(Width::Big, Some(3)), column(Width::Big, highest)];
            assert_eq!(adoption(&used, &columns).unwrap().floor, floor);
        }
    }

    #[test]
    fn the_narrowest_column_and_a_chosen_maximum_limit_the_tag() {
        let columns = [column(Width::Big, None), column(Width::Small, None)];
        assert_eq!(adoption(&BIGSERIAL, &columns).unwrap().limit_id, 32_767);
        let chosen = Sequence {
            max: 500,
            ..BIGSERIAL
        };
        assert_eq!(adoption(&chosen, &columns).unwrap().limit_id, 500);
        // A column that was widened, and its sequence was not: nobody has chosen that maximum.
        let narrow = Sequence {
            width: Width::Integer,
            max: i64::from(i32::MAX),
            ..BIGSERIAL
        };
        let wide = adoption(&narrow, &[column(Width::Big, Some(5_000_000_000))]).unwrap();
        assert_eq!((wide.floor, wide.limit_id), (5_000_000_000, i64::MAX));
    }

    #[test]
    fn what_a_tag_cannot_stand_for_is_refused() {
        let cases = [
            (
                Sequence {
                    increment: -1,
                    ..BIGSERIAL
                },
                Unfit::Increment(-1),
            ),
            (
                Sequence {
                    increment: 50,
                    ..BIGSERIAL
                },
                Unfit::Increment(50),
            ),
            (
                Sequence {
                    cycles: true,
                    ..BIGSERIAL
                },
                Unfit::Cycles,
            ),
            (
                Sequence {
                    last_value: 0,
                    ..BIGSERIAL
                },
                Unfit::BelowOne { next: 0 },
            ),
            (
                Sequence {
                    last_value: i64::MIN,
                    ..BIGSERIAL
                },
                Unfit::BelowOne { next: i64::MIN + 1 },
            ),
            (
                Sequence {
                    last_value: i64::MAX,
                    is_called: true,
                    ..BIGSERIAL
                },
                Unfit::NoneLeft {
                    floor: i64::MAX,
                    limit_id: i64::MAX,
                },
            ),
        ];
        for (sequence, unfit) in cases {
            assert_eq!(adoption(&sequence, &[]), Err(unfit), "{sequence:?}");
        }
        assert_eq!(
            adoption(&BIGSERIAL, &[column(Width::Small, Some(32_767))]),
            Err(Unfit::NoneLeft {
                floor: 32_767,
                limit_id: 32_767
            })
        );
    }

    #[test]
    fn a_sequence_goes_on_above_the_floor_or_not_at_all() {
        assert_eq!(goes_on(41, 1, 100), (42, false));
        assert_eq!(goes_on(0, 1, 100), (1, false));
        assert_eq!(goes_on(3, 10, 100), (10, false));
        assert_eq!(goes_on(99, 1, 100), (100, false));
        assert_eq!(goes_on(100, 1, 100), (100, true));
        assert_eq!(goes_on(i64::MAX, 1, i64::MAX), (i64::MAX, true));
    }

    #[test]
    fn a_sequence_whose_type_was_left_behind_is_widened_as_far_as_the_columns_go() {
        use Width::{Big, Integer, Small};
        assert_eq!(widened(Small, Integer, 32_766), Small);
        assert_eq!(widened(Small, Integer, 32_767), Integer);
        assert_eq!(widened(Integer, Big, 5_000_000_000), Big);
        assert_eq!(widened(Small, Small, 32_767), Small, "as used up as the column");
        assert_eq!(widened(Small, Integer, i64::from(i32::MAX)), Integer);
        assert_eq!(widened(Big, Small, 40_000), Big, "never narrower");
    }

    fn width() -> impl Strategy<Value = Width> {
        prop_oneof![Just(Width::Small), Just(Width::Integer), Just(Width::Big)]
    }

    /// Mostly what the small types hold too.
    fn value() -> impl Strategy<Value = i64> {
        prop_oneof![1 => any::<i64>(), 4 => -100..40_000_i64]
    }

    /// One sequence, one column, and a tag that takes its place and gives it back.
    struct Scene {
        sequence: Sequence,
        width: Width,
        column: Vec<i64>,
        /// Bounds of the tag: what it has granted, and its limit.
        tag: Option<(i64, i64)>,
        given_out: Vec<i64>,
    }

    impl Scene {
        fn new(sequence_width: Width, width: Width, max: i64) -> Self {
            Self {
                sequence: Sequence {
                    width: sequence_width,
                    max: max.min(sequence_width.max()),
                    ..BIGSERIAL
                },
                width,
                column: Vec::new(),
                tag: None,
                given_out: Vec::new(),
            }
        }

        fn next_of_sequence(&mut self) -> Option<i64> {
            let last = self.sequence.last_value;
            let next = if self.sequence.is_called { last + 1 } else { last };
            (next <= self.sequence.max).then(|| {
                (self.sequence.last_value, self.sequence.is_called) = (next, true);
                next
            })
        }

        /// A row by its default. An open transaction has the number; it is in the column if it is committed.
        fn draw(&mut self, committed: bool) {
            let next = match &mut self.tag {
                Some((granted, limit_id)) => (*granted < *limit_id).then(|| {
                    *granted += 1;
                    *granted
                }),
                None => self.next_of_sequence(),
            };
            let Some(next) = next.filter(|next| *next <= self.width.max()) else {
                return;
            };
            self.given_out.push(next);
            if committed {
                self.column.push(next);
            }
        }

        fn adopt(&mut self) {
            let column = Column {
                width: self.width,
                highest: self.column.iter().copied().max(),
            };
            if self.tag.is_none()
                && let Ok(adoption) = adoption(&self.sequence, &[column])
            {
                self.tag = Some((adoption.floor, adoption.limit_id));
            }
        }

        /// What was granted ahead and never drawn is behind the sequence too.
        fn release(&mut self, granted_ahead: i64) {
            let Some((granted, limit_id)) = self.tag.take() else {
                return;
            };
            let granted = granted.saturating_add(granted_ahead).min(limit_id);
            let floor = self.column.iter().copied().fold(granted, i64::max);
            if self.sequence.own_max().is_none() {
                self.sequence.width = widened(self.sequence.width, self.width, floor);
                self.sequence.max = self.sequence.width.max();
            }
            (self.sequence.last_value, self.sequence.is_called) = goes_on(floor, 1, self.sequence.max);
        }
    }

    proptest! {
        /// Whatever it looks like: nothing that was given out or is in a column comes again, on the way there and back.
        #[test]
        fn nothing_comes_again(
            sequence_width in width(), own_max in proptest::option::of(1..i64::MAX), last_value in value(),
            is_called: bool, columns in proptest::collection::vec((width(), proptest::option::of(value())), 0..4),
            granted in 0..i64::MAX,
        ) {
            let max = own_max.unwrap_or(sequence_width.max()).min(sequence_width.max());
            let sequence = Sequence {
                width: sequence_width,
                max,
                increment: 1,
                cycles: false,
                last_value: last_value.min(max),
                is_called,
            };
            let columns: Vec<Column> = columns
                .into_iter()
                .map(|(width, highest)| Column {
                    width,
                    highest: highest.map(|highest| highest.clamp(-width.max(), width.max())),
                })
                .collect();
            let Ok(adoption) = adoption(&sequence, &columns) else {
                return Ok(());
            };
            prop_assert!(adoption.floor >= 0 && adoption.floor < adoption.limit_id);
            prop_assert!(!sequence.is_called || adoption.floor >= sequence.last_value);
            prop_assert!(sequence.is_called || adoption.floor >= sequence.last_value - 1);
            for column in &columns {
                prop_assert!(column.highest.is_none_or(|highest| adoption.floor >= highest));
                prop_assert!(adoption.limit_id <= column.width.max());
            }
            prop_assert!(adoption.floor >= STANDS_AT, "an id lies above it");
            let granted = granted.max(adoption.floor);
            let (last, used_up) = goes_on(granted, 1, max);
            prop_assert!(used_up && last == max || !used_up && last > granted && last <= max);
        }

        /// Moved there and back many times, with rows by hand above and below, numbers of open transactions, and widths and
        /// maxima that end soon: no number is given out twice.
        #[test]
        fn moved_there_and_back_many_times_nothing_comes_again(
            sequence_width in width(), column_width in width(), max in prop_oneof![Just(i64::MAX), 1..40_000_i64],
            steps in proptest::collection::vec((0..8_u8, value()), 1..120),
        ) {
            let mut scene = Scene::new(sequence_width, column_width, max);
            for (step, value) in steps {
                match step {
                    0 => scene.adopt(),
                    1 => scene.release(value.rem_euclid(3_000)),
                    // By hand: it is nobody's number, but whoever moves next goes above it.
                    2 => scene.column.push(value.clamp(-column_width.max(), column_width.max())),
                    // A number that was given out and then removed.
                    3 => scene.column.retain(|there| *there != value),
                    _ => scene.draw(step % 2 == 0),
                }
            }
            let mut sorted = scene.given_out.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), scene.given_out.len(), "{:?}", scene.given_out);
        }
    }
}
