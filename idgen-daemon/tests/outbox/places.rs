//! Where the outbox runs: behind a pooler, and on a server that was promoted.

use crate::kit::ports::free_ports;
use crate::kit::process::{Process, ServerAccount};
use crate::kit::sql::{self, value};
use crate::kit::{
    DaemonOptions, Flow, Mode, PATIENCE, Proxy, Scratch, Server, ServerOptions, eventually_true,
};
use crate::scene::{Scene, shared_kafka};
use std::fs;
use std::net::TcpStream;

/// PgBouncer before a server, which gives each transaction another session.
struct Pooler {
    port: u16,
    _process: Process,
    _scratch: Scratch,
}

impl Pooler {
    fn before(server: &Server) -> Pooler {
        let [port] = free_ports();
        let scratch = Scratch::new("pgbouncer");
        let config = scratch.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port=5432 user=idgend\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nserver_round_robin = 1\n",
            server.socket_dir().display()
        );
        fs::write(&config, text).expect("write the configuration");
        let mut command = ServerAccount::get().command("pgbouncer", scratch.path());
        command.arg(&config);
        let process = Process::spawn("pgbouncer", command, scratch.join("pgbouncer.log"));
        eventually_true(PATIENCE, "the pooler answers", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Pooler {
            port,
            _process: process,
            _scratch: scratch,
        }
    }
}

/// AUDIT.md 18: under a transaction pooler no lock and no setting is of a session, and no statement is prepared by name.
#[test]
fn a18_a_transaction_pooler_may_be_in_between() {
    let scene = Scene::new();
    let pooler = Pooler::before(&scene.server);
    let options = scene.options().sections(&format!(
        "[outbox]\nurl = \"host=127.0.0.1 port={} user=idgend dbname=postgres\"",
        pooler.port
    ));
    scene.write(20, 5_000);
    let daemon = options.start();
    // Nothing can be pinned there, and the owner of a database might have functions of his run as the daemon.
    daemon.wait_log(&[
        "through outbox.url the search_path is",
        "ALTER ROLE idgend SET search_path",
    ]);
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "ALTER ROLE idgend SET search_path = pg_catalog, pg_temp",
    );
    // Its sessions are older.
    sql::run(
        &mut client,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'idgend' AND application_name <> 'idgend lease'",
    );
    scene.wait_drained();
    scene.write(20, 500);
    scene.wait_drained();
    scene.check();
    let sessions: i64 = value(
        &mut client,
        "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE usename = 'idgend' AND application_name <> 'idgend lease'
            AND query LIKE '%idgen.audit_event%'",
    );
    assert!(sessions >= 1, "{sessions}");
    let kept: i64 = value(
        &mut client,
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid IN (SELECT pid FROM pg_stat_activity WHERE query LIKE '%idgen.audit_event%')",
    );
    assert_eq!(kept, 0);
    drop(daemon);
}

/// AUDIT.md 17: the server is there and says nothing any more, which no connection tells by itself: it is noticed all the same,
/// said, and everything begins anew on another connection.
#[test]
fn a17_a_connection_that_is_dead_without_a_word_is_given_up() {
    let server = ServerOptions {
        tcp: true,
        ..ServerOptions::default()
    };
    let scene = Scene::on(shared_kafka(), server);
    sql::run(
        &mut scene.server.connect(),
        "ALTER ROLE idgend SET search_path = pg_catalog, pg_temp",
    );
    let proxy = Proxy::to(scene.server.addr());
    let url = format!(
        "[outbox]\nurl = \"host=127.0.0.1 port={} user=idgend dbname=postgres\"",
        proxy.addr().port()
    );
    let daemon = scene.options().sections(&url).start();
    scene.write(5, 500);
    scene.wait_drained();
    proxy.set(Mode::Lose(Flow::Both));
    scene.write(5, 500);
    // Both while the way is lost: a request that gets no answer, and connections that are not made.
    daemon.wait_log(&["outbox: database postgres:", "no answer"]);
    daemon.wait_log(&["outbox: connect to postgres:"]);
    proxy.heal();
    scene.wait_drained();
    scene.check();
}

/// Whoever owns a database decides where its sessions look for functions, and would have his own called by the daemon.
#[test]
fn the_owner_of_a_database_has_no_function_of_his_called_by_the_daemon() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "CREATE SCHEMA evil;
         CREATE TABLE evil.called (by name);
         GRANT USAGE ON SCHEMA evil TO PUBLIC; GRANT INSERT ON evil.called TO PUBLIC;
         CREATE FUNCTION evil.to_timestamp(double precision) RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO evil.called VALUES (current_user); RETURN pg_catalog.to_timestamp($1); END $$;
         CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO evil.called VALUES (current_user); RETURN pg_catalog.clock_timestamp(); END $$;
         ALTER DATABASE postgres SET search_path = evil, pg_catalog",
    );
    let daemon = scene.daemon();
    scene.write(5, 500);
    scene.wait_drained();
    let called: i64 = value(
        &mut client,
        "SELECT count(*) FROM evil.called WHERE by = 'idgend'",
    );
    assert_eq!(called, 0);
    drop(daemon);
}

/// AUDIT.md 14: what was published is known on the promoted server, because the flag was replicated with the rows.
#[test]
fn a14_a_promoted_standby_goes_on_where_the_primary_was() {
    let mut scene = Scene::new();
    let mut standby = Server::backup_of(&scene.server, true);
    standby.run();
    let topic = format!(
        "[kafka]\nbrokers = [\"{}\"]\ntopic = \"{}\"",
        scene.kafka.broker(),
        scene.topic
    );
    let beside = DaemonOptions::new(&standby)
        .name("beside")
        .sections(&topic)
        .launch();
    let first = scene.daemon();
    scene.write(20, 10_000);
    let mut client = scene.server.connect();
    eventually_true(PATIENCE, "it is under way", || {
        value::<i64>(
            &mut client,
            "SELECT count(*) FROM idgen.audit_event WHERE published",
        ) > 500
    });
    let mut replica = standby.connect();
    eventually_true(PATIENCE, "the standby has all rows", || {
        value::<i64>(
            &mut replica,
            "SELECT count(*) FROM idgen.audit_event WHERE tag LIKE 'w%'",
        ) == 10_000
    });
    drop(client);
    scene.server.kill_everything();
    first.kill();
    sql::run(&mut replica, "SELECT pg_promote()");
    drop(replica);
    scene.server = standby;
    scene.wait_drained();
    scene.check();
    drop(beside);
}
