//! What this backend knows of tags: (tag, role) -> place in shared memory, and which ranges there are the tag's.
//!
//! An entry holds a right that was checked, so it must go when rights or tags change. A trigger on the two
//! tables sends a relation-cache invalidation with the transaction that changes them; Postgres delivers it to
//! every backend as it does for its own catalogues, and the callback here empties the cache.

use super::leaf;
use crate::local::Local;
use crate::owner::Tables;
use crate::shmem::Place;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Longest tag, in bytes (a CHECK of the table says the same).
pub const TAG_BYTES_MAX: usize = 200;

/// Tags remembered per backend; past it the cache starts anew. 250 bytes each.
const TAGS_MAX: usize = 4_096;

#[derive(Clone, Copy)]
struct Last {
    user: pg_sys::Oid,
    length: usize,
    tag: [u8; TAG_BYTES_MAX],
    place: Option<Place>,
}

const NOTHING: Last = Last {
    user: pg_sys::InvalidOid,
    length: 0,
    tag: [0; TAG_BYTES_MAX],
    place: None,
};

/// The tag used last: most sessions have one.
static LAST: Local<Last> = Local::new(NOTHING);

thread_local! {
    static KNOWN: RefCell<HashMap<Vec<u8>, (pg_sys::Oid, Place)>> = RefCell::default();
    /// The relations whose change makes what is remembered void.
    static TABLES: Cell<[pg_sys::Oid; 3]> = const { Cell::new([pg_sys::InvalidOid; 3]) };
}

/// The place of the tag used last, if it is this one.
#[inline(always)]
pub fn last(tag: &[u8], user: pg_sys::Oid) -> Option<Place> {
    let is_it = |last: &mut Last| {
        if last.user == user && last.tag[..last.length] == *tag {
            last.place
        } else {
            None
        }
    };
    // SAFETY: the closure compares, no more.
    unsafe { LAST.with(is_it) }
}

/// The place of any tag used before.
pub fn find(tag: &[u8], user: pg_sys::Oid) -> Option<Place> {
    let known = KNOWN.with_borrow(|known| known.get(tag).copied());
    let (_, place) = known.filter(|(role, _)| *role == user)?;
    set_last(tag, user, place);
    Some(place)
}

/// From now on a change of these relations makes void what this process remembers.
pub fn watch(tables: Tables) {
    TABLES.set([tables.segment, tables.segment_grant, tables.audit_event]);
}

/// `user` was found to have the right on `tag`.
pub fn remember(tag: &[u8], user: pg_sys::Oid, place: Place, tables: Tables) {
    watch(tables);
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= TAGS_MAX {
            known.clear();
        }
        known.insert(tag.to_vec(), (user, place));
    });
    set_last(tag, user, place);
}

fn set_last(tag: &[u8], user: pg_sys::Oid, place: Place) {
    let mut last = NOTHING;
    if let Some(room) = last.tag.get_mut(..tag.len()) {
        room.copy_from_slice(tag);
        (last.length, last.user, last.place) = (tag.len(), user, Some(place));
        LAST.set(last);
    }
}

/// The tag has another place now, or its ranges were discarded.
pub fn forget(tag: &[u8]) {
    LAST.set(NOTHING);
    KNOWN.with_borrow_mut(|known| known.remove(tag));
}

pub fn forget_all() {
    LAST.set(NOTHING);
    KNOWN.with_borrow_mut(HashMap::clear);
}

pub fn define_callback() {
    // SAFETY: the callbacks have the right signatures, touch Rust memory only, and are never unloaded.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(on_invalidation), pg_sys::Datum::null());
        for roles in [
            pg_sys::SysCacheIdentifier::AUTHMEMROLEMEM,
            pg_sys::SysCacheIdentifier::AUTHOID,
        ] {
            pg_sys::CacheRegisterSyscacheCallback(roles as i32, Some(on_role_change), pg_sys::Datum::null());
        }
    }
}

/// Roles or memberships have changed, and rights with them.
#[pg_guard]
extern "C-unwind" fn on_role_change(_argument: pg_sys::Datum, _cache: i32, _hash: u32) {
    forget_all();
}

#[pg_guard]
extern "C-unwind" fn on_invalidation(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || TABLES.get().contains(&relation) {
        forget_all();
        leaf::forget();
    }
}
