//! Keys and values, and the whole store made from them.

use super::super::store::{StoreError, StoreErrorKind};
use etcd_client::KeyValue;
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{BootId, CellId, Epoch, EpochNonce, InstanceId, Revision, Snapshot, Token, WorkerId};
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

/// Names of the keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn all(&self) -> String {
        format!("{}/", self.prefix)
    }

    pub(super) fn cell(&self) -> String {
        format!("{}/cell", self.prefix)
    }

    pub(super) fn high_water(&self, worker: WorkerId) -> String {
        format!("{}/w/{worker}/hw", self.prefix)
    }

    pub(super) fn holder(&self, worker: WorkerId) -> String {
        format!("{}/w/{worker}/holder", self.prefix)
    }

    /// Identity and last part of a key below `w`.
    fn part<'k>(&self, key: &'k str) -> Option<(WorkerId, &'k str)> {
        let (id, part) = key
            .strip_prefix(&self.prefix)?
            .strip_prefix("/w/")?
            .split_once('/')?;
        Some((WorkerId(id.parse().ok()?), part))
    }
}

/// The store at one revision.
pub(super) struct SeenStore {
    pub(super) snapshot: Snapshot,
    pub(super) cell_guard: i64,
    pub(super) cluster_id: u64,
    pub(super) sealed_reason: Option<String>,
}

/// `None`: the store is new.
pub(super) fn decode(keys: &Keys, pairs: &[KeyValue]) -> Result<Option<SeenStore>> {
    let cell_key = keys.cell();
    let mut cell: Option<(CellValue, i64)> = None;
    let mut high_waters: BTreeMap<WorkerId, (HighWaterValue, i64)> = BTreeMap::new();
    let mut holders: BTreeMap<WorkerId, (HolderValue, i64)> = BTreeMap::new();
    for pair in pairs {
        let key = String::from_utf8_lossy(pair.key());
        if *key == cell_key {
            cell = Some((value(pair)?, pair.mod_revision()));
        } else if let Some((worker, part)) = keys.part(&key) {
            match part {
                "hw" => drop(high_waters.insert(worker, (value(pair)?, pair.mod_revision()))),
                "holder" => drop(holders.insert(worker, (value(pair)?, pair.create_revision()))),
                // A later release may keep more below an identity.
                _ => {}
            }
        }
    }
    // High waters are what keeps windows apart; a store that lost a key of these cannot be trusted.
    let Some((cell, cell_guard)) = cell else {
        return if high_waters.is_empty() {
            Ok(None)
        } else {
            Err(missing(&cell_key))
        };
    };
    if let Some(worker) = holders.keys().find(|worker| !high_waters.contains_key(worker)) {
        return Err(missing(&keys.high_water(*worker)));
    }
    let rows = high_waters
        .into_iter()
        .map(|(worker, (high_water, revision))| Row {
            worker,
            generation: high_water.generation,
            ceiling: UnixMs(high_water.ceiling_ms),
            revision: unsigned(revision),
            holder: holders.remove(&worker).map(|(holder, created)| Holder {
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
    let snapshot = Snapshot {
        cell: Cell {
            cell_id: CellId(cell.cell_id.as_u128()),
            worker_format: cell.worker_format,
            epoch: Epoch(cell.epoch),
            epoch_nonce: EpochNonce(cell.epoch_nonce.as_u128()),
            min_floor: UnixMs(cell.min_floor_ms),
        },
        rows,
    };
    let (cluster_id, sealed_reason) = (cell.cluster_id, cell.sealed_reason);
    Ok(Some(SeenStore {
        snapshot,
        cell_guard,
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
