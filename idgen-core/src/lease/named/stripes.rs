//! Which server has which stripe of a space.
//!
//! Several masters that share a space cut the axis of its numbers in stripes: the one with index i of n takes those that
//! are i modulo n. That index is written down once in the lease store, for good: it says who may lease the authority of
//! the stripe, across restarts and failovers of that server. n is decided by the first claim of the space.

use super::super::token::Revision;
use crate::clock::UnixMs;
use crate::segment::stripes::{BadStripes, Stripes};
use core::fmt;

/// How a space is cut among its masters. Decided by its first claim, for good once a database has joined: in another cut
/// the same numbers belong to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// In how many stripes, over and over.
    pub stripes: u32,
    /// Ids per stripe.
    pub size: u64,
    /// Ids up to it are nobody's: they were granted before the space was cut.
    pub above: i64,
}

impl Cut {
    /// Ids per stripe where nobody has said so: ten of the largest ranges that a tag has by default.
    pub const SIZE: u64 = 100_000;

    /// What the master with this index owns.
    ///
    /// # Errors
    /// [`BadStripes`].
    pub const fn of(self, stripe: u32) -> Result<Stripes, BadStripes> {
        Stripes::new(stripe, self.stripes, self.size)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stripes, size, above } = self;
        write!(f, "{stripes} stripes of {size} ids above {above}")
    }
}

/// An index of a space, and whose it is or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeClaim {
    /// The space.
    pub space_id: u128,
    /// The index.
    pub stripe: u32,
    /// How the space is cut.
    pub cut: Cut,
    /// System identifier of the server: a standby that is promoted has the same.
    pub server: u64,
    /// Its database: each belongs to a space by itself.
    pub database: String,
    /// Its name, for people.
    pub name: String,
    /// When it was claimed.
    pub at: UnixMs,
    /// By whom.
    pub by: String,
    /// When a database began to grant under the index, last; `None`: none ever did. Kept when it is claimed anew.
    pub joined: Option<UnixMs>,
    /// Since when it is nobody's, and why; `None`: it is claimed.
    pub released: Option<(UnixMs, String)>,
    /// Store revision of its last change: guards the next one.
    pub revision: Revision,
}

/// A claim that somebody would like to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeWish {
    /// The space.
    pub space_id: u128,
    /// The index.
    pub stripe: u32,
    /// How the space is cut.
    pub cut: Cut,
    /// System identifier of the server.
    pub server: u64,
    /// Its database.
    pub database: String,
    /// Its name, for people.
    pub name: String,
    /// When.
    pub at: UnixMs,
    /// Who asks.
    pub by: String,
}

/// A claim to be written, if the index is as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPlan {
    /// What is written.
    pub wish: StripeWish,
    /// Revision of what is there (`None`: nothing); any other refuses it.
    pub seen: Option<Revision>,
    /// What is there says of a database that began to grant under the index; it is kept.
    pub joined: Option<UnixMs>,
}

/// That a database begins to grant under its index; to be written, if the claim is as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinPlan {
    /// The space.
    pub space_id: u128,
    /// The index.
    pub stripe: u32,
    /// When.
    pub at: UnixMs,
    /// Revision of the claim.
    pub seen: Revision,
}

/// A release to be written, if the claim is as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasePlan {
    /// The space.
    pub space_id: u128,
    /// The index.
    pub stripe: u32,
    /// When.
    pub at: UnixMs,
    /// Why, and who.
    pub reason: String,
    /// Revision of the claim.
    pub seen: Revision,
}

