//! `idgenctl stripes join` and `leave`: a database begins to grant under the index that it has claimed, or ends that and
//! gives the index back. The store is asked first, and written to in the middle of the database's own transaction: what it
//! says of a database that grants is never too little.

use super::consent::{Change, Consent};
use super::store::{of_store, open, operator, printable};
use super::stripes::{Stripes, explain_release, list_in, not_made, try_release};
use crate::authority::Database;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, CellStore, StripeStore};
use crate::postgres::{PgError, Session, explain};
use idgen_core::lease::named::stripes::{Joiner, claim_of, plan_join};
use idgen_core::lease::named::{JoinPlan, JoinRefused, LeaseName, ReleaseRefused, StripeClaim};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// The daemon gives the authority of an index up when it next visits the database, which it does every second.
const GIVEN_UP: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where a database is, as it says itself.
pub(super) struct Member {
    pub(super) space_id: Uuid,
    stripe: u32,
    stripes: u32,
    size: Option<u64>,
    is_leased: bool,
}

impl Member {
    pub(super) async fn read(session: &Session) -> Result<Self> {
        let read = "SELECT space_id, stripe, stripes, stripe_size, authority FROM idgen.health";
        let row = session.row(read, &[]).await.map_err(explain)?;
        let number = |value: i32| u32::try_from(value).map_err(|_| Error::runtime("a stripe is negative"));
        let broken = |error: tokio_postgres::Error| Error::runtime(format!("read idgen.health: {error}"));
        let size: Option<i64> = row.try_get(3).map_err(broken)?;
        Ok(Self {
            space_id: row.try_get(0).map_err(broken)?,
            stripe: number(row.try_get(1).map_err(broken)?)?,
            stripes: number(row.try_get(2).map_err(broken)?)?,
            size: size.map(i64::unsigned_abs),
            is_leased: row.try_get::<_, String>(4).map_err(broken)? == "leased",
        })
    }

    /// It grants what the claim says already.
    fn is_of(&self, claim: &StripeClaim) -> bool {
        let claimed = (claim.stripe, claim.cut.stripes, Some(claim.cut.size));
        self.space_id.as_u128() == claim.space_id && (self.stripe, self.stripes, self.size) == claimed
    }
}

/// The database that is meant; that of the configuration where none is named.
pub(super) fn database_of(config: &Config, named: Option<&str>) -> String {
    let url = &config.postgres.url;
    let configured = || url.get_dbname().or(url.get_user()).unwrap_or_default();
    named.unwrap_or_else(configured).to_owned()
}

/// A session with it.
pub(super) async fn session_in(config: &Config, database: &str) -> Result<Session> {
    let url = config.postgres.url.in_database(database);
    let limit = config.postgres.connect_timeout;
    Session::open(&url, "idgenctl", limit, limit)
        .await
        .map_err(|error| Error::retry(format!("connect to database {database}: {error}")))
}

/// A database of this configuration's server begins to grant under the index that it has claimed; where it does already,
/// tags that came to it since are taken in.
pub async fn join(
    config: &Config,
    space_id: Uuid,
    database: Option<&str>,
    consent: Consent,
) -> Result<Change<Stripes>> {
    match open(config) {
        AnyStore::Postgres(store) => join_in(*store, config, (space_id, database), consent).await,
        AnyStore::Etcd(store) => join_in(*store, config, (space_id, database), consent).await,
    }
}

/// A database of this configuration's server becomes a space of its own, and gives its index back.
pub async fn leave(
    config: &Config,
    space_id: Uuid,
    database: Option<&str>,
    reason: &str,
    consent: Consent,
) -> Result<Change<Stripes>> {
    match open(config) {
        AnyStore::Postgres(store) => leave_in(*store, config, (space_id, database), reason, consent).await,
        AnyStore::Etcd(store) => leave_in(*store, config, (space_id, database), reason, consent).await,
    }
}

async fn join_in(
    mut store: impl CellStore + StripeStore,
    config: &Config,
    (space_id, database): (Uuid, Option<&str>),
    consent: Consent,
) -> Result<Change<Stripes>> {
    let database = database_of(config, database);
    let session = session_in(config, &database).await?;
    let server = session.system_identifier().await?;
    let member = Member::read(&session).await?;
    let claims = store.stripes(Some(space_id.as_u128())).await.map_err(of_store)?;
    let claim = claim_of(&claims, server, &database).ok_or_else(|| refused(JoinRefused::NotClaimed))?;
    let plan = if member.is_of(claim) && claim.joined.is_some() {
        None
    } else {
        let name = LeaseName::authority(space_id.as_u128(), claim.stripe);
        let leased_before = store.look_at(&name).await.map_err(of_store)?.row.is_some();
        let joiner = Joiner {
            server,
            database: &database,
            is_maker: member.space_id == space_id,
            is_leased: member.is_leased,
        };
        let at = store.clock().await.map_err(of_store)?;
        Some(plan_join(&claims, joiner, |_| leased_before, at).map_err(refused)?)
    };
    let would = format!(
        "Database {} grants only ids of stripe {} of {} of space {space_id} from now on; the index counts as used for ever.",
        printable(&database),
        claim.stripe,
        claim.cut.stripes
    );
    let is_consented = consent.may(&would)?;
    session.batch("BEGIN").await.map_err(not_joined)?;
    begin_to_grant(&session, claim).await?;
    if !is_consented {
        session.batch("ROLLBACK").await.map_err(not_joined)?;
        return Ok(Change::tried(list_in(&mut store, Some(space_id)).await?, would));
    }
    if let Some(plan) = plan {
        write_down(&mut store, &plan).await?;
    }
    session.batch("COMMIT").await.map_err(|error| {
        Error::retry(format!("commit: {error}")).with_hint(
            "idgen.health says whether the database has joined; if it has not, and its authority is local, claim \
             another index: this one counts as used",
        )
    })?;
    Ok(Change::made(list_in(&mut store, Some(space_id)).await?))
}

