//! An operator orders that a lease ends.

use super::*;

fn ordered(revision: u64) -> Event {
    Event::Ordered {
        token: token(revision),
    }
}

#[test]
fn a_lease_that_is_ordered_to_end_is_given_back_exactly_and_replaced_at_once() {
    for run in [Run::holding(), Run::renewing()] {
        let run = run.tell(ordered(5));
        assert!(run.fences(), "{:?}", run.actions);
        assert_eq!(run.loss(), Some(Loss::Revoked));
        let run = run.tell(Event::Fenced { marks: marks() });
        assert!(matches!(run.only(), Action::Release { marks: exact, .. } if *exact == marks()));
        let ticket = run.ticket();
        let run = run.tell(Event::Released { ticket });
        assert_eq!((run.phase(), run.only()), ("vacant", &Action::ReadClock));
        let run = run.tell(reading(3_001));
        assert!(
            matches!(run.only(), Action::Acquire { .. }),
            "callers are waiting: {:?}",
            run.actions
        );
    }
}

#[test]
fn an_order_against_another_lease_changes_nothing() {
    for run in [
        Run::new(),
        Run::vacant(),
        Run::acquiring(),
        Run::installing(),
        Run::holding(),
        Run::renewing(),
    ] {
        let before = run.state.clone();
        let run = run.tell(ordered(4));
        assert_eq!((run.state, run.actions.len()), (before, 0));
    }
}

/// Nobody is there to close it. The renewal that the store refuses, or the deadline, ends it.
#[test]
fn an_order_that_is_heard_while_the_server_is_away_waits_for_it() {
    let run = Run::holding().tell(Event::ServerLost).tell(ordered(5));
    assert_eq!((run.phase(), run.actions.len()), ("away", 0));
    let run = run.tell(reading(100)).tell(ordered(5));
    assert!(run.fences(), "{:?}", run.actions);
}

#[test]
fn a_renewal_that_finds_an_order_ends_the_lease_too() {
    let run = Run::renewing();
    let ticket = run.ticket();
    let run = run.tell(Event::RenewLost {
        ticket,
        why: Loss::Revoked,
    });
    assert!(run.fences());
    assert_eq!(run.loss(), Some(Loss::Revoked));
    let run = run.tell(Event::Fenced { marks: vec![] }).tell(reading(3_001));
    assert!(matches!(run.only(), Action::Acquire { .. }), "{:?}", run.actions);
}
