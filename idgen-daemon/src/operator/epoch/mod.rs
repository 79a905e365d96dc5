//! `idgenctl epoch`: shows whether a lease store is sealed, and opens it by advancing its epoch.

mod status;

pub use self::status::{Advance, Change, EpochStatus, Side};

use self::status::workers_of;
use super::approvals;
use super::consent::{self, Consent};
use super::store::{anchors_of, of_store, open, operator, printable, rfc3339, server_of, timing};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, CellStore, RequestStore, StoreError, StoreErrorKind};
use crate::postgres::{Session, server_wall};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::{Act, Request};
use idgen_core::lease::window::SKEW_MS;
use idgen_core::lease::{
    AdvancePlan, AdvanceRefused, AdvanceWish, Anchor, Class, EpochNonce, StoreIdentity, Survey, plan_advance,
};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// While it is waited for daemons.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The longest windows of the cell, and the longest time until every daemon has spoken.
#[derive(Clone, Copy)]
struct Times {
    worker_ms: u64,
    shard_ms: u64,
    grace_ms: u64,
}

impl Times {
    fn of(config: &Config) -> Result<Self> {
        let (workers, shards) = (timing(config, Class::Worker)?, timing(config, Class::Shard)?);
        let reach = config.store.reach();
        Ok(Self {
            worker_ms: workers.window_ms(),
            shard_ms: shards.window_ms(),
            grace_ms: workers.grace_ms(reach).max(shards.grace_ms(reach)),
        })
    }
}

fn wish_for(
    identity: StoreIdentity,
    times: Times,
    reason: String,
    by: String,
    formats: Option<String>,
) -> AdvanceWish {
    AdvanceWish {
        identity,
        reason,
        by,
        nonce: EpochNonce(Uuid::new_v4().as_u128()),
        formats,
        worker_window_ms: times.worker_ms,
        shard_window_ms: times.shard_ms,
    }
}

/// The epoch of the cell as its store has it.
pub async fn show(config: &Config) -> Result<EpochStatus> {
    match open(config) {
        AnyStore::Postgres(store) => show_in(*store, config).await,
        AnyStore::Etcd(store) => show_in(*store, config).await,
    }
}

/// Which store is to be opened, and why.
#[derive(Clone, Debug)]
pub struct Order {
    /// The identity of the store.
    pub identity: String,
    /// Why.
    pub reason: String,
    /// The plan of formats that holds, where servers follow plans that contradict.
    pub formats: Option<String>,
    /// How long it may wait for approvals, where more than one person is needed.
    pub expires: Duration,
}

/// What has come of an advance.
pub enum Advanced {
    /// The epoch is what it is now.
    Made(consent::Change<EpochStatus>),
    /// More than one person has to approve it, so it was asked for.
    Asked(consent::Change<approvals::Shown>),
}

/// Advances the epoch of that store, if that is consented to; or asks for it, where the cell needs more than one person.
pub async fn advance(config: &Config, order: &Order, consent: Consent) -> Result<Advanced> {
    let identity = StoreIdentity::new(&order.identity).ok_or_else(|| {
        Error::usage(format!("\"{}\" is no identity of a store", order.identity))
            .with_hint("idgenctl epoch show prints it")
    })?;
    if order.reason.trim().is_empty() {
        return Err(Error::usage("the reason is empty; it is kept with the epoch"));
    }
    match open(config) {
        AnyStore::Postgres(store) => advance_in(*store, config, identity, order, consent).await,
        AnyStore::Etcd(store) => advance_in(*store, config, identity, order, consent).await,
    }
}

async fn show_in(mut store: impl RequestStore, config: &Config) -> Result<EpochStatus> {
    let (anchors, survey) = remembered_and_found(&mut store, config).await?;
    let asked = store.asked().await.map_err(of_store)?;
    Ok(EpochStatus {
        approvals_needed: Some(asked.needed.number()),
        ..EpochStatus::of(&survey, &anchors, Times::of(config)?)
    })
}

