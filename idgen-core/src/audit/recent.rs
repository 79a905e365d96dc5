//! The last events and grants, so many and no more: what copies are compared with, and who is named in an alarm.

use super::Span;
use super::probe::Origin;
use std::collections::{HashMap, VecDeque};

/// Axis, source and number of an event in its stream.
pub(super) type EventNumber = (usize, u128, i64);

/// What the last events were.
#[derive(Clone, Debug)]
pub(super) struct Prints {
    max: usize,
    order: VecDeque<EventNumber>,
    known: HashMap<EventNumber, (u64, Origin)>,
}

impl Prints {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            order: VecDeque::new(),
            known: HashMap::new(),
        }
    }

    /// Of an event that is not known yet.
    pub(super) fn keep(&mut self, number: EventNumber, print: u64, origin: Origin) {
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(number);
        self.known.insert(number, (print, origin));
    }

    pub(super) fn find(&self, number: &EventNumber) -> Option<(u64, Origin)> {
        self.known.get(number).copied()
    }
}

/// The last grants.
#[derive(Clone, Debug)]
pub(super) struct Grants {
    max: usize,
    last: VecDeque<(usize, Span, Origin)>,
}

impl Grants {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            last: VecDeque::new(),
        }
    }

    pub(super) fn keep(&mut self, axis: usize, span: Span, origin: Origin) {
        if self.last.len() >= self.max {
            self.last.pop_front();
        }
        self.last.push_back((axis, span, origin));
    }

    /// The first of them that has ids of `span`. Looks through all of them: somebody is woken up for it.
    pub(super) fn with_any_of(&self, axis: usize, span: Span) -> Option<(Span, Origin)> {
        let found = self
            .last
            .iter()
            .find(|(of, known, _)| *of == axis && known.common(span).is_some());
        found.map(|(_, known, origin)| (*known, *origin))
    }
}
