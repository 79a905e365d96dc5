//! Is this the lease store that it was, and the history of it that was there before?
//!
//! A store that was restored looks like itself at an earlier time. Whoever believed it would grant again what was
//! granted since. So everybody remembers how far the store had come: a daemon in memory, and for it the server in
//! its data directory, written before a lease opens and before each higher ceiling. A store that falls short of
//! that is *sealed* (nothing is granted or renewed) until somebody advances its epoch (see [`super::epoch`]).
//!
//! An anchor is a lower bound. An older copy of one, or one of another server of the cell, is less sharp but not
//! wrong.
//!
//! Whoever remembers less than was lost cannot tell. When it may take a lease all the same is said in [`super::trust`].

use super::formats;
use super::ledger::{Cell, Snapshot};
use super::token::{CellId, Epoch, EpochNonce, Identity, Revision, StoreIdentity};
use crate::checked_line::{self, Garbled};
use crate::clock::UnixMs;
use core::fmt;
use core::str::FromStr;

/// How far a store had come when it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The cell.
    pub cell_id: CellId,
    /// The store that served it.
    pub store: StoreIdentity,
    /// Its epoch,
    pub epoch: Epoch,
    /// ... the name of that,
    pub nonce: EpochNonce,
    /// ... and when it began.
    pub since: UnixMs,
    /// Highest revision seen.
    pub revision: Revision,
    /// A row that was written by the daemon itself. A store whose revision was raised after a restore still shows
    /// it as it was before.
    pub witness: Option<Witness>,
    /// The plan of formats that the cell had: the server has followed it, or is about to.
    pub formats: String,
}

/// A row of the anchor's class that has had this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Whose row.
    pub identity: Identity,
    /// Its revision.
    pub revision: Revision,
}

/// How a store falls short of what was seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The cell has another id. This is another store altogether, and none of our business.
    AnotherCell,
    /// The epoch fell.
    OlderEpoch {
        /// From this
        was: Epoch,
        /// to that.
        is: Epoch,
    },
    /// The same epoch has another name.
    AnotherHistory {
        /// Of which epoch.
        epoch: Epoch,
    },
    /// In the same epoch another store serves the cell.
    AnotherStore {
        /// Before.
        was: StoreIdentity,
        /// Now.
        is: StoreIdentity,
    },
    /// The revision fell.
    RevisionFell {
        /// From this
        was: Revision,
        /// to that.
        is: Revision,
    },
    /// A row is older than it was, or gone.
    RowFell {
        /// Whose.
        identity: Identity,
        /// Its revision before.
        was: Revision,
    },
    /// A switch of formats is gone.
    SwitchLost {
        /// The plan before.
        was: String,
        /// The plan now.
        is: String,
    },
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnotherCell => f.write_str("the store shows another cell than before"),
            Self::OlderEpoch { was, is } => {
                write!(
                    f,
                    "the store's epoch fell from {} to {}: it was restored",
                    was.0, is.0
                )
            }
            Self::AnotherHistory { epoch } => write!(
                f,
                "the store's epoch {} has another name than before: it was restored",
                epoch.0
            ),
            Self::AnotherStore { was, is } => {
                write!(f, "the cell was served from {was}, now it is from {is}")
            }
            Self::RevisionFell { was, is } => {
                write!(
                    f,
                    "the store's revision fell from {} to {}: it was restored",
                    was.0, is.0
                )
            }
            Self::RowFell { identity, was } => write!(
                f,
                "the store's row {identity} is older than revision {}, which it had: the store was restored",
                was.0
            ),
            Self::SwitchLost { was, is } => write!(
                f,
                "a switch of formats is lost: the cell's plan was \"{was}\" and is \"{is}\": the store was restored"
            ),
        }
    }
}

impl core::error::Error for Departure {}

impl Anchor {
    /// What is seen of a store now.
    #[must_use]
    pub fn of(cell: &Cell, revision: Revision) -> Self {
        Self {
            cell_id: cell.cell_id,
            store: cell.identity.clone(),
            epoch: cell.epoch,
            nonce: cell.epoch_nonce,
            since: cell.epoch_since,
            revision,
            witness: None,
            formats: cell.worker_format.clone(),
        }
    }

