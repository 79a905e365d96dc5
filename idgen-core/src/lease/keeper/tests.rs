//! One test per rule; the simulation beside it looks for what nobody thought of.

use super::*;
use crate::clock::UnixMs;
use crate::lease::ledger::{GrantPlan, PlannedGrant};
use crate::lease::timing::{Timing, TimingSpec};
use crate::lease::token::{Epoch, EpochNonce, Identity, Token};
use crate::lease::window::Window;

mod orders;
mod pauses;
mod set;

const BOOT: BootId = BootId(1);
const OTHER_BOOT: BootId = BootId(2);
const TTL_MS: u64 = 10_000;
/// TTL - 20 % - 2 ms.
const USABLE_MS: u64 = 7_998;
const WALL: u64 = 1_000_000;

fn timing() -> Timing {
    Timing::new(TimingSpec {
        ttl_ms: TTL_MS,
        window_ms: None,
        period_ms: Some(3_000),
        margin_ms: None,
    })
    .unwrap()
}

fn clock(boot: u64) -> ClockReading {
    ClockReading {
        wall: UnixMs(WALL + boot),
        boot: BootMs(boot),
    }
}

fn reading(boot: u64) -> Event {
    reading_of(BOOT, boot)
}

fn reading_of(boot_id: BootId, boot: u64) -> Event {
    spread_reading(boot_id, boot, 0)
}

fn spread_reading(boot_id: BootId, boot: u64, random: u64) -> Event {
    Event::Reading(Reading {
        clock: clock(boot),
        boot_id,
        clock_good: true,
        may_acquire: true,
        random,
    })
}

fn stepped_reading(boot: u64) -> Event {
    let clock = ClockReading {
        wall: UnixMs(WALL * 9),
        boot: BootMs(boot),
    };
    Event::Reading(Reading {
        clock,
        boot_id: BOOT,
        clock_good: false,
        may_acquire: false,
        random: 0,
    })
}

fn token(revision: u64) -> Token {
    Token {
        epoch: Epoch(0),
        revision: Revision(revision),
    }
}

fn leased(ceiling: u64) -> Vec<Leased> {
    let window = Window {
        floor: UnixMs(WALL),
        ceiling: UnixMs(ceiling),
    };
    [3, 4]
        .map(|identity| Leased {
            identity: Identity(identity),
            window,
        })
        .to_vec()
}

fn grant(asked_at: u64) -> Grant {
    Grant {
        boot_id: BOOT,
        token: token(5),
        guard: Revision(5),
        ttl_ms: TTL_MS,
        reading: clock(asked_at),
        leased: leased(WALL + 8_000),
    }
}

/// Runs events; the actions of the last one are returned.
struct Run {
    state: State,
    actions: Vec<Action>,
}

impl Run {
    fn new() -> Self {
        Self {
            state: State::new(),
            actions: Vec::new(),
        }
    }

    fn tell(mut self, event: Event) -> Self {
        let (state, actions) = next(&timing(), self.state, event).unwrap();
        self.state = state;
        self.actions = actions;
        self
    }

    fn vacant() -> Self {
        Self::new()
            .tell(reading(0))
            .tell(Event::Inspected { claims: vec![] })
    }

    fn acquiring() -> Self {
        Self::vacant().tell(reading(0))
    }

    fn installing() -> Self {
        let run = Self::acquiring();
        let ticket = run.ticket();
        run.tell(Event::Granted {
            ticket,
            grant: grant(0),
        })
    }

    fn holding() -> Self {
        Self::installing().tell(Event::Installed)
    }

    fn renewing() -> Self {
        Self::holding().tell(reading(3_000))
    }

    fn renewed(self, ceiling: u64) -> Self {
        let ticket = self.ticket();
        self.tell(Event::Renewed {
            ticket,
            guard: Revision(9),
            ttl_ms: TTL_MS,
            leased: leased(ceiling),
        })
    }

    fn ticket(&self) -> Ticket {
        self.state.ticket
    }

    fn phase(&self) -> &'static str {
        self.state.phase.name()
    }

    fn held(&self) -> &Held {
        self.state.phase.held().unwrap()
    }

    fn only(&self) -> &Action {
        assert_eq!(self.actions.len(), 1, "{:?}", self.actions);
        &self.actions[0]
    }

    fn fences(&self) -> bool {
        self.phase() == "fencing" && matches!(self.actions.last(), Some(Action::Fence { .. }))
    }

    fn loss(&self) -> Option<Loss> {
        self.actions.iter().find_map(|action| match action {
            Action::Lost { why, .. } => Some(*why),
            _ => None,
        })
    }
}

