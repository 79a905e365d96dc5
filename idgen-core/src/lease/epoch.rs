//! Advancing the epoch of a store that was restored, promoted or moved: the one way to open a seal.
//!
//! The store has lost its newest grants, and holders of them may still mint. They cannot be met, because
//!
//! - the pool of workers is cut in two halves by the parity of the epoch ([`super::pool::half`]), and the new epoch
//!   leases from the other one. It rises above every epoch that was ever seen, by the store or by a server, so a
//!   store that was restored to a time before its last advance does not repeat that number;
//! - the half was in use two epochs ago at the latest, and two changes lie so far apart that every window of that
//!   time has run out ([`epoch_margin_ms`]); the new windows of workers begin above them;
//! - shards have no halves. Theirs begin above that margin, so they wait it out.
//!
//! Halves do not keep formats apart. So the new epoch has the furthest plan of formats that anybody is known to follow
//! ([`super::formats`]): a switch that a restore has lost is there again.
//!
//! Rows and holders of the old epoch stay as they are. Guards compare the epoch, so none of them is renewed here.
//!
//! What this cannot know: a side that goes on by itself, such as an old primary whose own database is its store. It
//! keeps its half. Before a *second* advance it must be gone.

use super::anchor::{Anchor, Departure};
use super::class::Class;
use super::formats::{PlansApart, furthest, switches_at};
use super::ledger::{Cell, Row, Snapshot};
use super::token::{CellId, Epoch, EpochNonce, Revision, StoreIdentity};
use super::told::Told;
use super::window::{SKEW_MS, epoch_margin_ms};
use crate::clock::UnixMs;
use core::fmt;

/// The whole store, sealed or not, read at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The cell, with the floor of workers.
    pub cell: Cell,
    /// No window of a shard begins below this.
    pub shard_min_floor: UnixMs,
    /// What the store is. The cell's `identity` is what it should be.
    pub here: StoreIdentity,
    /// Somebody has found that the store was restored.
    pub sealed_reason: Option<String>,
    /// When that was written into it.
    pub sealed_at: Option<UnixMs>,
    /// Something of the store is gone, or was changed by hand.
    pub damage: Option<String>,
    /// What daemons knew when they sealed the store, or found it sealed.
    pub known: Told,
    /// The store's revision.
    pub revision: Revision,
    /// The store's clock; of a store without one, that of the host that asks.
    pub now: UnixMs,
    /// Every worker that was ever leased.
    pub workers: Vec<Row>,
    /// Every shard that was ever leased.
    pub shards: Vec<Row>,
    /// The changes of the epoch, oldest first.
    pub history: Vec<EpochChange>,
}

