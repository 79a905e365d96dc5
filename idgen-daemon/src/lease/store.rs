//! What a lease store must be able to do.

use idgen_core::clock::UnixMs;
use idgen_core::lease::epoch::not_itself;
use idgen_core::lease::{
    AdvancePlan, Anchor, BootId, Cell, CellId, Epoch, EpochNonce, GrantPlan, InstanceId, Mark, Revision,
    Snapshot, StoreIdentity, Survey, SwitchPlan, Tenancy, Token, Told,
};
use std::fmt;
use std::future::Future;
use uuid::Uuid;

/// Who asks.
#[derive(Clone, Debug)]
pub struct HolderName {
    /// Random, new at every start of the daemon: what the store's rows are compared with.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
}

/// Windows to commit for a lease that is held: all of them, or nothing.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The epoch of the tokens.
    pub epoch: Epoch,
    /// Its name.
    pub epoch_nonce: EpochNonce,
    /// The plan of formats that the windows were made with.
    pub formats: String,
    /// The shared memory the lease was granted for.
    pub boot_id: BootId,
    /// The windows, each with its token, and the revision that its row must have.
    pub leased: Vec<Tenancy>,
}

/// A grant or renewal that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the rows; of a grant it is also the second part of the token.
    pub revision: Revision,
    /// How long the store keeps the lease.
    pub ttl_ms: u64,
}

/// What is known after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// Nothing was done; try again.
    Unreachable,
    /// It may have been done: read before anything else.
    Unknown,
    /// Nothing was done, because the rows are not as expected: read again.
    Conflict,
    /// The store is not the one that it was, or was sealed: nothing is granted or renewed.
    Sealed,
    /// Nothing was done, and trying again will not help until somebody changes the store.
    Denied,
}

impl StoreErrorKind {
    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "store_unreachable",
            Self::Unknown => "store_unknown",
            Self::Conflict => "store_conflict",
            Self::Sealed => "store_sealed",
            Self::Denied => "store_denied",
        }
    }
}

/// An error of a lease store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// What is known afterwards.
    pub kind: StoreErrorKind,
    /// For people. Of a sealed store it is the reason alone.
    pub message: String,
    /// Of a sealed cell: its epoch.
    pub epoch: Option<Epoch>,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            epoch: None,
        }
    }

    /// The same; the cell is sealed in this epoch.
    pub(super) fn in_epoch(self, epoch: Epoch) -> Self {
        Self {
            epoch: Some(epoch),
            ..self
        }
    }

    /// The store is not to be believed, for this reason.
    pub fn sealed(reason: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Sealed, reason)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.message;
        match self.kind {
            StoreErrorKind::Sealed => write!(f, "sealed: {message} (hint: look at idgenctl epoch show)"),
            _ => f.write_str(message),
        }
    }
}

impl std::error::Error for StoreError {}

/// What a daemon writes into a store that was restored, so that nobody takes it for what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The cell that is meant; another one is left alone.
    pub cell_id: CellId,
    /// How it was found out, for people.
    pub reason: String,
    /// How far the daemon knows the cell to have come: the next epoch goes on from there.
    pub known: Told,
    /// What the store fell short of, if that was found just now: it may have been an old answer.
    pub remembered: Vec<Anchor>,
}

/// What the server of whoever asks has been served from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// It was not asked, or has not answered yet.
    #[default]
    Unknown,
    /// From no cell: it has answered.
    Nothing,
    /// From this one.
    Cell(CellId),
}

/// May a store that is empty get a new cell? It would be young, and lease at once while holders of one that was lost
/// may still mint.
pub(super) fn check_new(expected: Expected) -> Result<(), StoreError> {
    let message = match expected {
        Expected::Nothing => return Ok(()),
        Expected::Unknown => {
            "the lease store is empty (hint: the first idgend makes the cell, as soon as its postgres has \
                              said that it was never served from another one)"
                .to_owned()
        }
        Expected::Cell(cell_id) => format!(
            "the lease store is empty, and cell {} is expected (hint: it was deleted or made anew; put it back from a \
             backup, or see \"A lease store that is gone\" in docs/operations.md)",
            Uuid::from_u128(cell_id.0)
        ),
    };
    Err(StoreError::new(StoreErrorKind::Denied, message))
}

