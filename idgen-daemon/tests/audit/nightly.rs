//! The nightly audit, on a real primary and a real standby.

use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, Server, eventually_true};
use crate::nightly_scene::{Scene, findings, forge, more_grants, wait_replayed};
use std::fs;

const EVENT_OF: &str = "SELECT event_id FROM idgen.audit_event WHERE kind = 'segment.grant'";

#[test]
fn what_is_wrong_is_found_in_one_run_with_both_issuers_and_what_is_well_passes() {
    let scene = Scene::new(9, 20);
    let mut client = scene.client();
    let standby = scene.standby();
    let options = scene.replica(&standby, "");
    assert_eq!(
        scene.run(&options, &["--full"]),
        (Some(0), "PASS".into(), String::new())
    );
    let (read_from, ranges, tags): (String, i64, i64) = {
        let row = client
            .query_one("SELECT read_from, ranges, tags FROM idgen.audit_run", &[])
            .expect("a run");
        (row.get(0), row.get(1), row.get(2))
    };
    assert_eq!((read_from.as_str(), ranges, tags), ("replica", 180, 9));

    let event = |client: &mut postgres::Client, tag: &str, lo: i64| -> i64 {
        value(client, &format!("{EVENT_OF} AND tag = '{tag}' AND lo = {lo}"))
    };
    // Behind our back: beside, within, and around others; above everything; of no tag.
    let overlapping = forge(&scene, "t1", "5, 7");
    let around = forge(&scene, "t2", "1, 200");
    let above = forge(&scene, "t3", "100001, 100010");
    let first_of_t1 = event(&mut client, "t1", 1);
    // A number twice, one that is gone in the middle, and the last of a tag.
    let of_t4 = event(&mut client, "t4", 41);
    let twice: i64 = value(
        &mut client,
        &format!(
            "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi)
             SELECT source_id, kind, space_id, tag, tag_seq, 191, 200 FROM idgen.audit_event WHERE event_id = {of_t4} RETURNING event_id"
        ),
    );
    sql::run(
        &mut client,
        "DELETE FROM idgen.audit_event WHERE tag = 't5' AND lo = 51;
         DELETE FROM idgen.audit_event e WHERE tag = 't6' AND tag_seq = (SELECT tag_seq FROM idgen.segment s WHERE s.tag = 't6');
         DELETE FROM idgen.audit_event WHERE tag = 't7'",
    );
    let real: i64 = value(
        &mut client,
        &format!("{EVENT_OF} AND tag = 't4' AND lo = 191 AND event_id <> {twice}"),
    );
    let (code, verdict, _) = scene.run(&options, &["--full"]);
    assert_eq!((code, verdict.as_str()), (Some(3), "FINDING"));
    let found = findings(&mut client);
    // Of the one around twenty others each of those is told with it.
    let around_of = found.iter().filter(|one| one.starts_with("overlap t2 "));
    assert!(around_of.clone().all(|one| one.contains(&around.to_string())));
    assert_eq!(around_of.count(), 20, "{found:#?}");
    let rest: Vec<_> = found
        .iter()
        .filter(|one| !one.starts_with("overlap t2 "))
        .collect();
    let numbers: (i64, i64) = (
        value(&mut client, "SELECT tag_seq FROM idgen.segment WHERE tag = 't6'"),
        value(&mut client, "SELECT tag_seq FROM idgen.segment WHERE tag = 't7'"),
    );
    let mut wanted = vec![
        format!("overlap t1 5-7 {first_of_t1} {overlapping}"),
        format!("malformed t3 {above}"),
        format!("rewritten t4 {of_t4} {twice}"),
        format!("overlap t4 191-200 {real} {twice}"),
        "missing t5 7-7".to_owned(),
        format!("missing t6 {0}-{0}", numbers.0),
        format!("missing t7 1-{}", numbers.1),
    ];
    wanted.sort();
    let mut rest: Vec<String> = rest.into_iter().cloned().collect();
    rest.sort();
    assert_eq!(rest, wanted);
    issuers_are_named(&scene, overlapping, first_of_t1);
    again_and_closed(&scene, &options, found.len());
}

