//! The registry of prefixes: which there are, looked up once per backend.
//!
//! A registered prefix stays for ever, so only what was found is remembered. It can still go: its transaction
//! may be rolled back, or the extension be dropped. A trigger on the table sends a relation-cache invalidation
//! with the change, which Postgres also applies when the change is undone; the callback here forgets all.

use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::{Error, shown};
use crate::owner::{AsOwner, Table};
use idgen_core::public_id::{PREFIX_LEN_MAX, Prefix};
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};

v1_function!(idgen_register_prefix, register_prefix);
v1_function!(idgen_prefix_changed, prefix_changed);
v1_function!(idgen_prefix_stays, prefix_stays);

/// Prefixes remembered per backend; past it the memory starts anew.
const KNOWN_MAX: usize = 64;

/// A prefix, filled up with zeros, which no prefix has.
type Key = [u8; PREFIX_LEN_MAX];

const NO_KEY: Key = [0; PREFIX_LEN_MAX];

thread_local! {
    /// The prefix used last: most sessions make ids of one kind at a time.
    static LAST: Cell<Key> = const { Cell::new(NO_KEY) };
    static KNOWN: RefCell<Vec<Key>> = const { RefCell::new(Vec::new()) };
    /// The relation whose change makes void what is remembered.
    static TABLE: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
}

const FIND: &str = "SELECT EXISTS (SELECT FROM idgen.prefix p WHERE p.prefix = $1)";

const INSERT: &str = "
    INSERT INTO idgen.prefix (prefix, owner)
    VALUES ($1, (SELECT rolname FROM pg_roles WHERE oid = $2))
    ON CONFLICT (prefix) DO NOTHING
    RETURNING true";

/// The argument `index`, of the form of a prefix.
///
/// # Errors
/// 22004 NULL, 22023 another form.
#[inline(always)]
pub fn argument<'a>(call: Call, index: usize) -> Result<Prefix<'a>, Error> {
    let bytes = call
        .text_bytes(index)
        .ok_or(Error::NullArgument { name: "prefix" })?;
    Prefix::parse(bytes).map_err(|reason| Error::NoPrefix {
        text: shown(bytes),
        reason: reason.to_string(),
    })
}

fn key(prefix: Prefix<'_>) -> Key {
    let mut key = NO_KEY;
    // Not longer, by its form.
    for (place, byte) in key.iter_mut().zip(prefix.as_str().bytes()) {
        *place = byte;
    }
    key
}

/// # Errors
/// Not registered.
#[inline(always)]
pub fn check_registered(prefix: Prefix<'_>) -> Result<(), Error> {
    let key = key(prefix);
    if LAST.get() == key {
        return Ok(());
    }
    look_up(prefix, key)
}

#[cold]
#[inline(never)]
fn look_up(prefix: Prefix<'_>, key: Key) -> Result<(), Error> {
    if !KNOWN.with_borrow(|known| known.contains(&key)) {
        let unknown = || Error::UnknownPrefix {
            prefix: prefix.as_str().into(),
        };
        let table = Table::of_extension(c"prefix").ok_or_else(unknown)?;
        // First, so that a change from now on is not missed.
        TABLE.set(table.oid);
        if !is_registered(prefix, table)? {
            return Err(unknown());
        }
        KNOWN.with_borrow_mut(|known| {
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.push(key);
        });
    }
    LAST.set(key);
    Ok(())
}

fn is_registered(prefix: Prefix<'_>, table: Table) -> Result<bool, Error> {
    let _as_owner = AsOwner::begin(table.owner);
    let found = Spi::connect(|client| {
        client
            .select(FIND, Some(1), &[prefix.as_str().into()])?
            .first()
            .get::<bool>(1)
    })?;
    Ok(found == Some(true))
}

/// `true`: registered now, `false`: it was already.
fn register_prefix(call: Call) -> Result<pg_sys::Datum, Error> {
    let prefix = argument(call, 0)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let table = Table::of_extension(c"prefix").ok_or_else(|| Error::Internal {
        message: "table idgen.prefix is missing".into(),
    })?;
    // The role whose rights count, taken before this becomes the owner of the table.
    let user = current_user();
    let _as_owner = AsOwner::begin(table.owner);
    let made = Spi::connect_mut(|client| {
        client
            .update(INSERT, None, &[prefix.as_str().into(), user.into()])
            .map(|rows| !rows.is_empty())
    })?;
    Ok(pg_sys::Datum::from(made))
}

/// Trigger: what backends remember is void.
fn prefix_changed(call: Call) -> Result<pg_sys::Datum, Error> {
    call.invalidate_trigger_relation("idgen.prefix_changed")
}

/// Trigger: refuses.
fn prefix_stays(_call: Call) -> Result<pg_sys::Datum, Error> {
    Err(Error::PrefixStays)
}

pub fn define_callback() {
    // SAFETY: the callback has the right signature, touches Rust memory only, and is never unloaded.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_invalidation), pg_sys::Datum::null()) };
}

#[pg_guard]
extern "C-unwind" fn on_invalidation(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || relation == TABLE.get() {
        LAST.set(NO_KEY);
        KNOWN.with_borrow_mut(Vec::clear);
    }
}
