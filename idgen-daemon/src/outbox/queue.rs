//! A queue of events in a database: what is read, and how it is marked. Both kinds are drained by the same rules.

use super::lease::{Held, Stream};
use crate::error::Result;
use crate::event::Event;
use crate::postgres::Session;
use idgen_core::outbox::Poison;
use std::fmt;
use std::future::Future;

/// One event, and its place in the queue.
#[derive(Debug)]
pub struct Row<K> {
    /// Names it in the queue.
    pub key: K,
    /// As it is sent, but for what makes it a stub.
    pub event: Event,
    /// It was too long to be read: only its length and hash were, and `event` is a stub already.
    pub is_stub: bool,
}

/// What one look has found.
#[derive(Debug)]
pub struct Page<K> {
    /// In the order in which they are to be sent.
    pub rows: Vec<Row<K>>,
    /// Of this page that is not all: there is more behind it.
    pub more: bool,
}

/// What became of marks.
#[derive(Debug, PartialEq, Eq)]
pub enum Marked<K> {
    /// These are done.
    Done(Vec<K>),
    /// Nothing was changed: either it was done before, or the lease is not in force.
    Nothing,
}

/// What is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Watched {
    /// Events that wait.
    pub backlog: i64,
    /// For how long the oldest has waited.
    pub oldest_s: f64,
    /// Dead letters that were not sent whole after all.
    pub dead: i64,
}

/// See the module.
pub trait Queue: Send + 'static {
    /// Names an event in it.
    type Key: Ord + Copy + Send + Sync + fmt::Debug;

    /// Whose lease it takes.
    const STREAM: Stream;

    /// Forgets what was read: the next look begins at the beginning.
    fn reset(&mut self);

    /// Looks for at most so many events.
    fn look(
        &mut self,
        session: &Session,
        now_ms: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Self::Key>>> + Send;

    /// The first `taken` of the last page are in flight now; `lowest` is the lowest of all that are.
    fn took(&mut self, now_ms: u64, taken: usize, lowest: Option<Self::Key>);

    /// Marks what the broker has, under this lease.
    fn mark(
        &mut self,
        session: &Session,
        held: Held,
        keys: &[Self::Key],
    ) -> impl Future<Output = Result<Marked<Self::Key>>> + Send;

    /// Keeps the whole of an event that goes as a stub.
    fn keep_dead(
        &mut self,
        session: &Session,
        row: &Row<Self::Key>,
        why: Poison,
    ) -> impl Future<Output = Result<()>> + Send;

    /// What is behind. Also notes what is complete.
    fn watch(&mut self, session: &Session, held: Held) -> impl Future<Output = Result<Watched>> + Send;
}
