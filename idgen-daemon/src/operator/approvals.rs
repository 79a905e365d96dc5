//! `idgenctl approvals`, and what needs them: requests that people approve, and what is done when enough have.

use super::consent::{Change, Consent};
use super::epoch;
use super::revoke::{Which, row_of, surveyed};
use super::store::{of_store, open, operator, printable, rfc3339, timing};
use crate::config::{Config, Credentials};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{AnyApprover, AnyStore, Asked, RequestStore, StoreErrorKind};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::{Act, Ask, LIFE_MS_MAX, Needed, NotEnough, Request, RequestId, means};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{Order, Survey};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// How often what was approved is tried while the store changes meanwhile.
const TRIES: u32 = 20;

/// A request, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// What it is named by.
    pub request: Uuid,
    /// What is to be done.
    pub act: String,
    /// Why.
    pub reason: String,
    /// Who asked.
    pub by: String,
    /// When, in RFC 3339.
    pub at: String,
    /// Until when it may be approved and done, in RFC 3339.
    pub expires: String,
    /// Who has approved it, as the store knows them.
    pub approved_by: Vec<String>,
    /// How many different people are needed.
    pub needed: u32,
    /// `open`; or why it is not, or what has come of it.
    pub state: String,
    /// It was done.
    pub is_done: bool,
}

impl Shown {
    pub(super) fn of(request: &Request, needed: Needed, survey: &Survey) -> Self {
        let Ask {
            id,
            act,
            reason,
            by,
            at,
            expires,
            ..
        } = &request.ask;
        let state = match request.check_alive(survey.cell.cell_id, survey.now) {
            Ok(()) => "open".to_owned(),
            Err(NotEnough::Used(outcome)) => outcome,
            Err(why) => why.to_string(),
        };
        Self {
            request: Uuid::from_u128(id.0),
            act: text_of(act),
            reason: reason.clone(),
            by: by.clone(),
            at: rfc3339(*at),
            expires: rfc3339(*expires),
            approved_by: request.approvers().into_iter().collect(),
            needed: needed.of(act),
            state,
            is_done: request.done.is_some(),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let approved = if self.approved_by.is_empty() {
            "nobody yet".to_owned()
        } else {
            printable(&self.approved_by.join(", "))
        };
        format!(
            "request   {}\nto        {}\nbecause   {}\nasked     by {} at {}, until {}\napproved  by {approved}; {} different \
             people are needed\nstate     {}",
            self.request,
            self.act,
            printable(&self.reason),
            printable(&self.by),
            self.at,
            self.expires,
            self.needed,
            printable(&self.state),
        )
    }
}

fn text_of(act: &Act) -> String {
    match act {
        Act::ForceRelease {
            class,
            identity,
            token,
            ..
        } => {
            let (epoch, revision) = (token.epoch.0, token.revision.0);
            format!("take {class} {identity} from its holder by force (token {epoch}/{revision})")
        }
        Act::AdvanceEpoch { from, identity, .. } => {
            format!("advance the epoch of {identity}, which is {}", from.0.0)
        }
        Act::Need { approvals } => format!("have {approvals} people be needed from now on"),
    }
}

/// All requests of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Approvals {
    /// How many different people have to approve an advance of the epoch.
    pub needed: u32,
    /// That was decided by the cell, and not by how many the store can tell apart.
    pub is_set: bool,
    /// Newest first.
    pub requests: Vec<Shown>,
}

impl Approvals {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let whose = if self.is_set {
            "as the cell says"
        } else {
            "as many as the store can tell apart, up to two"
        };
        let mut parts = vec![format!(
            "an advance of the epoch needs {} ({whose}); a release by force needs 2",
            self.needed
        )];
        parts.extend(self.requests.iter().map(Shown::text));
        parts.join("\n\n")
    }
}

/// Shows all of them.
pub async fn list(config: &Config) -> Result<Approvals> {
    match open(config) {
        AnyStore::Postgres(store) => list_in(*store).await,
        AnyStore::Etcd(store) => list_in(*store).await,
    }
}

async fn list_in(mut store: impl RequestStore) -> Result<Approvals> {
    let survey = surveyed(&mut store).await?;
    let Asked { needed, requests } = store.asked().await.map_err(of_store)?;
    let shown = |request| Shown::of(request, needed, &survey);
    Ok(Approvals {
        needed: needed.number(),
        is_set: needed.set.is_some(),
        requests: requests.iter().map(shown).collect(),
    })
}

/// What is asked for, and how long it may wait for people.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Why; it is kept with the request.
    pub reason: String,
    /// How long it may be approved and done.
    pub expires: Duration,
    /// Only what would be asked.
    pub dry_run: bool,
}

impl Wish {
    fn check(&self) -> Result<u64> {
        if self.reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty; it is kept with the request"));
        }
        let ms = u64::try_from(self.expires.as_millis()).unwrap_or(u64::MAX);
        if (1..=LIFE_MS_MAX).contains(&ms) {
            return Ok(ms);
        }
        Err(Error::usage("a request lives for a day at the most"))
    }
}

