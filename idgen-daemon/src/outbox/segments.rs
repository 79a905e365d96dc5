//! The queue of `idgen.audit_event`: rows that are not published.
//!
//! Everything goes through the parent with bounds on `at`: then only the tables of those days are planned and locked, and a
//! right on the parent is enough.

use super::lease::{Held, IN_FORCE, Stream};
use super::queue::{Marked, Page, Queue, Row, Watched};
use super::rows::{column, retry};
use crate::error::{Error, Result};
use crate::event::{Event, EventToken, SCHEMA, Stub, StubReason, hex};
use crate::postgres::Session;
use idgen_core::day::Day;
use idgen_core::outbox::{Cursor, Poison, Snapshot};
use idgen_core::utc::show_us;
use serde_json::value::RawValue;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Payloads of one look. A single row may be longer.
const LOOK_BYTES: i64 = 8 << 20;
/// Between two looks at whether something of a sealed day is not published after all, and at which days are open.
const DAYS_PERIOD: Duration = Duration::from_secs(60);
/// Beyond it the backlog is not counted.
const COUNTED_MAX: i64 = 1_000_000;

/// `$1` after which id, `$2` seen by which snapshot or NULL, `$3` from which second of Unix, `$4` how many, `$5` bytes of all
/// payloads, `$6` bytes of one: what is longer is only measured. The first row shows the snapshot even where there is none.
const LOOK: &str = "
    SELECT s.snapshot, r.event_id, r.source_id, r.at_us, r.tx, r.kind, r.space_id, r.tag, r.tag_seq, r.lo, r.hi,
           r.token_epoch, r.token_revision, r.bytes, CASE WHEN r.bytes <= $6 THEN r.payload END,
           CASE WHEN r.bytes > $6 THEN sha256(convert_to(r.payload, 'UTF8')) END, r.found
      FROM (SELECT pg_current_snapshot()::text AS snapshot) s
      LEFT JOIN (
        SELECT q.*, sum(q.bytes) OVER (ORDER BY q.event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
               count(*) OVER () AS found
          FROM (SELECT p.*, octet_length(p.payload)::int8 AS bytes
                  FROM (SELECT e.event_id, e.source_id, (extract(epoch FROM e.at) * 1000000)::int8 AS at_us, e.tx::text AS tx,
                               e.kind, e.space_id, e.tag, e.tag_seq, e.lo, e.hi, e.token_epoch, e.token_revision,
                               e.payload::text AS payload
                          FROM idgen.audit_event e
                         WHERE NOT e.published AND e.event_id > $1
                           AND ($2::text IS NULL OR pg_visible_in_snapshot(e.tx, $2::pg_snapshot))
                           AND e.at >= to_timestamp($3)
                         ORDER BY e.event_id LIMIT $4) p
                 OFFSET 0) q) r
        ON coalesce(r.before, 0) < $5
     ORDER BY r.event_id";

/// `$4` ids and `$7` their moments, `$5` and `$6` seconds of Unix: the days that they are of. A server that was promoted may
/// have given an id to another event than the one that was sent: the moment tells. `IS TRUE` keeps it from becoming a join.
const MARK: &str = "
    UPDATE idgen.audit_event SET published = true
     WHERE event_id = ANY ($4) AND NOT published AND at >= to_timestamp($5) AND at < to_timestamp($6)
       AND ((event_id, (extract(epoch FROM at) * 1000000)::int8) IN (SELECT * FROM unnest($4, $7))) IS TRUE AND ";

/// When the first table begins whose day is not sealed, or that has something which is not published although it is.
const OPEN_FROM: &str = "
    SELECT min(l.from_s) FROM idgen.audit_leaves() l
     WHERE NOT EXISTS (SELECT FROM idgen.audit_day d
                        WHERE d.sealed_at IS NOT NULL AND d.day = (to_timestamp(l.from_s) AT TIME ZONE 'UTC')::date)
        OR EXISTS (SELECT FROM idgen.audit_event e
                    WHERE NOT e.published AND e.at >= to_timestamp(l.from_s) AND e.at < to_timestamp(l.to_s))";

const KEEP_DEAD: &str = "
    INSERT INTO idgen.audit_event_dlq AS d
           (source_id, event_id, at, kind, space_id, tag, tag_seq, lo, hi, payload, reason, sha256)
    SELECT e.source_id, e.event_id, e.at, e.kind, e.space_id, e.tag, e.tag_seq, e.lo, e.hi, e.payload, $3,
           sha256(convert_to(e.payload::text, 'UTF8'))
      FROM idgen.audit_event e
     WHERE e.event_id = $1 AND e.at >= to_timestamp($2) AND e.at < to_timestamp($2 + 86400)
       AND (extract(epoch FROM e.at) * 1000000)::int8 = $4
        ON CONFLICT (source_id, event_id) DO UPDATE
       SET reason = excluded.reason, attempts = d.attempts + 1, last_seen = clock_timestamp(), retried_at = NULL, sent_at = NULL";

/// One statement: the watermark is found under one snapshot. Written only under the lease.
const WATERMARK: &str = "
    UPDATE idgen.drain_lease l SET watermark_tx = s.xmin, watermark_at = clock_timestamp()
      FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin) s
     WHERE l.stream = $1 AND l.epoch = $2 AND l.holder = $3 AND l.expires > clock_timestamp()
       AND NOT EXISTS (SELECT FROM idgen.audit_event e
                        WHERE NOT e.published AND e.tx < s.xmin AND e.at >= to_timestamp($4))";

