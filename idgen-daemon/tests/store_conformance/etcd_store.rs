//! A real etcd with one member.

use crate::kit::process::Signal;
use crate::kit::{Etcd, EtcdOptions, Flow, Mode, PATIENCE, Proxy, eventually};
use crate::names::{self, Namer};
use crate::rules::{self, Daemon, Place, TTL_MS};
use etcd_client::{Client, Txn, TxnOp};
use idgen_core::clock::ClockReading;
use idgen_core::format::{CellFormat, REGIONAL};
use idgen_core::lease::approval::{Digest, RequestId};
use idgen_core::lease::ledger::{Attempt, settle_grant};
use idgen_core::lease::{Class, InstanceId, Mark};
use idgen_daemon::lease::{
    Beacon, CellStore, EtcdConfig, EtcdSecurity, EtcdStore, Expected, HolderName, LeaseStore, NamedStore,
    Shown, StoreErrorKind, host_clock, identities_at_once,
};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const PREFIX: &str = "/conformance";

struct Member {
    etcd: Etcd,
    /// The stores of the tests are behind it.
    proxy: Proxy,
    runtime: Runtime,
}

impl Member {
    fn new() -> Self {
        Self::of(Etcd::start())
    }

    fn of(etcd: Etcd) -> Self {
        Self {
            proxy: Proxy::to(etcd.addr()),
            etcd,
            runtime: Runtime::new().expect("runtime"),
        }
    }

    fn client(&self) -> Client {
        let connecting = Client::connect([self.etcd.endpoint()], None);
        self.runtime.block_on(connecting).expect("connect")
    }

    fn change_cell(&self, change: impl FnOnce(&mut Value)) {
        let (key, mut client) = (format!("{PREFIX}/cell"), self.client());
        let answer = self.runtime.block_on(client.get(key.clone(), None)).expect("get");
        let mut cell: Value = serde_json::from_slice(answer.kvs()[0].value()).expect("JSON");
        change(&mut cell);
        self.runtime
            .block_on(client.put(key, cell.to_string(), None))
            .expect("put");
    }
}

impl Place for Member {
    type Store = EtcdStore;

    fn open(&self, class: Class, holder: HolderName, ttl_ms: u64) -> EtcdStore {
        EtcdStore::new(EtcdConfig {
            class,
            endpoints: vec![self.proxy.endpoint()],
            prefix: PREFIX.to_owned(),
            request_timeout: Duration::from_secs(1),
            security: EtcdSecurity::default(),
            ttl_ms,
            holder,
        })
    }

    fn seal(&self, reason: &str) {
        self.change_cell(|cell| cell["sealed_reason"] = reason.into());
    }

    fn wipe(&self) {
        let all = etcd_client::DeleteOptions::new().with_prefix();
        self.runtime
            .block_on(self.client().delete(PREFIX, Some(all)))
            .expect("delete");
    }

    fn advance_epoch(&self) {
        self.change_cell(|cell| {
            cell["epoch"] = 1.into();
            cell["epoch_nonce"] = uuid::Uuid::new_v4().to_string().into();
        });
    }

    fn expire(&self) {
        let mut client = self.client();
        let leases = self.runtime.block_on(client.leases()).expect("leases");
        for lease in leases.leases() {
            self.runtime
                .block_on(client.lease_revoke(lease.id()))
                .expect("revoke");
        }
    }

    fn approve(&self, who: &str, id: RequestId, digest: Digest) {
        let key = format!("{PREFIX}.approval/{who}/{}", uuid::Uuid::from_u128(id.0));
        let hex: String = digest.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.runtime
            .block_on(self.client().put(key, hex, None))
            .expect("put");
    }

    fn freeze(&mut self) {
        self.etcd.signal(Signal::STOP);
    }

    fn thaw(&mut self) {
        self.etcd.signal(Signal::CONT);
    }
}

conformance!(Member::new());

#[test]
fn a_store_that_is_all_it_was_is_not_sealed() {
    rules::a_store_that_is_all_it_was_is_not_sealed(&Member::new());
}

/// Only a backup knows what was in it, so no command is named that would not help.
#[test]
fn a_cell_whose_key_is_gone_says_that_it_must_be_put_back() {
    let member = Member::new();
    let mut one = Daemon::new(&member, &member.runtime, 1, 60_000);
    let plan = one.plan(1, 7);
    one.grant(plan).expect("granted");
    let (key, mut client) = (format!("{PREFIX}/cell"), member.client());
    let backup = member
        .runtime
        .block_on(client.get(key.clone(), None))
        .expect("get");
    member
        .runtime
        .block_on(client.delete(key.clone(), None))
        .expect("delete");
    let gone = member.runtime.block_on(one.store.read()).expect_err("it is gone");
    let shown = member
        .runtime
        .block_on(one.store.survey())
        .expect_err("it is gone");
    for error in [gone, shown] {
        assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains("/conformance/cell was deleted"), "{text}");
        assert!(text.contains("backup") && !text.contains("epoch show"), "{text}");
    }
    let value = backup.kvs()[0].value().to_vec();
    member
        .runtime
        .block_on(client.put(key, value, None))
        .expect("put");
    one.plan(1, 7);
}

