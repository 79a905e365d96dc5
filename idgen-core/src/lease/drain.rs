//! Drains: an operator has a server give up all that it has leased, and take nothing until it is resumed.
//!
//! A record names the server, as its daemon is called, and stays in the lease store, so that neither a restart of the daemon nor one
//! of Postgres ends it. It says nothing about uniqueness, which rests on the windows as ever: it decides only whether a
//! grant is asked for. Leases that the server has are ended by orders ([`super::order`]), one for each token.

use super::ledger::Row;
use super::token::{Identity, Token};
use crate::clock::UnixMs;
use std::collections::BTreeMap;

/// What was said last of a server. A store keeps it for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Which: the name of its daemon.
    pub server: String,
    /// It is drained; false: it was resumed.
    pub drained: bool,
    /// When that was said, by the store's clock or that of whoever said it.
    pub at: UnixMs,
    /// By whom, for people.
    pub by: String,
    /// Why, for people; may be empty.
    pub reason: String,
    /// Counts what was said of this server, from 1.
    pub version: u64,
}

/// What stands in the way of a server that is drained: its leases, each by one of its identities.
#[must_use]
pub fn to_end(rows: &[Row], server: &str) -> BTreeMap<Token, Identity> {
    let held = rows.iter().filter_map(|row| {
        let holder = row.holder.as_ref()?;
        (holder.name == server && !holder.expired).then_some((holder.token, row.identity))
    });
    // An order against one of them ends the lease, all of it; the lowest, so that who looks twice names the same.
    held.rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::ledger::Holder;
    use crate::lease::token::{BootId, Epoch, InstanceId, Revision};

    fn row(identity: u16, holder: Option<(&str, u64, bool)>) -> Row {
        Row {
            identity: Identity(identity),
            generation: 1,
            ceiling: UnixMs(5),
            revision: Revision(9),
            holder: holder.map(|(name, revision, expired)| Holder {
                instance: InstanceId(1),
                name: name.to_owned(),
                token: Token {
                    epoch: Epoch(0),
                    revision: Revision(revision),
                },
                boot_id: BootId(1),
                expired,
            }),
        }
    }

    #[test]
    fn each_lease_of_the_server_is_ended_once() {
        let rows = [
            row(1, Some(("a", 7, false))),
            row(2, Some(("a", 7, false))),
            row(3, Some(("b", 8, false))),
            row(4, None),
            row(5, Some(("a", 9, false))),
            row(6, Some(("a", 6, true))),
        ];
        let found: Vec<(u64, u16)> = to_end(&rows, "a")
            .into_iter()
            .map(|(token, identity)| (token.revision.0, identity.0))
            .collect();
        assert_eq!(found, [(7, 1), (9, 5)]);
        assert!(to_end(&rows, "c").is_empty());
    }
}
