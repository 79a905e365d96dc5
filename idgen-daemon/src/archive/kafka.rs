//! The archiver of a topic. It is assigned all partitions and begins each where the chain ends: offsets that a group has
//! committed are written for tools that show the lag, and never read.

use super::ledger::{Appended, Ledger};
use super::objects::Objects;
use super::parquet::{Message, Spot};
use super::run::{Archiver, Ready, alone};
use crate::complaint::Complaint;
use crate::config::{KafkaConfig, StoreConfig};
use crate::error::{Error, Result};
use crate::lease::{HolderName, Sole, host_clock};
use idgen_core::archive::{Cut, Cutter, Gap};
use rdkafka::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// What its group is called by.
const WHO: &str = "archive";
/// So long a message is waited for. The clock is looked at as often, also while messages come.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Of a question to the brokers.
const ASK: Duration = Duration::from_secs(10);
/// Partitions that were added are seen within this.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);
/// A commit that is under way at the end is given so long; what was buffered for it is in the topic still.
const UNDER_WAY: Duration = Duration::from_secs(5);
/// At the end what is buffered is committed within this, or read again by whoever comes next.
const LAST_COMMIT: Duration = Duration::from_secs(10);

/// Why a topic cannot be archived as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is not there.
    NoTopic(String),
    /// It ends before what the archive has.
    Behind {
        /// The partition.
        partition: i32,
        /// Where it ends.
        end: i64,
        /// Where the archive goes on.
        next: i64,
    },
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::NoTopic(topic) => Self::retry(format!("topic {topic} is not there"))
                .with_hint("make it: docs/operations.md has its settings"),
            Trouble::Behind { partition, end, next } => Self::retry(format!(
                "partition {partition} ends at offset {end}, and the archive goes on at {next}: the topic was made anew, or \
                 has lost messages"
            ))
            .with_hint("a topic that was made anew needs another name, kafka.topic; docs/operations.md tells the rest"),
        }
    }
}

/// The settings that the promises of whoever reads the topic as a whole rest on, on top of how Kafka is reached. `who`: what
/// the group is called by, for tools.
pub(crate) fn settings(kafka: &KafkaConfig, who: &str) -> Result<ClientConfig> {
    let mut config = kafka.client()?;
    config
        .set("group.id", format!("idgen-{who}-{}", kafka.topic))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // Never to the newest: what is gone is told.
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        // What is read ahead while a commit is under way. By itself the library takes ten times this.
        .set("queued.min.messages", "1000")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.max.bytes", "8388608")
        // How long it waits once it has read that much ahead. By itself a second, and a backlog goes by at 1,000 messages a second.
        .set("fetch.queue.backoff.ms", "20");
    Ok(config)
}

/// A consumer with them.
pub(crate) fn consumer(kafka: &KafkaConfig, who: &str) -> Result<StreamConsumer> {
    settings(kafka, who)?
        .create()
        .map_err(|error| Error::retry(format!("make a consumer: {error}")))
}

/// First and next offset of each partition.
pub(crate) type Partitions = BTreeMap<i32, (i64, i64)>;

/// Asks for them. Blocks for a moment, as the library does; nothing else runs on this task.
pub(crate) fn partitions(consumer: &StreamConsumer, topic: &str) -> Result<Partitions> {
    let asked = |error: KafkaError| Error::retry(format!("ask for topic {topic}: {error}"));
    tokio::task::block_in_place(|| {
        let metadata = consumer.fetch_metadata(Some(topic), ASK).map_err(asked)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let partitions = found.map(|found| found.partitions()).unwrap_or_default();
        if partitions.is_empty() {
            return Err(Trouble::NoTopic(topic.to_owned()).into());
        }
        let marks = partitions.iter().map(|partition| {
            let marks = consumer.fetch_watermarks(topic, partition.id(), ASK);
            Ok((partition.id(), marks.map_err(asked)?))
        });
        marks.collect()
    })
}

