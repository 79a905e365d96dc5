//! The tables' side of a check, in every database of the server.

use super::super::tables::{has_extension, open_for};
use crate::authority::Open;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::postgres::{PgError, Session};
use idgen_core::archive::{DayVerdict, EventKey, IdDigest};
use idgen_core::day::Day;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

/// Events that are read at once.
const PAGE: i64 = 100_000;
/// Of a statement: the digest of a day reads all of it.
const STATEMENT: Duration = Duration::from_secs(600);

const DIGEST: &str = "SELECT source_id, rows, digest_xor, digest_sum FROM idgen.event_digest($1::text::date)";
/// Of sources whose day has left the table: what it had then, whatever was found since.
const KNOWN: &str = "
    SELECT source_id, rows, digest_xor, digest_sum FROM idgen.archive_day WHERE day = $1::text::date";
const EVENTS: &str = "
    SELECT event_id, (extract(epoch FROM at) * 1000000)::int8 FROM idgen.audit_event
     WHERE at >= $1::text::timestamptz AND at < $1::text::timestamptz + interval '1 day'
       AND source_id = $2 AND event_id > $3
     ORDER BY event_id LIMIT $4";
const WRITE: &str = "
    INSERT INTO idgen.archive_day AS d (source_id, day, state, rows, digest_xor, digest_sum, reason, head, checked_by)
    VALUES ($1, $2::text::date, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (source_id, day) DO UPDATE
       SET (state, rows, digest_xor, digest_sum, reason, head, checked_by, checked_at)
         = (EXCLUDED.state, EXCLUDED.rows, EXCLUDED.digest_xor, EXCLUDED.digest_sum, EXCLUDED.reason, EXCLUDED.head,
            EXCLUDED.checked_by, clock_timestamp())";
/// Days that have a leaf.
const LEAVES: &str = "
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'idgen.audit_event'::regclass AND c.relname ~ '^audit_event_[0-9]{8}$'";
/// Days with events that have ended half an hour ago at the least, if of a source (those that were found before, and those of the
/// first and the last event)
/// - nothing is known,
/// - or it is not verified, or was before the day had ended so long ago, and was not looked at within the last hour,
/// - or the day is about to be dropped, and the proof is older than five days: the gate takes none that is older than seven.
const DUE: &str = "
     SELECT DISTINCT to_char(l.day, 'YYYY-MM-DD')
       FROM (SELECT day, day::timestamp AT TIME ZONE 'UTC' AS begins,
                    (day + 1)::timestamp AT TIME ZONE 'UTC' AS ends FROM leaves) l
      CROSS JOIN LATERAL (SELECT e.source_id FROM idgen.audit_event e WHERE e.at >= l.begins AND e.at < l.ends
                           ORDER BY e.event_id LIMIT 1) f
      CROSS JOIN LATERAL (SELECT e.source_id FROM idgen.audit_event e WHERE e.at >= l.begins AND e.at < l.ends
                           ORDER BY e.event_id DESC LIMIT 1) z
      CROSS JOIN LATERAL (VALUES (f.source_id), (z.source_id)
                          UNION SELECT k.source_id FROM idgen.archive_day k WHERE k.day = l.day) s(source_id)
       LEFT JOIN idgen.archive_day d ON d.day = l.day AND d.source_id = s.source_id
      WHERE l.ends <= clock_timestamp() - interval '30 minutes'
        AND (d.source_id IS NULL
             OR (d.state <> 'verified' OR d.checked_at < l.ends + interval '30 minutes')
                AND d.checked_at <= clock_timestamp() - interval '1 hour'
             OR l.ends + ($1::float8 - 2) * interval '1 day' <= clock_timestamp()
                AND d.checked_at <= clock_timestamp() - interval '5 days')
      ORDER BY 1";
const STATES: &str = "
    SELECT d.state, count(*) FROM idgen.archive_day d WHERE d.day IN (SELECT l.day FROM leaves l) GROUP BY d.state";

/// What a table has of a source on a day.
pub(super) struct TableDay {
    pub database: String,
    pub digest: IdDigest,
    /// The day has left the table: the digest is that of what it had before.
    pub is_gone: bool,
}

/// Sessions with the databases that have the extension and are no standbys.
pub(super) struct Databases {
    sessions: BTreeMap<String, Session>,
}

fn failed(error: PgError) -> Error {
    Error::retry(format!("compare with the table: {error}"))
}

fn get<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|error| Error::runtime(format!("column {at}: {error}")))
}