/// Why an index is not given to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefused {
    /// One master needs no stripes.
    OneStripe,
    /// The cut cannot be, or has no such index.
    OutOfRange(BadStripes),
    /// Ids below 1 are nobody's anyhow.
    AboveNegative,
    /// The space is cut in another way.
    OtherCut {
        /// In this one.
        cut: Cut,
    },
    /// Another database has it.
    Claimed {
        /// Its name,
        database: String,
        /// the name of its server,
        name: String,
        /// and the system identifier of that.
        server: u64,
    },
    /// This database has another index of the space.
    HasAnother {
        /// This one.
        stripe: u32,
    },
    /// Another database had it, and grants under its index are not known to have been bounded by ceilings in the store.
    NoCeilings {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for ClaimRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneStripe => f.write_str("one master needs no stripes; there are 2 to 64"),
            Self::OutOfRange(bad) => bad.fmt(f),
            Self::AboveNegative => f.write_str("ids are at least 1: what is above must not be negative"),
            Self::OtherCut { cut } => write!(f, "the space is cut in {cut}, for good"),
            Self::Claimed {
                database,
                name,
                server,
            } => write!(
                f,
                "the index belongs to database {database} of server {name} (system identifier {server})"
            ),
            Self::HasAnother { stripe } => write!(f, "this database has index {stripe} of the space already"),
            Self::NoCeilings { name } => write!(
                f,
                "the index belonged to server {name}, and the store has no ceilings of it: what that server granted is \
                 not known"
            ),
        }
    }
}

impl core::error::Error for ClaimRefused {}

/// Why a database does not begin to grant under an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinRefused {
    /// It has claimed none of this space.
    NotClaimed,
    /// The database that made the space grants in it without stripes, as far as the store knows.
    MakerHasNot,
    /// Somebody has granted under the index before, and what that was is only known from ceilings, which this database
    /// does not go by, or which the store does not have.
    UsedBefore {
        /// The index.
        stripe: u32,
    },
}

impl fmt::Display for JoinRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotClaimed => f.write_str("this database has claimed no index of the space"),
            Self::MakerHasNot => f.write_str(
                "the database that made the space has not joined it: it grants ids of all stripes until it has",
            ),
            Self::UsedBefore { stripe } => write!(
                f,
                "a database has granted under index {stripe} before, and how far is not known here"
            ),
        }
    }
}

impl core::error::Error for JoinRefused {}

/// Why a claim is not given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseRefused {
    /// Nobody has the index.
    NotClaimed,
    /// Its authority is leased right now.
    Live {
        /// By the daemon of this name.
        holder: String,
    },
    /// A release is kept with its reason.
    NoReason,
}

impl fmt::Display for ReleaseRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotClaimed => f.write_str("nobody has that index"),
            Self::Live { holder } => write!(f, "the index is in use: {holder} holds its authority now"),
            Self::NoReason => f.write_str("the reason is empty; it is kept with the claim"),
        }
    }
}

impl core::error::Error for ReleaseRefused {}

/// May the index be given to the database of the wish? `claims` are all of the space; `leased_before` says that the
/// authority of the index was leased at least once, so that the store has the ceilings of what was granted. `Ok(None)`:
/// it has it already.
pub fn plan_claim(
    claims: &[StripeClaim],
    leased_before: bool,
    wish: StripeWish,
) -> Result<Option<ClaimPlan>, ClaimRefused> {
    if wish.cut.stripes == 1 {
        return Err(ClaimRefused::OneStripe);
    }
    if let Err(bad) = wish.cut.of(wish.stripe) {
        return Err(ClaimRefused::OutOfRange(bad));
    }
    if wish.cut.above < 0 {
        return Err(ClaimRefused::AboveNegative);
    }
    // A cut that nobody has granted in and nobody is about to is none.
    let decides = |claim: &&StripeClaim| claim.released.is_none() || claim.joined.is_some();
    if let Some(other) = claims.iter().filter(decides).find(|claim| claim.cut != wish.cut) {
        return Err(ClaimRefused::OtherCut { cut: other.cut });
    }
    let mut live = claims.iter().filter(|claim| claim.released.is_none());
    let another = live.find(|claim| is_by(claim, &wish) && claim.stripe != wish.stripe);
    if let Some(another) = another {
        return Err(ClaimRefused::HasAnother {
            stripe: another.stripe,
        });
    }
    let Some(claim) = claims.iter().find(|claim| claim.stripe == wish.stripe) else {
        return Ok(Some(ClaimPlan {
            wish,
            seen: None,
            joined: None,
        }));
    };
    let (same, name) = (is_by(claim, &wish), claim.name.clone());
    match (same, &claim.released) {
        (true, None) => Ok(None),
        (false, None) => Err(ClaimRefused::Claimed {
            database: claim.database.clone(),
            name,
            server: claim.server,
        }),
        (false, Some(_)) if !leased_before => Err(ClaimRefused::NoCeilings { name }),
        // What it granted itself is as unknown, if it was made anew or restored since.
        (true, Some(_)) if claim.joined.is_some() && !leased_before => Err(ClaimRefused::NoCeilings { name }),
        (_, Some(_)) => Ok(Some(ClaimPlan {
            wish,
            seen: Some(claim.revision),
            joined: claim.joined,
        })),
    }
}

