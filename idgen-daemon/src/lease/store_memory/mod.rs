//! A lease store in memory, for tests: the rules of the real ones, a clock that a test moves, and every fault that a
//! store can have.
//!
//! The conformance suite holds it to what Postgres and etcd do; so what the keepers' simulation finds with it counts.
//! There is nothing to compact: no adapter reads the past.

mod drains;
mod named;
mod orders;
mod requests;
mod shards;
mod store;

use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::{Request, RequestId};
use idgen_core::lease::epoch::not_itself;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{
    AdvancePlan, Assignment, BootId, CellId, Class, Drain, Epoch, EpochChange, EpochNonce, GrantPlan,
    Identity, InstanceId, Leased, Mark, Order, Revision, Snapshot, StoreIdentity, Survey, SwitchPlan, Token,
    Told,
};
use idgen_daemon::lease::{
    Committed, Expected, HolderName, Renewal, Seal, StoreError, StoreErrorKind, host_clock,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use named::Names;
pub use store::MemoryStore;

type Result<T> = std::result::Result<T, StoreError>;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// It never gets there, and the daemon knows.
    Away,
    /// It never gets there, and the daemon cannot know.
    RequestLost,
    /// It is done, and the answer gets lost.
    AnswerLost,
    /// The daemon gives up waiting, and it is done later: see [`MemoryPlace::arrive`].
    Late,
}

/// Where the time comes from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// That of this host.
    Real,
    /// A test's.
    At(UnixMs),
}

/// All that a backup has.
#[derive(Clone, Debug, Default)]
struct Books {
    cell: Option<CellRow>,
    revision: u64,
    rows: BTreeMap<(Class, Identity), Stored>,
    history: Vec<EpochChange>,
    names: Names,
    orders: BTreeMap<(Class, Identity), Order>,
    assignments: BTreeMap<Identity, Assignment>,
    drains: BTreeMap<String, Drain>,
    requests: BTreeMap<RequestId, Request>,
    approvals_needed: Option<u32>,
}

#[derive(Clone, Debug)]
struct CellRow {
    /// With the floor of workers.
    cell: Cell,
    shard_min_floor: UnixMs,
    sealed_reason: Option<String>,
    sealed_at: Option<UnixMs>,
    known: Told,
}

#[derive(Clone, Debug)]
struct Stored {
    generation: u64,
    ceiling: UnixMs,
    revision: Revision,
    lent: Option<Lent>,
}

#[derive(Clone, Debug)]
struct Lent {
    by: HolderName,
    token: Token,
    boot_id: BootId,
    expires_at: UnixMs,
}

/// A window that was granted, and how far it was raised: never forgotten, whatever becomes of the store.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    pub floor: UnixMs,
    pub ceiling: UnixMs,
}

type Change = Box<dyn FnOnce(&mut Ground) + Send>;

struct Ground {
    books: Books,
    clock: Clock,
    /// What the store is.
    here: StoreIdentity,
    cells_made: u128,
    fault: Fault,
    /// Requests that are done later.
    late: Vec<Change>,
    granted: HashMap<(Class, Identity, Token, BootId), Granted>,
}

/// The place, which many daemons can open.
#[derive(Clone)]
pub struct MemoryPlace(Arc<Mutex<Ground>>);

/// A backup of it.
pub struct Backup(Books);

