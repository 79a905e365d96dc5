//! Segments under a leased authority: the store says who grants and how far, whatever becomes of the database.

use std::time::{Duration, Instant};

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    DaemonOptions, Etcd, Load, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, pace, sql,
};

/// Of the lease of the authority; its deadline is 80 % of it.
const TTL_MS: u64 = 5_000;
/// No longer than this after the last renewal is anything granted: the server knows of none later.
const DEADLINE: Duration = Duration::from_millis(TTL_MS * 8 / 10);
/// What grants are refused with, without a lease.
const REFUSED: &str = "IG030";

fn options(more: &[&str]) -> ServerOptions {
    let mut settings = vec![
        "idgen.authority = leased".to_owned(),
        "idgen.segment_wait_ms = 1500".to_owned(),
    ];
    settings.extend(more.iter().map(|line| (*line).to_owned()));
    ServerOptions {
        settings,
        own_identity: true,
        ..Default::default()
    }
}

fn daemon(server: &Server, name: &str, store: &Store) -> DaemonOptions {
    DaemonOptions::new(server)
        .name(name)
        .store(store.clone())
        .authority(TTL_MS)
}

/// So many numbers of the tag `t`, or why not.
fn draw(client: &mut postgres::Client, count: i64) -> Result<Vec<i64>, String> {
    let rows = client.query(
        "SELECT idgen_segment('t') FROM generate_series(1, $1::int8)",
        &[&count],
    );
    match rows {
        Ok(rows) => Ok(rows.iter().map(|row| row.get(0)).collect()),
        Err(error) => Err(error.code().map_or("-", |code| code.code()).to_owned()),
    }
}

/// Draws until nothing is granted any more and memory is empty: what came, and the code of the refusal.
fn draw_to_the_end(server: &Server) -> (Vec<i64>, String) {
    let mut client = server.connect();
    let mut drawn = Vec::new();
    eventually(PATIENCE, "nothing is granted any more", || {
        // Slowly, so that the time runs out and not the ceiling.
        match draw(&mut client, 300) {
            Ok(ids) => {
                drawn.extend(ids);
                None
            }
            Err(code) => Some(code),
        }
    });
    let code = draw(&mut client, 1).expect_err("still nothing");
    (drawn, code)
}

fn make_tag(server: &Server) {
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('t')");
}

fn draws_again(server: &Server) -> Vec<i64> {
    let mut client = server.connect();
    eventually(PATIENCE, "ranges are granted again", || {
        draw(&mut client, 1_000).ok()
    })
}

fn ranges_are_granted_until_the_deadline(store: &Store) {
    let server = Server::with(options(&[]));
    make_tag(&server);
    let mut client = server.connect();
    let code = draw(&mut client, 1).expect_err("there is no lease");
    assert_eq!(code, REFUSED);
    let first = daemon(&server, "first", store).start();
    let mut all = UniquenessRecorder::new();
    for _ in 0..20 {
        all.extend(draw(&mut client, 1_000).expect("granted"));
    }
    let tokens: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM idgen.audit_event WHERE kind = 'segment.grant' AND token_revision IS NULL",
    );
    assert_eq!(tokens, 0, "every grant says under which token it was made");
    let before: f64 = sql::value(
        &mut client,
        "SELECT extract(epoch FROM clock_timestamp())::float8",
    );
    first.kill();
    let (drawn, code) = draw_to_the_end(&server);
    assert!(!drawn.is_empty(), "the daemon's death alone stops nothing");
    assert_eq!(code, REFUSED);
    let lasted: f64 = sql::value(
        &mut client,
        "SELECT extract(epoch FROM max(at))::float8 FROM idgen.audit_event WHERE kind = 'segment.grant'",
    );
    let lasted = lasted - before;
    println!("granted for {lasted} s without a daemon");
    // An event is written while its grant is still under way.
    assert!(
        0.0 < lasted && lasted < DEADLINE.as_secs_f64() + 0.5,
        "{lasted} s"
    );
    all.extend(drawn);
    // By itself: the same shared memory, so its lease is taken over at once.
    let second = daemon(&server, "second", store).start();
    all.extend(draws_again(&server));
    // A clean stop closes it, and gives it back.
    second.terminate();
    let (drawn, code) = draw_to_the_end(&server);
    assert_eq!(code, REFUSED);
    all.extend(drawn);
    let _third = daemon(&server, "third", store).start();
    all.extend(draws_again(&server));
    all.assert_unique("segment numbers", 22_000);
}

#[test]
fn ranges_are_granted_until_the_deadline_by_tables_of_another_server() {
    let store = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    ranges_are_granted_until_the_deadline(&Store::on(&store));
}

#[test]
fn ranges_are_granted_until_the_deadline_by_an_etcd() {
    let etcd = Etcd::start();
    ranges_are_granted_until_the_deadline(&Store::etcd(&etcd));
}

