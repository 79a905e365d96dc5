//! Does a change follow on the one that was seen before?
//!
//! A key that exists has a version, which is 1 when it is made and one more with each change. A key that is deleted and made
//! again begins anew, at another revision.

use super::super::token::Revision;
use super::place::Value;

/// A key at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it was made.
    pub made: Revision,
    /// Counts its changes since; 0: this store does not count them.
    pub version: u64,
    /// When it was changed last.
    pub changed: Revision,
    /// What is in it,
    pub value: Value,
    /// ... as the store writes it.
    pub text: String,
}

/// What a log says of a key before a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing: it was compacted away.
    Unknown,
    /// It did not exist.
    Nothing,
    /// It was this.
    Was(Seen),
}

/// Changes that nobody has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The last version that was seen; 0: it did not exist.
    pub from_version: u64,
    /// The first one that was seen again; 0: it does not exist.
    pub to_version: u64,
    /// How many changes are missing,
    pub changes: u64,
    /// ... or at least so many: it was deleted meanwhile, which versions do not count.
    pub at_least: bool,
}

impl Lost {
    /// This, and what is missing later.
    pub(super) const fn and(self, later: Self) -> Self {
        Self {
            from_version: self.from_version,
            to_version: later.to_version,
            changes: self.changes.saturating_add(later.changes),
            at_least: self.at_least || later.at_least,
        }
    }
}

/// How a change follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// On what was seen.
    Whole,
    /// Something is missing between.
    Lost(Lost),
    /// The key is older than it was: this is another history.
    Back,
}

/// From what was seen of a key to what it was just before a change. `after`: what the change has made of it.
#[must_use]
pub fn follows(known: Option<&Seen>, before: &Before, after: Option<&Seen>) -> Continuity {
    if [known, after].into_iter().flatten().any(|seen| seen.version == 0) {
        return Continuity::Whole;
    }
    let was = match (before, after) {
        // What the key itself says counts.
        (_, Some(after)) => (after.version > 1).then(|| (after.made, after.version - 1)),
        (Before::Was(before), None) => Some((before.made, before.version)),
        (Before::Nothing, None) => None,
        // It was deleted, and nothing says what it was: what was seen is all that there is.
        (Before::Unknown, None) => known.map(|known| (known.made, known.version)),
    };
    between(known.map(|known| (known.made, known.version)), was)
}

/// From what was seen of a key to what it is now: revision of its making, and version.
#[must_use]
pub fn between(known: Option<(Revision, u64)>, is: Option<(Revision, u64)>) -> Continuity {
    let lost = |from_version, to_version, changes, at_least| {
        Continuity::Lost(Lost {
            from_version,
            to_version,
            changes,
            at_least,
        })
    };
    match (known, is) {
        (None, None) => Continuity::Whole,
        (None, Some((_, version))) => lost(0, version, version, false),
        (Some((_, from)), None) => lost(from, 0, 1, true),
        (Some((made, from)), Some((of, to))) if made == of && from == to => Continuity::Whole,
        (Some((made, from)), Some((of, to))) if made == of && from < to => lost(from, to, to - from, false),
        // Deleted once at least, and made again.
        (Some((made, from)), Some((of, to))) if made < of => lost(from, to, to + 1, true),
        (Some(_), Some(_)) => Continuity::Back,
    }
}
