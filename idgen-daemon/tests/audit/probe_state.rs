//! What the probe knows survives its end, and what it cannot know it says.

use super::probe_scene::{SOURCE, SPACE, Scene, grant, grants, lease, metric, wait_metric, wait_news};
use crate::kit::{PATIENCE, eventually_true, sql};
use std::fs;
use uuid::Uuid;

const OTHER: u128 = 0xd;
const A: (u128, u128) = (SOURCE, SPACE);

#[test]
fn neither_an_end_nor_a_kill_nor_a_damaged_checkpoint_makes_it_forget() {
    let scene = Scene::new();
    let options = scene.options(&scene.checkpoint());
    let mut daemon = options.start();
    scene.send(&grants(A, "before", 1..=100));
    wait_news(&mut daemon, 100.0);
    daemon.terminate();
    let checkpoint = scene.folder.join(&format!("probe-{}.checkpoint", scene.topic));
    assert!(checkpoint.exists());

    let mut daemon = options.start();
    daemon.wait_log(&["the probe goes on from its checkpoint"]);
    scene.send(&grants(A, "after", 1..=50));
    wait_news(&mut daemon, 50.0);
    assert_eq!(
        metric(&mut daemon, "idgen_probe_events_total{result=\"copy\"} "),
        Some(0.0),
        "it has begun where it was"
    );
    daemon.kill();

    // From the checkpoint it reads again what was behind it.
    let mut daemon = options.start();
    wait_news(&mut daemon, 50.0);
    scene.send(&[
        grant((OTHER, SPACE), "before", 1, (15, 16)),
        grant((OTHER, SPACE), "after", 1, (15, 16)),
    ]);
    scene.found("overlap", "before");
    let found = scene.found("overlap", "after");
    assert!(found.detail.contains("both records were read"), "{found:?}");
    daemon.terminate();

    let mut bytes = fs::read(&checkpoint).expect("the checkpoint");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&checkpoint, &bytes).expect("damage it");
    let mut daemon = options.start();
    daemon.wait_log(&["the checkpoint of the probe is refused", "SHA-256"]);
    wait_news(&mut daemon, 152.0);
    let before = scene.findings().len();
    scene.send(&[grant((OTHER, SPACE), "before", 2, (25, 26))]);
    eventually_true(PATIENCE, "it is found", || scene.findings().len() == before + 1);
    daemon.terminate();
}

#[test]
fn what_the_topic_has_no_more_comes_from_the_archive_and_else_the_tags_are_degraded() {
    let scene = Scene::new();
    let archive = scene.folder.join("archive");
    fs::create_dir(&archive).expect("a folder");
    let section = format!(
        "[archive]\nkind = \"folder\"\npath = \"{}\"\ncut_seconds = 1\nverify = false",
        archive.display()
    );
    let archiving = scene.options(&format!("{}\n{section}", scene.checkpoint()));
    let mut daemon = archiving.start();
    scene.send(&grants(A, "old", 1..=30));
    wait_metric(&mut daemon, "idgen_archive_rows_total{kind=\"event\"} ", 30.0);
    daemon.terminate();
    // It has a checkpoint; what comes now is archived behind its back, and trimmed.
    let mut daemon = scene.options(&format!("probe = false\n{section}")).start();
    scene.send(&grants(A, "old", 31..=40));
    scene.send(&grants(A, "quiet", 1..=1));
    wait_metric(&mut daemon, "idgen_archive_rows_total{kind=\"event\"} ", 11.0);
    daemon.terminate();
    scene.trim();

    let mut daemon = archiving.start();
    eventually_true(PATIENCE, "it has read the archive", || {
        metric(&mut daemon, "idgen_probe_reading ") == Some(1.0)
    });
    scene.send(&[
        grant(A, "old", 41, (411, 420)),
        grant((OTHER, SPACE), "old", 1, (391, 392)),
    ]);
    let found = scene.found("overlap", "old");
    assert!(
        found.detail.contains("both records were read") && !found.first["at"].is_null(),
        "the record is in the archive alone: {found:?}"
    );
    assert_eq!(
        metric(&mut daemon, "idgen_probe_degraded_tags{reason=\"gone\"} "),
        Some(0.0)
    );
    daemon.terminate();

    // Without the checkpoint all of it is read anew.
    fs::remove_file(scene.folder.join(&format!("probe-{}.checkpoint", scene.topic))).expect("remove it");
    let daemon = archiving.start();
    daemon.wait_log(&["the probe reads the archive from its beginning"]);
    scene.send(&[grant((OTHER, SPACE), "old", 2, (11, 12))]);
    eventually_true(PATIENCE, "what was granted first is found", || {
        scene.findings().iter().any(|found| found.ids == Some((11, 12)))
    });
    daemon.terminate();

    // Without either, it says of which tags it does not know everything, and accuses nobody of what is missing.
    let mut daemon = scene.options("").start();
    daemon.wait_log(&["these offsets are gone from the topic"]);
    scene.send(&[grant(A, "old", 42, (421, 430)), grant(A, "new", 1, (1, 10))]);
    wait_metric(&mut daemon, "idgen_probe_degraded_tags{reason=\"gone\"} ", 1.0);
    daemon.wait_log(&["does not know everything of some tags"]);
    assert_eq!(metric(&mut daemon, "idgen_seq_gap_open "), Some(0.0));
    daemon.terminate();
}