#[test]
fn a_store_that_is_away_is_ridden_out_up_to_the_deadline() {
    let mut store = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    let server = Server::with(options(&[]));
    make_tag(&server);
    let mut daemon = daemon(&server, "rider", &Store::on(&store)).start();
    let mut all = UniquenessRecorder::new();
    all.extend(draws_again(&server));
    store.stop();
    let (drawn, code) = draw_to_the_end(&server);
    assert_eq!(code, REFUSED);
    all.extend(drawn);
    let why = daemon.wait_unready_with("authority of database postgres");
    assert!(why.contains("lease store"), "{why}");
    store.run();
    all.extend(draws_again(&server));
    daemon.wait_ready();
    all.assert_unique("segment numbers", 2_000);
}

#[test]
fn of_two_servers_on_one_copied_database_the_second_grants_nothing() {
    let etcd = Etcd::start();
    let store = Store::etcd(&etcd);
    let original = Server::with(options(&[]));
    make_tag(&original);
    let first = daemon(&original, "original", &store).start();
    let mut all = UniquenessRecorder::new();
    all.extend(draws_again(&original));
    let mut copy = Server::backup_of(&original, false);
    copy.run();
    all.extend(draws_again(&original));
    let mut second = daemon(&copy, "copy", &store).launch();
    second.wait_unready_with("original has the lease");
    let mut client = copy.connect();
    for _ in 0..5 {
        assert_eq!(draw(&mut client, 1).expect_err("it is a copy"), REFUSED);
        all.extend(draw(&mut original.connect(), 500).expect("the original grants"));
    }
    // When the original is gone for good, the copy goes on above all that it has granted.
    first.kill();
    all.extend(draw_to_the_end(&original).0);
    all.extend(draws_again(&copy));
    // Hazard H4: one that comes back after it was given up takes nothing, whatever its server remembers.
    let mut back = daemon(&original, "original", &store).launch();
    back.wait_unready_with("copy has the lease");
    assert_eq!(draw(&mut original.connect(), 1).expect_err("it lost it"), REFUSED);
    all.extend(draws_again(&copy));
    all.assert_unique("segment numbers", 5_000);
}

