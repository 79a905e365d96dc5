//! The lease store as the keepers of all databases share it, and what was seen of it: is it the one that it was?

use crate::lease::{Committed, NamedStore, StoreError, StoreErrorKind};
use idgen_core::lease::named::{Acquisition, Held, LeaseName, NamedLook};
use idgen_core::lease::{Anchor, Epoch, Pins, Revision, Snapshot, StoreIdentity, Token};
use std::collections::BTreeMap;

/// The store, and what was seen of it.
pub(super) struct Shared<S> {
    pub(super) store: S,
    pub(super) pins: Pins,
    /// Revisions that the rows of names have had, by the epoch they were seen in.
    witnesses: BTreeMap<LeaseName, (Epoch, Revision)>,
}

impl<S> Shared<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            pins: Pins::default(),
            witnesses: BTreeMap::new(),
        }
    }
}

impl<S: NamedStore> Shared<S> {
    pub(super) async fn acquire(&mut self, plan: &Acquisition) -> Result<Committed, StoreError> {
        let committed = self.store.acquire(plan).await?;
        let token = Token {
            epoch: plan.epoch,
            revision: committed.revision,
        };
        self.note_granted(&plan.name, token);
        Ok(committed)
    }

    pub(super) async fn renew(&mut self, held: &Held) -> Result<Committed, StoreError> {
        let committed = self.store.renew_held(held).await?;
        self.pins.note_revision(committed.revision);
        Ok(committed)
    }

    /// A look at a store that is what it was, and that this server may be served from.
    pub(super) async fn look_at(
        &mut self,
        name: &LeaseName,
        anchors: &[Anchor],
        own_system: u64,
    ) -> Result<NamedLook, StoreError> {
        let denied = |message: &str| Err(StoreError::new(StoreErrorKind::Denied, message));
        let look = self.store.look_at(name).await?;
        if is_in(&look.cell.identity, own_system) {
            return denied(
                "it is in this very cluster, and cannot be an authority over it: what goes back with the one goes back \
                 with the other (hint: [store] in another server, or etcd)",
            );
        }
        let seen = Snapshot::new(look.cell.clone(), look.revision, Vec::new());
        if let Err(departure) = self.pins.judge(&seen, anchors) {
            return Err(StoreError::sealed(departure.to_string()));
        }
        self.hear_witness(name, &look)?;
        Ok(look)
    }
}

impl<S> Shared<S> {
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

/// Is that store in a database of the cluster with this system identifier?
fn is_in(store: &StoreIdentity, system: u64) -> bool {
    let prefix = format!("postgres/{}/", system.cast_signed());
    store.as_str().starts_with(&prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_the_cluster_itself_is_told_by_its_identity() {
        let here = StoreIdentity::new("postgres/-5/1/16384").expect("an identity");
        assert!(is_in(&here, (-5_i64).cast_unsigned()) && !is_in(&here, 5));
        let etcd = StoreIdentity::new("etcd/5").expect("an identity");
        assert!(!is_in(&etcd, 5));
    }
}
