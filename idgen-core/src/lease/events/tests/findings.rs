//! What nothing explains is flagged, and nothing else is.

use super::*;

/// A worker that daemon 1 holds.
fn held() -> (Store, Tracker) {
    let mut store = Store::new();
    let mut tracker = fresh();
    store.grant(0, 1);
    store.renew(0);
    for commit in &store.log {
        tracker.take(commit).unwrap();
    }
    (store, tracker)
}

fn finding(tracker: &mut Tracker, commit: &Commit) -> Vec<(Kind, Option<Finding>)> {
    kinds(&tracker.take(commit).unwrap())
}

#[test]
fn a_holder_that_somebody_deletes_is_unexplained_after_a_while() {
    let (mut store, mut tracker) = held();
    let deleted = store.commit(&[(holder(0), None)]);
    assert_eq!(finding(&mut tracker, &deleted), [(Kind::Removed, None)]);
    assert_eq!(tracker.tick(UnixMs(store.now + SUSPECT_MS - 1)), []);
    // Whoever takes over knows of it.
    let mut tracker = Tracker::new(Log::Every, tracker.keys().clone());
    let told = tracker.tick(UnixMs(store.now + SUSPECT_MS));
    assert_eq!(kinds(&told), [(Kind::Unexplained, Some(Finding::RemovedEarly))]);
    assert_eq!(
        (told[0].when.revision, told[0].subject.as_str()),
        (deleted.when.revision, "worker 0")
    );
    assert_eq!(tracker.tick(UnixMs(store.now + 10 * SUSPECT_MS)), [], "once");
}

#[test]
fn a_holder_that_was_deleted_for_another_one_is_unexplained_at_once() {
    let (mut store, mut tracker) = held();
    store.commit(&[(holder(0), None)]);
    store.grant(0, 2);
    let mut events = tracker.take(&store.log[2]).unwrap();
    events.extend(tracker.take(&store.log[3]).unwrap());
    assert_eq!(
        kinds(&events),
        [
            (Kind::Removed, None),
            (Kind::Unexplained, Some(Finding::RemovedEarly)),
            (Kind::Granted, None)
        ]
    );
    let (records, head) = records(&[trail(&held().0), events].concat());
    assert_eq!(check(Head::default(), head, &records), Ok(()));
}

#[test]
fn a_daemon_may_replace_its_own_holder() {
    let (mut store, mut tracker) = held();
    let deleted = store.commit(&[(holder(0), None)]);
    let granted = store.grant(0, 1).unwrap();
    assert_eq!(finding(&mut tracker, &deleted), [(Kind::Removed, None)]);
    assert_eq!(finding(&mut tracker, &granted), [(Kind::Granted, None)]);
    assert_eq!(tracker.tick(UnixMs(store.now + 10 * SUSPECT_MS)), []);
}

#[test]
fn a_holder_whose_time_is_over_has_expired() {
    let (mut store, mut tracker) = held();
    let expired = store.expire(0).unwrap();
    assert_eq!(finding(&mut tracker, &expired), [(Kind::Expired, None)]);
    assert_eq!(tracker.tick(UnixMs(store.now + 10 * SUSPECT_MS)), []);
}

#[test]
fn an_old_daemon_that_says_no_ttl_accuses_nobody() {
    let (mut store, mut tracker) = held();
    let mut value = store.held(0).unwrap();
    value.ttl_ms = None;
    let high_water = store.high_water(0);
    let renewed = store.commit(&[
        (hw(0), Some(Value::HighWater(high_water))),
        (holder(0), Some(Value::Holding(value))),
    ]);
    let deleted = store.commit(&[(holder(0), None)]);
    assert_eq!(finding(&mut tracker, &renewed), []);
    assert_eq!(finding(&mut tracker, &deleted), [(Kind::Expired, None)]);
}

