//! The shell of `idgen_core::lease::keeper`: runs its actions and feeds it what comes of them.

use super::clock::{AcceptRequest, AcceptRequests, ClockInputs, ClockWatch};
use super::desk::{Acquire, Answer, Census, Desk, Remembered, Request};
use super::history;
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
use idgen_core::lease::{
    Action, Anchor, BootId, Claim, Event, Identity, Leased, Memory, Pressure, Reach, State, Timing, Token,
    Wanted, next,
};
use std::collections::VecDeque;
use std::future::pending;
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
}

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
    renewed: u32,
    /// Claims that the last inspection found open. Nothing is closed before the store has been reached.
    found_open: usize,
    accepts: AcceptRequests,
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
        report: watch::Sender<Report>,
        metrics: ClassMetrics,
    ) -> Self {
        let now = Instant::now();
        Self {
            desk: Desk::new(store, config.holder.clone(), config.class.timing, config.reach),
            clock: ClockWatch::new(config.clock.clone()),
            config,
            connect,
            server: None,
            state: State::new(),
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
            renewed: 0,
            found_open: 0,
            accepts,
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
                request = self.accepts.next() => {
                    let event = self.accept_clock(request).await?;
                    self.drive(event).await?;
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
        self.watch_pool();
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

    /// Tells the core, and does what it says, until nothing follows.
    async fn drive(&mut self, event: Event) -> Result<()> {
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
            } => {
                self.desk.submit(Request::Acquire(Acquire {
                    ticket,
                    boot_id,
                    remembered: self.remembered.clone(),
                    reading,
                    doubt,
                    memory: self.memory.clone(),
                    wanted: self.config.class.wanted.clone(),
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
            Action::Lost { token, leased, why } => self.note_lost(token, &leased, why),
            Action::Install { .. } | Action::Extend { .. } | Action::Fence { .. } => {
                return self.act_on_server(action).await.map(Some);
            }
        }
        Ok(None)
    }

    fn note_lost(&mut self, token: Token, leased: &[Leased], why: Loss) {
        for leased in leased {
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
            self.memory.note_lost(leased.identity);
        }
        let identities = identities_of(leased);
        tracing::warn!(%token, identities = %Ranges(&identities), why = why.name(), "lease lost");
        self.metrics.count_failure(why.name());
        if why == Loss::BootIdChanged {
            self.metrics.boot_id_changes.inc();
        }
    }

    /// Install, extend or fence; an error that can be waited out counts as the server being lost.
    async fn act_on_server(&mut self, action: Action) -> Result<Event> {
        let Some(server) = &self.server else {
            return Ok(Event::ServerLost);
        };
        let (class, timing) = (self.config.class.class, self.config.class.timing);
        let (what, event) = match action {
            Action::Install { held, anchor } => {
                history::publishing(class, &held);
                let install = server.install(&held, known(self.desk.cell())?, anchor);
                let outcome = remember_first(server, &held, self.desk.anchor(), &timing, install).await;
                if matches!(outcome, Ok(InstallOutcome::Done)) {
                    let identities = identities_of(&held.leased);
                    tracing::info!(token = %held.token, identities = %Ranges(&identities), "lease installed");
                    history::installed(class, &held);
                }
                (
                    "install",
                    outcome.map(|outcome| judge(outcome, Event::Installed, Event::InstallRefused)),
                )
            }
            Action::Extend { held, anchor } => {
                history::publishing(class, &held);
                let extend = server.extend(&held, known(self.desk.cell())?, anchor);
                let outcome = remember_first(server, &held, self.desk.anchor(), &timing, extend).await;
                (
                    "extend",
                    outcome.map(|outcome| judge(outcome, Event::Extended, Event::ExtendRefused)),
                )
            }
            Action::Fence { boot_id, claims } => {
                note_closing(&mut self.found_open);
                let fenced = server.fence(boot_id, &claims).await;
                if let Ok(Some(marks)) = &fenced {
                    history::fenced(class, boot_id, marks);
                }
                let event = |marks| match marks {
                    Some(marks) => Event::Fenced { marks },
                    None => Event::ServerForgot,
                };
                ("fence", fenced.map(event))
            }
            _ => return Err(Error::runtime("not an action on the server")),
        };
        match event {
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&format!("{what} lease: {error}"));
                Ok(Event::ServerLost)
            }
            other => other,
        }
    }

    async fn inspect(&mut self) -> Result<Event> {
        let Some(server) = &self.server else {
            return Ok(Event::ServerLost);
        };
        match server.slots().await {
            Ok(slots) => {
                for slot in &slots {
                    self.memory.note_ceiling(slot.claim.identity, slot.bound);
                }
                let claims: Vec<Claim> = slots
                    .iter()
                    .filter(|slot| slot.open)
                    .map(|slot| slot.claim)
                    .collect();
                self.found_open = claims.len();
                Ok(Event::Inspected { claims })
            }
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&format!("list slots: {error}"));
                Ok(Event::ServerLost)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the server's clocks, connecting first where needed.
    async fn look(&mut self) -> Result<Event> {
        match self.read_server().await {
            Ok(reading) => {
                self.server_trouble.settle("postgres answers");
                Ok(Event::Reading(reading))
            }
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&error.to_string());
                Ok(Event::ServerLost)
            }
            Err(error) => Err(error),
        }
    }

    async fn read_server(&mut self) -> Result<Reading> {
        // One that is of no use any more is closed here, before the next one asks for its claim.
        let open = self.server.take();
        let server = match open.and_then(|mut server| server.is_usable().then_some(server)) {
            Some(server) => server,
            None => {
                let server = self.connect.connect(self.config.class.class).await?;
                let before = tokio::time::Instant::now();
                let memory = server.memory().await?;
                self.remembered.asked = memory.asked_ago.and_then(|ago| before.checked_sub(ago));
                self.remembered.anchors = memory.anchors;
                self.remembered.home = memory.home;
                server
            }
        };
        // Put back only after an answer: an error closes the session.
        let said = server.server_clock().await?;
        self.server = Some(server);
        self.remembered.cell = said.cell_id;
        self.reading = Some((said.clock, Instant::now()));
        if self.boot_id.replace(said.boot_id) != Some(said.boot_id) {
            let boot_id = Uuid::from_u128(said.boot_id.0);
            tracing::info!(%boot_id, "postgres has new shared memory");
            self.clock.forget_told();
        }
        let judged = self.clock.judge(said.clock, said.boot_id);
        if let (Some(news), Some(server)) = (self.clock.news(Instant::now()), &self.server)
            && let Err(error) = server.note_clock(&news).await
        {
            self.server = None;
            return Err(error);
        }
        Ok(Reading {
            clock: said.clock,
            boot_id: said.boot_id,
            clock_good: judged.may_raise,
            may_acquire: judged.may_acquire,
            random: random(),
        })
    }

    /// An operator says that the clock is right: as it is now. What was read before may be from before it was corrected,
    /// and would be found right, and the correction wrong a moment later.
    async fn accept_clock(&mut self, request: AcceptRequest) -> Result<Event> {
        let event = self.look().await?;
        let accepted = match event {
            Event::Reading(_) if request.dry_run => Ok(self.clock.would_accept()),
            Event::Reading(_) => Ok(self.clock.accept()),
            _ => Err(self
                .server_trouble
                .text()
                .unwrap_or("postgres is away")
                .to_owned()),
        };
        if matches!(accepted, Ok(Some(_))) && !request.dry_run {
            self.look_at = Instant::now();
        }
        // Whoever asked may have gone; the clock is accepted all the same.
        let _ = request.answer.send(accepted);
        Ok(event)
    }

    fn lose_server(&mut self, why: &str) {
        let now = Instant::now();
        if self.server.take().is_some() || self.server_trouble.text().is_none() {
            self.lost_at = now;
            self.metrics.count_failure("server_lost");
        }
        self.server_trouble.raise(format!("postgres: {why}"), now);
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
        let trouble = [&self.server_trouble, &self.store_trouble]
            .into_iter()
            .find_map(Complaint::text)
            .or_else(|| self.clock.trouble());
        self.report.send_replace(Report {
            phase: self.state.phase.name(),
            wanted: self.config.class.wanted.count(),
            period: Duration::from_millis(self.config.class.timing.period_ms()),
            lease: installed.map(LeaseReport::of),
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

/// As they stand in a lease: in rising order.
fn identities_of(leased: &[Leased]) -> Vec<Identity> {
    leased.iter().map(|leased| leased.identity).collect()
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