const WATCH: &str = "
    SELECT (SELECT count(*) FROM (SELECT FROM idgen.audit_event e
                                   WHERE NOT e.published AND e.at >= to_timestamp($1) LIMIT $2) b),
           coalesce((SELECT extract(epoch FROM clock_timestamp() - e.at)::float8 FROM idgen.audit_event e
                      WHERE NOT e.published AND e.at >= to_timestamp($1) ORDER BY e.event_id LIMIT 1), 0),
           (SELECT count(*) FROM idgen.audit_event_dlq d WHERE d.sent_at IS NULL)";

/// What somebody had sent anew, and no stub was made of.
const SENT_AFTER_ALL: &str = "
    UPDATE idgen.audit_event_dlq d SET sent_at = clock_timestamp()
     WHERE d.retried_at IS NOT NULL AND d.sent_at IS NULL
       AND EXISTS (SELECT FROM idgen.audit_event e WHERE e.event_id = d.event_id AND e.at = d.at AND e.published)";

/// Names a row: ids are unique within the source, and its moment says in which table it is, and of which history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKey {
    /// Its id, which comes first: so the lowest key has the lowest id.
    pub event_id: i64,
    /// When it was recorded, in microseconds of Unix.
    pub at_us: i64,
}

impl SegmentKey {
    fn day(&self) -> Day {
        Day::of_us(self.at_us)
    }
}

/// What the last look has found, until somebody says how much of it was taken.
struct Looked {
    snapshot: Snapshot,
    ids: Vec<i64>,
    more: bool,
}

/// See the module.
pub struct SegmentQueue {
    service: String,
    payload_bytes_max: i64,
    cursor: Cursor,
    looked: Option<Looked>,
    open_from: Option<(i64, Instant)>,
}

impl SegmentQueue {
    /// The queue of a database. What is longer than `payload_bytes_max` is not read, but measured.
    #[must_use]
    pub fn new(service: &str, payload_bytes_max: usize) -> Self {
        Self {
            service: service.to_owned(),
            payload_bytes_max: i64::try_from(payload_bytes_max).unwrap_or(i64::MAX),
            cursor: Cursor::new(),
            looked: None,
            open_from: None,
        }
    }

    /// Second of Unix from which days are open.
    async fn open_from(&mut self, session: &Session) -> Result<i64> {
        if let Some((from, at)) = self.open_from
            && at.elapsed() < DAYS_PERIOD
        {
            return Ok(from);
        }
        let rows = session.rows_typed(OPEN_FROM, &[]).await.map_err(retry)?;
        let from: Option<i64> = rows.first().map(|row| column(row, 0)).transpose()?.flatten();
        // Without any table there is nothing to be read.
        let from = from.unwrap_or_default();
        self.open_from = Some((from, Instant::now()));
        Ok(from)
    }

    fn row(&self, row: &tokio_postgres::Row) -> Result<Row<SegmentKey>> {
        let at_us: i64 = column(row, 3)?;
        let token: (Option<i64>, Option<i64>) = (column(row, 11)?, column(row, 12)?);
        let payload: Option<String> = column(row, 14)?;
        let stub = match payload {
            Some(_) => None,
            None => Some(Stub {
                reason: StubReason::TooLarge,
                bytes: u64::try_from(column::<i64>(row, 13)?).unwrap_or_default(),
                sha256: hex(column::<&[u8]>(row, 15)?),
            }),
        };
        let payload = RawValue::from_string(payload.unwrap_or_else(|| "{}".to_owned()))
            .map_err(|error| Error::retry(format!("a payload is no JSON: {error}")))?;
        let event = Event {
            schema: SCHEMA,
            kind: column(row, 5)?,
            source: column(row, 2)?,
            event_id: column(row, 1)?,
            at: show_us(at_us),
            service: self.service.clone(),
            space: column(row, 6)?,
            tag: column(row, 7)?,
            tag_seq: column(row, 8)?,
            lo: column(row, 9)?,
            hi: column(row, 10)?,
            token: token
                .0
                .zip(token.1)
                .map(|(epoch, revision)| EventToken { epoch, revision }),
            tx: column(row, 4)?,
            stub,
            payload,
        };
        let key = SegmentKey {
            event_id: event.event_id,
            at_us,
        };
        Ok(Row {
            key,
            is_stub: event.stub.is_some(),
            event,
        })
    }
}

/// Parameters that [`IN_FORCE`] has.
fn under(held: &Held) -> (&'static str, i64, Uuid) {
    (held.stream.name(), held.epoch, held.instance)
}

impl Queue for SegmentQueue {
    type Key = SegmentKey;
    const STREAM: Stream = Stream::Segment;

    fn reset(&mut self) {
        self.cursor = Cursor::new();
        self.looked = None;
        self.open_from = None;
    }

