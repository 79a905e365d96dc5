//! Carries the keeper's requests to the store, one at a time and without blocking it.
//!
//! A request owns the store while it runs. One more may wait; a third replaces the one that waits,
//! because the core never awaits more than its newest request.

mod renewal;
mod seals;

use super::store::{Expected, HolderName, LeaseStore, StoreError, StoreErrorKind, token_of};
use crate::complaint::Complaint;
use crate::error::Error;
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::keeper::{Event, Held, Ticket};
use idgen_core::lease::ledger::{Attempt, Grant, settle_grant};
use idgen_core::lease::listed::not_free;
use idgen_core::lease::pool::{PlanError, PlanFor, plan_grant};
use idgen_core::lease::{
    Anchor, Applicant, BootId, Cell, CellId, Drain, Leased, Mark, Memory, NotFree, Occupancy, Pins, Reach,
    Revision, Snapshot, Timing, Told, Trust, Unsettled, Waits, Wanted,
};
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;
use uuid::Uuid;

/// A release is tried this often when the store is away: at a stop nothing else is left to wait for.
const RELEASE_TRIES: u32 = 3;
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// A grant that meets rows which have changed is planned again at once, this often; after that the core
/// makes its pause. Of 200 daemons that started together the unluckiest needed 4 tries (`make bench-leases`).
const GRANT_TRIES: u64 = 8;

/// Where our own clock begins: another daemon was here before.
const BEGAN: BootMs = BootMs(1 << 40);

/// A request to the store.
#[derive(Debug)]
pub(super) enum Request {
    Census(Census),
    /// Is the store what it was? Nobody waits for the answer; whoever looks seals one that is not.
    Look(Remembered),
    /// May a lease be taken? Asked for where a daemon before this one left something open: no cell is made for it.
    Probe {
        ticket: Ticket,
        remembered: Remembered,
        wall: UnixMs,
    },
    Acquire(Acquire),
    Renew {
        ticket: Ticket,
        held: Held,
        wanted: Vec<Leased>,
    },
    Release {
        ticket: Ticket,
        boot_id: BootId,
        marks: Vec<Mark>,
    },
}

/// What the server remembers of its store.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    /// The cell that the server has been served from; it takes no other.
    pub(super) cell: Option<CellId>,
    pub(super) anchors: Vec<Anchor>,
    /// A moment before the store was asked for what its anchor of this class tells of.
    pub(super) asked: Option<tokio::time::Instant>,
    /// How identities of stores in its databases begin.
    pub(super) home: Option<String>,
}

impl Remembered {
    fn served_from(&self) -> Expected {
        self.cell.map_or(Expected::Unknown, Expected::Cell)
    }
}

/// A request for a grant, with all that the plan depends on.
#[derive(Debug)]
pub(super) struct Acquire {
    pub(super) ticket: Ticket,
    pub(super) boot_id: BootId,
    pub(super) remembered: Remembered,
    pub(super) reading: ClockReading,
    pub(super) doubt: Option<Attempt>,
    pub(super) memory: Memory,
    pub(super) wanted: Wanted,
    pub(super) random: u64,
}

/// A look at the pool; nobody waits for it.
#[derive(Debug)]
pub(super) struct Census {
    pub(super) reading: ClockReading,
    pub(super) memory: Memory,
    pub(super) wanted: Wanted,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Answer {
    /// For the core, where it has asked.
    pub(super) event: Option<Event>,
    /// Ends the daemon.
    pub(super) refused: Option<Error>,
    /// For the log.
    pub(super) trouble: Option<StoreError>,
    /// Windows that were committed, or may have been.
    pub(super) asked: Vec<Leased>,
    /// Marks that the store took.
    pub(super) released: Vec<Mark>,
    /// Which of the listed identities could not be had, for people; `None`: no grant was asked for.
    pub(super) missing: Option<Vec<NotFree>>,
}

impl Answer {
    fn of(event: impl Into<Option<Event>>) -> Self {
        Self {
            event: event.into(),
            refused: None,
            trouble: None,
            asked: Vec::new(),
            released: Vec::new(),
            missing: None,
        }
    }

