//! A store of named leases, and what was seen of it: is it the one that it was?

use super::store::{Committed, StoreError};
use super::store_named::NamedStore;
use idgen_core::lease::named::{Acquisition, Held, LeaseName, NamedLook, Raise};
use idgen_core::lease::{Anchor, Epoch, Pins, Revision, Snapshot, Token};
use std::collections::BTreeMap;

/// The store, and what was seen of it.
pub(crate) struct Pinned<S> {
    pub(crate) store: S,
    pins: Pins,
    /// Revisions that the rows of names have had, by the epoch they were seen in.
    witnesses: BTreeMap<LeaseName, (Epoch, Revision)>,
}

impl<S> Pinned<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            pins: Pins::default(),
            witnesses: BTreeMap::new(),
        }
    }
}

impl<S: NamedStore> Pinned<S> {
    pub(crate) async fn acquire(&mut self, plan: &Acquisition) -> Result<Committed, StoreError> {
        let committed = self.store.acquire(plan).await?;
        let token = Token {
            epoch: plan.epoch,
            revision: committed.revision,
        };
        self.note_granted(&plan.name, token);
        Ok(committed)
    }

    pub(crate) async fn renew(&mut self, held: &Held) -> Result<Committed, StoreError> {
        let committed = self.store.renew_held(held).await?;
        self.pins.note_revision(committed.revision);
        Ok(committed)
    }

    pub(crate) async fn raise(&mut self, held: &Held, raises: &[Raise]) -> Result<Revision, StoreError> {
        let revision = self.store.raise(held, raises).await?;
        self.pins.note_revision(revision);
        Ok(revision)
    }

    /// A look at a store that is what it was.
    pub(crate) async fn look_at(
        &mut self,
        name: &LeaseName,
        anchors: &[Anchor],
    ) -> Result<NamedLook, StoreError> {
        let look = self.store.look_at(name).await?;
        let seen = Snapshot::new(look.cell.clone(), look.revision, Vec::new());
        if let Err(departure) = self.pins.judge(&seen, anchors) {
            return Err(StoreError::sealed(departure.to_string()));
        }
        self.hear_witness(name, &look)?;
        Ok(look)
    }
}

impl<S> Pinned<S> {
    /// A row that is older than it was tells of a restore whose revision was raised.
    fn hear_witness(&mut self, name: &LeaseName, look: &NamedLook) -> Result<(), StoreError> {
        let epoch = look.cell.epoch;
        let is = look.row.as_ref().map_or(Revision(0), |row| row.revision);
        match self.witnesses.get(name) {
            Some((of, was)) if *of == epoch && is < *was => Err(StoreError::sealed(format!(
                "the store's row {name} is older than revision {}, which it had: the store was restored",
                was.0
            ))),
            _ => {
                self.witnesses.insert(name.clone(), (epoch, is));
                Ok(())
            }
        }
    }

    fn note_granted(&mut self, name: &LeaseName, token: Token) {
        self.pins.note_revision(token.revision);
        self.witnesses.insert(name.clone(), (token.epoch, token.revision));
    }
}
