//! What the nightly audit knows of what is not there any more, and of what nobody has seen yet.

use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, Scratch, eventually_true};
use crate::nightly_scene::{Scene, age, balancer, findings, forge, wait_replayed};

/// The days of the grants that it collides with were dropped; what an audit has seen of them is known still.
#[test]
fn a_grant_that_falls_back_onto_ids_whose_days_are_gone_is_a_finding() {
    let scene = Scene::new(2, 20);
    let mut client = scene.client();
    let options = scene.audited("");
    age(&mut client);
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    sql::run(&mut client, "DROP TABLE idgen.aged");
    // Of neither tag anything is there, and this is known on.
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    let first = forge(&scene, "t1", "5, 7");
    assert_eq!(scene.run(&options, &[]).1, "FINDING");
    let second = forge(&scene, "t2", "200, 203");
    assert_eq!(scene.run(&options, &["--full"]).1, "FINDING");
    assert_eq!(
        findings(&mut client),
        [
            format!("malformed t1 5-7 {first}"),
            format!("malformed t2 200-200 {second}")
        ]
    );
}

/// Of 1,000 findings a run makes no more. What it has not come to is looked at in the next, though nothing of it is new.
#[test]
fn what_a_run_that_stopped_had_not_come_to_is_looked_at_in_the_next() {
    let scene = Scene::new(1, 1);
    let mut client = scene.client();
    let options = scene.audited("");
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    // Of two new tags a thousand and one of the events are gone, here and there.
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('a'), idgen_create_segment('b');
         SELECT idgen_segment_range('a', 10), idgen_segment_range('b', 10) FROM generate_series(1, 2002);
         DELETE FROM idgen.audit_event WHERE tag <> 't1' AND tag_seq % 2 = 0",
    );
    let mut of = |run: &str| -> Vec<String> {
        assert_eq!(scene.run(&options, &[]).1, "FINDING", "{run}");
        let tags = "SELECT DISTINCT tag FROM idgen.audit_finding";
        sql::column(&mut client, tags)
    };
    assert_eq!(of("the first").len(), 1);
    age(&mut scene.client());
    assert_eq!(of("the next").len(), 2);
    assert_eq!(scene.run(&options, &[]).1, "PASS", "nothing is left");
    let count: i64 = value(&mut client, "SELECT count(*) FROM idgen.audit_finding");
    assert_eq!(count, 2_000);
}

/// Numbers of a tag go on under whatever source and space, and a tag that came from elsewhere has none before it came.
#[test]
fn the_first_and_the_last_event_of_each_tag_must_be_there_under_whatever_name() {
    let scene = Scene::new(7, 20);
    let mut client = scene.client();
    sql::run(
        &mut client,
        "SELECT idgen_drop_segment('t7'); SELECT idgen_create_segment('t7');
         -- Another space has events of the name, and not the last one. All of a copy it has.
         UPDATE idgen.audit_event SET space_id = md5('another')::uuid WHERE tag IN ('t1', 't2');
         DELETE FROM idgen.audit_event WHERE tag = 't1' AND tag_seq > 5;
         DELETE FROM idgen.audit_event WHERE tag IN ('t3', 't4') AND tag_seq < 5;
         UPDATE idgen.audit_event SET kind = 'segment.burn', payload = '{\"cause\": \"row came from elsewhere\"}'
          WHERE tag = 't4' AND tag_seq = 5;
         -- As another source it goes on at 10; of the one it has lost the last before that.
         UPDATE idgen.audit_event SET source_id = md5('another')::uuid WHERE tag IN ('t5', 't6') AND tag_seq >= 10;
         DELETE FROM idgen.audit_event WHERE tag = 't6' AND tag_seq = 9;
         DELETE FROM idgen.audit_event WHERE tag = 't7' AND tag_seq < 23",
    );
    assert_eq!(scene.run(&scene.audited(""), &["--full"]).1, "FINDING");
    let wanted = ["missing t1 1-21", "missing t3 1-4", "missing t6 1-9"];
    assert_eq!(findings(&mut client), wanted);
}

