//! One grant: the row of the tag moves up, an audit event says so, both in the transaction of the caller.

use super::catalog::Identity;
use super::failure::Holder;
use super::{holder, left_open, requests, standing};
use crate::authority::Permit;
use crate::clock;
use crate::shmem::shared;
use idgen_core::clock::BootMs;
use idgen_core::segment::burn::Rate;
use idgen_core::segment::fetches::Fetches;
use idgen_core::segment::{self, Exhausted, Places, Range, Stripes};
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;
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
    /// Which ids of the space this database grants. Ranges are in places.
    pub stripes: Stripes,
    /// Source of events of that space. `None`: to be read, and nothing is granted if the space is gone.
    pub source_id: Option<[u8; 16]>,
    pub issuer: Issuer,
    /// No id at or below it may be granted, whatever the row says; 0: the row decides.
    pub above: i64,
    /// What the authority of this server allows.
    pub permit: Permit,
    /// The ranges that were fetched of late, and now; `None`: no limit of the tag counts.
    pub fetches: Option<(Fetches, BootMs)>,
}

/// Many ids at once, for one caller.
pub struct Bulk<'a> {
    pub n: u64,
    pub request_key: Option<&'a str>,
    /// Who has asked.
    pub role: pg_sys::Oid,
    pub pid: i32,
}

/// A range that is the caller's once its transaction has committed.
pub struct Granted {
    pub tag: String,
    pub ids: Places,
    pub step: u32,
    pub lost: Lost,
}

/// Ids that nobody gets, found on the way to a grant.
#[derive(Clone, Copy, Default)]
pub struct Lost {
    /// What an earlier memory had of the tag, at most.
    pub by_restart: u64,
    /// What this memory had of it before another tag was given its place, at most.
    pub by_eviction: u64,
    /// Passed over, because they may have been granted elsewhere.
    pub passed_over: u64,
}

/// The same of many ids at once.
pub struct BulkGranted {
    pub tag: String,
    pub ids: Places,
    /// `false`: the request is a repeated one, granted before.
    pub is_new: bool,
    pub lost: Lost,
}

/// Why nothing was granted.
#[derive(Debug)]
pub enum Refused {
    /// The row is locked by another transaction.
    Locked(Holder),
    /// A table is.
    TableLocked(Holder),
    Gone,
    Exhausted(Exhausted),
    /// The key of the request is that of another one, for so many ids.
    KeyTaken {
        n: u64,
    },
    /// Authority is leased, and everything up to the ceiling is granted, or has to be passed over first.
    NoCeiling {
        /// So many ids above what is granted the ceiling has to be raised to.
        ids: u64,
    },
    /// Another history, or a clone: a worker has to settle it first.
    Unsettled,
    /// The same history in another place.
    Copy,
    /// Another history, and the daemon has not told yet what others know of the old one.
    Unwitnessed,
    /// The fetch limit of the tag is reached.
    RateLimited {
        limit: u32,
        until: BootMs,
    },
    /// The safety burn would pass the limit.
    BurnTooLarge {
        limit_id: i64,
    },
    /// The tag and its space are not cut in the same stripes.
    NotCut,
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
            Self::Locked(holder) => write!(f, "the row is locked by process {}", holder.pid),
            Self::TableLocked(holder) => write!(f, "a table is locked by process {}", holder.pid),
            Self::Gone => f.write_str("the tag is gone"),
            Self::Exhausted(exhausted) => write!(f, "{exhausted}"),
            Self::KeyTaken { n } => write!(f, "the request key is that of a request for {n} ids"),
            Self::NoCeiling { .. } => f.write_str("everything up to the leased ceiling is granted"),
            Self::Unsettled => f.write_str("the database has another history"),
            Self::Copy => f.write_str("the database may be a copy"),
            Self::Unwitnessed => f.write_str("what others know of the old history is not told yet"),
            Self::BurnTooLarge { limit_id } => write!(f, "the safety burn would pass the limit {limit_id}"),
            Self::RateLimited { limit, .. } => write!(f, "the fetch limit of {limit} a minute is reached"),
            Self::NotCut => f.write_str("the tag is not cut in the stripes of its space"),
            Self::Home(reason) => f.write_str(reason),
            Self::Query(error) => write!(f, "{error}"),
        }
    }
}

const LOCK_ROW: &str = "
    SELECT s.tag, s.max_id, s.limit_id, s.step, s.max_step, s.step_hint, coalesce($3, p.source_id), s.fetch_limit,
           s.stripe_count = $5 AND (s.stripe_size = $6 OR $5 = 1)
      FROM idgen.segment s
      LEFT JOIN idgen.space p ON p.space_id = $2 AND (p.stripe, p.stripes) = ($4, $5) AND (p.stripe_size = $6 OR $5 = 1)
     WHERE s.segment_id = $1 AND s.dropped_at IS NULL AND coalesce($3, p.source_id) IS NOT NULL
       FOR NO KEY UPDATE OF s SKIP LOCKED";

