//! What a run writes down, all of it under the lease `audit` of its database and the epoch of that.

use super::halt::{Halt, column, trouble};
use crate::audit::finding::{Finding, FoundBy, Recorded, record};
use crate::outbox::{Held, Holder, IN_FORCE, Lease, Stream as LeaseStream};
use crate::postgres::Session;
use idgen_core::audit::{Axis, Extent, Point, Stream};
use idgen_core::day::Day;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Between two looks at the lease while something else is waited for.
const KEEP_EVERY: Duration = Duration::from_secs(3);
/// Runs that are looked at to know which nights had one.
const NIGHTS: i64 = 60;

const OPEN_RUN: &str = "
    SELECT run_id, kind, progress::text, ranges FROM idgen.audit_run
     WHERE ended_at IS NULL AND kind IN ('incremental', 'full') ORDER BY run_id DESC LIMIT 1";

const RUNS: &str = "
    SELECT progress ->> 'night', coalesce(kind = 'full' AND verdict IN ('PASS', 'FINDING'), false)
      FROM idgen.audit_run
     WHERE kind IN ('incremental', 'full') AND progress ? 'night' ORDER BY run_id DESC LIMIT $1";

/// The last run that came to a verdict, where it has left off.
const BASE: &str = "
    SELECT r.run_id, (extract(epoch FROM r.began_at))::int8 FROM idgen.audit_run r
     WHERE r.verdict IN ('PASS', 'FINDING') AND r.kind IN ('incremental', 'full')
       AND EXISTS (SELECT FROM idgen.audit_frontier f WHERE f.run_id = r.run_id)
     ORDER BY r.run_id DESC LIMIT 1";

const OPEN_FINDINGS: &str =
    "SELECT count(*) FROM idgen.audit_finding WHERE run_id = $1 AND closed_at IS NULL";
const FRONTIER: &str = "
    SELECT source_id, space_id, tag, first_seq, first_at, last_seq, last_at, events, ranges, max_hi, suspect
      FROM idgen.audit_frontier WHERE run_id = $1";

/// How far reading has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The night that it is of; none: somebody has asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub night: Option<String>,
    /// What the replica must have of us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Uuid>,
    /// The run that an incremental one goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<i64>,
    /// Events from here on are read, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_s: Option<i64>,
    /// The day that is read, by its first second,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<i64>,
    /// ... and the last event of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<i64>,
    /// Everything was read; what is left is to prove.
    #[serde(skip_serializing_if = "is_false")]
    pub read: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(what: &bool) -> bool {
    !what
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its number.
    pub id: i64,
    /// How much it looks at.
    pub extent: Extent,
    /// How far it has come.
    pub progress: Progress,
    /// Grants that it has looked at.
    pub ranges: u64,
}

/// As the table calls it.
#[must_use]
pub fn kind_of(extent: Extent) -> &'static str {
    match extent {
        Extent::Incremental => "incremental",
        Extent::Full => "full",
    }
}

/// Who has found something in such a run.
#[must_use]
pub fn found_by(extent: Extent) -> FoundBy {
    match extent {
        Extent::Incremental => FoundBy::Incremental,
        Extent::Full => FoundBy::Full,
    }
}

/// Where a run was fenced.
#[derive(Clone, Debug)]
pub struct Fence {
    /// System identifier.
    pub system: i64,
    /// Timeline of the write-ahead log.
    pub timeline: i32,
    /// Everything up to here is to be read.
    pub lsn: String,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `PASS`, `FINDING` or `INCONCLUSIVE`.
    pub name: &'static str,
    /// Why, or a remark.
    pub reason: Option<String>,
    /// Tags that were looked at.
    pub tags: u64,
    /// What was found, closed findings included.
    pub findings: u64,
}

/// Every tag of every space, as far as a run has come.
pub type Axes = BTreeMap<Uuid, HashMap<String, Axis<Uuid>>>;

/// Which nights had a run: the latest, the last full one with a verdict, and all of late.
#[derive(Clone, Debug, Default)]
pub struct Nights {
    /// Of the latest run.
    pub last: Option<Day>,
    /// Of the last full one that came to a verdict.
    pub last_full: Option<Day>,
    /// All of late.
    pub all: Vec<Day>,
}

/// See the module.
pub struct Ledger {
    /// The database itself.
    pub primary: Session,
    lease: Lease,
    name: String,
}