/// Reads each partition from its offset on.
pub(crate) fn assign(
    consumer: &StreamConsumer,
    topic: &str,
    offsets: impl IntoIterator<Item = (i32, i64)>,
) -> Result<()> {
    let mut list = TopicPartitionList::new();
    for (partition, next) in offsets {
        list.add_partition_offset(topic, partition, Offset::Offset(next))
            .map_err(|error| Error::runtime(format!("assign partitions: {error}")))?;
    }
    consumer
        .assign(&list)
        .map_err(|error| Error::retry(format!("assign partitions: {error}")))
}

/// Archives as long as it is the only one, until `stop` or an error. Then it is begun anew, behind the last commit.
pub(super) async fn turn<O: Objects>(
    archiver: &Archiver<O>,
    kafka: &KafkaConfig,
    (store, holder): (&StoreConfig, &HolderName),
    stop: &CancellationToken,
    trouble: &mut Complaint,
) -> Result<()> {
    let mut sole = alone(store, holder, &kafka.topic)?;
    let held = tokio::select! {
        () = stop.cancelled() => None,
        held = sole.held() => Some(held),
    };
    let outcome = match held {
        None => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(token)) => match Reader::open(archiver, kafka, Sole::epoch(token)).await {
            Ok(reader) => reader.run(&sole, stop, trouble).await,
            Err(error) => Err(error),
        },
    };
    sole.give_up().await;
    outcome
}

/// One reader of the topic.
struct Reader<'a, O> {
    archiver: &'a Archiver<O>,
    topic: &'a str,
    consumer: StreamConsumer,
    ledger: Ledger<O>,
    epoch: u64,
    cutter: Cutter,
    buffer: Vec<Message>,
    /// Where each partition goes on, with what is buffered.
    ends: BTreeMap<i32, i64>,
    /// When the first that is buffered came.
    waits_since: Option<Instant>,
    started: Instant,
}

impl<'a, O: Objects> Reader<'a, O> {
    async fn open(archiver: &'a Archiver<O>, kafka: &'a KafkaConfig, epoch: u64) -> Result<Self> {
        let ledger = archiver.open(&kafka.topic).await?;
        let mut reader = Self {
            archiver,
            topic: &kafka.topic,
            consumer: consumer(kafka, WHO)?,
            ledger,
            epoch,
            cutter: Cutter::new(archiver.config.cut),
            buffer: Vec::new(),
            ends: BTreeMap::new(),
            waits_since: None,
            started: Instant::now(),
        };
        let partitions = reader.partitions()?;
        reader.fill_gaps(&partitions).await?;
        reader.assign(&partitions)?;
        Ok(reader)
    }

    fn partitions(&self) -> Result<Partitions> {
        partitions(&self.consumer, self.topic)
    }

    fn next_of(&self, partition: i32) -> i64 {
        let buffered = self.ends.get(&partition).copied();
        buffered.unwrap_or_else(|| self.ledger.chain().next_of(partition))
    }

    /// Commits what is gone as gaps, with everything that is buffered before it.
    async fn fill_gaps(&mut self, partitions: &Partitions) -> Result<()> {
        let mut gaps = Vec::new();
        for (partition, (first, end)) in partitions {
            let next = self.next_of(*partition);
            if next > *end {
                return Err(Trouble::Behind {
                    partition: *partition,
                    end: *end,
                    next,
                }
                .into());
            }
            if next < *first {
                tracing::error!(
                    topic = self.topic,
                    partition,
                    from = next,
                    to = first,
                    "these offsets were removed before they were archived; idgenctl archive backfill takes the events from \
                     the database"
                );
                gaps.push(Gap {
                    partition: *partition,
                    from: next,
                    to: *first,
                });
                self.ends.insert(*partition, *first);
            }
        }
        if gaps.is_empty() {
            return Ok(());
        }
        self.commit(Cut::Gap, gaps).await
    }

    fn assign(&self, partitions: &Partitions) -> Result<()> {
        let offsets = partitions
            .keys()
            .map(|partition| (*partition, self.next_of(*partition)));
        assign(&self.consumer, self.topic, offsets)
    }

