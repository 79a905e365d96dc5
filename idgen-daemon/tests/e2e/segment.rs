//! Dense numbers by tag: inside transactions, over rollbacks, beside DROP DATABASE.

use std::thread;
use std::time::{Duration, Instant};

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, eventually_true, pace, sql};

#[test]
fn a_tag_is_created_and_used_in_one_transaction() {
    let server = Server::start();
    let mut migration = server.connect();
    let mut other = server.connect();

    let mut transaction = migration.transaction().expect("begin");
    transaction
        .batch_execute(
            "SELECT idgen_create_segment('invoices');
             CREATE TABLE invoices (number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'), n int);
             INSERT INTO invoices (n) SELECT generate_series(1, 2500);",
        )
        .expect("create and use");
    sql::refusal(&mut other, "SELECT idgen_segment('invoices')", "IG005");
    transaction.commit().expect("commit");

    let inside: Vec<i64> = sql::column(&mut other, "SELECT number FROM invoices ORDER BY number");
    assert_eq!(inside.len(), 2_500);
    let highest = *inside.last().expect("rows");
    let outside: i64 = sql::value(&mut other, "SELECT idgen_segment('invoices')");
    assert!(outside > highest, "{outside} after {highest}");
    sql::run(
        &mut other,
        "INSERT INTO invoices (n) SELECT generate_series(1, 2500)",
    );
}

#[test]
fn a_tag_of_a_rolled_back_transaction_never_was() {
    let server = Server::start();
    let mut client = server.connect();
    let mut transaction = client.transaction().expect("begin");
    transaction
        .batch_execute("SELECT idgen_create_segment('draft')")
        .expect("create");
    transaction
        .batch_execute("SELECT idgen_segment('draft')")
        .expect("use");
    transaction.rollback().expect("rollback");
    sql::refusal(&mut client, "SELECT idgen_segment('draft')", "IG005");
    sql::run(&mut client, "SELECT idgen_create_segment('draft')");
    sql::run(&mut client, "SELECT idgen_segment('draft')");
}

#[test]
fn a_rollback_burns_its_numbers_and_an_open_transaction_blocks_nobody() {
    let server = Server::start();
    let mut slow = server.connect();
    let mut other = server.connect();
    sql::run(&mut slow, "SELECT idgen_create_segment('t')");
    // Blocked would mean an error here.
    sql::run(&mut other, "SET statement_timeout = '1500ms'");

    let mut seen = UniquenessRecorder::new();
    let mut transaction = slow.transaction().expect("begin");
    let burnt: i64 = transaction
        .query_one("SELECT idgen_segment('t')", &[])
        .expect("use")
        .get(0);
    seen.extend([burnt]);
    // Several ranges, so that refills happen while the transaction is open.
    let asked = Instant::now();
    seen.extend(sql::column::<i64>(
        &mut other,
        "SELECT idgen_segment('t') FROM generate_series(1, 500)",
    ));
    pace::assert_within(
        asked,
        Duration::from_secs(1),
        "500 calls beside an open transaction",
    );
    for _ in 0..10 {
        seen.extend(sql::column::<i64>(
            &mut other,
            "SELECT idgen_segment('t') FROM generate_series(1, 700)",
        ));
    }
    transaction.rollback().expect("rollback");
    seen.extend(sql::column::<i64>(
        &mut slow,
        "SELECT idgen_segment('t') FROM generate_series(1, 500)",
    ));
    seen.assert_unique("numbers, the burnt one included", 8_001);
}

#[test]
fn numbers_of_eight_sessions_are_distinct_and_dense() {
    let server = Server::start();
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('t')");
    let sessions: Vec<_> = (0..8)
        .map(|_| {
            let connect = server.connector();
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                sql::column::<i64>(
                    &mut client,
                    "SELECT idgen_segment('t') FROM generate_series(1, 5000)",
                )
            })
        })
        .collect();
    let mut ids: Vec<i64> = sessions
        .into_iter()
        .flat_map(|session| session.join().expect("a session"))
        .collect();
    ids.sort_unstable();
    assert_eq!(
        ids,
        (1..=40_000).collect::<Vec<i64>>(),
        "no hole and no duplicate without a fault"
    );

    let mut client = server.connect();
    let granted: i64 = sql::value(&mut client, "SELECT max_id FROM idgen.segment WHERE tag = 't'");
    assert!(granted >= 40_000);
    let audited: i64 = sql::value(
        &mut client,
        "SELECT max(hi) FROM idgen.audit_event WHERE tag = 't'",
    );
    assert_eq!(audited, granted, "every grant is in the audit trail");
    let overlaps: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM idgen.audit_event a JOIN idgen.audit_event b
             ON a.tag = b.tag AND a.event_id < b.event_id AND a.lo <= b.hi AND b.lo <= a.hi
          WHERE a.tag = 't' AND a.lo IS NOT NULL AND b.lo IS NOT NULL",
    );
    assert_eq!(overlaps, 0, "no two grants overlap");
}

