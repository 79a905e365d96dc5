//! The axes of all tags: which ids were granted, and the streams of those who grant them.

use super::super::{Ranges, Sequence, Span};
use super::Ids;
use std::collections::HashMap;

/// Events of one source about one tag.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) source: u128,
    pub(super) sequence: Sequence,
    /// When its newest event was recorded.
    pub(super) newest_us: i64,
    /// How often its partition had been cut when it was heard of last.
    pub(super) cuts: u32,
}

/// The ids of one tag of a space, and the streams of those who grant them.
#[derive(Clone, Debug, Default)]
pub(super) struct Axis {
    pub(super) space: u128,
    pub(super) tag: String,
    pub(super) granted: Ranges,
    /// Nothing is known any more of ids in here, but that some of them were granted.
    pub(super) blurred: Option<Span>,
    /// By source. As many as the space has masters: few.
    pub(super) streams: Vec<Stream>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Axes {
    /// Where in `axes` a tag of a space is.
    names: HashMap<u128, HashMap<String, usize>>,
    axes: Vec<Axis>,
    spans: usize,
    blurred: usize,
}

impl Axes {
    pub(super) fn len(&self) -> usize {
        self.axes.len()
    }

    pub(super) const fn spans(&self) -> usize {
        self.spans
    }

    pub(super) const fn blurred(&self) -> usize {
        self.blurred
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Axis> + '_ {
        self.axes.iter()
    }

    /// Space and tag of an axis.
    pub(super) fn name(&self, at: usize) -> (u128, &str) {
        self.axes
            .get(at)
            .map_or((0, ""), |axis| (axis.space, axis.tag.as_str()))
    }

    /// Where the axis of a tag is; `None`: there are `max` others.
    pub(super) fn place(&mut self, space: u128, tag: &str, max: usize) -> Option<usize> {
        if let Some(&at) = self.names.get(&space).and_then(|tags| tags.get(tag)) {
            return Some(at);
        }
        if self.axes.len() >= max {
            return None;
        }
        Some(self.add(Axis {
            space,
            tag: tag.to_owned(),
            ..Axis::default()
        }))
    }

    /// Adds one that is not there.
    pub(super) fn add(&mut self, axis: Axis) -> usize {
        let at = self.axes.len();
        self.spans += axis.granted.len();
        self.blurred += usize::from(axis.blurred.is_some());
        self.names
            .entry(axis.space)
            .or_default()
            .insert(axis.tag.clone(), at);
        self.axes.push(axis);
        at
    }

    /// The stream of a source about a tag, if it is known.
    pub(super) fn known(&self, (space, tag): (u128, &str), source: u128) -> Option<&Stream> {
        let at = *self.names.get(&space)?.get(tag)?;
        self.axes[at]
            .streams
            .iter()
            .find(|stream| stream.source == source)
    }

    pub(super) fn stream(&mut self, at: usize, source: u128) -> &mut Stream {
        let streams = &mut self.axes[at].streams;
        let known = streams.iter().position(|stream| stream.source == source);
        let nth = known.unwrap_or_else(|| {
            streams.push(Stream::new(source));
            streams.len() - 1
        });
        &mut streams[nth]
    }

    /// Adds ids. Returns which of them were there.
    pub(super) fn insert(&mut self, at: usize, span: Span) -> Vec<Span> {
        let granted = &mut self.axes[at].granted;
        let before = granted.len();
        let there = granted.insert(span);
        self.spans = self.spans.saturating_sub(before) + granted.len();
        there
    }

    /// Is it not known whether ids of this span were granted?
    pub(super) fn is_blurred(&self, at: usize, span: Span) -> bool {
        let blurred = self.axes[at].blurred;
        blurred.is_some_and(|blurred| blurred.common(span).is_some())
    }

    /// Are there ids between everything that was granted before and this span, above it?
    pub(super) fn leaves_out(&self, at: usize, span: Span) -> bool {
        let hull = self.axes[at].granted.hull();
        hull.is_some_and(|hull| span.lo() > hull.hi().saturating_add(1))
    }

    /// Whatever has said this of ids before, they are in the set.
    pub(super) fn may_have_granted(&self, at: usize, ids: Ids) -> bool {
        match ids {
            Ids::Granted(span) | Ids::PassedOver(span) => {
                self.axes[at].blurred.is_some() || self.axes[at].granted.covers(span)
            }
            Ids::None | Ids::Malformed => true,
        }
    }

    /// Forgets which ids of the tags with the most spans were granted, but for the first and the last, until there are no
    /// more than `down_to` spans.
    pub(super) fn blur(&mut self, down_to: usize) {
        let mut largest: Vec<usize> = (0..self.axes.len()).collect();
        largest.sort_by_key(|&at| core::cmp::Reverse(self.axes[at].granted.len()));
        for at in largest {
            if self.spans <= down_to {
                return;
            }
            let axis = &mut self.axes[at];
            self.blurred += usize::from(axis.blurred.is_none());
            let hulls = axis.granted.hull().into_iter().chain(axis.blurred);
            axis.blurred = hulls.reduce(Span::hull);
            self.spans = self.spans.saturating_sub(axis.granted.len());
            axis.granted = Ranges::new();
        }
    }
}
