//! Keeps the authority over segments of a server with `idgen.authority = leased`: an exclusive lease per space and stripe in
//! the lease store, and a ceiling per tag that is raised there before the server may grant up to it.
//!
//! ```text
//!  AuthorityKeeper -+- which databases are there?
//!                   `- DatabaseKeeper, one each -+- Database (control functions, in that database)
//!                                                `- StripeStore (shared, one request at a time)
//! ```
//! The rules are in `idgen_core::lease::named`. Nothing that goes wrong here ends the daemon: the leases of workers and
//! shards have nothing to do with it.

mod database;
mod elsewhere;
mod post;
mod report;
mod server;

use self::database::{DatabaseConfig, DatabaseKeeper, Pace};
use crate::each_database::EachDatabase;
use crate::error::Result;
use crate::lease::{Pinned, StripeStore};
use crate::metrics::AuthorityMetrics;
use idgen_core::lease::{InstanceId, Timing};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

pub use report::{Board, DatabaseReport, Standing};
pub use server::{Database, Open, Said, Wanted};

/// A database without the extension is looked at so often.
const ABSENT: Duration = Duration::from_secs(10);
/// Where ceilings were raised just now the next visit comes so soon: one is eight ranges ahead, and a hot tag uses them up
/// in less than the normal pace.
const HOT: Duration = Duration::from_millis(50);
/// A database that wants nothing is visited so often,
const IDLE: Duration = Duration::from_secs(1);
/// ... unless there are so many that these would be more visits a second than this: each is a new session.
const IDLE_VISITS_PER_SECOND: u32 = 10;

/// Does the server mint from a lease of workers or shards that this run of the daemon has installed?
pub type IsServed = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the keeper works with.
#[derive(Clone)]
pub struct AuthorityConfig {
    /// Who we are.
    pub instance: InstanceId,
    /// TTL, margin and period of each lease.
    pub timing: Timing,
    /// How often a database whose lease is missing is visited.
    pub poll: Duration,
    /// Nothing is asked for before.
    pub is_served: IsServed,
    /// Where it reports.
    pub board: Board,
    /// What it counts.
    pub metrics: AuthorityMetrics,
}

/// See the module.
pub struct AuthorityKeeper<S, O> {
    config: AuthorityConfig,
    open: O,
    shared: Arc<Mutex<Pinned<S>>>,
    databases: Arc<AtomicUsize>,
}

impl<S: StripeStore, O: Open> AuthorityKeeper<S, O> {
    /// A keeper that has not begun.
    pub fn new(config: AuthorityConfig, open: O, store: S) -> Self {
        let shared = Pinned::new(store);
        Self {
            config,
            open,
            shared: Arc::new(Mutex::new(shared)),
            databases: Arc::default(),
        }
    }

    /// Keeps the authority of every database until `stop`, then gives all of it back.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let each = EachDatabase::new("authority", "keeper", Arc::clone(&self.databases));
        let keep = |database, stop| self.keep(database, stop);
        each.run(|| self.open.databases(), keep, stop).await
    }

    fn keep(&self, database: String, stop: CancellationToken) -> impl Future<Output = ()> + use<S, O> {
        let config = DatabaseConfig {
            database,
            instance: self.config.instance,
            timing: self.config.timing,
            is_served: Arc::clone(&self.config.is_served),
            board: self.config.board.clone(),
            metrics: self.config.metrics.clone(),
        };
        let keeper = DatabaseKeeper::new(config, self.open.clone(), Arc::clone(&self.shared));
        let (poll, databases) = (self.config.poll, Arc::clone(&self.databases));
        let pace = move |pace| match pace {
            Pace::Hot => HOT.min(poll),
            Pace::Unsettled => poll,
            Pace::Idle => idle(databases.load(Ordering::Relaxed)),
            Pace::Absent => ABSENT,
        };
        keeper.run(stop, pace)
    }
}

/// Between two visits of a database that wants nothing, one of so many.
fn idle(databases: usize) -> Duration {
    let many = u32::try_from(databases).unwrap_or(u32::MAX);
    IDLE.max(IDLE * many / IDLE_VISITS_PER_SECOND)
}
