//! Named leases in etcd.
//!
//! ```text
//!  PREFIX/named/made               how many names have a row
//!  PREFIX/named/row/NAME           generation, and how many ceilings it has; never deleted
//!  PREFIX/named/holder/NAME        who holds it; on an etcd lease, so it goes when nobody renews
//!  PREFIX/named/ceiling/NAME:KEY   a ceiling; never deleted
//! ```
//! The token is (epoch, create revision of `holder`), the guard of a renewal its mod revision. No name has a colon, so a
//! key may be any text. Rows and ceilings are counted where they are made, and every look compares: one that somebody
//! deletes would let its numbers be granted again. The counts are of an epoch, since an advance of it vouches for what
//! there is.

use super::super::store::{Committed, StoreError, StoreErrorKind, check_open, check_plan};
use super::super::store_named::{NamedStore, check_raises, no_cell};
use super::link::Effect;
use super::look::header_of;
use super::value::{CellValue, HolderValue, SeenCell, identity_of, unsigned, value};
use super::{EtcdLease, EtcdStore, Result, encode, host_clock, not_as_expected, signed};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use idgen_core::lease::ledger::{Cell, Holder};
use idgen_core::lease::named::{Acquisition, Held, LeaseName, NamedLook, NamedRow, Occupant, Raise, Stored};
use idgen_core::lease::{BootId, Class, Epoch, InstanceId, Revision, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// `named/made`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct MadeValue {
    names: u64,
    epoch: u64,
}

/// `named/row/NAME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RowValue {
    generation: u64,
    ceilings: u64,
    epoch: u64,
}

/// `named/ceiling/NAME:KEY`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CeilingValue {
    ceiling: i64,
}

/// What a name's keys were when it was looked at last: its row and how many names there are, with their mod revisions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenName {
    row: RowValue,
    row_revision: i64,
    made: MadeValue,
    made_revision: i64,
}

/// Names of the keys.
struct NamedKeys<'p>(&'p str);

impl NamedKeys<'_> {
    fn made(&self) -> String {
        format!("{}/named/made", self.0)
    }

    fn rows(&self) -> String {
        format!("{}/named/row/", self.0)
    }

    fn row(&self, name: &LeaseName) -> String {
        format!("{}{name}", self.rows())
    }

    fn holders(&self) -> String {
        format!("{}/named/holder/", self.0)
    }

    fn holder(&self, name: &LeaseName) -> String {
        format!("{}{name}", self.holders())
    }

    fn ceilings(&self) -> String {
        format!("{}/named/ceiling/", self.0)
    }

    fn ceilings_of(&self, name: &LeaseName) -> String {
        format!("{}{name}:", self.ceilings())
    }

    fn ceiling(&self, name: &LeaseName, key: &str) -> String {
        format!("{}{key}", self.ceilings_of(name))
    }
}

pub(super) fn below(key: String) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_prefix()))
}

fn count(key: String) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_prefix().with_count_only()))
}

pub(super) fn only(answer: &GetResponse) -> Option<&KeyValue> {
    answer.kvs().first()
}

