//! Leases of workers and shards, as the trail of a cell tells them: no two at a time, and no two that may mint in the same ms.
//!
//! What may be minted under a lease is its *window*, the ms above what was granted before it up to its ceiling. Renewals raise
//! the ceiling and are no events, so of a lease that nobody has ended only a part of its window is known: what is told here is
//! sure, and what is not told need not be.

use super::probe::Origin;
use super::saved::{Damaged, In, Out, Saved};
use super::span::Span;
use crate::lease::{Class, Epoch, Identity, InstanceId, Revision, Token};
use std::collections::HashMap;

/// Last leases of an identity that are remembered.
const REMEMBERED: usize = 4;

/// An identity of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The cell.
    pub cell: u128,
    /// Worker or shard.
    pub class: Class,
    /// Its number.
    pub identity: Identity,
}

/// A lease as it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Whose, for people.
    pub holder: String,
    /// The daemon's run.
    pub instance: InstanceId,
    /// Its token.
    pub token: Token,
    /// Counts the grants of the identity.
    pub generation: u64,
    /// Up to which ms.
    pub ceiling_ms: u64,
    /// Above which ms; `None`: the record does not say.
    pub above_ms: Option<u64>,
}

/// What happened to an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDeed {
    /// It was leased.
    Granted {
        /// To whom.
        lease: Leased,
        /// The record itself says that another one held it.
        robbed: bool,
    },
    /// A lease of it has ended.
    Ended {
        /// Under which token.
        token: Token,
        /// Its high water, if the record says that,
        ceiling_ms: Option<u64>,
        /// ... and nothing above it was minted.
        exact: bool,
        /// So many ms before its holder would have stopped by itself.
        early_ms: Option<u64>,
    },
    /// Something that nobody can tell: what was held may not be.
    Unknown,
}

/// A lease, and what is known of its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The lease.
    pub lease: Leased,
    /// The event that says so.
    pub origin: Origin,
    /// When that was.
    pub at_ms: u64,
    /// Its window, as far as it is known: ms since 1970.
    pub window: Span,
}

/// Two leases of one identity that cannot both be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAlarm {
    /// Of what.
    pub subject: Subject,
    /// The one that was told first.
    pub earlier: Party,
    /// The other one.
    pub later: Party,
    /// The ms that both windows have.
    pub windows: Option<Span>,
    /// The earlier one had not ended when the later one began.
    pub both_live: bool,
    /// Both are the same grant by their number: the store has two histories.
    pub same_grant: bool,
}

#[derive(Clone, Debug)]
struct Known {
    party: Party,
    /// Until when its holder may believe in it; `None`: nobody has ended it.
    ends_ms: Option<u64>,
}

impl Known {
    fn is_live(&self, at_ms: u64) -> bool {
        self.ends_ms.is_none_or(|ends| ends > at_ms)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    max: usize,
    known: HashMap<Subject, Vec<Known>>,
    unjudged: u64,
}

fn window(lease: &Leased) -> Span {
    let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let hi = ms(lease.ceiling_ms);
    let lo = lease.above_ms.map_or(hi, |above| ms(above).saturating_add(1));
    Span::new(lo.min(hi), hi).unwrap_or(Span::of(hi))
}

impl Leases {
    /// None is known. `max`: identities that are remembered.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    /// Identities that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Is none known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Events that could not be judged: there were too many identities.
    #[must_use]
    pub const fn unjudged(&self) -> u64 {
        self.unjudged
    }

    /// The next event of an identity. `is_whole`: none of its trail is missing so far.
    pub fn tell(
        &mut self,
        subject: Subject,
        (origin, at_ms): (Origin, u64),
        deed: LeaseDeed,
        is_whole: bool,
    ) -> Vec<LeaseAlarm> {
        match deed {
            LeaseDeed::Granted { lease, robbed } => {
                let party = Party {
                    window: window(&lease),
                    lease,
                    origin,
                    at_ms,
                };
                self.granted(subject, party, robbed, is_whole)
            }
            LeaseDeed::Ended {
                token,
                ceiling_ms,
                exact,
                early_ms,
            } => {
                let ends_ms = at_ms.saturating_add(early_ms.unwrap_or(0));
                self.ended(&subject, token, (ceiling_ms, exact), ends_ms);
                Vec::new()
            }
            LeaseDeed::Unknown => {
                self.forget(subject.cell, Some(&subject));
                Vec::new()
            }
        }
    }

    /// Nobody knows any more which leases of a cell are live, or of one identity of it. Their windows are what they were.
    pub fn forget(&mut self, cell: u128, subject: Option<&Subject>) {
        let of = |known: &Subject| known.cell == cell && subject.is_none_or(|subject| subject == known);
        for (_, leases) in self.known.iter_mut().filter(|(known, _)| of(known)) {
            for lease in leases {
                lease.ends_ms.get_or_insert(0);
            }
        }
    }