impl MemoryPlace {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Mutex::new(Ground {
            books: Books::default(),
            clock,
            here: identity(1),
            cells_made: 0,
            fault: Fault::None,
            late: Vec::new(),
            granted: HashMap::new(),
        })))
    }

    pub fn open(&self, class: Class, holder: HolderName, ttl_ms: u64) -> MemoryStore {
        let asker = Asker {
            class,
            holder,
            ttl_ms,
        };
        MemoryStore {
            place: self.clone(),
            asker,
            expected: Expected::Unknown,
        }
    }

    fn ground(&self) -> MutexGuard<'_, Ground> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of requests from now on.
    pub fn set_fault(&self, fault: Fault) {
        self.ground().fault = fault;
    }

    pub fn set_clock(&self, now: UnixMs) {
        self.ground().clock = Clock::At(now);
    }

    /// The store has been used.
    pub fn make_cell(&self) {
        self.ground().cell();
    }

    pub fn has_cell(&self) -> bool {
        self.ground().books.cell.is_some()
    }

    /// These are somebody's for so long.
    pub fn occupy(&self, class: Class, identities: impl Iterator<Item = Identity>, expires_at: UnixMs) {
        let mut ground = self.ground();
        for identity in identities {
            let lent = Lent {
                by: HolderName {
                    instance: InstanceId(0),
                    name: String::new(),
                },
                token: Token::default(),
                boot_id: BootId(0),
                expires_at,
            };
            let stored = Stored {
                generation: 1,
                ceiling: UnixMs(0),
                revision: Revision(0),
                lent: Some(lent),
            };
            ground.books.rows.insert((class, identity), stored);
        }
    }

    /// Requests that were late are done.
    pub fn arrive(&self) {
        let mut ground = self.ground();
        for change in std::mem::take(&mut ground.late) {
            change(&mut ground);
        }
    }

    /// Every lease ends now.
    pub fn expire(&self) {
        let mut ground = self.ground();
        let now = ground.now();
        let lent = ground.books.rows.values_mut().filter_map(|row| row.lent.as_mut());
        // What is somebody's for ever stays so.
        for lent in lent.filter(|lent| lent.expires_at < UnixMs(u64::MAX)) {
            lent.expires_at = lent.expires_at.min(now);
        }
        for lent in ground.books.names.lent() {
            lent.expires_at = lent.expires_at.min(now);
        }
    }

    pub fn backup(&self) -> Backup {
        Backup(self.ground().books.clone())
    }

    /// What was done since is forgotten. The store is another one then, as etcd with a new cluster token or a
    /// promoted Postgres is. What was late is lost.
    pub fn restore(&self, backup: &Backup, number: u32) {
        let mut ground = self.ground();
        ground.books = backup.0.clone();
        ground.here = identity(number);
        ground.late.clear();
    }

    /// All of it is deleted; whoever asks next makes a new cell.
    pub fn wipe(&self) {
        self.ground().books = Books::default();
    }

    pub fn seal(&self, reason: &str) {
        if let Some(row) = &mut self.ground().books.cell {
            row.sealed_reason = Some(reason.to_owned());
        }
    }

    /// The next epoch has another name; holders stay as they are.
    pub fn advance_epoch(&self) {
        if let Some(row) = &mut self.ground().books.cell {
            row.cell.epoch.0 += 1;
            row.cell.epoch_nonce.0 += 1_000;
        }
    }

    /// How many windows were ever granted.
    pub fn grants(&self) -> usize {
        self.ground().granted.len()
    }

    /// The window that was granted under this token, as far as it was raised.
    pub fn granted(
        &self,
        class: Class,
        identity: Identity,
        token: Token,
        boot_id: BootId,
    ) -> Option<Granted> {
        self.ground()
            .granted
            .get(&(class, identity, token, boot_id))
            .copied()
    }
}

fn identity(number: u32) -> StoreIdentity {
    StoreIdentity::new(&format!("memory/{number}")).unwrap_or_else(|| unreachable!("visible and short"))
}

fn refused<T>(kind: StoreErrorKind, message: impl Into<String>) -> Result<T> {
    Err(StoreError::new(kind, message))
}

fn sealed(reason: String, cell: &Cell) -> StoreError {
    StoreError {
        epoch: Some(cell.epoch),
        ..StoreError::sealed(reason)
    }
}

impl Ground {
    fn now(&self) -> UnixMs {
        match self.clock {
            Clock::At(now) => now,
            Clock::Real => host_clock(),
        }
    }

    /// The cell, which is made where there is none.
    fn cell(&mut self) -> &mut CellRow {
        let (now, here) = (self.now(), self.here.clone());
        let made = &mut self.cells_made;
        self.books.cell.get_or_insert_with(|| {
            *made += 1;
            CellRow {
                cell: Cell {
                    cell_id: CellId(*made),
                    worker_format: "classic".to_owned(),
                    epoch: Epoch(0),
                    epoch_nonce: EpochNonce(*made),
                    epoch_since: now,
                    identity: here,
                    min_floor: UnixMs(0),
                },
                shard_min_floor: UnixMs(0),
                sealed_reason: None,
                sealed_at: None,
                known: Told::default(),
            }
        })
    }

    /// The cell, if this store may serve it.
    fn open_cell(&mut self) -> Result<CellRow> {
        let here = self.here.clone();
        let row = self.cell().clone();
        if let Some(reason) = &row.sealed_reason {
            return Err(sealed(reason.clone(), &row.cell));
        }
        if row.cell.identity != here {
            return Err(sealed(not_itself(&row.cell.identity, &here), &row.cell));
        }
        Ok(row)
    }