/// What real daemons do to their leases, read from the topic: an end, a kill, and others who take over.
#[test]
fn the_trail_of_daemons_that_come_and_go_is_silent() {
    let mut scene = Scene::new();
    let mut of_all = scene.options("probe_memory_mib = 10").ttl_ms(10_000);
    of_all.env.retain(|(name, _)| name != "IDGEND_EVENTS__ENABLED");
    // A shard is always the same one, and whoever is to have it next waits for it.
    let of_all = of_all.shards("3");
    let options = |name: &str| of_all.clone().name(name);
    options("first").start().terminate();
    options("second").start().kill();
    // The memory that had its leases is gone too, so nobody takes them over.
    scene.server.restart();
    let mut daemon = options("third").launch();
    let mut store = scene.store.connect();
    let expired = "SELECT count(*) FROM idgen.lease_event WHERE kind = 'expired' AND subject = 'shard 3'";
    eventually_true(2 * PATIENCE, "the lease of the killed one has run out", || {
        sql::value::<i64>(&mut store, expired) >= 1
    });
    daemon.wait_ready();
    daemon.terminate();
    daemon = options("fourth").start();
    let all = "SELECT count(*) FROM idgen.lease_event";
    eventually_true(PATIENCE, "the probe has read the whole trail", || {
        let events: i64 = sql::value(&mut store, all);
        metric(&mut daemon, "idgen_probe_events_total{result=\"news\"} ")
            .is_some_and(|news| news >= events as f64)
    });
    let granted =
        "SELECT count(*) FROM idgen.lease_event WHERE kind = 'granted' AND detail->>'above_ms' IS NOT NULL";
    // The last one may be on its way into the trail.
    eventually_true(
        PATIENCE,
        "grants of the shard say where their windows begin",
        || sql::value::<i64>(&mut store, granted) >= 3,
    );
    assert_eq!(scene.findings(), []);
    daemon.terminate();
}

#[test]
fn a_finding_waits_for_the_database_and_too_many_spans_are_told() {
    let mut scene = Scene::new();
    let mut daemon = scene.options("probe_memory_mib = 1").start();
    scene.send(&grants(A, "orders", 1..=10));
    wait_news(&mut daemon, 10.0);
    scene.server.stop();
    scene.send(&[grant((OTHER, SPACE), "orders", 1, (15, 16))]);
    daemon.wait_log(&["ids 15 to 16 were granted before"]);
    daemon.wait_log(&["findings are kept"]);
    scene.server.run();
    let found = scene.found("overlap", "orders");
    assert_eq!(found.ids, Some((15, 16)));

    let sparse: Vec<_> = (1..=16_000)
        .map(|n| grant(A, "sparse", n, (n * 10, n * 10)))
        .collect();
    scene.send(&sparse);
    wait_metric(&mut daemon, "idgen_probe_degraded_tags{reason=\"memory\"} ", 1.0);
    daemon.wait_log(&["does not know everything of some tags"]);
    // Others are as they were.
    scene.send(&[grant((OTHER, SPACE), "orders", 2, (25, 26))]);
    eventually_true(PATIENCE, "it is found", || {
        scene.findings().iter().any(|found| found.ids == Some((25, 26)))
    });
    daemon.terminate();
}

