//! What needs two people: a request, who has approved it, and whether that is enough.
//!
//! - An **approver** is whom the store itself has authenticated; what it is called here was read from the store, and is
//!   nothing that anybody has said of themselves.
//! - An approval is for one request and **all of its text**: it holds the digest of it. A request that was changed since,
//!   or another one, has no approvals.
//! - A request is used **once**, and for a short time. It names the lease, or the epoch, that it was made for: whoever
//!   holds the identity now, by another token, is not meant.
//! - To **ask is not to approve**. Whoever has asked may approve as well, as one of the two.
//! - How many are needed is a property of the cell ([`Needed`]), so that no client can choose it.

use super::class::Class;
use super::ledger::Row;
use super::token::{CellId, Epoch, EpochNonce, Identity, StoreIdentity, Token};
use crate::clock::UnixMs;
use core::fmt;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;

/// Longest life of a request, in ms: whoever approves should know of what happens now.
pub const LIFE_MS_MAX: u64 = 24 * 3_600_000;

/// Names a request: random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

/// SHA-256 of a request's text, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of this text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take an identity from its holder, who may still run.
    ForceRelease {
        /// Its class.
        class: Class,
        /// The identity.
        identity: Identity,
        /// The lease that is meant; no later one of the identity is.
        token: Token,
        /// How often it had been granted.
        generation: u64,
    },
    /// Open a sealed store.
    AdvanceEpoch {
        /// The epoch that the cell has, and its name.
        from: (Epoch, EpochNonce),
        /// The store that is meant.
        identity: StoreIdentity,
        /// The plan of formats that holds, where it was named.
        formats: Option<String>,
    },
    /// Have so many approvals be needed from now on.
    Need {
        /// One or two.
        approvals: u32,
    },
}

/// A request, as somebody has made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name.
    pub id: RequestId,
    /// The cell.
    pub cell_id: CellId,
    /// What is to be done.
    pub act: Act,
    /// Why.
    pub reason: String,
    /// Who asked, for people.
    pub by: String,
    /// When, by the store's clock.
    pub at: UnixMs,
    /// Until when it may be approved and done.
    pub expires: UnixMs,
}

/// One approval, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Whom the store has authenticated.
    pub approver: String,
    /// Of the text that was approved.
    pub digest: Digest,
}

/// A request as the store shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What was asked.
    pub ask: Ask,
    /// Of its text as it is now.
    pub digest: Digest,
    /// In any order.
    pub approvals: Vec<Approval>,
    /// What became of it; `None`: nothing yet.
    pub done: Option<String>,
}

/// How many different people have to approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// What the cell says; `None`: nobody has decided.
    pub set: Option<u32>,
    /// The store can tell at least two people apart.
    pub has_two: bool,
}

impl Needed {
    /// For an advance of the epoch, and for changing this number. Where nobody has decided: two as soon as the store can
    /// tell two people apart, else one, for a site with one administrator must get its store open.
    #[must_use]
    pub fn number(self) -> u32 {
        self.set.unwrap_or(if self.has_two { 2 } else { 1 })
    }

    /// For this act. What a holder may still use is never taken from it by one person alone: to wait for its deadline
    /// is always possible.
    #[must_use]
    pub fn of(self, act: &Act) -> u32 {
        match act {
            Act::ForceRelease { .. } => self.number().max(2),
            // Neither made easier nor harder by fewer than what holds, or would hold.
            Act::Need { approvals } => self.number().max(*approvals),
            Act::AdvanceEpoch { .. } => self.number(),
        }
    }
}

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotEnough {
    /// It was done, or given up.
    Used(String),
    /// It is too old.
    Expired,
    /// Of another cell: the store was made anew, or is another one.
    AnotherCell,
    /// Its life is longer than one may be: it was not made by idgenctl.
    TooLong,
    /// Too few different people have approved this very text.
    Few {
        /// Who has.
        have: BTreeSet<String>,
        /// How many are needed.
        need: u32,
    },
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used(outcome) => write!(f, "the request was used: {outcome}"),
            Self::Expired => f.write_str("the request has expired"),
            Self::AnotherCell => f.write_str("the request is of another cell"),
            Self::TooLong => f.write_str("the request would live for longer than a day"),
            Self::Few { have, need } => {
                let names: Vec<&str> = have.iter().map(String::as_str).collect();
                let by = if names.is_empty() {
                    "nobody".to_owned()
                } else {
                    names.join(", ")
                };
                write!(f, "approved by {by}; {need} different people are needed")
            }
        }
    }
}

impl core::error::Error for NotEnough {}

impl Request {
    /// Who has approved this very text.
    #[must_use]
    pub fn approvers(&self) -> BTreeSet<String> {
        let of_text = self
            .approvals
            .iter()
            .filter(|approval| approval.digest == self.digest);
        of_text.map(|approval| approval.approver.clone()).collect()
    }

    /// May it be approved still?
    ///
    /// # Errors
    /// Every [`NotEnough`] but `Few`.
    pub fn check_alive(&self, cell_id: CellId, now: UnixMs) -> Result<(), NotEnough> {
        if let Some(outcome) = &self.done {
            return Err(NotEnough::Used(outcome.clone()));
        }
        if self.ask.cell_id != cell_id {
            return Err(NotEnough::AnotherCell);
        }
        if self.ask.expires.since(self.ask.at) > LIFE_MS_MAX {
            return Err(NotEnough::TooLong);
        }
        if now >= self.ask.expires {
            return Err(NotEnough::Expired);
        }
        Ok(())
    }

    /// May it be done? Who has approved it.
    ///
    /// # Errors
    /// [`NotEnough`].
    pub fn judge(&self, cell_id: CellId, needed: Needed, now: UnixMs) -> Result<BTreeSet<String>, NotEnough> {
        self.check_alive(cell_id, now)?;
        let (have, need) = (self.approvers(), needed.of(&self.ask.act));
        if have.len() < need as usize {
            return Err(NotEnough::Few { have, need });
        }
        Ok(have)
    }
}

/// Is the lease that a request means the one that the row shows?
#[must_use]
pub fn means(act: &Act, row: &Row) -> bool {
    let Act::ForceRelease {
        identity,
        token,
        generation,
        ..
    } = act
    else {
        return false;
    };
    row.identity == *identity
        && row.generation == *generation
        && row.holder.as_ref().is_some_and(|holder| holder.token == *token)
}

#[cfg(test)]
mod tests;
