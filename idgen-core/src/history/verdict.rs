//! What a check says.

use core::fmt;

/// Violations that are kept with their text; all are counted.
const SHOWN_MAX: usize = 10;

/// The invariants, numbered as in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// No id twice.
    Unique,
    /// Every id lies in a window that was committed before the id was given out.
    Committed,
    /// What is minted of an identity under one grant lies above what was minted under the grants before.
    InTurn,
    /// Ids rise: within a session, and over all sessions of an identity in one shared memory.
    Rising,
    /// No id of a call that began after the deadline of its token.
    Deadline,
    /// No id of a call that began after its token was fenced, and none above what the fence said.
    Fenced,
    /// The tokens of an identity that are installed into one shared memory rise.
    Installs,
    /// A ceiling in the store never falls, but to the exact high water of a release.
    Ceilings,
    /// At most one holder at a time.
    OneHolder,
    /// Nothing is granted or renewed between a restore and the next epoch.
    Sealed,
    /// A holder goes by its own release or by expiry. (There is no force-release in this release.)
    NotForced,
    /// The recorded commits add up to what the store shows.
    Complete,
    /// Minting is back in time after a fault.
    Alive,
}

impl Invariant {
    /// All, in their order.
    pub const ALL: [Self; 13] = [
        Self::Unique,
        Self::Committed,
        Self::InTurn,
        Self::Rising,
        Self::Deadline,
        Self::Fenced,
        Self::Installs,
        Self::Ceilings,
        Self::OneHolder,
        Self::Sealed,
        Self::NotForced,
        Self::Complete,
        Self::Alive,
    ];

    /// 1 to 13.
    #[must_use]
    pub fn number(self) -> usize {
        self as usize + 1
    }

    /// In a few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Unique => "no id twice",
            Self::Committed => "ids lie in windows committed before",
            Self::InTurn => "grants of an identity mint one above the other",
            Self::Rising => "ids rise per session and identity",
            Self::Deadline => "no call after the deadline mints",
            Self::Fenced => "no call after a fence mints",
            Self::Installs => "installed tokens rise",
            Self::Ceilings => "ceilings in the store never fall",
            Self::OneHolder => "one holder at a time",
            Self::Sealed => "nothing granted while sealed",
            Self::NotForced => "holders go by release or expiry",
            Self::Complete => "commits add up to the store",
            Self::Alive => "minting is back in time",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{}", self.number())
    }
}

/// What broke an invariant, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub invariant: Invariant,
    /// How many things were looked at. A check that looked at nothing has shown nothing.
    pub checked: u64,
    /// How many broke it.
    pub violations: u64,
    /// The first few.
    pub shown: Vec<Violation>,
}

impl Verdict {
    /// Nothing looked at yet.
    #[must_use]
    pub fn new(invariant: Invariant) -> Self {
        Self {
            invariant,
            checked: 0,
            violations: 0,
            shown: Vec::new(),
        }
    }

    /// So many more were looked at, and nothing is wrong with them.
    pub fn keep(&mut self, count: u64) {
        self.checked += count;
    }

    /// One more was looked at; `broken` says what is wrong with it.
    pub fn judge(&mut self, broken: Option<impl FnOnce() -> String>) {
        self.checked += 1;
        if let Some(text) = broken {
            self.violate(text);
        }
    }

    /// Something that was counted already is wrong.
    pub fn violate(&mut self, text: impl FnOnce() -> String) {
        self.violations += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(Violation(text()));
        }
    }

    /// Was it kept?
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.violations == 0
    }
}
