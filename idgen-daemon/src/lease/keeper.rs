//! The shell of `idgen_core::lease::keeper`: runs its actions and feeds it what comes of them.

mod drained;
mod server_side;

use super::clock::{AcceptRequest, AcceptRequests, ClockInputs, ClockWatch};
use super::desk::{Acquire, Answer, Census, Desk, Remembered, Request};
use super::history;
use super::orders::OrdersHeard;
use super::ranges::Ranges;
use super::report::{LeaseReport, Report};
use super::server::{Connect, MintingServer};
use super::store::{HolderName, LeaseStore, StoreErrorKind};
use crate::complaint::Complaint;
use crate::config::ClassConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::ClassMetrics;
use crate::postgres::InstallOutcome;
use crate::random::random;
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::keeper::{Held, Loss, Phase, Reading};
use idgen_core::lease::pool::PlanError;
use idgen_core::lease::{
    Action, Anchor, BootId, Claim, Class, Event, Identity, Memory, NotFree, Orders, Pressure, Reach, State,
    Tenancy, Timing, Token, Wanted, next,
};
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Pause between two attempts to reconnect just after the server went away: a crash-restart takes a
/// fifth of a second, and callers wait for us.
const RECONNECT_SOON: Duration = Duration::from_millis(100);
/// How long that goes on; then the normal poll interval is enough.
const RECONNECT_SOON_FOR: Duration = Duration::from_secs(10);
/// Two looks at the server are at least this far apart, whatever is due.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(20);

/// The pool is looked at with every sixth renewal, once a minute by default.
const RENEWALS_PER_CENSUS: u32 = 6;

/// What a keeper works with.
#[derive(Clone, Debug)]
pub struct KeeperConfig {
    /// How often to look at the server that mints.
    pub poll: Duration,
    /// What to lease for it.
    pub class: ClassConfig,
    /// Who we are.
    pub holder: HolderName,
    /// What to judge the server's clock by.
    pub clock: ClockInputs,
    /// How the store is reached.
    pub reach: Reach,
    /// Which identities are wanted, where that changes while it runs; `None` in it: not known yet.
    pub list: Option<watch::Receiver<ShardList>>,
}

/// Which shards a server is to have, in rising order.
pub type ShardList = Option<Arc<[Identity]>>;

/// Keeps the lease of one class of one server.
pub struct Keeper<S, C: Connect> {
    config: KeeperConfig,
    desk: Desk<S>,
    connect: C,
    server: Option<C::Server>,
    state: State,
    memory: Memory,
    clock: ClockWatch,
    /// What the server said last, and when.
    boot_id: Option<BootId>,
    /// What the server remembered of its store when it was connected to.
    remembered: Remembered,
    reading: Option<(ClockReading, Instant)>,
    look_at: Instant,
    /// When the store is to be looked at if nothing else is asked of it.
    look_at_store: Instant,
    lost_at: Instant,
    server_trouble: Complaint,
    store_trouble: Complaint,
    pool_trouble: Complaint,
    /// Listed identities that somebody else has.
    list_trouble: Complaint,
    missing_since: Option<Instant>,
    /// The server is drained.
    drain_trouble: Complaint,
    /// What the server was told of that, and in which shared memory.
    drain_told: Option<(BootId, Option<String>)>,
    renewed: u32,
    /// Claims that the last inspection found open. Nothing is closed before the store has been reached.
    found_open: usize,
    accepts: AcceptRequests,
    orders: OrdersHeard,
    /// What operators have ordered, as far as it was heard.
    ordered: Orders,
    report: watch::Sender<Report>,
    metrics: ClassMetrics,
}

impl<S: LeaseStore, C: Connect> Keeper<S, C> {
    /// A keeper that has not begun.
    pub fn new(
        config: KeeperConfig,
        connect: C,
        store: S,
        accepts: AcceptRequests,
        orders: OrdersHeard,
        report: watch::Sender<Report>,
        metrics: ClassMetrics,
    ) -> Self {
        let now = Instant::now();
        Self {
            desk: Desk::new(store, config.holder.clone(), config.class.timing, config.reach),
            clock: ClockWatch::new(config.clock.clone()),
            state: match &config.class.wanted {
                Wanted::Any(_) => State::new(),
                // Nothing is asked for before it is known what.
                Wanted::Listed(_) if config.list.is_some() => State::wanting(Vec::new()),
                Wanted::Listed(identities) => State::wanting(identities.clone()),
            },
            config,
            connect,
            server: None,
            memory: Memory::new(),
            boot_id: None,
            remembered: Remembered::default(),
            reading: None,
            look_at: now,
            look_at_store: now,
            lost_at: now,
            server_trouble: Complaint::default(),
            store_trouble: Complaint::default(),
            pool_trouble: Complaint::default(),
            list_trouble: Complaint::default(),
            missing_since: None,
            drain_trouble: Complaint::default(),
            drain_told: None,
            renewed: 0,
            found_open: 0,
            accepts,
            orders,
            ordered: Orders::new(),
            report,
            metrics,
        }
    }