    async fn run(mut self, sole: &Sole, stop: &CancellationToken, trouble: &mut Complaint) -> Result<()> {
        let mut known = self.partitions()?.len();
        let (mut looked, mut clock) = (Instant::now(), Instant::now());
        let mut seq = self.ledger.chain().head().seq;
        while sole.is_held() {
            let received = tokio::select! {
                () = stop.cancelled() => return self.end().await,
                received = tokio::time::timeout(LOOK_EVERY, self.consumer.recv()) => received,
            };
            let received = received
                .ok()
                .map(|received| received.map(|message| self.read(&message)));
            let work = self.pass(received, &mut clock, trouble);
            let Some(passed) = unless_stopped(stop, work).await else {
                return Ok(());
            };
            passed?;
            if self.ledger.chain().head().seq > seq {
                // Only now: that messages come says nothing of the place.
                trouble.settle("the topic is read and archived");
                seq = self.ledger.chain().head().seq;
            }
            if looked.elapsed() >= PARTITIONS_EVERY {
                looked = Instant::now();
                if let Ok(partitions) = self.partitions()
                    && partitions.len() != known
                {
                    known = partitions.len();
                    self.assign(&partitions)?;
                }
            }
        }
        self.archiver.metrics.count_failure("lease");
        Ok(())
    }

    /// Takes what was received, if anything, and looks at the clock where that is due.
    async fn pass(
        &mut self,
        received: Option<std::result::Result<Message, KafkaError>>,
        clock: &mut Instant,
        trouble: &mut Complaint,
    ) -> Result<()> {
        let is_silent = !matches!(received, Some(Ok(_)));
        match received {
            None => {}
            Some(Ok(message)) => self.take(message).await?,
            Some(Err(error)) => self.failed(&error, trouble).await?,
        }
        if clock.elapsed() >= LOOK_EVERY {
            *clock = Instant::now();
            self.look_at_the_clock(is_silent).await?;
        }
        Ok(())
    }

    fn read(&self, message: &BorrowedMessage<'_>) -> Message {
        let at_ms = message.timestamp().to_millis().unwrap_or_default();
        let spot = Spot {
            partition: message.partition(),
            offset: message.offset(),
            at_ms,
        };
        let headers = message.headers();
        let epoch = headers.and_then(|headers| {
            let header = headers.iter().find(|header| header.key == "epoch")?;
            std::str::from_utf8(header.value?).ok()?.parse().ok()
        });
        Message::read(spot, epoch, message.key(), message.payload())
    }

    fn steady_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn take(&mut self, message: Message) -> Result<()> {
        let spot = message.spot();
        if spot.offset < self.next_of(spot.partition) {
            // It was assigned anew behind what is buffered already.
            return Ok(());
        }
        let broker_ms = u64::try_from(spot.at_ms).unwrap_or(0);
        if let Some(cut) = self.cutter.before(broker_ms) {
            self.commit(cut, Vec::new()).await?;
        }
        let bytes = message.bytes();
        self.ends.insert(spot.partition, spot.offset + 1);
        self.buffer.push(message);
        self.waits_since.get_or_insert_with(Instant::now);
        let steady_ms = self.steady_ms();
        match self.cutter.add(broker_ms, bytes, steady_ms) {
            Some(cut) => self.commit(cut, Vec::new()).await,
            None => Ok(()),
        }
    }

    async fn look_at_the_clock(&mut self, is_silent: bool) -> Result<()> {
        let waits = self.waits_since.map_or(0, |since| since.elapsed().as_secs());
        self.archiver.metrics.set_lag(self.topic, waits);
        let steady_ms = self.steady_ms();
        let due = match is_silent {
            true => self.cutter.idle(host_clock().0, steady_ms),
            false => self.cutter.overdue(steady_ms),
        };
        match due {
            Some(cut) => self.commit(cut, Vec::new()).await,
            None => Ok(()),
        }
    }

