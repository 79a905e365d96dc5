//! Marks count only under the lease that is in force, whoever sets them.

use crate::archive_scene::{in_folder, segment_events, table_events, wait_all_published};
use crate::kit::s3::rows_in;
use crate::kit::sql::{self, value};
use crate::kit::{Daemon, PATIENCE, Scratch, Server, eventually, eventually_true};
use crate::scene::{
    BACK, BY_FORCE, LONG, Scene, holder, ids_of, marked, number, of_segments, runtime, session, unpublished,
    write,
};
use idgen_daemon::archive::mark_under;
use idgen_daemon::outbox::{Held, Lease, Marked, Queue, SegmentQueue, Stream, TrailQueue};
use idgen_daemon::postgres::Session;
use postgres::Client;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What may have become of a lease meanwhile. Each of them alone is enough.
const LOST: [(&str, &str); 3] = [
    ("epoch", "UPDATE idgen.drain_lease SET epoch = epoch + 1"),
    (
        "holder",
        "UPDATE idgen.drain_lease SET holder = gen_random_uuid()",
    ),
    ("end", "UPDATE idgen.drain_lease SET expires = clock_timestamp()"),
];

const KEEP: &str = "CREATE TABLE kept AS SELECT * FROM idgen.drain_lease";
const RESTORE: &str = "UPDATE idgen.drain_lease l SET epoch = k.epoch, holder = k.holder, expires = k.expires
                         FROM kept k WHERE k.stream = l.stream";

async fn held(session: &Session, stream: Stream) -> Held {
    let taken = Lease::new(stream, holder()).keep(session).await;
    taken.expect("an answer").expect("nobody else has it")
}

/// Everything that a queue has is marked only while the lease is in force; `open` counts what is not marked.
fn marks_only_under_its_lease<Q: Queue>(
    server: &Server,
    mut queue: Q,
    client: &mut Client,
    open: fn(&mut Client) -> i64,
) {
    let runtime = runtime();
    let session = runtime.block_on(session(server));
    let held = runtime.block_on(held(&session, Q::STREAM));
    let page = runtime.block_on(queue.look(&session, 0, 1_000)).expect("a look");
    let keys: Vec<Q::Key> = page.rows.iter().map(|row| row.key).collect();
    queue.took(0, keys.len(), keys.first().copied());
    let before = open(client);
    assert!(before > 0 && !keys.is_empty(), "there is something to be marked");
    sql::run(client, KEEP);
    for (what, lost) in LOST {
        sql::run(client, lost);
        let done = runtime
            .block_on(queue.mark(&session, held, &keys))
            .expect("an answer");
        assert_eq!(done, Marked::Nothing, "another {what}");
        assert_eq!(open(client), before, "another {what}");
        sql::run(client, RESTORE);
    }
    let done = runtime
        .block_on(queue.mark(&session, held, &keys))
        .expect("an answer");
    assert_eq!(done, Marked::Done(keys));
    assert_eq!(open(client), 0);
    // Nor is it noted, but under the lease, how far everything was handed on.
    let mut noted = |client: &mut Client| -> i64 {
        runtime.block_on(queue.watch(&session, held)).expect("an answer");
        value(client, "SELECT count(watermark_at) FROM idgen.drain_lease")
    };
    for (what, lost) in LOST {
        sql::run(client, lost);
        assert_eq!(noted(client), 0, "another {what}");
        sql::run(client, RESTORE);
    }
    assert_eq!(noted(client), i64::from(Q::STREAM == Stream::Segment));
}

/// AUDIT.md 27: whoever has lost the lease, in whichever way, marks nothing: not an event of segments,
#[test]
fn a27_an_event_is_marked_only_under_the_lease_that_is_in_force() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    write(&mut client, 3, 30, "'{}'");
    let queue = SegmentQueue::new("s", 1_000_000);
    marks_only_under_its_lease(&server, queue, &mut client, unpublished);
}

