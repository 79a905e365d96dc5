//! What this backend knows of tags: (tag, role) -> place in shared memory.
//!
//! An entry holds a right that was checked, so it must go when rights or tags change. A trigger on the two
//! tables sends a relation-cache invalidation with the transaction that changes them; Postgres delivers it to
//! every backend as it does for its own catalogues, and the callback here empties the cache.

use crate::shmem::SegmentSlot;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Longest tag, in bytes (a CHECK of the table says the same).
pub const TAG_BYTES_MAX: usize = 200;

/// Tags remembered per backend; past it the cache starts anew. 250 bytes each.
const TAGS_MAX: usize = 4_096;

type Place = &'static SegmentSlot;

#[derive(Clone, Copy)]
struct Last {
    user: pg_sys::Oid,
    length: usize,
    tag: [u8; TAG_BYTES_MAX],
    slot: Option<Place>,
}

const NOTHING: Last = Last {
    user: pg_sys::InvalidOid,
    length: 0,
    tag: [0; TAG_BYTES_MAX],
    slot: None,
};

thread_local! {
    /// The tag used last: most sessions have one.
    static LAST: RefCell<Last> = const { RefCell::new(NOTHING) };
    static KNOWN: RefCell<HashMap<Vec<u8>, (pg_sys::Oid, Place)>> = RefCell::default();
    static TABLES: Cell<[pg_sys::Oid; 2]> = const { Cell::new([pg_sys::InvalidOid; 2]) };
}

/// The place of the tag used last, if it is this one.
#[inline(always)]
pub fn last(tag: &[u8], user: pg_sys::Oid) -> Option<Place> {
    LAST.with_borrow(|last| {
        if last.user == user && last.tag[..last.length] == *tag {
            last.slot
        } else {
            None
        }
    })
}

/// The place of any tag used before.
pub fn find(tag: &[u8], user: pg_sys::Oid) -> Option<Place> {
    let known = KNOWN.with_borrow(|known| known.get(tag).copied());
    let (_, slot) = known.filter(|(role, _)| *role == user)?;
    set_last(tag, user, slot);
    Some(slot)
}

/// `user` was found to have the right on `tag`. `tables`: the relations whose change makes that void.
pub fn remember(tag: &[u8], user: pg_sys::Oid, slot: Place, tables: [pg_sys::Oid; 2]) {
    TABLES.set(tables);
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= TAGS_MAX {
            known.clear();
        }
        known.insert(tag.to_vec(), (user, slot));
    });
    set_last(tag, user, slot);
}

fn set_last(tag: &[u8], user: pg_sys::Oid, slot: Place) {
    LAST.with_borrow_mut(|last| {
        if let Some(room) = last.tag.get_mut(..tag.len()) {
            room.copy_from_slice(tag);
            (last.length, last.user, last.slot) = (tag.len(), user, Some(slot));
        }
    });
}

pub fn forget_all() {
    LAST.with_borrow_mut(|last| *last = NOTHING);
    KNOWN.with_borrow_mut(HashMap::clear);
}

pub fn define_callback() {
    // SAFETY: the callback has the right signature, touches Rust memory only, and is never unloaded.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_invalidation), pg_sys::Datum::null()) };
}

#[pg_guard]
extern "C-unwind" fn on_invalidation(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || TABLES.get().contains(&relation) {
        forget_all();
    }
}
