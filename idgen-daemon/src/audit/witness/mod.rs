//! What others know of a database that was promoted: before its tags serve again they pass over every id that the topic and the
//! archive have seen granted.
//!
//! ```text
//!  idgen.witness_wanted()  -> mod.rs  a new history: since when may something be missing?
//!    archive  -> seen.rs \
//!    topic    -> topic.rs -> the highest id of each tag
//!  idgen.pass_over(), idgen.witnessed()  <- mod.rs
//! ```
//! A grant that a failover has lost is in no table. If its event was sent, others know of it; if not, it is for the safety burn,
//! which comes on top. Under a leased authority the lease store knows the ceilings, and this is one look more.

mod seen;
mod topic;

use self::seen::{Seen, of_archive};
use self::topic::{Begin, of_topic};
use crate::archive::objects::AnyObjects;
use crate::archive::{Ledger, open_database};
use crate::authority::Open;
use crate::complaint::Complaint;
use crate::config::{ArchivePlace, KafkaConfig, PostgresConfig};
use crate::each_database::EachDatabase;
use crate::error::{Error, Result};
use crate::lease::host_us;
use crate::metrics::WitnessMetrics;
use crate::postgres::Session;
use idgen_core::day::Day;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Between two looks whether a database has another history.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A database without it is looked at so often.
const ABSENT: Duration = Duration::from_secs(10);
/// As long as a worker of the server has to settle it, and after trouble.
const SOON: Duration = Duration::from_millis(500);
/// What was lost was recorded after the last event that is there. The transactions of both may have overlapped, and the clock
/// may have been set: so much earlier it is looked for, in seconds.
const SLACK_S: i64 = 3_600;

/// A server that was not updated yet has no such function.
const READY: &str = "SELECT to_regprocedure('idgen.witness_wanted(integer)') IS NOT NULL";

const WANTED: &str = "SELECT idgen.witness_wanted($1)";

/// The space, whether it has several masters, and under which names this database has recorded its events.
const WHO: &str = "
    SELECT p.space_id, p.stripes > 1, a.sources_before || p.source_id FROM idgen.space p CROSS JOIN idgen.authority a";

/// The last event of the last history that nothing is missing of but its end; none: there is none. Histories that came after it,
/// and ended before anybody was asked, say nothing of when that was.
const LAST: &str = "
    SELECT floor(extract(epoch FROM e.at))::int8
      FROM idgen.audit_event e CROSS JOIN idgen.space p CROSS JOIN idgen.authority a
     WHERE e.source_id <> p.source_id AND e.source_id <> ALL (a.sources_before[cardinality(a.sources_before) - a.unheard + 2:])
     ORDER BY e.event_id DESC LIMIT 1";

/// Tags that have granted less than others have seen.
const BEHIND: &str = "
    SELECT t.tag, t.hi FROM unnest($1::text[], $2::int8[]) t(tag, hi) JOIN idgen.segment s ON s.tag = t.tag COLLATE \"C\"
     WHERE s.max_id < t.hi AND s.dropped_at IS NULL ORDER BY t.tag";

const PASS_OVER: &str = "SELECT idgen.pass_over($1, $2, $3)";

const TELL: &str = "SELECT idgen.witnessed($1)";

const DAY_US: i64 = 86_400_000_000;

/// What this works with.
#[derive(Clone)]
pub struct WitnessSetup {
    /// The server.
    pub postgres: PostgresConfig,
    /// So long its tags wait after a promotion.
    pub wait: Duration,
    /// Where events are archived; none: nowhere.
    pub archive: Option<ArchivePlace>,
    /// Where they are sent; none: nowhere.
    pub kafka: Option<KafkaConfig>,
    /// What is counted.
    pub metrics: WitnessMetrics,
}

/// See the module.
pub struct Witness {
    setup: WitnessSetup,
    /// After a promotion every database of a server asks the same: it is read for all of them.
    gathered: Arc<Mutex<Option<Gathered>>>,
}

/// What was seen since a time, and when somebody began to look.
struct Gathered {
    began: Instant,
    since_s: Option<i64>,
    seen: Arc<Seen>,
}

