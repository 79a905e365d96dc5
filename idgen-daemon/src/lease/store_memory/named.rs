//! Named leases of the store in memory.

use super::{Asker, Ground, Lent, MemoryPlace, MemoryStore, Result, refused};
use idgen_core::lease::ledger::{Cell, Holder};
use idgen_core::lease::named::{
    Acquisition, ClaimPlan, Held, JoinPlan, LeaseName, NamedLook, NamedRow, Occupant, Raise, ReleasePlan,
    Stored, StripeClaim,
};
use idgen_core::lease::{BootId, Epoch, EpochNonce, Revision, Token};
use idgen_daemon::lease::{CEILINGS_AT_ONCE, Committed, NamedStore, StoreErrorKind, StripeStore};
use std::collections::BTreeMap;

/// What a backup has of names.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    rows: BTreeMap<LeaseName, NamedStored>,
    ceilings: BTreeMap<(LeaseName, String), Stored>,
    stripes: BTreeMap<(u128, u32), StripeClaim>,
}

#[derive(Clone, Debug)]
struct NamedStored {
    generation: u64,
    revision: Revision,
    lent: Option<Lent>,
}

impl MemoryPlace {
    /// Under which token a name is lent, whether or not that has expired.
    pub fn named_token(&self, name: &LeaseName) -> Option<Token> {
        let ground = self.ground();
        let row = ground.books.names.rows.get(name)?;
        row.lent.as_ref().map(|lent| lent.token)
    }
}

impl Names {
    pub(super) fn lent(&mut self) -> impl Iterator<Item = &mut Lent> {
        self.rows.values_mut().filter_map(|row| row.lent.as_mut())
    }
}

impl Ground {
    /// The cell, which is not made here.
    pub(super) fn cell_of_names(&mut self) -> Result<Cell> {
        if self.books.cell.is_none() {
            return refused(StoreErrorKind::Denied, "the lease store is new");
        }
        Ok(self.open_cell()?.cell)
    }

    fn in_epoch(&mut self, epoch: Epoch, nonce: EpochNonce) -> Result<()> {
        if self.cell_of_names()?.is_epoch(epoch, nonce) {
            Ok(())
        } else {
            refused(StoreErrorKind::Conflict, "the epoch was advanced")
        }
    }

    fn named_row(&self, name: &LeaseName, row: &NamedStored) -> NamedRow {
        let now = self.now();
        NamedRow {
            name: name.clone(),
            generation: row.generation,
            revision: row.revision,
            occupant: row.lent.as_ref().map(|lent| Occupant {
                holder: Holder {
                    instance: lent.by.instance,
                    name: lent.by.name.clone(),
                    token: lent.token,
                    boot_id: lent.boot_id,
                    expired: lent.expires_at <= now,
                },
                guard: row.revision,
            }),
        }
    }