#[test]
fn what_is_written_by_hand_is_flagged() {
    let (store, tracker) = held();
    let held_by = store.held(0).map(Value::Holding);
    let was = store.high_water(0);
    let changed = |generation, ceiling, exact| {
        Some(Value::HighWater(HighWater {
            generation: was.generation + generation,
            ceiling: UnixMs(was.ceiling.0 + ceiling),
            exact,
        }))
    };
    let lowered = Some(Value::HighWater(HighWater {
        ceiling: UnixMs(1),
        ..was.clone()
    }));
    type Case<'c> = (&'c [(Place, Option<Value>)], Kind, Finding);
    let cases: [Case<'_>; 7] = [
        (
            &[(hw(0), changed(0, 5, false))],
            Kind::Changed,
            Finding::HighWaterAlone,
        ),
        (
            &[(holder(0), held_by.clone())],
            Kind::Changed,
            Finding::HolderAlone,
        ),
        (&[(hw(0), None)], Kind::Deleted, Finding::KeyDeleted),
        (
            &[(hw(0), lowered.clone()), (holder(0), held_by.clone())],
            Kind::Changed,
            Finding::CeilingFell,
        ),
        (
            &[(hw(0), changed(1, 5, false)), (holder(0), held_by.clone())],
            Kind::Changed,
            Finding::GenerationSkipped,
        ),
        (
            &[(hw(0), lowered), (holder(0), None)],
            Kind::Removed,
            Finding::RemovedEarly,
        ),
        (
            &[(hw(0), changed(1, 0, true)), (holder(0), None)],
            Kind::Released,
            Finding::GenerationSkipped,
        ),
    ];
    for (changes, kind, expected) in cases {
        let (mut store, mut tracker) = (store.clone(), tracker.clone());
        let commit = store.commit(changes);
        assert_eq!(
            finding(&mut tracker, &commit),
            [(kind, Some(expected))],
            "{changes:?}"
        );
    }
}

#[test]
fn a_grant_over_a_holder_is_flagged_unless_that_has_expired_or_is_its_own() {
    let (store, tracker) = held();
    let grant = |store: &mut Store, instance: u128| {
        let was = store.high_water(0);
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(store.revision + 1),
        };
        let high_water = HighWater {
            generation: was.generation + 1,
            ceiling: UnixMs(was.ceiling.0 + 500),
            exact: false,
        };
        let now = store.now;
        store.commit(&[
            (hw(0), Some(Value::HighWater(high_water))),
            (holder(0), Some(holding(instance, token, now))),
        ])
    };
    let robbed = grant(&mut store.clone(), 2);
    assert_eq!(
        finding(&mut tracker.clone(), &robbed),
        [(Kind::Removed, None), (Kind::Granted, Some(Finding::Robbed))]
    );
    let own = grant(&mut store.clone(), 1);
    assert_eq!(finding(&mut tracker.clone(), &own), [(Kind::Granted, None)]);
    let mut later = store.clone();
    later.now += TTL_MS;
    let taken = grant(&mut later, 2);
    let events = tracker.clone().take(&taken).unwrap();
    assert_eq!(kinds(&events), [(Kind::Expired, None), (Kind::Granted, None)]);
    assert_eq!(
        (events[0].version, events[0].steps),
        (2, 1),
        "with the renewal before it"
    );
    assert_eq!((events[1].version, events[1].steps), (3, 1));
}

#[test]
fn a_force_release_needs_an_order_of_a_request_that_it_uses() {
    let (store, tracker) = held();
    let place = Place::Order(Class::Worker, Identity(0));
    let order = |request: Option<&str>, revision: u64| {
        Some(Value::Order(Ordered {
            token: Token {
                epoch: Epoch(0),
                revision: Revision(revision),
            },
            by: "root".to_owned(),
            reason: "stuck".to_owned(),
            request: request.map(str::to_owned),
        }))
    };
    let token = store.held(0).unwrap().token.revision.0;
    let high_water = Some(Value::HighWater(store.high_water(0)));
    let used = || {
        let value = Value::Used {
            outcome: "done".to_owned(),
            approved_by: vec!["anna".to_owned(), "ben".to_owned()],
        };
        (Place::Used("r1".to_owned()), Some(value))
    };
    let force = |order, used: Option<(Place, Option<Value>)>| {
        let mut store = store.clone();
        let mut changes = vec![
            (hw(0), high_water.clone()),
            (holder(0), None),
            (place.clone(), order),
        ];
        changes.extend(used);
        let commit = store.commit(&changes);
        let mut found = finding(&mut tracker.clone(), &commit);
        found.retain(|(kind, _)| !matches!(kind, Kind::Revoked | Kind::Used));
        found
    };
    assert_eq!(
        force(order(Some("r1"), token), Some(used())),
        [(Kind::ForceReleased, None)]
    );
    // No order of a request; of another lease; a request that is not used by it.
    for (explains_nothing, used) in [
        (order(None, token), Some(used())),
        (order(Some("r1"), token + 1), Some(used())),
        (order(Some("r2"), token), Some(used())),
        (order(Some("r1"), token), None),
    ] {
        assert_eq!(
            force(explains_nothing, used),
            [(Kind::Removed, Some(Finding::RemovedEarly))]
        );
    }
}

