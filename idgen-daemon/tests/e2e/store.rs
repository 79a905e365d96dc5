//! Several servers on one lease store, and stores that are away.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::kit::daemon::DaemonOptions;
use crate::kit::process::Signal;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Daemon, Etcd, Load, PATIENCE, Server, Store, eventually, eventually_true, sql};

const SHORT_TTL_MS: u64 = 4_000;
/// The most that every store allows. Four daemons want half of an epoch's pool of 512 then, so that their
/// first choices are bound to collide.
const WORKERS_MAX: u32 = 63;

fn open_workers(server: &Server) -> Vec<i32> {
    sql::column(
        &mut server.connect(),
        "SELECT identity FROM idgen.slots WHERE state = 'open' AND kind = 'worker'",
    )
}

/// All daemons start at the same moment; every identity is held once, and ids of all servers differ.
fn daemons_at_once(store: impl Fn(&[Server]) -> Store, count: usize, workers: u32) {
    let servers = Server::several(count);
    let store = store(&servers);
    let mut daemons: Vec<Daemon> = servers
        .iter()
        .enumerate()
        .map(|(n, server)| {
            let options = DaemonOptions::new(server).store(store.clone()).workers(workers);
            options.name(&format!("server-{n}")).launch()
        })
        .collect();
    daemons.iter_mut().for_each(Daemon::wait_ready);

    let held: Vec<i32> = servers.iter().flat_map(open_workers).collect();
    let distinct: BTreeSet<i32> = held.iter().copied().collect();
    assert_eq!(
        held.len(),
        count * workers as usize,
        "everybody got what they asked for: {held:?}"
    );
    assert_eq!(distinct.len(), held.len(), "one identity, one holder: {held:?}");

    let cells: BTreeSet<String> = servers
        .iter()
        .map(|server| sql::value(&mut server.connect(), "SELECT cell_id::text FROM idgen.health"))
        .collect();
    assert_eq!(cells.len(), 1, "one store, one cell: {cells:?}");

    let mut recorder = UniquenessRecorder::new();
    let minting: Vec<_> = servers
        .iter()
        .map(|server| {
            let connect = server.connector();
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                sql::column::<i64>(
                    &mut client,
                    "SELECT idgen_snowflake() FROM generate_series(1, 50000)",
                )
            })
        })
        .collect();
    for session in minting {
        recorder.extend(session.join().expect("a session"));
    }
    recorder.assert_unique("snowflakes of all servers", count * 50_000);
    // The server with the store goes last in real life; here the order must not matter either.
    daemons.into_iter().for_each(Daemon::terminate);
}

#[test]
fn two_servers_on_one_postgres_store_never_hold_one_identity() {
    daemons_at_once(|servers| Store::on(&servers[0]), 2, 2);
}

#[test]
fn two_servers_on_one_etcd_never_hold_one_identity() {
    let etcd = Etcd::start();
    daemons_at_once(|_| Store::etcd(&etcd), 2, 2);
}

#[test]
fn four_daemons_started_at_once_on_one_postgres_store() {
    daemons_at_once(|servers| Store::on(&servers[0]), 4, WORKERS_MAX);
}

#[test]
fn four_daemons_started_at_once_on_one_etcd() {
    let etcd = Etcd::start();
    daemons_at_once(|_| Store::etcd(&etcd), 4, WORKERS_MAX);
}

/// One identity is left in the whole pool. Its holder's daemon freezes, so it changes hands.
#[test]
fn an_identity_that_changes_hands_begins_above_its_old_ceiling() {
    let servers = Server::several(2);
    let (first, second) = (&servers[0], &servers[1]);
    let shared = |server: &Server| {
        DaemonOptions::new(server)
            .store(Store::on(first))
            .workers(1)
            .ttl_ms(SHORT_TTL_MS)
    };
    let frozen = shared(first).name("first").start();
    let mut store = first.connect();
    sql::run(
        &mut store,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'somebody', 0, 0, gen_random_uuid(), now() + interval '1 day'
           FROM generate_series(0, 1023) n
         ON CONFLICT DO NOTHING",
    );
    let load = Load::start(first, 2);
    load.wait_statements(50);
    frozen.signal(Signal::STOP);
    let worker = open_workers(first);
    let mut waiting = shared(second).name("second").launch();
    waiting.wait_ready();
    assert_eq!(open_workers(second), worker, "the same identity, now here");
    assert_eq!(open_workers(first), Vec::<i32>::new(), "and no longer there");
    let ceiling_ms: i64 = sql::value(&mut store, "SELECT max(ceiling_ms) FROM idgen.slot_states()");
    let mut client = second.connect();
    let floor_ms: i64 = sql::value(
        &mut client,
        "SELECT min(floor_ms) FROM idgen.slot_states() WHERE state = 'open'",
    );
    assert!(
        floor_ms > ceiling_ms,
        "floor {floor_ms} is not above the old ceiling {ceiling_ms}"
    );

    let other: Vec<i64> = sql::column(
        &mut client,
        "SELECT idgen_snowflake() FROM generate_series(1, 20000)",
    );
    frozen.signal(Signal::CONT);
    let report = load.finish();
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(other);
    recorder.extend(report.batches.into_iter().flat_map(|batch| batch.snowflakes));
    recorder.assert_unique("snowflakes of one identity on two servers", 21_000);
}

