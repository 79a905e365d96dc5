//! `idgen_seek_segment()`: the next id of a tag, moved up.

use super::{lock, note_change, null, tag_seq, tag_to_change};
use crate::call::{Call, v1_function};
use crate::clock;
use crate::error::Error;
use crate::owner::AsOwner;
use crate::segment::catalog::Found;
use idgen_core::segment::{SeekRefused, seek};
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

v1_function!(idgen_seek_segment, seek_segment);

/// What is skipped was not used: the rate is measured from here on.
const UPDATE: &str = "
    UPDATE idgen.segment s
       SET max_id = $2, tag_seq = s.tag_seq + 1, version = s.version + 1, rate_since_ms = $3, rate_since_id = $2
     WHERE s.segment_id = $1
    RETURNING s.tag_seq";

/// lo and hi are what is skipped: it was and will be granted to nobody. Of several masters ($10) others have ids between
/// them, so the payload has what they would say.
const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, payload)
    VALUES ($1, $2, 'segment.seek', $3, $4, CASE WHEN NOT $10 THEN $5 END, CASE WHEN NOT $10 THEN $6 END,
            jsonb_build_object('segment_id', $7, 'next_id', $8, 'force', $9, 'session_user', session_user)
         || CASE WHEN $10 AND $5 IS NOT NULL THEN jsonb_build_object('own_from', $5, 'own_to', $6) ELSE '{}' END)";

fn seek_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let next_id = call.bigint(1).ok_or_else(|| null("next_id"))?;
    let force = call.boolean(2).ok_or_else(|| null("force"))?;
    let found = tag_to_change(call)?;
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| move_up(client, &found, next_id, force))?;
    note_change(&found, true);
    Ok(pg_sys::Datum::null())
}

fn move_up(client: &mut SpiClient<'_>, found: &Found, next_id: i64, force: bool) -> Result<(), Error> {
    let row = lock(client, found)?;
    seek(row.floor, row.limit_id, next_id, force).map_err(|refused| explain(&found.tag, next_id, refused))?;
    // Above the row itself: what memory knew better is skipped as well. `next_id` is above both.
    let last = next_id - 1;
    let skipped = (last > row.max_id).then(|| (row.max_id + 1, last));
    let id = pgrx::Uuid::from_bytes(found.segment_id);
    let now_ms = clock::wall().0.cast_signed();
    let moved = client
        .update(UPDATE, None, &[id.into(), last.into(), now_ms.into()])?
        .first();
    client.update(
        RECORD,
        None,
        &[
            pgrx::Uuid::from_bytes(found.identity.source_id).into(),
            pgrx::Uuid::from_bytes(found.identity.space_id).into(),
            found.tag.as_str().into(),
            tag_seq(&moved)?.into(),
            skipped.map(|(lo, _)| lo).into(),
            skipped.map(|(_, hi)| hi).into(),
            id.into(),
            next_id.into(),
            force.into(),
            (!found.identity.stripes.is_single()).into(),
        ],
    )?;
    Ok(())
}

fn explain(tag: &str, next_id: i64, refused: SeekRefused) -> Error {
    let (detail, hint) = match refused {
        SeekRefused::Granted { max_id } => (
            format!("Ids up to {max_id} are granted already and may be in use."),
            "A tag only goes up. If it was to be above the ids of a table, it is already.",
        ),
        SeekRefused::AboveLimit { limit_id } => (
            format!("Its limit_id is {limit_id}."),
            "Raise the limit first: idgen_alter_segment('tag', limit_id => ...).",
        ),
        SeekRefused::Far { skipped, left } => (
            format!("That would skip {skipped} of the {left} ids that are left."),
            "If it is meant, say so: idgen_seek_segment('tag', id, force => true). It cannot be taken back.",
        ),
    };
    Error::NumberLine {
        message: format!("segment tag \"{tag}\" cannot go on at {next_id}"),
        detail,
        hint,
    }
}
