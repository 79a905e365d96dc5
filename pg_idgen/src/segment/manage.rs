//! `idgen_create_segment()`, and the trigger that tells every backend of changed tags and rights.

use super::cache::TAG_BYTES_MAX;
use super::{leaf, own};
use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::{Error, clip};
use crate::owner::{AsOwner, Tables};
use idgen_core::segment::HARD_STEP_MAX;
use pgrx::pg_sys;
use pgrx::prelude::*;

v1_function!(idgen_create_segment, create_segment);
v1_function!(idgen_grant_segment, grant_segment);
v1_function!(idgen_segment_changed, segment_changed);

const INSERT: &str = "
    INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step, mark)
    VALUES ($1, (SELECT rolname FROM pg_roles WHERE oid = $2), $3, $4, $5, $6, $7, (SELECT mark FROM idgen.authority))
    ON CONFLICT (tag) DO NOTHING
    RETURNING segment_id";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, 'segment.create', $1, 1,
           jsonb_build_object('segment_id', $2, 'start_id', $3, 'limit_id', $4, 'session_user', session_user)
      FROM idgen.space p";

const OWNED: &str = "
    SELECT s.owner::text,
           (SELECT u.rolsuper FROM pg_roles u WHERE u.oid = $2)
        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = s.owner AND pg_has_role($2, r.oid, 'USAGE'))
      FROM idgen.segment s WHERE s.tag = $1 AND s.dropped_at IS NULL";

const LEND: &str = "
    INSERT INTO idgen.segment_grant (tag, grantee, granted_by)
    SELECT $1, $3, (SELECT rolname FROM pg_roles WHERE oid = $2)
        ON CONFLICT DO NOTHING";

const ROLE: &str = "SELECT $1 = 'public' OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1)";

/// Arguments of `idgen_create_segment`, checked.
struct NewTag {
    tag: String,
    start_id: i64,
    limit_id: i64,
    step: i32,
    max_step: i32,
}

fn wrong(message: impl Into<String>, hint: &'static str) -> Error {
    Error::InvalidParameter {
        message: message.into(),
        hint,
    }
}

fn check_step(name: &str, value: i32) -> Result<i32, Error> {
    if (1..=HARD_STEP_MAX as i32).contains(&value) {
        return Ok(value);
    }
    Err(wrong(
        format!("{name} must be between 1 and {HARD_STEP_MAX}, not {value}"),
        "A step is how many ids one database write grants.",
    ))
}

impl NewTag {
    fn from_args(call: Call) -> Result<Self, Error> {
        let null = |name| move || Error::NullArgument { name };
        let tag = call.text(0)?.ok_or_else(null("tag"))?;
        if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
            return Err(wrong(
                format!("a segment tag has 1 to {TAG_BYTES_MAX} bytes, not {}", tag.len()),
                "",
            ));
        }
        let start_id = call.bigint(1).ok_or_else(null("start_id"))?;
        let step = check_step("step", call.integer(2).ok_or_else(null("step"))?)?;
        let max_step = check_step("max_step", call.integer(3).ok_or_else(null("max_step"))?)?;
        let limit_id = call.bigint(4).ok_or_else(null("limit_id"))?;
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
        })
    }
}

fn create_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let new = NewTag::from_args(call)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    let user = current_user();
    leaf::ensure(&new.tag, tables)?;
    let _as_owner = AsOwner::begin(tables.owner);
    let made = Spi::connect_mut(|client| insert(client, &new, user))?;
    if made {
        Ok(pg_sys::Datum::null())
    } else {
        Err(Error::TagExists { tag: new.tag })
    }
}

/// `false`: the tag is there already.
fn insert(
    client: &mut pgrx::spi::SpiClient<'_>,
    new: &NewTag,
    user: pg_sys::Oid,
) -> Result<bool, pgrx::spi::Error> {
    let rows = client.update(
        INSERT,
        None,
        &[
            new.tag.as_str().into(),
            user.into(),
            new.start_id.into(),
            (new.start_id - 1).into(),
            new.limit_id.into(),
            new.step.into(),
            new.max_step.into(),
        ],
    )?;
    if rows.is_empty() {
        return Ok(false);
    }
    let segment_id = rows.first().get::<pgrx::Uuid>(1)?;
    if let Some(segment_id) = segment_id {
        own::note_made(*segment_id.as_bytes());
    }
    client.update(
        RECORD,
        None,
        &[
            new.tag.as_str().into(),
            segment_id.into(),
            new.start_id.into(),
            new.limit_id.into(),
        ],
    )?;
    Ok(true)
}

fn grant_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let tag = call.text(0)?.ok_or(Error::NullArgument { name: "tag" })?;
    let grantee = call.text(1)?.ok_or(Error::NullArgument { name: "grantee" })?;
    let unknown = || Error::UnknownTag { tag: clip(tag) };
    let tables = Tables::of_this_database().ok_or_else(unknown)?;
    // The role whose rights count, taken before this becomes the owner of the tables.
    let user = current_user();
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| {
        check_owner(client, tag, user)?;
        if client
            .select(ROLE, Some(1), &[grantee.into()])?
            .first()
            .get::<bool>(1)?
            != Some(true)
        {
            return Err(Error::UnknownRole { role: clip(grantee) });
        }
        client.update(LEND, None, &[tag.into(), user.into(), grantee.into()])?;
        Ok(pg_sys::Datum::null())
    })
}

/// The role owns the tag, or is a member of its owner, or a superuser.
///
/// # Errors
/// Unknown tag, not its owner.
pub fn check_owner(client: &pgrx::spi::SpiClient<'_>, tag: &str, user: pg_sys::Oid) -> Result<(), Error> {
    let owned = client.select(OWNED, Some(1), &[tag.into(), user.into()])?.first();
    if owned.is_empty() {
        return Err(Error::UnknownTag { tag: clip(tag) });
    }
    if owned.get::<bool>(2)? == Some(true) {
        return Ok(());
    }
    Err(Error::NotOwnerOfTag {
        tag: tag.into(),
        owner: owned.get::<String>(1)?.unwrap_or_default(),
    })
}

/// Trigger of the tables that [`super::cache`] depends on.
fn segment_changed(call: Call) -> Result<pg_sys::Datum, Error> {
    call.invalidate_trigger_relation("idgen.segment_changed")
}
