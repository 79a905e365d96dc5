//! May a lease be taken from this store, or might it have been restored, unnoticed until now?
//!
//! A store that goes back to an earlier time under its old name looks like itself. It is sealed by whoever remembers
//! more than it shows ([`super::anchor`]), but only when that one next speaks to it. Until then a daemon whose own
//! memory is older than the restored state would take what others still mint from. So a lease is taken (renewing
//! needs no such thing) only when whoever remembers more has had the time to speak:
//!
//! - **a grace** after the first of an unbroken row of looks: by then every daemon that is alive and within reach has
//!   asked, and has sealed the store if it is not what it was. Who has no anchor of the cell waits for a sign of
//!   somebody else besides, or until everything has run out that may have been granted in a future that got lost.
//! - **at once** when a lease of this very server was granted or renewed a moment ago: its row is younger than any
//!   state that a store is put back to, so the look has judged that already. And in a cell (or epoch) that has only
//!   just begun; after somebody opened the seal that was found; and where nobody but this server has ever leased,
//!   whose own database is the store.
//!
//! Times are of the daemon's own clock, which goes on while its server is away.

use super::ledger::{Cell, Snapshot};
use super::timing::{Reach, Timing};
use super::token::{Epoch, Revision};
use super::window::epoch_margin_ms;
use crate::clock::{BootMs, UnixMs};
use core::fmt;

/// A cell this young has no lost future. It lets the servers of a new cell start together; a restore within the
/// first moments of a cell's life is not noticed by a server that remembers nothing.
pub const CELL_YOUNG_MS: u64 = 15_000;

/// How long is waited for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// For daemons that remember more.
    pub grace_ms: u64,
    /// A state that is younger than this is not restored: it takes longer to save a store, to stop and to replace it.
    pub recent_ms: u64,
    /// Until what was granted in a lost future has run out.
    pub all_ms: u64,
}

impl Waits {
    /// As the times of a class ask for.
    #[must_use]
    pub fn of(timing: &Timing, reach: Reach) -> Self {
        Self {
            grace_ms: timing.grace_ms(reach),
            recent_ms: timing.recent_ms(),
            all_ms: epoch_margin_ms(timing.window_ms()),
        }
    }
}

/// Whoever asks for a lease, at the moment of its last look.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// The daemon's clock before that look.
    pub asked: BootMs,
    /// The server's wall clock.
    pub wall: UnixMs,
    /// Does the server have an anchor of the cell?
    pub remembers: bool,
    /// Before which request (on the daemon's clock) a lease of the server was last granted or renewed by another
    /// daemon, as the server remembers.
    pub committed: Option<BootMs>,
    /// The store is in a database of this very server: the name that its leases have there.
    pub at_home: Option<&'a str>,
}

/// Nobody has had the time yet to say that the store was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// Has the server been served from the cell before?
    pub remembers: bool,
    /// How long is waited at the most.
    pub wait_ms: u64,
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.wait_ms.div_ceil(1_000);
        if self.remembers {
            return write!(
                f,
                "the store may have been restored a moment ago: no lease is taken for {seconds} s, in which every \
                 daemon that remembers more seals it"
            );
        }
        write!(
            f,
            "this server has no memory of the cell, and the store may have been restored: waiting for a sign of another \
             server, {seconds} s at the most (anew after each restart of its daemon)"
        )
    }
}

impl core::error::Error for Unsettled {}

/// Looks and commits that follow each other closely.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// After the first look.
    since: BootMs,
    /// The store's revision then.
    revision: Revision,
    /// Before the last look or commit.
    last: BootMs,
    /// An operator had opened the store just before.
    opened: bool,
}

/// What one daemon knows for and against the store of one class.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    run: Option<Run>,
    /// Before the last grant or renewal.
    committed: Option<BootMs>,
    /// The epoch of the seal that was found.
    sealed: Option<Epoch>,
}

impl Trust {
    /// A look was without fault. `asked` and `answered` are the daemon's clock before and after it; `reopened`: the
    /// store had departed from what was known, and its epoch was advanced since.
    pub fn note_look(
        &mut self,
        waits: &Waits,
        snapshot: &Snapshot,
        (asked, answered): (BootMs, BootMs),
        reopened: bool,
    ) {
        let sealed = self.sealed.take();
        let opened = reopened || sealed.is_some_and(|epoch| snapshot.cell.epoch > epoch);
        // A seal that is gone, and nobody has opened it: the store was put back once more.
        let vanished = sealed.is_some() && !opened;
        match &mut self.run {
            Some(run) if asked.since(run.last) <= waits.recent_ms && !opened && !vanished => run.last = asked,
            run => {
                *run = Some(Run {
                    since: answered,
                    revision: snapshot.revision,
                    last: asked,
                    opened,
                });
            }
        }
    }

    /// A grant or renewal was committed; `asked` is the daemon's clock before the request.
    pub fn note_committed(&mut self, asked: BootMs) {
        self.committed = self.committed.max(Some(asked));
        if let Some(run) = &mut self.run {
            run.last = run.last.max(asked);
        }
    }

    /// The store was found sealed in this epoch. Whoever opens it from here on vouches for it.
    pub fn note_sealed(&mut self, epoch: Epoch) {
        self.sealed = self.sealed.max(Some(epoch));
    }

    /// May a lease be taken? Asked after [`Trust::note_look`], and after the look was judged.
    pub fn settled(
        &self,
        waits: &Waits,
        snapshot: &Snapshot,
        applicant: &Applicant<'_>,
    ) -> Result<(), Unsettled> {
        let asked = applicant.asked;
        let remembers = applicant.remembers || self.committed.is_some();
        let committed = self.committed.max(applicant.committed);
        // What was judged by is the row that was committed.
        let recent = remembers && committed.is_some_and(|at| asked.since(at) <= waits.recent_ms);
        if recent || is_young(&snapshot.cell, applicant.wall) || is_alone(snapshot, applicant) {
            return Ok(());
        }
        let Some(run) = self.run else {
            let wait_ms = waits.grace_ms;
            return Err(Unsettled { remembers, wait_ms });
        };
        if run.opened {
            return Ok(());
        }
        let signed = |row: &super::ledger::Row| row.holder.is_some() && row.revision > run.revision;
        let enough_ms = if remembers || snapshot.rows().iter().any(signed) {
            waits.grace_ms
        } else {
            waits.all_ms.max(waits.grace_ms)
        };
        match enough_ms.saturating_sub(asked.since(run.since)) {
            0 => Ok(()),
            wait_ms => Err(Unsettled { remembers, wait_ms }),
        }
    }
}

/// A beginning that lies in the future was written by a wrong clock, or ours is wrong: it proves nothing. No further
/// than two clocks and a read can be apart, that is; whoever makes the cell has read its clock before.
fn is_young(cell: &Cell, wall: UnixMs) -> bool {
    cell.epoch_since.since(wall) <= epoch_margin_ms(0) && wall.since(cell.epoch_since) < CELL_YOUNG_MS
}

/// As far as anybody can see: a lease that has expired may be one of a server that renewed it in a lost future.
fn is_alone(snapshot: &Snapshot, applicant: &Applicant<'_>) -> bool {
    let others = |name: &str| {
        let holders = snapshot.rows().iter().filter_map(|row| row.holder.as_ref());
        holders.filter(|holder| holder.name != name).count()
    };
    applicant.at_home.is_some_and(|name| others(name) == 0)
}

#[cfg(test)]
mod tests;
