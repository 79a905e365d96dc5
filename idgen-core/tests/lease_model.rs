//! The lease protocol in a world so small that every order of its steps is tried: two servers with their daemons, a
//! lease store that is restored, promoted or forked, one or two identities, clocks that are wrong, answers that are
//! lost, leases that end at *any* moment. No timing assumption is left to rely on.
//!
//! `mint_small_world` runs the real mint under one server's leases, and the keeper's simulation draws random orders of
//! far more detail. Here the *protocol* is exhausted: which rules of granting, renewing, releasing, sealing and
//! advancing keep two servers from one id. Where a rule is a function of the core, that function is asked (windows,
//! renewals, halves of the pool, what a read proves), so the model follows the code. `docs/lease-proof.md` maps the
//! rules to what is here.
//!
//! Simpler than the real thing, and never stricter: daemons remember nothing but their lease, take any identity that
//! is free, never look at a deadline, and have one renewal on its way at a time. Formats are left out.
//!
//! A checker that never objects proves nothing: each rule is broken once, and the search must find an id twice.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test crate")]

#[path = "lease_model/advance.rs"]
mod advance;
#[path = "lease_model/always.rs"]
mod always;
#[path = "lease_model/histories.rs"]
mod histories;
#[path = "lease_model/scenario.rs"]
mod scenario;
#[path = "lease_model/search.rs"]
mod search;
#[path = "lease_model/steps.rs"]
mod steps;
#[path = "lease_model/unnoticed.rs"]
mod unnoticed;
#[path = "lease_model/world.rs"]
mod world;

use idgen_core::lease::Class;
use scenario::{Broken, OldPrimary, Scenario};
use search::explore;

/// One shard, in a store that is restored once and opened again.
const RESTORED: Scenario = Scenario {
    restores: 1,
    advances: 1,
    ..Scenario::ONE_SHARD
};
/// A standby is promoted and opened while the old primary serves on.
const FORK: Scenario = Scenario {
    promotion: Some(OldPrimary::Alive),
    advances: 1,
    skew: 0,
    ticks: 1,
    ..Scenario::BOTH_HALVES
};
/// Commits wait for the standby, so that it may serve at once when it is promoted.
const SYNCHRONOUS: Scenario = Scenario {
    promotion: Some(OldPrimary::Alive),
    promoted_serves: true,
    synchronous: true,
    skew: 0,
    ticks: 1,
    ..Scenario::ONE_SHARD
};
/// Epochs far enough apart, with clocks that are right.
const TWO_EPOCHS: Scenario = Scenario {
    restores: 2,
    advances: 2,
    grants: 1,
    window: 0,
    skew: 0,
    ticks: 1,
    stride: 5,
    ..Scenario::BOTH_HALVES
};

/// A shard, in a store that is restored once under its old identity.
const UNNOTICED: Scenario = Scenario {
    restores: 1,
    unnoticed: true,
    skew: 0,
    ticks: 1,
    ..Scenario::ONE_SHARD
};
/// Two epochs, and a restore to before the first.
const UNTOLD: Scenario = Scenario {
    unnoticed: true,
    ..TWO_EPOCHS
};

/// A bound that no scenario of `holds` needs.
const STATES_MAX: usize = 2_000_000;

/// Every order of steps keeps the rules.
#[track_caller]
fn holds(scenario: Scenario) {
    holds_for(scenario, STATES_MAX, true);
}

/// As far as so many states go.
#[track_caller]
fn holds_for(scenario: Scenario, states_max: usize, exhausted: bool) {
    let seen = explore(&scenario, states_max);
    println!("{} states, exhausted: {}", seen.states, seen.exhausted);
    if let Some(harm) = seen.harm {
        panic!("{harm}");
    }
    assert_eq!(seen.exhausted, exhausted, "{} states", seen.states);
    let never: Vec<_> = scenario
        .kinds()
        .into_iter()
        .filter(|kind| !seen.kinds.contains(kind))
        .collect();
    assert_eq!(never, Vec::<&str>::new(), "never happened");
}

