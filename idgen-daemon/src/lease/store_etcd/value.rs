//! Keys and values, and the whole store made from them.

use super::super::store::{StoreError, StoreErrorKind};
use etcd_client::KeyValue;
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{
    AdvancePlan, BootId, CellId, Class, Epoch, EpochChange, EpochNonce, Identity, InstanceId, Revision,
    StoreIdentity, Token, Told,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

type Result<T> = std::result::Result<T, StoreError>;

/// The cell's key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CellValue {
    cell_id: Uuid,
    worker_format: String,
    epoch: u64,
    epoch_nonce: Uuid,
    epoch_since_ms: u64,
    #[serde(default)]
    epoch_known: u64,
    #[serde(default)]
    epoch_known_since_ms: u64,
    #[serde(default)]
    formats_known: Vec<String>,
    min_floor_ms: u64,
    #[serde(default)]
    shard_min_floor_ms: u64,
    pub(super) sealed_reason: Option<String>,
    #[serde(default)]
    sealed_at_ms: Option<u64>,
    cluster_id: u64,
}

impl CellValue {
    /// A new cell. Epoch 0 leases from the lower half of the pool.
    pub(super) fn fresh(cluster_id: u64, now: UnixMs) -> Self {
        Self {
            cell_id: Uuid::new_v4(),
            worker_format: "classic".to_owned(),
            epoch: 0,
            epoch_nonce: Uuid::new_v4(),
            epoch_since_ms: now.0,
            epoch_known: 0,
            epoch_known_since_ms: 0,
            formats_known: Vec::new(),
            min_floor_ms: 0,
            shard_min_floor_ms: 0,
            sealed_reason: None,
            sealed_at_ms: None,
            cluster_id,
        }
    }

    /// As one class sees it.
    pub(super) fn cell(&self, class: Class) -> Result<Cell> {
        Ok(Cell {
            cell_id: CellId(self.cell_id.as_u128()),
            worker_format: self.worker_format.clone(),
            epoch: Epoch(self.epoch),
            epoch_nonce: EpochNonce(self.epoch_nonce.as_u128()),
            epoch_since: UnixMs(self.epoch_since_ms),
            identity: identity_of(self.cluster_id)?,
            min_floor: match class {
                Class::Worker => UnixMs(self.min_floor_ms),
                Class::Shard => self.shard_min_floor(),
            },
        })
    }

    pub(super) fn shard_min_floor(&self) -> UnixMs {
        UnixMs(self.shard_min_floor_ms)
    }

    pub(super) fn sealed_at(&self) -> Option<UnixMs> {
        self.sealed_at_ms.map(UnixMs)
    }

    pub(super) fn known(&self) -> Told {
        Told {
            epoch: Epoch(self.epoch_known),
            since: UnixMs(self.epoch_known_since_ms),
            formats: self.formats_known.clone(),
        }
    }
}

/// What tells one cluster from another.
pub(super) fn identity_of(cluster_id: u64) -> Result<StoreIdentity> {
    StoreIdentity::new(&format!("etcd/{cluster_id:x}"))
        .ok_or_else(|| StoreError::new(StoreErrorKind::Denied, "the cluster id has no text"))
}

/// The cell's key as it was seen.
#[derive(Debug, Default)]
pub(super) struct SeenCell {
    /// Its mod revision.
    pub(super) revision: i64,
    /// The revision of the store that was looked at.
    pub(super) looked_at: i64,
    /// The plan of formats in it.
    pub(super) formats: String,
    /// Its epoch, and the name of that.
    pub(super) epoch: Option<(Epoch, EpochNonce)>,
    /// The whole of it.
    pub(super) value: Vec<u8>,
}

