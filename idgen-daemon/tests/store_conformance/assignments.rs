//! The rules for who is to have which shard.

use crate::rules::{self, Daemon, Place};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{Assignment, Class, Identity};
use idgen_daemon::lease::{AssignmentStore, LeaseStore, RECORDS_AT_ONCE, Reassignment, StoreErrorKind};
use std::collections::BTreeMap;

fn to(server: &str, shard: u16, seen: u64) -> Reassignment {
    let record = Assignment {
        server: server.to_owned(),
        at: UnixMs(1_795_910_400_123),
        by: "somebody at db1".to_owned(),
        reason: "a new disk".to_owned(),
        version: seen + 1,
    };
    (Identity(shard), seen, record)
}

fn known(records: &[Reassignment]) -> BTreeMap<Identity, Assignment> {
    let records = records.iter().cloned();
    records.map(|(shard, _, record)| (shard, record)).collect()
}

pub fn records_are_written_together_and_only_over_what_was_seen<P: Place>(place: &P)
where
    P::Store: AssignmentStore,
{
    let runtime = rules::runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    let denied = runtime
        .block_on(one.store.assignments())
        .expect_err("there is no cell yet");
    assert_eq!(denied.kind, StoreErrorKind::Denied);
    runtime.block_on(one.store.read()).expect("read");

    let first = [to("a", 0, 0), to("b", 8_191, 0)];
    runtime.block_on(one.store.assign(&first)).expect("written");
    let seen = runtime.block_on(two.store.assignments()).expect("read");
    assert_eq!(seen, known(&first), "as they were written, for everybody");
    let late = [to("c", 7, 0), to("c", 0, 0)];
    let refused = runtime
        .block_on(two.store.assign(&late))
        .expect_err("0 has a record by now");
    assert_eq!(refused.kind, StoreErrorKind::Conflict);
    assert_eq!(
        runtime.block_on(one.store.assignments()).expect("read"),
        known(&first),
        "nothing of it stays"
    );
    let next = to("b", 0, 1);
    runtime
        .block_on(two.store.assign(std::slice::from_ref(&next)))
        .expect("written");
    let again = runtime
        .block_on(one.store.assign(&[next]))
        .expect_err("only once");
    assert_eq!(again.kind, StoreErrorKind::Conflict);
    let many: Vec<Reassignment> = (100..)
        .take(RECORDS_AT_ONCE)
        .map(|shard| to("a", shard, 0))
        .collect();
    runtime
        .block_on(one.store.assign(&many))
        .expect("as many as may be written at once");
    let all = runtime.block_on(two.store.assignments()).expect("read");
    assert_eq!(all.len(), 2 + RECORDS_AT_ONCE);

    place.seal("by a test");
    let sealed = runtime
        .block_on(one.store.assign(&[to("c", 9, 0)]))
        .expect_err("sealed");
    assert_eq!(sealed.kind, StoreErrorKind::Sealed);
}
