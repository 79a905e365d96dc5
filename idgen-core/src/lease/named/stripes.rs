//! Which server has which stripe of a space.
//!
//! Several masters that share a space cut the axis of its numbers in stripes: the one with index i of n takes those that
//! are i modulo n. That index is written down once in the lease store, for good: it says who may lease the authority of
//! the stripe, across restarts and failovers of that server. n is decided by the first claim of the space.

use super::super::token::Revision;
use crate::clock::UnixMs;
use core::fmt;

/// More masters of one space than anybody has; also the width of what SQL takes.
pub const STRIPES_MAX: u32 = 1_024;

/// An index of a space, and whose it is or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeClaim {
    /// The space.
    pub space_id: u128,
    /// The index.
    pub stripe: u32,
    /// Of how many.
    pub stripes: u32,
    /// System identifier of the server: a standby that is promoted has the same.
    pub server: u64,
    /// Its name, for people.
    pub name: String,
    /// When it was claimed.
    pub at: UnixMs,
    /// By whom.
    pub by: String,
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
    /// Of how many.
    pub stripes: u32,
    /// System identifier of the server.
    pub server: u64,
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
    /// The index is not below the number of stripes, or that is none or too many.
    OutOfRange,
    /// The space is cut in another number of stripes.
    OtherCount {
        /// In this many.
        stripes: u32,
    },
    /// Another server has it.
    Claimed {
        /// Its name,
        name: String,
        /// and system identifier.
        server: u64,
    },
    /// This server has another index of the space.
    HasAnother {
        /// This one.
        stripe: u32,
    },
    /// Another server had it, and grants under its index are not known to have been bounded by ceilings in the store.
    NoCeilings {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for ClaimRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => {
                write!(
                    f,
                    "the index must be below the number of stripes, which is 1 to {STRIPES_MAX}"
                )
            }
            Self::OtherCount { stripes } => write!(f, "the space is cut in {stripes} stripes, for good"),
            Self::Claimed { name, server } => {
                write!(
                    f,
                    "the index belongs to server {name} (system identifier {server})"
                )
            }
            Self::HasAnother { stripe } => write!(f, "this server has index {stripe} of the space already"),
            Self::NoCeilings { name } => write!(
                f,
                "the index belonged to server {name}, and the store has no ceilings of it: what that server granted is \
                 not known"
            ),
        }
    }
}

impl core::error::Error for ClaimRefused {}

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

/// May the index be given to the server of the wish? `claims` are all of the space; `leased_before` says that the
/// authority of the index was leased at least once, so that the store has the ceilings of what was granted. `Ok(None)`:
/// the server has it already.
pub fn plan_claim(
    claims: &[StripeClaim],
    leased_before: bool,
    wish: StripeWish,
) -> Result<Option<ClaimPlan>, ClaimRefused> {
    if wish.stripe >= wish.stripes || wish.stripes > STRIPES_MAX {
        return Err(ClaimRefused::OutOfRange);
    }
    if let Some(other) = claims.iter().find(|claim| claim.stripes != wish.stripes) {
        return Err(ClaimRefused::OtherCount {
            stripes: other.stripes,
        });
    }
    let mut live = claims.iter().filter(|claim| claim.released.is_none());
    let another = live.find(|claim| claim.server == wish.server && claim.stripe != wish.stripe);
    if let Some(another) = another {
        return Err(ClaimRefused::HasAnother {
            stripe: another.stripe,
        });
    }
    let Some(claim) = claims.iter().find(|claim| claim.stripe == wish.stripe) else {
        return Ok(Some(ClaimPlan { wish, seen: None }));
    };
    let (same, name) = (claim.server == wish.server, claim.name.clone());
    match (same, &claim.released) {
        (true, None) => Ok(None),
        (false, None) => Err(ClaimRefused::Claimed {
            name,
            server: claim.server,
        }),
        (false, Some(_)) if !leased_before => Err(ClaimRefused::NoCeilings { name }),
        (_, Some(_)) => Ok(Some(ClaimPlan {
            wish,
            seen: Some(claim.revision),
        })),
    }
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
    if let Some(holder) = live_holder {
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

    fn wish(stripe: u32, server: u64) -> StripeWish {
        StripeWish {
            space_id: 7,
            stripe,
            stripes: 3,
            server,
            name: format!("s{server}"),
            at: UnixMs(5),
            by: "me".to_owned(),
        }
    }

    fn claim(stripe: u32, server: u64, released: bool) -> StripeClaim {
        let StripeWish { name, at, by, .. } = wish(stripe, server);
        StripeClaim {
            space_id: 7,
            stripe,
            stripes: 3,
            server,
            name,
            at,
            by,
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
        let four = StripeWish {
            stripes: 4,
            ..wish(1, 2)
        };
        assert_eq!(
            plan_claim(&claims, false, four),
            Err(ClaimRefused::OtherCount { stripes: 3 })
        );
        assert_eq!(plan_claim(&[], false, wish(3, 1)), Err(ClaimRefused::OutOfRange));
        let many = StripeWish {
            stripes: STRIPES_MAX + 1,
            ..wish(1, 1)
        };
        assert_eq!(plan_claim(&[], false, many), Err(ClaimRefused::OutOfRange));
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
    }

    #[test]
    fn a_release_needs_a_reason_and_nobody_who_uses_it() {
        let claims = [claim(0, 1, false), claim(1, 2, true)];
        let release = |stripe, live, reason| plan_release(&claims, stripe, live, UnixMs(8), reason);
        assert_eq!(release(0, None, " "), Err(ReleaseRefused::NoReason));
        assert_eq!(release(1, None, "x"), Err(ReleaseRefused::NotClaimed));
        assert_eq!(release(2, None, "x"), Err(ReleaseRefused::NotClaimed));
        assert!(matches!(
            release(0, Some("d"), "x"),
            Err(ReleaseRefused::Live { .. })
        ));
        assert_eq!(release(0, None, "x").unwrap().seen, Revision(9));
    }
}
