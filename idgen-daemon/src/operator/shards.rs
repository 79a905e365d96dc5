//! `idgenctl shards`: who is to have which shard, and where each is. The rules are in `idgen_core::lease::assigned`.

use super::consent::Change;
use super::store::{of_store, open, operator, printable, rfc3339};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::ranges::{self, Ranges};
use crate::lease::{
    AnyShards, AnyStore, AssignmentStore, DrainStore, RECORDS_AT_ONCE, ShardFeed, ShardLook, StoreErrorKind,
    place_json, shards_of,
};
use crate::plain_table::plain_table;
use idgen_core::clock::UnixMs;
use idgen_core::lease::assigned::{Assigned, Orders};
use idgen_core::lease::{Class, Drain, Identity, InstanceId, Place};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A server that runs shows itself far more often.
const QUIET: Duration = Duration::from_secs(6);

/// How often it is looked whether a move is done, where nothing is heard.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// A line of progress is said this often at the most.
const SAY_PERIOD: Duration = Duration::from_secs(2);

/// Records that somebody else has changed meanwhile are planned on again so often.
const TRIES: u32 = 3;

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Wish {
    /// These shards go to this server.
    Move {
        /// Which.
        shards: BTreeSet<Identity>,
        /// To whom.
        to: String,
    },
    /// All shards of a server go to others.
    Drain {
        /// Whose.
        from: String,
        /// To whom, evenly.
        to: Vec<String>,
    },
}

/// How it is done.
#[derive(Clone, Debug)]
pub struct How {
    /// For the record; may be empty.
    pub reason: String,
    /// How long to wait until it is done.
    pub wait: Duration,
    /// Nothing is written.
    pub dry_run: bool,
}

/// Where each shard is.
#[derive(Clone, Debug, Serialize)]
pub struct ShardMapShown {
    /// Revision of the store.
    pub store_revision: u64,
    /// In their order.
    pub shards: Vec<Value>,
    #[serde(skip)]
    places: Vec<Place>,
}

/// What has become of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Orders that were given, by server.
    pub ordered: BTreeMap<String, Vec<u16>>,
    /// Shards that are not there yet; the daemons go on.
    pub open: Vec<u16>,
    /// How long it took, in ms.
    pub took_ms: u64,
}

/// A set of shards as the command line writes it: `5`, `5,7`, `10-19,40`.
pub fn parse_set(text: &str) -> std::result::Result<BTreeSet<Identity>, String> {
    let mut shards = BTreeSet::new();
    for item in text.split(',') {
        shards.extend(ranges::parse(item.trim(), Class::Shard.size())?.map(Identity));
    }
    Ok(shards)
}

/// Where each shard is, as the store says it.
pub async fn map(config: &Config) -> Result<ShardMapShown> {
    let look = match shards_of(&config.store, LOOK_PERIOD) {
        AnyShards::Postgres(mut feed) => feed.look().await,
        AnyShards::Etcd(mut feed) => feed.look().await,
    };
    let look = look.map_err(of_store)?;
    let places = look.assigned.map();
    Ok(ShardMapShown {
        store_revision: look.revision.0,
        shards: places.iter().map(place_json).collect(),
        places,
    })
}

/// Orders it, and waits until it is done or the time is over. `say`: how it goes on.
pub async fn order(config: &Config, wish: &Wish, how: &How, say: impl FnMut(&str)) -> Result<Change<Moved>> {
    match (open(config), shards_of(&config.store, LOOK_PERIOD)) {
        (AnyStore::Postgres(mut store), AnyShards::Postgres(mut feed)) => {
            order_in(&mut *store, &mut *feed, config, (wish, how), say).await
        }
        (AnyStore::Etcd(mut store), AnyShards::Etcd(mut feed)) => {
            order_in(&mut *store, &mut *feed, config, (wish, how), say).await
        }
        _ => Err(Error::runtime("two stores of one configuration")),
    }
}

pub(super) async fn order_in(
    store: &mut (impl AssignmentStore + DrainStore),
    feed: &mut impl ShardFeed,
    config: &Config,
    (wish, how): (&Wish, &How),
    say: impl FnMut(&str),
) -> Result<Change<Moved>> {
    let began = Instant::now();
    let deadline = began + how.wait;
    let orders = loop {
        match give(store, feed, config, (wish, how)).await {
            Ok(Given::Ordered(orders)) => break orders,
            Ok(Given::Tried(orders)) => {
                let sentence = format!("It would order: {}.", in_words(&orders));
                return Ok(Change::tried(moved(&orders, &[], began), sentence));
            }
            // Orders that are given already are not given again.
            Err(error) if error.kind() == ErrorKind::Retry && Instant::now() < deadline => {
                feed.start_over();
                tokio::time::sleep(LOOK_PERIOD).await;
            }
            Err(error) => return Err(error),
        }
    };
    let mut waiting = Waiting::new(&orders, say);
    let open = waiting.until(feed, deadline).await?;
    Ok(Change::made(moved(&orders, &open, began)))
}