const MOVE_UP: &str = "
    UPDATE idgen.segment SET max_id = $2, step_hint = $3, tag_seq = tag_seq + $8, granted_at = clock_timestamp(),
           rate_per_minute = $4, rate_since_ms = $5, rate_since_id = $6, leased = $7
     WHERE segment_id = $1 AND max_id < $2
    RETURNING tag_seq";

/// One event for each run of consecutive ids: `lo` and `hi` enclose no id of another master. A grant of several says so.
const RECORD: &str = "
    INSERT INTO idgen.audit_event
           (source_id, space_id, kind, tag, tag_seq, lo, hi, token_epoch, token_revision, payload)
    SELECT $1, $2, 'segment.grant', $3, $4 + r.nth - 1, r.lo, r.hi, $8, $9,
           jsonb_build_object('issuer', $10, 'pid', pg_backend_pid(), 'segment_id', $7, 'step', $11, 'boot_id', $12)
        || CASE WHEN cardinality($5) > 1 THEN jsonb_build_object('grant_seq', $4, 'runs', cardinality($5)) ELSE '{}' END
      FROM unnest($5::int8[], $6::int8[]) WITH ORDINALITY r(lo, hi, nth) ORDER BY r.nth";

/// Here the process and the role are those that have asked.
const RECORD_BULK: &str = "
    INSERT INTO idgen.audit_event
           (source_id, space_id, kind, tag, tag_seq, lo, hi, token_epoch, token_revision, payload)
    SELECT $1, $2, 'segment.grant', $3, $4 + r.nth - 1, r.lo, r.hi, $8, $9,
           jsonb_build_object('issuer', 'bulk request', 'pid', $10, 'segment_id', $7, 'request_key', $12,
                              'role', (SELECT r.rolname FROM pg_roles r WHERE r.oid = $11))
        || CASE WHEN cardinality($5) > 1 THEN jsonb_build_object('grant_seq', $4, 'runs', cardinality($5)) ELSE '{}' END
      FROM unnest($5::int8[], $6::int8[]) WITH ORDINALITY r(lo, hi, nth) ORDER BY r.nth";

const BURN: &str = "
    WITH moved AS (
        UPDATE idgen.segment s SET max_id = $2, tag_seq = s.tag_seq + 1
          FROM idgen.segment old
         WHERE s.segment_id = $1 AND old.segment_id = $1 AND s.max_id < $2
        RETURNING s.tag, s.tag_seq, s.stripe_count = 1 AS is_whole, old.max_id + 1 AS lo)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, payload)
    SELECT $3, $4, 'segment.burn', m.tag, m.tag_seq,
           CASE WHEN m.is_whole THEN m.lo END, CASE WHEN m.is_whole THEN $2 END,
           jsonb_build_object('cause', 'savepoint rolled back', 'pid', pg_backend_pid(), 'segment_id', $1)
        || CASE WHEN m.is_whole THEN '{}' ELSE jsonb_build_object('own_from', m.lo, 'own_to', $2) END
      FROM moved m";

/// Raise a tag to `high_water`: ids up to it were handed out although their grant was taken back.
pub fn burn(
    client: &mut SpiClient<'_>,
    identity: Identity,
    segment_id: [u8; 16],
    high_water: i64,
) -> Result<(), pgrx::spi::Error> {
    let [id, source_id, space_id] =
        [segment_id, identity.source_id, identity.space_id].map(pgrx::Uuid::from_bytes);
    let args = [id.into(), high_water.into(), source_id.into(), space_id.into()];
    client.update(BURN, None, &args).map(|_| ())
}

/// Grant the next range of a tag. The range may be used only after the transaction has committed (or inside
/// it, by the transaction that has made the tag). `lasted_ms`: how long the last range of this tag lasted;
/// `None`: not known, keep the step.
///
/// # Errors
/// [`Refused`]; the transaction must not commit then.
pub fn grant(client: &mut SpiClient<'_>, wish: &Wish, lasted_ms: Option<u64>) -> Result<Granted, Refused> {
    let row = lock_row(client, wish)?;
    row.check_fetch_limit(wish)?;
    let lost = left_open::record(client, wish, &row.tag)?;
    let step = row.next_step(lasted_ms);
    let standing = standing::take(client, wish, (&row.tag, row.max_id, row.limit_id))?;
    let range = segment::grant(standing.begin, standing.upper, u64::from(step))
        .map_err(|_| exhausted(row.max_id, row.limit_id))?;
    let ids = wish.places(range);
    let tag_seq = move_up(client, wish, ids, Some(step), standing.rate)?;
    let issuer = match wish.issuer {
        Issuer::RefillWorker => "refill worker",
        Issuer::OwnTransaction => "own transaction",
    };
    let of_range = [issuer.into(), (step as i32).into(), boot_id().into()];
    record(client, wish, &row, (tag_seq, ids), RECORD, of_range)?;
    let lost = Lost {
        passed_over: standing.passed_over,
        ..lost
    };
    Ok(Granted {
        tag: row.tag,
        ids,
        step,
        lost,
    })
}

