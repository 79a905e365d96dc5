//! `idgenctl outbox`: what is behind, and what is to be sent once more.

use crate::authority::Open;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::outbox::open;
use crate::plain_table::plain_table;
use crate::postgres::{PgError, Session, column};
use idgen_core::outbox::DAYS_AHEAD_MIN;
use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// An event that waits for longer is a finding.
const LATE_S: f64 = 60.0;
/// Rows that are changed in one statement.
const AT_ONCE: i64 = 5_000;

const STATUS: &str = "
    SELECT coalesce(CASE WHEN l.holder IS NOT NULL AND l.expires > clock_timestamp() THEN l.holder_name END, ''), l.epoch, greatest(extract(epoch FROM l.expires - clock_timestamp()), 0)::float8,
           (SELECT count(*) FROM idgen.audit_event e WHERE NOT e.published),
           coalesce((SELECT extract(epoch FROM clock_timestamp() - e.at)::float8 FROM idgen.audit_event e
                      WHERE NOT e.published ORDER BY e.event_id LIMIT 1), 0),
           (SELECT count(*) FROM idgen.audit_event_dlq d WHERE d.sent_at IS NULL),
           (SELECT count(*) FROM idgen.audit_leaves()),
           (SELECT count(*) FROM idgen.audit_day d WHERE d.sealed_at IS NOT NULL),
           coalesce((SELECT (max(v.to_s) - floor(extract(epoch FROM clock_timestamp()))::bigint) / 86400 FROM idgen.audit_leaves() v), 0),
           l.watermark_tx::text
      FROM idgen.drain_lease l WHERE l.stream = 'segment'";

const DEAD: &str = "
    SELECT d.source_id, d.event_id, d.kind, d.tag, d.tag_seq, d.reason, octet_length(d.payload::text)::int8, encode(d.sha256, 'hex'),
           d.attempts::int8, to_char(d.last_seen AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), d.retried_at IS NOT NULL
      FROM idgen.audit_event_dlq d WHERE d.sent_at IS NULL ORDER BY d.event_id";

const COUNT: &str = "
    SELECT count(*) FROM idgen.audit_event e
     WHERE e.published AND e.at >= to_timestamp($1) AND e.at < to_timestamp($1 + 86400) AND ($2::text IS NULL OR e.tag = $2)";

/// In the order of ids, some at a time: `$3` after which, `$4` how many. Whoever drains is told in the same statement.
const REPLAY: &str = "
    WITH chosen AS (
        SELECT e.event_id FROM idgen.audit_event e
         WHERE e.published AND e.at >= to_timestamp($1) AND e.at < to_timestamp($1 + 86400)
           AND ($2::text IS NULL OR e.tag = $2) AND e.event_id > $3
         ORDER BY e.event_id LIMIT $4),
    changed AS (
        UPDATE idgen.audit_event e SET published = false FROM chosen c
         WHERE e.event_id = c.event_id AND e.at >= to_timestamp($1) AND e.at < to_timestamp($1 + 86400)
        RETURNING e.event_id),
    told AS (
        UPDATE idgen.drain_lease SET asked = asked + 1 WHERE stream = 'segment' AND EXISTS (SELECT FROM changed))
    SELECT count(*), max(event_id) FROM changed";

/// All in one statement: a dead letter is being sent if, and only if, its event is, and whoever drains is told. Of an event
/// that is not published a stub may be under way, which would be taken for the whole: it is left as it is. Shows how many are
/// sent, and of how many the event is not in the table (any more).
const RETRY: &str = "
    WITH letter AS (
        SELECT d.source_id, d.event_id, d.at FROM idgen.audit_event_dlq d
         WHERE d.sent_at IS NULL AND ($1::int8[] IS NULL OR d.event_id = ANY ($1))),
    sent AS (
        UPDATE idgen.audit_event e SET published = false FROM letter l
         WHERE e.event_id = l.event_id AND e.at = l.at AND e.source_id = l.source_id AND e.published
        RETURNING e.source_id, e.event_id),
    noted AS (
        UPDATE idgen.audit_event_dlq d SET retried_at = clock_timestamp() FROM sent s
         WHERE d.source_id = s.source_id AND d.event_id = s.event_id),
    told AS (
        UPDATE idgen.drain_lease SET asked = asked + 1 WHERE stream = 'segment' AND EXISTS (SELECT FROM sent))
    SELECT (SELECT count(*) FROM sent),
           (SELECT count(*) FROM letter l
             WHERE NOT EXISTS (SELECT FROM idgen.audit_event e
                                WHERE e.event_id = l.event_id AND e.at = l.at AND e.source_id = l.source_id))";