impl SeenCell {
    /// Its value with some fields changed; what a later release may have put beside them stays.
    fn with<const N: usize>(&self, fields: [(&str, serde_json::Value); N]) -> Result<Vec<u8>> {
        let broken = |error| StoreError::new(StoreErrorKind::Denied, format!("change the cell: {error}"));
        let mut cell: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&self.value).map_err(broken)?;
        for (name, value) in fields {
            cell.insert(name.to_owned(), value);
        }
        serde_json::to_vec(&cell).map_err(broken)
    }

    /// How many people have to approve; `None`: nobody has decided.
    pub(super) fn approvals_needed(&self) -> Option<u32> {
        let cell: serde_json::Value = serde_json::from_slice(&self.value).ok()?;
        u32::try_from(cell.get("approvals_needed")?.as_u64()?).ok()
    }

    /// With so many people needed.
    pub(super) fn needing(&self, approvals: u32) -> Result<Vec<u8>> {
        self.with([("approvals_needed", approvals.into())])
    }

    /// With other formats and another floor.
    pub(super) fn switched(&self, formats: &str, min_floor: UnixMs) -> Result<Vec<u8>> {
        self.with([
            ("worker_format", formats.into()),
            ("min_floor_ms", min_floor.0.into()),
        ])
    }

    /// Sealed, and with what is known beyond it.
    pub(super) fn sealed(&self, reason: &str, at: UnixMs, known: &Told) -> Result<Vec<u8>> {
        self.with([
            ("sealed_reason", reason.into()),
            ("sealed_at_ms", at.0.into()),
            ("epoch_known", known.epoch.0.into()),
            ("epoch_known_since_ms", known.since.0.into()),
            ("formats_known", known.formats.clone().into()),
        ])
    }

    /// Open, in the next epoch of the cluster that it is in.
    pub(super) fn advanced(&self, plan: &AdvancePlan, cluster_id: u64) -> Result<Vec<u8>> {
        self.with([
            ("epoch", plan.to.0.into()),
            ("epoch_nonce", Uuid::from_u128(plan.nonce.0).to_string().into()),
            ("epoch_since_ms", plan.since.0.into()),
            ("worker_format", plan.formats.as_str().into()),
            ("formats_known", Vec::<String>::new().into()),
            ("min_floor_ms", plan.worker_min_floor.0.into()),
            ("shard_min_floor_ms", plan.shard_min_floor.0.into()),
            ("sealed_reason", serde_json::Value::Null),
            ("sealed_at_ms", serde_json::Value::Null),
            ("cluster_id", cluster_id.into()),
        ])
    }
}

/// How many shards have keys: the count of them is compared with it, so that none goes unnoticed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ShardsValue {
    pub(super) made: u64,
}

/// `epoch/N`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ChangeValue {
    epoch: u64,
    at_ms: u64,
    store: String,
    by: String,
    reason: String,
}

impl ChangeValue {
    pub(super) fn of(plan: &AdvancePlan) -> Self {
        Self {
            epoch: plan.to.0,
            at_ms: plan.since.0,
            store: plan.identity.to_string(),
            by: plan.by.clone(),
            reason: plan.reason.clone(),
        }
    }

    pub(super) fn change(self) -> Result<EpochChange> {
        Ok(EpochChange {
            epoch: Epoch(self.epoch),
            at: UnixMs(self.at_ms),
            identity: StoreIdentity::new(&self.store)
                .ok_or_else(|| StoreError::new(StoreErrorKind::Denied, "a recorded store cannot be read"))?,
            by: self.by,
            reason: self.reason,
        })
    }
}

/// `hw`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HighWaterValue {
    pub(super) generation: u64,
    pub(super) ceiling_ms: u64,
    /// A clean release's exact high water, not the end of a granted window.
    pub(super) exact: bool,
    pub(super) epoch: u64,
    /// The request by which the identity was taken from its holder by force; until the next grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forced: Option<Uuid>,
}

impl HighWaterValue {
    /// Of a worker that was never leased.
    pub(super) fn blank() -> Self {
        Self {
            generation: 0,
            ceiling_ms: 0,
            exact: true,
            epoch: 0,
            forced: None,
        }
    }
}

/// `holder`, and `named/holder/NAME`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HolderValue {
    pub(super) holder: Uuid,
    pub(super) holder_name: String,
    pub(super) token_epoch: u64,
    pub(super) boot_id: Uuid,
    /// For whoever reads the log: a key that goes before it has lasted so long was deleted by somebody.
    #[serde(default)]
    pub(super) ttl_ms: Option<u64>,
    #[serde(default)]
    pub(super) put_at_ms: Option<u64>,
}

/// Names of the keys of one class.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    class: Class,
}

impl Keys {
    pub(super) fn new(prefix: &str, class: Class) -> Self {
        Self {
            prefix: prefix.to_owned(),
            class,
        }
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    /// The same store, as another class sees it.
    pub(super) fn of(&self, class: Class) -> Self {
        Self::new(&self.prefix, class)
    }

    pub(super) fn cell(&self) -> String {
        format!("{}/cell", self.prefix)
    }

    /// How many shards were ever leased.
    pub(super) fn shards(&self) -> String {
        format!("{}/shards", self.prefix)
    }

    /// What the changes of the epoch are below.
    pub(super) fn changes(&self) -> String {
        format!("{}/epoch/", self.prefix)
    }

    pub(super) fn change(&self, epoch: Epoch) -> String {
        format!("{}{:020}", self.changes(), epoch.0)
    }

    /// What all identities of a class are below.
    pub(super) fn below(&self, class: Class) -> String {
        let letter = match class {
            Class::Worker => 'w',
            Class::Shard => 's',
        };
        format!("{}/{letter}/", self.prefix)
    }

    /// What our identities are below.
    pub(super) fn ours(&self) -> String {
        self.below(self.class)
    }

    pub(super) fn high_water(&self, identity: Identity) -> String {
        format!("{}{identity}/hw", self.ours())
    }

    pub(super) fn holder(&self, identity: Identity) -> String {
        format!("{}{identity}/holder", self.ours())
    }

    /// Identity and last part of one of our keys.
    fn part<'k>(&self, key: &'k str) -> Option<(Identity, &'k str)> {
        let (id, part) = key.strip_prefix(&self.ours())?.split_once('/')?;
        let identity = Identity(id.parse().ok()?);
        // "05" is not the worker 5: whatever somebody has put there is no key of ours.
        (identity.to_string() == id).then_some((identity, part))
    }
}