/// Asks for an identity to be taken from its holder.
pub async fn ask_release(config: &Config, which: Which, wish: &Wish) -> Result<Change<Shown>> {
    match open(config) {
        AnyStore::Postgres(store) => ask_release_in(*store, config, which, wish).await,
        AnyStore::Etcd(store) => ask_release_in(*store, config, which, wish).await,
    }
}

async fn ask_release_in(
    mut store: impl RequestStore,
    config: &Config,
    which: Which,
    wish: &Wish,
) -> Result<Change<Shown>> {
    let survey = surveyed(&mut store).await?;
    let held = row_of(&survey, which).and_then(|row| Some((row, row.holder.as_ref()?)));
    let Some((row, holder)) = held else {
        return Err(Error::refused(format!("nobody holds {which}")).with_hint("idgenctl leases list"));
    };
    let act = Act::ForceRelease {
        class: which.class,
        identity: which.identity,
        token: holder.token,
        generation: row.generation,
    };
    asked(&mut store, config, &survey, act, wish).await
}

/// Asks for another number of people to be needed.
pub async fn ask_need(config: &Config, approvals: u32, wish: &Wish) -> Result<Change<Shown>> {
    match open(config) {
        AnyStore::Postgres(store) => ask_need_in(*store, config, approvals, wish).await,
        AnyStore::Etcd(store) => ask_need_in(*store, config, approvals, wish).await,
    }
}

async fn ask_need_in(
    mut store: impl RequestStore,
    config: &Config,
    approvals: u32,
    wish: &Wish,
) -> Result<Change<Shown>> {
    let survey = surveyed(&mut store).await?;
    asked(&mut store, config, &survey, Act::Need { approvals }, wish).await
}

/// Writes a request down.
pub(super) async fn asked(
    store: &mut impl RequestStore,
    config: &Config,
    survey: &Survey,
    act: Act,
    wish: &Wish,
) -> Result<Change<Shown>> {
    let life_ms = wish.check()?;
    let Asked { needed, .. } = store.asked().await.map_err(of_store)?;
    if !needed.has_two && needed.of(&act) > 1 {
        let why = "two people are needed, and this lease store cannot tell two people apart";
        return Err(Error::refused(why).with_hint("see \"Who may approve\" in docs/operations.md"));
    }
    let ask = Ask {
        id: RequestId(Uuid::new_v4().as_u128()),
        cell_id: survey.cell.cell_id,
        act,
        reason: wish.reason.clone(),
        by: operator(config),
        at: survey.now,
        expires: survey.now.saturating_add(life_ms),
    };
    let would = format!("It would be asked to {}.", text_of(&ask.act));
    if !wish.dry_run {
        store.ask(&ask).await.map_err(of_store)?;
    }
    let shown = Shown::of(&new_request(ask), needed, survey);
    Ok(if wish.dry_run {
        Change::tried(shown, would)
    } else {
        Change::made(shown)
    })
}

fn new_request(ask: Ask) -> Request {
    let digest = idgen_core::lease::approval::Digest::of("");
    Request {
        ask,
        digest,
        approvals: Vec::new(),
        done: None,
    }
}

/// Approves a request as whoever the credentials belong to, and does what it asks for when that is enough.
pub async fn approve(
    config: &Config,
    request: Uuid,
    credentials: &Path,
    consent: Consent,
) -> Result<Change<Shown>> {
    let credentials = Credentials::load(credentials, &config.store)?;
    let approver = AnyApprover::new(&config.store, credentials).map_err(of_store)?;
    let id = RequestId(request.as_u128());
    match open(config) {
        AnyStore::Postgres(store) => approve_in(*store, config, id, approver, consent).await,
        AnyStore::Etcd(store) => approve_in(*store, config, id, approver, consent).await,
    }
}

async fn approve_in(
    mut store: impl RequestStore,
    config: &Config,
    id: RequestId,
    mut approver: AnyApprover,
    consent: Consent,
) -> Result<Change<Shown>> {
    let survey = surveyed(&mut store).await?;
    let (needed, request) = find(&mut store, id).await?;
    request
        .check_alive(survey.cell.cell_id, survey.now)
        .map_err(|why| no_more(why.to_string()))?;
    let would = sentence(config, &survey, &request.ask.act)?;
    if !consent.may(&would)? {
        return Ok(Change::tried(Shown::of(&request, needed, &survey), would));
    }
    let name = approver.approve(&request).await.map_err(of_store)?;
    eprintln!("approved as {}", printable(&name));
    let mut tries = 1;
    loop {
        let survey = surveyed(&mut store).await?;
        let (needed, request) = find(&mut store, id).await?;
        match request.judge(survey.cell.cell_id, needed, survey.now) {
            Ok(_) => {}
            Err(NotEnough::Few { .. }) => return Ok(Change::made(Shown::of(&request, needed, &survey))),
            Err(NotEnough::Used(_)) if tries > 1 => {
                return Ok(Change::made(Shown::of(&request, needed, &survey)));
            }
            Err(why) => return Err(no_more(why.to_string())),
        }
        match carry_out(&mut store, config, &survey, &request).await {
            // A holder that lives renews all the time.
            Err(error) if error.kind() != ErrorKind::Retry || tries == TRIES => return Err(error),
            _ => tries += 1,
        }
    }
}

