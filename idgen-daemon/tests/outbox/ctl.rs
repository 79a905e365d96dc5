//! `idgenctl outbox`, on an outbox with a dead letter.

use crate::kit::daemon::{idgenctl, idgenctl_change};
use crate::kit::sql::value;
use crate::kit::{PATIENCE, eventually_true};
use crate::scene::{Scene, of_segments, write};
use serde_json::Value;

#[test]
fn an_operator_sees_what_waits_and_sends_again() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    write(&mut client, 1, 3, "'{}'");
    write(
        &mut client,
        1,
        1,
        "jsonb_build_object('long', repeat('x', 2000000))",
    );
    let daemon = scene.daemon();
    scene.wait_drained();
    let config = daemon.config_path().display().to_string();
    let of = ["--config", &config, "--database", "postgres"];

    let status = idgenctl(&["outbox", "status", "--config", &config, "-o", "json"]);
    assert_eq!(
        status.code,
        Some(3),
        "a dead letter is a finding: {}{}",
        status.stdout,
        status.stderr
    );
    let all: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(
        (&all[0]["database"], &all[0]["dead_letters"], &all[0]["backlog"]),
        (&"postgres".into(), &1.into(), &0.into())
    );
    let table = idgenctl(&["outbox", "status", "--config", &config]);
    assert!(table.stdout.contains("drained by"), "{}", table.stdout);

    let listed = idgenctl(&[&["outbox", "dlq", "ls", "-o", "json"], &of[..]].concat());
    assert_eq!(listed.code, Some(3), "{}", listed.stderr);
    let dead: Value = serde_json::from_str(&listed.stdout).unwrap();
    let event = dead[0]["event_id"].to_string();
    let seen = || listed_attempts(&scene);
    let unknown = idgenctl(&[&["outbox", "dlq", "retry", "999999", "--yes"], &of[..]].concat());
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
    let retried = idgenctl_change(&[&["outbox", "dlq", "retry", &event], &of[..]].concat(), seen);
    assert_eq!(retried.code, Some(0), "{}", retried.stderr);
    // It is still too long: a stub once more.
    // Told by `asked`, not by the sweep of each minute.
    eventually_true(PATIENCE, "a second stub is made", || listed_attempts(&scene) == 2);
    scene.wait_drained();

    let before = of_segments(&scene.check()).count();
    let day: String = value(
        &mut client,
        "SELECT ((clock_timestamp() AT TIME ZONE 'UTC')::date)::text",
    );
    let replay = [&["outbox", "replay", "--day", &day, "--tag", "w0"], &of[..]].concat();
    let again = idgenctl_change(&replay, || listed_attempts(&scene));
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(
        again.stdout.contains("4 events are sent once more"),
        "{}",
        again.stdout
    );
    scene.wait_drained();
    assert!(of_segments(&scene.check()).count() >= before + 4);
    drop(daemon);
}

fn listed_attempts(scene: &Scene) -> i32 {
    value(
        &mut scene.server.connect(),
        "SELECT max(attempts) FROM idgen.audit_event_dlq",
    )
}
