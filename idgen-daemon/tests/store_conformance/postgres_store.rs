//! The tables of the embedded store.

use crate::kit::process::{Signal, signal_pid};
use crate::kit::{PATIENCE, Server, ServerOptions, eventually, eventually_true, sql};
use crate::rules::{self, Daemon, Place, TTL_MS};
use idgen_core::clock::ClockReading;
use idgen_core::lease::approval::{Digest, RequestId};
use idgen_core::lease::ledger::{Attempt, settle_grant};
use idgen_core::lease::{Class, InstanceId, Mark};
use idgen_daemon::lease::{HolderName, LeaseStore, PostgresStore, PostgresStoreConfig, StoreErrorKind};
use std::time::Duration;

/// A plain cluster with the tables of the store, and no extension.
struct Tables {
    server: Server,
    backends: Vec<i32>,
}

impl Tables {
    fn new() -> Self {
        let options = ServerOptions {
            preload: false,
            extension: false,
            ..Default::default()
        };
        let server = Server::with(options);
        let mut client = server.connect();
        sql::run(&mut client, "CREATE SCHEMA idgen");
        sql::run(&mut client, include_str!("../../../sql/20-store.sql"));
        sql::run(&mut client, include_str!("../../../sql/22-store-named.sql"));
        sql::run(&mut client, include_str!("../../../sql/24-store-orders.sql"));
        sql::run(&mut client, include_str!("../../../sql/26-store-shards.sql"));
        sql::run(&mut client, include_str!("../../../sql/26-store-requests.sql"));
        Self {
            server,
            backends: Vec::new(),
        }
    }

    /// From now on commits wait for a standby that does not exist.
    fn wait_for_nobody(&self) -> postgres::Client {
        self.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        self.run("SELECT pg_reload_conf()");
        let mut client = self.server.connect();
        eventually_true(PATIENCE, "the setting is there", || {
            sql::value(
                &mut client,
                "SELECT current_setting('synchronous_standby_names') = 'nobody'",
            )
        });
        client
    }

    fn wait_no_more(&self, client: &mut postgres::Client) {
        sql::run(client, "ALTER SYSTEM RESET synchronous_standby_names");
        sql::run(client, "SELECT pg_reload_conf()");
    }

    fn run(&self, statement: &str) {
        sql::run(&mut self.server.connect(), statement);
    }
}

impl Place for Tables {
    type Store = PostgresStore;

    fn open(&self, class: Class, holder: HolderName, ttl_ms: u64) -> PostgresStore {
        let dir = self.server.socket_dir().display();
        let url = format!("host={dir} user=postgres dbname=postgres");
        PostgresStore::new(PostgresStoreConfig {
            class,
            url: url.parse().expect("a connection string"),
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(1),
            ttl_ms,
            holder,
        })
    }

    fn seal(&self, reason: &str) {
        self.run(&format!("UPDATE idgen.cell SET sealed_reason = '{reason}'"));
    }

    fn wipe(&self) {
        self.run("SET session_replication_role = replica; TRUNCATE idgen.cell, idgen.lease, idgen.epoch, idgen.named_lease, \
                  idgen.named_ceiling, idgen.stripe, idgen.lease_order, idgen.server_drain, idgen.request, idgen.approval");
    }

    fn advance_epoch(&self) {
        self.run("UPDATE idgen.cell SET epoch = epoch + 1, epoch_nonce = gen_random_uuid()");
    }

    fn expire(&self) {
        for table in ["lease", "named_lease"] {
            self.run(&format!(
                "UPDATE idgen.{table} SET expires_at = clock_timestamp() WHERE holder IS NOT NULL"
            ));
        }
    }

    fn approve(&self, who: &str, id: RequestId, digest: Digest) {
        let hex: String = digest.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = uuid::Uuid::from_u128(id.0);
        self.run(&format!(
            "INSERT INTO idgen.approval VALUES ('{id}', '{who}', '\\x{hex}')
                 ON CONFLICT (request_id, approver) DO UPDATE SET ask_sha256 = excluded.ask_sha256"
        ));
    }

    fn freeze(&mut self) {
        self.backends = sql::column(
            &mut self.server.connect(),
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'idgend store'",
        );
        let pid_file = std::fs::read_to_string(self.server.data_dir().join("postmaster.pid"));
        let postmaster = pid_file
            .expect("postmaster.pid")
            .lines()
            .next()
            .and_then(|line| line.parse().ok());
        self.backends.push(postmaster.expect("its pid"));
        self.signal(Signal::STOP);
    }

    fn thaw(&mut self) {
        self.signal(Signal::CONT);
    }
}

impl Tables {
    fn signal(&self, signal: Signal) {
        for pid in &self.backends {
            assert!(signal_pid(u32::try_from(*pid).expect("pid"), signal));
        }
    }
}

conformance!(Tables::new());

#[test]
fn a_copy_of_the_database_is_refused() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&tables, &runtime, 1, TTL_MS);
    one.plan(1, 7);
    for (change, back) in [
        ("timeline = timeline + 1", "timeline = timeline - 1"),
        (
            "database_oid = 1",
            "database_oid = (SELECT database_oid FROM idgen.store_identity())",
        ),
        (
            "system_identifier = system_identifier + 1",
            "system_identifier = system_identifier - 1",
        ),
    ] {
        tables.run(&format!("UPDATE idgen.cell SET {change}"));
        let error = runtime.block_on(one.store.read()).expect_err("sealed");
        assert_eq!(error.kind, StoreErrorKind::Sealed, "{error}");
        tables.run(&format!("UPDATE idgen.cell SET {back}"));
        runtime
            .block_on(one.store.read())
            .expect("the original is served");
    }
}