    fn failed(event: impl Into<Option<Event>>, trouble: StoreError) -> Self {
        Self {
            trouble: Some(trouble),
            ..Self::of(event)
        }
    }
}

/// The store, and what is known of it.
struct Clerk<S> {
    store: S,
    holder: HolderName,
    timing: Timing,
    waits: Waits,
    began: tokio::time::Instant,
    /// Before the request that is under way.
    asked: BootMs,
    cell: Option<Cell>,
    /// What was seen of the store, here and by the server.
    pins: Pins,
    trust: Trust,
    remembered: Remembered,
    /// The seal that was told what is known, and what that was.
    told: Option<(String, Vec<Told>)>,
    seal_trouble: Complaint,
    pool: Option<Occupancy>,
    /// Our server is drained, as the last look says.
    drained: Option<Drain>,
    /// Ends the daemon.
    refused: Option<Error>,
}

type Running<S> = Pin<Box<dyn Future<Output = (Clerk<S>, Answer)> + Send>>;

/// See the module.
pub(super) struct Desk<S> {
    idle: Option<Clerk<S>>,
    running: Option<Running<S>>,
    waiting: Option<Request>,
    cell: Option<Cell>,
    anchor: Option<Anchor>,
    pool: Option<Occupancy>,
    drained: Option<Drain>,
}

impl<S: LeaseStore> Desk<S> {
    pub(super) fn new(store: S, holder: HolderName, timing: Timing, reach: Reach) -> Self {
        let clerk = Clerk {
            store,
            holder,
            timing,
            waits: Waits::of(&timing, reach),
            began: tokio::time::Instant::now(),
            asked: BootMs(0),
            cell: None,
            pins: Pins::default(),
            trust: Trust::default(),
            remembered: Remembered::default(),
            told: None,
            seal_trouble: Complaint::default(),
            pool: None,
            drained: None,
            refused: None,
        };
        Self {
            idle: Some(clerk),
            running: None,
            waiting: None,
            cell: None,
            anchor: None,
            pool: None,
            drained: None,
        }
    }

    /// The cell, once the store has been read.
    pub(super) fn cell(&self) -> Option<&Cell> {
        self.cell.as_ref()
    }

    /// What the server must write down before it uses what was committed last.
    pub(super) fn anchor(&self) -> Option<&Anchor> {
        self.anchor.as_ref()
    }

    /// How full the pool was when it was last looked at; never of shards.
    pub(super) fn pool(&self) -> Option<Occupancy> {
        self.pool
    }

    /// The server is drained, as far as the store was last looked at.
    pub(super) fn drained(&self) -> Option<&Drain> {
        self.drained.as_ref()
    }

    /// Only when nothing else is to be done: what the core asks for comes first.
    pub(super) fn submit_if_idle(&mut self, request: Request) {
        if self.idle.is_some() {
            self.submit(request);
        }
    }

    pub(super) fn submit(&mut self, request: Request) {
        match self.idle.take() {
            Some(clerk) => self.running = Some(Box::pin(clerk.handle(request))),
            None => self.waiting = Some(request),
        }
    }

    /// The next answer; never comes when nothing runs. May be dropped and called again.
    pub(super) async fn answer(&mut self) -> Answer {
        let Some(running) = &mut self.running else {
            return pending().await;
        };
        let (clerk, answer) = running.await;
        self.running = None;
        self.cell.clone_from(&clerk.cell);
        self.anchor = clerk.pins.anchor().cloned();
        self.pool = clerk.pool;
        self.drained.clone_from(&clerk.drained);
        self.idle = Some(clerk);
        if let Some(request) = self.waiting.take() {
            self.submit(request);
        }
        answer
    }
}

impl<S: LeaseStore> Clerk<S> {
    async fn handle(mut self, request: Request) -> (Self, Answer) {
        self.asked = self.now();
        let mut answer = match request {
            Request::Probe {
                ticket,
                remembered,
                wall,
            } => self.probe(ticket, remembered, wall).await,
            Request::Look(remembered) => {
                let server = remembered.served_from();
                self.remembered = remembered;
                match self.read(server).await {
                    Ok(_) => Answer::of(None),
                    Err(error) => Answer::failed(None, error),
                }
            }
            Request::Acquire(acquire) => self.acquire(acquire).await,
            Request::Census(census) => self.take_census(census).await,
            Request::Renew { ticket, held, wanted } => self.renew(ticket, &held, wanted).await,
            Request::Release {
                ticket,
                boot_id,
                marks,
            } => self.release(ticket, boot_id, &marks).await,
        };
        answer.refused = answer.refused.or(self.refused.take());
        (self, answer)
    }

    /// On a clock of our own, which goes on while the server is away.
    fn now(&self) -> BootMs {
        self.on_our_clock(tokio::time::Instant::now())
    }

    fn on_our_clock(&self, at: tokio::time::Instant) -> BootMs {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        BEGAN
            .saturating_add(ms(at.saturating_duration_since(self.began)))
            .saturating_sub(ms(self.began.saturating_duration_since(at)))
    }