/// Without the rule an id is minted twice.
#[track_caller]
fn found(scenario: Scenario, broken: Broken) {
    found_in(scenario.without(broken));
}

#[track_caller]
fn found_in(scenario: Scenario) {
    let seen = explore(&scenario, STATES_MAX);
    let harm = seen
        .harm
        .unwrap_or_else(|| panic!("the checker does not bite: {scenario:?}"));
    println!("{:?}, {} states: {harm}", scenario.broken, seen.states);
    assert_eq!(harm.rule, "one id twice");
}

mod nobody_mints_an_id_twice {
    use super::*;

    #[test]
    fn whatever_becomes_of_leases_and_clocks() {
        holds(Scenario {
            ticks: 1,
            ..Scenario::ONE_SHARD
        });
    }

    #[test]
    fn when_two_workers_are_one_lease() {
        holds(Scenario {
            wanted: [2, 1],
            skew: 0,
            ticks: 1,
            ..Scenario::TWO_WORKERS
        });
    }

    #[test]
    fn when_backends_outlive_their_memory() {
        holds(Scenario {
            orphans: true,
            skew: 0,
            ..Scenario::ONE_SHARD
        });
    }

    #[test]
    fn when_the_store_is_restored() {
        holds(Scenario {
            skew: 0,
            ticks: 1,
            stride: 4,
            grants: 1,
            ..RESTORED
        });
        // Clocks as wrong as they may be: this is what the margin is for. Two grants, the second ahead of the clock.
        holds_for(
            Scenario {
                operator_clock: [-1, -1],
                ticks: 0,
                ..RESTORED
            },
            150_000,
            false,
        );
    }

    #[test]
    fn when_it_is_restored_twice_and_halves_come_back() {
        holds(TWO_EPOCHS);
    }

    #[test]
    fn when_it_is_restored_and_nobody_notices_at_first() {
        holds(Scenario {
            advances: 1,
            ..UNNOTICED
        });
        holds_for(
            Scenario {
                class: Class::Worker,
                identities: &[0, 1],
                ..UNNOTICED
            },
            150_000,
            false,
        );
        holds(UNTOLD);
    }

    #[test]
    fn when_a_standby_is_promoted() {
        holds(Scenario {
            promotion: Some(OldPrimary::Dead),
            advances: 1,
            skew: 0,
            ticks: 1,
            stride: 4,
            grants: 1,
            ..Scenario::ONE_SHARD
        });
    }

    #[test]
    fn when_the_old_primary_serves_on_beside_the_promoted_one() {
        holds_for(FORK, 150_000, false);
    }

    #[test]
    fn when_commits_wait_for_the_standby() {
        holds(SYNCHRONOUS);
    }
}

mod without_the_rule {
    use super::*;

    #[test]
    fn that_windows_begin_above_all_that_was_granted() {
        found(Scenario::ONE_SHARD, Broken::NoCeiling);
        found(Scenario::ONE_SHARD, Broken::FloorOnCeiling);
    }

    #[test]
    fn that_a_ceiling_is_committed_first() {
        found(Scenario::ONE_SHARD, Broken::CeilingBeforeCommit);
    }

    #[test]
    fn that_a_fence_comes_before_the_release() {
        found(Scenario::ONE_SHARD, Broken::ReleaseBeforeFence);
        let orphans = Scenario {
            orphans: true,
            ..Scenario::ONE_SHARD
        };
        found(orphans, Broken::ReleaseWithoutFence);
    }

    #[test]
    fn that_a_renewal_is_guarded() {
        found(Scenario::ONE_SHARD, Broken::RenewUnguarded);
    }

    #[test]
    fn that_a_lease_is_renewed_as_a_whole() {
        let apart = Scenario {
            wanted: [2, 1],
            skew: 0,
            ticks: 1,
            window: 0,
            ..Scenario::TWO_WORKERS
        };
        found(apart, Broken::RenewPartly);
    }

    #[test]
    fn that_ids_rise_when_the_clock_does_not() {
        found(Scenario::ONE_SHARD, Broken::RewindReissues);
    }

