//! From the table to the topic, when nothing is wrong, and when writers are as they are.

use crate::kit::kafka::Message;
use crate::kit::process::Signal;
use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, eventually, eventually_true};
use crate::scene::{LONG, Scene, check_order, metric, number, of_segments};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

#[test]
fn events_of_segments_and_of_leases_are_sent_as_the_contract_says() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('a''b', 5)");
    sql::run(
        &mut client,
        "SELECT count(idgen_segment('orders')) FROM generate_series(1, 3000)",
    );
    let daemon = scene.daemon();
    scene.wait_drained();
    let messages = scene.check();
    let (space, source): (String, String) = {
        let row = client
            .query_one("SELECT space_id::text, source_id::text FROM idgen.space", &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    let grants: Vec<&Message> = of_segments(&messages)
        .filter(|sent| sent.key == format!("{space}/orders"))
        .collect();
    assert!(grants.len() >= 3, "{grants:?}");
    let body: serde_json::Value = serde_json::from_str(&grants[1].value).unwrap();
    for (field, is) in [
        ("kind", "segment.grant"),
        ("source", &source),
        ("space", &space),
        ("service", "postgres"),
        ("tag", "orders"),
    ] {
        assert_eq!(body[field], is, "{body}");
    }
    assert_eq!((&body["schema"], &body["lo"]), (&1.into(), &1.into()));
    assert_eq!(grants[1].header("schema"), Some("1"));
    assert_eq!(grants[1].header("source"), Some(source.as_str()));
    let at: String = value(
        &mut client,
        "SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM idgen.audit_event
          WHERE tag = 'orders' AND tag_seq = 2",
    );
    assert_eq!(body["at"], at);
    drop(daemon);
}

/// AUDIT.md 9 and 13 too: no slot that fills the disk, and nothing that a writer's commit would wait for.
#[test]
fn a09_a13_the_trail_of_leases_goes_the_same_way_and_the_metrics_say_so() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    let mut daemon = scene.daemon();
    sql::run(
        &mut client,
        "SELECT count(idgen_segment('orders')) FROM generate_series(1, 3000)",
    );
    scene.wait_drained();
    // The trail of the embedded store is in this very database.
    let trail = "SELECT coalesce(max(seq), 0) FROM idgen.lease_event";
    let sent = eventually(PATIENCE, "the trail is sent", || {
        let all: i64 = value(&mut client, trail);
        let drained: Option<i64> = value(&mut client, "SELECT max(seq) FROM idgen.lease_drained");
        (all > 0 && drained == Some(all)).then_some(all)
    });
    let messages = scene.kafka.read(&scene.topic);
    let leases: Vec<&Message> = messages
        .iter()
        .filter(|message| message.key.ends_with("/lease"))
        .collect();
    let seqs: BTreeSet<i64> = leases.iter().map(|message| number(message, "tag_seq")).collect();
    assert!(seqs.is_superset(&(1..=sent).collect()), "{seqs:?}");
    let body: serde_json::Value = serde_json::from_str(&leases[0].value).unwrap();
    assert!(
        body["kind"].as_str().unwrap().starts_with("snowflake.lease."),
        "{body}"
    );
    assert_eq!((&body["source"], &body["tag"]), (&body["space"], &"lease".into()));
    assert!(body["payload"]["hash"].as_str().unwrap().len() == 64, "{body}");
    eventually(PATIENCE, "the metrics say so", || {
        let published = metric(
            &mut daemon,
            "idgen_drain_events_total{database=\"postgres\",result=\"published\"}",
        )?;
        let backlog = metric(&mut daemon, "idgen_outbox_backlog_rows{database=\"postgres\"}")?;
        let epoch = metric(&mut daemon, "idgen_drain_epoch{database=\"postgres\"}")?;
        let ahead = metric(&mut daemon, "idgen_partition_days_ahead{database=\"postgres\"}")?;
        (published >= 2.0 && backlog == 0.0 && epoch >= 1.0 && ahead >= 6.0).then_some(())
    });
    let slots: i64 = value(&mut client, "SELECT count(*) FROM pg_replication_slots");
    assert_eq!(slots, 0);
    let triggers: i64 = value(
        &mut client,
        "SELECT count(*) FROM pg_trigger WHERE tgrelid IN (SELECT 'idgen.audit_event'::regclass UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass)",
    );
    assert_eq!(triggers, 0);
    daemon.terminate();
    let left: (i64, bool) = {
        let row = client
            .query_one(
                "SELECT epoch, holder IS NULL FROM idgen.drain_lease WHERE stream = 'segment'",
                &[],
            )
            .unwrap();
        (row.get(0), row.get(1))
    };
    assert!(left.0 >= 1 && left.1, "the lease was given back: {left:?}");
}

