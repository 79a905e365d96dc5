//! `idgenctl leases show` and `revoke`: who has one identity, and having it given back.

use super::consent::Change;
use super::leases::{Held, State};
use super::requests::Pending;
use super::store::{of_store, open, operator, printable, rfc3339, timing};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, Asked, OrderStore, RequestStore, StoreErrorKind};
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{Class, Identity, Order, Survey, Token};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Between two looks whether it was given back.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// One identity, as it is named: `worker/17` or `shard/300`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which {
    /// Its class.
    pub class: Class,
    /// Its number.
    pub identity: Identity,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("\"{text}\" is no identity: worker/17 or shard/300");
        let (kind, number) = text.split_once('/').ok_or_else(wrong)?;
        let class = Class::ALL.into_iter().find(|class| class.name() == kind);
        let class = class.ok_or_else(wrong)?;
        let identity = Identity(number.parse().map_err(|_| wrong())?);
        if identity.0 >= class.size() {
            return Err(format!(
                "there are {class}s 0 to {}, not {identity}",
                class.size() - 1
            ));
        }
        Ok(Self { class, identity })
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.class, self.identity)
    }
}

/// One identity, as the store says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detail {
    /// worker or shard.
    pub class: &'static str,
    /// The number that ids carry.
    pub identity: u16,
    /// How often it was granted; 0: never.
    pub generation: u64,
    /// What the store says of it; none: it is free.
    pub state: Option<State>,
    /// Whoever has it, or had it.
    pub holder: Option<Held>,
    /// Highest timestamp that was ever granted, or the exact last one of a clean end, in Unix ms.
    pub ceiling_ms: u64,
    /// The same for people, in RFC 3339.
    pub ceiling: String,
    /// What an operator has ordered last of a holder.
    pub order: Option<Ordered>,
    /// What people may approve against the holder.
    pub requests: Vec<Pending>,
}

/// What was ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ordered {
    /// First part of the token of the lease that it ends.
    pub epoch: u64,
    /// Second part.
    pub revision: u64,
    /// When, in RFC 3339.
    pub at: String,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The request that two people have approved, of a release by force.
    pub request: Option<Uuid>,
    /// The store still shows the lease.
    pub pending: bool,
}

impl Detail {
    pub(super) fn of(survey: &Survey, orders: &[Order], which: Which) -> Self {
        let row = row_of(survey, which);
        let token = row.and_then(|row| Some(row.holder.as_ref()?.token));
        let order = orders
            .iter()
            .find(|order| (order.class, order.identity) == (which.class, which.identity));
        let ceiling = row.map_or(UnixMs(0), |row| row.ceiling);
        Self {
            class: which.class.name(),
            identity: which.identity.0,
            generation: row.map_or(0, |row| row.generation),
            state: row.and_then(|row| State::of(row, survey.now)),
            holder: row.and_then(|row| Some(Held::of(row.holder.as_ref()?, survey.cell.epoch))),
            ceiling_ms: ceiling.0,
            ceiling: rfc3339(ceiling),
            order: order.map(|order| Ordered {
                epoch: order.token.epoch.0,
                revision: order.token.revision.0,
                at: rfc3339(order.at),
                by: order.by.clone(),
                reason: order.reason.clone(),
                request: order.request.map(Uuid::from_u128),
                pending: token == Some(order.token),
            }),
            requests: Vec::new(),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let state = match self.state {
            _ if self.generation == 0 => "never leased".to_owned(),
            None => "free".to_owned(),
            Some(state) => state.to_string(),
        };
        let mut lines = vec![format!("{} {}: {state}", self.class, self.identity)];
        if let Some(held) = &self.holder {
            let (epoch, revision) = (held.epoch, held.revision);
            let other = if held.other_epoch {
                ", of another epoch"
            } else {
                ""
            };
            lines.push(format!("holder   {}", printable(&held.name)));
            lines.push(format!("token    {epoch}/{revision}{other}"));
            lines.push(format!("instance {}, boot id {}", held.instance, held.boot_id));
        }
        if self.generation > 0 {
            let (ceiling, generation) = (&self.ceiling, self.generation);
            lines.push(format!("ceiling  {ceiling}: the next holder begins above it"));
            lines.push(format!("granted  {generation} times"));
        }
        if let Some(order) = &self.order {
            lines.push(order.text());
        }
        lines.extend(self.requests.iter().map(Pending::text));
        lines.join("\n")
    }
}

impl Ordered {
    fn text(&self) -> String {
        let what = match (self.request, self.pending) {
            (Some(request), _) => format!("taken by force, request {request}"),
            (None, true) => "revoked, not given back yet".to_owned(),
            (None, false) => "revoked, and the lease has ended".to_owned(),
        };
        let Self {
            epoch, revision, at, ..
        } = self;
        let (by, reason) = (printable(&self.by), printable(&self.reason));
        format!("order    lease {epoch}/{revision} {what}: {reason} ({by}, {at})")
    }
}

pub(super) fn row_of(survey: &Survey, which: Which) -> Option<&Row> {
    let rows = match which.class {
        Class::Worker => &survey.workers,
        Class::Shard => &survey.shards,
    };
    rows.iter().find(|row| row.identity == which.identity)
}

/// Who has it.
pub async fn show(config: &Config, which: Which) -> Result<Detail> {
    match open(config) {
        AnyStore::Postgres(store) => show_in(*store, which).await,
        AnyStore::Etcd(store) => show_in(*store, which).await,
    }
}

async fn show_in(mut store: impl RequestStore, which: Which) -> Result<Detail> {
    Ok(look(&mut store, which).await?.1)
}

async fn look(store: &mut impl RequestStore, which: Which) -> Result<(Survey, Detail)> {
    let survey = surveyed(store).await?;
    let orders = store.orders().await.map_err(of_store)?;
    let Asked { needed, requests } = store.asked().await.map_err(of_store)?;
    let mut detail = Detail::of(&survey, &orders, which);
    detail.requests = Pending::of(&survey, needed, &requests, which);
    Ok((survey, detail))
}

pub(super) async fn surveyed(store: &mut impl OrderStore) -> Result<Survey> {
    let survey = store.survey().await.map_err(of_store)?;
    survey.ok_or_else(|| Error::refused("the lease store is new: nothing was ever leased"))
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Of whose holder.
    pub which: Which,
    /// Why; it is kept with the order.
    pub reason: String,
    /// How long to wait for it to be given back.
    pub wait: Duration,
    /// Only what would be ordered.
    pub dry_run: bool,
}

/// What has come of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revoked {
    /// The identity as it is now.
    pub lease: Detail,
    /// Whose lease was ended.
    pub from: Held,
    /// It was given back while this waited.
    pub given_back: bool,
    /// How long that took, in ms.
    pub took_ms: Option<u64>,
    /// When the holder stops at the latest if it is within reach of the store, in s.
    pub renews_within_s: u64,
}

