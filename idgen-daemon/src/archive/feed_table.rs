//! Events of a database that has no Kafka: rows of its outbox that are not marked as published. They wait there, and nowhere
//! else, until a commit has them; then they are marked.
//!
//! Between a commit and its marks everything may stop. So whoever begins anew marks the events of the last commit first: its
//! files say which. More than one commit is never without marks, because the next one is made only behind them.

use super::commit::Commit;
use super::objects::Objects;
use super::parquet::{Arrived, Message, Spot};
use crate::error::{Error, Result};
use crate::event::{Event, EventToken, SCHEMA};
use crate::outbox::{Held, IN_FORCE, Lease};
use crate::postgres::{PgError, Session};
use idgen_core::archive::EventKey;
use idgen_core::day::Day;
use idgen_core::utc::parse_us;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use uuid::Uuid;

/// Rows of one statement.
const PAGE_ROWS: i64 = 5_000;

/// Days that have a leaf; the names are made so by the refill workers.
const DAYS: &str = "
    SELECT to_char(to_date(right(c.relname, 8), 'YYYYMMDD'), 'YYYY-MM-DD')
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'idgen.audit_event'::regclass AND c.relname ~ '^audit_event_[0-9]{8}$'
     ORDER BY 1";
const UNPUBLISHED: &str = "
    SELECT event_id, source_id, to_char(at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), tx::text, kind, space_id, tag, tag_seq,
           lo, hi, token_epoch, token_revision, payload::text
      FROM idgen.audit_event
     WHERE at >= $1::text::timestamptz AND at < $1::text::timestamptz + interval '1 day'
       AND NOT published AND event_id > $2
     ORDER BY event_id LIMIT $3";
/// Under the epoch of the drain lease, as whoever sends to Kafka does: see [`IN_FORCE`]. By `at` too: a database that has lost
/// commits gives an event's number to another event, which the commit has not.
const MARK: &str = "
    UPDATE idgen.audit_event SET published = true
     WHERE at >= $4::text::timestamptz AND at < $4::text::timestamptz + interval '1 day'
       AND source_id = $5 AND event_id = ANY($6) AND NOT published
       AND (event_id, (extract(epoch FROM at) * 1000000)::int8) IN (SELECT * FROM unnest($6::int8[], $7::int8[])) AND ";
const ABOUT: &str = "SELECT pg_is_in_recovery(), (SELECT source_id FROM idgen.space)";

/// Events by day and source.
pub(super) type Keys = BTreeMap<(Day, Uuid), Vec<EventKey>>;

fn failed(error: PgError) -> Error {
    Error::retry(format!("read events: {error}"))
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|error| Error::runtime(format!("column {at} of an event: {error}")))
}

/// The source of this database's events; `None`: it is a standby.
pub(super) async fn source_of(session: &Session) -> Result<Option<Uuid>> {
    let row = session.row(ABOUT, &[]).await.map_err(failed)?;
    if get(&row, 0)? { Ok(None) } else { get(&row, 1) }
}

/// As `audit_event` has it.
fn event(row: &Row, service: &str) -> Result<Event> {
    let (epoch, revision): (Option<i64>, Option<i64>) = (get(row, 10)?, get(row, 11)?);
    let payload = RawValue::from_string(get(row, 12)?);
    Ok(Event {
        schema: SCHEMA,
        kind: get(row, 4)?,
        source: get(row, 1)?,
        event_id: get(row, 0)?,
        at: get(row, 2)?,
        service: service.to_owned(),
        space: get(row, 5)?,
        tag: get(row, 6)?,
        tag_seq: get(row, 7)?,
        lo: get(row, 8)?,
        hi: get(row, 9)?,
        token: epoch
            .zip(revision)
            .map(|(epoch, revision)| EventToken { epoch, revision }),
        tx: Some(get(row, 3)?),
        stub: None,
        payload: payload.map_err(|error| Error::runtime(format!("payload of an event: {error}")))?,
    })
}

/// An event as a message of a log.
pub(super) fn message(event: Event, spot: Spot) -> Result<Message> {
    let at_us = parse_us(&event.at)
        .ok_or_else(|| Error::runtime(format!("an event's time \"{}\" cannot be read", event.at)))?;
    Ok(Message::Event(Box::new(Arrived {
        spot,
        epoch: None,
        event,
        at_us,
        original: None,
    })))
}

/// The days that the table has leaves for.
pub(super) async fn days(session: &Session) -> Result<Vec<Day>> {
    let rows = session.rows(DAYS, &[]).await.map_err(failed)?;
    let day = |row: &Row| {
        let day: String = get(row, 0)?;
        day.parse()
            .map_err(|error| Error::runtime(format!("a leaf of \"{day}\": {error}")))
    };
    rows.iter().map(day).collect()
}

