//! The day leaves of `idgen.audit_event`: made ahead by the refill worker of the database, and on request.
//!
//! They are no members of the extension, so that pg_dump takes them along with their rows; hence no install
//! script can make them. Keys and indexes are on the leaves only, which is what pg_dump can restore.
//!
//! Workers make them, each time in a transaction of their own. A caller's transaction would hold the lock that
//! making leaves takes until it ends, and lend its settings to the tables. Only where the tables are the
//! caller's own, because its transaction has created the extension, no worker can see them, and nobody can
//! wait for their locks: there the caller makes the leaves.

use super::cache;
use super::failure::Failure;
use crate::as_of_now;
use crate::call::{accept_invalidations, current_database, learn_of};
use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use crate::parse::POSTGRES_EPOCH_MS;
use crate::shmem::{SegmentKey, SegmentSlot, shared};
use crate::{clock, guc};
use pgrx::pg_sys;
use pgrx::spi::{Result, Spi, SpiClient, SpiHeapTupleData};
use std::cell::Cell;

/// Days that an event needs beyond today: its transaction may begin before midnight and record after it.
const DAYS_NEEDED: i32 = 1;

/// Days made ahead of today.
const DAYS_AHEAD: i32 = 7;

const DAY_MS: i64 = 86_400_000;

thread_local! {
    /// Last day up to which this process has seen the leaves.
    static SEEN: Cell<i32> = const { Cell::new(i32::MIN) };
}

/// Today in UTC, as Postgres numbers days (since 2000-01-01).
fn today() -> i32 {
    ((clock::wall().0.cast_signed() - POSTGRES_EPOCH_MS).div_euclid(DAY_MS)) as i32
}

/// A clone by CREATE DATABASE ... TEMPLATE brings the original's identity along: it is another source of
/// events and another space of tags from now on.
const OWN_IDENTITY: &str = "
    UPDATE idgen.space p
       SET space_id = gen_random_uuid(), source_id = gen_random_uuid(), database_oid = d.oid
      FROM pg_database d
     WHERE d.datname = current_database() AND p.database_oid <> d.oid";

/// Is there anything for a worker to do before an event can be recorded?
const LACKING: &str = "
    SELECT EXISTS (SELECT FROM idgen.space p JOIN pg_database d ON d.datname = current_database()
                    WHERE p.database_oid <> d.oid)
        OR EXISTS (SELECT FROM generate_series($1, $2) n
                    WHERE to_regclass('idgen.audit_event_' || to_char(DATE '2000-01-01' + n, 'YYYYMMDD')) IS NULL)";

/// The leaf of a day.
const LEAF: &str =
    "SELECT to_regclass('idgen.audit_event_' || to_char(DATE '2000-01-01' + $1, 'YYYYMMDD'))::oid";

const MISSING: &str = "
    SELECT 'audit_event_' || to_char(day, 'YYYYMMDD'), to_char(day, 'YYYY-MM-DD'), to_char(day + 1, 'YYYY-MM-DD')
      FROM (SELECT DATE '2000-01-01' + n AS day FROM generate_series($1, $2) n) days
     WHERE to_regclass('idgen.audit_event_' || to_char(day, 'YYYYMMDD')) IS NULL
     ORDER BY day";

/// Caller's side: see to it that an event of `tag` recorded now finds its leaf, by asking a worker and waiting
/// if need be, or by making it where no worker could.
///
/// # Errors
/// Not preloaded; the worker did not manage within `idgen.segment_wait_ms`.
pub fn ensure(tag: &str, tables: Tables) -> std::result::Result<(), Error> {
    let needed = today() + DAYS_NEEDED;
    if SEEN.get() >= needed {
        return Ok(());
    }
    if tables.are_of_this_transaction() {
        return make_here(tables);
    }
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let slot = super::place(shared, &SegmentKey::leaves_of(current_database()))?.slot;
    let began = clock::boot();
    slot.set_failure(Failure::None);
    slot.prepare_to_wait();
    let outcome = loop {
        accept_invalidations();
        if !lacking(tables, needed)? {
            learn_of_all(tables, needed)?;
            cache::watch(tables);
            SEEN.set(needed);
            break Ok(());
        }
        let waited_ms = clock::boot().since(began);
        if waited_ms >= guc::segment_wait_ms() {
            break Err(Error::RefillTimedOut {
                tag: tag.into(),
                waited_ms,
                cause: why_not(slot),
            });
        }
        super::ask(slot);
        slot.wait(super::ASK_AGAIN_MS);
    };
    slot.stop_waiting();
    outcome
}