impl Databases {
    pub async fn open(config: &Config) -> Result<Self> {
        let postgres = &config.postgres;
        let mut sessions = BTreeMap::new();
        for database in postgres.databases().await? {
            let url = postgres.url.in_database(&database);
            let session = open_for(&url, postgres.connect_timeout, STATEMENT).await?;
            if !has_extension(&session).await? {
                continue;
            }
            let row = session
                .row("SELECT pg_is_in_recovery()", &[])
                .await
                .map_err(failed)?;
            if !get::<bool>(&row, 0)? {
                sessions.insert(database, session);
            }
        }
        Ok(Self { sessions })
    }

    pub async fn digests(&mut self, day: Day) -> Result<BTreeMap<Uuid, TableDay>> {
        let day = day.to_string();
        let mut digests = BTreeMap::new();
        for (sql, is_gone) in [(KNOWN, true), (DIGEST, false)] {
            for (database, session) in &self.sessions {
                for row in session.rows(sql, &[&day]).await.map_err(failed)? {
                    let number = |at| get::<i64>(&row, at).map(i64::cast_unsigned);
                    let found = TableDay {
                        database: database.clone(),
                        digest: IdDigest {
                            rows: number(1)?,
                            xor: number(2)?,
                            sum: number(3)?,
                        },
                        is_gone,
                    };
                    // What is in the table comes last, and counts.
                    digests.insert(get(&row, 0)?, found);
                }
            }
        }
        Ok(digests)
    }

    fn session(&self, database: &str) -> Result<&Session> {
        let session = self.sessions.get(database);
        session.ok_or_else(|| Error::runtime(format!("no session with database {database}")))
    }

    /// In rising order.
    pub async fn events(&mut self, database: &str, day: Day, source: Uuid) -> Result<Vec<EventKey>> {
        let session = self.session(database)?;
        let start = format!("{day} 00:00:00+00");
        let (mut events, mut after): (Vec<EventKey>, i64) = (Vec::new(), i64::MIN);
        loop {
            let rows = session
                .rows(EVENTS, &[&start, &source, &after, &PAGE])
                .await
                .map_err(failed)?;
            for row in &rows {
                after = get(row, 0)?;
                events.push((after, get(row, 1)?));
            }
            if (rows.len() as u64) < PAGE.cast_unsigned() {
                return Ok(events);
            }
        }
    }

    /// Digests are those of the table, and of a day that has left it those that are known already: never what the archive has.
    pub async fn write(
        &mut self,
        day: Day,
        (source, table, verdict): (Uuid, &TableDay, &DayVerdict),
        (head, by): (&str, &str),
    ) -> Result<()> {
        let session = self.session(&table.database)?;
        let (day, state, reason) = (day.to_string(), verdict.name(), verdict.reason());
        let (rows, xor, sum) = (
            table.digest.rows.cast_signed(),
            table.digest.xor.cast_signed(),
            table.digest.sum.cast_signed(),
        );
        let written = session
            .execute(
                WRITE,
                &[&source, &day, &state, &rows, &xor, &sum, &reason, &head, &by],
            )
            .await;
        written.map_err(|error| Error::retry(format!("write idgen.archive_day: {error}")))?;
        Ok(())
    }

    /// Days that should be checked now, where they are dropped when they are older than `keep_days`.
    pub async fn due(&mut self, keep_days: u32) -> Result<Vec<Day>> {
        let (mut due, keep_days) = (BTreeSet::new(), f64::from(keep_days));
        let statement = format!("WITH leaves AS ({LEAVES}) {DUE}");
        for session in self.sessions.values() {
            for row in session.rows(&statement, &[&keep_days]).await.map_err(failed)? {
                let day: String = get(&row, 0)?;
                due.insert(
                    day.parse()
                        .map_err(|error| Error::runtime(format!("{day}: {error}")))?,
                );
            }
        }
        Ok(due.into_iter().collect())
    }

    /// How many of the days that have leaves are in each state, each source by itself.
    pub async fn states(&mut self) -> Result<BTreeMap<String, i64>> {
        let mut states = BTreeMap::new();
        let statement = format!("WITH leaves AS ({LEAVES}) {STATES}");
        for session in self.sessions.values() {
            for row in session.rows(&statement, &[]).await.map_err(failed)? {
                *states.entry(get(&row, 0)?).or_default() += get::<i64>(&row, 1)?;
            }
        }
        Ok(states)
    }
}