fn us(at: SystemTime) -> i64 {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

/// A moment of a row, in Unix microseconds.
pub(super) fn at_us(row: &tokio_postgres::Row, index: usize) -> Result<i64, Halt> {
    column::<SystemTime>(row, index).map(us)
}

impl Ledger {
    /// Of a database, without the lease.
    #[must_use]
    pub fn new(primary: Session, holder: Holder) -> Self {
        let name = holder.name.clone();
        Self {
            primary,
            lease: Lease::new(LeaseStream::Audit, holder),
            name,
        }
    }

    /// Takes the lease, or keeps it. `false`: another one has it.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn keep(&mut self) -> Result<bool, Halt> {
        Ok(self.lease.keep(&self.primary).await?.is_some())
    }

    /// Gives the lease back; where that fails it runs out.
    pub async fn give_back(&mut self) {
        if let Err(error) = self.lease.give_back(&self.primary).await {
            tracing::debug!("audit: give the lease back: {error}");
        }
    }

    /// Keeps the lease while something is waited for.
    ///
    /// # Errors
    /// The lease has gone.
    pub async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Halt> {
        let mut work = std::pin::pin!(work);
        loop {
            if !self.keep().await? {
                return Err(Halt::NotOurs);
            }
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(KEEP_EVERY) => {}
            }
        }
    }

    fn held(&self) -> Result<Held, Halt> {
        self.lease.held().ok_or(Halt::NotOurs)
    }

    /// `sql` has the lease as `$1` to `$3`, and returns a row where it was in force.
    async fn under(
        &mut self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<tokio_postgres::Row>, Halt> {
        self.keep().await?;
        let held = self.held()?;
        let stream = held.stream.name();
        let mut all: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&stream, Type::TEXT),
            (&held.epoch, Type::INT8),
            (&held.instance, Type::UUID),
        ];
        all.extend(params.iter().cloned());
        let rows = self.primary.rows_typed(sql, &all).await.map_err(trouble)?;
        if rows.is_empty() {
            self.lease.forget();
            return Err(Halt::NotOurs);
        }
        Ok(rows)
    }

    /// The run that somebody has begun and not ended.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn open_run(&self) -> Result<Option<Run>, Halt> {
        let rows = self.primary.rows_typed(OPEN_RUN, &[]).await.map_err(trouble)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let progress: String = column(row, 2)?;
        let extent = match column::<&str>(row, 1)? {
            "full" => Extent::Full,
            _ => Extent::Incremental,
        };
        Ok(Some(Run {
            id: column(row, 0)?,
            extent,
            // Of another version: it begins anew.
            progress: serde_json::from_str(&progress).unwrap_or_default(),
            ranges: column::<i64>(row, 3)?.cast_unsigned(),
        }))
    }

    /// Which nights had a run.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn nights(&self) -> Result<Nights, Halt> {
        let rows = self
            .primary
            .rows_typed(RUNS, &[(&NIGHTS, Type::INT8)])
            .await
            .map_err(trouble)?;
        let mut nights = Nights::default();
        for row in &rows {
            let Ok(night) = column::<String>(row, 0)?.parse::<Day>() else {
                continue;
            };
            nights.all.push(night);
            if nights.last_full.is_none() && column(row, 1)? {
                nights.last_full = Some(night);
            }
        }
        nights.last = nights.all.first().copied();
        Ok(nights)
    }

    /// The run to go on from, and when it began.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn base(&self) -> Result<Option<(i64, i64)>, Halt> {
        let rows = self.primary.rows_typed(BASE, &[]).await.map_err(trouble)?;
        rows.first()
            .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
            .transpose()
    }

    /// Begins a run.
    ///
    /// # Errors
    /// The lease has gone, or the primary does not answer.
    pub async fn begin(&mut self, extent: Extent, progress: Progress) -> Result<Run, Halt> {
        let sql = format!(
            "WITH run AS (INSERT INTO idgen.audit_run (kind, epoch, holder_name, progress)
                          SELECT $4, $2, $5, $6::jsonb WHERE {IN_FORCE} RETURNING run_id),
                  carried AS (INSERT INTO idgen.audit_frontier
                              SELECT run.run_id, f.source_id, f.space_id, f.tag, f.first_seq, f.first_at, f.last_seq, f.last_at,
                                     f.events, f.ranges, f.max_hi, f.suspect
                                FROM run, idgen.audit_frontier f WHERE f.run_id = $7 AND $4 = 'incremental')
             SELECT run_id FROM run"
        );
        let (kind, name, json) = (kind_of(extent), self.name.clone(), json(&progress));
        let rows = self
            .under(
                &sql,
                &[
                    (&kind, Type::TEXT),
                    (&name, Type::TEXT),
                    (&json, Type::TEXT),
                    (&progress.base, Type::INT8),
                ],
            )
            .await?;
        Ok(Run {
            id: column(&rows[0], 0)?,
            extent,
            progress,
            ranges: 0,
        })
    }

    /// What the run has written down of each stream. `is_known`: what an earlier run has looked at is no news to this one.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn frontier(&self, run: i64, is_known: bool) -> Result<Axes, Halt> {
        let rows = self
            .primary
            .rows_typed(FRONTIER, &[(&run, Type::INT8)])
            .await
            .map_err(trouble)?;
        let mut axes = Axes::new();
        for row in &rows {
            let last = Point {
                seq: column(row, 5)?,
                at_us: at_us(row, 6)?,
            };
            let stream = Stream {
                first: Point {
                    seq: column(row, 3)?,
                    at_us: at_us(row, 4)?,
                },
                last,
                events: column::<i64>(row, 7)?.cast_unsigned(),
                ranges: column::<i64>(row, 8)?.cast_unsigned(),
                max_hi: column(row, 9)?,
                known: is_known.then_some(last.seq),
            };
            axes.entry(column(row, 1)?)
                .or_default()
                .entry(column(row, 2)?)
                .or_default()
                .restore(column(row, 0)?, stream, column(row, 10)?);
        }
        Ok(axes)
    }

    /// Where the run stands now, and what of the streams has changed since the last time.
    ///
    /// # Errors
    /// The lease has gone, or the primary does not answer.
    pub async fn save(&mut self, run: &Run, axes: &mut Axes) -> Result<(), Halt> {
        let mut rows = Rows::default();
        for (space, tags) in axes {
            for (tag, axis) in tags {
                if axis.take_dirty() {
                    for (source, stream) in axis.streams() {
                        rows.push((*source, *space, tag), stream, axis.is_suspect());
                    }
                }
            }
        }
        let sql = format!(
            "WITH run AS (UPDATE idgen.audit_run SET progress = $5::jsonb, ranges = $6, epoch = $2, holder_name = $7
                           WHERE run_id = $4 AND ended_at IS NULL AND {IN_FORCE} RETURNING run_id),
                  saved AS (INSERT INTO idgen.audit_frontier AS f
                            SELECT run.run_id, u.source_id, u.space_id, u.tag,
                                   u.first_seq, 'epoch'::timestamptz + u.first_us * interval '1 microsecond',
                                   u.last_seq, 'epoch'::timestamptz + u.last_us * interval '1 microsecond',
                                   u.events, u.ranges, u.max_hi, u.suspect
                              FROM run, unnest($8::uuid[], $9::uuid[], $10::text[], $11::int8[], $12::int8[], $13::int8[],
                                               $14::int8[], $15::int8[], $16::int8[], $17::int8[], $18::bool[])
                                     AS u(source_id, space_id, tag, first_seq, first_us, last_seq, last_us, events, ranges,
                                          max_hi, suspect)
                            ON CONFLICT (run_id, source_id, space_id, tag) DO UPDATE
                               SET (first_seq, first_at, last_seq, last_at, events, ranges, max_hi, suspect)
                                 = (EXCLUDED.first_seq, EXCLUDED.first_at, EXCLUDED.last_seq, EXCLUDED.last_at,
                                    EXCLUDED.events, EXCLUDED.ranges, EXCLUDED.max_hi, EXCLUDED.suspect))
             SELECT run_id FROM run"
        );
        let (progress, name, ranges) = (json(&run.progress), self.name.clone(), run.ranges.cast_signed());
        self.under(
            &sql,
            &[
                (&run.id, Type::INT8),
                (&progress, Type::TEXT),
                (&ranges, Type::INT8),
                (&name, Type::TEXT),
                (&rows.sources, Type::UUID_ARRAY),
                (&rows.spaces, Type::UUID_ARRAY),
                (&rows.tags, Type::TEXT_ARRAY),
                (&rows.first_seqs, Type::INT8_ARRAY),
                (&rows.first_us, Type::INT8_ARRAY),
                (&rows.last_seqs, Type::INT8_ARRAY),
                (&rows.last_us, Type::INT8_ARRAY),
                (&rows.events, Type::INT8_ARRAY),
                (&rows.ranges, Type::INT8_ARRAY),
                (&rows.max_his, Type::INT8_ARRAY),
                (&rows.suspects, Type::BOOL_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }

    /// Where it was fenced, and where it reads.
    ///
    /// # Errors
    /// The lease has gone, or the primary does not answer.
    pub async fn fenced(&mut self, run: i64, fence: &Fence, read_from: &str) -> Result<(), Halt> {
        let sql = format!(
            "UPDATE idgen.audit_run SET system_id = $5, timeline = $6, fence_lsn = $7::pg_lsn, read_from = $8
              WHERE run_id = $4 AND ended_at IS NULL AND {IN_FORCE} RETURNING run_id"
        );
        self.under(
            &sql,
            &[
                (&run, Type::INT8),
                (&fence.system, Type::INT8),
                (&fence.timeline, Type::INT4),
                (&fence.lsn, Type::TEXT),
                (&read_from, Type::TEXT),
            ],
        )
        .await?;
        Ok(())
    }

    /// Ends a run. What it has written down of the streams stays where the next one is to go on from it.
    ///
    /// # Errors
    /// The lease has gone, or the primary does not answer.
    pub async fn end(&mut self, run: &Run, verdict: &Verdict) -> Result<(), Halt> {
        let sql = format!(
            "WITH run AS (UPDATE idgen.audit_run
                             SET ended_at = clock_timestamp(), verdict = $5, reason = $6, ranges = $7, tags = $8, findings = $9,
                                 epoch = $2, holder_name = $10
                           WHERE run_id = $4 AND ended_at IS NULL AND {IN_FORCE} RETURNING run_id),
                  gone AS (DELETE FROM idgen.audit_frontier f USING run
                            WHERE CASE WHEN $5 = 'INCONCLUSIVE' THEN f.run_id = run.run_id ELSE f.run_id < run.run_id END)
             SELECT run_id FROM run"
        );
        let name = self.name.clone();
        let signed = |count: u64| count.cast_signed();
        self.under(
            &sql,
            &[
                (&run.id, Type::INT8),
                (&verdict.name, Type::TEXT),
                (&verdict.reason, Type::TEXT),
                (&signed(run.ranges), Type::INT8),
                (&signed(verdict.tags), Type::INT8),
                (&signed(verdict.findings), Type::INT8),
                (&name, Type::TEXT),
            ],
        )
        .await?;
        Ok(())
    }

    /// Writes down what was read at last and the verdict, both or neither: a tag that is suspect no more has its finding counted.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub async fn save_and_end(&mut self, run: &Run, axes: &mut Axes, verdict: &Verdict) -> Result<(), Halt> {
        self.primary.batch("BEGIN").await.map_err(trouble)?;
        let done = async {
            self.save(run, axes).await?;
            self.end(run, verdict).await
        }
        .await;
        let last = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let ended = self.primary.batch(last).await.map_err(trouble);
        done.and(ended)
    }

    /// Findings that this run was the first to make, and nobody has closed.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn open_findings(&self, run: &Run) -> Result<u64, Halt> {
        let rows = self
            .primary
            .rows_typed(OPEN_FINDINGS, &[(&run.id, Type::INT8)])
            .await
            .map_err(trouble)?;
        let count = rows.first().map(|row| column::<i64>(row, 0)).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    /// Writes a finding down, which needs no lease: it is the same one whoever finds it.
    ///
    /// # Errors
    /// The primary does not answer.
    pub async fn record(&self, run: &Run, finding: &Finding) -> Result<Recorded, Halt> {
        Ok(record(&self.primary, finding, found_by(run.extent), Some(run.id)).await?)
    }
}

