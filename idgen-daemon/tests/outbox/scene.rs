//! A server, a broker and daemons, and what must hold of them in the end.

use crate::kit::kafka::{Kafka, Message};
use crate::kit::sql::{self, value};
use crate::kit::{Daemon, DaemonOptions, PATIENCE, Server, ServerOptions, eventually, eventually_true};
use idgen_daemon::outbox::{Holder, open};
use idgen_daemon::postgres::{PostgresUrl, Session};
use postgres::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

/// Of an outbox with something to do on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);

/// A broker that tests which run at the same time share: none of them breaks it.
pub fn shared_kafka() -> Arc<Kafka> {
    static KAFKA: Mutex<Weak<Kafka>> = Mutex::new(Weak::new());
    let mut kafka = KAFKA.lock().unwrap_or_else(PoisonError::into_inner);
    kafka.upgrade().unwrap_or_else(|| {
        let started = Arc::new(Kafka::start());
        *kafka = Arc::downgrade(&started);
        started
    })
}

/// A topic that nobody else has.
pub fn new_topic() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("audit-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A server with tags, and a topic for its events.
pub struct Scene {
    pub server: Server,
    pub kafka: Arc<Kafka>,
    pub topic: String,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::on(shared_kafka(), ServerOptions::default())
    }

    pub fn on(kafka: Arc<Kafka>, options: ServerOptions) -> Scene {
        let scene = Scene::without_topic(kafka, options);
        scene.kafka.create_topic(&scene.topic, 3);
        scene
    }

    pub fn without_topic(kafka: Arc<Kafka>, options: ServerOptions) -> Scene {
        let server = Server::with(options);
        let mut client = server.connect();
        // Its day tables are made with it.
        sql::run(&mut client, "SELECT idgen_create_segment('orders')");
        Scene {
            server,
            kafka,
            topic: new_topic(),
        }
    }

    pub fn options(&self) -> DaemonOptions {
        let (broker, topic) = (self.kafka.broker(), &self.topic);
        DaemonOptions::new(&self.server)
            .sections(&format!("[kafka]\nbrokers = [\"{broker}\"]\ntopic = \"{topic}\""))
    }

    pub fn daemon(&self) -> Daemon {
        self.options().start()
    }

    /// `events` events of `tags` tags, in one transaction.
    pub fn write(&self, tags: u32, events: u32) {
        let mut client = self.server.connect();
        write(&mut client, tags, events, "'{}'");
    }

    pub fn wait_drained(&self) {
        self.wait_drained_within(LONG);
    }

    pub fn wait_drained_within(&self, patience: Duration) {
        let mut client = eventually(PATIENCE, "the server answers", || self.server.try_connect().ok());
        eventually_true(patience, "everything is published", || {
            unpublished(&mut client) == 0
        });
    }

    /// Everything of the table is in the topic, each as it is, and in order at first sight.
    pub fn check(&self) -> Vec<Message> {
        let messages = self.kafka.read(&self.topic);
        check_same(&messages, &mut self.server.connect());
        messages
    }
}

/// The topic has what the table has, in order at first sight.
pub fn check_same(messages: &[Message], client: &mut Client) {
    check_order(messages);
    let found = ids_of(messages);
    let wanted: BTreeSet<i64> = sql::column(client, "SELECT event_id FROM idgen.audit_event")
        .into_iter()
        .collect();
    assert_eq!(
        found.symmetric_difference(&wanted).collect::<Vec<_>>(),
        Vec::<&i64>::new(),
        "what is in the topic is not what is in the table"
    );
}

/// Events of segments.
pub fn ids_of(messages: &[Message]) -> BTreeSet<i64> {
    of_segments(messages)
        .map(|message| number(message, "event_id"))
        .collect()
}

/// Those that are marked in the table.
pub fn marked(client: &mut Client) -> BTreeSet<i64> {
    let marked = "SELECT event_id FROM idgen.audit_event WHERE published";
    sql::column(client, marked).into_iter().collect()
}

/// Somebody who is no daemon takes the lease of a database for an hour, in the transaction that is open.
pub const BY_FORCE: &str =
    "UPDATE idgen.drain_lease SET epoch = epoch + 1, holder = gen_random_uuid(), holder_name = 'x',
        expires = clock_timestamp() + interval '1 h' WHERE stream = 'segment'";

/// ... and gives it back.
pub const BACK: &str =
    "UPDATE idgen.drain_lease SET holder = NULL, expires = 'epoch' WHERE stream = 'segment'";

pub fn unpublished(client: &mut Client) -> i64 {
    value(
        client,
        "SELECT count(*) FROM idgen.audit_event WHERE NOT published",
    )
}

/// As grants write them, without the grants, and in one transaction. Nothing locks the tags: one writer at a time.
pub fn write(client: &mut Client, tags: u32, events: u32, payload: &str) {
    sql::run(
        client,
        &format!(
            "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi, payload)
             SELECT p.source_id, 'segment.grant', p.space_id, 'w' || n % {tags}, coalesce(m.seq, 0) + 1 + n / {tags},
                    n * 10 + 1, n * 10 + 10, {payload}
               FROM idgen.space p
              CROSS JOIN generate_series(0, {events} - 1) n
               LEFT JOIN (SELECT e.tag, max(e.tag_seq) AS seq FROM idgen.audit_event e GROUP BY e.tag) m
                 ON m.tag = 'w' || n % {tags}
              ORDER BY n"
        ),
    );
}

/// Those of `idgen.audit_event`.
pub fn of_segments(messages: &[Message]) -> impl Iterator<Item = &Message> {
    messages.iter().filter(|message| !message.key.ends_with("/lease"))
}

pub fn number(message: &Message, header: &str) -> i64 {
    let text = message
        .header(header)
        .unwrap_or_else(|| panic!("{header} of {message:?}"));
    text.parse()
        .unwrap_or_else(|error| panic!("{header} = {text}: {error}"))
}

/// Of each stream the first message of each number comes in order, without a gap, and copies are equal.
pub fn check_order(messages: &[Message]) {
    let mut last: BTreeMap<(&str, &str), (i64, i32)> = BTreeMap::new();
    let mut seen: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for message in messages {
        let source = message.header("source").expect("a source");
        let seq = number(message, "tag_seq");
        let entry = last
            .entry((source, &message.key))
            .or_insert((0, message.partition));
        assert_eq!(entry.1, message.partition, "a tag is in one partition");
        if seq == entry.0 + 1 {
            entry.0 = seq;
        } else {
            assert!(seq <= entry.0, "{}: {seq} comes after {}", message.key, entry.0);
        }
        let body: serde_json::Value = serde_json::from_str(&message.value).expect("JSON");
        assert_eq!(body["tag_seq"], seq);
        assert_eq!(body["event_id"], number(message, "event_id"));
        if body.get("stub").is_none() {
            let first = seen.entry((&message.key, seq)).or_insert(&message.value);
            assert_eq!(*first, message.value, "a copy is equal");
        }
    }
}

/// A counter or gauge of `/metrics`; `None`: it is not there.
pub fn metric(daemon: &mut Daemon, series: &str) -> Option<f64> {
    let (_, text) = daemon.get("/metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

/// What the daemon's own parts are run on; the test's own sessions have theirs.
pub fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}

/// A session as the outbox has them.
pub async fn session(server: &Server) -> Session {
    let url: PostgresUrl = server.daemon_url().parse().expect("a connection string");
    open(&url, PATIENCE).await.expect("a session")
}

/// Somebody who drains, and nobody was before.
pub fn holder() -> Holder {
    Holder {
        instance: Uuid::new_v4(),
        name: "test".into(),
    }
}