async fn begin_to_grant(session: &Session, claim: &StripeClaim) -> Result<()> {
    let integer = |value: u32| i32::try_from(value).map_err(|_| Error::runtime("a stripe is too large"));
    let size = i64::try_from(claim.cut.size).map_err(|_| Error::runtime("the size is too large"))?;
    session
        .rows(
            "SELECT idgen.join_space($1, $2, $3, $4, $5)",
            &[
                &Uuid::from_u128(claim.space_id),
                &integer(claim.stripe)?,
                &integer(claim.cut.stripes)?,
                &size,
                &claim.cut.above,
            ],
        )
        .await
        .map_err(not_joined)?;
    Ok(())
}

/// An answer may get lost; the claim tells. An error ends the session, and so the database's transaction.
async fn write_down(store: &mut impl StripeStore, plan: &JoinPlan) -> Result<()> {
    let written = store.join_stripe(plan).await;
    let claims = store.stripes(Some(plan.space_id)).await.map_err(of_store)?;
    let is_done = |claim: &StripeClaim| claim.stripe == plan.stripe && claim.joined == Some(plan.at);
    if claims.iter().any(is_done) {
        Ok(())
    } else {
        Err(not_made(written.err()))
    }
}

async fn leave_in(
    mut store: impl CellStore + StripeStore,
    config: &Config,
    (space_id, database): (Uuid, Option<&str>),
    reason: &str,
    consent: Consent,
) -> Result<Change<Stripes>> {
    if reason.trim().is_empty() {
        return Err(Error::usage(ReleaseRefused::NoReason.to_string()));
    }
    let database = database_of(config, database);
    let session = session_in(config, &database).await?;
    let server = session.system_identifier().await?;
    let claims = store.stripes(Some(space_id.as_u128())).await.map_err(of_store)?;
    let claim = claim_of(&claims, server, &database).ok_or_else(|| refused(JoinRefused::NotClaimed))?;
    let (stripe, reason) = (claim.stripe, format!("{reason} ({})", operator(config)));
    // Otherwise it has left before, and the answer got lost.
    let is_member = Member::read(&session).await?.is_of(claim);
    let would = format!(
        "Database {} is a space of its own from now on, whose ids can be those of other masters of space {space_id}, \
         and gives stripe {stripe} back.",
        printable(&database)
    );
    let is_consented = consent.may(&would)?;
    session.batch("BEGIN").await.map_err(not_joined)?;
    if is_member {
        let leave = "SELECT idgen.leave_space($1)";
        session.rows(leave, &[&reason]).await.map_err(not_joined)?;
    }
    if !is_consented {
        session.batch("ROLLBACK").await.map_err(not_joined)?;
        return Ok(Change::tried(list_in(&mut store, Some(space_id)).await?, would));
    }
    session.batch("COMMIT").await.map_err(not_joined)?;
    let until = Instant::now() + GIVEN_UP;
    loop {
        match try_release(&mut store, (space_id, stripe), &reason).await? {
            Ok(()) => return Ok(Change::made(list_in(&mut store, Some(space_id)).await?)),
            Err(ReleaseRefused::Live { .. }) if Instant::now() < until => {
                tokio::time::sleep(LOOK_AGAIN).await
            }
            Err(refused) => return Err(explain_release(refused)),
        }
    }
}

fn refused(refused: JoinRefused) -> Error {
    let error = Error::refused(refused.to_string());
    match refused {
        JoinRefused::NotClaimed => error.with_hint("idgenctl stripes claim, with the same configuration"),
        JoinRefused::MakerHasNot => {
            error.with_hint("run idgenctl stripes join with the configuration of that database's server first")
        }
        JoinRefused::UsedBefore { .. } => error.with_hint(
            "with idgen.authority = leased the ceilings of the store say it, if the index was always leased; else \
             release it, and claim one that nobody ever had",
        ),
    }
}

fn not_joined(error: PgError) -> Error {
    match error.sqlstate() {
        Some("IG036" | "IG007" | "22023") => Error::refused(error.to_string()),
        Some("42501") => Error::refused(error.to_string()).with_hint(
            "as a superuser, run SELECT idgen.grant_admin('ROLE') in that database for the role of idgend",
        ),
        _ => explain(error),
    }
}
