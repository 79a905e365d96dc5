//! The checker finds the duplicate when a rule of the protocol is dropped, and nothing when all are kept.
//!
//! A small world of one identity, two servers with their daemons and one store: its leases expire at any moment,
//! answers come late or never, clocks are set, servers crash, the store is restored to a snapshot and its epoch
//! advanced. What happens is drawn from a seed, and recorded as the chaos runner records real servers.

mod world;

use idgen_core::history::{Invariant, check};
use world::{Rule, World};

const STEPS: usize = 150;
/// A broken rule shows within some hundreds.
const SEEDS_MAX: u64 = 20_000;
const SEEDS_KEPT: u64 = 5_000;

fn duplicates(seed: u64, broken: Option<Rule>) -> u64 {
    let mut world = World::new(seed, broken);
    world.run(STEPS);
    check(&world.history)[0].violations
}

fn finds_its_duplicate(rule: Rule) {
    let seed = (0..SEEDS_MAX).find(|seed| duplicates(*seed, Some(rule)) > 0);
    let seed = seed.unwrap_or_else(|| panic!("{rule:?} was dropped, and no duplicate in {SEEDS_MAX} seeds"));
    println!("{rule:?} dropped: duplicate at seed {seed}");
    assert_eq!(duplicates(seed, None), 0, "the same seed with all rules");
}

#[test]
fn without_a_ceiling() {
    finds_its_duplicate(Rule::MintUpToTheCeiling);
}

#[test]
fn with_the_floor_at_the_old_ceiling() {
    finds_its_duplicate(Rule::FloorAboveTheOldCeiling);
}

#[test]
fn with_a_ceiling_that_is_installed_before_it_is_committed() {
    finds_its_duplicate(Rule::InstallAfterTheCommit);
}

#[test]
fn with_a_release_before_the_fence() {
    finds_its_duplicate(Rule::FenceBeforeTheRelease);
}

#[test]
fn with_an_unguarded_renewal() {
    finds_its_duplicate(Rule::GuardRenewals);
}

#[test]
fn with_a_time_that_follows_a_clock_set_back() {
    finds_its_duplicate(Rule::NeverGoBack);
}

#[test]
fn with_a_restore_that_does_not_seal() {
    finds_its_duplicate(Rule::SealAfterARestore);
}

#[test]
fn with_renewals_while_sealed() {
    finds_its_duplicate(Rule::NoRenewalWhileSealed);
}

#[test]
fn with_an_epoch_whose_floor_has_no_margin() {
    finds_its_duplicate(Rule::MarginOfAnEpoch);
}

#[test]
fn with_all_rules_no_invariant_is_broken() {
    let mut checked = [0; Invariant::ALL.len()];
    for seed in 0..SEEDS_KEPT {
        let mut world = World::new(seed, None);
        world.run(STEPS);
        for verdict in check(&world.history) {
            assert!(verdict.is_kept(), "seed {seed}: {verdict:?}");
            checked[verdict.invariant.number() - 1] += verdict.checked;
        }
    }
    // This world has neither deadlines nor faults that end.
    for invariant in Invariant::ALL {
        let exempt = [Invariant::Deadline, Invariant::Alive].contains(&invariant);
        let count = checked[invariant.number() - 1];
        assert!(exempt || count > 0, "{invariant} was checked on nothing");
        println!("{invariant} {}: {count} checked", invariant.text());
    }
}