/// One advance of the epoch, as the store has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochChange {
    /// The epoch that began.
    pub epoch: Epoch,
    /// When, by the store's clock.
    pub at: UnixMs,
    /// The store that it was advanced in.
    pub identity: StoreIdentity,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Survey {
    /// Why nothing is granted or renewed; `None`: the store is open. `anchors` are those of the server that the
    /// operator works at.
    #[must_use]
    pub fn sealed_because(&self, anchors: &[Anchor]) -> Option<String> {
        if let Some(reason) = self.sealed_reason.as_ref().or(self.damage.as_ref()) {
            return Some(reason.clone());
        }
        if self.cell.identity != self.here {
            return Some(not_itself(&self.cell.identity, &self.here));
        }
        let departures = of_cell(&self.cell, anchors)
            .filter_map(|anchor| anchor.admits(&self.cell, self.revision).err())
            .find(|departure| *departure != Departure::AnotherCell);
        departures.map(|departure| departure.to_string())
    }

    /// Is it open, and all that is remembered of its `class`? No, where nothing is.
    #[must_use]
    pub fn is_all_that(&self, class: Class, remembered: &[Anchor]) -> bool {
        let rows = match class {
            Class::Worker => &self.workers,
            Class::Shard => &self.shards,
        };
        let snapshot = Snapshot::new(self.cell.clone(), self.revision, rows.clone());
        self.sealed_because(&[]).is_none()
            && of_cell(&self.cell, remembered).next().is_some()
            && of_cell(&self.cell, remembered).all(|anchor| anchor.admits_rows(&snapshot).is_ok())
    }

    /// The highest epoch that anybody is known to have seen.
    fn highest(&self, anchors: &[Anchor]) -> Epoch {
        let anchored = of_cell(&self.cell, anchors).map(|anchor| anchor.epoch);
        anchored
            .chain([self.cell.epoch, self.known.epoch])
            .max()
            .unwrap_or_default()
    }

    /// How long it takes until every daemon that is alive and within reach has told the store the highest epoch that
    /// it knows, in ms: `grace_ms` ([`super::Timing::grace_ms`]) after it was sealed for all. `watched_ms`: for how long
    /// the store has been seen to be sealed at least, though it does not say since when.
    #[must_use]
    pub fn unheard_ms(&self, grace_ms: u64, watched_ms: u64) -> u64 {
        // Two clocks, where the store has none.
        let grace_ms = grace_ms.saturating_add(2 * SKEW_MS);
        let sealed_ms = self.sealed_at.map_or(0, |at| self.now.since(at));
        grace_ms.saturating_sub(sealed_ms.max(watched_ms))
    }

    /// When the epoch was changed last; `None`: never. (The making of the cell is no change: the other half of the
    /// pool was not in use before.)
    #[must_use]
    pub fn last_change(&self, anchors: &[Anchor]) -> Option<UnixMs> {
        let anchored = of_cell(&self.cell, anchors).map(|anchor| (anchor.epoch, anchor.since));
        anchored
            .chain([
                (self.cell.epoch, self.cell.epoch_since),
                (self.known.epoch, self.known.since),
            ])
            .filter(|(epoch, _)| epoch.0 > 0)
            .map(|(_, since)| since)
            .max()
    }

    /// The furthest plan of formats that anybody is known to have seen.
    fn furthest_formats<'a>(
        &'a self,
        anchors: &'a [Anchor],
        chosen: Option<&str>,
    ) -> Result<&'a str, PlansApart> {
        let anchored = of_cell(&self.cell, anchors).map(|anchor| &anchor.formats);
        let known = anchored
            .chain(&self.known.formats)
            .chain([&self.cell.worker_format]);
        furthest(known.map(String::as_str), chosen)
    }

    /// From when on windows of workers may begin in an epoch that brings back this plan. Servers that never knew it may
    /// have been granted windows beyond its switch since the restore; and switches that it has left behind are past.
    fn floor_of_restored(&self, formats: &str) -> UnixMs {
        let switched = switches_at(formats).unwrap_or_default();
        let unknowing = self.workers.iter().map(|row| row.ceiling);
        let unknowing = unknowing.filter(|ceiling| *ceiling >= switched).max();
        self.now
            .max(unknowing.map_or(UnixMs(0), |ceiling| ceiling.saturating_add(1)))
    }
}

fn of_cell<'a>(cell: &'a Cell, anchors: &'a [Anchor]) -> impl Iterator<Item = &'a Anchor> {
    anchors.iter().filter(|anchor| anchor.cell_id == cell.cell_id)
}

/// What is wrong with a store that is not the one that its cell names.
#[must_use]
pub fn not_itself(made_for: &StoreIdentity, here: &StoreIdentity) -> String {
    format!("the cell belongs to store {made_for}, this is {here}: a restore, a copy or a promoted standby")
}

/// What the operator asks for.
#[derive(Clone, Debug)]
pub struct AdvanceWish {
    /// The store that is meant: a script must not open another one.
    pub identity: StoreIdentity,
    /// For the record.
    pub reason: String,
    /// For the record.
    pub by: String,
    /// Name of the new epoch: random.
    pub nonce: EpochNonce,
    /// The plan of formats that holds, where it cannot be seen from those that are known.
    pub formats: Option<String>,
    /// The longest window of any worker of the cell.
    pub worker_window_ms: u64,
    /// The same of shards.
    pub shard_window_ms: u64,
}

/// An advance that may be committed while the store is as it was surveyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvancePlan {
    /// The cell that is meant.
    pub cell_id: CellId,
    /// The epoch that the cell has, and its name; any other refuses the advance.
    pub seen: (Epoch, EpochNonce),
    /// The plan of formats that it has, and what was told of it; others refuse the advance too.
    pub formats_seen: String,
    /// See above.
    pub known: Told,
    /// What the store must be, and what the cell names from then on.
    pub identity: StoreIdentity,
    /// The new epoch.
    pub to: Epoch,
    /// Its name.
    pub nonce: EpochNonce,
    /// When it begins.
    pub since: UnixMs,
    /// Its plan of formats.
    pub formats: String,
    /// What the floor of workers is raised to.
    pub worker_min_floor: UnixMs,
    /// What the floor of shards is raised to.
    pub shard_min_floor: UnixMs,
    /// For the record.
    pub by: String,
    /// For the record.
    pub reason: String,
}

