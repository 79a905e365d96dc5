//! `idgen_adopt_sequence()` and `idgen_release_sequence()`: a tag takes the place of a sequence, and gives it back.
//!
//! Tables and sequence are read and altered with the rights of the caller, who has to own them; the extension's own
//! tables are written as their owner. Either way is one transaction, under [`locks`] on everything that draws: so
//! whoever inserts waits, and finds the other default afterwards.
//!
//! ```text
//! look at the catalogue -> lock (as it was seen) -> look again -> floor -> tag, rights, defaults, sequence -> record
//! ```

mod give_back;
mod locks;
mod look;
mod record;
mod take;

use super::cache::TAG_BYTES_MAX;
use crate::call::{Call, current_user, in_recovery, text_datum, v1_function};
use crate::error::Error;
use crate::shmem::shared;
use pgrx::pg_sys;

v1_function!(idgen_adopt_sequence, adopt_sequence);
v1_function!(idgen_release_sequence, release_sequence);

/// One row of what was done, and of what refers to it.
struct Line {
    action: &'static str,
    object: String,
    column_name: Option<String>,
    data_type: Option<String>,
    note: String,
}

impl Line {
    fn on(action: &'static str, object: impl Into<String>, note: impl Into<String>) -> Self {
        Self {
            action,
            object: object.into(),
            column_name: None,
            data_type: None,
            note: note.into(),
        }
    }

    fn of(action: &'static str, column: &look::Column, note: impl Into<String>) -> Self {
        Self {
            column_name: Some(column.name.clone()),
            data_type: Some(column.type_name.clone()),
            ..Self::on(action, column.table.as_str(), note)
        }
    }
}

fn answer(call: Call, lines: &[Line]) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows::<5>()?;
    for line in lines {
        rows.push([
            text_datum(line.action),
            text_datum(&line.object),
            line.column_name.as_deref().and_then(text_datum),
            line.data_type.as_deref().and_then(text_datum),
            text_datum(&line.note),
        ]);
    }
    Ok(rows.done())
}

fn adopt_sequence(call: Call) -> Result<pg_sys::Datum, Error> {
    let null = |name| move || Error::NullArgument { name };
    let sequence = call.oid(0).ok_or_else(null("seq"))?;
    let tag = call.text(1)?.ok_or_else(null("tag"))?;
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
        return Err(Error::InvalidParameter {
            message: format!("a segment tag has 1 to {TAG_BYTES_MAX} bytes, not {}", tag.len()),
            hint: "",
        });
    }
    can_serve()?;
    answer(call, &take::adopt(sequence, tag, current_user())?)
}

fn release_sequence(call: Call) -> Result<pg_sys::Datum, Error> {
    let tag = call.text_bytes(0).ok_or(Error::NullArgument { name: "tag" })?;
    let tag = super::tag_name(tag);
    can_serve()?;
    answer(call, &give_back::release(&tag, current_user())?)
}

/// A column must not be left with a default that this server cannot serve.
fn can_serve() -> Result<(), Error> {
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    shared().map(|_| ()).ok_or(Error::NotPreloaded)
}

/// A string constant of SQL, where `standard_conforming_strings` is on.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// What was committed while this has waited for its locks must be seen.
fn check_isolation(object: &str, refuse: look::Refuse) -> Result<(), Error> {
    // SAFETY: a plain variable of this process.
    let level = unsafe { pg_sys::XactIsoLevel };
    if level <= pg_sys::XACT_READ_COMMITTED as i32 {
        return Ok(());
    }
    Err(refuse(
        object,
        "The transaction does not see the rows that are committed while it waits for its locks.".into(),
        "Use a transaction of isolation level READ COMMITTED.",
    ))
}
