//! What an administrator says of this database: `idgen.adopt_authority()`, `idgen.promote()`; and what the install
//! script asks: `idgen.server_home()`.

use super::{home, settle};
use crate::call::{Call, bigint_datum, in_recovery, integer_datum, text_datum, v1_function};
use crate::error::Error;
use crate::owner::{AsOwner, Tables, commit_durably};
use crate::segment::leaf;
use idgen_core::segment::home::Cause;
use pgrx::pg_sys;
use pgrx::spi::Spi;

v1_function!(idgen_adopt_authority, adopt_authority);
v1_function!(idgen_promote, promote);
v1_function!(idgen_server_home, server_home);

fn server_home(call: Call) -> Result<pg_sys::Datum, Error> {
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let home = home::found()?;
    call.record([
        bigint_datum(home.system_identifier.cast_signed()),
        integer_datum(home.timeline.cast_signed()),
        home.machine.as_deref().and_then(text_datum),
        home.os_boot.as_deref().and_then(text_datum),
        bigint_datum(home.device.cast_signed()),
        bigint_datum(home.inode.cast_signed()),
    ])
}

fn adopt_authority(call: Call) -> Result<pg_sys::Datum, Error> {
    begin_anew(call, "authority.adopt", Cause::Adopted)
}

fn promote(call: Call) -> Result<pg_sys::Datum, Error> {
    begin_anew(call, "authority.promote", Cause::Promoted)
}

fn begin_anew(call: Call, kind: &str, cause: Cause) -> Result<pg_sys::Datum, Error> {
    let reason = call.text(0)?.ok_or(Error::NullArgument { name: "reason" })?;
    if reason.trim().is_empty() {
        return Err(Error::InvalidParameter {
            message: "reason must not be empty".into(),
            hint: "It is recorded with the event, for whoever asks later why numbers were passed over.",
        });
    }
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    leaf::ensure("", tables)?;
    commit_durably();
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| settle::begin_anew(client, kind, cause, Some(reason)))?;
    Ok(pg_sys::Datum::null())
}
