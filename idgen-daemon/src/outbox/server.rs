//! The drainers of a server: one for each of its databases that has the extension, and one for the trail of lease events.

use super::days::Days;
use super::drain::{DrainConfig, Drainer, budget};
use super::lease::Holder;
use super::queue::Queue;
use super::rows::{column, retry};
use super::segments::SegmentQueue;
use super::trail::TrailQueue;
use crate::authority::Open;
use crate::complaint::Complaint;
use crate::config::{KafkaConfig, OutboxConfig, PostgresConfig};
use crate::each_database::EachDatabase;
use crate::error::{Error, Result};
use crate::metrics::OutboxMetrics;
use crate::postgres::{PgError, PostgresUrl, Session};
use crate::random::random;
use idgen_core::outbox::Backoff;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// A database without the extension, or in recovery, is looked at so often.
const ABSENT: Duration = Duration::from_secs(10);
/// Whatever ended a session that has lasted for so long has nothing to do with what ended the one before.
const LASTED: Duration = Duration::from_secs(60);
/// A backlog of a million rows is looked at in less.
const REQUEST: Duration = Duration::from_secs(10);

const APPLICATION: &str = "idgend outbox";

/// Every name in it is looked up in `pg_catalog` alone: the path that it shows may be hostile.
const SEARCH_PATH: &str = "
    SELECT s.setting, s.source FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) 'search_path'";

/// What the outbox works with.
#[derive(Clone)]
pub struct OutboxSetup {
    /// The server whose databases are drained.
    pub postgres: PostgresConfig,
    /// Where the trail of lease events is; `None`: nobody follows.
    pub trail: Option<PostgresUrl>,
    /// Where events go; `None`: they stay, and only their tables are looked after.
    pub kafka: Option<KafkaConfig>,
    /// How events are called.
    pub outbox: OutboxConfig,
    /// Who we are.
    pub holder: Holder,
    /// What is counted.
    pub metrics: OutboxMetrics,
}

/// How a database is reached.
#[derive(Clone, Debug)]
pub(super) struct Way {
    url: PostgresUrl,
    connect_timeout: Duration,
    /// A pooler may be in between, where a session of ours is none of the server's.
    is_pooled: bool,
}

impl Way {
    /// A session whose statements have so long.
    pub(super) async fn open(&self, limit: Duration) -> Result<Session> {
        if !self.is_pooled {
            return open_pinned(&self.url, self.connect_timeout, limit).await;
        }
        let session = Session::open_stateless(&self.url, APPLICATION, self.connect_timeout, limit)
            .await
            .map_err(unreachable)?;
        check_search_path(&session).await?;
        Ok(session)
    }

    /// A session with a database that has an outbox, and is no standby.
    pub(super) async fn ready(&self) -> Result<Option<Session>> {
        let session = self.open(REQUEST).await?;
        let sql = "SELECT to_regclass('idgen.drain_lease') IS NOT NULL AND NOT pg_is_in_recovery()";
        let rows = session.rows_typed(sql, &[]).await.map_err(retry)?;
        let is_ready = rows.first().map(|row| column::<bool>(row, 0)).transpose()?;
        Ok((is_ready == Some(true)).then_some(session))
    }
}

fn unreachable(error: PgError) -> Error {
    Error::retry(format!("connect to postgres: {error}"))
}

async fn open_pinned(url: &PostgresUrl, connect_timeout: Duration, limit: Duration) -> Result<Session> {
    let opened = Session::open(url, APPLICATION, connect_timeout, limit).await;
    opened.map_err(unreachable)
}

/// Opens a session of the server itself, in which nobody's `ALTER DATABASE` decides what our statements call.
///
/// # Errors
/// `Retry`: it is away.
pub async fn open(url: &PostgresUrl, connect_timeout: Duration) -> Result<Session> {
    open_pinned(url, connect_timeout, REQUEST).await
}

/// Behind a pooler nothing can be pinned. But what was set for a role is in force in every session of it, whatever the owner
/// of the database has set, who could have functions of his run as us else.
async fn check_search_path(session: &Session) -> Result<()> {
    let rows = session.rows_typed(SEARCH_PATH, &[]).await.map_err(retry)?;
    let row = rows
        .first()
        .ok_or_else(|| Error::retry("the server does not show its search_path"))?;
    let (path, source): (&str, &str) = (column(row, 0)?, column(row, 1)?);
    if is_safe(path, source) {
        return Ok(());
    }
    Err(Error::retry(format!(
        "through outbox.url the search_path is \"{path}\" (of: {source}), which the owner of the database may change: nothing \
         is done there"
    ))
    .with_hint("ALTER ROLE idgend SET search_path = pg_catalog, pg_temp (the role of outbox.url), and reconnect the pooler"))
}

