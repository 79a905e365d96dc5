//! One grant: the row of the tag moves up, an audit event says so, both in the transaction of the caller.

use super::{left_open, standing};
use crate::authority::Permit;
use crate::clock;
use idgen_core::segment::burn::Rate;
use idgen_core::segment::{self, Exhausted, Range};
use pgrx::datum::DatumWithOid;
use pgrx::spi::{SpiClient, SpiTupleTable};
use std::fmt;

/// Who grants; part of the audit event.
#[derive(Clone, Copy)]
pub enum Issuer {
    RefillWorker,
    /// The transaction that has made the tag.
    OwnTransaction,
}

/// What a grant depends on besides the row.
pub struct Wish {
    pub segment_id: [u8; 16],
    /// The space that the tag was found in; a restore makes another one.
    pub space_id: [u8; 16],
    pub issuer: Issuer,
    /// How long the last range of this tag lasted; `None`: not known, keep the step.
    pub lasted_ms: Option<u64>,
    /// Nothing at or below it may be granted, whatever the row says; 0: the row decides.
    pub above: i64,
    /// What the authority of this server allows.
    pub permit: Permit,
}

/// A range that is the caller's once its transaction has committed.
pub struct Granted {
    pub range: Range,
    pub step: u32,
}

/// Why nothing was granted.
#[derive(Debug)]
pub enum Refused {
    /// The row is locked by another transaction; pid of the holder, 0 when it has none.
    Locked {
        blocker_pid: u32,
    },
    Gone,
    Exhausted(Exhausted),
    /// Authority is leased, and everything up to the ceiling is granted.
    NoCeiling,
    /// Another history, or a clone: a worker has to settle it first.
    Unsettled,
    /// The same history in another place.
    Copy,
    /// The safety burn would pass the limit.
    BurnTooLarge {
        limit_id: i64,
    },
    /// The data directory cannot be looked at.
    Home(String),
    Query(pgrx::spi::Error),
}

impl From<pgrx::spi::Error> for Refused {
    fn from(error: pgrx::spi::Error) -> Self {
        Self::Query(error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked { blocker_pid } => write!(f, "the row is locked by process {blocker_pid}"),
            Self::Gone => f.write_str("the tag is gone"),
            Self::Exhausted(exhausted) => write!(f, "{exhausted}"),
            Self::NoCeiling => f.write_str("everything up to the leased ceiling is granted"),
            Self::Unsettled => f.write_str("the database has another history"),
            Self::Copy => f.write_str("the database may be a copy"),
            Self::BurnTooLarge { limit_id } => write!(f, "the safety burn would pass the limit {limit_id}"),
            Self::Home(reason) => f.write_str(reason),
            Self::Query(error) => write!(f, "{error}"),
        }
    }
}

const LOCK_ROW: &str = "
    SELECT s.tag, s.max_id, s.limit_id, s.step, s.max_step, s.step_hint
      FROM idgen.segment s
     WHERE s.segment_id = $1 AND s.dropped_at IS NULL
       AND EXISTS (SELECT FROM idgen.space p WHERE p.space_id = $2)
       FOR NO KEY UPDATE OF s SKIP LOCKED";

/// xmax of a locked row is its holder's transaction; a prepared one has no process, several holders have none
/// that is found here.
const FIND_BLOCKER: &str = "
    SELECT coalesce((SELECT l.pid FROM pg_locks l
                      WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
                        AND l.transactionid = s.xmax LIMIT 1), 0)
      FROM idgen.segment s
     WHERE s.segment_id = $1 AND s.dropped_at IS NULL
       AND EXISTS (SELECT FROM idgen.space p WHERE p.space_id = $2)";

const MOVE_UP: &str = "
    UPDATE idgen.segment SET max_id = $2, step_hint = $3, tag_seq = tag_seq + 1, granted_at = clock_timestamp(),
           rate_per_minute = $4, rate_since_ms = $5, rate_since_id = $6, leased = $7
     WHERE segment_id = $1 AND max_id < $2
    RETURNING tag_seq";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, token_epoch, token_revision, payload)
    SELECT p.source_id, p.space_id, 'segment.grant', $1, $2, $3, $4, $8, $9,
           jsonb_build_object('issuer', $5, 'pid', pg_backend_pid(), 'segment_id', $6, 'step', $7)
      FROM idgen.space p
    RETURNING event_id";

const BURN: &str = "
    WITH moved AS (
        UPDATE idgen.segment s SET max_id = $2, tag_seq = s.tag_seq + 1
          FROM idgen.segment old
         WHERE s.segment_id = $1 AND old.segment_id = $1 AND s.max_id < $2
        RETURNING s.tag, s.tag_seq, old.max_id + 1 AS lo)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, payload)
    SELECT p.source_id, p.space_id, 'segment.burn', m.tag, m.tag_seq, m.lo, $2,
           jsonb_build_object('cause', 'savepoint rolled back', 'pid', pg_backend_pid(), 'segment_id', $1)
      FROM moved m CROSS JOIN idgen.space p";

