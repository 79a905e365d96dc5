//! `idgen_uuidv7()`: state of one process, random bits drawn from the server's strong source in batches.

use crate::boundary::unix_us;
use crate::call::{Call, own_pid, uuid_result, v1_function};
use crate::clock;
use crate::error::Error;
use crate::local::Local;
use crate::parse::POSTGRES_EPOCH_MS;
use idgen_core::uuidv7::{Generator, RandomPool};
use pgrx::pg_sys;

struct State {
    generator: Generator,
    pool: RandomPool,
    /// Process that the state belongs to; a fork must not go on with its parent's random bytes.
    pid: i32,
}

static STATE: Local<State> = Local::new(State {
    generator: Generator::new(),
    pool: RandomPool::new(),
    pid: 0,
});

/// `work` is a closure of this file.
#[inline(always)]
fn with_state<R>(work: impl FnOnce(&mut State) -> R) -> R {
    // SAFETY: those touch the generator and the pool, read a clock, and draw from Postgres' strong random source,
    // which calls nobody back; none comes here again.
    unsafe { STATE.with(work) }
}

v1_function!(idgen_uuidv7, uuidv7);
v1_function!(idgen_uuidv7_at, uuidv7_at);
v1_function!(idgen_uuidv7_shifted, uuidv7_shifted);

#[inline(always)]
fn uuidv7(_call: Call) -> Result<pg_sys::Datum, Error> {
    uuid_result(next()?)
}

/// The next UUID of this process.
///
/// # Errors
/// XX000 when the strong random source fails.
#[inline(always)]
pub fn next() -> Result<[u8; 16], Error> {
    with_state(|state| {
        let random = random(state)?;
        Ok(state.generator.next(clock::wall_ns(), random))
    })
}

/// Backfill: the time is the caller's, the order is nobody's.
fn uuidv7_at(call: Call) -> Result<pg_sys::Datum, Error> {
    let at_us = unix_us(call, 0)?;
    let random = with_state(random)?;
    uuid_result(
        idgen_core::uuidv7::at(at_us, random).ok_or(Error::TimeOutOfRange {
            what: "a UUID version 7",
        })?,
    )
}

/// The next UUID, moved in time; what rises still does, as long as the shift is the same.
fn uuidv7_shifted(call: Call) -> Result<pg_sys::Datum, Error> {
    let null = || Error::NullArgument { name: "shift" };
    let out_of_range = || Error::TimeOutOfRange {
        what: "a UUID version 7",
    };
    let shift = call.datum(0).ok_or_else(null)?;
    // By the calendar of the session's time zone, as everywhere in Postgres: a day may have 23 hours.
    let now_us = (clock::wall_ns() / 1_000).cast_signed() - POSTGRES_EPOCH_MS * 1_000;
    let arguments = [Some(pg_sys::Datum::from(now_us)), Some(shift)];
    // SAFETY: the function takes a timestamptz and an interval and gives a timestamptz.
    let moved_us = unsafe { pgrx::direct_function_call::<i64>(pg_sys::timestamptz_pl_interval, &arguments) };
    let delta_us = moved_us
        .ok_or_else(null)?
        .checked_sub(now_us)
        .ok_or_else(out_of_range)?;
    uuid_result(idgen_core::uuidv7::shifted(&next()?, delta_us).ok_or_else(out_of_range)?)
}

/// Bits of the server's strong random source, used here for the first and last time.
///
/// # Errors
/// XX000 when the source fails.
pub fn random_words<const N: usize>() -> Result<[u64; N], Error> {
    with_state(|state| {
        let mut words = [0; N];
        for word in &mut words {
            *word = random(state)?;
        }
        Ok(words)
    })
}

#[inline(always)]
fn random(state: &mut State) -> Result<u64, Error> {
    let pid = own_pid();
    match state.pool.take() {
        Some(random) if state.pid == pid => Ok(random),
        _ => draw(state, pid),
    }
}

#[cold]
fn draw(state: &mut State, pid: i32) -> Result<u64, Error> {
    if state.pid != pid {
        *state = State {
            generator: Generator::new(),
            pool: RandomPool::new(),
            pid,
        };
    }
    let failed = || Error::Internal {
        message: "the server's strong random source failed".into(),
    };
    state.pool.try_refill(|bytes| {
        // SAFETY: writes exactly the bytes of the slice.
        if unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), bytes.len()) } {
            Ok(())
        } else {
            Err(failed())
        }
    })?;
    state.pool.take().ok_or_else(failed)
}
