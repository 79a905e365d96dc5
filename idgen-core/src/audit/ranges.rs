//! Which ids were granted: a set of spans that tells what it has already.
//!
//! Spans that touch are one, so a tag whose ranges follow one another takes a single entry however many they are.

use super::Span;
use std::collections::BTreeMap;

/// A set of ids as spans that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// First id to last.
    spans: BTreeMap<i64, i64>,
}

impl Ranges {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spans: BTreeMap::new(),
        }
    }

    /// Adds the ids of a span. Returns what of it was there already, in order; nothing where all is well.
    ///
    /// O(log n), and O(1) more for each span that it is merged with, which is then gone: so O(log n) over all.
    pub fn insert(&mut self, span: Span) -> Vec<Span> {
        let mut there = Vec::new();
        let (mut lo, mut hi) = (span.lo(), span.hi());
        if let Some((&before, &end)) = self.spans.range(..=lo).next_back()
            && end >= lo.saturating_sub(1)
        {
            there.extend(Span::new(before, end).and_then(|known| known.common(span)));
            (lo, hi) = (before, hi.max(end));
        }
        while let Some((&next, &end)) = self.after(lo).filter(|(next, _)| **next <= hi.saturating_add(1)) {
            there.extend(Span::new(next, end).and_then(|known| known.common(span)));
            hi = hi.max(end);
            self.spans.remove(&next);
        }
        self.spans.insert(lo, hi);
        there
    }

    /// The first span that begins above `lo`.
    fn after(&self, lo: i64) -> Option<(&i64, &i64)> {
        let above = lo.checked_add(1)?;
        self.spans.range(above..).next()
    }

    /// Takes the ids of a span out. Returns how many of them were there.
    pub fn remove(&mut self, span: Span) -> u64 {
        let mut gone = 0_u64;
        while let Some(known) = self.first_common(span) {
            let Some(common) = known.common(span) else { break };
            self.spans.remove(&known.lo());
            let below = common
                .lo()
                .checked_sub(1)
                .and_then(|hi| Span::new(known.lo(), hi));
            let above = common
                .hi()
                .checked_add(1)
                .and_then(|lo| Span::new(lo, known.hi()));
            for rest in [below, above].into_iter().flatten() {
                self.spans.insert(rest.lo(), rest.hi());
            }
            gone = gone.saturating_add(common.ids());
        }
        gone
    }

    fn first_common(&self, span: Span) -> Option<Span> {
        let before = self.spans.range(..=span.lo()).next_back();
        let after = self.spans.range(span.lo()..=span.hi()).next();
        before
            .into_iter()
            .chain(after)
            .filter_map(|(&lo, &hi)| Span::new(lo, hi))
            .find(|known| known.common(span).is_some())
    }

    /// Is the id in it?
    #[must_use]
    pub fn contains(&self, id: i64) -> bool {
        self.first_common(Span::of(id)).is_some()
    }

    /// Are all ids of the span in it?
    #[must_use]
    pub fn covers(&self, span: Span) -> bool {
        let before = self.spans.range(..=span.lo()).next_back();
        before.is_some_and(|(_, &end)| end >= span.hi())
    }

    /// Is none of the ids of the span in it?
    #[must_use]
    pub fn has_none_of(&self, span: Span) -> bool {
        self.first_common(span).is_none()
    }

    /// Its spans, in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.spans.iter().filter_map(|(&lo, &hi)| Span::new(lo, hi))
    }

    /// How many spans it is.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Has it no id?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// From its first id to its last.
    #[must_use]
    pub fn hull(&self) -> Option<Span> {
        let (&lo, _) = self.spans.first_key_value()?;
        let (_, &hi) = self.spans.last_key_value()?;
        Span::new(lo, hi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rangemap::RangeInclusiveSet;
    use std::collections::BTreeSet;

    fn span(lo: i64, hi: i64) -> Span {
        Span::new(lo, hi).unwrap()
    }

    fn of(spans: &[(i64, i64)]) -> Ranges {
        let mut ranges = Ranges::new();
        for &(lo, hi) in spans {
            assert!(ranges.insert(span(lo, hi)).is_empty());
        }
        ranges
    }

    #[test]
    fn what_touches_is_one() {
        let mut ranges = of(&[(1, 10), (11, 20), (31, 40)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [span(1, 20), span(31, 40)]);
        assert!(ranges.insert(span(21, 30)).is_empty());
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [span(1, 40)]);
        assert_eq!((ranges.len(), ranges.hull()), (1, Some(span(1, 40))));
    }

    #[test]
    fn what_is_there_already_is_told() {
        let mut ranges = of(&[(1, 10), (21, 30), (41, 50)]);
        assert_eq!(
            ranges.insert(span(5, 45)),
            [span(5, 10), span(21, 30), span(41, 45)]
        );
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [span(1, 50)]);
        assert_eq!(ranges.insert(span(7, 8)), [span(7, 8)], "contained");
        assert_eq!(ranges.insert(span(-5, 60)), [span(1, 50)], "containing");
    }

    #[test]
    fn the_ends_of_the_axis_are_ids_as_others() {
        let mut ranges = of(&[(i64::MIN, i64::MIN), (i64::MAX, i64::MAX)]);
        assert!(ranges.contains(i64::MIN) && ranges.contains(i64::MAX) && !ranges.contains(0));
        assert_eq!(
            ranges.insert(span(i64::MIN, i64::MAX)),
            [span(i64::MIN, i64::MIN), span(i64::MAX, i64::MAX)]
        );
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges.remove(span(0, 0)), 1);
        assert_eq!(ranges.len(), 2);
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Insert(Span),
        Remove(Span),
    }

    /// Ids are few, so that everything meets everything; some lie at the ends of the axis.
    fn deed() -> impl Strategy<Value = Deed> {
        let id = prop_oneof![0..60_i64, i64::MAX - 20..=i64::MAX, i64::MIN..=i64::MIN + 20];
        let spans = (id, 0..12_i64).prop_map(|(lo, more)| span(lo, lo.saturating_add(more)));
        prop_oneof![4 => spans.clone().prop_map(Deed::Insert), 1 => spans.prop_map(Deed::Remove)]
    }

    proptest! {
        /// Two oracles that know nothing of each other: a set of single ids, and the crate rangemap.
        #[test]
        fn it_is_the_set_that_rangemap_and_a_plain_set_of_ids_are(deeds in prop::collection::vec(deed(), 1..80)) {
            let (mut ranges, mut ids, mut map) = (Ranges::new(), BTreeSet::new(), RangeInclusiveSet::new());
            for deed in deeds {
                let (Deed::Insert(asked) | Deed::Remove(asked)) = deed;
                match deed {
                    Deed::Insert(one) => {
                        let known: Vec<i64> = (one.lo()..=one.hi()).filter(|id| ids.contains(id)).collect();
                        let told: Vec<i64> = ranges.insert(one).iter().flat_map(|one| one.lo()..=one.hi()).collect();
                        prop_assert_eq!(told, known);
                        ids.extend(one.lo()..=one.hi());
                        map.insert(one.lo()..=one.hi());
                    }
                    Deed::Remove(one) => {
                        let known = (one.lo()..=one.hi()).filter(|id| ids.remove(id)).count() as u64;
                        prop_assert_eq!(ranges.remove(one), known);
                        map.remove(one.lo()..=one.hi());
                    }
                }
                let ours: Vec<_> = ranges.iter().map(|one| one.lo()..=one.hi()).collect();
                let theirs: Vec<_> = map.iter().cloned().collect();
                prop_assert_eq!(ours, theirs);
                prop_assert!(ids.iter().all(|id| ranges.contains(*id)));
                prop_assert_eq!(ranges.covers(asked), (asked.lo()..=asked.hi()).all(|id| ids.contains(&id)));
            }
        }
    }
}