/// Was the claim made for the database of the wish?
fn is_by(claim: &StripeClaim, wish: &StripeWish) -> bool {
    (claim.server, &claim.database) == (wish.server, &wish.database)
}

/// A database that is not in the space yet.
#[derive(Clone, Copy, Debug)]
pub struct Joiner<'a> {
    /// System identifier of its server,
    pub server: u64,
    /// and its name.
    pub database: &'a str,
    /// The space is the one that it has made.
    pub is_maker: bool,
    /// Its authority is leased: it begins above the ceilings of the store.
    pub is_leased: bool,
}

/// The index that a database has claimed; `None`: none.
#[must_use]
pub fn claim_of<'c>(claims: &'c [StripeClaim], server: u64, database: &str) -> Option<&'c StripeClaim> {
    claims.iter().find(|claim| {
        claim.released.is_none() && (claim.server, claim.database.as_str()) == (server, database)
    })
}

/// Has the database claimed and joined these stripes, so that it may lease their authority?
#[must_use]
pub fn has_joined(claims: &[StripeClaim], server: u64, database: &str, stripes: Stripes) -> bool {
    claim_of(claims, server, database).is_some_and(|claim| {
        claim.joined.is_some() && claim.stripe == stripes.index() && claim.cut.of(claim.stripe) == Ok(stripes)
    })
}

/// May the database begin to grant under the index that it has claimed? `claims` are all of the space; `leased_before`
/// tells whether the authority of an index was leased at least once.
///
/// # Errors
/// [`JoinRefused`].
pub fn plan_join(
    claims: &[StripeClaim],
    joiner: Joiner<'_>,
    leased_before: impl FnOnce(u32) -> bool,
    at: UnixMs,
) -> Result<JoinPlan, JoinRefused> {
    let claim = claim_of(claims, joiner.server, joiner.database).ok_or(JoinRefused::NotClaimed)?;
    // The first that joined has made it, and grants nothing outside of its stripes since.
    if !joiner.is_maker && claims.iter().all(|claim| claim.joined.is_none()) {
        return Err(JoinRefused::MakerHasNot);
    }
    let stripe = claim.stripe;
    if claim.joined.is_some() && !(joiner.is_leased && leased_before(stripe)) {
        return Err(JoinRefused::UsedBefore { stripe });
    }
    Ok(JoinPlan {
        space_id: claim.space_id,
        stripe,
        at,
        seen: claim.revision,
    })
}

