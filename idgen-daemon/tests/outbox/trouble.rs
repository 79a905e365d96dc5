//! What goes wrong with the broker, and with single events.

use crate::kit::kafka::{Kafka, Message, PASSWORD, USER};
use crate::kit::process::Signal;
use crate::kit::sql::value;
use crate::kit::{Daemon, PATIENCE, Scratch, ServerOptions, eventually_true};
use crate::scene::{Scene, metric, number, of_segments, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

/// AUDIT.md 26 is near: what is missing is named, nothing is lost, and it goes on by itself when it is there.
#[test]
fn a_missing_topic_is_named_and_waited_for() {
    let scene = Scene::without_topic(crate::scene::shared_kafka(), ServerOptions::default());
    scene.write(5, 100);
    let daemon = scene.daemon();
    daemon.wait_log(&["there is no topic", &scene.topic, "hint"]);
    scene.kafka.create_topic(&scene.topic, 2);
    scene.wait_drained();
    scene.check();
    daemon.wait_log(&["events are sent again"]);
}

/// AUDIT.md 12 and 24: a broker that stands still. What was sent may be in it, or may not; it is sent anew, and copies are all
/// that comes of it.
#[test]
fn a12_a24_a_broker_that_stands_still_costs_copies_at_the_most() {
    let kafka = Kafka::start();
    let scene = Scene::on(Arc::new(kafka), ServerOptions::default());
    let mut options = scene.options();
    options.sections = options
        .sections
        .replace("topic =", "ack_timeout_ms = 1500\ntopic =");
    let mut daemon = options.start();
    scene.write(5, 500);
    scene.wait_drained();
    scene.kafka.signal(Signal::STOP);
    scene.write(5, 500);
    daemon.wait_log(&["no acknowledgement for"]);
    scene.kafka.signal(Signal::CONT);
    scene.wait_drained();
    scene.check();
    let silences = metric(
        &mut daemon,
        "idgen_drain_resets_total{cause=\"silence\",database=\"postgres\"}",
    );
    assert!(silences.is_some_and(|count| count >= 1.0), "{silences:?}");
}

/// Nothing else has it in it.
const WRONG: &str = "k7Qw-not-it-Zx3";

#[test]
fn a_user_without_rights_is_named_and_waited_for() {
    let scene = Scene::on(Arc::new(Kafka::secured()), ServerOptions::default());
    let scratch = Scratch::new("password");
    let password = scratch.join("password");
    fs::write(&password, WRONG).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let mut options = scene.options();
    options.sections = format!(
        "[kafka]\nbrokers = [\"{}\"]\ntopic = \"{}\"\nusername = \"{USER}\"\nsasl_mechanism = \"SCRAM-SHA-256\"\n\
         password_file = \"{}\"\n",
        scene.kafka.secured_broker(),
        scene.topic,
        password.display()
    );
    scene.write(5, 100);
    let daemon = options.start();
    daemon.wait_log(&["do not believe who we are"]);
    assert!(!daemon.log().contains(WRONG));
    // It is read anew for each try.
    fs::write(&password, PASSWORD).unwrap();
    daemon.wait_log(&["not allowed to see the topic", "hint"]);
    let (broker, user) = (scene.kafka.broker(), format!("User:{USER}"));
    let grant = |operation: &str| {
        let args = [
            "--bootstrap-server",
            &broker,
            "--add",
            "--allow-principal",
            &user,
            "--operation",
            operation,
            "--topic",
            &scene.topic,
        ];
        let granted = scene.kafka.tool("org.apache.kafka.tools.AclCommand", &args);
        assert_eq!(granted.code, Some(0), "{}{}", granted.stdout, granted.stderr);
    };
    grant("Describe");
    daemon.wait_log(&["no event can be sent until somebody mends this"]);
    grant("Write");
    scene.wait_drained();
    scene.check();
    assert!(!daemon.log().contains(PASSWORD));
}

fn stub_of(messages: &[Message]) -> Vec<(i64, serde_json::Value)> {
    let mut stubs: Vec<_> = of_segments(messages)
        .map(|message| {
            (
                number(message, "event_id"),
                serde_json::from_str(&message.value).unwrap(),
            )
        })
        .filter(|(_, body): &(i64, serde_json::Value)| body.get("stub").is_some())
        .collect();
    stubs.sort_by_key(|(event_id, _)| *event_id);
    stubs
}

/// AUDIT.md 27: an event that cannot be sent holds up nobody, and nothing is missing from its tag.
#[test]
fn a27_an_event_that_is_too_long_goes_as_a_stub_in_its_place() {
    let scene = Scene::new();
    let mut client = scene.server.connect();
    write(&mut client, 2, 10, "'{}'");
    write(
        &mut client,
        2,
        2,
        "jsonb_build_object('long', repeat('x', 2000000))",
    );
    // A message has more than its payload.
    write(
        &mut client,
        2,
        1,
        "jsonb_build_object('long', repeat('x', 999900))",
    );
    write(&mut client, 2, 10, "'{}'");
    let daemon = scene.daemon();
    scene.wait_drained();
    let messages = scene.check();
    let stubs = stub_of(&messages);
    assert_eq!(stubs.len(), 3, "{stubs:?}");
    let dead = "SELECT event_id, encode(sha256, 'hex'), octet_length(payload::text), reason FROM idgen.audit_event_dlq ORDER BY 1";
    let dead = client.query(dead, &[]).unwrap();
    assert_eq!(dead.len(), stubs.len(), "each is kept whole");
    for (row, (event_id, body)) in dead.iter().zip(&stubs) {
        assert_eq!(row.get::<_, i64>(0), *event_id);
        assert_eq!(body["stub"]["sha256"], row.get::<_, String>(1));
        assert_eq!(body["stub"]["bytes"], row.get::<_, i32>(2));
        assert_eq!(
            (&body["stub"]["reason"], row.get::<_, &str>(3)),
            (&"too_large".into(), "too_large")
        );
        assert_eq!(body["payload"], serde_json::json!({}));
    }
    drop(daemon);
}

/// The same where only the broker knows that it is too long.
#[test]
fn a27_an_event_that_the_broker_refuses_goes_as_a_stub_in_its_place() {
    let scene = Scene::without_topic(crate::scene::shared_kafka(), ServerOptions::default());
    scene
        .kafka
        .create_topic_with(&scene.topic, 2, &[("max.message.bytes", "20000")]);
    let mut client = scene.server.connect();
    write(&mut client, 2, 10, "'{}'");
    // It does not get shorter by compression.
    write(
        &mut client,
        2,
        1,
        "(SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 3000) i)",
    );
    write(&mut client, 2, 10, "'{}'");
    // A batch is refused for the length of one event in it, and all of it: those beside it are not poison.
    let daemon = scene.daemon();
    scene.wait_drained();
    let messages = scene.check();
    assert_eq!(stub_of(&messages).len(), 1, "{:?}", stub_of(&messages));
    let dead: i64 = value(
        &mut client,
        "SELECT count(*) FROM idgen.audit_event_dlq WHERE reason = 'too_large'",
    );
    assert_eq!(dead, 1);
    drop(daemon);
}

/// How many events the daemon had in flight whenever it has told of that.
fn in_flight(daemon: &Daemon) -> Vec<u32> {
    let log = daemon.log();
    let told = log.lines().filter_map(|line| {
        let (before, _) = line.split_once(" events are in flight")?;
        before.rsplit(' ').next()?.parse().ok()
    });
    told.collect()
}

/// AUDIT.md 21 and 22: a broker that was never there is waited for; and with the broker away no more than 5,000 events are in
/// the daemon, while the others wait in the table.
#[test]
fn a21_a22_a_broker_is_waited_for_and_what_waits_waits_in_the_table() {
    let mut scene = Scene::without_topic(Arc::new(Kafka::prepared(&[])), ServerOptions::default());
    let kafka = |scene: &mut Scene, act: fn(&mut Kafka)| {
        act(Arc::get_mut(&mut scene.kafka).expect("nobody else has it"))
    };
    scene.write(5, 500);
    let mut options = scene.options();
    options
        .sections
        .push_str("[kafka.properties]\n\"reconnect.backoff.max.ms\" = 500\n");
    let mut daemon = options.start();
    daemon.wait_log(&["outbox: database postgres: kafka:", "Connection refused"]);
    kafka(&mut scene, Kafka::run);
    scene.kafka.create_topic(&scene.topic, 3);
    scene.wait_drained();
    kafka(&mut scene, Kafka::kill);
    scene.write(100, 15_000);
    let backlog = "idgen_outbox_backlog_rows{database=\"postgres\"}";
    eventually_true(PATIENCE, "the backlog is seen", || {
        metric(&mut daemon, backlog).is_some_and(|rows| rows >= 15_000.0)
    });
    eventually_true(PATIENCE, "as many as may be are in flight", || {
        in_flight(&daemon).contains(&5_000)
    });
    let most = in_flight(&daemon).into_iter().max();
    assert_eq!(most, Some(5_000), "so many are in the daemon");
    let mut client = scene.server.connect();
    let reads =
        "SELECT sum(idx_tup_fetch)::bigint FROM pg_stat_user_indexes WHERE indexrelname LIKE '%_queue'";
    let seen: i64 = value(&mut client, reads);
    assert!(seen < 100_000, "it reads on although nothing has room: {seen}");
    kafka(&mut scene, Kafka::run);
    scene.wait_drained();
    scene.check();
}
