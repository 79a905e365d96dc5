//! The chain of commits: what may follow what.

use core::fmt;
use std::collections::BTreeMap;

/// The offsets `[start, end)` of a partition that a commit covers. Fewer messages may be in them: offsets are also taken by
/// markers of transactions, and by what was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Covered {
    /// The partition.
    pub partition: i32,
    /// First offset.
    pub start: i64,
    /// The one after the last.
    pub end: i64,
}

/// Offsets `[from, to)` that are covered, and were gone before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The partition.
    pub partition: i32,
    /// First offset.
    pub from: i64,
    /// The one after the last.
    pub to: i64,
}

/// The end of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// Number of the last commit; 0: there is none.
    pub seq: u64,
    /// SHA-256 of its bytes; zeros: there is none.
    pub sha256: [u8; 32],
}

/// What of a commit ties it to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number, from 1.
    pub seq: u64,
    /// SHA-256 of the commit before it.
    pub prev_sha256: [u8; 32],
    /// Of the lease under which it was written. Never falls.
    pub epoch: u64,
    /// Every partition that is known, those without anything new as well: so the last commit tells where each begins.
    pub covered: Vec<Covered>,
    /// What of it is missing.
    pub gaps: Vec<Gap>,
}

/// Why a commit does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// Another number than the next.
    Seq {
        /// The next.
        wanted: u64,
        /// What it has.
        got: u64,
    },
    /// It names another commit before it: one of both was changed.
    Hash(u64),
    /// A partition does not begin where it ended.
    Start {
        /// Which.
        partition: i32,
        /// Where it ended.
        wanted: i64,
        /// Where it is to begin.
        got: i64,
    },
    /// A partition ends before it begins, or is there twice, or a gap lies outside of what is covered.
    Range(i32),
    /// A partition that was known is not there any more.
    Partition(i32),
    /// An older lease.
    Epoch(u64),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seq { wanted, got } => write!(f, "commit {wanted} is due, and this is {got}"),
            Self::Hash(seq) => write!(
                f,
                "commit {seq} is not the one that the next commit was made behind"
            ),
            Self::Start {
                partition,
                wanted,
                got,
            } => write!(
                f,
                "partition {partition} goes on at offset {wanted}, and this commit begins at {got}"
            ),
            Self::Range(partition) => write!(f, "the offsets of partition {partition} make no sense"),
            Self::Partition(partition) => write!(f, "partition {partition} is missing"),
            Self::Epoch(last) => write!(f, "it was written under a lease older than epoch {last}"),
        }
    }
}

/// A chain up to some commit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Chain {
    head: Head,
    epoch: u64,
    next: BTreeMap<i32, i64>,
}

impl Chain {
    /// Goes on behind a commit that is believed: all that matters of the past is in it.
    #[must_use]
    pub fn behind(link: &Link, sha256: [u8; 32]) -> Self {
        Self {
            head: Head {
                seq: link.seq,
                sha256,
            },
            epoch: link.epoch,
            next: link.covered.iter().map(|one| (one.partition, one.end)).collect(),
        }
    }

    /// Where it ends.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// The highest epoch so far.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The next offset of a partition. One that is new begins at 0.
    #[must_use]
    pub fn next_of(&self, partition: i32) -> i64 {
        self.next.get(&partition).copied().unwrap_or(0)
    }

    /// The next offset of each partition that is known.
    #[must_use]
    pub const fn vector(&self) -> &BTreeMap<i32, i64> {
        &self.next
    }

    /// The next commit, up to these ends of partitions. What is not named stays where it is.
    #[must_use]
    pub fn extend(&self, ends: &BTreeMap<i32, i64>, gaps: Vec<Gap>, epoch: u64) -> Link {
        let mut covered: BTreeMap<i32, Covered> = self
            .next
            .iter()
            .map(|(partition, start)| {
                let all = Covered {
                    partition: *partition,
                    start: *start,
                    end: *start,
                };
                (*partition, all)
            })
            .collect();
        for (partition, end) in ends {
            let start = self.next_of(*partition);
            let all = Covered {
                partition: *partition,
                start,
                end: *end,
            };
            covered.insert(*partition, all);
        }
        Link {
            seq: self.head.seq + 1,
            prev_sha256: self.head.sha256,
            epoch: epoch.max(self.epoch),
            covered: covered.into_values().collect(),
            gaps,
        }
    }

    /// Takes the next commit, whose bytes have this SHA-256.
    ///
    /// # Errors
    /// [`ChainError`]: it does not follow; the chain is as before.
    pub fn append(&mut self, link: &Link, sha256: [u8; 32]) -> Result<(), ChainError> {
        self.check(link)?;
        *self = Self::behind(link, sha256);
        Ok(())
    }

    fn check(&self, link: &Link) -> Result<(), ChainError> {
        if link.seq != self.head.seq + 1 {
            return Err(ChainError::Seq {
                wanted: self.head.seq + 1,
                got: link.seq,
            });
        }
        if link.prev_sha256 != self.head.sha256 {
            return Err(ChainError::Hash(self.head.seq));
        }
        if link.epoch < self.epoch {
            return Err(ChainError::Epoch(self.epoch));
        }
        let mut seen = BTreeMap::new();
        for one in &link.covered {
            let wanted = self.next_of(one.partition);
            if one.start != wanted {
                return Err(ChainError::Start {
                    partition: one.partition,
                    wanted,
                    got: one.start,
                });
            }
            if one.end < one.start || seen.insert(one.partition, *one).is_some() {
                return Err(ChainError::Range(one.partition));
            }
        }
        if let Some(gone) = self.next.keys().find(|partition| !seen.contains_key(partition)) {
            return Err(ChainError::Partition(*gone));
        }
        let outside = link.gaps.iter().find(|gap| {
            seen.get(&gap.partition)
                .is_none_or(|all| gap.from < all.start || gap.to > all.end || gap.from >= gap.to)
        });
        outside.map_or(Ok(()), |gap| Err(ChainError::Range(gap.partition)))
    }
}