    /// May `cell`, at `revision`, be what this was seen of? A higher epoch may, unless it has lost a switch of formats:
    /// an operator has vouched for it.
    pub fn admits(&self, cell: &Cell, revision: Revision) -> Result<(), Departure> {
        if cell.cell_id != self.cell_id {
            return Err(Departure::AnotherCell);
        }
        self.may_become(&Self::of(cell, revision))
    }

    /// The same, and its witness testifies.
    pub(super) fn admits_rows(&self, snapshot: &Snapshot) -> Result<(), Departure> {
        self.admits(&snapshot.cell, snapshot.revision)?;
        let Some(Witness {
            identity,
            revision: was,
        }) = self.witness
        else {
            return Ok(());
        };
        let shown = snapshot.row(identity).map(|row| row.revision);
        if snapshot.cell.epoch == self.epoch && shown.is_none_or(|is| is < was) {
            return Err(Departure::RowFell { identity, was });
        }
        Ok(())
    }

    /// May `later`, of the same cell, take the place of this on disk? Never backwards.
    pub fn may_become(&self, later: &Self) -> Result<(), Departure> {
        if later.epoch > self.epoch {
            return self.keeps_switches(later);
        }
        let (was, is) = (self.epoch, later.epoch);
        if is < was {
            return Err(Departure::OlderEpoch { was, is });
        }
        if later.nonce != self.nonce {
            return Err(Departure::AnotherHistory { epoch: is });
        }
        if later.store != self.store {
            let (was, is) = (self.store.clone(), later.store.clone());
            return Err(Departure::AnotherStore { was, is });
        }
        if later.revision < self.revision {
            let (was, is) = (self.revision, later.revision);
            return Err(Departure::RevisionFell { was, is });
        }
        self.keeps_switches(later)
    }

    fn keeps_switches(&self, later: &Self) -> Result<(), Departure> {
        if formats::is_lost(&self.formats, &later.formats, later.epoch == self.epoch) {
            let (was, is) = (self.formats.clone(), later.formats.clone());
            return Err(Departure::SwitchLost { was, is });
        }
        Ok(())
    }
}

/// First word of the text form.
const FORM: &str = "anchor2";
/// Without the checksum.
const FIELDS: usize = 10;

/// One line: form, fields, checksum. The plan of formats is the last field, for it has spaces.
impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let witness = self.witness.map_or_else(
            || "- -".to_owned(),
            |witness| format!("{} {}", witness.identity, witness.revision.0),
        );
        let body = format!(
            "{FORM} {:032x} {} {} {:032x} {} {} {witness} {}",
            self.cell_id.0,
            self.store,
            self.epoch.0,
            self.nonce.0,
            self.since.0,
            self.revision.0,
            self.formats
        );
        checked_line::write(f, &body)
    }
}

impl FromStr for Anchor {
    type Err = Garbled;

    fn from_str(text: &str) -> Result<Self, Garbled> {
        let fields: Vec<&str> = checked_line::read(text)?.splitn(FIELDS, ' ').collect();
        let [
            FORM,
            cell_id,
            store,
            epoch,
            nonce,
            since,
            revision,
            witness,
            at,
            formats,
        ] = fields[..]
        else {
            return Err(Garbled);
        };
        let uuid = |hex| u128::from_str_radix(hex, 16).map_err(|_| Garbled);
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| Garbled);
        let witness = match (witness, at) {
            ("-", "-") => None,
            (identity, at) => Some(Witness {
                identity: Identity(identity.parse().map_err(|_| Garbled)?),
                revision: Revision(number(at)?),
            }),
        };
        Ok(Self {
            cell_id: CellId(uuid(cell_id)?),
            store: StoreIdentity::new(store).ok_or(Garbled)?,
            epoch: Epoch(number(epoch)?),
            nonce: EpochNonce(uuid(nonce)?),
            since: UnixMs(number(since)?),
            revision: Revision(number(revision)?),
            witness,
            formats: formats.to_owned(),
        })
    }
}

