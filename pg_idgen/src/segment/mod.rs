//! `idgen_segment()`: dense ids from ranges in shared memory.
//!
//! ```text
//! idgen_segment(tag) -> cache (this backend: tag -> place) -> buffer (shared memory) -> id
//!                          | unknown tag                        | empty: ask a refill worker and wait
//!                        catalog (rights, segment uuid)         `- worker -> grant -> publish
//!                          | made by this transaction
//!                        own (grant in this transaction)
//!
//! idgen_segment_range(tag, n) -> bulk -> catalog -> a place in shared memory -> worker -> grant -> the caller
//! idgen_create/alter/seek/drop_segment -> manage -> the row; at the commit: changed -> what is in memory is discarded
//! ```

mod adopt;
mod arrives;
mod bulk;
mod cache;
mod catalog;
mod cause;
mod changed;
pub mod failure;
pub mod grant;
mod holder;
pub mod leaf;
mod left_open;
pub mod manage;
mod masters;
mod own;
pub mod requests;
pub mod roles;
mod standing;
mod view;

use crate::call::{Call, current_user, in_recovery, v1_function};
use crate::error::{Error, clip, shown};
use crate::shmem::{Place, SegmentKey, SegmentSlot, Shared, shared};
use crate::{clock, drawn, guc};
pub use catalog::read_stripes;
use cause::cause;
use failure::{Failure, Holder};
use idgen_core::clock::BootMs;
use idgen_core::segment::Take;
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

/// A waiter asks again this often: a worker that died with the request leaves no other trace.
const ASK_AGAIN_MS: u64 = 100;

v1_function!(idgen_segment, segment);

/// Hook the caches of this module into Postgres' own invalidation; once per process.
pub fn define_callbacks() {
    bulk::define_callback();
    cache::define_callback();
    changed::define_callbacks();
    own::define_callbacks();
}

#[inline(always)]
fn segment(call: Call) -> Result<pg_sys::Datum, Error> {
    let tag = call.text_bytes(0).ok_or(Error::NullArgument { name: "tag" })?;
    let user = current_user();
    let last = cache::last(tag, user);
    let id = match last.and_then(take_now) {
        Some(id) => id,
        None => find_and_take(tag, user)?,
    };
    drawn::segment_ids(user, 1);
    Ok(pg_sys::Datum::from(id))
}

/// The next id of what is in memory. `None`: there is none, or the place is void.
#[inline(always)]
fn take_now(place: Place) -> Option<i64> {
    let Some(Take::Ids { first, refill, .. }) = place.take() else {
        return None;
    };
    if refill {
        ask(place.slot);
    }
    Some(place.id(first))
}

/// How often a tag may turn out to be elsewhere than it was found a moment ago.
const MOVES_MAX: u32 = 100;

#[cold]
#[inline(never)]
fn find_and_take(tag: &[u8], user: pg_sys::Oid) -> Result<i64, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    // A session that uses many tags comes by here with each of them: no clock is read for it.
    if let Some(id) = cache::find(tag, user).and_then(take_now) {
        return Ok(id);
    }
    let began = clock::boot();
    let (mut gone, mut moved) = (0, 0);
    // Twice: a place may turn out to be of a space that is gone (a restore, a clone), and the look-up then
    // finds the new one or says that there is no such tag. More often only if others move the tag meanwhile.
    while gone < 2 && moved < MOVES_MAX {
        let place = match cache::find(tag, user) {
            Some(place) => place,
            None => {
                let found = catalog::find(&tag_name(tag), user)?;
                if own::has_made(found.segment_id) {
                    return own::take(&found);
                }
                if changed::has_changed(found.segment_id) {
                    return Err(Error::ChangedHere { tag: found.tag });
                }
                let place = place(shared, &found.key())?;
                cache::remember(tag, user, place, found.tables);
                place
            }
        };
        match wait_for_one(tag, place)? {
            Waited::Id(id) => return Ok(id),
            Waited::Gone => gone += 1,
            Waited::Moved => {
                cache::forget(tag);
                moved += 1;
            }
        }
    }
    let tag = tag_name(tag);
    if gone < 2 {
        return Err(Error::RefillTimedOut {
            tag,
            waited_ms: clock::boot().since(began),
            cause: "The tag was moved again and again.".into(),
        });
    }
    Err(Error::UnknownTag { tag })
}

/// The place in shared memory for a tag, or for the leaves of a database.
pub fn place(shared: &'static Shared, key: &SegmentKey) -> Result<Place, Error> {
    shared
        .segment(key, guc::segment_idle_ms())
        .map_err(|_full| Error::SegmentTableFull {
            segments_max: shared.segments_max(),
            idle_s: guc::segment_idle_ms() / 1_000,
        })
}

/// The place of a tag, if it has one.
fn place_in_use(key: &SegmentKey) -> Option<&'static SegmentSlot> {
    shared().and_then(|shared| shared.segment_in_use(key))
}