/// The keys of one class at one revision.
pub(super) struct SeenKeys {
    /// Every identity that was ever leased.
    pub(super) rows: Vec<Row>,
    /// Mod revisions of the high waters of those that were not.
    pub(super) blanks: BTreeMap<Identity, i64>,
    /// High waters that must be there and are not.
    pub(super) missing: Vec<Identity>,
}

impl SeenKeys {
    /// High waters are what keeps windows apart: a store that lost one of them cannot be trusted. Those of workers
    /// are all made with the cell, those of shards are counted.
    pub(super) fn check(&self, keys: &Keys, shards_made: u64) -> Result<()> {
        if let Some(identity) = self.missing.first() {
            return Err(missing(&keys.high_water(*identity)));
        }
        let found = self.rows.len() as u64;
        if keys.class == Class::Shard && found != shards_made {
            let reason =
                format!("{shards_made} shards were leased, and {found} have keys: some were deleted");
            return Err(StoreError::sealed(reason));
        }
        Ok(())
    }
}

/// What the keys of a class say.
pub(super) fn decode_keys(keys: &Keys, pairs: &[KeyValue]) -> Result<SeenKeys> {
    let mut high_waters: BTreeMap<Identity, (HighWaterValue, i64)> = BTreeMap::new();
    let mut holders: BTreeMap<Identity, (HolderValue, i64)> = BTreeMap::new();
    for pair in pairs {
        let key = String::from_utf8_lossy(pair.key());
        match keys.part(&key) {
            Some((identity, "hw")) => drop(high_waters.insert(identity, (value(pair)?, pair.mod_revision()))),
            Some((identity, "holder")) => {
                drop(holders.insert(identity, (value(pair)?, pair.create_revision())))
            }
            // A later release may keep more below an identity.
            _ => {}
        }
    }
    let expected: Vec<Identity> = match keys.class {
        Class::Worker => (0..Class::Worker.size()).map(Identity).collect(),
        Class::Shard => holders.keys().copied().collect(),
    };
    let missing = expected
        .into_iter()
        .filter(|identity| !high_waters.contains_key(identity))
        .collect();
    let mut seen = SeenKeys {
        rows: Vec::new(),
        blanks: BTreeMap::new(),
        missing,
    };
    for (identity, (high_water, revision)) in high_waters {
        let holder = holders.remove(&identity);
        if high_water.generation == 0 && holder.is_none() {
            seen.blanks.insert(identity, revision);
        } else {
            seen.rows.push(row(identity, &high_water, revision, holder));
        }
    }
    Ok(seen)
}

fn row(
    identity: Identity,
    high_water: &HighWaterValue,
    revision: i64,
    holder: Option<(HolderValue, i64)>,
) -> Row {
    Row {
        identity,
        generation: high_water.generation,
        ceiling: UnixMs(high_water.ceiling_ms),
        revision: unsigned(revision),
        holder: holder.map(|(holder, created)| Holder {
            instance: InstanceId(holder.holder.as_u128()),
            name: holder.holder_name,
            token: Token {
                epoch: Epoch(holder.token_epoch),
                revision: unsigned(created),
            },
            boot_id: BootId(holder.boot_id.as_u128()),
            // The key would be gone.
            expired: false,
        }),
    }
}

pub(super) fn value<T: DeserializeOwned>(pair: &KeyValue) -> Result<T> {
    serde_json::from_slice(pair.value()).map_err(|error| {
        let key = String::from_utf8_lossy(pair.key());
        StoreError::new(StoreErrorKind::Denied, format!("read {key}: {error}"))
    })
}

/// Who the cell is, its epoch and formats stood in it, so no epoch can be advanced.
pub(super) fn missing_cell(key: &str) -> StoreError {
    let message = format!(
        "the key {key} was deleted, and with it the cell (hint: put the key back from a backup; without one, give the \
         cell a new prefix: \"A lease store that is gone\" in docs/operations.md)"
    );
    StoreError::new(StoreErrorKind::Denied, message)
}

pub(super) fn missing(key: &str) -> StoreError {
    StoreError::sealed(format!("the key {key} was deleted"))
}

/// etcd's revisions are never negative.
pub(super) fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_one_name() {
        let keys = Keys::new("/p", Class::Worker);
        assert_eq!(keys.part("/p/w/5/hw"), Some((Identity(5), "hw")));
        for alias in [
            "/p/w/05/hw",
            "/p/w/+5/hw",
            "/p/w/ 5/hw",
            "/p/w/x/hw",
            "/p/w//hw",
            "/p/s/5/hw",
        ] {
            assert_eq!(keys.part(alias), None, "{alias}");
        }
    }
}
