//! Reads the topic from where the probe knows it, and tells the probe of each message.

use super::checkpoint::{Checkpoint, Loaded, Offsets};
use super::desk::Tray;
use super::gaps::{GapWatch, Told};
use super::hear::{Hit, Mind};
use super::vault::Vault;
use crate::archive::kafka::{Partitions, assign, consumer, partitions};
use crate::complaint::Complaint;
use crate::config::KafkaConfig;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::lease::{Sole, host_ms};
use crate::metrics::ProbeMetrics;
use idgen_core::audit::{Counts, Limits};
use rdkafka::consumer::StreamConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::types::RDKafkaErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What its group is called by. It commits no offsets.
const WHO: &str = "probe";
/// So long a message is waited for; the clock is looked at as often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Messages before others have their turn on this thread.
const AT_ONCE: usize = 1_000;
const CHECKPOINT_EVERY: Duration = Duration::from_secs(300);
/// Partitions that were added are seen within this, and whether it is the end that nothing comes from.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);
/// In trouble the brokers are asked so often whether it is over.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// At the end findings have so long to be stored, or no checkpoint is written: they are found again.
const LAST_FINDINGS: Duration = Duration::from_secs(5);

/// What is known, and where it goes on.
pub(super) struct State {
    pub(super) mind: Mind,
    pub(super) next: Offsets,
}

/// What every turn works with.
pub(super) struct Setup {
    pub(super) kafka: KafkaConfig,
    pub(super) limits: Limits,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) vault: Option<Vault>,
    pub(super) metrics: ProbeMetrics,
    pub(super) tray: Tray,
}

impl Setup {
    /// What is known, from the checkpoint, the archive, or nothing.
    async fn begin(&self, stop: &CancellationToken) -> Result<State> {
        if let Some(checkpoint) = &self.checkpoint {
            match tokio::task::block_in_place(|| checkpoint.load(self.limits))? {
                Loaded::Whole(mind, next) => {
                    tracing::info!(
                        tags = mind.probe.tags(),
                        events = mind.probe.counts().events,
                        "the probe goes on from its checkpoint"
                    );
                    return Ok(State { mind: *mind, next });
                }
                Loaded::Nothing => {}
                Loaded::Damaged(why) => tracing::error!(
                    path = %checkpoint.path().display(),
                    "the checkpoint of the probe is refused: {why}; what it knew is read anew"
                ),
            }
        }
        let mut mind = Mind::new(self.limits);
        let next = match &self.vault {
            Some(vault) => {
                tracing::info!("the probe reads the archive from its beginning");
                vault.tell_all(&mut mind, (&self.tray, stop)).await?
            }
            None => Offsets::new(),
        };
        tracing::info!(
            tags = mind.probe.tags(),
            events = mind.probe.counts().events,
            "the probe reads the topic from {}",
            if next.is_empty() {
                "its beginning"
            } else {
                "where the archive ends"
            }
        );
        Ok(State { mind, next })
    }

