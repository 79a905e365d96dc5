//! What a life of shared memory has left open: recorded with the first grant of a tag in the next one.
//!
//! Ids are drawn from memory without a word to the disk, so nobody can say how far the last ranges were used when the
//! server stopped. What can be said is which ranges these were, and that nothing of them is drawn any more: an event
//! `segment.open` for each.

use super::grant::{Issuer, Lost, Refused, Wish, boot_id};
use idgen_core::segment::{HARD_STEP_MAX, Stripes};
use pgrx::spi::SpiClient;

/// Memory holds two ranges of a tag at the most, so the last two that workers have granted; not those that are
/// recorded already, of a life before the last, nor those of a dropped tag of the same name, whose end is its event.
/// A range has an event for each of its runs ($7: how many there can be), which share `grant_seq`.
const RECORD: &str = "
    WITH open AS (
        SELECT g.tag_seq, g.lo, g.hi, g.boot_id, row_number() OVER (ORDER BY g.tag_seq DESC) AS nth
          FROM (SELECT l.*, dense_rank() OVER (ORDER BY l.grant_seq DESC) AS range
                  FROM (SELECT e.tag_seq, e.lo, e.hi, coalesce((e.payload->>'grant_seq')::bigint, e.tag_seq) AS grant_seq,
                               e.payload->>'boot_id' AS boot_id
                          FROM idgen.audit_event e
                         WHERE e.space_id = $2 AND e.tag = $3
                           AND e.kind = 'segment.grant' AND e.payload->>'issuer' = 'refill worker'
                           AND e.payload->>'segment_id' = $1::text
                         ORDER BY e.tag_seq DESC LIMIT 2 * $7) l) g
         WHERE g.range <= 2 AND NOT EXISTS (SELECT FROM idgen.audit_event o
                            WHERE o.space_id = $2 AND o.tag = $3 AND o.tag_seq > g.tag_seq
                              AND o.kind = 'segment.open' AND o.lo = g.lo)),
    counted AS (
        UPDATE idgen.segment s SET tag_seq = s.tag_seq + n.n
          FROM (SELECT count(*) AS n FROM open) n
         WHERE s.segment_id = $1 AND n.n > 0
        RETURNING s.tag_seq)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, lo, hi, token_epoch, token_revision, payload)
    SELECT p.source_id, p.space_id, 'segment.open', $3, c.tag_seq + 1 - o.nth, o.lo, o.hi, $4, $5,
           jsonb_build_object('pid', pg_backend_pid(), 'segment_id', $1, 'grant_seq', o.tag_seq,
                              'cause', CASE WHEN o.boot_id = $6::text THEN 'eviction' ELSE 'restart' END)
      FROM open o CROSS JOIN counted c CROSS JOIN idgen.space p
     ORDER BY o.nth DESC
    RETURNING hi - lo + 1, payload->>'cause' = 'eviction'";

/// Runs of one range.
fn runs_max(stripes: Stripes) -> i64 {
    if stripes.is_single() {
        return 1;
    }
    // Neither end is that of a stripe.
    (u64::from(HARD_STEP_MAX) / stripes.size() + 2).cast_signed()
}

/// In the transaction of a grant, under the lock of the row, before the grant itself. Does nothing when this memory
/// has ranges of the tag. How many ids they have, of which some were drawn.
///
/// # Errors
/// [`Refused::Query`].
pub fn record(client: &mut SpiClient<'_>, wish: &Wish, tag: &str) -> Result<Lost, Refused> {
    if wish.above > 0 || !matches!(wish.issuer, Issuer::RefillWorker) {
        return Ok(Lost::default());
    }
    let [epoch, revision] = wish.token_columns();
    let [segment_id, space_id] = [wish.segment_id, wish.space_id].map(pgrx::Uuid::from_bytes);
    let arguments = [
        segment_id.into(),
        space_id.into(),
        tag.into(),
        epoch.into(),
        revision.into(),
        boot_id().into(),
        runs_max(wish.stripes).into(),
    ];
    let mut lost = Lost::default();
    for range in client.update(RECORD, None, &arguments)? {
        let ids = range.get::<i64>(1)?.unwrap_or(0).unsigned_abs();
        match range.get::<bool>(2)? {
            Some(true) => lost.by_eviction += ids,
            _ => lost.by_restart += ids,
        }
    }
    Ok(lost)
}
