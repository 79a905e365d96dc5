//! Looking a tag up: does it exist, may this role use it, who made it.

use crate::call::current_database;
use crate::error::Error;
use crate::owner::{AsOfNow, AsOwner, Tables};
use crate::shmem::SegmentKey;
use pgrx::{pg_sys, spi::Spi};

/// A tag that the role may draw from.
pub struct Found {
    pub tag: String,
    pub segment_id: [u8; 16],
    pub space_id: [u8; 16],
    pub tables: Tables,
}

impl Found {
    /// Its place in shared memory.
    pub fn key(&self) -> SegmentKey {
        SegmentKey {
            database: current_database(),
            segment_id: self.segment_id,
            space_id: self.space_id,
        }
    }
}

/// One row: tag's uuid, space's uuid, right of role $2. Runs with a pinned search path.
const FIND: &str = "
    SELECT s.segment_id, (SELECT p.space_id FROM idgen.space p),
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
        // In a clone a worker renews the space when the first look-up has asked for a range.
        let _as_of_now = AsOfNow::begin();
        Spi::connect(|client| {
            let rows = client.select(FIND, Some(1), &[tag.into(), user.into()])?.first();
            if rows.is_empty() {
                return Ok::<_, Error>(None);
            }
            Ok(Some((
                rows.get::<pgrx::Uuid>(1)?,
                rows.get::<pgrx::Uuid>(2)?,
                rows.get::<bool>(3)?,
            )))
        })?
    };
    let Some((Some(segment_id), Some(space_id), right)) = row else {
        return Err(Error::UnknownTag { tag: tag.into() });
    };
    if right != Some(true) {
        return Err(Error::NoRightOnTag { tag: tag.into() });
    }
    Ok(Found {
        tag: tag.into(),
        segment_id: *segment_id.as_bytes(),
        space_id: *space_id.as_bytes(),
        tables,
    })
}
