//! One idempotent producer of librdkafka, and what it says.
//!
//! Made anew after any failure: what was in it then is sent again from the table. So it may forget, and does when it is
//! dropped, which would lose events if it were the truth.

use crate::config::KafkaConfig;
use crate::error::{Error, Result};
use crate::event::{Event, SCHEMA};
use idgen_core::outbox::SendFault;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::statistics::Statistics;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// A broker that is there answers sooner.
const METADATA_LIMIT: Duration = Duration::from_secs(5);
/// What a message has beside key and value, at the most.
const OVERHEAD_BYTES: usize = 512;

/// What a delivery report says.
#[derive(Debug)]
pub(super) struct Report {
    /// The number that the message was sent with.
    pub(super) ticket: u64,
    /// Whether the broker has it.
    pub(super) outcome: std::result::Result<(), (SendFault, String)>,
}

/// What callbacks have heard of the connection.
#[derive(Default)]
struct Heard {
    connected: AtomicBool,
    /// Of everything, not of a message.
    trouble: Mutex<Option<(SendFault, String)>>,
}

struct Context {
    reports: mpsc::UnboundedSender<Report>,
    heard: Arc<Heard>,
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, "kafka: {message}");
    }

    fn stats(&self, statistics: Statistics) {
        let connected = statistics.brokers.values().any(|broker| broker.state == "UP");
        self.heard.connected.store(connected, Ordering::Relaxed);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.heard.connected.store(false, Ordering::Relaxed);
        }
        let fault = code.map_or(SendFault::Other, fault_of);
        // Of an error that mends itself, such as a connection that broke, nothing follows but what we say of it. That all
        // brokers are away says less than why.
        let mut trouble = self.heard.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.is_none() || code != Some(RDKafkaErrorCode::AllBrokersDown) {
            *trouble = Some((fault, format!("{error}: {reason}")));
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let outcome = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                let fault = error.rdkafka_error_code().map_or(SendFault::Other, fault_of);
                Err((fault, error.to_string()))
            }
        };
        // Nobody listens any more: then nobody marks.
        let _ = self.reports.send(Report {
            ticket: ticket as u64,
            outcome,
        });
    }
}

/// What follows from an error of librdkafka or of a broker.
fn fault_of(code: RDKafkaErrorCode) -> SendFault {
    use RDKafkaErrorCode as Code;
    match code {
        Code::MessageSizeTooLarge => SendFault::MessageTooLarge,
        Code::InvalidRecord | Code::InvalidMessage => SendFault::InvalidMessage,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic => {
            SendFault::NoTopic
        }
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::GroupAuthorizationFailed => SendFault::NotAllowed,
        Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => SendFault::NotBelieved,
        Code::Fatal | Code::OutOfOrderSequenceNumber | Code::GaplessGuarantee => SendFault::Fatal,
        _ => SendFault::Other,
    }
}

/// What a producer is made with. See docs/decisions/outbox.md for each of them.
fn settings(config: &KafkaConfig, singly: bool) -> Result<ClientConfig> {
    let mut client = config.client()?;
    for (name, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("max.in.flight.requests.per.connection", "5"),
        ("message.timeout.ms", "0"),
        ("partitioner", "murmur2_random"),
        ("allow.auto.create.topics", "false"),
        ("queue.buffering.max.messages", "20000"),
        ("statistics.interval.ms", "2000"),
    ] {
        client.set(name, value);
    }
    client.set("message.max.bytes", config.message_bytes_max.to_string());
    for (name, value) in [("linger.ms", "5"), ("compression.type", "zstd")] {
        if client.get(name).is_none() {
            client.set(name, value);
        }
    }
    if singly {
        client.set("batch.num.messages", "1");
    }
    Ok(client)
}

/// One producer.
pub(super) struct Sender {
    producer: ThreadedProducer<Context>,
    reports: mpsc::UnboundedReceiver<Report>,
    heard: Arc<Heard>,
    topic: String,
    message_bytes_max: usize,
}

/// What became of a message that was to be sent.
pub(super) enum Sent {
    /// A report will come.
    Queued,
    /// librdkafka has no room just now.
    Full,
    /// It will never be sent like this.
    Refused(SendFault, String),
}

impl Sender {
    /// Makes one, and looks whether the topic is there. May take as long as asking a broker may.
    /// `singly`: each message is a batch of its own.
    pub(super) async fn open(config: &KafkaConfig, singly: bool) -> Result<Self> {
        let (config, found) = (config.clone(), tokio::runtime::Handle::current());
        found
            .spawn_blocking(move || Self::make(&config, singly))
            .await
            .map_err(|error| Error::runtime(format!("make a producer: {error}")))?
    }

    fn make(config: &KafkaConfig, singly: bool) -> Result<Self> {
        let client = settings(config, singly)?;
        let (reports, heard_reports) = mpsc::unbounded_channel();
        let heard = Arc::new(Heard::default());
        let context = Context {
            reports,
            heard: Arc::clone(&heard),
        };
        let producer: ThreadedProducer<Context> = client.create_with_context(context).map_err(|error| {
            Error::retry(format!("kafka: {error}"))
                .with_hint("see [kafka] and [kafka.properties] of the configuration")
        })?;
        let sender = Self {
            producer,
            reports: heard_reports,
            heard,
            topic: config.topic.clone(),
            message_bytes_max: config.message_bytes_max,
        };
        sender.check_topic()?;
        Ok(sender)
    }

