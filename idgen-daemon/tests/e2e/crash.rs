//! Processes killed at the worst moment. Through all of it no id repeats and no segment counter goes
//! back, although the callers asked for `synchronous_commit = off`.

use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::daemon::DaemonOptions;
use crate::kit::process::{Signal, signal_pid};
use crate::kit::{
    Daemon, Etcd, Load, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, sql,
};

/// LEASES.md F36: the gap in minting after a crash-restart.
const NOTICE_WITHIN: Duration = Duration::from_secs(1);

fn boot_id(client: &mut Client) -> String {
    sql::value(client, "SELECT boot_id::text FROM idgen.health")
}

fn serving(client: &mut Client) -> bool {
    sql::value::<String>(client, "SELECT state FROM idgen.health") == "serving"
}

fn max_id(client: &mut Client) -> i64 {
    sql::value(client, "SELECT max_id FROM idgen.segment WHERE tag = 'load'")
}

/// A session that survives the wait for a server which is restarting.
fn reconnect(server: &Server) -> Client {
    eventually(PATIENCE, "the server is back", || server.try_connect().ok())
}

#[test]
fn a_killed_backend_empties_shared_memory_and_callers_wait_for_the_new_lease() {
    let server = Server::start();
    killed_backend(&server, DaemonOptions::new(&server));
}

#[test]
fn a_killed_backend_with_leases_in_etcd() {
    let etcd = Etcd::start();
    let server = Server::start();
    killed_backend(&server, DaemonOptions::new(&server).store(Store::etcd(&etcd)));
}

fn killed_backend(server: &Server, options: DaemonOptions) {
    let mut daemon = options.start();
    let mut client = server.connect();
    let boot_before = boot_id(&mut client);
    let load = Load::start(server, 4);
    load.wait_statements(50);
    let max_before = max_id(&mut client);

    let mut victim = server.connect();
    let pid: i32 = sql::value(&mut victim, "SELECT pg_backend_pid()");
    let fault = Instant::now();
    assert!(signal_pid(u32::try_from(pid).expect("pid"), Signal::KILL));
    eventually_true(PATIENCE, "the crash reaches our session", || {
        client.simple_query("").is_err()
    });
    let mut client = reconnect(server);
    let accepting = Instant::now();
    let noticed = eventually_true(PATIENCE, "the daemon installs a new lease", || {
        serving(&mut client)
    });
    assert!(
        noticed <= NOTICE_WITHIN,
        "a new lease took {noticed:?} after the server was back"
    );
    assert_ne!(boot_id(&mut client), boot_before, "shared memory is a new one");
    assert!(max_id(&mut client) >= max_before);
    daemon.wait_ready();
    load.wait_statements(100);
    let report = load.finish();
    assert!(
        report.disconnects >= 4,
        "every session was cut: {}",
        report.disconnects
    );
    report.assert_no_refusal();
    report.assert_segment_rises_over(fault, accepting);
    report.assert_unique(2_000);
    daemon.terminate();
}

#[test]
fn ten_crashes_in_a_row_under_load_repeat_nothing() {
    let server = Server::start();
    let mut daemon = Daemon::start(&server);
    let load = Load::start(&server, 4);
    for _ in 0..10 {
        load.wait_statements(10);
        let mut victim = reconnect(&server);
        let Ok(row) = victim.query_one("SELECT pg_backend_pid()", &[]) else {
            continue;
        };
        signal_pid(u32::try_from(row.get::<_, i32>(0)).expect("pid"), Signal::KILL);
        eventually_true(PATIENCE, "the victim is gone", || {
            victim.simple_query("").is_err()
        });
    }
    daemon.wait_ready();
    load.wait_statements(50);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(2_000);
}

