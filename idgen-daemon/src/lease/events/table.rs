//! The trail in tables of a Postgres database (`sql/28-store-events.sql`).

use super::super::store::{StoreError, StoreErrorKind};
use super::{Batch, Kept, Sink, value_of};
use crate::postgres::{PgError, PostgresUrl, Session, describe};
use idgen_core::clock::UnixMs;
use idgen_core::lease::events::{Head, Place, Record, Seen, Suspect, Tracked, When};
use idgen_core::lease::{CellId, InstanceId, Revision, StoreIdentity};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

type Result<T> = std::result::Result<T, StoreError>;

const CURSOR: &str = "
    SELECT store, branch, cursor, revision, head_seq, head_hash, pruned_seq, pruned_hash, followed_by,
           (extract(epoch FROM followed_at) * 1000)::int8
      FROM idgen.lease_trail WHERE cell_id = $1";

const KEYS: &str = "
    SELECT key, made, version, changed, value, told, (extract(epoch FROM read_at) * 1000)::int8,
           suspect, suspect_position, suspect_revision, (extract(epoch FROM suspect_at) * 1000)::int8
      FROM idgen.lease_event_key WHERE cell_id = $1";

/// It is there only once.
const BEGIN_TRAIL: &str = "
    INSERT INTO idgen.lease_trail (cell_id, store, branch, cursor, revision, head_seq, head_hash, token_epoch,
                                   token_revision, followed_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";

/// It ends where whoever writes has left it, and nobody with a newer lease has written.
const EXTEND_TRAIL: &str = "
    UPDATE idgen.lease_trail
       SET store = $2, branch = $3, cursor = $4, revision = $5, head_seq = $6, head_hash = $7,
           token_epoch = $8, token_revision = $9, followed_by = $10, followed_at = clock_timestamp()
     WHERE cell_id = $1 AND head_seq = $11 AND head_hash = $12 AND cursor = $13
       AND (token_epoch, token_revision) <= ($8, $9)";

const ADD_EVENTS: &str = "
    INSERT INTO idgen.lease_event (cell_id, seq, branch, position, revision, at, kind, subject, version, steps, finding,
                                   detail, hash)
    SELECT $1, e.seq, e.branch, e.position, e.revision, timestamptz 'epoch' + e.at_ms * interval '1 millisecond', e.kind,
           e.subject, e.version, e.steps, e.finding, e.detail::json, e.hash
      FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::text[], $9::int8[],
                  $10::int8[], $11::text[], $12::text[], $13::bytea[])
           AS e(seq, branch, position, revision, at_ms, kind, subject, version, steps, finding, detail, hash)";

const KEEP_KEYS: &str = "
    INSERT INTO idgen.lease_event_key AS k (cell_id, key, made, version, changed, value, told, read_at, suspect,
                                            suspect_position, suspect_revision, suspect_at)
    SELECT $1, n.key, n.made, n.version, n.changed, n.value, n.told,
           timestamptz 'epoch' + n.read_at_ms * interval '1 millisecond', n.suspect, n.suspect_position,
           n.suspect_revision, timestamptz 'epoch' + n.suspect_at_ms * interval '1 millisecond'
      FROM unnest($2::text[], $3::int8[], $4::int8[], $5::int8[], $6::text[], $7::int8[], $8::int8[], $9::uuid[],
                  $10::int8[], $11::int8[], $12::int8[])
           AS n(key, made, version, changed, value, told, read_at_ms, suspect, suspect_position, suspect_revision,
                suspect_at_ms)
        ON CONFLICT (cell_id, key) DO UPDATE
       SET made = excluded.made, version = excluded.version, changed = excluded.changed, value = excluded.value,
           told = excluded.told, read_at = excluded.read_at, suspect = excluded.suspect,
           suspect_position = excluded.suspect_position, suspect_revision = excluded.suspect_revision,
           suspect_at = excluded.suspect_at";

const FORGET_KEYS: &str = "DELETE FROM idgen.lease_event_key WHERE cell_id = $1 AND key = ANY ($2)";

/// What is removed at once: whoever follows waits for it.
const PRUNED_AT_ONCE: i64 = 10_000;