/// Looks again until every daemon that is alive and within reach has had the time to tell the store what it knows: the
/// next epoch must rise above that, and have the furthest plan of formats.
async fn heard_out(
    store: &mut impl CellStore,
    config: &Config,
    wish: &AdvanceWish,
    grace_ms: u64,
) -> Result<(Vec<Anchor>, Survey)> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let (anchors, survey) = remembered_and_found(store, config).await?;
        let watched_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wait_ms = survey.unheard_ms(grace_ms, watched_ms);
        let refused = match plan_advance(&survey, &anchors, wish.clone()) {
            Err(AdvanceRefused::Open | AdvanceRefused::OtherStore { .. }) => true,
            Err(AdvanceRefused::TooSoon { wait_ms: soon_ms, .. }) => soon_ms > wait_ms,
            // Of more that is told another plan may follow.
            _ => false,
        };
        if refused || wait_ms == 0 {
            return Ok((anchors, survey));
        }
        if !told {
            told = true;
            let seconds = wait_ms.div_ceil(1_000);
            eprintln!(
                "the store was sealed a moment ago: waiting {seconds} s, in which every daemon tells it what it knows"
            );
        }
        tokio::time::sleep(Duration::from_millis(wait_ms).min(LOOK_AGAIN)).await;
    }
}

/// In this order: what the server writes down after the look is newer than the look, and no sign of a restore.
async fn remembered_and_found(store: &mut impl CellStore, config: &Config) -> Result<(Vec<Anchor>, Survey)> {
    let anchors = anchors_of(config).await?;
    let survey = survey(store).await?;
    Ok((anchors, survey))
}

async fn survey(store: &mut impl CellStore) -> Result<Survey> {
    let survey = store.survey().await.map_err(of_store)?;
    survey.ok_or_else(|| {
        Error::refused("the lease store is new: it has no cell yet").with_hint("the first idgend makes it")
    })
}

/// The new epoch begins at the store's time, and its margins rest on that: where it is far from the server's, one of the
/// two is wrong.
async fn check_clock(store: &mut impl CellStore, server: &Session) -> Result<()> {
    let before = store.clock().await.map_err(of_store)?;
    let said = server_wall(server).await?;
    let after = store.clock().await.map_err(of_store)?;
    clocks_agree(said, before, after)
}

/// `before` and `after` are the store's times around the server's.
fn clocks_agree(server: UnixMs, before: UnixMs, after: UnixMs) -> Result<()> {
    let apart_ms = before.since(server).max(server.since(after));
    if apart_ms <= SKEW_MS {
        return Ok(());
    }
    let message = format!(
        "the clock that the new epoch would begin by (the store's; with etcd that of this host) is {apart_ms} ms from \
         that of the server: more than {SKEW_MS} ms"
    );
    Err(Error::refused(message)
        .with_hint("set the clocks of this host, the store and the server, and try again"))
}

async fn advance_in(
    mut store: impl RequestStore,
    config: &Config,
    identity: StoreIdentity,
    order: &Order,
    consent: Consent,
) -> Result<Advanced> {
    let times = Times::of(config)?;
    check_clock(&mut store, &server_of(config).await?).await?;
    let wish = wish_for(
        identity.clone(),
        times,
        order.reason.clone(),
        operator(config),
        order.formats.clone(),
    );
    let (anchors, before) = heard_out(&mut store, config, &wish, times.grace_ms).await?;
    let agreed = plan_advance(&before, &anchors, wish.clone()).map_err(refused)?;
    let act = Act::AdvanceEpoch {
        from: (before.cell.epoch, before.cell.epoch_nonce),
        identity,
        formats: order.formats.clone(),
    };
    let asked = store.asked().await.map_err(of_store)?;
    if asked.needed.of(&act) > 1 {
        let wish = approvals::Wish {
            reason: order.reason.clone(),
            expires: order.expires,
            dry_run: consent == Consent::DryRun,
        };
        let opened = approvals::asked(&mut store, config, &before, act, &wish).await?;
        return Ok(Advanced::Asked(opened));
    }
    let would = sentence(&before, &agreed);
    if !consent.may(&would)? {
        let shown = EpochStatus::of(&before, &anchors, times);
        return Ok(Advanced::Made(consent::Change::tried(shown, would)));
    }
    // Somebody may have thought about it for a while: the margins of the new epoch count from now.
    let (anchors, before) = heard_out(&mut store, config, &wish, times.grace_ms).await?;
    let nonce = wish.nonce;
    let plan = plan_advance(&before, &anchors, wish).map_err(refused)?;
    let needed = store.asked().await.map_err(of_store)?.needed;
    if (plan.to, &plan.formats) != (agreed.to, &agreed.formats) || needed.of(&act) > 1 {
        return Err(not_advanced());
    }
    let advanced = store.advance(&plan).await;
    let after = settled(&mut store, nonce, advanced).await?;
    Ok(Advanced::Made(consent::Change::made(EpochStatus::of(
        &after, &anchors, times,
    ))))
}

