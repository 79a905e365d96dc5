//! Follows the log of a store and writes the trail.

use super::super::clock::host_clock;
use super::super::holder::{Hold, Holder};
use super::super::store::{HolderName, StoreError, StoreErrorKind};
use super::super::store_named::NamedStore;
use super::{Batch, EventLog, Kept, Next, Present, Sink, TableSink, sink_identity};
use crate::complaint::Complaint;
use crate::error::Result;
use crate::metrics::EventMetrics;
use idgen_core::lease::events::{
    Chain, Detail, Event, Head, KeyChange, Log, Place, Record, Seen, Tracker, When,
};
use idgen_core::lease::named::LeaseName;
use idgen_core::lease::{CellId, Revision, StoreIdentity, Timing, Token};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Before it is tried again; longer after each failure in a row.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// What lasts shorter is nobody's trouble: the cell of a new store is being made, a member of an etcd is restarted.
const TROUBLE_AFTER: Duration = Duration::from_secs(10);
/// A log that is silent is waited for so long; then the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Renewals alone are written down so often: so far back a successor reads them again.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// What a follower works with.
#[derive(Clone)]
pub struct FollowerConfig {
    /// Who follows.
    pub holder: HolderName,
    /// Times of the lease that makes it the only one.
    pub timing: Timing,
    /// Events are kept so long.
    pub keep_days: u32,
    /// What it counts.
    pub metrics: EventMetrics,
}

/// See the module. `N`: makes a store of named leases.
pub struct Follower<L, N> {
    config: FollowerConfig,
    log: L,
    names: N,
    sink: TableSink,
    trouble: Complaint,
    /// Since when it fails, and has read nothing new; however long a try of it lasts.
    failing: Option<Instant>,
    /// The farthest position that was read, and written down if there was anything to write.
    reached: u64,
    /// The last look was behind what was followed.
    doubted: bool,
}

/// A trail that is being written.
struct Trail {
    cell: CellId,
    store: StoreIdentity,
    tracker: Tracker,
    chain: Chain,
    /// Where the sink ends; `None`: there is nothing.
    written: Option<(Head, u64)>,
    cursor: When,
    /// What the sink has not got yet, and how it is told.
    pending: (Vec<Record>, Vec<Event>),
    flushed: Instant,
}

impl Trail {
    fn of(cell: CellId, kept: Kept, log: Log) -> Self {
        Self {
            cell,
            store: kept.store,
            tracker: Tracker::new(log, kept.keys),
            chain: Chain::new(cell.0, kept.branch, kept.head),
            written: Some((kept.head, kept.cursor.position)),
            cursor: kept.cursor,
            pending: Default::default(),
            flushed: Instant::now(),
        }
    }

    /// With everything that there is; what came before is in it only if the log has it.
    fn begin(present: Present, log: Log) -> Self {
        let mut tracker = Tracker::new(log, []);
        let (states, when) = if present.has_all {
            (
                Vec::new(),
                When {
                    position: 0,
                    revision: Revision(0),
                    ..present.when
                },
            )
        } else {
            (present.states, present.when)
        };
        let detail = Detail::default()
            .text("store", present.store.as_str())
            .flag("from_the_beginning", present.has_all);
        let began = tracker.begin(when, detail, states);
        let mut trail = Self {
            cell: present.cell,
            store: present.store,
            tracker,
            chain: Chain::new(present.cell.0, 0, Head::default()),
            written: None,
            cursor: when,
            pending: Default::default(),
            flushed: Instant::now(),
        };
        trail.add([began]);
        trail
    }

    /// Do these say that the store is an older state of itself, which has come as far again? Why.
    fn elsewhere<'a>(&self, keys: impl Iterator<Item = (&'a Place, &'a Seen)>) -> Option<String> {
        let key = self.tracker.elsewhere(keys, Revision(self.cursor.position))?;
        Some(format!("the key {key} is not what it was seen to be"))
    }

    /// In the history that the store is in now.
    fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.pending.0.push(self.chain.append(&event));
            self.pending.1.push(event);
        }
    }

    fn replace(&mut self, present: Present, why: &str) {
        let detail = Detail::default()
            .text("before", self.store.as_str())
            .text("now", present.store.as_str())
            .number("position_before", self.cursor.position)
            .text("why", why);
        self.chain.turn();
        self.store = present.store;
        self.cursor = present.when;
        let replaced = self.tracker.replace(present.when, detail, present.states);
        self.add([replaced]);
    }
}