/// AUDIT.md 1: 16 writers, and ids that commit in another order than they are drawn in. Also 3: commits that are slow.
#[test]
fn a01_what_commits_late_is_neither_lost_nor_out_of_order() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "CREATE TABLE lock_of (tag text PRIMARY KEY, seq bigint); INSERT INTO lock_of SELECT 'x' || n, 0 FROM generate_series(0, 7) n",
    );
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let connect = scene.server.connector();
            thread::spawn(move || {
                let mut client = connect().unwrap();
                for round in 0..25_u64 {
                    let tag = format!("x{}", (writer * 7 + round * 3) % 8);
                    // Deterministic, and different for everybody.
                    let naps = (writer * 31 + round * 17) % 40;
                    sql::run(&mut client, &format!(
                        "BEGIN; UPDATE lock_of SET seq = seq + 1 WHERE tag = '{tag}';
                         INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq)
                         SELECT p.source_id, 'segment.grant', p.space_id, l.tag, l.seq FROM idgen.space p, lock_of l WHERE l.tag = '{tag}';
                         SELECT pg_sleep({naps} / 1000.0); COMMIT"
                    ));
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    scene.wait_drained();
    let messages = scene.check();
    assert!(of_segments(&messages).count() >= 400);
    drop(daemon);
}

/// AUDIT.md 2 and 5: an event of a transaction that was open for long is sent at its commit; and nobody waits for strangers,
/// here or in another database.
#[test]
fn a02_a05_nobody_waits_for_the_transactions_of_others() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    sql::run(&mut client, "CREATE DATABASE other");
    let daemon = scene.daemon();
    let mut late = scene.server.connect();
    crate::scene::write(&mut client, 1, 1, "'{}'");
    sql::run(
        &mut late,
        "BEGIN; INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq) SELECT source_id, 'segment.grant', space_id, 'late', 1 FROM idgen.space",
    );
    let mut stranger = scene.server.connect_to("other");
    sql::run(&mut stranger, "BEGIN; SELECT pg_current_xact_id()");
    // Later ones go while both are open, many pages of them.
    scene.write(50, 3_000);
    scene.wait_drained();
    let before = scene.kafka.read(&scene.topic);
    assert!(!before.iter().any(|message| message.key.ends_with("/late")));
    sql::run(&mut late, "COMMIT");
    scene.wait_drained();
    assert!(scene.check().iter().any(|message| message.key.ends_with("/late")));
    sql::run(&mut stranger, "ROLLBACK");
    drop(daemon);
}

/// AUDIT.md 15: a table of a new day is read although it was not there when the drainer began.
#[test]
fn a15_a_new_day_is_drained_when_its_table_comes() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    scene.wait_drained();
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "CREATE TABLE idgen.audit_event_far PARTITION OF idgen.audit_event
         FOR VALUES FROM ('2099-01-01 00:00:00+00') TO ('2099-01-02 00:00:00+00');
         INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq)
         SELECT source_id, '2099-01-01 12:00:00+00', 'segment.grant', space_id, 'far', 1 FROM idgen.space",
    );
    scene.wait_drained();
    assert!(scene.check().iter().any(|message| message.key.ends_with("/far")));
    drop(daemon);
}

