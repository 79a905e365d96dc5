//! Drains one queue: reads it, sends, and marks what the brokers have.
//!
//! ```text
//!  keep the lease -> collect reports -> mark -> look -> send -> wait for a report or a while
//! ```
//! One task, one session, one producer. Whatever fails, the producer is dropped with what is in it and everything begins anew
//! from the table; what the brokers have and nobody has marked yet is marked first where the session is still the same.

use super::lease::{Held, Holder, Lease};
use super::producer::{Report, Sender, Sent};
use super::queue::{Marked, Page, Queue, Row};
use crate::complaint::Complaint;
use crate::config::KafkaConfig;
use crate::error::{Error, Result};
use crate::event::StubReason;
use crate::metrics::DrainMetrics;
use crate::postgres::Session;
use crate::random::random;
use idgen_core::outbox::{Backoff, Flight, FlightLimits, Poison, SendFault};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Rows of one look.
const LOOK_ROWS: usize = 1_000;
/// Rows that are marked together at the most,
const MARK_ROWS: usize = 2_000;
/// ... and for how long an acknowledged row waits for others.
const MARK_AFTER: Duration = Duration::from_millis(20);
/// Who does not hold the lease looks so often whether it may.
const STAND_BY: Duration = Duration::from_secs(1);
/// Between two looks at what is behind, at the least.
const WATCH: Duration = Duration::from_secs(5);
/// Looking at what is behind takes at most this part of the time.
const WATCH_PART: u32 = 20;
/// At the end brokers have so long to answer.
const FLUSH: Duration = Duration::from_secs(10);
/// When one message has failed the reports on the others follow at once; nobody waits longer for them.
const FAILED: Duration = Duration::from_secs(2);
/// A producer that nobody needs is let go after so long.
const UNUSED: Duration = Duration::from_secs(60);
/// With more databases than that the looks at an idle one become rarer.
const DATABASES: u32 = 8;
/// One permit of the shared budget.
const PERMIT_BYTES: usize = 1_024;

/// All drainers of the daemon together have so much in flight.
#[must_use]
pub(super) fn budget() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(FlightLimits::default().bytes / PERMIT_BYTES))
}

/// What a drainer works with.
#[derive(Clone)]
pub struct DrainConfig {
    /// What the log calls the queue.
    pub name: String,
    /// Who we are.
    pub holder: Holder,
    /// Where events go.
    pub kafka: KafkaConfig,
    /// Bytes in flight, of all drainers.
    pub budget: Arc<Semaphore>,
    /// How many databases there are: with many each is looked at less often.
    pub databases: Arc<AtomicUsize>,
    /// What it counts.
    pub metrics: DrainMetrics,
}

/// See the module.
pub struct Drainer<Q: Queue> {
    config: DrainConfig,
    queue: Q,
    lease: Lease,
    /// As of the lease, when the queue was last begun at its beginning for it.
    asked: i64,
    flight: Flight<Q::Key, OwnedSemaphorePermit>,
    sender: Option<(Sender, Instant)>,
    /// Something has failed, and this is what says most of why, since when.
    failed: Option<(SendFault, String, Instant)>,
    stubs: BTreeMap<Q::Key, Poison>,
    began: Instant,
    acknowledged_at: Option<Instant>,
    /// Something was marked since somebody asked.
    has_marked: bool,
    watch_at: Instant,
    /// Nothing is sent before.
    resume_at: Instant,
    idle: Backoff,
    trouble: Backoff,
    complaint: Complaint,
}

impl<Q: Queue> Drainer<Q> {
    /// One that has not begun.
    pub fn new(config: DrainConfig, queue: Q) -> Self {
        let now = Instant::now();
        Self {
            lease: Lease::new(Q::STREAM, config.holder.clone()),
            asked: 0,
            config,
            queue,
            flight: Flight::new(FlightLimits::default()),
            sender: None,
            failed: None,
            stubs: BTreeMap::new(),
            began: now,
            acknowledged_at: None,
            has_marked: false,
            watch_at: now,
            resume_at: now,
            idle: Backoff::idle(),
            trouble: Backoff::trouble(),
            complaint: Complaint::default(),
        }
    }

    /// Drains as long as the session lasts. `Ok`: it was asked to stop, and everything is given back.
    ///
    /// # Errors
    /// The session is of no use any more; nothing of it is remembered.
    pub async fn run(&mut self, session: &mut Session, stop: &CancellationToken) -> Result<()> {
        let ended = self.drain(session, stop).await;
        if let Err(error) = &ended {
            // Another session may be one with another history: what was acknowledged is no news of its rows.
            self.forget("session");
            self.complain(error);
        }
        ended
    }