#[test]
fn an_etcd_that_is_not_there_yet_is_waited_for() {
    let server = Server::start();
    let mut etcd = Etcd::reserve();
    let mut daemon = DaemonOptions::new(&server).store(Store::etcd(&etcd)).launch();
    let reason = daemon.wait_unready();
    assert!(!reason.trim().is_empty(), "readyz says why");
    eventually_true(PATIENCE, "a warning that names etcd", || {
        daemon
            .log()
            .lines()
            .any(|line| line.contains("WARN") && line.contains("etcd"))
    });
    assert_eq!(
        daemon.get("/livez").expect("livez").0,
        200,
        "alive though not ready"
    );
    sql::refusal(&mut server.connect(), "SELECT idgen_snowflake()", "IG001");
    etcd.run();
    daemon.wait_ready();
    let id: i64 = sql::value(&mut server.connect(), "SELECT idgen_snowflake()");
    assert!(id > 0);
    daemon.terminate();
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let mut server = Server::start();
    server.stop();
    let mut daemon = DaemonOptions::new(&server).launch();
    let reason = daemon.wait_unready();
    assert!(!reason.trim().is_empty(), "readyz says why");
    eventually_true(PATIENCE, "a warning", || {
        daemon.log().lines().any(|line| line.contains("WARN"))
    });
    server.run();
    daemon.wait_ready();
    daemon.terminate();
}

#[test]
fn an_etcd_outage_shorter_than_the_lease_is_ridden_out() {
    let server = Server::start();
    let mut etcd = Etcd::start();
    let mut daemon = DaemonOptions::new(&server).store(Store::etcd(&etcd)).start();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    etcd.kill();
    load.wait_statements(200);
    etcd.run();
    daemon.wait_ready();
    load.wait_statements(20);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(4_000);
    daemon.terminate();
}

#[test]
fn an_etcd_outage_longer_than_the_lease_stops_the_minting_and_ends_with_a_new_token() {
    let server = Server::start();
    let etcd = Etcd::start();
    let options = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .ttl_ms(SHORT_TTL_MS);
    let mut daemon = options.start();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    let mut client = server.connect();
    let token: i64 = sql::value(&mut client, "SELECT max(token_revision) FROM idgen.slot_states()");
    etcd.signal(Signal::STOP);
    eventually_true(PATIENCE, "no slot is open", || open_workers(&server).is_empty());
    assert!(!daemon.is_ready());
    etcd.signal(Signal::CONT);
    eventually(PATIENCE, "a newer token", || {
        let newest = "SELECT coalesce(max(token_revision), 0) FROM idgen.slot_states() WHERE state = 'open'";
        (sql::value::<i64>(&mut client, newest) > token).then_some(())
    });
    daemon.wait_ready();
    load.wait_statements(20);
    load.finish().assert_unique(800);
    daemon.terminate();
}

#[test]
fn a_coordinator_that_is_away_stops_nobody_within_the_lease() {
    let mut servers = Server::several(2);
    let follower = servers.pop().expect("two servers");
    let mut coordinator = servers.pop().expect("two servers");
    let mut daemon = DaemonOptions::new(&follower)
        .store(Store::on(&coordinator))
        .start();
    let load = Load::start(&follower, 2);
    load.wait_statements(20);
    coordinator.kill_everything();
    load.wait_statements(200);
    coordinator.run();
    daemon.wait_ready();
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(4_000);
    daemon.terminate();
}

/// LEASES.md F32: a wrong deployment must not hurt.
#[test]
fn a_second_daemon_for_one_server_harms_nobody() {
    let server = Server::start();
    let options = DaemonOptions::new(&server);
    let mut first = options.clone().name("first").start();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    let mut second = options.name("second").launch();
    eventually(Duration::from_secs(20), "the second says where it stands", || {
        second
            .exited()
            .map(|_| ())
            .or_else(|| second.get("/readyz").map(|_| ()))
    });
    load.wait_statements(200);
    assert!(first.is_ready(), "the first goes on");
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(4_000);
}
