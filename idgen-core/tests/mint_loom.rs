//! The mint word under every interleaving that loom finds within a preemption bound, against the real
//! [`idgen_core::mint`]. Run it with
//! `RUSTFLAGS="--cfg loom" cargo test -p idgen-core --release --test mint_loom`;
//! `LOOM_MAX_PREEMPTIONS=3` in front looks deeper.
//!
//! A scenario is a few minters, each with its clock readings, beside one or two installers. After every
//! execution the ids are held against the leases: no id twice; every id inside the window of its
//! generation; nothing minted after a fence or an install had closed its generation, or above the high
//! water that the fence gave; nothing after the deadline except inside a millisecond opened before it;
//! every minter's ids rising; and the lease that was installed last is open, unless it was fenced.
//!
//! A checker that never objects proves nothing: `Copy` is the same layout with one rule switched off at a
//! time, and each of those must be caught. Unbroken, the copy holds, with four generations as well, where
//! every scenario meets the wrap that the real word meets after 2,048.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test crate")]

#[path = "mint_loom/copy.rs"]
mod copy;
#[path = "mint_loom/harness.rs"]
mod harness;

use copy::{Copy, Rules};
use harness::{Installers, Lease, Op, Real, Walls, caught, holds, holds_exhaustively};

const L2: Lease = Lease {
    floor: 13,
    ceiling: 15,
    dead: 200,
};
const L3: Lease = Lease {
    floor: 16,
    ceiling: 18,
    dead: 300,
};
const L4: Lease = Lease {
    floor: 19,
    ceiling: 21,
    dead: 400,
};
const L5: Lease = Lease {
    floor: 22,
    ceiling: 24,
    dead: 500,
};
/// A later lease with an earlier deadline.
const L2_SHORT: Lease = Lease { dead: 60, ..L2 };
const L3_SHORT: Lease = Lease { dead: 60, ..L3 };
/// Below the first lease: an older token, or a store that went back.
const LOW: Lease = Lease {
    floor: 5,
    ceiling: 7,
    dead: 200,
};

const A: Walls = &[(11, 50), (14, 60)];
const A_LATE: Walls = &[(11, 50), (14, 70)];
const B: Walls = &[(12, 50), (13, 60)];
const BACK: Walls = &[(12, 50), (9, 60)];
const LOW_A: Walls = &[(11, 50), (8, 60)];
const RACER: Walls = &[(14, 50), (17, 50)];
const RACER_LATE: Walls = &[(14, 50), (17, 70)];
const AT_11: Walls = &[(11, 50)];
const AT_12: Walls = &[(12, 50)];
const AT_14: Walls = &[(14, 50)];
const AT_14_LATE: Walls = &[(14, 70)];
const AT_20: Walls = &[(20, 50)];
const BEYOND: Walls = &[(14, 50), (20, 70)];
const TWICE_AT_11: Walls = &[(11, 50), (11, 50)];

const NOBODY: Installers = &[&[]];
const FENCE: Installers = &[&[Op::FenceFirst]];
const FENCE_INSTALL: Installers = &[&[Op::FenceFirst, Op::Install(L2)]];
const INSTALL_INSTALL: Installers = &[&[Op::Install(L2), Op::Install(L3)]];
const INSTALL_FENCE: Installers = &[&[Op::Install(L2), Op::FenceMine]];
const INSTALL_SHORT: Installers = &[&[Op::FenceFirst, Op::Install(L2_SHORT)]];
const INSTALL_LOW: Installers = &[&[Op::FenceFirst, Op::Install(LOW), Op::Install(Lease::FIRST)]];
const EXTEND_FENCE: Installers = &[&[Op::Extend(1, 14, 150), Op::FenceFirst]];
/// The late one comes second: what the first installer does, loom tries first, and within the bound it does not
/// find its way back to an extension that began before and ends after an install. That the scenario is met is
/// shown by `an_extend_that_raises_whatever_it_meets_is_caught`.
const EXTEND_LATE: Installers = &[
    &[Op::FenceFirst, Op::Install(L2_SHORT)],
    &[Op::Extend(1, 12, 500)],
];
/// The same with a ceiling that reaches over the window of the next generation.
const EXTEND_LATE_OVER: Installers = &[&[Op::FenceFirst, Op::Install(L2)], &[Op::Extend(1, 30, 500)]];
/// Three messages in no order.
const THREE_WAYS: Installers = &[
    &[Op::FenceFirst],
    &[Op::Install(L2_SHORT)],
    &[Op::Extend(1, 30, 500)],
];
const FENCE_EXTEND: Installers = &[&[Op::FenceFirst, Op::Extend(2, 15, 500)]];
/// The window before was wider than the one that follows.
const NARROWER: Installers = &[&[Op::Extend(1, 30, 150), Op::FenceFirst, Op::Install(L2)]];
const RACE: Installers = &[&[Op::Install(L2)], &[Op::Install(L3)]];
const RACE_SHORT: Installers = &[&[Op::Install(L2)], &[Op::Install(L3_SHORT)]];
const WRAP: Installers = &[&[Op::Install(L2), Op::Install(L3), Op::Install(L4), Op::Install(L5)]];
const WRAP_RACE: Installers = &[
    &[Op::Install(L2)],
    &[Op::Install(L3), Op::Install(L4), Op::Install(L5)],
];

#[test]
fn fence_then_install() {
    holds(Real::new, &[A, AT_12], FENCE_INSTALL);
}

