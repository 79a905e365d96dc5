//! Several masters on one axis: it is cut in stripes of one size, and master i of n owns every n-th of them.
//!
//! ```text
//! ids       1..size     size+1..2 size   2 size+1..3 size   ...
//! stripe    0           1                2                  3 ...
//! master    0 of n=3    1                2                  0 ...
//! ```
//!
//! What one master owns, counted from 1 without gaps, are its *places*. Ranges, buffers and grants are in places, so
//! that a range may run over many stripes; an id is made of a place when it is handed out. With one master the two
//! are the same.
//!
//! # Order
//! Ids of one master rise with its places. Of two masters, the p-th id of one and the q-th of another differ by
//! at most `count * |p - q| + 2 * (count - 1) * size`: see [`Stripes::disorder_max`]. So what they make at the same time
//! lies as far apart as they differ in how much they have made, times their number, and two rounds of stripes.

use super::Range;
use core::fmt;

/// Most masters of one space.
pub const MASTERS_MAX: u32 = 64;

/// Limits of the size of a stripe: a grant of a million ids lies in at most a hundred of them.
pub const SIZE_MIN: u64 = 10_000;
/// ... and far below the end of the axis.
pub const SIZE_MAX: u64 = 1_000_000_000_000;

/// Which ids a master owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    index: u32,
    count: u32,
    size: u64,
}

/// Stripes that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadStripes {
    /// `count` is not 1 to [`MASTERS_MAX`].
    Count(u32),
    /// `index` is not below `count`.
    Index(u32),
    /// `size` is not [`SIZE_MIN`] to [`SIZE_MAX`].
    Size(u64),
}

impl fmt::Display for BadStripes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "there are 1 to {MASTERS_MAX} masters, not {count}"),
            Self::Index(index) => write!(f, "there is no stripe {index}"),
            Self::Size(size) => write!(f, "a stripe has {SIZE_MIN} to {SIZE_MAX} ids, not {size}"),
        }
    }
}

impl core::error::Error for BadStripes {}

impl Stripes {
    /// One master: every place is the id of that number.
    pub const SINGLE: Self = Self {
        index: 0,
        count: 1,
        size: SIZE_MAX,
    };

    /// Master `index` (from 0) of `count`, with stripes of `size` ids.
    ///
    /// # Errors
    /// [`BadStripes`].
    pub const fn new(index: u32, count: u32, size: u64) -> Result<Self, BadStripes> {
        if count == 0 || count > MASTERS_MAX {
            return Err(BadStripes::Count(count));
        }
        if index >= count {
            return Err(BadStripes::Index(index));
        }
        if size < SIZE_MIN || size > SIZE_MAX {
            return Err(BadStripes::Size(size));
        }
        Ok(Self { index, count, size })
    }

