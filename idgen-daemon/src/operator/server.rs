//! `idgenctl server`: a whole server gives back what it has leased, and takes nothing until it is resumed. For planned restarts.
//! The rules are in `idgen_core::lease::drain`.

use super::consent::{Change, Consent};
use super::shards::{self, Moved};
use super::store::{of_store, open, operator, printable, rfc3339, timing};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::ranges::Ranges;
use crate::lease::{
    AnyShards, AnyStore, AssignmentStore, DrainStore, OrderStore, ShardFeed, StoreErrorKind, shards_of,
};
use idgen_core::lease::assigned::MoveRefused;
use idgen_core::lease::drain::to_end;
use idgen_core::lease::{Assigned, Class, Drain, Identity, Order, Survey, Token};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Between two looks whether all is given back.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A record that somebody else has written meanwhile is looked at again so often.
const TRIES: u32 = 3;

/// How a server is drained.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Which: the name of its daemon.
    pub server: String,
    /// Who is to have its shards meanwhile, evenly; none: nobody.
    pub to: Vec<String>,
    /// For the record; may be empty.
    pub reason: String,
    /// How long to wait until all is given back.
    pub wait: Duration,
}

/// A server that is drained, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drained {
    /// Its name.
    pub server: String,
    /// It takes no leases.
    pub drained: bool,
    /// Since when, in RFC 3339.
    pub since: String,
    /// Who has said so.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What has come of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    /// The record as it is now. `None`: nothing was ever said of this server.
    pub server: Option<Drained>,
    /// It was so before: nothing was written.
    pub already: bool,
    /// Shards that were moved to others before.
    pub moved: Option<Moved>,
    /// Workers that it has not given back yet.
    pub workers: Vec<u16>,
    /// Shards that it has not given back yet.
    pub shards: Vec<u16>,
    /// How long it took, in ms.
    pub took_ms: u64,
    /// When its daemon stops at the latest if it is within reach of the store, in s.
    pub renews_within_s: u64,
}

impl Drained {
    pub(super) fn of(drain: &Drain) -> Self {
        Self {
            server: drain.server.clone(),
            drained: drain.drained,
            since: rfc3339(drain.at),
            by: drain.by.clone(),
            reason: drain.reason.clone(),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let what = if self.drained { "drained" } else { "resumed" };
        let (server, since, by) = (printable(&self.server), &self.since, printable(&self.by));
        match printable(&self.reason) {
            reason if reason.is_empty() => format!("{server}: {what} at {since} by {by}"),
            reason => format!("{server}: {what} at {since} by {by}: {reason}"),
        }
    }
}

impl Done {
    /// Everything is given back.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_moved = self.moved.as_ref().is_none_or(|moved| moved.open.is_empty());
        is_moved && self.workers.is_empty() && self.shards.is_empty()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let moved = self
            .moved
            .as_ref()
            .map(|moved| format!("shards {}", moved.sentence()));
        let Some(server) = &self.server else {
            return moved
                .into_iter()
                .chain(["nothing was said of this server".to_owned()])
                .collect::<Vec<_>>()
                .join("\n");
        };
        let mut lines: Vec<String> = moved.into_iter().chain([server.text()]).collect();
        if self.already {
            lines.push("it was so before: nothing was changed".to_owned());
        }
        match (server.drained, self.is_done()) {
            (true, true) => lines.push(format!(
                "it has no lease any more, after {} ms, and takes none until idgenctl server resume",
                self.took_ms
            )),
            (true, false) => lines.push(format!(
                "not given back yet: {}. Its daemon stops with its next renewal, within {} s, or at its deadline if it is \
                 cut off from the store",
                in_words(&self.workers, &self.shards),
                self.renews_within_s
            )),
            (false, _) => lines.push(
                "it takes leases again, within some seconds where its idgend runs; shards that were moved to others stay there"
                    .to_owned(),
            ),
        }
        lines.join("\n")
    }
}

