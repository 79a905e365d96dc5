//! `idgen_uuidv7()`: state of one process, random bits drawn from the server's strong source in batches.

use crate::boundary::unix_us;
use crate::call::{Call, own_pid, uuid_result, v1_function};
use crate::clock;
use crate::error::Error;
use crate::local::Local;
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

v1_function!(idgen_uuidv7, uuidv7);
v1_function!(idgen_uuidv7_at, uuidv7_at);

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
    STATE.with(|state| {
        let random = random(state)?;
        Ok(state.generator.next(clock::wall_ns(), random))
    })
}

/// Backfill: the time is the caller's, the order is nobody's.
fn uuidv7_at(call: Call) -> Result<pg_sys::Datum, Error> {
    let at_us = unix_us(call, 0)?;
    let random = STATE.with(random)?;
    uuid_result(
        idgen_core::uuidv7::at(at_us, random).ok_or(Error::TimeOutOfRange {
            what: "a UUID version 7",
        })?,
    )
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
