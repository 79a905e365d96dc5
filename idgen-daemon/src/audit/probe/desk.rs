//! Where findings go: looked up, told, and stored. Nothing is thrown away: whoever reads the topic goes on while there is room
//! here, and waits while there is none.

use super::super::finding::{Finding, FindingKind, FoundBy, Issuer, record};
use super::gaps::Told;
use super::hear::{Earlier, Hit, issuer};
use super::vault::Vault;
use crate::archive::kafka::settings;
use crate::archive::parquet::EventRow;
use crate::complaint::Complaint;
use crate::config::{KafkaConfig, PostgresConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::metrics::ProbeMetrics;
use crate::postgres::{Session, reach};
use idgen_core::utc::parse_us;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// With so many findings waiting nothing more is read; one event may have several, so it may be some more. So many at once are
/// one trouble, and each of them is in the log.
const WAITING: usize = 1_000;
/// With more than so many waiting, no earlier record is looked up.
const LOOKED_UP: usize = 100;
/// For looking up one earlier record.
const LOOK_UP: Duration = Duration::from_secs(20);
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Before the database is asked to take what it has refused once more: another version of the extension may.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Before the database is asked again.
const RETRY: Duration = Duration::from_secs(2);
/// Between two looks at how many are open.
const COUNT_EVERY: Duration = Duration::from_secs(15);
/// At the end what waits is stored within this, or found again by whoever reads the topic next.
const AT_THE_END: Duration = Duration::from_secs(5);
const STATEMENT: Duration = Duration::from_secs(20);

/// What is put on the tray.
pub(super) enum Order {
    /// Something that cannot be.
    Found(Box<Hit>),
    /// Events that were missing have come.
    Over(Told),
}

/// Whoever reads the topic has this.
pub(super) struct Tray {
    /// Its bound is that readers look for room.
    to: mpsc::UnboundedSender<Order>,
    /// What is not stored, wherever it is on its way.
    waiting: watch::Sender<usize>,
    told: watch::Receiver<Arc<[Told]>>,
}

impl Tray {
    pub(super) fn new(told: watch::Receiver<Arc<[Told]>>) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (to, from) = mpsc::unbounded_channel();
        let (waiting, _) = watch::channel(0);
        (Self { to, waiting, told }, from)
    }

    pub(super) fn found(&self, hit: Hit) {
        self.put(Order::Found(Box::new(hit)));
    }

    /// A finding that is none any more.
    pub(super) fn over(&self, told: Told) {
        self.put(Order::Over(told));
    }

    /// Findings that events have not come, as the database has them now and then.
    pub(super) fn told(&self) -> watch::Receiver<Arc<[Told]>> {
        self.told.clone()
    }

    fn put(&self, order: Order) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        if let Err(refused) = self.to.send(order)
            && let Order::Found(hit) = refused.0
        {
            // It counts as waiting for ever, so no checkpoint goes past it.
            log(&hit.finding);
        }
    }

    /// How many more may be put.
    pub(super) fn room(&self) -> usize {
        WAITING.saturating_sub(*self.waiting.borrow())
    }

    /// Waits until there is room.
    pub(super) async fn has_room(&self) {
        // The sender is ours, so it ends in no other way.
        let _ = self
            .waiting
            .subscribe()
            .wait_for(|waiting| *waiting < WAITING)
            .await;
    }

    /// Is everything stored?
    pub(super) fn is_empty(&self) -> bool {
        *self.waiting.borrow() == 0
    }

    /// Does nobody store anything any more?
    pub(super) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}

/// See the module.
pub(super) struct Desk {
    from: mpsc::UnboundedReceiver<Order>,
    waiting: watch::Sender<usize>,
    told: watch::Sender<Arc<[Told]>>,
    queue: VecDeque<Order>,
    /// What the database has refused for good. It holds nothing else up, and no checkpoint goes past it.
    refused: Vec<Order>,
    ask_again_at: tokio::time::Instant,
    postgres: PostgresConfig,
    kafka: KafkaConfig,
    vault: Option<Vault>,
    metrics: ProbeMetrics,
    session: Option<Session>,
    consumer: OnceLock<BaseConsumer>,
    trouble: Complaint,
    open: i64,
}

