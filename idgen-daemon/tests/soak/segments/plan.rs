//! Which crash meets which moment of a refill, in which order: from the seed alone.

use std::fmt;

use crate::plan::Draws;

/// How far a refill has come when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Wherever it is just then.
    Any,
    /// It finds the row of the tag locked.
    BeforeUpdate,
    /// The row is raised, and its event cannot be written yet.
    BeforeCommit,
    /// It is committed here, and waits for a synchronous standby that there is not.
    BeforePublish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9 of a session that draws.
    BackendKilled,
    /// kill -9 of the refill worker.
    WorkerKilled,
    /// kill -9 of the postmaster alone.
    PostmasterKilled,
    /// Immediate shutdown.
    ServerStopped,
    /// kill -9 of every process.
    PowerCut,
    /// No segment of the write-ahead log can be made.
    LogDiskFull,
    /// `pg_cancel_backend` of the refill worker while it waits.
    WaitCancelled,
    /// `pg_terminate_backend` of it.
    WaitTerminated,
}

impl Fault {
    /// Whether memory is lost.
    pub fn is_crash(self) -> bool {
        !matches!(self, Fault::WaitCancelled | Fault::WaitTerminated)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    pub fault: Fault,
    pub moment: Moment,
    /// Ids that every session draws first.
    pub warm_up: u64,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.fault, self.moment)
    }
}

/// Every crash at every moment, and what has its own moment only.
fn deck() -> Vec<(Fault, Moment)> {
    let crashes = [
        Fault::BackendKilled,
        Fault::WorkerKilled,
        Fault::PostmasterKilled,
        Fault::ServerStopped,
        Fault::PowerCut,
    ];
    let moments = [
        Moment::Any,
        Moment::BeforeUpdate,
        Moment::BeforeCommit,
        Moment::BeforePublish,
    ];
    let mut deck: Vec<_> = crashes
        .into_iter()
        .flat_map(|fault| moments.map(|moment| (fault, moment)))
        // A worker that finds a locked row goes on with the next tag: there is nobody to kill at that moment.
        .filter(|pair| *pair != (Fault::WorkerKilled, Moment::BeforeUpdate))
        .collect();
    deck.push((Fault::LogDiskFull, Moment::Any));
    deck.push((Fault::WaitCancelled, Moment::BeforePublish));
    deck.push((Fault::WaitTerminated, Moment::BeforePublish));
    deck
}

/// As many rounds make the whole matrix once.
pub fn matrix() -> usize {
    deck().len()
}

/// Each pair comes once before one comes twice.
pub fn rounds(seed: u64) -> impl Iterator<Item = Round> {
    let mut draws = Draws::new(seed);
    let mut left = Vec::new();
    std::iter::repeat_with(move || {
        if left.is_empty() {
            left = deck();
        }
        let nth = usize::try_from(draws.below(left.len() as u64)).expect("an index");
        let (fault, moment) = left.swap_remove(nth);
        Round {
            fault,
            moment,
            warm_up: 1 + draws.below(200),
        }
    })
}

#[test]
fn a_seed_plans_the_same_and_all_of_the_matrix() {
    let planned = |seed| -> Vec<Round> { rounds(seed).take(matrix()).collect() };
    assert_eq!(planned(7), planned(7));
    assert_ne!(planned(7), planned(8));
    let mut names: Vec<String> = planned(7).iter().map(ToString::to_string).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), matrix());
}
