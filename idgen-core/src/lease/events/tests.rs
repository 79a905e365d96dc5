//! A store of keys with versions, as etcd has them, and the trail of it.

use super::super::class::Class;
use super::super::token::{BootId, Epoch, Identity, InstanceId, Revision, Token};
use super::*;
use crate::clock::UnixMs;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod chains;
mod findings;
mod gaps;

const CELL: u128 = 0xCE11;
const TTL_MS: u64 = 10_000;

/// Its log is everything that was done, in order.
#[derive(Clone, Debug, Default)]
struct Store {
    revision: u64,
    now: u64,
    keys: BTreeMap<Place, Seen>,
    log: Vec<Commit>,
}

impl Store {
    fn new() -> Self {
        Self {
            revision: 1,
            now: 1_000_000,
            ..Self::default()
        }
    }

    fn commit(&mut self, changes: &[(Place, Option<Value>)]) -> Commit {
        self.revision += 1;
        let mut commit = Commit {
            when: when(self.revision, self.now),
            by: None,
            changes: Vec::new(),
        };
        for (place, value) in changes {
            let was = self.keys.remove(place);
            let seen = value.clone().map(|value| Seen {
                made: was.as_ref().map_or(Revision(self.revision), |was| was.made),
                version: was.as_ref().map_or(1, |was| was.version + 1),
                changed: Revision(self.revision),
                value,
                text: String::new(),
            });
            if let Some(seen) = &seen {
                self.keys.insert(place.clone(), seen.clone());
            }
            commit.changes.push(KeyChange {
                place: place.clone(),
                before: was.map_or(Before::Nothing, Before::Was),
                after: seen,
            });
        }
        self.log.push(commit.clone());
        commit
    }

    fn states(&self) -> Vec<(Place, Seen)> {
        let pair = |(place, seen): (&Place, &Seen)| (place.clone(), seen.clone());
        self.keys.iter().map(pair).collect()
    }

    fn high_water(&self, worker: u16) -> HighWater {
        match self.keys.get(&hw(worker)).map(|seen| &seen.value) {
            Some(Value::HighWater(high_water)) => high_water.clone(),
            _ => HighWater {
                generation: 0,
                ceiling: UnixMs(0),
                exact: true,
            },
        }
    }

    fn held(&self, worker: u16) -> Option<Holding> {
        match self.keys.get(&holder(worker)).map(|seen| &seen.value) {
            Some(Value::Holding(holding)) => Some(holding.clone()),
            _ => None,
        }
    }

    /// What a daemon does: nothing where it may not.
    fn grant(&mut self, worker: u16, instance: u128) -> Option<Commit> {
        if self.held(worker).is_some() {
            return None;
        }
        let was = self.high_water(worker);
        let high_water = HighWater {
            generation: was.generation + 1,
            ceiling: UnixMs(was.ceiling.0.max(self.now) + 1_000),
            exact: false,
        };
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(self.revision + 1),
        };
        Some(self.commit(&[
            (hw(worker), Some(Value::HighWater(high_water))),
            (holder(worker), Some(holding(instance, token, self.now))),
        ]))
    }

    fn renew(&mut self, worker: u16) -> Option<Commit> {
        let held = self.held(worker)?;
        let was = self.high_water(worker);
        let high_water = HighWater {
            ceiling: UnixMs(was.ceiling.0 + 10),
            ..was
        };
        Some(self.commit(&[
            (hw(worker), Some(Value::HighWater(high_water))),
            (
                holder(worker),
                Some(holding(held.instance.0, held.token, self.now)),
            ),
        ]))
    }

    fn release(&mut self, worker: u16) -> Option<Commit> {
        self.held(worker)?;
        let was = self.high_water(worker);
        let high_water = HighWater {
            ceiling: UnixMs(was.ceiling.0 - 1),
            exact: true,
            ..was
        };
        Some(self.commit(&[
            (hw(worker), Some(Value::HighWater(high_water))),
            (holder(worker), None),
        ]))
    }

    fn expire(&mut self, worker: u16) -> Option<Commit> {
        self.held(worker)?;
        self.now += TTL_MS;
        Some(self.commit(&[(holder(worker), None)]))
    }
}

