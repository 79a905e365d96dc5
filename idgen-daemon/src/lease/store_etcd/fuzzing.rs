//! The door of the fuzz targets to what is private here; compiled for them only.

use super::value::{Keys, decode};
use crate::lease::StoreError;
use etcd_client::KeyValue;
use idgen_core::lease::Snapshot;

/// What the keys below `prefix` say; `None`: the store is new.
///
/// # Errors
/// Those of a store that cannot be trusted or read.
pub fn etcd_store(prefix: &str, pairs: &[KeyValue]) -> Result<Option<Snapshot>, StoreError> {
    decode(&Keys::new(prefix), pairs).map(|seen| seen.map(|seen| seen.snapshot))
}