/// An answer may have got lost; the name of the epoch tells.
async fn settled(
    store: &mut impl CellStore,
    nonce: EpochNonce,
    advanced: std::result::Result<(), StoreError>,
) -> Result<Survey> {
    let after = survey(store).await?;
    match advanced {
        _ if after.cell.epoch_nonce == nonce => Ok(after),
        Err(error) if error.kind != StoreErrorKind::Conflict => Err(of_store(error)),
        _ => Err(not_advanced()),
    }
}

/// Advances it as a request says that enough people have approved. It names the epoch and the store that it was made for.
pub(super) async fn advance_by(
    store: &mut impl RequestStore,
    config: &Config,
    request: &Request,
) -> Result<()> {
    let Act::AdvanceEpoch {
        from,
        identity,
        formats,
    } = &request.ask.act
    else {
        return Err(Error::refused("the request is for no epoch"));
    };
    let times = Times::of(config)?;
    check_clock(store, &server_of(config).await?).await?;
    let approvers: Vec<String> = request.approvers().into_iter().collect();
    let by = format!("{}, approved by {}", request.ask.by, approvers.join(", "));
    let reason = request.ask.reason.clone();
    let wish = wish_for(identity.clone(), times, reason, by, formats.clone());
    let (anchors, before) = heard_out(store, config, &wish, times.grace_ms).await?;
    if (before.cell.epoch, before.cell.epoch_nonce) != *from {
        return Err(Error::refused(
            "the epoch has changed since it was asked for: the request means an older one",
        ));
    }
    let nonce = wish.nonce;
    let plan = plan_advance(&before, &anchors, wish).map_err(refused)?;
    let advanced = store.advance_by(request, &plan).await;
    settled(store, nonce, advanced).await.map(drop)
}

fn not_advanced() -> Error {
    Error::retry("the store was changed meanwhile, and the epoch was not advanced")
        .with_hint("look at idgenctl epoch show before you try again")
}

/// What an advance does, for whoever is to agree to it.
fn sentence(before: &Survey, plan: &AdvancePlan) -> String {
    let cell_id = Uuid::from_u128(before.cell.cell_id.0);
    let formats = match plan.formats == before.cell.worker_format {
        true => String::new(),
        false => format!(", by the plan of formats {}", printable(&plan.formats)),
    };
    format!(
        "Epoch {} of cell {cell_id} begins in the store {}: what holds leases of an older epoch is not renewed here any \
         more, workers {} are leased from {} on and shards from {} on{formats}; this cannot be taken back, and another \
         server that goes on as the old store duplicates shards.",
        plan.to.0,
        before.here,
        workers_of(plan.to),
        rfc3339(plan.worker_min_floor),
        rfc3339(plan.shard_min_floor),
    )
}

fn refused(refused: AdvanceRefused) -> Error {
    let error = Error::refused(refused.to_string());
    match refused {
        AdvanceRefused::OtherStore { .. } => error
            .with_hint("idgenctl epoch show prints the identity; make sure that this is the store you mean"),
        AdvanceRefused::Formats(_) => error.with_hint(
            "see \"Two plans of formats\" in docs/operations.md, and name the one that holds with --formats 'PLAN'",
        ),
        AdvanceRefused::Open | AdvanceRefused::TooSoon { .. } => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs(1_795_910_400_000);

    #[test]
    fn an_advance_by_a_clock_that_is_wrong_is_refused() {
        let (before, after) = (NOW, NOW.saturating_add(40));
        for (server, agrees) in [
            (NOW.saturating_sub(SKEW_MS), true),
            (NOW.saturating_sub(SKEW_MS + 1), false),
            (after.saturating_add(SKEW_MS), true),
            (after.saturating_add(SKEW_MS + 1), false),
        ] {
            assert_eq!(clocks_agree(server, before, after).is_ok(), agrees, "{server:?}");
        }
    }
}