    fn open_as(&mut self, epoch: Epoch, nonce: EpochNonce, formats: &str) -> Result<()> {
        let cell = self.open_cell()?.cell;
        if !cell.is_epoch(epoch, nonce) || cell.worker_format != formats {
            return refused(StoreErrorKind::Conflict, "the cell has changed");
        }
        Ok(())
    }

    fn raise_revision(&mut self) -> Revision {
        self.books.revision += 1;
        Revision(self.books.revision)
    }

    fn rows(&self, class: Class) -> Vec<Row> {
        let now = self.now();
        let of_class = self.books.rows.iter().filter(|((of, _), _)| *of == class);
        of_class
            .map(|((_, identity), row)| Row {
                identity: *identity,
                generation: row.generation,
                ceiling: row.ceiling,
                revision: row.revision,
                holder: row.lent.as_ref().map(|lent| Holder {
                    instance: lent.by.instance,
                    name: lent.by.name.clone(),
                    token: lent.token,
                    boot_id: lent.boot_id,
                    expired: lent.expires_at <= now,
                }),
            })
            .collect()
    }

    fn read(&mut self, class: Class, expected: Expected) -> Result<Snapshot> {
        if self.books.cell.is_none() && expected != Expected::Nothing {
            return refused(StoreErrorKind::Denied, "the lease store is empty");
        }
        let CellRow {
            mut cell,
            shard_min_floor,
            ..
        } = self.open_cell()?;
        if class == Class::Shard {
            cell.min_floor = shard_min_floor;
        }
        let revision = Revision(self.books.revision);
        Ok(Snapshot::new(cell, revision, self.rows(class)).with_orders(self.orders_of(class)))
    }

    fn grant(&mut self, who: &Asker, plan: &GrantPlan) -> Result<Committed> {
        self.open_as(plan.epoch, plan.epoch_nonce, &plan.formats)?;
        self.check_drain(&who.holder.name)?;
        let now = self.now();
        let as_planned = plan.grants.iter().all(|planned| {
            let row = self.books.rows.get(&(who.class, planned.leased.identity));
            let lent = row.and_then(|row| row.lent.as_ref());
            let free = lent.is_none_or(|lent| {
                lent.expires_at <= now
                    || lent.by.instance == who.holder.instance && planned.replaces.is_some()
            });
            let above = row.is_none_or(|row| row.ceiling < planned.leased.window.ceiling);
            row.map(|row| row.revision) == planned.seen && free && above
        });
        if !as_planned {
            return refused(StoreErrorKind::Conflict, "not all rows are as expected");
        }
        let revision = self.raise_revision();
        let token = Token {
            epoch: plan.epoch,
            revision,
        };
        for planned in &plan.grants {
            let Leased { identity, window } = planned.leased;
            let lent = Lent {
                by: who.holder.clone(),
                token,
                boot_id: plan.boot_id,
                expires_at: now.saturating_add(who.ttl_ms),
            };
            let stored = Stored {
                generation: planned.generation,
                ceiling: window.ceiling,
                revision,
                lent: Some(lent),
            };
            self.books.rows.insert((who.class, identity), stored);
            let granted = Granted {
                floor: window.floor,
                ceiling: window.ceiling,
            };
            self.granted
                .insert((who.class, identity, token, plan.boot_id), granted);
        }
        Ok(who.committed(revision))
    }

    fn renew(&mut self, who: &Asker, renewal: &Renewal) -> Result<Committed> {
        self.open_as(renewal.epoch, renewal.epoch_nonce, &renewal.formats)?;
        let now = self.now();
        let as_left = renewal.leased.iter().all(|leased| {
            let row = self.books.rows.get(&(who.class, leased.identity));
            row.is_some_and(|row| {
                row.revision == leased.guard
                    && row.ceiling <= leased.window.ceiling
                    && row.lent.as_ref().is_some_and(|lent| {
                        lent.by.instance == who.holder.instance
                            && (lent.token, lent.boot_id) == (leased.token, renewal.boot_id)
                    })
            })
        });
        let ordered = self.orders_of(who.class).against(&renewal.leased).is_some();
        if !as_left || ordered {
            return refused(StoreErrorKind::Conflict, "not all rows are as expected");
        }
        let revision = self.raise_revision();
        for leased in &renewal.leased {
            let Some(row) = self.books.rows.get_mut(&(who.class, leased.identity)) else {
                continue;
            };
            row.ceiling = leased.window.ceiling;
            row.revision = revision;
            if let Some(lent) = &mut row.lent {
                lent.expires_at = now.saturating_add(who.ttl_ms);
            }
            let key = (who.class, leased.identity, leased.token, renewal.boot_id);
            if let Some(granted) = self.granted.get_mut(&key) {
                granted.ceiling = granted.ceiling.max(leased.window.ceiling);
            }
        }
        Ok(who.committed(revision))
    }

