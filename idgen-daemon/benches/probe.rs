//! What the streaming probe can: `make bench SUITE=probe`.
//!
//! ```text
//!  the index     ranges in order, shuffled, and so that none touches another; bytes of each
//!  from memory   a clean week, 10 million ranges of 1,000 tags in two spaces with the same names: nothing may be found
//!  from bytes    messages as a topic has them: read, and told
//!  from a broker a real idgend reads a real Kafka
//! ```
//! Each beside something that the same machine does in the same run.

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

use idgen_core::audit::{Ids, Limits, Origin, Probe, Ranges, Span, Told};
use idgen_daemon::audit::probe::Mind;
use idgen_daemon::event::{Event, EventToken, SCHEMA};
use kit::kafka::Kafka;
use kit::{DaemonOptions, Server, eventually, setting};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uuid::Uuid;

const TOPIC: &str = "bench";
const PARTITIONS: i32 = 3;
const LONG: Duration = Duration::from_secs(600);
const ROUNDS: usize = 5;
/// Events per second that are told from memory.
const HOLD_MEMORY: f64 = 500_000.0;
/// ... and read from a broker.
const HOLD_BROKER: f64 = 20_000.0;

fn main() -> ExitCode {
    // `cargo test --benches` starts this too, and wants nothing measured.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    index();
    let mut holds = clean_week();
    let values = values(setting("EVENTS", 500_000).cast_signed());
    from_bytes(&values);
    holds &= from_broker(&values);
    if holds {
        ExitCode::SUCCESS
    } else {
        println!("a number does not hold on this machine");
        ExitCode::FAILURE
    }
}

fn told(holds: bool) -> &'static str {
    if holds { "holds" } else { "DOES NOT HOLD" }
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let made = work();
    (begun.elapsed().as_secs_f64(), made)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Numbers in an order of their own.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 16
}

fn shuffled(count: i64) -> Vec<i64> {
    let mut numbers: Vec<i64> = (0..count).collect();
    let mut state = 20_261_201;
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, usize::try_from(random(&mut state)).unwrap() % (at + 1));
    }
    numbers
}

fn rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("its memory");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .expect("a number");
    kib << 10
}

/// Before anything else was allocated and freed: what is freed stays with the process.
fn bytes_each() -> f64 {
    let numbers = shuffled(2_000_000);
    let before = rss_bytes();
    let mut ranges = Ranges::new();
    for n in numbers {
        ranges.insert(Span::new(n * 20, n * 20 + 9).expect("a span"));
    }
    rss_bytes().saturating_sub(before) as f64 / ranges.len() as f64
}

fn index() {
    let bytes = bytes_each();
    let count = 2_000_000;
    let span = |n: i64, step: i64| Span::new(n * step, n * step + 9).expect("a span");
    let (ordered, mixed) = ((0..count).collect::<Vec<i64>>(), shuffled(count));
    println!(
        "index, one core, {count} ranges, median of {ROUNDS}; {bytes:.0} bytes for each that touches no other:"
    );
    for (name, numbers, step) in [
        ("in order, touching", &ordered, 10),
        ("shuffled, touching", &mixed, 10),
        ("shuffled, none touches", &mixed, 20),
    ] {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (time, ranges) = timed(|| {
                let mut ranges = Ranges::new();
                for n in numbers {
                    assert!(ranges.insert(span(*n, step)).is_empty());
                }
                ranges
            });
            ours.push(time);
            drop(ranges);
            let (time, map) = timed(|| {
                numbers
                    .iter()
                    .map(|n| (n * step, n * step + 9))
                    .collect::<BTreeMap<i64, i64>>()
            });
            plain.push(time);
            drop(map);
        }
        let (ours, plain) = (median(ours), median(plain));
        println!(
            "  {name:<24} {:>12.0}/s; ratio to a BTreeMap made of them at once {:.2}",
            count as f64 / ours,
            ours / plain
        );
    }
}

/// 1,000 tags, 500 in each of two spaces with the same names, as two masters of each space write them, and every 20th event twice.
fn clean_week() -> bool {
    let count = setting("RANGES", 10_000_000).cast_signed();
    let names: Vec<String> = (0..500).map(|n| format!("tag {n}")).collect();
    let event = |n: i64| {
        let (stream, number) = (n % 1_000, n / 1_000);
        let (space, tag) = (stream / 500, stream % 500);
        // Masters take turns at stripes of a million ids.
        let master = number % 2;
        let nth = number / 2;
        let lo = (nth / 1_000 * 2 + master) * 1_000_000 + nth % 1_000 * 1_000;
        (space, tag, master, nth + 1, lo)
    };
    let tell = |probe: &mut Probe, n: i64| {
        let (space, tag, master, tag_seq, lo) = event(n);
        probe.tell(Told {
            origin: Origin {
                source: (space * 2 + master).cast_unsigned().into(),
                event_id: n,
                partition: (tag % 3) as i32,
                offset: n,
            },
            space: space.cast_unsigned().into(),
            tag: &names[usize::try_from(tag).unwrap()],
            tag_seq,
            at_us: n,
            print: n.cast_unsigned(),
            ids: Ids::Granted(Span::new(lo, lo + 999).expect("a span")),
        })
    };
    let mut probe = Probe::new(Limits::default());
    let (time, found) = timed(|| {
        let mut found = 0;
        for n in 0..count {
            found += tell(&mut probe, n).alarms.len();
            if n % 20 == 0 {
                found += tell(&mut probe, n).alarms.len();
            }
        }
        found
    });
    let events = count + count / 20;
    let rate = events as f64 / time;
    let (plain, _) = timed(|| {
        let mut seen = HashSet::new();
        for n in 0..count {
            let (space, tag, master, tag_seq, _) = event(n);
            seen.insert((
                space,
                names[usize::try_from(tag).unwrap()].as_str(),
                master,
                tag_seq,
            ));
        }
        seen.len()
    });
    let counts = probe.counts();
    let is_clean = found == 0 && probe.degraded_tags() == 0 && probe.open_gaps().count() == 0;
    let holds = rate >= HOLD_MEMORY && is_clean && counts.events == count.cast_unsigned();
    println!("a clean week from memory, {} tags, {count} ranges:", probe.tags());
    println!(
        "  {rate:.0} events/s ({}: {HOLD_MEMORY:.0}/s, and nothing found: {found}); {} news, {} copies, {} spans",
        told(holds),
        counts.events,
        counts.copies,
        probe.spans()
    );
    println!(
        "  time, as a ratio to a hash set of their numbers: {:.2}",
        (time / events as f64) / (plain / count as f64)
    );
    holds
}