fn when(revision: u64, at: u64) -> When {
    When {
        position: revision,
        revision: Revision(revision),
        at: UnixMs(at),
    }
}

fn hw(worker: u16) -> Place {
    Place::HighWater(Class::Worker, Identity(worker))
}

fn holder(worker: u16) -> Place {
    Place::Holder(Class::Worker, Identity(worker))
}

fn holding(instance: u128, token: Token, now: u64) -> Value {
    Value::Holding(Holding {
        instance: InstanceId(instance),
        name: format!("daemon {instance}"),
        token,
        boot_id: BootId(1),
        ttl_ms: Some(TTL_MS),
        put_at: Some(UnixMs(now)),
        expires_at: None,
    })
}

fn fresh() -> Tracker {
    Tracker::new(Log::Every, [])
}

fn kinds(events: &[Event]) -> Vec<(Kind, Option<Finding>)> {
    events.iter().map(|event| (event.kind, event.finding)).collect()
}

/// What a daemon may do, one after the other.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Grant(u16, u128),
    Renew(u16),
    Release(u16),
    Expire(u16),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = (0..4u8, 0..4u16, 1..4u128).prop_map(|(what, worker, instance)| match what {
        0 => Deed::Grant(worker, instance),
        1 => Deed::Renew(worker),
        2 => Deed::Release(worker),
        _ => Deed::Expire(worker),
    });
    proptest::collection::vec(deed, 1..80)
}

/// The store after it, and what was done without the renewals.
fn lived(deeds: &[Deed]) -> (Store, Vec<(u64, Kind, u16)>) {
    let mut store = Store::new();
    let mut done = Vec::new();
    for deed in deeds {
        store.now += 50;
        let (commit, kind, worker) = match *deed {
            Deed::Grant(worker, instance) => (store.grant(worker, instance), Some(Kind::Granted), worker),
            Deed::Renew(worker) => (store.renew(worker), None, worker),
            Deed::Release(worker) => (store.release(worker), Some(Kind::Released), worker),
            Deed::Expire(worker) => (store.expire(worker), Some(Kind::Expired), worker),
        };
        if let (Some(commit), Some(kind)) = (commit, kind) {
            done.push((commit.when.revision.0, kind, worker));
        }
    }
    (store, done)
}

/// The trail of a whole log.
fn trail(store: &Store) -> Vec<Event> {
    let mut tracker = fresh();
    let take = |commit: &Commit| tracker.take(commit).expect("the same history");
    store.log.iter().flat_map(take).collect()
}

fn records(events: &[Event]) -> (Vec<Record>, Head) {
    let mut chain = Chain::new(CELL, 0, Head::default());
    let records = events.iter().map(|event| chain.append(event)).collect();
    (records, chain.head())
}

fn check(from: Head, until: Head, records: &[Record]) -> Result<(), Broken> {
    let mut verifier = Verifier::new(CELL, from);
    records.iter().try_for_each(|record| verifier.take(record))?;
    verifier.finish(until)
}

proptest! {
    #[test]
    fn the_trail_is_what_was_done_and_counts_every_change(deeds in deeds()) {
        let (store, done) = lived(&deeds);
        let events = trail(&store);
        let told: Vec<(u64, Kind, String)> =
            events.iter().map(|event| (event.when.revision.0, event.kind, event.subject.clone())).collect();
        let expected: Vec<(u64, Kind, String)> =
            done.iter().map(|(revision, kind, worker)| (*revision, *kind, format!("worker {worker}"))).collect();
        prop_assert_eq!(told, expected);
        prop_assert!(events.iter().all(|event| event.finding.is_none()));
        // Events and the renewals since the last of them are all the changes of the key.
        for worker in 0..4 {
            let mut of_worker = events.iter().filter(|event| event.subject == format!("worker {worker}"));
            let steps: u64 = of_worker.clone().map(|event| event.steps).sum();
            prop_assert_eq!(steps, of_worker.next_back().map_or(0, |event| event.version));
        }
        let (records, head) = records(&events);
        prop_assert_eq!(check(Head::default(), head, &records), Ok(()));
    }

    #[test]
    fn whoever_takes_over_from_what_was_kept_tells_the_same(deeds in deeds(), cut in any::<prop::sample::Index>()) {
        let (store, _) = lived(&deeds);
        let cut = if store.log.is_empty() { 0 } else { cut.index(store.log.len()) };
        let mut first = fresh();
        let mut events = Vec::new();
        for commit in &store.log[..cut] {
            events.extend(first.take(commit).unwrap());
        }
        let mut second = Tracker::new(Log::Every, first.keys().clone());
        for commit in &store.log[cut..] {
            events.extend(second.take(commit).unwrap());
        }
        prop_assert_eq!(events, trail(&store));
    }
}