/// Without room for what it may find the probe reads nothing more, so that nothing is left out and no checkpoint is behind it.
#[test]
fn with_no_room_for_findings_the_topic_waits_and_each_of_them_is_stored() {
    const MANY: i64 = 1_100;
    let mut scene = Scene::new();
    let mut daemon = scene.options("").start();
    scene.send(&grants(A, "orders", 1..=MANY));
    wait_news(&mut daemon, MANY as f64);
    scene.server.stop();
    let again: Vec<_> = (1..=MANY)
        .map(|n| grant((OTHER, SPACE), "orders", n, (n * 10 + 5, n * 10 + 6)))
        .collect();
    scene.send(&again);
    daemon.wait_log(&["the topic is not read on until they are"]);
    wait_metric(&mut daemon, "idgen_probe_findings_waiting ", 1_000.0);
    wait_news(&mut daemon, (MANY + 1_000) as f64);
    eventually_true(PATIENCE, "the lag grows", || {
        metric(&mut daemon, "idgen_probe_lag_seconds ").is_some_and(|lag| lag >= 2.0)
    });
    scene.server.run();
    wait_metric(&mut daemon, "idgen_probe_findings_waiting ", 0.0);
    wait_news(&mut daemon, 2.0 * MANY as f64);
    eventually_true(PATIENCE, "each of them is stored", || {
        scene.findings().len() as i64 == MANY
    });
    wait_metric(&mut daemon, "idgen_probe_lag_seconds ", 0.0);
    daemon.terminate();
}

/// What the database refuses is stored in a form that it takes, or kept: it holds nothing else up, and is not forgotten.
#[test]
fn a_finding_that_the_database_refuses_is_told_and_holds_nothing_up() {
    let scene = Scene::new();
    let options = scene.options(&scene.checkpoint());
    let mut client = scene.server.connect();
    sql::run(
        &mut client,
        "ALTER TABLE idgen.audit_finding ADD CONSTRAINT plain CHECK (tag !~ '[^ -~]'), ADD CONSTRAINT never CHECK (tag <> 'never')",
    );
    let mut daemon = options.start();
    for tag in ["bücher", "never", "orders"] {
        scene.send(&grants(A, tag, 1..=5));
        scene.send(&[grant((OTHER, SPACE), tag, 1, (15, 16))]);
    }
    let reduced = scene.found("overlap", "b\\u{fc}cher");
    assert!(
        reduced.detail.contains("plain") && reduced.detail.contains("23514"),
        "{reduced:?}"
    );
    assert_eq!(reduced.ids, Some((15, 16)));
    scene.found("overlap", "orders");
    wait_metric(&mut daemon, "idgen_probe_findings_reduced_total ", 1.0);
    wait_metric(&mut daemon, "idgen_probe_findings_refused ", 1.0);
    assert_eq!(metric(&mut daemon, "idgen_probe_findings_waiting "), Some(1.0));
    daemon.wait_log(&["is refused by the database", "never"]);
    daemon.terminate();
    let checkpoint = scene.folder.join(&format!("probe-{}.checkpoint", scene.topic));
    assert!(!checkpoint.exists(), "it would be behind what is not stored");

    sql::run(
        &mut client,
        "ALTER TABLE idgen.audit_finding DROP CONSTRAINT never",
    );
    let daemon = options.start();
    scene.found("overlap", "never");
    daemon.terminate();
    assert!(checkpoint.exists());
    assert_eq!(scene.findings().len(), 3, "each of them once");
}

