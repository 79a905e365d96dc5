//! `idgen_segment_range()` and `idgen_segment_batch()`: many ids by one grant, which leaves the tag's step alone.
//!
//! A refill worker grants them, as it grants ranges, in a transaction of its own: the caller's own transaction would
//! keep the row of the tag locked until its end, and take ids back that were handed out if it is rolled back. The
//! request goes there, and the answer comes back, through shared memory (`shmem/bulk.rs`).

use super::catalog::{self, Found};
use super::grant::Bulk;
use super::requests::KEY_BYTES_MAX;
use super::{ASK_AGAIN_MS, cache, cause::cause, changed, own, place, tag_name};
use crate::call::{Call, current_database, current_user, in_recovery, nap, own_pid, v1_function};
use crate::error::Error;
use crate::segment::failure::{Failure, Holder};
use crate::shmem::{BulkAnswer, BulkRequest, Shared, leave_at_abort, shared};
use crate::transaction;
use crate::{clock, drawn, guc};
use idgen_core::clock::BootMs;
use idgen_core::segment::Places;
use pgrx::pg_sys;

v1_function!(idgen_segment_range, segment_range);
v1_function!(idgen_segment_range_keyed, segment_range_keyed);
v1_function!(idgen_segment_batch, segment_batch);
v1_function!(idgen_segment_batch_keyed, segment_batch_keyed);

/// Once per process: a request does not outlive the transaction that has made it.
pub fn define_callback() {
    transaction::tell(on_transaction_end);
}

#[pgrx::pg_guard]
extern "C-unwind" fn on_transaction_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        leave_at_abort();
    }
}

/// Most ids of one call. Far above what a load takes at a time, far below what a slip of the pen could use up.
const IDS_MAX: u64 = 100_000_000;

fn segment_range(call: Call) -> Result<pg_sys::Datum, Error> {
    multirange(range(call, Key::None)?)
}

fn segment_range_keyed(call: Call) -> Result<pg_sys::Datum, Error> {
    multirange(range(call, Key::Argument)?)
}

fn segment_batch(call: Call) -> Result<pg_sys::Datum, Error> {
    rows(call, Key::None)
}

fn segment_batch_keyed(call: Call) -> Result<pg_sys::Datum, Error> {
    rows(call, Key::Argument)
}

/// Where the request key is.
enum Key {
    None,
    /// The third argument.
    Argument,
}

fn rows(call: Call, key: Key) -> Result<pg_sys::Datum, Error> {
    call.stream(
        || range(call, key),
        |ids: &mut Places| Ok(ids.pop().map(pg_sys::Datum::from)),
    )
}

fn multirange(ids: Places) -> Result<pg_sys::Datum, Error> {
    // The last id lies below the end of bigint.
    let runs: Vec<String> = ids
        .runs()
        .map(|run| format!("[{},{})", run.first, run.last() + 1))
        .collect();
    let text = format!("{{{}}}", runs.join(","));
    let text = std::ffi::CString::new(text).map_err(|_| Error::OutOfMemory)?;
    let (mut input, mut element) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: a type of Postgres itself, and a text in its form.
    Ok(unsafe {
        pg_sys::getTypeInputInfo(pg_sys::INT8MULTIRANGEOID, &raw mut input, &raw mut element);
        pg_sys::OidInputFunctionCall(input, text.as_ptr().cast_mut(), element, -1)
    })
}

fn range(call: Call, key: Key) -> Result<Places, Error> {
    let tag = tag_name(call.text_bytes(0).ok_or(Error::NullArgument { name: "tag" })?);
    let n = count_argument(call)?;
    let request_key = match key {
        Key::None => None,
        Key::Argument => Some(key_argument(call)?),
    };
    let shared = shared().ok_or(Error::NotPreloaded)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let role = current_user();
    let bulk = Bulk {
        n,
        request_key,
        role,
        pid: own_pid(),
    };
    let ids = granted(shared, &tag, &bulk)?;
    drawn::segment_ids(role, ids.range.count);
    Ok(ids)
}

fn granted(shared: &'static Shared, tag: &str, bulk: &Bulk<'_>) -> Result<Places, Error> {
    // Twice: the space may turn out to be gone (a restore, a clone), and the look-up then finds the new one.
    for _ in 0..2 {
        let found = catalog::find(tag, bulk.role)?;
        if own::has_made(found.segment_id) {
            return own::take_range(&found, bulk);
        }
        if changed::has_changed(found.segment_id) {
            return Err(Error::ChangedHere { tag: tag.into() });
        }
        if let Some(ids) = ask_until_granted(shared, &found, bulk)? {
            return Ok(ids);
        }
    }
    Err(Error::UnknownTag { tag: tag.into() })
}

fn count_argument(call: Call) -> Result<u64, Error> {
    let n = call.bigint(1).ok_or(Error::NullArgument { name: "n" })?;
    u64::try_from(n)
        .ok()
        .filter(|n| (1..=IDS_MAX).contains(n))
        .ok_or_else(|| Error::InvalidParameter {
            message: format!("n must be between 1 and {IDS_MAX}, not {n}"),
            hint: "Call it once for each part of a larger load.",
        })
}