    /// The claims of an earlier daemon are closed when this one may take a lease, not before.
    async fn probe(&mut self, ticket: Ticket, remembered: Remembered, wall: UnixMs) -> Answer {
        let server = remembered.served_from();
        self.remembered = remembered;
        let settled = match self.read(server).await {
            Ok(snapshot) => self.settled(&snapshot, wall),
            Err(error) => return Answer::failed(Event::ProbeFailed { ticket }, error),
        };
        match settled {
            Ok(()) => Answer::of(Event::Probed { ticket }),
            Err(unsettled) => Answer::failed(Event::ProbeFailed { ticket }, waiting(unsettled)),
        }
    }

    /// May a lease be taken from the store as it was just seen?
    fn settled(&self, snapshot: &Snapshot, wall: UnixMs) -> Result<(), Unsettled> {
        let Remembered {
            anchors, asked, home, ..
        } = &self.remembered;
        let cell = &snapshot.cell;
        let is_home = home
            .as_ref()
            .is_some_and(|home| cell.identity.as_str().starts_with(home));
        let applicant = Applicant {
            asked: self.asked,
            wall,
            remembers: anchors.iter().any(|anchor| anchor.cell_id == cell.cell_id),
            committed: asked.map(|asked| self.on_our_clock(asked)),
            at_home: is_home.then_some(self.holder.name.as_str()),
        };
        self.trust.settled(&self.waits, snapshot, &applicant)
    }