fn in_words(workers: &[u16], shards: &[u16]) -> String {
    let ranges = |numbers: &[u16]| {
        let numbers: Vec<Identity> = numbers.iter().copied().map(Identity).collect();
        Ranges(&numbers).to_string()
    };
    let named = [("workers", workers), ("shards", shards)];
    let words: Vec<String> = named
        .into_iter()
        .filter(|(_, numbers)| !numbers.is_empty())
        .map(|(what, numbers)| format!("{what} {}", ranges(numbers)))
        .collect();
    if words.is_empty() {
        return "nothing".to_owned();
    }
    words.join(" and ")
}

/// Those that are drained now, of everybody.
pub(super) async fn drained(config: &Config) -> Result<Vec<Drained>> {
    let drains = match open(config) {
        AnyStore::Postgres(mut store) => store.drains().await,
        AnyStore::Etcd(mut store) => store.drains().await,
    };
    let drains = drains.map_err(of_store)?;
    Ok(drains
        .iter()
        .filter(|drain| drain.drained)
        .map(Drained::of)
        .collect())
}

/// Has a server give everything back, and take nothing. `say`: how it goes on.
pub async fn drain(
    config: &Config,
    wish: &Wish,
    consent: Consent,
    say: impl FnMut(&str),
) -> Result<Change<Done>> {
    match (open(config), shards_of(&config.store, LOOK_AGAIN)) {
        (AnyStore::Postgres(mut store), AnyShards::Postgres(mut feed)) => {
            drain_in(&mut *store, &mut *feed, (config, wish, consent), say).await
        }
        (AnyStore::Etcd(mut store), AnyShards::Etcd(mut feed)) => {
            drain_in(&mut *store, &mut *feed, (config, wish, consent), say).await
        }
        _ => Err(Error::runtime("two stores of one configuration")),
    }
}

async fn drain_in(
    store: &mut (impl OrderStore + DrainStore + AssignmentStore),
    feed: &mut impl ShardFeed,
    (config, wish, consent): (&Config, &Wish, Consent),
    say: impl FnMut(&str),
) -> Result<Change<Done>> {
    let began = Instant::now();
    let known = Known::read(store, feed, &wish.server).await?;
    let moves = known.plan_moves(wish)?;
    let mut done = Done {
        server: known.drain.as_ref().map(Drained::of),
        already: known.is_drained(),
        moved: None,
        workers: numbers(&known.survey, Class::Worker, &wish.server),
        shards: numbers(&known.survey, Class::Shard, &wish.server),
        took_ms: 0,
        renews_within_s: renews_within_s(config)?,
    };
    let sentence = sentence(wish, &done);
    if !consent.may(&sentence)? {
        return Ok(Change::tried(done, sentence));
    }
    if moves {
        // Its shards go first, while it mints: their callers wait for some milliseconds only.
        let order = shards::Wish::Drain {
            from: wish.server.clone(),
            to: wish.to.clone(),
        };
        let how = shards::How {
            reason: wish.reason.clone(),
            wait: wish.wait,
            dry_run: false,
        };
        let moved = shards::order_in(store, feed, config, (&order, &how), say)
            .await?
            .shown;
        let is_moved = moved.open.is_empty();
        done.moved = Some(moved);
        if !is_moved {
            done.took_ms = ms(began);
            return Ok(Change::made(done));
        }
    }
    let (drain, already) = say_of(store, config, &wish.server, (true, &wish.reason)).await?;
    (done.server, done.already) = (Some(Drained::of(&drain)), already);
    (done.workers, done.shards) = give_back(store, &drain, began + wish.wait).await?;
    done.took_ms = ms(began);
    Ok(Change::made(done))
}