impl AdvancePlan {
    /// Is this still the cell that was surveyed, in the store that was meant?
    #[must_use]
    pub fn is_for(&self, cell: &Cell, known: &Told, here: &StoreIdentity) -> bool {
        let (epoch, nonce) = self.seen;
        cell.cell_id == self.cell_id
            && cell.is_epoch(epoch, nonce)
            && cell.worker_format == self.formats_seen
            && *known == self.known
            && *here == self.identity
    }
}

/// Why the epoch is not advanced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdvanceRefused {
    /// The store is not sealed: nothing was lost.
    Open,
    /// It is not the store that was named.
    OtherStore {
        /// What it is.
        here: StoreIdentity,
    },
    /// Windows of the half that would be leased may not have run out.
    TooSoon {
        /// When it may be done.
        at: UnixMs,
        /// In so many ms.
        wait_ms: u64,
    },
    /// Plans of formats are known that contradict each other.
    Formats(PlansApart),
}

impl fmt::Display for AdvanceRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("the lease store is not sealed: there is nothing to open"),
            Self::OtherStore { here } => write!(f, "this lease store is {here}, not the one that was named"),
            Self::TooSoon { at, wait_ms } => write!(
                f,
                "the epoch was changed a short time ago, and windows of the one before it may not have run out: \
                 try again in {} s (Unix ms {})",
                wait_ms.div_ceil(1_000),
                at.0
            ),
            Self::Formats(apart) => apart.fmt(f),
        }
    }
}

impl core::error::Error for AdvanceRefused {}

/// Plans the advance. `anchors` are all that can be reached.
///
/// # Errors
/// [`AdvanceRefused`].
pub fn plan_advance(
    survey: &Survey,
    anchors: &[Anchor],
    wish: AdvanceWish,
) -> Result<AdvancePlan, AdvanceRefused> {
    if survey.sealed_because(anchors).is_none() {
        return Err(AdvanceRefused::Open);
    }
    if wish.identity != survey.here {
        return Err(AdvanceRefused::OtherStore {
            here: survey.here.clone(),
        });
    }
    let now = survey.now;
    let mut worker_min_floor = survey.cell.min_floor;
    if let Some(changed) = survey.last_change(anchors) {
        let at = changed.saturating_add(epoch_margin_ms(wish.worker_window_ms));
        if now < at {
            let wait_ms = at.since(now);
            return Err(AdvanceRefused::TooSoon { at, wait_ms });
        }
        // Rows that were lost have no ceiling to begin above, and a wall clock may be set back after its grant.
        worker_min_floor = worker_min_floor.max(at);
    }
    let formats = formats_of(survey, anchors, &wish)?;
    worker_min_floor = worker_min_floor.max(formats.min_floor);
    // A ceiling that is further ahead than the margin tells of longer windows than we know of.
    let restored = survey
        .shards
        .iter()
        .map(|row| row.ceiling)
        .max()
        .unwrap_or_default();
    let waited_out = now.saturating_add(epoch_margin_ms(wish.shard_window_ms));
    Ok(AdvancePlan {
        cell_id: survey.cell.cell_id,
        seen: (survey.cell.epoch, survey.cell.epoch_nonce),
        formats_seen: survey.cell.worker_format.clone(),
        known: survey.known.clone(),
        identity: wish.identity,
        to: Epoch(survey.highest(anchors).0.saturating_add(1)),
        nonce: wish.nonce,
        since: now,
        formats: formats.plan,
        worker_min_floor,
        shard_min_floor: survey.shard_min_floor.max(restored).max(waited_out),
        by: wish.by,
        reason: wish.reason,
    })
}

/// The formats of the new epoch.
struct Formats {
    plan: String,
    min_floor: UnixMs,
}

fn formats_of(survey: &Survey, anchors: &[Anchor], wish: &AdvanceWish) -> Result<Formats, AdvanceRefused> {
    let seen = survey.furthest_formats(anchors, None);
    let plan = match (&seen, &wish.formats) {
        (_, Some(chosen)) => survey.furthest_formats(anchors, Some(chosen)),
        (seen, None) => seen.clone(),
    };
    let plan = plan.map_err(AdvanceRefused::Formats)?.to_owned();
    let mut min_floor = UnixMs(0);
    if plan != survey.cell.worker_format {
        min_floor = survey.floor_of_restored(&plan);
    }
    if seen.is_err() {
        // Others mint by a plan that is given up now: no id of theirs is as late as the first one of the new epoch.
        let margin_ms = epoch_margin_ms(wish.worker_window_ms);
        min_floor = min_floor.max(survey.now.saturating_add(margin_ms));
    }
    Ok(Formats { plan, min_floor })
}

#[cfg(test)]
mod tests;
