//! `idgen_drop_segment()`: nobody draws from the tag any more; its row stays, so that its ids never come back.

use super::{lock, note_change, tag_seq, tag_to_change};
use crate::call::{Call, v1_function};
use crate::error::Error;
use crate::owner::AsOwner;
use crate::segment::catalog::Found;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

v1_function!(idgen_drop_segment, drop_segment);

const UPDATE: &str = "
    UPDATE idgen.segment s
       SET dropped_at = clock_timestamp(), max_id = least($2, s.limit_id), tag_seq = s.tag_seq + 1, version = s.version + 1
     WHERE s.segment_id = $1
    RETURNING s.tag_seq";

const END_RIGHTS: &str = "DELETE FROM idgen.segment_grant g WHERE g.tag = $1";
const END_REQUESTS: &str = "DELETE FROM idgen.segment_request r WHERE r.tag = $1";

const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, payload)
    VALUES ($1, $2, 'segment.drop', $3, $4, CASE WHEN NOT $10 THEN $5 END, CASE WHEN NOT $10 THEN $6 END,
            jsonb_build_object('segment_id', $7, 'max_id', $8, 'owner', $9, 'session_user', session_user)
         || CASE WHEN $10 AND $5 IS NOT NULL THEN jsonb_build_object('own_from', $5, 'own_to', $6) ELSE '{}' END)";

fn drop_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    end_tag(&tag_to_change(call)?)?;
    Ok(pg_sys::Datum::null())
}

/// Ends a tag that the caller may change.
///
/// # Errors
/// It has gone meanwhile.
pub fn end_tag(found: &Found) -> Result<(), Error> {
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| end(client, found))?;
    note_change(found, true);
    Ok(())
}

fn end(client: &mut SpiClient<'_>, found: &Found) -> Result<(), Error> {
    let row = lock(client, found)?;
    // Nothing in general; where the row was set back, what memory knew better is burned here.
    let burned = (row.floor > row.max_id).then(|| (row.max_id + 1, row.floor));
    let id = pgrx::Uuid::from_bytes(found.segment_id);
    let tag = found.tag.as_str();
    let ended = client
        .update(UPDATE, None, &[id.into(), row.floor.into()])?
        .first();
    for statement in [END_RIGHTS, END_REQUESTS] {
        client.update(statement, None, &[tag.into()])?;
    }
    client.update(
        RECORD,
        None,
        &[
            pgrx::Uuid::from_bytes(found.identity.source_id).into(),
            pgrx::Uuid::from_bytes(found.identity.space_id).into(),
            tag.into(),
            tag_seq(&ended)?.into(),
            burned.map(|(lo, _)| lo).into(),
            burned.map(|(_, hi)| hi).into(),
            id.into(),
            row.floor.into(),
            found.owner.as_str().into(),
            (!found.identity.stripes.is_single()).into(),
        ],
    )?;
    Ok(())
}
