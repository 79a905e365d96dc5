//! `idgen_alter_segment()`: step, limit, fetch limit and owner of a tag.

use super::{Row, check_fetch_limit, check_step, lock, note_change, tag_seq, tag_to_change, wrong};
use crate::call::{Call, current_user, v1_function};
use crate::error::{Error, clip};
use crate::owner::AsOwner;
use crate::segment::catalog::Found;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

v1_function!(idgen_alter_segment, alter_segment);

/// What adapts begins anew where somebody has said how large ranges shall be.
const UPDATE: &str = "
    UPDATE idgen.segment s
       SET step = $2, max_step = $3, limit_id = $4, fetch_limit = $5,
           step_hint = CASE WHEN (s.step, s.max_step) = ($2, $3) THEN s.step_hint END,
           tag_seq = s.tag_seq + 1, version = s.version + 1
     WHERE s.segment_id = $1
    RETURNING s.tag_seq";

const SET_OWNER: &str = "
    UPDATE idgen.segment s SET owner = r.rolname, owner_oid = r.oid, role_space = $3
      FROM pg_roles r WHERE s.segment_id = $1 AND r.oid = $2";

/// Role $1, and whether $2 may hand something to it: as Postgres has it for tables.
const NEW_OWNER: &str = "
    SELECT r.oid, (SELECT u.rolsuper FROM pg_roles u WHERE u.oid = $2) OR pg_has_role($2, r.oid, 'MEMBER')
      FROM pg_roles r WHERE r.rolname = $1";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT $1, $2, 'segment.alter', s.tag, $4,
           jsonb_build_object('segment_id', s.segment_id, 'version', s.version, 'session_user', session_user,
             'before', jsonb_build_object('step', $5, 'max_step', $6, 'limit_id', $7, 'fetch_limit', $8, 'owner', $9),
             'after', jsonb_build_object('step', s.step, 'max_step', s.max_step, 'limit_id', s.limit_id,
                                         'fetch_limit', s.fetch_limit, 'owner', s.owner))
      FROM idgen.segment s WHERE s.segment_id = $3";

/// What is to be changed; `None`: leave it.
struct Changes<'a> {
    step: Option<i32>,
    max_step: Option<i32>,
    limit_id: Option<i64>,
    /// 0: no limit.
    fetch_limit: Option<i32>,
    owner: Option<&'a str>,
}

impl Changes<'_> {
    fn from_args(call: Call) -> Result<Self, Error> {
        let step = |name, index| {
            call.integer(index)
                .map(|value| check_step(name, value))
                .transpose()
        };
        let changes = Self {
            step: step("step", 1)?,
            max_step: step("max_step", 2)?,
            limit_id: call.bigint(3),
            fetch_limit: call.integer(4),
            owner: call.text(5)?,
        };
        changes.fetch_limit.map(check_fetch_limit).transpose()?;
        let Self {
            step: None,
            max_step: None,
            limit_id: None,
            fetch_limit: None,
            owner: None,
        } = changes
        else {
            return Ok(changes);
        };
        Err(wrong(
            "no change is asked for",
            "Name what is to be changed, as in idgen_alter_segment('tag', max_step => 50000).",
        ))
    }

    /// The row as it shall be.
    fn applied_to(&self, row: &Row, tag: &str) -> Result<Row, Error> {
        let after = Row {
            step: self.step.unwrap_or(row.step),
            max_step: self.max_step.unwrap_or(row.max_step),
            limit_id: self.limit_id.unwrap_or(row.limit_id),
            fetch_limit: match self.fetch_limit {
                None => row.fetch_limit,
                Some(limit) => Some(limit).filter(|limit| *limit > 0),
            },
            ..*row
        };
        if after.max_step < after.step {
            return Err(wrong(
                format!("max_step {} is below step {}", after.max_step, after.step),
                "Give both of them.",
            ));
        }
        if after.limit_id < row.start_id {
            return Err(wrong(
                format!("limit_id {} is below start_id {}", after.limit_id, row.start_id),
                "",
            ));
        }
        if self.limit_id.is_some_and(|limit_id| limit_id < row.floor) {
            return Err(Error::NumberLine {
                message: format!(
                    "limit_id {} is below what segment tag \"{tag}\" has granted",
                    after.limit_id
                ),
                detail: format!("Ids up to {} are granted already and may be in use.", row.floor),
                hint: "The lowest limit is the highest id that was granted (max_id in idgen.segments); nothing is granted after it then.",
            });
        }
        Ok(after)
    }
}

fn alter_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let changes = Changes::from_args(call)?;
    let user = current_user();
    let found = tag_to_change(call)?;
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| {
        let owner = changes
            .owner
            .map(|owner| new_owner(client, owner, user))
            .transpose()?;
        alter(client, &found, &changes, owner)
    })?;
    // What is in memory was granted under the old definition and stays within the new one: it is used up.
    note_change(&found, false);
    Ok(pg_sys::Datum::null())
}

fn alter(
    client: &mut SpiClient<'_>,
    found: &Found,
    changes: &Changes<'_>,
    owner: Option<pg_sys::Oid>,
) -> Result<(), Error> {
    let row = lock(client, found)?;
    let after = changes.applied_to(&row, &found.tag)?;
    let id = pgrx::Uuid::from_bytes(found.segment_id);
    let space_id = pgrx::Uuid::from_bytes(found.identity.space_id);
    let args = [
        id.into(),
        after.step.into(),
        after.max_step.into(),
        after.limit_id.into(),
        after.fetch_limit.into(),
    ];
    let tag_seq = tag_seq(&client.update(UPDATE, None, &args)?.first())?;
    if let Some(owner) = owner {
        client.update(SET_OWNER, None, &[id.into(), owner.into(), space_id.into()])?;
    }
    client.update(
        RECORD,
        None,
        &[
            pgrx::Uuid::from_bytes(found.identity.source_id).into(),
            space_id.into(),
            id.into(),
            tag_seq.into(),
            row.step.into(),
            row.max_step.into(),
            row.limit_id.into(),
            row.fetch_limit.into(),
            found.owner.as_str().into(),
        ],
    )?;
    Ok(())
}

fn new_owner(client: &mut SpiClient<'_>, name: &str, user: pg_sys::Oid) -> Result<pg_sys::Oid, Error> {
    let unknown = || Error::UnknownRole { role: clip(name) };
    let role = client
        .select(NEW_OWNER, Some(1), &[name.into(), user.into()])?
        .first();
    if role.is_empty() {
        return Err(unknown());
    }
    if role.get::<bool>(2)? != Some(true) {
        return Err(Error::NotMemberOfRole { role: clip(name) });
    }
    role.get::<pg_sys::Oid>(1)?.ok_or_else(unknown)
}
