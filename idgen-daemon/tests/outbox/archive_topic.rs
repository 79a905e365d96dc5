//! The archive of a topic in an S3: a real broker, a real server, and what a proxy does to requests.

use std::time::Duration;

use idgen_daemon::archive::commit::Commit;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::archive_scene::{
    LOG_APPEND, TOPIC, commits_of, event, from_topic, idgenctl_of, in_folder, send, wait_same_as_topic,
};
use crate::kit::daemon::{Daemon, DaemonOptions};
use crate::kit::kafka::Kafka;
use crate::kit::s3::{Meets, S3, Seen, rows_in};
use crate::kit::{PATIENCE, Scratch, Server, eventually_true};

const SOURCE: u128 = 7;

struct Scene {
    /// Each with a lease store of its own: their archivers do not know of each other.
    servers: Vec<Server>,
    kafka: Kafka,
    s3: S3,
}

impl Scene {
    fn new(servers: usize) -> Scene {
        let servers = std::thread::spawn(move || Server::several(servers));
        let s3 = std::thread::spawn(S3::start);
        let kafka = Kafka::start();
        kafka.create_topic_with(TOPIC, 3, LOG_APPEND);
        Scene {
            servers: servers.join().expect("start servers"),
            s3: s3.join().expect("start the S3 server"),
            kafka,
        }
    }

    fn options(&self, server: usize) -> DaemonOptions {
        let mut options = DaemonOptions::new(&self.servers[server])
            .name(&format!("archiver {server}"))
            .workers(1);
        options.env = self.s3.env();
        from_topic(options, &self.kafka.broker(), TOPIC)
    }

    fn commits(&self) -> Vec<Commit> {
        commits_of(&self.s3, TOPIC)
    }

    fn wait_archived(&self, count: i64) {
        eventually_true(PATIENCE, "everything is archived", || self.archived() >= count);
    }

    /// How many messages the chain has.
    fn archived(&self) -> i64 {
        let commits = self.commits();
        let ranges = commits.last().map(|last| last.ranges.iter());
        ranges.into_iter().flatten().map(|range| range.end).sum()
    }

    fn assert_whole(&self) {
        wait_same_as_topic(&self.s3, (TOPIC, &self.kafka.read(TOPIC)), PATIENCE);
    }
}

/// Everything that an S3 and a machine do to an archiver, one after another, and in the end each offset is in one commit and
/// the rows are those of the topic, as pyarrow reads them.
#[test]
fn a34_a35_a41_a42_a53_two_archivers_kills_and_every_answer_of_s3_leave_each_offset_in_one_commit() {
    let scene = Scene::new(2);
    let s3 = &scene.s3;
    let mut first = scene.options(0).start();
    let second = scene.options(1).start();
    let mut sent = 0;
    let mut more = |count: i64| {
        send(&scene.kafka.broker(), TOPIC, SOURCE, sent..sent + count);
        sent += count;
        sent
    };
    let total = more(300);
    scene.wait_archived(total);
    // a36 (kafka-connect-storage-cloud#144): one message, and then silence.
    let total = more(1);
    scene.wait_archived(total);
    // aws-sdk-java-v2#6580: the answer to a conditional create is lost, and the next try meets its own object.
    s3.next(1, "PUT", "_commits", Meets::LostAnswer);
    s3.next(1, "PUT", ".parquet", Meets::LostAnswer);
    let total = more(50);
    scene.wait_archived(total);
    // arrow-rs-object-store#852, opendal#6741; lance#7061; a server that fails.
    s3.next(
        2,
        "PUT",
        "_commits",
        Meets::Answer(409, "ConditionalRequestConflict"),
    );
    s3.next(1, "PUT", ".parquet", Meets::Answer(400, "RequestTimeout"));
    s3.next(1, "PUT", "_commits", Meets::Answer(500, "InternalError"));
    s3.next(1, "GET", "_commits", Meets::Answer(503, "SlowDown"));
    let total = more(50);
    scene.wait_archived(total);
    // Nothing of that is left out: a commit is read by whoever comes second with one, and who that is changes.
    eventually_true(PATIENCE, "S3 has given every answer", || {
        let total = more(5);
        scene.wait_archived(total);
        s3.rules_left() == 0
    });
    // Killed while its commit is under way: the answer is lost, and so is whoever waits for it.
    s3.heal();
    s3.next(1, "PUT", "_commits", Meets::Slow(64));
    let total = more(50);
    eventually_true(PATIENCE, "a commit is under way", || s3.rules_left() == 0);
    first.kill();
    scene.wait_archived(total);
    first = scene.options(0).start();
    let total = more(50);
    scene.wait_archived(total);
    second.terminate();
    let total = more(50);
    scene.wait_archived(total);
    scene.assert_whole();
    drop(first);
}

