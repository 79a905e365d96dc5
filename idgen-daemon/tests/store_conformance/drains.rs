//! The rules for servers that are drained.

use crate::rules::{self, Daemon, Place};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{Class, Drain};
use idgen_daemon::lease::{CellStore, DrainStore, LeaseStore, StoreErrorKind};
use tokio::runtime::Runtime;

fn say(server: &str, drained: bool, version: u64) -> Drain {
    Drain {
        server: server.to_owned(),
        drained,
        at: UnixMs(1_795_910_400_123),
        by: "somebody at db1".to_owned(),
        reason: "it's a new kernel".to_owned(),
        version,
    }
}

fn set<S: DrainStore>(operator: &mut Daemon<S>, runtime: &Runtime, drain: &Drain) -> Option<StoreErrorKind> {
    runtime.block_on(operator.store.survey()).expect("survey");
    let written = runtime.block_on(operator.store.set_drain(drain));
    written.err().map(|error| error.kind)
}

fn seen<S: LeaseStore>(daemon: &mut Daemon<S>, runtime: &Runtime) -> Option<Drain> {
    let snapshot = runtime.block_on(daemon.store.read()).expect("read");
    snapshot.drained().cloned()
}

pub fn a_drained_server_is_granted_nothing_until_it_is_resumed<P: Place>(place: &P)
where
    P::Store: DrainStore,
{
    let runtime = rules::runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut its_shards = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut other = Daemon::new(place, &runtime, 2, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let mut lease = other.acquire(1);
    assert_eq!(seen(&mut one, &runtime), None);

    // Planned before, asked for after.
    let planned = one.plan(1, 7);
    let shards = its_shards.shards(&[7]).expect("planned");
    assert_eq!(set(&mut operator, &runtime, &say("daemon-1", true, 1)), None);
    let refused = Some(StoreErrorKind::Conflict);
    assert_eq!(one.grant(planned).err(), refused);
    assert_eq!(its_shards.grant(shards).err(), refused);
    assert_eq!(seen(&mut one, &runtime), Some(say("daemon-1", true, 1)));
    assert_eq!(seen(&mut its_shards, &runtime), Some(say("daemon-1", true, 1)));

    // Others notice nothing but a look.
    assert_eq!(seen(&mut other, &runtime), None);
    lease.committed = match one_renewal(&mut other, &lease) {
        Ok(committed) => committed,
        Err(kind) => {
            assert_eq!(kind, StoreErrorKind::Conflict);
            assert_eq!(seen(&mut other, &runtime), None);
            one_renewal(&mut other, &lease).expect("renewed after a look")
        }
    };

    assert_eq!(set(&mut operator, &runtime, &say("daemon-1", false, 2)), None);
    assert_eq!(seen(&mut one, &runtime), None);
    let plan = one.plan(1, 8);
    one.grant(plan).expect("granted");
    let shards = its_shards.shards(&[7]).expect("planned");
    its_shards.grant(shards).expect("granted");
}

fn one_renewal<S: CellStore>(
    daemon: &mut Daemon<S>,
    lease: &rules::Lease,
) -> Result<idgen_daemon::lease::Committed, StoreErrorKind> {
    daemon.renew(&lease.renewal(500))
}

pub fn what_is_said_of_a_server_is_written_over_what_was_seen_only<P: Place>(place: &P)
where
    P::Store: DrainStore,
{
    let runtime = rules::runtime();
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let mut other = Daemon::new(place, &runtime, 8, 60_000);
    runtime.block_on(operator.store.read()).expect("read");
    let refused = Some(StoreErrorKind::Conflict);
    assert_eq!(
        set(&mut operator, &runtime, &say("b", true, 2)),
        refused,
        "there is none before"
    );
    assert_eq!(set(&mut operator, &runtime, &say("b", true, 1)), None);
    assert_eq!(
        set(&mut other, &runtime, &say("b", true, 1)),
        refused,
        "only once"
    );
    assert_eq!(set(&mut other, &runtime, &say("a/b \"c\"", true, 1)), None);
    assert_eq!(set(&mut other, &runtime, &say("b", false, 2)), None);
    let all = runtime.block_on(operator.store.drains()).expect("read");
    assert_eq!(all, [say("a/b \"c\"", true, 1), say("b", false, 2)]);

    place.seal("by a test");
    assert_eq!(
        set(&mut operator, &runtime, &say("b", true, 3)),
        None,
        "of a sealed store"
    );
    let all = runtime.block_on(other.store.drains()).expect("read");
    assert_eq!(all[1], say("b", true, 3));
}
