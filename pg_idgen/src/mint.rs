//! Minting for this backend: the clocks, one attempt after the other, and what to do when there is no lease.
//! The rules are `idgen_core::mint`'s.

use crate::call::{current_user, in_recovery, nap};
use crate::error::Error;
use crate::local::Local;
use crate::shmem::{Identity, Kind, Shared};
use crate::{clock, drawn, guc};
use idgen_core::clock::{BootMs, UnixMs};
use idgen_core::format::SHARDED;
use idgen_core::format::layout::{Layout, moment_of, tick_of};
use idgen_core::mint::{
    AHEAD_MS_MAX, Identities, Lanes, Minted, NO_LIMIT, Policy, Refusal, Request, Sequence, Session,
    SlowClock, mint_within,
};
use std::sync::atomic::Ordering::Relaxed;

/// Naps while waiting for a lease: short beside the daemon's poll, long beside a wake-up.
const LEASE_NAP_MS: u64 = 5;

/// A clock that gives no new millisecond for this long is broken.
const MILLISECOND_WAIT_MS: u64 = 2_000;

/// Ids of shards are in one format for ever.
const SHARD_LAYOUT: Layout = Layout::of(&SHARDED, 0);
const SHARD_SEQUENCE: Sequence = SHARD_LAYOUT.sequence();

/// Rising order of this backend's ids, and where it begins.
static SESSION: Local<Session> = Local::new(Session::new());
static PREFERRED: Local<Option<u64>> = Local::new(None);

/// Who is to mint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The workers of this server.
    Workers,
    /// Those that `idgen.bulk_slots` sets apart.
    BulkWorkers,
    /// One logical shard, below [`crate::shmem::SHARDS`].
    Shard(u16),
}

/// Consecutive ids.
#[derive(Clone, Copy)]
pub struct Ids {
    first: i64,
    pub len: u64,
}

impl Ids {
    pub const NONE: Self = Self { first: 0, len: 0 };

    /// The lowest, which must be there.
    #[inline(always)]
    pub fn take_first(&mut self) -> i64 {
        let first = self.first;
        // The last id has no successor that anybody uses.
        self.first = first.wrapping_add(1);
        self.len -= 1;
        first
    }
}

/// Up to `n` (at least 1) consecutive ids, larger than any that this session has had from `source`.
///
/// # Errors
/// No lease, a clock that is wrong, recovery: see `docs/errors.md`, IG001 to IG004, IG010, IG012, IG014, IG015.
#[inline(always)]
pub fn ids(shared: &Shared, source: Source, n: u64) -> Result<Ids, Error> {
    loop {
        let minted = match attempt(shared, source, n) {
            Ok(minted) => minted,
            Err(refusal) => persist(shared, source, n, refusal)?,
        };
        if let Some(ids) = ids_of(shared, source, &minted) {
            drawn::snowflakes(source, identity_of(source, &minted), current_user(), ids.len);
            return Ok(ids);
        }
    }
}

fn identity_of(source: Source, minted: &Minted) -> Identity {
    match source {
        Source::Workers | Source::BulkWorkers => Identity {
            kind: Kind::Worker,
            number: minted.identity as u16,
        },
        Source::Shard(shard) => Identity::of_shard(shard),
    }
}

/// The run as ids. `None`: it was claimed by the rules of a format that its tick does not have (this process
/// had slept through the announcement of a switch); it is burnt.
#[inline(always)]
fn ids_of(shared: &Shared, source: Source, minted: &Minted) -> Option<Ids> {
    let Minted { run, identity } = minted;
    let layout = match source {
        Source::Shard(_) => &SHARD_LAYOUT,
        Source::Workers | Source::BulkWorkers => &shared.formats.at(run.tick)?.layout,
    };
    if run.seq + run.len - 1 > layout.seq_max() {
        burn(shared, run.len);
        return None;
    }
    Some(Ids {
        first: layout.id(run.tick, *identity, run.seq),
        len: run.len,
    })
}

/// `len` claimed ids are not given out.
#[cold]
pub fn burn(shared: &Shared, len: u64) {
    shared.stats.burnt.fetch_add(len, Relaxed);
}

#[inline(always)]
fn attempt(shared: &Shared, source: Source, n: u64) -> Result<Minted, Refusal> {
    let (before, switch_tick, after) = match source {
        Source::Shard(_) => (SHARD_SEQUENCE, 0, SHARD_SEQUENCE),
        Source::Workers | Source::BulkWorkers => {
            let latest = shared.formats.latest().ok_or(Refusal::NoLease)?;
            (latest.before, latest.from_tick, latest.sequence)
        }
    };
    let policy = Policy {
        before,
        switch_tick,
        after,
        ahead_ms_max: AHEAD_MS_MAX,
        rewind_ms_max: guc::clock_rewind_ms_max(),
    };
    let slow_clock = || slow_clock(shared);
    let request = Request {
        n,
        policy: &policy,
        wall_tick: tick_of(clock::wall()),
        slow_clock: &slow_clock,
    };
    let minted = match source {
        Source::Workers | Source::BulkWorkers => by_workers(shared, source, &request),
        Source::Shard(shard) => by_shard(shared, shard, &request),
    }?;
    if minted.run.tick > request.wall_tick {
        note_lead(shared, minted.run.tick);
    }
    Ok(minted)
}