impl Revoked {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let Held { epoch, revision, .. } = self.from;
        let (class, identity) = (self.lease.class, self.lease.identity);
        let name = printable(&self.from.name);
        let whose = format!("{class} {identity} of {name} (token {epoch}/{revision})");
        match self.took_ms {
            Some(took_ms) => format!("{whose} was given back after {took_ms} ms"),
            None => format!(
                "{whose} was not given back yet: its server stops with its next renewal, within {} s, or at its \
                 deadline if it is cut off from the store",
                self.renews_within_s
            ),
        }
    }
}

/// Has the holder end its lease; waits for it to be given back.
pub async fn revoke(config: &Config, wish: &Wish) -> Result<Change<Revoked>> {
    if wish.reason.trim().is_empty() {
        return Err(Error::usage("the reason is empty; it is kept with the order"));
    }
    match open(config) {
        AnyStore::Postgres(store) => revoke_in(*store, config, wish).await,
        AnyStore::Etcd(store) => revoke_in(*store, config, wish).await,
    }
}

async fn revoke_in(mut store: impl RequestStore, config: &Config, wish: &Wish) -> Result<Change<Revoked>> {
    let which = wish.which;
    let (survey, lease) = look(&mut store, which).await?;
    let held = row_of(&survey, which).and_then(|row| row.holder.as_ref());
    let Some((holder, from)) = held.zip(lease.holder.clone()) else {
        return Err(Error::refused(format!("nobody holds {which}")).with_hint("idgenctl leases list"));
    };
    let timing = timing(config, which.class)?;
    let would = sentence(which, &from);
    let revoked = |lease, took_ms: Option<u64>| Revoked {
        lease,
        from,
        given_back: took_ms.is_some(),
        took_ms,
        renews_within_s: timing.longest_period_ms().div_ceil(1_000),
    };
    if wish.dry_run {
        return Ok(Change::tried(revoked(lease, None), would));
    }
    let order = Order {
        class: which.class,
        identity: which.identity,
        token: holder.token,
        at: store.clock().await.map_err(of_store)?,
        by: operator(config),
        reason: wish.reason.clone(),
        request: None,
    };
    let began = Instant::now();
    store.order(&order).await.map_err(|error| match error.kind {
        StoreErrorKind::Conflict => Error::refused(format!("{which} has another holder by now"))
            .with_hint("look at idgenctl leases show before you try again"),
        _ => of_store(error),
    })?;
    let (lease, took) = given_back(&mut store, which, holder.token, began, wish.wait).await?;
    Ok(Change::made(revoked(lease, took)))
}

fn sentence(which: Which, from: &Held) -> String {
    let (name, epoch, revision) = (printable(&from.name), from.epoch, from.revision);
    let next = match which.class {
        Class::Worker => "It takes other workers at once.",
        Class::Shard => {
            "Its configuration names the shard, so it takes it again at once, under another token; other servers are not \
             kept from it."
        }
    };
    format!(
        "The server of {name} would give back {which} and all that it has leased with it under token {epoch}/{revision}, \
         with the exact high water. {next}"
    )
}

/// Waits until the store does not show the lease any more; how long that took.
async fn given_back(
    store: &mut impl RequestStore,
    which: Which,
    token: Token,
    began: Instant,
    wait: Duration,
) -> Result<(Detail, Option<u64>)> {
    loop {
        let (survey, lease) = look(store, which).await?;
        let shown = row_of(&survey, which).and_then(|row| Some(row.holder.as_ref()?.token));
        let took = began.elapsed();
        if shown != Some(token) {
            return Ok((lease, Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))));
        }
        if took >= wait {
            return Ok((lease, None));
        }
        tokio::time::sleep(LOOK_AGAIN.min(wait.saturating_sub(took))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_a_class_and_a_number_of_it() {
        let which = |text: &str| text.parse::<Which>().map(|which| which.to_string());
        assert_eq!(which("worker/17"), Ok("worker 17".to_owned()));
        assert_eq!(which("shard/8191"), Ok("shard 8191".to_owned()));
        for wrong in [
            "",
            "17",
            "worker",
            "worker/",
            "worker/x",
            "worker/-1",
            "lock/1",
            "worker/1024",
            "shard/8192",
        ] {
            assert!(which(wrong).is_err(), "{wrong:?}");
        }
    }
}
