//! Bulk requests that have a key: whoever repeats one gets the ids that it has got already.
//!
//! Read and written under the lock of the tag's row, in the transaction of the grant: a request is answered and
//! remembered, or neither.

use super::catalog::read_stripes;
use super::grant::{Bulk, Refused};
use idgen_core::segment::{Places, Range};
use pgrx::spi::{Result, SpiClient};

/// Bytes of the longest key; a CHECK of the table says the same.
pub const KEY_BYTES_MAX: usize = 200;

/// How long an answer is kept; `$1` of the statements. Long enough for a job that is repeated after a weekend.
const RETENTION: &str = "7 days";

/// Rows that one round of cleaning takes.
const FORGET_MAX: i64 = 1_000;

const FIND: &str = "
    SELECT r.first_id, r.n, r.stripe, r.stripes, r.stripe_size FROM idgen.segment_request r
     WHERE r.tag = $2 AND r.request_key = $3 AND r.requested_at > clock_timestamp() - $1::interval";

/// A row of the same key is one that is no longer kept.
const REMEMBER: &str = "
    INSERT INTO idgen.segment_request (tag, request_key, n, first_id, requested_by, stripe, stripes, stripe_size)
    VALUES ($1, $2, $3, $4, coalesce((SELECT u.rolname FROM pg_roles u WHERE u.oid = $5), ''),
            $6, $7, CASE WHEN $7 > 1 THEN $8 END)
        ON CONFLICT (tag, request_key) DO UPDATE
       SET n = excluded.n, first_id = excluded.first_id, requested_by = excluded.requested_by,
           requested_at = excluded.requested_at, stripe = excluded.stripe, stripes = excluded.stripes,
           stripe_size = excluded.stripe_size";

const OLD: &str = "
    SELECT EXISTS (SELECT FROM idgen.segment_request r WHERE r.requested_at <= clock_timestamp() - $1::interval)";

const FORGET: &str = "
    DELETE FROM idgen.segment_request r
     WHERE (r.tag, r.request_key) IN (
       SELECT o.tag, o.request_key FROM idgen.segment_request o
        WHERE o.requested_at <= clock_timestamp() - $1::interval
        ORDER BY o.requested_at LIMIT $2)";

/// What the request has been answered with before.
pub fn answered(
    client: &mut SpiClient<'_>,
    tag: &str,
    bulk: &Bulk<'_>,
) -> std::result::Result<Option<Places>, Refused> {
    let Some(key) = bulk.request_key else {
        return Ok(None);
    };
    let row = client
        .update(FIND, Some(1), &[RETENTION.into(), tag.into(), key.into()])?
        .first();
    if row.is_empty() {
        return Ok(None);
    }
    let first = row.get::<i64>(1)?.ok_or(Refused::Gone)?;
    let n = row.get::<i64>(2)?.ok_or(Refused::Gone)?.unsigned_abs();
    if n != bulk.n {
        return Err(Refused::KeyTaken { n });
    }
    // In the stripes that the database had then.
    let stripes = read_stripes(&row, 3).ok_or(Refused::Gone)?;
    let first = stripes.places_to(first);
    Ok(Some(Places {
        range: Range { first, count: n },
        stripes,
    }))
}

pub fn remember(client: &mut SpiClient<'_>, tag: &str, bulk: &Bulk<'_>, ids: Places) -> Result<()> {
    let Some(key) = bulk.request_key else {
        return Ok(());
    };
    let Places { range, stripes } = ids;
    let args = [
        tag.into(),
        key.into(),
        range.count.cast_signed().into(),
        ids.first_id().into(),
        bulk.role.into(),
        (stripes.index() as i32).into(),
        (stripes.count() as i32).into(),
        stripes.size().cast_signed().into(),
    ];
    client.update(REMEMBER, None, &args).map(|_| ())
}

/// Worker's side: forget what is no longer kept, some of it at a time.
pub fn forget_old(client: &mut SpiClient<'_>) -> Result<()> {
    // Asked first, so that a transaction that changes nothing writes nothing.
    let old = client.select(OLD, Some(1), &[RETENTION.into()])?.first();
    if old.get::<bool>(1)? == Some(true) {
        client.update(FORGET, None, &[RETENTION.into(), FORGET_MAX.into()])?;
    }
    Ok(())
}
