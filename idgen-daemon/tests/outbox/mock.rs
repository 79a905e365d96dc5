//! Brokers that answer as real ones do on a bad day: those that librdkafka brings along, which live in the test itself.

use crate::kit::kafka::{Message, read};
use crate::kit::{Daemon, DaemonOptions, PATIENCE, Server, eventually_true, sql};
use crate::scene::{LONG, check_same, ids_of, marked, metric, unpublished, write};
use postgres::Client;
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::time::{Duration, Instant};

const TOPIC: &str = "idgen.audit";
const BACKLOG: &str = "idgen_outbox_backlog_rows{database=\"postgres\"}";

/// A server with tags, and one broker of that kind.
struct Mock {
    server: Server,
    client: Client,
    brokers: MockCluster<'static, DefaultProducerContext>,
}

impl Mock {
    fn new() -> Mock {
        let server = Server::start();
        let mut client = server.connect();
        sql::run(&mut client, "SELECT idgen_create_segment('orders')");
        let brokers = MockCluster::new(1).expect("a broker");
        brokers.create_topic(TOPIC, 3, 1).expect("a topic");
        Mock {
            server,
            client,
            brokers,
        }
    }

    fn options(&self, more: &str) -> DaemonOptions {
        let broker = self.brokers.bootstrap_servers();
        DaemonOptions::new(&self.server).sections(&format!(
            "[kafka]\nbrokers = [\"{broker}\"]\ntopic = \"{TOPIC}\"\n{more}"
        ))
    }

    fn write(&mut self, events: u32) {
        write(&mut self.client, 5, events, "'{}'");
    }

    fn wait_drained(&mut self) {
        eventually_true(LONG, "everything is published", || {
            unpublished(&mut self.client) == 0
        });
    }

    fn read(&self) -> Vec<Message> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers.bootstrap_servers());
        read(config, TOPIC)
    }

    fn check(&mut self) {
        check_same(&self.read(), &mut self.client);
    }

    fn refuse(&self, error: RDKafkaRespErr, times: usize) {
        self.brokers
            .request_errors(RDKafkaApiKey::Produce, &vec![error; times]);
    }
}

/// AUDIT.md 20: after such an answer a producer is dead for good. Another one is made, and everything arrives in order.
#[test]
fn a20_a_producer_that_is_dead_for_good_is_made_anew() {
    let mut mock = Mock::new();
    let mut daemon = mock.options("").start();
    mock.write(500);
    mock.wait_drained();
    for _ in 0..2 {
        mock.refuse(RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, 1);
        mock.write(500);
        mock.wait_drained();
        mock.check();
    }
    let fatal = "idgen_drain_resets_total{cause=\"fatal\",database=\"postgres\"}";
    let fatal = metric(&mut daemon, fatal);
    assert!(fatal.is_some_and(|count| count >= 2.0), "{fatal:?}");
    daemon.wait_log(&["kafka:", "sequence", "sending anew what is not acknowledged"]);
}

/// AUDIT.md 27: a broker that refuses whatever is sent as too long, the stub of it as well, is tried more and more rarely.
#[test]
fn a27_a_stub_that_is_refused_too_is_tried_more_and_more_rarely() {
    let mut mock = Mock::new();
    let mut daemon = mock.options("").start();
    mock.wait_drained();
    mock.refuse(RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, 100_000);
    let began = Instant::now();
    mock.write(1);
    let resets = "idgen_drain_resets_total{cause=\"too_large\",database=\"postgres\"}";
    // First it is sent by itself, then as a stub, and then it waits 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4 s, less a quarter at the
    // most. Without waiting they take about three.
    eventually_true(LONG, "nine resets", || {
        metric(&mut daemon, resets).is_some_and(|count| count >= 9.0)
    });
    assert!(
        began.elapsed() >= Duration::from_millis(9_450),
        "{:?}",
        began.elapsed()
    );
    mock.brokers.clear_request_errors(RDKafkaApiKey::Produce);
    mock.wait_drained();
    mock.check();
    drop(daemon);
}

/// AUDIT.md 19: with brokers that are away there is nothing to do but wait. Nothing is given up by its age, which would leave a
/// gap in the log, and what is sent when they are back comes in order.
#[test]
fn a19_brokers_that_are_away_for_long_are_waited_for_and_nothing_is_given_up() {
    let mut mock = Mock::new();
    let mut daemon = mock.options("").start();
    mock.write(500);
    mock.wait_drained();
    for round in 1..=2_u32 {
        mock.brokers.broker_down(-1).expect("they go");
        mock.write(500);
        eventually_true(PATIENCE, "the backlog is seen twice", || {
            metric(&mut daemon, BACKLOG).is_some_and(|rows| rows >= 500.0)
        });
        daemon.wait_log(&["kafka:", "500 events are in flight, the others wait"]);
        // For as long as it may take until the backlog is looked at again, which is 5 s.
        mock.write(round * 10);
        eventually_true(PATIENCE, "the backlog is seen again", || {
            metric(&mut daemon, BACKLOG).is_some_and(|rows| rows >= f64::from(500 + round * 10))
        });
        mock.brokers.broker_up(-1).expect("they come back");
        mock.wait_drained();
        mock.check();
    }
    // Slow answers would have another cause.
    let given_up = "idgen_drain_resets_total{cause=\"other\",database=\"postgres\"}";
    assert!(metric(&mut daemon, given_up).is_none_or(|count| count == 0.0));
}

/// AUDIT.md 26: the topic is gone while events are on their way, and a flush that ends well says nothing of them: only what
/// the broker has acknowledged is marked, at the end of a daemon too.
#[test]
fn a26_a_topic_that_vanishes_under_way_is_named_and_nothing_is_marked_that_is_not_there() {
    let mut mock = Mock::new();
    let quick = "[kafka.properties]\n\"topic.metadata.propagation.max.ms\" = 500\n\"topic.metadata.refresh.interval.ms\" = 500";
    let mut daemon = mock.options(quick).start();
    mock.write(500);
    mock.wait_drained();
    // Nothing gets through any more, and nobody says why.
    let moved = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
    mock.refuse(moved, 10_000);
    mock.write(500);
    let waits = |daemon: &mut Daemon| {
        eventually_true(PATIENCE, "the backlog is seen", || {
            metric(daemon, BACKLOG).is_some_and(|rows| rows >= 500.0)
        });
    };
    waits(&mut daemon);
    daemon.terminate();
    assert_eq!(
        unpublished(&mut mock.client),
        500,
        "what was in flight at the end"
    );
    daemon = mock.options(quick).start();
    waits(&mut daemon);
    // Then it is said that the topic is gone.
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    mock.brokers.topic_error(TOPIC, unknown).expect("the topic goes");
    daemon.wait_log(&[
        "database postgres: kafka:",
        "no event can be sent until somebody mends this",
    ]);
    daemon.wait_log(&["there is no topic", "hint"]);
    assert_eq!(unpublished(&mut mock.client), 500);
    let none = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
    mock.brokers
        .topic_error(TOPIC, none)
        .expect("the topic comes back");
    assert_eq!(
        marked(&mut mock.client),
        ids_of(&mock.read()),
        "marked is what is there"
    );
    mock.brokers.clear_request_errors(RDKafkaApiKey::Produce);
    mock.wait_drained();
    mock.check();
    drop(daemon);
}