/// What S3 is asked, and what others were refused for; a bucket that is gone.
#[test]
fn a40_a43_a45_a49_requests_are_plain_and_of_a_bucket_that_is_gone_nothing_is_lost() {
    let scene = Scene::new(1);
    let s3 = &scene.s3;
    // duckdb and others recover by listing (kafka-connect-hdfs#118): nothing is listed to go on.
    s3.always("GET", "list-type=2", Meets::Answer(403, "AccessDenied"));
    let options = scene.options(0);
    let daemon = options.start();
    send(&scene.kafka.broker(), TOPIC, SOURCE, 0..100);
    scene.wait_archived(100);
    daemon.terminate();
    let daemon = options.start();
    send(&scene.kafka.broker(), TOPIC, SOURCE, 100..200);
    scene.wait_archived(200);
    s3.heal();
    assert_plain(s3);
    // The bucket is gone: that is named. What was in it is gone with it; the topic has everything still.
    s3.remove_bucket();
    send(&scene.kafka.broker(), TOPIC, SOURCE, 2_000..2_010);
    daemon.wait_log(&["archive:", "NoSuchBucket", "must exist"]);
    s3.make_bucket();
    daemon.terminate();
    let daemon = options.start();
    scene.assert_whole();
    // boto#3750, aeroftp#792: of a bucket with a key of KMS an ETag is no MD5. Here none was ever true.
    assert!(s3.false_etags() > 8);
    // vortex#9783, ravel#864: parts of uploads that nobody ends. We make none, and tell of others'.
    let in_parts = |seen: &&Seen| {
        ["uploads", "uploadId", "partNumber"]
            .iter()
            .any(|has| seen.path.contains(has))
    };
    assert!(s3.seen().iter().find(in_parts).is_none());
    s3.begin_upload("audit/v1/of-somebody");
    // Settings that are wrong are found before they hurt.
    let said = idgenctl_of(&options, &daemon, &["doctor"]);
    assert!(
        said.stdout
            .contains("1 uploads in parts were begun and not ended; idgend makes none")
            && said.stdout.contains("AbortIncompleteMultipartUpload"),
        "{}",
        said.stdout
    );
    assert_eq!(said.code, Some(3), "{}{}", said.stdout, said.stderr);
    assert!(said.stdout.contains("min.insync.replicas = 1"), "{}", said.stdout);
    assert!(
        said.stdout
            .contains("a conditional create is refused the second time"),
        "{}",
        said.stdout
    );
    assert!(
        said.stdout.contains("leaves without a hole") || said.stdout.contains("none yet"),
        "{}",
        said.stdout
    );
    assert!(
        !scene.s3.keys("audit/v1/_doctor").iter().any(|_| true),
        "the doctor leaves nothing behind"
    );
}

/// aws-sdk-rust#1240, minio#20845: trailers with checksums that other services refuse.
fn assert_plain(s3: &S3) {
    let puts: Vec<_> = s3
        .seen()
        .into_iter()
        .filter(|seen| seen.method == "PUT")
        .collect();
    assert!(puts.len() >= 4);
    for put in &puts {
        assert!(put.header("x-amz-checksum-sha256").is_some(), "{put:?}");
        assert!(put.header("x-amz-trailer").is_none(), "{put:?}");
        assert!(
            !put.header("content-encoding")
                .unwrap_or_default()
                .contains("aws-chunked"),
            "{put:?}"
        );
        assert_eq!(put.header("if-none-match"), Some("*"), "{put:?}");
        assert_eq!(
            put.header("x-amz-server-side-encryption"),
            Some("aws:kms"),
            "{put:?}"
        );
        assert_eq!(
            put.header("x-amz-server-side-encryption-bucket-key-enabled"),
            Some("true"),
            "{put:?}"
        );
    }
}