impl<L, N, S> Follower<L, N>
where
    L: EventLog,
    N: Fn() -> S + Send,
    S: NamedStore + Send + 'static,
{
    /// Follows nothing yet.
    pub fn new(config: FollowerConfig, log: L, names: N, sink: TableSink) -> Self {
        Self {
            config,
            log,
            names,
            sink,
            trouble: Complaint::default(),
            failing: None,
            reached: 0,
            doubted: false,
        }
    }

    /// Follows until `stop`. What goes wrong is told and tried again: no lease depends on it.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut pause = PAUSE;
        while !stop.is_cancelled() {
            let ended = self.turn(&stop).await;
            self.config.metrics.following.set(0);
            if self.failing.is_none() {
                pause = PAUSE;
            }
            if let Err(error) = ended {
                let since = *self.failing.get_or_insert_with(Instant::now);
                self.complain(&error, since.elapsed());
                pause = (pause * 2).min(PAUSE_MAX);
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        Ok(())
    }

    fn complain(&mut self, error: &StoreError, lasting: Duration) {
        let text = format!("lease events: {error}");
        if lasting >= TROUBLE_AFTER {
            self.trouble.raise(text, Instant::now());
        } else {
            tracing::debug!("{text}");
        }
    }

    /// As long as the lease of the sink lasts.
    async fn turn(&mut self, stop: &CancellationToken) -> std::result::Result<(), StoreError> {
        let of_sink = sink_identity(&mut self.sink).await?;
        let name: LeaseName = format!("events/{of_sink}")
            .parse()
            .map_err(|error| StoreError::new(StoreErrorKind::Denied, format!("name of the sink: {error}")))?;
        let holder = Holder::new(
            (self.names)(),
            self.config.holder.instance,
            name,
            self.config.timing,
            Vec::new(),
        );
        let (told, hold) = watch::channel(Hold::Waiting(String::new()));
        let ending = stop.child_token();
        let keeping = tokio::spawn(holder.run(told, ending.clone()));
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.attend(hold) => ended,
        };
        ending.cancel();
        // It gives the lease back, within its limit; a panic of it is no reason to stop.
        let _ = keeping.await;
        outcome
    }

    async fn attend(&mut self, mut hold: watch::Receiver<Hold>) -> std::result::Result<(), StoreError> {
        loop {
            let now = hold.borrow_and_update().clone();
            match now {
                Hold::Held(token, _) => return self.follow(token, &hold).await,
                Hold::Lost(why) | Hold::Refused(why) => {
                    return Err(StoreError::new(StoreErrorKind::Unreachable, why));
                }
                Hold::Waiting(_) => {}
            }
            if hold.changed().await.is_err() {
                return Err(StoreError::new(
                    StoreErrorKind::Unreachable,
                    "its lease is not kept",
                ));
            }
        }
    }

    async fn follow(
        &mut self,
        token: Token,
        hold: &watch::Receiver<Hold>,
    ) -> std::result::Result<(), StoreError> {
        let mut trail = self.open(token).await?;
        self.log.follow(trail.cursor.position).await?;
        self.config.metrics.following.set(1);
        let mut pruned: Option<Instant> = None;
        while matches!(&*hold.borrow(), Hold::Held(..)) {
            let next = self.log.next(LOOK_EVERY).await?;
            let at_its_end = matches!(next, Next::AtItsEnd);
            self.take(&mut trail, next).await?;
            let now = host_clock();
            let overdue = trail.tracker.tick(now);
            trail.add(overdue);
            let idle = trail.flushed.elapsed() >= FLUSH_EVERY
                && trail.written.map(|(_, at)| at) != Some(trail.cursor.position);
            if idle || !trail.pending.0.is_empty() {
                self.flush(&mut trail, token).await?;
            }
            self.read_up_to(trail.cursor.position, at_its_end);
            self.sink.let_go();
            if pruned.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
                let more = self.prune(trail.cell).await;
                pruned = Some(Instant::now()).filter(|_| !more);
            }
        }
        Ok(())
    }

    /// It is no trouble any more where there is nothing to read, or something was read that was not read before: what comes
    /// before the place that it fails at is read again with each try.
    fn read_up_to(&mut self, position: u64, at_its_end: bool) {
        if at_its_end || position > self.reached {
            self.failing = None;
            self.trouble.settle("lease events are followed");
        }
        self.reached = self.reached.max(position);
    }

    /// Whatever is too old and stays is no reason not to follow. Is there more of it?
    async fn prune(&mut self, cell: CellId) -> bool {
        let of_sink = self.sink.prune(cell, self.config.keep_days).await;
        let of_log = self.log.prune().await;
        let more = |pruned: std::result::Result<bool, StoreError>| {
            pruned.unwrap_or_else(|error| {
                tracing::warn!("lease events: what is too old was not removed: {error}");
                false
            })
        };
        let (of_sink, of_log) = (more(of_sink), more(of_log));
        of_sink || of_log
    }

    /// The trail as it was left, brought to the store that is there now.
    async fn open(&mut self, token: Token) -> std::result::Result<Trail, StoreError> {
        let present = self.log.present(None).await?;
        let mut trail = match self.sink.cursor(present.cell).await? {
            None => Trail::begin(present, L::LOG),
            Some(kept) => {
                let mut trail = Trail::of(present.cell, kept, L::LOG);
                if trail.store != present.store {
                    trail.replace(present, "its identity is another one");
                } else if present.when.position < trail.cursor.position {
                    self.doubt_once(&present)?;
                    trail.replace(present, "it is behind what was followed");
                } else if let Some(why) =
                    trail.elsewhere(present.states.iter().map(|(place, seen)| (place, seen)))
                {
                    trail.replace(present, &why);
                }
                self.doubted = false;
                trail
            }
        };
        if !trail.pending.0.is_empty() {
            self.flush(&mut trail, token).await?;
        }
        Ok(trail)
    }

    /// A member of an etcd that was paused may answer once with what is old (#20418).
    fn doubt_once(&mut self, present: &Present) -> std::result::Result<(), StoreError> {
        if std::mem::replace(&mut self.doubted, true) {
            return Ok(());
        }
        let message = format!(
            "the store is at {}, behind what was followed",
            present.when.position
        );
        Err(StoreError::new(StoreErrorKind::Unreachable, message))
    }

    async fn take(&mut self, trail: &mut Trail, next: Next) -> std::result::Result<(), StoreError> {
        match next {
            Next::Nothing | Next::AtItsEnd => {}
            Next::Commits(commits, up_to) => {
                for commit in &commits {
                    if let Some(why) = trail.elsewhere(commit.changes.iter().filter_map(KeyChange::was)) {
                        return self.replace(trail, &why).await;
                    }
                    match trail.tracker.take(commit) {
                        Ok(events) => trail.add(events),
                        Err(replaced) => {
                            let why = format!("the key {} is older than it was", replaced.key);
                            return self.replace(trail, &why).await;
                        }
                    }
                    trail.cursor = commit.when;
                }
                trail.cursor.position = trail.cursor.position.max(up_to);
            }
            Next::Gap(to) => {
                let present = self.log.present(Some(to)).await?;
                if present.store != trail.store {
                    return self
                        .replace_by(trail, present, "its identity is another one")
                        .await;
                }
                let when = present.when;
                match trail.tracker.heal(trail.cursor.position, when, present.states) {
                    Ok(events) => trail.add(events),
                    Err(replaced) => {
                        let why = format!("the key {} is older than it was", replaced.key);
                        return self.replace(trail, &why).await;
                    }
                }
                trail.cursor = when;
                self.log.follow(when.position).await?;
            }
            Next::Replaced(why) => self.replace(trail, &why).await?,
        }
        self.config
            .metrics
            .read_up_to(trail.cursor.revision, host_clock());
        Ok(())
    }

    async fn replace(&mut self, trail: &mut Trail, why: &str) -> std::result::Result<(), StoreError> {
        let present = self.log.present(None).await?;
        self.replace_by(trail, present, why).await
    }

    async fn replace_by(
        &mut self,
        trail: &mut Trail,
        present: Present,
        why: &str,
    ) -> std::result::Result<(), StoreError> {
        if present.cell != trail.cell {
            let message = "the store is of another cell now";
            return Err(StoreError::new(StoreErrorKind::Sealed, message));
        }
        trail.replace(present, why);
        // Positions begin anew.
        self.reached = 0;
        self.log.follow(trail.cursor.position).await
    }

    async fn flush(&mut self, trail: &mut Trail, token: Token) -> std::result::Result<(), StoreError> {
        let (records, events) = std::mem::take(&mut trail.pending);
        let head = trail.chain.head();
        let batch = Batch {
            cell: trail.cell,
            after: trail.written,
            store: (trail.store.clone(), trail.chain.branch()),
            records,
            cursor: trail.cursor,
            head,
            keys: trail.tracker.take_dirty(),
            written: (token, self.config.holder.name.clone()),
        };
        // After an error the trail is read again: what is in memory may be ahead of it.
        self.sink.append(&batch).await?;
        trail.written = Some((head, trail.cursor.position));
        trail.flushed = Instant::now();
        for event in events {
            self.config.metrics.count(&event);
            tell(&event);
        }
        Ok(())
    }
}

/// What somebody should look at is in the log too.
fn tell(event: &Event) {
    let Some(finding) = event.finding else {
        return;
    };
    tracing::warn!(
        subject = event.subject,
        kind = event.kind.name(),
        finding = finding.name(),
        revision = event.when.revision.0,
        "lease events: {}: {}; {}",
        event.subject,
        finding.meaning(),
        event.detail
    );
}
