//! How long nothing is asked for after a setback.

use super::super::pause::PAUSE_SPREAD_PERCENT;
use super::*;

/// A random number with which a pause is as long as it is meant to be.
fn middle(pause_ms: u64) -> u64 {
    pause_ms * PAUSE_SPREAD_PERCENT / 100
}

impl Run {
    /// Until the next request for a grant may be sent, on the boot clock.
    fn replaced_at(self) -> u64 {
        assert!(self.fences(), "{:?}", self.actions);
        let run = self.tell(Event::Fenced { marks: vec![] });
        assert_eq!(run.phase(), "vacant");
        let at = run.state.wake_at().unwrap().0;
        if let Some(before) = at.checked_sub(1).filter(|before| *before >= run.state.now.0) {
            let state = run.state.clone();
            let early = Run {
                state,
                actions: vec![],
            }
            .tell(reading(before));
            assert_eq!((early.phase(), early.actions.len()), ("vacant", 0));
        }
        assert_eq!(run.tell(reading(at)).phase(), "acquiring");
        at
    }
}

#[test]
fn a_lease_that_the_store_gave_away_is_fenced_now() {
    let run = Run::renewing();
    let ticket = run.ticket();
    let why = Loss::StoreLost;
    let run = run.tell(Event::RenewLost { ticket, why });
    assert!(run.fences());
    assert_eq!(run.loss(), Some(Loss::StoreLost));
}

/// LEASES.md F10: no flapping.
#[test]
fn after_a_lease_that_the_store_took_away_there_is_a_pause() {
    let lost = |why| {
        let run = Run::renewing();
        let ticket = run.ticket();
        run.tell(Event::RenewLost { ticket, why })
    };
    let hold_off_ms = timing().hold_off_ms();
    assert_eq!(hold_off_ms, TTL_MS / 3, "five seconds at most");
    assert_eq!(lost(Loss::StoreLost).replaced_at(), 3_000 + hold_off_ms);
    let long = Timing::new(TimingSpec::of_ttl(600_000)).unwrap();
    assert_eq!(Loss::StoreLost.hold_off_ms(&long), 5_000);
    // An operator has opened a new epoch, to get ids now.
    assert_eq!(lost(Loss::EpochAdvanced).replaced_at(), 3_000);
    let late = Run::holding().tell(reading(USABLE_MS));
    assert_eq!(late.replaced_at(), USABLE_MS, "it has lasted for TTL - margin");
    // Callers wait for the new memory to be served.
    let run = lost(Loss::StoreLost).tell(Event::Fenced { marks: vec![] });
    let run = run.tell(reading_of(OTHER_BOOT, 3_001));
    assert_eq!(run.phase(), "acquiring");
}

/// LEASES.md I13: minting is back within TTL + 2 periods + 2 s.
#[test]
fn the_hold_off_leaves_time_to_come_back() {
    for ttl_ms in [1_000, 4_000, 15_000, 30_000, 600_000] {
        let timing = Timing::new(TimingSpec::of_ttl(ttl_ms)).unwrap();
        let limit_ms = ttl_ms + 2 * timing.period_ms() + 2_000;
        let longest_ms = timing.hold_off_ms() + timing.period_ms() + 2 * RETRY_MS;
        assert!(longest_ms < limit_ms, "{ttl_ms}: {longest_ms} against {limit_ms}");
    }
}

#[test]
fn the_first_grant_of_a_daemon_is_asked_for_a_moment_later_and_no_other() {
    let first = |random| {
        let run = Run::new().tell(spread_reading(BOOT, 10, random));
        let run = run.tell(Event::Inspected { claims: vec![] });
        run.state.wake_at().unwrap().0 - 10
    };
    let pauses: Vec<u64> = (0..1_000).map(|n| first(n * 7_919)).collect();
    assert_eq!(pauses.iter().max(), Some(&START_SPREAD_MS));
    assert_eq!(pauses.iter().min(), Some(&0));
    // The server was restarted under a daemon that runs: callers wait.
    let run = Run::holding().tell(spread_reading(OTHER_BOOT, 50, 249));
    assert_eq!(run.phase(), "acquiring");
    let run = Run::acquiring()
        .tell(Event::ServerLost)
        .tell(spread_reading(OTHER_BOOT, 50, 249));
    let run = run.tell(Event::Inspected { claims: vec![] });
    assert_eq!(run.state.wake_at(), Some(BootMs(50)));
}

#[test]
fn those_that_fail_together_do_not_try_again_together() {
    let pause = |random| {
        let run = Run::vacant().tell(spread_reading(BOOT, 0, random));
        let ticket = run.ticket();
        let run = run.tell(Event::GrantFailed { ticket, doubt: None });
        run.state.wake_at().unwrap().0
    };
    let pauses: Vec<u64> = (0..1_000).map(pause).collect();
    assert_eq!(pauses.iter().min(), Some(&188));
    assert_eq!(pauses.iter().max(), Some(&312));
}

#[test]
fn refused_installations_are_tried_again_ever_more_slowly() {
    let mut run = Run::installing();
    run.state.random = middle(RETRY_MS);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        run = run.tell(Event::InstallRefused);
        let Phase::Fencing {
            goal: Goal::Replace { retry_at },
            ..
        } = run.state.phase
        else {
            panic!("{:?}", run.state)
        };
        pauses.push(retry_at.since(run.state.now));
        run = run.tell(Event::Fenced { marks: vec![] }).tell(spread_reading(
            BOOT,
            retry_at.0,
            middle((pauses[pauses.len() - 1] * 2).min(32_000)),
        ));
        let (ticket, grant) = (run.ticket(), grant(retry_at.0));
        run = run.tell(Event::Granted { ticket, grant });
    }
    assert_eq!(pauses[..4], [250, 500, 1_000, 2_000]);
    assert_eq!(pauses[8], 32_000);
    assert_eq!(run.tell(Event::Installed).state.setbacks, 0);
}

#[test]
fn a_store_that_grants_nothing_is_asked_every_two_seconds_in_the_end() {
    let mut run = Run::vacant();
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let (now, retry_at) = (run.state.now, run.state.wake_at().unwrap());
        pauses.push(retry_at.since(now));
        let next_ms = pauses[pauses.len() - 1] * 2;
        run = run.tell(spread_reading(
            BOOT,
            retry_at.0,
            middle(next_ms.clamp(RETRY_MS, 2_000)),
        ));
        let ticket = run.ticket();
        run = run.tell(Event::GrantFailed { ticket, doubt: None });
    }
    assert_eq!(pauses, [0, 250, 500, 1_000, 2_000]);
    assert_eq!(run.state.wake_at().unwrap().since(run.state.now), 2_000);
}
