//! A real Kafka broker: one node in KRaft mode, from the jars that `make/kafka.sh` fetches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use super::ports::free_ports;
use super::process::{Process, Signal};
use super::{PATIENCE, Scratch, eventually, eventually_true};

const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../build");
/// Of the cluster: any will do.
const CLUSTER_ID: &str = "cGdfaWRnZW4tdGVzdHMtMQ";
/// Hundreds of settings, each time.
const QUIET: &str = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn";
/// The user that a secured broker knows, and grants nothing.
pub const USER: &str = "idgend";
/// Its password.
pub const PASSWORD: &str = "open sesame";
/// A Java that starts on a busy machine.
const START: Duration = Duration::from_secs(90);
const ASK: Duration = Duration::from_secs(10);

/// One message, as it was read.
#[derive(Clone, Debug)]
pub struct Message {
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub value: String,
    pub headers: Vec<(String, String)>,
}

impl Message {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// One broker. Its data and ports stay until it is dropped.
pub struct Kafka {
    process: Option<Process>,
    port: u16,
    sasl_port: u16,
    scratch: Scratch,
}

impl Kafka {
    /// A broker that knows no topic.
    pub fn start() -> Kafka {
        Kafka::with(&[])
    }

    /// The same with more lines of its configuration.
    pub fn with(lines: &[&str]) -> Kafka {
        let mut kafka = Kafka::prepared(lines);
        kafka.run();
        kafka
    }

    /// The same that was never run yet: nobody is at its address.
    pub fn prepared(lines: &[&str]) -> Kafka {
        let [port, sasl_port, controller] = free_ports();
        let scratch = Scratch::new("kafka");
        let kafka = Kafka {
            process: None,
            port,
            sasl_port,
            scratch,
        };
        let config = kafka.config(controller) + &lines.join("\n") + "\n";
        fs::write(kafka.scratch.join("server.properties"), config).expect("write the configuration");
        kafka.format();
        kafka
    }

    /// A broker with a second listener ([`Kafka::secured_broker`]) whose users may do what they are allowed to: [`USER`]
    /// nothing.
    pub fn secured() -> Kafka {
        Kafka::with(&[
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
        ])
    }

    fn config(&self, controller: u16) -> String {
        let (port, sasl, data) = (self.port, self.sasl_port, self.scratch.join("data"));
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n\
             listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             sasl.enabled.mechanisms=SCRAM-SHA-256\n\
             listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
             log.dirs={}\n\
             auto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             broker.session.timeout.ms=3000\n\
             broker.heartbeat.interval.ms=500\n\
             group.initial.rebalance.delay.ms=0\n\
             num.network.threads=1\n\
             num.io.threads=2\n\
             log.cleaner.dedupe.buffer.size=4194304\n",
            data.display()
        )
    }