    /// Reads, and seals a store that is not what it was. `server`: what was said by the server that it is read for.
    async fn read(&mut self, server: Expected) -> Result<Snapshot, StoreError> {
        self.asked = self.now();
        let seen = self.pins.anchor().map(|seen| Expected::Cell(seen.cell_id));
        self.store.expect(seen.unwrap_or(server));
        let snapshot = match self.store.read().await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                if error.kind == StoreErrorKind::Sealed {
                    if let Some(epoch) = error.epoch {
                        self.trust.note_sealed(epoch);
                    }
                    self.tell(&error.message).await;
                }
                return Err(error);
            }
        };
        let latched = self.pins.has_departed();
        match self.pins.judge(&snapshot, &self.remembered.anchors) {
            Ok(()) => {
                let around = (self.asked, self.now());
                self.trust.note_look(&self.waits, &snapshot, around, latched);
                self.told = None;
                self.cell = Some(snapshot.cell.clone());
                self.drained = snapshot.drained().cloned();
                Ok(snapshot)
            }
            Err(departure) => Err(self.sealed(&snapshot, &departure, latched).await),
        }
    }

    /// `asked`: before the request.
    fn note_committed(&mut self, leased: &[Leased], revision: Revision, asked: BootMs) {
        self.trust.note_committed(asked);
        if let Some(first) = leased.first() {
            self.pins.note_committed(first.identity, revision);
        }
    }

    async fn acquire(&mut self, acquire: Acquire) -> Answer {
        let ticket = acquire.ticket;
        self.remembered.clone_from(&acquire.remembered);
        let server = acquire.remembered.cell.map_or(Expected::Nothing, Expected::Cell);
        let mut snapshot = match self.read(server).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let doubt = acquire.doubt;
                return Answer::failed(Event::GrantFailed { ticket, doubt }, error);
            }
        };
        if let Err(refused) = same_cell(acquire.remembered.cell, snapshot.cell.cell_id) {
            let event = Event::GrantFailed { ticket, doubt: None };
            return Answer {
                refused: Some(refused),
                ..Answer::of(event)
            };
        }
        if let Some(attempt) = &acquire.doubt
            && let Some(grant) = settle_grant(&snapshot, attempt, self.holder.instance, self.timing.ttl_ms())
        {
            tracing::info!(token = %grant.token, "found the grant whose answer was lost");
            self.note_committed(&grant.leased, grant.guard, BootMs(0));
            return Answer::of(Event::Granted { ticket, grant });
        }
        // Asked again all the time: that is how it is noticed that somebody has resumed the server.
        let nothing = || Answer::of(Event::GrantFailed { ticket, doubt: None });
        if self.drained.is_some() {
            return nothing();
        }
        if let Err(unsettled) = self.settled(&snapshot, acquire.reading.wall) {
            return Answer::failed(Event::GrantFailed { ticket, doubt: None }, waiting(unsettled));
        }
        let mut tries = 1;
        loop {
            self.count_pool(&snapshot, &acquire.memory, acquire.reading, &acquire.wanted);
            let answer = self.grant(&snapshot, &acquire, tries).await;
            let conflict = |error: &StoreError| error.kind == StoreErrorKind::Conflict;
            if tries == GRANT_TRIES || !answer.trouble.as_ref().is_some_and(conflict) {
                return answer;
            }
            tracing::debug!(tries, "another daemon was faster; choosing again");
            tries += 1;
            snapshot = match self.read(server).await {
                Ok(snapshot) => snapshot,
                Err(error) => return Answer::failed(Event::GrantFailed { ticket, doubt: None }, error),
            };
            if self.drained.is_some() {
                return nothing();
            }
        }
    }

    /// Plans on this snapshot, and asks once.
    async fn grant(&mut self, snapshot: &Snapshot, acquire: &Acquire, tries: u64) -> Answer {
        let (ticket, boot_id, reading) = (acquire.ticket, acquire.boot_id, acquire.reading);
        let failed = |error| Answer::failed(Event::GrantFailed { ticket, doubt: None }, error);
        let asked = PlanFor {
            instance: self.holder.instance,
            boot_id,
            wall: reading.wall,
            wanted: &acquire.wanted,
            random: acquire.random.wrapping_mul(tries),
        };
        let missing = Some(not_free(snapshot, &acquire.memory, &self.timing, asked));
        let plan = match plan_grant(snapshot, &acquire.memory, &self.timing, asked) {
            Ok(plan) => plan,
            Err(PlanError::NotFree(_)) => {
                return Answer {
                    missing,
                    ..Answer::of(Event::GrantFailed { ticket, doubt: None })
                };
            }
            Err(error) => return failed(StoreError::new(StoreErrorKind::Denied, error.to_string())),
        };
        let asked: Vec<Leased> = plan.grants.iter().map(|planned| planned.leased).collect();
        match self.store.grant(&plan).await {
            Ok(committed) => {
                self.note_committed(&asked, committed.revision, self.asked);
                let grant = Grant {
                    boot_id,
                    token: token_of(plan.epoch, committed),
                    guard: committed.revision,
                    ttl_ms: committed.ttl_ms,
                    reading,
                    leased: asked.clone(),
                };
                Answer {
                    asked,
                    missing,
                    ..Answer::of(Event::Granted { ticket, grant })
                }
            }
            Err(error) if error.kind == StoreErrorKind::Unknown => {
                let doubt = Some(Attempt { plan, reading });
                Answer {
                    asked,
                    ..Answer::failed(Event::GrantFailed { ticket, doubt }, error)
                }
            }
            Err(error) => failed(error),
        }
    }

    /// Looks how full the pool is, for nobody but whoever watches.
    async fn take_census(&mut self, census: Census) -> Answer {
        match self.read(Expected::Unknown).await {
            Ok(snapshot) => {
                self.count_pool(&snapshot, &census.memory, census.reading, &census.wanted);
                Answer::of(None)
            }
            Err(error) => Answer::failed(None, error),
        }
    }

    /// Shards have no pool: each server names its own.
    fn count_pool(&mut self, snapshot: &Snapshot, memory: &Memory, reading: ClockReading, wanted: &Wanted) {
        if matches!(wanted, Wanted::Any(_)) {
            self.pool = Some(Occupancy::of(snapshot, memory, reading.wall));
        }
    }

    async fn release(&mut self, ticket: Ticket, boot_id: BootId, marks: &[Mark]) -> Answer {
        let mut tries = 1;
        loop {
            match self.store.release(boot_id, marks).await {
                Ok(released) => {
                    return Answer {
                        released,
                        ..Answer::of(Event::Released { ticket })
                    };
                }
                Err(error) if tries < RELEASE_TRIES && error.kind != StoreErrorKind::Sealed => {
                    tracing::debug!("release fails, try {tries}: {error}");
                    tries += 1;
                    tokio::time::sleep(RELEASE_PAUSE).await;
                }
                Err(error) => return Answer::failed(Event::ReleaseFailed { ticket }, error),
            }
        }
    }
}

fn waiting(unsettled: Unsettled) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, unsettled.to_string())
}

/// A server takes leases of one cell only. It would refuse the grant; not to ask for it spares the
/// identities of the other cell.
fn same_cell(server: Option<CellId>, store: CellId) -> Result<(), Error> {
    let Some(server) = server.filter(|server| *server != store) else {
        return Ok(());
    };
    let (server, store) = (Uuid::from_u128(server.0), Uuid::from_u128(store.0));
    let message = format!("postgres has been served from cell {server}, the lease store is cell {store}");
    Err(Error::refused(message).with_hint("point idgend at the store of the server's cell"))
}

#[cfg(test)]
mod tests;