/// What was done.
enum Given {
    Ordered(Orders),
    /// Nothing was written.
    Tried(Orders),
}

async fn give(
    store: &mut (impl AssignmentStore + DrainStore),
    feed: &mut impl ShardFeed,
    config: &Config,
    (wish, how): (&Wish, &How),
) -> Result<Given> {
    let mut tries = 1;
    loop {
        // Refuses a store that is sealed or new.
        let records = store.assignments().await.map_err(of_store)?;
        let servers = feed.look().await.map_err(of_store)?.assigned.servers;
        let assigned = Assigned { records, servers };
        let orders = plan(&assigned, wish)?;
        refuse_drained(&store.drains().await.map_err(of_store)?, &orders)?;
        if how.dry_run {
            return Ok(Given::Tried(orders));
        }
        let at = store.clock().await.map_err(of_store)?;
        let records = assigned.records_for(&orders, at, &operator(config), &how.reason);
        let mut written = Ok(());
        for chunk in records.chunks(RECORDS_AT_ONCE) {
            written = store.assign(chunk).await;
            if written.is_err() {
                break;
            }
        }
        match written {
            Ok(()) => return Ok(Given::Ordered(orders)),
            Err(error) if error.kind == StoreErrorKind::Conflict && tries < TRIES => tries += 1,
            Err(error) => return Err(of_store(error)),
        }
    }
}

/// Nobody would have them.
pub(super) fn refuse_drained(drains: &[Drain], orders: &Orders) -> Result<()> {
    let drained = drains.iter().find(|drain| {
        let takes = |(_, server): (&Identity, &String)| *server == drain.server;
        drain.drained && orders.iter().any(takes)
    });
    match drained {
        None => Ok(()),
        Some(drain) => {
            let server = printable(&drain.server);
            let hint = format!("idgenctl server resume {server}");
            Err(Error::refused(format!("server {server} is drained: it takes nothing")).with_hint(hint))
        }
    }
}

fn plan(assigned: &Assigned, wish: &Wish) -> Result<Orders> {
    let planned = match wish {
        Wish::Move { shards, to } => assigned.plan_move(shards, to),
        Wish::Drain { from, to } => assigned.plan_drain(from, to),
    };
    planned.map_err(|refused| Error::refused(refused.to_string()))
}

fn by_server(orders: &Orders) -> BTreeMap<&String, Vec<Identity>> {
    let mut by_server: BTreeMap<&String, Vec<Identity>> = BTreeMap::new();
    for (shard, server) in orders {
        by_server.entry(server).or_default().push(*shard);
    }
    by_server
}

fn in_words(orders: &Orders) -> String {
    let words = by_server(orders).into_iter();
    let words: Vec<String> = words
        .map(|(server, shards)| format!("{} to {}", Ranges(&shards), printable(server)))
        .collect();
    words.join("; ")
}

