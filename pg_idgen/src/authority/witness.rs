//! Another history has lost grants, and topic and archive may have their events: the daemon asks them, and grants wait for its
//! answer if a daemon has said before that one would come.

use super::settle;
use crate::call::{Call, current_database, in_recovery, uuid_result, v1_function};
use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use crate::segment;
use crate::shmem::{SegmentKey, shared};
use pgrx::pg_sys;
use pgrx::spi::{Spi, SpiClient};

v1_function!(idgen_witness_wanted, witness_wanted);

/// A day: who wants to wait longer does not want to grant.
const WAIT_MAX_S: i32 = 86_400;

/// That grants wait: the history is another one, and what others know of the old one is not told yet. `a` is
/// `idgen.authority`.
pub const WAITS: &str =
    "NOT a.is_witnessed AND clock_timestamp() < a.changed_at + a.witness_wait * interval '1 second'";

const REMEMBER: &str = "UPDATE idgen.authority SET witness_wait = $1 WHERE witness_wait <> $1";

const ASKED: &str = "SELECT a.mark FROM idgen.authority a WHERE NOT a.is_witnessed";

/// Whether tags that have not granted since wait.
///
/// # Errors
/// Those of the query.
pub fn is_waited_for(client: &SpiClient<'_>) -> Result<bool, Error> {
    let query = format!("SELECT {WAITS} FROM idgen.authority a");
    let row = client.select(query.as_str(), Some(1), &[])?.first();
    Ok(row.get::<bool>(1)? == Some(true))
}

/// NULL: there is nothing to ask.
fn witness_wanted(call: Call) -> Result<pg_sys::Datum, Error> {
    let wait_s = call.integer(0).ok_or(Error::NullArgument { name: "wait_s" })?;
    if !(0..=WAIT_MAX_S).contains(&wait_s) {
        return Err(Error::InvalidParameter {
            message: format!("wait_s must be between 0 and {WAIT_MAX_S}"),
            hint: "",
        });
    }
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let tables = Tables::of_this_database().filter(|_| !in_recovery());
    let Some(tables) = tables else {
        return Ok(call.null());
    };
    let asked = {
        let _as_owner = AsOwner::begin(tables.owner);
        Spi::connect_mut(|client| asked(client, wait_s))?
    };
    if matches!(asked, Asked::TooEarly) {
        // Whatever a worker is started for, it settles first.
        let leaves = segment::place(shared, &SegmentKey::leaves_of(current_database()))?;
        segment::ask(leaves.slot);
    }
    match asked {
        Asked::Of(mark) => uuid_result(mark),
        Asked::Nothing | Asked::TooEarly => Ok(call.null()),
    }
}

enum Asked {
    Nothing,
    /// It is another history, and no worker has settled that yet.
    TooEarly,
    /// The mark of the new history.
    Of([u8; 16]),
}

fn asked(client: &mut SpiClient<'_>, wait_s: i32) -> Result<Asked, Error> {
    client.update(REMEMBER, None, &[wait_s.into()])?;
    match settle::is_pending(client) {
        // It grants nothing.
        Err(Error::CopyOfDatabase) => return Ok(Asked::Nothing),
        Err(error) => return Err(error),
        Ok(true) => return Ok(Asked::TooEarly),
        Ok(false) => {}
    }
    let rows = client.select(ASKED, Some(1), &[])?;
    if rows.is_empty() {
        return Ok(Asked::Nothing);
    }
    let mark = rows.first().get::<pgrx::Uuid>(1)?;
    Ok(mark.map_or(Asked::Nothing, |mark| Asked::Of(*mark.as_bytes())))
}
