use super::*;

const POLICY: Policy = Policy::for_seq_max(4095, 10_000);

fn at(boot_ms: u64) -> impl Fn() -> SlowClock {
    move || SlowClock {
        boot_ms,
        wall_tick_max: TICK_MAX,
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
        one(&slot, 9_999, 5, &mut session),
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