fn marks() -> Vec<Mark> {
    let mark = |identity| Mark {
        claim: Claim {
            identity: Identity(identity),
            token: token(5),
        },
        last: UnixMs(WALL + 7),
    };
    vec![mark(3), mark(4)]
}

#[test]
fn the_way_from_nothing_to_a_lease() {
    let run = Run::new().tell(reading(0));
    assert_eq!(run.only(), &Action::Inspect);
    let run = run.tell(Event::Inspected { claims: vec![] });
    assert_eq!(run.only(), &Action::ReadClock);
    let run = run.tell(reading(10));
    assert!(matches!(run.only(), Action::Acquire { reading, .. } if *reading == clock(10)));
    let ticket = run.ticket();
    let run = run.tell(Event::Granted {
        ticket,
        grant: grant(10),
    });
    let Action::Install { held, anchor } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(
        held.deadline,
        BootMs(10 + USABLE_MS),
        "it counts from the reading before the request"
    );
    assert_eq!(*anchor, clock(10));
    let run = run.tell(Event::Installed);
    assert_eq!((run.phase(), run.actions.len()), ("holding", 0));
}

#[test]
fn a_late_answer_only_shortens_the_lease() {
    let run = Run::acquiring().tell(reading(5_000));
    let ticket = run.ticket();
    let run = run.tell(Event::Granted {
        ticket,
        grant: grant(0),
    });
    assert_eq!(run.held().deadline, BootMs(USABLE_MS));
    let run = Run::acquiring().tell(reading(USABLE_MS));
    let ticket = run.ticket();
    let run = run.tell(Event::Granted {
        ticket,
        grant: grant(0),
    });
    assert_eq!(
        (run.phase(), run.loss()),
        ("vacant", Some(Loss::DeadlinePassed)),
        "too late to be used"
    );
}

#[test]
fn a_renewal_publishes_only_what_is_committed() {
    let run = Run::renewing();
    let Action::Renew { wanted, held, .. } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(wanted[0].window.ceiling, UnixMs(WALL + 3_000 + 8_000));
    assert_eq!(
        held.leased[0].window.ceiling,
        UnixMs(WALL + 8_000),
        "not before the commit"
    );
    let run = run.renewed(WALL + 11_000);
    let Action::Extend { held, anchor } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(held.leased[0].window.ceiling, UnixMs(WALL + 11_000));
    assert_eq!(
        (held.deadline, held.leased[0].guard),
        (BootMs(3_000 + USABLE_MS), Revision(9))
    );
    assert_eq!(*anchor, Some(clock(3_000)));
    assert_eq!(run.tell(Event::Extended).phase(), "holding");
}

#[test]
fn a_clock_that_was_set_renews_the_deadline_and_raises_nothing() {
    let run = Run::holding().tell(stepped_reading(3_000));
    let Action::Renew { wanted, .. } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(wanted[0].window.ceiling, UnixMs(WALL + 8_000));
    let run = run.renewed(WALL + 8_000);
    let Action::Extend { held, anchor } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!((held.deadline, *anchor), (BootMs(3_000 + USABLE_MS), None));
    let run = Run::vacant().tell(stepped_reading(1));
    assert_eq!(
        (run.phase(), run.actions.len()),
        ("vacant", 0),
        "and nothing is acquired"
    );
}

fn ungated_reading(boot: u64) -> Event {
    Event::Reading(Reading {
        clock: clock(boot),
        boot_id: BOOT,
        clock_good: true,
        may_acquire: false,
        random: 0,
    })
}

#[test]
fn a_clock_that_may_take_no_lease_goes_on_with_the_one_there_is() {
    let run = Run::holding().tell(ungated_reading(3_000));
    let Action::Renew { wanted, .. } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(
        wanted[0].window.ceiling,
        UnixMs(WALL + 11_000),
        "ceilings are raised"
    );
    let run = Run::vacant().tell(ungated_reading(1));
    assert_eq!((run.phase(), run.actions.len()), ("vacant", 0));
    // What an earlier daemon left open is not even looked at: to close it would end the minting.
    let run = Run::new().tell(ungated_reading(0));
    assert_eq!((run.phase(), run.actions.len()), ("away", 0));
    let run = run.tell(reading(1));
    assert_eq!(run.phase(), "arriving", "until the gate opens");
}