    /// `127.0.0.1:port`, open to everybody.
    pub fn broker(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The listener that asks who one is (SCRAM-SHA-256).
    pub fn secured_broker(&self) -> String {
        format!("127.0.0.1:{}", self.sasl_port)
    }

    pub fn addr(&self) -> std::net::SocketAddr {
        (std::net::Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn java(&self, heap: &str, main: &str) -> Command {
        let mut command = Command::new("java");
        // Quick to start rather than quick later on.
        command
            .current_dir(self.scratch.path())
            .args([heap, "-Xms32m", "-XX:+UseSerialGC", "-Xshare:auto", QUIET, "-cp"])
            .arg(libs().join("*"))
            .arg(main);
        command
    }

    fn format(&self) {
        let mut command = self.java("-Xmx128m", "kafka.tools.StorageTool");
        command
            .args([
                "format",
                "-t",
                CLUSTER_ID,
                "-c",
                "server.properties",
                "--add-scram",
            ])
            .arg(format!("SCRAM-SHA-256=[name={USER},password={PASSWORD}]"));
        let formatted = super::daemon::answer(command);
        assert_eq!(
            formatted.code,
            Some(0),
            "format the storage: {}{}",
            formatted.stdout,
            formatted.stderr
        );
    }

    /// Starts it on the data and ports that it had, and waits until it answers.
    pub fn run(&mut self) {
        let mut command = self.java("-Xmx256m", "kafka.Kafka");
        command.arg("server.properties");
        self.process = Some(Process::spawn("kafka", command, self.scratch.join("kafka.log")));
        let admin = self.admin();
        eventually(START, "the broker answers", || {
            if let Some(process) = &mut self.process
                && let Some(status) = process.exited()
            {
                panic!("the broker has ended: {status}");
            }
            admin.inner().fetch_metadata(None, Duration::from_secs(2)).ok()
        });
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the broker runs").id()
    }

    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// SIGTERM, and its end.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::TERM);
            process.wait_exit(PATIENCE);
        }
    }

    /// kill -9; the data stays for the next [`Kafka::run`].
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// It stands still until it gets [`Signal::CONT`].
    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("the broker runs").signal(signal);
    }

    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    /// What every client of this broker begins with.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.broker());
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("an admin client")
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) {
        self.create_topic_with(topic, partitions, &[]);
    }

    /// The same with settings, such as `("message.timestamp.type", "LogAppendTime")`.
    pub fn create_topic_with(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let new = settings.iter().fold(
            NewTopic::new(topic, partitions, TopicReplication::Fixed(1)),
            |new, (name, value)| new.set(name, value),
        );
        let admin = self.admin();
        let options = AdminOptions::new().operation_timeout(Some(ASK));
        let made = block_on(admin.create_topics([&new], &options)).expect("ask for a topic");
        assert!(made.iter().all(Result::is_ok), "make {topic}: {made:?}");
        eventually_true(PATIENCE, "the topic has leaders", || {
            let found = admin.inner().fetch_metadata(Some(topic), ASK);
            found.is_ok_and(|found| {
                let partitions = found.topics().iter().flat_map(|topic| topic.partitions());
                let mut leaders = partitions.map(|partition| partition.leader()).peekable();
                leaders.peek().is_some() && leaders.all(|leader| leader >= 0)
            })
        });
    }

    pub fn delete_topic(&self, topic: &str) {
        let admin = self.admin();
        let options = AdminOptions::new().operation_timeout(Some(ASK));
        let gone = block_on(admin.delete_topics(&[topic], &options)).expect("ask for its end");
        assert!(gone.iter().all(Result::is_ok), "delete {topic}: {gone:?}");
    }

    /// One of Kafka's own tools, by its class, with these arguments.
    pub fn tool(&self, class: &str, args: &[&str]) -> super::daemon::Answer {
        let mut command = self.java("-Xmx128m", class);
        command.args(args);
        super::daemon::answer(command)
    }

    /// Everything that is in a topic now, in the order of partitions and offsets.
    pub fn read(&self, topic: &str) -> Vec<Message> {
        read(self.client(), topic)
    }
}

/// The same of whichever brokers a client is configured for.
pub fn read(mut config: ClientConfig, topic: &str) -> Vec<Message> {
    // Offsets are of nobody's group.
    config.set("group.id", "kit").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let found = consumer.fetch_metadata(Some(topic), ASK).expect("the topic");
    let partitions: Vec<i32> = found.topics()[0]
        .partitions()
        .iter()
        .map(|found| found.id())
        .collect();
    let mut read = Vec::new();
    for partition in partitions {
        // Behind a restart its partitions come one after another.
        let (low, high) = eventually(PATIENCE, "it is known how much is in it", || {
            consumer.fetch_watermarks(topic, partition, ASK).ok()
        });
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(low))
            .expect("an offset");
        consumer.assign(&list).expect("assign");
        let mut next = low;
        while next < high {
            let message = consumer
                .poll(PATIENCE)
                .expect("a message within the time")
                .expect("read");
            next = message.offset() + 1;
            read.push(owned(&message));
        }
    }
    read
}

fn owned(message: &rdkafka::message::BorrowedMessage<'_>) -> Message {
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let headers = message.headers().map(|headers| {
        let all = headers.iter();
        all.map(|header| (header.key.to_owned(), text(header.value)))
            .collect()
    });
    Message {
        partition: message.partition(),
        offset: message.offset(),
        key: text(message.key()),
        value: text(message.payload()),
        headers: headers.unwrap_or_default(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Where the jars are.
fn libs() -> &'static Path {
    static LIBS: OnceLock<PathBuf> = OnceLock::new();
    LIBS.get_or_init(|| {
        let found = fs::read_dir(BUILD).into_iter().flatten().flatten();
        let mut libs: Vec<PathBuf> = found
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("kafka-"))
            .map(|entry| entry.path().join("libs"))
            .filter(|libs| libs.is_dir())
            .collect();
        libs.sort();
        libs.pop().expect("Kafka's jars in build/: run make/kafka.sh")
    })
}
