//! The streaming probe: every event of a log is told to it, in the log's order, and it says at once what cannot be.
//!
//! ```text
//! (source, space, tag, tag_seq)  -> Sequence   missing, copied, written anew
//! (space, tag) and the range     -> Ranges     ids that were granted before
//! ```
//! Streams are counted by each database for itself; the axis of ids is that of the space, which several masters may share. So
//! two databases that believe to be the same one, or to have the same stripe, meet here.
//!
//! It only reads. What it forgets for want of memory, or has not seen because the log was cut, it says: see
//! [`Probe::degraded_tags`].

mod axis;
mod gaps;
mod state;
#[cfg(test)]
mod tests;

use self::axis::{Axes, Stream};
use self::gaps::Gaps;
use super::recent::{EventNumber, Grants, Print, Prints};
use super::{Seen, Span};
use std::collections::HashMap;

pub use self::gaps::OpenGap;

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

/// What an event says of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Nothing.
    None,
    /// They are granted.
    Granted(Span),
    /// They are passed over: granted to nobody, now or later. Some of them may have been, so it is no second grant.
    PassedOver(Span),
    /// Something that cannot be: a grant of none, or a range that ends before it begins.
    Malformed,
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
    /// When it was recorded, in microseconds since 1970.
    pub at_us: i64,
    /// A hash of everything that a copy must have in common with it.
    pub print: u64,
    /// What it says of ids.
    pub ids: Ids,
}

/// What cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// Ids were granted twice.
    Overlap {
        /// Who has granted or passed over them before, if that was not long ago: else the table or the archive knows.
        earlier: Option<(Span, Origin)>,
        /// Who has granted them again,
        later: (Span, Origin),
        /// ... and which ids both have.
        common: Span,
        /// In how many ranges of `common`. More than one: those of a grant over very many earlier ones that are not told one by
        /// one.
        ranges: usize,
    },
    /// A number of a stream stands for two different events.
    Rewritten {
        /// What it stood for first, if that was not long ago.
        first: Option<Origin>,
        /// What it stands for now.
        later: Origin,
    },
    /// Events of a stream have not come, although later ones have.
    Missing {
        /// The event that has come.
        before: Origin,
        /// The numbers that have not.
        numbers: Span,
        /// They were in a part of the log that was gone before it was read: nobody need have lost them.
        out_of_sight: bool,
    },
    /// An event with a number or a range that none can have.
    Malformed(Origin),
}

/// What an event was to the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Its content is new: no copy.
    pub is_news: bool,
    /// None of its stream is missing by now.
    pub is_whole: bool,
    /// What cannot be; nearly always nothing.
    pub alarms: Vec<Alarm>,
}

/// Ranges that a grant has in common with earlier ones, told one by one; the others as one. Whoever grants over all that there is
/// is looked at as a whole.
const PER_GRANT: usize = 1_000;

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Spans of all tags; about 36 bytes each. Beyond it the tags with the most of them are blurred.
    pub spans: usize,
    /// Last events whose copies are compared, and last grants that are named in an alarm; about 300 bytes each.
    pub recent: usize,
    /// Tags; about 500 bytes each. Of those beyond it nothing is known.
    pub tags: usize,
}