/// Everything before the first event that is young enough, or that the outbox has not handed on yet where there is one; some
/// at a time.
const MARK_PRUNED: &str = "
    WITH kept AS (
        SELECT least(t.pruned_seq + $3,
                     coalesce((SELECT e.seq - 1 FROM idgen.lease_event e
                                WHERE e.cell_id = $1 AND e.at >= clock_timestamp() - $2 * interval '1 day'
                                ORDER BY e.seq LIMIT 1), t.head_seq),
                     (SELECT d.seq FROM idgen.lease_drained d WHERE d.cell_id = $1)) AS seq
          FROM idgen.lease_trail t WHERE t.cell_id = $1)
    UPDATE idgen.lease_trail t SET pruned_seq = e.seq, pruned_hash = e.hash
      FROM kept, idgen.lease_event e
     WHERE t.cell_id = $1 AND e.cell_id = $1 AND e.seq = kept.seq AND e.seq > t.pruned_seq";

const PRUNE: &str = "
    DELETE FROM idgen.lease_event e USING idgen.lease_trail t
     WHERE e.cell_id = $1 AND t.cell_id = $1 AND e.seq <= t.pruned_seq";

/// `$3`: a subject; `$4`: a kind; `$5`: not before this.
const EVENTS: &str = "
    SELECT seq, branch, position, revision, (extract(epoch FROM at) * 1000000)::int8, kind, subject, version, steps,
           finding, detail::text, hash
      FROM idgen.lease_event
     WHERE cell_id = $1 AND seq > $2 AND ($3::text IS NULL OR subject = $3) AND ($4::text IS NULL OR kind = $4)
       AND ($5::int8 IS NULL OR at >= timestamptz 'epoch' + $5 * interval '1 millisecond')
     ORDER BY seq LIMIT $6";

/// The same from the end.
const LAST_EVENTS: &str = "
    SELECT seq, branch, position, revision, (extract(epoch FROM at) * 1000000)::int8, kind, subject, version, steps,
           finding, detail::text, hash
      FROM idgen.lease_event
     WHERE cell_id = $1 AND seq > $2 AND ($3::text IS NULL OR subject = $3) AND ($4::text IS NULL OR kind = $4)
       AND ($5::int8 IS NULL OR at >= timestamptz 'epoch' + $5 * interval '1 millisecond')
     ORDER BY seq DESC LIMIT $6";

const CELLS: &str = "SELECT cell_id FROM idgen.lease_trail ORDER BY followed_at DESC";

/// See the module.
pub struct TableSink {
    url: PostgresUrl,
    connect_timeout: Duration,
    request_timeout: Duration,
    session: Option<Session>,
}

/// What is to be read of a trail.
#[derive(Clone, Debug, Default)]
pub struct Read<'r> {
    /// After this event.
    pub after: u64,
    /// Of this subject alone.
    pub subject: Option<&'r str>,
    /// Of this kind alone.
    pub kind: Option<&'r str>,
    /// Not before this.
    pub since: Option<UnixMs>,
    /// So many at the most,
    pub limit: u32,
    /// ... and if there are more, the last of them.
    pub last: bool,
}

/// Where a trail begins and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailEnd {
    /// Its store.
    pub store: StoreIdentity,
    /// Everything up to here is in it.
    pub cursor: u64,
    /// Revision of the store there.
    pub revision: Revision,
    /// The end of its chain.
    pub head: Head,
    /// What was removed from its beginning.
    pub pruned: Head,
    /// Who wrote last,
    pub followed_by: String,
    /// ... and when.
    pub followed_at: UnixMs,
}

/// Names a sink, so that all daemons that have it share one follower. Fails on a standby.
pub async fn sink_identity(sink: &mut TableSink) -> Result<String> {
    let session = sink.take_session().await?;
    let sql = "SELECT system_identifier, database_oid::int8 FROM idgen.store_identity()";
    let row = session.row(sql, &[]).await.map_err(failed)?;
    let (system, database) = (column::<i64>(&row, 0)?.cast_unsigned(), column::<i64>(&row, 1)?);
    sink.session = Some(session);
    Ok(format!("{system}/{database}"))
}

impl TableSink {
    /// Connects with the first request.
    #[must_use]
    pub fn new(url: PostgresUrl, connect_timeout: Duration, request_timeout: Duration) -> Self {
        Self {
            url,
            connect_timeout,
            request_timeout,
            session: None,
        }
    }

    /// Put back only when it is known to be in no transaction.
    async fn take_session(&mut self) -> Result<Session> {
        if let Some(mut session) = self.session.take()
            && session.is_usable()
        {
            return Ok(session);
        }
        let opened = Session::open(
            &self.url,
            "idgend events",
            self.connect_timeout,
            self.request_timeout,
        )
        .await;
        opened.map_err(|error| {
            let message = format!("connect to {}: {error}", describe(&self.url));
            StoreError::new(StoreErrorKind::Unreachable, message)
        })
    }

