//! What the store committed and what servers were asked to do.

use super::grants::{Key, Place, Rows, Step};
use super::record::{Branch, Change, Commit, HeldBy, History, RowState};
use super::verdict::{Invariant, Verdict};
use crate::lease::{BootId, Class, InstanceId, Revision, Token};
use std::collections::{BTreeMap, HashMap, HashSet};

/// I7: the tokens of an identity that are installed into one shared memory rise.
#[must_use]
pub fn installs_rise(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Installs);
    let mut latest: HashMap<(Key, BootId), Token> = HashMap::new();
    for install in &history.installs {
        let key = ((install.class, install.identity), install.boot_id);
        let before = latest.insert(key, install.token);
        let fell = before.filter(|before| *before >= install.token);
        verdict.judge(fell.map(|before| {
            move || {
                let (class, identity) = (install.class, install.identity);
                format!(
                    "{class} {identity}: token {} installed after {before}",
                    install.token
                )
            }
        }));
    }
    verdict
}

/// A commit of one identity, with what it was before.
struct Changed<'a> {
    commit: &'a Commit,
    key: Key,
    before: Option<RowState>,
    row: RowState,
}

impl Changed<'_> {
    fn step(&self) -> Step {
        Step::between(self.before.as_ref(), &self.row)
    }

    fn place(&self) -> Place {
        (self.commit.branch, self.key)
    }

    /// One of those that are granted this class here.
    fn daemon(&self, instance: InstanceId) -> (Branch, Class, InstanceId) {
        (self.commit.branch, self.key.0, instance)
    }

    fn describe(&self, why: &str) -> String {
        let (class, identity) = self.key;
        format!(
            "{class} {identity} at revision {}: {why} (before: {:?}, after: {:?})",
            self.commit.revision.0, self.before, self.row
        )
    }
}

/// All commits of rows, in their order.
fn changes(history: &History) -> impl Iterator<Item = Changed<'_>> {
    let mut rows = Rows::default();
    history.trail.iter().filter_map(move |commit| {
        let before = rows.follow(commit);
        match commit.change {
            Change::Row(class, identity, row) => Some(Changed {
                commit,
                key: (class, identity),
                before,
                row,
            }),
            _ => None,
        }
    })
}

/// I8: a ceiling never falls but to the exact high water of a release; grants are counted one by one; the store's
/// own count of changes has no gap.
#[must_use]
pub fn ceilings_never_fall(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Ceilings);
    for changed in changes(history) {
        let broken = broken_ceiling(&changed);
        verdict.judge(broken.map(|why| {
            let changed = &changed;
            move || changed.describe(why)
        }));
    }
    verdict
}

fn broken_ceiling(changed: &Changed) -> Option<&'static str> {
    let Some(before) = changed.before else {
        return (changed.row.generation != 1).then_some("the first grant is not the first generation");
    };
    let step = changed.step();
    let row = changed.row;
    let rise = u64::from(step == Step::Granted);
    if row.ceiling < before.ceiling && step != Step::Released {
        return Some("the ceiling fell");
    }
    if step == Step::Granted && row.ceiling <= before.ceiling {
        return Some("the new window is not above the old ceiling");
    }
    if row.generation != before.generation + rise {
        return Some("the generation does not count grants");
    }
    match (before.version, row.version) {
        // The holder's key alone may go: that is no change of the high water.
        (Some(old), Some(new)) if new != old + 1 && step != Step::Removed => Some("a change is missing"),
        _ => None,
    }
}

/// I9: an identity is granted only when nobody holds it, or to whoever held it.
#[must_use]
pub fn one_holder(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::OneHolder);
    for changed in changes(history).filter(|changed| changed.step() == Step::Granted) {
        let held = changed.before.and_then(|row| row.holder);
        let robbed = held.is_some_and(|held| is_robbed(&held, &changed));
        verdict.judge(robbed.then_some(|| changed.describe("it was held by another")));
    }
    verdict
}

fn is_robbed(held: &HeldBy, changed: &Changed) -> bool {
    let own = changed
        .row
        .holder
        .is_some_and(|new| new.instance == held.instance);
    // The store looks at its clock before it commits.
    let expired = match (held.expires_at, changed.commit.store_time) {
        (Some(expires_at), Some(committed)) => expires_at <= committed,
        _ => false,
    };
    !own && !expired
}

/// I10: between a restore and the next epoch nothing is granted, and nothing is renewed a second time. A holder that had
/// not renewed since the backup finds its row as it left it, so one renewal is committed; its answer is what tells the
/// daemon of the restore, and is never published.
#[must_use]
pub fn nothing_while_sealed(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Sealed);
    let mut rows = Rows::default();
    // In branches that are sealed: who has renewed since the restore.
    let mut sealed: HashMap<Branch, HashSet<Key>> = HashMap::new();
    for commit in &history.trail {
        let before = rows.follow(commit);
        match &commit.change {
            Change::Restored => drop(sealed.insert(commit.branch, HashSet::new())),
            Change::Epoch(_) => drop(sealed.remove(&commit.branch)),
            Change::Row(class, identity, row) => {
                let step = Step::between(before.as_ref(), row);
                let renewed = sealed.get_mut(&commit.branch);
                let broken = renewed.is_some_and(|renewed| match step {
                    Step::Granted => true,
                    Step::Renewed => !renewed.insert((*class, *identity)),
                    _ => false,
                });
                verdict.judge(broken.then_some(|| {
                    format!(
                        "{class} {identity} at revision {}: {step:?} while sealed",
                        commit.revision.0
                    )
                }));
            }
            Change::Found(..) | Change::Shown(..) => {}
        }
    }
    verdict
}