impl Limits {
    /// What fits in so many MiB.
    #[must_use]
    pub fn of_mib(mib: usize) -> Self {
        let bytes = mib << 20;
        Self {
            spans: bytes / 2 / 36,
            recent: (bytes / 4 / 300).min(200_000),
            tags: bytes / 4 / 500,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::of_mib(200)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Probe {
    limits: Limits,
    axes: Axes,
    gaps: Gaps,
    /// How often a part of each partition was gone before it was read.
    cuts: HashMap<i32, u32>,
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
    /// Events of tags beyond the limit of tags.
    pub untracked: u64,
    /// Grants that left ids out above everything that was granted before. Where a space has several masters that is how it is.
    pub holes: u64,
}

impl Probe {
    /// One that knows of nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            axes: Axes::default(),
            gaps: Gaps::default(),
            cuts: HashMap::new(),
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

    /// How many tags it knows.
    #[must_use]
    pub fn tags(&self) -> usize {
        self.axes.len()
    }

    /// Spans of all tags.
    #[must_use]
    pub const fn spans(&self) -> usize {
        self.axes.spans()
    }

    /// Tags of which it has forgotten something for want of memory.
    #[must_use]
    pub const fn blurred_tags(&self) -> usize {
        self.axes.blurred()
    }

    /// Streams of which a part was in a piece of the log that nobody has any more.
    #[must_use]
    pub fn unseen_streams(&self) -> usize {
        self.gaps.unseen()
    }

    /// Of how much it cannot say what it should, whatever the reason: tags that are blurred, and streams that were cut.
    #[must_use]
    pub fn degraded_tags(&self) -> usize {
        self.blurred_tags() + self.unseen_streams()
    }

    /// Events that are missing from streams, and were in no part of the log that is gone.
    pub fn open_gaps(&self) -> impl Iterator<Item = OpenGap<'_>> + '_ {
        self.gaps.open(&self.axes)
    }

    /// Have all events with these numbers of a stream come, however late?
    #[must_use]
    pub fn has_all(&self, of: (u128, &str), source: u128, numbers: Span) -> bool {
        let stream = self.axes.known(of, source);
        stream.is_some_and(|stream| stream.sequence.has_all(numbers))
    }

    /// A part of a partition was gone before it was read. What is missing from streams after this was in there.
    pub fn cut(&mut self, partition: i32) {
        *self.cuts.entry(partition).or_default() += 1;
    }

    /// Tells it of the next event.
    pub fn tell(&mut self, told: Told<'_>) -> Heard {
        if told.tag_seq < 1 || told.ids == Ids::Malformed {
            return Heard {
                alarms: vec![Alarm::Malformed(told.origin)],
                ..Heard::default()
            };
        }
        let Some(at) = self.axes.place(told.space, told.tag, self.limits.tags) else {
            self.counts.untracked += 1;
            return Heard::default();
        };
        let cuts = self.cuts.get(&told.origin.partition).copied().unwrap_or(0);
        let source = told.origin.source;
        let stream = self.axes.stream(at, source);
        // Never less: the same stream may come from elsewhere in between, as from the archive.
        let is_cut = stream.cuts < cuts;
        stream.cuts = stream.cuts.max(cuts);
        let is_later = told.at_us > stream.newest_us;
        stream.newest_us = stream.newest_us.max(told.at_us);
        let begins = stream.sequence.last() == 0;
        let mut heard = Heard {
            is_news: true,
            ..Heard::default()
        };
        match stream.sequence.see(told.tag_seq) {
            Seen::Malformed => return heard,
            Seen::Copy => heard.is_news = self.compare(at, &told, is_later, &mut heard.alarms),
            Seen::New => {}
            Seen::Late => self.gaps.came(at, source, told.tag_seq),
            // It was somewhere else before: in another space, under another source, or in a table that nobody drained.
            Seen::Ahead { .. } if begins && !is_cut => {}
            Seen::Ahead { missing } => {
                let before = told.origin;
                self.gaps.opened(at, before, missing, is_cut);
                heard.alarms.push(Alarm::Missing {
                    before,
                    numbers: missing,
                    out_of_sight: is_cut,
                });
            }
        }
        heard.is_whole = self.gaps.is_whole(at, source);
        if heard.is_news {
            self.counts.events += 1;
            self.believe(at, &told, &mut heard.alarms);
        }
        heard
    }

    /// Its number was there before. Is it another event all the same? What was written anew in its place is not believed; what
    /// another history has put there has happened.
    fn compare(&mut self, at: usize, told: &Told<'_>, is_later: bool, alarms: &mut Vec<Alarm>) -> bool {
        let number: EventNumber = (at, told.origin.source, told.tag_seq);
        let known = self.prints.find(&number);
        let (first, is_another) = match known {
            Some(known) if known.print == told.print => {
                self.counts.copies += 1;
                return false;
            }
            Some(known) => (Some(known.origin), known.at_us != told.at_us),
            // A copy was recorded when the event was, and would have its ids.
            None if is_later => (None, true),
            None if !self.axes.may_have_granted(at, told.ids) => (None, true),
            None => {
                self.counts.copies_unjudged += 1;
                return false;
            }
        };
        alarms.push(Alarm::Rewritten {
            first,
            later: told.origin,
        });
        is_another
    }

    fn believe(&mut self, at: usize, told: &Told<'_>, alarms: &mut Vec<Alarm>) {
        let number = (at, told.origin.source, told.tag_seq);
        let print = Print {
            print: told.print,
            at_us: told.at_us,
            origin: told.origin,
        };
        self.prints.keep(number, print);
        match told.ids {
            Ids::Granted(span) => self.grant(at, span, told.origin, alarms),
            Ids::PassedOver(span) => {
                self.axes.insert(at, span);
                self.grants.keep(at, span, told.origin);
            }
            Ids::None | Ids::Malformed => return,
        }
        if self.axes.spans() > self.limits.spans {
            self.axes.blur(self.limits.spans - self.limits.spans / 8);
        }
    }

    fn grant(&mut self, at: usize, span: Span, origin: Origin, alarms: &mut Vec<Alarm>) {
        if self.axes.is_blurred(at, span) {
            self.counts.grants_unjudged += 1;
        }
        self.counts.holes += u64::from(self.axes.leaves_out(at, span));
        let later = (span, origin);
        let mut there = self.axes.insert(at, span);
        let rest = there.split_off(there.len().min(PER_GRANT));
        for common in there {
            let known = self.grants.with_any_of(at, common);
            if known.is_empty() {
                alarms.push(Alarm::Overlap {
                    earlier: None,
                    later,
                    common,
                    ranges: 1,
                });
            }
            alarms.extend(known.into_iter().map(|(earlier, of)| Alarm::Overlap {
                earlier: Some((earlier, of)),
                later,
                common: earlier.common(common).unwrap_or(common),
                ranges: 1,
            }));
        }
        let ranges = rest.len();
        if let Some(common) = rest.into_iter().reduce(Span::hull) {
            alarms.push(Alarm::Overlap {
                earlier: None,
                later,
                common,
                ranges,
            });
        }
        self.grants.keep(at, span, origin);
    }
}

impl Stream {
    const fn new(source: u128) -> Self {
        Self {
            source,
            sequence: super::Sequence::after(0),
            newest_us: i64::MIN,
            cuts: 0,
        }
    }
}