    /// Closes a session that is of no use any more, where nobody has asked for it for a while.
    pub fn let_go(&mut self) {
        if !self.session.as_mut().is_some_and(Session::is_usable_still) {
            self.session = None;
        }
    }

    /// Where the trail of a cell ends; `None`: there is none.
    pub async fn end(&mut self, cell: CellId) -> Result<Option<TrailEnd>> {
        let session = self.take_session().await?;
        let rows = session
            .rows(CURSOR, &[&Uuid::from_u128(cell.0)])
            .await
            .map_err(failed)?;
        self.session = Some(session);
        rows.first().map(trail_end).transpose()
    }

    /// The cells that have a trail here, the one that was followed last first.
    pub async fn cells(&mut self) -> Result<Vec<CellId>> {
        let session = self.take_session().await?;
        let rows = session.rows(CELLS, &[]).await.map_err(failed)?;
        self.session = Some(session);
        rows.iter()
            .map(|row| Ok(CellId(column::<Uuid>(row, 0)?.as_u128())))
            .collect()
    }

    /// Events in their order.
    pub async fn read(&mut self, cell: CellId, read: &Read<'_>) -> Result<Vec<Record>> {
        let session = self.take_session().await?;
        let since = read.since.map(|since| signed(since.0)).transpose()?;
        let rows = session
            .rows(
                if read.last { LAST_EVENTS } else { EVENTS },
                &[
                    &Uuid::from_u128(cell.0),
                    &signed(read.after)?,
                    &read.subject,
                    &read.kind,
                    &since,
                    &i64::from(read.limit),
                ],
            )
            .await
            .map_err(failed)?;
        self.session = Some(session);
        let mut records = rows.iter().map(record).collect::<Result<Vec<Record>>>()?;
        records.sort_by_key(|record| record.seq);
        Ok(records)
    }

    async fn write(&self, session: &Session, batch: &Batch) -> Result<()> {
        let cell = Uuid::from_u128(batch.cell.0);
        let (token, by) = &batch.written;
        let (store, branch) = &batch.store;
        let (store, branch) = (store.as_str(), signed(*branch)?);
        let (cursor, revision) = (signed(batch.cursor.position)?, signed(batch.cursor.revision.0)?);
        let (head, hash) = (signed(batch.head.seq)?, batch.head.hash.as_slice());
        let (epoch, of_token) = (signed(token.epoch.0)?, signed(token.revision.0)?);
        let written = match batch.after {
            None => {
                let trail: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
                    &cell, &store, &branch, &cursor, &revision, &head, &hash, &epoch, &of_token, by,
                ];
                session.execute(BEGIN_TRAIL, trail).await
            }
            Some((was, at)) => {
                let (was, was_hash, at) = (signed(was.seq)?, was.hash.as_slice().to_owned(), signed(at)?);
                let trail: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
                    &cell, &store, &branch, &cursor, &revision, &head, &hash, &epoch, &of_token, by, &was,
                    &was_hash, &at,
                ];
                session.execute(EXTEND_TRAIL, trail).await
            }
        };
        if written.map_err(failed)? != 1 {
            let message = "the trail does not end where this follower has left it, or somebody with a newer lease writes it";
            return Err(StoreError::new(StoreErrorKind::Conflict, message));
        }
        if !batch.records.is_empty() {
            add_events(session, cell, &batch.records).await?;
        }
        keep_keys(session, cell, &batch.keys).await
    }
}

impl Sink for TableSink {
    async fn cursor(&mut self, cell: CellId) -> Result<Option<Kept>> {
        if self.end(cell).await?.is_none() {
            return Ok(None);
        }
        let session = self.take_session().await?;
        let id = Uuid::from_u128(cell.0);
        // In one snapshot.
        session
            .batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await
            .map_err(failed)?;
        let trail = session.row(CURSOR, &[&id]).await.map_err(failed)?;
        let keys = session.rows(KEYS, &[&id]).await.map_err(failed)?;
        session.batch("COMMIT").await.map_err(failed)?;
        self.session = Some(session);
        let end = trail_end(&trail)?;
        Ok(Some(Kept {
            store: end.store,
            branch: unsigned(column(&trail, 1)?)?,
            cursor: When {
                position: end.cursor,
                revision: end.revision,
                at: end.followed_at,
            },
            head: end.head,
            keys: keys.iter().map(kept_key).collect::<Result<_>>()?,
        }))
    }

