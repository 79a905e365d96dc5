//! Where a tag stands before a grant: is this database at home, what has to be passed over first, how far may it go.
//!
//! In the transaction of the grant, under the lock of the row. What is passed over is an event `segment.burn`. Where
//! several masters share the space it has no `lo` and `hi`, because ids of the others lie between: its payload says
//! between which ids those of this master were passed over.

use super::grant::{Issuer, Refused, Wish};
use crate::as_of_now;
use crate::authority::home;
use crate::authority::settle::{HOME_COLUMNS, read_home};
use crate::authority::witness::WAITS;
use crate::call::current_database;
use crate::{clock, guc};
use idgen_core::segment::Stripes;
use idgen_core::segment::burn::{Rate, burn_to, safety_burn};
use idgen_core::segment::home::{Cause, Verdict, judge};
use pgrx::pg_sys;
use pgrx::spi::SpiClient;

/// What a grant of a tag goes by.
pub struct Standing {
    /// The range begins above this place.
    pub begin: i64,
    /// The highest place that may be granted.
    pub upper: i64,
    /// How fast the tag is used, in places.
    pub rate: Rate,
    /// How many ids were passed over.
    pub passed_over: u64,
}

/// What the row and its database say.
struct Known {
    needs_burn: bool,
    /// The mark of the row is that of the database.
    is_marked: bool,
    mark: pgrx::Uuid,
    cause: Option<String>,
    /// The daemon is to say first what others know of the old history.
    waits: bool,
    leased: bool,
    safety_burn: Option<i64>,
    rate: Rate,
    max_step: u32,
}

/// Columns 1 to 12, then the remembered home.
fn query() -> String {
    // Read as of now: the own transaction may be older than what a worker has settled at its request.
    format!(
        "SELECT s.needs_burn, s.mark IS NOT DISTINCT FROM a.mark, a.mark, a.cause, s.leased, s.safety_burn,
                s.rate_per_minute, s.rate_since_ms, s.rate_since_id, s.max_step, p.database_oid, {WAITS}, {HOME_COLUMNS}
           FROM idgen.segment s, idgen.authority a, idgen.space p WHERE s.segment_id = $1"
    )
}

const PASS_OVER: &str = "
    UPDATE idgen.segment
       SET max_id = $2, tag_seq = tag_seq + $3, needs_burn = false, mark = $4,
           rate_since_ms = $5, rate_since_id = $6
     WHERE segment_id = $1
    RETURNING tag_seq";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, token_epoch, token_revision, payload)
    SELECT p.source_id, p.space_id, 'segment.burn', $1, $2,
           CASE WHEN p.stripes = 1 THEN $3 END, CASE WHEN p.stripes = 1 THEN $4 END, $7, $8,
           jsonb_build_object('cause', $5, 'pid', pg_backend_pid(), 'segment_id', $6)
        || CASE WHEN p.stripes = 1 THEN '{}' ELSE jsonb_build_object('own_from', $3, 'own_to', $4) END
      FROM idgen.space p";

/// Look, and pass over what has to be. `max_id`, `limit_id`: of the locked row.
///
/// # Errors
/// [`Refused::Unsettled`], [`Refused::Copy`], [`Refused::Unwitnessed`], [`Refused::BurnTooLarge`], [`Refused::NoCeiling`].
pub fn take(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    (tag, max_id, limit_id): (&str, i64, i64),
) -> Result<Standing, Refused> {
    let id = pgrx::Uuid::from_bytes(wish.segment_id);
    let (known, verdict) =
        as_of_now::first_row(&query(), &[id.into()], |row| Known::read(row, wish.stripes))?
            .ok_or(Refused::Gone)??;
    // A tag of the own transaction was made here, and has account of its ids in memory.
    let own = matches!(wish.issuer, Issuer::OwnTransaction);
    match verdict {
        Verdict::Copy(_) if wish.permit.token().is_none() => return Err(Refused::Copy),
        Verdict::Burn(_) | Verdict::Relabel if !own => return Err(Refused::Unsettled),
        _ => {}
    }
    // Under a lease the floor is what the store has seen.
    if !own && !known.is_marked && known.waits && wish.permit.token().is_none() {
        return Err(Refused::Unwitnessed);
    }
    let stretch = wish.permit.stretch().unwrap_or_default();
    let highest = max_id.max(wish.above).max(stretch.floor);
    let burn = if own {
        None
    } else {
        known.burn(wish, highest, limit_id)?
    };
    let begin = burn.as_ref().map_or(highest, |burn| burn.to);
    let cause = match &burn {
        Some(burn) => burn.cause.as_str(),
        None if stretch.floor >= wish.above => "ceiling of the last holder",
        None => "memory is ahead of the row",
    };
    let mut rate = known.rate;
    if !own && (begin > max_id || !known.is_marked || known.needs_burn) {
        rate = rate.from_here(clock::wall().0, wish.stripes.places_to(begin));
        pass_over(client, wish, &known, rate, (tag, max_id, begin), cause)?;
    }
    let place = |id| wish.stripes.places_to(id);
    let (begin, limit) = (place(begin), place(limit_id));
    let upper = match wish.permit.stretch().map(|stretch| place(stretch.ceiling)) {
        Some(ceiling) if begin >= ceiling && begin < limit => {
            return Err(wish.no_ceiling(max_id, begin));
        }
        Some(ceiling) => limit.min(ceiling),
        None => limit,
    };
    // What the own transaction passes over is written down where it is (see `lock_row`).
    let passed_over = if own { 0 } else { begin.abs_diff(place(max_id)) };
    Ok(Standing {
        begin,
        upper,
        rate,
        passed_over,
    })
}