fn sentence(wish: &Wish, done: &Done) -> String {
    let server = printable(&wish.server);
    let moves = if wish.to.is_empty() {
        String::new()
    } else {
        let to: Vec<String> = wish.to.iter().map(|server| printable(server)).collect();
        format!("The shards of {server} would move to {} first. ", to.join(", "))
    };
    let has = in_words(&done.workers, &done.shards);
    format!(
        "{moves}The server {server} would give back all that it has leased ({has} now), with the exact high waters, and take no lease \
         until idgenctl server resume {server}. Whoever asks it for a snowflake meanwhile gets an error (IG050)."
    )
}

fn ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn renews_within_s(config: &Config) -> Result<u64> {
    let mut longest = 0;
    for class in Class::ALL {
        longest = longest.max(timing(config, class)?.longest_period_ms().div_ceil(1_000));
    }
    Ok(longest)
}

/// What there is before anything is done.
struct Known {
    survey: Survey,
    assigned: Assigned,
    drains: Vec<Drain>,
    /// What was said of this server.
    drain: Option<Drain>,
}

impl Known {
    /// Refuses a name that nobody knows: it was mistyped.
    async fn read(
        store: &mut (impl OrderStore + DrainStore),
        feed: &mut impl ShardFeed,
        server: &str,
    ) -> Result<Self> {
        let survey = super::revoke::surveyed(store).await?;
        let drains = store.drains().await.map_err(of_store)?;
        let assigned = feed.look().await.map_err(of_store)?.assigned;
        let rows = survey.workers.iter().chain(&survey.shards);
        let holders = rows.filter_map(|row| Some(row.holder.as_ref()?.name.as_str()));
        let shown = assigned.servers.values().map(|presence| presence.server.as_str());
        let said = drains.iter().map(|drain| drain.server.as_str());
        let names: BTreeSet<&str> = holders.chain(shown).chain(said).collect();
        if !names.contains(server) {
            let names: Vec<String> = names.into_iter().map(printable).collect();
            let error = Error::refused(format!(
                "no server {} has a lease of this cell",
                printable(server)
            ));
            return Err(error.with_hint(match names.as_slice() {
                [] => {
                    "none has; a server is called as the configuration of its idgend says (name)".to_owned()
                }
                names => format!("there are: {}", names.join(", ")),
            }));
        }
        let drain = drains.iter().find(|drain| drain.server == server).cloned();
        Ok(Self {
            survey,
            assigned,
            drains,
            drain,
        })
    }

    fn is_drained(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.drained)
    }

    /// Are shards to be moved? Refuses what the order would refuse.
    fn plan_moves(&self, wish: &Wish) -> Result<bool> {
        if wish.to.is_empty() {
            return Ok(false);
        }
        match self.assigned.plan_drain(&wish.server, &wish.to) {
            Ok(orders) => shards::refuse_drained(&self.drains, &orders).map(|()| true),
            Err(MoveRefused::NothingThere { .. }) => Ok(false),
            Err(refused) => Err(Error::refused(refused.to_string())),
        }
    }
}

fn numbers(survey: &Survey, class: Class, server: &str) -> Vec<u16> {
    let held = |row: &&idgen_core::lease::ledger::Row| {
        row.holder
            .as_ref()
            .is_some_and(|holder| holder.name == server && !holder.expired)
    };
    rows(survey, class)
        .iter()
        .filter(held)
        .map(|row| row.identity.0)
        .collect()
}

fn rows(survey: &Survey, class: Class) -> &[idgen_core::lease::ledger::Row] {
    match class {
        Class::Worker => &survey.workers,
        Class::Shard => &survey.shards,
    }
}

/// Writes it down unless it is so. The record, and whether it was so.
async fn say_of(
    store: &mut (impl OrderStore + DrainStore),
    config: &Config,
    server: &str,
    (drained, reason): (bool, &str),
) -> Result<(Drain, bool)> {
    let mut tries = 1;
    loop {
        super::revoke::surveyed(store).await?;
        let drains = store.drains().await.map_err(of_store)?;
        let before = drains.into_iter().find(|drain| drain.server == server);
        let version = before.as_ref().map_or(0, |drain| drain.version);
        if let Some(before) = before.filter(|before| before.drained == drained) {
            return Ok((before, true));
        }
        let drain = Drain {
            server: server.to_owned(),
            drained,
            at: store.clock().await.map_err(of_store)?,
            by: operator(config),
            reason: reason.to_owned(),
            version: version + 1,
        };
        match store.set_drain(&drain).await {
            Ok(()) => return Ok((drain, false)),
            Err(error) if error.kind == StoreErrorKind::Conflict && tries < TRIES => tries += 1,
            Err(error) => return Err(of_store(error)),
        }
    }
}