/// What nobody had read yet when the run was interrupted, and what is dropped before it is read.
#[test]
fn tags_that_come_and_days_that_go_while_a_run_is_under_way_are_no_findings() {
    let scene = Scene::new(2, 20);
    let mut client = scene.client();
    let options = scene.audited("");
    age(&mut client);
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    sql::run(
        &mut client,
        "UPDATE idgen.audit_run SET ended_at = NULL, verdict = NULL;
         SELECT idgen_create_segment('new'); SELECT idgen_segment_range('new', 10);
         SELECT idgen_segment_range('t1', 10)",
    );
    assert_eq!(
        scene.run(&options, &["--full"]),
        (Some(0), "PASS".into(), String::new())
    );
    let tags: i64 = value(&mut client, "SELECT max(tags) FROM idgen.audit_run");
    assert_eq!(tags, 3);
    let mut dropping = scene.client();
    let mut dropping = dropping.transaction().expect("begin");
    dropping
        .batch_execute("LOCK TABLE ONLY idgen.audit_event IN ACCESS EXCLUSIVE MODE")
        .expect("lock");
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| scene.run(&options, &["--full"]));
        eventually_true(PATIENCE, "it has the days, and waits for what is in them", || {
            value(
                &mut client,
                "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%idgen.audit_event%'",
            )
        });
        dropping.batch_execute("DROP TABLE idgen.aged").expect("drop");
        dropping.commit().expect("commit");
        run.join().expect("a run")
    });
    assert_eq!(run, (Some(0), "PASS".into(), String::new()));
}

/// A run that cannot be ended, as if its auditor were killed at the last moment, until the trigger is gone.
const NO_END: &str = "
    CREATE FUNCTION public.no_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.ended_at IS NOT NULL THEN RAISE 'not now'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER no_end BEFORE UPDATE ON idgen.audit_run FOR EACH ROW EXECUTE FUNCTION public.no_end()";
const END_AGAIN: &str = "DROP FUNCTION public.no_end() CASCADE";

#[test]
fn what_was_read_at_last_and_the_verdict_are_written_down_together() {
    let scene = Scene::new(2, 20);
    let mut client = scene.client();
    let options = scene.audited("");
    forge(&scene, "t1", "5, 7");
    assert_eq!(scene.run(&options, &["--full"]).1, "FINDING");
    // The finding is that of the first run.
    sql::run(&mut client, NO_END);
    let failed = scene.ctl(&options, &["run", "--full"]);
    assert!(failed.stderr.contains("not now"), "{}", failed.stderr);
    let open = "SELECT count(*) FROM idgen.audit_run WHERE ended_at IS NULL";
    assert_eq!(value::<i64>(&mut client, open), 1);
    sql::run(&mut client, END_AGAIN);
    assert_eq!(
        scene.run(&options, &["--full"]).1,
        "FINDING",
        "whoever goes on has to see it too"
    );
    let runs: i64 = value(&mut client, "SELECT count(*) FROM idgen.audit_run");
    assert_eq!(runs, 2);
}

#[test]
fn whoever_wants_everything_looked_at_gets_no_verdict_of_less() {
    let scene = Scene::new(2, 20);
    let mut client = scene.client();
    let options = scene.audited("");
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    sql::run(&mut client, NO_END);
    scene.ctl(&options, &["run"]);
    sql::run(&mut client, END_AGAIN);
    assert_eq!(scene.run(&options, &["--full"]).1, "PASS");
    let runs: Vec<String> = sql::column(
        &mut client,
        "SELECT concat_ws(' ', kind, verdict, reason) FROM idgen.audit_run ORDER BY run_id",
    );
    assert_eq!(
        runs,
        [
            "full PASS",
            "incremental INCONCLUSIVE it was given up for a run over everything",
            "full PASS",
        ]
    );
}

/// Each session has to show that it is one of the replica which was waited for.
#[test]
fn a_balancer_that_goes_on_to_another_server_makes_no_pass() {
    let scene = Scene::new(2, 20);
    let mut client = scene.client();
    let (good, behind) = (scene.standby(), scene.standby());
    let mut at_behind = behind.connect();
    wait_replayed(&mut client, &mut at_behind);
    sql::run(&mut at_behind, "SELECT pg_wal_replay_pause()");
    // What it has not got is what is wrong.
    forge(&scene, "t1", "5, 7");
    for (servers, verdict) in [
        (vec![&good, &behind], "INCONCLUSIVE"),
        (vec![&good, &scene.server], "INCONCLUSIVE"),
        (vec![&good], "FINDING"),
    ] {
        let folder = Scratch::new("balancer");
        let url = balancer(&folder, &servers);
        let options = scene.audited(&format!("replica = \"{url}\""));
        let (_, came_to, reason) = scene.run(&options, &["--full"]);
        assert_eq!(came_to, verdict, "{reason}");
    }
}