pub(super) fn is_as_seen(key: String, revision: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

impl EtcdStore {
    fn named_keys(&self) -> NamedKeys<'_> {
        NamedKeys(&self.config.prefix)
    }

    /// The cell, which must be open, and what else is asked for, at one revision.
    pub(super) async fn look_beside_cell<const N: usize>(
        &mut self,
        gets: [TxnOp; N],
    ) -> Result<(Cell, i64, [GetResponse; N])> {
        let mut kv = self.client().await?.kv_client();
        let all: Vec<TxnOp> = std::iter::once(TxnOp::get(self.keys.cell(), None))
            .chain(gets)
            .collect();
        let answer = self
            .request(Effect::None, kv.txn(Txn::new().and_then(all)))
            .await?;
        let revision = self.judge_look(&answer)?;
        let mut answers = answer
            .op_responses()
            .into_iter()
            .filter_map(|response| match response {
                TxnOpResponse::Get(answer) => Some(answer),
                _ => None,
            });
        let left_out = || StoreError::new(StoreErrorKind::Unreachable, "etcd left an answer out");
        let of_cell = answers.next().ok_or_else(left_out)?;
        let others: Vec<GetResponse> = answers.collect();
        let others = <[GetResponse; N]>::try_from(others).map_err(|_| left_out())?;
        let pair = only(&of_cell).ok_or_else(no_cell)?;
        let cell_value: CellValue = value(pair)?;
        let cell = cell_value.cell(Class::Worker)?;
        let here = identity_of(self.pins.cluster_id())?;
        check_open(&cell, &here, cell_value.sealed_reason.as_deref())?;
        self.cell = SeenCell {
            revision: pair.mod_revision(),
            looked_at: revision,
            formats: cell.worker_format.clone(),
            epoch: Some((cell.epoch, cell.epoch_nonce)),
            value: pair.value().to_vec(),
        };
        Ok((cell, revision, others))
    }

    /// Puts the holder on a new etcd lease if the guards hold.
    async fn put_holder(
        &mut self,
        (name, epoch, boot_id): (&LeaseName, Epoch, BootId),
        guards: Vec<Compare>,
        mut puts: Vec<TxnOp>,
    ) -> Result<Committed> {
        let lease = self.new_lease().await?;
        let holder = HolderValue {
            holder: Uuid::from_u128(self.config.holder.instance.0),
            holder_name: self.config.holder.name.clone(),
            token_epoch: epoch.0,
            boot_id: Uuid::from_u128(boot_id.0),
            ttl_ms: Some(lease.ttl_ms),
            put_at_ms: Some(host_clock().0),
        };
        let key = self.named_keys().holder(name);
        let on_lease = PutOptions::new().with_lease(lease.id);
        puts.push(TxnOp::put(key, encode(&holder)?, Some(on_lease)));
        let answer = self.write(Txn::new().when(guards).and_then(puts)).await;
        self.settle_lease(
            name,
            lease,
            &answer.as_ref().map(etcd_client::TxnResponse::succeeded),
        )
        .await;
        let answer = answer?;
        if !answer.succeeded() {
            return Err(not_as_expected());
        }
        let (_, revision) = header_of(answer.header())?;
        Ok(Committed {
            revision: unsigned(revision),
            ttl_ms: lease.ttl_ms,
        })
    }

    /// The etcd lease that the holder is not on any more is revoked. Of one that may carry it the next look tells.
    async fn settle_lease(
        &mut self,
        name: &LeaseName,
        lease: EtcdLease,
        put: &std::result::Result<bool, &StoreError>,
    ) {
        match put {
            Ok(true) => {
                if let Some(old) = self.named_leases.insert(name.clone(), lease.id) {
                    self.revoke(old).await;
                }
            }
            Err(error) if error.kind == StoreErrorKind::Unknown => {}
            _ => self.revoke(lease.id).await,
        }
    }

    fn check_token(&self, held: &Held) -> Result<()> {
        check_plan(
            self.cell.epoch == Some((held.token.epoch, held.epoch_nonce)),
            true,
        )
    }

    fn is_held(&self, held: &Held) -> Result<Compare> {
        let (key, token) = (self.named_keys().holder(&held.name), signed(held.token.revision)?);
        Ok(Compare::create_revision(key, CompareOp::Equal, token))
    }

    /// Keys that somebody has deleted, for whoever looks at the whole store.
    pub(super) async fn named_damage(&mut self, epoch: Epoch) -> Result<Option<String>> {
        let keys = self.named_keys();
        let without_values = GetOptions::new().with_prefix().with_keys_only();
        let ceilings = TxnOp::get(keys.ceilings(), Some(without_values));
        let gets = [TxnOp::get(keys.made(), None), below(keys.rows()), ceilings];
        let folder = keys.ceilings();
        let rows_folder = keys.rows();
        let mut kv = self.client().await?.kv_client();
        let answer = self
            .request(Effect::None, kv.txn(Txn::new().and_then(gets)))
            .await?;
        let mut answers = answer
            .op_responses()
            .into_iter()
            .filter_map(|response| match response {
                TxnOpResponse::Get(answer) => Some(answer),
                _ => None,
            });
        let (Some(made), Some(rows), Some(ceilings)) = (answers.next(), answers.next(), answers.next())
        else {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "etcd left an answer out",
            ));
        };
        let made: MadeValue = only(&made).map_or(Ok(MadeValue::default()), value)?;
        let found = rows.kvs().len() as u64;
        if let Err(error) = check_count("names", made.epoch == epoch.0, made.names, found) {
            return Ok(Some(error.message));
        }
        let mut counted: BTreeMap<&[u8], u64> = BTreeMap::new();
        for pair in ceilings.kvs() {
            let key = pair.key().strip_prefix(folder.as_bytes()).unwrap_or_default();
            let name = key.split(|byte| *byte == b':').next().unwrap_or_default();
            *counted.entry(name).or_default() += 1;
        }
        for pair in rows.kvs() {
            let row: RowValue = value(pair)?;
            let name = pair
                .key()
                .strip_prefix(rows_folder.as_bytes())
                .unwrap_or_default();
            let found = counted.get(name).copied().unwrap_or_default();
            if let Err(error) = check_count("ceilings", row.epoch == epoch.0, row.ceilings, found) {
                return Ok(Some(error.message));
            }
        }
        Ok(None)
    }
}