/// Offsets of a group are somebody else's (kafka-connect-storage-cloud#487, #846); offsets are also taken by markers of
/// transactions (druid#5404); messages of another schema version, or none at all, are kept as they came.
#[test]
fn a38_a51_group_offsets_are_ignored_markers_make_no_gap_and_foreign_messages_are_kept() {
    let server = std::thread::spawn(Server::start);
    let kafka = Kafka::start();
    let server = server.join().expect("start a server");
    kafka.create_topic_with("t", 1, LOG_APPEND);
    let scratch = Scratch::new("archive");
    let options = from_topic(in_folder(&server, scratch.path()), &kafka.broker(), "t");
    send(&kafka.broker(), "t", SOURCE, 0..20);
    group_offset(&kafka, 1_020);
    in_transactions(&kafka);
    foreign(&kafka);
    let mut daemon = options.start();
    eventually_true(PATIENCE, "all that was committed is archived", || {
        rows_in(scratch.path()).len() == 30
    });
    daemon.wait_log(&["a message is no event of this version", "schema version 9"]);
    let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
    assert!(
        metrics.contains("idgen_archive_rows_total{kind=\"foreign\"} 3"),
        "{metrics}"
    );
    assert!(
        metrics.contains("idgen_archive_gap_offsets_total{chain=\"t\"} 0"),
        "{metrics}"
    );
    let offsets: Vec<i64> = rows_in(scratch.path()).iter().map(|row| row.offset).collect();
    assert!((0..20).all(|offset| offsets.contains(&offset)), "{offsets:?}");
    let day = foreign_day(&daemon, &options);
    let cat = idgenctl_of(&options, &daemon, &["archive", "cat", &day, "--foreign"]);
    assert!(
        cat.stdout.contains("schema version 9") && cat.stdout.contains("value_hex"),
        "{}{}",
        cat.stdout,
        cat.stderr
    );
}

/// The folder that the files of foreign messages are in.
fn foreign_day(daemon: &Daemon, options: &DaemonOptions) -> String {
    let listed = idgenctl_of(options, daemon, &["archive", "ls", "--files"]);
    let line = listed
        .stdout
        .lines()
        .find(|line| line.contains("service=_foreign"));
    let line = line.unwrap_or_else(|| panic!("no foreign file: {}{}", listed.stdout, listed.stderr));
    let rest = line.split_once("dt=").expect("a day").1;
    rest.split('/').next().expect("a day").to_owned()
}

fn group_offset(kafka: &Kafka, offset: i64) {
    let mut config = kafka.client();
    config.set("group.id", "idgen-archive-t");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("t", 0, Offset::Offset(offset))
        .expect("an offset");
    consumer
        .commit(&list, CommitMode::Sync)
        .expect("commit an offset");
}

fn in_transactions(kafka: &Kafka) {
    let mut config = kafka.client();
    config.set("transactional.id", "x");
    let producer: BaseProducer = config.create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("transactions");
    for (from, commits) in [(100, true), (200, false), (300, true)] {
        producer.begin_transaction().expect("begin");
        for id in from..from + 5 {
            let value = event(SOURCE, id).to_json().expect("JSON");
            producer
                .send(BaseRecord::to("t").key("k").payload(&value))
                .map_err(|(error, _)| error)
                .expect("send");
        }
        producer.flush(PATIENCE).expect("flush");
        if commits {
            producer.commit_transaction(PATIENCE).expect("commit");
        } else {
            producer.abort_transaction(PATIENCE).expect("abort");
        }
    }
}

fn foreign(kafka: &Kafka) {
    let producer: BaseProducer = kafka.client().create().expect("a producer");
    let values: [&[u8]; 3] = [b"{\"schema\":9,\"kind\":\"later\"}", b"no event", &[0xff, 0xfe]];
    for value in values {
        producer
            .send(BaseRecord::to("t").key("k").payload(value))
            .map_err(|(error, _)| error)
            .expect("send");
    }
    producer.flush(PATIENCE).expect("flush");
}

/// apache/pinot#19359, posthog#20283: what is out of range was read from the newest on, and what lay between was lost without a
/// word. The mock cluster keeps 5 MiB of a partition.
#[test]
fn a50_offsets_that_were_removed_are_written_down_as_a_gap_and_the_rest_is_archived() {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let broker = cluster.bootstrap_servers();
    let server = Server::start();
    let scratch = Scratch::new("archive");
    let options = from_topic(in_folder(&server, scratch.path()), &broker, "t");
    let mut config = rdkafka::ClientConfig::new();
    config
        .set("bootstrap.servers", &broker)
        .set("linger.ms", "0")
        .set("batch.num.messages", "1");
    let producer: BaseProducer = config.create().expect("a producer");
    for id in 0..200 {
        let mut large = event(SOURCE, id);
        let noise = format!("\"{}\"", "x".repeat(60_000));
        large.payload = serde_json::value::RawValue::from_string(noise).expect("JSON");
        let value = large.to_json().expect("JSON");
        producer
            .send(BaseRecord::to("t").key("k").payload(&value))
            .map_err(|(error, _)| error)
            .expect("send");
        producer.flush(Duration::from_secs(60)).expect("acknowledged");
    }
    let mut daemon = options.start();
    daemon.wait_log(&["these offsets were removed before they were archived", "backfill"]);
    eventually_true(PATIENCE, "the rest is archived", || {
        rows_in(scratch.path()).iter().any(|row| row.offset == 199)
    });
    let offsets: Vec<i64> = rows_in(scratch.path()).iter().map(|row| row.offset).collect();
    let first = *offsets.iter().min().expect("rows");
    assert!(first > 0, "the mock cluster has kept everything");
    assert_eq!(offsets.len() as i64, 200 - first, "each once");
    let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
    assert!(
        metrics.contains(&format!("idgen_archive_gap_offsets_total{{chain=\"t\"}} {first}")),
        "{first}: {metrics}"
    );
    let listed = idgenctl_of(&options, &daemon, &["archive", "ls", "-o", "json"]);
    assert!(
        listed.stdout.contains(&format!("\"gap_offsets\": {first}")),
        "{}",
        listed.stdout
    );
}

