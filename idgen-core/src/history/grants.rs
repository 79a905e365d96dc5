//! The store's commits as windows.

use super::record::{Branch, Change, Commit, HeldBy, Moment, RowState};
use crate::clock::UnixMs;
use crate::lease::{BootId, Class, Identity, Token};
use std::collections::{BTreeMap, HashMap};

/// One identity.
pub type Key = (Class, Identity);

/// What a commit of one identity did to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new token.
    Granted,
    /// The same token, and a ceiling.
    Renewed,
    /// Given back with its exact high water.
    Released,
    /// The holder is gone, the ceiling stays.
    Removed,
    /// Nothing of these: somebody else wrote it.
    Other,
}

impl Step {
    /// From one state to the next.
    #[must_use]
    pub fn between(before: Option<&RowState>, after: &RowState) -> Self {
        let held = before.and_then(|row| row.holder);
        match (held, after.holder) {
            (Some(old), Some(new)) if old.token == new.token => Self::Renewed,
            (_, Some(_)) => Self::Granted,
            (Some(_), None) if after.exact => Self::Released,
            (Some(_), None) => Self::Removed,
            // An expired holder is gone already when its daemon comes back to release.
            (None, None) if after.exact => Self::Released,
            (None, None) => Self::Other,
        }
    }
}

/// An identity in one of the store's branches.
pub type Place = (Branch, Key);

/// Follows a trail, identity by identity. A restore forgets what was before in its branch.
#[derive(Debug, Default)]
pub struct Rows {
    rows: BTreeMap<Place, RowState>,
}

impl Rows {
    /// What an identity looks like now.
    #[must_use]
    pub fn get(&self, place: &Place) -> Option<&RowState> {
        self.rows.get(place)
    }

    /// Takes one commit in; of a change of a row, what it was before.
    pub fn follow(&mut self, commit: &Commit) -> Option<RowState> {
        let branch = commit.branch;
        match commit.change {
            Change::Row(class, identity, row) | Change::Found(class, identity, row) => {
                self.rows.insert((branch, (class, identity)), row)
            }
            Change::Restored => {
                self.rows.retain(|(of, _), _| *of != branch);
                None
            }
            Change::Epoch(_) | Change::Shown(..) => None,
        }
    }
}

/// A ceiling, and when it was committed.
#[derive(Clone, Copy, Debug)]
pub struct Raised {
    /// The ceiling.
    pub ceiling: UnixMs,
    /// It was not there yet at this moment.
    pub after: Moment,
}

/// One grant of one identity, with all that became of it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Of what.
    pub key: Key,
    /// Under which token.
    pub token: Token,
    /// For which shared memory.
    pub boot_id: BootId,
    /// One above all that was granted of the identity before.
    pub low: UnixMs,
    /// Ceilings, rising.
    pub raised: Vec<Raised>,
    /// The exact high water that it was given back with.
    pub exact: Option<UnixMs>,
}

impl Grant {
    fn new(key: Key, held: &HeldBy, low: UnixMs) -> Self {
        Self {
            key,
            token: held.token,
            boot_id: held.boot_id,
            low,
            raised: Vec::new(),
            exact: None,
        }
    }

    /// Nothing above this may ever be minted under it.
    #[must_use]
    pub fn high(&self) -> UnixMs {
        let highest = self.raised.last().map_or(UnixMs(0), |raised| raised.ceiling);
        self.exact.unwrap_or(highest)
    }

    /// May a time be minted under it at all?
    #[must_use]
    pub fn covers(&self, ms: UnixMs) -> bool {
        (self.low..=self.high()).contains(&ms)
    }

    /// The commit that allowed it.
    #[must_use]
    pub fn allowed(&self, ms: UnixMs) -> Option<&Raised> {
        let first = self.raised.partition_point(|raised| raised.ceiling < ms);
        self.raised.get(first).filter(|_| self.covers(ms))
    }
}

/// Every grant of a trail, in its order.
#[derive(Debug, Default)]
pub struct Grants {
    all: Vec<Grant>,
    by_memory: HashMap<(Key, BootId), Vec<usize>>,
}

impl Grants {
    /// From the commits, in their order.
    #[must_use]
    pub fn of(trail: &[Commit]) -> Self {
        let mut grants = Self::default();
        let mut rows = Rows::default();
        let mut open: BTreeMap<Place, usize> = BTreeMap::new();
        for commit in trail {
            let branch = commit.branch;
            if let Change::Restored = commit.change {
                open.retain(|(of, _), _| *of != branch);
            }
            let before = rows.follow(commit);
            match &commit.change {
                Change::Row(class, identity, row) => {
                    grants.take_in(
                        (branch, (*class, *identity)),
                        before,
                        row,
                        commit.after,
                        &mut open,
                    );
                }
                // Whoever holds it has been granted it before the record began, up to this ceiling.
                Change::Found(class, identity, row) => {
                    grants.take_in((branch, (*class, *identity)), None, row, Moment(0), &mut open);
                }
                _ => {}
            }
        }
        grants
    }

    fn take_in(
        &mut self,
        place: Place,
        before: Option<RowState>,
        row: &RowState,
        after: Moment,
        open: &mut BTreeMap<Place, usize>,
    ) {
        let (_, key) = place;
        let step = Step::between(before.as_ref(), row);
        let ceiling = row.ceiling;
        if let (Step::Granted, Some(held)) = (step, &row.holder) {
            let low = before.map_or(UnixMs(0), |row| row.ceiling.saturating_add(1));
            open.insert(place, self.all.len());
            let same_memory = self.by_memory.entry((key, held.boot_id)).or_default();
            same_memory.push(self.all.len());
            self.all.push(Grant::new(key, held, low));
        }
        let Some(grant) = open.get(&place).map(|grant| &mut self.all[*grant]) else {
            return;
        };
        match step {
            Step::Granted | Step::Renewed => grant.raised.push(Raised { ceiling, after }),
            Step::Released => grant.exact = Some(ceiling),
            Step::Removed | Step::Other => {}
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Grant] {
        &self.all
    }

    /// The grant that an id of this memory was minted under: the one whose window has its time. Else the last one
    /// that begins below it, to be judged.
    #[must_use]
    pub fn of_id(&self, key: Key, boot_id: BootId, ms: UnixMs) -> Option<usize> {
        let candidates = self.by_memory.get(&(key, boot_id))?;
        let covering = candidates.iter().find(|grant| self.all[**grant].covers(ms));
        let below = || candidates.iter().rev().find(|grant| self.all[**grant].low <= ms);
        covering.or_else(below).copied()
    }
}
