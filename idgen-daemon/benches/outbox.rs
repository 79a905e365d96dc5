//! How fast events go from the table to a real Kafka, how soon, and what a broker's absence costs in memory:
//! `make bench SUITE=outbox`.
//!
//! Broker, Postgres, daemon and this program share the machine. Beside it, in the same run, this program sends the same values
//! with a producer of the same settings from memory: the ratio says what the table and the marks cost.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends, as a test does"
)]

#[path = "../tests/e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared with the end-to-end tests"
)]
mod kit;

use kit::kafka::Kafka;
use kit::sql::{self, value};
use kit::{Daemon, DaemonOptions, Server, eventually, eventually_true, setting};
use postgres::Client;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const TOPIC: &str = "bench";
const PARTITIONS: i32 = 3;
/// The kernel counts processor time in these (`getconf CLK_TCK`; 100 on every Linux that we run on).
const TICK_MS: u64 = 10;
const LONG: Duration = Duration::from_secs(600);

/// Events per second, end to end.
const HOLD_RATE: f64 = 10_000.0;
/// Half of the events of a quiet table are in the topic within this.
const HOLD_P50: Duration = Duration::from_millis(50);
/// More memory than before, with the broker away.
const HOLD_RSS_KIB: u64 = 16 << 10;

fn main() -> ExitCode {
    // `cargo test --benches` starts this too, and wants nothing measured.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    let server = Server::start();
    let mut kafka = Kafka::start();
    kafka.create_topic(TOPIC, PARTITIONS);
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    let options = DaemonOptions::new(&server).sections(&format!(
        "[kafka]\nbrokers = [\"{}\"]\ntopic = \"{TOPIC}\"",
        kafka.broker()
    ));

    let mut holds = throughput(&kafka, &mut client, &options);
    let daemon = options.start();
    holds &= latency(&kafka, &mut client);
    holds &= outage(&mut kafka, &mut client, &daemon);
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn write(client: &mut Client, events: u64) {
    sql::run(
        client,
        &format!(
            "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi, payload)
             SELECT p.source_id, 'segment.grant', p.space_id, 'b' || n % 1000, n / 1000 + 1, n * 1000 + 1, n * 1000 + 1000, '{{\"step\": 1000}}'
               FROM idgen.space p, generate_series(0, {events} - 1) n ORDER BY n"
        ),
    );
}

fn published(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM idgen.audit_event WHERE published")
}

fn wait_drained(client: &mut Client) {
    eventually_true(LONG, "everything is published", || {
        !value::<bool>(
            client,
            "SELECT EXISTS (SELECT FROM idgen.audit_event WHERE NOT published)",
        )
    });
}

fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its processor time");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // utime and stime are the 14th and 15th of all, and the 12th and 13th behind the name.
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(ticks * TICK_MS)
}

fn told(holds: bool) -> &'static str {
    if holds { "holds" } else { "DOES NOT HOLD" }
}

fn throughput(kafka: &Kafka, client: &mut Client, options: &DaemonOptions) -> bool {
    let events = setting("EVENTS", 200_000);
    write(client, events);
    let daemon = options.start();
    eventually_true(LONG, "it has begun", || published(client) > 0);
    let (from, began, cpu_before) = (published(client), Instant::now(), cpu(daemon.pid()));
    wait_drained(client);
    let (took, used) = (began.elapsed(), cpu(daemon.pid()) - cpu_before);
    let drained = published(client) - from;
    daemon.terminate();
    let rate = drained as f64 / took.as_secs_f64();
    let us = used.as_secs_f64() * 1e6 / drained as f64;
    let plain = plain_rate(kafka);
    let holds = rate >= HOLD_RATE;
    println!(
        "{drained} events from the table to the topic, and marked: {rate:.0}/s ({}: {HOLD_RATE:.0}/s)",
        told(holds)
    );
    println!("processor time of the daemon: {us:.1} µs an event");
    println!(
        "the same values from memory, with the same producer: {plain:.0}/s; ratio {:.2}",
        rate / plain
    );
    holds
}

/// The values that were sent just now, sent again.
fn plain_rate(kafka: &Kafka) -> f64 {
    let values = kafka.read(TOPIC);
    kafka.create_topic("plain", PARTITIONS);
    let mut config = kafka.client();
    for (name, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("linger.ms", "5"),
        ("compression.type", "zstd"),
        ("partitioner", "murmur2_random"),
        ("queue.buffering.max.messages", "2000000"),
    ] {
        config.set(name, value);
    }
    let producer: BaseProducer = config.create().expect("a producer");
    let began = Instant::now();
    for message in &values {
        let record = BaseRecord::to("plain").key(&message.key).payload(&message.value);
        producer.send(record).map_err(|(error, _)| error).expect("queued");
        producer.poll(Duration::ZERO);
    }
    producer.flush(LONG).expect("flushed");
    values.len() as f64 / began.elapsed().as_secs_f64()
}