/// Grant exactly as many ids as were asked for, one after the other among those of this master; the step of the tag is left as it is.
///
/// A request that has a key and was granted before is answered with the same ids, and nothing is granted.
///
/// # Errors
/// [`Refused`]; the transaction must not commit then.
pub fn grant_exactly(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    bulk: &Bulk<'_>,
) -> Result<BulkGranted, Refused> {
    let row = lock_row(client, wish)?;
    if let Some(ids) = requests::answered(client, &row.tag, bulk)? {
        return Ok(BulkGranted {
            tag: row.tag,
            ids,
            is_new: false,
            lost: Lost::default(),
        });
    }
    row.check_fetch_limit(wish)?;
    let lost = left_open::record(client, wish, &row.tag)?;
    // A multirange names the value after its last one, which has to be one.
    let limit = wish.stripes.places_to(row.limit_id.min(i64::MAX - 1));
    let standing = standing::take(client, wish, (&row.tag, row.max_id, row.limit_id))?;
    segment::grant_exactly(standing.begin, limit, bulk.n)
        .map_err(|_| exhausted(row.max_id, row.limit_id.min(i64::MAX - 1)))?;
    let range = segment::grant_exactly(standing.begin, standing.upper.min(limit), bulk.n)
        .map_err(|_| wish.no_ceiling(row.max_id, standing.begin))?;
    let ids = wish.places(range);
    let tag_seq = move_up(client, wish, ids, row.step_hint, standing.rate)?;
    requests::remember(client, &row.tag, bulk, ids)?;
    let of_request = [bulk.pid.into(), bulk.role.into(), bulk.request_key.into()];
    record(client, wish, &row, (tag_seq, ids), RECORD_BULK, of_request)?;
    let lost = Lost {
        passed_over: standing.passed_over,
        ..lost
    };
    Ok(BulkGranted {
        tag: row.tag,
        ids,
        is_new: true,
        lost,
    })
}

fn exhausted(max_id: i64, limit_id: i64) -> Refused {
    Refused::Exhausted(Exhausted { max_id, limit_id })
}

/// The row, locked, if nobody else has it. What the own transaction has handed out under a savepoint that was rolled
/// back is passed over.
fn lock_row(client: &mut SpiClient<'_>, wish: &Wish) -> Result<Row, Refused> {
    let [id, space_id] = [wish.segment_id, wish.space_id].map(pgrx::Uuid::from_bytes);
    let source_id = wish.source_id.map(pgrx::Uuid::from_bytes);
    let [stripe, stripes] = [wish.stripes.index(), wish.stripes.count()].map(|value| value as i32);
    let size = wish.stripes.size().cast_signed();
    let args = [
        id.into(),
        space_id.into(),
        source_id.into(),
        stripe.into(),
        stripes.into(),
        size.into(),
    ];
    let found = client.update(LOCK_ROW, Some(1), &args)?.first();
    if found.is_empty() {
        return Err(match holder::find(client, id, space_id, wish.stripes)? {
            Some(holder) => Refused::Locked(holder),
            None => Refused::Gone,
        });
    }
    let mut row = Row::read(&found)?;
    let own = matches!(wish.issuer, Issuer::OwnTransaction);
    if own && row.max_id < wish.above && wish.above < row.limit_id {
        let identity = Identity {
            source_id: row.source_id,
            space_id: wish.space_id,
            stripes: wish.stripes,
        };
        burn(client, identity, wish.segment_id, wish.above)?;
        row.max_id = wish.above;
    }
    Ok(row)
}

/// The memory that the range goes to. What is still in it when the tag loses its place there is told from what a restart
/// has lost.
pub fn boot_id() -> Option<pgrx::Uuid> {
    shared().map(|shared| pgrx::Uuid::from_bytes(shared.boot_id()))
}