    async fn look(&mut self, session: &Session, now_ms: u64, limit: usize) -> Result<Page<SegmentKey>> {
        let from = self.open_from(session).await? as f64;
        let look = self.cursor.next(now_ms);
        let seen_by = look.seen_by.as_ref().map(Snapshot::text);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = session
            .rows_typed(
                LOOK,
                &[
                    (&look.after, Type::INT8),
                    (&seen_by, Type::TEXT),
                    (&from, Type::FLOAT8),
                    (&limit, Type::INT8),
                    (&LOOK_BYTES, Type::INT8),
                    (&self.payload_bytes_max, Type::INT8),
                ],
            )
            .await
            .map_err(retry)?;
        let first = found
            .first()
            .ok_or_else(|| Error::retry("no snapshot was shown"))?;
        let snapshot: &str = column(first, 0)?;
        let snapshot = Snapshot::parse(snapshot).map_err(|error| Error::retry(error.to_string()))?;
        let all: i64 = column::<Option<i64>>(first, 16)?.unwrap_or_default();
        let rows: Vec<Row<SegmentKey>> = match column::<Option<i64>>(first, 1)? {
            None => Vec::new(),
            Some(_) => found.iter().map(|row| self.row(row)).collect::<Result<_>>()?,
        };
        let more = all >= limit || i64::try_from(rows.len()).is_ok_and(|read| read < all);
        self.looked = Some(Looked {
            snapshot,
            ids: rows.iter().map(|row| row.key.event_id).collect(),
            more,
        });
        Ok(Page { rows, more })
    }

    fn took(&mut self, now_ms: u64, taken: usize, lowest: Option<SegmentKey>) {
        let Some(looked) = self.looked.take() else { return };
        if taken == 0 && !looked.ids.is_empty() {
            // As if nobody had looked.
            return;
        }
        let more = looked.more || taken < looked.ids.len();
        let last = looked.ids.get(taken.saturating_sub(1)).copied();
        let lowest = lowest.map(|lowest| lowest.event_id);
        self.cursor.read(now_ms, looked.snapshot, last, more, lowest);
    }

    async fn mark(
        &mut self,
        session: &Session,
        held: Held,
        keys: &[SegmentKey],
    ) -> Result<Marked<SegmentKey>> {
        let days = keys.iter().map(SegmentKey::day);
        let (Some(from), Some(to)) = (days.clone().min(), days.max()) else {
            return Ok(Marked::Done(Vec::new()));
        };
        let (ids, moments): (Vec<i64>, Vec<i64>) = keys.iter().map(|key| (key.event_id, key.at_us)).unzip();
        let (stream, epoch, instance) = under(&held);
        let (from, to) = (from.begins() as f64, to.ends() as f64);
        let changed = session
            .execute_typed(
                &format!("{MARK}{IN_FORCE}"),
                &[
                    (&stream, Type::TEXT),
                    (&epoch, Type::INT8),
                    (&instance, Type::UUID),
                    (&ids, Type::INT8_ARRAY),
                    (&from, Type::FLOAT8),
                    (&to, Type::FLOAT8),
                    (&moments, Type::INT8_ARRAY),
                ],
            )
            .await
            .map_err(retry)?;
        Ok(match changed {
            0 => Marked::Nothing,
            _ => Marked::Done(keys.to_vec()),
        })
    }

    async fn keep_dead(&mut self, session: &Session, row: &Row<SegmentKey>, why: Poison) -> Result<()> {
        let (day, reason) = (row.key.day().begins() as f64, reason(why));
        let SegmentKey { event_id, at_us } = row.key;
        session
            .execute_typed(
                KEEP_DEAD,
                &[
                    (&event_id, Type::INT8),
                    (&day, Type::FLOAT8),
                    (&reason, Type::TEXT),
                    (&at_us, Type::INT8),
                ],
            )
            .await
            .map_err(retry)?;
        Ok(())
    }

    async fn watch(&mut self, session: &Session, held: Held) -> Result<Watched> {
        let from = self.open_from(session).await? as f64;
        let (stream, epoch, instance) = under(&held);
        session
            .execute_typed(
                WATERMARK,
                &[
                    (&stream, Type::TEXT),
                    (&epoch, Type::INT8),
                    (&instance, Type::UUID),
                    (&from, Type::FLOAT8),
                ],
            )
            .await
            .map_err(retry)?;
        session.execute_typed(SENT_AFTER_ALL, &[]).await.map_err(retry)?;
        let rows = session
            .rows_typed(WATCH, &[(&from, Type::FLOAT8), (&COUNTED_MAX, Type::INT8)])
            .await
            .map_err(retry)?;
        let row = rows.first().ok_or_else(|| Error::retry("nothing was counted"))?;
        Ok(Watched {
            backlog: column(row, 0)?,
            oldest_s: column(row, 1)?,
            dead: column(row, 2)?,
        })
    }
}

/// As the table of dead letters and the stub name it.
pub(super) fn reason(why: Poison) -> &'static str {
    match why {
        Poison::TooLarge => "too_large",
        Poison::Refused => "refused",
    }
}
