//! The end of a topic, read once: what came before that the archive has.

use super::seen::Seen;
use crate::archive::kafka::{Partitions, assign, partitions, settings};
use crate::config::KafkaConfig;
use crate::error::{Error, Result};
use crate::event::Event;
use idgen_core::archive::Chain;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::Duration;

/// What its group is called by. It commits no offsets.
const WHO: &str = "witness";
const ASK: Duration = Duration::from_secs(10);
/// The brokers are waited for so long. Then it is tried again.
const MESSAGE: Duration = Duration::from_secs(20);

/// Where it is read from.
pub(super) enum Begin<'a> {
    /// Where the archive ends.
    Archive(&'a Chain),
    /// What came since then, Unix milliseconds.
    Time(i64),
}

/// What the topic has from there up to its end as it is now.
///
/// # Errors
/// The brokers do not answer.
pub(super) async fn of_topic(kafka: &KafkaConfig, from: Begin<'_>) -> Result<Seen> {
    let mut config = settings(kafka, WHO)?;
    // What ends a partition need not be a message.
    config.set("enable.partition.eof", "true");
    let consumer: StreamConsumer = config
        .create()
        .map_err(|error| Error::retry(format!("make a consumer: {error}")))?;
    let marks = partitions(&consumer, &kafka.topic)?;
    let begins = match from {
        Begin::Archive(chain) => behind(chain, &marks),
        Begin::Time(since_ms) => since(&consumer, &kafka.topic, &marks, since_ms)?,
    };
    let mut left: BTreeMap<i32, i64> = BTreeMap::new();
    for (partition, begin) in &begins {
        let end = marks.get(partition).map_or(0, |(_, end)| *end);
        if *begin < end {
            left.insert(*partition, end);
        }
    }
    assign(
        &consumer,
        &kafka.topic,
        begins
            .into_iter()
            .filter(|(partition, _)| left.contains_key(partition)),
    )?;
    read(&consumer, left).await
}

/// Of each partition what no commit of the archive has.
fn behind(chain: &Chain, marks: &Partitions) -> BTreeMap<i32, i64> {
    let begin = |(partition, (first, _)): (&i32, &(i64, i64))| {
        let next = chain.next_of(*partition);
        if next < *first {
            tracing::error!(
                partition,
                from = next,
                to = first,
                "these offsets are gone from the topic, and the archive has not got them: grants in them are not known"
            );
        }
        (*partition, next.max(*first))
    };
    marks.iter().map(begin).collect()
}

fn since(
    consumer: &StreamConsumer,
    topic: &str,
    marks: &Partitions,
    since_ms: i64,
) -> Result<BTreeMap<i32, i64>> {
    let asked = |error: KafkaError| Error::retry(format!("ask for offsets of topic {topic}: {error}"));
    let mut wanted = TopicPartitionList::new();
    for partition in marks.keys() {
        wanted
            .add_partition_offset(topic, *partition, Offset::Offset(since_ms))
            .map_err(asked)?;
    }
    let found = tokio::task::block_in_place(|| consumer.offsets_for_times(wanted, ASK)).map_err(asked)?;
    let begin = |(partition, (first, end)): (&i32, &(i64, i64))| {
        let found = found
            .find_partition(topic, *partition)
            .map(|found| found.offset());
        let begin = match found {
            Some(Offset::Offset(offset)) => offset.max(*first),
            // Everything is older.
            _ => *end,
        };
        (*partition, begin)
    };
    Ok(marks.iter().map(begin).collect())
}

/// `left`: partitions, and up to which offset each is read.
async fn read(consumer: &StreamConsumer, mut left: BTreeMap<i32, i64>) -> Result<Seen> {
    let mut seen = Seen::default();
    while !left.is_empty() {
        let received = tokio::time::timeout(MESSAGE, consumer.recv()).await;
        match received {
            Ok(Ok(message)) => {
                if let Some(event) = message.payload().and_then(|value| Event::parse(value).ok()) {
                    seen.hear(&event);
                }
                let partition = message.partition();
                if left
                    .get(&partition)
                    .is_some_and(|end| message.offset() + 1 >= *end)
                {
                    left.remove(&partition);
                }
            }
            Ok(Err(KafkaError::PartitionEOF(partition))) => drop(left.remove(&partition)),
            Ok(Err(error)) => return Err(Error::retry(format!("read the topic: {error}"))),
            Err(_) => return Err(Error::retry("the brokers send nothing")),
        }
    }
    Ok(seen)
}
