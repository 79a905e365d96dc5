//! The segment buffer under every interleaving that loom finds within a preemption bound, against the
//! real [`idgen_core::segment::Buffer`]. Run it with
//! `RUSTFLAGS="--cfg loom" cargo test -p idgen-core --release --test segment_loom`;
//! `LOOM_MAX_PREEMPTIONS=3` in front looks deeper.
//!
//! Takers run beside a refill and a discarder, which share a lock as the buffer asks for. After every
//! execution the books must balance: what was published is what was taken, burned, or is still there,
//! each value once. No take that began after a discard had returned yields a value from before it, and
//! the half of a range asks for a refill once.
//!
//! As in `mint_loom`, a copy with one rule switched off at a time must be caught.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test crate")]

#[path = "segment_loom/copy.rs"]
mod copy;
#[path = "segment_loom/harness.rs"]
mod harness;

use copy::{Copy, Rules};
use harness::{Scenario, caught, holds};
use idgen_core::segment::Buffer;

/// Three ranges of one value: both places are overwritten under a taker that sleeps.
const TURNOVER: Scenario = Scenario {
    takes: &[1, 1],
    before: &[1],
    refills: &[&[1, 1]],
    ..Scenario::NONE
};
/// The end of a range, the switch, and a take of several.
const LONGER: Scenario = Scenario {
    n: 2,
    takes: &[1, 1],
    before: &[3],
    refills: &[&[2]],
    ..Scenario::NONE
};
/// A taker sleeps until a shorter range lies where its own was.
const SHORTER: Scenario = Scenario {
    takes: &[1],
    enough: true,
    before: &[2, 5],
    taken_before: 1,
    main_takes: 1,
    refills: &[&[1]],
    ..Scenario::NONE
};
/// Two takers cross the half of a range and go on.
const HALF: Scenario = Scenario {
    takes: &[2, 1],
    before: &[4],
    ..Scenario::NONE
};
/// The next range arrives meanwhile.
const HALF_MET: Scenario = Scenario {
    refills: &[&[2]],
    ..HALF
};
/// A discard meets two takers, with both places filled, and a refill follows it.
const DISCARD: Scenario = Scenario {
    takes: &[1, 1],
    before: &[1, 1],
    discards: 1,
    refills_after: &[1],
    ..Scenario::NONE
};
/// A discard meets takers at the end of the last range; the other place holds an older one.
const DISCARD_AT_END: Scenario = Scenario {
    takes: &[1, 1],
    before: &[1, 1],
    taken_before: 1,
    discards: 1,
    ..Scenario::NONE
};
/// A refill that began before the discard.
const LATE_REFILL: Scenario = Scenario {
    takes: &[2],
    before: &[1],
    refills: &[&[1]],
    discards: 1,
    ..Scenario::NONE
};
/// Two discards and a refill between: the places change hands while a taker sleeps.
const DISCARD_TWICE: Scenario = Scenario {
    takes: &[2],
    before: &[1, 1],
    discards: 2,
    refills_after: &[1, 1],
    ..Scenario::NONE
};
/// The buffer goes to another tag while a taker believes that it is its own.
const HANDED_ON: Scenario = Scenario {
    remembers: true,
    ..DISCARD
};

fn real() -> Buffer {
    Buffer::new()
}

#[test]
fn ranges_turn_over_under_two_takers() {
    holds(real, TURNOVER);
}

#[test]
fn takes_of_several_stop_at_the_end_of_a_range() {
    holds(real, LONGER);
}

#[test]
fn nobody_goes_away_empty_while_values_are_there() {
    holds(real, SHORTER);
}

#[test]
fn the_half_asks_for_one_refill() {
    holds(real, HALF);
    holds(real, HALF_MET);
}

/// vitess#18415: values from before the counter was raised were served after it.
#[test]
fn nothing_older_is_taken_after_a_discard() {
    holds(real, DISCARD);
    holds(real, DISCARD_AT_END);
}

/// pd#4884: a late refill of an older term.
#[test]
fn a_refill_from_before_a_discard_is_refused_or_burned() {
    holds(real, LATE_REFILL);
}

#[test]
fn discards_and_refills_alternate() {
    holds(real, DISCARD_TWICE);
}

#[test]
fn a_taker_never_gets_values_of_the_next_owner() {
    holds(real, HANDED_ON);
}

#[test]
fn the_copy_holds_while_no_rule_is_broken() {
    let sound = || Copy::new(Rules::SOUND);
    for scenario in [
        TURNOVER,
        SHORTER,
        HALF_MET,
        DISCARD_AT_END,
        LATE_REFILL,
        HANDED_ON,
    ] {
        holds(sound, scenario);
    }
}

#[test]
fn a_publisher_that_does_not_look_for_room_is_caught() {
    let broken = || {
        Copy::new(Rules {
            room_checked: false,
            ..Rules::SOUND
        })
    };
    caught(broken, TURNOVER, "books");
}

#[test]
fn a_taker_that_reads_the_range_after_its_swap_is_caught() {
    let broken = || {
        Copy::new(Rules {
            range_before_swap: false,
            ..Rules::SOUND
        })
    };
    caught(broken, TURNOVER, "books");
}

#[test]
fn a_switch_that_does_not_wait_for_the_range_is_caught() {
    let broken = || {
        Copy::new(Rules {
            ready_after_range: false,
            ..Rules::SOUND
        })
    };
    caught(broken, TURNOVER, "books");
}

#[test]
fn a_late_refill_that_is_let_in_is_caught() {
    let broken = || {
        Copy::new(Rules {
            incarnation_checked: false,
            ..Rules::SOUND
        })
    };
    caught(broken, LATE_REFILL, "after a discard");
}

#[test]
fn a_discard_that_moves_ready_before_the_word_is_caught() {
    let broken = || {
        Copy::new(Rules {
            discard_word_first: false,
            ..Rules::SOUND
        })
    };
    caught(broken, DISCARD_AT_END, "books");
}

#[test]
fn a_taker_that_looks_at_the_incarnation_first_is_caught() {
    let broken = || {
        Copy::new(Rules {
            incarnation_after_word: false,
            ..Rules::SOUND
        })
    };
    caught(broken, HANDED_ON, "of the next owner");
}

#[test]
fn a_taker_that_asks_for_every_refill_past_the_half_is_caught() {
    let broken = || {
        Copy::new(Rules {
            asked_once: false,
            ..Rules::SOUND
        })
    };
    caught(broken, HALF, "asked twice");
}

#[test]
fn a_taker_that_refuses_without_a_second_look_is_caught() {
    let broken = || {
        Copy::new(Rules {
            empty_looked_at_twice: false,
            ..Rules::SOUND
        })
    };
    caught(broken, SHORTER, "empty while");
}