    fn release(&mut self, class: Class, boot_id: BootId, marks: &[Mark]) -> Result<Vec<Mark>> {
        self.open_cell()?;
        let revision = self.raise_revision();
        let mut released = Vec::new();
        for mark in marks {
            let Some(row) = self.books.rows.get_mut(&(class, mark.claim.identity)) else {
                continue;
            };
            let shown = row.lent.as_ref().map(|lent| (lent.token, lent.boot_id));
            if shown == Some((mark.claim.token, boot_id)) && row.ceiling >= mark.last {
                row.lent = None;
                row.ceiling = mark.last;
                row.revision = revision;
                released.push(*mark);
            }
        }
        Ok(released)
    }

    fn seal(&mut self, class: Class, seal: &Seal) -> Result<bool> {
        let survey = self.survey()?;
        if survey.is_some_and(|survey| survey.is_all_that(class, &seal.remembered)) {
            return Ok(false);
        }
        let now = self.now();
        let meant = self.books.cell.as_mut();
        let Some(row) = meant.filter(|row| row.cell.cell_id == seal.cell_id) else {
            return Ok(true);
        };
        let is_sealed = row.sealed_reason.is_some();
        if let Some(known) = row.known.sealed_with(&seal.known, &row.cell, is_sealed) {
            row.known = known;
            row.sealed_reason.get_or_insert_with(|| seal.reason.clone());
            row.sealed_at.get_or_insert(now);
            self.raise_revision();
        }
        Ok(true)
    }

    fn survey(&mut self) -> Result<Option<Survey>> {
        let Some(row) = self.books.cell.clone() else {
            return Ok(None);
        };
        Ok(Some(Survey {
            cell: row.cell,
            shard_min_floor: row.shard_min_floor,
            here: self.here.clone(),
            sealed_reason: row.sealed_reason,
            sealed_at: row.sealed_at,
            damage: None,
            known: row.known,
            revision: Revision(self.books.revision),
            now: self.now(),
            workers: self.rows(Class::Worker),
            shards: self.rows(Class::Shard),
            history: self.books.history.clone(),
        }))
    }

    fn advance(&mut self, plan: &AdvancePlan) -> Result<()> {
        let here = self.here.clone();
        let Some(row) = self
            .books
            .cell
            .as_mut()
            .filter(|row| plan.is_for(&row.cell, &row.known, &here))
        else {
            return refused(StoreErrorKind::Conflict, "the cell has changed");
        };
        row.cell.epoch = plan.to;
        row.cell.epoch_nonce = plan.nonce;
        row.cell.epoch_since = plan.since;
        row.cell.identity = here.clone();
        row.cell.worker_format.clone_from(&plan.formats);
        row.known.formats.clear();
        row.cell.min_floor = row.cell.min_floor.max(plan.worker_min_floor);
        row.shard_min_floor = row.shard_min_floor.max(plan.shard_min_floor);
        row.sealed_reason = None;
        row.sealed_at = None;
        self.books.history.push(EpochChange {
            epoch: plan.to,
            at: plan.since,
            identity: here,
            by: plan.by.clone(),
            reason: plan.reason.clone(),
        });
        self.raise_revision();
        Ok(())
    }

    fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        let cell = self.open_cell()?.cell;
        let workers = self.rows(Class::Worker);
        if cell.worker_format != plan.seen || workers.iter().any(|row| row.ceiling >= plan.at) {
            return refused(StoreErrorKind::Conflict, "the cell has changed");
        }
        let cell = &mut self.cell().cell;
        cell.worker_format.clone_from(&plan.formats);
        cell.min_floor = cell.min_floor.max(plan.min_floor);
        self.raise_revision();
        Ok(())
    }
}

/// Who asks, for requests that may be done after the asker has gone.
#[derive(Clone)]
struct Asker {
    class: Class,
    holder: HolderName,
    ttl_ms: u64,
}

impl Asker {
    fn committed(&self, revision: Revision) -> Committed {
        Committed {
            revision,
            ttl_ms: self.ttl_ms,
        }
    }
}
