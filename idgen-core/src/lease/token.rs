//! Fencing tokens, and the names that leases are held under.

use crate::clock::UnixMs;
use core::fmt;

/// Counts the histories of one lease store: it rises after every restore. 64 bits because the store
/// keeps it as `bigint`, not because so many are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// Counts the changes of a lease store: etcd's revision, or `idgen.cell.revision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// The fencing token of a grant. Later grants compare greater; the epoch counts first, because a
/// restored store starts again at a lower revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token {
    /// Epoch the grant was made in.
    pub epoch: Epoch,
    /// Store revision the grant was made at. Renewals keep it.
    pub revision: Revision,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch.0, self.revision.0)
    }
}

macro_rules! uuid_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);
    };
}

uuid_name! {
    /// Names one life of a server's shared memory: a random uuid, new whenever the memory is.
    BootId
}
uuid_name! {
    /// Names one run of a daemon: a random uuid, new at every start.
    InstanceId
}
uuid_name! {
    /// Names a cell: the identities of one lease store.
    CellId
}
uuid_name! {
    /// Random name of an epoch, compared by value: two histories may reach the same number.
    EpochNonce
}

/// What tells one lease store from another: `etcd/CLUSTER` or `postgres/SYSTEM/TIMELINE/DATABASE`. A store that was
/// restored into a new cluster, promoted or copied has another one. Compared by value only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreIdentity(String);

impl StoreIdentity {
    /// Far more than any store needs.
    pub const LEN_MAX: usize = 120;

    /// `None`: it is empty, too long, or has anything but visible ASCII in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= Self::LEN_MAX;
        (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of a worker or of a shard; which of the two is said by the [`super::Class`] beside it. 16
/// bits, because there are 1,024 workers and 8,192 shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(pub u16);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One identity under one token, as shared memory or the store shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The identity.
    pub identity: Identity,
    /// The token it is, or was, leased under.
    pub token: Token,
}

/// What a fence proved: no id of this claim carries a timestamp above `last`, nor ever will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The fenced claim.
    pub claim: Claim,
    /// Its exact high water (`floor - 1` when it minted nothing).
    pub last: UnixMs,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(epoch: u64, revision: u64) -> Token {
        Token {
            epoch: Epoch(epoch),
            revision: Revision(revision),
        }
    }

    #[test]
    fn the_epoch_counts_before_the_revision() {
        assert!(
            token(2, 1) > token(1, 900),
            "a restored store starts again at a lower revision"
        );
        assert!(token(1, 2) > token(1, 1));
        assert_eq!(token(3, 7).to_string(), "3/7");
    }
}
