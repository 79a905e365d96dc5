//! Segments and what databases do to them: restores in place, locks, leaves that are missing.

use std::process::Command;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, eventually_true, sql};
use postgres::Client;

fn run(command: &mut Command) {
    let output = command.output().expect("run a client program");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn draw(client: &mut Client, tag: &str, count: u32) -> Vec<i64> {
    sql::column(
        client,
        &format!("SELECT idgen_segment('{tag}') FROM generate_series(1, {count})"),
    )
}

/// INCIDENTS 56: the row comes back as it was at the dump, with the segment id it had, while shared memory
/// still holds ranges from after it.
#[test]
fn a_restore_over_a_used_database_repeats_nothing_that_was_issued_since() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let dumped = draw(&mut client, "t", 10);
    let dump = server.socket_dir().join("dump");
    run(server
        .client_program("pg_dump")
        .args(["-Fc", "-f"])
        .arg(&dump)
        .arg("postgres"));
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(draw(&mut client, "t", 5_300));
    drop(client);
    run(server
        .client_program("pg_restore")
        .args(["--clean", "--if-exists", "-d", "postgres"])
        .arg(&dump));

    let mut client = server.connect();
    let restored = draw(&mut client, "t", 30_000);
    assert!(
        restored[0] > dumped[9],
        "above what the dump knew of: {}",
        restored[0]
    );
    // The database is as it was at the dump, but what it may have issued after it is passed over, and recorded.
    recorder.extend(dumped);
    recorder.extend(restored);
    recorder.assert_unique("numbers before and since the restore", 35_310);
    let burnt = "SELECT payload->>'cause' FROM idgen.audit_event WHERE kind = 'segment.burn'";
    assert_eq!(
        sql::column::<String>(&mut client, burnt),
        ["row came from elsewhere"]
    );
}

/// The same rows loaded back under the living extension: memory knows better than the table.
#[test]
fn a_row_that_is_set_back_under_a_running_server_grants_nothing_again() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(draw(&mut client, "t", 5_000));
    sql::run(
        &mut client,
        "UPDATE idgen.segment SET max_id = 1000 WHERE tag = 't'",
    );
    recorder.extend(draw(&mut client, "t", 50_000));
    recorder.assert_unique("numbers over the set-back", 55_000);
}

/// Postgres ends a wait for a lock by a signal to the waiting process; the worker must not be deaf to it.
#[test]
fn a_locked_table_holds_up_its_own_database_only_while_it_is_locked() {
    let server = Server::start();
    for database in ["one", "two"] {
        sql::run(&mut server.connect(), &format!("CREATE DATABASE {database}"));
        server.install_extension(database);
    }
    for database in ["postgres", "one", "two"] {
        let mut client = server.connect_to(database);
        sql::run(
            &mut client,
            "SELECT idgen_create_segment('t', step => 1, max_step => 1)",
        );
        assert_eq!(draw(&mut client, "t", 1), [1]);
    }
    // Both workers that there may be at a time meet a lock.
    let mut holders: Vec<Client> = ["one", "two"]
        .iter()
        .map(|database| server.connect_to(database))
        .collect();
    for holder in &mut holders {
        sql::run(
            holder,
            "BEGIN; LOCK TABLE idgen.audit_event IN ACCESS EXCLUSIVE MODE",
        );
    }
    for database in ["one", "two"] {
        let mut client = server.connect_to(database);
        sql::run(&mut client, "SET idgen.segment_wait_ms = 300");
        let drain = "SELECT idgen_segment('t') FROM generate_series(1, 5)";
        sql::refusal(&mut client, drain, "IG007");
    }
    let mut client = server.connect();
    assert_eq!(draw(&mut client, "t", 20).len(), 20, "a third database is served");
    drop(holders);
    for database in ["one", "two"] {
        let mut client = server.connect_to(database);
        assert_eq!(draw(&mut client, "t", 5).len(), 5, "{database} goes on");
    }
}

/// A database that slept for more than a week wakes up without leaves.
#[test]
fn missing_leaves_are_made_by_the_worker_and_an_open_migration_blocks_nobody() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('old', step => 1, max_step => 1)",
    );
    assert_eq!(draw(&mut client, "old", 1), [1]);
    let leaves: Vec<String> = sql::column(
        &mut client,
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass",
    );
    eventually_true(PATIENCE, "the refill worker is gone", || {
        let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_idgen refill worker'";
        sql::value::<i64>(&mut client, workers) == 0
    });
    sql::run(&mut client, &format!("DROP TABLE {}", leaves.join(", ")));
    drop(client);

    let mut migration = server.connect();
    sql::run(&mut migration, "BEGIN; SELECT idgen_create_segment('new')");
    assert_eq!(draw(&mut migration, "new", 2), [1, 2]);
    assert_eq!(
        draw(&mut migration, "old", 20).len(),
        20,
        "also in the migration itself"
    );
    let mut other = server.connect();
    assert_eq!(
        draw(&mut other, "old", 20).len(),
        20,
        "nobody waits for the migration"
    );
    sql::run(&mut migration, "COMMIT");
    let events = "SELECT count(*) FROM idgen.audit_event WHERE tag = 'new'";
    assert_eq!(sql::value::<i64>(&mut other, events), 2);
}
