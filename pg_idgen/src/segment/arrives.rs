//! The trigger on `idgen.segment` for rows that somebody else writes: COPY, a restore, logical replication, a person.
//!
//! Such a row may be older than what was granted. It never takes `max_id` down, and has to burn before it serves.

use crate::call::{Call, bigint_datum, boolean_datum, v1_function};
use crate::error::Error;
use crate::owner;
use pgrx::pg_sys;

v1_function!(idgen_segment_arrives, segment_arrives);

fn segment_arrives(call: Call) -> Result<pg_sys::Datum, Error> {
    let change = call.row_change("idgen.segment_arrives")?;
    if owner::is_acting() {
        return Ok(change.unchanged());
    }
    let new = change.new_bigint(c"max_id")?;
    let highest = match change.old_bigint(c"max_id")? {
        // What else somebody changes (a limit, a step) does not say where the count stands.
        Some(old) if old == new => return Ok(change.unchanged()),
        Some(old) => old.max(new),
        None => new,
    };
    change.with([
        (c"max_id", bigint_datum(highest)),
        (c"needs_burn", boolean_datum(true)),
        (c"leased", boolean_datum(false)),
        (c"mark", None),
    ])
}
