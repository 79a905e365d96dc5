//! Dump and restore: into any cluster, in one transaction, and tags go on above what was handed out.

use std::process::Command;

use crate::kit::daemon::answer;
use crate::kit::{Daemon, PATIENCE, Server, ServerOptions, eventually_true, sql};
use postgres::Client;

/// A database with all three kinds of keys and a tag that has been used.
fn source() -> (Server, i64) {
    let server = Server::start();
    let daemon = Daemon::start(&server);
    sql::run(&mut server.connect(), "CREATE DATABASE app");
    server.install_extension("app");
    let mut client = server.connect_to("app");
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('invoices');
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n int);
         CREATE TABLE events (id uuid PRIMARY KEY DEFAULT idgen_uuidv7(), n int);
         SELECT idgen_register_prefix('link');
         CREATE TABLE links (id text PRIMARY KEY DEFAULT idgen_public_id('link'), n int);
         CREATE TABLE invoices (number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'), n int);
         INSERT INTO orders (n) SELECT generate_series(1, 1000);
         INSERT INTO events (n) SELECT generate_series(1, 1000);
         INSERT INTO links (n) SELECT generate_series(1, 1000);",
    );
    sql::run(
        &mut client,
        "INSERT INTO invoices (n) SELECT generate_series(1, 3500)",
    );
    let highest = sql::value(&mut client, "SELECT max(number) FROM invoices");
    daemon.terminate();
    (server, highest)
}

fn dump(server: &Server) -> String {
    let mut command = server.client_program("pg_dump");
    command.arg("app");
    let dumped = answer(command);
    assert_eq!(dumped.code, Some(0), "pg_dump: {}", dumped.stderr);
    assert_eq!(dumped.stderr, "", "pg_dump has nothing to warn of");
    for private in ["COPY idgen.cell ", "COPY idgen.lease "] {
        assert!(
            !dumped.stdout.contains(private),
            "a lease store must not come back to life: {private}"
        );
    }
    dumped.stdout
}

fn restore(target: &Server, dump: &str) {
    // Roles are cluster-wide and not part of a database's dump.
    sql::run(&mut target.connect(), "CREATE ROLE idgend LOGIN");
    sql::run(&mut target.connect(), "CREATE DATABASE app");
    let file = target.socket_dir().join("app.sql");
    std::fs::write(&file, dump).expect("write dump");
    let mut psql: Command = target.client_program("psql");
    psql.args([
        "-X",
        "-q",
        "--single-transaction",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        "app",
        "-f",
    ])
    .arg(&file);
    let restored = answer(psql);
    assert_eq!(restored.code, Some(0), "psql: {}", restored.stderr);
    assert_eq!(restored.stderr, "", "a clean restore is a silent one");
}

fn fresh(preload: bool) -> Server {
    Server::with(ServerOptions {
        preload,
        extension: false,
        own_identity: true,
        ..Default::default()
    })
}

/// Counts that must survive, tables of ours included.
fn contents(server: &Server) -> Vec<i64> {
    let sql = "SELECT count(*) FROM orders UNION ALL SELECT count(*) FROM events
               UNION ALL SELECT count(*) FROM invoices UNION ALL SELECT count(*) FROM idgen.segment
               UNION ALL SELECT count(*) FROM links UNION ALL SELECT count(*) FROM idgen.prefix
               UNION ALL SELECT max(max_id) FROM idgen.segment";
    sql::column(&mut server.connect_to("app"), sql)
}

#[test]
fn a_dump_restores_into_a_preloading_cluster_and_tags_go_on_above() {
    let (source, highest) = source();
    let target = fresh(true);
    restore(&target, &dump(&source));
    let (restored, original) = (contents(&target), contents(&source));
    assert_eq!(restored[..6], original[..6]);
    assert!(
        restored[6] >= original[6],
        "max_id never shrinks: {restored:?} {original:?}"
    );
    continues_above(&target, highest);
}

#[test]
fn a_dump_restores_without_preload_and_works_once_preloaded() {
    let (source, highest) = source();
    let mut target = fresh(false);
    restore(&target, &dump(&source));
    let mut client = target.connect_to("app");
    sql::refusal(&mut client, "INSERT INTO invoices (n) VALUES (1)", "IG011");
    sql::run(
        &mut client,
        "INSERT INTO events (n) VALUES (1); INSERT INTO links (n) VALUES (1);",
    );
    // Nothing of a restore opens the door that a registered prefix has closed.
    sql::refusal(&mut client, "DELETE FROM idgen.prefix", "IG019");
    drop(client);
    target.set_preload(true);
    target.restart();
    continues_above(&target, highest);
}

