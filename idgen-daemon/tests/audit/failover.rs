//! What a failover has lost is in the archive, and found there.

use crate::kit::sql::{self, value};
use crate::kit::{DaemonOptions, PATIENCE, Scratch, Server, eventually_true};
use crate::nightly_scene::{Scene, findings, wait_replayed};
use std::fs;

const ABOVE_50: &str = "SELECT event_id FROM idgen.audit_event WHERE kind = 'segment.grant' AND tag = 't1' AND lo > 50 ORDER BY lo";

fn archived(server: &Server, folder: &str) -> DaemonOptions {
    DaemonOptions::new(server).sections(&format!(
        "[archive]\nkind = \"folder\"\npath = \"{folder}\"\ncut_seconds = 1"
    ))
}

/// A primary whose events are archived, and a standby that has missed three grants of them: both, the folder, and the grants.
fn parted(scene: &mut Scene, path: &str) -> (Server, Vec<i64>) {
    let mut client = scene.client();
    // As if nothing need be passed over: the documented way to grant twice.
    sql::run(
        &mut client,
        "SELECT idgen.set_safety_burn(tag, 0) FROM idgen.segment",
    );
    let daemon = archived(&scene.server, path).start();
    let standby = scene.standby();
    let mut at_standby = standby.connect();
    wait_replayed(&mut client, &mut at_standby);
    sql::run(&mut at_standby, "ALTER SYSTEM SET primary_conninfo = ''");
    sql::run(&mut at_standby, "SELECT pg_reload_conf()");
    eventually_true(PATIENCE, "the standby receives nothing", || {
        value::<i64>(&mut at_standby, "SELECT count(*) FROM pg_stat_wal_receiver") == 0
    });
    sql::run(
        &mut client,
        "SELECT idgen_segment_range('t1', 10) FROM generate_series(1, 3)",
    );
    let lost = sql::column(&mut client, ABOVE_50);
    eventually_true(PATIENCE, "everything is archived", || {
        value::<i64>(
            &mut client,
            "SELECT count(*) FROM idgen.audit_event WHERE NOT published",
        ) == 0
    });
    let same = archived(&scene.server, path);
    assert_eq!(
        scene.run(&same, &["--full"]),
        (Some(0), "PASS".into(), String::new())
    );
    daemon.kill();
    drop(client);
    scene.server.stop_at_once();
    sql::run(&mut at_standby, "SELECT pg_promote()");
    (standby, lost)
}

/// AUDIT.md 16: what was drained and then lost may be granted again, and nobody but the archive knows.
#[test]
fn a16_ids_that_a_failover_has_lost_are_found_with_who_has_them_now_and_passed_over() {
    let mut scene = Scene::new(3, 5);
    let folder = Scratch::new("audit-archive");
    let path = folder.join("archive");
    fs::create_dir(&path).expect("make the folder");
    let path = path.to_str().expect("a path that is text").to_owned();
    let (standby, lost) = parted(&mut scene, &path);
    let mut at_standby = standby.connect();
    let options = archived(&standby, &path);
    sql::run(
        &mut at_standby,
        "SELECT idgen_segment_range('t1', 10) FROM generate_series(1, 2)",
    );
    let again: Vec<i64> = sql::column(&mut at_standby, ABOVE_50);
    // And somebody has written to an event that the archive has.
    let changed: i64 = value(
        &mut at_standby,
        "UPDATE idgen.audit_event SET lo = 2 WHERE tag = 't2' AND lo = 1 RETURNING event_id",
    );
    let (code, verdict, reason) = scene.run(&options, &["--full"]);
    assert_eq!((code, verdict.as_str()), (Some(3), "FINDING"), "{reason}");
    let mut wanted = vec![
        format!("not_in_database t1 51-60 {} {}", lost[0], again[0]),
        format!("not_in_database t1 61-70 {} {}", lost[1], again[1]),
        format!("not_in_database t1 71-80 {}", lost[2]),
        format!("rewritten t2 1-10 {changed}"),
    ];
    wanted.sort();
    assert_eq!(findings(&mut at_standby), wanted);
    let details: Vec<String> = sql::column(
        &mut at_standby,
        "SELECT detail FROM idgen.audit_finding WHERE kind = 'not_in_database' ORDER BY lo",
    );
    assert!(details[0].contains("WHICH WERE GRANTED AGAIN"), "{details:?}");
    assert!(!details[2].contains("AGAIN"), "{details:?}");
    assert!(
        details.iter().all(|one| one.contains("tag t1 goes on at 81 now")),
        "{details:?}"
    );
    // The third is not granted again.
    let next: i64 = value(
        &mut at_standby,
        "SELECT lower(r) FROM (SELECT unnest(idgen_segment_range('t1', 10)) r) t",
    );
    assert!(next >= 81, "{next}");
    let partition: bool = value(
        &mut at_standby,
        "SELECT bool_and(first ? 'offset' AND first ? 'service') FROM idgen.audit_finding",
    );
    assert!(partition, "where the archive has it");
}
