//! A topic with events of whoever a test makes up, and a daemon that probes it.

use crate::kit::daemon::{Answer, Daemon, DaemonOptions, Store, answer};
use crate::kit::kafka::Kafka;
use crate::kit::sql;
use crate::kit::{PATIENCE, Scratch, Server, eventually, eventually_true};
use idgen_daemon::event::{Event, EventToken, LEASE_KIND, SCHEMA};
use postgres::Client;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::json;
use serde_json::value::RawValue;
use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Of the space that most events are of.
pub const SPACE: u128 = 0xa;
pub const SOURCE: u128 = 0xb;
pub const CELL: u128 = 0xc;

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

/// See the module.
pub struct Scene {
    /// Whose database has the findings,
    pub server: Server,
    /// ... and where the leases are, so that it may be away.
    pub store: Server,
    pub kafka: Arc<Kafka>,
    pub topic: String,
    pub folder: Scratch,
}

impl Scene {
    pub fn new() -> Scene {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let topic = format!("probe-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let servers = std::thread::spawn(|| Server::several(2));
        let kafka = shared_kafka();
        kafka.create_topic_with(&topic, 2, &[("message.timestamp.type", "LogAppendTime")]);
        let mut servers = servers.join().expect("start servers");
        let (Some(store), Some(server)) = (servers.pop(), servers.pop()) else {
            panic!("two servers");
        };
        Scene {
            server,
            store,
            kafka,
            topic,
            folder: Scratch::new("probe"),
        }
    }

    /// `more`: lines of `[audit]`, and whole sections.
    pub fn options(&self, more: &str) -> DaemonOptions {
        let (broker, topic) = (self.kafka.broker(), &self.topic);
        let mut options = DaemonOptions::new(&self.server)
            .store(Store::on(&self.store))
            .workers(1)
            .sections(&format!("[kafka]\nbrokers = [\"{broker}\"]\ntopic = \"{topic}\""))
            .sections(&format!("[audit]\n{more}"));
        // What is in the topic is what the test has put there.
        options
            .env
            .push(("IDGEND_EVENTS__ENABLED".into(), "false".into()));
        options
    }

    pub fn checkpoint(&self) -> String {
        format!("checkpoint_dir = \"{}\"", self.folder.path().display())
    }

    pub fn ctl(&self, options: &DaemonOptions, args: &[&str]) -> Answer {
        let config = self.folder.join("idgend.toml");
        std::fs::write(&config, options.config()).expect("write the configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_idgenctl"));
        command.args(args).arg("--config").arg(config);
        answer(command)
    }

    pub fn send(&self, events: &[Event]) {
        let producer: BaseProducer = self.kafka.client().create().expect("a producer");
        for event in events {
            let (key, value) = (event.key(), event.to_json().expect("JSON"));
            let record = BaseRecord::to(&self.topic).key(&key).payload(&value);
            let sent = producer.send(record).map_err(|(error, _)| error);
            sent.expect("room in the queue");
        }
        producer.flush(PATIENCE).expect("acknowledged");
    }

    /// Everything that is in the topic now is gone from it.
    pub fn trim(&self) {
        let admin: AdminClient<DefaultClientContext> = self.kafka.client().create().expect("an admin client");
        let mut list = TopicPartitionList::new();
        for partition in 0..2 {
            list.add_partition_offset(&self.topic, partition, Offset::End)
                .expect("an offset");
        }
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let asked = runtime.block_on(admin.delete_records(&list, &options));
        asked.expect("delete records");
    }

    /// Waits for a finding, and says how long that took.
    pub fn found(&self, kind: &str, tag: &str) -> Found {
        let began = Instant::now();
        let mut client = self.server.connect();
        let found = eventually(PATIENCE, &format!("{kind} of {tag} is found"), || {
            findings(&mut client)
                .into_iter()
                .find(|found| found.kind == kind && found.tag == tag)
        });
        println!(
            "{kind} of {tag}: found after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        found
    }

    pub fn findings(&self) -> Vec<Found> {
        findings(&mut self.server.connect())
    }
}

/// A row of `idgen.audit_finding`.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub kind: String,
    pub tag: String,
    pub ids: Option<(i64, i64)>,
    pub first: serde_json::Value,
    pub second: serde_json::Value,
    pub detail: String,
    pub found_by: String,
    pub is_open: bool,
}