/// The way back breaks at some moment of a grant, a little later each time: before its etcd lease is there, between
/// lease and transaction, and after the commit. Whatever the store says then must fit what a look shows.
#[test]
fn answers_that_are_lost_on_the_way_are_settled_by_a_look() {
    const ROUNDS: u64 = 10;
    let member = Member::new();
    let mut one = Daemon::new(&member, &member.runtime, 1, 60_000);
    let mut outcomes = Vec::new();
    for round in 0..ROUNDS {
        let attempt = Attempt {
            plan: one.plan(1, round),
            reading: ClockReading::default(),
        };
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(round));
                member.proxy.set(Mode::Lose(Flow::Replies));
            });
            one.grant(attempt.plan.clone())
                .map(|lease| lease.committed.revision)
        });
        member.proxy.heal();
        let snapshot = eventually(PATIENCE, "the store answers", || {
            member.runtime.block_on(one.store.read()).ok()
        });
        let made = settle_grant(&snapshot, &attempt, InstanceId(1), 60_000).map(|grant| grant.guard);
        match outcome {
            Ok(revision) => assert_eq!(made, Some(revision), "it was said to be made"),
            // It may have been made, and only now we know.
            Err(StoreErrorKind::Unknown) => {}
            Err(kind) => assert_eq!(made, None, "{kind:?} means that nothing was done"),
        }
        outcomes.push((outcome, made));
    }
    println!("{outcomes:?}");
    let lost = outcomes.iter().filter(|(outcome, _)| outcome.is_err()).count();
    assert!(lost > 0, "no answer was lost: {outcomes:?}");
}

#[test]
fn a_dead_member_is_left_for_a_living_one() {
    let member = Member::new();
    let dead = Etcd::reserve();
    let mut store = EtcdStore::new(EtcdConfig {
        class: Class::Worker,
        endpoints: vec![dead.endpoint(), member.etcd.endpoint()],
        prefix: PREFIX.to_owned(),
        request_timeout: Duration::from_millis(500),
        security: EtcdSecurity::default(),
        ttl_ms: TTL_MS,
        holder: rules::holder(1),
    });
    store.expect(Expected::Nothing);
    let first = member.runtime.block_on(store.read()).expect_err("dead");
    assert_eq!(first.kind, StoreErrorKind::Unreachable, "{first}");
    assert!(
        first.message.contains(&dead.endpoint()),
        "the error names it: {first}"
    );
    member
        .runtime
        .block_on(store.read())
        .expect("the other one answers");
}

#[test]
fn a_cell_that_was_made_in_another_cluster_is_refused() {
    let member = Member::new();
    let mut one = Daemon::new(&member, &member.runtime, 1, TTL_MS);
    one.plan(1, 7);
    member.change_cell(|cell| cell["cluster_id"] = 7.into());
    let error = member.runtime.block_on(one.store.read()).expect_err("sealed");
    assert_eq!(error.kind, StoreErrorKind::Sealed, "{error}");
}

#[test]
fn a_high_water_that_was_deleted_seals() {
    let member = Member::new();
    let mut one = Daemon::new(&member, &member.runtime, 1, 60_000);
    let plan = one.plan(1, 7);
    let identity = plan.grants[0].leased.identity;
    member.runtime.block_on(one.store.grant(&plan)).expect("granted");
    let mut client = member.client();
    let key = format!("{PREFIX}/w/{identity}/hw");
    member
        .runtime
        .block_on(client.delete(key.clone(), None))
        .expect("delete");
    let error = member.runtime.block_on(one.store.read()).expect_err("sealed");
    assert_eq!(error.kind, StoreErrorKind::Sealed);
    assert!(error.message.contains(&key), "{error}");
}

/// Whoever sees only the keys of one class must not take the store for a new one.
#[test]
fn a_cell_that_was_deleted_is_denied_to_both_classes() {
    let member = Member::new();
    let mut one = Daemon::of(Class::Shard, &member, &member.runtime, 1, 60_000);
    let plan = one.shards(&[7]).expect("plan");
    member.runtime.block_on(one.store.grant(&plan)).expect("granted");
    let mut client = member.client();
    let cell = client.delete(format!("{PREFIX}/cell"), None);
    member.runtime.block_on(cell).expect("delete");
    for class in Class::ALL {
        let mut two = Daemon::of(class, &member, &member.runtime, 2, 60_000);
        let error = member.runtime.block_on(two.store.read()).expect_err("denied");
        assert_eq!(error.kind, StoreErrorKind::Denied, "{class}: {error}");
    }
}

