//! How the list of wanted identities changes while a server mints.

use super::*;

fn list(identities: &[u16]) -> Vec<Identity> {
    identities.iter().copied().map(Identity).collect()
}

fn want(identities: &[u16]) -> Event {
    Event::Want {
        identities: list(identities),
    }
}

impl Run {
    /// Mints 3 and 4, which are what is wanted.
    fn listed() -> Self {
        let mut run = Self::holding();
        run.state.want = Some(list(&[3, 4]));
        run
    }

    fn holds(&self) -> Vec<u16> {
        self.held()
            .leased
            .iter()
            .map(|tenancy| tenancy.identity.0)
            .collect()
    }

    fn grown(self, identity: u16, revision: u64) -> Self {
        let ticket = self.ticket();
        let mut grant = grant(self.state.now.0);
        grant.token = token(revision);
        grant.guard = Revision(revision);
        grant.leased.truncate(1);
        grant.leased[0].identity = Identity(identity);
        self.tell(Event::Granted { ticket, grant })
    }
}

fn mark_of(identity: u16) -> Mark {
    let claim = Claim {
        identity: Identity(identity),
        token: token(5),
    };
    Mark {
        claim,
        last: UnixMs(WALL + 7),
    }
}

#[test]
fn one_that_goes_is_fenced_then_given_back_and_the_other_keeps_its_lease() {
    let run = Run::listed().tell(want(&[4]));
    assert_eq!(run.only(), &Action::ReadClock);
    let before = run.held().clone();
    let run = run.tell(reading(100));
    let claims = vec![mark_of(3).claim];
    let boot_id = BOOT;
    assert_eq!(run.only(), &Action::Fence { boot_id, claims });
    let marks = vec![mark_of(3)];
    let run = run.tell(Event::Fenced { marks: marks.clone() });
    assert!(matches!(run.only(), Action::Release { marks: given, .. } if *given == marks));
    assert_eq!((run.phase(), run.holds()), ("returning", vec![4]));
    let ticket = run.ticket();
    let run = run.tell(Event::Released { ticket });
    assert_eq!((run.phase(), run.holds()), ("holding", vec![4]));
    let after = run.held();
    assert_eq!(
        (after.deadline, after.leased[0]),
        (before.deadline, before.leased[1])
    );
    let run = run.tell(reading(3_000));
    let Action::Renew { wanted, .. } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(wanted.len(), 1, "it is renewed when it was due, alone");
}

#[test]
fn what_the_store_has_not_taken_back_is_closed_and_given_back_again() {
    let run = Run::listed().tell(want(&[4])).tell(reading(100));
    let run = run.tell(Event::Fenced {
        marks: vec![mark_of(3)],
    });
    let ticket = run.ticket();
    let failed = run.tell(Event::ReleaseFailed { ticket });
    let at = failed.state.wake_at().unwrap();
    assert!(at > BootMs(100) && at < BootMs(3_000), "{at:?}");
    let run = failed.tell(reading(at.0));
    assert!(matches!(run.only(), Action::Fence { claims, .. } if *claims == [mark_of(3).claim]));
    // The server went away: nobody knows whether it has closed it.
    let run = run.tell(Event::ServerLost).tell(reading(at.0 + 1));
    assert!(matches!(run.only(), Action::Fence { claims, .. } if *claims == [mark_of(3).claim]));
    let gone = run.tell(Event::Fenced { marks: vec![] });
    assert_eq!((gone.phase(), gone.holds()), ("holding", vec![4]));
}

#[test]
fn one_that_comes_is_granted_and_installed_alone_under_its_own_token() {
    let run = Run::listed().tell(want(&[9, 3, 4])).tell(reading(100));
    assert!(matches!(run.only(), Action::Acquire { identities: Some(asked), .. } if *asked == list(&[9])));
    let run = run.grown(9, 7);
    let Action::Install { held, anchor } = run.only() else {
        panic!("{:?}", run.actions)
    };
    assert_eq!(
        (held.leased.len(), held.leased[0].token, *anchor),
        (1, token(7), clock(100))
    );
    let run = run.tell(Event::Installed);
    assert_eq!(run.holds(), [3, 4, 9]);
    let tokens: Vec<Token> = run.held().leased.iter().map(|tenancy| tenancy.token).collect();
    assert_eq!(tokens, [token(5), token(5), token(7)]);
    assert_eq!(run.held().deadline, BootMs(USABLE_MS), "until all are renewed");
    let run = run.tell(reading(3_000));
    assert!(
        matches!(run.only(), Action::Renew { wanted, .. } if wanted.len() == 3),
        "in one step"
    );
}

