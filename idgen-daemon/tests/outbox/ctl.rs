//! `idgenctl outbox`, on an outbox with a dead letter.

use crate::kit::daemon::{idgenctl, idgenctl_change};
use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, Scratch, eventually_true};
use crate::scene::{Scene, of_segments, write};
use postgres::Client;
use serde_json::Value;
use std::fs;

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
    let scratch = Scratch::new("stopped");
    let kept = scratch.join("idgend.toml");
    fs::copy(&config, &kept).unwrap();
    daemon.terminate();
    nobody_drains(&mut client, &kept.display().to_string(), &event);
}

/// A stub that may be under way is not taken for the whole, and what can never be sent again is said.
fn nobody_drains(client: &mut Client, config: &str, event: &str) {
    let status = idgenctl(&["outbox", "status", "--config", config, "-o", "json"]);
    let all: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(all[0]["drained_by"], "", "its name is in the table still");
    let of = ["--config", config, "--database", "postgres", "--yes"];
    let open = format!("UPDATE idgen.audit_event SET published = false WHERE event_id = {event}");
    sql::run(client, &open);
    let retried = idgenctl(&[&["outbox", "dlq", "retry", event], &of[..]].concat());
    assert_eq!(retried.code, Some(0), "{}", retried.stderr);
    assert!(
        retried.stdout.contains("0 events are sent once more"),
        "{}",
        retried.stdout
    );
    let asked = "SELECT count(*) FROM idgen.audit_event_dlq WHERE retried_at IS NOT NULL";
    assert_eq!(value::<i64>(client, asked), 0);
    sql::run(
        client,
        "UPDATE idgen.audit_event SET published = true;
         INSERT INTO idgen.audit_event_dlq (source_id, event_id, at, kind, space_id, tag, tag_seq, payload, reason, sha256)
         VALUES (gen_random_uuid(), 77777777, clock_timestamp(), 'snowflake.lease.grant', gen_random_uuid(), 'lease', 1, '{}',
                 'too_large', sha256('x'))",
    );
    let gone = idgenctl(&[&["outbox", "dlq", "retry", "77777777"], &of[..]].concat());
    assert_eq!(gone.code, Some(3), "{}", gone.stderr);
    assert!(
        gone.stderr.contains("1 dead letters cannot be sent"),
        "{}",
        gone.stderr
    );
    let both = idgenctl(&[&["outbox", "dlq", "retry"], &of[..]].concat());
    assert_eq!(both.code, Some(0), "{}", both.stderr);
    let said = "1 events are sent once more; 1 dead letters cannot be";
    assert!(both.stdout.contains(said), "{}", both.stdout);
    assert_eq!(value::<i64>(client, asked), 1);
}

fn listed_attempts(scene: &Scene) -> i32 {
    value(
        &mut scene.server.connect(),
        "SELECT max(attempts) FROM idgen.audit_event_dlq",
    )
}