    /// Keeps the lease until `stop`, then gives it back.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut stopping = false;
        while self.state.phase != Phase::Stopped {
            let look_at = tokio::time::Instant::from_std(self.look_at);
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    tracing::info!(phase = self.state.phase.name(), "stopping");
                    self.drive(Event::Stop).await?;
                }
                answer = self.desk.answer() => self.on_answer(answer).await?,
                () = closed(&mut self.server) => {
                    self.lose_server("the connection to postgres ended");
                    self.drive(Event::ServerLost).await?;
                }
                list = next_list(&mut self.config.list) => {
                    if let Some(list) = list {
                        self.follow(&list).await?;
                    }
                }
                request = self.accepts.next() => {
                    let event = self.accept_clock(request).await?;
                    self.drive(event).await?;
                }
                (identity, token) = self.orders.next() => {
                    self.ordered.note(identity, token);
                    self.obey().await?;
                }
                () = tokio::time::sleep_until(look_at) => {
                    let event = self.look().await?;
                    self.drive(event).await?;
                    self.watch_store();
                }
            }
        }
        tracing::info!("lease keeper stopped");
        Ok(())
    }

    /// Tells the core of a lease that an operator has ended. It may have been heard before the lease was granted, or
    /// while the server was away.
    async fn obey(&mut self) -> Result<()> {
        let held = self.state.phase.held();
        match held.and_then(|held| self.ordered.against(&held.leased)) {
            Some(token) => self.drive_on(Event::Ordered { token }).await,
            None => Ok(()),
        }
    }

    async fn follow(&mut self, list: &[Identity]) -> Result<()> {
        if self.state.want.as_deref() != Some(list) {
            tracing::info!(identities = %Ranges(list), "these are wanted from now on");
        }
        let identities = list.to_vec();
        self.drive(Event::Want { identities }).await
    }

    async fn on_answer(&mut self, answer: Answer) -> Result<()> {
        if let Some(error) = answer.refused {
            return Err(error);
        }
        for leased in &answer.asked {
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
        }
        for mark in &answer.released {
            self.memory.note_released(*mark);
            let (identity, last_ms) = (mark.claim.identity.0, mark.last.0);
            tracing::debug!(identity, last_ms, token = %mark.claim.token, "identity released");
        }
        if !answer.released.is_empty() {
            let mut identities: Vec<Identity> =
                answer.released.iter().map(|mark| mark.claim.identity).collect();
            identities.sort_unstable();
            tracing::info!(identities = %Ranges(&identities), "lease released");
        }
        let timing = &self.config.class.timing;
        let unanswered = answer
            .trouble
            .as_ref()
            .is_some_and(|error| matches!(error.kind, StoreErrorKind::Unreachable | StoreErrorKind::Unknown));
        let pause_ms = if unanswered {
            timing.retry_ms()
        } else {
            timing.period_ms()
        };
        self.look_at_store = Instant::now() + Duration::from_millis(pause_ms);
        match answer.trouble {
            Some(error) => {
                self.metrics.count_failure(error.kind.name());
                self.store_trouble
                    .raise(format!("lease store: {error}"), Instant::now());
            }
            None if answer.event.is_some() => self.store_trouble.settle("lease store: answers again"),
            None => {}
        }
        if let Some(missing) = answer.missing {
            self.note_missing(missing);
        }
        self.watch_pool();
        self.watch_drain();
        let Some(event) = answer.event else {
            self.publish();
            return Ok(());
        };
        let renewed = matches!(event, Event::Renewed { .. });
        self.drive(event).await?;
        if renewed {
            self.metrics.renewals.inc();
            self.take_census();
        }
        Ok(())
    }

    /// While a shard moves it is still somebody else's for a moment; that is no trouble before a period has passed.
    fn note_missing(&mut self, missing: Vec<NotFree>) {
        if missing.is_empty() {
            self.missing_since = None;
            self.list_trouble.settle("every listed identity is this server's");
            return;
        }
        let (now, period_ms) = (Instant::now(), self.config.class.timing.period_ms());
        let since = *self.missing_since.get_or_insert(now);
        if now.duration_since(since) >= Duration::from_millis(period_ms) {
            let error = PlanError::NotFree(missing);
            self.list_trouble.raise(error.to_string(), now);
        }
    }

    /// Without a lease to renew, nothing would be asked of the store, though the server may mint by an older one: what
    /// is remembered here is to be held against it once a period all the same.
    fn watch_store(&mut self) {
        let renews = self.state.phase.held().is_some() && self.server.is_some();
        if !renews && !self.remembered.anchors.is_empty() && self.look_at_store <= Instant::now() {
            self.desk.submit_if_idle(Request::Look(self.remembered.clone()));
        }
    }

    /// A renewal reads nothing, so the pool is looked at every now and then.
    fn take_census(&mut self) {
        self.renewed += 1;
        let pooled = matches!(self.config.class.wanted, Wanted::Any(_));
        if let Some((reading, _)) = self.reading
            && pooled
            && self.renewed.is_multiple_of(RENEWALS_PER_CENSUS)
        {
            self.desk.submit_if_idle(Request::Census(Census {
                reading,
                memory: self.memory.clone(),
                wanted: self.config.class.wanted.clone(),
            }));
        }
    }

    fn watch_pool(&mut self) {
        let Some(pool) = self.desk.pool() else { return };
        match pool.pressure() {
            Pressure::Low => self.pool_trouble.settle("the worker pool has room again"),
            Pressure::Warn | Pressure::Page => {
                self.pool_trouble
                    .raise(format!("worker pool: {pool}"), Instant::now());
            }
        }
    }

    async fn drive(&mut self, event: Event) -> Result<()> {
        self.drive_on(event).await?;
        self.obey().await
    }

    /// Tells the core, and does what it says, until nothing follows.
    async fn drive_on(&mut self, event: Event) -> Result<()> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let told = event.name();
            let (state, actions) = next(&self.config.class.timing, self.state.clone(), event)
                .map_err(|error| Error::runtime(format!("lease keeper: {error}")))?;
            if state.phase.name() != self.state.phase.name() {
                tracing::debug!(
                    event = told,
                    "{} -> {}",
                    self.state.phase.name(),
                    state.phase.name()
                );
            }
            self.state = state;
            for action in actions {
                events.extend(self.act(action).await?);
            }
        }
        self.schedule();
        self.publish();
        Ok(())
    }

    async fn act(&mut self, action: Action) -> Result<Option<Event>> {
        match action {
            Action::ReadClock => self.look_at = Instant::now(),
            Action::Inspect => return self.inspect().await.map(Some),
            Action::Probe { ticket } => {
                self.desk.submit(Request::Probe {
                    ticket,
                    remembered: self.remembered.clone(),
                    wall: self.reading.map_or(UnixMs(0), |(clock, _)| clock.wall),
                });
            }
            Action::Acquire {
                ticket,
                boot_id,
                reading,
                doubt,
                identities,
            } => {
                self.desk.submit(Request::Acquire(Acquire {
                    ticket,
                    boot_id,
                    remembered: self.remembered.clone(),
                    reading,
                    doubt,
                    memory: self.memory.clone(),
                    wanted: identities.map_or_else(|| self.config.class.wanted.clone(), Wanted::Listed),
                    random: random(),
                }));
            }
            Action::Renew { ticket, held, wanted } => {
                self.desk.submit(Request::Renew { ticket, held, wanted });
            }
            Action::Release {
                ticket,
                boot_id,
                marks,
            } => {
                self.desk.submit(Request::Release {
                    ticket,
                    boot_id,
                    marks,
                });
            }
            Action::Lost { leased, why } => self.note_lost(&leased, why),
            Action::Install { .. } | Action::Extend { .. } | Action::Fence { .. } => {
                return self.act_on_server(action).await.map(Some);
            }
        }
        Ok(None)
    }

    fn note_lost(&mut self, leased: &[Tenancy], why: Loss) {
        for leased in leased {
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
            self.memory.note_lost(leased.identity);
        }
        let identities = identities_of(leased);
        let token = newest_token(leased);
        tracing::warn!(%token, identities = %Ranges(&identities), why = why.name(), "lease lost");
        self.metrics.count_failure(why.name());
        if why == Loss::BootIdChanged {
            self.metrics.boot_id_changes.inc();
        }
    }

    /// When to look at the server next.
    fn schedule(&mut self) {
        let now = Instant::now();
        if self.server.is_none() {
            let soon = now.duration_since(self.lost_at) < RECONNECT_SOON_FOR;
            let pause = if soon {
                RECONNECT_SOON.min(self.config.poll)
            } else {
                self.config.poll
            };
            self.look_at = now + pause;
            return;
        }
        let Some((clock, at)) = self.reading else { return };
        let mut due = at + self.config.poll;
        if let Some(wake_at) = self.state.wake_at() {
            due = due.min(at + until(clock.boot, wake_at).max(LOOK_PAUSE_MIN));
        }
        // `ReadClock` may have asked for less already.
        if self.look_at <= at || due < self.look_at {
            self.look_at = due;
        }
    }

    fn publish(&self) {
        let installed = self.state.phase.held().filter(|held| held.installed);
        let list = self.state.want.as_ref();
        let known = self
            .config
            .list
            .as_ref()
            .is_none_or(|list| list.borrow().is_some());
        let troubles = [
            &self.server_trouble,
            &self.drain_trouble,
            &self.store_trouble,
            &self.list_trouble,
        ];
        let trouble = troubles
            .into_iter()
            .find_map(Complaint::text)
            .or_else(|| self.clock.trouble());
        self.report.send_replace(Report {
            phase: self.state.phase.name(),
            wanted: list.map_or_else(|| self.config.class.wanted.count(), Vec::len),
            list_known: known,
            period: Duration::from_millis(self.config.class.timing.period_ms()),
            lease: installed.map(LeaseReport::of),
            boot_id: self.boot_id,
            shards: match self.config.class.class {
                Class::Worker => Arc::default(),
                Class::Shard => installed.map(claims_of).unwrap_or_default(),
            },
            pool: self.desk.pool(),
            reading: self.reading,
            clock: self.clock.judged(),
            server_up: self.server.is_some(),
            trouble: trouble.map(str::to_owned),
        });
    }
}