#[test]
fn a_deadline_that_passed_is_the_end_of_the_token() {
    let frozen = [
        Run::holding(),
        Run::renewing(),
        Run::holding().tell(Event::ServerLost),
    ];
    for run in frozen {
        let run = run.tell(reading(USABLE_MS));
        assert!(run.fences(), "{:?}", run.actions);
        assert_eq!(run.loss(), Some(Loss::DeadlinePassed));
    }
    let run = Run::holding().tell(reading(USABLE_MS - 1));
    assert_eq!(run.phase(), "renewing", "one ms before it is renewed");
}

#[test]
fn a_new_boot_id_takes_a_new_grant_at_once_from_anywhere() {
    let runs = [
        Run::installing(),
        Run::holding(),
        Run::renewing(),
        Run::renewing().renewed(WALL + 9_000),
        Run::holding().tell(Event::ServerLost),
    ];
    for run in runs {
        let run = run.tell(reading_of(OTHER_BOOT, 3_100));
        assert_eq!(
            (run.phase(), run.loss()),
            ("acquiring", Some(Loss::BootIdChanged))
        );
        let acquire = run.actions.last().unwrap();
        assert!(
            matches!(
                acquire,
                Action::Acquire {
                    boot_id: OTHER_BOOT,
                    ..
                }
            ),
            "{acquire:?}"
        );
    }
    let run = Run::acquiring().tell(reading_of(OTHER_BOOT, 10));
    assert!(matches!(
        run.only(),
        Action::Acquire {
            boot_id: OTHER_BOOT,
            ..
        }
    ));
}

#[test]
fn a_grant_for_an_older_boot_id_is_not_installed() {
    let run = Run::acquiring();
    let late = run.ticket();
    let run = run.tell(reading_of(OTHER_BOOT, 10));
    let run = run.tell(Event::Granted {
        ticket: late,
        grant: grant(0),
    });
    assert_eq!(
        (run.phase(), run.actions.len()),
        ("acquiring", 0),
        "a stale ticket is dropped"
    );
    let ticket = run.ticket();
    let run = run.tell(Event::Granted {
        ticket,
        grant: grant(0),
    });
    assert_eq!(
        run.phase(),
        "vacant",
        "and so is a grant under the right ticket but for another memory"
    );
}

#[test]
fn an_unknown_grant_is_looked_up_before_another_is_asked_for() {
    let run = Run::acquiring();
    let ticket = run.ticket();
    let planned = PlannedGrant {
        leased: leased(WALL + 8_000)[0],
        generation: 1,
        seen: None,
        replaces: None,
    };
    let plan = GrantPlan {
        epoch: Epoch(0),
        epoch_nonce: EpochNonce(1),
        formats: "classic".to_owned(),
        boot_id: BOOT,
        grants: vec![planned],
    };
    let attempt = Attempt {
        plan,
        reading: clock(0),
    };
    let run = run.tell(Event::GrantFailed {
        ticket,
        doubt: Some(attempt.clone()),
    });
    let run = run.tell(reading(RETRY_MS * 3 / 4));
    assert_eq!(run.actions, [], "not before the pause is over");
    let other = Run {
        state: run.state.clone(),
        actions: vec![],
    };
    let run = run.tell(reading(RETRY_MS));
    assert!(matches!(run.only(), Action::Acquire { doubt: Some(doubt), .. } if *doubt == attempt));
    let other = other.tell(reading_of(OTHER_BOOT, 1));
    assert!(
        matches!(other.only(), Action::Acquire { doubt: None, .. }),
        "of no use to another memory"
    );
}

#[test]
fn an_unknown_renewal_makes_the_next_one_look_first() {
    for doubt in [false, true] {
        let run = Run::renewing();
        let ticket = run.ticket();
        let run = run
            .tell(Event::RenewFailed { ticket, doubt })
            .tell(reading(3_750));
        let Action::Renew { held, .. } = run.only() else {
            panic!("{:?}", run.actions)
        };
        assert_eq!(held.doubt, doubt);
    }
    let run = Run::renewing();
    let late = run.ticket();
    let run = run.tell(Event::ServerLost).tell(reading(3_100));
    assert!(
        matches!(run.only(), Action::Renew { held, .. } if held.doubt),
        "its answer is not waited for"
    );
    let run = run.tell(Event::Renewed {
        ticket: late,
        guard: Revision(9),
        ttl_ms: TTL_MS,
        leased: leased(WALL + 9_000),
    });
    assert_eq!((run.phase(), run.actions.len()), ("renewing", 0));
}

