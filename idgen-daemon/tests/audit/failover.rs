//! What a failover has lost is in the archive, and found there.

use crate::kit::daemon::Daemon;
use crate::kit::sql::{self, value};
use crate::kit::{DaemonOptions, PATIENCE, Scratch, Server, eventually_true};
use crate::nightly_scene::{Scene, findings, wait_replayed};
use crate::probe_scene::{shared_kafka, wait_metric};
use postgres::Client;
use std::fs;
use std::time::Instant;

const ABOVE_50: &str = "SELECT event_id FROM idgen.audit_event WHERE kind = 'segment.grant' AND tag = 't1' AND lo > 50 ORDER BY lo";

/// Nobody is waited for after a promotion, unless `more` says so.
fn archived(server: &Server, folder: &str, more: &str) -> DaemonOptions {
    DaemonOptions::new(server)
        .sections(&format!(
            "[archive]\nkind = \"folder\"\npath = \"{folder}\"\ncut_seconds = 1"
        ))
        .sections(more)
}

const DONT_WAIT: &str = "[audit]\npromotion_wait_seconds = 0";
const WAIT: &str = "[audit]\npromotion_wait_seconds = 86400\nprobe = false";

/// As if nothing need be passed over: the documented way to grant twice.
fn burn_nothing(client: &mut Client) {
    sql::run(client, "SELECT idgen.set_safety_burn(tag, 0) FROM idgen.segment");
}

/// A standby that has everything up to now, and gets nothing any more.
fn left_behind(scene: &Scene) -> Server {
    let standby = scene.standby();
    let mut at_standby = standby.connect();
    wait_replayed(&mut scene.client(), &mut at_standby);
    sql::run(&mut at_standby, "ALTER SYSTEM SET primary_conninfo = ''");
    sql::run(&mut at_standby, "SELECT pg_reload_conf()");
    eventually_true(PATIENCE, "the standby receives nothing", || {
        value::<i64>(&mut at_standby, "SELECT count(*) FROM pg_stat_wal_receiver") == 0
    });
    standby
}

/// Three more grants of ten ids of a tag, and waits until they were handed on.
fn lose(client: &mut Client) -> Vec<i64> {
    sql::run(
        client,
        "SELECT idgen_segment_range('t1', 10) FROM generate_series(1, 3)",
    );
    wait_handed_on(client);
    sql::column(client, ABOVE_50)
}

fn wait_handed_on(client: &mut Client) {
    eventually_true(PATIENCE, "everything is handed on", || {
        value::<i64>(
            client,
            "SELECT count(*) FROM idgen.audit_event WHERE NOT published",
        ) == 0
    });
}

/// A primary whose events are archived, and a standby that has missed three grants of them: that, now a primary, and the grants.
fn parted(scene: &mut Scene, path: &str, more: &str) -> (Server, Vec<i64>) {
    let mut client = scene.client();
    burn_nothing(&mut client);
    let daemon = archived(&scene.server, path, more).start();
    // What a daemon has said of it a standby has to know.
    if more == WAIT {
        eventually_true(PATIENCE, "it is to be waited", || {
            value::<i32>(&mut client, "SELECT witness_wait FROM idgen.authority") == 86_400
        });
    }
    let standby = left_behind(scene);
    let lost = lose(&mut client);
    let same = archived(&scene.server, path, more);
    assert_eq!(
        scene.run(&same, &["--full"]),
        (Some(0), "PASS".into(), String::new())
    );
    daemon.kill();
    drop(client);
    scene.server.stop_at_once();
    sql::run(&mut standby.connect(), "SELECT pg_promote()");
    (standby, lost)
}

fn folder() -> (Scratch, String) {
    let scratch = Scratch::new("audit-archive");
    let path = scratch.join("archive");
    fs::create_dir(&path).expect("make the folder");
    let path = path.to_str().expect("a path that is text").to_owned();
    (scratch, path)
}

/// The next of a tag, which lets nobody wait for long.
fn next(client: &mut Client, tag: &str) -> Result<i64, String> {
    let asked = format!("SELECT lower(r) FROM (SELECT unnest(idgen_segment_range('{tag}', 10)) r) t");
    sql::run(client, "SET idgen.segment_wait_ms = 500");
    let asked = client.query_one(&asked, &[]);
    let code = |error: postgres::Error| error.code().map_or("gone", |code| code.code()).to_owned();
    asked.map(|row| row.get(0)).map_err(code)
}

