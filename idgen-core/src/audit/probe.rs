//! The streaming probe: every event of a log is told to it, in the log's order, and it says at once what cannot be.
//!
//! ```text
//! (source, space, tag, tag_seq)  -> Sequence   missing, copied, written anew
//! (space, tag) and the range     -> Ranges     ids that were granted before
//! ```
//! Streams are counted by each database for itself; the axis of ids is that of the space, which several masters may share. So
//! two databases that believe to be the same one, or to have the same stripe, meet here.
//!
//! It only reads. What it forgets for want of memory it says: see [`Probe::blurred_tags`].

use super::recent::{EventNumber, Grants, Prints};
use super::{Ranges, Seen, Sequence, Span};
use std::collections::HashMap;

/// Where an event is to be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The database that recorded it.
    pub source: u128,
    /// Its number there.
    pub event_id: i64,
    /// Where it was read: the partition,
    pub partition: i32,
    /// ... and the offset in it.
    pub offset: i64,
}

/// One event, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Where it is.
    pub origin: Origin,
    /// Tag space.
    pub space: u128,
    /// The tag.
    pub tag: &'a str,
    /// Its number within (source, space, tag).
    pub tag_seq: i64,
    /// A hash of everything that a copy must have in common with it.
    pub print: u64,
    /// What it grants.
    pub grants: Option<Span>,
}

/// What cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Ids were granted twice.
    Overlap {
        /// Who has granted them before, if that was not long ago: else the table or the archive knows.
        earlier: Option<(Span, Origin)>,
        /// Who has granted them again,
        later: (Span, Origin),
        /// ... and which ids both have.
        common: Span,
    },
    /// A number of a stream stands for two different events.
    Rewritten {
        /// What it stood for first.
        first: Origin,
        /// What it stands for now.
        later: Origin,
    },
    /// Events of a stream have not come, although later ones have.
    Missing {
        /// The event that has come.
        before: Origin,
        /// The numbers that have not.
        numbers: Span,
    },
    /// An event with a number that none can have.
    Malformed(Origin),
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Spans of all tags; 40 bytes each. Beyond it the tag with the most of them is blurred.
    pub spans: usize,
    /// Last events whose copies are compared, and last grants that are named in an alarm; 100 bytes each.
    pub recent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            spans: 5_000_000,
            recent: 200_000,
        }
    }
}

/// The ids of one tag of a space, and the streams of those who grant them.
#[derive(Clone, Debug, Default)]
struct Axis {
    granted: Ranges,
    /// Nothing is known any more of ids in here, but that some of them were granted.
    blurred: Option<Span>,
    /// By source. As many as the space has masters: few.
    streams: Vec<(u128, Sequence)>,
}

