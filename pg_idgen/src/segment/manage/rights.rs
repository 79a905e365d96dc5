//! `idgen.grant_segment()` and `idgen.revoke_segment()`.

use super::null;
use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::{Error, clip};
use crate::owner::AsOwner;
use crate::segment::catalog::{Found, find_to_change};
use crate::segment::roles;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

v1_function!(idgen_grant_segment, grant_segment);
v1_function!(idgen_revoke_segment, revoke_segment);

const ROLE: &str = "SELECT $1 = 'public' OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1)";

/// A row of a role that is gone is of the one that has its name now.
const LEND: &str = "
    INSERT INTO idgen.segment_grant AS g (tag, grantee, grantee_oid, role_space, granted_by)
    SELECT $1, $3, (SELECT r.oid FROM pg_roles r WHERE r.rolname = $3), $4,
           (SELECT u.rolname FROM pg_roles u WHERE u.oid = $2)
        ON CONFLICT (tag, grantee) DO UPDATE SET grantee_oid = excluded.grantee_oid, role_space = excluded.role_space
     WHERE (g.grantee_oid, g.role_space) IS DISTINCT FROM (excluded.grantee_oid, excluded.role_space)";

const TAKE_BACK: &str = "DELETE FROM idgen.segment_grant g WHERE g.tag = $1 AND g.grantee = $2 RETURNING 1";

fn grant_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    change_rights(call, |client, found, grantee, user| {
        if !is_role(client, grantee)? {
            return Err(Error::UnknownRole { role: clip(grantee) });
        }
        let space_id = pgrx::Uuid::from_bytes(found.identity.space_id);
        let args = [
            found.tag.as_str().into(),
            user.into(),
            grantee.into(),
            space_id.into(),
        ];
        client.update(LEND, None, &args)?;
        Ok(())
    })
}

fn revoke_segment(call: Call) -> Result<pg_sys::Datum, Error> {
    change_rights(call, |client, found, grantee, _user| {
        let taken = client.update(TAKE_BACK, None, &[found.tag.as_str().into(), grantee.into()])?;
        // A right of a role that is gone can be taken back, by the name it had.
        if taken.is_empty() && !is_role(client, grantee)? {
            return Err(Error::UnknownRole { role: clip(grantee) });
        }
        Ok(())
    })
}

fn change_rights(
    call: Call,
    change: impl FnOnce(&mut SpiClient<'_>, &Found, &str, pg_sys::Oid) -> Result<(), Error>,
) -> Result<pg_sys::Datum, Error> {
    let tag = crate::segment::tag_name(call.text_bytes(0).ok_or_else(|| null("tag"))?);
    let grantee = call.text(1)?.ok_or_else(|| null("grantee"))?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    // The role whose rights count, taken before this becomes the owner of the tables.
    let user = current_user();
    let found = find_to_change(&tag, user)?;
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| {
        roles::refresh_grantees(client)?;
        change(client, &found, grantee, user)
    })?;
    Ok(pg_sys::Datum::null())
}

fn is_role(client: &mut SpiClient<'_>, name: &str) -> Result<bool, Error> {
    Ok(client
        .select(ROLE, Some(1), &[name.into()])?
        .first()
        .get::<bool>(1)?
        == Some(true))
}