    fn granted(&mut self, subject: Subject, later: Party, robbed: bool, is_whole: bool) -> Vec<LeaseAlarm> {
        if !self.known.contains_key(&subject) && self.known.len() >= self.max {
            self.unjudged += 1;
            return Vec::new();
        }
        let leases = self.known.entry(subject).or_default();
        let is_copy = |known: &Known| {
            let lease = &known.party.lease;
            (lease.token, lease.instance) == (later.lease.token, later.lease.instance)
        };
        if leases.iter().any(is_copy) {
            return Vec::new();
        }
        let last = leases.iter().map(|known| known.party.lease.generation).max();
        let alarms = leases.iter().filter_map(|known| {
            let is_last = Some(known.party.lease.generation) == last;
            judge(subject, known, &later, robbed && is_last, is_whole)
        });
        let alarms = alarms.collect();
        leases.push(Known {
            party: later,
            ends_ms: None,
        });
        leases.sort_by_key(|known| known.party.lease.generation);
        if leases.len() > REMEMBERED {
            leases.remove(0);
        }
        alarms
    }

    fn ended(
        &mut self,
        subject: &Subject,
        token: Token,
        (ceiling_ms, exact): (Option<u64>, bool),
        ends_ms: u64,
    ) {
        let of_token = |known: &&mut Known| known.party.lease.token == token;
        let leases = self.known.get_mut(subject);
        for known in leases.into_iter().flatten().filter(of_token) {
            known.ends_ms = Some(ends_ms);
            let (lo, hi) = (known.party.window.lo(), known.party.window.hi());
            let told = ceiling_ms.and_then(|ceiling| i64::try_from(ceiling).ok());
            let hi = match told {
                Some(told) if exact => told,
                Some(told) => hi.max(told),
                None => hi,
            };
            // One that has minted nothing gives back what was before it.
            known.party.window = Span::new(lo.min(hi), hi).unwrap_or(known.party.window);
        }
    }
}

fn judge(subject: Subject, known: &Known, later: &Party, robbed: bool, is_whole: bool) -> Option<LeaseAlarm> {
    let earlier = &known.party;
    let same_grant = earlier.lease.generation == later.lease.generation;
    let other_holder = earlier.lease.instance != later.lease.instance;
    let in_order = earlier.lease.generation < later.lease.generation;
    let follows = earlier.lease.generation.checked_add(1) == Some(later.lease.generation);
    // What is missing may have ended it, or may say that its window ends earlier.
    let both_live =
        other_holder && in_order && (robbed || (follows && is_whole && known.is_live(later.at_ms)));
    // Another epoch begins above all windows, and no record of a lease says where.
    let sure = if earlier.lease.token.epoch == later.lease.token.epoch {
        later.window
    } else {
        Span::of(later.window.hi())
    };
    let windows = earlier.window.common(sure).filter(|_| is_whole || same_grant);
    (same_grant || both_live || windows.is_some()).then(|| LeaseAlarm {
        subject,
        earlier: earlier.clone(),
        later: later.clone(),
        windows,
        both_live,
        same_grant,
    })
}

impl Saved for Subject {
    fn put(&self, out: &mut Out<'_>) {
        let is_worker = self.class == Class::Worker;
        (self.cell, (is_worker, self.identity.0)).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (cell, (is_worker, identity)) = from.take()?;
        Ok(Self {
            cell,
            class: if is_worker { Class::Worker } else { Class::Shard },
            identity: Identity(identity),
        })
    }
}

impl Saved for Leased {
    fn put(&self, out: &mut Out<'_>) {
        out.put(&self.holder);
        out.put(&self.instance.0);
        out.put(&(self.token.epoch.0, self.token.revision.0));
        out.put(&self.generation);
        out.put(&(self.ceiling_ms, self.above_ms));
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (holder, instance) = (from.take()?, InstanceId(from.take()?));
        let (epoch, revision) = from.take()?;
        let generation = from.take()?;
        let (ceiling_ms, above_ms) = from.take()?;
        Ok(Self {
            holder,
            instance,
            token: Token {
                epoch: Epoch(epoch),
                revision: Revision(revision),
            },
            generation,
            ceiling_ms,
            above_ms,
        })
    }
}

impl Saved for Known {
    fn put(&self, out: &mut Out<'_>) {
        out.put(&self.party.lease);
        out.put(&self.party.origin);
        out.put(&(self.party.at_ms, self.party.window));
        out.put(&self.ends_ms);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (lease, origin) = (from.take()?, from.take()?);
        let (at_ms, window) = from.take()?;
        Ok(Self {
            party: Party {
                lease,
                origin,
                at_ms,
                window,
            },
            ends_ms: from.take()?,
        })
    }
}

impl Leases {
    pub(super) fn put(&self, out: &mut Out<'_>) {
        out.put(&self.unjudged);
        out.put(&(self.known.len() as u64));
        for (subject, leases) in &self.known {
            out.put(subject);
            out.list(leases.iter().cloned());
        }
    }

    pub(super) fn take(from: &mut In<'_>, max: usize) -> Result<Self, Damaged> {
        let mut leases = Self::new(max);
        leases.unjudged = from.take()?;
        for _ in 0..from.count()? {
            leases.known.insert(from.take()?, from.list()?);
        }
        Ok(leases)
    }
}

#[cfg(test)]
mod tests;