#[inline(always)]
fn by_workers(shared: &Shared, source: Source, request: &Request<'_>) -> Result<Minted, Refusal> {
    let leases = shared.leases();
    let preferred = match PREFERRED.get() {
        Some(preferred) => preferred,
        None => choose_preferred(shared),
    };
    let lanes = match guc::bulk_slots() {
        0 => Lanes::ALL,
        wanted => lanes(shared, source, wanted),
    };
    // A copy: the mint reads clocks, and nothing else may hold the session meanwhile.
    let mut session = SESSION.get();
    let mut minted = mint_within(leases, request, &lanes, preferred, &mut session);
    // Lanes are for fairness among workers that can mint; one whose lease has run out keeps nobody from the others.
    if lanes != Lanes::ALL && minted.is_err_and(is_of_lease) {
        minted = mint_within(leases, request, &Lanes::ALL, preferred, &mut session);
    }
    SESSION.set(session);
    minted
}

/// It comes from the lease, not from the clock or the traffic.
fn is_of_lease(refusal: Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NoLease | Refusal::DeadlinePassed | Refusal::WindowUsedUp
    )
}

/// Order holds per shard, which its one slot sees to: a session's ids of other shards are no concern of it.
fn by_shard(shared: &Shared, shard: u16, request: &Request<'_>) -> Result<Minted, Refusal> {
    let identity = Identity::of_shard(shard);
    let (waiting, mut session) = SHARD_WAIT.get();
    // What the session notes of a wait for the next tick is for one shard.
    if waiting != shard {
        session = Session::new();
    }
    let run = shared
        .leases()
        .slot_of(identity)
        .reserve(request, u64::from(shard), &mut session, NO_LIMIT);
    SHARD_WAIT.set((shard, session));
    Ok(Minted {
        run: run?,
        identity: u64::from(shard),
    })
}

static SHARD_WAIT: Local<(u16, Session)> = Local::new((0, Session::new()));

/// Both clocks, looked at where a new tick is to be opened.
fn slow_clock(shared: &Shared) -> SlowClock {
    let seen = shared.stats.wall.seen();
    let boot = clock::boot();
    let believed = shared.anchor().ceiling(boot);
    let behind_ms = shared.stats.wall.observe(seen, clock::wall().min(believed));
    SlowClock {
        boot_ms: boot.0,
        wall_tick_max: tick_of(believed),
        behind_ms,
    }
}

#[cold]
fn note_lead(shared: &Shared, tick: u64) {
    let lead_ms = moment_of(tick).since(shared.stats.wall.seen());
    if lead_ms > shared.stats.lead_ms_max.load(Relaxed) {
        shared.stats.lead_ms_max.fetch_max(lead_ms, Relaxed);
    }
}

/// The `wanted` highest workers are for batches and for what spills over, the others for single ids. One is
/// always left for these.
#[cold]
fn lanes(shared: &Shared, source: Source, wanted: u32) -> Lanes {
    let leases = shared.leases();
    let bulk = wanted.min(leases.active_count().saturating_sub(1));
    let boundary = match bulk {
        0 => None,
        bulk => leases.nth_highest_active(bulk),
    };
    let Some(boundary) = boundary else {
        return Lanes::ALL;
    };
    let bulk = (boundary, u64::MAX);
    match source {
        Source::BulkWorkers => Lanes {
            home: bulk,
            spill: bulk,
        },
        _ => Lanes {
            home: (0, boundary),
            spill: bulk,
        },
    }
}

/// Where this session begins its ticks: sessions are dealt over the lower half of the workers. They do not contend
/// there, and have the upper half for what they spill: within a tick only a higher identity keeps their order.
#[cold]
fn choose_preferred(shared: &Shared) -> u64 {
    let leases = shared.leases();
    let active = leases.active_count();
    let serving = active.saturating_sub(guc::bulk_slots()).max(1);
    if active == 0 {
        return 0;
    }
    let homes = serving / 2 + 1;
    // Process ids come in sequence: with their bits reversed they lie far apart (van der Corput).
    let nth = (u64::from(std::process::id().reverse_bits()) * u64::from(homes)) >> u32::BITS;
    let mut identity = leases.next_active(0).unwrap_or(0);
    for _ in 0..nth {
        identity = leases.next_active(identity + 1).unwrap_or(identity);
    }
    PREFERRED.set(Some(identity));
    identity
}