/// Whoever has told of them: the database says which findings are open.
#[test]
fn what_was_missing_is_closed_when_it_has_come_whoever_reads_then() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    let (source, space) = (Uuid::from_u128(SOURCE), Uuid::from_u128(SPACE));
    for (name, found_by, lo, hi) in [
        ("come", "probe", 51, 51),
        ("not yet", "probe", 53, 54),
        ("of the table", "full", 51, 51),
    ] {
        sql::run(
            &mut client,
            &format!(
                "SELECT idgen.record_finding('{name}', 'missing', '{space}', 'late', {lo}, {hi}, '{{\"source\": \"{source}\"}}',
                                             NULL, 'told by another', '{found_by}', NULL)"
            ),
        );
    }
    let late = grants(A, "late", 1..=55);
    scene.send(&late[..50]);
    scene.send(&[late[51].clone(), late[50].clone(), late[54].clone()]);
    let mut daemon = scene.options("").start();
    wait_metric(&mut daemon, "idgen_seq_gap_open ", 1.0);
    let mut open = |wanted: &str| {
        let names: String = sql::value(
            &mut client,
            "SELECT coalesce(string_agg(fingerprint, ', ' ORDER BY fingerprint), '') FROM idgen.audit_finding WHERE closed_at IS NULL",
        );
        names == wanted
    };
    eventually_true(PATIENCE, "what has come is closed, and that alone", || {
        open("not yet, of the table")
    });
    scene.send(&late[52..54]);
    eventually_true(PATIENCE, "the others come too", || open("of the table"));
    wait_metric(&mut daemon, "idgen_seq_gap_open ", 0.0);
    daemon.terminate();
    let reasons: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM idgen.audit_finding WHERE settled AND closed_reason = 'the events came late'",
    );
    assert_eq!(reasons, 2);
}

/// The nightly audit has the rules of the probe, for what that did not hear: here nobody has probed.
#[test]
fn leases_that_overlap_are_found_in_the_archive_too() {
    let scene = Scene::new();
    let archive = scene.folder.join("archive");
    fs::create_dir(&archive).expect("make the folder");
    let archive = format!(
        "[archive]\nkind = \"folder\"\npath = \"{}\"\ncut_seconds = 1",
        archive.display()
    );
    let options = scene.options("probe = false").sections(&archive);
    let daemon = options.start();
    scene.send(&[
        lease(1, "granted", 1, 1, (0, 1_775_210_000_480)),
        lease(2, "released", 1, 1, (0, 1_775_210_000_400)),
        lease(3, "granted", 2, 2, (1_775_210_000_400, 1_775_210_000_960)),
    ]);
    let audit = |code: Option<i32>, verdict: &str| {
        eventually_true(PATIENCE, verdict, || {
            let answer = scene.ctl(&options, &["audit", "run", "--full", "--output", "json"]);
            answer.code == code && answer.stdout.contains(verdict)
        });
    };
    let count = "SELECT count(*) FROM idgen.audit_finding";
    let archived = |files: usize| {
        eventually_true(PATIENCE, "the leases are archived", || {
            scene
                .ctl(&options, &["archive", "ls", "--files"])
                .stdout
                .lines()
                .count()
                >= files
        });
    };
    archived(1);
    audit(Some(0), "PASS");
    assert_eq!(sql::value::<i64>(&mut scene.server.connect(), count), 0);
    // The second lease was granted above what the first had reached, and this one is not. And one is left out.
    scene.send(&[
        lease(4, "released", 2, 2, (0, 1_775_210_000_900)),
        lease(5, "granted", 3, 3, (1_775_210_000_700, 1_775_210_001_400)),
        lease(7, "released", 3, 3, (0, 1_775_210_001_300)),
    ]);
    audit(Some(3), "FINDING");
    let found: Vec<String> = sql::column(
        &mut scene.server.connect(),
        "SELECT concat_ws(' ', kind, tag, lo || '-' || hi, first ->> 'event_id', second ->> 'event_id')
           FROM idgen.audit_finding ORDER BY kind",
    );
    assert_eq!(
        found,
        [
            "lease_overlap worker/5 1775210000701-1775210000900 3 5",
            "not_in_archive lease 6-6",
        ]
    );
    daemon.terminate();
}
