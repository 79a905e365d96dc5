//! `idgenctl stripes`: which database has which stripe of a space. The rules are in `idgen_core::lease::named::stripes`.

use super::consent::{Change, Consent};
use super::masters::{Member, database_of, session_in};
use super::store::{of_store, open, operator, printable, rfc3339};
use crate::authority::Database;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, CellStore, StoreErrorKind, StripeStore};
use crate::plain_table::plain_table;
use comfy_table::Table;
use idgen_core::lease::named::stripes::{ReleasePlan, plan_claim, plan_release};
use idgen_core::lease::named::{
    ClaimRefused, Cut, LeaseName, NamedRow, ReleaseRefused, StripeClaim, StripeWish,
};
use serde::Serialize;
use uuid::Uuid;

/// Stripes that are or were claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stripes {
    /// By space and index.
    pub stripes: Vec<Stripe>,
}

/// A stripe that is or was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stripe {
    /// The space.
    pub space_id: Uuid,
    /// The index.
    pub stripe: u32,
    /// Of how many.
    pub of: u32,
    /// Ids per stripe.
    pub size: u64,
    /// Ids up to it were granted before the space was cut.
    pub above: i64,
    /// The database that has it.
    pub database: String,
    /// Name of its server's idgend.
    pub server: String,
    /// System identifier of the server.
    pub system_identifier: u64,
    /// When it was claimed, in RFC 3339.
    pub claimed_at: String,
    /// By whom.
    pub claimed_by: String,
    /// When a database began to grant under the index, last, in RFC 3339; `None`: none ever did.
    pub joined_at: Option<String>,
    /// When it was released, in RFC 3339; `None`: it is claimed.
    pub released_at: Option<String>,
    /// Why it was released.
    pub release_reason: Option<String>,
    /// Who holds its authority now; `None`: nobody.
    pub held_by: Option<String>,
    /// Its authority was leased before: the store has the ceilings of what was granted.
    pub leased_before: bool,
}

/// What is claimed.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The space.
    pub space_id: Uuid,
    /// The index.
    pub stripe: u32,
    /// Of how many.
    pub of: u32,
    /// Ids per stripe; `None`: as the space is cut already, else [`Cut::SIZE`].
    pub size: Option<u64>,
    /// Ids up to it are nobody's; `None`: as the space is cut already, else none.
    pub above: Option<i64>,
    /// The database; `None`: that of the configuration.
    pub database: Option<String>,
}

/// All stripes, or those of a space.
pub async fn list(config: &Config, space_id: Option<Uuid>) -> Result<Stripes> {
    match open(config) {
        AnyStore::Postgres(mut store) => list_in(&mut *store, space_id).await,
        AnyStore::Etcd(mut store) => list_in(&mut *store, space_id).await,
    }
}

/// Gives an index to a database of this configuration's server, if it is free; nothing happens when it has it already.
pub async fn claim(config: &Config, wish: Wish, consent: Consent) -> Result<Change<Stripes>> {
    match open(config) {
        AnyStore::Postgres(store) => claim_in(*store, config, wish, consent).await,
        AnyStore::Etcd(store) => claim_in(*store, config, wish, consent).await,
    }
}

/// Takes an index from whoever has it, if it is not in use.
pub async fn release(
    config: &Config,
    index: (Uuid, u32),
    reason: &str,
    consent: Consent,
) -> Result<Change<Stripes>> {
    match open(config) {
        AnyStore::Postgres(store) => release_in(*store, config, index, reason, consent).await,
        AnyStore::Etcd(store) => release_in(*store, config, index, reason, consent).await,
    }
}

pub(super) async fn list_in(store: &mut impl StripeStore, space_id: Option<Uuid>) -> Result<Stripes> {
    let space_id = space_id.map(|space_id| space_id.as_u128());
    let claims = store.stripes(space_id).await.map_err(of_store)?;
    let leases = store.list("authority/").await.map_err(of_store)?;
    let lease_of = |claim: &StripeClaim| {
        let name = LeaseName::authority(claim.space_id, claim.stripe);
        leases.iter().find(|row| row.name == name)
    };
    Ok(Stripes {
        stripes: claims
            .iter()
            .map(|claim| Stripe::of(claim, lease_of(claim)))
            .collect(),
    })
}