impl Desk {
    pub(super) fn new(
        postgres: PostgresConfig,
        kafka: KafkaConfig,
        vault: Option<Vault>,
        metrics: ProbeMetrics,
    ) -> (Self, Tray) {
        let (told, of_reader) = watch::channel(Arc::default());
        let (tray, from) = Tray::new(of_reader);
        let waiting = tray.waiting.clone();
        let desk = Self {
            from,
            waiting,
            told,
            queue: VecDeque::new(),
            refused: Vec::new(),
            ask_again_at: tokio::time::Instant::now(),
            postgres,
            kafka,
            vault,
            metrics,
            session: None,
            consumer: OnceLock::new(),
            trouble: Complaint::default(),
            open: 0,
        };
        (desk, tray)
    }

    /// Works until `stop`, and a little longer if something waits.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut count_at = tokio::time::Instant::now();
        let mut retry_at = None;
        loop {
            let (has_work, has_refused) = (!self.queue.is_empty(), !self.refused.is_empty());
            tokio::select! {
                () = stop.cancelled() => break,
                Some(order) = self.from.recv() => {
                    self.queue.push_back(self.prepare(order).await);
                }
                () = tokio::time::sleep_until(retry_at.unwrap_or_else(tokio::time::Instant::now)), if has_work => {
                    retry_at = self.store().await.err().map(|error| {
                        self.trouble.raise(format!("probe: {error}; findings are kept"), Instant::now());
                        self.session = None;
                        tokio::time::Instant::now() + RETRY
                    });
                }
                () = tokio::time::sleep_until(self.ask_again_at), if has_refused => {
                    self.queue.extend(self.refused.drain(..));
                }
                () = tokio::time::sleep_until(count_at) => {
                    // What it cannot count now it counts later: there is nothing to be lost.
                    let _ = self.count().await;
                    count_at = tokio::time::Instant::now() + COUNT_EVERY;
                }
            }
            self.show();
        }
        let _ = tokio::time::timeout(AT_THE_END, self.finish()).await;
    }

    async fn finish(&mut self) {
        while let Ok(order) = self.from.try_recv() {
            self.queue.push_back(order);
        }
        while !self.queue.is_empty() {
            if self.store().await.is_err() {
                self.session = None;
                tokio::time::sleep(RETRY / 4).await;
            }
        }
    }

    fn show(&self) {
        let is_overlap = |order: &&Order| match order {
            Order::Found(hit) => is_of_ids(hit.finding.kind),
            Order::Over(_) => false,
        };
        let waiting = self.queue.iter().chain(&self.refused);
        let waiting = waiting.filter(is_overlap).count();
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        self.metrics.overlap_open.set(self.open.saturating_add(waiting));
        let all = i64::try_from(*self.waiting.borrow()).unwrap_or(i64::MAX);
        self.metrics.waiting.set(all);
        let refused = i64::try_from(self.refused.len()).unwrap_or(i64::MAX);
        self.metrics.refused.set(refused);
    }

    /// Looks up what is to be looked up, and tells it.
    async fn prepare(&self, order: Order) -> Order {
        let Order::Found(mut hit) = order else {
            return order;
        };
        let waiting = *self.waiting.borrow();
        let remark = match (&hit.earlier, waiting) {
            (Earlier::Settled, _) => None,
            (_, waiting) if waiting > LOOKED_UP => {
                Some("the earlier record was not looked up: too much is to be told")
            }
            _ => match tokio::time::timeout(LOOK_UP, self.look_up(&hit)).await {
                Ok(Ok(Some(first))) => {
                    hit.finding.first = Some(first);
                    Some("both records were read")
                }
                Ok(Ok(None)) => {
                    Some("the earlier record was not found in the topic, the table or the archive")
                }
                Ok(Err(error)) => {
                    tracing::debug!("look up the earlier record: {error}");
                    Some("the earlier record could not be looked up")
                }
                Err(_) => Some("the earlier record was not found in time; idgenctl whois looks longer"),
            },
        };
        if let Some(remark) = remark {
            hit.finding.detail = format!("{}; {remark}", hit.finding.detail);
        }
        hit.earlier = Earlier::Settled;
        log(&hit.finding);
        Order::Found(hit)
    }

    async fn look_up(&self, hit: &Hit) -> Result<Option<Issuer>> {
        let known = hit.finding.first.as_ref();
        let is_it = |event: &Event| {
            known.is_none_or(|known| {
                (known.source == event.source.to_string()) && known.event_id == Some(event.event_id)
            })
        };
        match hit.earlier {
            Earlier::Settled => Ok(None),
            Earlier::At(partition, offset) => {
                let place = Some((partition, offset));
                if let Some(event) = self.read_again(partition, offset).filter(&is_it) {
                    return Ok(Some(issuer(&event, place)));
                }
                let Some(vault) = &self.vault else { return Ok(None) };
                let row = vault.at(partition, offset).await?;
                Ok(row
                    .filter(|row| is_it(&row.event))
                    .map(|row| issuer(&row.event, place)))
            }
            Earlier::GrantOf(..) | Earlier::Number(_) => {
                if let Some(found) = self.in_table(hit).await? {
                    return Ok(Some(found));
                }
                let Some(vault) = &self.vault else { return Ok(None) };
                let row = vault.find(|_| true, |row| is_earlier(hit, row)).await?;
                Ok(row.map(|row| issuer(&row.event, Some((row.spot.partition, row.spot.offset)))))
            }
        }
    }

    /// The event at an offset of the topic, if it is there still. Blocks as long as it takes.
    fn read_again(&self, partition: i32, offset: i64) -> Option<Event> {
        tokio::task::block_in_place(|| {
            let consumer = self.reader()?;
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&self.kafka.topic, partition, Offset::Offset(offset))
                .ok()?;
            consumer.assign(&list).ok()?;
            let message = consumer.poll(READ_AGAIN)?.ok()?;
            let is_it = (message.partition(), message.offset()) == (partition, offset);
            let event = message.payload().filter(|_| is_it);
            let event = event.and_then(|value| Event::parse(value).ok());
            // Nothing more is read ahead.
            let _ = consumer.unassign();
            event
        })
    }

    /// Made when it is first needed: as a rule never.
    fn reader(&self) -> Option<&BaseConsumer> {
        if let Some(consumer) = self.consumer.get() {
            return Some(consumer);
        }
        let mut config = settings(&self.kafka, "probe").ok()?;
        config.set("fetch.wait.max.ms", "50");
        let made = config.create().ok()?;
        Some(self.consumer.get_or_init(|| made))
    }

    async fn in_table(&self, hit: &Hit) -> Result<Option<Issuer>> {
        const COLUMNS: &str = "
            SELECT e.source_id::text, e.event_id,
                   to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), e.lo, e.hi,
                   e.token_epoch || '/' || e.token_revision
              FROM idgen.audit_event e
             WHERE e.space_id = $1 AND e.tag = $2 AND NOT (e.source_id = $3 AND e.event_id = $4) AND ";
        const GRANT: &str =
            "e.kind = 'segment.grant' AND e.hi >= $5 AND e.lo <= $6 ORDER BY e.event_id LIMIT 1";
        const NUMBER: &str = "e.source_id = $3 AND e.tag_seq = $5 AND $6 >= 0 ORDER BY e.event_id LIMIT 1";
        let (condition, a, b) = match hit.earlier {
            Earlier::GrantOf(lo, hi) => (GRANT, lo, hi),
            Earlier::Number(number) => (NUMBER, number, 0),
            Earlier::Settled | Earlier::At(..) => return Ok(None),
        };
        let finding = &hit.finding;
        let Some(later) = &finding.second else {
            return Ok(None);
        };
        let source: Option<Uuid> = later.source.parse().ok();
        let session = self.connect().await?;
        let rows = session
            .rows_typed(
                &format!("{COLUMNS}{condition}"),
                &[
                    (&finding.space, Type::UUID),
                    (&finding.tag, Type::TEXT),
                    (&source, Type::UUID),
                    (&later.event_id, Type::INT8),
                    (&a, Type::INT8),
                    (&b, Type::INT8),
                ],
            )
            .await
            .map_err(|error| Error::retry(error.to_string()))?;
        let failed = |error: tokio_postgres::Error| Error::retry(error.to_string());
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Issuer {
            source: row.try_get(0).map_err(failed)?,
            event_id: row.try_get(1).map_err(failed)?,
            at: row.try_get(2).map_err(failed)?,
            lo: row.try_get(3).map_err(failed)?,
            hi: row.try_get(4).map_err(failed)?,
            token: row.try_get(5).map_err(failed)?,
            ..Issuer::default()
        }))
    }

    async fn connect(&self) -> Result<Session> {
        let postgres = &self.postgres;
        reach(&postgres.url, "idgend probe", postgres.connect_timeout, STATEMENT).await
    }

    async fn session(&mut self) -> Result<&Session> {
        if self.session.as_mut().is_none_or(|session| !session.is_usable()) {
            self.session = Some(self.connect().await?);
        }
        self.session
            .as_ref()
            .ok_or_else(|| Error::retry("there is no session"))
    }

    /// Stores the first that waits.
    async fn store(&mut self) -> Result<()> {
        self.session().await?;
        let (Some(session), Some(order)) = (&self.session, self.queue.front()) else {
            return Ok(());
        };
        match order {
            Order::Found(hit) => {
                let recorded = match record(session, &hit.finding, FoundBy::Probe, None).await {
                    Err(error) if error.kind() == ErrorKind::Refused => {
                        tracing::error!(
                            "probe: a finding is refused by the database, and kept here: {error}"
                        );
                        log(&hit.finding);
                        if self.refused.is_empty() {
                            self.ask_again_at = tokio::time::Instant::now() + ASK_AGAIN;
                        }
                        self.refused.extend(self.queue.pop_front());
                        return Ok(());
                    }
                    recorded => recorded?,
                };
                self.metrics
                    .reduced
                    .inc_by(u64::from(recorded.is_new && recorded.is_reduced));
                if recorded.is_new {
                    self.metrics.count_finding(hit.finding.kind);
                    tracing::error!(finding = recorded.id, kind = %hit.finding.kind, "stored in idgen.audit_finding");
                }
            }
            Order::Over(told) => told.settle(session).await?,
        }
        self.queue.pop_front();
        self.waiting.send_modify(|waiting| *waiting -= 1);
        self.trouble.settle("probe: findings are stored");
        if self.queue.is_empty() {
            self.count().await?;
        }
        Ok(())
    }

    async fn count(&mut self) -> Result<()> {
        const OPEN: &str = "SELECT count(*) FROM idgen.audit_finding
                             WHERE closed_at IS NULL AND kind IN ('overlap', 'lease_overlap')";
        let rows = self.session().await?.rows_typed(OPEN, &[]).await;
        let rows = rows.map_err(|error| Error::retry(format!("count the findings: {error}")))?;
        if let Some(row) = rows.first() {
            self.open = row
                .try_get(0)
                .map_err(|error| Error::retry(format!("count the findings: {error}")))?;
        }
        let told = Told::all(self.session().await?).await?;
        self.told.send_replace(told.into());
        Ok(())
    }
}