    /// Number of this master.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Ids per stripe.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.size
    }

    /// Number of masters.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Every id is this master's.
    #[inline]
    #[must_use]
    pub const fn is_single(self) -> bool {
        self.count == 1
    }

    /// The id of a place. Places come from [`Self::places_to`], so that their ids are values of the type; a larger one
    /// gives the largest id.
    #[inline(always)]
    #[must_use]
    pub fn id(self, place: i64) -> i64 {
        if self.is_single() {
            place
        } else {
            self.id_in_stripes(place)
        }
    }

    #[inline(never)]
    fn id_in_stripes(self, place: i64) -> i64 {
        if place < 1 {
            return place;
        }
        let (size, count) = (i128::from(self.size), i128::from(self.count));
        let nth = i128::from(place) - 1;
        let stripe = nth / size * count + i128::from(self.index);
        i64::try_from(stripe * size + nth % size + 1).unwrap_or(i64::MAX)
    }

    /// How many places have an id up to `id`: the place of the highest own id that is not above it; 0: there is none.
    #[must_use]
    pub fn places_to(self, id: i64) -> i64 {
        if self.is_single() || id < 1 {
            return id.max(0);
        }
        let (size, count) = (i128::from(self.size), i128::from(self.count));
        let nth = i128::from(id) - 1;
        let (stripe, within) = (nth / size, nth % size + 1);
        let whole = (stripe - i128::from(self.index)).div_euclid(count);
        let places = if stripe.rem_euclid(count) == i128::from(self.index) {
            whole * size + within
        } else {
            (whole + 1) * size
        };
        i64::try_from(places.max(0)).unwrap_or(i64::MAX)
    }

    /// The ids of a range of places, one range for each run of them.
    pub fn runs(self, places: Range) -> impl Iterator<Item = Range> {
        let (size, last) = (self.size, places.last());
        let mut next = Some(places.first);
        core::iter::from_fn(move || {
            let first = next.filter(|first| *first <= last)?;
            let end = if self.is_single() {
                last
            } else {
                // The last place of the stripe that `first` is in.
                let within = (first - 1).unsigned_abs() % size;
                last.min(first.saturating_add_unsigned(size - 1 - within))
            };
            next = end.checked_add(1);
            Some(Range {
                first: self.id(first),
                count: end.abs_diff(first) + 1,
            })
        })
    }

    /// By how much the id of place `p` of one master and that of place `q` of another can differ at the most.
    #[must_use]
    pub fn disorder_max(self, p: i64, q: i64) -> u64 {
        let count = u128::from(self.count);
        let apart = count * u128::from(p.abs_diff(q)) + 2 * (count - 1) * u128::from(self.size);
        u64::try_from(apart).unwrap_or(u64::MAX)
    }
}

/// A range of places, and whose they are: ids of one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places {
    /// The places.
    pub range: Range,
    /// The master.
    pub stripes: Stripes,
}

impl Places {
    /// Their ids.
    pub fn runs(self) -> impl Iterator<Item = Range> {
        self.stripes.runs(self.range)
    }

    /// The lowest id.
    #[must_use]
    pub fn first_id(self) -> i64 {
        self.stripes.id(self.range.first)
    }

    /// The highest id.
    #[must_use]
    pub fn last_id(self) -> i64 {
        self.stripes.id(self.range.last())
    }

