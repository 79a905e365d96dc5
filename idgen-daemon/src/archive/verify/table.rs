//! The tables' side of a check, in every database of the server.

use super::super::tables::{has_extension, open};
use crate::authority::Open;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::postgres::{PgError, Session};
use idgen_core::archive::{Day, DayVerdict, IdDigest};
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

/// Ids that are read at once.
const PAGE: i64 = 100_000;

const DIGEST: &str = "SELECT source_id, rows, digest_xor, digest_sum FROM idgen.event_digest($1::text::date)";
/// Of sources whose day has left the table: what was verified then.
const VERIFIED: &str = "
    SELECT source_id, rows, digest_xor, digest_sum FROM idgen.archive_day
     WHERE day = $1::text::date AND state = 'verified'";
const IDS: &str = "
    SELECT event_id FROM idgen.audit_event
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
/// Days that have ended half an hour ago at the least and are not verified, nor were looked at within the last hour.
const DUE: &str = "
    SELECT DISTINCT to_char(l.day, 'YYYY-MM-DD')
      FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
              FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'idgen.audit_event'::regclass AND c.relname ~ '^audit_event_[0-9]{8}$') l
     WHERE (l.day + 1)::timestamp AT TIME ZONE 'UTC' <= clock_timestamp() - interval '30 minutes'
       AND NOT EXISTS (SELECT FROM idgen.archive_day d
                        WHERE d.day = l.day AND (d.state = 'verified' OR d.checked_at > clock_timestamp() - interval '1 hour'))
     ORDER BY 1";

/// What a table has of a source on a day.
pub(super) struct TableDay {
    pub database: String,
    pub digest: IdDigest,
    /// The day has left the table: the digest is the one that was verified before.
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
            let session = open(&postgres.url.in_database(&database), postgres.connect_timeout).await?;
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
        for (sql, is_gone) in [(VERIFIED, true), (DIGEST, false)] {
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
    pub async fn ids(&mut self, database: &str, day: Day, source: Uuid) -> Result<Vec<i64>> {
        let session = self.session(database)?;
        let start = format!("{day} 00:00:00+00");
        let (mut ids, mut after): (Vec<i64>, i64) = (Vec::new(), i64::MIN);
        loop {
            let rows = session
                .rows(IDS, &[&start, &source, &after, &PAGE])
                .await
                .map_err(failed)?;
            for row in &rows {
                after = get(row, 0)?;
                ids.push(after);
            }
            if (rows.len() as u64) < PAGE.cast_unsigned() {
                return Ok(ids);
            }
        }
    }

    pub async fn write(
        &mut self,
        database: &str,
        day: Day,
        (source, verdict, archived): (Uuid, &DayVerdict, IdDigest),
        (head, by): (&str, &str),
    ) -> Result<()> {
        let session = self.session(database)?;
        let (day, state, reason) = (day.to_string(), verdict.name(), verdict.reason());
        let (rows, xor, sum) = (
            archived.rows.cast_signed(),
            archived.xor.cast_signed(),
            archived.sum.cast_signed(),
        );
        session
            .execute(
                WRITE,
                &[&source, &day, &state, &rows, &xor, &sum, &reason, &head, &by],
            )
            .await
            .map_err(|error| Error::retry(format!("write idgen.archive_day: {error}")))?;
        Ok(())
    }

    /// Days that should be checked now.
    pub async fn due(&mut self) -> Result<Vec<Day>> {
        let mut due = std::collections::BTreeSet::new();
        for session in self.sessions.values() {
            for row in session.rows(DUE, &[]).await.map_err(failed)? {
                let day: String = get(&row, 0)?;
                due.insert(
                    day.parse()
                        .map_err(|error| Error::runtime(format!("{day}: {error}")))?,
                );
            }
        }
        Ok(due.into_iter().collect())
    }
}