    #[test]
    fn that_a_token_belongs_to_one_boot_id() {
        let orphans = Scenario {
            orphans: true,
            ..Scenario::ONE_SHARD
        };
        found(orphans, Broken::LeaseIntoNewMemory);
    }

    #[test]
    fn that_a_restored_store_is_sealed() {
        found(RESTORED, Broken::RestoreNotSealed);
    }

    #[test]
    fn that_others_get_the_time_to_say_that_it_was_restored() {
        found(UNNOTICED, Broken::NoGrace);
    }

    #[test]
    fn that_others_get_the_time_to_tell_their_epochs() {
        found(UNTOLD, Broken::AdvanceUntold);
    }

    #[test]
    fn that_a_sealed_store_renews_nothing() {
        let restored = Scenario {
            skew: 0,
            ticks: 1,
            window: 0,
            ..RESTORED
        };
        found(restored, Broken::RenewWhileSealed);
    }

    #[test]
    fn that_a_renewal_names_its_epoch() {
        // The store of the old primary has given the identity to somebody else meanwhile.
        let fork = Scenario {
            window: 0,
            identities: &[0],
            ..FORK
        };
        found(fork, Broken::RenewSkipsEpoch);
    }

    #[test]
    fn that_shards_wait_out_the_old_epoch() {
        found(RESTORED, Broken::AdvanceWithoutMargin);
        found(RESTORED, Broken::MinFloorIgnored);
        let clocks_wrong = Scenario {
            operator_clock: [-1, -1],
            ticks: 0,
            ..RESTORED
        };
        found(clocks_wrong, Broken::LeadNotInMargin);
    }

    #[test]
    fn that_a_floor_lies_only_a_little_ahead() {
        let ratchet = Scenario {
            skew: 0,
            ticks: 0,
            window: 3,
            grants: 3,
            ..RESTORED
        };
        found(ratchet, Broken::LeadUnlimited);
    }

    #[test]
    fn that_an_epoch_is_above_all_that_were_seen() {
        found(TWO_EPOCHS, Broken::EpochFromStoreOnly);
    }

    #[test]
    fn that_epochs_lie_a_window_apart() {
        found(TWO_EPOCHS, Broken::AdvancesCloseTogether);
    }

    #[test]
    fn that_each_epoch_has_its_half() {
        found(FORK, Broken::OnePoolForAllEpochs);
    }

    #[test]
    fn that_a_promoted_standby_is_sealed() {
        let promoted = Scenario {
            promotion: Some(OldPrimary::Dead),
            ..Scenario::ONE_SHARD
        };
        found(promoted, Broken::PromotedNotSealed);
    }

    #[test]
    fn that_a_commit_the_standby_lacks_is_unknown() {
        let waiting = Scenario {
            window: 0,
            ..SYNCHRONOUS
        };
        found(waiting, Broken::CancelledWaitIsDone);
        found(waiting, Broken::ReadNotReplicated);
    }
}

/// What halves by parity cannot do: they keep two histories apart, not three. An old primary that serves on has its
/// half for good, so it must be gone before the epoch is advanced a second time.
#[test]
fn a_second_epoch_while_the_old_primary_serves_on_is_found() {
    found_in(Scenario {
        identities: &[0],
        restores: 1,
        advances: 2,
        grants: 1,
        window: 0,
        stride: 5,
        ..FORK
    });
}

/// Shards have no halves. The margin of a new epoch outlasts what the old one has granted, not what an old primary
/// that serves on grants later: a shard must be gone from its side before the advance.
#[test]
fn a_shard_that_the_old_primary_serves_on_is_found() {
    let fork = Scenario {
        promotion: Some(OldPrimary::Alive),
        advances: 1,
        grants: 1,
        window: 0,
        skew: 0,
        ticks: 1,
        stride: 5,
        ..Scenario::ONE_SHARD
    };
    found_in(fork);
    holds(Scenario {
        promotion: Some(OldPrimary::Dead),
        ..fork
    });
}
