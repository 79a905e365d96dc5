//! What the nightly audit knows of what is not there any more, and of what nobody has seen yet.

use crate::kit::sql::{self, value};
use crate::nightly_scene::{Scene, age, findings, forge};

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
