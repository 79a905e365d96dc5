//! Looking a tag up: does it exist, whose is it, may this role use it.
//!
//! Roles are written down by oid, so that rights outlive ALTER ROLE ... RENAME and are not inherited by a new role of
//! an old name, and by name, because oids do not outlive a dump. The oid counts in the space that it was written in
//! (a restored database is another space), the name everywhere else; `roles.rs` keeps the names up to date.

use crate::as_of_now::{self, Columns};
use crate::call::current_database;
use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use crate::shmem::SegmentKey;
use idgen_core::segment::Stripes;
use pgrx::{Spi, pg_sys};

/// This database as a source of events.
#[derive(Clone, Copy)]
pub struct Identity {
    pub source_id: [u8; 16],
    pub space_id: [u8; 16],
    /// Which ids of that space it grants.
    pub stripes: Stripes,
}

/// Columns stripe, stripes and stripe_size of idgen.space, from `first` on. `None`: somebody has written what cannot be.
pub fn read_stripes(row: &impl Columns, first: i32) -> Option<Stripes> {
    let count = row.column::<i32>(first + 1)?;
    if count == 1 {
        return Some(Stripes::SINGLE);
    }
    let [index, count] = [row.column::<i32>(first)?, count].map(|value| u32::try_from(value).unwrap_or(0));
    let size = u64::try_from(row.column::<i64>(first + 2)?).ok()?;
    Stripes::new(index, count, size).ok()
}

impl Identity {
    /// The place of a tag in shared memory.
    pub fn key_of(&self, segment_id: [u8; 16]) -> SegmentKey {
        SegmentKey {
            database: current_database(),
            segment_id,
            space_id: self.space_id,
            stripes: self.stripes,
        }
    }
}

/// A tag that exists.
pub struct Found {
    pub tag: String,
    pub segment_id: [u8; 16],
    pub identity: Identity,
    pub tables: Tables,
    /// Name of its owner; as it was written down, if there is no such role any more.
    pub owner: String,
    /// The role that asked is the owner, a member of it, or a superuser.
    is_owned: bool,
    /// ... or has a grant.
    may_draw: bool,
}

impl Found {
    /// Its place in shared memory.
    pub fn key(&self) -> SegmentKey {
        self.identity.key_of(self.segment_id)
    }
}

const IDENTITY: &str =
    "SELECT p.source_id, p.space_id, p.stripe, p.stripes, p.stripe_size FROM idgen.space p";
const ABOVE: &str = "SELECT p.above FROM idgen.space p";

/// One row for tag $1 and role $2. A role that is gone has no members.
const FIND: &str = "
    SELECT s.segment_id, p.source_id, p.space_id, coalesce(r.rolname, s.owner)::text, o.is_owned,
           p.stripe, p.stripes, p.stripe_size,
           o.is_owned OR EXISTS (
             SELECT FROM idgen.segment_grant g
              WHERE g.tag = s.tag
                AND (g.grantee = 'public' OR pg_has_role($2, CASE
                       WHEN g.role_space = p.space_id THEN g.grantee_oid
                       ELSE (SELECT n.oid FROM pg_roles n WHERE n.rolname = g.grantee) END, 'USAGE')))
      FROM idgen.segment s CROSS JOIN idgen.space p
     CROSS JOIN LATERAL (
       SELECT CASE WHEN s.role_space = p.space_id THEN s.owner_oid
                   ELSE (SELECT n.oid FROM pg_roles n WHERE n.rolname = s.owner) END AS role) w
      LEFT JOIN pg_roles r ON r.oid = w.role
     CROSS JOIN LATERAL (
       SELECT (SELECT u.rolsuper FROM pg_roles u WHERE u.oid = $2)
           OR coalesce(pg_has_role($2, r.oid, 'USAGE'), false) AS is_owned) o
     WHERE s.tag = $1 AND s.dropped_at IS NULL";

/// Who has been made an administrator of everybody's tags, by the right to execute this.
const IS_ADMINISTRATOR: &str = "SELECT has_function_privilege($1, 'idgen.administer_segments()', 'EXECUTE')";

/// # Errors
/// XX000 no row: the extension is damaged.
pub fn identity(tables: Tables) -> Result<Identity, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    let read = |row: &as_of_now::Row| {
        Some(Identity {
            source_id: *row.get::<pgrx::Uuid>(1)?.as_bytes(),
            space_id: *row.get::<pgrx::Uuid>(2)?.as_bytes(),
            stripes: read_stripes(row, 3)?,
        })
    };
    // In a clone a worker renews it when the first look-up has asked for a range or for leaves.
    match as_of_now::first_row(IDENTITY, &[], read)?.flatten() {
        Some(identity) => Ok(identity),
        None => Err(Error::Internal {
            message: "table idgen.space has lost its row".into(),
        }),
    }
}

/// Ids up to it were granted before the space was cut in stripes; 0: it is not, or none were.
///
/// # Errors
/// Those of the query.
pub fn above(tables: Tables) -> Result<i64, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    let above = as_of_now::first_row(ABOVE, &[], |row| row.get::<i64>(1))?;
    Ok(above.flatten().unwrap_or_default())
}

fn look_up(tag: &str, user: pg_sys::Oid) -> Result<Found, Error> {
    let unknown = || Error::UnknownTag { tag: tag.into() };
    let tables = Tables::of_this_database().ok_or_else(unknown)?;
    let _as_owner = AsOwner::begin(tables.owner);
    let uuid = |row: &as_of_now::Row, column| row.get::<pgrx::Uuid>(column).map(|uuid| *uuid.as_bytes());
    let read = |row: &as_of_now::Row| {
        Some(Found {
            tag: tag.into(),
            segment_id: uuid(row, 1)?,
            identity: Identity {
                source_id: uuid(row, 2)?,
                space_id: uuid(row, 3)?,
                stripes: read_stripes(row, 6)?,
            },
            tables,
            owner: row.get::<String>(4)?,
            is_owned: row.get::<bool>(5).unwrap_or(false),
            may_draw: row.get::<bool>(9).unwrap_or(false),
        })
    };
    as_of_now::first_row(FIND, &[tag.into(), user.into()], read)?
        .flatten()
        .ok_or_else(unknown)
}

/// A tag that the role may draw from.
///
/// # Errors
/// Unknown tag, no right on it.
pub fn find(tag: &str, user: pg_sys::Oid) -> Result<Found, Error> {
    let found = look_up(tag, user)?;
    if found.may_draw {
        return Ok(found);
    }
    Err(Error::NoRightOnTag { tag: tag.into() })
}

/// A tag that the role may change.
///
/// # Errors
/// Unknown tag; neither owner nor administrator.
pub fn find_to_change(tag: &str, user: pg_sys::Oid) -> Result<Found, Error> {
    let found = look_up(tag, user)?;
    if found.is_owned || is_administrator(found.tables, user)? {
        return Ok(found);
    }
    Err(Error::NotOwnerOfTag {
        tag: found.tag,
        owner: found.owner,
    })
}

fn is_administrator(tables: Tables, user: pg_sys::Oid) -> Result<bool, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    let given = Spi::connect(|client| {
        client
            .select(IS_ADMINISTRATOR, Some(1), &[user.into()])?
            .first()
            .get::<bool>(1)
    })?;
    Ok(given == Some(true))
}
