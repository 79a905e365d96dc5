//! What is missing from streams: since which event, and whether the log itself has lost it.

use super::super::Span;
use super::Origin;
use super::axis::Axes;
use std::collections::BTreeMap;

/// Gaps of one stream that are told one by one; of those beyond it only that there are some.
const PER_STREAM: usize = 1_000;

/// Numbers that have not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) numbers: Span,
    /// How many of them are missing still.
    pub(super) left: u64,
    /// What has come instead.
    pub(super) before: Origin,
    pub(super) out_of_sight: bool,
}

/// Events of a stream that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGap<'a> {
    /// Tag space.
    pub space: u128,
    /// The tag.
    pub tag: &'a str,
    /// The first event behind them. Its source is that of the stream.
    pub before: Origin,
    /// The numbers that were missing at first,
    pub numbers: Span,
    /// ... and how many of them still are.
    pub left: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    /// By axis and source.
    of: BTreeMap<(usize, u128), Vec<Gap>>,
}

impl Gaps {
    pub(super) fn opened(&mut self, at: usize, before: Origin, numbers: Span, out_of_sight: bool) {
        let gap = Gap {
            numbers,
            left: numbers.ids(),
            before,
            out_of_sight,
        };
        self.add((at, before.source), gap);
    }

    pub(super) fn add(&mut self, stream: (usize, u128), gap: Gap) {
        let gaps = self.of.entry(stream).or_default();
        let is_full = gaps.len() >= PER_STREAM;
        match gaps.last_mut() {
            // Whoever has lost so much is looked at as a whole.
            Some(last) if is_full && last.out_of_sight == gap.out_of_sight => {
                last.numbers = last.numbers.hull(gap.numbers);
                last.left = last.left.saturating_add(gap.left);
            }
            _ => gaps.push(gap),
        }
    }

    /// One that was missing has come.
    pub(super) fn came(&mut self, at: usize, source: u128, number: i64) {
        let stream = (at, source);
        let Some(gaps) = self.of.get_mut(&stream) else {
            return;
        };
        let is_in = |gap: &&mut Gap| gap.numbers.common(Span::of(number)).is_some();
        if let Some(gap) = gaps.iter_mut().find(is_in) {
            gap.left = gap.left.saturating_sub(1);
        }
        gaps.retain(|gap| gap.left > 0);
        if gaps.is_empty() {
            self.of.remove(&stream);
        }
    }

    pub(super) fn is_whole(&self, at: usize, source: u128) -> bool {
        self.of.is_empty() || !self.of.contains_key(&(at, source))
    }

    pub(super) fn unseen(&self) -> usize {
        let is_cut = |gaps: &&Vec<Gap>| gaps.iter().any(|gap| gap.out_of_sight);
        self.of.values().filter(is_cut).count()
    }

    pub(super) fn open<'a>(&'a self, axes: &'a Axes) -> impl Iterator<Item = OpenGap<'a>> + 'a {
        let of_stream = |((at, _), gaps): (&(usize, u128), &'a Vec<Gap>)| {
            let (space, tag) = axes.name(*at);
            let open = gaps.iter().filter(|gap| !gap.out_of_sight);
            open.map(move |gap| OpenGap {
                space,
                tag,
                before: gap.before,
                numbers: gap.numbers,
                left: gap.left,
            })
        };
        self.of.iter().flat_map(of_stream)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&(usize, u128), &Vec<Gap>)> + '_ {
        self.of.iter()
    }
}