/// All that the transactions of a lease can carry: as many new shards as there can be, and a beacon beside them.
fn largest_lease(member: &Member, ops: usize) {
    let count = identities_at_once(ops);
    let mut one = Daemon::of(Class::Shard, member, &member.runtime, 1, 60_000);
    let shown = Shown::default();
    let beacon = Beacon {
        boot_id: rules::BOOT,
        wall: host_clock(),
    };
    shown.set(beacon, Instant::now());
    one.store = one.store.showing(shown);
    let shards = |count: usize| (0..u16::try_from(count).expect("shards")).collect::<Vec<u16>>();
    let plan = one.shards(&shards(count)).expect("plan");
    let mut lease = one.grant(plan).expect("granted");
    lease.committed = one.renew(&lease.renewal(500)).expect("renewed");
    let marks: Vec<Mark> = (0..count).map(|index| lease.mark(index, 500)).collect();
    assert_eq!(one.release(rules::BOOT, &marks).len(), count);

    let plan = one.shards(&shards(count + 1)).expect("plan");
    let error = member
        .runtime
        .block_on(one.store.grant(&plan))
        .expect_err("one too many");
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
    assert!(error.message.contains("(hint: --max-txn-ops"), "{error}");
}

#[test]
fn a_full_set_of_identities_fits_into_one_transaction() {
    largest_lease(&Member::new(), 128);
}

#[test]
fn an_etcd_with_the_largest_transactions_takes_as_many_as_the_configuration_allows() {
    let options = EtcdOptions::default().args(&["--max-txn-ops=4096"]);
    largest_lease(&Member::of(Etcd::with(options)), 4_096);
}

/// The most that a look may have to carry: every shard once leased, and as many held as there can be.
#[test]
fn a_store_full_of_shards_can_be_read() {
    let member = Member::new();
    let mut client = member.client();
    let mut one = Daemon::of(Class::Shard, &member, &member.runtime, 1, 60_000);
    let plan = one.shards(&[0]).expect("plan");
    member.runtime.block_on(one.store.grant(&plan)).expect("granted");
    let mut value = |part: &str| {
        let get = client.get(format!("{PREFIX}/s/0/{part}"), None);
        let answer = member.runtime.block_on(get).expect("get");
        answer.kvs()[0].value().to_vec()
    };
    let (high_water, holder) = (value("hw"), value("holder"));
    for first in (1..Class::Shard.size()).step_by(64) {
        let shards = first..Class::Shard.size().min(first + 64);
        let puts = shards.flat_map(|shard| {
            [("hw", &high_water), ("holder", &holder)]
                .map(|(part, value)| TxnOp::put(format!("{PREFIX}/s/{shard}/{part}"), value.clone(), None))
        });
        let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
        member.runtime.block_on(client.txn(txn)).expect("put");
    }
    let short = member
        .runtime
        .block_on(one.store.read())
        .expect_err("not counted");
    assert_eq!(short.kind, StoreErrorKind::Sealed, "{short}");
    let counted = format!("{{\"made\": {}}}", Class::Shard.size());
    let put = client.put(format!("{PREFIX}/shards"), counted, None);
    member.runtime.block_on(put).expect("put");
    let snapshot = member.runtime.block_on(one.store.read()).expect("read");
    assert_eq!(snapshot.rows().len(), usize::from(Class::Shard.size()));
}

#[test]
fn a_switch_keeps_what_a_later_release_put_into_the_cell() {
    let member = Member::new();
    let mut operator = Daemon::new(&member, &member.runtime, 9, 60_000);
    operator.plan(1, 7);
    member.change_cell(|cell| cell["colour"] = "green".into());
    let regional = CellFormat::new(REGIONAL, Some(3)).expect("a worker format");
    let switch = operator.plan_switch(regional, 0);
    operator.switch(&switch).expect("switched");
    member.change_cell(|cell| {
        assert_eq!(cell["colour"], "green");
        assert_eq!(cell["worker_format"], switch.formats.as_str());
    });
}

/// A ceiling that is gone would let its numbers be granted again, and so would a name's row.
#[test]
fn a_name_or_ceiling_that_was_deleted_seals_until_the_epoch_is_advanced() {
    for key in ["row/lock/a", "ceiling/lock/a:k"] {
        let member = Member::new();
        let mut one = Namer::new(&member, &member.runtime, 1, 60_000);
        let of = names::name("lock/a");
        let held = one.take(&of);
        one.raise(&held, &[names::to("k", None, 5), names::to("l", None, 5)])
            .expect("raised");
        let mut client = member.client();
        let delete = client.delete(format!("{PREFIX}/named/{key}"), None);
        let deleted = member.runtime.block_on(delete).expect("delete").deleted();
        assert_eq!(deleted, 1);
        let error = member
            .runtime
            .block_on(one.store.look_at(&of))
            .expect_err("sealed");
        assert_eq!(error.kind, StoreErrorKind::Sealed, "{key}: {error}");
        let survey = member.runtime.block_on(one.store.survey()).expect("survey");
        let damage = survey.expect("a cell").damage.expect("damage");
        assert!(damage.contains("some were deleted"), "{key}: {damage}");
        member.advance_epoch();
        // Whoever held it is gone; its row may be what was deleted.
        member.expire();
        let next = one.take(&of);
        assert!(next.token > held.token, "{key}");
        one.raise(&next, &[names::to("m", None, 5)]).expect("raised");
        let survey = member.runtime.block_on(one.store.survey()).expect("survey");
        assert_eq!(survey.expect("a cell").damage, None, "{key}");
    }
}
