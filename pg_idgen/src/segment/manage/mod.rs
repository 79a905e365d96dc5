//! Making, changing and ending tags, and giving rights on them.
//!
//! Every change waits for the lock of the tag's row, and takes effect with the commit: [`super::changed`] says what
//! becomes of ranges in memory. Every change is an event, counted by the tag's `tag_seq` under that lock.

mod alter;
mod create;
mod end;
mod rights;
mod seek;

pub use create::{NewTag, create};
pub use end::end_tag;

use super::cache::{self, TAG_BYTES_MAX};
use super::catalog::{Found, find_to_change};
use super::{changed, leaf, own};
use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::Error;
use crate::owner::{AsOwner, commit_durably};
use crate::shmem::shared;
use idgen_core::segment::HARD_STEP_MAX;
use pgrx::pg_sys;
use pgrx::spi::{Spi, SpiClient, SpiTupleTable};
use std::sync::atomic::Ordering;

v1_function!(idgen_segment_changed, segment_changed);

/// Trigger of the tables that [`super::cache`] depends on.
fn segment_changed(call: Call) -> Result<pg_sys::Datum, Error> {
    call.invalidate_trigger_relation("idgen.segment_changed")
}

fn null(name: &'static str) -> Error {
    Error::NullArgument { name }
}

fn wrong(message: impl Into<String>, hint: &'static str) -> Error {
    Error::InvalidParameter {
        message: message.into(),
        hint,
    }
}

/// The tag to make.
fn new_tag_argument<'a>(call: Call) -> Result<&'a str, Error> {
    let tag = call.text(0)?.ok_or_else(|| null("tag"))?;
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
        return Err(wrong(
            format!("a segment tag has 1 to {TAG_BYTES_MAX} bytes, not {}", tag.len()),
            "",
        ));
    }
    Ok(tag)
}

fn check_step(name: &str, value: i32) -> Result<i32, Error> {
    if (1..=HARD_STEP_MAX as i32).contains(&value) {
        return Ok(value);
    }
    Err(wrong(
        format!("{name} must be between 1 and {HARD_STEP_MAX}, not {value}"),
        "A step is how many ids one database write grants.",
    ))
}

/// As the table has it: 0 means no limit.
fn check_fetch_limit(limit: i32) -> Result<Option<i32>, Error> {
    match limit {
        ..0 => Err(wrong("fetch_limit must not be negative", "0 means no limit.")),
        0 => Ok(None),
        1.. => Ok(Some(limit)),
    }
}

/// The tag to change, for a role that may, with the leaves for its event.
///
/// # Errors
/// NULL, in recovery, unknown tag, no right to change it; no leaves for the event.
pub fn tag_to_change(call: Call) -> Result<Found, Error> {
    let tag = super::tag_name(call.text_bytes(0).ok_or_else(|| null("tag"))?);
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let found = find_to_change(&tag, current_user())?;
    leaf::ensure(&tag, found.tables)?;
    // Whoever is told that a tag was moved or dropped acts on it: a crash must not take it back.
    commit_durably();
    Ok(found)
}

/// Locks the row, waiting for whoever has it; what happens next is under this lock until the end of the transaction.
const LOCK: &str = "
    SELECT s.max_id, s.limit_id, s.step, s.max_step, s.fetch_limit, s.start_id
      FROM idgen.segment s
     WHERE s.segment_id = $1 AND s.dropped_at IS NULL
       FOR NO KEY UPDATE";

/// The locked row of a tag.
struct Row {
    /// Highest id that was ever granted, by the row, by what this server has published, or by this transaction.
    floor: i64,
    max_id: i64,
    limit_id: i64,
    step: i32,
    max_step: i32,
    fetch_limit: Option<i32>,
    start_id: i64,
}

/// # Errors
/// The tag has gone meanwhile.
fn lock(client: &mut SpiClient<'_>, found: &Found) -> Result<Row, Error> {
    let gone = || Error::UnknownTag {
        tag: found.tag.clone(),
    };
    let id = pgrx::Uuid::from_bytes(found.segment_id);
    let row = client.update(LOCK, Some(1), &[id.into()])?.first();
    if row.is_empty() {
        return Err(gone());
    }
    let max_id = row.get::<i64>(1)?.ok_or_else(gone)?;
    // Memory may know better than a row that was set back, by hand or by a rollback to a savepoint.
    let published = shared()
        .and_then(|shared| shared.segment_in_use(&found.key()))
        .map_or(0, |slot| slot.high_water.load(Ordering::Acquire));
    Ok(Row {
        floor: max_id.max(published).max(own::high_water(found.segment_id)),
        max_id,
        limit_id: row.get::<i64>(2)?.ok_or_else(gone)?,
        step: row.get::<i32>(3)?.ok_or_else(gone)?,
        max_step: row.get::<i32>(4)?.ok_or_else(gone)?,
        fetch_limit: row.get::<i32>(5)?,
        start_id: row.get::<i64>(6)?.ok_or_else(gone)?,
    })
}

/// Locks a tag that the caller may change, and says what it has granted, by its row or by this server's memory.
///
/// # Errors
/// The tag has gone meanwhile.
pub fn lock_floor(found: &Found) -> Result<i64, Error> {
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| lock(client, found).map(|row| row.floor))
}

/// What this transaction knows of the tag is void, and at its commit the ranges in memory are, if `discards`.
pub fn note_change(found: &Found, discards: bool) {
    cache::forget_all();
    if !own::has_made(found.segment_id) {
        changed::note(found.key(), discards);
    } else if discards {
        own::drop_rest(found.segment_id);
    }
}

/// The number of the event, which a change returns.
fn tag_seq(row: &SpiTupleTable<'_>) -> Result<i64, Error> {
    row.get::<i64>(1)?.ok_or_else(|| Error::Internal {
        message: "the row of a tag that is locked has gone".into(),
    })
}
