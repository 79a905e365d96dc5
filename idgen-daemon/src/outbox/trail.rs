//! The queue of `idgen.lease_event`: the trail of a lease store. It counts its events without gaps, so all that is kept is how
//! far it was drained.

use super::lease::{Held, IN_FORCE, Stream};
use super::queue::{Marked, Page, Queue, Row, Watched};
use super::rows::{column, retry};
use super::segments::reason;
use crate::error::{Error, Result};
use crate::event::{LeaseEvent, hex};
use crate::postgres::Session;
use idgen_core::outbox::Poison;
use idgen_core::utc::show_us;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// `$1` and `$2`: up to which event each cell was read already; `$3` how many.
const LOOK: &str = "
    SELECT t.cell_id, coalesce(d.seq, 0), e.seq, e.branch, e.position, e.revision, (extract(epoch FROM e.at) * 1000000)::int8,
           e.kind, e.subject, e.version, e.steps, e.finding, e.detail::text, e.hash
      FROM idgen.lease_trail t
      LEFT JOIN idgen.lease_drained d ON d.cell_id = t.cell_id
      LEFT JOIN unnest($1::uuid[], $2::int8[]) AS m(cell_id, seq) ON m.cell_id = t.cell_id
     CROSS JOIN LATERAL (SELECT * FROM idgen.lease_event e
                          WHERE e.cell_id = t.cell_id AND e.seq > greatest(d.seq, m.seq, 0)
                          ORDER BY e.seq LIMIT $3) e
     ORDER BY t.cell_id, e.seq LIMIT $3";

/// `$4` the cell, `$5` up to which event.
const MARK: &str = "
    INSERT INTO idgen.lease_drained AS d (cell_id, seq) SELECT $4, $5 WHERE ";
const FURTHER: &str = "
    ON CONFLICT (cell_id) DO UPDATE SET seq = excluded.seq WHERE excluded.seq > d.seq";

const KEEP_DEAD: &str = "
    INSERT INTO idgen.audit_event_dlq AS d (source_id, event_id, at, kind, space_id, tag, tag_seq, payload, reason, sha256)
    VALUES ($1, $2, $3::text::timestamptz, $4, $1, $5, $2, $6::text::jsonb, $7, $8)
        ON CONFLICT (source_id, event_id) DO UPDATE
       SET reason = excluded.reason, attempts = d.attempts + 1, last_seen = clock_timestamp()";

const WATCH: &str = "
    SELECT coalesce(sum(t.head_seq - greatest(coalesce(d.seq, 0), t.pruned_seq)), 0)::int8,
           coalesce(max(extract(epoch FROM clock_timestamp() - e.at)), 0)::float8
      FROM idgen.lease_trail t
      LEFT JOIN idgen.lease_drained d ON d.cell_id = t.cell_id
      LEFT JOIN idgen.lease_event e
        ON e.cell_id = t.cell_id AND e.seq = greatest(coalesce(d.seq, 0), t.pruned_seq) + 1";

/// An event of the trail of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrailKey {
    /// The cell.
    pub cell: Uuid,
    /// Its number there.
    pub seq: i64,
}

/// How far a cell was read and drained.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    read: i64,
    drained: i64,
}

/// See the module.
pub struct TrailQueue {
    service: String,
    cells: BTreeMap<Uuid, Reached>,
    looked: Vec<(TrailKey, i64)>,
}

/// The payload of an event of a lease. Fields are written in this order.
#[derive(Serialize)]
struct Payload<'r> {
    subject: &'r str,
    branch: i64,
    position: i64,
    revision: i64,
    version: i64,
    steps: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    finding: Option<&'r str>,
    hash: String,
    detail: &'r RawValue,
}

impl TrailQueue {
    /// The trails in a database.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            cells: BTreeMap::new(),
            looked: Vec::new(),
        }
    }

    fn row(&self, row: &tokio_postgres::Row) -> Result<Row<TrailKey>> {
        let malformed =
            |error: serde_json::Error| Error::retry(format!("the detail of a lease event: {error}"));
        let (cell, seq): (Uuid, i64) = (column(row, 0)?, column(row, 2)?);
        let detail: String = column(row, 12)?;
        let detail = RawValue::from_string(detail).map_err(malformed)?;
        let payload = Payload {
            subject: column(row, 8)?,
            branch: column(row, 3)?,
            position: column(row, 4)?,
            revision: column(row, 5)?,
            version: column(row, 9)?,
            steps: column(row, 10)?,
            finding: column(row, 11)?,
            hash: hex(column::<&[u8]>(row, 13)?),
            detail: &detail,
        };
        let event = LeaseEvent {
            cell,
            seq,
            kind: column(row, 7)?,
            at: show_us(column(row, 6)?),
            service: &self.service,
            payload: serde_json::value::to_raw_value(&payload).map_err(malformed)?,
        };
        Ok(Row {
            key: TrailKey { cell, seq },
            event: event.into(),
            is_stub: false,
        })
    }
}