/// kafka-connect-storage-cloud#177, #29, #454, Aiven#335: a buffer for each partition and each file took all memory, and a
/// backlog killed whoever began with it. rust-rdkafka#650: so did what was read ahead meanwhile.
#[test]
fn a39_a52_a_backlog_of_80_services_in_12_partitions_takes_one_budget_of_memory() {
    const EVENTS: f64 = 16_000.0;
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 12, 1).expect("a topic");
    let broker = cluster.bootstrap_servers();
    let server = std::thread::spawn(Server::start);
    let bytes = backlog(&broker, EVENTS as i64);
    let server = server.join().expect("start a server");
    let scratch = Scratch::new("archive");
    let mut options = from_topic(in_folder(&server, scratch.path()), &broker, "t");
    // The backlog is of an hour ago: by the wall clock all of it is late, which is no reason to cut while more is read.
    for (name, value) in [("BUFFER_MIB", "4"), ("CUT_SECONDS", "60"), ("VERIFY", "false")] {
        options
            .env
            .push((format!("IDGEND_ARCHIVE__{name}"), value.to_owned()));
    }
    let mut daemon = options.start();
    let mut metric = |line: &str| {
        let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
        let count = metrics.lines().find_map(|text| text.strip_prefix(line));
        count.and_then(|count| count.trim().parse::<f64>().ok())
    };
    eventually_true(PATIENCE * 4, "the backlog is archived", || {
        metric("idgen_archive_rows_total{kind=\"event\"}") >= Some(EVENTS)
    });
    assert!(metric("idgen_archive_commits_total{cut=\"bytes\"}") >= Some(3.0));
    let peak = peak_kib(daemon.pid());
    println!("{} MiB of events, {peak} KiB at the most", bytes >> 20);
    assert!(peak < 160 << 10, "{peak} KiB");
}

/// Events of an hour ago that hardly compress; returns how many bytes they are.
fn backlog(broker: &str, events: i64) -> u64 {
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", broker);
    let producer: BaseProducer = config.create().expect("a producer");
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_millis() as i64;
    let mut bytes = 0;
    for id in 0..events {
        let mut large = event(SOURCE, id);
        large.service = format!("service {}", id % 80);
        let word = |at: i64| format!("{:016x}", idgen_core::archive::mix_id((id * 100 + at) as u64));
        let noise = (0..96).map(word).collect::<String>();
        large.payload = serde_json::value::RawValue::from_string(format!("\"{noise}\"")).expect("JSON");
        let value = large.to_json().expect("JSON");
        bytes += value.len() as u64;
        let record = BaseRecord::to("t")
            .key("k")
            .payload(&value)
            .partition((id % 12) as i32)
            .timestamp(now - 3_600_000);
        producer
            .send(record)
            .map_err(|(error, _)| error)
            .expect("room in the queue");
    }
    producer.flush(PATIENCE).expect("acknowledged");
    bytes
}

/// The most memory that a process has had.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse().ok()).expect("a number")
}

/// A topic that is not there is named, and archived from its first message on when it is made.
#[test]
fn a_topic_that_is_missing_or_was_made_anew_is_named() {
    let server = std::thread::spawn(Server::start);
    let kafka = Kafka::start();
    let server = server.join().expect("start a server");
    let scratch = Scratch::new("archive");
    let options = from_topic(in_folder(&server, scratch.path()), &kafka.broker(), "t");
    let daemon = options.start();
    daemon.wait_log(&["archive:", "topic t"]);
    kafka.create_topic_with("t", 1, LOG_APPEND);
    send(&kafka.broker(), "t", SOURCE, 0..20);
    eventually_true(PATIENCE, "all is archived", || {
        rows_in(scratch.path()).len() == 20
    });
    kafka.delete_topic("t");
    eventually_true(PATIENCE, "the topic can be made anew", || {
        let make = || kafka.create_topic_with("t", 1, LOG_APPEND);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_ok()
    });
    daemon.kill();
    let daemon = options.start();
    daemon.wait_log(&[
        "archive:",
        "ends at offset 0, and the archive goes on at 20",
        "was made anew",
    ]);
    assert_eq!(rows_in(scratch.path()).len(), 20);
}