/// Events that are not marked yet, from offset `next` on, `bytes_max` of them at the most; and whether there may be more.
pub(super) async fn unpublished(
    session: &Session,
    service: &str,
    (next, now_ms, bytes_max): (i64, i64, u64),
) -> Result<(Vec<Message>, bool)> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for day in days(session).await? {
        let start = format!("{day} 00:00:00+00");
        let mut after = i64::MIN;
        loop {
            let rows = session
                .rows(UNPUBLISHED, &[&start, &after, &PAGE_ROWS])
                .await
                .map_err(failed)?;
            for row in &rows {
                let event = event(row, service)?;
                after = event.event_id;
                let spot = Spot {
                    partition: 0,
                    offset: next + i64::try_from(messages.len()).unwrap_or(i64::MAX),
                    at_ms: now_ms,
                };
                let message = message(event, spot)?;
                bytes += message.bytes();
                messages.push(message);
            }
            if bytes >= bytes_max {
                return Ok((messages, true));
            }
            if (rows.len() as u64) < PAGE_ROWS.cast_unsigned() {
                break;
            }
        }
    }
    Ok((messages, false))
}

/// The events among messages.
pub(super) fn keys_of(messages: &[Message]) -> Keys {
    let mut keys = Keys::new();
    for message in messages {
        if let Message::Event(row) = message {
            let key = (Day::of_us(row.at_us), row.event.source);
            keys.entry(key).or_default().push((row.event.event_id, row.at_us));
        }
    }
    keys
}

/// The events of a commit, from its files as it names them: what somebody has put in their place must mark nothing.
pub(super) async fn keys_of_commit<O: Objects>(objects: &O, commit: &Commit) -> Result<Keys> {
    let mut keys = Keys::new();
    for file in commit.files.iter().filter(|file| !file.is_foreign()) {
        let bytes = objects.get(&file.key).await?;
        let broken = |why: String| Error::retry(format!("file {} of the last commit {why}", file.key));
        let opened = file.open(bytes).map_err(|why| broken(why.to_string()))?;
        let read = opened.each_key(|source, key| {
            let day = Day::of_us(key.1);
            keys.entry((day, source)).or_default().push(key);
        });
        read.map_err(|error| broken(format!("cannot be read: {error}")))?;
    }
    Ok(keys)
}

const BY_ID: &str = "
    SELECT event_id, source_id, to_char(at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), tx::text, kind, space_id, tag, tag_seq,
           lo, hi, token_epoch, token_revision, payload::text
      FROM idgen.audit_event
     WHERE at >= $1::text::timestamptz AND at < $1::text::timestamptz + interval '1 day'
       AND source_id = $2 AND event_id = ANY($3) AND published
     ORDER BY event_id";

/// Of these events those that were marked, as messages from offset `next` on. The others will be archived as all are.
pub(super) async fn published(
    session: &Session,
    service: &str,
    (day, source, ids): (Day, Uuid, &[i64]),
    (next, now_ms): (i64, i64),
) -> Result<Vec<Message>> {
    let start = format!("{day} 00:00:00+00");
    let rows = session
        .rows(BY_ID, &[&start, &source, &ids])
        .await
        .map_err(failed)?;
    let mut messages = Vec::with_capacity(rows.len());
    for (offset, row) in (next..).zip(&rows) {
        let spot = Spot {
            partition: 0,
            offset,
            at_ms: now_ms,
        };
        messages.push(message(event(row, service)?, spot)?);
    }
    Ok(messages)
}

/// Marks events that a commit has.
///
/// What is marked already is no matter: a commit counts, whoever made it.
pub(super) async fn mark(session: &Session, lease: &mut Lease, keys: &Keys) -> Result<()> {
    for ((day, source), keys) in keys {
        let start = format!("{day} 00:00:00+00");
        for keys in keys.chunks(2_000) {
            // A commit may have taken longer than the lease lasts.
            let confirmed = lease.confirm(session).await?;
            let Some(held) = lease.held().filter(|_| confirmed) else {
                return Err(Error::retry(
                    "somebody else hands the events of this database on now",
                ));
            };
            mark_under(session, held, (&start, *source, keys)).await?;
        }
    }
    Ok(())
}

/// Marks events of the day that begins at `start`, if the lease is in force; returns how many were not marked before.
///
/// # Errors
/// Postgres did not answer, or refused.
pub async fn mark_under(
    session: &Session,
    held: Held,
    (start, source, keys): (&str, Uuid, &[EventKey]),
) -> Result<u64> {
    let (ids, at_us): (Vec<i64>, Vec<i64>) = keys.iter().copied().unzip();
    let statement = format!("{MARK}{IN_FORCE}");
    session
        .execute(
            &statement,
            &[
                &held.stream.name(),
                &held.epoch,
                &held.instance,
                &start,
                &source,
                &ids,
                &at_us,
            ],
        )
        .await
        .map_err(|error| Error::retry(format!("mark events as published: {error}")))
}
