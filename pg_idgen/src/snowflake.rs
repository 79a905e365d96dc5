//! `idgen_snowflake()`: the clock, one compare-and-swap, and what to do when there is no lease.

use crate::call::{Call, nap, v1_function};
use crate::error::Error;
use crate::shmem::{Shared, shared};
use crate::{clock, guc};
use idgen_core::format::{CLASSIC, Format};
use idgen_core::mint::{Identities, Minted, Policy, Refusal, Request, Session, SlowClock, TICK_MAX, mint};
use pgrx::pg_sys;
use std::cell::Cell;

/// The worker format that this release mints. A cell of another one is refused at install.
pub const WORKER_FORMAT: &Format = &CLASSIC;

/// Naps while waiting for a lease: short beside the daemon's poll, long beside a wake-up.
const LEASE_NAP_MS: u64 = 5;

/// A clock that gives no new millisecond for this long is broken.
const MILLISECOND_WAIT_MS: u64 = 2_000;

thread_local! {
    static SESSION: Cell<Session> = const { Cell::new(Session::new()) };
    static PREFERRED: Cell<Option<u64>> = const { Cell::new(None) };
}

v1_function!(idgen_snowflake, snowflake);

#[inline(always)]
fn snowflake(_call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let minted = match attempt(shared, 1) {
        Ok(minted) => minted,
        Err(refusal) => persist(shared, 1, refusal)?,
    };
    Ok(pg_sys::Datum::from(id_of(&minted)))
}

/// Up to `n` consecutive ids: the first, and how many.
///
/// # Errors
/// As `idgen_snowflake()`.
pub fn mint_run(shared: &Shared, n: u64) -> Result<(i64, u64), Error> {
    let minted = attempt(shared, n).or_else(|refusal| persist(shared, n, refusal))?;
    Ok((id_of(&minted), minted.run.len))
}

/// The id of the first sequence of a run. The fields fit by construction: the tick is below the ceiling, which
/// install checks against the format, the identity below the table's size, the sequence below the policy's.
#[inline(always)]
fn id_of(minted: &Minted) -> i64 {
    let Minted { run, identity } = minted;
    (run.tick << WORKER_FORMAT.ts_shift() | identity << WORKER_FORMAT.node_shift() | run.seq).cast_signed()
}

/// A wall time in ticks of the worker format, within what the mint word holds.
fn tick_of(wall_ms: u64) -> u64 {
    wall_ms.saturating_sub(WORKER_FORMAT.epoch.0).min(TICK_MAX)
}

#[inline(always)]
fn attempt(shared: &Shared, n: u64) -> Result<Minted, Refusal> {
    let policy = Policy::for_seq_max(WORKER_FORMAT.seq_max(), guc::max_clock_rewind_ms());
    let slow_clock = || {
        let boot = clock::boot();
        SlowClock {
            boot_ms: boot.0,
            wall_tick_max: tick_of(shared.anchor().ceiling(boot).0),
        }
    };
    let request = Request {
        n,
        policy: &policy,
        wall_tick: tick_of(clock::wall().0),
        slow_clock: &slow_clock,
    };
    let preferred = PREFERRED.get().unwrap_or_else(|| choose_preferred(shared));
    let mut session = SESSION.get();
    let minted = mint(shared, &request, preferred, &mut session);
    SESSION.set(session);
    minted
}

/// Where this session begins: sessions are dealt over the identities so that they do not contend.
#[cold]
fn choose_preferred(shared: &Shared) -> u64 {
    let count = shared.active_count();
    if count == 0 {
        return 0;
    }
    let mut identity = shared.next_active(0).unwrap_or(0);
    for _ in 0..std::process::id() % count {
        identity = shared.next_active(identity + 1).unwrap_or(identity);
    }
    PREFERRED.set(Some(identity));
    identity
}

/// The first attempt was refused: wait where waiting can help, outside any lock, interruptible and bounded.
#[cold]
#[inline(never)]
fn persist(shared: &Shared, n: u64, first: Refusal) -> Result<Minted, Error> {
    if crate::call::in_recovery() {
        return Err(Error::InRecovery);
    }
    let began = clock::boot();
    let mut refusal = first;
    let mut looked_twice = false;
    loop {
        let now = clock::boot();
        let waited_ms = now.since(began);
        let nap_ms = match refusal {
            Refusal::Wait | Refusal::TickFull if waited_ms < MILLISECOND_WAIT_MS => 1,
            Refusal::Wait | Refusal::TickFull => return Err(Error::MillisecondWait { waited_ms }),
            // The wall was read before the word was: a process that slept in between looks a second time.
            Refusal::ClockBehind { .. } if !looked_twice => {
                looked_twice = true;
                0
            }
            Refusal::ClockBehind { behind_ms } => {
                return Err(Error::ClockBehind {
                    behind_ms,
                    limit_ms: guc::max_clock_rewind_ms(),
                });
            }
            Refusal::NoLease | Refusal::DeadlinePassed | Refusal::WindowUsedUp => {
                let left_ms = guc::lease_wait_ms().saturating_sub(waited_ms);
                if left_ms == 0 || !shared.daemon_presumed(now) {
                    return Err(without_lease(refusal, waited_ms));
                }
                left_ms.min(LEASE_NAP_MS)
            }
        };
        if nap_ms > 0 {
            nap(nap_ms);
        }
        match attempt(shared, n) {
            Ok(minted) => return Ok(minted),
            Err(next) => refusal = next,
        }
    }
}

fn without_lease(refusal: Refusal, waited_ms: u64) -> Error {
    match refusal {
        Refusal::WindowUsedUp if tick_of(clock::wall().0) > WORKER_FORMAT.last_tick => Error::EndOfEpoch {
            format: WORKER_FORMAT.name,
        },
        Refusal::WindowUsedUp => Error::WindowUsedUp,
        Refusal::DeadlinePassed => Error::DeadlinePassed { waited_ms },
        _ => Error::NoLease { waited_ms },
    }
}