/// Is it about ids that may have been given out twice?
const fn is_of_ids(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::Overlap | FindingKind::LeaseOverlap)
}

/// Is this the record that was before the second one?
fn is_earlier(hit: &Hit, row: &EventRow) -> bool {
    let (finding, event) = (&hit.finding, &row.event);
    let Some(later) = &finding.second else {
        return false;
    };
    let is_same = later.source == event.source.to_string()
        && later.event_id == Some(event.event_id)
        && later.at.as_deref().and_then(parse_us) == Some(row.at_us);
    if is_same || finding.space != Some(event.space) || finding.tag.as_deref() != Some(&event.tag) {
        return false;
    }
    match hit.earlier {
        Earlier::GrantOf(lo, hi) => {
            event.kind == "segment.grant"
                && event.lo.is_some_and(|first| first <= hi)
                && event.hi.is_some_and(|last| last >= lo)
        }
        Earlier::Number(number) => later.source == event.source.to_string() && event.tag_seq == number,
        Earlier::Settled | Earlier::At(..) => false,
    }
}

fn log(finding: &Finding) {
    let show = |issuer: Option<&Issuer>| match issuer.map(serde_json::to_string) {
        Some(Ok(text)) => text,
        _ => "unknown".to_owned(),
    };
    let space = finding.space.map(|space| space.to_string());
    tracing::error!(
        kind = %finding.kind,
        space,
        tag = finding.tag,
        common = ?finding.common,
        first = show(finding.first.as_ref()),
        second = show(finding.second.as_ref()),
        "{}",
        finding.detail
    );
}