/// 100 events a second: from before the statement that writes it to when a reader has it.
fn latency(kafka: &Kafka, client: &mut Client) -> bool {
    let seconds = setting("SECONDS", 10);
    let (arrived, arrivals) = mpsc::channel();
    let config = kafka.client();
    let ends: Vec<i64> = {
        let consumer = consumer(config.clone());
        let timeout = Duration::from_secs(10);
        (0..PARTITIONS)
            .map(|p| consumer.fetch_watermarks(TOPIC, p, timeout).expect("ends").1)
            .collect()
    };
    let count = seconds * 100;
    thread::spawn(move || {
        let consumer = consumer(config);
        let mut list = TopicPartitionList::new();
        for (partition, end) in (0..).zip(&ends) {
            list.add_partition_offset(TOPIC, partition, Offset::Offset(*end))
                .expect("an offset");
        }
        consumer.assign(&list).expect("assign");
        while let Some(Ok(message)) = consumer.poll(Duration::from_secs(30)) {
            let at = Instant::now();
            let id = message
                .headers()
                .and_then(|headers| headers.iter().find(|header| header.key == "event_id"));
            let id = id.and_then(|header| std::str::from_utf8(header.value?).ok()?.parse::<i64>().ok());
            if arrived.send((id.unwrap_or_default(), at)).is_err() {
                return;
            }
        }
    });
    let insert = "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq)
                  SELECT source_id, 'segment.grant', space_id, 'quiet', $1 FROM idgen.space RETURNING event_id";
    let insert = client.prepare(insert).expect("prepare");
    let (mut written, began) = (BTreeMap::new(), Instant::now());
    for n in 0..count {
        let due = began + Duration::from_millis(n * 10);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let at = Instant::now();
        let row = client
            .query_one(&insert, &[&i64::try_from(n + 1).expect("fits")])
            .expect("written");
        written.insert(row.get::<_, i64>(0), at);
    }
    let mut waits: Vec<Duration> = Vec::new();
    while waits.len() < written.len() {
        let (id, at) = arrivals
            .recv_timeout(Duration::from_secs(30))
            .expect("every event arrives");
        if let Some(began) = written.get(&id) {
            waits.push(at.saturating_duration_since(*began));
        }
    }
    waits.sort_unstable();
    let (p50, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    let holds = p50 <= HOLD_P50;
    println!(
        "100 events a second: p50 {:.1} ms ({}: {} ms), p99 {:.1} ms",
        p50.as_secs_f64() * 1e3,
        told(holds),
        HOLD_P50.as_millis(),
        p99.as_secs_f64() * 1e3
    );
    holds
}

fn consumer(mut config: rdkafka::ClientConfig) -> BaseConsumer {
    config
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "5");
    config.create().expect("a consumer")
}

fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its memory");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .expect("a number")
}

/// The broker is away, and events are written all the same.
fn outage(kafka: &mut Kafka, client: &mut Client, daemon: &Daemon) -> bool {
    let (events, minutes) = (setting("WAITING", 500_000), setting("MINUTES", 1));
    // So that what a first backlog costs for good is not counted.
    write(client, 20_000);
    wait_drained(client);
    let before = rss_kib(daemon.pid());
    kafka.kill();
    write(client, events);
    let (until, mut most) = (Instant::now() + Duration::from_secs(minutes * 60), before);
    while Instant::now() < until {
        most = most.max(rss_kib(daemon.pid()));
        thread::sleep(Duration::from_millis(500));
    }
    let began = Instant::now();
    kafka.run();
    eventually(LONG, "it has come back", || {
        most = most.max(rss_kib(daemon.pid()));
        (!value::<bool>(
            client,
            "SELECT EXISTS (SELECT FROM idgen.audit_event WHERE NOT published)",
        ))
        .then_some(())
    });
    let more = most - before;
    let holds = more <= HOLD_RSS_KIB;
    println!(
        "broker away for {minutes} min, {events} events waiting: {before} KiB before, {more} KiB more at the most ({}: {HOLD_RSS_KIB} KiB); \
         drained {:.0} s after its start",
        told(holds),
        began.elapsed().as_secs_f64()
    );
    holds
}