/// Set for the role, and nothing but what the server brings along.
fn is_safe(path: &str, source: &str) -> bool {
    let mut schemas = path.split(',').map(str::trim);
    schemas.next() == Some("pg_catalog")
        && schemas.all(|schema| schema == "pg_temp")
        && matches!(source, "user" | "database user")
}

/// See the module.
pub struct Outbox {
    setup: OutboxSetup,
    budget: Arc<Semaphore>,
    databases: Arc<AtomicUsize>,
}

impl Outbox {
    /// One that has not begun.
    #[must_use]
    pub fn new(setup: OutboxSetup) -> Self {
        Self {
            setup,
            budget: budget(),
            databases: Arc::default(),
        }
    }

    /// Drains until `stop`.
    ///
    /// # Errors
    /// A drainer has panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let mut each = EachDatabase::new("outbox", "drainer", Arc::clone(&self.databases));
        if let (Some(url), Some(kafka)) = (self.setup.trail.clone(), self.setup.kafka.clone()) {
            let service = self
                .setup
                .outbox
                .service_of(url.get_dbname().unwrap_or("postgres"))
                .to_owned();
            let config = self.drain_config("lease events", "", kafka);
            let stop = stop.child_token();
            let way = Way {
                url,
                connect_timeout: self.setup.postgres.connect_timeout,
                is_pooled: false,
            };
            each.spawn_beside(async move {
                drain(Drainer::new(config, TrailQueue::new(&service)), &way, stop).await;
            });
        }
        let keep = |database, stop| self.keep(database, stop);
        each.run(|| self.setup.postgres.databases(), keep, stop).await
    }

    fn drain_config(&self, name: &str, database: &str, kafka: KafkaConfig) -> DrainConfig {
        DrainConfig {
            name: format!("outbox: {name}"),
            holder: self.setup.holder.clone(),
            kafka,
            budget: Arc::clone(&self.budget),
            databases: Arc::clone(&self.databases),
            metrics: self.setup.metrics.of(database),
        }
    }

    /// Drains a database, and looks after its day tables.
    fn keep(&self, database: String, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
        let setup = &self.setup;
        let pooler = setup.outbox.url.as_ref();
        let way = Way {
            url: pooler.unwrap_or(&setup.postgres.url).in_database(&database),
            connect_timeout: setup.postgres.connect_timeout,
            is_pooled: pooler.is_some(),
        };
        let days = Days::new(
            &database,
            self.setup.outbox.retention,
            self.setup.metrics.of(&database),
        );
        let drainer = self.setup.kafka.clone().map(|kafka| {
            let service = self.setup.outbox.service_of(&database);
            let queue = SegmentQueue::new(service, kafka.message_bytes_max);
            Drainer::new(
                self.drain_config(&format!("database {database}"), &database, kafka),
                queue,
            )
        });
        let metrics = self.setup.metrics.clone();
        async move {
            let looked_after = days.run(&way, stop.clone());
            match drainer {
                Some(drainer) => {
                    tokio::join!(drain(drainer, &way, stop), looked_after);
                }
                None => looked_after.await,
            }
            metrics.forget(&database);
        }
    }
}

/// Drains with one session after the other.
async fn drain<Q: Queue>(mut drainer: Drainer<Q>, way: &Way, stop: CancellationToken) {
    let (mut away, mut useless) = (Backoff::new(100, 5_000), Backoff::trouble());
    let mut complaint = Complaint::default();
    while !stop.is_cancelled() {
        let wait = match way.ready().await {
            Ok(None) => ABSENT,
            Ok(Some(mut session)) => {
                complaint.settle("outbox: postgres answers");
                away.settle();
                let began = Instant::now();
                if drainer.run(&mut session, &stop).await.is_ok() {
                    return;
                }
                // Where nothing can be marked, on a full disk, everything that is sent is sent in vain.
                if drainer.take_has_marked() || began.elapsed() >= LASTED {
                    useless.settle();
                }
                Duration::from_millis(useless.wait_ms((random() & 0xff) as u8))
            }
            Err(error) => {
                complaint.raise(format!("outbox: {error}"), Instant::now());
                Duration::from_millis(away.wait_ms(0))
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_path_behind_a_pooler_is_that_of_the_role_and_has_no_schema_of_anybody() {
        for path in ["pg_catalog", "pg_catalog, pg_temp"] {
            assert!(is_safe(path, "user") && is_safe(path, "database user"));
            for source in ["default", "configuration file", "database", "session", "client"] {
                assert!(!is_safe(path, source), "{path} of {source}");
            }
        }
        for path in [
            "",
            "\"$user\", public",
            "evil, pg_catalog",
            "pg_catalog, evil",
            "\"pg_catalog \"",
        ] {
            assert!(!is_safe(path, "user"), "{path}");
        }
    }
}
