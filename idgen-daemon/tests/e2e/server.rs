//! What belongs to one server as a whole: its daemon, its cell, its role, its shared memory.

use std::fs;

use crate::kit::daemon::{DaemonOptions, idgenctl};
use crate::kit::{Daemon, Etcd, PATIENCE, Server, ServerOptions, Store, eventually_true, sql};

/// An advisory lock would keep them apart within one database only.
#[test]
fn a_second_daemon_waits_whatever_database_it_connects_to() {
    let server = Server::start();
    sql::run(&mut server.connect(), "CREATE DATABASE other");
    server.install_extension("other");
    let first = Daemon::start(&server);

    let mut options = DaemonOptions::new(&server)
        .name("second")
        .store(Store::on(&server));
    options.postgres_url = server.daemon_url_to("other");
    let mut second = options.launch();
    eventually_true(PATIENCE, "the second daemon says busy", || {
        second.log().contains("busy")
    });
    let open = "SELECT count(*) FROM idgen.slots WHERE state = 'open'";
    assert_eq!(
        sql::value::<i64>(&mut server.connect(), open),
        2,
        "the first one's leases stand"
    );

    first.terminate();
    second.wait_ready();
}

/// Shared memory forgets the cell with a restart; the tables hold its ids all the same. So an empty store is not made
/// into another cell: it may be the right one, lost.
#[test]
fn after_a_restart_the_database_still_refuses_another_cell() {
    let mut server = Server::start();
    let etcd = Etcd::start();
    DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .start()
        .terminate();
    server.restart();

    let mut wrong = DaemonOptions::new(&server).launch();
    wrong.wait_unready_with("the lease store is empty, and cell");
    let open = "SELECT count(*) FROM idgen.slots WHERE state = 'open'";
    assert_eq!(sql::value::<i64>(&mut server.connect(), open), 0);
    wrong.terminate();

    let right = DaemonOptions::new(&server).store(Store::etcd(&etcd)).start();
    let id: i64 = sql::value(&mut server.connect(), "SELECT idgen_snowflake()");
    assert!(id > 0);
    right.terminate();
}

fn keys(etcd: &Etcd) -> usize {
    etcd.ctl_ok(&["get", "--prefix", "--keys-only", "/pg_idgen"])
        .lines()
        .count()
}

/// Only the server can say that it was never served from another cell.
#[test]
fn no_cell_is_made_before_the_server_has_answered() {
    let mut server = Server::start();
    let etcd = Etcd::start();
    server.stop();
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let mut daemon = options.launch();
    daemon.wait_unready_with("connect to postgres");
    let config = daemon.config_path().display().to_string();
    let shown = idgenctl(&["format", "show", "--config", &config]);
    assert_eq!(shown.code, Some(3), "{}", shown.stderr);
    assert!(
        shown.stderr.contains("the lease store is empty"),
        "{}",
        shown.stderr
    );
    assert_eq!(keys(&etcd), 0, "and nobody who looks makes it");
    server.run();
    daemon.wait_ready();
    assert!(keys(&etcd) > 0);

    // The server mints on by what an earlier daemon left, and the store is wiped.
    daemon.kill();
    etcd.ctl_ok(&["del", "--prefix", "/pg_idgen"]);
    let mut daemon = options.launch();
    daemon.wait_unready_with("the lease store is empty");
    assert_eq!(keys(&etcd), 0);
    assert!(daemon.exited().is_none(), "it may be put back: {}", daemon.log());
}

#[test]
fn a_standby_refuses_snowflakes_and_segments_at_once_and_makes_uuids() {
    let mut server = Server::start();
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('t')");
    server.stop();
    // A standby of nobody: it has all the log there is and waits for more.
    fs::write(server.data_dir().join("standby.signal"), "").expect("write standby.signal");
    server.run();

    let mut daemon = DaemonOptions::new(&server).launch();
    let mut client = server.connect();
    let seen = "SELECT daemon_seen_ms_ago IS NOT NULL FROM idgen.health";
    eventually_true(PATIENCE, "the daemon has looked at the standby", || {
        sql::value(&mut client, seen)
    });
    // A daemon was seen, but no lease will come: waiting for one would be in vain.
    sql::run(&mut client, "SET idgen.lease_wait_ms = '60s'");
    for call in [
        "SELECT idgen_snowflake()",
        "SELECT idgen_segment('t')",
        "SELECT idgen_create_segment('u')",
    ] {
        sql::refusal(&mut client, call, "IG012");
    }
    let version: i32 = sql::value(&mut client, "SELECT (idgen_parse(idgen_uuidv7())).version");
    assert_eq!(version, 7);
    assert_eq!(
        sql::value::<String>(&mut client, "SELECT state FROM idgen.health"),
        "in recovery"
    );
    assert!(
        daemon.exited().is_none(),
        "the daemon waits for a promotion: {}",
        daemon.log()
    );
}

#[test]
fn more_tags_than_places_in_shared_memory_is_an_error_of_its_own() {
    let server = Server::with(ServerOptions {
        settings: vec!["idgen.max_segments = 16".into()],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT count(idgen_create_segment('tag ' || n)) FROM generate_series(1, 16) n",
    );
    // One place is the database's own, for its audit leaves.
    for n in 1..=15 {
        assert_eq!(
            sql::value::<i64>(&mut client, &format!("SELECT idgen_segment('tag {n}')")),
            1
        );
    }
    let refused = sql::refusal(&mut client, "SELECT idgen_segment('tag 16')", "IG017");
    assert!(
        refused
            .hint()
            .is_some_and(|hint| hint.contains("idgen.max_segments")),
        "{refused:?}"
    );
    assert_eq!(
        sql::value::<i64>(&mut client, "SELECT idgen_segment('tag 1')"),
        2,
        "the others go on"
    );
}
