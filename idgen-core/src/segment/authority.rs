//! Who may grant ranges, and how far.
//!
//! With a *leased* authority the lease store keeps one exclusive lease per space (and stripe), and a ceiling per
//! tag, raised by compare-and-swap under that lease before the server may grant up to it. So two holders have
//! disjoint stretches of the axis, whatever is lost by replication lag, rolled back by a snapshot or restored:
//! the next holder begins above the ceiling that it finds. Deadlines decide who stops when, never uniqueness.

use crate::lease::Token;

/// Ranges of a tag that its ceiling lies ahead of what is granted, so that one write to the store serves many
/// grants: a range lasts a quarter of an hour where it can, a store that is away for an hour stops nobody then.
pub const LOOK_AHEAD_RANGES: u64 = 8;

/// The stretch of the axis that one token may grant of one tag: above `floor`, up to `ceiling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stretch {
    /// The ceiling of those before, exclusive; 0: none.
    pub floor: i64,
    /// The highest id that may be granted, inclusive; at or below `floor`: none.
    pub ceiling: i64,
}

impl Stretch {
    /// After one more raise under the same token: the floor stays where that token first found it, the ceiling
    /// never goes down.
    #[must_use]
    pub fn raised(self, ceiling: i64) -> Self {
        Self {
            ceiling: self.ceiling.max(ceiling),
            ..self
        }
    }
}

/// The ceiling that a tag should have, given the ids of one range, what is granted (`max_id`), the stretch it
/// has, and its limit. Equal to the present ceiling while half of the look-ahead is left, so that not every
/// grant asks for one; never below it, never above the limit.
#[must_use]
pub fn wanted_ceiling(max_id: i64, stretch: Stretch, range_ids: u64, limit_id: i64) -> i64 {
    let begin = max_id.max(stretch.floor);
    let range_ids = range_ids.max(1);
    let ahead = |ranges: u64| begin.saturating_add_unsigned(range_ids.saturating_mul(ranges));
    if stretch.ceiling >= limit_id.min(ahead(LOOK_AHEAD_RANGES / 2)) {
        return stretch.ceiling;
    }
    ahead(LOOK_AHEAD_RANGES).min(limit_id).max(stretch.ceiling)
}

/// What an install finds of the lease that a place in memory has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A new token: what older ones were allowed is void.
    Opens,
    /// The very token that is open: its deadline moves.
    Extends,
    /// An older token, or this one after it was fenced.
    NotNewer,
}

/// `known`: the latest token of this space and stripe here, and whether it is open still.
#[must_use]
pub fn admit(known: Option<(Token, bool)>, offered: Token) -> Admission {
    match known {
        None => Admission::Opens,
        Some((token, _)) if offered > token => Admission::Opens,
        Some((token, true)) if offered == token => Admission::Extends,
        Some(_) => Admission::NotNewer,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::lease::{Epoch, Revision};
    use proptest::prelude::*;

    fn token(epoch: u64, revision: u64) -> Token {
        Token {
            epoch: Epoch(epoch),
            revision: Revision(revision),
        }
    }

    #[test]
    fn a_ceiling_is_asked_for_when_half_of_the_look_ahead_is_used() {
        let stretch = |floor, ceiling| Stretch { floor, ceiling };
        assert_eq!(wanted_ceiling(0, stretch(0, 0), 1_000, i64::MAX), 8_000);
        assert_eq!(wanted_ceiling(4_000, stretch(0, 8_000), 1_000, i64::MAX), 8_000);
        assert_eq!(wanted_ceiling(4_001, stretch(0, 8_000), 1_000, i64::MAX), 12_001);
        assert_eq!(
            wanted_ceiling(500, stretch(20_000, 20_000), 1_000, i64::MAX),
            28_000,
            "above the floor"
        );
    }

    #[test]
    fn a_ceiling_stops_at_the_limit_and_never_goes_down() {
        let at = |max_id, ceiling, limit| wanted_ceiling(max_id, Stretch { floor: 0, ceiling }, 1_000, limit);
        assert_eq!(at(0, 0, 5_000), 5_000);
        assert_eq!(at(4_900, 5_000, 5_000), 5_000, "nothing to ask for");
        assert_eq!(at(0, 9_000, 5_000), 9_000, "the limit was lowered");
        assert_eq!(at(i64::MAX - 10, 0, i64::MAX), i64::MAX);
        assert_eq!(
            wanted_ceiling(0, Stretch::default(), 0, 100),
            8,
            "a range has an id at least"
        );
    }

    #[test]
    fn tokens_open_extend_or_are_refused() {
        assert_eq!(admit(None, token(0, 1)), Admission::Opens);
        assert_eq!(admit(Some((token(0, 1), true)), token(0, 2)), Admission::Opens);
        assert_eq!(admit(Some((token(0, 9), true)), token(1, 2)), Admission::Opens);
        assert_eq!(admit(Some((token(0, 1), true)), token(0, 1)), Admission::Extends);
        assert_eq!(
            admit(Some((token(0, 1), false)), token(0, 1)),
            Admission::NotNewer
        );
        assert_eq!(
            admit(Some((token(0, 2), false)), token(0, 1)),
            Admission::NotNewer
        );
        assert_eq!(admit(Some((token(1, 1), true)), token(0, 9)), Admission::NotNewer);
    }

    proptest! {
        /// Holders one after the other, each of which finds the last ceiling in the store and raises it by what it
        /// wants: no id lies in the stretches of two of them, wherever their rows stand.
        #[test]
        fn stretches_of_holders_in_turn_are_disjoint(
            holders in prop::collection::vec((0..100_000_i64, prop::collection::vec(1..5_000_u64, 1..8)), 1..12),
        ) {
            let (mut stored, mut granted) = (0_i64, 0_i64);
            for (row_max_id, ranges) in holders {
                // The row of this holder may be old (lag, a snapshot) or ahead (a burn).
                let mut stretch = Stretch { floor: stored, ceiling: stored };
                let mut max_id = row_max_id;
                for ids in ranges {
                    stored = stored.max(wanted_ceiling(max_id, stretch, ids, i64::MAX));
                    stretch = stretch.raised(stored);
                    let begin = max_id.max(stretch.floor);
                    if begin >= stretch.ceiling { continue; }
                    let range = super::super::grant(begin, stretch.ceiling, ids).unwrap();
                    prop_assert!(range.first > stretch.floor && range.last() <= stretch.ceiling);
                    prop_assert!(range.first > granted, "{range:?} after {granted}");
                    granted = range.last();
                    max_id = granted;
                }
            }
        }
    }
}