#[test]
fn a_request_that_was_used_before_explains_nothing() {
    let (mut store, mut tracker) = held();
    let used = || {
        let value = Value::Used {
            outcome: "done".to_owned(),
            approved_by: Vec::new(),
        };
        (Place::Used("r1".to_owned()), Some(value))
    };
    let before = store.commit(&[used()]);
    tracker.take(&before).unwrap();
    let order = Value::Order(Ordered {
        token: store.held(0).unwrap().token,
        by: "root".to_owned(),
        reason: "stuck".to_owned(),
        request: Some("r1".to_owned()),
    });
    let order = (Place::Order(Class::Worker, Identity(0)), Some(order));
    let high_water = Some(Value::HighWater(store.high_water(0)));
    let commit = store.commit(&[(hw(0), high_water), (holder(0), None), order, used()]);
    let found = finding(&mut tracker, &commit);
    assert!(
        found.contains(&(Kind::Removed, Some(Finding::RemovedEarly))),
        "{found:?}"
    );
}

#[test]
fn an_epoch_that_nobody_recorded_and_a_seal_that_goes_are_flagged() {
    let cell = |epoch, sealed: Option<&str>| {
        Some(Value::Cell {
            epoch: Epoch(epoch),
            formats: "classic".to_owned(),
            sealed: sealed.map(str::to_owned),
            approvals: None,
        })
    };
    let recorded = (
        Place::Epoch(1),
        Some(Value::Epoch {
            by: "anna".to_owned(),
            reason: "restored".to_owned(),
        }),
    );
    let mut store = Store::new();
    let mut tracker = fresh();
    let mut seen = Vec::new();
    for changes in [
        vec![(Place::Cell, cell(0, None))],
        vec![(Place::Cell, cell(0, Some("restored")))],
        vec![(Place::Cell, cell(0, Some("restored")))],
        vec![(Place::Cell, cell(0, None))],
        vec![(Place::Cell, cell(1, None)), recorded],
        vec![(Place::Cell, cell(2, None))],
        vec![(Place::Cell, None)],
    ] {
        let commit = store.commit(&changes);
        seen.extend(finding(&mut tracker, &commit));
    }
    assert_eq!(
        seen,
        [
            (Kind::CellMade, None),
            (Kind::Sealed, None),
            (Kind::Changed, Some(Finding::Unsealed)),
            (Kind::EpochAdvanced, None),
            (Kind::EpochAdvanced, Some(Finding::EpochUnrecorded)),
            (Kind::Deleted, Some(Finding::KeyDeleted)),
        ]
    );
}

#[test]
fn names_stripes_and_ceilings_have_events_of_their_own() {
    let name = Place::Name("lock/a".to_owned());
    let mut store = Store::new();
    let mut tracker = fresh();
    let token = |revision| Token {
        epoch: Epoch(0),
        revision: Revision(revision),
    };
    let stripe = |joined, released: Option<&str>| {
        let value = Value::Stripe {
            server: "a".to_owned(),
            by: "anna".to_owned(),
            joined,
            released: released.map(str::to_owned),
        };
        (Place::Stripe("s/0".to_owned()), Some(value))
    };
    let ceiling = |is| (Place::Ceiling("lock/a:k".to_owned()), Some(Value::Ceiling(is)));
    let mut seen = Vec::new();
    for (pass, change) in [
        (0, (name.clone(), Some(holding(1, token(2), store.now)))),
        (5, (name.clone(), Some(holding(1, token(2), store.now + 5)))),
        (0, (name.clone(), None)),
        (0, (name.clone(), Some(holding(2, token(5), store.now)))),
        (TTL_MS, (name, None)),
        (0, stripe(false, None)),
        (0, stripe(true, None)),
        (0, stripe(true, Some("gone"))),
        (0, ceiling(5)),
        (0, ceiling(9)),
        (0, ceiling(8)),
    ] {
        store.now += pass;
        let commit = store.commit(&[change]);
        seen.extend(finding(&mut tracker, &commit));
    }
    assert_eq!(
        seen,
        [
            (Kind::Taken, None),
            (Kind::GivenBack, None),
            (Kind::Taken, None),
            (Kind::Expired, None),
            (Kind::StripeClaimed, None),
            (Kind::StripeJoined, None),
            (Kind::StripeReleased, None),
            (Kind::Changed, Some(Finding::CeilingFell)),
        ]
    );
}

