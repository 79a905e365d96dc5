//! 2^22 ids as fast as they come, on a clock that goes on by what a call costs.
//!
//! On a real machine a session that is not let run for ten milliseconds has lost them, and no measurement
//! from outside tells that from a sequence that the mint forgot. So time is virtual here: each call costs
//! what was measured on a server (about 200 ns with all that the executor does, 60 ns inside a run that was
//! claimed at once), and a nap of one millisecond takes as much longer as a timer of a busy host does.
//! That ids of one session rise on a real server, over its slots, is shown by the end-to-end tests (`order`).
//!
//! Capacity: the sequences from the first full millisecond to the last. A gap is one that nobody got.
//! The seed of the naps is printed; `IDGEN_SEED=N` repeats a run.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test crate")]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use idgen_core::mint::{
    Identities, Minted, Policy, Refusal, Request, Session, Slot, SlowClock, TICK_MAX, mint,
};

const IDS: u64 = 1 << 22;
const NS_PER_MS: u64 = 1_000_000;
const START_TICK: u64 = 205_000_000_000;
/// An interruptible wait of a millisecond, woken by a timer: up to this much late.
const NAP_LATE_NS_MAX: u64 = 900_000;
/// DESIGN: of what one worker can give, no more than this share is lost.
const GAP_PERCENT_MAX: u64 = 2;

struct Slots(Vec<Slot>);

impl Slots {
    fn leased(count: usize) -> Self {
        let slots = Slots((0..count).map(|_| Slot::new()).collect());
        for slot in &slots.0 {
            slot.install(START_TICK, TICK_MAX, TICK_MAX).unwrap();
        }
        slots
    }
}

impl Identities for Slots {
    fn slot(&self, identity: u64) -> &Slot {
        &self.0[usize::try_from(identity).unwrap()]
    }

    fn next_active(&self, from: u64) -> Option<u64> {
        (from < self.0.len() as u64).then_some(from)
    }
}

/// What a session has been given, and how long it took.
struct Lap {
    /// Ids per identity and tick.
    used: BTreeMap<(u64, u64), u64>,
    elapsed_ns: u64,
    naps: u64,
}

fn seed() -> u64 {
    let given = std::env::var("IDGEN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0)) | 1;
    println!("IDGEN_SEED={seed}");
    seed
}

/// One session that wants [`IDS`] ids, at most `run_max` by a call, and naps when it has to wait.
fn lap(slots: &Slots, policy: &Policy, run_max: u64, call_ns: u64, id_ns: u64) -> Lap {
    let mut random = seed();
    let mut session = Session::new();
    let (mut now_ns, mut left, mut last) = (0, IDS, (0, 0, 0));
    let (mut used, mut naps) = (BTreeMap::new(), 0);
    while left > 0 {
        let now_ms = now_ns / NS_PER_MS;
        let slow_clock = || SlowClock {
            boot_ms: now_ms,
            wall_tick_max: TICK_MAX,
            behind_ms: 0,
        };
        let request = Request {
            n: left.min(run_max),
            policy,
            wall_tick: START_TICK + now_ms,
            slow_clock: &slow_clock,
        };
        match mint(slots, &request, 0, &mut session) {
            Ok(Minted { run, identity }) => {
                assert!((run.tick, identity, run.seq) > last, "{last:?} then {run:?}");
                last = (run.tick, identity, run.seq + run.len - 1);
                *used.entry((identity, run.tick)).or_insert(0) += run.len;
                left -= run.len;
                now_ns += call_ns + run.len * id_ns;
            }
            Err(Refusal::Wait) => {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                now_ns += NS_PER_MS + random % NAP_LATE_NS_MAX;
                naps += 1;
            }
            Err(refusal) => panic!("{refusal:?} after {} ids", IDS - left),
        }
    }
    Lap {
        used,
        elapsed_ns: now_ns,
        naps,
    }
}

/// Sequences that nobody got, in percent of what this identity had between its first and its last tick. The
/// first begins at a mixed offset and the last may not be finished: neither is counted.
fn gap_percent(lap: &Lap, identity: u64, seq_max: u64) -> f64 {
    let ticks = || lap.used.range((identity, 0)..=(identity, u64::MAX));
    let (first, last) = (ticks().next().unwrap().0.1, ticks().next_back().unwrap().0.1);
    let got: u64 = ticks()
        .filter(|((_, tick), _)| (first + 1..last).contains(tick))
        .map(|(_, ids)| ids)
        .sum();
    let capacity = (last - first - 1) * (seq_max + 1);
    100.0 - 100.0 * got as f64 / capacity as f64
}

#[test]
fn a_session_faster_than_its_slot_leaves_no_gap() {
    for (seq_max, run_max, call_ns, id_ns) in [
        (4_095, 1, 200, 0),
        (4_095, 4_096, 200, 60),
        (1_023, 1, 200, 0),
        (511, 512, 200, 60),
    ] {
        let policy = Policy::for_seq_max(seq_max, 10_000);
        let lap = lap(&Slots::leased(1), &policy, run_max, call_ns, id_ns);
        assert!(
            lap.naps > 100,
            "it never had to wait, so it was not at full speed"
        );
        let gap = gap_percent(&lap, 0, seq_max);
        assert!(
            gap <= GAP_PERCENT_MAX as f64,
            "{seq_max}, {run_max} a call: {gap} % lost"
        );
        let ms = lap.elapsed_ns / NS_PER_MS;
        let least = IDS / (seq_max + 1);
        assert!(
            ms <= least * (100 + GAP_PERCENT_MAX) / 100,
            "{ms} ms for what needs {least}"
        );
    }
}

/// With eight slots nothing holds a session up: each millisecond goes on where the one slot is used up.
#[test]
fn on_eight_slots_a_session_never_waits() {
    let policy = Policy::for_seq_max(4_095, 10_000);
    for (run_max, call_ns, id_ns) in [(1, 50, 0), (4_096, 200, 30)] {
        let lap = lap(&Slots::leased(8), &policy, run_max, call_ns, id_ns);
        assert_eq!(lap.naps, 0);
        let highest = lap.used.keys().map(|(identity, _)| identity).max();
        assert!(
            highest > Some(&2),
            "{highest:?} is the highest slot of those it should have needed"
        );
    }
}

/// The measure itself: a session that naps for four milliseconds each time loses one of four, because ids may
/// be two ahead of the clock.
#[test]
fn a_gap_is_seen() {
    let mut used = BTreeMap::new();
    for tick in 0..1_000 {
        if tick % 4 != 3 {
            used.insert((0, tick), 4_096);
        }
    }
    let lap = Lap {
        used,
        elapsed_ns: 0,
        naps: 0,
    };
    let gap = gap_percent(&lap, 0, 4_095);
    assert!((24.0..26.0).contains(&gap), "{gap}");
}
