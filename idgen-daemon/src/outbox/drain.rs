//! Drains one queue: reads it, sends, and marks what the brokers have.
//!
//! ```text
//!  keep the lease -> collect reports -> mark -> look -> send -> wait for a report or a while
//! ```
//! One task, one session, one producer. Whatever fails, the producer is dropped with what is in it and everything begins anew
//! from the table; what the brokers have and nobody has marked yet is marked first where the session is still the same.

mod send;

use super::lease::{Held, Holder, Lease};
use super::producer::{Report, Sender};
use super::queue::{Marked, Queue};
use crate::complaint::Complaint;
use crate::config::KafkaConfig;
use crate::error::{Error, Result};
use crate::metrics::DrainMetrics;
use crate::postgres::Session;
use crate::random::random;
use idgen_core::outbox::{Backoff, Flight, FlightLimits, Poison, SendFault};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Rows of one look.
const LOOK_ROWS: usize = 1_000;
/// With less room than for so many it is waited for more: a look reads what is in flight too.
const ROOM_MIN: usize = 100;
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
    /// Dead letters that were written since the queue was last begun anew.
    kept: BTreeSet<Q::Key>,
    /// A broker has refused a batch: until the queue is empty each event goes by itself, so that it is known which one it is.
    singly: bool,
    /// A batch was refused: the next producer sends singly.
    is_suspect: bool,
    /// What failed last will not fail again like this.
    is_mended: bool,
    /// There was no room for the next event: until something is marked there is nothing to look for.
    is_full: bool,
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
            kept: BTreeSet::new(),
            singly: false,
            is_suspect: false,
            is_mended: false,
            is_full: false,
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
        // Room comes with our own marks, or, where nothing is in flight, from other drainers.
        let is_full = self.flight.room() < ROOM_MIN || (self.is_full && !self.flight.is_empty());
        if self.failed.is_some() || Instant::now() < self.resume_at || is_full {
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
            self.note_poison(key, poison);
        }
        self.flight.give_up(&key);
        match &mut self.failed {
            Some((known, _, _)) if known.says() >= fault.says() => {}
            Some((known, text, _)) => (*known, *text) = (fault, why),
            None => self.failed = Some((fault, why, Instant::now())),
        }
    }

    /// Brokers refuse whole batches for one event of them. So whose fault it is is known only where each went by itself.
    fn note_poison(&mut self, key: Q::Key, poison: Poison) {
        if self.singly {
            // Where it was a stub already nothing is mended.
            self.is_mended |= self.stubs.insert(key, poison).is_none();
        } else {
            self.is_suspect = true;
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
        self.begin_anew();
        self.config.metrics.count_reset(fault.name());
        let verdict = fault.verdict();
        let is_suspect = std::mem::take(&mut self.is_suspect);
        self.singly |= is_suspect;
        let wait = match std::mem::take(&mut self.is_mended) || is_suspect {
            true => 0,
            false => self.trouble.wait_ms((random() & 0xff) as u8),
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
        self.begin_anew();
        (self.is_mended, self.is_suspect) = (false, false);
        self.lease.forget();
        self.acknowledged_at = None;
        self.config.metrics.stand_by();
    }

    /// The next look begins at the oldest.
    fn begin_anew(&mut self) {
        self.queue.reset();
        self.kept.clear();
        self.is_full = false;
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
        let now = self.now_ms();
        let quiet = Duration::from_millis(self.flight.quiet_ms(now));
        if sender.is_connected() {
            if quiet >= self.config.kafka.ack_timeout {
                let why = format!("no acknowledgement for {} s", quiet.as_secs());
                self.reset(SendFault::Silence, &why);
            }
        } else {
            // When a broker is back it has the whole of the time to answer.
            self.flight.restart_quiet(now);
            if let Some((_, why)) = sender.trouble() {
                let waiting = self.flight.len();
                let text = format!(
                    "{}: kafka: {why}; {waiting} events are in flight, the others wait",
                    self.config.name
                );
                self.complaint.raise(text, Instant::now());
            }
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
            Marked::Nothing if self.lease.confirm(session).await? => {
                // The table knows more than the queue does.
                self.queue.reset();
                keys
            }
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
            self.kept.remove(key);
            self.is_full = false;
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
        // Never fewer because there is less room: what is in flight is found again at each look.
        let page = self.queue.look(session, self.now_ms(), LOOK_ROWS).await?;
        if page.rows.is_empty() {
            self.queue.took(self.now_ms(), 0, self.flight.lowest());
            self.go_back_to_batches();
            return Ok(0);
        }
        if self.lease.has_run_out() {
            self.lease.forget();
            return Ok(0);
        }
        if self.sender.is_none() && page.rows.iter().any(|row| !self.flight.has(&row.key)) {
            match Sender::open(&self.config.kafka, self.singly).await {
                Ok(sender) => self.sender = Some((sender, Instant::now())),
                Err(error) => {
                    let wait = self.trouble.wait_ms((random() & 0xff) as u8);
                    self.resume_at = Instant::now() + Duration::from_millis(wait);
                    self.complain(&error);
                    self.begin_anew();
                    return Ok(0);
                }
            }
        }
        self.send_page(session, held, page).await
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