/// Is the cell the one that was planned on?
pub(super) fn check_plan(same_epoch: bool, same_formats: bool) -> Result<(), StoreError> {
    let changed = match (same_epoch, same_formats) {
        (true, true) => return Ok(()),
        (false, _) => "the epoch was advanced",
        (true, false) => "the worker format was switched",
    };
    Err(StoreError::new(StoreErrorKind::Conflict, changed))
}

/// May the store `here` serve the cell?
pub(super) fn check_open(
    cell: &Cell,
    here: &StoreIdentity,
    sealed_reason: Option<&str>,
) -> Result<(), StoreError> {
    if let Some(reason) = sealed_reason {
        return Err(StoreError::sealed(reason).in_epoch(cell.epoch));
    }
    if cell.identity != *here {
        return Err(StoreError::sealed(not_itself(&cell.identity, here)).in_epoch(cell.epoch));
    }
    Ok(())
}

/// The lease store of one class: a few rows with compare-and-swap. It decides nothing; what to ask for is planned by
/// the core on a [`Snapshot`], and each write names what it was planned on. Whoever writes has read before.
pub trait LeaseStore: Send + 'static {
    /// What a store that is empty is judged by from now on: a look makes a new cell only for a server that was served
    /// from none. Otherwise it is `Denied`, for somebody may still mint by what it has forgotten.
    fn expect(&mut self, expected: Expected);

    /// The cell and all rows of the class at one moment, and the store's revision. Makes the cell when the store is
    /// new and nothing else is expected. `Sealed` when the cell says so, when it belongs to another store than this one, or when a row is missing
    /// that must be there. Whether the store is *older* than it was is not judged here: see
    /// [`idgen_core::lease::Pins`], which the caller keeps.
    fn read(&mut self) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Grants what was planned if epoch and formats of the cell are those of the plan, and every row is still as it was
    /// seen and has no holder (or one that has expired by the store's clock, or the one that the plan replaces), else
    /// `Conflict`.
    fn grant(&mut self, plan: &GrantPlan) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Commits the windows and a new TTL if epoch and formats of the cell are those of the renewal, and every identity
    /// is held under its token, and its row has the guard's revision, and no order of an operator stands against the
    /// token ([`super::OrderStore`]), else `Conflict`. A lease that has expired
    /// without anybody taking it is renewed where the store still shows it.
    fn renew(&mut self, renewal: &Renewal) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Gives identities back with their exact high waters. Those that the store does not show under
    /// this token and boot id any more are left alone; the others are returned.
    fn release(
        &mut self,
        boot_id: BootId,
        marks: &[Mark],
    ) -> impl Future<Output = Result<Vec<Mark>, StoreError>> + Send;

    /// Seals the cell for everybody, until its epoch is advanced, and writes down when, and what is known beyond it. A seal that
    /// is there already stays; what is known is added all the same ([`Told::sealed_with`]). An epoch above what is known was begun by an operator since it was
    /// looked at: it is left alone, for nothing is known against it.
    /// False: nothing was done, because the store is all that is remembered of it (a store that may give old answers
    /// looks again).
    fn seal(&mut self, seal: &Seal) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// What an operator changes of a cell.
pub trait CellStore: LeaseStore {
    /// The store's clock; of a store without one, that of this host.
    fn clock(&mut self) -> impl Future<Output = Result<UnixMs, StoreError>> + Send;

    /// The whole store, sealed or not. `None`: it is new; no cell is made.
    fn survey(&mut self) -> impl Future<Output = Result<Option<Survey>, StoreError>> + Send;

    /// Advances the epoch, opens the seal and records the change, in one step, if the cell has the epoch that it was
    /// planned on and this is the store that was planned for, else `Conflict`. Rows and holders stay as they are.
    /// Whoever advances has surveyed before.
    fn advance(&mut self, plan: &AdvancePlan) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes the switch if the cell has the formats that it was planned on, and no row has a ceiling at or
    /// above its moment, else `Conflict`. No grant or renewal slips in between. Whoever switches has read
    /// the rows of workers before.
    fn switch(&mut self, plan: &SwitchPlan) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// `token` as a grant at `revision` of `epoch` gives it.
pub(super) fn token_of(epoch: Epoch, committed: Committed) -> Token {
    Token {
        epoch,
        revision: committed.revision,
    }
}