/// What was lost is either there, or will never be: the next look does not pass by it.
#[test]
fn a_read_waits_for_a_commit_that_is_under_way() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&tables, &runtime, 1, TTL_MS);
    one.plan(1, 7);
    let mut other = tables.server.connect();
    sql::run(&mut other, "BEGIN; UPDATE idgen.cell SET revision = revision + 1");
    let error = runtime.block_on(one.store.read()).expect_err("in vain");
    assert_eq!(error.kind, StoreErrorKind::Unreachable, "{error}");
    sql::run(&mut other, "COMMIT");
    runtime.block_on(one.store.read()).expect("read");
}

/// A wait for a standby that is given up ends in a warning, and in a commit that the server calls a success.
#[test]
fn a_commit_that_was_not_replicated_is_unknown() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&tables, &runtime, 1, TTL_MS);
    let plan = one.plan(1, 7);
    let mut client = tables.wait_for_nobody();
    let canceller = std::thread::spawn(move || {
        eventually_true(PATIENCE, "the commit waits and is told not to", || {
            let cancel = "SELECT count(*) > 0 FROM
                            (SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep') c";
            sql::value(&mut client, cancel)
        });
    });
    let error = runtime.block_on(one.store.grant(&plan)).expect_err("unknown");
    canceller.join().expect("cancelled");
    assert_eq!(error.kind, StoreErrorKind::Unknown, "{error}");
    assert!(error.message.contains("the server warned"), "{error}");
}

/// Without the warning there is silence; the answer is as unknown.
#[test]
fn a_commit_without_an_answer_is_unknown() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&tables, &runtime, 1, TTL_MS);
    let attempt = Attempt {
        plan: one.plan(1, 7),
        reading: ClockReading::default(),
    };
    let mut client = tables.wait_for_nobody();
    let error = runtime
        .block_on(one.store.grant(&attempt.plan))
        .expect_err("unknown");
    assert_eq!(error.kind, StoreErrorKind::Unknown, "{error}");
    // There was nobody to wait for: it was made, and a look that is answered shows it.
    tables.wait_no_more(&mut client);
    let snapshot = eventually(PATIENCE, "the store answers", || {
        runtime.block_on(one.store.read()).ok()
    });
    assert!(settle_grant(&snapshot, &attempt, InstanceId(1), TTL_MS).is_some());
}

/// ... and so is what a read shows before the standby has it: else the answer above would be settled by what the
/// primary alone knows.
#[test]
fn a_read_is_not_believed_before_the_standby_has_it() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&tables, &runtime, 1, TTL_MS);
    one.plan(1, 7);
    let mut client = tables.wait_for_nobody();
    let error = runtime.block_on(one.store.read()).expect_err("it waits");
    assert_eq!(error.kind, StoreErrorKind::Unknown, "{error}");
    tables.wait_no_more(&mut client);
    eventually_true(PATIENCE, "there is nothing to wait for", || {
        runtime.block_on(one.store.read()).is_ok()
    });
}

/// Each request has the time limit of the defaults, 1 s. A renewal of this size comes every 2 s, so its rows must find
/// room beside themselves again and again: a table that grows was updated the slow way.
#[test]
fn every_shard_there_is_can_be_leased_by_one_server() {
    let tables = Tables::new();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::of(Class::Shard, &tables, &runtime, 1, 60_000);
    let shards: Vec<u16> = (0..Class::Shard.size()).collect();
    let plan = one.shards(&shards).expect("plan");
    let mut lease = one.grant(plan).expect("granted");
    let mut client = tables.server.connect();
    let mut pages = || sql::value::<i64>(&mut client, "SELECT pg_relation_size('idgen.lease') / 8192");
    let before = pages();
    for _ in 0..10 {
        let renewal = lease.renewal(2_000);
        lease.committed = one.renew(&renewal).expect("renewed");
    }
    assert!(pages() <= before * 2, "{before} pages became {}", pages());
    let marks: Vec<Mark> = (0..shards.len()).map(|shard| lease.mark(shard, 1)).collect();
    assert_eq!(one.release(rules::BOOT, &marks).len(), shards.len());
}

#[test]
fn names_ceilings_stripes_orders_and_approvals_are_never_removed() {
    let tables = Tables::new();
    for table in [
        "named_lease",
        "named_ceiling",
        "stripe",
        "lease_order",
        "server_drain",
        "request",
        "approval",
    ] {
        for statement in [
            format!("DELETE FROM idgen.{table}"),
            format!("TRUNCATE idgen.{table} CASCADE"),
        ] {
            sql::refusal(&mut tables.server.connect(), &statement, "IG019");
        }
    }
}

#[test]
fn a_database_without_the_tables_says_what_to_do() {
    let tables = Tables::new();
    tables.run("DROP SCHEMA idgen CASCADE");
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut store = tables.open(Class::Worker, rules::holder(1), TTL_MS);
    let error = runtime.block_on(store.read()).expect_err("denied");
    assert_eq!(error.kind, StoreErrorKind::Denied);
    assert!(error.message.contains("CREATE EXTENSION pg_idgen"), "{error}");
}