    /// What the topic has no more comes from the archive; what is not there either cuts the partition.
    async fn catch_up(&self, state: &mut State, marks: &Partitions, stop: &CancellationToken) -> Result<()> {
        let mut wanted = BTreeMap::new();
        for (partition, (first, end)) in marks {
            let next = *state.next.entry(*partition).or_insert(0);
            if next > *end {
                return Err(Error::retry(format!(
                    "partition {partition} ends at offset {end}, and the probe goes on at {next}: the topic was made anew, or \
                     has lost messages"
                ))
                .with_hint(
                    "where it was made anew under its old name, remove the probe's checkpoint, and give it another name \
                     for the archive",
                ));
            }
            if next < *first {
                wanted.insert(*partition, (next, *first));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let reached = match &self.vault {
            Some(vault) => {
                vault
                    .tell_part(&wanted, &mut state.mind, (&self.tray, stop))
                    .await?
            }
            None => Offsets::new(),
        };
        for (partition, (next, first)) in wanted {
            let reached = reached.get(&partition).copied().unwrap_or(next);
            if reached < first {
                tracing::error!(
                    partition,
                    from = reached,
                    to = first,
                    "these offsets are gone from the topic, and the archive has not got them: of tags that had events there \
                     the probe does not know everything"
                );
                state.mind.probe.cut(partition);
            }
            state.next.insert(partition, first);
        }
        Ok(())
    }
}

/// Reads as long as it is the only one, until `stop` or an error. What it knows stays in `state`.
pub(super) async fn turn(
    setup: &Setup,
    state: &mut Option<State>,
    sole: &Sole,
    stop: &CancellationToken,
    trouble: &mut Complaint,
) -> Result<()> {
    let consumer = consumer(&setup.kafka, WHO)?;
    // Before the archive is read: it ends behind where the topic begins, or nearly.
    partitions(&consumer, &setup.kafka.topic)?;
    if state.is_none() {
        *state = Some(setup.begin(stop).await?);
    }
    let Some(state) = state.as_mut() else {
        return Ok(());
    };
    let marks = partitions(&consumer, &setup.kafka.topic)?;
    setup.catch_up(state, &marks, stop).await?;
    let offsets = state.next.iter().map(|(partition, next)| (*partition, *next));
    assign(&consumer, &setup.kafka.topic, offsets)?;
    let now = Instant::now();
    let reader = Reader {
        setup,
        counted: state.mind.probe.counts(),
        state,
        consumer,
        gaps: GapWatch::default(),
        told: setup.tray.told(),
        degraded: 0,
        newest_ms: None,
        good_at: now,
        in_trouble: false,
        asked_at: now,
        saved_at: now,
        looked_at: now,
    };
    reader.run(sole, stop, trouble).await
}

struct Reader<'a> {
    setup: &'a Setup,
    state: &'a mut State,
    consumer: StreamConsumer,
    gaps: GapWatch,
    told: watch::Receiver<Arc<[Told]>>,
    /// What was counted up to now.
    counted: Counts,
    degraded: usize,
    /// When the newest message since the last look came to its broker.
    newest_ms: Option<i64>,
    /// When a message came, or the end was seen, for the last time.
    good_at: Instant,
    in_trouble: bool,
    asked_at: Instant,
    saved_at: Instant,
    looked_at: Instant,
}

impl Reader<'_> {
    async fn run(mut self, sole: &Sole, stop: &CancellationToken, trouble: &mut Complaint) -> Result<()> {
        self.setup.metrics.reading.set(1);
        self.look()?;
        while sole.is_held() && !self.setup.tray.is_closed() {
            let (tray, consumer) = (&self.setup.tray, &self.consumer);
            let next = async {
                tray.has_room().await;
                consumer.recv().await
            };
            let received = tokio::select! {
                () = stop.cancelled() => return self.end().await,
                received = tokio::time::timeout(LOOK_EVERY, next) => received,
            };
            match received {
                Err(_) if self.is_held_up() => trouble.raise(
                    "probe: too many findings wait to be stored: the topic is not read on until they are"
                        .to_owned(),
                    Instant::now(),
                ),
                Err(_) => {}
                Ok(Err(error)) => self.failed(&error, trouble)?,
                Ok(Ok(message)) => {
                    take(self.setup, self.state, &message, &mut self.newest_ms);
                    self.in_trouble = false;
                    self.good_at = Instant::now();
                    trouble.settle("the probe reads the topic");
                    if let Err(error) = self.take_more() {
                        self.failed(&error, trouble)?;
                    }
                }
            }
            if self.looked_at.elapsed() >= LOOK_EVERY {
                self.look()?;
            }
            // In a backlog there is always a message.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Nothing is read, since nothing more can be kept that is found.
    fn is_held_up(&self) -> bool {
        self.setup.tray.room() == 0
    }

    /// What is there already, up to so many.
    fn take_more(&mut self) -> std::result::Result<(), KafkaError> {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..AT_ONCE {
            if self.is_held_up() {
                break;
            }
            let receiving = std::pin::pin!(self.consumer.recv());
            let Poll::Ready(received) = receiving.poll(&mut context) else {
                break;
            };
            take(self.setup, self.state, &received?, &mut self.newest_ms);
        }
        Ok(())
    }

    fn failed(&mut self, error: &KafkaError, trouble: &mut Complaint) -> Result<()> {
        match error.rdkafka_error_code() {
            // The next turn begins behind what is gone.
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => Err(
                Error::retry("offsets are gone from the topic before they were read"),
            ),
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Err(
                Error::retry(format!("topic {} is not there", self.setup.kafka.topic)),
            ),
            _ => {
                // The library connects again by itself.
                self.in_trouble = true;
                trouble.raise(
                    format!("probe: read topic {}: {error}", self.setup.kafka.topic),
                    Instant::now(),
                );
                Ok(())
            }
        }
    }

    /// Everything that is done by the clock.
    fn look(&mut self) -> Result<()> {
        let now = Instant::now();
        self.looked_at = now;
        self.watch_gaps(now);
        self.ask(now)?;
        self.show(now);
        if now.duration_since(self.saved_at) >= CHECKPOINT_EVERY && self.setup.tray.is_empty() {
            self.saved_at = now;
            self.save();
        }
        Ok(())
    }

    /// Tells of gaps that stay, and of findings whose events have come.
    fn watch_gaps(&mut self, now: Instant) {
        let (tray, probe) = (&self.setup.tray, &self.state.mind.probe);
        let is_reading = !self.in_trouble && !self.is_held_up();
        let findings = self.gaps.look(probe.open_gaps(), (now, is_reading), tray.room());
        for finding in findings {
            tray.found(Hit::settled(finding));
        }
        if self.told.has_changed().unwrap_or(false) {
            let told = Arc::clone(&self.told.borrow_and_update());
            let come = told.iter().filter(|told| told.has_come(probe));
            for told in come.take(tray.room()) {
                tray.over(told.clone());
            }
        }
    }

    /// Asks the brokers whether there are more partitions, and in trouble whether it is over.
    fn ask(&mut self, now: Instant) -> Result<()> {
        let every = if self.in_trouble {
            ASK_EVERY
        } else {
            PARTITIONS_EVERY
        };
        if now.duration_since(self.asked_at) < every {
            return Ok(());
        }
        self.asked_at = now;
        let topic = &self.setup.kafka.topic;
        let Ok(marks) = partitions(&self.consumer, topic) else {
            self.in_trouble = true;
            return Ok(());
        };
        self.in_trouble = false;
        if marks
            .keys()
            .any(|partition| !self.state.next.contains_key(partition))
        {
            return Err(Error::retry(format!("topic {topic} has more partitions now")));
        }
        Ok(())
    }

    fn show(&mut self, now: Instant) {
        let (metrics, probe) = (&self.setup.metrics, &self.state.mind.probe);
        let lag_s = match (self.newest_ms.take(), self.in_trouble || self.is_held_up()) {
            (Some(newest_ms), _) => {
                let now_ms = host_ms();
                now_ms.saturating_sub(newest_ms).max(0) / 1_000
            }
            (None, true) => i64::try_from(now.duration_since(self.good_at).as_secs()).unwrap_or(i64::MAX),
            (None, false) => {
                self.good_at = now;
                0
            }
        };
        metrics.lag.set(lag_s);
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        metrics.gap_open.set(signed(self.gaps.len()));
        let counts = probe.counts();
        let is_limited = counts.untracked > 0 || self.state.mind.leases.unjudged() > 0;
        metrics.set_degraded(
            probe.blurred_tags(),
            probe.unseen_streams(),
            usize::from(is_limited),
        );
        metrics.count_events(&self.counted, &counts);
        self.counted = counts;
        let degraded = probe.degraded_tags() + usize::from(is_limited);
        if degraded > self.degraded {
            tracing::warn!(
                for_want_of_memory = probe.blurred_tags(),
                gone_from_the_topic = probe.unseen_streams(),
                beyond_the_limit = is_limited,
                "the probe does not know everything of some tags, and would not see every overlap: docs/operations.md, \
                 The probe is degraded"
            );
        }
        self.degraded = degraded;
    }

    /// The one before stays where it fails.
    fn save(&self) {
        let Some(checkpoint) = &self.setup.checkpoint else {
            return;
        };
        let written = tokio::task::block_in_place(|| checkpoint.write(&self.state.mind, &self.state.next));
        match written {
            Ok(()) => tracing::debug!("checkpoint of the probe written"),
            Err(error) => tracing::warn!("probe: {error}"),
        }
    }

    async fn end(self) -> Result<()> {
        let until = Instant::now() + LAST_FINDINGS;
        while !self.setup.tray.is_empty() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if self.setup.tray.is_empty() {
            self.save();
        }
        Ok(())
    }
}

fn take(setup: &Setup, state: &mut State, message: &BorrowedMessage<'_>, newest_ms: &mut Option<i64>) {
    let (partition, offset) = (message.partition(), message.offset());
    let next = state.next.entry(partition).or_insert(0);
    if offset < *next {
        return;
    }
    *next = offset + 1;
    let at_ms = message.timestamp().to_millis().unwrap_or(0);
    *newest_ms = Some(newest_ms.unwrap_or(at_ms).max(at_ms));
    let event = message.payload().and_then(|value| Event::parse(value).ok());
    let became = event.and_then(|event| state.mind.hear(&event, (partition, offset)));
    let Some(became) = became else {
        setup.metrics.foreign.inc();
        tracing::debug!(partition, offset, "a message is no event of this version");
        return;
    };
    for gap in became.gaps {
        tracing::warn!(partition, offset, "{gap}");
    }
    for hit in became.hits {
        setup.tray.found(hit);
    }
}