async fn claim_in(
    mut store: impl CellStore + StripeStore,
    config: &Config,
    wish: Wish,
    consent: Consent,
) -> Result<Change<Stripes>> {
    let space_id = wish.space_id.as_u128();
    let database = database_of(config, wish.database.as_deref());
    let session = session_in(config, &database).await?;
    let server = session.system_identifier().await?;
    let claims = store.stripes(Some(space_id)).await.map_err(of_store)?;
    if claims.is_empty() && Member::read(&session).await?.space_id != wish.space_id {
        let error = "nobody has claimed anything of that space, and this database has not made it";
        return Err(Error::refused(error).with_hint(
            "the first claim is that of the database whose space it is: space_id in its idgen.health",
        ));
    }
    let known = claims.first().map(|claim| claim.cut);
    let cut = Cut {
        stripes: wish.of,
        size: wish.size.or(known.map(|cut| cut.size)).unwrap_or(Cut::SIZE),
        above: wish.above.or(known.map(|cut| cut.above)).unwrap_or(0),
    };
    let wanted = StripeWish {
        space_id,
        stripe: wish.stripe,
        cut,
        server,
        database: database.clone(),
        name: config.name.clone(),
        at: store.clock().await.map_err(of_store)?,
        by: operator(config),
    };
    let name = LeaseName::authority(space_id, wish.stripe);
    let leased_before = store.look_at(&name).await.map_err(of_store)?.row.is_some();
    let would = claim_sentence(&wanted);
    let plan = plan_claim(&claims, leased_before, wanted).map_err(refused)?;
    if let Some(plan) = plan {
        if !consent.may(&would)? {
            return Ok(Change::tried(
                list_in(&mut store, Some(wish.space_id)).await?,
                would,
            ));
        }
        let claimed = store.claim_stripe(&plan).await;
        // An answer may have got lost; the claim tells.
        let claims = store.stripes(Some(space_id)).await.map_err(of_store)?;
        let is_ours = |claim: &StripeClaim| {
            (claim.stripe, claim.server, &claim.database, claim.at)
                == (wish.stripe, server, &database, plan.wish.at)
        };
        if !claims.iter().any(is_ours) {
            return Err(not_made(claimed.err()));
        }
    }
    let listed = list_in(&mut store, Some(wish.space_id)).await?;
    Ok(match consent {
        Consent::DryRun => Change::tried(listed, "Nothing: the database has this stripe already."),
        _ => Change::made(listed),
    })
}

fn claim_sentence(wish: &StripeWish) -> String {
    let Cut { stripes, size, above } = wish.cut;
    format!(
        "Database {} of server {} gets stripe {} of {stripes} of space {}, in stripes of {size} ids above {above}, for \
         good: the space is cut so from its first claim on, and the index stays on record.",
        printable(&wish.database),
        printable(&wish.name),
        wish.stripe,
        Uuid::from_u128(wish.space_id)
    )
}

async fn release_in(
    mut store: impl CellStore + StripeStore,
    config: &Config,
    (space_id, stripe): (Uuid, u32),
    reason: &str,
    consent: Consent,
) -> Result<Change<Stripes>> {
    if reason.trim().is_empty() {
        return Err(Error::usage(ReleaseRefused::NoReason.to_string()));
    }
    let reason = format!("{reason} ({})", operator(config));
    let plan = see_release(&mut store, (space_id, stripe), &reason).await?;
    plan.map_err(explain_release)?;
    let would = format!(
        "Stripe {stripe} of space {space_id} is taken from the database that has it: another one may claim it, so a \
         database that still grants under it makes duplicates."
    );
    if !consent.may(&would)? {
        return Ok(Change::tried(list_in(&mut store, Some(space_id)).await?, would));
    }
    try_release(&mut store, (space_id, stripe), &reason)
        .await?
        .map_err(explain_release)?;
    Ok(Change::made(list_in(&mut store, Some(space_id)).await?))
}

/// What would be written. The inner error: it is refused, which may be otherwise a moment later.
async fn see_release(
    store: &mut (impl CellStore + StripeStore),
    (space_id, stripe): (Uuid, u32),
    reason: &str,
) -> Result<std::result::Result<ReleasePlan, ReleaseRefused>> {
    let at = store.clock().await.map_err(of_store)?;
    let name = LeaseName::authority(space_id.as_u128(), stripe);
    let look = store.look_at(&name).await.map_err(of_store)?;
    let live_holder = live(look.row.as_ref());
    let claims = store.stripes(Some(space_id.as_u128())).await.map_err(of_store)?;
    Ok(plan_release(&claims, stripe, live_holder, at, reason))
}

/// The inner error: it is refused, which may be otherwise a moment later.
pub(super) async fn try_release(
    store: &mut (impl CellStore + StripeStore),
    (space_id, stripe): (Uuid, u32),
    reason: &str,
) -> Result<std::result::Result<(), ReleaseRefused>> {
    let plan = match see_release(store, (space_id, stripe), reason).await? {
        Ok(plan) => plan,
        Err(refused) => return Ok(Err(refused)),
    };
    let released = store.release_stripe(&plan).await;
    let claims = store.stripes(Some(space_id.as_u128())).await.map_err(of_store)?;
    let is_done = |claim: &StripeClaim| {
        let done = Some((plan.at, plan.reason.clone()));
        claim.stripe == stripe && claim.released == done
    };
    if !claims.iter().any(is_done) {
        return Err(not_made(released.err()));
    }
    Ok(Ok(()))
}