fn moved(orders: &Orders, open: &[Identity], began: Instant) -> Moved {
    let numbers = |shards: &[Identity]| shards.iter().map(|shard| shard.0).collect();
    Moved {
        ordered: by_server(orders)
            .into_iter()
            .map(|(server, shards)| (server.clone(), numbers(&shards)))
            .collect(),
        open: numbers(open),
        took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

/// Waits for orders to be carried out.
struct Waiting<'a, F> {
    orders: &'a Orders,
    say: F,
    said: Option<(String, Instant)>,
    /// When each server has shown itself last: what it said, and when by our clock.
    signs: BTreeMap<InstanceId, (UnixMs, Instant)>,
}

impl<'a, F: FnMut(&str)> Waiting<'a, F> {
    fn new(orders: &'a Orders, say: F) -> Self {
        Self {
            orders,
            say,
            said: None,
            signs: BTreeMap::new(),
        }
    }

    /// What is not done by then.
    async fn until(&mut self, feed: &mut impl ShardFeed, deadline: Instant) -> Result<Vec<Identity>> {
        let mut trouble = None;
        loop {
            match feed.look().await {
                Ok(look) => {
                    trouble = None;
                    let open = look.assigned.open_orders(self.orders);
                    if open.is_empty() || Instant::now() >= deadline {
                        return Ok(open);
                    }
                    self.report(&look, &open);
                }
                Err(error) => {
                    feed.start_over();
                    if Instant::now() >= deadline {
                        return Ok(self.orders.keys().copied().collect());
                    }
                    if trouble.replace(error.to_string()) != Some(error.to_string()) {
                        (self.say)(&format!("the orders are given, but the store is away: {error}"));
                    }
                    tokio::time::sleep(LOOK_PERIOD).await;
                    continue;
                }
            }
            let left = deadline
                .saturating_duration_since(Instant::now())
                .min(LOOK_PERIOD);
            if let Ok(Err(_)) = tokio::time::timeout(left, feed.heard()).await {
                feed.start_over();
            }
        }
    }

    fn report(&mut self, look: &ShardLook, open: &[Identity]) {
        let now = Instant::now();
        for (instance, presence) in &look.assigned.servers {
            let sign = self.signs.entry(*instance).or_insert((presence.at, now));
            if sign.0 != presence.at {
                *sign = (presence.at, now);
            }
        }
        let text = self.progress(&look.assigned, open, now);
        let is_due = self
            .said
            .as_ref()
            .is_none_or(|(said, at)| *said != text && now - *at >= SAY_PERIOD);
        if is_due {
            (self.say)(&text);
            self.said = Some((text, now));
        }
    }

    fn progress(&self, assigned: &Assigned, open: &[Identity], now: Instant) -> String {
        let (all, left) = (self.orders.len(), open.len());
        let mut text = format!("{} of {all} shards are there", all - left);
        let quiet = open.iter().filter_map(|shard| {
            let (holder, _) = assigned.holder(*shard)?;
            let (_, at) = self.signs.get(&holder.instance)?;
            (now - *at >= QUIET).then_some(holder)
        });
        let nobodys = open
            .iter()
            .filter(|shard| assigned.holder(**shard).is_none())
            .count();
        if let Some(dead) = quiet.into_iter().next() {
            text.push_str(&format!(
                "; {} has shown no sign of life for {} s: what it has comes free when its lease and its window have \
                 ended, within {} s of its last",
                printable(&dead.server),
                QUIET.as_secs(),
                dead.lasts_ms.div_ceil(1_000)
            ));
        } else if nobodys > 0 {
            text.push_str(&format!(
                "; {nobodys} nobody shows: one that was lost is free when its window has ended"
            ));
        }
        text
    }
}

impl ShardMapShown {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        if self.places.is_empty() {
            return "no server has a shard, and none is to have one".to_owned();
        }
        let mut table = plain_table();
        table.set_header([
            "shards", "server", "address", "state", "goes to", "token", "since", "version",
        ]);
        let neighbours = |one: &Place, next: &Place| {
            let alike = (&one.server, &one.goes_to, one.state, one.holding, one.version)
                == (
                    &next.server,
                    &next.goes_to,
                    next.state,
                    next.holding,
                    next.version,
                );
            alike && next.shard.0 == one.shard.0 + 1
        };
        for run in self.places.chunk_by(neighbours) {
            let shards: Vec<Identity> = run.iter().map(|place| place.shard).collect();
            let place = &run[0];
            let dash = || "-".to_owned();
            table.add_row([
                Ranges(&shards).to_string(),
                printable(&place.server),
                Some(printable(&place.address))
                    .filter(|text| !text.is_empty())
                    .unwrap_or_else(dash),
                place.state.name().to_owned(),
                printable(&place.goes_to),
                place
                    .holding
                    .map_or_else(dash, |holding| holding.token.to_string()),
                place.holding.map_or_else(dash, |holding| rfc3339(holding.since)),
                place.version.to_string(),
            ]);
        }
        table.to_string()
    }
}

impl Moved {
    /// For people.
    #[must_use]
    pub fn sentence(&self) -> String {
        let count: usize = self.ordered.values().map(Vec::len).sum();
        let ranges = |shards: &[u16]| {
            let shards: Vec<Identity> = shards.iter().copied().map(Identity).collect();
            Ranges(&shards).to_string()
        };
        let to: Vec<String> = self
            .ordered
            .iter()
            .map(|(server, shards)| format!("{} to {}", ranges(shards), printable(server)))
            .collect();
        let to = to.join("; ");
        if self.open.is_empty() {
            return format!("moved in {} ms: {to}", self.took_ms);
        }
        format!(
            "ordered: {to}. {} of {count} shards are not there after {} ms: {}. The daemons go on (hint: idgenctl shards \
             map)",
            self.open.len(),
            self.took_ms,
            ranges(&self.open)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_they_are_written() {
        let read =
            |text: &str| parse_set(text).map(|set| set.iter().map(|shard| shard.0).collect::<Vec<_>>());
        assert_eq!(read("5"), Ok(vec![5]));
        assert_eq!(read("10-12, 40,5,11"), Ok(vec![5, 10, 11, 12, 40]));
        for nonsense in ["", "5,", "8192", "9-7", "x"] {
            assert!(read(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn what_was_moved_and_what_is_left_is_said() {
        let orders: Orders = [(1, "b"), (2, "b"), (7, "c")]
            .map(|(shard, server)| (Identity(shard), server.to_owned()))
            .into();
        let mut moved = moved(&orders, &[], Instant::now());
        moved.took_ms = 70;
        assert_eq!(moved.sentence(), "moved in 70 ms: 1-2 to b; 7 to c");
        moved.open = vec![7];
        let text = moved.sentence();
        assert!(
            text.contains("1 of 3 shards are not there after 70 ms: 7."),
            "{text}"
        );
    }
}