#[test]
fn a_killed_daemon_is_replaced_without_a_gap_or_a_duplicate() {
    let server = Server::start();
    let options = DaemonOptions::new(&server);
    let daemon = options.start();
    let load = Load::start(&server, 4);
    load.wait_statements(50);
    daemon.kill();
    // The lease lives on in shared memory, so nobody notices.
    load.wait_statements(50);
    let mut client = server.connect();
    let old: i64 = sql::value(&mut client, "SELECT max(token_revision) FROM idgen.slot_states()");
    let daemon = options.start();
    let newer =
        format!("SELECT count(*) FROM idgen.slot_states() WHERE state = 'open' AND token_revision > {old}");
    let renewed: i64 = sql::value(&mut client, &newer);
    assert!(
        renewed > 0,
        "a restarted daemon takes a new token, newer than {old}"
    );
    load.wait_statements(50);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(2_000);
    daemon.terminate();
}

#[test]
fn a_killed_postmaster_and_daemon_come_back_together() {
    let mut server = Server::start();
    let options = DaemonOptions::new(&server);
    let daemon = options.start();
    let load = Load::start(&server, 4);
    load.wait_statements(50);

    let fault = Instant::now();
    server.kill_postmaster();
    daemon.kill();
    // Orphans mint on inside their window until they notice; a new postmaster refuses to start until then.
    server.wait_orphans_gone();
    server.run();
    let daemon = options.start();
    let recovered = Instant::now();
    load.wait_statements(100);
    let report = load.finish();
    report.assert_segment_rises_over(fault, recovered);
    report.assert_unique(2_000);
    daemon.terminate();
}

#[test]
fn a_living_daemon_outlasts_a_killed_postmaster() {
    let mut server = Server::start();
    let mut daemon = Daemon::start(&server);
    let load = Load::start(&server, 4);
    load.wait_statements(50);
    server.kill_postmaster();
    server.wait_orphans_gone();
    let reason = daemon.wait_unready();
    assert!(!reason.trim().is_empty(), "readyz says why");
    server.run();
    daemon.wait_ready();
    load.wait_statements(50);
    load.finish().assert_unique(2_000);
    daemon.terminate();
}

/// With the wal writer asleep an asynchronous commit would be lost for certain.
#[test]
fn a_power_cut_takes_no_granted_range_back() {
    let mut server = Server::with(ServerOptions {
        settings: vec![
            "wal_writer_delay = 10s".to_owned(),
            "wal_writer_flush_after = 1GB".to_owned(),
        ],
        ..Default::default()
    });
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('load')");
    let mut highest = 0;
    for _ in 0..5 {
        let mut client = server.connect();
        sql::run(&mut client, "SET synchronous_commit = off");
        let ids = sql::column::<i64>(
            &mut client,
            "SELECT idgen_segment('load') FROM generate_series(1, 2500)",
        );
        assert!(
            ids.iter().all(|id| *id > highest),
            "{} repeats below {highest}",
            ids[0]
        );
        highest = ids.into_iter().max().expect("ids");
        server.kill_everything();
        server.run();
        let granted = max_id(&mut server.connect());
        assert!(
            granted >= highest,
            "max_id {granted} is below {highest}, which was handed out"
        );
    }
}

#[test]
fn a_power_cut_takes_no_tag_back_that_was_used_as_it_was_created() {
    let mut server = Server::with(ServerOptions {
        settings: vec![
            "wal_writer_delay = 10s".to_owned(),
            "wal_writer_flush_after = 1GB".to_owned(),
        ],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(&mut client, "SET synchronous_commit = off");
    let mut transaction = client.transaction().expect("begin");
    transaction
        .batch_execute("SELECT idgen_create_segment('fresh')")
        .expect("create");
    let id: i64 = transaction
        .query_one("SELECT idgen_segment('fresh')", &[])
        .expect("use")
        .get(0);
    transaction.commit().expect("commit");
    server.kill_everything();
    server.run();
    let next: i64 = sql::value(&mut server.connect(), "SELECT idgen_segment('fresh')");
    assert!(next > id, "{next} after {id}");
}

#[test]
fn a_clean_restart_of_the_server_goes_on_with_new_tokens() {
    let mut server = Server::start();
    let mut daemon = Daemon::start(&server);
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    let fault = Instant::now();
    server.restart();
    daemon.wait_ready();
    let recovered = Instant::now();
    load.wait_statements(50);
    let report = load.finish();
    report.assert_segment_rises_over(fault, recovered);
    report.assert_unique(1_000);
    daemon.terminate();
}
