//! What must hold after every step, besides that no id is minted twice.

use crate::steps::Step;
use crate::world::{IDENTITIES, State, Store};

pub fn always(step: Step, before: &State, after: &State) -> Result<(), &'static str> {
    // These two put another history in the place of the store's.
    if matches!(step, Step::Restore | Step::Replicate) {
        return Ok(());
    }
    for (before, after) in before.stores.iter().zip(&after.stores) {
        ceilings(step, before, after)?;
        sealed(before, after)?;
        if after.revision < before.revision || after.epoch < before.epoch {
            return Err("a revision or an epoch fell");
        }
    }
    (before.nodes.iter().zip(&after.nodes)).try_for_each(|(before, after)| {
        let same_lease = before
            .lease
            .zip(after.lease)
            .filter(|(old, new)| old.token == new.token);
        let Some((old, new)) = same_lease else {
            return Ok(());
        };
        let pairs = old.identities().zip(new.identities());
        let shrank = pairs
            .into_iter()
            .any(|((_, old), (_, new))| new.ceiling < old.ceiling);
        if shrank { Err("a window shrank") } else { Ok(()) }
    })
}

/// I8: a ceiling falls only to the exact high water of a release.
fn ceilings(step: Step, before: &Store, after: &Store) -> Result<(), &'static str> {
    let fell = (0..IDENTITIES).any(|index| after.rows[index].ceiling < before.rows[index].ceiling);
    if fell && !matches!(step, Step::Release { .. }) {
        return Err("a ceiling fell");
    }
    Ok(())
}

/// I10: a sealed store grants and renews nothing. Leases may end in it.
fn sealed(before: &Store, after: &Store) -> Result<(), &'static str> {
    let changed = before.sealed && after.sealed && before.revision != after.revision;
    if changed {
        return Err("a sealed store was written to");
    }
    Ok(())
}