struct Burn {
    to: i64,
    cause: String,
}

impl Known {
    fn read(row: &as_of_now::Row, stripes: Stripes) -> Result<(Self, Verdict), Refused> {
        let unsigned = |column| row.get::<i64>(column).unwrap_or_default().unsigned_abs();
        let known = Self {
            needs_burn: row.get::<bool>(1).unwrap_or(true),
            is_marked: row.get::<bool>(2).unwrap_or(false),
            mark: row.get::<pgrx::Uuid>(3).ok_or(Refused::Gone)?,
            cause: row.get::<String>(4),
            waits: row.get::<bool>(12).unwrap_or(false),
            leased: row.get::<bool>(5).unwrap_or(false),
            safety_burn: row.get::<i64>(6),
            rate: Rate {
                per_minute: unsigned(7),
                since_ms: unsigned(8),
                since_id: stripes.places_to(row.get::<i64>(9).unwrap_or_default()),
            },
            max_step: row.get::<i32>(10).unwrap_or_default().unsigned_abs(),
        };
        let database = row.get::<pg_sys::Oid>(11).map(pg_sys::Oid::to_u32);
        if database != Some(current_database()) {
            // A clone that is not another space yet.
            return Err(Refused::Unsettled);
        }
        let found = home::found().map_err(|error| Refused::Home(format!("{error:?}")))?;
        Ok((known, judge(&read_home(row, 13), &found)))
    }

    /// The safety burn, if ranges may have been granted that this database does not know of. Under a lease the
    /// floor lies above them, if they were granted under a lease too.
    fn burn(&self, wish: &Wish, highest: i64, limit_id: i64) -> Result<Option<Burn>, Refused> {
        let covered = wish.permit.token().is_some() && self.leased;
        if (self.is_marked && !self.needs_burn) || covered {
            return Ok(None);
        }
        let place = |id| wish.stripes.places_to(id);
        let ids = match self.safety_burn {
            Some(ids) => ids.unsigned_abs(),
            None => safety_burn(self.rate, place(highest), guc::safety_time_s(), self.max_step),
        };
        let to = burn_to(place(highest), ids, place(limit_id)).ok_or(Refused::BurnTooLarge { limit_id })?;
        // Nothing to burn: not below where it stands.
        let to = wish.stripes.id(to).max(highest);
        let of_database = self.cause.clone().filter(|_| !self.needs_burn);
        Ok(Some(Burn {
            to,
            cause: of_database.unwrap_or_else(|| Cause::Arrived.name().into()),
        }))
    }
}

fn pass_over(
    client: &mut SpiClient<'_>,
    wish: &Wish,
    known: &Known,
    rate: Rate,
    (tag, max_id, to): (&str, i64, i64),
    cause: &str,
) -> Result<(), Refused> {
    let id = pgrx::Uuid::from_bytes(wish.segment_id);
    let events = i64::from(to > max_id);
    let moved = client.update(
        PASS_OVER,
        Some(1),
        &[
            id.into(),
            to.into(),
            events.into(),
            known.mark.into(),
            rate.since_ms.cast_signed().into(),
            wish.stripes.id(rate.since_id).into(),
        ],
    )?;
    let tag_seq = moved.first().get::<i64>(1)?.ok_or(Refused::Gone)?;
    if events == 0 {
        return Ok(());
    }
    let [epoch, revision] = wish.token_columns();
    client.update(
        RECORD,
        None,
        &[
            tag.into(),
            tag_seq.into(),
            (max_id + 1).into(),
            to.into(),
            cause.into(),
            id.into(),
            epoch.into(),
            revision.into(),
        ],
    )?;
    Ok(())
}