/// What kept the worker from making leaves. It may not have come to it.
fn why_not(slot: &SegmentSlot) -> String {
    match slot.failure() {
        Failure::Error => {
            "The refill worker could not make the day tables of idgen.audit_event; the server log says why."
                .into()
        }
        other => super::cause::cause(other, super::Holder::default()),
    }
}

fn make_here(tables: Tables) -> std::result::Result<(), Error> {
    let as_owner = AsOwner::begin(tables.owner);
    // A worker has the database's defaults; here the caller's may be anything.
    as_owner.pin(c"default_tablespace", c"");
    as_owner.pin(c"default_table_access_method", c"heap");
    Spi::connect_mut(make_ahead)?;
    // What was made goes with the extension; a second one in this session needs its own.
    cache::watch(tables);
    Ok(())
}

fn lacking(tables: Tables, needed: i32) -> std::result::Result<bool, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    let days = [today().into(), needed.into()];
    let lacking = as_of_now::first_row(LACKING, &days, |row| row.get::<bool>(1))?;
    Ok(lacking.flatten().unwrap_or(true))
}

/// The leaves are there, but Postgres would not find one whose attachment this process was not told of yet.
fn learn_of_all(tables: Tables, needed: i32) -> std::result::Result<(), Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    for day in today()..=needed {
        let leaf = as_of_now::first_row(LEAF, &[day.into()], |row| row.get::<pg_sys::Oid>(1))?;
        leaf.flatten().into_iter().for_each(learn_of);
    }
    Ok(())
}

/// Whether [`make_ahead`] has anything to do.
pub fn ahead_is_due() -> bool {
    SEEN.get() < today() + DAYS_AHEAD
}

/// Worker's side: what is missing for today and the coming days.
pub fn make_ahead(client: &mut SpiClient<'_>) -> Result<()> {
    let last = today() + DAYS_AHEAD;
    own_identity(client)?;
    for leaf in missing(client, last)? {
        make(client, &leaf)?;
    }
    SEEN.set(last);
    Ok(())
}

/// A clone becomes another space.
pub fn own_identity(client: &mut SpiClient<'_>) -> Result<()> {
    client.update(OWN_IDENTITY, None, &[]).map(|_| ())
}

/// What this process has seen may be gone: a transaction was undone, or the extension dropped.
pub fn forget() {
    SEEN.set(i32::MIN);
}

struct Leaf {
    name: String,
    from: String,
    to: String,
}

fn missing(client: &mut SpiClient<'_>, last: i32) -> Result<Vec<Leaf>> {
    let rows = client.update(MISSING, None, &[today().into(), last.into()])?;
    rows.map(|row| {
        Ok(Leaf {
            name: text(&row, 1)?,
            from: text(&row, 2)?,
            to: text(&row, 3)?,
        })
    })
    .collect()
}

fn text(row: &SpiHeapTupleData<'_>, column: usize) -> Result<String> {
    Ok(row.get::<String>(column)?.unwrap_or_default())
}

/// Made beside the parent and then attached, so that inserts into the other leaves go on. The names are dates
/// that Postgres has formatted; bounds carry `+00` because the session's time zone must not matter.
fn make(client: &mut SpiClient<'_>, leaf: &Leaf) -> Result<()> {
    let Leaf { name, from, to } = leaf;
    for statement in [
        format!(
            "CREATE TABLE idgen.{name} (LIKE idgen.audit_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
               PRIMARY KEY (event_id),
               CONSTRAINT {name}_day CHECK (at >= '{from} 00:00:00+00' AND at < '{to} 00:00:00+00'))
             WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_freeze_min_age = 0)"
        ),
        format!("CREATE INDEX {name}_queue ON idgen.{name} (event_id) WHERE NOT published"),
        format!("CREATE INDEX {name}_tag ON idgen.{name} (space_id, tag, tag_seq)"),
        format!(
            "ALTER TABLE idgen.audit_event ATTACH PARTITION idgen.{name}
             FOR VALUES FROM ('{from} 00:00:00+00') TO ('{to} 00:00:00+00')"
        ),
    ] {
        client.update(statement.as_str(), None, &[])?;
    }
    Ok(())
}
