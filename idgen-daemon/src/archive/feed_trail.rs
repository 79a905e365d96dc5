//! Events of leases, from the trail: its numbers have no gaps, so they are the offsets (from 0), and nothing is marked.

use super::feed_table::message;
use super::parquet::{Message, Spot};
use crate::error::{Error, Result};
use crate::event::LeaseEvent;
use crate::postgres::{PgError, Session};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

/// Rows of one commit.
const PAGE_ROWS: i64 = 50_000;

const TRAILS: &str = "
    SELECT t.cell_id, s.system_identifier, s.database_oid::int8
      FROM idgen.lease_trail t, idgen.store_identity() s ORDER BY 1";
const EVENTS: &str = "
    SELECT seq, to_char(at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), kind,
           json_build_object('subject', subject, 'branch', branch, 'position', position, 'revision', revision,
                             'version', version, 'steps', steps, 'finding', finding, 'hash', encode(hash, 'hex'),
                             'detail', detail)::text
      FROM idgen.lease_event WHERE cell_id = $1 AND seq > $2 ORDER BY seq LIMIT $3";

/// A trail, and the name of its chain: of a cell there may be one in each of several databases.
pub(super) struct Trail {
    pub cell: Uuid,
    pub chain: String,
}

fn failed(error: PgError) -> Error {
    Error::retry(format!("read lease events: {error}"))
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|error| Error::runtime(format!("column {at} of a lease event: {error}")))
}

/// The trails of a database.
pub(super) async fn trails(session: &Session) -> Result<Vec<Trail>> {
    let rows = session.rows(TRAILS, &[]).await.map_err(failed)?;
    let trail = |row: &Row| {
        let (cell, system, database): (Uuid, i64, i64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        Ok(Trail {
            cell,
            chain: format!("lease-{cell}-{}-{database}", system.cast_unsigned()),
        })
    };
    rows.iter().map(trail).collect()
}

/// Events of a trail from offset `next` on, and whether there may be more. The first of them is behind a gap where events
/// before it were removed because of their age.
pub(super) async fn events(
    session: &Session,
    trail: &Trail,
    service: &str,
    (next, now_ms): (i64, i64),
) -> Result<(Vec<Message>, bool)> {
    let rows = session
        .rows(EVENTS, &[&trail.cell, &next, &PAGE_ROWS])
        .await
        .map_err(failed)?;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        let (seq, kind): (i64, String) = (get(row, 0)?, get(row, 2)?);
        let payload = RawValue::from_string(get(row, 3)?);
        let event = LeaseEvent {
            cell: trail.cell,
            seq,
            kind: &kind,
            at: get(row, 1)?,
            service,
            payload: payload.map_err(|error| Error::runtime(format!("a lease event: {error}")))?,
        };
        let spot = Spot {
            partition: 0,
            offset: seq - 1,
            at_ms: now_ms,
        };
        messages.push(message(event.into(), spot)?);
    }
    Ok((messages, rows.len() as u64 == PAGE_ROWS.cast_unsigned()))
}