/// Of each cell the last event up to which there is none that is not among `keys`.
fn reached(cells: &BTreeMap<Uuid, Reached>, keys: &[TrailKey]) -> BTreeMap<Uuid, i64> {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let mut ends = BTreeMap::new();
    for key in sorted {
        let drained = cells.get(&key.cell).map_or(0, |reached| reached.drained);
        let end = ends.entry(key.cell).or_insert(drained);
        if key.seq == *end + 1 {
            *end = key.seq;
        }
    }
    ends.retain(|cell, end| cells.get(cell).is_none_or(|reached| *end > reached.drained));
    ends
}

impl Queue for TrailQueue {
    type Key = TrailKey;
    const STREAM: Stream = Stream::Lease;

    fn reset(&mut self) {
        self.cells.clear();
        self.looked.clear();
    }

    async fn look(&mut self, session: &Session, _now_ms: u64, limit: usize) -> Result<Page<TrailKey>> {
        let (cells, seqs): (Vec<Uuid>, Vec<i64>) = self
            .cells
            .iter()
            .map(|(cell, reached)| (*cell, reached.read))
            .unzip();
        let count = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = session
            .rows_typed(
                LOOK,
                &[
                    (&cells, Type::UUID_ARRAY),
                    (&seqs, Type::INT8_ARRAY),
                    (&count, Type::INT8),
                ],
            )
            .await
            .map_err(retry)?;
        self.looked.clear();
        for row in &found {
            let key = TrailKey {
                cell: column(row, 0)?,
                seq: column(row, 2)?,
            };
            self.looked.push((key, column(row, 1)?));
        }
        let rows = found
            .iter()
            .map(|row| self.row(row))
            .collect::<Result<Vec<_>>>()?;
        Ok(Page {
            more: rows.len() >= limit,
            rows,
        })
    }

    fn took(&mut self, _now_ms: u64, taken: usize, _lowest: Option<TrailKey>) {
        for (key, drained) in self.looked.drain(..).take(taken) {
            let reached = self.cells.entry(key.cell).or_insert(Reached {
                read: 0,
                // What lies before the first that is left was removed by its age before anybody drained.
                drained: drained.max(key.seq - 1),
            });
            reached.read = key.seq;
        }
    }

    async fn mark(&mut self, session: &Session, held: Held, keys: &[TrailKey]) -> Result<Marked<TrailKey>> {
        let stream = held.stream.name();
        let mut done = Vec::new();
        for (cell, seq) in reached(&self.cells, keys) {
            let changed = session
                .execute_typed(
                    &format!("{MARK}{IN_FORCE}{FURTHER}"),
                    &[
                        (&stream, Type::TEXT),
                        (&held.epoch, Type::INT8),
                        (&held.instance, Type::UUID),
                        (&cell, Type::UUID),
                        (&seq, Type::INT8),
                    ],
                )
                .await
                .map_err(retry)?;
            if changed == 0 {
                return Ok(Marked::Nothing);
            }
            if let Some(reached) = self.cells.get_mut(&cell) {
                reached.drained = seq;
            }
            done.extend(keys.iter().filter(|key| key.cell == cell && key.seq <= seq));
        }
        Ok(Marked::Done(done))
    }

    async fn keep_dead(&mut self, session: &Session, row: &Row<TrailKey>, why: Poison) -> Result<()> {
        let event = &row.event;
        let (payload, sha256) = (event.payload.get(), Sha256::digest(event.payload.get()).to_vec());
        let reason = reason(why);
        session
            .execute_typed(
                KEEP_DEAD,
                &[
                    (&event.source, Type::UUID),
                    (&event.event_id, Type::INT8),
                    (&event.at, Type::TEXT),
                    (&event.kind, Type::TEXT),
                    (&event.tag, Type::TEXT),
                    (&payload, Type::TEXT),
                    (&reason, Type::TEXT),
                    (&sha256, Type::BYTEA),
                ],
            )
            .await
            .map_err(retry)?;
        Ok(())
    }

    async fn watch(&mut self, session: &Session, _held: Held) -> Result<Watched> {
        let rows = session.rows_typed(WATCH, &[]).await.map_err(retry)?;
        let row = rows.first().ok_or_else(|| Error::retry("nothing was counted"))?;
        Ok(Watched {
            backlog: column(row, 0)?,
            oldest_s: column(row, 1)?,
            dead: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_is_marked_up_to_the_first_that_is_missing() {
        let cell = Uuid::from_u128(1);
        let drained = |drained| BTreeMap::from([(cell, Reached { read: 9, drained })]);
        let keys =
            |seqs: &[i64]| -> Vec<TrailKey> { seqs.iter().map(|seq| TrailKey { cell, seq: *seq }).collect() };
        assert_eq!(
            reached(&drained(3), &keys(&[5, 4, 7])),
            BTreeMap::from([(cell, 5)])
        );
        assert!(
            reached(&drained(3), &keys(&[5, 7])).is_empty(),
            "4 is not acknowledged yet"
        );
        assert!(reached(&drained(3), &[]).is_empty());
    }
}