#[test]
fn a_database_can_be_dropped_within_three_seconds_of_its_last_number() {
    let server = Server::start();
    let mut admin = server.connect();
    for round in 0..3 {
        sql::run(&mut admin, "CREATE DATABASE doomed");
        server.install_extension("doomed");
        let mut client = server.connect_to("doomed");
        sql::run(&mut client, "SELECT idgen_create_segment('t')");
        sql::run(
            &mut client,
            "SELECT idgen_segment('t') FROM generate_series(1, 3000)",
        );
        client.close().expect("close");
        let last_use = Instant::now();
        // The first try may meet our session on its way out; a busy refill worker must not stay in the way.
        eventually_true(PATIENCE, "the database is dropped", || {
            admin.batch_execute("DROP DATABASE doomed").is_ok()
        });
        let what = format!("round {round}: DROP DATABASE");
        pace::assert_within(last_use, Duration::from_secs(3), &what);
    }
}

#[test]
fn wrong_arguments_and_unknown_tags_have_their_own_errors() {
    let server = Server::start();
    let mut client = server.connect();
    let unknown = sql::refusal(&mut client, "SELECT idgen_segment('nobody')", "IG005");
    assert!(
        unknown.message().contains("nobody") || unknown.detail().is_some_and(|text| text.contains("nobody"))
    );
    assert!(
        unknown
            .hint()
            .is_some_and(|hint| hint.contains("idgen_create_segment")),
        "{unknown:?}"
    );

    for step in ["0", "-1"] {
        sql::refusal(
            &mut client,
            &format!("SELECT idgen_create_segment('t', step => {step})"),
            "22023",
        );
    }
    // 2^31 does not fit the argument's type: Postgres itself refuses, before anything of ours runs.
    let error = client
        .query("SELECT idgen_create_segment('t', step => 2147483648)", &[])
        .expect_err("2^31");
    let code = error.code().map(|code| code.code().to_owned());
    assert!(
        matches!(code.as_deref(), Some("22003" | "22023" | "42883")),
        "{}",
        sql::describe(&error)
    );
    sql::refusal(
        &mut client,
        "SELECT idgen_create_segment('t', step => 2147483647)",
        "22023",
    );
    sql::refusal(
        &mut client,
        "SELECT idgen_create_segment('t', step => 100, max_step => 10)",
        "22023",
    );
    sql::refusal(
        &mut client,
        "SELECT idgen_create_segment('t', start_id => 100, limit_id => 10)",
        "22023",
    );
    sql::refusal(&mut client, "SELECT idgen_create_segment('')", "22023");
    sql::refusal(&mut client, "SELECT idgen_segment('t')", "IG005");

    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    sql::refusal(&mut client, "SELECT idgen_create_segment('t')", "IG016");
}

#[test]
fn an_exhausted_tag_says_so_and_gives_its_last_number() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('few', start_id => 1, limit_id => 2500)",
    );
    let ids: Vec<i64> = sql::column(
        &mut client,
        "SELECT idgen_segment('few') FROM generate_series(1, 2500)",
    );
    assert_eq!(
        ids,
        (1..=2_500).collect::<Vec<i64>>(),
        "every number up to the limit is used"
    );
    sql::refusal(&mut client, "SELECT idgen_segment('few')", "IG006");
}

#[test]
fn a_tag_belongs_to_its_creator() {
    let server = Server::start();
    let mut owner = server.connect();
    sql::run(
        &mut owner,
        "CREATE ROLE stranger LOGIN; SELECT idgen_create_segment('mine')",
    );
    let mut stranger = server.connect_as("stranger");
    sql::refusal(&mut stranger, "SELECT idgen_segment('mine')", "IG013");
    let version: i32 = sql::value(&mut stranger, "SELECT (idgen_parse(idgen_uuidv7())).version");
    assert_eq!(version, 7, "generators without a tag are everybody's");
    sql::refusal(&mut stranger, "SELECT * FROM idgen.server_clock()", "42501");
}