/// Ends every lease of the server, those that are granted meanwhile too: what is left when the time is over.
async fn give_back(
    store: &mut (impl OrderStore + DrainStore),
    drain: &Drain,
    deadline: Instant,
) -> Result<(Vec<u16>, Vec<u16>)> {
    let mut ordered: BTreeSet<(&'static str, Token)> = BTreeSet::new();
    loop {
        let survey = super::revoke::surveyed(store).await?;
        // Whoever orders has read the orders.
        store.orders().await.map_err(of_store)?;
        for class in Class::ALL {
            for (token, identity) in to_end(rows(&survey, class), &drain.server) {
                if ordered.contains(&(class.name(), token)) {
                    continue;
                }
                let order = Order {
                    class,
                    identity,
                    token,
                    at: store.clock().await.map_err(of_store)?,
                    by: drain.by.clone(),
                    reason: format!("its server is drained{}", because(&drain.reason)),
                    request: None,
                };
                match store.order(&order).await {
                    Ok(()) => drop(ordered.insert((class.name(), token))),
                    // It has another holder, or none, by now: the next look tells.
                    Err(error) if error.kind == StoreErrorKind::Conflict => {}
                    Err(error) => return Err(of_store(error)),
                }
            }
        }
        let left = [Class::Worker, Class::Shard].map(|class| numbers(&survey, class, &drain.server));
        let [workers, shards] = left;
        let now = Instant::now();
        if (workers.is_empty() && shards.is_empty()) || now >= deadline {
            return Ok((workers, shards));
        }
        tokio::time::sleep(LOOK_AGAIN.min(deadline - now)).await;
    }
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

/// Lets a server take leases again.
pub async fn resume(config: &Config, server: &str, reason: &str, dry_run: bool) -> Result<Change<Done>> {
    match (open(config), shards_of(&config.store, LOOK_AGAIN)) {
        (AnyStore::Postgres(mut store), AnyShards::Postgres(mut feed)) => {
            resume_in(&mut *store, &mut *feed, (config, server, reason), dry_run).await
        }
        (AnyStore::Etcd(mut store), AnyShards::Etcd(mut feed)) => {
            resume_in(&mut *store, &mut *feed, (config, server, reason), dry_run).await
        }
        _ => Err(Error::runtime("two stores of one configuration")),
    }
}

async fn resume_in(
    store: &mut (impl OrderStore + DrainStore),
    feed: &mut impl ShardFeed,
    (config, server, reason): (&Config, &str, &str),
    dry_run: bool,
) -> Result<Change<Done>> {
    let began = Instant::now();
    let known = Known::read(store, feed, server).await?;
    let mut done = Done {
        server: known.drain.as_ref().map(Drained::of),
        already: !known.is_drained(),
        moved: None,
        workers: Vec::new(),
        shards: Vec::new(),
        took_ms: 0,
        renews_within_s: renews_within_s(config)?,
    };
    if known.is_drained() && !dry_run {
        let (drain, already) = say_of(store, config, server, (false, reason)).await?;
        (done.server, done.already) = (Some(Drained::of(&drain)), already);
    }
    done.took_ms = ms(began);
    let name = printable(server);
    match (dry_run, known.is_drained()) {
        (true, true) => Ok(Change::tried(
            done,
            format!("The server {name} would take leases again."),
        )),
        (true, false) => Ok(Change::tried(done, format!("The server {name} is not drained."))),
        (false, _) => Ok(Change::made(done)),
    }
}