    /// Was anything marked since this was last asked?
    pub(super) fn take_has_marked(&mut self) -> bool {
        std::mem::take(&mut self.has_marked)
    }

    async fn drain(&mut self, session: &mut Session, stop: &CancellationToken) -> Result<()> {
        while !stop.is_cancelled() {
            if !session.is_usable_still() {
                return Err(Error::retry("the connection has ended"));
            }
            let wait = match self.lease.keep(session).await? {
                None => {
                    self.forget_if_any("lease");
                    self.config.metrics.stand_by();
                    STAND_BY
                }
                Some(held) => self.step(session, held).await?,
            };
            self.wait(wait, stop).await;
        }
        self.end(session).await
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A report ends the wait too.
    async fn wait(&mut self, wait: Duration, stop: &CancellationToken) {
        let report = async {
            match &mut self.sender {
                Some((sender, _)) => sender.report().await,
                None => std::future::pending().await,
            }
        };
        let report = tokio::select! {
            () = stop.cancelled() => None,
            () = tokio::time::sleep(wait) => None,
            report = report => report,
        };
        if let Some(report) = report {
            self.heard(report);
        }
    }

    /// Returns how long to wait before the next.
    async fn step(&mut self, session: &Session, held: Held) -> Result<Duration> {
        self.config.metrics.holds(held.epoch);
        if self.lease.asked() != self.asked {
            // What is to be sent once more lies below everything that the queue looks at.
            self.asked = self.lease.asked();
            self.queue.reset();
        }
        self.collect();
        self.reset_if_failed();
        self.watch_silence();
        self.mark(session, held, false).await?;
        if Instant::now() >= self.watch_at {
            self.watch(session, held).await?;
        }
        if self.failed.is_some() || Instant::now() < self.resume_at || self.flight.room() == 0 {
            return Ok(self.pause());
        }
        let sent = self.look(session, held).await?;
        if sent > 0 {
            self.idle.settle();
            return Ok(Duration::ZERO);
        }
        self.let_go_of_sender();
        Ok(self.pause())
    }

    /// Until the next look, or until what was acknowledged is to be marked.
    fn pause(&mut self) -> Duration {
        let many = u32::try_from(self.config.databases.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let idle =
            Duration::from_millis(self.idle.wait_ms((random() & 0xff) as u8)) * (many / DATABASES).max(1);
        match self.acknowledged_at {
            Some(at) => idle.min(MARK_AFTER.saturating_sub(at.elapsed())),
            None => idle,
        }
    }

    fn collect(&mut self) {
        while let Some(report) = self.sender.as_mut().and_then(|(sender, _)| sender.next_report()) {
            self.heard(report);
        }
    }

    fn heard(&mut self, report: Report) {
        let now = self.now_ms();
        match report.outcome {
            Ok(()) => {
                self.flight.acknowledge(report.ticket, now);
                self.acknowledged_at.get_or_insert_with(Instant::now);
                self.trouble.settle();
            }
            Err((fault, why)) => self.note_failure(report.ticket, fault, why),
        }
    }

    /// Nothing more is sent now, and what else is reported is waited for: the report that says why may come last.
    fn note_failure(&mut self, ticket: u64, fault: SendFault, why: String) {
        let Some(key) = self.flight.row_of(ticket) else {
            return;
        };
        if let Some(poison) = fault.verdict().stub {
            self.stubs.insert(key, poison);
        }
        self.flight.give_up(&key);
        match &mut self.failed {
            Some((known, _, _)) if known.says() >= fault.says() => {}
            Some((known, text, _)) => (*known, *text) = (fault, why),
            None => self.failed = Some((fault, why, Instant::now())),
        }
    }

    /// When all reports are there.
    fn reset_if_failed(&mut self) {
        let is_told = self.flight.tickets().next().is_none();
        if let Some((fault, why, since)) = &self.failed
            && (is_told || since.elapsed() >= FAILED)
        {
            let (fault, why) = (*fault, why.clone());
            self.reset(fault, &why);
        }
    }

    /// Where the producer can do nothing any more it knows why, and a message that it did not take does not.
    fn told(&self, fault: SendFault, why: &str) -> (SendFault, String) {
        let fatal = self.sender.as_ref().and_then(|(sender, _)| sender.fatal());
        match fatal {
            Some((worse, fatal)) if fault.says() < 2 => {
                let says_more = if worse.says() > fault.says() { worse } else { fault };
                (says_more, format!("{why}: {fatal}"))
            }
            _ => (fault, why.to_owned()),
        }
    }

    /// The one rule: whatever failed, everything that is not acknowledged is sent anew, in order.
    fn reset(&mut self, fault: SendFault, why: &str) {
        let (fault, why) = self.told(fault, why);
        if let Some((sender, _)) = self.sender.take() {
            sender.purge();
        }
        self.failed = None;
        self.flight.reset();
        self.queue.reset();
        self.config.metrics.count_reset(fault.name());
        let verdict = fault.verdict();
        let wait = match verdict.stub {
            // It is mended already.
            Some(_) => 0,
            None => self.trouble.wait_ms((random() & 0xff) as u8),
        };
        self.resume_at = Instant::now() + Duration::from_millis(wait);
        let hint = match verdict.is_everybodys {
            true => " (hint: no event can be sent until somebody mends this; see the runbooks of the outbox)",
            false => "",
        };
        let text = format!(
            "{}: kafka: {why}; sending anew what is not acknowledged{hint}",
            self.config.name
        );
        self.complaint.raise(text, Instant::now());
    }

    /// Drops everything that was known.
    fn forget(&mut self, cause: &'static str) {
        if let Some((sender, _)) = self.sender.take() {
            sender.purge();
        }
        if !self.flight.is_empty() {
            self.config.metrics.count_reset(cause);
        }
        self.failed = None;
        self.flight.clear();
        self.queue.reset();
        self.lease.forget();
        self.acknowledged_at = None;
        self.config.metrics.stand_by();
    }

    fn forget_if_any(&mut self, cause: &'static str) {
        if self.sender.is_some() || !self.flight.is_empty() {
            tracing::warn!("{}: another daemon drains now", self.config.name);
            self.forget(cause);
        }
    }

    /// No answer for long although a broker is connected: something hangs. With no broker there is nothing to do but wait.
    fn watch_silence(&mut self) {
        let Some((sender, _)) = &self.sender else { return };
        let quiet = Duration::from_millis(self.flight.quiet_ms(self.now_ms()));
        if sender.is_connected() {
            if quiet >= self.config.kafka.ack_timeout {
                let why = format!("no acknowledgement for {} s", quiet.as_secs());
                self.reset(SendFault::Silence, &why);
            }
        } else if let Some((_, why)) = sender.trouble() {
            let waiting = self.flight.len();
            let text = format!(
                "{}: kafka: {why}; {waiting} events are in flight, the others wait",
                self.config.name
            );
            self.complaint.raise(text, Instant::now());
        }
    }

    async fn mark(&mut self, session: &Session, held: Held, all: bool) -> Result<()> {
        let Some(since) = self.acknowledged_at else {
            return Ok(());
        };
        if !all && self.flight.unmarked() < MARK_ROWS && since.elapsed() < MARK_AFTER {
            return Ok(());
        }
        let keys = self.flight.acknowledged(MARK_ROWS);
        let began = Instant::now();
        let done = match self.queue.mark(session, held, &keys).await? {
            Marked::Done(done) => done,
            Marked::Nothing if self.lease.confirm(session).await? => keys,
            Marked::Nothing => {
                self.forget_if_any("lease");
                return Ok(());
            }
        };
        if !done.is_empty() {
            self.has_marked = true;
            self.complaint
                .settle(&format!("{}: events are sent again", self.config.name));
        }
        for key in &done {
            self.flight.marked(key);
            self.stubs.remove(key);
        }
        self.config.metrics.marked(done.len(), began.elapsed());
        // Those that were passed over wait for one before them.
        self.acknowledged_at = (self.flight.unmarked() > 0).then(Instant::now);
        Ok(())
    }

    async fn watch(&mut self, session: &Session, held: Held) -> Result<()> {
        let began = Instant::now();
        let watched = self.queue.watch(session, held).await?;
        self.config.metrics.watched(&watched);
        self.watch_at = Instant::now() + WATCH.max(began.elapsed() * WATCH_PART);
        Ok(())
    }

    /// Returns how many rows were sent.
    async fn look(&mut self, session: &Session, held: Held) -> Result<usize> {
        let limit = LOOK_ROWS.min(self.flight.room());
        let page = self.queue.look(session, self.now_ms(), limit).await?;
        if page.rows.is_empty() {
            self.queue.took(self.now_ms(), 0, self.flight.lowest());
            return Ok(0);
        }
        if self.lease.has_run_out() {
            self.lease.forget();
            return Ok(0);
        }
        if self.sender.is_none() && page.rows.iter().any(|row| !self.flight.has(&row.key)) {
            match Sender::open(&self.config.kafka).await {
                Ok(sender) => self.sender = Some((sender, Instant::now())),
                Err(error) => {
                    let wait = self.trouble.wait_ms((random() & 0xff) as u8);
                    self.resume_at = Instant::now() + Duration::from_millis(wait);
                    self.complain(&error);
                    self.queue.reset();
                    return Ok(0);
                }
            }
        }
        self.send_page(session, held, page).await
    }

    async fn send_page(&mut self, session: &Session, held: Held, page: Page<Q::Key>) -> Result<usize> {
        let more = page.more;
        let (mut taken, mut sent) = (0, 0);
        for mut row in page.rows {
            if !self.flight.has(&row.key) {
                self.make_stub_of(session, &mut row).await?;
                if !self.send(&row, held)? {
                    break;
                }
                sent += 1;
            }
            taken += 1;
        }
        let lowest = self.flight.lowest();
        // After a reset this is of nothing: the next look begins at the beginning.
        self.queue.took(self.now_ms(), taken, lowest);
        if let Some((_, used)) = &mut self.sender
            && sent > 0
        {
            *used = Instant::now();
        }
        // Everything of this page is in flight, and there is another one: go on at once.
        Ok(sent + usize::from(more && taken > 0))
    }

    /// Where it is too long, or was refused before: a stub goes in its place, and the whole is kept.
    async fn make_stub_of(&mut self, session: &Session, row: &mut Row<Q::Key>) -> Result<()> {
        let known = self.stubs.get(&row.key).copied();
        let fits = |sender: &Sender| {
            let value = row.event.to_json().unwrap_or_default();
            sender.fits(&row.event, &value)
        };
        let is_long = row.is_stub || !self.sender.as_ref().is_none_or(|(sender, _)| fits(sender));
        let Some(why) = known.or(is_long.then_some(Poison::TooLarge)) else {
            return Ok(());
        };
        if !self.stubs.contains_key(&row.key) || known.is_some() {
            self.queue.keep_dead(session, row, why).await?;
        }
        self.stubs.insert(row.key, why);
        self.config.metrics.count_stub();
        tracing::warn!(
            event_id = row.event.event_id,
            tag = row.event.tag,
            "{}: an event could not be sent as it is ({why:?}): a stub takes its place, and it is kept as a dead letter",
            self.config.name
        );
        if !row.is_stub {
            let reason = match why {
                Poison::TooLarge => StubReason::TooLarge,
                Poison::Refused => StubReason::Refused,
            };
            row.event = row.event.clone().into_stub(reason);
            row.is_stub = true;
        }
        Ok(())
    }

    /// False: there is no room, or it failed.
    fn send(&mut self, row: &Row<Q::Key>, held: Held) -> Result<bool> {
        let now = self.now_ms();
        let Some((sender, _)) = &self.sender else {
            return Ok(false);
        };
        let value = row
            .event
            .to_json()
            .map_err(|error| Error::retry(format!("write an event: {error}")))?;
        if !self.flight.has_room_for(value.len()) {
            return Ok(false);
        }
        let permits = u32::try_from(value.len().div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.config.budget).try_acquire_many_owned(permits) else {
            return Ok(false);
        };
        let ticket = self.flight.add(row.key, value.len(), permit, now);
        match sender.send(&row.event, &value, held.epoch, ticket) {
            Sent::Queued => Ok(true),
            Sent::Full => {
                self.flight.give_up(&row.key);
                Ok(false)
            }
            Sent::Refused(fault, why) => {
                if let Some(poison) = fault.verdict().stub {
                    self.stubs.insert(row.key, poison);
                }
                self.reset(fault, &why);
                Ok(false)
            }
        }
    }

    fn let_go_of_sender(&mut self) {
        if self.flight.is_empty()
            && let Some((_, used)) = &self.sender
            && used.elapsed() >= UNUSED
            && let Some((sender, _)) = self.sender.take()
        {
            sender.purge();
        }
    }

    /// Stops in this order: nothing new is read; what is with the brokers is waited for; what they have is marked; the rest is
    /// dropped, and is in the table.
    async fn end(&mut self, session: &Session) -> Result<()> {
        if let Some((sender, used)) = self.sender.take() {
            self.sender = Some((sender.flush(FLUSH).await, used));
            self.collect();
        }
        if let Some(held) = self.lease.keep(session).await? {
            while self.flight.unmarked() > 0 {
                let before = self.flight.unmarked();
                self.acknowledged_at.get_or_insert_with(Instant::now);
                self.mark(session, held, true).await?;
                if self.flight.unmarked() >= before {
                    break;
                }
            }
        }
        if let Some((sender, _)) = self.sender.take() {
            sender.purge();
        }
        self.flight.clear();
        self.lease.give_back(session).await
    }

    fn complain(&mut self, error: &Error) {
        let text = format!("{}: {error}", self.config.name);
        self.complaint.raise(text, Instant::now());
    }
}