fn cut_replication(standby: &Server) {
    let mut client = standby.connect();
    sql::run(&mut client, "ALTER SYSTEM SET primary_conninfo = 'host=/nowhere'");
    standby.reload();
    eventually_true(PATIENCE, "the standby receives nothing any more", || {
        sql::value(&mut client, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
    });
}

fn promote(standby: &Server) {
    let promoted: bool = sql::value(&mut standby.connect(), "SELECT pg_promote()");
    assert!(promoted);
}

#[test]
fn a_promoted_standby_never_grants_what_its_primary_has_granted_by_an_etcd() {
    let etcd = Etcd::start();
    a_promoted_standby_never_grants_what_its_primary_has_granted(&Store::etcd(&etcd));
}

#[test]
fn a_promoted_standby_never_grants_what_its_primary_has_granted_by_tables_of_another_server() {
    let store = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    a_promoted_standby_never_grants_what_its_primary_has_granted(&Store::on(&store));
}

/// The old primary stays alive with its daemon, then without, and is rejoined; then everything once more the other way.
fn a_promoted_standby_never_grants_what_its_primary_has_granted(store: &Store) {
    let mut primary = Server::with(options(&["wal_log_hints = on", "wal_keep_size = 1GB"]));
    let first = daemon(&primary, "north", store).start();
    let load = Load::start(&primary, 2);
    load.wait_statements(20);
    let mut standby = Server::backup_of(&primary, true);
    standby.run();
    load.wait_statements(20);
    cut_replication(&standby);
    // What the standby will never see.
    load.wait_statements(100);
    promote(&standby);
    let mut second = daemon(&standby, "south", store).launch();
    second.wait_unready_with("north has the lease");
    let on_new = Load::resume(&standby, 2);
    load.wait_statements(50);
    // Now its daemon dies; the old primary grants on until its deadline, the new one begins when the lease has run out.
    let killed: f64 = sql::value(
        &mut primary.connect(),
        "SELECT extract(epoch FROM clock_timestamp())::float8",
    );
    first.kill();
    second.wait_ready();
    on_new.wait_statements(100);
    let (old, new) = (load.finish(), on_new.finish());
    let granted: f64 = sql::value(
        &mut primary.connect(),
        "SELECT extract(epoch FROM max(at))::float8 FROM idgen.audit_event WHERE kind = 'segment.grant'",
    );
    // An event is written while its grant is under way, and the machine may be busy.
    let lasted = granted - killed;
    assert!(
        lasted < DEADLINE.as_secs_f64() + 2.0,
        "the old primary granted for {lasted} s"
    );
    primary.stop();
    // It follows the new one, from where they parted.
    primary.rewind(&standby);
    primary.run();
    let following: bool = sql::value(&mut primary.connect(), "SELECT pg_is_in_recovery()");
    assert!(following);
    let third = daemon(&primary, "north", store).launch();
    let on_new = Load::resume(&standby, 2);
    on_new.wait_statements(50);
    cut_replication(&primary);
    on_new.wait_statements(50);
    let newest = on_new.finish();
    second.terminate();
    standby.stop();
    promote(&primary);
    let mut third = third;
    third.wait_ready();
    let back = Load::resume(&primary, 2);
    back.wait_statements(50);
    let back = back.finish();
    assert!(
        new.refusals.iter().any(|refusal| refusal.code == REFUSED),
        "the promoted standby waited for the lease"
    );
    back.assert_unique_with(vec![old, new, newest], 5_000);
}

/// A daemon that is stopped is as good as dead: what it wakes up to is not its lease any more.
#[test]
fn a_daemon_that_was_frozen_finds_its_lease_taken() {
    let etcd = Etcd::start();
    let store = Store::etcd(&etcd);
    let original = Server::with(options(&[]));
    make_tag(&original);
    let first = daemon(&original, "original", &store).start();
    let mut all = UniquenessRecorder::new();
    all.extend(draws_again(&original));
    let mut copy = Server::backup_of(&original, false);
    copy.run();
    let second = daemon(&copy, "copy", &store).launch();
    first.signal(crate::kit::process::Signal::STOP);
    all.extend(draw_to_the_end(&original).0);
    all.extend(draws_again(&copy));
    first.signal(crate::kit::process::Signal::CONT);
    let mut first = first;
    first.wait_unready_with("copy has the lease");
    all.extend(draws_again(&copy));
    assert_eq!(draw(&mut original.connect(), 1).expect_err("it lost it"), REFUSED);
    all.assert_unique("segment numbers", 3_000);
    drop(second);
}

#[test]
fn postgres_restarts_and_goes_on_within_seconds() {
    let etcd = Etcd::start();
    let mut server = Server::with(options(&[]));
    make_tag(&server);
    let _daemon = daemon(&server, "one", &Store::etcd(&etcd)).start();
    let mut all = UniquenessRecorder::new();
    all.extend(draws_again(&server));
    for crash in [false, true] {
        if crash {
            server.kill_everything();
        } else {
            server.stop();
        }
        server.run();
        let began = Instant::now();
        all.extend(draws_again(&server));
        // The same run of the daemon gives its old token up: nobody waits for the TTL.
        pace::assert_within(began, DEADLINE, "numbers after the start");
    }
    all.assert_unique("segment numbers", 3_000);
}

#[test]
fn a_database_of_a_leased_server_can_be_dropped() {
    let etcd = Etcd::start();
    let server = Server::with(options(&[]));
    let mut client = server.connect();
    sql::run(&mut client, "CREATE DATABASE other");
    server.install_extension("other");
    let mut daemon = daemon(&server, "one", &Store::etcd(&etcd)).start();
    let mut other = server.connect_to("other");
    sql::run(&mut other, "SELECT idgen_create_segment('t')");
    eventually(PATIENCE, "the other database has a lease of its own", || {
        draw(&mut other, 1_000).ok()
    });
    let (_, metrics) = eventually(PATIENCE, "the metrics", || daemon.get("/metrics"));
    assert!(
        metrics.contains("idgen_authority_held{database=\"other\"} 1"),
        "{metrics}"
    );
    drop(other);
    let began = Instant::now();
    sql::run(&mut client, "DROP DATABASE other");
    pace::assert_within(began, Duration::from_secs(5), "DROP DATABASE");
    eventually_true(PATIENCE, "it is forgotten", || {
        let (_, metrics) = daemon.get("/metrics").unwrap_or_default();
        daemon.is_ready() && !metrics.contains("database=\"other\"")
    });
}

/// The daemon's own server cannot be its store.
#[test]
fn a_store_in_the_server_itself_is_refused() {
    let server = Server::with(options(&[]));
    let mut by_config = DaemonOptions::new(&server).authority(TTL_MS).launch();
    assert_eq!(by_config.wait_exit().code(), Some(2));
    assert!(
        by_config.log().contains("needs a store elsewhere"),
        "{}",
        by_config.log()
    );
    // The same server by another way to it: only the store itself tells.
    let beside = server.socket_dir().join("beside");
    std::os::unix::fs::symlink(server.socket_dir(), &beside).expect("a link");
    let url = format!("host={} port=5432 user=idgend dbname=postgres", beside.display());
    let mut by_store = daemon(&server, "one", &Store::Postgres(url)).launch();
    by_store.wait_unready_with("in this very cluster");
    make_tag(&server);
    assert_eq!(draw(&mut server.connect(), 1).expect_err("refused"), REFUSED);
}
