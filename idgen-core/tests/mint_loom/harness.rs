//! Scenarios, and what must hold after each of their executions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU64 as PlainU64, Ordering::Relaxed};

use idgen_core::mint::{Identities, Policy, Request, Sequence, Session, Slot, SlowClock, TICK_MAX, mint};
use loom::sync::Arc;
use loom::thread;

/// Two ids per tick keep the state space small.
pub const SEQ_MAX: u64 = 1;

const SEQUENCE: Sequence = Sequence {
    max: SEQ_MAX,
    start_mask: 0,
};

/// No limit but the lease's: what is checked here is the word.
const POLICY: Policy = Policy {
    before: SEQUENCE,
    switch_tick: 0,
    after: SEQUENCE,
    ahead_ms_max: 1_000,
    rewind_ms_max: 1_000,
};

/// Preemptions per execution; most faults need one or two.
const PREEMPTIONS_MAX: usize = 2;

/// Readings of (wall tick, boot ms), one per call of a minter.
pub type Walls = &'static [(u64, u64)];
/// What each installer does, in order.
pub type Installers = &'static [&'static [Op]];

#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub floor: u64,
    pub ceiling: u64,
    pub dead: u64,
}

impl Lease {
    /// Installed, as generation 1, before anybody starts.
    pub const FIRST: Lease = Lease {
        floor: 10,
        ceiling: 12,
        dead: 100,
    };
}

#[derive(Clone, Copy)]
pub enum Op {
    /// Fence generation 1.
    FenceFirst,
    /// Fence what this installer has installed last.
    FenceMine,
    Install(Lease),
    /// Generation, ceiling, deadline.
    Extend(u64, u64, u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Id {
    pub tick: u64,
    pub seq: u64,
    pub generation: u64,
    /// Boot time of the call.
    pub boot: u64,
}

pub trait Layout: Send + Sync + 'static {
    type Session: Default + Send;
    fn mint(&self, session: &mut Self::Session, wall: u64, boot: u64) -> Option<Id>;
    fn fence(&self, generation: u64) -> Option<(u64, u64)>;
    fn install(&self, lease: Lease) -> Option<u64>;
    fn extend(&self, generation: u64, ceiling: u64, dead: u64);
}

/// The slot that the extension uses.
pub struct Real(Slot);

impl Real {
    pub fn new() -> Self {
        let real = Real(Slot::new());
        assert_eq!(real.install(Lease::FIRST), Some(1));
        real
    }
}

impl Layout for Real {
    type Session = Session;

    fn mint(&self, session: &mut Session, wall: u64, boot: u64) -> Option<Id> {
        let slow_clock = || SlowClock {
            boot_ms: boot,
            wall_tick_max: TICK_MAX,
            behind_ms: 0,
        };
        let request = Request {
            n: 1,
            policy: &POLICY,
            wall_tick: wall,
            slow_clock: &slow_clock,
        };
        let run = self.0.reserve(&request, 7, session, TICK_MAX).ok()?;
        Some(Id {
            tick: run.tick,
            seq: run.seq,
            generation: run.generation,
            boot,
        })
    }

    fn fence(&self, generation: u64) -> Option<(u64, u64)> {
        self.0.fence(generation)
    }

    fn install(&self, lease: Lease) -> Option<u64> {
        self.0.install(lease.floor, lease.ceiling, lease.dead).ok()
    }

    fn extend(&self, generation: u64, ceiling: u64, dead: u64) {
        self.0.extend(generation, ceiling, dead);
    }
}

/// What an installer did.
#[derive(Default)]
struct Record {
    leases: Vec<(u64, Lease)>,
    high_waters: Vec<(u64, (u64, u64))>,
}

impl Record {
    fn window(&self, generation: u64) -> Vec<Lease> {
        self.leases
            .iter()
            .filter(|(g, _)| *g == generation)
            .map(|(_, lease)| *lease)
            .collect()
    }

