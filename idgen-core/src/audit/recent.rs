//! The last events and grants, so many and no more: what copies are compared with, and who is named in an alarm.

use super::Span;
use super::probe::Origin;
use super::saved::{Damaged, In, Out};
use std::collections::{HashMap, VecDeque};

/// Axis, source and number of an event in its stream.
pub(super) type EventNumber = (usize, u128, i64);

/// Earlier grants that are told of one that meets many of them. Whoever looks at it finds the others.
const NAMED: usize = 4;

/// One of the last events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Print {
    pub(super) print: u64,
    pub(super) at_us: i64,
    pub(super) origin: Origin,
}

/// What the last events were.
#[derive(Clone, Debug)]
pub(super) struct Prints {
    max: usize,
    order: VecDeque<EventNumber>,
    known: HashMap<EventNumber, Print>,
}

impl Prints {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            order: VecDeque::new(),
            known: HashMap::new(),
        }
    }

    /// Of an event that is not known yet, or stands now for the number.
    pub(super) fn keep(&mut self, number: EventNumber, print: Print) {
        if self.known.insert(number, print).is_some() {
            return;
        }
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(number);
    }

    pub(super) fn find(&self, number: &EventNumber) -> Option<Print> {
        self.known.get(number).copied()
    }

    pub(super) fn put(&self, out: &mut Out<'_>) {
        out.put(&(self.order.len() as u64));
        for number in &self.order {
            let Some(print) = self.known.get(number) else {
                continue;
            };
            out.put(&(number.0 as u64, (number.1, number.2)));
            out.put(&(print.print, (print.at_us, print.origin)));
        }
    }

    pub(super) fn take(from: &mut In<'_>, max: usize, axes: usize) -> Result<Self, Damaged> {
        let mut prints = Self::new(max);
        for _ in 0..from.count()? {
            let (at, (source, tag_seq)) = from.take()?;
            let (print, (at_us, origin)) = from.take()?;
            let print = Print { print, at_us, origin };
            prints.keep((axis(at, axes)?, source, tag_seq), print);
        }
        Ok(prints)
    }
}

fn axis(at: u64, axes: usize) -> Result<usize, Damaged> {
    let at = usize::try_from(at).ok().filter(|at| *at < axes);
    at.ok_or(Damaged("an event of it is of no tag"))
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
            max: max.max(1),
            last: VecDeque::new(),
        }
    }

    pub(super) fn keep(&mut self, axis: usize, span: Span, origin: Origin) {
        if self.last.len() >= self.max {
            self.last.pop_front();
        }
        self.last.push_back((axis, span, origin));
    }

    /// The first of them that have ids of `span`. Looks through all of them: somebody is woken up for it.
    pub(super) fn with_any_of(&self, axis: usize, span: Span) -> Vec<(Span, Origin)> {
        let found = self
            .last
            .iter()
            .filter(|(of, known, _)| *of == axis && known.common(span).is_some());
        found
            .map(|(_, known, origin)| (*known, *origin))
            .take(NAMED)
            .collect()
    }

    pub(super) fn put(&self, out: &mut Out<'_>) {
        out.put(&(self.last.len() as u64));
        for (at, span, origin) in &self.last {
            out.put(&(*at as u64, (*span, *origin)));
        }
    }

    pub(super) fn take(from: &mut In<'_>, max: usize, axes: usize) -> Result<Self, Damaged> {
        let mut grants = Self::new(max);
        for _ in 0..from.count()? {
            let (at, (span, origin)) = from.take()?;
            grants.keep(axis(at, axes)?, span, origin);
        }
        Ok(grants)
    }
}