/// ... not one of leases,
#[test]
fn a27_an_event_of_leases_is_marked_only_under_the_lease_that_is_in_force() {
    let server = Server::start();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "the trail has begun", || {
        value::<i64>(&mut client, "SELECT count(*) FROM idgen.lease_event") > 0
    });
    daemon.terminate();
    let open: fn(&mut Client) -> i64 = |client| {
        let open = "SELECT count(*) FROM idgen.lease_event e
                     WHERE NOT EXISTS (SELECT FROM idgen.lease_drained d WHERE d.cell_id = e.cell_id AND d.seq >= e.seq)";
        value(client, open)
    };
    marks_only_under_its_lease(&server, TrailQueue::new("s"), &mut client, open);
}

/// ... and not one that the archive of a server without Kafka has.
#[test]
fn a27_the_archive_of_tables_marks_only_under_the_lease_that_is_in_force() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    write(&mut client, 3, 30, "'{}'");
    let day: String = value(
        &mut client,
        "SELECT to_char(min(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD 00:00:00+00') FROM idgen.audit_event",
    );
    let source: String = value(&mut client, "SELECT source_id::text FROM idgen.space");
    let source: Uuid = source.parse().unwrap();
    // Not those of a midnight that came in between.
    let of_day = format!(
        "SELECT event_id, (extract(epoch FROM at) * 1000000)::int8 FROM idgen.audit_event
          WHERE at < '{day}'::timestamptz + interval '1 day'"
    );
    let rows = client.query(&of_day, &[]).expect("read the outbox");
    let keys: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let runtime = runtime();
    let session = runtime.block_on(session(&server));
    let held = runtime.block_on(held(&session, Stream::Segment));
    sql::run(&mut client, KEEP);
    for (what, lost) in LOST {
        sql::run(&mut client, lost);
        let done = runtime.block_on(mark_under(&session, held, (&day, source, &keys)));
        assert_eq!(done.expect("an answer"), 0, "another {what}");
        assert!(marked(&mut client).is_empty(), "another {what}");
        sql::run(&mut client, RESTORE);
    }
    // Nor one that has the number of an event and not its time: it is another, of a database that has lost commits.
    let others: Vec<(i64, i64)> = keys.iter().map(|(id, at_us)| (*id, at_us - 1)).collect();
    let done = runtime.block_on(mark_under(&session, held, (&day, source, &others)));
    assert_eq!(done.expect("an answer"), 0);
    assert!(marked(&mut client).is_empty());
    let done = runtime.block_on(mark_under(&session, held, (&day, source, &keys)));
    assert_eq!(done.expect("an answer"), keys.len() as u64);
}

/// The same of a whole daemon, which learns of it by its mark: what it has sent stays unmarked, it drains no more, and when
/// it may again it begins anew under another epoch.
#[test]
fn a27_a_daemon_that_has_lost_the_lease_learns_of_it_by_its_mark_and_stops() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    scene.wait_drained();
    let mut client = scene.server.connect();
    let stopped = || daemon.log().matches("another daemon drains now").count();
    // It renews every four seconds, and looks every 50 ms: so what is there together with the loss is sent before it is known.
    // Where a renewal came first nothing was sent, and it is done again.
    let sent = eventually(LONG, "something is sent under a lease that is lost", || {
        let (before, stops) = (marked(&mut client), stopped());
        sql::run(&mut client, "BEGIN");
        sql::run(&mut client, BY_FORCE);
        write(&mut client, 3, 300, "'{}'");
        sql::run(&mut client, "COMMIT");
        eventually_true(LONG, "it stops", || stopped() > stops);
        let sent: BTreeSet<i64> = ids_of(&scene.kafka.read(&scene.topic));
        let sent: BTreeSet<i64> = sent.difference(&before).copied().collect();
        if sent.is_empty() {
            sql::run(&mut client, BACK);
            scene.wait_drained();
            return None;
        }
        Some(sent)
    });
    let now = marked(&mut client);
    assert_eq!(
        sent.intersection(&now).count(),
        0,
        "marked under an epoch that has passed"
    );
    let epoch: i64 = value(
        &mut client,
        "SELECT epoch FROM idgen.drain_lease WHERE stream = 'segment'",
    );
    write(&mut client, 3, 30, "'{}'");
    let messages = scene.kafka.read(&scene.topic);
    assert!(of_segments(&messages).all(|message| number(message, "epoch") < epoch));
    sql::run(&mut client, BACK);
    scene.wait_drained();
    let messages = scene.check();
    assert!(of_segments(&messages).any(|message| number(message, "epoch") > epoch));
    drop(daemon);
}

