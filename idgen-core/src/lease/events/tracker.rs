//! The keys of a store as they were last seen, and what follows from the next commit.

use super::super::class::Class;
use super::super::token::{Epoch, Identity, InstanceId, Revision};
use super::derive::{self, CellTurn, Deed, IdentityTurn, Turn};
use super::place::{Place, Value};
use super::record::{Detail, Event, Finding, Kind, When};
use super::steps::{Before, Continuity, Lost, Seen, between, follows};
use crate::clock::UnixMs;
use std::collections::{BTreeMap, BTreeSet};

/// A daemon that replaces its own holder deletes the key and makes it again with its next request. So long nobody calls the
/// deletion unexplained.
pub const SUSPECT_MS: u64 = 10_000;

/// What a log has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Every change of every key (etcd).
    Every,
    /// Every change but renewals, which are counted only (the embedded store).
    ButRenewals,
}

/// One key in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Which.
    pub place: Place,
    /// What the log says that it was.
    pub before: Before,
    /// What it is; `None`: it was deleted.
    pub after: Option<Seen>,
}

impl KeyChange {
    /// The key before it, where the log says what it was.
    #[must_use]
    pub const fn was(&self) -> Option<(&Place, &Seen)> {
        match &self.before {
            Before::Was(seen) => Some((&self.place, seen)),
            Before::Unknown | Before::Nothing => None,
        }
    }
}

/// Everything that a store did at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// When.
    pub when: When,
    /// Who, where the store knows.
    pub by: Option<String>,
    /// What, in the order in which it was done.
    pub changes: Vec<KeyChange>,
}

/// A holder that was removed early, and is not explained yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Whose it was.
    pub instance: InstanceId,
    /// When it was removed.
    pub since: When,
}

/// A key as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// This.
    pub seen: Seen,
    /// Its version at the last event of its subject.
    pub told: u64,
    /// When its last change was read.
    pub read_at: UnixMs,
    /// Of a high water.
    pub suspect: Option<Suspect>,
}

/// The store is not the one that was followed: a key is older than it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Which key says so.
    pub key: String,
}

/// The keys of a commit before it and after it, and what is missing of them before it.
type Turns = (
    BTreeMap<Place, Option<Value>>,
    BTreeMap<Place, Option<Seen>>,
    BTreeMap<Place, Lost>,
);

/// See the module.
#[derive(Clone, Debug)]
pub struct Tracker {
    log: Log,
    keys: BTreeMap<Place, Tracked>,
    dirty: BTreeSet<Place>,
}

impl Tracker {
    /// Nothing was seen yet, or this.
    #[must_use]
    pub fn new(log: Log, keys: impl IntoIterator<Item = (Place, Tracked)>) -> Self {
        Self {
            log,
            keys: keys.into_iter().collect(),
            dirty: BTreeSet::new(),
        }
    }

    /// What was seen.
    #[must_use]
    pub const fn keys(&self) -> &BTreeMap<Place, Tracked> {
        &self.keys
    }

    /// What has changed since this was asked last; `None`: it is gone.
    pub fn take_dirty(&mut self) -> Vec<(Place, Option<Tracked>)> {
        let dirty = core::mem::take(&mut self.dirty);
        let as_it_is = |place: Place| {
            let tracked = self.keys.get(&place).cloned();
            (place, tracked)
        };
        dirty.into_iter().map(as_it_is).collect()
    }

    /// The trail begins with this.
    pub fn begin(&mut self, when: When, detail: Detail, states: Vec<(Place, Seen)>) -> Event {
        let detail = detail.number("keys", states.len() as u64);
        self.rebase(when.at, states);
        event(when, Kind::Began, "log", None, detail)
    }

