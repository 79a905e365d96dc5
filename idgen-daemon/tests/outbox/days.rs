//! The day tables: sealed when nothing can come any more, dropped only with proof, and nobody is made to wait.

use crate::kit::sql::{self, value};
use crate::kit::{DaemonOptions, PATIENCE, Server, ServerOptions, eventually_true};
use crate::scene::metric;
use postgres::Client;

/// A day that ended a hundred days ago, with three events that were handed on.
fn old_day(client: &mut Client) -> String {
    sql::run(
        client,
        "SELECT idgen_create_segment('orders');
         DO $$
         DECLARE d date := (clock_timestamp() AT TIME ZONE 'UTC')::date - 100;
         BEGIN
             EXECUTE format('CREATE TABLE idgen.any_name PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
                            d || ' 00:00:00+00', d + 1 || ' 00:00:00+00');
             INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq, published)
             SELECT p.source_id, d + interval '12 h', 'segment.grant', p.space_id, 'old', n, true
               FROM idgen.space p, generate_series(1, 3) n;
         END $$",
    );
    value(
        client,
        "SELECT ((clock_timestamp() AT TIME ZONE 'UTC')::date - 100)::text",
    )
}

fn drop_day(client: &mut Client, day: &str) -> Option<String> {
    value(client, &format!("SELECT idgen.drop_audit_day('{day}', 90)"))
}

fn is_there(client: &mut Client) -> bool {
    value(client, "SELECT to_regclass('idgen.any_name') IS NOT NULL")
}

fn verify(client: &mut Client, day: &str) {
    sql::run(
        client,
        &format!(
            "INSERT INTO idgen.archive_day (source_id, day, state, rows, digest_xor, digest_sum, checked_by)
             SELECT source_id, '{day}', 'verified', rows, digest_xor, digest_sum, 'test' FROM idgen.event_digest('{day}')"
        ),
    );
}

/// AUDIT.md 28 and 29: each gate holds by itself; and whoever reads or writes is never made to wait for a drop.
#[test]
fn a28_a29_a_day_is_dropped_with_all_proofs_and_without_waiting_for_locks() {
    let server = Server::start();
    let mut client = server.connect();
    let day = old_day(&mut client);
    // Whoever waits for a lock waits for this very test.
    sql::run(&mut client, "SET statement_timeout = '20s'");
    let said = |client: &mut Client| drop_day(client, &day).unwrap_or_default();
    assert_eq!(said(&mut client), "open");
    let young: Option<String> = value(&mut client, &format!("SELECT idgen.drop_audit_day('{day}', 101)"));
    assert_eq!(young.as_deref(), Some("young"));
    sql::refusal(
        &mut client,
        &format!("SELECT idgen.drop_audit_day('{day}', 6)"),
        "22023",
    );
    sql::run(
        &mut client,
        &format!("INSERT INTO idgen.audit_day VALUES ('{day}', '1', clock_timestamp())"),
    );
    sql::run(
        &mut client,
        "UPDATE idgen.any_name SET published = false WHERE tag_seq = 2",
    );
    assert_eq!(said(&mut client), "unpublished");
    sql::run(&mut client, "UPDATE idgen.any_name SET published = true");
    assert!(said(&mut client).starts_with("archive: the archive was not checked"));
    verify(&mut client, &day);
    sql::run(
        &mut client,
        "INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq, published)
        SELECT source_id, at, kind, space_id, tag, 4, true FROM idgen.any_name LIMIT 1",
    );
    assert!(
        said(&mut client).contains("has 4 events in the table now, and 3 were verified"),
        "{}",
        said(&mut client)
    );
    sql::run(&mut client, "DELETE FROM idgen.any_name WHERE tag_seq = 4");
    // A reader of the parent, for as long as it likes.
    let mut reader = server.connect();
    sql::run(&mut reader, "BEGIN; SELECT count(*) FROM idgen.audit_event");
    assert_eq!(said(&mut client), "locked");
    let mut writer = server.connect();
    sql::run(
        &mut writer,
        "SET lock_timeout = '1ms'; SELECT idgen_create_segment('meanwhile')",
    );
    assert!(is_there(&mut client));
    sql::run(&mut reader, "COMMIT");
    // A writer of today's table alone holds the parent up as well, for a moment.
    sql::run(&mut writer, "BEGIN; SELECT idgen_create_segment('during')");
    assert_eq!(said(&mut client), "locked");
    sql::run(&mut writer, "COMMIT");
    assert_eq!(drop_day(&mut client, &day), None);
    assert!(!is_there(&mut client));
    assert_eq!(
        drop_day(&mut client, &day).as_deref(),
        Some("open"),
        "of what is gone nothing is known"
    );
}

