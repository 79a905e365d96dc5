//! Segments through crashes: sessions draw from three tags while a seed says what crashes, and at which moment of a
//! refill. In the end what was drawn is held against what `idgen.audit_event` says was granted.
//!
//! ```text
//!  plan      rounds: a crash and a moment, from the seed       scene   the server, and how it suffers
//!  sessions  who draws and keeps the ids                       judge   the rules that must hold
//! ```
//! No id twice; every id in exactly one grant; two ranges a tag and crash are lost at the most, and they are recorded.

mod judge;
mod plan;
mod scene;
mod sessions;

use std::time::Instant;

use crate::run::setting;
use judge::{Allowed, Verdict, judge};
use plan::{Fault, Round};
use scene::Scene;
use sessions::Sessions;

/// All of one range size, so that refills of several meet.
const TAGS: [&str; 3] = ["a", "b", "c"];

/// What `make test` runs: the matrix once.
const SEED: u64 = 5;
/// Ids that every session draws after a round before the next one begins.
const BACK: u64 = 20;

pub fn soak() {
    let seed: u64 = setting("SOAK_SEED").unwrap_or(SEED);
    let rounds: usize = setting("SOAK_ROUNDS").unwrap_or_else(plan::matrix);
    println!(
        "segments, seed {seed}, {rounds} rounds; run it again: make soak SUITE=segments SEED={seed} ROUNDS={rounds}"
    );
    let verdict = run(seed, rounds);
    println!(
        "{} ids of {} grants, {} ranges recorded as open, {} ids lost",
        verdict.ids, verdict.grants, verdict.open, verdict.missing
    );
    assert!(verdict.broken.is_empty(), "seed {seed}: {:#?}", verdict.broken);
    assert!(verdict.ids > rounds * 100, "only {} ids", verdict.ids);
}

fn run(seed: u64, rounds: usize) -> Verdict {
    let begun = Instant::now();
    let mut scene = Scene::start();
    let sessions = Sessions::start(&scene.server);
    sessions.wait_all(BACK);
    let mut allowed = Allowed::default();
    for (round, nth) in plan::rounds(seed).take(rounds).zip(1..) {
        sessions.wait_all(round.warm_up);
        let boot_id = scene.boot_id();
        scene.suffer(round, &sessions);
        let back = sessions.wait_all(BACK);
        let crashed = scene.boot_id() != boot_id;
        assert_eq!(
            crashed,
            round.fault.is_crash(),
            "{round}: whether memory was lost"
        );
        count(round, &mut allowed);
        let at = begun.elapsed().as_secs_f64();
        println!(
            "{at:5.0} s  {nth:3} {round}: drawing again after {} ms",
            back.as_millis()
        );
    }
    let drawn = sessions.finish();
    judge(&mut scene.connect(), drawn, &allowed)
}

fn count(round: Round, allowed: &mut Allowed) {
    allowed.crashes += usize::from(round.fault.is_crash());
    allowed.ended_waits += usize::from(round.fault == Fault::WaitTerminated);
}