    fn check(&self, ids: &mut [Id]) {
        ids.sort_by_key(|id| (id.tick, id.seq));
        for pair in ids.windows(2) {
            let [a, b] = pair else { continue };
            assert!((a.tick, a.seq) != (b.tick, b.seq), "twice: {a:?} {b:?}");
        }
        for id in &*ids {
            let leases = self.window(id.generation);
            assert!(!leases.is_empty(), "of a generation never installed: {id:?}");
            let within = |lease: &&Lease| (lease.floor..=lease.ceiling).contains(&id.tick);
            let lease = leases.iter().find(within);
            let Some(lease) = lease else {
                panic!("outside its window: {id:?} {leases:?}")
            };
            // One clock per millisecond: the deadline is asked only when a new one is opened.
            let opener = |other: &Id| {
                (other.generation, other.tick) == (id.generation, id.tick)
                    && other.seq < id.seq
                    && other.boot < lease.dead
            };
            assert!(
                id.boot < lease.dead || ids.iter().any(opener),
                "after the deadline: {id:?} {lease:?}"
            );
            // With few generations a number names several; then a high water says nothing.
            if leases.len() == 1 {
                for (generation, high_water) in &self.high_waters {
                    let above = *generation == id.generation && (id.tick, id.seq) > *high_water;
                    assert!(!above, "above the high water of its fence: {id:?} {high_water:?}");
                }
            }
        }
    }
}

/// `first_closed` is no atomic of loom's: it is set and read right after the last swap of a fence and of a
/// mint, and so tells which of the two swaps came first.
fn minter<L: Layout>(layout: &L, walls: Walls, first_closed: &PlainBool, wraps: bool) -> Vec<Id> {
    let (mut session, mut ids) = (L::Session::default(), Vec::<Id>::new());
    for &(wall, boot) in walls {
        let Some(id) = layout.mint(&mut session, wall, boot) else {
            continue;
        };
        let closed = first_closed.load(Relaxed);
        assert!(
            wraps || !closed || id.generation != 1,
            "minted after its generation was closed: {id:?}"
        );
        if let Some(last) = ids.last() {
            assert!(
                (id.tick, id.seq) > (last.tick, last.seq),
                "not rising: {last:?} {id:?}"
            );
        }
        ids.push(id);
    }
    ids
}

impl Record {
    /// Whoever was late: what was installed last is open when all have returned.
    fn check_open<L: Layout>(&self, layout: &L) {
        let latest = self.leases.iter().max_by_key(|(generation, _)| *generation);
        let Some((generation, lease)) = latest else { return };
        let id = layout.mint(&mut L::Session::default(), lease.ceiling, lease.dead - 1);
        let of_latest = id.is_some_and(|id| (id.tick, id.generation) == (lease.ceiling, *generation));
        assert!(of_latest, "the latest lease is not open: {lease:?} {id:?}");
    }
}

fn installer<L: Layout>(layout: &L, ops: &[Op], first_closed: &PlainBool) -> Record {
    let mut record = Record::default();
    let mut mine = None;
    let fence = |generation, record: &mut Record| {
        if let Some(high_water) = layout.fence(generation) {
            record.high_waters.push((generation, high_water));
        }
        first_closed.store(true, Relaxed);
    };
    for op in ops {
        match *op {
            Op::FenceFirst => fence(1, &mut record),
            Op::FenceMine => {
                if let Some(generation) = mine {
                    fence(generation, &mut record);
                }
            }
            Op::Install(lease) => {
                if let Some(generation) = layout.install(lease) {
                    record.leases.push((generation, lease));
                    mine = Some(generation);
                    first_closed.store(true, Relaxed);
                }
            }
            Op::Extend(generation, ceiling, dead) => {
                // Noted first, as wide as it may become: the first lease is the only one extended.
                if generation == 1 {
                    let first = Lease::FIRST;
                    let (ceiling, dead) = (first.ceiling.max(ceiling), first.dead.max(dead));
                    record.leases.push((
                        1,
                        Lease {
                            ceiling,
                            dead,
                            ..first
                        },
                    ));
                }
                layout.extend(generation, ceiling, dead);
            }
        }
    }
    record
}

fn execution<L: Layout>(layout: L, minters: &'static [Walls], installers: Installers) -> usize {
    let layout = Arc::new(layout);
    let first_closed = std::sync::Arc::new(PlainBool::new(false));
    // With few generations the number 1 comes back, for another lease.
    let wraps = installers.iter().map(|ops| ops.len()).sum::<usize>() > 3;
    let minting = minters.iter().map(|&walls| {
        let (layout, first_closed) = (Arc::clone(&layout), std::sync::Arc::clone(&first_closed));
        thread::spawn(move || minter(&*layout, walls, &first_closed, wraps))
    });
    let minting: Vec<_> = minting.collect();
    let mut all = Record {
        leases: vec![(1, Lease::FIRST)],
        high_waters: Vec::new(),
    };
    // The first installer is this thread: one fewer to interleave.
    let (first, others) = installers.split_first().unwrap();
    let installing = others.iter().map(|&ops| {
        let (layout, first_closed) = (Arc::clone(&layout), std::sync::Arc::clone(&first_closed));
        thread::spawn(move || installer(&*layout, ops, &first_closed))
    });
    let installing: Vec<_> = installing.collect();
    let mut records = vec![installer(&*layout, first, &first_closed)];
    records.extend(installing.into_iter().map(|installer| installer.join().unwrap()));
    for record in records {
        all.leases.extend(record.leases);
        all.high_waters.extend(record.high_waters);
    }
    let mut ids: Vec<Id> = minting
        .into_iter()
        .flat_map(|minter| minter.join().unwrap())
        .collect();
    all.check(&mut ids);
    let fenced = installers
        .iter()
        .copied()
        .flatten()
        .any(|op| matches!(op, Op::FenceFirst | Op::FenceMine));
    if !fenced && !wraps {
        all.check_open(&*layout);
    }
    ids.len()
}

/// Run `body` in every interleaving within the bound; it returns how many ids it has minted. The sum of
/// those, or the message of the first execution that failed.
fn explore(bound: Option<usize>, body: impl Fn() -> usize + Send + Sync + 'static) -> Result<u64, String> {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS, read by loom, goes before a bound of ours.
    builder.preemption_bound = bound.map(|bound| builder.preemption_bound.unwrap_or(bound));
    builder.max_branches = 20_000;
    let minted = std::sync::Arc::new((PlainU64::new(0), PlainU64::new(0)));
    let count = std::sync::Arc::clone(&minted);
    let checked = catch_unwind(AssertUnwindSafe(move || {
        builder.check(move || {
            count.0.fetch_add(1, Relaxed);
            count.1.fetch_add(body() as u64, Relaxed);
        });
    }));
    let (executions, ids) = (minted.0.load(Relaxed), minted.1.load(Relaxed));
    println!("{executions} executions, {ids} ids");
    match checked {
        Ok(()) => Ok(ids),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic
                .downcast::<&str>()
                .map(|message| (*message).to_owned())
                .unwrap_or_default(),
        }),
    }
}