/// Two daemons that archive one table, and somebody else who has its lease.
#[test]
fn a07_a27_one_of_two_daemons_archives_a_table_and_none_while_another_one_drains() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    sql::run(&mut client, "CREATE DATABASE beside");
    server.install_extension("beside");
    sql::run(
        &mut server.connect_to("beside"),
        "SELECT idgen_create_segment('orders')",
    );
    let scratch = Scratch::new("archive");
    let folder = scratch.join("folder");
    fs::create_dir(&folder).unwrap();
    let first = in_folder(&server, &folder).name("first").start();
    let second = in_folder(&server, &folder).name("second").launch();
    write(&mut client, 3, 300, "'{}'");
    wait_all_published(&mut client);
    // The archiver has it for a moment each second; whoever waits for the row comes after it.
    sql::run(&mut client, "BEGIN");
    sql::run(&mut client, BY_FORCE);
    write(&mut client, 3, 300, "'{}'");
    sql::run(&mut client, "COMMIT");
    let mut beside = server.connect_to("beside");
    wait_all_published(&mut beside);
    let had = segment_events(&rows_in(&folder)).len();
    // Databases have their turn one after another: between two turns of this one there was one of the first.
    for _ in 0..2 {
        write(&mut beside, 1, 1, "'{}'");
        wait_all_published(&mut beside);
    }
    let archived = segment_events(&rows_in(&folder)).len();
    assert_eq!(archived, had + 2, "archived under the lease of another");
    assert_eq!(unpublished(&mut client), 300);
    // The other one goes on when the first ends.
    first.terminate();
    sql::run(&mut client, BACK);
    wait_all_published(&mut client);
    let archived = segment_events(&rows_in(&folder));
    let mut wanted = table_events(&mut client);
    wanted.extend(table_events(&mut beside));
    assert_eq!(archived.keys().cloned().collect::<BTreeSet<_>>(), wanted);
    assert!(
        archived.values().all(|times| *times == 1),
        "an event is in two commits"
    );
    drop(second);
}

/// Nothing can be marked, as on a disk that is full: it is named, what is sent in vain becomes rarer, and nothing is lost.
#[test]
fn a_disk_without_room_for_marks_is_named_and_tried_more_and_more_rarely() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'could not extend file \"base/1\": No space left on device' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER full_disk BEFORE UPDATE ON idgen.audit_event FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    write(&mut client, 3, 300, "'{}'");
    let daemon = scene.daemon();
    daemon.wait_log(&["database postgres", "No space left on device"]);
    let began = Instant::now();
    let epoch = "SELECT epoch FROM idgen.drain_lease WHERE stream = 'segment'";
    let first: i64 = value(&mut client, epoch);
    // Each try takes the lease anew.
    eventually_true(LONG, "five tries more", || {
        value::<i64>(&mut client, epoch) >= first + 5
    });
    // They wait 0.2, 0.4, 0.8, 1.6 and 3.2 s, less a quarter at the most; the first wait may be over already.
    assert!(
        began.elapsed() >= Duration::from_millis(4_400),
        "{:?}",
        began.elapsed()
    );
    assert!(marked(&mut client).is_empty());
    sql::run(
        &mut client,
        "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    );
    scene.wait_drained();
    scene.check();
    daemon.wait_log(&["events are sent again"]);
}