/// A tag as text, for catalogue and messages. No longer one exists, so it is cut to what a message can show; bytes of
/// another encoding are escaped, since a message of ours is in UTF-8.
fn tag_name(tag: &[u8]) -> String {
    match std::str::from_utf8(tag) {
        Ok(name) if tag.len() > cache::TAG_BYTES_MAX => clip(name),
        Ok(name) => name.into(),
        Err(_) => shown(tag),
    }
}

/// Tell a worker, or the launcher, that this tag needs a range.
#[cold]
pub fn ask(slot: &SegmentSlot) {
    slot.wanted.store(true, Ordering::SeqCst);
    if let Some(shared) = shared() {
        shared.wake_refill(slot.database());
    }
}

/// What came of waiting.
enum Waited {
    Id(i64),
    /// The space that the tag was found in is gone, or the tag is.
    Gone,
    /// The ranges of this place were discarded, or it is another tag's.
    Moved,
}

/// Take one; while the buffer is empty sleep until the refill has published, interruptible, not for ever.
#[cold]
#[inline(never)]
fn wait_for_one(tag: &[u8], place: Place) -> Result<Waited, Error> {
    if let Some(id) = take_now(place) {
        return Ok(Waited::Id(id));
    }
    let slot = place.slot;
    let began = clock::boot();
    let mut asked_at: Option<BootMs> = None;
    slot.set_failure(Failure::None);
    slot.prepare_to_wait();
    let outcome = loop {
        if let Some(id) = take_now(place) {
            break Ok(Waited::Id(id));
        }
        let now = clock::boot();
        let settled = settled(tag, slot, now.since(began));
        // Second: what has just been read may be about the next tag that has the place.
        if !place.is_current() {
            break Ok(Waited::Moved);
        }
        match settled {
            Some(Settled::Void) => {
                cache::forget_all();
                break Ok(Waited::Gone);
            }
            Some(Settled::Refused(error)) => break Err(error),
            None => {}
        }
        // Nobody takes the place away from those who wait.
        slot.touch(now);
        // At once after a range that others were quicker to use up, not at once after a failure.
        if slot.failure() == Failure::None
            || asked_at.is_none_or(|asked_at| now.since(asked_at) >= ASK_AGAIN_MS)
        {
            asked_at = Some(now);
            ask(slot);
        }
        let left_ms = guc::segment_wait_ms().saturating_sub(now.since(began)).max(1);
        slot.wait(left_ms.min(ASK_AGAIN_MS));
    };
    slot.stop_waiting();
    outcome
}

/// How a wait ends without an id.
enum Settled {
    /// The tag is not where this place says it is.
    Void,
    Refused(Error),
}

fn settled(tag: &[u8], slot: &SegmentSlot, waited_ms: u64) -> Option<Settled> {
    let tag = || tag_name(tag);
    match slot.failure() {
        Failure::Gone => Some(Settled::Void),
        Failure::Exhausted => {
            let limit_id = slot.limit_id.load(Ordering::Acquire);
            Some(Settled::Refused(Error::TagExhausted { tag: tag(), limit_id }))
        }
        Failure::RateLimited => {
            let until = BootMs(slot.limited_until_boot_ms.load(Ordering::Acquire));
            let retry_in_ms = until.since(clock::boot());
            // It is worth waiting if it is over in time.
            let in_time = waited_ms.saturating_add(retry_in_ms) < guc::segment_wait_ms();
            (!in_time).then(|| {
                Settled::Refused(Error::RateLimited {
                    tag: tag(),
                    limit: slot.fetch_limit.load(Ordering::Relaxed),
                    retry_in_ms,
                })
            })
        }
        Failure::Copy => Some(Settled::Refused(Error::CopyOfDatabase)),
        Failure::NotCut => Some(Settled::Refused(Error::NotCut { tag: tag() })),
        Failure::BurnTooLarge => {
            let limit_id = slot.limit_id.load(Ordering::Acquire);
            Some(Settled::Refused(Error::BurnTooLarge { tag: tag(), limit_id }))
        }
        failure @ (Failure::NoAuthority | Failure::NoCeiling) if waited_ms >= guc::segment_wait_ms() => {
            Some(Settled::Refused(Error::NoAuthority {
                tag: tag(),
                waited_ms,
                cause: cause(failure, Holder::default()),
            }))
        }
        Failure::Unwitnessed if waited_ms >= guc::segment_wait_ms() => {
            Some(Settled::Refused(Error::Unwitnessed {
                tag: tag(),
                waited_ms,
            }))
        }
        failure if waited_ms >= guc::segment_wait_ms() => {
            let cause = cause(failure, slot.holder());
            Some(Settled::Refused(Error::RefillTimedOut {
                tag: tag(),
                waited_ms,
                cause,
            }))
        }
        _ => None,
    }
}

/// The slots of one database that want a range.
pub fn wanted_in(shared: &Shared, database: u32) -> impl Iterator<Item = &SegmentSlot> {
    shared
        .segments_in_use()
        .filter(move |slot| slot.database() == database && slot.wanted.load(Ordering::SeqCst))
}