fn key_argument<'a>(call: Call) -> Result<&'a str, Error> {
    let key = call.text(2)?.ok_or(Error::NullArgument { name: "request_key" })?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::InvalidParameter {
            message: format!("a request key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len()),
            hint: "Name the job that the ids are for, or use a uuid that is kept with it.",
        });
    }
    Ok(key)
}

/// `None`: the tag is not where it was found; look it up again.
fn ask_until_granted(
    shared: &'static Shared,
    found: &Found,
    bulk: &Bulk<'_>,
) -> Result<Option<Places>, Error> {
    // A place of its own, so that memory remembers how far the tag was granted.
    place(shared, &found.key())?;
    let request = BulkRequest::new(
        found.key(),
        bulk.n,
        bulk.role.to_u32(),
        bulk.pid,
        bulk.request_key,
    );
    let began = clock::boot();
    let mut held_up = HeldUp::NotServed;
    loop {
        let tag = || found.tag.clone();
        held_up = match ask_once(shared, request, began, held_up) {
            Ok(BulkAnswer::Granted(ids)) => return Ok(Some(ids)),
            // Also of a tag whose place was given to another one while it waited.
            Ok(BulkAnswer::Gone) => {
                cache::forget_all();
                return Ok(None);
            }
            Ok(BulkAnswer::Exhausted { limit_id }) => {
                let n = bulk.n;
                return Err(Error::TooFewLeft {
                    tag: tag(),
                    n,
                    limit_id,
                });
            }
            Ok(BulkAnswer::KeyTaken { n }) => return Err(Error::RequestKeyTaken { n }),
            Ok(BulkAnswer::RateLimited { limit, until }) => {
                let retry_in_ms = until.since(clock::boot());
                if retry_in_ms > left_ms(began) {
                    return Err(Error::RateLimited {
                        tag: tag(),
                        limit,
                        retry_in_ms,
                    });
                }
                HeldUp::by(Failure::RateLimited)
            }
            Ok(BulkAnswer::NotCut) => return Err(Error::NotCut { tag: tag() }),
            Ok(BulkAnswer::Copy) => return Err(Error::CopyOfDatabase),
            Ok(BulkAnswer::BurnTooLarge { limit_id }) => {
                return Err(Error::BurnTooLarge { tag: tag(), limit_id });
            }
            Ok(BulkAnswer::NoAuthority) => HeldUp::by(Failure::NoAuthority),
            Ok(BulkAnswer::NoCeiling) => HeldUp::by(Failure::NoCeiling),
            Ok(BulkAnswer::Unwitnessed) => HeldUp::by(Failure::Unwitnessed),
            Ok(BulkAnswer::Locked { failure, holder }) => HeldUp::By(failure, holder),
            Ok(BulkAnswer::Error) => HeldUp::by(Failure::Error),
            Ok(BulkAnswer::NoWorker) => HeldUp::by(Failure::NoWorker),
            Err(held_up) => return Err(held_up.error(tag(), clock::boot().since(began))),
        };
        // Whatever it was, it is not over at once; nothing tells when it is.
        nap(ASK_AGAIN_MS.min(left_ms(began).max(1)));
    }
}

/// Why there are no ids yet.
#[derive(Clone, Copy)]
enum HeldUp {
    NoPlace,
    NotServed,
    By(Failure, Holder),
}

impl HeldUp {
    fn by(failure: Failure) -> Self {
        Self::By(failure, Holder::default())
    }

    /// The time is over.
    fn error(self, tag: String, waited_ms: u64) -> Error {
        let cause = match self {
            Self::NoPlace => "Too many sessions ask for many ids at once.".into(),
            Self::NotServed => cause(Failure::None, Holder::default()),
            Self::By(failure, holder) => cause(failure, holder),
        };
        match self {
            Self::By(Failure::NoAuthority | Failure::NoCeiling, _) => Error::NoAuthority {
                tag,
                waited_ms,
                cause,
            },
            Self::By(Failure::Unwitnessed, _) => Error::Unwitnessed { tag, waited_ms },
            _ => Error::RefillTimedOut {
                tag,
                waited_ms,
                cause,
            },
        }
    }
}

fn left_ms(began: BootMs) -> u64 {
    guc::segment_wait_ms().saturating_sub(clock::boot().since(began))
}

/// Leave the request and wait for its answer. `Err`: the time is over; what held it up before counts if nothing else
/// did since.
fn ask_once(
    shared: &'static Shared,
    request: BulkRequest,
    began: BootMs,
    before: HeldUp,
) -> Result<BulkAnswer, HeldUp> {
    let freed = shared.bulk.freed();
    freed.prepare();
    let asked = loop {
        if let Some(asked) = shared.bulk.ask(request) {
            break Some(asked);
        }
        let left_ms = left_ms(began);
        if left_ms == 0 {
            break None;
        }
        freed.wait(left_ms);
    };
    freed.stop();
    let asked = asked.ok_or(HeldUp::NoPlace)?;
    let answered = asked.answered();
    answered.prepare();
    let answer = loop {
        if let Some(answer) = asked.answer() {
            break Ok(answer);
        }
        let left_ms = left_ms(began);
        if left_ms == 0 {
            break Err(before);
        }
        // Again and again: a worker that died has not heard of it.
        shared.wake_refill(current_database());
        answered.wait(left_ms.min(ASK_AGAIN_MS));
    };
    answered.stop();
    answer
}