fn values(count: i64) -> Vec<(String, Vec<u8>)> {
    let event = |n: i64| Event {
        schema: SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(0x0b1c_9d3e_5a6f_4f70_8a91_b2c3_d4e5_f607),
        event_id: n,
        at: format!(
            "2026-04-03T{:02}:{:02}:{:02}.{:06}Z",
            n / 3_600_000 % 24,
            n / 60_000 % 60,
            n / 1_000 % 60,
            n % 1_000 * 1_000
        ),
        service: "billing".into(),
        space: Uuid::from_u128(0x8f14_e45f_ceea_467f_a0e6_7d2f_3c1b_9a55),
        tag: format!("tag {}", n % 1_000),
        tag_seq: n / 1_000 + 1,
        lo: Some(n / 1_000 * 1_000 + 1),
        hi: Some(n / 1_000 * 1_000 + 1_000),
        token: Some(EventToken {
            epoch: 1,
            revision: n / 3,
        }),
        tx: Some((n + 770).to_string()),
        stub: None,
        payload: RawValue::from_string("{\"step\": 1000}".into()).unwrap(),
    };
    let events = (0..count).map(event);
    events
        .map(|event| (event.key(), event.to_json().unwrap()))
        .collect()
}

fn from_bytes(values: &[(String, Vec<u8>)]) {
    let (mut all, mut parsing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut mind = Mind::new(Limits::default());
        let (time, found) = timed(|| {
            let offsets = 0..;
            let hear = |(offset, (_, value)): (i64, &(String, Vec<u8>))| {
                let event = Event::parse(value).expect("an event");
                mind.hear(&event, (0, offset)).expect("an event").hits.len()
            };
            offsets.zip(values).map(hear).sum::<usize>()
        });
        assert_eq!(found, 0);
        all.push(time);
        let (time, _) = timed(|| {
            for (_, value) in values {
                Event::parse(value).expect("an event");
            }
        });
        parsing.push(time);
    }
    let (all, parsing) = (median(all), median(parsing));
    println!(
        "messages from memory, one core: {:.0}/s read and told; ratio to reading them alone {:.2}",
        values.len() as f64 / all,
        all / parsing
    );
}

fn from_broker(values: &[(String, Vec<u8>)]) -> bool {
    let server = Server::start();
    let kafka = Kafka::start();
    kafka.create_topic(TOPIC, PARTITIONS);
    let mut config = kafka.client();
    config
        .set("linger.ms", "20")
        .set("compression.type", "zstd")
        .set("queue.buffering.max.messages", "2000000");
    let producer: BaseProducer = config.create().expect("a producer");
    for (key, value) in values {
        let record = BaseRecord::to(TOPIC).key(key).payload(value);
        producer.send(record).map_err(|(error, _)| error).expect("queued");
        producer.poll(Duration::ZERO);
    }
    producer.flush(LONG).expect("flushed");
    let plain = plain_rate(&kafka, values.len());
    let options = DaemonOptions::new(&server).sections(&format!(
        "[kafka]\nbrokers = [\"{}\"]\ntopic = \"{TOPIC}\"\n[events]\nenabled = false\n[audit]",
        kafka.broker()
    ));
    let mut daemon = options.start();
    let mut heard = move || {
        let (_, text) = daemon.get("/metrics")?;
        let series = "idgen_probe_events_total{result=\"news\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series))?;
        line.trim().parse::<f64>().ok()
    };
    let (began, first) = eventually(LONG, "it has begun", || {
        heard()
            .filter(|heard| *heard > 0.0)
            .map(|heard| (Instant::now(), heard))
    });
    let all = values.len() as f64;
    eventually(LONG, "it has read all", || heard().filter(|heard| *heard >= all));
    let rate = (all - first) / began.elapsed().as_secs_f64();
    let holds = rate >= HOLD_BROKER;
    println!(
        "from a broker, by idgend: {rate:.0} events/s ({}: {HOLD_BROKER:.0}/s); ratio to a consumer that does nothing {:.2}",
        told(holds),
        rate / plain
    );
    holds
}

/// The same topic, read and thrown away.
fn plain_rate(kafka: &Kafka, count: usize) -> f64 {
    let mut config = kafka.client();
    config
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "20");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(TOPIC, partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&list).expect("assign");
    let (mut began, mut bytes) = (None, 0);
    for _ in 0..count {
        let message = consumer.poll(LONG).expect("a message").expect("read");
        began.get_or_insert_with(Instant::now);
        bytes += message.payload().map_or(0, <[u8]>::len);
    }
    assert!(bytes > 0);
    count as f64 / began.map_or(1.0, |began| began.elapsed().as_secs_f64())
}