/// AUDIT.md 7: two daemons at once, and 11 and 27: whoever has lost the lease marks nothing.
#[test]
fn a07_a27_one_of_two_daemons_drains_and_the_other_takes_over() {
    let scene = Scene::new();
    let first = scene.options().name("first").start();
    let mut client = scene.server.connect();
    let holder = "SELECT coalesce(holder_name, '') FROM idgen.drain_lease WHERE stream = 'segment'";
    eventually_true(PATIENCE, "the first drains", || {
        value::<String>(&mut client, holder) == "first"
    });
    let epoch = "SELECT epoch FROM idgen.drain_lease WHERE stream = 'segment'";
    let before: i64 = value(&mut client, epoch);
    // The second one has no workers to lease here, and waits for the server; its outbox does not.
    let second = scene.options().name("second").launch();
    scene.write(20, 2_000);
    scene.wait_drained();
    assert_eq!(
        value::<i64>(&mut client, epoch),
        before,
        "nobody took it from the first"
    );
    // Somebody takes it by force: what the first marks then is refused, and it stands by.
    sql::run(
        &mut client,
        "UPDATE idgen.drain_lease SET epoch = epoch + 1, holder = gen_random_uuid(), holder_name = 'x', expires = clock_timestamp() + interval '3 s' WHERE stream = 'segment'",
    );
    scene.write(20, 500);
    eventually_true(LONG, "one of them takes it when it has run out", || {
        ["first", "second"].contains(&value::<String>(&mut client, holder).as_str())
    });
    scene.wait_drained();
    scene.check();
    first.signal(Signal::KILL);
    scene.write(20, 500);
    scene.wait_drained();
    scene.check();
    assert!(value::<i64>(&mut client, epoch) > before + 1);
    drop((first, second));
}

/// AUDIT.md 23: a stop under load leaves unmarked what is not acknowledged, and nothing else.
#[test]
fn a23_a_stop_under_load_loses_nothing() {
    let scene = Scene::new();
    scene.write(40, 30_000);
    let daemon = scene.daemon();
    let mut client = scene.server.connect();
    let published = "SELECT count(*) FROM idgen.audit_event WHERE published";
    eventually_true(LONG, "it is under way", || {
        value::<i64>(&mut client, published) > 500
    });
    daemon.terminate();
    let messages = scene.kafka.read(&scene.topic);
    check_order(&messages);
    let sent: BTreeSet<i64> = of_segments(&messages)
        .map(|message| number(message, "event_id"))
        .collect();
    let marked: BTreeSet<i64> = sql::column(
        &mut client,
        "SELECT event_id FROM idgen.audit_event WHERE published",
    )
    .into_iter()
    .collect();
    assert_eq!(
        marked, sent,
        "what is marked was sent, and what was sent is marked"
    );
    let copies = of_segments(&messages).count() - sent.len();
    assert_eq!(copies, 0, "and nothing twice");
    let daemon = scene.daemon();
    scene.wait_drained();
    scene.check();
    drop(daemon);
}

/// AUDIT.md 6: after a crash of Postgres in the middle of it everything begins anew by itself.
#[test]
fn a06_a_restart_of_postgres_is_gone_through() {
    let mut scene = Scene::new();
    scene.write(40, 20_000);
    let daemon = scene.daemon();
    let mut client = scene.server.connect();
    let published = "SELECT count(*) FROM idgen.audit_event WHERE published";
    eventually_true(LONG, "it is under way", || {
        value::<i64>(&mut client, published) > 500
    });
    drop(client);
    scene.server.stop_at_once();
    scene.server.run();
    scene.wait_drained();
    scene.check();
    drop(daemon);
}

/// AUDIT.md 8: an old snapshot keeps what was published in the index, and a look must not pass over all of it.
#[test]
fn a08_a_look_stays_cheap_beside_an_old_snapshot() {
    let scene = Scene::new();
    let mut old = scene.server.connect();
    sql::run(
        &mut old,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class",
    );
    scene.write(40, 40_000);
    let daemon = scene.daemon();
    scene.wait_drained();
    // The floor has risen when a look has come after the last transaction of before.
    scene.write(1, 1);
    scene.wait_drained();
    let mut client = scene.server.connect();
    let reads =
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE indexrelname LIKE '%_queue'";
    let mut counted = || -> i64 {
        thread::sleep(Duration::from_millis(1_200));
        value(&mut client, reads)
    };
    eventually_true(LONG, "looks pass over little", || {
        let before = counted();
        counted() - before < 2_000
    });
    sql::run(&mut old, "ROLLBACK");
    drop(daemon);
}