    /// What is missing is named at once, instead of by the first message half a minute later.
    fn check_topic(&self) -> Result<()> {
        let topic = &self.topic;
        let found = self.producer.client().fetch_metadata(Some(topic), METADATA_LIMIT);
        let found = match found {
            Ok(found) => found,
            Err(error) => return Err(self.unreachable(&error)),
        };
        self.heard.connected.store(true, Ordering::Relaxed);
        let code = found
            .topics()
            .iter()
            .find_map(|topic| topic.error())
            .map(RDKafkaErrorCode::from);
        let Some(code) = code else { return Ok(()) };
        match fault_of(code) {
            SendFault::NoTopic => Err(
                Error::retry(format!("kafka: there is no topic {topic}")).with_hint(
                    "make it: idgend never does, because its partitions and retention are yours to choose",
                ),
            ),
            SendFault::NotAllowed => Err(Error::retry(format!(
                "kafka: not allowed to see the topic {topic}"
            ))
            .with_hint("grant Describe and Write on the topic to the user of idgend")),
            _ => Err(Error::retry(format!("kafka: the topic {topic}: {code}"))),
        }
    }

    fn unreachable(&self, error: &KafkaError) -> Error {
        match self.trouble() {
            Some((SendFault::NotBelieved, why)) => {
                Error::retry(format!("kafka: the brokers do not believe who we are: {why}"))
                    .with_hint("see kafka.username and its password, or the certificates")
            }
            Some((_, why)) => Error::retry(format!("kafka: {why}")),
            None => Error::retry(format!("kafka: no broker answers: {error}")),
        }
    }

    /// What was heard of everything, once.
    pub(super) fn trouble(&self) -> Option<(SendFault, String)> {
        self.heard
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Why it can do nothing any more, where that is so.
    pub(super) fn fatal(&self) -> Option<(SendFault, String)> {
        let (code, why) = self.producer.client().fatal_error()?;
        Some((fault_of(code), why))
    }

    /// Is a broker connected, as of the last seconds?
    pub(super) fn is_connected(&self) -> bool {
        self.heard.connected.load(Ordering::Relaxed)
    }

    /// Is a message of this value short enough?
    pub(super) fn fits(&self, event: &Event, value: &[u8]) -> bool {
        value.len() + event.tag.len() + OVERHEAD_BYTES <= self.message_bytes_max
    }

    /// Hands a message over.
    pub(super) fn send(&self, event: &Event, value: &[u8], epoch: i64, ticket: u64) -> Sent {
        let header = |key: &'static str, value: String| (key, value);
        let all = [
            header("schema", SCHEMA.to_string()),
            header("source", event.source.to_string()),
            header("event_id", event.event_id.to_string()),
            header("tag_seq", event.tag_seq.to_string()),
            header("epoch", epoch.to_string()),
        ];
        let headers = all.iter().fold(
            OwnedHeaders::new_with_capacity(all.len()),
            |headers, (key, value)| {
                headers.insert(Header {
                    key,
                    value: Some(value),
                })
            },
        );
        let key = event.key();
        let record = BaseRecord::with_opaque_to(&self.topic, ticket as usize)
            .key(&key)
            .payload(value)
            .headers(headers);
        match self.producer.send(record) {
            Ok(()) => Sent::Queued,
            Err((error, _)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => Sent::Full,
                code => Sent::Refused(code.map_or(SendFault::Other, fault_of), error.to_string()),
            },
        }
    }

    /// A report that has come.
    pub(super) fn next_report(&mut self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Waits for the next.
    pub(super) async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// Waits until everything is answered, for so long at the most. The reports are there then.
    pub(super) async fn flush(self, limit: Duration) -> Self {
        let flushed = tokio::task::spawn_blocking(move || {
            // What is not answered in time is sent anew by whoever comes next.
            let _ = self.producer.flush(limit);
            self
        });
        match flushed.await {
            Ok(sender) => sender,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Ends it: what is in it is forgotten. Not waited for.
    pub(super) fn purge(self) {
        let _ended = tokio::task::spawn_blocking(move || {
            self.producer.purge(PurgeConfig::default().queue().inflight());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// AUDIT.md 25: no transactions of Kafka; and what every promise rests on is set, whatever else the configuration says.
    #[test]
    fn a25_a_producer_is_idempotent_gives_nothing_up_and_has_no_transactions() {
        let text = "[postgres]\nurl = \"postgres://u@h/d\"\n[kafka]\nbrokers = [\"127.0.0.1:9\"]\n\
                    properties = { \"linger.ms\" = 7 }";
        let kafka = Config::parse("f", text, []).unwrap().kafka.unwrap();
        let client = settings(&kafka, false).unwrap();
        assert_eq!(client.get("transactional.id"), None);
        for (name, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("message.timeout.ms", "0"),
            ("allow.auto.create.topics", "false"),
            ("linger.ms", "7"),
        ] {
            assert_eq!(client.get(name), Some(value), "{name}");
        }
        // librdkafka finds no two of them that contradict each other.
        let (reports, _) = mpsc::unbounded_channel();
        let context = Context {
            reports,
            heard: Arc::default(),
        };
        let producer: ThreadedProducer<Context> = client.create_with_context(context).unwrap();
        assert!(producer.client().fatal_error().is_none());
    }
}
