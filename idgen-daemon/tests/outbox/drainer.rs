//! The drainer's own parts, without a daemon around them: what a queue reads and marks, and when a drainer asks it.

use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, Server, eventually_true};
use crate::scene::{holder, runtime, session, unpublished, write};
use idgen_core::outbox::Poison;
use idgen_daemon::config::Config;
use idgen_daemon::error::Result;
use idgen_daemon::metrics::Metrics;
use idgen_daemon::outbox::{
    DrainConfig, Drainer, Held, Lease, Marked, Page, Queue, Row, SegmentQueue, Stream, TrailQueue, Watched,
};
use idgen_daemon::postgres::Session;
use postgres::Client;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

fn server_with_tags() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    (server, client)
}

/// A sealed day so many days ago, with an event at that time of it.
fn sealed_day(client: &mut Client, ago: u32, time: &str) {
    sql::run(
        client,
        &format!(
            "DO $$
             DECLARE d date := (clock_timestamp() AT TIME ZONE 'UTC')::date - {ago};
             BEGIN
                 EXECUTE format('CREATE TABLE idgen.ago_{ago} PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
                                d || ' 00:00:00+00', d + 1 || ' 00:00:00+00');
                 INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq)
                 SELECT p.source_id, (d || ' {time}+00')::timestamptz, 'segment.grant', p.space_id, 'ago{ago}', 1 FROM idgen.space p;
                 INSERT INTO idgen.audit_day VALUES (d, '3', clock_timestamp());
             END $$"
        ),
    );
}

/// Somebody has an event of a sealed day sent once more: it is read whatever its fraction of a second is, and whichever of
/// several such days has the lower ids. What is marked is that very event: another one may have its id on a server that was
/// promoted.
#[test]
fn an_event_of_a_sealed_day_is_read_and_only_it_is_marked() {
    let (server, mut client) = server_with_tags();
    sql::run(&mut client, "UPDATE idgen.audit_event SET published = true");
    sealed_day(&mut client, 100, "12:00:00.7");
    sealed_day(&mut client, 101, "06:00:00.5");
    let runtime = runtime();
    let session = runtime.block_on(session(&server));
    let mut queue = SegmentQueue::new("s", 1_000_000);
    let page = runtime.block_on(queue.look(&session, 0, 1_000)).expect("a look");
    let tags: Vec<&str> = page.rows.iter().map(|row| row.event.tag.as_str()).collect();
    assert_eq!(tags, ["ago100", "ago101"]);
    let keys: Vec<_> = page.rows.iter().map(|row| row.key).collect();
    let held = runtime.block_on(Lease::new(Stream::Segment, holder()).keep(&session));
    let held: Held = held.expect("an answer").expect("nobody else has it");
    sql::run(
        &mut client,
        "UPDATE idgen.audit_event SET at = at + interval '1 microsecond' WHERE tag = 'ago100'",
    );
    let done = runtime.block_on(queue.mark(&session, held, &keys));
    assert_eq!(done.expect("an answer"), Marked::Done(keys.clone()));
    assert_eq!(unpublished(&mut client), 1, "another event has this id");
    let done = runtime.block_on(queue.mark(&session, held, &keys));
    assert_eq!(done.expect("an answer"), Marked::Nothing);
}

/// Counts what a queue is asked for.
struct Counted<Q> {
    queue: Q,
    looks: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
    watches: Arc<AtomicUsize>,
}

impl<Q: Queue> Queue for Counted<Q> {
    type Key = Q::Key;
    const STREAM: Stream = Q::STREAM;

    fn reset(&mut self) {
        self.queue.reset();
    }

    async fn look(&mut self, session: &Session, now_ms: u64, limit: usize) -> Result<Page<Q::Key>> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.queue.look(session, now_ms, limit).await
    }

    fn took(&mut self, now_ms: u64, taken: usize, lowest: Option<Q::Key>) {
        self.queue.took(now_ms, taken, lowest);
    }

    async fn mark(&mut self, session: &Session, held: Held, keys: &[Q::Key]) -> Result<Marked<Q::Key>> {
        self.queue.mark(session, held, keys).await
    }

    async fn keep_dead(&mut self, session: &Session, row: &Row<Q::Key>, why: Poison) -> Result<()> {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.queue.keep_dead(session, row, why).await
    }

    async fn watch(&mut self, session: &Session, held: Held) -> Result<Watched> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.queue.watch(session, held).await
    }
}

/// A drainer, and brokers that live in the test.
struct Drained {
    looks: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
    watches: Arc<AtomicUsize>,
    budget: Arc<Semaphore>,
    brokers: MockCluster<'static, DefaultProducerContext>,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
    runtime: Runtime,
}

impl Drained {
    fn begin<Q: Queue>(server: &Server, queue: Q, permits: usize) -> Drained {
        let brokers = MockCluster::new(1).expect("a broker");
        brokers.create_topic("t", 3, 1).expect("a topic");
        let text = format!(
            "[postgres]\nurl = \"postgres://u@h/d\"\n[kafka]\nbrokers = [\"{}\"]\ntopic = \"t\"",
            brokers.bootstrap_servers()
        );
        let kafka = Config::parse("f", &text, []).expect("a configuration").kafka;
        let (looks, kept, watches) = (Arc::default(), Arc::default(), Arc::default());
        let budget = Arc::new(Semaphore::new(permits));
        let config = DrainConfig {
            name: "outbox: test".into(),
            holder: holder(),
            kafka: kafka.expect("a section"),
            budget: Arc::clone(&budget),
            databases: Arc::default(),
            metrics: Metrics::new().expect("metrics").of_outbox().of("test"),
        };
        let queue = Counted {
            queue,
            looks: Arc::clone(&looks),
            kept: Arc::clone(&kept),
            watches: Arc::clone(&watches),
        };
        let (runtime, stop) = (runtime(), CancellationToken::new());
        let mut session = runtime.block_on(session(server));
        let stopped = stop.clone();
        let task =
            runtime.spawn(async move { Drainer::new(config, queue).run(&mut session, &stopped).await });
        Drained {
            looks,
            kept,
            watches,
            budget,
            brokers,
            stop,
            task,
            runtime,
        }
    }