#[test]
fn a_stop_fences_before_it_releases() {
    let run = Run::holding().tell(Event::Stop);
    assert!(run.fences());
    let run = run.tell(Event::Fenced { marks: marks() });
    assert!(matches!(run.only(), Action::Release { boot_id: BOOT, marks: exact, .. } if *exact == marks()));
    let ticket = run.ticket();
    let run = run.tell(Event::Released { ticket });
    assert_eq!((run.phase(), run.actions.len()), ("stopped", 0));
    let run = run.tell(Event::Stop).tell(reading(9)).tell(Event::ServerLost);
    assert_eq!(run.phase(), "stopped");
}

#[test]
fn a_stop_without_a_live_fence_releases_nothing() {
    let runs = [
        Run::holding().tell(Event::ServerLost).tell(Event::Stop),
        Run::holding().tell(Event::Stop).tell(Event::ServerLost),
        Run::holding().tell(Event::Stop).tell(Event::ServerForgot),
        Run::holding()
            .tell(Event::Stop)
            .tell(Event::Fenced { marks: vec![] }),
        Run::acquiring().tell(Event::Stop),
    ];
    for run in runs {
        assert_eq!(run.phase(), "stopped");
        assert!(
            !run.actions
                .iter()
                .any(|action| matches!(action, Action::Release { .. }))
        );
    }
}

#[test]
fn a_fence_cannot_prove_what_was_not_asked() {
    let run = Run::holding().tell(Event::Stop);
    let mut marks = marks();
    marks[0].claim.token = token(6);
    assert!(next(&timing(), run.state, Event::Fenced { marks }).is_err());
}

#[test]
fn what_an_earlier_daemon_left_is_closed_only_when_the_store_is_within_reach() {
    let claims: Vec<Claim> = marks().iter().map(|mark| mark.claim).collect();
    let left = Event::Inspected {
        claims: claims.clone(),
    };
    let run = Run::new().tell(reading(0)).tell(left.clone());
    let Action::Probe { ticket } = run.only() else {
        panic!("{:?}", run.actions)
    };
    let away = Event::ProbeFailed { ticket: *ticket };
    let near = Event::Probed { ticket: *ticket };
    assert_eq!(
        run.tell(away).phase(),
        "away",
        "its lease goes on until its deadline"
    );
    let run = Run::new().tell(reading(0)).tell(left).tell(near);
    assert_eq!(
        run.only(),
        &Action::Fence {
            boot_id: BOOT,
            claims
        }
    );
    let run = run.tell(Event::Fenced { marks: marks() });
    let ticket = run.ticket();
    let run = run.tell(Event::Released { ticket });
    assert_eq!((run.only(), run.phase()), (&Action::ReadClock, "vacant"));
}

#[test]
fn a_server_that_comes_back_is_told_again() {
    let run = Run::installing().tell(Event::ServerLost).tell(reading(100));
    assert!(
        matches!(run.only(), Action::Install { held, .. } if held.leased[0].token == token(5)),
        "the same token"
    );
    let run = Run::renewing()
        .renewed(WALL + 11_000)
        .tell(Event::ServerLost)
        .tell(reading(3_100));
    assert!(matches!(run.only(), Action::Extend { held, .. } if held.deadline == BootMs(3_000 + USABLE_MS)));
    let run = Run::holding().tell(Event::ServerLost).tell(reading(100));
    assert_eq!(
        (run.phase(), run.actions.len()),
        ("holding", 0),
        "nothing to tell"
    );
}

#[test]
fn a_deadline_never_shrinks() {
    let run = Run::renewing();
    let ticket = run.ticket();
    let shorter = Event::Renewed {
        ticket,
        guard: Revision(9),
        ttl_ms: 1,
        leased: leased(WALL + 11_000),
    };
    assert_eq!(run.tell(shorter).held().deadline, BootMs(USABLE_MS));
}

#[test]
fn what_cannot_happen_is_an_error_that_names_both() {
    let error = next(&timing(), Run::holding().state, Event::Installed).unwrap_err();
    assert_eq!(
        error.to_string(),
        "event \"installed\" cannot happen while holding"
    );
    let run = Run::renewing();
    let ticket = run.ticket();
    let wrong = Event::Renewed {
        ticket,
        guard: Revision(9),
        ttl_ms: 1,
        leased: vec![],
    };
    assert!(
        next(&timing(), run.state, wrong).is_err(),
        "a renewal of other identities"
    );
}