#[test]
fn keys_of_a_later_release_are_told_and_stop_nothing() {
    let other = Place::Other("w/0/later".to_owned());
    let mut store = Store::new();
    let mut tracker = fresh();
    let made = store.commit(&[(other.clone(), Some(Value::Opaque))]);
    let unreadable = store.commit(&[(hw(0), Some(Value::Opaque)), (holder(0), Some(Value::Opaque))]);
    let again = store.commit(&[(hw(0), Some(Value::Opaque)), (holder(0), Some(Value::Opaque))]);
    let gone = store.commit(&[(other, None)]);
    assert_eq!(finding(&mut tracker, &made), [(Kind::Changed, None)]);
    assert_eq!(
        finding(&mut tracker, &unreadable),
        [(Kind::Changed, Some(Finding::Unreadable))]
    );
    assert_eq!(finding(&mut tracker, &again), [], "once");
    assert_eq!(finding(&mut tracker, &gone), [(Kind::Deleted, None)]);
}

#[test]
fn the_number_of_people_and_what_needs_them_are_changed_by_a_request_only() {
    let cell = |epoch, approvals| {
        Some(Value::Cell {
            epoch: Epoch(epoch),
            formats: "classic".to_owned(),
            sealed: None,
            approvals,
        })
    };
    let recorded = |epoch| {
        let value = Value::Epoch {
            by: "anna".to_owned(),
            reason: "restored".to_owned(),
        };
        (Place::Epoch(epoch), Some(value))
    };
    let used = |request: &str| {
        let value = Value::Used {
            outcome: "done".to_owned(),
            approved_by: vec!["anna".to_owned(), "ben".to_owned()],
        };
        (Place::Used(request.to_owned()), Some(value))
    };
    let mut store = Store::new();
    let mut tracker = fresh();
    let mut seen = Vec::new();
    for changes in [
        vec![(Place::Cell, cell(0, None))],
        // Where nobody has decided, one may be enough.
        vec![(Place::Cell, cell(1, None)), recorded(1)],
        vec![(Place::Cell, cell(1, Some(2))), used("r1")],
        vec![(Place::Cell, cell(2, Some(2))), recorded(2), used("r2")],
        vec![(Place::Cell, cell(3, Some(2))), recorded(3)],
        // A request is used once.
        vec![(Place::Cell, cell(4, Some(2))), recorded(4), used("r2")],
        vec![(Place::Cell, cell(4, Some(1)))],
        vec![(Place::Cell, cell(5, Some(1))), recorded(5)],
        vec![(Place::Cell, cell(5, Some(2))), used("r3")],
        vec![(Place::Cell, cell(6, None)), recorded(6)],
    ] {
        let commit = store.commit(&changes);
        seen.extend(finding(&mut tracker, &commit));
    }
    seen.retain(|(kind, _)| *kind != Kind::Used);
    assert_eq!(
        seen,
        [
            (Kind::CellMade, None),
            (Kind::EpochAdvanced, None),
            (Kind::ApprovalsSet, None),
            (Kind::EpochAdvanced, None),
            (Kind::EpochAdvanced, Some(Finding::Unapproved)),
            (Kind::EpochAdvanced, Some(Finding::Unapproved)),
            (Kind::ApprovalsSet, Some(Finding::Unapproved)),
            (Kind::EpochAdvanced, None),
            (Kind::ApprovalsSet, None),
            (Kind::ApprovalsSet, Some(Finding::Unapproved)),
            (Kind::EpochAdvanced, Some(Finding::Unapproved)),
        ]
    );
}