/// etcd counts a lease from its grant, which is a request before the put of the holder, and a daemon waits a second at the
/// most for each of the two.
const BEFORE_THE_PUT_MS: u64 = 2_000;

/// I11: a holder goes by its own release, or when its time is over, or because its daemon has a newer lease, or with its
/// epoch. No operator takes one away in these histories, so nothing else can.
#[must_use]
pub fn no_holder_is_removed(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::NotForced);
    let mut rows = Rows::default();
    let mut holders = Holders::default();
    for commit in &history.trail {
        let before = rows.follow(commit);
        match commit.change {
            Change::Row(class, identity, row) => {
                let key = (class, identity);
                let changed = Changed {
                    commit,
                    key,
                    before,
                    row,
                };
                holders.judge(&changed, ttl_ms(history, class), &mut verdict);
            }
            Change::Restored | Change::Epoch(_) => holders.forget(commit.branch),
            Change::Found(..) | Change::Shown(..) => {}
        }
    }
    verdict
}

/// What is known of holders that came and went.
#[derive(Default)]
struct Holders<'a> {
    renewed: BTreeMap<Place, &'a Commit>,
    /// The latest grant of each daemon's class: what it held before is dead then, and it gives that up.
    granted: HashMap<(Branch, Class, InstanceId), Revision>,
    /// Gone so many ms before their time.
    early: BTreeMap<Place, (HeldBy, u64)>,
}

impl<'a> Holders<'a> {
    fn forget(&mut self, branch: Branch) {
        self.renewed.retain(|(of, _), _| *of != branch);
        self.granted.retain(|(of, ..), _| *of != branch);
        self.early.retain(|(of, _), _| *of != branch);
    }

    fn judge(&mut self, changed: &Changed<'a>, ttl_ms: u64, verdict: &mut Verdict) {
        let (place, step) = (changed.place(), changed.step());
        if let (Some((held, early_ms)), Some(new)) = (self.early.remove(&place), changed.row.holder) {
            let forced = new.instance != held.instance;
            let describe =
                || changed.describe(&format!("its holder was removed {early_ms} ms before its time"));
            verdict.judge(forced.then_some(describe));
        }
        if let (Step::Granted, Some(holder)) = (step, changed.row.holder) {
            self.granted
                .insert(changed.daemon(holder.instance), changed.commit.revision);
        }
        match step {
            Step::Granted | Step::Renewed => drop(self.renewed.insert(place, changed.commit)),
            Step::Released => verdict.keep(1),
            Step::Removed if self.is_given_up(changed) => verdict.keep(1),
            Step::Removed => {
                let least_ms = ttl_ms.saturating_sub(BEFORE_THE_PUT_MS);
                let expires = self
                    .renewed
                    .get(&place)
                    .map(|commit| commit.after.plus_ms(least_ms));
                let early_ms = expires.map_or(0, |expires| expires.since_ms(changed.commit.seen));
                match changed.before.and_then(|row| row.holder).filter(|_| early_ms > 0) {
                    Some(held) => drop(self.early.insert(place, (held, early_ms))),
                    None => verdict.keep(1),
                }
            }
            Step::Other => {}
        }
    }

    /// Its daemon has a newer lease, for memory that was made anew.
    fn is_given_up(&self, changed: &Changed<'_>) -> bool {
        let held = changed.before.and_then(|row| row.holder);
        let newer = held.and_then(|held| self.granted.get(&changed.daemon(held.instance)));
        let renewed = self.renewed.get(&changed.place()).map(|commit| commit.revision);
        newer.is_some_and(|newer| Some(*newer) > renewed)
    }
}

fn ttl_ms(history: &History, class: Class) -> u64 {
    match class {
        Class::Worker => history.times.ttl_ms,
        Class::Shard => history.times.shard_ttl_ms,
    }
}

/// I12: the recorded commits add up to what the store shows.
#[must_use]
pub fn nothing_is_missing(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Complete);
    let mut rows = Rows::default();
    for commit in &history.trail {
        rows.follow(commit);
        if let Change::Shown(class, identity, row) = commit.change {
            let recorded = rows.get(&(commit.branch, (class, identity))).copied();
            verdict.judge((recorded != Some(row)).then_some(|| {
                format!("{class} {identity}: the store shows {row:?}, its commits say {recorded:?}")
            }));
        }
    }
    verdict
}