fn json(progress: &Progress) -> String {
    serde_json::to_string(progress).unwrap_or_else(|_| "{}".to_owned())
}

/// Streams as columns.
#[derive(Default)]
struct Rows<'a> {
    sources: Vec<Uuid>,
    spaces: Vec<Uuid>,
    tags: Vec<&'a str>,
    first_seqs: Vec<i64>,
    first_us: Vec<i64>,
    last_seqs: Vec<i64>,
    last_us: Vec<i64>,
    events: Vec<i64>,
    ranges: Vec<i64>,
    max_his: Vec<Option<i64>>,
    suspects: Vec<bool>,
}

impl<'a> Rows<'a> {
    fn push(&mut self, (source, space, tag): (Uuid, Uuid, &'a str), stream: &Stream, is_suspect: bool) {
        self.sources.push(source);
        self.spaces.push(space);
        self.tags.push(tag);
        self.first_seqs.push(stream.first.seq);
        self.first_us.push(stream.first.at_us);
        self.last_seqs.push(stream.last.seq);
        self.last_us.push(stream.last.at_us);
        self.events.push(stream.events.cast_signed());
        self.ranges.push(stream.ranges.cast_signed());
        self.max_his.push(stream.max_hi);
        self.suspects.push(is_suspect);
    }
}