/// May the index be given up? `live_holder` is who holds its authority now.
pub fn plan_release(
    claims: &[StripeClaim],
    stripe: u32,
    live_holder: Option<&str>,
    at: UnixMs,
    reason: &str,
) -> Result<ReleasePlan, ReleaseRefused> {
    if reason.trim().is_empty() {
        return Err(ReleaseRefused::NoReason);
    }
    let claim = claims
        .iter()
        .find(|claim| claim.stripe == stripe && claim.released.is_none())
        .ok_or(ReleaseRefused::NotClaimed)?;
    // Whoever holds it without having joined grants without stripes: the database that has made the space.
    if let Some(holder) = live_holder.filter(|_| claim.joined.is_some()) {
        return Err(ReleaseRefused::Live {
            holder: holder.to_owned(),
        });
    }
    Ok(ReleasePlan {
        space_id: claim.space_id,
        stripe,
        at,
        reason: reason.to_owned(),
        seen: claim.revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut {
        stripes: 3,
        size: Cut::SIZE,
        above: 0,
    };

    fn wish(stripe: u32, server: u64) -> StripeWish {
        StripeWish {
            space_id: 7,
            stripe,
            cut: CUT,
            server,
            database: "app".to_owned(),
            name: format!("s{server}"),
            at: UnixMs(5),
            by: "me".to_owned(),
        }
    }

    fn claim(stripe: u32, server: u64, released: bool) -> StripeClaim {
        let StripeWish {
            database,
            name,
            at,
            by,
            ..
        } = wish(stripe, server);
        StripeClaim {
            space_id: 7,
            stripe,
            cut: CUT,
            server,
            database,
            name,
            at,
            by,
            joined: None,
            released: released.then(|| (UnixMs(6), "gone".to_owned())),
            revision: Revision(9),
        }
    }

    #[test]
    fn an_index_is_claimed_once_and_by_one_server() {
        let first = plan_claim(&[], false, wish(0, 1)).unwrap().expect("a plan");
        assert_eq!(first.seen, None);
        let claims = [claim(0, 1, false)];
        assert_eq!(plan_claim(&claims, false, wish(0, 1)), Ok(None), "again");
        assert!(matches!(
            plan_claim(&claims, true, wish(0, 2)),
            Err(ClaimRefused::Claimed { server: 1, .. })
        ));
        assert_eq!(
            plan_claim(&claims, false, wish(1, 1)),
            Err(ClaimRefused::HasAnother { stripe: 0 })
        );
        assert!(plan_claim(&claims, false, wish(1, 2)).unwrap().is_some());
        let beside = StripeWish {
            database: "other".to_owned(),
            ..wish(1, 1)
        };
        assert!(
            plan_claim(&claims, false, beside).unwrap().is_some(),
            "another database"
        );
    }

    #[test]
    fn a_space_is_cut_once() {
        let claims = [claim(0, 1, false)];
        let in_another = |cut| plan_claim(&claims, false, StripeWish { cut, ..wish(1, 2) });
        let refused = Err(ClaimRefused::OtherCut { cut: CUT });
        assert_eq!(in_another(Cut { stripes: 4, ..CUT }), refused);
        assert_eq!(in_another(Cut { size: 10_000, ..CUT }), refused);
        assert_eq!(in_another(Cut { above: 5, ..CUT }), refused);
        let given_up = [claim(0, 1, true)];
        let four = Cut { stripes: 4, ..CUT };
        let anew = |claims: &[StripeClaim]| {
            plan_claim(
                claims,
                true,
                StripeWish {
                    cut: four,
                    ..wish(0, 1)
                },
            )
        };
        assert!(anew(&given_up).unwrap().is_some(), "nobody has granted in it");
        let joined = [StripeClaim {
            joined: Some(UnixMs(5)),
            ..claim(0, 1, true)
        }];
        assert_eq!(anew(&joined), refused);
        let at_first = |stripe, cut| {
            plan_claim(
                &[],
                false,
                StripeWish {
                    cut,
                    ..wish(stripe, 1)
                },
            )
        };
        let out_of_range = |bad| Err(ClaimRefused::OutOfRange(bad));
        assert_eq!(at_first(3, CUT), out_of_range(BadStripes::Index(3)));
        assert_eq!(
            at_first(0, Cut { stripes: 1, ..CUT }),
            Err(ClaimRefused::OneStripe)
        );
        assert_eq!(
            at_first(1, Cut { stripes: 65, ..CUT }),
            out_of_range(BadStripes::Count(65))
        );
        assert_eq!(
            at_first(1, Cut { size: 9_999, ..CUT }),
            out_of_range(BadStripes::Size(9_999))
        );
        assert_eq!(
            at_first(1, Cut { above: -1, ..CUT }),
            Err(ClaimRefused::AboveNegative)
        );
    }

    #[test]
    fn a_database_joins_with_its_claim_and_after_the_maker_of_the_space() {
        let join = |claims: &[StripeClaim], server, is_maker, (is_leased, leased_before)| {
            let joiner = Joiner {
                server,
                database: "app",
                is_maker,
                is_leased,
            };
            plan_join(claims, joiner, |_| leased_before, UnixMs(9)).map(|plan| plan.stripe)
        };
        let local = (false, false);
        let mut claims = [claim(0, 1, false), claim(1, 2, false), claim(2, 3, true)];
        assert_eq!(join(&claims, 4, false, local), Err(JoinRefused::NotClaimed));
        assert_eq!(
            join(&claims, 3, true, local),
            Err(JoinRefused::NotClaimed),
            "released"
        );
        assert_eq!(join(&claims, 2, false, local), Err(JoinRefused::MakerHasNot));
        assert_eq!(join(&claims, 1, true, local), Ok(0));
        claims[0].joined = Some(UnixMs(7));
        assert_eq!(join(&claims, 2, false, local), Ok(1));
        let leases = |index, cut: Cut| has_joined(&claims, 1, "app", cut.of(index).expect("a cut"));
        assert!(leases(0, CUT) && !leases(1, CUT) && !leases(0, Cut { stripes: 4, ..CUT }));
        assert!(
            !has_joined(&claims, 2, "app", CUT.of(1).expect("a cut")),
            "claimed, not joined"
        );
        // Once more: it was restored, or made anew.
        let used = Err(JoinRefused::UsedBefore { stripe: 0 });
        assert_eq!(join(&claims, 1, true, local), used);
        assert_eq!(join(&claims, 1, true, (true, false)), used);
        assert_eq!(join(&claims, 1, true, (false, true)), used);
        assert_eq!(join(&claims, 1, true, (true, true)), Ok(0));
    }

    #[test]
    fn a_released_index_goes_to_another_server_only_above_known_ceilings() {
        let claims = [claim(0, 1, true)];
        assert!(matches!(
            plan_claim(&claims, false, wish(0, 2)),
            Err(ClaimRefused::NoCeilings { .. })
        ));
        let taken = plan_claim(&claims, true, wish(0, 2)).unwrap().expect("a plan");
        assert_eq!(taken.seen, Some(Revision(9)));
        assert!(
            plan_claim(&claims, false, wish(0, 1)).unwrap().is_some(),
            "its own"
        );
        let used = [StripeClaim {
            joined: Some(UnixMs(5)),
            ..claim(0, 1, true)
        }];
        assert!(matches!(
            plan_claim(&used, false, wish(0, 1)),
            Err(ClaimRefused::NoCeilings { .. })
        ));
        assert!(plan_claim(&used, true, wish(0, 1)).unwrap().is_some());
    }

    #[test]
    fn a_release_needs_a_reason_and_nobody_who_uses_it() {
        let joined = StripeClaim {
            joined: Some(UnixMs(6)),
            ..claim(0, 1, false)
        };
        let claims = [joined, claim(1, 2, true)];
        let release = |stripe, live, reason| plan_release(&claims, stripe, live, UnixMs(8), reason);
        assert_eq!(release(0, None, " "), Err(ReleaseRefused::NoReason));
        assert_eq!(release(1, None, "x"), Err(ReleaseRefused::NotClaimed));
        assert_eq!(release(2, None, "x"), Err(ReleaseRefused::NotClaimed));
        assert!(matches!(
            release(0, Some("d"), "x"),
            Err(ReleaseRefused::Live { .. })
        ));
        assert_eq!(release(0, None, "x").unwrap().seen, Revision(9));
        let claimed = [claim(0, 1, false)];
        let withdrawn = plan_release(&claimed, 0, Some("d"), UnixMs(8), "x");
        assert!(withdrawn.is_ok(), "it grants outside of the stripes");
    }
}