/// What was made is never deleted. A new epoch counts anew: whoever advanced it vouches for what there is.
fn check_count(what: &str, same_epoch: bool, made: u64, found: u64) -> Result<()> {
    if same_epoch && made != found {
        let reason = format!("{made} {what} were made, and {found} are there: some were deleted");
        return Err(StoreError::sealed(reason));
    }
    Ok(())
}

impl NamedStore for EtcdStore {
    async fn look_at(&mut self, name: &LeaseName) -> Result<NamedLook> {
        let keys = self.named_keys();
        let gets = [
            TxnOp::get(keys.made(), None),
            count(keys.rows()),
            TxnOp::get(keys.row(name), None),
            TxnOp::get(keys.holder(name), None),
            count(keys.ceilings_of(name)),
        ];
        let (cell, revision, [made, rows, row, holder, ceilings]) = self.look_beside_cell(gets).await?;
        let made_value: MadeValue = only(&made).map_or(Ok(MadeValue::default()), value)?;
        let names = rows.count().cast_unsigned();
        check_count("names", made_value.epoch == cell.epoch.0, made_value.names, names)?;
        let of_row: RowValue = only(&row).map_or(Ok(RowValue::default()), value)?;
        let found = ceilings.count().cast_unsigned();
        check_count("ceilings", of_row.epoch == cell.epoch.0, of_row.ceilings, found)?;
        let seen = SeenName {
            row: RowValue {
                ceilings: found,
                ..of_row
            },
            row_revision: only(&row).map_or(0, KeyValue::mod_revision),
            made: MadeValue { names, ..made_value },
            made_revision: only(&made).map_or(0, KeyValue::mod_revision),
        };
        self.names.insert(name.clone(), seen);
        let occupant = only(&holder).map(occupant).transpose()?;
        let of_row = only(&row).map(|pair| NamedRow {
            name: name.clone(),
            generation: of_row.generation,
            revision: unsigned(pair.mod_revision()),
            occupant,
        });
        Ok(NamedLook {
            cell,
            revision: unsigned(revision),
            row: of_row,
        })
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<NamedRow>> {
        let keys = self.named_keys();
        let (rows_folder, holders_folder) = (keys.rows(), keys.holders());
        let gets = [
            below(format!("{rows_folder}{prefix}")),
            below(format!("{holders_folder}{prefix}")),
        ];
        let (_, _, [rows, holders]) = self.look_beside_cell(gets).await?;
        let name_in = |folder: &str, pair: &KeyValue| -> Option<LeaseName> {
            let key = pair.key().strip_prefix(folder.as_bytes())?;
            std::str::from_utf8(key).ok()?.parse().ok()
        };
        let mut occupants = BTreeMap::new();
        for pair in holders.kvs() {
            occupants.extend(name_in(&holders_folder, pair).map(|name| (name, pair)));
        }
        let mut listed = Vec::new();
        for pair in rows.kvs() {
            let Some(name) = name_in(&rows_folder, pair) else {
                continue;
            };
            let row: RowValue = value(pair)?;
            listed.push(NamedRow {
                generation: row.generation,
                revision: unsigned(pair.mod_revision()),
                occupant: occupants.get(&name).map(|pair| occupant(pair)).transpose()?,
                name,
            });
        }
        Ok(listed)
    }

    async fn acquire(&mut self, plan: &Acquisition) -> Result<Committed> {
        check_plan(self.cell.epoch == Some((plan.epoch, plan.epoch_nonce)), true)?;
        let seen = self.names.get(&plan.name).copied().unwrap_or_default();
        let keys = self.named_keys();
        let (row, made) = (keys.row(&plan.name), keys.made());
        let planned_on = plan.seen.map_or(Ok(0), signed)?;
        let mut guards = vec![
            self.cell_unchanged(),
            Compare::create_revision(keys.holder(&plan.name), CompareOp::Equal, 0),
            is_as_seen(row.clone(), planned_on),
        ];
        let row_value = RowValue {
            generation: plan.generation,
            epoch: plan.epoch.0,
            ..seen.row
        };
        let mut puts = vec![TxnOp::put(row, encode(&row_value)?, None)];
        if plan.seen.is_none() || seen.made.epoch != plan.epoch.0 {
            guards.push(is_as_seen(made.clone(), seen.made_revision));
            let counted = MadeValue {
                names: seen.made.names + u64::from(plan.seen.is_none()),
                epoch: plan.epoch.0,
            };
            puts.push(TxnOp::put(made, encode(&counted)?, None));
        }
        let committed = self
            .put_holder((&plan.name, plan.epoch, plan.boot_id), guards, puts)
            .await?;
        self.names.insert(
            plan.name.clone(),
            SeenName {
                row: row_value,
                row_revision: signed(committed.revision)?,
                ..seen
            },
        );
        Ok(committed)
    }

    async fn renew_held(&mut self, held: &Held) -> Result<Committed> {
        self.check_token(held)?;
        let key = self.named_keys().holder(&held.name);
        let guards = vec![
            self.cell_unchanged(),
            self.is_held(held)?,
            is_as_seen(key, signed(held.guard)?),
        ];
        self.put_holder((&held.name, held.token.epoch, held.boot_id), guards, Vec::new())
            .await
    }

    async fn give_up(&mut self, name: &LeaseName, token: Token) -> Result<bool> {
        let looked = self.look_at(name).await?;
        let shown = looked
            .row
            .and_then(|row| row.occupant)
            .map(|occupant| occupant.holder.token);
        if shown != Some(token) {
            return Ok(false);
        }
        let key = self.named_keys().holder(name);
        let guards = vec![
            self.cell_unchanged(),
            Compare::create_revision(key.clone(), CompareOp::Equal, signed(token.revision)?),
        ];
        self.commit_planned(Txn::new().when(guards).and_then([TxnOp::delete(key, None)]))
            .await?;
        if let Some(lease_id) = self.named_leases.remove(name) {
            self.revoke(lease_id).await;
        }
        Ok(true)
    }

    async fn ceilings(&mut self, name: &LeaseName, keys: &[String]) -> Result<BTreeMap<String, Stored>> {
        let of = self.named_keys();
        let gets = keys.iter().map(|key| TxnOp::get(of.ceiling(name, key), None));
        let gets: Vec<TxnOp> = gets.collect();
        let folder = of.ceilings_of(name);
        let mut kv = self.client().await?.kv_client();
        let answer = self
            .request(Effect::None, kv.txn(Txn::new().and_then(gets)))
            .await?;
        // A ceiling from before the grant would be a floor that is too low.
        self.judge_write(&answer)?;
        let mut found = BTreeMap::new();
        for response in answer.op_responses() {
            let TxnOpResponse::Get(answer) = response else {
                continue;
            };
            let Some(pair) = only(&answer) else { continue };
            let key = pair.key().strip_prefix(folder.as_bytes()).unwrap_or_default();
            let stored = Stored {
                ceiling: value::<CeilingValue>(pair)?.ceiling,
                revision: unsigned(pair.mod_revision()),
            };
            found.insert(String::from_utf8_lossy(key).into_owned(), stored);
        }
        Ok(found)
    }

    async fn raise(&mut self, held: &Held, raises: &[Raise]) -> Result<Revision> {
        check_raises(raises)?;
        self.check_token(held)?;
        let seen = self.names.get(&held.name).copied().unwrap_or_default();
        let keys = self.named_keys();
        let mut guards = vec![self.cell_unchanged(), self.is_held(held)?];
        let mut puts = Vec::with_capacity(raises.len() + 1);
        for raise in raises {
            let key = keys.ceiling(&held.name, &raise.key);
            let planned_on = raise.seen.map_or(Ok(0), |stored| signed(stored.revision))?;
            guards.push(is_as_seen(key.clone(), planned_on));
            puts.push(TxnOp::put(
                key,
                encode(&CeilingValue { ceiling: raise.to })?,
                None,
            ));
        }
        let new = raises.iter().filter(|raise| raise.seen.is_none()).count() as u64;
        let row_value = RowValue {
            ceilings: seen.row.ceilings + new,
            ..seen.row
        };
        if new > 0 {
            let row = keys.row(&held.name);
            guards.push(is_as_seen(row.clone(), seen.row_revision));
            puts.push(TxnOp::put(row, encode(&row_value)?, None));
        }
        let answer = self.write(Txn::new().when(guards).and_then(puts)).await?;
        if !answer.succeeded() {
            return Err(not_as_expected());
        }
        let (_, revision) = header_of(answer.header())?;
        if new > 0 {
            let seen = SeenName {
                row: row_value,
                row_revision: revision,
                ..seen
            };
            self.names.insert(held.name.clone(), seen);
        }
        Ok(unsigned(revision))
    }
}

fn occupant(pair: &KeyValue) -> Result<Occupant> {
    let holder: HolderValue = value(pair)?;
    Ok(Occupant {
        holder: Holder {
            instance: InstanceId(holder.holder.as_u128()),
            name: holder.holder_name,
            token: Token {
                epoch: Epoch(holder.token_epoch),
                revision: unsigned(pair.create_revision()),
            },
            boot_id: BootId(holder.boot_id.as_u128()),
            // The key would be gone.
            expired: false,
        },
        guard: unsigned(pair.mod_revision()),
    })
}