/// Both issuers, and what to do, in JSON and for people.
fn issuers_are_named(scene: &Scene, overlapping: i64, first: i64) {
    let shown = scene.ctl(&scene.audited(""), &["show", "--database", "postgres"]);
    assert_eq!(shown.code, Some(3), "{}", shown.stderr);
    for part in [
        &format!("event {first}, at 20"),
        &format!("event {overlapping}, at 20"),
        "ids 1 to 10",
        "ids 5 to 7",
        "what to do: freeze: SELECT idgen_seek_segment('t1', ID)",
    ] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let unknown = scene.ctl(&scene.audited(""), &["show", "--database", "postgres", "4711"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.stdout);
    assert!(
        unknown.stderr.contains("there is no run 4711"),
        "{}",
        unknown.stderr
    );
}

/// The same things are the same findings; closed by an administrator they are a remark.
fn again_and_closed(scene: &Scene, options: &crate::kit::DaemonOptions, count: usize) {
    let mut client = scene.client();
    let (code, ..) = scene.run(options, &["--full"]);
    assert_eq!(code, Some(3));
    let seen: Vec<i32> = sql::column(&mut client, "SELECT DISTINCT seen FROM idgen.audit_finding");
    assert!(
        seen.contains(&2) && findings(&mut client).len() == count,
        "{seen:?}"
    );
    let one: i64 = value(&mut client, "SELECT min(finding_id) FROM idgen.audit_finding");
    let one = one.to_string();
    let close = ["close", "--database", "postgres", &one, "--reason", "renumbered"];
    let refused = scene.ctl(options, &close);
    assert_eq!(refused.code, Some(3), "{}", refused.stdout);
    assert!(refused.stderr.contains("--postgres"), "{}", refused.stderr);
    let admin = scene.server.conninfo();
    let mut with_admin = close.to_vec();
    with_admin.extend(["--postgres", &admin]);
    let mut tried = with_admin.clone();
    tried.push("--dry-run");
    assert!(scene.ctl(options, &tried).stdout.contains("would be closed"));
    let closed = scene.ctl(options, &with_admin);
    assert_eq!(closed.code, Some(0), "{}", closed.stderr);
    sql::run(
        &mut client,
        "SELECT idgen.audit_close(finding_id, 'all of them') FROM idgen.audit_finding",
    );
    let (code, verdict, reason) = scene.run(options, &["--full"]);
    assert_eq!((code, verdict.as_str()), (Some(0), "PASS"));
    assert!(reason.contains("that are closed"), "{reason}");
}

#[test]
fn what_comes_after_a_run_is_looked_at_in_the_next_and_nothing_else() {
    let scene = Scene::new(4, 10);
    let mut client = scene.client();
    let options = scene.audited("");
    let kinds = |client: &mut postgres::Client| -> Vec<String> {
        sql::column(
            client,
            "SELECT concat_ws(' ', kind, ranges, read_from) FROM idgen.audit_run ORDER BY run_id",
        )
    };
    // Nothing to go on from.
    assert_eq!(scene.run(&options, &[]).0, Some(0));
    more_grants(&mut client, 2, 5);
    assert_eq!(scene.run(&options, &[]).0, Some(0));
    assert_eq!(scene.run(&options, &[]).0, Some(0));
    assert_eq!(
        kinds(&mut client),
        [
            "full 40 primary",
            "incremental 10 primary",
            "incremental 0 primary"
        ]
    );
    // Below what an earlier run has seen.
    let forged = forge(&scene, "t3", "33, 35");
    assert_eq!(scene.run(&options, &[]).0, Some(3));
    let other: i64 = value(&mut client, &format!("{EVENT_OF} AND tag = 't3' AND lo = 31"));
    assert_eq!(
        findings(&mut client),
        [format!("overlap t3 33-35 {other} {forged}")]
    );
    // It is known now, so the next night says nothing of it; a full one does.
    assert_eq!(scene.run(&options, &[]).0, Some(0));
    assert_eq!(scene.run(&options, &["--full"]).0, Some(3));
    let frontier: i64 = value(
        &mut client,
        "SELECT count(DISTINCT run_id) FROM idgen.audit_frontier",
    );
    assert_eq!(frontier, 1, "only the last run's is kept");
    sql::run(&mut client, "DELETE FROM idgen.audit_event WHERE tag = 't4'");
    assert_eq!(scene.run(&options, &["--full"]).0, Some(3));
    let gone = findings(&mut client)
        .into_iter()
        .filter(|one| one.starts_with("missing t4 "));
    assert_eq!(gone.count(), 1);
}

/// AUDIT.md 55: a replica that lags passes on stale data.
#[test]
fn a55_a_replica_that_is_behind_paused_promoted_or_of_another_history_says_nothing() {
    let scene = Scene::new(2, 5);
    let mut client = scene.client();
    let mut standby = scene.standby();
    let mut at_standby = standby.connect();
    wait_replayed(&mut client, &mut at_standby);
    let now = scene.replica(&standby, "lag_max_minutes = 0");
    let inconclusive = |options: &crate::kit::DaemonOptions, part: &str| {
        let (code, verdict, reason) = scene.run(options, &["--full"]);
        assert_eq!((code, verdict.as_str()), (Some(4), "INCONCLUSIVE"), "{reason}");
        assert!(reason.contains(part), "{part}: {reason}");
    };
    sql::run(&mut at_standby, "SELECT pg_wal_replay_pause()");
    eventually_true(PATIENCE, "replay is paused", || {
        value(
            &mut at_standby,
            "SELECT pg_get_wal_replay_pause_state() = 'paused'",
        )
    });
    inconclusive(&now, "replay is paused");
    let states: Vec<String> = sql::column(&mut client, "SELECT DISTINCT verdict FROM idgen.audit_run");
    assert_eq!(states, ["INCONCLUSIVE"]);
    // Where that is allowed the primary is read, and says so.
    let falls_back = scene.replica(&standby, "lag_max_minutes = 0\nfall_back = true");
    assert_eq!(scene.run(&falls_back, &["--full"]).0, Some(0));
    let read_from: String = value(
        &mut client,
        "SELECT read_from FROM idgen.audit_run ORDER BY run_id DESC LIMIT 1",
    );
    assert_eq!(read_from, "primary");
    // One that comes to it is waited for.
    sql::run(&mut at_standby, "SELECT pg_wal_replay_resume()");
    assert_eq!(scene.run(&scene.replica(&standby, ""), &["--full"]).0, Some(0));

    let other = Server::with(crate::kit::ServerOptions {
        own_identity: true,
        ..crate::kit::ServerOptions::default()
    });
    inconclusive(&scene.replica(&other, ""), "of another system");
    drop(other);
    sql::run(&mut at_standby, "SELECT pg_promote()");
    inconclusive(&scene.replica(&standby, ""), "promoted");
    // In recovery again, on its own timeline, at a position that the primary has not come to.
    sql::run(
        &mut at_standby,
        "CREATE TABLE filler AS SELECT n FROM generate_series(1, 20000) n; CHECKPOINT",
    );
    drop(at_standby);
    standby.stop();
    fs::write(standby.data_dir().join("standby.signal"), "").expect("write standby.signal");
    standby.set("primary_conninfo", "");
    standby.run();
    inconclusive(&scene.replica(&standby, ""), "another timeline");
    inconclusive(&scene.replica(&scene.server, ""), "is no replica");
}

fn epoch(client: &mut postgres::Client) -> i64 {
    value(
        client,
        "SELECT epoch FROM idgen.drain_lease WHERE stream = 'audit'",
    )
}

/// Of two daemons one audits; killed in the middle the other goes on in the same run, under a new epoch.
#[test]
fn a_run_whose_auditor_is_killed_is_gone_on_with_by_another_and_each_night_has_one() {
    let scene = Scene::new(3, 400);
    let mut client = scene.client();
    // Slow enough to be met in the middle: 1,200 ranges in ten seconds and more.
    // At an hour that is far away, so that no other night begins meanwhile.
    let hour: String = value(
        &mut client,
        "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '12 hours', 'HH24:MI')",
    );
    let slow = |name: &str, rate: u32| {
        let lines = format!("rate = {rate}\nnightly = \"{hour}\"");
        scene.audited(&lines).name(name).launch()
    };
    let first = slow("first", 60);
    let open = "SELECT count(*) FROM idgen.audit_run WHERE ended_at IS NULL AND ranges > 0";
    eventually_true(PATIENCE, "a run has begun by itself, and come somewhere", || {
        value::<i64>(&mut client, open) == 1
    });
    let (run, before): (i64, i64) = (
        value(&mut client, "SELECT run_id FROM idgen.audit_run"),
        epoch(&mut client),
    );
    first.kill();
    // Another one holds the row: whoever was killed may only be on its way.
    let [second, third] = ["second", "third"].map(|name| slow(name, 100_000));
    eventually_true(PATIENCE, "the run has ended", || {
        value(
            &mut client,
            "SELECT count(*) = 1 FROM idgen.audit_run WHERE verdict = 'PASS'",
        )
    });
    let row = client
        .query_one(
            "SELECT run_id, epoch, ranges, holder_name, count(*) OVER () FROM idgen.audit_run",
            &[],
        )
        .expect("one run");
    let (same, after, ranges, holder): (i64, i64, i64, String) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!((same, ranges, row.get::<_, i64>(4)), (run, 1_200, 1));
    assert!(after > before && holder != "first", "{before} {after} {holder}");
    // Both have looked since, and there is nothing more to be done this night.
    let mut daemons = [second, third];
    for daemon in &mut daemons {
        eventually_true(PATIENCE, "it shows the run", || {
            let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
            [
                "idgen_audit_state{database=\"postgres\",kind=\"full\",state=\"pass\"} 1",
                "idgen_audit_findings_open{database=\"postgres\"} 0",
            ]
            .iter()
            .all(|line| metrics.contains(line))
        });
    }
    let runs: i64 = value(&mut client, "SELECT count(*) FROM idgen.audit_run");
    assert_eq!(runs, 1, "two daemons, one night, one run");
}

/// Whoever goes on with it has nothing more to read, and finds nothing anew.
#[test]
fn a_run_that_was_killed_behind_its_findings_is_no_pass() {
    let scene = Scene::new(2, 20);
    forge(&scene, "t1", "5, 7");
    let options = scene.audited("");
    assert_eq!(scene.run(&options, &["--full"]).1, "FINDING");
    sql::run(
        &mut scene.client(),
        "UPDATE idgen.audit_run SET ended_at = NULL, verdict = NULL, reason = NULL",
    );
    let (code, verdict, _) = scene.run(&options, &["--full"]);
    assert_eq!((code, verdict.as_str()), (Some(3), "FINDING"));
}

/// AUDIT.md 54: a replica cancels what reads there because the primary has removed what it reads.
#[test]
fn a54_what_a_replica_cancels_is_read_again() {
    let scene = Scene::new(4, 300);
    let mut client = scene.client();
    let mut standby = Server::backup_of(&scene.server, true);
    standby.set("max_standby_streaming_delay", "0");
    standby.run();
    let options = scene.replica(&standby, "");
    let mut at_standby = standby.connect();
    let conflicts =
        "SELECT sum(confl_lock + confl_snapshot + confl_bufferpin)::int8 FROM pg_stat_database_conflicts";
    let connect = scene.server.connector();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = std::sync::Arc::clone(&stop);
    // Nobody may read the tables on the standby for a moment, again and again.
    let locking = std::thread::spawn(move || {
        let mut client = connect().expect("connect");
        while !told.load(std::sync::atomic::Ordering::Relaxed) {
            sql::run(
                &mut client,
                "BEGIN; LOCK TABLE idgen.audit_event IN ACCESS EXCLUSIVE MODE; COMMIT",
            );
            std::thread::yield_now();
        }
    });
    eventually_true(PATIENCE, "audits were cancelled, and have passed", || {
        let before: i64 = value(&mut at_standby, conflicts);
        let (_, verdict, reason) = scene.run(&options, &["--full"]);
        // Never a finding of what could not be read.
        assert!(
            verdict == "PASS" || verdict == "INCONCLUSIVE" && reason.contains("could not be read"),
            "{verdict} {reason}"
        );
        let cancelled: i64 = value(&mut at_standby, conflicts);
        // In this very run.
        cancelled > before && verdict == "PASS"
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    locking.join().expect("the one who locks");
    let read_from: Vec<String> = sql::column(
        &mut client,
        "SELECT DISTINCT read_from FROM idgen.audit_run WHERE verdict = 'PASS'",
    );
    assert_eq!(read_from, ["replica"]);
}