fn findings(client: &mut Client) -> Vec<Found> {
    let text: String = sql::value(
        client,
        "SELECT coalesce(json_agg(f ORDER BY f.finding_id), '[]')::text FROM idgen.audit_finding f",
    );
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let found = |row: &serde_json::Value| {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        Found {
            kind: text("kind"),
            tag: text("tag"),
            ids: row["lo"].as_i64().zip(row["hi"].as_i64()),
            first: row["first"].clone(),
            second: row["second"].clone(),
            detail: text("detail"),
            found_by: text("found_by"),
            is_open: row["closed_at"].is_null(),
        }
    };
    rows.iter().map(found).collect()
}

/// A grant, recorded now.
pub fn grant((source, space): (u128, u128), tag: &str, tag_seq: i64, (lo, hi): (i64, i64)) -> Event {
    static MICROS: AtomicI64 = AtomicI64::new(0);
    let us = MICROS.fetch_add(1, Ordering::Relaxed);
    Event {
        schema: SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(source),
        event_id: 1_000 + tag_seq,
        at: format!(
            "2026-04-03T10:{:02}:{:02}.{:06}Z",
            us / 60_000_000,
            us / 1_000_000 % 60,
            us % 1_000_000
        ),
        service: format!("service-{source:x}"),
        space: Uuid::from_u128(space),
        tag: tag.to_owned(),
        tag_seq,
        lo: Some(lo),
        hi: Some(hi),
        token: Some(EventToken {
            epoch: 1,
            revision: 40 + tag_seq,
        }),
        tx: Some(tag_seq.to_string()),
        stub: None,
        payload: RawValue::from_string("{}".into()).expect("JSON"),
    }
}

/// `numbers` grants of ten ids each, one behind the other.
pub fn grants(of: (u128, u128), tag: &str, numbers: std::ops::RangeInclusive<i64>) -> Vec<Event> {
    numbers
        .map(|n| grant(of, tag, n, (n * 10 + 1, n * 10 + 10)))
        .collect()
}

/// An event of the trail of a cell about worker 5.
pub fn lease(seq: i64, kind: &str, instance: u8, generation: u64, (above, ceiling): (u64, u64)) -> Event {
    let payload = json!({
        "subject": "worker 5", "branch": 1, "position": seq, "revision": seq, "version": seq, "steps": 1, "hash": "00",
        "detail": {"holder": format!("db-{instance}"), "instance": format!("{instance:032x}"),
                   "token": format!("0/{}", 100 + generation), "ceiling_ms": ceiling, "above_ms": above,
                   "generation": generation},
    });
    Event {
        kind: format!("{LEASE_KIND}{kind}"),
        source: Uuid::from_u128(CELL),
        space: Uuid::from_u128(CELL),
        event_id: seq,
        lo: None,
        hi: None,
        token: None,
        tx: None,
        payload: serde_json::value::to_raw_value(&payload).expect("JSON"),
        ..grant((CELL, CELL), "lease", seq, (1, 1))
    }
}

/// A counter or gauge of `/metrics`.
pub fn metric(daemon: &mut Daemon, series: &str) -> Option<f64> {
    let (_, text) = daemon.get("/metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

pub fn wait_metric(daemon: &mut Daemon, series: &str, wanted: f64) {
    let patience = PATIENCE + Duration::from_secs(30);
    eventually_true(patience, &format!("{series} is {wanted}"), || {
        metric(daemon, series) == Some(wanted)
    });
}

/// Waits until so many events were news to this run of the daemon.
pub fn wait_news(daemon: &mut Daemon, count: f64) {
    wait_metric(daemon, "idgen_probe_events_total{result=\"news\"} ", count);
}