/// What one daemon has seen of the store of one class.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    seen: Option<Anchor>,
    /// Every row that was there then, and its revision: whatever daemons write makes the memory of all others sharper.
    rows: Vec<(Identity, Revision)>,
    /// For good, until a higher epoch than that.
    departed: Option<(Departure, Epoch)>,
}

impl Pins {
    /// Judges a fresh look at the store, by what was seen before and by the server's `anchors`. A departure stays
    /// one, also when later looks are without fault (a restored store catches up), until the epoch was advanced.
    pub fn judge(&mut self, snapshot: &Snapshot, anchors: &[Anchor]) -> Result<(), Departure> {
        let cell = &snapshot.cell;
        if let Some((departure, epoch)) = &self.departed
            && cell.epoch <= *epoch
        {
            return Err(departure.clone());
        }
        // Anchors of another cell were left by a server whose cell was forgotten on purpose.
        let of_cell = anchors.iter().filter(|anchor| anchor.cell_id == cell.cell_id);
        for anchor in self.seen.iter().chain(of_cell) {
            if let Err(departure) = anchor.admits_rows(snapshot) {
                if departure != Departure::AnotherCell {
                    self.departed = Some((departure.clone(), cell.epoch.max(anchor.epoch)));
                }
                return Err(departure);
            }
        }
        if let Some(departure) = self.fallen_row(snapshot) {
            self.departed = Some((departure.clone(), cell.epoch));
            return Err(departure);
        }
        self.departed = None;
        let witness = self
            .seen
            .take()
            .filter(|seen| seen.epoch == cell.epoch)
            .and_then(|seen| seen.witness);
        self.seen = Some(Anchor {
            witness,
            ..Anchor::of(cell, snapshot.revision)
        });
        self.rows = snapshot
            .rows()
            .iter()
            .map(|row| (row.identity, row.revision))
            .collect();
        Ok(())
    }

    /// A row that is older than it was when this epoch was last looked at.
    fn fallen_row(&self, snapshot: &Snapshot) -> Option<Departure> {
        self.seen
            .as_ref()
            .filter(|seen| seen.epoch == snapshot.cell.epoch)?;
        let fell = |(identity, was): &(Identity, Revision)| {
            let shown = snapshot.row(*identity).map(|row| row.revision);
            shown.is_none_or(|is| is < *was)
        };
        let (identity, was) = self.rows.iter().copied().find(fell)?;
        Some(Departure::RowFell { identity, was })
    }

    /// Was a departure found that nobody has opened since?
    #[must_use]
    pub fn has_departed(&self) -> bool {
        self.departed.is_some()
    }

    /// The departure that was just found was none: the answer was an old one.
    pub fn forgive(&mut self) {
        self.departed = None;
    }

    /// A grant or renewal of this identity was committed at `revision`.
    pub fn note_committed(&mut self, identity: Identity, revision: Revision) {
        if let Some(seen) = &mut self.seen {
            seen.revision = seen.revision.max(revision);
            seen.witness = Some(Witness { identity, revision });
        }
    }

    /// Something that is no row of a class was committed at `revision`.
    pub fn note_revision(&mut self, revision: Revision) {
        if let Some(seen) = &mut self.seen {
            seen.revision = seen.revision.max(revision);
        }
    }

    /// What to write down before what was committed is used.
    #[must_use]
    pub fn anchor(&self) -> Option<&Anchor> {
        self.seen.as_ref()
    }

    /// What was seen of a row that has been found to be older: to look at it again.
    #[must_use]
    pub fn fallen(&self) -> Option<Anchor> {
        let (Some(seen), Some((Departure::RowFell { identity, was }, _))) = (&self.seen, &self.departed)
        else {
            return None;
        };
        Some(Anchor {
            witness: Some(Witness {
                identity: *identity,
                revision: *was,
            }),
            ..seen.clone()
        })
    }
}

#[cfg(test)]
mod tests;