    async fn failed(&mut self, error: &KafkaError, trouble: &mut Complaint) -> Result<()> {
        let code = error.rdkafka_error_code();
        match code {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                let partitions = self.partitions()?;
                self.fill_gaps(&partitions).await?;
                self.assign(&partitions)
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Err(Trouble::NoTopic(self.topic.to_owned()).into())
            }
            _ => {
                // The library connects again by itself.
                trouble.raise(
                    format!("archive: read topic {}: {error}", self.topic),
                    Instant::now(),
                );
                Ok(())
            }
        }
    }

    /// What is buffered becomes a commit. Where another archiver was faster, its commit counts and this turn ends.
    async fn commit(&mut self, cut: Cut, gaps: Vec<Gap>) -> Result<()> {
        let ready = Ready {
            messages: std::mem::take(&mut self.buffer),
            ends: self.ends.clone(),
            gaps,
            epoch: self.epoch,
            cut,
            source: "kafka",
        };
        self.cutter.clear();
        self.waits_since = None;
        match self.archiver.commit(&mut self.ledger, ready).await? {
            Appended::Ours => {
                self.archiver.metrics.set_lag(self.topic, 0);
                self.show_offsets();
                Ok(())
            }
            Appended::Adopted => Err(Error::retry(
                "another archiver has committed meanwhile; this one goes on behind it",
            )),
        }
    }

    /// For tools that show the lag of a group; nothing depends on it.
    fn show_offsets(&self) {
        let mut list = TopicPartitionList::new();
        for (partition, next) in self.ledger.chain().vector() {
            let _ = list.add_partition_offset(self.topic, *partition, Offset::Offset(*next));
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::debug!("offsets of the archiver's group: {error}");
        }
    }

    async fn end(mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        match tokio::time::timeout(LAST_COMMIT, self.commit(Cut::Shutdown, Vec::new())).await {
            Ok(committed) => committed,
            Err(_) => Ok(()),
        }
    }
}

/// `None`: it was stopped, and the work dropped because it took too long then. Whoever comes next begins behind the last commit.
async fn unless_stopped<T>(stop: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Some(done),
        () = stop.cancelled() => tokio::time::timeout(UNDER_WAY, work).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A place that hangs held up the end of the daemon for as long as its requests take.
    #[tokio::test(start_paused = true)]
    async fn a_commit_that_hangs_does_not_hold_up_the_end() {
        let stop = CancellationToken::new();
        assert_eq!(unless_stopped(&stop, async { 1 }).await, Some(1));
        stop.cancel();
        assert_eq!(
            unless_stopped(&stop, async { 2 }).await,
            Some(2),
            "what is done counts"
        );
        let soon = tokio::time::sleep(UNDER_WAY / 2);
        assert_eq!(unless_stopped(&stop, soon).await, Some(()));
        assert_eq!(unless_stopped(&stop, std::future::pending::<()>()).await, None);
    }

    /// rust-rdkafka#650, librdkafka#2076, risingwave#10888: what was read ahead took memory without bound.
    #[tokio::test]
    async fn a52_what_is_read_ahead_has_bounds_that_no_property_takes_away() {
        let config = |more: &str| {
            let text = "[postgres]\nurl = \"postgres://u@h/d\"\n[kafka]\nbrokers = [\"a:9092\"]\n";
            Config::parse("f", &format!("{text}{more}"), [])
        };
        let kafka = config("").unwrap().kafka.unwrap();
        let settings = settings(&kafka, WHO).unwrap();
        for (name, most) in [
            ("queued.min.messages", 1_000),
            ("queued.max.messages.kbytes", 16 << 10),
            ("fetch.max.bytes", 8 << 20),
            ("fetch.queue.backoff.ms", 20),
        ] {
            let set: u32 = settings.get(name).unwrap().parse().unwrap();
            assert!(set <= most, "{name} = {set}");
            let more = format!("properties = {{ \"{name}\" = 2000000 }}");
            let refused = config(&more).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
        assert_eq!(settings.get("auto.offset.reset"), Some("error"));
        assert_eq!(settings.get("enable.auto.commit"), Some("false"));
        // The library takes them together.
        assert!(consumer(&kafka, WHO).is_ok());
    }
}
