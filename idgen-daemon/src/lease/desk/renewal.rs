//! Renewals, and what has become of a lease that was not renewed.

use super::{Answer, Clerk};
use crate::lease::store::{Committed, Expected, LeaseStore, Renewal, StoreError, StoreErrorKind};
use idgen_core::lease::keeper::{Event, Held, Loss, Ticket};
use idgen_core::lease::ledger::{Standing, settle_renewal};
use idgen_core::lease::{Cell, Epoch, Leased, Tenancy};

impl<S: LeaseStore> Clerk<S> {
    pub(super) async fn renew(&mut self, ticket: Ticket, held: &Held, wanted: Vec<Leased>) -> Answer {
        let Some(cell) = &self.cell else {
            let trouble = StoreError::new(StoreErrorKind::Unreachable, "the store was never read");
            return Answer::failed(Event::RenewFailed { ticket, doubt: true }, trouble);
        };
        let mut renewal = Renewal {
            epoch: epoch_of(held),
            epoch_nonce: cell.epoch_nonce,
            formats: cell.worker_format.clone(),
            boot_id: held.boot_id,
            leased: with_windows(&held.leased, &wanted),
        };
        let (asked, asked_at) = (wanted, self.asked);
        let result = self.renew_settled(held, &mut renewal).await;
        let answer = match result {
            Ok(Ok(committed)) => {
                let leased: Vec<Leased> = renewal.leased.iter().map(Tenancy::leased).collect();
                self.note_committed(&leased, committed.revision, asked_at);
                Answer::of(Event::Renewed {
                    ticket,
                    guard: committed.revision,
                    ttl_ms: committed.ttl_ms,
                    leased,
                })
            }
            Ok(Err(why)) => Answer::of(Event::RenewLost { ticket, why }),
            Err(error) => {
                let doubt = error.kind != StoreErrorKind::Unreachable;
                Answer::failed(Event::RenewFailed { ticket, doubt }, error)
            }
        };
        Answer { asked, ..answer }
    }

    /// Renews; looks first (or after a conflict) whether the guard is still right. Or why it is lost.
    async fn renew_settled(
        &mut self,
        held: &Held,
        renewal: &mut Renewal,
    ) -> Result<Result<Committed, Loss>, StoreError> {
        if !held.doubt {
            match self.store.renew(renewal).await {
                Ok(committed) => return Ok(Ok(committed)),
                Err(error) if error.kind == StoreErrorKind::Conflict => {
                    tracing::debug!("renewal conflicts: {error}");
                }
                Err(error) => return Err(error),
            }
        }
        let snapshot = self.read(Expected::Unknown).await?;
        renewal.formats.clone_from(&snapshot.cell.worker_format);
        let standing = settle_renewal(&snapshot, self.holder.instance, held.boot_id, &held.leased);
        let leased = match standing {
            Standing::Mine { leased } => leased,
            Standing::Ordered => return Ok(Err(Loss::Revoked)),
            Standing::Lost => return Ok(Err(self.why_lost(held))),
        };
        for (wanted, committed) in renewal.leased.iter_mut().zip(leased) {
            wanted.guard = committed.guard;
            wanted.window.ceiling = wanted.window.ceiling.max(committed.window.ceiling);
        }
        self.store.renew(renewal).await.map(Ok)
    }

    /// After a look at the store that does not show the lease any more.
    fn why_lost(&self, held: &Held) -> Loss {
        let newer = |cell: &Cell| cell.epoch > epoch_of(held);
        if self.cell.as_ref().is_some_and(newer) {
            Loss::EpochAdvanced
        } else {
            Loss::StoreLost
        }
    }
}

/// That of the oldest token: a lease of two epochs is one that the store has ended.
fn epoch_of(held: &Held) -> Epoch {
    let epochs = held.leased.iter().map(|tenancy| tenancy.token.epoch);
    epochs.min().unwrap_or_default()
}

/// The same identities with the windows that are to be committed.
fn with_windows(held: &[Tenancy], wanted: &[Leased]) -> Vec<Tenancy> {
    let windows = wanted.iter().map(|leased| leased.window);
    held.iter()
        .zip(windows)
        .map(|(tenancy, window)| Tenancy { window, ..*tenancy })
        .collect()
}
