//! How far a run has come in each stream of events, and of which tags it must look at everything once more.
//!
//! A database grants ranges of a tag in rising order and numbers the events of it without gaps, under one row lock. So who reads
//! events as they were recorded needs of each tag the last number and the highest id, however many ranges there are: what does
//! not go on from there is no finding yet, and makes the tag *suspect*. Of suspects everything is read in its order ([`Sweep`],
//! by numbers), which decides.
//!
//! [`Sweep`]: super::Sweep

use super::Span;
use std::collections::BTreeMap;

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its number.
    pub seq: i64,
    /// When it was recorded, Unix microseconds.
    pub at_us: i64,
}

/// One stream: a tag, as one source has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The first event that was there.
    pub first: Point,
    /// The last.
    pub last: Point,
    /// How many there were.
    pub events: u64,
    /// How many of them were grants.
    pub ranges: u64,
    /// Highest id of those.
    pub max_hi: Option<i64>,
    /// Up to this number a run before has looked at it; `None`: none has.
    pub known: Option<i64>,
}

impl Stream {
    /// Are its events all there, from the first to the last?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let numbers = self.last.seq.abs_diff(self.first.seq).saturating_add(1);
        self.first.seq <= self.last.seq && self.events == numbers
    }
}

/// What an earlier run has seen, whatever days were dropped since: the events of a source up to `seq` have granted ids up to `hi`.
///
/// All sources of a tag in one database count on one from the other (it becomes another source when its history changes), so it
/// is a bound for whatever has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Number of the last event.
    pub seq: i64,
    /// Highest id of the grants.
    pub hi: i64,
}

fn floor_of(floors: &[Floor], seq: i64) -> Option<i64> {
    let below = floors.iter().filter(|floor| floor.seq < seq);
    below.map(|floor| floor.hi).max()
}

/// So many grants in a row that are in the place of others are told from them.
const LAST: usize = 64;

/// Do the grants of a stream rise, in the order of its numbers? Where days were dropped the grants that one collides with are gone,
/// and nothing else tells.
///
/// One with the number of another, recorded later, comes before those that it must not be held against: a grant answers for what
/// has a lower number and was recorded before it.
#[derive(Clone, Debug)]
pub struct Rise<'f> {
    floors: &'f [Floor],
    granted: i64,
    reach: Option<i64>,
    /// The last ones, which rise: event, and highest id.
    last: Vec<(i64, i64)>,
}

impl<'f> Rise<'f> {
    /// Before the first event. `granted`: highest id that the tag itself has granted; who claims more proves nothing against others.
    #[must_use]
    pub const fn new(floors: &'f [Floor], granted: i64) -> Self {
        Self {
            floors,
            granted,
            reach: None,
            last: Vec::new(),
        }
    }

    /// The next grant, event `event`. Returns up to which id there had been grants before it, if it falls back behind that.
    pub fn push(&mut self, (seq, event): (i64, i64), grant: Span) -> Option<i64> {
        while self.last.pop_if(|(before, _)| *before > event).is_some() {}
        let before = self.reach().max(floor_of(self.floors, seq));
        if grant.hi() <= self.granted {
            self.last.push((event, grant.hi()));
        }
        if self.last.len() > LAST {
            let (_, hi) = self.last.remove(0);
            self.reach = self.reach.max(Some(hi));
        }
        before.filter(|before| grant.lo() <= *before)
    }

    /// Highest id of the grants so far, without those that the tag itself knows nothing of.
    #[must_use]
    pub fn reach(&self) -> Option<i64> {
        let last = self.last.iter().map(|(_, hi)| *hi).max();
        self.reach.max(last)
    }
}

/// All streams of one tag of one space. `S` names a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis<S> {
    streams: BTreeMap<S, Stream>,
    floors: Vec<Floor>,
    is_suspect: bool,
    is_dirty: bool,
}