#[test]
fn places_are_told_by_their_keys() {
    for key in [
        "cell",
        "shards",
        "w/5/hw",
        "w/5/holder",
        "order/w/5",
        "order/x/5",
        "s/8191/hw",
        "named/made",
        "named/row/lock/a",
        "named/holder/lock/a",
        "named/ceiling/authority/x/0:tag/1:b",
        "epoch/00000000000000000007",
        "stripe/8b0e6a54/3",
        "request/8b0e6a54/ask",
        "request/8b0e6a54/done",
        "request/8b0e6a54/later",
        "map/assigned/7",
        "drain/db1",
        "drain/a/b",
        "map/later",
        "w/5/later",
        "w/x/hw",
        "cell/more",
        "something/else",
        "w/05/hw",
        "w/+5/hw",
        "s/007/holder",
        "order/w/05",
        "epoch/7",
        "",
    ] {
        assert_eq!(Place::of_key(key).key(), key);
    }
    assert_eq!(Place::of_key("w/5/hw").subject(), "worker 5");
    assert_eq!(Place::of_key("w/5/holder").subject(), "worker 5");
    assert_eq!(Place::of_key("w/5/later"), Place::Other("w/5/later".to_owned()));
    // One identity has one name.
    for alias in ["w/05/hw", "w/+5/hw", "order/w/05", "epoch/7"] {
        assert_eq!(Place::of_key(alias), Place::Other(alias.to_owned()));
    }
}

#[test]
fn a_name_that_is_too_long_or_no_text_is_shortened_and_stays_another_one() {
    let long = "x".repeat(4_000);
    let names: [&[u8]; 7] = [
        long.as_bytes(),
        &long.as_bytes()[1..],
        &[long.as_bytes(), b"y"].concat(),
        b"w/5/hw\0",
        b"w/5/hw\xff",
        b"w/5/hw\xfe",
        &[b"named/holder/", long.as_bytes()].concat(),
    ];
    let places: std::collections::BTreeSet<Place> = names.into_iter().map(Place::of_bytes).collect();
    assert_eq!(places.len(), names.len(), "{places:?}");
    for place in &places {
        assert!(place.key().len() < 400, "{place:?}");
        assert!(place.subject().len() < 400, "{place:?}");
        assert_eq!(Place::of_key(&place.key()), *place, "as it is kept");
    }
    assert!(!places.contains(&Place::of_key("w/5/hw")));
}

#[test]
fn names_of_kinds_and_findings_are_all_different() {
    let kinds: std::collections::BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(kinds.len(), Kind::ALL.len());
    let findings: std::collections::BTreeSet<&str> =
        Finding::ALL.iter().map(|finding| finding.name()).collect();
    assert_eq!(findings.len(), Finding::ALL.len());
    assert!(Finding::ALL.iter().all(|finding| !finding.meaning().is_empty()));
}

#[test]
fn a_detail_is_an_object_of_json_whatever_is_in_it() {
    let detail = Detail::default()
        .text("name", "a \"b\"\\\n\u{1}\u{0}é")
        .number("n", 7)
        .flag("yes", true)
        .maybe("no", None);
    let read: serde_json::Value = serde_json::from_str(&detail.to_string()).unwrap();
    assert_eq!(read["name"], "a \"b\"\\\n\u{1}\u{fffd}é");
    assert_eq!((&read["n"], &read["yes"]), (&7.into(), &true.into()));
    assert_eq!(Detail::default().to_string(), "{}");
}