/// What an inspection has found open is being closed.
fn note_closing(found_open: &mut usize) {
    let count = std::mem::take(found_open);
    if count > 0 {
        tracing::info!(count, "an earlier daemon left leases open; closing them");
    }
}

fn judge(outcome: InstallOutcome, done: Event, refused: Event) -> Event {
    match outcome {
        InstallOutcome::Done => done,
        InstallOutcome::Forgot => Event::ServerForgot,
        InstallOutcome::Refused(why) => {
            tracing::warn!("postgres refuses the lease: {why}");
            refused
        }
    }
}

/// Publishes once what the store has shown is on the server's disk: it is written before anything of it is used.
async fn remember_first(
    server: &impl MintingServer,
    held: &Held,
    anchor: Option<&Anchor>,
    timing: &Timing,
    publish: impl Future<Output = Result<InstallOutcome>>,
) -> Result<InstallOutcome> {
    let asked = held.asked_after(timing);
    match server.remember(held.boot_id, known(anchor)?, asked).await {
        Ok(InstallOutcome::Done) => publish.await,
        other => other,
    }
}

/// Whoever holds a lease has read the store.
fn known<T>(of_store: Option<&T>) -> Result<&T> {
    of_store.ok_or_else(|| Error::runtime("a lease is to be published, but the store was never read"))
}

