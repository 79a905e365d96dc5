use super::*;

const POLICY: Policy = Policy::for_seq_max(4095, 10_000);

fn at(boot_ms: u64) -> impl Fn() -> SlowClock {
    move || SlowClock {
        boot_ms,
        wall_tick_max: TICK_MAX,
        behind_ms: 0,
    }
}

fn ask(n: u64, wall_tick: u64, slow_clock: &dyn Fn() -> SlowClock) -> Request<'_> {
    Request {
        n,
        policy: &POLICY,
        wall_tick,
        slow_clock,
    }
}

fn one(slot: &Slot, wall: u64, boot: u64, session: &mut Session) -> Result<Run, Refusal> {
    slot.reserve(&ask(1, wall, &at(boot)), 7, session, TICK_MAX)
}

#[test]
fn a_new_slot_refuses() {
    assert_eq!(
        one(&Slot::new(), 100, 5, &mut Session::default()),
        Err(Refusal::NoLease)
    );
}

#[test]
fn the_first_id_lies_at_the_floor_or_above() {
    let slot = Slot::new();
    slot.install(500, 900, 100).unwrap();
    let run = one(&slot, 499, 5, &mut Session::default()).unwrap();
    assert_eq!(run.tick, 500);
}

#[test]
fn the_ceiling_and_the_deadline_stop_it() {
    let slot = Slot::new();
    slot.install(500, 510, 100).unwrap();
    let mut session = Session::default();
    assert_eq!(one(&slot, 511, 5, &mut session), Err(Refusal::WindowUsedUp));
    assert_eq!(one(&slot, 505, 100, &mut session), Err(Refusal::DeadlinePassed));
    assert!(one(&slot, 510, 99, &mut session).is_ok());
}

#[test]
fn after_a_fence_nothing_is_minted_and_the_high_water_is_exact() {
    let slot = Slot::new();
    let generation = slot.install(500, 900, 100).unwrap();
    let mut session = Session::default();
    let run = one(&slot, 600, 5, &mut session).unwrap();
    assert_eq!(slot.fence(generation), Some((run.tick, run.seq)));
    assert_eq!(slot.fence(generation), None);
    assert_eq!(one(&slot, 600, 5, &mut session), Err(Refusal::NoLease));
    assert!(!slot.extend(generation, 2_000, 2_000));
}

#[test]
fn an_install_never_goes_back() {
    let slot = Slot::new();
    slot.install(500, 900, 100).unwrap();
    one(&slot, 600, 5, &mut Session::default()).unwrap();
    assert_eq!(
        slot.install(600, 900, 100),
        Err(InstallError::FloorNotAbove { last_tick: 600 })
    );
    assert!(slot.install(601, 900, 100).is_ok());
}

#[test]
fn a_late_extend_of_an_older_generation_changes_nothing() {
    let slot = Slot::new();
    let old = slot.install(500, 900, 100).unwrap();
    slot.install(1_000, 1_100, 200).unwrap();
    assert!(!slot.extend(old, 9_000, 9_000));
    assert_eq!(
        one(&slot, 1_101, 150, &mut Session::default()),
        Err(Refusal::WindowUsedUp)
    );
}

#[test]
fn a_wall_that_jumped_ahead_is_believed_only_up_to_the_limit() {
    let slot = Slot::new();
    slot.install(500, 900_000, 1_000).unwrap();
    let mut session = Session::default();
    let clock = || SlowClock {
        boot_ms: 5,
        wall_tick_max: 700,
        behind_ms: 0,
    };
    let run = slot
        .reserve(&ask(1, 800_000, &clock), 7, &mut session, TICK_MAX)
        .unwrap();
    assert_eq!(run.tick, 700);
}

#[test]
fn a_small_rewind_keeps_the_last_tick_and_a_large_one_refuses() {
    let slot = Slot::new();
    slot.install(500, 900_000, 1_000).unwrap();
    let mut session = Session::default();
    let first = one(&slot, 20_000, 5, &mut session).unwrap();
    let second = one(&slot, 19_000, 5, &mut session).unwrap();
    assert_eq!((second.tick, second.seq), (first.tick, first.seq + 1));
    assert_eq!(
        one(&slot, 9_997, 5, &mut session),
        Err(Refusal::ClockBehind { behind_ms: 10_001 })
    );
}

struct Three([Slot; 3], u64);
impl Identities for Three {
    fn slot(&self, identity: u64) -> &Slot {
        &self.0[identity as usize]
    }
    fn next_active(&self, from: u64) -> Option<u64> {
        (from..3).find(|i| self.1 >> i & 1 == 1)
    }
}

#[test]
fn a_full_tick_moves_on_to_the_higher_slots_then_to_a_new_tick() {
    let three = Three([Slot::new(), Slot::new(), Slot::new()], 0b101);
    three.0[0].install(1, 10_000, 1_000).unwrap();
    three.0[2].install(1, 10_000, 1_000).unwrap();
    let mut session = Session::default();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let minted = mint(&three, &ask(5_000, 100, &at(5)), 0, &mut session).unwrap();
        seen.push((minted.run.tick, minted.identity));
    }
    assert_eq!(seen, [(100, 0), (100, 2), (101, 0)]);
}