    fn look_at(&mut self, name: &LeaseName) -> Result<NamedLook> {
        let cell = self.cell_of_names()?;
        let row = self.books.names.rows.get(name);
        Ok(NamedLook {
            cell,
            revision: Revision(self.books.revision),
            row: row.map(|row| self.named_row(name, row)),
        })
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<NamedRow>> {
        self.cell_of_names()?;
        let below = |name: &LeaseName| name.as_str().starts_with(prefix);
        let rows = self.books.names.rows.iter().filter(|(name, _)| below(name));
        Ok(rows.map(|(name, row)| self.named_row(name, row)).collect())
    }

    fn acquire(&mut self, who: &Asker, plan: &Acquisition) -> Result<Committed> {
        self.in_epoch(plan.epoch, plan.epoch_nonce)?;
        let now = self.now();
        let row = self.books.names.rows.get(&plan.name);
        let lent = row.and_then(|row| row.lent.as_ref());
        let free = lent.is_none_or(|lent| lent.expires_at <= now);
        if row.map(|row| row.revision) != plan.seen || !free {
            return refused(StoreErrorKind::Conflict, "the name is not as expected");
        }
        let revision = self.raise_revision();
        let lent = Lent {
            by: who.holder.clone(),
            token: Token {
                epoch: plan.epoch,
                revision,
            },
            boot_id: plan.boot_id,
            expires_at: now.saturating_add(who.ttl_ms),
        };
        let row = NamedStored {
            generation: plan.generation,
            revision,
            lent: Some(lent),
        };
        self.books.names.rows.insert(plan.name.clone(), row);
        Ok(who.committed(revision))
    }

    /// Is it held under the token by whoever asks?
    fn holds(&self, who: &Asker, held: &Held) -> bool {
        let lent = self
            .books
            .names
            .rows
            .get(&held.name)
            .and_then(|row| row.lent.as_ref());
        let (instance, boot_id, token): (_, BootId, Token) = (who.holder.instance, held.boot_id, held.token);
        lent.is_some_and(|lent| (lent.by.instance, lent.boot_id, lent.token) == (instance, boot_id, token))
    }

    fn renew_named(&mut self, who: &Asker, held: &Held) -> Result<Committed> {
        self.in_epoch(held.token.epoch, held.epoch_nonce)?;
        let expires_at = self.now().saturating_add(who.ttl_ms);
        let holds = self.holds(who, held);
        let next = Revision(self.books.revision + 1);
        let row = self.books.names.rows.get_mut(&held.name);
        let Some(row) = row.filter(|row| holds && row.revision == held.guard) else {
            return refused(StoreErrorKind::Conflict, "the name is not as expected");
        };
        row.revision = next;
        if let Some(lent) = &mut row.lent {
            lent.expires_at = expires_at;
        }
        Ok(who.committed(self.raise_revision()))
    }

    fn give_up(&mut self, name: &LeaseName, token: Token) -> Result<bool> {
        self.cell_of_names()?;
        let revision = self.raise_revision();
        let row = self.books.names.rows.get_mut(name);
        let held = row.filter(|row| row.lent.as_ref().is_some_and(|lent| lent.token == token));
        let Some(row) = held else { return Ok(false) };
        row.lent = None;
        row.revision = revision;
        Ok(true)
    }

    fn raise_named(&mut self, who: &Asker, held: &Held, raises: &[Raise]) -> Result<Revision> {
        if raises.len() > CEILINGS_AT_ONCE {
            return refused(StoreErrorKind::Denied, "too many at once");
        }
        self.in_epoch(held.token.epoch, held.epoch_nonce)?;
        let ceilings = &self.books.names.ceilings;
        let as_seen = |raise: &Raise| {
            let stored = ceilings.get(&(held.name.clone(), raise.key.clone())).copied();
            let rises = raise.to > stored.map_or(0, |stored| stored.ceiling);
            let seen = raise.seen.map(|seen| seen.revision);
            rises && stored.map(|stored| stored.revision) == seen
        };
        if !self.holds(who, held) || !raises.iter().all(as_seen) {
            return refused(StoreErrorKind::Conflict, "not all ceilings are as expected");
        }
        let revision = self.raise_revision();
        for raise in raises {
            let stored = Stored {
                ceiling: raise.to,
                revision,
            };
            let key = (held.name.clone(), raise.key.clone());
            self.books.names.ceilings.insert(key, stored);
        }
        Ok(revision)
    }

    fn claim_stripe(&mut self, plan: &ClaimPlan) -> Result<()> {
        self.cell_of_names()?;
        let wish = &plan.wish;
        let key = (wish.space_id, wish.stripe);
        if self.books.names.stripes.get(&key).map(|claim| claim.revision) != plan.seen {
            return refused(StoreErrorKind::Conflict, "the stripe is not as expected");
        }
        let revision = self.raise_revision();
        let claim = StripeClaim {
            space_id: wish.space_id,
            stripe: wish.stripe,
            cut: wish.cut,
            server: wish.server,
            database: wish.database.clone(),
            name: wish.name.clone(),
            at: wish.at,
            by: wish.by.clone(),
            joined: plan.joined,
            released: None,
            revision,
        };
        self.books.names.stripes.insert(key, claim);
        Ok(())
    }

    fn join_stripe(&mut self, plan: &JoinPlan) -> Result<()> {
        let key = (plan.space_id, plan.stripe);
        self.change_claim(key, plan.seen, |claim| claim.joined = Some(plan.at))
    }

    fn release_stripe(&mut self, plan: &ReleasePlan) -> Result<()> {
        let key = (plan.space_id, plan.stripe);
        let released = (plan.at, plan.reason.clone());
        self.change_claim(key, plan.seen, |claim| claim.released = Some(released))
    }

    /// A claim that somebody has, and that is as it was seen.
    fn change_claim(
        &mut self,
        key: (u128, u32),
        seen: Revision,
        change: impl FnOnce(&mut StripeClaim),
    ) -> Result<()> {
        self.cell_of_names()?;
        let next = Revision(self.books.revision + 1);
        let claim = self.books.names.stripes.get_mut(&key);
        let Some(claim) = claim.filter(|claim| claim.revision == seen && claim.released.is_none()) else {
            return refused(StoreErrorKind::Conflict, "the stripe is not as expected");
        };
        change(claim);
        claim.revision = next;
        self.raise_revision();
        Ok(())
    }
}

impl NamedStore for MemoryStore {
    async fn look_at(&mut self, name: &LeaseName) -> Result<NamedLook> {
        let name = name.clone();
        self.look(move |ground| ground.look_at(&name)).await
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<NamedRow>> {
        let prefix = prefix.to_owned();
        self.look(move |ground| ground.list(&prefix)).await
    }

    async fn acquire(&mut self, plan: &Acquisition) -> Result<Committed> {
        let (who, plan) = (self.asker.clone(), plan.clone());
        self.change(move |ground| ground.acquire(&who, &plan)).await
    }

    async fn renew_held(&mut self, held: &Held) -> Result<Committed> {
        let (who, held) = (self.asker.clone(), held.clone());
        self.change(move |ground| ground.renew_named(&who, &held)).await
    }

    async fn give_up(&mut self, name: &LeaseName, token: Token) -> Result<bool> {
        let name = name.clone();
        self.change(move |ground| ground.give_up(&name, token)).await
    }

    async fn ceilings(&mut self, name: &LeaseName, keys: &[String]) -> Result<BTreeMap<String, Stored>> {
        let (name, keys) = (name.clone(), keys.to_vec());
        self.look(move |ground| {
            ground.cell_of_names()?;
            let stored = |key: &String| {
                let stored = ground.books.names.ceilings.get(&(name.clone(), key.clone()));
                stored.map(|stored| (key.clone(), *stored))
            };
            Ok(keys.iter().filter_map(stored).collect())
        })
        .await
    }

    async fn raise(&mut self, held: &Held, raises: &[Raise]) -> Result<Revision> {
        let (who, held, raises) = (self.asker.clone(), held.clone(), raises.to_vec());
        self.change(move |ground| ground.raise_named(&who, &held, &raises))
            .await
    }
}

impl StripeStore for MemoryStore {
    async fn stripes(&mut self, space_id: Option<u128>) -> Result<Vec<StripeClaim>> {
        self.look(move |ground| {
            ground.cell_of_names()?;
            let all = ground.books.names.stripes.values();
            let of_space = all.filter(|claim| space_id.is_none_or(|space_id| claim.space_id == space_id));
            Ok(of_space.cloned().collect())
        })
        .await
    }

    async fn claim_stripe(&mut self, plan: &ClaimPlan) -> Result<()> {
        let plan = plan.clone();
        self.change(move |ground| ground.claim_stripe(&plan)).await
    }

    async fn join_stripe(&mut self, plan: &JoinPlan) -> Result<()> {
        let plan = plan.clone();
        self.change(move |ground| ground.join_stripe(&plan)).await
    }

    async fn release_stripe(&mut self, plan: &ReleasePlan) -> Result<()> {
        let plan = plan.clone();
        self.change(move |ground| ground.release_stripe(&plan)).await
    }
}
