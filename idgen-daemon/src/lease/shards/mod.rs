//! Follows who is to have which shard: tells the keeper of shards what is wanted, shows the others what this server has,
//! and keeps the map that clients ask for.

mod feed;
mod map;

pub use self::feed::MapFeeder;
pub(crate) use self::map::place_json;
pub use self::map::{ShardBoard, ShardMap};

use super::clock::host_clock;
use super::keeper::ShardList;
use super::report::Report;
use super::store::{StoreError, StoreErrorKind};
use super::store_shards::{ShardFeed, ShardLook};
use crate::complaint::Complaint;
use crate::error::Result;
use idgen_core::clock::UnixMs;
use idgen_core::lease::Assigned;
use idgen_core::lease::assigned::Asker;
use idgen_core::lease::{Claim, Holding, Identity, InstanceId, Presence, Timing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two tries to follow.
const PAUSE: Duration = Duration::from_secs(1);

/// To say that this server has gone, when it is stopped.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// What it works with.
#[derive(Clone, Debug)]
pub struct ShardWatchConfig {
    /// Name of this server.
    pub server: String,
    /// This run of its daemon.
    pub instance: InstanceId,
    /// Where clients find it; empty: not said.
    pub address: String,
    /// The list of the configuration.
    pub configured: Vec<Identity>,
    /// How many shards fit into a lease.
    pub room: usize,
    /// Times of the leases of shards.
    pub timing: Timing,
}

/// See the module.
pub struct ShardWatch<F> {
    config: ShardWatchConfig,
    feed: F,
    /// What the keeper says that there is.
    report: watch::Receiver<Report>,
    list: watch::Sender<ShardList>,
    board: ShardBoard,
    /// Shards of this server, since when it has them.
    holds: BTreeMap<Identity, Holding>,
    /// The last look, for what has changed since.
    seen: Assigned,
    /// When something was shown last, by our own clock.
    shown_at: UnixMs,
    /// What this server has is not what it has shown.
    unshown: bool,
    trouble: Complaint,
    namesake: Complaint,
    room: Complaint,
}

impl<F: ShardFeed> ShardWatch<F> {
    /// One that has not begun. The list goes to the keeper that reports.
    pub fn new(
        config: ShardWatchConfig,
        feed: F,
        report: watch::Receiver<Report>,
        list: watch::Sender<ShardList>,
        board: ShardBoard,
    ) -> Self {
        Self {
            config,
            feed,
            report,
            list,
            board,
            holds: BTreeMap::new(),
            seen: Assigned::default(),
            shown_at: UnixMs(0),
            unshown: false,
            trouble: Complaint::default(),
            namesake: Complaint::default(),
            room: Complaint::default(),
        }
    }

    /// Follows until `stop`. What goes wrong is tried again.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                ended = self.follow() => {
                    if let Err(error) = ended {
                        self.note_trouble(&error);
                    }
                    self.feed.start_over();
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        let leaving = self.feed.withdraw(self.config.instance);
        if !matches!(tokio::time::timeout(LEAVE_LIMIT, leaving).await, Ok(Ok(()))) {
            tracing::debug!("the others are not told that this server has gone; they will notice");
        }
        Ok(())
    }

    fn note_trouble(&mut self, error: &StoreError) {
        let text = format!("who has which shard cannot be followed: {error}");
        self.trouble.raise(text, Instant::now());
        // A store that cannot have records has none, or has had none so far.
        if error.kind == StoreErrorKind::Denied && self.list.borrow().is_none() {
            self.list
                .send_replace(Some(self.config.configured.clone().into()));
        }
    }

    async fn follow(&mut self) -> std::result::Result<(), StoreError> {
        self.look().await?;
        self.show().await?;
        self.trouble.settle("who has which shard is followed again");
        let mut ticks = tokio::time::interval(Duration::from_millis(self.config.timing.period_ms()));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            if std::mem::take(&mut self.unshown) {
                self.show().await?;
            }
            tokio::select! {
                biased;
                // First: a tick asks whether our own show was heard, so what has come is heard before it.
                heard = self.feed.heard() => {
                    heard?;
                    self.look().await?;
                }
                changed = self.report.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.unshown |= self.note_report();
                }
                _ = ticks.tick() => {
                    self.look().await?;
                    if self.feed.heard_own() != Some(self.shown_at) {
                        let silent = "what this server has shown was not heard within a period";
                        return Err(StoreError::new(StoreErrorKind::Unreachable, silent));
                    }
                    self.show().await?;
                }
            }
        }
    }

    /// Looks at what is known, and tells the keeper and whoever asks.
    async fn look(&mut self) -> std::result::Result<(), StoreError> {
        let look = self.feed.look().await?;
        self.unshown |= self.note_report();
        self.tell_keeper(&look.assigned);
        self.publish(look);
        Ok(())
    }

    fn publish(&mut self, look: ShardLook) {
        let map = ShardMap {
            server: self.config.server.clone(),
            places: look.assigned.map(),
            revision: look.revision,
            known_at: look.known_at,
        };
        self.seen = look.assigned;
        self.board.set(map);
    }

    fn tell_keeper(&mut self, assigned: &Assigned) {
        let holds: BTreeSet<Identity> = self.holds.keys().copied().collect();
        let share = assigned.share_of(&Asker {
            server: &self.config.server,
            instance: self.config.instance,
            boot_id: self.report.borrow().boot_id,
            configured: &self.config.configured,
            holds: &holds,
            room: self.config.room,
        });
        let now = Instant::now();
        if share.has_namesake {
            let text = format!(
                "another server is called {} too: no shard is taken by orders (hint: give each server a name of its own)",
                self.config.server
            );
            self.namesake.raise(text, now);
        } else {
            self.namesake.settle("this server has its name for itself");
        }
        if share.left_out.is_empty() {
            self.room.settle("there is room for every shard of this server");
        } else {
            let (count, room) = (share.left_out.len(), self.config.room);
            let text = format!("{count} shards of this server are left out: it can have {room}");
            self.room.raise(text, now);
        }
        let freed = |shard: &Identity| {
            !holds.contains(shard) && self.seen.holder(*shard).is_some() && assigned.holder(*shard).is_none()
        };
        let is_news = self.list.borrow().as_deref() != Some(&share.shards) || share.shards.iter().any(freed);
        if is_news {
            self.list.send_replace(Some(share.shards.into()));
        }
    }

    /// What the keeper has now; true: that has changed.
    fn note_report(&mut self) -> bool {
        let claims: Arc<[Claim]> = Arc::clone(&self.report.borrow_and_update().shards);
        let now = host_clock();
        let holds: BTreeMap<Identity, Holding> = claims
            .iter()
            .map(|claim| {
                let known = self
                    .holds
                    .get(&claim.identity)
                    .filter(|known| known.token == claim.token);
                let new = Holding {
                    token: claim.token,
                    since: now,
                };
                (claim.identity, known.copied().unwrap_or(new))
            })
            .collect();
        let changed = holds != self.holds;
        self.holds = holds;
        changed
    }

    async fn show(&mut self) -> std::result::Result<(), StoreError> {
        let timing = &self.config.timing;
        // Strictly rising, whatever becomes of the clock: it is how we know our own voice.
        self.shown_at = host_clock().max(self.shown_at.saturating_add(1));
        let own = self.seen.servers.get(&self.config.instance);
        let presence = Presence {
            instance: self.config.instance,
            server: self.config.server.clone(),
            boot_id: self.report.borrow().boot_id,
            address: self.config.address.clone(),
            room: self.config.room,
            lasts_ms: timing.ttl_ms().saturating_add(timing.window_ms()),
            holds: self.holds.clone(),
            at: self.shown_at,
        };
        let news = own.is_none_or(|own| own.holds != presence.holds || own.boot_id != presence.boot_id);
        self.feed.show(&presence, timing.ttl_ms(), news).await
    }
}
