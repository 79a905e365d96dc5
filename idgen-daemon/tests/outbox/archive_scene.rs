//! What the tests of the archive share: daemons that archive, events that are sent, and what must hold of every archive.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use idgen_daemon::archive::commit::{Commit, sha256};
use idgen_daemon::event::{Event, SCHEMA, hex};
use postgres::Client;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::kit::daemon::{Answer, Daemon, DaemonOptions, IDGENCTL, answer};
use crate::kit::kafka::Message;
use crate::kit::s3::{ArchivedRow, S3};
use crate::kit::{PATIENCE, Server, eventually_true};

pub const TOPIC: &str = "idgen.audit";
/// Of a topic of events.
pub const LOG_APPEND: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];

/// A daemon that archives into a folder, every second.
pub fn in_folder(server: &Server, folder: &Path) -> DaemonOptions {
    let mut options = DaemonOptions::new(server);
    options.env = [
        ("IDGEND_ARCHIVE__KIND", "folder"),
        (
            "IDGEND_ARCHIVE__PATH",
            folder.to_str().expect("a path that is text"),
        ),
        ("IDGEND_ARCHIVE__CUT_SECONDS", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    options
}

/// The same, from a topic, to which the daemon has nothing to add.
pub fn from_topic(mut options: DaemonOptions, broker: &str, topic: &str) -> DaemonOptions {
    options
        .env
        .push(("IDGEND_EVENTS__ENABLED".into(), "false".into()));
    options.env.push(("IDGEND_KAFKA__BROKERS".into(), broker.into()));
    options.env.push(("IDGEND_KAFKA__TOPIC".into(), topic.into()));
    options
}

/// idgenctl with the configuration and the environment of a daemon.
pub fn idgenctl_of(options: &DaemonOptions, daemon: &Daemon, args: &[&str]) -> Answer {
    let mut command = Command::new(IDGENCTL);
    command
        .args(args)
        .arg("--config")
        .arg(daemon.config_path())
        .envs(options.env.iter().map(|(name, value)| (name, value)));
    answer(command)
}

/// Event number `id` of a source, of one of five tags.
pub fn event(source: u128, id: i64) -> Event {
    Event {
        schema: SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(source),
        event_id: id,
        at: format!(
            "2026-04-03T10:{:02}:{:02}.{:06}Z",
            id / 60 % 60,
            id % 60,
            id % 1_000_000
        ),
        service: "billing".into(),
        space: Uuid::from_u128(source + 1),
        tag: format!("tag {}", id % 5),
        tag_seq: id / 5,
        lo: Some(id * 10 + 1),
        hi: Some(id * 10 + 10),
        token: None,
        tx: Some(id.to_string()),
        stub: None,
        payload: RawValue::from_string("{}".into()).expect("JSON"),
    }
}

/// Sends events as the outbox does.
pub fn send(broker: &str, topic: &str, source: u128, ids: std::ops::Range<i64>) {
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", broker);
    let producer: BaseProducer = config.create().expect("a producer");
    for id in ids {
        let event = event(source, id);
        let (key, value) = (event.key(), event.to_json().expect("JSON"));
        let epoch = Header {
            key: "epoch",
            value: Some("4"),
        };
        let record = BaseRecord::to(topic)
            .key(&key)
            .payload(&value)
            .headers(OwnedHeaders::new().insert(epoch));
        producer
            .send(record)
            .map_err(|(error, _)| error)
            .expect("room in the queue");
    }
    producer.flush(Duration::from_secs(60)).expect("acknowledged");
}

/// All events of the outbox of a database.
pub fn table_events(client: &mut Client) -> BTreeSet<(String, i64)> {
    let rows = client.query("SELECT source_id::text, event_id FROM idgen.audit_event", &[]);
    let rows = rows.expect("read the outbox");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

pub fn wait_all_published(client: &mut Client) {
    eventually_true(PATIENCE, "every event is marked as published", || {
        let row = client.query_one("SELECT count(*) FROM idgen.audit_event WHERE NOT published", &[]);
        row.expect("read the outbox").get::<_, i64>(0) == 0
    });
}

/// Events of segments, each as often as it is there.
pub fn segment_events(rows: &[ArchivedRow]) -> BTreeMap<(String, i64), usize> {
    let mut events = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.kind.starts_with("snowflake.")) {
        *events.entry((row.source.clone(), row.event_id)).or_default() += 1;
    }
    events
}

/// Waits until the archive has everything of a topic that was read, and what comes later aside: each offset is in the ranges of
/// exactly one commit, and the rows, which come back in the order of offsets, are the messages.
pub fn wait_same_as_topic(
    s3: &S3,
    (topic, messages): (&str, &[Message]),
    patience: Duration,
) -> (Vec<Commit>, Vec<ArchivedRow>) {
    let ends: BTreeMap<i32, i64> = messages
        .iter()
        .map(|message| (message.partition, message.offset + 1))
        .collect();
    eventually_true(patience, "everything is archived", || {
        let keys = s3.keys(&format!("audit/v1/_commits/{topic}/"));
        let last = keys.last().and_then(|key| s3.get(key));
        let last = last.map(|text| Commit::parse(text.as_bytes()).expect("a commit"));
        let ranges = last.into_iter().flat_map(|last| last.ranges);
        let archived: BTreeMap<i32, i64> = ranges.map(|range| (range.p, range.end)).collect();
        ends.iter()
            .all(|(partition, end)| archived.get(partition).is_some_and(|there| there >= end))
    });
    let commits = commits_of(s3, topic);
    assert_chain(&commits);
    let mut rows = s3.rows();
    rows.retain(|row| ends.get(&row.partition).is_some_and(|end| row.offset < *end));
    rows.sort_by_key(|row| (row.partition, row.offset));
    let sent = messages.iter().map(|message| {
        let event = Event::parse(message.value.as_bytes()).expect("an event");
        let source = event.source.to_string();
        (message.partition, message.offset, source, event.event_id)
    });
    let archived = rows
        .iter()
        .map(|row| (row.partition, row.offset, row.source.clone(), row.event_id));
    assert_eq!(
        rows.len(),
        messages.len(),
        "rows of the archive and messages of the topic"
    );
    assert!(archived.eq(sent), "the archive has other rows than the topic");
    (commits, rows)
}

/// The commits of a chain, each of which has the SHA-256 of the one before it.
pub fn commits_of(s3: &S3, chain: &str) -> Vec<Commit> {
    let mut before = "0".repeat(64);
    let keys = s3.keys(&format!("audit/v1/_commits/{chain}/"));
    let commit = |key: &String| {
        let text = s3.get(key).expect("a commit");
        let commit = Commit::parse(text.as_bytes()).expect("a commit");
        assert_eq!(commit.prev_sha256, before, "{key}");
        before = hex(&sha256(text.as_bytes()));
        commit
    };
    keys.iter().map(commit).collect()
}

/// The commits follow from each other; returns where each partition goes on.
pub fn assert_chain(commits: &[Commit]) -> BTreeMap<i32, i64> {
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    for (seq, commit) in (1..).zip(commits) {
        assert_eq!(commit.seq, seq);
        for range in &commit.ranges {
            let before = next.insert(range.p, range.end).unwrap_or(0);
            assert_eq!(range.start, before, "partition {} of commit {seq}", range.p);
        }
    }
    next
}