    /// The store is another one, or an older state of itself: this. What is known of the one before is forgotten.
    pub fn replace(&mut self, when: When, detail: Detail, states: Vec<(Place, Seen)>) -> Event {
        let detail = detail.number("keys", states.len() as u64);
        self.rebase(when.at, states);
        let finding = Some(Finding::StoreReplaced);
        event(when, Kind::StoreReplaced, "log", finding, detail)
    }

    fn rebase(&mut self, at: UnixMs, states: Vec<(Place, Seen)>) {
        self.dirty.extend(core::mem::take(&mut self.keys).into_keys());
        for (place, seen) in states {
            self.put(place, seen, at);
        }
        for tracked in self.keys.values_mut() {
            tracked.told = tracked.seen.version;
        }
    }

    fn put(&mut self, place: Place, seen: Seen, read_at: UnixMs) {
        self.dirty.insert(place.clone());
        match self.keys.get_mut(&place) {
            Some(tracked) => {
                // One that was made anew counts from its beginning.
                if tracked.seen.made != seen.made {
                    tracked.told = 0;
                }
                tracked.seen = seen;
                tracked.read_at = read_at;
            }
            None => {
                let tracked = Tracked {
                    seen,
                    told: 0,
                    read_at,
                    suspect: None,
                };
                self.keys.insert(place, tracked);
            }
        }
    }