fn continues_above(target: &Server, highest: i64) {
    let mut client = target.connect_to("app");
    let next: i64 = sql::value(
        &mut client,
        "INSERT INTO invoices (n) VALUES (1) RETURNING number",
    );
    assert!(next > highest, "{next} after {highest}");
    sql::run(
        &mut client,
        "INSERT INTO invoices (n) SELECT generate_series(1, 5000)",
    );
    // What came by restore can itself be dumped and restored.
    let again = fresh(true);
    restore(&again, &dump(target));
    let further: i64 = sql::value(&mut again.connect_to("app"), "SELECT idgen_segment('invoices')");
    assert!(further > next + 5_000, "{further}");
}

/// Rights are by name in a restored database, and by oid from the first refill on; what was dropped stays below.
#[test]
fn a_restored_database_keeps_tombstones_request_keys_and_rights() {
    let (source, _) = source();
    let mut client = source.connect_to("app");
    sql::run(
        &mut client,
        "CREATE ROLE owner; CREATE ROLE lent LOGIN;
         SELECT idgen_create_segment('bulk'); SELECT idgen_create_segment('gone');
         SELECT idgen.grant_segment('bulk', 'lent');
         SELECT idgen_alter_segment('bulk', owner => 'owner');
         ALTER ROLE owner RENAME TO owner_then",
    );
    let range = "SELECT lower(idgen_segment_range('bulk', 500, 'load'))";
    let first: i64 = sql::value(&mut client, range);
    let dropped: i64 = sql::value(&mut client, "SELECT upper(idgen_segment_range('gone', 777))");
    sql::run(&mut client, "SELECT idgen_drop_segment('gone')");
    // The next worker that starts brings the owner's name up to date, for the dump.
    let owner = "SELECT owner = 'owner_then' FROM idgen.segment WHERE tag = 'bulk'";
    another_worker_makes_true(&mut client, owner);
    drop(client);
    let dump = dump(&source);

    let target = fresh(true);
    // Oids that mean others here.
    sql::run(
        &mut target.connect(),
        "CREATE ROLE other1; CREATE ROLE other2 LOGIN; CREATE ROLE lent LOGIN; CREATE ROLE owner_then",
    );
    restore(&target, &dump);
    let mut client = target.connect_to("app");
    assert_eq!(sql::value::<i64>(&mut client, range), first, "the same request");
    sql::run(&mut client, "SET client_min_messages = warning");
    sql::run(&mut client, "SELECT idgen_create_segment('gone')");
    let next: i64 = sql::value(&mut client, "SELECT idgen_segment('gone')");
    assert!(next >= dropped, "{next} is above {dropped}");
    sql::run(
        &mut client,
        "SET ROLE lent; SELECT idgen_segment('bulk'); RESET ROLE",
    );
    sql::run(&mut client, "SET ROLE other2");
    sql::refusal(&mut client, "SELECT idgen_segment('bulk')", "IG013");
    sql::run(&mut client, "RESET ROLE");
    let by_oid = "SELECT (SELECT role_space = space_id FROM idgen.segment WHERE tag = 'bulk')
                     AND (SELECT role_space = space_id FROM idgen.segment_grant WHERE tag = 'bulk') FROM idgen.space";
    eventually_true(PATIENCE, "the worker has written the oids of here", || {
        sql::value::<bool>(&mut client, by_oid)
    });
    sql::run(
        &mut client,
        "ALTER ROLE lent RENAME TO lent_now; SET ROLE lent_now; SELECT idgen_segment('bulk'); RESET ROLE;
         SET ROLE owner_then; SELECT idgen_segment('bulk'); RESET ROLE",
    );
    let named = "SELECT bool_and(grantee = 'lent_now') FROM idgen.segment_grant WHERE tag = 'bulk'";
    another_worker_makes_true(&mut client, named);
}

/// Workers keep house when they start, once there is nothing else to do.
fn another_worker_makes_true(client: &mut Client, what: &str) {
    eventually_true(PATIENCE, "the refill worker is gone", || {
        let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_idgen refill worker'";
        sql::value::<i64>(client, workers) == 0
    });
    sql::run(client, "SELECT idgen_segment_range('bulk', 1)");
    eventually_true(PATIENCE, what, || sql::value::<bool>(client, what));
}

#[test]
fn a_restored_database_takes_snowflakes_again_under_a_daemon_of_its_own() {
    let (source, _) = source();
    let target = fresh(true);
    let highest: i64 = sql::value(&mut source.connect_to("app"), "SELECT max(id) FROM orders");
    restore(&target, &dump(&source));
    let options = crate::kit::DaemonOptions {
        postgres_url: target.daemon_url_to("app"),
        ..crate::kit::DaemonOptions::new(&target)
    };
    let daemon = options.start();
    let mut client = target.connect_to("app");
    let next: i64 = sql::value(&mut client, "INSERT INTO orders (n) VALUES (1) RETURNING id");
    assert!(next > highest, "{next} after {highest}");
    daemon.terminate();
}