pub(super) fn explain_release(refused: ReleaseRefused) -> Error {
    let error = Error::refused(refused.to_string());
    match refused {
        ReleaseRefused::Live { .. } => error.with_hint(
            "idgenctl stripes leave for a database that runs; stop the idgend of one that does not, and wait for the \
             TTL of its lease",
        ),
        _ => error,
    }
}

/// Who holds it now.
fn live(row: Option<&NamedRow>) -> Option<&str> {
    let occupant = row?.occupant.as_ref()?;
    (!occupant.holder.expired).then_some(occupant.holder.name.as_str())
}

fn refused(refused: ClaimRefused) -> Error {
    let error = Error::refused(refused.to_string());
    match refused {
        ClaimRefused::OneStripe | ClaimRefused::OutOfRange(_) | ClaimRefused::AboveNegative => {
            Error::usage(refused.to_string())
        }
        ClaimRefused::Claimed { .. } | ClaimRefused::NoCeilings { .. } => {
            error.with_hint("idgenctl stripes list shows which are free; take one that nobody ever had")
        }
        ClaimRefused::OtherCut { .. } | ClaimRefused::HasAnother { .. } => error,
    }
}

pub(super) fn not_made(error: Option<crate::lease::StoreError>) -> Error {
    match error {
        Some(error) if error.kind != StoreErrorKind::Conflict => of_store(error),
        _ => Error::retry("the store was changed meanwhile, and nothing was written")
            .with_hint("look at idgenctl stripes list before you try again"),
    }
}

impl Stripe {
    fn of(claim: &StripeClaim, lease: Option<&NamedRow>) -> Self {
        let released = claim.released.as_ref();
        Self {
            space_id: Uuid::from_u128(claim.space_id),
            stripe: claim.stripe,
            of: claim.cut.stripes,
            size: claim.cut.size,
            above: claim.cut.above,
            database: claim.database.clone(),
            server: claim.name.clone(),
            system_identifier: claim.server,
            claimed_at: rfc3339(claim.at),
            claimed_by: claim.by.clone(),
            joined_at: claim.joined.map(rfc3339),
            released_at: released.map(|(at, _)| rfc3339(*at)),
            release_reason: released.map(|(_, reason)| reason.clone()),
            held_by: live(lease).map(str::to_owned),
            leased_before: lease.is_some(),
        }
    }

    fn state(&self) -> String {
        match (&self.released_at, &self.release_reason) {
            (Some(at), Some(reason)) => format!("released {at}: {}", printable(reason)),
            _ => match &self.joined_at {
                // That of a database before it counts no more.
                Some(joined_at) if *joined_at >= self.claimed_at => format!("joined {joined_at}"),
                _ => "claimed".to_owned(),
            },
        }
    }

    fn authority(&self) -> String {
        match &self.held_by {
            Some(holder) => format!("held by {}", printable(holder)),
            None if self.leased_before => "free".to_owned(),
            None => "never leased".to_owned(),
        }
    }
}

impl Stripes {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        if self.stripes.is_empty() {
            return "no stripe was ever claimed".to_owned();
        }
        self.lines().to_string()
    }

    fn lines(&self) -> Table {
        let mut table = plain_table();
        table.set_header([
            "space",
            "stripe",
            "of ids",
            "database",
            "server",
            "system",
            "claimed",
            "by",
            "state",
            "authority",
        ]);
        for stripe in &self.stripes {
            table.add_row([
                stripe.space_id.to_string(),
                format!("{} of {}", stripe.stripe, stripe.of),
                format!("{}, above {}", stripe.size, stripe.above),
                printable(&stripe.database),
                printable(&stripe.server),
                stripe.system_identifier.to_string(),
                stripe.claimed_at.clone(),
                printable(&stripe.claimed_by),
                stripe.state(),
                stripe.authority(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::clock::UnixMs;
    use idgen_core::lease::Revision;

    #[test]
    fn a_table_says_whose_a_stripe_is_and_whether_it_is_used() {
        let claim = StripeClaim {
            space_id: 7,
            stripe: 1,
            cut: Cut {
                stripes: 3,
                size: 10_000,
                above: 77,
            },
            server: 42,
            database: "app".to_owned(),
            name: "north\u{1b}[2J".to_owned(),
            at: UnixMs(1_700_000_000_000),
            by: "me at north".to_owned(),
            joined: None,
            released: None,
            revision: Revision(1),
        };
        let gone = StripeClaim {
            released: Some((UnixMs(1_700_000_001_000), "sold".to_owned())),
            stripe: 2,
            ..claim.clone()
        };
        let joined = StripeClaim {
            joined: Some(UnixMs(1_700_000_002_000)),
            stripe: 0,
            ..claim.clone()
        };
        let stripes = Stripes {
            stripes: [joined, claim, gone]
                .iter()
                .map(|claim| Stripe::of(claim, None))
                .collect(),
        };
        let text = stripes.table();
        for part in [
            "1 of 3",
            "10000, above 77",
            "never leased",
            "released",
            "sold",
            "claimed",
            "joined",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "names move no cursor");
    }
}
