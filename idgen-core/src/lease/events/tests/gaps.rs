//! What is missing is counted, to the step.

use super::*;
use std::collections::BTreeMap;

/// Changes per key in a part of a log, and whether the key was deleted in it.
fn counted(log: &[Commit]) -> BTreeMap<Place, u64> {
    let mut counts = BTreeMap::new();
    for change in log.iter().flat_map(|commit| &commit.changes) {
        *counts.entry(change.place.clone()).or_insert(0) += 1;
    }
    counts
}

fn number(event: &Event, name: &str) -> u64 {
    let detail: serde_json::Value = serde_json::from_str(&event.detail.to_string()).unwrap();
    detail[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {detail}"))
}

fn text(event: &Event, name: &str) -> String {
    let detail: serde_json::Value = serde_json::from_str(&event.detail.to_string()).unwrap();
    detail[name]
        .as_str()
        .unwrap_or_else(|| panic!("{name} in {detail}"))
        .to_owned()
}

proptest! {
    /// The high waters are never deleted, so of them the count is exact.
    #[test]
    fn a_part_of_the_log_that_is_gone_is_told_with_its_bounds_and_its_changes(
        deeds in deeds(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
    ) {
        let (store, _) = lived(&deeds);
        prop_assume!(!store.log.is_empty());
        let (from, to) = (from.index(store.log.len()), to.index(store.log.len()));
        let (from, to) = (from.min(to), from.max(to) + 1);
        let mut tracker = fresh();
        for commit in &store.log[..from] {
            tracker.take(commit).unwrap();
        }
        let mut then = Store::new();
        for commit in &store.log[..to] {
            for change in &commit.changes {
                match &change.after {
                    Some(seen) => drop(then.keys.insert(change.place.clone(), seen.clone())),
                    None => drop(then.keys.remove(&change.place)),
                }
            }
        }
        let first = store.log[from].when.revision.0;
        let last = store.log[to - 1].when;
        let events = tracker.heal(first - 1, last, then.states()).unwrap();
        let gap = &events[0];
        prop_assert_eq!((gap.kind, gap.finding), (Kind::Gap, Some(Finding::Gap)));
        prop_assert_eq!((number(gap, "from"), number(gap, "to")), (first, last.position));
        let missing = counted(&store.log[from..to]);
        for (place, changes) in &missing {
            let told = events.iter().find(|event| event.kind == Kind::Lost && text(event, "key") == place.key());
            if place.counts() {
                prop_assert_eq!(told.map(|event| number(event, "changes")), Some(*changes));
            }
        }
        // It goes on, and nothing more is missing.
        let mut rest = Vec::new();
        for commit in &store.log[to..] {
            rest.extend(tracker.take(commit).unwrap());
        }
        prop_assert!(rest.iter().all(|event| event.finding.is_none()), "{:?}", rest);
        let (records, head) = records(&[events, rest].concat());
        prop_assert_eq!(check(Head::default(), head, &records), Ok(()));
    }

    /// A log that leaves a commit out without a word.
    #[test]
    fn a_commit_that_is_left_out_is_missed_with_the_next_change_of_its_key(
        deeds in deeds(), out in any::<prop::sample::Index>(),
    ) {
        let (store, _) = lived(&deeds);
        prop_assume!(!store.log.is_empty());
        let out = out.index(store.log.len());
        let missing = &store.log[out];
        let mut tracker = fresh();
        let mut events = Vec::new();
        for (n, commit) in store.log.iter().enumerate() {
            if n != out {
                events.extend(tracker.take(commit).unwrap());
            }
        }
        for change in &missing.changes {
            let later = store.log[out + 1..].iter().flat_map(|commit| &commit.changes);
            let noticed = later.clone().any(|later| later.place == change.place);
            let told = events.iter().filter(|event| event.kind == Kind::Lost && text(event, "key") == change.place.key());
            prop_assert_eq!(told.count(), usize::from(noticed), "{:?}", change.place);
        }
    }
}

#[test]
fn a_gap_in_which_nothing_happened_to_the_keys_is_no_finding() {
    let mut store = Store::new();
    store.grant(0, 1);
    let mut tracker = fresh();
    tracker.take(&store.log[0]).unwrap();
    let events = tracker.heal(2, when(90, 0), store.states()).unwrap();
    assert_eq!(kinds(&events), [(Kind::Gap, None)]);
    assert_eq!(number(&events[0], "changes"), 0);
}

/// Does a tracker that has followed `log` to its end take what comes after that, in another log, for another history?
fn elsewhere(log: &[Commit], other: &Store) -> Option<String> {
    let mut tracker = fresh();
    for commit in log {
        tracker.take(commit).unwrap();
    }
    let up_to = log.last().map_or(Revision(0), |commit| commit.when.revision);
    let states = other.states();
    let by_states = tracker.elsewhere(states.iter().map(|(place, seen)| (place, seen)), up_to);
    let later = other.log.iter().filter(|commit| commit.when.revision > up_to);
    let by_changes = later
        .take(1)
        .find_map(|commit| tracker.elsewhere(commit.changes.iter().filter_map(KeyChange::was), up_to));
    by_states.or(by_changes)
}

proptest! {
    #[test]
    fn a_store_that_goes_on_is_never_taken_for_another(deeds in deeds(), upto in any::<prop::sample::Index>()) {
        let (store, _) = lived(&deeds);
        prop_assume!(!store.log.is_empty());
        let upto = upto.index(store.log.len());
        prop_assert_eq!(elsewhere(&store.log[..upto], &store), None);
    }
}

#[test]
fn a_restored_store_that_has_come_as_far_again_is_another_history() {
    let mut store = Store::new();
    store.grant(0, 1);
    store.grant(1, 1);
    let backup = store.clone();
    store.renew(0);
    store.renew(0);
    let mut restored = backup.clone();
    restored.renew(1);
    restored.renew(1);
    let behind = elsewhere(&store.log, &restored);
    assert_eq!(
        behind,
        Some(hw(0).key()),
        "what nobody has changed there is as it was in the backup"
    );
    restored.renew(0);
    restored.renew(1);
    assert!(restored.revision > store.revision);
    // Every key was changed after the end of what was followed: the first change says what was before it.
    assert_eq!(elsewhere(&store.log, &restored), Some(hw(0).key()));
    assert_eq!(elsewhere(&store.log, &store), None);
}

#[test]
fn a_key_that_is_older_than_it_was_tells_of_another_history() {
    let mut store = Store::new();
    store.grant(0, 1);
    let backup = store.clone();
    store.renew(0);
    store.renew(0);
    let mut tracker = fresh();
    for commit in &store.log {
        tracker.take(commit).unwrap();
    }
    let mut restored = backup.clone();
    let renewed = restored.renew(0).unwrap();
    assert!(tracker.clone().take(&renewed).is_err());
    assert!(tracker.heal(4, when(5, 0), backup.states()).is_err());
    let told = tracker.replace(when(2, 0), Detail::default(), backup.states());
    assert_eq!(
        (told.kind, told.finding),
        (Kind::StoreReplaced, Some(Finding::StoreReplaced))
    );
    assert_eq!(tracker.take(&renewed), Ok(Vec::new()));
}

#[test]
fn where_renewals_are_not_in_the_log_they_are_counted_and_nothing_else_may_be_missing() {
    let mut store = Store::new();
    store.grant(0, 1);
    store.renew(0);
    store.renew(0);
    store.release(0);
    let mut tracker = Tracker::new(Log::ButRenewals, []);
    let granted = tracker.take(&store.log[0]).unwrap();
    let released = tracker.clone().take(&store.log[3]).unwrap();
    assert_eq!(kinds(&granted), [(Kind::Granted, None)]);
    assert_eq!(kinds(&released), [(Kind::Released, None)]);
    assert_eq!((released[0].version, released[0].steps), (4, 3));
    // A release and a grant that nobody has logged.
    store.grant(0, 2);
    store.release(0);
    let late = tracker.take(&store.log[5]).unwrap();
    assert_eq!(late[0].kind, Kind::Lost);
    assert_eq!(late[0].finding, Some(Finding::Gap));
}

#[test]
fn a_change_that_even_the_count_was_kept_from_is_noticed_by_what_the_next_one_begins_with() {
    let mut store = Store::new();
    store.grant(0, 1);
    let mut tracker = Tracker::new(Log::ButRenewals, []);
    tracker.take(&store.log[0]).unwrap();
    // Behind the back of the log: the high water is lowered, and the version stays.
    let Some(Value::HighWater(high_water)) = store.keys.get_mut(&hw(0)).map(|seen| &mut seen.value) else {
        panic!("no high water");
    };
    high_water.ceiling = UnixMs(5);
    // Whoever compares finds it at once.
    let compared = tracker.clone().heal(9, when(9, 0), store.states()).unwrap();
    assert_eq!(
        kinds(&compared),
        [(Kind::Gap, Some(Finding::Gap)), (Kind::Lost, Some(Finding::Gap))]
    );
    store.release(0);
    let events = tracker.take(&store.log[1]).unwrap();
    assert_eq!(events[0].kind, Kind::Lost);
    assert_eq!(
        (number(&events[0], "changes"), events[0].finding),
        (1, Some(Finding::Gap))
    );
}

/// A transaction of an embedded store changes a row as often as it likes.
#[test]
fn a_change_in_a_transaction_follows_on_the_one_before_it_there() {
    let place = Place::Order(Class::Worker, Identity(5));
    let order = |reason: &str| Seen {
        made: Revision(0),
        version: 0,
        changed: Revision(1),
        value: Value::Order(Ordered {
            token: Token {
                epoch: Epoch(0),
                revision: Revision(1),
            },
            by: "anna".to_owned(),
            reason: reason.to_owned(),
            request: None,
        }),
        text: reason.to_owned(),
    };
    let change = |before: Option<&str>, after: Option<&str>| KeyChange {
        place: place.clone(),
        before: before.map_or(Before::Nothing, |reason| Before::Was(order(reason))),
        after: after.map(order),
    };
    let commit = |position, changes| Commit {
        when: when(position, 0),
        by: None,
        changes,
    };
    let mut tracker = Tracker::new(Log::ButRenewals, []);
    tracker.take(&commit(1, vec![change(None, Some("x"))])).unwrap();
    let whole = [
        change(Some("x"), Some("a")),
        change(Some("a"), Some("b")),
        change(Some("b"), None),
        change(None, Some("c")),
    ];
    let events = tracker.clone().take(&commit(5, whole.to_vec())).unwrap();
    assert_eq!(kinds(&events), [(Kind::Revoked, None)]);
    assert!(events[0].detail.to_string().contains("\"c\""), "{events:?}");
    // What is missing is told once, however often: events of one place, kind and position are one.
    let broken = [
        change(Some("y"), Some("a")),
        change(Some("z"), Some("b")),
        change(Some("b"), Some("c")),
    ];
    let events = tracker.take(&commit(8, broken.to_vec())).unwrap();
    assert_eq!(
        kinds(&events),
        [(Kind::Lost, Some(Finding::Gap)), (Kind::Revoked, None)]
    );
    assert_eq!(number(&events[0], "changes"), 2);
    let next = tracker.take(&commit(9, vec![change(Some("c"), Some("d"))]));
    assert_eq!(kinds(&next.unwrap()), [(Kind::Revoked, None)]);
}