impl<S: Ord + Clone> Axis<S> {
    /// Of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            streams: BTreeMap::new(),
            floors: Vec::new(),
            is_suspect: false,
            is_dirty: false,
        }
    }

    /// What a run has written down of a stream.
    pub fn restore(&mut self, source: S, stream: Stream, is_suspect: bool) {
        self.streams.insert(source, stream);
        self.is_suspect |= is_suspect;
    }

    /// What an earlier run has seen.
    pub fn rest_on(&mut self, floor: Floor) {
        self.floors.push(floor);
    }

    /// What earlier runs have seen.
    #[must_use]
    pub fn floors(&self) -> &[Floor] {
        &self.floors
    }

    /// The next event, in the order in which they were recorded. Returns whether it is news.
    pub fn see(&mut self, source: &S, at: Point, grant: Option<Span>) -> bool {
        let reach = self.streams.values().filter_map(|stream| stream.max_hi).max();
        let reach = reach.max(floor_of(&self.floors, at.seq));
        if !self.streams.contains_key(source) {
            let nothing = Stream {
                first: at,
                last: Point {
                    seq: at.seq.saturating_sub(1),
                    ..at
                },
                events: 0,
                ranges: 0,
                max_hi: None,
                known: None,
            };
            self.streams.insert(source.clone(), nothing);
        }
        let Some(stream) = self.streams.get_mut(source) else {
            return false;
        };
        if stream.known.is_some_and(|known| at.seq <= known) {
            return false;
        }
        self.is_dirty = true;
        let goes_on = at.seq >= 1 && stream.last.seq.checked_add(1) == Some(at.seq);
        let is_above = grant.is_none_or(|grant| reach.is_none_or(|reach| grant.lo() > reach));
        self.is_suspect |= !goes_on || !is_above;
        if at.seq > stream.last.seq {
            stream.last = at;
        }
        stream.events += 1;
        if let Some(grant) = grant {
            stream.ranges += 1;
            stream.max_hi = stream.max_hi.max(Some(grant.hi()));
        }
        true
    }

    /// What was read of it says less than a list that was made before.
    pub fn suspect(&mut self) {
        self.is_dirty |= !self.is_suspect;
        self.is_suspect = true;
    }

    /// Something did not go on from what came before.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    /// Its streams.
    pub fn streams(&self) -> impl Iterator<Item = (&S, &Stream)> {
        self.streams.iter()
    }

    /// One of them.
    #[must_use]
    pub fn stream(&self, source: &S) -> Option<&Stream> {
        self.streams.get(source)
    }

    /// Everything of it was read in its order: this is what there is.
    pub fn settle(&mut self, streams: BTreeMap<S, Stream>) {
        self.streams = streams;
        self.is_suspect = false;
        self.is_dirty = true;
    }

    /// The run is at its end: what the one before has seen is known on, whatever days were dropped since. Of a tag that is suspect
    /// still nobody has looked at what is new, so whoever comes next begins where the one before has left off.
    pub fn keep<'s>(&mut self, before: impl Iterator<Item = (&'s S, &'s Stream)>)
    where
        S: 's,
    {
        for (source, was) in before {
            match self.streams.get_mut(source).filter(|_| !self.is_suspect) {
                Some(is) if is.max_hi >= was.max_hi && is.last.seq >= was.last.seq => continue,
                Some(is) => {
                    is.max_hi = is.max_hi.max(was.max_hi);
                    if is.last.seq < was.last.seq {
                        is.last = was.last;
                    }
                }
                None => {
                    self.streams.insert(source.clone(), was.clone());
                }
            }
            self.is_dirty = true;
        }
    }

    /// Is there anything to be written down? It is, with this.
    pub fn take_dirty(&mut self) -> bool {
        core::mem::take(&mut self.is_dirty)
    }

    /// Grants of all streams.
    #[must_use]
    pub fn ranges(&self) -> u64 {
        self.streams.values().map(|stream| stream.ranges).sum()
    }
}