/// The first attempt was refused: wait where waiting can help, outside any lock, interruptible and bounded.
#[cold]
#[inline(never)]
fn persist(shared: &Shared, source: Source, n: u64, first: Refusal) -> Result<Minted, Error> {
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let mut began = clock::boot();
    count_wait(shared, first);
    let mut refusal = first;
    let mut looked_twice = false;
    loop {
        let now = clock::boot();
        let nap_ms = next_step(shared, source, refusal, now, now.since(began), looked_twice)?;
        looked_twice |= nap_ms == 0;
        if nap_ms > 0 {
            // Before, because a nap may end in a cancelled statement.
            shared.stats.waited_ms.fetch_add(nap_ms, Relaxed);
            nap(nap_ms);
        }
        match attempt(shared, source, n) {
            Ok(minted) => return Ok(minted),
            Err(next) => {
                // Each kind of wait has a limit of its own.
                if is_of_lease(next) != is_of_lease(refusal) {
                    began = clock::boot();
                }
                refusal = next;
            }
        }
    }
}

fn count_wait(shared: &Shared, first: Refusal) {
    let counter = match first {
        Refusal::Wait | Refusal::TickFull => &shared.stats.exhaustions,
        Refusal::NoLease | Refusal::DeadlinePassed | Refusal::WindowUsedUp => &shared.stats.lease_waits,
        Refusal::ClockBehind { .. } => return,
    };
    counter.fetch_add(1, Relaxed);
}

/// How long to nap before the next attempt; 0: look again at once.
fn next_step(
    shared: &Shared,
    source: Source,
    refusal: Refusal,
    now: BootMs,
    waited_ms: u64,
    looked_twice: bool,
) -> Result<u64, Error> {
    match refusal {
        Refusal::Wait | Refusal::TickFull if waited_ms < MILLISECOND_WAIT_MS => Ok(1),
        Refusal::Wait | Refusal::TickFull => Err(Error::MillisecondWait { waited_ms }),
        // The wall was read before the word was: a process that slept in between looks a second time.
        Refusal::ClockBehind { .. } if !looked_twice => Ok(0),
        Refusal::ClockBehind { behind_ms } => Err(Error::ClockBehind {
            behind_ms,
            limit_ms: guc::clock_rewind_ms_max(),
        }),
        Refusal::NoLease | Refusal::DeadlinePassed | Refusal::WindowUsedUp => {
            let left_ms = guc::lease_wait_ms().saturating_sub(waited_ms);
            if left_ms == 0 || shared.is_drained() || !may_come(shared, source, refusal, now) {
                return Err(without_lease(shared, source, refusal, waited_ms));
            }
            Ok(left_ms.min(LEASE_NAP_MS))
        }
    }
}

/// Is a lease likely to come (back) within the time that a caller waits?
fn may_come(shared: &Shared, source: Source, refusal: Refusal, now: BootMs) -> bool {
    let Source::Shard(shard) = source else {
        return shared.daemon_presumed(now);
    };
    let identity = Identity::of_shard(shard);
    // Its lease has run out, or nobody has looked after shards here for long enough: it may be on its way. Otherwise
    // it belongs elsewhere, and waiting would only hold up the error.
    let ran_out = refusal != Refusal::NoLease && shared.leases().token(identity).token().is_some();
    let expected = ran_out || !shared.is_settled(Kind::Shard, now);
    expected && shared.daemon_presumed(now)
}

fn without_lease(shared: &Shared, source: Source, refusal: Refusal, waited_ms: u64) -> Error {
    match (refusal, source) {
        (Refusal::WindowUsedUp, _) => match ended_format(shared, source, clock::wall()) {
            Some(format) => Error::EndOfEpoch { format },
            None => Error::WindowUsedUp,
        },
        (Refusal::DeadlinePassed, _) => Error::DeadlinePassed { waited_ms },
        (_, Source::Shard(shard)) => Error::ShardNotLeased { shard, waited_ms },
        _ => match shared.drained() {
            Some(why) => Error::Drained { why },
            None => Error::NoLease { waited_ms },
        },
    }
}

/// The format, if its life is over.
fn ended_format(shared: &Shared, source: Source, now: UnixMs) -> Option<String> {
    let (format, last_tick) = match source {
        Source::Shard(_) => (SHARDED.name, SHARD_LAYOUT.last_tick()),
        Source::Workers | Source::BulkWorkers => {
            let latest = shared.formats.latest()?;
            (latest.cell_format.format().name, latest.layout.last_tick())
        }
    };
    (now > moment_of(last_tick)).then(|| format.to_string())
}

/// The highest ceiling that ids of this kind may have: no format is used past its end.
pub fn last_tick(shared: &Shared, kind: Kind) -> u64 {
    match kind {
        Kind::Shard => SHARD_LAYOUT.last_tick(),
        Kind::Worker => shared
            .formats
            .latest()
            .map_or(0, |latest| latest.layout.last_tick()),
    }
}
