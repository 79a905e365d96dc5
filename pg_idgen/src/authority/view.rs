//! What `idgen.health` shows of the authority over segment ranges.

use super::{settle, witness};
use crate::call::{Call, bigint_datum, current_database, in_recovery, text_datum, v1_function};
use crate::clock;
use crate::error::Error;
use crate::guc;
use crate::owner::{AsOwner, Tables};
use crate::shmem::{Shared, shared};
use idgen_core::segment::home::Verdict;
use pgrx::pg_sys;
use pgrx::spi::Spi;

v1_function!(idgen_authority_state, authority_state);

fn authority_state(call: Call) -> Result<pg_sys::Datum, Error> {
    let name = match guc::authority() {
        guc::Authority::Local => "local",
        guc::Authority::Leased => "leased",
    };
    let (state, deadline_in_ms) = match shared() {
        None => ("not preloaded", None),
        Some(_) if in_recovery() => ("in recovery", None),
        Some(shared) if guc::authority() == guc::Authority::Leased => lease_state(shared),
        Some(_) => (home_state()?, None),
    };
    call.record([
        text_datum(name),
        text_datum(state),
        deadline_in_ms.and_then(bigint_datum),
    ])
}

/// Whether the database is where it was when it granted last.
fn home_state() -> Result<&'static str, Error> {
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    let _as_owner = AsOwner::begin(tables.owner);
    let (verdict, waits) = Spi::connect(|client| {
        let verdict = settle::verdict(client)?;
        Ok::<_, Error>((verdict, witness::is_waited_for(client)?))
    })?;
    Ok(match verdict {
        Verdict::Same | Verdict::Relabel if waits => "waits for witness",
        Verdict::Same | Verdict::Relabel => "granting",
        Verdict::Burn(_) => "burns first",
        Verdict::Copy(_) => "copy",
    })
}

fn lease_state(shared: &Shared) -> (&'static str, Option<i64>) {
    let now = clock::boot();
    let Some(view) = shared.authority_of(current_database()) else {
        return ("no lease", None);
    };
    let left = view.deadline.0.cast_signed() - now.0.cast_signed();
    match (view.is_fenced(), view.is_open(now)) {
        (true, _) => ("fenced", None),
        (false, true) => ("granting", Some(left)),
        (false, false) => ("expired", Some(left)),
    }
}