impl<S: Ord + Clone> Default for Axis<S> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Ranges;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn see(axis: &mut Axis<u8>, source: u8, seq: i64, grant: Option<(i64, i64)>) -> bool {
        let at = Point { seq, at_us: seq * 10 };
        let grant = grant.map(|(lo, hi)| Span::new(lo, hi).unwrap());
        axis.see(&source, at, grant)
    }

    #[test]
    fn what_goes_on_is_fine_wherever_it_begins() {
        let mut axis = Axis::new();
        for seq in 5..9 {
            assert!(see(&mut axis, 1, seq, Some((seq * 10, seq * 10 + 9))));
        }
        assert!(!axis.is_suspect());
        let stream = axis.stream(&1).unwrap();
        assert!(stream.is_whole());
        assert_eq!(
            (stream.first.seq, stream.last.seq, stream.max_hi),
            (5, 8, Some(89))
        );
        assert_eq!((axis.ranges(), stream.last.at_us), (4, 80));
    }

    #[test]
    fn a_gap_a_copy_a_zero_and_an_id_from_below_are_suspect() {
        let begun = || {
            let mut axis = Axis::new();
            see(&mut axis, 1, 1, Some((10, 19)));
            axis
        };
        for (seq, grant) in [
            (3, None),
            (1, None),
            (0, None),
            (2, Some((19, 25))),
            (2, Some((1, 5))),
        ] {
            let mut axis = begun();
            see(&mut axis, 1, seq, grant);
            assert!(axis.is_suspect(), "{seq} {grant:?}");
        }
        let mut axis = begun();
        see(&mut axis, 2, 1, Some((19, 30)));
        assert!(axis.is_suspect(), "another source has the same ids");
        let mut axis = begun();
        see(&mut axis, 2, 1, Some((20, 30)));
        assert!(!axis.is_suspect());
    }

    #[test]
    fn what_a_run_before_has_looked_at_is_no_news() {
        let mut axis = Axis::new();
        see(&mut axis, 1, 1, Some((1, 10)));
        let mut stream = axis.stream(&1).unwrap().clone();
        stream.known = Some(stream.last.seq);
        let mut next = Axis::new();
        next.restore(1, stream, false);
        assert!(!see(&mut next, 1, 1, Some((1, 10))) && !next.take_dirty());
        assert!(see(&mut next, 1, 2, Some((11, 20))) && next.take_dirty() && !next.take_dirty());
        assert!(!next.is_suspect());
        see(&mut next, 1, 3, Some((5, 6)));
        assert!(next.is_suspect(), "below what was known");
    }

    #[test]
    fn what_falls_back_behind_what_an_earlier_run_has_seen_is_suspect_though_nothing_of_it_is_there() {
        let mut axis = Axis::new();
        axis.rest_on(Floor { seq: 7, hi: 70 });
        see(&mut axis, 1, 7, Some((61, 70)));
        assert!(!axis.is_suspect(), "that run has seen it");
        for (source, lo) in [(1, 70), (2, 5)] {
            let mut axis = axis.clone();
            see(&mut axis, source, 8, Some((lo, lo + 9)));
            assert!(axis.is_suspect(), "{source} {lo}");
        }
        see(&mut axis, 1, 8, Some((71, 80)));
        assert!(!axis.is_suspect());
    }

    #[test]
    fn a_grant_falls_back_behind_all_that_its_tag_has_granted_before_it() {
        let grant = |lo, hi| Span::new(lo, hi).unwrap();
        let floors = [Floor { seq: 3, hi: 30 }];
        let mut rise = Rise::new(&floors, 100);
        assert_eq!(
            rise.push((2, 2), grant(11, 20)),
            None,
            "the floor is of what comes later"
        );
        assert_eq!(rise.push((4, 4), grant(21, 25)), Some(30));
        assert_eq!(rise.push((5, 5), grant(31, 40)), None);
        assert_eq!(rise.push((6, 6), grant(40, 40)), Some(40));
        // Of what the tag has never granted it is not for its real grants to answer.
        assert_eq!(rise.push((7, 7), grant(1_000, 1_001)), None);
        assert_eq!(rise.push((8, 8), grant(41, 50)), None);
        assert_eq!(rise.reach(), Some(50));
        // Somebody has put one in the place of another, long after.
        assert_eq!(rise.push((8, 99), grant(91, 100)), None);
        assert_eq!(rise.push((9, 9), grant(51, 60)), None);
        for seq in 10..200 {
            assert_eq!(rise.push((seq, seq), grant(61, 70)).is_some(), seq > 10, "{seq}");
        }
        assert_eq!(rise.push((200, 200), grant(60, 60)), Some(70));
    }

    #[test]
    fn what_was_seen_once_is_known_on_and_what_nobody_has_looked_at_is_left_to_the_next() {
        let mut before = Axis::new();
        see(&mut before, 1, 1, Some((1, 10)));
        see(&mut before, 2, 2, Some((11, 20)));
        let mut axis = Axis::new();
        see(&mut axis, 2, 3, Some((3, 4)));
        axis.take_dirty();
        let mut suspect = axis.clone();
        axis.keep(before.streams());
        let of = |axis: &Axis<u8>, source| {
            let stream = axis.stream(&source).unwrap();
            (stream.last.seq, stream.max_hi)
        };
        assert!(axis.take_dirty());
        assert_eq!((of(&axis, 1), of(&axis, 2)), ((1, Some(10)), (3, Some(20))));
        suspect.suspect();
        suspect.keep(before.streams());
        assert_eq!((of(&suspect, 2), suspect.is_suspect()), ((2, Some(20)), true));
    }

    /// As a rule nothing is wrong, so that each thing is met without the others.
    fn seldom() -> impl Strategy<Value = i64> {
        prop_oneof![30 => Just(0_i64), 1 => Just(1_i64), 1 => Just(2_i64)]
    }

    proptest! {
        /// Whatever is wrong with a history makes it suspect; the index and the set of numbers say what is wrong.
        #[test]
        fn a_history_with_anything_wrong_is_never_taken_for_good(
            events in prop::collection::vec((seldom(), seldom(), 1..6_i64), 1..40)
        ) {
            let (mut axis, mut index, mut numbers) = (Axis::new(), Ranges::new(), BTreeSet::new());
            let (mut seq, mut next, mut is_wrong) = (0_i64, 1_i64, false);
            let mut rise = Rise::new(&[], i64::MAX);
            for (skip, back, ids) in events {
                seq += if skip == 2 { 2 } else { 1 - skip };
                let lo = if back == 2 { next - 1 } else { next };
                let grant = Span::new(lo, lo + ids).unwrap();
                next = lo + ids + 1;
                is_wrong |= !index.insert(grant).is_empty() || !numbers.insert(seq) || seq < 1;
                is_wrong |= rise.push((seq, seq), grant).is_some();
                see(&mut axis, 1, seq, Some((grant.lo(), grant.hi())));
            }
            let hull = numbers.last().unwrap() - numbers.first().unwrap() + 1;
            is_wrong |= hull != i64::try_from(numbers.len()).unwrap();
            prop_assert!(axis.is_suspect() || !is_wrong);
            prop_assert!(axis.is_suspect() || axis.stream(&1).unwrap().is_whole());
        }
    }
}