    /// A part of the log is gone: what came after position `from`, up to `when`. `states`: all keys then.
    ///
    /// # Errors
    /// [`Replaced`]: this is another history.
    pub fn heal(
        &mut self,
        from: u64,
        when: When,
        states: Vec<(Place, Seen)>,
    ) -> Result<Vec<Event>, Replaced> {
        let states: BTreeMap<Place, Seen> = states.into_iter().collect();
        let places: BTreeSet<Place> = self.keys.keys().chain(states.keys()).cloned().collect();
        let mut lost = Vec::new();
        for place in places {
            let known = self.keys.get(&place).map(|tracked| &tracked.seen);
            match self.since(known, states.get(&place)) {
                Continuity::Back => return Err(Replaced { key: place.key() }),
                Continuity::Lost(missing) => lost.push((place, missing)),
                Continuity::Whole => {}
            }
        }
        let mut events = Vec::new();
        let (mut changes, mut at_least) = (0, false);
        for (place, missing) in &lost {
            changes += missing.changes;
            at_least |= missing.at_least;
            events.push(tell_lost(place, *missing, when));
        }
        for place in self
            .keys
            .keys()
            .filter(|place| !states.contains_key(place))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.forget(&place);
        }
        let told: BTreeSet<&Place> = lost.iter().map(|(place, _)| place).collect();
        for (place, seen) in states {
            let version = seen.version;
            let is_told = told.contains(&place);
            self.put(place.clone(), seen, when.at);
            if let Some(tracked) = self.keys.get_mut(&place).filter(|_| is_told) {
                tracked.told = version;
            }
        }
        let detail = Detail::default()
            .number("from", from + 1)
            .number("to", when.position)
            .number("keys", lost.len() as u64)
            .number("changes", changes)
            .flag("at_least", at_least);
        let finding = (changes > 0).then_some(Finding::Gap);
        events.insert(0, event(when, Kind::Gap, "log", finding, detail));
        Ok(events)
    }

    fn forget(&mut self, place: &Place) {
        self.keys.remove(place);
        self.dirty.insert(place.clone());
    }

    /// Where renewals are not in the log: do the two differ by nothing else?
    fn is_renewal(&self, known: Option<&Seen>, is: Option<&Seen>) -> bool {
        let (Log::ButRenewals, Some(known), Some(is)) = (self.log, known, is) else {
            return false;
        };
        known.made == is.made
            && match (&known.value, &is.value) {
                (Value::HighWater(was), Value::HighWater(is)) => {
                    was.generation == is.generation && was.exact == is.exact && was.ceiling <= is.ceiling
                }
                (Value::Holding(was), Value::Holding(is)) => was.token == is.token,
                (Value::Ceiling(was), Value::Ceiling(is)) => was <= is,
                (was, is) => was == is,
            }
    }

    /// Time goes by.
    pub fn tick(&mut self, now: UnixMs) -> Vec<Event> {
        let overdue: Vec<(Place, Suspect)> = self
            .keys
            .iter()
            .filter_map(|(place, tracked)| Some((place.clone(), tracked.suspect?)))
            .filter(|(_, suspect)| now.0 >= suspect.since.at.0.saturating_add(SUSPECT_MS))
            .collect();
        let unexplained = |(place, suspect): (Place, Suspect)| {
            self.suspect(&place, None);
            unexplained(
                &place,
                suspect,
                self.keys.get(&place).map_or(0, |tracked| tracked.told),
                now,
            )
        };
        overdue.into_iter().map(unexplained).collect()
    }

    fn suspect(&mut self, place: &Place, suspect: Option<Suspect>) {
        if let Some(tracked) = self.keys.get_mut(place)
            && tracked.suspect != suspect
        {
            tracked.suspect = suspect;
            self.dirty.insert(place.clone());
        }
    }

    /// A key that was changed last at or before `up_to`, up to where everything was followed, and not as it was seen then: the
    /// store is an older state of itself that has come as far again while nobody looked. `None`: none of these says so, or
    /// this log does not tell each change.
    #[must_use]
    pub fn elsewhere<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a Place, &'a Seen)>,
        up_to: Revision,
    ) -> Option<String> {
        let unseen = |(place, seen): &(&Place, &Seen)| {
            let known = self.keys.get(place).map(|tracked| tracked.seen.changed);
            seen.changed <= up_to && known != Some(seen.changed)
        };
        let found = match self.log {
            Log::Every => keys.into_iter().find(unseen),
            Log::ButRenewals => None,
        };
        found.map(|(place, _)| place.key())
    }

    /// The next commit of the log.
    ///
    /// # Errors
    /// [`Replaced`]: it does not follow on what was seen, because it is of another history.
    pub fn take(&mut self, commit: &Commit) -> Result<Vec<Event>, Replaced> {
        let (before, after, lost) = self.turns(commit)?;
        let mut events = Vec::new();
        for (place, lost) in lost {
            events.push(tell_lost(&place, lost, commit.when));
            if let Some(tracked) = self.keys.get_mut(&place) {
                tracked.told = lost.to_version;
            }
        }
        let told = self.derive(commit, &before, &after);
        for (place, seen) in after {
            match seen {
                Some(seen) => self.put(place, seen, commit.when.at),
                None => self.forget(&place),
            }
        }
        for (place, deed) in told {
            events.extend(self.tell(&place, deed, commit));
        }
        Ok(events)
    }

    /// The keys of a commit before and after it, and what is missing before it. A transaction may change a row several times:
    /// each change follows on the one before it, and whatever is missing of a key is told once.
    fn turns(&self, commit: &Commit) -> Result<Turns, Replaced> {
        let mut before: BTreeMap<Place, Option<Value>> = BTreeMap::new();
        let mut after: BTreeMap<Place, Option<Seen>> = BTreeMap::new();
        let mut lost: BTreeMap<Place, Lost> = BTreeMap::new();
        for change in &commit.changes {
            let place = &change.place;
            let known = match after.get(place) {
                Some(just_now) => just_now.as_ref(),
                None => self.keys.get(place).map(|tracked| &tracked.seen),
            };
            let as_logged = change.was().map(|(_, seen)| seen);
            match self.follows(known, change, as_logged) {
                Continuity::Whole => {}
                Continuity::Back => return Err(Replaced { key: place.key() }),
                Continuity::Lost(missing) => {
                    let all = lost.get(place).map_or(missing, |before| before.and(missing));
                    lost.insert(place.clone(), all);
                }
            }
            let was = as_logged.or(known).map(|seen| seen.value.clone());
            before.entry(place.clone()).or_insert(was);
            after.insert(place.clone(), change.after.clone());
        }
        Ok((before, after, lost))
    }

    /// From what was seen to what there is.
    fn since(&self, known: Option<&Seen>, is: Option<&Seen>) -> Continuity {
        let version = |seen: &Seen| (seen.made, seen.version);
        let counted = known.into_iter().chain(is).all(|seen| seen.version > 0);
        let continuity = match counted {
            true => between(known.map(version), is.map(version)),
            false => Continuity::Whole,
        };
        self.without_renewals(continuity, known, is)
    }

    fn follows(&self, known: Option<&Seen>, change: &KeyChange, as_logged: Option<&Seen>) -> Continuity {
        let continuity = follows(known, &change.before, change.after.as_ref());
        self.without_renewals(continuity, known, as_logged)
    }

    /// Where renewals are not in the log, versions say less, and what is in a row says more.
    fn without_renewals(
        &self,
        continuity: Continuity,
        known: Option<&Seen>,
        is: Option<&Seen>,
    ) -> Continuity {
        if self.log == Log::Every {
            return continuity;
        }
        match (continuity, known, is) {
            (Continuity::Lost(_), ..) if self.is_renewal(known, is) => Continuity::Whole,
            // Somebody has changed it behind the back of the log, which does not count then either.
            (Continuity::Whole, Some(known), Some(is)) if !self.is_renewal(Some(known), Some(is)) => {
                Continuity::Lost(Lost {
                    from_version: known.version,
                    to_version: is.version,
                    changes: 1,
                    at_least: true,
                })
            }
            (continuity, ..) => continuity,
        }
    }

    /// What the commit did, by the key that counts the changes of its subject.
    fn derive(
        &self,
        commit: &Commit,
        before: &BTreeMap<Place, Option<Value>>,
        after: &BTreeMap<Place, Option<Seen>>,
    ) -> Vec<(Place, Deed)> {
        let turn_of = |place: &Place| -> Option<Turn<'_>> {
            Some(Turn {
                after: after.get(place)?.as_ref().map(|seen| &seen.value),
                before: before.get(place).and_then(Option::as_ref),
            })
        };
        let put_at = |place: &Place| self.keys.get(place).map(|tracked| tracked.read_at);
        // A request is used once: it was not before, and is now.
        let uses = |request: &String| {
            turn_of(&Place::Used(request.clone()))
                .is_some_and(|turn| turn.before.is_none() && turn.after.is_some())
        };
        let epochs: Vec<(Epoch, &str, &str)> = after
            .iter()
            .filter_map(
                |(place, seen)| match (place, seen.as_ref().map(|seen| &seen.value)) {
                    (Place::Epoch(epoch), Some(Value::Epoch { by, reason })) => {
                        Some((Epoch(*epoch), by.as_str(), reason.as_str()))
                    }
                    _ => None,
                },
            )
            .collect();
        let mut deeds = Vec::new();
        let mut identities: BTreeSet<(Class, Identity)> = BTreeSet::new();
        for place in after.keys() {
            let Some(turn) = turn_of(place) else { continue };
            let done = match place {
                Place::HighWater(class, identity) | Place::Holder(class, identity) => {
                    identities.insert((*class, *identity));
                    continue;
                }
                Place::Cell => derive::cell(CellTurn {
                    turn,
                    epochs: &epochs,
                    approved: after.keys().any(|place| match place {
                        Place::Used(request) => uses(request),
                        _ => false,
                    }),
                }),
                Place::Name(_) => derive::name(turn, put_at(place), commit.when.at),
                _ => derive::other(place, turn),
            };
            deeds.extend(done.into_iter().map(|deed| (place.clone(), deed)));
        }
        for (class, identity) in identities {
            let (high_water, holder) = (Place::HighWater(class, identity), Place::Holder(class, identity));
            let order = after.get(&Place::Order(class, identity)).and_then(Option::as_ref);
            let order = order.and_then(|seen| match &seen.value {
                Value::Order(order) => Some(order),
                _ => None,
            });
            let turn = IdentityTurn {
                high_water: turn_of(&high_water),
                holder: turn_of(&holder),
                resting_holder: self.keys.get(&holder).map(|tracked| &tracked.seen.value),
                order,
                approved: order.and_then(|order| order.request.as_ref()).is_some_and(uses),
                put_at: put_at(&holder),
                now: commit.when.at,
            };
            let done = derive::identity(&turn);
            deeds.extend(done.into_iter().map(|deed| (high_water.clone(), deed)));
        }
        deeds
    }

    fn tell(&mut self, place: &Place, deed: Deed, commit: &Commit) -> Vec<Event> {
        let mut events = Vec::new();
        let suspect = self.keys.get(place).and_then(|tracked| tracked.suspect);
        if let (Kind::Granted, Some(suspect)) = (deed.kind, suspect) {
            let told = self.keys.get(place).map_or(0, |tracked| tracked.told);
            let same = commit.changes.iter().any(|change| match &change.after {
                Some(Seen {
                    value: Value::Holding(holding),
                    ..
                }) => holding.instance == suspect.instance,
                _ => false,
            });
            if !same {
                events.push(unexplained(place, suspect, told, commit.when.at));
            }
            self.suspect(place, None);
        }
        if let Some(instance) = deed.suspect {
            let suspect = Suspect {
                instance,
                since: commit.when,
            };
            self.suspect(place, Some(suspect));
        }
        let (version, steps) = self.count(place, deed.beforehand);
        let detail = deed.detail.maybe("written_by", commit.by.as_deref());
        let told = event(commit.when, deed.kind, &place.subject(), deed.finding, detail);
        events.push(Event {
            version,
            steps,
            ..told
        });
        events
    }

    /// The version of a subject, and how many steps there were since its last event.
    fn count(&mut self, place: &Place, beforehand: bool) -> (u64, u64) {
        let Some(tracked) = self.keys.get_mut(place) else {
            return (0, 0);
        };
        let version = tracked.seen.version.saturating_sub(u64::from(beforehand));
        let steps = version.saturating_sub(tracked.told);
        tracked.told = version;
        self.dirty.insert(place.clone());
        (version, steps)
    }
}

