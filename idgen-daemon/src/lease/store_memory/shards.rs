//! Who is to have which shard.

use super::{MemoryStore, Result, StoreErrorKind, refused};
use idgen_core::lease::{Assignment, Identity};
use idgen_daemon::lease::{AssignmentStore, Reassignment};
use std::collections::BTreeMap;

impl AssignmentStore for MemoryStore {
    async fn assignments(&mut self) -> Result<BTreeMap<Identity, Assignment>> {
        self.look(|ground| {
            ground.cell_of_names()?;
            Ok(ground.books.assignments.clone())
        })
        .await
    }

    async fn assign(&mut self, records: &[Reassignment]) -> Result<()> {
        let records = records.to_vec();
        self.change(move |ground| {
            ground.cell_of_names()?;
            let known = &mut ground.books.assignments;
            let version = |shard| known.get(shard).map_or(0, |record: &Assignment| record.version);
            if records.iter().any(|(shard, seen, _)| version(shard) != *seen) {
                return refused(StoreErrorKind::Conflict, "not all records are as expected");
            }
            known.extend(records.into_iter().map(|(shard, _, record)| (shard, record)));
            ground.raise_revision();
            Ok(())
        })
        .await
    }
}