/// Raise a tag to `high_water`: ids up to it were handed out although their grant was taken back.
pub fn burn(
    client: &mut SpiClient<'_>,
    segment_id: [u8; 16],
    high_water: i64,
) -> Result<(), pgrx::spi::Error> {
    let id = pgrx::Uuid::from_bytes(segment_id);
    client
        .update(BURN, None, &[id.into(), high_water.into()])
        .map(|_| ())
}

/// Grant the next range of a tag. The range may be used only after the transaction has committed (or inside
/// it, by the transaction that has made the tag).
///
/// # Errors
/// [`Refused`]; the transaction must not commit then.
pub fn grant(client: &mut SpiClient<'_>, wish: &Wish) -> Result<Granted, Refused> {
    let id = pgrx::Uuid::from_bytes(wish.segment_id);
    let key = [id.into(), pgrx::Uuid::from_bytes(wish.space_id).into()];
    let row = client.update(LOCK_ROW, Some(1), &key)?.first();
    if row.is_empty() {
        return Err(why_no_row(client, &key)?);
    }
    let row = Row::read(&row)?;
    left_open::record(client, wish, &row.tag)?;
    let step = row.next_step(wish.lasted_ms);
    let standing = standing::take(client, wish, (&row.tag, row.max_id, row.limit_id))?;
    let range =
        segment::grant(standing.begin, standing.upper, u64::from(step)).map_err(Refused::Exhausted)?;
    let tag_seq = move_up(client, wish, range, step, standing.rate)?;
    record(client, wish, &row.tag, range, step, tag_seq)?;
    Ok(Granted { range, step })
}

/// Raise the row to the end of the range; the number of the event.
fn move_up(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    range: Range,
    step: u32,
    rate: Rate,
) -> Result<i64, Refused> {
    let rate = rate.granted(clock::wall().0, range.last());
    let moved = client
        .update(
            MOVE_UP,
            Some(1),
            &[
                pgrx::Uuid::from_bytes(wish.segment_id).into(),
                range.last().into(),
                (step as i32).into(),
                rate.per_minute.cast_signed().into(),
                rate.since_ms.cast_signed().into(),
                rate.since_id.into(),
                wish.permit.token().is_some().into(),
            ],
        )?
        .first();
    moved.get::<i64>(1)?.ok_or(Refused::Gone)
}

fn record(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    tag: &str,
    range: Range,
    step: u32,
    tag_seq: i64,
) -> Result<(), Refused> {
    let issuer = match wish.issuer {
        Issuer::RefillWorker => "refill worker",
        Issuer::OwnTransaction => "own transaction",
    };
    let [epoch, revision] = wish.token_columns();
    let recorded = client.update(
        RECORD,
        Some(1),
        &[
            tag.into(),
            tag_seq.into(),
            range.first.into(),
            range.last().into(),
            issuer.into(),
            pgrx::Uuid::from_bytes(wish.segment_id).into(),
            (step as i32).into(),
            epoch.into(),
            revision.into(),
        ],
    )?;
    // No event, no grant: idgen.space has lost its row.
    if recorded.is_empty() {
        return Err(Refused::Query(pgrx::spi::Error::InvalidPosition));
    }
    Ok(())
}

impl Wish {
    /// Of an event: epoch and revision.
    pub fn token_columns(&self) -> [Option<i64>; 2] {
        let token = self.permit.token();
        [
            token.map(|token| token.epoch.0.cast_signed()),
            token.map(|token| token.revision.0.cast_signed()),
        ]
    }
}

fn why_no_row(client: &mut SpiClient<'_>, key: &[DatumWithOid<'_>]) -> Result<Refused, pgrx::spi::Error> {
    let holder = client.update(FIND_BLOCKER, Some(1), key)?.first();
    if holder.is_empty() {
        return Ok(Refused::Gone);
    }
    let pid = holder.get::<i32>(1)?.unwrap_or(0);
    Ok(Refused::Locked {
        blocker_pid: pid.unsigned_abs(),
    })
}

struct Row {
    tag: String,
    max_id: i64,
    limit_id: i64,
    step: u32,
    max_step: u32,
    step_hint: Option<u32>,
}

impl Row {
    /// The table's constraints forbid NULL and negative steps; a row that has them grants nothing.
    fn read(row: &SpiTupleTable<'_>) -> Result<Self, Refused> {
        let unsigned = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
        Ok(Self {
            tag: row.get::<String>(1)?.ok_or(Refused::Gone)?,
            max_id: row.get::<i64>(2)?.ok_or(Refused::Gone)?,
            limit_id: row.get::<i64>(3)?.ok_or(Refused::Gone)?,
            step: unsigned(row.get::<i32>(4)?).ok_or(Refused::Gone)?,
            max_step: unsigned(row.get::<i32>(5)?).ok_or(Refused::Gone)?,
            step_hint: unsigned(row.get::<i32>(6)?),
        })
    }

    fn next_step(&self, lasted_ms: Option<u64>) -> u32 {
        match (self.step_hint, lasted_ms) {
            (None, _) => self.step,
            (Some(hint), None) => hint.clamp(self.step.min(self.max_step), self.max_step),
            (Some(hint), Some(lasted_ms)) => segment::next_step(hint, self.step, self.max_step, lasted_ms),
        }
    }
}
