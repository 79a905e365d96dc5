//! Reads what the server has counted in its shared memory, for the metrics: ids, refusals, waits, and the errors of unique
//! constraints in each of its databases. Nothing depends on it: what fails is told, and tried again.

use crate::authority::Open;
use crate::complaint::Complaint;
use crate::config::PostgresConfig;
use crate::error::{Error, Result};
use crate::lease::host_ms;
use crate::metrics::{ColumnErrors, ServerCounts, ServerMetrics};
use crate::postgres::{PgError, PostgresUrl, Session, column, explain};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Sessions are opened and closed each time, so that none stands in the way of `DROP DATABASE`. As often as Prometheus comes.
const PERIOD: Duration = Duration::from_secs(30);

/// The view goes through the defaults of all columns.
const REQUEST: Duration = Duration::from_secs(5);

const COUNTS: &str = "
    SELECT s.scope, s.object, s.counter, s.value FROM idgen.stat_values() s WHERE s.scope IN ('server', 'error')
    UNION ALL
    SELECT 'duplicates', NULL, 'others', d.errors FROM idgen.duplicate_key_counts() d WHERE d.others
    UNION ALL
    SELECT 'setting', NULL, 'track_ids', (current_setting('idgen.track_ids') = 'on')::int::bigint";

/// An extension that was not updated yet has no such view.
const CAN_TELL: &str = "SELECT to_regclass('idgen.duplicate_key_errors') IS NOT NULL";

const DUPLICATES: &str = "
    SELECT f.relation::text, f.column_name::text, coalesce(sum(e.errors), 0)::bigint
      FROM idgen.fed_columns f
      LEFT JOIN idgen.duplicate_key_errors e ON e.relation = f.relation AND e.column_name = f.column_name
     GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2";

/// Reads them until `stop`.
///
/// # Errors
/// Never: it is a task of the supervisor.
pub async fn watch(postgres: PostgresConfig, metrics: ServerMetrics, stop: CancellationToken) -> Result<()> {
    let mut trouble = Complaint::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            read = read(&postgres, &metrics) => match read {
                Ok(()) => trouble.settle("counters of the server: they can be read again"),
                Err(error) => trouble.raise(format!("counters of the server: {error}"), Instant::now()),
            },
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

async fn read(postgres: &PostgresConfig, metrics: &ServerMetrics) -> Result<()> {
    let limit = postgres.connect_timeout;
    let session = open(&postgres.url, limit).await?;
    if !can_tell(&session).await? {
        return Err(Error::retry("the extension is older than this idgend")
            .with_hint("run ALTER EXTENSION pg_idgen UPDATE, and SELECT idgen.grant_daemon('ROLE') for the role of idgend"));
    }
    let counts = counts(&session).await?;
    drop(session);
    metrics.set(&counts, host_ms() / 1_000);
    let databases = postgres.databases().await?;
    metrics.keep_databases(&databases);
    let mut failed = None;
    for database in databases {
        match duplicates(&postgres.url.in_database(&database), limit).await {
            Ok(columns) => metrics.set_duplicates(&database, &columns),
            // One that cannot be asked is no reason not to ask the others.
            Err(error) => failed = Some(Error::retry(format!("database {database}: {error}"))),
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn open(url: &PostgresUrl, limit: Duration) -> Result<Session> {
    let opened = Session::open(url, "idgend counters", limit, REQUEST).await;
    opened.map_err(|error: PgError| Error::retry(format!("connect to postgres: {error}")))
}

async fn can_tell(session: &Session) -> Result<bool> {
    column(&session.row(CAN_TELL, &[]).await.map_err(explain)?, 0)
}

async fn counts(session: &Session) -> Result<ServerCounts> {
    let mut counts = ServerCounts::default();
    let mut is_tracked = true;
    for row in session.rows(COUNTS, &[]).await.map_err(explain)? {
        let (scope, object): (&str, Option<&str>) = (column(&row, 0)?, column(&row, 1)?);
        let (counter, value): (&str, i64) = (column(&row, 2)?, column(&row, 3)?);
        let value = u64::try_from(value).unwrap_or_default();
        match (scope, counter) {
            ("error", _) => counts
                .refusals
                .push((object.unwrap_or_default().to_owned(), value)),
            ("setting", _) => is_tracked = value == 1,
            ("duplicates", _) => counts.other_duplicates = value,
            (_, "ids") => counts.ids = Some(value),
            (_, "lease_waits") => counts.lease_waits = value,
            (_, "exhaustions") => counts.exhaustions = value,
            (_, "clock_rewinds") => counts.clock_rewinds = value,
            _ => {}
        }
    }
    counts.ids = counts.ids.filter(|_| is_tracked);
    Ok(counts)
}

/// Of the columns that are fed in a database; none where it has no extension.
async fn duplicates(url: &PostgresUrl, limit: Duration) -> Result<Vec<ColumnErrors>> {
    let session = open(url, limit).await?;
    if !can_tell(&session).await? {
        return Ok(Vec::new());
    }
    let rows = session.rows(DUPLICATES, &[]).await.map_err(explain)?;
    rows.iter()
        .map(|row| {
            Ok(ColumnErrors {
                table: column(row, 0)?,
                column: column(row, 1)?,
                errors: u64::try_from(column::<i64>(row, 2)?).unwrap_or_default(),
            })
        })
        .collect()
}
