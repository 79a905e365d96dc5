//! A store that is not what it was is sealed for everybody, with what is known of its epochs.

use super::{Clerk, same_cell};
use crate::lease::store::{LeaseStore, Seal, StoreError, StoreErrorKind};
use idgen_core::lease::{Anchor, CellId, Departure, Snapshot};
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
        } else if !self.seal(snapshot.cell.cell_id, &reason, !latched).await {
            self.pins.forgive();
            let what = format!("an old answer of the lease store was dropped: {reason}");
            return StoreError::new(StoreErrorKind::Unreachable, what);
        }
        StoreError::sealed(reason)
    }

    /// False: it was an old answer.
    pub(super) async fn seal(&mut self, cell_id: CellId, reason: &str, may_be_old: bool) -> bool {
        let remembered = self
            .pins
            .remembered()
            .chain(self.remembered.anchors.iter().cloned());
        let remembered = remembered.filter(|_| may_be_old).collect();
        let known = self.latest_known().map(|anchor| (anchor.epoch, anchor.since));
        let (known, known_since) = known.unwrap_or_default();
        let seal = Seal {
            cell_id,
            reason: reason.to_owned(),
            known,
            known_since,
            remembered,
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

    /// The store is sealed already, perhaps by somebody who knows of no epoch as late as we do, or by nobody who has
    /// written it down: the operator is to know since when everybody could.
    pub(super) async fn tell_epoch(&mut self, reason: &str) {
        let Some((cell_id, epoch)) = self.latest_known().map(|anchor| (anchor.cell_id, anchor.epoch)) else {
            return;
        };
        let telling = Some((reason.to_owned(), epoch));
        if self.told != telling {
            self.seal(cell_id, reason, true).await;
            self.told = telling.filter(|_| self.seal_trouble.text().is_none());
        }
    }

    /// Of all that is remembered here.
    fn latest_known(&self) -> Option<&Anchor> {
        let known = self.pins.anchor().into_iter().chain(&self.remembered.anchors);
        known.max_by_key(|anchor| (anchor.epoch, anchor.since))
    }
}