pub(super) async fn find(store: &mut impl RequestStore, id: RequestId) -> Result<(Needed, Request)> {
    let Asked { needed, requests } = store.asked().await.map_err(of_store)?;
    let found = requests.into_iter().find(|request| request.ask.id == id);
    let request = found.ok_or_else(|| {
        let id = Uuid::from_u128(id.0);
        Error::refused(format!("there is no request {id}")).with_hint("idgenctl approvals list")
    })?;
    Ok((needed, request))
}

fn no_more(why: String) -> Error {
    Error::refused(why)
        .with_hint("idgenctl approvals list shows what can be approved; ask anew for what is still wanted")
}

/// Enough people have approved it.
async fn carry_out(
    store: &mut impl RequestStore,
    config: &Config,
    survey: &Survey,
    request: &Request,
) -> Result<()> {
    match &request.ask.act {
        Act::ForceRelease { .. } => {
            let row = meant(survey, &request.ask.act)?;
            let order = order_of(survey, request, row);
            let forced = store.force_release(request, row, &order).await;
            forced.map_err(changed)
        }
        Act::Need { approvals } => store.need(request, *approvals).await.map_err(changed),
        Act::AdvanceEpoch { .. } => epoch::advance_by(store, config, request).await,
    }
}

fn changed(error: crate::lease::StoreError) -> Error {
    match error.kind {
        StoreErrorKind::Conflict => Error::retry("the store was changed meanwhile, and nothing was done")
            .with_hint("look at idgenctl approvals list before you approve again, which does it where it was not done"),
        _ => of_store(error),
    }
}

/// The lease that a release by force means.
fn meant<'a>(survey: &'a Survey, act: &Act) -> Result<&'a Row> {
    if let Some(reason) = survey.sealed_because(&[]) {
        let error = Error::refused(format!(
            "the store is sealed, and what it shows is evidence: {reason}"
        ));
        return Err(error.with_hint("idgenctl epoch show"));
    }
    let Act::ForceRelease { class, identity, .. } = act else {
        return Err(Error::refused("the request is for no lease"));
    };
    let which = Which {
        class: *class,
        identity: *identity,
    };
    row_of(survey, which)
        .filter(|row| means(act, row))
        .ok_or_else(|| {
            let error = Error::refused(format!(
                "the lease of {which} that the request means has ended: whoever holds it now is not meant"
            ));
            error.with_hint("idgenctl leases show; ask anew where it is still to be taken")
        })
}

fn order_of(survey: &Survey, request: &Request, row: &Row) -> Order {
    let (class, token) = match &request.ask.act {
        Act::ForceRelease { class, token, .. } => (*class, *token),
        _ => unreachable!("a release by force"),
    };
    let approvers: Vec<String> = request.approvers().into_iter().collect();
    Order {
        class,
        identity: row.identity,
        token,
        at: survey.now,
        by: format!("{}, approved by {}", request.ask.by, approvers.join(", ")),
        reason: request.ask.reason.clone(),
        request: Some(request.ask.id.0),
    }
}

/// What will happen, for whoever is to approve it.
pub(super) fn sentence(config: &Config, survey: &Survey, act: &Act) -> Result<String> {
    match act {
        Act::ForceRelease { class, token, .. } => {
            let row = meant(survey, act)?;
            let holder = row
                .holder
                .as_ref()
                .map_or_else(String::new, |holder| printable(&holder.name));
            let timing = timing(config, *class)?;
            // A renewal raises the ceiling to a window beyond its moment.
            let renewed = UnixMs(row.ceiling.0.saturating_sub(timing.window_ms()));
            let heard_s = survey.now.since(renewed) / 1_000;
            let deadline = renewed.saturating_add(timing.ttl_ms().saturating_sub(timing.margin_ms()));
            let (epoch, revision) = (token.epoch.0, token.revision.0);
            Ok(format!(
                "{} {} is taken from server {holder} (token {epoch}/{revision}), which was last heard of about {heard_s} s ago. \
                 If it still runs it stops at once where it hears of it, at its next renewal, at most {} s, or at its deadline, \
                 in about {} s. The next holder begins above {}; no id can be given twice.",
                capital(class.name()),
                row.identity,
                timing.longest_period_ms().div_ceil(1_000),
                deadline.since(survey.now).div_ceil(1_000),
                rfc3339(row.ceiling),
            ))
        }
        Act::Need { approvals } => Ok(format!(
            "From now on {approvals} different people have to approve an advance of the epoch of this cell."
        )),
        Act::AdvanceEpoch { identity, .. } => Ok(format!(
            "The store {identity} is opened: a new epoch begins in it as soon as enough people have approved it, what holds leases \
             of an older epoch is not renewed any more, and this cannot be taken back. idgenctl epoch show tells the details."
        )),
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
