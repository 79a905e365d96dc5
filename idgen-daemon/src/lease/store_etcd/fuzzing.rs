//! The door of the fuzz targets to what is private here; compiled for them only.

use super::value::{Found, Keys, decode};
use crate::lease::StoreError;
use etcd_client::KeyValue;
use idgen_core::lease::{Class, Snapshot};

/// What the keys below `prefix` say of the workers; `None`: the store is new.
///
/// # Errors
/// Those of a store that cannot be trusted or read.
pub fn etcd_store(prefix: &str, pairs: &[KeyValue]) -> Result<Option<Snapshot>, StoreError> {
    let keys = Keys::new(prefix, Class::Worker);
    let below = |pair: &&KeyValue| pair.key().starts_with(keys.ours().as_bytes());
    let ours: Vec<KeyValue> = pairs.iter().filter(below).cloned().collect();
    let found = Found {
        cell: pairs.iter().find(|pair| pair.key() == keys.cell().as_bytes()),
        leased_keys: i64::try_from(ours.len()).unwrap_or(i64::MAX),
        ours: &ours,
    };
    decode(&keys, &found).map(|seen| seen.map(|seen| seen.snapshot))
}
