//! `idgen.leave_space()`: this database is a space of its own again.

use super::{Space, refused};
use crate::error::Error;
use idgen_core::segment::Stripes;
use pgrx::spi::SpiClient;

/// Dropped ones too.
const TAGS: &str = "SELECT s.segment_id, s.stripe_count <> 1 FROM idgen.segment s";

/// $1, $2: the space before, and now.
const RELEASE: &str = "
    WITH released AS (
        UPDATE idgen.segment s
           SET stripe_count = 1, stripe_size = NULL,
               role_space = CASE WHEN s.role_space = $1 THEN $2 ELSE s.role_space END,
               tag_seq = s.tag_seq + 1, version = s.version + 1, rate_since_ms = 0, rate_since_id = 0
        RETURNING s.tag, s.tag_seq, s.segment_id, s.max_id)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, 'segment.leave', r.tag, r.tag_seq,
           jsonb_build_object('segment_id', r.segment_id, 'max_id', r.max_id)
      FROM released r, idgen.space p ORDER BY r.tag";

pub fn leave(client: &mut SpiClient<'_>, space: &Space, reason: &str) -> Result<(), Error> {
    let mut has_cut = false;
    let mut segments = Vec::new();
    for row in client.update(TAGS, None, &[])? {
        has_cut |= row.get::<bool>(2)? == Some(true);
        segments.extend(row.get::<pgrx::Uuid>(1)?.map(|id| *id.as_bytes()));
    }
    if space.identity.stripes.is_single() && !has_cut {
        return Err(refused(
            "this database shares its space with no other master",
            "It is a space of its own, and none of its tags is cut in stripes.",
            "",
        ));
    }
    for segment_id in segments {
        space.discard(segment_id);
    }
    let before = pgrx::Uuid::from_bytes(space.identity.space_id);
    let now = space.move_to(client, None, Stripes::SINGLE, 0)?;
    client.update(RELEASE, None, &[before.into(), now.into()])?;
    space.record(client, "space.leave", Some(reason))
}