impl Witness {
    /// One that has not begun.
    #[must_use]
    pub fn new(setup: WitnessSetup) -> Self {
        Self {
            setup,
            gathered: Arc::default(),
        }
    }

    /// Looks after every database of the server until `stop`.
    ///
    /// # Errors
    /// A task has panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let each = EachDatabase::new("witness", "witness", Arc::default());
        let keep = |database: String, stop| {
            let keeper = Keeper {
                setup: self.setup.clone(),
                gathered: Arc::clone(&self.gathered),
                database,
                noticed: None,
            };
            keeper.run(stop)
        };
        each.run(|| self.setup.postgres.databases(), keep, stop).await
    }
}

/// Of one database.
struct Keeper {
    setup: WitnessSetup,
    gathered: Arc<Mutex<Option<Gathered>>>,
    database: String,
    /// The mark of the history that is asked for, and since when we know of it: what is gathered later is enough.
    noticed: Option<(Uuid, Instant)>,
}

impl Keeper {
    async fn run(mut self, stop: CancellationToken) {
        let (mut session, mut trouble) = (None, Complaint::default());
        while !stop.is_cancelled() {
            let looked = tokio::select! {
                () = stop.cancelled() => break,
                looked = self.look(&mut session) => looked,
            };
            let pause = match looked {
                Ok(pause) => {
                    trouble.settle(&format!("witness: database {} is looked after", self.database));
                    pause
                }
                Err(error) => {
                    session = None;
                    let text = format!("witness: database {}: {error}", self.database);
                    trouble.raise(text, Instant::now());
                    SOON
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.setup.metrics.forget(&self.database);
    }

    async fn look(&mut self, kept: &mut Option<Session>) -> Result<Duration> {
        if kept.as_mut().is_none_or(|session| !session.is_usable()) {
            let url = self.setup.postgres.url.in_database(&self.database);
            *kept = Some(open_database(&url, self.setup.postgres.connect_timeout).await?);
        }
        let Some(session) = kept else { return Ok(SOON) };
        if !is_true(session, READY).await? {
            *kept = None;
            return Ok(ABSENT);
        }
        let wait_s = i32::try_from(self.setup.wait.as_secs()).unwrap_or(i32::MAX);
        let rows = rows(session, WANTED, &[(&wait_s, Type::INT4)]).await?;
        let mark: Option<Uuid> = first(&rows)?;
        self.setup.metrics.set_pending(&self.database, mark.is_some());
        let Some(mark) = mark else {
            self.noticed = None;
            return Ok(LOOK_EVERY);
        };
        let noticed = match self.noticed {
            Some((of, noticed)) if of == mark => noticed,
            _ => {
                tracing::warn!(
                    database = self.database,
                    "witness: the database has another history, as after a promotion: topic and archive are asked what it has lost"
                );
                Instant::now()
            }
        };
        self.noticed = Some((mark, noticed));
        self.testify(session, mark, noticed).await?;
        self.setup.metrics.set_pending(&self.database, false);
        Ok(LOOK_EVERY)
    }

    /// Lets every tag pass over what others have seen of it, and the server know that this was done.
    async fn testify(&self, session: &Session, mark: Uuid, noticed: Instant) -> Result<()> {
        let found = rows(session, WHO, &[]).await?;
        let who = found
            .first()
            .ok_or_else(|| Error::retry("idgen.space has lost its row"))?;
        let (space, has_masters): (Uuid, bool) = (column(who, 0)?, column(who, 1)?);
        let sources: Vec<Uuid> = column(who, 2)?;
        let sources: BTreeSet<Uuid> = sources.into_iter().collect();
        let last: Option<i64> = first(&rows(session, LAST, &[]).await?)?;
        let since_s = last.map(|last| last - SLACK_S);
        let seen = self.seen(since_s, noticed).await?;
        // Of several masters each grants ids of its own: the others' say nothing of ours.
        let highest = seen.of(space, has_masters.then_some(&sources));
        let raised = self.pass_over(session, space, highest).await?;
        rows(session, TELL, &[(&mark, Type::UUID)]).await?;
        let (database, grants) = (&self.database, seen.grants());
        if raised == 0 {
            tracing::info!(
                database,
                grants,
                "witness: nothing was lost that others know of; tags serve again"
            );
        } else {
            tracing::error!(
                database,
                grants,
                raised,
                "witness: a promotion has lost grants; their tags go on above them (hint: idgenctl audit run)"
            );
        }
        Ok(())
    }

    /// How many tags had to.
    async fn pass_over(&self, session: &Session, space: Uuid, highest: BTreeMap<&str, i64>) -> Result<u64> {
        let (tags, ids): (Vec<&str>, Vec<i64>) = highest.into_iter().unzip();
        let params = [(&tags as _, Type::TEXT_ARRAY), (&ids as _, Type::INT8_ARRAY)];
        let mut raised = 0;
        for row in rows(session, BEHIND, &params).await? {
            let (tag, hi): (String, i64) = (column(&row, 0)?, column(&row, 1)?);
            let params = [
                (&space as _, Type::UUID),
                (&tag as _, Type::TEXT),
                (&hi as _, Type::INT8),
            ];
            let next: Option<i64> = first(&rows(session, PASS_OVER, &params).await?)?;
            if let Some(next) = next {
                raised += 1;
                self.setup.metrics.raised(&self.database);
                tracing::error!(
                    database = self.database,
                    tag,
                    "witness: grants up to id {hi} were lost; the tag goes on at {next}"
                );
            }
        }
        Ok(raised)
    }

    /// What was granted since, as topic and archive have it. What another one has begun to read since we know of the promotion
    /// is good enough.
    async fn seen(&self, since_s: Option<i64>, noticed: Instant) -> Result<Arc<Seen>> {
        let mut gathered = self.gathered.lock().await;
        if let Some(known) = gathered.as_ref()
            && known.began >= noticed
            && known
                .since_s
                .is_none_or(|known| since_s.is_some_and(|since| known <= since))
        {
            return Ok(Arc::clone(&known.seen));
        }
        let began = Instant::now();
        let seen = Arc::new(gather(&self.setup, since_s).await?);
        *gathered = Some(Gathered {
            began,
            since_s,
            seen: Arc::clone(&seen),
        });
        Ok(seen)
    }
}

/// `since_s`: Unix seconds; none: from the beginning.
async fn gather(setup: &WitnessSetup, since_s: Option<i64>) -> Result<Seen> {
    let from_s = since_s.unwrap_or(0).max(0);
    let Some(place) = &setup.archive else {
        return match &setup.kafka {
            Some(kafka) => of_topic(kafka, Begin::Time(from_s.saturating_mul(1_000))).await,
            None => Ok(Seen::default()),
        };
    };
    let objects = Arc::new(AnyObjects::open(place).await);
    // The clock of the server may have been ahead.
    let days = (Day::of_unix(from_s), Day::of_us(host_us() + DAY_US));
    let Some(kafka) = &setup.kafka else {
        return match of_archive(&objects, days.0, days.1).await? {
            None if since_s.is_some() => Err(Error::retry(
                "the archive has nothing, although the database had events: is it that of this server?",
            )),
            found => Ok(found.unwrap_or_default()),
        };
    };
    // In this order: what is archived in between is read twice, and not never.
    let ledger = Ledger::open(Arc::clone(&objects), kafka.topic.as_str()).await?;
    let mut seen = of_archive(&objects, days.0, days.1).await?.unwrap_or_default();
    seen.merge(of_topic(kafka, Begin::Archive(ledger.chain())).await?);
    Ok(seen)
}

async fn rows(
    session: &Session,
    sql: &str,
    params: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)],
) -> Result<Vec<Row>> {
    let answered = session.rows_typed(sql, params).await;
    answered.map_err(|error| Error::retry(error.to_string()))
}

async fn is_true(session: &Session, sql: &str) -> Result<bool> {
    Ok(first::<bool>(&rows(session, sql, &[]).await?)? == Some(true))
}

fn column<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Result<T> {
    row.try_get(index)
        .map_err(|error| Error::retry(format!("read column {index}: {error}")))
}

/// The first column of the first row; none: there is no row, or it is NULL.
fn first<'r, T: FromSql<'r>>(rows: &'r [Row]) -> Result<Option<T>> {
    rows.first().map_or(Ok(None), |row| column(row, 0))
}