/// The key of an identity's holder is told by itself: the versions of its subject are those of the high water.
fn tell_lost(place: &Place, lost: Lost, when: When) -> Event {
    let detail = Detail::default()
        .text("key", &place.key())
        .number("from_version", lost.from_version)
        .number("to_version", lost.to_version)
        .number("changes", lost.changes)
        .flag("at_least", lost.at_least);
    let subject = if place.counts() {
        place.subject()
    } else {
        format!("key {}", place.key())
    };
    Event {
        version: lost.to_version,
        steps: lost.changes,
        ..event(when, Kind::Lost, &subject, Some(Finding::Gap), detail)
    }
}

fn unexplained(place: &Place, suspect: Suspect, told: u64, now: UnixMs) -> Event {
    let detail = Detail::default()
        .text("instance", &format!("{:032x}", suspect.instance.0))
        .number("removed_at_ms", suspect.since.at.0)
        .number("removed_at_revision", suspect.since.revision.0);
    let finding = Some(Finding::RemovedEarly);
    // Where it was removed, now.
    let when = When {
        at: now,
        ..suspect.since
    };
    let told_of = event(when, Kind::Unexplained, &place.subject(), finding, detail);
    Event {
        version: told,
        ..told_of
    }
}

fn event(when: When, kind: Kind, subject: &str, finding: Option<Finding>, detail: Detail) -> Event {
    Event {
        when,
        kind,
        subject: subject.to_owned(),
        version: 0,
        steps: 0,
        finding,
        detail,
    }
}
