//! What the daemon is to lease and to raise in the store.

use crate::call::{
    Call, bigint_datum, current_database, in_recovery, integer_datum, text_datum, uuid_datum, v1_function,
};
use crate::clock;
use crate::error::Error;
use crate::guc;
use crate::owner::{AsOwner, Tables};
use crate::segment;
use crate::shmem::{SegmentKey, Shared, shared};
use idgen_core::segment::Stripes;
use idgen_core::segment::authority::{Stretch, wanted_ceiling};
use pgrx::pg_sys;
use pgrx::spi::Spi;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

v1_function!(idgen_authority_wanted, authority_wanted);

/// The space and which of its ids are granted here, unless this is a clone that a worker has not made another space yet.
const SPACE: &str = "
    SELECT p.space_id, p.stripe, p.stripes, p.stripe_size, p.database_oid = d.oid
      FROM idgen.space p, pg_database d WHERE d.datname = current_database()";

/// Tags by their segment ids; the size of the next range is at most twice that of the last.
const TAGS: &str = "
    SELECT s.tag, s.segment_id, s.max_id, s.limit_id,
           least(s.max_step::bigint, 2 * coalesce(s.step_hint, s.step)::bigint)
      FROM idgen.segment s WHERE s.segment_id = ANY ($1) AND s.dropped_at IS NULL
     ORDER BY s.tag";

/// What is leased.
#[derive(Clone, Copy)]
struct Leased {
    space_id: [u8; 16],
    stripes: Stripes,
}

impl Leased {
    /// A row of the answer: of the space, or of one of its tags.
    fn row(self, tag: Option<(&Tag, i64, i64)>) -> [Option<pg_sys::Datum>; 9] {
        let Self { space_id, stripes } = self;
        let size = (!stripes.is_single()).then(|| stripes.size().cast_signed());
        [
            uuid_datum(space_id),
            integer_datum(stripes.index() as i32),
            integer_datum(stripes.count() as i32),
            size.and_then(bigint_datum),
            tag.and_then(|(tag, ..)| text_datum(&tag.tag)),
            tag.and_then(|(tag, ..)| uuid_datum(tag.segment_id)),
            tag.and_then(|(tag, ..)| bigint_datum(tag.max_id)),
            tag.and_then(|(_, ceiling, _)| bigint_datum(ceiling)),
            tag.and_then(|(.., wanted)| bigint_datum(wanted)),
        ]
    }
}

struct Tag {
    tag: String,
    segment_id: [u8; 16],
    max_id: i64,
    limit_id: i64,
    range_ids: u64,
}

/// No rows: nothing is to be leased here (authority is local, or this is a standby or an unsettled clone).
fn authority_wanted(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    let shared = shared().ok_or(Error::NotPreloaded)?;
    shared.note_daemon(clock::boot());
    if guc::authority() == guc::Authority::Local || in_recovery() {
        return Ok(rows.done());
    }
    let Some(tables) = Tables::of_this_database() else {
        return Ok(rows.done());
    };
    let Some(leased) = space(tables)? else {
        let leaves = segment::place(shared, &SegmentKey::leaves_of(current_database()))?;
        segment::ask(leaves.slot);
        return Ok(rows.done());
    };
    rows.push(leased.row(None));
    let stretches = stretches(shared, leased);
    for tag in tags(tables, &stretches)? {
        let (stretch, ids) = stretches.get(&tag.segment_id).copied().unwrap_or_default();
        if let Some(wanted) = wanted(leased.stripes, &tag, stretch, ids) {
            rows.push(leased.row(Some((&tag, stretch.ceiling, wanted))));
        }
    }
    Ok(rows.done())
}

/// The ceiling to raise to; `None`: it is high enough. Ceilings are ids, what is ahead is counted in places.
fn wanted(stripes: Stripes, tag: &Tag, stretch: Stretch, ids: u64) -> Option<i64> {
    let place = |id| stripes.places_to(id);
    let [max, limit] = [tag.max_id, tag.limit_id].map(place);
    let stretch = Stretch {
        floor: place(stretch.floor),
        ceiling: place(stretch.ceiling),
    };
    // What a bulk request waits for, or a burn, comes on top of the ranges to come.
    let begin = max.max(stretch.floor);
    let max = begin.saturating_add_unsigned(ids).min(limit);
    let wanted = wanted_ceiling(max, stretch, tag.range_ids, limit);
    (wanted > stretch.ceiling).then(|| stripes.id(wanted))
}

fn space(tables: Tables) -> Result<Option<Leased>, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    let leased = Spi::connect(|client| {
        let row = client.select(SPACE, Some(1), &[])?.first();
        let settled = row.get::<bool>(5)? == Some(true);
        let space_id = row.get::<pgrx::Uuid>(1)?.filter(|_| settled);
        Ok::<_, pgrx::spi::Error>(space_id.zip(segment::read_stripes(&row, 2)))
    })?;
    Ok(leased.map(|(space_id, stripes)| Leased {
        space_id: *space_id.as_bytes(),
        stripes,
    }))
}

/// The tags of this space that were used since the server started, what may be granted of them, and for how many ids
/// of a bulk request that was too little.
fn stretches(shared: &Shared, leased: Leased) -> HashMap<[u8; 16], (Stretch, u64)> {
    let now = clock::boot();
    let leaves = SegmentKey::leaves_of(current_database());
    shared
        .segments_in_use()
        .map(|slot| (slot.key(), slot))
        .filter(|(key, _)| {
            (key.database, key.space_id, key.stripes) == (leaves.database, leased.space_id, leased.stripes)
        })
        .map(|(key, slot)| {
            let permit = shared.permit(slot, now);
            (
                key.segment_id,
                (
                    permit.map(|permit| permit.stretch).unwrap_or_default(),
                    slot.ids_wanted.load(Ordering::Relaxed),
                ),
            )
        })
        .collect()
}

fn tags(tables: Tables, stretches: &HashMap<[u8; 16], (Stretch, u64)>) -> Result<Vec<Tag>, Error> {
    let ids: Vec<pgrx::Uuid> = stretches.keys().map(|id| pgrx::Uuid::from_bytes(*id)).collect();
    let _as_owner = AsOwner::begin(tables.owner);
    let tags = Spi::connect(|client| {
        let rows = client.select(TAGS, None, &[ids.into()])?;
        let mut tags = Vec::new();
        for row in rows {
            tags.push(Tag {
                tag: row.get::<String>(1)?.unwrap_or_default(),
                segment_id: row
                    .get::<pgrx::Uuid>(2)?
                    .map(|id| *id.as_bytes())
                    .unwrap_or_default(),
                max_id: row.get::<i64>(3)?.unwrap_or_default(),
                limit_id: row.get::<i64>(4)?.unwrap_or_default(),
                range_ids: row.get::<i64>(5)?.unwrap_or_default().unsigned_abs(),
            });
        }
        Ok::<_, pgrx::spi::Error>(tags)
    })?;
    Ok(tags)
}