/// What the server mints from.
fn claims_of(held: &Held) -> Arc<[Claim]> {
    held.leased.iter().map(Tenancy::claim).collect()
}

/// As they stand in a lease: in rising order.
fn identities_of(leased: &[Tenancy]) -> Vec<Identity> {
    leased.iter().map(|leased| leased.identity).collect()
}

fn newest_token(leased: &[Tenancy]) -> Token {
    let tokens = leased.iter().map(|tenancy| tenancy.token);
    tokens.max().unwrap_or_default()
}

/// The next list that is known; never comes where there is none to follow.
async fn next_list(list: &mut Option<watch::Receiver<ShardList>>) -> ShardList {
    let Some(list) = list else { return pending().await };
    match list.changed().await {
        Ok(()) => list.borrow_and_update().clone(),
        // Whoever said so has ended; the supervisor ends us as well.
        Err(_) => pending().await,
    }
}

async fn closed(server: &mut Option<impl MintingServer>) {
    match server {
        Some(server) => server.closed().await,
        None => pending().await,
    }
}

fn until(now: BootMs, then: BootMs) -> Duration {
    Duration::from_millis(then.since(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::logged;

    #[test]
    fn what_was_found_open_is_told_once_and_when_it_is_closed() {
        let mut found_open = 63;
        let text = logged(|| {
            note_closing(&mut found_open);
            note_closing(&mut found_open);
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("closing them count=63"), "{text}");
    }
}
