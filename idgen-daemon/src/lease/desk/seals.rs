//! A store that is not what it was is sealed for everybody, with what is known beyond it.

use super::{Clerk, same_cell};
use crate::lease::store::{LeaseStore, Seal, StoreError, StoreErrorKind};
use idgen_core::lease::{Anchor, Cell, CellId, Departure, Snapshot, Told};
use std::time::Instant;

impl<S: LeaseStore> Clerk<S> {
    /// Everybody is to know of it: a server that remembers less would take the store for what it was. Only a departure
    /// that was found just now may have been an old answer: a store that was restored catches up later.
    pub(super) async fn sealed(
        &mut self,
        snapshot: &Snapshot,
        departure: &Departure,
        latched: bool,
    ) -> StoreError {
        let reason = departure.to_string();
        if *departure == Departure::AnotherCell {
            let known = self.pins.anchor().map(|seen| seen.cell_id);
            self.refused = same_cell(known, snapshot.cell.cell_id).err();
        } else if !self.seal(shown(&snapshot.cell), &reason, !latched).await {
            self.pins.forgive();
            let what = format!("an old answer of the lease store was dropped: {reason}");
            return StoreError::new(StoreErrorKind::Unreachable, what);
        }
        StoreError::sealed(reason)
    }

    /// False: it was an old answer.
    pub(super) async fn seal(&mut self, cell: (CellId, Told), reason: &str, may_be_old: bool) -> bool {
        let (cell_id, shown) = cell;
        let known = self.remembered_of(cell_id);
        let held_to = known.clone().cloned().chain(self.pins.fallen());
        let seal = Seal {
            cell_id,
            reason: reason.to_owned(),
            known: shown.and(&Told::by(known)),
            remembered: held_to.filter(|_| may_be_old).collect(),
        };
        match self.store.seal(&seal).await {
            Ok(departed) => {
                self.seal_trouble
                    .settle("the lease store is sealed for the others too");
                departed
            }
            Err(error) => {
                self.seal_trouble.raise(
                    format!("the lease store could not be sealed for the others: {error}"),
                    Instant::now(),
                );
                true
            }
        }
    }

    /// The store is sealed already, perhaps by somebody who knows of no epoch, or no switch of formats, as late as we do;
    /// or by nobody who has written it down: the operator is to know since when everybody could tell.
    /// Whose cell it is was not said; one that is not meant takes no notice.
    pub(super) async fn tell(&mut self, reason: &str) {
        let mut cells: Vec<CellId> = self.all_remembered().map(|anchor| anchor.cell_id).collect();
        cells.dedup();
        let known = cells.iter().map(|cell_id| Told::by(self.remembered_of(*cell_id)));
        let telling = Some((reason.to_owned(), known.collect()));
        if self.told == telling {
            return;
        }
        for cell_id in cells {
            self.seal((cell_id, Told::default()), reason, true).await;
        }
        self.told = telling.filter(|_| self.seal_trouble.text().is_none());
    }

    /// Here and by the server.
    fn all_remembered(&self) -> impl Iterator<Item = &Anchor> + Clone {
        self.pins.anchor().into_iter().chain(&self.remembered.anchors)
    }

    fn remembered_of(&self, cell_id: CellId) -> impl Iterator<Item = &Anchor> + Clone {
        self.all_remembered()
            .filter(move |anchor| anchor.cell_id == cell_id)
    }
}

/// The cell that is meant, in the epoch that was looked at: one that was begun since is another matter.
fn shown(cell: &Cell) -> (CellId, Told) {
    let told = Told {
        epoch: cell.epoch,
        since: cell.epoch_since,
        formats: Vec::new(),
    };
    (cell.cell_id, told)
}
