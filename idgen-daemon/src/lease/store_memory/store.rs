//! The store as one daemon sees it: whatever it asks may get lost on either way.

use super::{Asker, Fault, Ground, MemoryPlace, Result, refused};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{AdvancePlan, BootId, GrantPlan, Mark, Snapshot, Survey, SwitchPlan};
use idgen_daemon::lease::{CellStore, Committed, Expected, LeaseStore, Renewal, Seal, StoreErrorKind};

/// The store of one class as one daemon sees it.
pub struct MemoryStore {
    pub(super) place: MemoryPlace,
    pub(super) asker: Asker,
    pub(super) expected: Expected,
}

impl MemoryStore {
    /// A look, which is not there when its answer is not.
    pub(super) async fn look<T>(&self, look: impl FnOnce(&mut Ground) -> Result<T> + Send) -> Result<T> {
        // Others may come in between, before and after.
        tokio::task::yield_now().await;
        let seen = {
            let mut ground = self.place.ground();
            match ground.fault {
                Fault::None => look(&mut ground),
                _ => refused(StoreErrorKind::Unreachable, "no answer"),
            }
        };
        tokio::task::yield_now().await;
        seen
    }

    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Ground) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        tokio::task::yield_now().await;
        let done = {
            let mut ground = self.place.ground();
            let unknown = || refused(StoreErrorKind::Unknown, "no answer");
            match ground.fault {
                Fault::None => change(&mut ground),
                Fault::Away => refused(StoreErrorKind::Unreachable, "away"),
                Fault::RequestLost => unknown(),
                Fault::AnswerLost => {
                    drop(change(&mut ground));
                    unknown()
                }
                Fault::Late => {
                    ground.late.push(Box::new(move |ground| drop(change(ground))));
                    unknown()
                }
            }
        };
        tokio::task::yield_now().await;
        done
    }
}

impl LeaseStore for MemoryStore {
    fn expect(&mut self, expected: Expected) {
        self.expected = expected;
    }

    async fn read(&mut self) -> Result<Snapshot> {
        let (who, expected) = (self.asker.clone(), self.expected);
        self.look(move |ground| {
            let drain = ground.drain_of(&who.holder.name);
            Ok(ground.read(who.class, expected)?.with_drain(drain))
        })
        .await
    }

    async fn grant(&mut self, plan: &GrantPlan) -> Result<Committed> {
        let (who, plan) = (self.asker.clone(), plan.clone());
        self.change(move |ground| ground.grant(&who, &plan)).await
    }

    async fn renew(&mut self, renewal: &Renewal) -> Result<Committed> {
        let (who, renewal) = (self.asker.clone(), renewal.clone());
        self.change(move |ground| ground.renew(&who, &renewal)).await
    }

    async fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> Result<Vec<Mark>> {
        let (class, marks) = (self.asker.class, marks.to_vec());
        self.change(move |ground| ground.release(class, boot_id, &marks))
            .await
    }

    async fn seal(&mut self, seal: &Seal) -> Result<bool> {
        let (class, seal) = (self.asker.class, seal.clone());
        self.change(move |ground| ground.seal(class, &seal)).await
    }
}

impl CellStore for MemoryStore {
    async fn clock(&mut self) -> Result<UnixMs> {
        self.look(|ground| Ok(ground.now())).await
    }

    async fn survey(&mut self) -> Result<Option<Survey>> {
        self.look(Ground::survey).await
    }

    async fn advance(&mut self, plan: &AdvancePlan) -> Result<()> {
        let plan = plan.clone();
        self.change(move |ground| ground.advance(&plan)).await
    }

    async fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        let plan = plan.clone();
        self.change(move |ground| ground.switch(&plan)).await
    }
}
