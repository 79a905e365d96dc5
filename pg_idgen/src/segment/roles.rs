//! The names of roles beside their oids: see `catalog.rs` for what counts when.
//!
//! Refill workers do this as they start, so a name is out of date, for views and dumps, from ALTER ROLE ... RENAME
//! to the next refill at the most. What came by a restore or by a template clone has no oids that count; here it
//! gets them.

use pgrx::spi::{Result, SpiClient};

/// Rows of `idgen.segment` and what their owner should be called: renamed roles, then rows that came from elsewhere.
macro_rules! owners_due {
    () => {
        "SELECT s.tag, r.oid, r.rolname, p.space_id
           FROM idgen.space p JOIN idgen.segment s ON s.role_space = p.space_id JOIN pg_roles r ON r.oid = s.owner_oid
          WHERE r.rolname <> s.owner
          UNION ALL
         SELECT s.tag, r.oid, r.rolname, p.space_id
           FROM idgen.space p JOIN idgen.segment s ON s.role_space IS DISTINCT FROM p.space_id
           JOIN pg_roles r ON r.rolname = s.owner"
    };
}

/// The same of `idgen.segment_grant`, but for a new name that the tag has a row of already.
macro_rules! grantees_due {
    () => {
        "SELECT g.tag, g.grantee, r.oid, r.rolname, p.space_id
           FROM idgen.space p JOIN idgen.segment_grant g ON g.role_space = p.space_id JOIN pg_roles r ON r.oid = g.grantee_oid
          WHERE r.rolname <> g.grantee
            AND NOT EXISTS (SELECT FROM idgen.segment_grant o WHERE o.tag = g.tag AND o.grantee = r.rolname)
          UNION ALL
         SELECT g.tag, g.grantee, r.oid, r.rolname, p.space_id
           FROM idgen.space p JOIN idgen.segment_grant g ON g.role_space IS DISTINCT FROM p.space_id
           JOIN pg_roles r ON r.rolname = g.grantee"
    };
}

const DUE: &str = concat!(
    "SELECT EXISTS (",
    owners_due!(),
    ") OR EXISTS (",
    grantees_due!(),
    ")"
);

/// A row that somebody holds has its turn another time.
const OWNERS: &str = concat!(
    "WITH due AS (",
    owners_due!(),
    "), free AS (
        SELECT s.tag FROM idgen.segment s WHERE s.tag IN (SELECT d.tag FROM due d) FOR NO KEY UPDATE SKIP LOCKED)
     UPDATE idgen.segment s SET owner = d.rolname, owner_oid = d.oid, role_space = d.space_id
       FROM due d JOIN free f ON f.tag = d.tag WHERE s.tag = d.tag"
);

const GRANTEES: &str = concat!(
    "WITH due AS (",
    grantees_due!(),
    ")
     UPDATE idgen.segment_grant g SET grantee = d.rolname, grantee_oid = d.oid, role_space = d.space_id
       FROM due d WHERE g.tag = d.tag AND g.grantee = d.grantee"
);

/// Worker's side: bring everything up to date.
pub fn refresh(client: &mut SpiClient<'_>) -> Result<()> {
    // Asked first, so that a transaction that changes nothing writes nothing.
    if client.select(DUE, Some(1), &[])?.first().get::<bool>(1)? == Some(true) {
        client.update(OWNERS, None, &[])?;
        refresh_grantees(client)?;
    }
    Ok(())
}

/// Before rights are given or taken by name: the rows must have the names that count now.
pub fn refresh_grantees(client: &mut SpiClient<'_>) -> Result<()> {
    client.update(GRANTEES, None, &[]).map(|_| ())
}