#[test]
fn install_over_a_live_generation() {
    holds(Real::new, &[A], INSTALL_INSTALL);
}

#[test]
fn install_then_fence_while_the_clock_goes_back() {
    holds(Real::new, &[A, BACK], INSTALL_FENCE);
}

#[test]
fn a_shorter_deadline_counts_at_once() {
    holds(Real::new, &[A_LATE, AT_12], INSTALL_SHORT);
}

#[test]
fn a_lower_window_is_refused() {
    holds(Real::new, &[LOW_A, AT_11], INSTALL_LOW);
}

#[test]
fn extend_then_fence() {
    holds(Real::new, &[A, B], EXTEND_FENCE);
}

#[test]
fn a_narrower_window_counts_at_once() {
    holds(Real::new, &[&[(12, 50), (20, 50)]], NARROWER);
}

/// pd#4884: a late update of an older term.
#[test]
fn a_late_extend_races_fence_and_install() {
    holds(Real::new, &[A_LATE], EXTEND_LATE);
}

/// A window that the late extension would widen, if it counted for the next generation.
#[test]
fn a_late_ceiling_races_fence_and_install() {
    holds(Real::new, &[BEYOND], EXTEND_LATE_OVER);
}

#[test]
fn extend_fence_and_install_race_each_other() {
    holds(Real::new, &[AT_14_LATE], THREE_WAYS);
    holds(Real::new, &[AT_20], THREE_WAYS);
}

#[test]
fn an_extend_does_not_open_what_a_fence_has_closed() {
    holds(Real::new, &[A, B], FENCE_EXTEND);
}

#[test]
fn two_installers_race() {
    holds(Real::new, &[RACER], RACE);
}

#[test]
fn an_installer_sleeps_while_the_deadline_shrinks() {
    holds(Real::new, &[RACER_LATE], RACE_SHORT);
}

/// One call per minter: small enough to need no preemption bound.
#[test]
fn small_scenarios_hold_in_every_interleaving() {
    holds_exhaustively(Real::new, &[AT_11, AT_11], FENCE);
    holds_exhaustively(Real::new, &[A], FENCE_INSTALL);
    holds_exhaustively(Real::new, &[AT_14], INSTALL_FENCE);
}

#[test]
fn sessions_on_two_slots_rise_and_never_meet() {
    harness::two_sessions_on_two_slots();
}

const SOUND: Rules = Rules::SOUND;

#[test]
fn the_copy_holds_while_no_rule_is_broken() {
    let sound = || Copy::new(SOUND);
    holds(sound, &[TWICE_AT_11], FENCE);
    holds(sound, &[AT_11, AT_11], INSTALL_LOW);
    holds(sound, &[A, B], FENCE_EXTEND);
    holds(sound, &[RACER], RACE);
}

#[test]
fn four_generations_are_enough() {
    let tiny = || {
        Copy::new(Rules {
            generation_mask: 3,
            ..SOUND
        })
    };
    holds(tiny, &[&[(14, 50), (23, 50)]], WRAP);
    holds(tiny, &[&[(20, 50), (23, 50)]], WRAP_RACE);
}

#[test]
fn a_fence_that_keeps_the_sequence_is_caught() {
    let broken = || {
        Copy::new(Rules {
            fence_fills: false,
            ..SOUND
        })
    };
    caught(broken, &[TWICE_AT_11], FENCE, "never installed");
}

#[test]
fn an_install_below_the_word_is_caught() {
    let broken = || {
        Copy::new(Rules {
            floor_checked: false,
            ..SOUND
        })
    };
    caught(broken, &[AT_11, AT_11], INSTALL_LOW, "twice");
}

#[test]
fn an_extend_that_creates_a_tag_is_caught() {
    let broken = || {
        Copy::new(Rules {
            extend_requires_tag: false,
            ..SOUND
        })
    };
    caught(broken, &[A, B], FENCE_EXTEND, "never installed");
}

/// pd#4884 again, as it was: the late update counts for whoever is in office.
#[test]
fn an_extend_that_raises_whatever_it_meets_is_caught() {
    let broken = || {
        Copy::new(Rules {
            extend_keeps_generation: false,
            ..SOUND
        })
    };
    caught(broken, &[AT_14_LATE], EXTEND_LATE, "after the deadline");
    caught(broken, &[AT_20], EXTEND_LATE_OVER, "outside its window");
    caught(broken, &[AT_20], THREE_WAYS, "outside its window");
}

#[test]
fn an_install_that_writes_the_lease_before_the_word_is_caught() {
    let broken = || {
        Copy::new(Rules {
            word_first: false,
            ..SOUND
        })
    };
    caught(broken, &[RACER], RACE, "outside its window");
}

#[test]
fn a_mint_that_does_not_look_at_the_tags_is_caught() {
    let broken = || {
        Copy::new(Rules {
            tags_checked: false,
            ..SOUND
        })
    };
    caught(broken, &[A, B], FENCE_INSTALL, "never installed");
}

#[test]
fn a_mint_that_stores_instead_of_swapping_is_caught() {
    let broken = || {
        Copy::new(Rules {
            mint_swaps: false,
            ..SOUND
        })
    };
    caught(broken, &[AT_11, AT_11], NOBODY, "twice");
}

#[test]
fn a_late_installer_that_takes_the_tag_back_is_caught() {
    let broken = || {
        Copy::new(Rules {
            newer_tag_stays: false,
            ..SOUND
        })
    };
    caught(broken, &[], RACE, "the latest lease is not open");
}