impl Axis {
    fn stream(&mut self, source: u128) -> &mut Sequence {
        let known = self.streams.iter().position(|(of, _)| *of == source);
        let at = known.unwrap_or_else(|| {
            self.streams.push((source, Sequence::after(0)));
            self.streams.len() - 1
        });
        &mut self.streams[at].1
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Probe {
    limits: Limits,
    /// Where in `axes` a tag of a space is.
    names: HashMap<u128, HashMap<String, usize>>,
    axes: Vec<Axis>,
    /// Spans of all axes.
    spans: usize,
    prints: Prints,
    grants: Grants,
    counts: Counts,
}

/// What the probe has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that were news.
    pub events: u64,
    /// Events that were there already, and are the same.
    pub copies: u64,
    /// Events that were there already, too long ago to be compared.
    pub copies_unjudged: u64,
    /// Grants within what is blurred: whether their ids were granted before cannot be said from here.
    pub grants_unjudged: u64,
    /// Events that are missing now.
    pub missing: u64,
}

impl Probe {
    /// One that knows of nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            names: HashMap::new(),
            axes: Vec::new(),
            spans: 0,
            prints: Prints::new(limits.recent),
            grants: Grants::new(limits.recent),
            counts: Counts::default(),
        }
    }

    /// What it has seen.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Tags of which it has forgotten something.
    #[must_use]
    pub fn blurred_tags(&self) -> usize {
        self.axes.iter().filter(|axis| axis.blurred.is_some()).count()
    }

    /// Tells it of the next event. Nearly always there is nothing to be said.
    pub fn tell(&mut self, told: Told<'_>) -> Vec<Alarm> {
        let at = self.axis_of(told.space, told.tag);
        let number = (at, told.origin.source, told.tag_seq);
        let mut alarms = Vec::new();
        match self.axes[at].stream(told.origin.source).see(told.tag_seq) {
            Seen::Malformed => return vec![Alarm::Malformed(told.origin)],
            Seen::Copy => return self.compare(&told, number),
            Seen::New => {}
            Seen::Late => self.counts.missing = self.counts.missing.saturating_sub(1),
            Seen::Ahead { missing } => {
                self.counts.missing = self.counts.missing.saturating_add(missing.ids());
                alarms.push(Alarm::Missing {
                    before: told.origin,
                    numbers: missing,
                });
            }
        }
        self.counts.events += 1;
        self.prints.keep(number, told.print, told.origin);
        if let Some(span) = told.grants {
            self.grant(at, span, told.origin, &mut alarms);
        }
        alarms
    }

    fn axis_of(&mut self, space: u128, tag: &str) -> usize {
        if let Some(&at) = self.names.get(&space).and_then(|tags| tags.get(tag)) {
            return at;
        }
        let at = self.axes.len();
        self.axes.push(Axis::default());
        self.names.entry(space).or_default().insert(tag.to_owned(), at);
        at
    }

    fn compare(&mut self, told: &Told<'_>, number: EventNumber) -> Vec<Alarm> {
        match self.prints.find(&number) {
            None => self.counts.copies_unjudged += 1,
            Some((print, _)) if print == told.print => self.counts.copies += 1,
            Some((_, first)) => {
                let later = told.origin;
                return vec![Alarm::Rewritten { first, later }];
            }
        }
        Vec::new()
    }

    fn grant(&mut self, at: usize, span: Span, origin: Origin, alarms: &mut Vec<Alarm>) {
        let axis = &mut self.axes[at];
        if axis.blurred.is_some_and(|blurred| blurred.common(span).is_some()) {
            self.counts.grants_unjudged += 1;
        }
        let before = axis.granted.len();
        let twice = axis.granted.insert(span);
        self.spans = self.spans.saturating_sub(before) + axis.granted.len();
        for common in twice {
            alarms.push(Alarm::Overlap {
                earlier: self.grants.with_any_of(at, common),
                later: (span, origin),
                common,
            });
        }
        self.grants.keep(at, span, origin);
        if self.spans > self.limits.spans {
            self.blur();
        }
    }

    /// Forgets which ids of the tag with the most spans were granted, but for the first and the last.
    fn blur(&mut self) {
        let Some(axis) = self.axes.iter_mut().max_by_key(|axis| axis.granted.len()) else {
            return;
        };
        let hulls = axis.granted.hull().into_iter().chain(axis.blurred);
        axis.blurred = hulls.reduce(Span::hull);
        self.spans = self.spans.saturating_sub(axis.granted.len());
        axis.granted = Ranges::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: u128 = 1;
    const SOURCE: u128 = 2;

    struct Log {
        probe: Probe,
        offset: i64,
    }

    impl Log {
        fn new(limits: Limits) -> Self {
            let probe = Probe::new(limits);
            Self { probe, offset: 0 }
        }

        fn tell(
            &mut self,
            source: u128,
            space: u128,
            tag: &str,
            tag_seq: i64,
            ids: (i64, i64),
        ) -> Vec<Alarm> {
            let offset = self.offset;
            self.offset += 1;
            self.probe.tell(Told {
                origin: Origin {
                    source,
                    event_id: 100 + tag_seq,
                    partition: 0,
                    offset,
                },
                space,
                tag,
                tag_seq,
                print: ids.0.cast_unsigned() << 32 | ids.1.cast_unsigned(),
                grants: Span::new(ids.0, ids.1),
            })
        }
    }

    fn span(lo: i64, hi: i64) -> Span {
        Span::new(lo, hi).unwrap()
    }

    #[test]
    fn a_log_with_copies_is_silent() {
        let mut log = Log::new(Limits::default());
        for tag_seq in [1, 2, 1, 2, 3, 2, 3, 4] {
            let ids = (tag_seq * 10 + 1, tag_seq * 10 + 10);
            assert_eq!(log.tell(SOURCE, SPACE, "a", tag_seq, ids), []);
        }
        let counts = log.probe.counts();
        assert_eq!((counts.events, counts.copies, counts.missing), (4, 4, 0));
    }

    #[test]
    fn equal_names_in_several_spaces_and_several_tags_are_nobodys_business() {
        let mut log = Log::new(Limits::default());
        for (source, space, tag) in [(1, 1, "a"), (2, 2, "a"), (1, 1, "b"), (2, 2, "A")] {
            assert_eq!(log.tell(source, space, tag, 1, (1, 10)), []);
        }
    }

    #[test]
    fn two_databases_that_grant_the_same_ids_are_both_named() {
        let mut log = Log::new(Limits::default());
        assert_eq!(log.tell(1, SPACE, "a", 1, (1, 10)), []);
        assert_eq!(log.tell(1, SPACE, "a", 2, (11, 20)), []);
        let alarms = log.tell(2, SPACE, "a", 1, (8, 12));
        let Alarm::Overlap {
            earlier,
            later,
            common,
        } = &alarms[0]
        else {
            panic!("{alarms:?}");
        };
        assert_eq!(later.1.source, 2);
        assert_eq!(
            (*common, alarms.len()),
            (span(8, 12), 1),
            "the ranges before it touch: they are one"
        );
        let (first, origin) = earlier.expect("it was told just now");
        assert_eq!((origin.source, first.common(*common).is_some()), (1, true));
    }

    #[test]
    fn containment_is_an_overlap_either_way_round() {
        let mut log = Log::new(Limits::default());
        assert_eq!(log.tell(1, SPACE, "a", 1, (1, 100)), []);
        assert!(matches!(
            log.tell(2, SPACE, "a", 1, (40, 50))[..],
            [Alarm::Overlap { .. }]
        ));
        assert_eq!(log.tell(1, SPACE, "b", 1, (40, 50)), []);
        assert!(
            matches!(log.tell(2, SPACE, "b", 1, (1, 100))[..], [Alarm::Overlap { common, .. }] if common == span(40, 50))
        );
    }

    #[test]
    fn an_event_that_was_written_anew_is_told_from_a_copy() {
        let mut log = Log::new(Limits::default());
        log.tell(SOURCE, SPACE, "a", 1, (1, 10));
        let alarms = log.tell(SOURCE, SPACE, "a", 1, (1, 11));
        assert!(
            matches!(alarms[..], [Alarm::Rewritten { first, later }] if first.offset == 0 && later.offset == 1)
        );
        assert_eq!(
            log.tell(SOURCE, SPACE, "a", 2, (11, 20)),
            [],
            "what was made up is not believed"
        );
    }

    #[test]
    fn what_is_missing_is_told_once_and_may_come_late() {
        let mut log = Log::new(Limits::default());
        let alarms = log.tell(SOURCE, SPACE, "a", 3, (21, 30));
        assert!(matches!(alarms[..], [Alarm::Missing { numbers, .. }] if numbers == span(1, 2)));
        assert_eq!(log.probe.counts().missing, 2);
        assert_eq!(log.tell(SOURCE, SPACE, "a", 2, (11, 20)), []);
        assert_eq!(log.tell(SOURCE, SPACE, "a", 1, (1, 10)), []);
        assert_eq!(log.probe.counts().missing, 0);
        assert_eq!(log.tell(SOURCE, SPACE, "a", 0, (1, 10)).len(), 1);
    }

    #[test]
    fn what_comes_late_is_judged_as_well() {
        let mut log = Log::new(Limits::default());
        log.tell(SOURCE, SPACE, "a", 2, (5, 14));
        assert!(matches!(
            log.tell(SOURCE, SPACE, "a", 1, (1, 10))[..],
            [Alarm::Overlap { .. }]
        ));
    }

    #[test]
    fn with_too_many_spans_the_tag_with_the_most_is_blurred_and_says_so() {
        let mut log = Log::new(Limits { spans: 10, recent: 4 });
        log.tell(SOURCE, SPACE, "dense", 1, (1, 10));
        for n in 1..=10 {
            assert_eq!(log.tell(SOURCE, SPACE, "sparse", n, (n * 10, n * 10)), []);
        }
        assert_eq!(log.probe.blurred_tags(), 1);
        assert_eq!(
            log.tell(SOURCE, SPACE, "sparse", 11, (50, 50)),
            [],
            "that cannot be known any more"
        );
        assert_eq!(log.probe.counts().grants_unjudged, 1);
        assert_eq!(log.tell(SOURCE, SPACE, "sparse", 12, (1000, 1000)), []);
        assert_eq!(
            log.probe.counts().grants_unjudged,
            1,
            "above all that was granted nothing was forgotten"
        );
        assert_eq!(log.tell(SOURCE, SPACE, "sparse", 13, (1000, 1000)).len(), 1);
        assert_eq!(
            log.tell(SOURCE, SPACE, "dense", 2, (10, 10)).len(),
            1,
            "others are as they were"
        );
    }

    #[test]
    fn a_copy_from_long_ago_is_counted_and_not_judged() {
        let mut log = Log::new(Limits { spans: 10, recent: 2 });
        for n in 1..=4 {
            log.tell(SOURCE, SPACE, "a", n, (n, n));
        }
        assert_eq!(log.tell(SOURCE, SPACE, "a", 1, (9, 9)), []);
        assert_eq!(log.probe.counts().copies_unjudged, 1);
    }
}