#[test]
fn without_any_identity_there_is_no_lease() {
    let three = Three([Slot::new(), Slot::new(), Slot::new()], 0);
    let refused = mint(&three, &ask(1, 100, &at(5)), 0, &mut Session::default());
    assert_eq!(refused, Err(Refusal::NoLease));
}

#[test]
fn ahead_of_the_clock_one_new_tick_per_real_millisecond() {
    let slot = Slot::new();
    slot.install(1, 10_000, 1_000).unwrap();
    let mut session = Session::default();
    let all = |boot, session: &mut Session| slot.reserve(&ask(9_999, 100, &at(boot)), 7, session, TICK_MAX);
    for _ in 0..3 {
        all(5, &mut session).unwrap();
    }
    assert_eq!(all(5, &mut session), Err(Refusal::Wait));
    assert_eq!(all(6, &mut session).unwrap().tick, 103);
}

/// Identity 2 is for bulk.
const SERVING: Lanes = Lanes {
    home: (0, 2),
    spill: (2, 3),
};
const BULK: Lanes = Lanes {
    home: (2, 3),
    spill: (2, 3),
};

fn leased() -> Three {
    let three = Three([Slot::new(), Slot::new(), Slot::new()], 0b111);
    for slot in &three.0 {
        assert!(slot.install(1, 10_000, 1_000).is_ok());
    }
    three
}

#[test]
fn bulk_requests_leave_the_serving_identities_alone() {
    let (three, mut session) = (leased(), Session::default());
    let mut seen = Vec::new();
    while let Ok(minted) = mint_within(&three, &ask(5_000, 100, &at(5)), &BULK, 2, &mut session) {
        seen.push((minted.run.tick, minted.identity));
    }
    assert_eq!(
        seen,
        [(100, 2), (101, 2), (102, 2)],
        "then it waits for the clock"
    );
    assert_eq!(three.0[0].view().tick, 1, "as install left it");
}

#[test]
fn serving_requests_spill_into_bulk_and_come_home_in_the_next_tick() {
    let (three, mut session) = (leased(), Session::default());
    let mut take = |n, wall| {
        let minted = mint_within(&three, &ask(n, wall, &at(5)), &SERVING, 0, &mut session).unwrap();
        (minted.run.tick, minted.identity)
    };
    assert_eq!(take(5_000, 100), (100, 0));
    assert_eq!(take(1, 100), (100, 2), "not the other serving identity");
    assert_eq!(
        take(1, 100),
        (100, 2),
        "in this tick a lower identity would not rise"
    );
    assert_eq!(take(1, 101), (101, 0));
}

#[test]
fn the_sequences_change_with_the_format_at_the_very_tick() {
    let policy = Policy {
        switch_tick: 101,
        after: Sequence::with_max(511),
        ..POLICY
    };
    let slot = Slot::new();
    slot.install(1, 10_000, 1_000).unwrap();
    let mut session = Session::default();
    let mut take = |wall_tick| {
        let request = Request {
            n: 9_999,
            policy: &policy,
            wall_tick,
            slow_clock: &at(5),
        };
        let run = slot.reserve(&request, 7, &mut session, TICK_MAX).unwrap();
        (run.tick, run.seq + run.len - 1)
    };
    assert_eq!(take(100), (100, 4_095));
    assert_eq!(
        take(100),
        (101, 511),
        "ahead of the clock, by the rules of the tick it is in"
    );
    assert_eq!(
        take(101),
        (102, 511),
        "a word that is full for its own format is full"
    );
}

#[test]
fn a_clock_that_is_behind_its_maximum_is_refused_even_when_no_id_was_made_there() {
    let slot = Slot::new();
    slot.install(1, 10_000, 1_000).unwrap();
    let behind = |behind_ms| {
        move || SlowClock {
            boot_ms: 5,
            wall_tick_max: TICK_MAX,
            behind_ms,
        }
    };
    let halt = Policy::for_seq_max(4_095, 5);
    let mut session = Session::default();
    let mut take = |wall_tick, behind_ms| {
        let request = Request {
            n: 1,
            policy: &halt,
            wall_tick,
            slow_clock: &behind(behind_ms),
        };
        slot.reserve(&request, 7, &mut session, TICK_MAX)
    };
    assert!(take(100, 5).is_ok());
    assert_eq!(take(101, 6), Err(Refusal::ClockBehind { behind_ms: 6 }));
}

/// What ids run ahead of the clock at full speed counts for nothing: with 5 ms allowed, 5 ms are allowed.
#[test]
fn running_ahead_at_full_speed_is_no_rewind() {
    let slot = Slot::new();
    slot.install(1, 10_000, 1_000).unwrap();
    let halt = Policy::for_seq_max(4_095, 5);
    let mut session = Session::default();
    let mut take = |wall_tick, boot_ms| {
        let request = Request {
            n: 9_999,
            policy: &halt,
            wall_tick,
            slow_clock: &at(boot_ms),
        };
        slot.reserve(&request, 7, &mut session, TICK_MAX)
    };
    for _ in 0..3 {
        take(100, 5).unwrap();
    }
    // The last tick is 102: ahead by 2, and the wall goes back by 5.
    assert!(!matches!(take(95, 6), Err(Refusal::ClockBehind { .. })));
    assert!(matches!(take(94, 7), Err(Refusal::ClockBehind { .. })));
}