    async fn append(&mut self, batch: &Batch) -> Result<()> {
        let session = self.take_session().await?;
        session.batch("BEGIN").await.map_err(failed)?;
        self.write(&session, batch).await?;
        // Without an answer the next look at the cursor tells.
        session.batch("COMMIT").await.map_err(failed)?;
        self.session = Some(session);
        Ok(())
    }

    async fn prune(&mut self, cell: CellId, keep_days: u32) -> Result<bool> {
        let session = self.take_session().await?;
        let (cell, days) = (Uuid::from_u128(cell.0), f64::from(keep_days));
        session.batch("BEGIN").await.map_err(failed)?;
        let marked = session
            .execute(MARK_PRUNED, &[&cell, &days, &PRUNED_AT_ONCE])
            .await;
        let pruned = match marked.map_err(failed)? {
            0 => 0,
            _ => session.execute(PRUNE, &[&cell]).await.map_err(failed)?,
        };
        session.batch("COMMIT").await.map_err(failed)?;
        self.session = Some(session);
        Ok(pruned >= PRUNED_AT_ONCE.unsigned_abs())
    }
}

async fn add_events(session: &Session, cell: Uuid, records: &[Record]) -> Result<()> {
    let numbers = |of: fn(&Record) -> u64| {
        records
            .iter()
            .map(|record| signed(of(record)))
            .collect::<Result<Vec<i64>>>()
    };
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    let subjects: Vec<&str> = records.iter().map(|record| record.subject.as_str()).collect();
    let findings: Vec<Option<&str>> = records.iter().map(|record| record.finding.as_deref()).collect();
    let details: Vec<&str> = records.iter().map(|record| record.detail.as_str()).collect();
    let hashes: Vec<&[u8]> = records.iter().map(|record| record.hash.as_slice()).collect();
    session
        .execute(
            ADD_EVENTS,
            &[
                &cell,
                &numbers(|record| record.seq)?,
                &numbers(|record| record.branch)?,
                &numbers(|record| record.position)?,
                &numbers(|record| record.revision)?,
                &numbers(|record| record.at_ms)?,
                &kinds,
                &subjects,
                &numbers(|record| record.version)?,
                &numbers(|record| record.steps)?,
                &findings,
                &details,
                &hashes,
            ],
        )
        .await
        .map_err(failed)?;
    Ok(())
}

async fn keep_keys(session: &Session, cell: Uuid, keys: &[(Place, Option<Tracked>)]) -> Result<()> {
    let gone: Vec<String> = keys
        .iter()
        .filter(|(_, tracked)| tracked.is_none())
        .map(|(place, _)| place.key())
        .collect();
    if !gone.is_empty() {
        session
            .execute(FORGET_KEYS, &[&cell, &gone])
            .await
            .map_err(failed)?;
    }
    let kept: Vec<(String, &Tracked)> = keys
        .iter()
        .filter_map(|(place, tracked)| Some((place.key(), tracked.as_ref()?)))
        .collect();
    if kept.is_empty() {
        return Ok(());
    }
    let numbers = |of: fn(&Tracked) -> u64| {
        kept.iter()
            .map(|(_, tracked)| signed(of(tracked)))
            .collect::<Result<Vec<i64>>>()
    };
    let of_suspects = |of: fn(&Suspect) -> u64| {
        let number = |(_, tracked): &(String, &Tracked)| {
            tracked.suspect.as_ref().map(|one| signed(of(one))).transpose()
        };
        kept.iter().map(number).collect::<Result<Vec<Option<i64>>>>()
    };
    let names: Vec<&str> = kept.iter().map(|(key, _)| key.as_str()).collect();
    let values: Vec<&str> = kept
        .iter()
        .map(|(_, tracked)| tracked.seen.text.as_str())
        .collect();
    let suspects: Vec<Option<Uuid>> = kept
        .iter()
        .map(|(_, tracked)| tracked.suspect.map(|suspect| Uuid::from_u128(suspect.instance.0)))
        .collect();
    session
        .execute(
            KEEP_KEYS,
            &[
                &cell,
                &names,
                &numbers(|tracked| tracked.seen.made.0)?,
                &numbers(|tracked| tracked.seen.version)?,
                &numbers(|tracked| tracked.seen.changed.0)?,
                &values,
                &numbers(|tracked| tracked.told)?,
                &numbers(|tracked| tracked.read_at.0)?,
                &suspects,
                &of_suspects(|suspect| suspect.since.position)?,
                &of_suspects(|suspect| suspect.since.revision.0)?,
                &of_suspects(|suspect| suspect.since.at.0)?,
            ],
        )
        .await
        .map_err(failed)?;
    Ok(())
}

