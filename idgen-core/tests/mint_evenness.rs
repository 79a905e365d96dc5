//! Ids made at a low rate must fall evenly on the residues that people partition and shard by: without the
//! mixed start of a new tick they would all be even.
//!
//! One id a second, 4,096 times, through the real mint; Pearson's chi-square of the ids modulo each of 2 to
//! 64 against the even spread. The first second is random, so a run is a sample and can fail by chance:
//! 63 moduli of 3 formats are 189 tests, each at a level of 5e-12, so that one run in a billion fails
//! without a fault. A start that is off is not missed for that: a bit that does not vary doubles the share
//! of half of the residues, which is a chi-square of 4,096 where 173 is critical (63 degrees of freedom).
//!
//! The seed is printed; `IDGEN_SEED=N` repeats a run.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test crate")]

use std::hash::{BuildHasher, RandomState};

use idgen_core::format::{CLASSIC, Format, Parts, REGIONAL, SHARDED};
use idgen_core::mint::{Identities, Policy, Request, Sequence, Session, Slot, SlowClock, TICK_MAX, mint};

const IDS: u64 = 4_096;
const STEP_MS: u64 = 1_000;
/// 2026 in ticks, and the decade after it that a run may begin in.
const FIRST_TICK_MIN: u64 = 205_000_000_000;
const DECADE_MS: u64 = 10 * 366 * 86_400_000;
/// Standard deviations of a normal distribution that leave 5e-12 above them.
const Z: f64 = 6.8;

struct Alone(Slot);

impl Identities for Alone {
    fn slot(&self, _identity: u64) -> &Slot {
        &self.0
    }

    fn next_active(&self, from: u64) -> Option<u64> {
        (from <= IDENTITY).then_some(IDENTITY)
    }
}

const IDENTITY: u64 = 421;

fn seed() -> u64 {
    let given = std::env::var("IDGEN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("IDGEN_SEED={seed}");
    seed
}

fn with_sequence(sequence: Sequence) -> Policy {
    Policy {
        before: sequence,
        after: sequence,
        ..Policy::for_seq_max(sequence.max, 10_000)
    }
}

/// One id a second.
fn ids(format: &Format, policy: &Policy, first_tick: u64) -> Vec<u64> {
    let alone = Alone(Slot::new());
    alone.0.install(first_tick, TICK_MAX, TICK_MAX).unwrap();
    let mut session = Session::new();
    let mut one = |n: u64| {
        let wall_tick = first_tick + n * STEP_MS;
        let slow_clock = || SlowClock {
            boot_ms: n * STEP_MS,
            wall_tick_max: TICK_MAX,
            behind_ms: 0,
        };
        let request = Request {
            n: 1,
            policy,
            wall_tick,
            slow_clock: &slow_clock,
        };
        let run = mint(&alone, &request, 0, &mut session).unwrap().run;
        assert_eq!(run.tick, wall_tick, "a new tick each time");
        let id = format.compose(Parts {
            unix_ms: format.unix_ms(run.tick),
            region: (format.region_bits > 0).then_some(2),
            version: (format.version_bits > 0).then_some(1),
            node: IDENTITY,
            seq: run.seq,
            is_shard: format.is_shard,
        });
        id.unwrap().cast_unsigned()
    };
    (0..IDS).map(&mut one).collect()
}

fn chi_square(ids: &[u64], modulus: u64) -> f64 {
    let mut counts = vec![0_u32; usize::try_from(modulus).unwrap()];
    for id in ids {
        counts[usize::try_from(id % modulus).unwrap()] += 1;
    }
    let expected = ids.len() as f64 / modulus as f64;
    counts
        .iter()
        .map(|&count| (f64::from(count) - expected).powi(2) / expected)
        .sum()
}

/// Wilson and Hilferty: the cube root of a chi-square over its degrees of freedom is close to normal. For one
/// degree this far out it is 63 instead of 48: on the side that fails less often (see the test below).
fn critical(modulus: u64) -> f64 {
    let freedom = (modulus - 1) as f64;
    let variance = 2.0 / (9.0 * freedom);
    freedom * (1.0 - variance + Z * variance.sqrt()).powi(3)
}

/// The moduli whose residues are not evenly hit.
fn uneven(ids: &[u64]) -> Vec<u64> {
    (2..=64)
        .filter(|&modulus| chi_square(ids, modulus) > critical(modulus))
        .collect()
}

#[test]
fn one_id_a_second_is_even_modulo_each_of_2_to_64() {
    let first_tick = FIRST_TICK_MIN + seed() % DECADE_MS;
    for format in [&CLASSIC, &SHARDED, &REGIONAL] {
        let policy = Policy::for_seq_max(format.seq_max(), 10_000);
        let ids = ids(format, &policy, first_tick);
        let uneven = uneven(&ids);
        assert!(
            uneven.is_empty(),
            "{} from tick {first_tick}: uneven modulo {uneven:?}",
            format.name
        );
    }
}

/// The checker objects where it must: to no mixed start at all, to one that is always even, and to those that
/// leave out half of the residues, at the top or in between.
#[test]
fn a_broken_start_is_seen() {
    let first_tick = FIRST_TICK_MIN + seed() % DECADE_MS;
    for (start_mask, modulus) in [(0, 2), (0b11_1110, 2), (0b1_1111, 64), (0b11_0111, 16)] {
        let sequence = Sequence {
            max: 4_095,
            start_mask,
        };
        let ids = ids(&CLASSIC, &with_sequence(sequence), first_tick);
        let uneven = uneven(&ids);
        assert!(uneven.contains(&modulus), "mask {start_mask:b}: {uneven:?}");
    }
}

/// For an even number of degrees the tail of chi-square is a finite sum.
fn tail(chi_square: f64, freedom: u64) -> f64 {
    let half = chi_square / 2.0;
    let mut term = 1.0;
    let terms = (1..freedom / 2).map(|k| {
        term *= half / k as f64;
        term
    });
    (-half).exp() * (1.0 + terms.sum::<f64>())
}

#[test]
fn a_run_in_a_billion_fails_by_chance() {
    for modulus in (3..=63).step_by(2) {
        let level = tail(critical(modulus), modulus - 1);
        assert!(level < 5.3e-12, "{modulus}: fails too often, {level:e}");
        assert!(
            modulus < 15 || level > 5e-13,
            "{modulus}: sees too little, {level:e}"
        );
    }
    // From the tables: 18.307 is exceeded with probability 5 % at 10 degrees.
    assert!((tail(18.307, 10) - 0.05).abs() < 1e-5);
}
