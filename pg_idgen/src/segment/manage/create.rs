//! `idgen_create_segment()`: a new tag, or one that was dropped and goes on above what it had granted.

use super::{check_fetch_limit, check_step, new_tag_argument, null, tag_seq, wrong};
use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::Error;
use crate::owner::{AsOwner, Tables, commit_durably};
use crate::segment::catalog::{self, Identity};
use crate::segment::{changed, leaf, own};
use idgen_core::segment::Stripes;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

v1_function!(idgen_create_segment, create_segment);

const INSERT: &str = "
    INSERT INTO idgen.segment (tag, owner, owner_oid, role_space, start_id, max_id, limit_id, step, max_step, fetch_limit,
                               mark, stripe_size, stripe_count)
    SELECT $1, r.rolname, r.oid, $3, $4, least($5, greatest($4 - 1, p.above)), $5, $6, $7, $8, a.mark,
           p.stripe_size, p.stripes
      FROM pg_roles r, idgen.authority a, idgen.space p WHERE r.oid = $2
    ON CONFLICT (tag) DO NOTHING
    RETURNING tag_seq, segment_id, max_id";

const LOCK_TOMBSTONE: &str = "
    SELECT s.max_id, s.segment_id
      FROM idgen.segment s WHERE s.tag = $1 AND s.dropped_at IS NOT NULL FOR UPDATE";

/// Stripes stay as they are: a tombstone of a database that did not cut its space alike grants nothing.
///
/// Another segment id: what sessions and shared memory know of the dropped one is not of this. What has to be passed over
/// before a grant still has to be.
const REVIVE: &str = "
    UPDATE idgen.segment s
       SET owner = r.rolname, owner_oid = r.oid, role_space = $3, start_id = $4, max_id = least($5, greatest(s.max_id, $4 - 1, p.above)),
           limit_id = $5, step = $6, max_step = $7, step_hint = NULL, fetch_limit = $8,
           segment_id = gen_random_uuid(), tag_seq = s.tag_seq + 1, version = s.version + 1,
           created_at = clock_timestamp(), granted_at = NULL, dropped_at = NULL,
           rate_per_minute = 0, rate_since_ms = 0, rate_since_id = 0
      FROM pg_roles r, idgen.space p
     WHERE s.tag = $1 AND s.dropped_at IS NOT NULL AND r.oid = $2
    RETURNING s.tag_seq, s.segment_id, s.max_id";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    VALUES ($1, $2, 'segment.create', $3, $4,
            jsonb_build_object('segment_id', $5, 'start_id', $6, 'limit_id', $7, 'step', $8, 'max_step', $9,
                               'fetch_limit', $11, 'above', $10, 'session_user', session_user))";

/// A tag to make; its parts are within their bounds.
pub struct NewTag {
    pub tag: String,
    pub start_id: i64,
    pub limit_id: i64,
    pub step: i32,
    pub max_step: i32,
    /// Ranges per minute; `None`: no limit.
    pub fetch_limit: Option<i32>,
}

impl NewTag {
    fn from_args(call: Call) -> Result<Self, Error> {
        let tag = new_tag_argument(call)?;
        let start_id = call.bigint(1).ok_or_else(|| null("start_id"))?;
        let step = check_step("step", call.integer(2).ok_or_else(|| null("step"))?)?;
        let max_step = check_step("max_step", call.integer(3).ok_or_else(|| null("max_step"))?)?;
        let limit_id = call.bigint(4).ok_or_else(|| null("limit_id"))?;
        let fetch_limit = call.integer(5).map(check_fetch_limit).transpose()?.flatten();
        if max_step < step {
            return Err(wrong(format!("max_step {max_step} is below step {step}"), ""));
        }
        if start_id < 1 {
            return Err(wrong(format!("start_id must be at least 1, not {start_id}"), ""));
        }
        if limit_id < start_id {
            return Err(wrong(
                format!("limit_id {limit_id} is below start_id {start_id}"),
                "",
            ));
        }
        Ok(Self {
            tag: tag.into(),
            start_id,
            limit_id,
            step,
            max_step,
            fetch_limit,
        })
    }
}

fn create_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let new = NewTag::from_args(call)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    create(&new, current_user())?;
    Ok(pg_sys::Datum::null())
}

/// Makes a tag that belongs to `owner`.
///
/// # Errors
/// It exists; what the dropped tag of this name had granted leaves no id; no leaf for the event.
pub fn create(new: &NewTag, owner: pg_sys::Oid) -> Result<(), Error> {
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    leaf::ensure(&new.tag, tables)?;
    let identity = catalog::identity(tables)?;
    // The tombstone must not come back to life with the ids that the new tag gives out.
    commit_durably();
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| make(client, new, owner, identity))
}