#[test]
fn one_that_is_not_free_is_asked_for_soon_and_renewals_come_first() {
    let mut run = Run::listed().tell(want(&[3, 4, 9])).tell(reading(100));
    let mut pauses = Vec::new();
    while run.state.now < BootMs(2_000) {
        let ticket = run.ticket();
        run = run.tell(Event::GrantFailed { ticket, doubt: None });
        let at = run.state.wake_at().unwrap().0;
        pauses.push(at - run.state.now.0);
        run = run.tell(reading(at));
        assert_eq!(run.phase(), "growing");
    }
    assert_eq!(pauses[..6], [20, 40, 80, 80, 80, 80]);
    let ticket = run.ticket();
    let run = run.tell(Event::GrantFailed { ticket, doubt: None });
    let due = run.tell(reading(3_000));
    assert!(matches!(due.only(), Action::Renew { .. }), "{:?}", due.actions);
    // Somebody has given it back.
    let run = Run::listed().tell(want(&[3, 4, 9])).tell(reading(100));
    let ticket = run.ticket();
    let run = run.tell(Event::GrantFailed { ticket, doubt: None });
    let run = run.tell(want(&[3, 4, 9])).tell(reading(101));
    assert_eq!(run.phase(), "growing");
}

#[test]
fn a_grant_beside_the_lease_that_cannot_be_used_costs_the_lease_nothing() {
    let growing = || Run::listed().tell(want(&[3, 4, 9])).tell(reading(100));
    let late = growing().tell(reading(USABLE_MS - 1));
    let mut old = grant(0);
    old.ttl_ms = 10;
    let ticket = late.ticket();
    let run = late.tell(Event::Granted { ticket, grant: old });
    assert_eq!((run.phase(), run.loss()), ("holding", Some(Loss::DeadlinePassed)));
    assert_eq!(run.holds(), [3, 4]);
    let run = growing().grown(9, 7).tell(Event::InstallRefused);
    assert_eq!((run.phase(), run.loss()), ("holding", Some(Loss::ServerRefused)));
    let run = run.tell(reading(101));
    assert!(
        matches!(run.only(), Action::Fence { claims, .. } if claims.len() == 1),
        "{:?}",
        run.actions
    );
    assert_eq!(run.holds(), [3, 4]);
    let run = growing().grown(9, 7).tell(Event::ServerLost).tell(reading(200));
    assert!(matches!(run.only(), Action::Install { held, .. } if held.leased[0].token == token(7)));
    let run = growing().grown(9, 7).tell(Event::ServerForgot);
    assert_eq!((run.phase(), run.loss()), ("away", Some(Loss::BootIdChanged)));
}

#[test]
fn a_deadline_that_passes_meanwhile_is_the_end_of_all() {
    let growing = Run::listed().tell(want(&[3, 4, 9])).tell(reading(100));
    let returning = Run::listed()
        .tell(want(&[4]))
        .tell(reading(100))
        .tell(Event::Fenced {
            marks: vec![mark_of(3)],
        });
    for run in [growing, returning] {
        assert_eq!(run.state.wake_at(), Some(BootMs(USABLE_MS)));
        let run = run.tell(reading(USABLE_MS));
        assert!(run.fences());
        assert_eq!(run.loss(), Some(Loss::DeadlinePassed));
    }
}

#[test]
fn a_stop_closes_what_comes_and_what_goes_as_well() {
    let comes = Run::listed()
        .tell(want(&[3, 4, 9]))
        .tell(reading(100))
        .grown(9, 7);
    let goes = Run::listed().tell(want(&[4])).tell(reading(100));
    for (run, count) in [(comes, 3), (goes, 2)] {
        let run = run.tell(Event::Stop);
        assert!(matches!(run.only(), Action::Fence { claims, .. } if claims.len() == count));
    }
}

#[test]
fn the_last_one_that_goes_leaves_nothing_to_ask_for_until_another_comes() {
    let run = Run::listed().tell(want(&[])).tell(reading(100));
    assert!(run.fences());
    let run = run.tell(Event::Fenced { marks: marks() });
    let ticket = run.ticket();
    let run = run.tell(Event::Released { ticket }).tell(reading(200));
    assert_eq!((run.phase(), run.state.wake_at()), ("vacant", None));
    let run = run.tell(want(&[4])).tell(reading(201));
    assert!(matches!(run.only(), Action::Acquire { identities: Some(asked), .. } if *asked == list(&[4])));
    let ticket = run.ticket();
    let run = run.tell(Event::GrantFailed { ticket, doubt: None });
    assert_eq!(
        run.state.wake_at(),
        Some(BootMs(221)),
        "its last holder is giving it back"
    );
}

#[test]
fn a_grant_in_doubt_is_settled_whatever_is_wanted_by_then() {
    let run = Run::listed().tell(want(&[3, 4, 9])).tell(reading(100));
    let ticket = run.ticket();
    let attempt = Attempt {
        plan: GrantPlan {
            epoch: Epoch(0),
            epoch_nonce: EpochNonce(1),
            formats: String::new(),
            boot_id: BOOT,
            grants: Vec::new(),
        },
        reading: clock(100),
    };
    let doubt = Some(attempt);
    let run = run.tell(Event::GrantFailed {
        ticket,
        doubt: doubt.clone(),
    });
    let run = run.tell(want(&[3, 4])).tell(reading(120));
    assert!(
        matches!(run.only(), Action::Acquire { doubt: asked, identities: Some(none), .. }
        if *asked == doubt && none.is_empty())
    );
    let run = run.grown(9, 7).tell(Event::Installed).tell(reading(121));
    assert!(matches!(run.only(), Action::Fence { claims, .. } if claims[0].identity == Identity(9)));
}
