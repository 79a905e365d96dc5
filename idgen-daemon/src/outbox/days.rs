//! The day tables of a database: looked at each minute, sealed when nothing can come any more, dropped when the archive vouches
//! for them. They are made by the refill workers, which need them; here is said when those fall behind.

use super::rows::{column, retry};
use super::server::Way;
use crate::complaint::Complaint;
use crate::error::{Error, Result};
use crate::metrics::DrainMetrics;
use crate::postgres::Session;
use crate::random::random;
use idgen_core::day::Day;
use idgen_core::outbox::{DAYS_AHEAD_MIN, DayFacts, DayState, Gate, Leaf, Retention, days_ahead, holes};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;

/// Between two looks, less up to a quarter.
const PERIOD_MS: u64 = 60_000;
/// Tables that are dropped in one look: each takes a lock for a moment.
const DROPS_AT_ONCE: usize = 5;
/// Days that are given an index in one look.
const INDEXES_AT_ONCE: usize = 20;
/// Before it is dropped all rows of a day are read, and compared with what the archive has.
const DROP_LIMIT: Duration = Duration::from_secs(600);

const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()))::int8, pg_snapshot_xmin(pg_current_snapshot())::text::int8";

const LEAVES: &str = "SELECT leaf::text, from_s, to_s FROM idgen.audit_leaves()";

const KNOWN: &str = "
    SELECT (extract(epoch FROM d.day)::int8), d.fence_tx::text::int8, d.sealed_at IS NOT NULL FROM idgen.audit_day d";

/// Of these days those with rows that are not published.
const UNPUBLISHED: &str = "
    SELECT d.from_s FROM unnest($1::int8[]) AS d(from_s)
     WHERE EXISTS (SELECT FROM idgen.audit_event e
                    WHERE NOT e.published AND e.at >= to_timestamp(d.from_s) AND e.at < to_timestamp(d.from_s + 86400))";

const FENCE: &str = "
    INSERT INTO idgen.audit_day (day, fence_tx)
    VALUES ((to_timestamp($1) AT TIME ZONE 'UTC')::date, pg_snapshot_xmax(pg_current_snapshot())) ON CONFLICT DO NOTHING";

const SEAL: &str = "
    UPDATE idgen.audit_day SET sealed_at = clock_timestamp()
     WHERE day = (to_timestamp($1) AT TIME ZONE 'UTC')::date AND sealed_at IS NULL";

const DROP: &str = "SELECT idgen.drop_audit_day((to_timestamp($1) AT TIME ZONE 'UTC')::date, $2)";

/// Is there a sealed day that has no index?
const UNINDEXED: &str = "
    SELECT EXISTS (SELECT FROM idgen.audit_day d JOIN idgen.audit_leaves() l ON l.from_s = extract(epoch FROM d.day)::int8
                    WHERE d.sealed_at IS NOT NULL AND to_regclass(format('idgen.%I', concat(l.leaf, '_ids'))) IS NULL)";

const INDEX: &str = "SELECT idgen.index_audit_day()::text";

/// See the module.
pub(super) struct Days {
    database: String,
    retention: Retention,
    metrics: DrainMetrics,
    short: Complaint,
    kept: Complaint,
    trouble: Complaint,
}

/// What one look has found.
struct Looked {
    now_s: i64,
    xmin: u64,
    leaves: Vec<Leaf>,
    days: Vec<DayFacts>,
}

impl Days {
    pub(super) fn new(database: &str, retention: Retention, metrics: DrainMetrics) -> Self {
        Self {
            database: database.to_owned(),
            retention,
            metrics,
            short: Complaint::default(),
            kept: Complaint::default(),
            trouble: Complaint::default(),
        }
    }