/// What all have to show: grants wait, and go on where others have ended; `on`: of two tags.
fn waits_for_the_witness(standby: &Server, options: &DaemonOptions, on: (i64, i64)) -> Daemon {
    let mut client = standby.connect();
    let in_recovery = |error: &Result<i64, String>| error.as_ref().is_err_and(|code| code == "IG012");
    let mut asked = next(&mut client, "t1");
    eventually_true(PATIENCE, "it is a primary", || {
        asked = next(&mut client, "t1");
        !in_recovery(&asked)
    });
    assert_eq!(asked, Err("IG033".to_owned()));
    assert_eq!(next(&mut client, "t2"), Err("IG033".to_owned()));
    // The store of its leases is in here too, and asks for an epoch: that is another matter.
    let mut daemon = options.launch();
    let began = Instant::now();
    let mut granted = Err(String::new());
    eventually_true(PATIENCE, "the witness was heard", || {
        granted = next(&mut client, "t1");
        granted != Err("IG033".to_owned())
    });
    println!(
        "granted {:.1} s after the daemon was started",
        began.elapsed().as_secs_f64()
    );
    assert_eq!((granted, next(&mut client, "t2")), (Ok(on.0), Ok(on.1)));
    wait_metric(
        &mut daemon,
        "idgen_witness_raised_total{database=\"postgres\"} ",
        if on.1 > 51 { 2.0 } else { 1.0 },
    );
    wait_metric(&mut daemon, "idgen_witness_pending{database=\"postgres\"} ", 0.0);
    daemon
}

/// AUDIT.md 16, and what is done about it before anything is granted.
#[test]
fn a16_a_promoted_standby_serves_no_segments_before_the_archive_has_said_what_was_lost() {
    let mut scene = Scene::new(3, 5);
    let (_folder, path) = folder();
    let (standby, lost) = parted(&mut scene, &path, WAIT);
    // One that looks into an archive of somebody else says nothing, and whoever must go on can.
    let (_other, elsewhere) = folder();
    let wrong = archived(&standby, &elsewhere, WAIT).launch();
    eventually_true(PATIENCE, "it says why it says nothing", || {
        wrong.log().contains("the archive has nothing")
    });
    wrong.kill();
    let options = archived(&standby, &path, WAIT);
    // 51 to 80 of the first tag were granted by the old server, and of the second nothing was lost.
    waits_for_the_witness(&standby, &options, (81, 51)).terminate();
    // The audit has the rest: which events, and that their ids are not in use twice.
    assert_eq!(scene.run(&options, &["--full"]).1, "FINDING");
    let mut client = standby.connect();
    let wanted: Vec<String> = lost
        .iter()
        .zip(["51-60", "61-70", "71-80"])
        .map(|(event, ids)| format!("not_in_database t1 {ids} {event}"))
        .collect();
    assert_eq!(findings(&mut client), wanted);
}

/// The same from a topic, with and without an archive that ends before it.
#[test]
fn a16_a_promoted_standby_hears_from_the_topic_what_the_archive_has_not_got() {
    let mut scene = Scene::new(3, 5);
    let (_folder, path) = folder();
    let kafka = shared_kafka();
    kafka.create_topic_with("witness", 2, &[("message.timestamp.type", "LogAppendTime")]);
    let broker = kafka.broker();
    let topic = format!("[kafka]\nbrokers = [\"{broker}\"]\ntopic = \"witness\"");
    let drained = |server: &Server| DaemonOptions::new(server).sections(&topic).sections(WAIT);
    let both = |server: &Server| archived(server, &path, WAIT).sections(&topic);
    let mut client = scene.client();
    burn_nothing(&mut client);
    let archiving = both(&scene.server).start();
    wait_handed_on(&mut client);
    eventually_true(PATIENCE, "something is archived", || {
        fs::read_dir(&path).is_ok_and(|mut found| found.next().is_some())
    });
    archiving.terminate();
    let standbys = [left_behind(&scene), left_behind(&scene)];
    let daemon = drained(&scene.server).start();
    lose(&mut client);
    daemon.kill();
    drop(client);
    scene.server.stop_at_once();
    let [first, second] = &standbys;
    // The second one hears of what the first has granted too: nobody has fenced that.
    for (standby, options, on) in [
        (first, drained(first), (81, 51)),
        (second, both(second), (91, 61)),
    ] {
        sql::run(&mut standby.connect(), "SELECT pg_promote()");
        let daemon = waits_for_the_witness(standby, &options, on);
        wait_handed_on(&mut standby.connect());
        daemon.terminate();
    }
}

/// AUDIT.md 16: what was drained and then lost may be granted again, and nobody but the archive knows.
#[test]
fn a16_ids_that_a_failover_has_lost_are_found_with_who_has_them_now_and_passed_over() {
    let mut scene = Scene::new(3, 5);
    let (_folder, path) = folder();
    let (standby, lost) = parted(&mut scene, &path, DONT_WAIT);
    let mut at_standby = standby.connect();
    let options = archived(&standby, &path, DONT_WAIT);
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
