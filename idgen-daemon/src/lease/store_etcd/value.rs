//! Keys and values, and the whole store made from them.

use super::super::store::{StoreError, StoreErrorKind};
use etcd_client::KeyValue;
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{
    BootId, CellId, Class, Epoch, EpochNonce, Identity, InstanceId, Revision, Snapshot, Token,
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
    min_floor_ms: u64,
    sealed_reason: Option<String>,
    cluster_id: u64,
}

impl CellValue {
    /// A new cell. Epoch 0 leases from the lower half of the pool.
    pub(super) fn fresh(cluster_id: u64) -> Self {
        Self {
            cell_id: Uuid::new_v4(),
            worker_format: "classic".to_owned(),
            epoch: 0,
            epoch_nonce: Uuid::new_v4(),
            min_floor_ms: 0,
            sealed_reason: None,
            cluster_id,
        }
    }
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
    /// The whole of it.
    pub(super) value: Vec<u8>,
}

impl SeenCell {
    /// Its value with other formats and another floor; what a later release may have put beside them stays.
    pub(super) fn switched(&self, formats: &str, min_floor: UnixMs) -> Result<Vec<u8>> {
        let broken = |error| StoreError::new(StoreErrorKind::Denied, format!("change the cell: {error}"));
        let mut cell: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&self.value).map_err(broken)?;
        cell.insert("worker_format".to_owned(), formats.into());
        cell.insert("min_floor_ms".to_owned(), min_floor.0.into());
        serde_json::to_vec(&cell).map_err(broken)
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
}

/// `holder`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HolderValue {
    pub(super) holder: Uuid,
    pub(super) holder_name: String,
    pub(super) token_epoch: u64,
    pub(super) boot_id: Uuid,
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

    pub(super) fn cell(&self) -> String {
        format!("{}/cell", self.prefix)
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
        Some((Identity(id.parse().ok()?), part))
    }
}

/// The store at one revision.
pub(super) struct SeenStore {
    pub(super) snapshot: Snapshot,
    pub(super) cell_guard: i64,
    pub(super) cluster_id: u64,
    pub(super) sealed_reason: Option<String>,
}

/// What one look found.
pub(super) struct Found<'a> {
    /// The cell's key.
    pub(super) cell: Option<&'a KeyValue>,
    /// The keys of our class.
    pub(super) ours: &'a [KeyValue],
    /// How many keys the identities of all classes have.
    pub(super) leased_keys: i64,
}

/// `None`: the store is new.
pub(super) fn decode(keys: &Keys, found: &Found<'_>) -> Result<Option<SeenStore>> {
    // High waters are what keeps windows apart; a store that lost a key of these cannot be trusted.
    let Some(cell_pair) = found.cell else {
        return if found.leased_keys == 0 {
            Ok(None)
        } else {
            Err(missing(&keys.cell()))
        };
    };
    let cell: CellValue = value(cell_pair)?;
    let mut high_waters: BTreeMap<Identity, (HighWaterValue, i64)> = BTreeMap::new();
    let mut holders: BTreeMap<Identity, (HolderValue, i64)> = BTreeMap::new();
    for pair in found.ours {
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
    if let Some(identity) = holders
        .keys()
        .find(|identity| !high_waters.contains_key(identity))
    {
        return Err(missing(&keys.high_water(*identity)));
    }
    let rows = high_waters
        .into_iter()
        .map(|(identity, (high_water, revision))| Row {
            identity,
            generation: high_water.generation,
            ceiling: UnixMs(high_water.ceiling_ms),
            revision: unsigned(revision),
            holder: holders.remove(&identity).map(|(holder, created)| Holder {
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
        })
        .collect();
    let snapshot = Snapshot::new(
        Cell {
            cell_id: CellId(cell.cell_id.as_u128()),
            worker_format: cell.worker_format,
            epoch: Epoch(cell.epoch),
            epoch_nonce: EpochNonce(cell.epoch_nonce.as_u128()),
            min_floor: UnixMs(cell.min_floor_ms),
        },
        rows,
    );
    let (cluster_id, sealed_reason) = (cell.cluster_id, cell.sealed_reason);
    Ok(Some(SeenStore {
        snapshot,
        cell_guard: cell_pair.mod_revision(),
        cluster_id,
        sealed_reason,
    }))
}

fn value<T: DeserializeOwned>(pair: &KeyValue) -> Result<T> {
    serde_json::from_slice(pair.value()).map_err(|error| {
        let key = String::from_utf8_lossy(pair.key());
        StoreError::new(StoreErrorKind::Denied, format!("read {key}: {error}"))
    })
}

fn missing(key: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Sealed,
        format!("sealed: the key {key} was deleted"),
    )
}

/// etcd's revisions are never negative.
fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}