fn trail_end(row: &Row) -> Result<TrailEnd> {
    Ok(TrailEnd {
        store: StoreIdentity::new(column(row, 0)?)
            .ok_or_else(|| broken("the name of a store cannot be read"))?,
        cursor: unsigned(column(row, 2)?)?,
        revision: Revision(unsigned(column(row, 3)?)?),
        head: head(row, 4)?,
        pruned: head(row, 6)?,
        followed_by: column(row, 8)?,
        followed_at: UnixMs(unsigned(column(row, 9)?)?),
    })
}

fn head(row: &Row, index: usize) -> Result<Head> {
    Ok(Head {
        seq: unsigned(column(row, index)?)?,
        hash: hash(row, index + 1)?,
    })
}

fn hash(row: &Row, index: usize) -> Result<[u8; 32]> {
    let bytes: &[u8] = column(row, index)?;
    bytes
        .try_into()
        .map_err(|_| broken("a hash is not 32 bytes long"))
}

fn kept_key(row: &Row) -> Result<(Place, Tracked)> {
    let place = Place::of_key(column(row, 0)?);
    let made = Revision(unsigned(column(row, 1)?)?);
    let text: String = column(row, 4)?;
    let suspect = match column::<Option<Uuid>>(row, 7)? {
        None => None,
        Some(instance) => Some(Suspect {
            instance: InstanceId(instance.as_u128()),
            since: When {
                position: unsigned(column(row, 8)?)?,
                revision: Revision(unsigned(column(row, 9)?)?),
                at: UnixMs(unsigned(column(row, 10)?)?),
            },
        }),
    };
    let tracked = Tracked {
        seen: Seen {
            made,
            version: unsigned(column(row, 2)?)?,
            changed: Revision(unsigned(column(row, 3)?)?),
            value: value_of(&place, made, &text),
            text,
        },
        told: unsigned(column(row, 5)?)?,
        read_at: UnixMs(unsigned(column(row, 6)?)?),
        suspect,
    };
    Ok((place, tracked))
}

/// As it is there, however it came to be so: a number that is none of ours has another hash.
fn record(row: &Row) -> Result<Record> {
    let number = |index| column::<i64>(row, index).map(i64::cast_unsigned);
    let at_us: i64 = column(row, 4)?;
    let whole = at_us >= 0 && at_us % 1_000 == 0;
    Ok(Record {
        seq: number(0)?,
        branch: number(1)?,
        position: number(2)?,
        revision: number(3)?,
        at_ms: if whole {
            at_us.cast_unsigned() / 1_000
        } else {
            u64::MAX
        },
        kind: column(row, 5)?,
        subject: column(row, 6)?,
        version: number(7)?,
        steps: number(8)?,
        finding: column(row, 9)?,
        detail: column(row, 10)?,
        hash: hash(row, 11)?,
    })
}

fn failed(error: PgError) -> StoreError {
    match error.sqlstate() {
        Some("42P01" | "3F000" | "42883") => StoreError::new(
            StoreErrorKind::Denied,
            format!(
                "the database of the events has no pg_idgen of this release: {error} (hint: run CREATE EXTENSION pg_idgen or ALTER EXTENSION pg_idgen UPDATE there)"
            ),
        ),
        Some("42501") => StoreError::new(
            StoreErrorKind::Denied,
            format!("{error} (hint: run SELECT idgen.grant_daemon('ROLE') in the database of the events)"),
        ),
        // A second follower was faster.
        Some("23505") => StoreError::new(StoreErrorKind::Conflict, error.to_string()),
        _ => StoreError::new(StoreErrorKind::Unreachable, error.to_string()),
    }
}

fn broken(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, message)
}

fn column<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Result<T> {
    row.try_get(index)
        .map_err(|error| broken(&format!("read column {index}: {error}")))
}

fn unsigned(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| broken("the trail holds a negative number"))
}

fn signed(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| broken("a number does not fit into bigint"))
}