/// How the outbox of a database stands.
#[derive(Clone, Debug, Serialize)]
pub struct OutboxStatus {
    /// The database.
    pub database: String,
    /// Which daemon drains; empty: none.
    pub drained_by: String,
    /// Under which epoch.
    pub epoch: i64,
    /// Until another one may take over.
    pub expires_in_seconds: f64,
    /// Events that wait.
    pub backlog: i64,
    /// For how long the oldest has waited.
    pub oldest_seconds: f64,
    /// Dead letters that were not sent whole.
    pub dead_letters: i64,
    /// Day tables,
    pub days: i64,
    /// ... and of them those that are sealed.
    pub sealed: i64,
    /// Whole days after now that have a table.
    pub days_ahead: i64,
    /// All events of transactions below have been handed on.
    pub watermark_tx: Option<String>,
}

impl OutboxStatus {
    /// Is there nothing that somebody should look at?
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.oldest_seconds <= LATE_S
            && self.dead_letters == 0
            && (self.days == 0 || self.days_ahead >= i64::from(DAYS_AHEAD_MIN))
    }

    /// For people.
    #[must_use]
    pub fn table(all: &[Self]) -> String {
        let mut table = plain_table();
        table.set_header([
            "database",
            "drained by",
            "epoch",
            "backlog",
            "oldest",
            "dead letters",
            "days",
            "sealed",
            "ahead",
        ]);
        for of in all {
            table.add_row([
                of.database.clone(),
                of.drained_by.clone(),
                of.epoch.to_string(),
                of.backlog.to_string(),
                format!("{:.0} s", of.oldest_seconds),
                of.dead_letters.to_string(),
                of.days.to_string(),
                of.sealed.to_string(),
                of.days_ahead.to_string(),
            ]);
        }
        table.to_string()
    }
}

/// A dead letter.
#[derive(Clone, Debug, Serialize)]
pub struct DeadLetter {
    /// Of which source of events.
    pub source: Uuid,
    /// Its number there.
    pub event_id: i64,
    /// Its kind.
    pub kind: String,
    /// Its tag,
    pub tag: String,
    /// ... and its number there.
    pub tag_seq: i64,
    /// Why a stub was sent.
    pub reason: String,
    /// Length of the payload.
    pub bytes: i64,
    /// Its SHA-256.
    pub sha256: String,
    /// How often a stub was made of it.
    pub attempts: i64,
    /// When for the last time.
    pub last_seen: String,
    /// Somebody has asked to send it anew, and it was not sent yet.
    pub retried: bool,
}

impl DeadLetter {
    /// For people.
    #[must_use]
    pub fn table(all: &[Self]) -> String {
        let mut table = plain_table();
        table.set_header([
            "event",
            "kind",
            "tag",
            "number",
            "reason",
            "bytes",
            "attempts",
            "last seen",
            "retried",
        ]);
        for of in all {
            table.add_row([
                of.event_id.to_string(),
                of.kind.clone(),
                of.tag.clone(),
                of.tag_seq.to_string(),
                of.reason.clone(),
                of.bytes.to_string(),
                of.attempts.to_string(),
                of.last_seen.clone(),
                if of.retried { "yes" } else { "" }.to_owned(),
            ]);
        }
        table.to_string()
    }
}

/// Which events are to be sent once more.
#[derive(Clone, Debug)]
pub struct Replay {
    /// First second of their day of UTC, in Unix time.
    pub day_s: i64,
    /// Of this tag alone.
    pub tag: Option<String>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Again {
    /// So many events are sent once more.
    pub events: u64,
    /// Of so many dead letters the event is not in the database any more, so they cannot be.
    #[serde(skip_serializing_if = "is_none")]
    pub gone: u64,
}

/// Nothing is said of it then.
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Again {
    /// So many events, and nothing else.
    #[must_use]
    pub fn of(events: u64) -> Self {
        Self { events, gone: 0 }
    }
}

fn failed(error: PgError) -> Error {
    match error.sqlstate() {
        Some("42501") => Error::refused(error.to_string())
            .with_hint("call idgen.grant_daemon() for the role of [postgres] anew"),
        Some("42P01" | "42883" | "3F000") => Error::refused("this database has no outbox")
            .with_hint("CREATE EXTENSION pg_idgen, or ALTER EXTENSION pg_idgen UPDATE"),
        _ => Error::retry(error.to_string()),
    }
}

/// The outbox of one database.
pub struct OutboxOf {
    session: Session,
}

impl OutboxOf {
    /// Connects.
    ///
    /// # Errors
    /// It is away.
    pub async fn open(config: &Config, database: &str) -> Result<Self> {
        let url = config.postgres.url.in_database(database);
        let session = open(&url, config.postgres.connect_timeout).await?;
        Ok(Self { session })
    }

