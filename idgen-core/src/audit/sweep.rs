//! One pass over ranges in order finds every range that an earlier one overlaps, and with which: constant memory.
//!
//! As in SQL `max(hi) OVER (PARTITION BY space, tag ORDER BY lo, hi ROWS UNBOUNDED PRECEDING..1 PRECEDING)`, with the record
//! that the maximum is of (Snodgrass, Developing Time-Oriented Database Applications in SQL, 1999, on coalescing).

use super::Span;
use core::fmt;

/// One axis at a time, its ranges by their first ids. `R` names a record.
#[derive(Clone, Debug)]
pub struct Sweep<R> {
    /// Where the last range began.
    began: Option<i64>,
    /// Of all ranges so far the one that ends last.
    furthest: Option<(Span, R)>,
}

/// Two ranges that have ids in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap<R> {
    /// That which began first: of all before the other, the one that ends last.
    pub earlier: (Span, R),
    /// That which was met.
    pub later: (Span, R),
    /// Ids that both have.
    pub common: Span,
}

/// The ranges do not come in their order, so a sweep cannot say anything of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Where the range before began.
    pub after: i64,
    /// Where this one begins.
    pub lo: i64,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, lo } = self;
        write!(
            f,
            "a range that begins at {lo} comes after one that begins at {after}"
        )
    }
}

impl core::error::Error for OutOfOrder {}

impl<R: Clone> Sweep<R> {
    /// Before the first range of an axis.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            began: None,
            furthest: None,
        }
    }

    /// The next range. Returns with which one it has ids in common, where it has.
    ///
    /// # Errors
    /// [`OutOfOrder`]: it begins before the last one.
    pub fn push(&mut self, span: Span, record: R) -> Result<Option<Overlap<R>>, OutOfOrder> {
        if let Some(after) = self.began
            && span.lo() < after
        {
            return Err(OutOfOrder { after, lo: span.lo() });
        }
        self.began = Some(span.lo());
        let found = self.furthest.as_ref().and_then(|(furthest, earlier)| {
            let common = furthest.common(span)?;
            Some(Overlap {
                earlier: (*furthest, earlier.clone()),
                later: (span, record.clone()),
                common,
            })
        });
        if self
            .furthest
            .as_ref()
            .is_none_or(|(furthest, _)| furthest.hi() < span.hi())
        {
            self.furthest = Some((span, record));
        }
        Ok(found)
    }
}

impl<R: Clone> Default for Sweep<R> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Ranges;
    use proptest::prelude::*;

    fn span(lo: i64, hi: i64) -> Span {
        Span::new(lo, hi).unwrap()
    }

    fn sweep(spans: &[Span]) -> Vec<Overlap<usize>> {
        let mut sweep = Sweep::new();
        let found = spans.iter().enumerate().map(|(n, span)| sweep.push(*span, n));
        found
            .filter_map(|found| found.expect("they are in order"))
            .collect()
    }

    #[test]
    fn both_are_named_whatever_lies_between_them() {
        let found = sweep(&[
            span(1, 100),
            span(5, 6),
            span(50, 60),
            span(100, 110),
            span(111, 120),
        ]);
        let pairs: Vec<_> = found
            .iter()
            .map(|one| (one.earlier.1, one.later.1, one.common))
            .collect();
        assert_eq!(
            pairs,
            [(0, 1, span(5, 6)), (0, 2, span(50, 60)), (0, 3, span(100, 100))]
        );
    }

    #[test]
    fn ranges_that_touch_have_nothing_in_common() {
        assert_eq!(sweep(&[span(i64::MIN, 0), span(1, i64::MAX)]), []);
    }

    #[test]
    fn what_is_not_in_order_is_refused() {
        let mut sweep = Sweep::new();
        assert_eq!(sweep.push(span(5, 6), 0), Ok(None));
        let refused = OutOfOrder { after: 5, lo: 4 };
        assert_eq!(sweep.push(span(4, 4), 1), Err(refused));
        assert!(refused.to_string().contains("begins at 4"));
    }

    proptest! {
        /// Against every pair of them, and against the index, which works in another way.
        #[test]
        fn it_finds_exactly_the_ranges_that_an_earlier_one_overlaps(
            ranges in prop::collection::vec((0..200_i64, 0..20_i64), 0..40)
        ) {
            let mut spans: Vec<Span> = ranges.iter().map(|&(lo, more)| span(lo, lo + more)).collect();
            spans.sort();
            let found: Vec<usize> = sweep(&spans).iter().map(|one| one.later.1).collect();
            let by_pairs: Vec<usize> = (0..spans.len())
                .filter(|&later| spans[..later].iter().any(|one| one.common(spans[later]).is_some()))
                .collect();
            prop_assert_eq!(&found, &by_pairs);
            let mut index = Ranges::new();
            let by_index: Vec<usize> = (0..spans.len()).filter(|&n| !index.insert(spans[n]).is_empty()).collect();
            prop_assert_eq!(&found, &by_index);
        }
    }
}
