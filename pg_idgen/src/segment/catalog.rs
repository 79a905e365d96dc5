//! Looking a tag up: does it exist, may this role use it, who made it.

use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use pgrx::{pg_sys, spi::Spi};

/// A tag that the role may draw from.
pub struct Found {
    pub tag: String,
    pub database: pg_sys::Oid,
    pub segment_id: [u8; 16],
    /// The row is this transaction's own: no worker can see it yet.
    pub made_by_this_transaction: bool,
    /// The relations whose change makes this answer void.
    pub tables: [pg_sys::Oid; 2],
    pub owner: pg_sys::Oid,
}

/// One row: uuid, row's transaction, right of role $2. Runs with a pinned search path.
const FIND: &str = "
    SELECT s.segment_id, s.xmin::text::bigint,
           (SELECT u.rolsuper FROM pg_roles u WHERE u.oid = $2)
        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = s.owner AND pg_has_role($2, r.oid, 'USAGE'))
        OR EXISTS (SELECT FROM idgen.segment_grant g LEFT JOIN pg_roles r ON r.rolname = g.grantee
                    WHERE g.tag = s.tag AND (g.grantee = 'public' OR pg_has_role($2, r.oid, 'USAGE')))
      FROM idgen.segment s
     WHERE s.tag = $1 AND s.dropped_at IS NULL";

/// # Errors
/// Unknown tag, no right on it.
pub fn find(tag: &str, user: pg_sys::Oid) -> Result<Found, Error> {
    let tables = Tables::of_this_database().ok_or_else(|| Error::UnknownTag { tag: tag.into() })?;
    let row = {
        let _as_owner = AsOwner::begin(tables.owner);
        Spi::connect(|client| {
            let rows = client.select(FIND, Some(1), &[tag.into(), user.into()])?.first();
            if rows.is_empty() {
                return Ok::<_, Error>(None);
            }
            Ok(Some((
                rows.get::<pgrx::Uuid>(1)?,
                rows.get::<i64>(2)?,
                rows.get::<bool>(3)?,
            )))
        })?
    };
    let Some((Some(segment_id), Some(xmin), right)) = row else {
        return Err(Error::UnknownTag { tag: tag.into() });
    };
    if right != Some(true) {
        return Err(Error::NoRightOnTag { tag: tag.into() });
    }
    Ok(Found {
        tag: tag.into(),
        // SAFETY: a plain variable of this process.
        database: unsafe { pg_sys::MyDatabaseId },
        segment_id: *segment_id.as_bytes(),
        made_by_this_transaction: is_own(xmin),
        tables: [tables.segment, tables.segment_grant],
        owner: tables.owner,
    })
}

fn is_own(xmin: i64) -> bool {
    let Ok(xmin) = u32::try_from(xmin) else {
        return false;
    };
    // SAFETY: any transaction id may be asked about.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::TransactionId::from(xmin)) }
}