fn model<L: Layout>(
    make: fn() -> L,
    minters: &'static [Walls],
    installers: Installers,
    bound: Option<usize>,
) -> Result<u64, String> {
    explore(bound, move || execution(make(), minters, installers))
}

/// No execution breaks a rule, and ids are minted.
pub fn holds<L: Layout>(make: fn() -> L, minters: &'static [Walls], installers: Installers) {
    let ids = model(make, minters, installers, Some(PREEMPTIONS_MAX));
    assert!(ids.as_ref().is_ok_and(|&ids| ids > 0), "{ids:?}");
}

/// As [`holds`], without a bound on preemptions.
pub fn holds_exhaustively<L: Layout>(make: fn() -> L, minters: &'static [Walls], installers: Installers) {
    let ids = model(make, minters, installers, None);
    assert!(ids.as_ref().is_ok_and(|&ids| ids > 0), "{ids:?}");
}

/// Some execution breaks the rule named.
pub fn caught<L: Layout>(make: fn() -> L, minters: &'static [Walls], installers: Installers, rule: &str) {
    let caught = model(make, minters, installers, Some(PREEMPTIONS_MAX));
    assert!(
        caught.as_ref().is_err_and(|message| message.contains(rule)),
        "{caught:?}"
    );
}

struct Two([Slot; 2]);

impl Identities for Two {
    fn slot(&self, identity: u64) -> &Slot {
        &self.0[usize::from(identity != 0)]
    }

    fn next_active(&self, from: u64) -> Option<u64> {
        (from < 2).then_some(from)
    }
}

/// Tick, identity, sequence: how ids compare.
type Position = (u64, u64, u64);

fn session(two: &Two, preferred: u64) -> Vec<Position> {
    let slow_clock = || SlowClock {
        boot_ms: 50,
        wall_tick_max: TICK_MAX,
        behind_ms: 0,
    };
    let request = Request {
        n: 1,
        policy: &POLICY,
        wall_tick: 11,
        slow_clock: &slow_clock,
    };
    let mut session = Session::default();
    let minted = (0..3).filter_map(|_| mint(two, &request, preferred, &mut session).ok());
    minted
        .map(|minted| (minted.run.tick, minted.identity, minted.run.seq))
        .collect()
}

/// Two sessions mint from the same two slots while one of them is fenced.
pub fn two_sessions_on_two_slots() {
    let ids = explore(Some(PREEMPTIONS_MAX), || {
        let two = Arc::new(Two([Real::new().0, Real::new().0]));
        let sessions = [0, 0].map(|preferred| {
            let two = Arc::clone(&two);
            thread::spawn(move || session(&two, preferred))
        });
        let high_water = two.0[0].fence(1).unwrap();
        let mut all = Vec::new();
        for session in sessions {
            let ids = session.join().unwrap();
            assert!(ids.is_sorted_by(|a, b| a < b), "not rising: {ids:?}");
            all.extend(ids);
        }
        let fenced = all.iter().filter(|id| id.1 == 0);
        for (tick, _, seq) in fenced {
            assert!(
                (*tick, *seq) <= high_water,
                "above the high water of its fence: {tick} {seq}"
            );
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "twice: {all:?}");
        count
    });
    assert!(ids.as_ref().is_ok_and(|&ids| ids > 0), "{ids:?}");
}