    /// Its dead letters.
    ///
    /// # Errors
    /// Refused, or away.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>> {
        let rows = self.session.rows_typed(DEAD, &[]).await.map_err(failed)?;
        rows.iter()
            .map(|row| {
                Ok(DeadLetter {
                    source: column(row, 0)?,
                    event_id: column(row, 1)?,
                    kind: column(row, 2)?,
                    tag: column(row, 3)?,
                    tag_seq: column(row, 4)?,
                    reason: column(row, 5)?,
                    bytes: column(row, 6)?,
                    sha256: column(row, 7)?,
                    attempts: column(row, 8)?,
                    last_seen: column(row, 9)?,
                    retried: column(row, 10)?,
                })
            })
            .collect()
    }

    /// Has dead letters sent anew, as they are: those of these events, or all. Those on their way already are left alone.
    ///
    /// # Errors
    /// Away, or refused: none can be sent, because their events are not in the table.
    pub async fn retry(&self, events: Option<Vec<i64>>) -> Result<Again> {
        let rows = self
            .session
            .rows_typed(RETRY, &[(&events, Type::INT8_ARRAY)])
            .await
            .map_err(failed)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::runtime("nothing was counted"))?;
        let count = |at| column::<i64>(row, at).map(|count| u64::try_from(count).unwrap_or_default());
        let (events, gone) = (count(0)?, count(1)?);
        if events == 0 && gone > 0 {
            return Err(Error::refused(format!(
                "{gone} dead letters cannot be sent: their events are not in idgen.audit_event"
            ))
            .with_hint(
                "they are of leases, or of a day that was dropped; each is whole in idgen.audit_event_dlq: keep it \
                 elsewhere and delete its row",
            ));
        }
        Ok(Again { events, gone })
    }

    /// How many events a replay would send once more.
    ///
    /// # Errors
    /// Refused, or away.
    pub async fn count(&self, replay: &Replay) -> Result<u64> {
        let day = replay.day_s as f64;
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&day, Type::FLOAT8), (&replay.tag, Type::TEXT)];
        let rows = self.session.rows_typed(COUNT, &params).await.map_err(failed)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::runtime("nothing was counted"))?;
        Ok(u64::try_from(column::<i64>(row, 0)?).unwrap_or_default())
    }

    /// Has them sent once more, some at a time; `told` hears how many so far.
    ///
    /// # Errors
    /// Refused, or away: those so far are sent.
    pub async fn replay(&self, replay: &Replay, mut told: impl FnMut(u64)) -> Result<Again> {
        let (day, mut after, mut events) = (replay.day_s as f64, 0_i64, 0);
        loop {
            let rows = self
                .session
                .rows_typed(
                    REPLAY,
                    &[
                        (&day, Type::FLOAT8),
                        (&replay.tag, Type::TEXT),
                        (&after, Type::INT8),
                        (&AT_ONCE, Type::INT8),
                    ],
                )
                .await
                .map_err(failed)?;
            let row = rows
                .first()
                .ok_or_else(|| Error::runtime("nothing was counted"))?;
            events += u64::try_from(column::<i64>(row, 0)?).unwrap_or_default();
            let Some(last) = column::<Option<i64>>(row, 1)? else {
                return Ok(Again::of(events));
            };
            after = last;
            told(events);
        }
    }
}

/// How the outbox of every database of the server stands that has one.
///
/// # Errors
/// The server is away.
pub async fn status(config: &Config) -> Result<Vec<OutboxStatus>> {
    let mut all = Vec::new();
    for database in config.postgres.databases().await? {
        let of = OutboxOf::open(config, &database).await?;
        let there = "SELECT to_regclass('idgen.drain_lease') IS NOT NULL";
        let rows = of.session.rows_typed(there, &[]).await.map_err(failed)?;
        if !rows
            .first()
            .map(|row| column::<bool>(row, 0))
            .transpose()?
            .unwrap_or_default()
        {
            continue;
        }
        let rows = of.session.rows_typed(STATUS, &[]).await.map_err(failed)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::refused("a row of idgen.drain_lease is missing"))?;
        all.push(OutboxStatus {
            database,
            drained_by: column(row, 0)?,
            epoch: column(row, 1)?,
            expires_in_seconds: column(row, 2)?,
            backlog: column(row, 3)?,
            oldest_seconds: column(row, 4)?,
            dead_letters: column(row, 5)?,
            days: column(row, 6)?,
            sealed: column(row, 7)?,
            days_ahead: column(row, 8)?,
            watermark_tx: column(row, 9)?,
        });
    }
    Ok(all)
}