/// Raise the row to the end of the range; the number of the first event.
fn move_up(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    ids: Places,
    step_hint: Option<u32>,
    rate: Rate,
) -> Result<i64, Refused> {
    let rate = rate.granted(clock::wall().0, ids.range.last());
    let runs = ids.runs().count() as i64;
    let moved = client
        .update(
            MOVE_UP,
            Some(1),
            &[
                pgrx::Uuid::from_bytes(wish.segment_id).into(),
                ids.last_id().into(),
                step_hint.map(|hint| hint as i32).into(),
                rate.per_minute.cast_signed().into(),
                rate.since_ms.cast_signed().into(),
                wish.stripes.id(rate.since_id).into(),
                wish.permit.token().is_some().into(),
                runs.into(),
            ],
        )?
        .first();
    Ok(moved.get::<i64>(1)?.ok_or(Refused::Gone)? - runs + 1)
}

/// The events of a grant; `more`: what `statement` takes beside the ids.
fn record<const N: usize>(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    row: &Row,
    (tag_seq, ids): (i64, Places),
    statement: &str,
    more: [DatumWithOid<'_>; N],
) -> Result<(), Refused> {
    let [epoch, revision] = wish.token_columns();
    let (lo, hi): (Vec<i64>, Vec<i64>) = ids.runs().map(|run| (run.first, run.last())).unzip();
    let of_grant = [
        pgrx::Uuid::from_bytes(row.source_id).into(),
        pgrx::Uuid::from_bytes(wish.space_id).into(),
        row.tag.as_str().into(),
        tag_seq.into(),
        lo.into(),
        hi.into(),
        pgrx::Uuid::from_bytes(wish.segment_id).into(),
        epoch.into(),
        revision.into(),
    ];
    let args: Vec<DatumWithOid<'_>> = of_grant.into_iter().chain(more).collect();
    client.update(statement, None, &args)?;
    Ok(())
}

impl Wish {
    /// Ids of this master.
    pub fn places(&self, range: Range) -> Places {
        Places {
            range,
            stripes: self.stripes,
        }
    }

    /// Nothing may be granted above place `begin`, which is what a grant has to pass over first: nothing of it is kept when
    /// its transaction is given up, so the ceiling has to be raised beyond it at once.
    pub fn no_ceiling(&self, max_id: i64, begin: i64) -> Refused {
        let floor = self.permit.stretch().map_or(0, |stretch| stretch.floor);
        Refused::NoCeiling {
            ids: begin.abs_diff(self.stripes.places_to(max_id.max(floor))),
        }
    }

    /// Of an event: epoch and revision.
    pub fn token_columns(&self) -> [Option<i64>; 2] {
        let token = self.permit.token();
        [
            token.map(|token| token.epoch.0.cast_signed()),
            token.map(|token| token.revision.0.cast_signed()),
        ]
    }
}

struct Row {
    tag: String,
    max_id: i64,
    limit_id: i64,
    step: u32,
    max_step: u32,
    step_hint: Option<u32>,
    source_id: [u8; 16],
    fetch_limit: Option<u32>,
}

impl Row {
    /// The table's constraints forbid NULL and negative steps; a row that has them grants nothing.
    fn read(row: &SpiTupleTable<'_>) -> Result<Self, Refused> {
        if row.get::<bool>(9)? != Some(true) {
            return Err(Refused::NotCut);
        }
        let unsigned = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
        Ok(Self {
            tag: row.get::<String>(1)?.ok_or(Refused::Gone)?,
            max_id: row.get::<i64>(2)?.ok_or(Refused::Gone)?,
            limit_id: row.get::<i64>(3)?.ok_or(Refused::Gone)?,
            step: unsigned(row.get::<i32>(4)?).ok_or(Refused::Gone)?,
            max_step: unsigned(row.get::<i32>(5)?).ok_or(Refused::Gone)?,
            step_hint: unsigned(row.get::<i32>(6)?),
            source_id: *row.get::<pgrx::Uuid>(7)?.ok_or(Refused::Gone)?.as_bytes(),
            fetch_limit: unsigned(row.get::<i32>(8)?),
        })
    }

    fn check_fetch_limit(&self, wish: &Wish) -> Result<(), Refused> {
        let (Some(limit), Some((fetches, now))) = (self.fetch_limit, &wish.fetches) else {
            return Ok(());
        };
        match fetches.wait_ms(limit, *now) {
            None => Ok(()),
            Some(wait_ms) => Err(Refused::RateLimited {
                limit,
                until: BootMs(now.0.saturating_add(wait_ms)),
            }),
        }
    }

    fn next_step(&self, lasted_ms: Option<u64>) -> u32 {
        match (self.step_hint, lasted_ms) {
            (None, _) => self.step,
            (Some(hint), None) => hint.clamp(self.step.min(self.max_step), self.max_step),
            (Some(hint), Some(lasted_ms)) => segment::next_step(hint, self.step, self.max_step, lasted_ms),
        }
    }
}
