//! The door of the fuzz targets to what is private here; compiled for them only.

use super::look::{Fetched, cell_of};
use super::value::{Keys, unsigned};
use crate::lease::StoreError;
use etcd_client::KeyValue;
use idgen_core::lease::{Class, Snapshot};

/// What the keys below `prefix` say of the workers; `None`: the store is new.
///
/// # Errors
/// Those of a store that cannot be trusted or read.
pub fn etcd_store(prefix: &str, pairs: &[KeyValue]) -> Result<Option<Snapshot>, StoreError> {
    let keys = Keys::new(prefix, Class::Worker);
    let fetched = Fetched::among(&keys, pairs);
    let Some(cell) = cell_of(&keys, &fetched)? else {
        return Ok(None);
    };
    let seen = fetched.of(&keys)?;
    seen.check(&keys, 0)?;
    Ok(Some(Snapshot::new(
        cell.cell(Class::Worker)?,
        unsigned(fetched.revision),
        seen.rows,
    )))
}