    fn wait_looks(&self, more: usize) {
        let before = self.looks.load(Ordering::Relaxed);
        eventually_true(PATIENCE, "it looks", || {
            self.looks.load(Ordering::Relaxed) >= before + more
        });
    }

    /// It watches the queue each five seconds, whatever else it does.
    fn wait_watch(&self) {
        let before = self.watches.load(Ordering::Relaxed);
        eventually_true(PATIENCE, "it watches", || {
            self.watches.load(Ordering::Relaxed) > before
        });
    }

    fn end(self) {
        self.stop.cancel();
        let ended = self.runtime.block_on(self.task).expect("no panic");
        ended.expect("it gives everything back");
        drop(self.brokers);
    }
}

/// The memory of all drainers is full: what is to go as a stub waits like any other, and is no dead letter yet.
#[test]
fn a_dead_letter_is_written_once_and_not_before_there_is_room_for_its_stub() {
    let (server, mut client) = server_with_tags();
    let long = "jsonb_build_object('long', repeat('x', 2000000))";
    write(&mut client, 1, 1, long);
    sql::run(
        &mut client,
        "UPDATE idgen.audit_event SET published = true WHERE tag <> 'w0'",
    );
    let drained = Drained::begin(&server, SegmentQueue::new("s", 1_000_000), 0);
    drained.wait_looks(10);
    assert_eq!(drained.kept.load(Ordering::Relaxed), 0);
    drained.budget.add_permits(8_192);
    eventually_true(PATIENCE, "it is sent", || unpublished(&mut client) == 0);
    assert_eq!(drained.kept.load(Ordering::Relaxed), 1);
    drained.end();
    let attempts: i32 = value(&mut client, "SELECT attempts FROM idgen.audit_event_dlq");
    assert_eq!(attempts, 1);
}

/// With almost as much in flight as may be there is nothing to look for until something is marked.
#[test]
fn with_little_room_left_nothing_is_looked_for() {
    let (server, mut client) = server_with_tags();
    let drained = Drained::begin(&server, SegmentQueue::new("s", 1_000_000), 8_192);
    eventually_true(PATIENCE, "it drains", || unpublished(&mut client) == 0);
    drained.brokers.broker_down(-1).expect("they go");
    write(&mut client, 5, 4_990, "'{}'");
    // Each takes one permit.
    eventually_true(PATIENCE, "all are in flight", || {
        drained.budget.available_permits() == 8_192 - 4_990
    });
    drained.wait_watch();
    let looks = drained.looks.load(Ordering::Relaxed);
    drained.wait_watch();
    assert_eq!(
        drained.looks.load(Ordering::Relaxed),
        looks,
        "there is room for ten more"
    );
    write(&mut client, 5, 20, "'{}'");
    drained.brokers.broker_up(-1).expect("they come back");
    eventually_true(PATIENCE, "all are sent", || unpublished(&mut client) == 0);
    drained.end();
}

/// Somebody else has marked what was sent: what comes then is marked all the same.
#[test]
fn a_trail_goes_on_behind_what_somebody_else_has_marked() {
    let server = Server::start();
    let mut client = server.connect();
    let cell = Uuid::from_u128(7);
    let events = |client: &mut Client, from: i64, to: i64| {
        let text = format!(
            "INSERT INTO idgen.lease_trail (cell_id, store, branch, cursor, revision, head_seq, head_hash, token_epoch,
                                            token_revision, followed_by)
             VALUES ('{cell}', 'test', 0, {to}, {to}, {to}, decode(repeat('00', 32), 'hex'), 1, 1, 'test')
                 ON CONFLICT (cell_id) DO UPDATE SET head_seq = excluded.head_seq;
             INSERT INTO idgen.lease_event
             SELECT '{cell}', n, 0, n, n, clock_timestamp(), 'grant', 's', 1, 1, NULL, '{{}}', decode(repeat('00', 32), 'hex')
               FROM generate_series({from}, {to}) n"
        );
        sql::run(client, &text);
    };
    let reached = |client: &mut Client| -> i64 {
        value(client, "SELECT coalesce(max(seq), 0) FROM idgen.lease_drained")
    };
    // The first mark is beaten by another one of the same.
    sql::run(
        &mut client,
        "CREATE FUNCTION beaten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF pg_trigger_depth() > 1 OR EXISTS (SELECT FROM idgen.lease_drained) THEN RETURN NEW; END IF;
             INSERT INTO idgen.lease_drained VALUES (NEW.cell_id, NEW.seq);
             RETURN NULL;
         END $$;
         CREATE TRIGGER beaten BEFORE INSERT ON idgen.lease_drained FOR EACH ROW EXECUTE FUNCTION beaten()",
    );
    events(&mut client, 1, 5);
    let drained = Drained::begin(&server, TrailQueue::new("s"), 8_192);
    eventually_true(PATIENCE, "the first are marked", || reached(&mut client) == 5);
    events(&mut client, 6, 9);
    eventually_true(PATIENCE, "those behind them are marked", || {
        reached(&mut client) == 9
    });
    drained.end();
}
