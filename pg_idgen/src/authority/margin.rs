//! `idgen.set_safety_burn()`: how much a tag passes over, said by its owner.

use crate::call::{Call, v1_function};
use crate::error::Error;
use crate::owner::AsOwner;
use crate::segment::manage;
use pgrx::pg_sys;
use pgrx::spi::Spi;

v1_function!(idgen_set_safety_burn, set_safety_burn);

const SET: &str = "
    WITH changed AS (
        UPDATE idgen.segment s SET safety_burn = $2, version = s.version + 1, tag_seq = s.tag_seq + 1
         WHERE s.segment_id = $1 AND s.dropped_at IS NULL
        RETURNING s.tag, s.tag_seq, s.segment_id)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT $3, $4, 'segment.alter', c.tag, c.tag_seq,
           jsonb_build_object('segment_id', c.segment_id, 'safety_burn', $2, 'session_user', session_user)
      FROM changed c";

fn set_safety_burn(call: Call) -> Result<pg_sys::Datum, Error> {
    let ids = call.bigint(1);
    if ids.is_some_and(|ids| ids < 0) {
        return Err(Error::InvalidParameter {
            message: "ids must not be negative".into(),
            hint: "",
        });
    }
    let found = manage::tag_to_change(call)?;
    {
        let _as_owner = AsOwner::begin(found.tables.owner);
        let [segment_id, source_id, space_id] = [
            found.segment_id,
            found.identity.source_id,
            found.identity.space_id,
        ]
        .map(pgrx::Uuid::from_bytes);
        let args = [segment_id.into(), ids.into(), source_id.into(), space_id.into()];
        Spi::connect_mut(|client| client.update(SET, None, &args).map(|_| ()))?;
    }
    manage::note_change(&found, false);
    Ok(pg_sys::Datum::null())
}