    /// Takes the lowest id out.
    pub fn pop(&mut self) -> Option<i64> {
        let Range { first, count } = self.range;
        let left = count.checked_sub(1)?;
        self.range = Range {
            first: first.wrapping_add(1),
            count: left,
        };
        Some(self.stripes.id(first))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = SIZE_MIN;

    fn of(index: u32, count: u32) -> Stripes {
        Stripes::new(index, count, SIZE).unwrap()
    }

    #[test]
    fn two_masters_take_turns() {
        let (even, odd) = (of(0, 2), of(1, 2));
        assert_eq!(
            (even.id(1), even.id(10_000), even.id(10_001)),
            (1, 10_000, 20_001)
        );
        assert_eq!(
            (odd.id(1), odd.id(10_000), odd.id(10_001)),
            (10_001, 20_000, 30_001)
        );
        assert_eq!(even.places_to(15_000), 10_000, "of the other's stripe nothing");
        assert_eq!((odd.places_to(10_000), odd.places_to(10_001)), (0, 1));
        assert_eq!((odd.places_to(20_000), odd.places_to(30_000)), (10_000, 10_000));
    }

    #[test]
    fn one_master_has_every_id() {
        for id in [1, 2, SIZE_MAX.cast_signed() + 1, i64::MAX] {
            assert_eq!((Stripes::SINGLE.id(id), Stripes::SINGLE.places_to(id)), (id, id));
        }
        let all = Range {
            first: 5,
            count: 9_000_000,
        };
        assert_eq!(Stripes::SINGLE.runs(all).collect::<Vec<_>>(), [all]);
        let end = Range {
            first: i64::MAX,
            count: 1,
        };
        assert_eq!(Stripes::SINGLE.runs(end).collect::<Vec<_>>(), [end]);
    }

    #[test]
    fn a_large_grant_takes_more_stripes() {
        let runs: Vec<_> = of(1, 3)
            .runs(Range {
                first: 9_001,
                count: 21_500,
            })
            .collect();
        let run = |first, count| Range { first, count };
        assert_eq!(
            runs,
            [
                run(19_001, 1_000),
                run(40_001, 10_000),
                run(70_001, 10_000),
                run(100_001, 500)
            ]
        );
    }

    #[test]
    fn places_are_taken_out_in_order() {
        let mut places = Places {
            range: Range {
                first: 9_999,
                count: 3,
            },
            stripes: of(1, 2),
        };
        assert_eq!((places.first_id(), places.last_id()), (19_999, 30_001));
        assert_eq!(places.runs().count(), 2);
        let taken: Vec<i64> = std::iter::from_fn(|| places.pop()).collect();
        assert_eq!(taken, [19_999, 20_000, 30_001]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Stripes::new(0, 0, SIZE), Err(BadStripes::Count(0)));
        assert_eq!(Stripes::new(0, 65, SIZE), Err(BadStripes::Count(65)));
        assert_eq!(Stripes::new(3, 3, SIZE), Err(BadStripes::Index(3)));
        assert_eq!(
            Stripes::new(0, 3, SIZE_MIN - 1),
            Err(BadStripes::Size(SIZE_MIN - 1))
        );
        assert_eq!(
            Stripes::new(0, 3, SIZE_MAX + 1),
            Err(BadStripes::Size(SIZE_MAX + 1))
        );
        assert!(Stripes::new(63, 64, SIZE_MAX).is_ok());
    }

    #[test]
    fn at_the_end_of_the_axis_nothing_wraps() {
        let places = of(0, 2).places_to(i64::MAX);
        assert!(of(0, 2).id(places) > 0);
        assert_eq!(of(0, 2).id(i64::MAX), i64::MAX, "no such place");
    }

    fn stripes() -> impl Strategy<Value = Stripes> {
        (1..=MASTERS_MAX, SIZE_MIN..100_000_u64, any::<u32>())
            .prop_map(|(count, size, index)| Stripes::new(index % count, count, size).unwrap())
    }

    proptest! {
        /// Every id belongs to exactly one master, and places are dense.
        #[test]
        fn every_id_is_one_masters(count in 1..=MASTERS_MAX, size in SIZE_MIN..100_000_u64, id in 1..1_000_000_000_000_i64) {
            let owners: Vec<_> = (0..count)
                .map(|index| Stripes::new(index, count, size).unwrap())
                .filter(|stripes| stripes.id(stripes.places_to(id)) == id && stripes.places_to(id) > 0)
                .collect();
            prop_assert_eq!(owners.len(), 1);
            let places: i64 = (0..count).map(|index| Stripes::new(index, count, size).unwrap().places_to(id)).sum();
            prop_assert_eq!(places, id, "together they have every id up to it");
        }

        #[test]
        fn place_and_id_go_back_and_forth(stripes in stripes(), place in 1..100_000_000_000_i64) {
            let id = stripes.id(place);
            prop_assert_eq!(stripes.places_to(id), place);
            prop_assert!(stripes.id(place + 1) > id, "ids rise with places");
            prop_assert_eq!(stripes.places_to(stripes.id(place + 1) - 1), place, "between two own ids there is none");
        }

        #[test]
        fn runs_are_the_ids_of_the_places(stripes in stripes(), first in 1..10_000_000_i64, count in 1..1_000_000_u64) {
            let runs: Vec<Range> = stripes.runs(Range { first, count }).collect();
            prop_assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), count);
            prop_assert_eq!(runs[0].first, stripes.id(first));
            prop_assert_eq!(runs[runs.len() - 1].last(), stripes.id(first + count.cast_signed() - 1));
            prop_assert!(runs.windows(2).all(|pair| pair[0].last() < pair[1].first));
            prop_assert!(runs.len() <= 102);
        }

        #[test]
        fn two_masters_are_no_further_apart_than_is_stated(
            count in 2..=MASTERS_MAX, size in SIZE_MIN..100_000_u64, i: u32, j: u32,
            p in 1..100_000_000_i64, q in 1..100_000_000_i64,
        ) {
            let (a, b) = (Stripes::new(i % count, count, size).unwrap(), Stripes::new(j % count, count, size).unwrap());
            prop_assert!(a.id(p).abs_diff(b.id(q)) <= a.disorder_max(p, q));
        }
    }
}