    pub(super) async fn run(mut self, way: &Way, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let looked = async {
                match way.ready().await? {
                    Some(session) => self.look_after(way, &session).await,
                    None => Ok(()),
                }
            };
            // To drop a day may take minutes, and is given up at any moment: nothing of it is done then.
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = looked => looked,
            };
            match looked {
                Ok(()) => self.trouble.settle(&format!(
                    "outbox: the days of database {} are looked after",
                    self.database
                )),
                Err(error) => {
                    let text = format!("outbox: the days of database {}: {error}", self.database);
                    self.trouble.raise(text, Instant::now());
                }
            }
            // So that servers which began together do not look together.
            let wait = PERIOD_MS - random() % (PERIOD_MS / 4);
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
    }

    /// Each step is a statement of its own, committed by itself.
    async fn look_after(&mut self, way: &Way, session: &Session) -> Result<()> {
        let looked = look(session).await?;
        self.tell_ahead(&looked);
        for day in &looked.days {
            let begins = day.day.begins() as f64;
            if day.wants_fence(looked.now_s) {
                session
                    .execute_typed(FENCE, &[(&begins, Type::FLOAT8)])
                    .await
                    .map_err(retry)?;
            } else if day.state(looked.now_s, looked.xmin) == DayState::Sealable {
                session
                    .execute_typed(SEAL, &[(&begins, Type::FLOAT8)])
                    .await
                    .map_err(retry)?;
                tracing::info!(
                    database = self.database,
                    day = %day.day,
                    "outbox: a day is sealed"
                );
            }
        }
        self.index_sealed(way, session).await?;
        self.drop_old(way, &looked).await
    }

    /// Days that nobody writes to any more get an index on the ids of their grants.
    async fn index_sealed(&self, way: &Way, session: &Session) -> Result<()> {
        let rows = session.rows_typed(UNINDEXED, &[]).await.map_err(retry)?;
        let has_work = rows.first().map(|row| column::<bool>(row, 0)).transpose()?;
        if has_work != Some(true) {
            return Ok(());
        }
        // Once a day: an index takes longer than anything else that is asked in a look.
        let session = way.open(DROP_LIMIT).await?;
        for _ in 0..INDEXES_AT_ONCE {
            let rows = session.rows_typed(INDEX, &[]).await.map_err(retry)?;
            let day = rows
                .first()
                .map(|row| column::<Option<String>>(row, 0))
                .transpose()?;
            let Some(day) = day.flatten() else {
                break;
            };
            tracing::debug!(
                database = self.database,
                day,
                "outbox: the ids of a day have an index"
            );
        }
        Ok(())
    }

    fn tell_ahead(&mut self, looked: &Looked) {
        if looked.leaves.is_empty() {
            // No tag was ever made: nobody needs them.
            return;
        }
        let ahead = days_ahead(&looked.leaves, Day::of_unix(looked.now_s));
        self.metrics.days_ahead(ahead);
        let mut wrong = holes(&looked.leaves);
        if ahead < DAYS_AHEAD_MIN {
            wrong.push(format!(
                "idgen.audit_event has tables for {ahead} days after today: without one for the day nothing is granted (hint: \
                 the refill workers make them; the server's log says why they do not)"
            ));
        }
        match wrong.is_empty() {
            true => self.short.settle(&format!(
                "outbox: the days of database {} are in order",
                self.database
            )),
            false => {
                let text = format!("outbox: database {}: {}", self.database, wrong.join("; "));
                self.short.raise(text, Instant::now());
            }
        }
    }

    async fn drop_old(&mut self, way: &Way, looked: &Looked) -> Result<()> {
        let retention = i32::try_from(self.retention.in_days()).unwrap_or(i32::MAX);
        let (mut kept, mut why, mut dropped) = (BTreeMap::new(), Vec::new(), 0);
        for facts in &looked.days {
            let gate = match facts.kept_by(looked.now_s, self.retention) {
                Some(Gate::Young) => continue,
                Some(gate) => gate,
                None if dropped >= DROPS_AT_ONCE => continue,
                None => {
                    let Some((gate, text)) = drop_day(way, facts.day, retention).await? else {
                        dropped += 1;
                        tracing::info!(
                            database = self.database,
                            day = %facts.day,
                            "outbox: a day is dropped"
                        );
                        continue;
                    };
                    why.push(text);
                    gate
                }
            };
            *kept.entry(gate).or_insert(0) += 1;
        }
        self.metrics.kept(&kept);
        match why.first() {
            None => self.kept.settle(&format!(
                "outbox: days of database {} are dropped again",
                self.database
            )),
            Some(first) => {
                let (database, count) = (&self.database, why.len());
                let text = format!(
                    "outbox: database {database}: {count} days are older than outbox.keep_days and stay: {first}"
                );
                self.kept.raise(text, Instant::now());
            }
        }
        Ok(())
    }
}

/// Drops a day, or says what keeps it.
async fn drop_day(way: &Way, day: Day, keep_days: i32) -> Result<Option<(Gate, String)>> {
    let begins = day.begins() as f64;
    // Somebody waits for it longer than the server works on it: so it never goes on unseen.
    let session = way.open(DROP_LIMIT + DROP_LIMIT / 4).await?;
    let limited = format!("BEGIN; SET LOCAL statement_timeout = {}", DROP_LIMIT.as_millis());
    session.batch(&limited).await.map_err(retry)?;
    let rows = session
        .rows_typed(DROP, &[(&begins, Type::FLOAT8), (&keep_days, Type::INT4)])
        .await
        .map_err(retry)?;
    session.batch("COMMIT").await.map_err(retry)?;
    let said: Option<String> = rows.first().map(|row| column(row, 0)).transpose()?.flatten();
    Ok(said.map(|said| {
        let name = said.split(':').next().unwrap_or_default();
        (Gate::named(name).unwrap_or(Gate::Archive), said)
    }))
}

async fn look(session: &Session) -> Result<Looked> {
    let rows = session.rows_typed(NOW, &[]).await.map_err(retry)?;
    let now = rows
        .first()
        .ok_or_else(|| Error::retry("the server does not tell the time"))?;
    let (now_s, xmin): (i64, i64) = (column(now, 0)?, column(now, 1)?);
    let rows = session.rows_typed(LEAVES, &[]).await.map_err(retry)?;
    let leaves: Vec<Leaf> = rows
        .iter()
        .map(|row| {
            Ok(Leaf {
                name: column(row, 0)?,
                from_s: column(row, 1)?,
                to_s: column(row, 2)?,
            })
        })
        .collect::<Result<_>>()?;
    let rows = session.rows_typed(KNOWN, &[]).await.map_err(retry)?;
    let mut known = BTreeMap::new();
    for row in &rows {
        let of: (i64, bool) = (column(row, 1)?, column(row, 2)?);
        known.insert(Day::of_unix(column(row, 0)?), of);
    }
    let begins: Vec<i64> = leaves
        .iter()
        .filter_map(|leaf| Some(leaf.day()?.begins()))
        .collect();
    let rows = session
        .rows_typed(UNPUBLISHED, &[(&begins, Type::INT8_ARRAY)])
        .await
        .map_err(retry)?;
    let unpublished: Vec<i64> = rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?;
    let days = leaves.iter().filter_map(Leaf::day).map(|day| DayFacts {
        day,
        fence: known.get(&day).and_then(|(fence, _)| u64::try_from(*fence).ok()),
        sealed: known.get(&day).is_some_and(|(_, sealed)| *sealed),
        unpublished: unpublished.contains(&day.begins()),
    });
    Ok(Looked {
        now_s,
        xmin: u64::try_from(xmin).unwrap_or_default(),
        days: days.collect(),
        leaves,
    })
}