/// AUDIT.md 31: a day whose bounds took a session's time zone is no day.
#[test]
fn a31_bounds_are_days_of_utc_whatever_the_time_zone_of_the_database() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "ALTER DATABASE postgres SET timezone = 'Europe/Berlin'",
    );
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    let (days, wrong): (i64, i64) = {
        let row = client
            .query_one("SELECT count(*), count(*) FILTER (WHERE from_s % 86400 <> 0 OR to_s <> from_s + 86400) FROM idgen.audit_leaves()", &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    assert!(days >= 8 && wrong == 0, "{days} {wrong}");
    sql::run(
        &mut client,
        "CREATE TABLE idgen.hole PARTITION OF idgen.audit_event FOR VALUES FROM ('2099-01-01 00:00:00') TO ('2099-01-02 00:00:00')",
    );
    let daemon = DaemonOptions::new(&server).start();
    daemon.wait_log(&["the bounds of hole are not those of one day of UTC"]);
}

/// AUDIT.md 32: the days run short, and somebody says so. The daemon seals and drops by itself, and says what is kept, and why.
#[test]
fn a32_a33_the_daemon_looks_after_days() {
    let server = Server::with(ServerOptions {
        settings: vec!["log_connections = on".to_owned()],
        ..ServerOptions::default()
    });
    let mut client = server.connect();
    let day = old_day(&mut client);
    sql::run(
        &mut client,
        &format!(
            "INSERT INTO idgen.audit_day VALUES ('{day}', '3');
             DO $$ DECLARE l name; BEGIN
                 FOR l IN SELECT leaf FROM idgen.audit_leaves() ORDER BY from_s DESC LIMIT 6 LOOP
                     EXECUTE format('DROP TABLE idgen.%I', l);
                 END LOOP;
             END $$"
        ),
    );
    let sealed = format!("SELECT sealed_at IS NOT NULL FROM idgen.audit_day WHERE day = '{day}'");
    let first = DaemonOptions::new(&server).start();
    eventually_true(PATIENCE, "the day is sealed", || value(&mut client, &sealed));
    eventually_true(PATIENCE, "and has an index on its ids", || {
        value(
            &mut client,
            "SELECT EXISTS (SELECT FROM pg_indexes WHERE schemaname = 'idgen' AND indexname = 'any_name_ids')",
        )
    });
    let again: Option<String> = value(&mut client, "SELECT idgen.index_audit_day()::text");
    assert_eq!(again, None, "every sealed day has one");
    first.wait_log(&["tables for 1 days after today"]);
    first.terminate();
    let sessions = || server.log().matches("application_name=idgend outbox").count();
    let before = sessions();
    let mut second = DaemonOptions::new(&server).start();
    second.wait_log(&["1 days are older than outbox.keep_days and stay: archive"]);
    assert_eq!(
        sessions() - before,
        2,
        "one that looks, and one that asks whether the day may be dropped: none to index what has an index"
    );
    let kept = "idgen_partition_drop_blocked{database=\"postgres\",gate=\"archive\"}";
    assert_eq!(metric(&mut second, kept), Some(1.0));
    assert_eq!(
        metric(&mut second, "idgen_partition_days_ahead{database=\"postgres\"}"),
        Some(1.0)
    );
    second.terminate();
    verify(&mut client, &day);
    let third = DaemonOptions::new(&server).start();
    eventually_true(PATIENCE, "the day is dropped", || !is_there(&mut client));
    drop(third);
}