fn make(
    client: &mut SpiClient<'_>,
    new: &NewTag,
    user: pg_sys::Oid,
    identity: Identity,
) -> Result<(), Error> {
    let space_id = pgrx::Uuid::from_bytes(identity.space_id);
    let args = [
        new.tag.as_str().into(),
        user.into(),
        space_id.into(),
        new.start_id.into(),
        new.limit_id.into(),
        new.step.into(),
        new.max_step.into(),
        new.fetch_limit.into(),
    ];
    let mut made = client.update(INSERT, None, &args)?.first();
    let mut tombstone = None;
    if made.is_empty() {
        tombstone = Some(lock_tombstone(client, new)?);
        made = client.update(REVIVE, None, &args)?.first();
    }
    let tag_seq = tag_seq(&made)?;
    let segment_id = made.get::<pgrx::Uuid>(2)?;
    check_own_ids(new, identity.stripes, made.get::<i64>(3)?.unwrap_or(i64::MAX))?;
    let above = tombstone.as_ref().map(|tombstone| tombstone.above);
    if let Some(segment_id) = segment_id {
        serve(*segment_id.as_bytes(), identity, tombstone.as_ref());
    }
    client.update(
        RECORD,
        None,
        &[
            pgrx::Uuid::from_bytes(identity.source_id).into(),
            space_id.into(),
            new.tag.as_str().into(),
            tag_seq.into(),
            segment_id.into(),
            new.start_id.into(),
            new.limit_id.into(),
            new.step.into(),
            new.max_step.into(),
            above.into(),
            new.fetch_limit.into(),
        ],
    )?;
    Ok(())
}

/// Of several masters each grants its own stripes, and nobody what was granted before the space was cut: is there any
/// id between `max_id` and the limit?
fn check_own_ids(new: &NewTag, stripes: Stripes, max_id: i64) -> Result<(), Error> {
    if stripes.places_to(new.limit_id) > stripes.places_to(max_id) {
        return Ok(());
    }
    Err(Error::NumberLine {
        message: format!(
            "limit_id {} leaves segment tag \"{}\" no id",
            new.limit_id, new.tag
        ),
        detail: format!(
            "This database is master {} of {} in stripes of {} ids, and none of its ids lies above {max_id} and up to that limit.",
            stripes.index(),
            stripes.count(),
            stripes.size()
        ),
        hint: "Choose a higher limit_id; columns that hold it are needed.",
    })
}

/// A dropped tag of this name.
struct Tombstone {
    /// The highest id that it had granted.
    above: i64,
    segment_id: [u8; 16],
}

/// From now on this transaction grants ids of the tag to itself, if a rollback takes the tag away as if it had never
/// been. One that was there before comes back with a rollback, and its next grant would repeat those ids: that one is
/// drawn from after the commit only, and a worker passes over first what has to be.
fn serve(segment_id: [u8; 16], identity: Identity, tombstone: Option<&Tombstone>) {
    if tombstone.is_none_or(|tombstone| own::has_made(tombstone.segment_id)) {
        own::note_made(segment_id);
        return;
    }
    changed::note(identity.key_of(segment_id), false);
}

fn lock_tombstone(client: &mut SpiClient<'_>, new: &NewTag) -> Result<Tombstone, Error> {
    let exists = || Error::TagExists { tag: new.tag.clone() };
    let row = client
        .update(LOCK_TOMBSTONE, Some(1), &[new.tag.as_str().into()])?
        .first();
    if row.is_empty() {
        return Err(exists());
    }
    let above = row.get::<i64>(1)?.ok_or_else(exists)?;
    if new.limit_id <= above {
        return Err(Error::NumberLine {
            message: format!(
                "limit_id {} leaves segment tag \"{}\" no id",
                new.limit_id, new.tag
            ),
            detail: format!(
                "A tag of this name was dropped; ids up to {above} were granted and are never granted again."
            ),
            hint: "Choose another tag, or a higher limit_id.",
        });
    }
    if above >= new.start_id {
        pgrx::notice!(
            "a segment tag \"{}\" was dropped before: ids go on above {above}, not at start_id {}",
            new.tag,
            new.start_id
        );
    }
    Ok(Tombstone {
        above,
        segment_id: *row.get::<pgrx::Uuid>(2)?.ok_or_else(exists)?.as_bytes(),
    })
}
