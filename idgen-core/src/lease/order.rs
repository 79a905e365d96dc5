//! Orders: an operator has a holder stop minting from an identity, and give it back.
//!
//! An order names the token that it is against. So it ends one lease and never the next one: whoever is granted the
//! identity afterwards, be it the same server, has another token. It says nothing about uniqueness, which rests on the
//! windows as ever; it decides only when a holder stops:
//!
//! - at once, where it hears of the order ([`super::keeper::Event::Ordered`]);
//! - with its next renewal, which the store refuses while an order stands against the token;
//! - at its deadline, where it is cut off from the store.

use super::class::Class;
use super::token::{Identity, Token};
use super::window::Tenancy;
use crate::clock::UnixMs;
use std::collections::BTreeMap;

/// What an operator has ordered of the holder of one identity. A store keeps the last one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The class of the identity.
    pub class: Class,
    /// The identity.
    pub identity: Identity,
    /// The lease that ends by it.
    pub token: Token,
    /// When it was given, by the store's clock.
    pub at: UnixMs,
    /// By whom, for the record.
    pub by: String,
    /// Why, for the record.
    pub reason: String,
    /// The request that it was a part of, where the identity was taken from its holder by force.
    pub request: Option<u128>,
}

/// The last order of each identity of one class, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders(BTreeMap<Identity, Token>);

impl Orders {
    /// None is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more. Orders may be heard late and twice: an older one never takes the place of a newer one.
    pub fn note(&mut self, identity: Identity, token: Token) {
        let known = self.0.entry(identity).or_insert(token);
        *known = token.max(*known);
    }

    /// The token of one of these that an order stands against. The lease that they are ends, all of it.
    #[must_use]
    pub fn against(&self, leased: &[Tenancy]) -> Option<Token> {
        let is_ordered = |tenancy: &&Tenancy| self.0.get(&tenancy.identity) == Some(&tenancy.token);
        leased.iter().find(is_ordered).map(|tenancy| tenancy.token)
    }
}

impl FromIterator<(Identity, Token)> for Orders {
    fn from_iter<T: IntoIterator<Item = (Identity, Token)>>(orders: T) -> Self {
        let mut all = Self::new();
        for (identity, token) in orders {
            all.note(identity, token);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::token::{Epoch, Revision};
    use crate::lease::window::{Leased, Window};
    use proptest::prelude::*;

    fn token(epoch: u64, revision: u64) -> Token {
        Token {
            epoch: Epoch(epoch),
            revision: Revision(revision),
        }
    }

    fn lease(token: Token, identities: &[u16]) -> Vec<Tenancy> {
        let window = Window {
            floor: UnixMs(1),
            ceiling: UnixMs(2),
        };
        let leased = identities.iter().map(|identity| Leased {
            identity: Identity(*identity),
            window,
        });
        leased
            .map(|leased| Tenancy::new(leased, token, Revision(9)))
            .collect()
    }

    #[test]
    fn an_order_is_against_one_lease_and_not_the_next() {
        let orders: Orders = [(Identity(7), token(0, 5))].into_iter().collect();
        let against = |token, identities: &[u16]| orders.against(&lease(token, identities)).is_some();
        assert!(against(token(0, 5), &[6, 7]), "one of a lease is enough");
        assert!(!against(token(0, 6), &[7]), "the next lease");
        assert!(!against(token(1, 5), &[7]), "another epoch");
        assert!(!against(token(0, 5), &[6]), "another identity of another lease");
    }

    proptest! {
        #[test]
        fn whatever_order_they_are_heard_in_the_newest_stands(
            mut revisions in proptest::collection::vec(0_u64..50, 1..20),
        ) {
            let heard: Orders = revisions.iter().map(|revision| (Identity(1), token(0, *revision))).collect();
            revisions.sort_unstable();
            for revision in 0..50 {
                let stands = heard.against(&lease(token(0, revision), &[1]));
                prop_assert_eq!(stands.is_some(), Some(&revision) == revisions.last());
            }
        }
    }
}
