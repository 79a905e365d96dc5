//! Stripes of spaces in etcd: `PREFIX/stripe/SPACE/INDEX` says which database has one; never deleted.

use super::super::store_named::StripeStore;
use super::named::{below, is_as_seen, only};
use super::value::{unsigned, value};
use super::{EtcdStore, Result, encode, not_as_expected, signed};
use etcd_client::{KeyValue, Txn, TxnOp};
use idgen_core::clock::UnixMs;
use idgen_core::lease::named::{ClaimPlan, Cut, JoinPlan, ReleasePlan, StripeClaim};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `stripe/SPACE/INDEX`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StripeValue {
    space_id: Uuid,
    stripe: u32,
    stripes: u32,
    size: u64,
    above: i64,
    server: u64,
    database: String,
    name: String,
    at_ms: u64,
    by: String,
    joined_at_ms: Option<u64>,
    released_at_ms: Option<u64>,
    release_reason: Option<String>,
}

/// What the stripes of a space, or of all of them, are below.
fn folder(prefix: &str, space_id: Option<u128>) -> String {
    let all = format!("{}/stripe/", prefix);
    match space_id {
        None => all,
        Some(space_id) => format!("{all}{}/", Uuid::from_u128(space_id)),
    }
}

fn key(prefix: &str, space_id: u128, stripe: u32) -> String {
    format!("{}{stripe}", folder(prefix, Some(space_id)))
}

impl StripeStore for EtcdStore {
    async fn stripes(&mut self, space_id: Option<u128>) -> Result<Vec<StripeClaim>> {
        let folder = folder(&self.config.prefix, space_id);
        let (_, _, [claims]) = self.look_beside_cell([below(folder)]).await?;
        let mut claims = claims.kvs().iter().map(claim).collect::<Result<Vec<_>>>()?;
        claims.sort_by_key(|claim| (claim.space_id, claim.stripe));
        Ok(claims)
    }

    async fn claim_stripe(&mut self, plan: &ClaimPlan) -> Result<()> {
        let wish = &plan.wish;
        let claim = StripeValue {
            space_id: Uuid::from_u128(wish.space_id),
            stripe: wish.stripe,
            stripes: wish.cut.stripes,
            size: wish.cut.size,
            above: wish.cut.above,
            server: wish.server,
            database: wish.database.clone(),
            name: wish.name.clone(),
            at_ms: wish.at.0,
            by: wish.by.clone(),
            joined_at_ms: plan.joined.map(|joined| joined.0),
            released_at_ms: None,
            release_reason: None,
        };
        let key = key(&self.config.prefix, wish.space_id, wish.stripe);
        let seen = plan.seen.map_or(Ok(0), signed)?;
        self.put_stripe(key, seen, &claim).await
    }

    async fn join_stripe(&mut self, plan: &JoinPlan) -> Result<()> {
        let key = key(&self.config.prefix, plan.space_id, plan.stripe);
        let (_, _, [found]) = self.look_beside_cell([TxnOp::get(key.clone(), None)]).await?;
        let claim: StripeValue = value(only(&found).ok_or_else(not_as_expected)?)?;
        if claim.released_at_ms.is_some() {
            return Err(not_as_expected());
        }
        let claim = StripeValue {
            joined_at_ms: Some(plan.at.0),
            ..claim
        };
        self.put_stripe(key, signed(plan.seen)?, &claim).await
    }

    async fn release_stripe(&mut self, plan: &ReleasePlan) -> Result<()> {
        let key = key(&self.config.prefix, plan.space_id, plan.stripe);
        let (_, _, [found]) = self.look_beside_cell([TxnOp::get(key.clone(), None)]).await?;
        let pair = only(&found).ok_or_else(not_as_expected)?;
        let claim = StripeValue {
            released_at_ms: Some(plan.at.0),
            release_reason: Some(plan.reason.clone()),
            ..value(pair)?
        };
        self.put_stripe(key, signed(plan.seen)?, &claim).await
    }
}

impl EtcdStore {
    /// Planned on the last look.
    async fn put_stripe(&mut self, key: String, seen: i64, claim: &StripeValue) -> Result<()> {
        let guards = vec![self.cell_unchanged(), is_as_seen(key.clone(), seen)];
        let put = TxnOp::put(key, encode(claim)?, None);
        self.commit_planned(Txn::new().when(guards).and_then([put])).await
    }
}

fn claim(pair: &KeyValue) -> Result<StripeClaim> {
    let claim: StripeValue = value(pair)?;
    Ok(StripeClaim {
        space_id: claim.space_id.as_u128(),
        stripe: claim.stripe,
        cut: Cut {
            stripes: claim.stripes,
            size: claim.size,
            above: claim.above,
        },
        server: claim.server,
        database: claim.database,
        name: claim.name,
        at: UnixMs(claim.at_ms),
        by: claim.by,
        joined: claim.joined_at_ms.map(UnixMs),
        released: claim.released_at_ms.map(UnixMs).zip(claim.release_reason),
        revision: unsigned(pair.mod_revision()),
    })
}
