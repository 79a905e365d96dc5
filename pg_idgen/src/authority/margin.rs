//! `idgen.set_safety_burn()`: how much a tag passes over, said by its owner.

use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::{Error, clip};
use crate::owner::{AsOwner, Tables};
use crate::segment::{leaf, manage};
use pgrx::pg_sys;
use pgrx::spi::Spi;

v1_function!(idgen_set_safety_burn, set_safety_burn);

const SET: &str = "
    WITH changed AS (
        UPDATE idgen.segment s SET safety_burn = $2, version = s.version + 1, tag_seq = s.tag_seq + 1
         WHERE s.tag = $1 AND s.dropped_at IS NULL
        RETURNING s.tag, s.tag_seq, s.segment_id)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, 'segment.alter', c.tag, c.tag_seq,
           jsonb_build_object('segment_id', c.segment_id, 'safety_burn', $2, 'session_user', session_user)
      FROM changed c CROSS JOIN idgen.space p";

fn set_safety_burn(call: Call) -> Result<pg_sys::Datum, Error> {
    let tag = call.text(0)?.ok_or(Error::NullArgument { name: "tag" })?;
    let ids = call.bigint(1);
    if ids.is_some_and(|ids| ids < 0) {
        return Err(Error::InvalidParameter {
            message: "ids must not be negative".into(),
            hint: "",
        });
    }
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let tables = Tables::of_this_database().ok_or_else(|| Error::UnknownTag { tag: clip(tag) })?;
    // The role whose rights count, taken before this becomes the owner of the tables.
    let user = current_user();
    leaf::ensure(tag, tables)?;
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| {
        manage::check_owner(client, tag, user)?;
        client.update(SET, None, &[tag.into(), ids.into()])?;
        Ok(pg_sys::Datum::null())
    })
}
