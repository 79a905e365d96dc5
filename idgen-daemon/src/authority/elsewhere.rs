//! A store in the cluster itself is no authority over it.

use crate::lease::{StoreError, StoreErrorKind};
use idgen_core::lease::StoreIdentity;
use idgen_core::lease::named::NamedLook;

/// A look at a store that is not in the cluster with this system identifier.
pub(super) fn elsewhere(look: NamedLook, own_system: u64) -> Result<NamedLook, StoreError> {
    if is_in(&look.cell.identity, own_system) {
        return Err(StoreError::new(
            StoreErrorKind::Denied,
            "it is in this very cluster, and cannot be an authority over it: what goes back with the one goes back \
             with the other (hint: [store] in another server, or etcd)",
        ));
    }
    Ok(look)
}

/// Is that store in a database of the cluster with this system identifier?
fn is_in(store: &StoreIdentity, system: u64) -> bool {
    let prefix = format!("postgres/{}/", system.cast_signed());
    store.as_str().starts_with(&prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_the_cluster_itself_is_told_by_its_identity() {
        let here = StoreIdentity::new("postgres/-5/1/16384").expect("an identity");
        assert!(is_in(&here, (-5_i64).cast_unsigned()) && !is_in(&here, 5));
        let etcd = StoreIdentity::new("etcd/5").expect("an identity");
        assert!(!is_in(&etcd, 5));
    }
}
