//! Dump and restore: into any cluster, in one transaction, and tags go on above what was handed out.

use std::process::Command;

use crate::kit::daemon::answer;
use crate::kit::{Daemon, Server, ServerOptions, sql};

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
