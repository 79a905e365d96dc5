//! Which server is to have which shard, and which one has it.
//!
//! A record in the lease store says who is to have a shard; where there is none, the configuration of the servers does.
//! Every server shows which shards it has, with their tokens ([`Presence`]). Neither decides who may mint: that is the
//! lease, which one server at a time has. So a record that is old, or that two servers read differently, costs
//! waiting and no id.

use super::token::BootId;
use super::token::{Identity, InstanceId, Token};
use crate::clock::UnixMs;
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

/// Who is to have a shard, by somebody's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the server: `name` of its configuration.
    pub server: String,
    /// When it was ordered, by the store's clock or that of whoever ordered it.
    pub at: UnixMs,
    /// Who ordered it, for people.
    pub by: String,
    /// Why, for people; may be empty.
    pub reason: String,
    /// Counts the orders for this shard, from 1.
    pub version: u64,
}

/// What a server shows of itself while its daemon runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// This run of its daemon.
    pub instance: InstanceId,
    /// `name` of its configuration, which records name it by.
    pub server: String,
    /// Its shared memory: two servers never have the same.
    pub boot_id: Option<BootId>,
    /// Where clients find it; empty: the configuration does not say.
    pub address: String,
    /// How many shards it can have.
    pub room: usize,
    /// How long a shard stays taken after the server has vanished: TTL and window of its leases, in ms.
    pub lasts_ms: u64,
    /// What it mints from.
    pub holds: BTreeMap<Identity, Holding>,
    /// When it was shown, by its own clock.
    pub at: UnixMs,
}

/// One shard that a server mints from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Of its lease.
    pub token: Token,
    /// Since when, by the clock of the server's host.
    pub since: UnixMs,
}

/// All of it, as it was read at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Who is to have which shard.
    pub records: BTreeMap<Identity, Assignment>,
    /// Who is there.
    pub servers: BTreeMap<InstanceId, Presence>,
}

/// Who asks which shards are its own.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Its name.
    pub server: &'a str,
    /// This run of its daemon.
    pub instance: InstanceId,
    /// Its shared memory; `None`: not known yet.
    pub boot_id: Option<BootId>,
    /// The list of its configuration.
    pub configured: &'a [Identity],
    /// What it has now.
    pub holds: &'a BTreeSet<Identity>,
    /// So many fit into a lease of its store.
    pub room: usize,
}

/// Which shards a server is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// In rising order.
    pub shards: Vec<Identity>,
    /// It has no room for these.
    pub left_out: Vec<Identity>,
    /// Another server has the same name, so of what records say only what is there already stays.
    pub has_namesake: bool,
}

impl Assigned {
    /// A record wins over the configuration, whatever it says; without one the configuration holds. With another server
    /// of the same name around nobody can tell whom a record means: each keeps what it has, and takes no more by
    /// records. What does not fit is left out, what is held last.
    #[must_use]
    pub fn share_of(&self, asker: &Asker<'_>) -> Share {
        let has_namesake = self.servers.values().any(|other| is_namesake(other, asker));
        let configured = asker
            .configured
            .iter()
            .filter(|shard| !self.records.contains_key(shard));
        let recorded = self.records.iter().filter(|(shard, record)| {
            record.server == asker.server && (!has_namesake || asker.holds.contains(shard))
        });
        let all: BTreeSet<Identity> = configured
            .chain(recorded.map(|(shard, _)| shard))
            .copied()
            .collect();
        let (held, others): (Vec<Identity>, Vec<Identity>) =
            all.into_iter().partition(|shard| asker.holds.contains(shard));
        let mut shards = [held, others].concat();
        let left_out = shards.split_off(shards.len().min(asker.room));
        shards.sort_unstable();
        Share {
            shards,
            left_out,
            has_namesake,
        }
    }

    /// Servers of this name: none, one, or more than anybody can mean.
    pub fn named<'a>(&'a self, server: &'a str) -> impl Iterator<Item = &'a Presence> {
        let mut seen = BTreeSet::new();
        // A daemon that was started again is still the same server.
        let mut newest: Vec<&Presence> = self
            .servers
            .values()
            .filter(|other| other.server == server)
            .collect();
        newest.sort_unstable_by_key(|presence| core::cmp::Reverse(presence.at));
        newest.retain(|presence| presence.boot_id.is_none_or(|boot_id| seen.insert(boot_id)));
        newest.into_iter()
    }

    /// Who has a shard: of several that say so, the one with the newest token.
    #[must_use]
    pub fn holder(&self, shard: Identity) -> Option<(&Presence, Holding)> {
        let holds = |presence: &Presence| presence.holds.get(&shard).copied();
        let holders = self
            .servers
            .values()
            .filter_map(|presence| Some((presence, holds(presence)?)));
        holders.max_by_key(|(_, holding)| holding.token)
    }

    /// Where each shard is, that anybody has or is to have.
    #[must_use]
    pub fn map(&self) -> Vec<Place> {
        let mut holders: BTreeMap<Identity, (&Presence, Holding)> = BTreeMap::new();
        for presence in self.servers.values() {
            for (shard, holding) in &presence.holds {
                let newest = holders.entry(*shard).or_insert((presence, *holding));
                if holding.token > newest.1.token {
                    *newest = (presence, *holding);
                }
            }
        }
        let shards: BTreeSet<Identity> = holders.keys().chain(self.records.keys()).copied().collect();
        shards
            .into_iter()
            .map(|shard| self.place(shard, holders.get(&shard).copied()))
            .collect()
    }

    fn place(&self, shard: Identity, holder: Option<(&Presence, Holding)>) -> Place {
        let record = self.records.get(&shard);
        let goes_to = record.map(|record| record.server.as_str());
        let has = holder.map(|(presence, _)| presence.server.as_str());
        let server = has.or(goes_to).unwrap_or_default();
        let address = match holder {
            Some((presence, _)) => presence.address.clone(),
            None => {
                let expected = goes_to.and_then(|name| self.named(name).next());
                expected
                    .map(|presence| presence.address.clone())
                    .unwrap_or_default()
            }
        };
        let state = match (has, goes_to) {
            (Some(has), Some(goes_to)) if has != goes_to => PlaceState::Moving,
            (Some(_), _) => PlaceState::Serving,
            (None, _) => PlaceState::Nobody,
        };
        Place {
            shard,
            server: server.to_owned(),
            goes_to: goes_to.unwrap_or(server).to_owned(),
            address,
            state,
            holding: holder.map(|(_, holding)| holding),
            version: record.map_or(0, |record| record.version),
        }
    }
}

fn is_namesake(other: &Presence, asker: &Asker<'_>) -> bool {
    let same_server = match (other.boot_id, asker.boot_id) {
        (Some(theirs), Some(ours)) => theirs == ours,
        // It has not seen its server yet; then it has nothing either.
        _ => true,
    };
    other.server == asker.server && other.instance != asker.instance && !same_server
}

/// Where a shard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which.
    pub shard: Identity,
    /// The server that has it; while nobody has it, the one that is to have it.
    pub server: String,
    /// The one that is to have it, by record or because it has it.
    pub goes_to: String,
    /// Where clients find that server; empty: its configuration does not say.
    pub address: String,
    /// How it stands.
    pub state: PlaceState,
    /// The lease; `None`: nobody has it.
    pub holding: Option<Holding>,
    /// Of its record; 0: there is none.
    pub version: u64,
}

/// How a shard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceState {
    /// The server that is to have it mints from it.
    Serving,
    /// Another server has it still.
    Moving,
    /// Nobody has it.
    Nobody,
}

impl PlaceState {
    /// As views show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Moving => "moving",
            Self::Nobody => "nobody",
        }
    }
}

/// Why an order cannot be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveRefused {
    /// No server of this name is there.
    Unknown {
        /// The name.
        server: String,
        /// Those that are.
        known: Vec<String>,
    },
    /// More than one is.
    Ambiguous {
        /// The name.
        server: String,
    },
    /// It would have more than fit into its lease.
    NoRoom {
        /// The name.
        server: String,
        /// So many it would have.
        would_have: usize,
        /// So many it can.
        room: usize,
    },
    /// The server to be drained has none.
    NothingThere {
        /// The name.
        server: String,
    },
    /// The server to be drained is one of those that take.
    OntoItself {
        /// The name.
        server: String,
    },
}

impl fmt::Display for MoveRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { server, known } if known.is_empty() => {
                write!(
                    f,
                    "no server {server} is there; none shows itself (hint: only a running idgend with a key \
                           shards.ids does)"
                )
            }
            Self::Unknown { server, known } => {
                write!(
                    f,
                    "no server {server} is there, but {} (hint: only a running idgend with a key shards.ids shows \
                           itself)",
                    known.join(", ")
                )
            }
            Self::Ambiguous { server } => {
                write!(
                    f,
                    "more than one server is called {server} (hint: give each a name of its own in its \
                           configuration)"
                )
            }
            Self::NoRoom {
                server,
                would_have,
                room,
            } => write!(
                f,
                "server {server} would have {would_have} shards and can have {room} (hint: see store.max_txn_ops)"
            ),
            Self::NothingThere { server } => write!(f, "server {server} has no shard and is to have none"),
            Self::OntoItself { server } => write!(f, "server {server} cannot be drained onto itself"),
        }
    }
}

impl core::error::Error for MoveRefused {}

/// Who is to have what.
pub type Orders = BTreeMap<Identity, String>;

impl Assigned {
    /// Orders that give these shards to one server.
    pub fn plan_move(&self, shards: &BTreeSet<Identity>, to: &str) -> Result<Orders, MoveRefused> {
        let orders = shards.iter().map(|shard| (*shard, to.to_owned())).collect();
        self.check(&orders)?;
        Ok(orders)
    }

    /// Orders that spread all shards of a server over others, each time to the one that has the fewest.
    pub fn plan_drain(&self, from: &str, to: &[String]) -> Result<Orders, MoveRefused> {
        if to.iter().any(|to| to == from) {
            return Err(MoveRefused::OntoItself {
                server: from.to_owned(),
            });
        }
        let places = self.map();
        let of = |server: &str| places.iter().filter(move |place| place.goes_to == server).count();
        let mut loads: Vec<(usize, &String)> = to.iter().map(|to| (of(to), to)).collect();
        let mut orders = Orders::new();
        for place in places.iter().filter(|place| place.goes_to == from) {
            if let Some(least) = loads.iter_mut().min() {
                orders.insert(place.shard, least.1.clone());
                least.0 += 1;
            }
        }
        if orders.is_empty() {
            return Err(MoveRefused::NothingThere {
                server: from.to_owned(),
            });
        }
        self.check(&orders)?;
        Ok(orders)
    }

    fn check(&self, orders: &Orders) -> Result<(), MoveRefused> {
        let targets: BTreeSet<&String> = orders.values().collect();
        for server in targets {
            let mut named = self.named(server);
            let Some(target) = named.next() else {
                let known: BTreeSet<&String> = self.servers.values().map(|known| &known.server).collect();
                return Err(MoveRefused::Unknown {
                    server: server.clone(),
                    known: known.into_iter().cloned().collect(),
                });
            };
            if named.next().is_some() {
                return Err(MoveRefused::Ambiguous {
                    server: server.clone(),
                });
            }
            let stays = self
                .map()
                .into_iter()
                .filter(|place| orders.get(&place.shard).is_none() && place.goes_to == *server);
            let comes = orders.values().filter(|to| *to == server).count();
            let would_have = stays.count() + comes;
            if would_have > target.room {
                return Err(MoveRefused::NoRoom {
                    server: server.clone(),
                    would_have,
                    room: target.room,
                });
            }
        }
        Ok(())
    }

    /// The records that make these orders so, beside the versions that they were planned on (0: there was none).
    /// Orders that are given already are left out.
    #[must_use]
    pub fn records_for(
        &self,
        orders: &Orders,
        at: UnixMs,
        by: &str,
        reason: &str,
    ) -> Vec<(Identity, u64, Assignment)> {
        let new = orders.iter().filter_map(|(shard, server)| {
            let old = self.records.get(shard);
            if old.is_some_and(|old| old.server == *server) {
                return None;
            }
            let seen = old.map_or(0, |old| old.version);
            let record = Assignment {
                server: server.clone(),
                at,
                by: by.to_owned(),
                reason: reason.to_owned(),
                version: seen + 1,
            };
            Some((*shard, seen, record))
        });
        new.collect()
    }

    /// Which of the orders are not carried out yet.
    #[must_use]
    pub fn open_orders(&self, orders: &Orders) -> Vec<Identity> {
        let is_open = |(shard, server): &(&Identity, &String)| {
            self.holder(**shard)
                .is_none_or(|(presence, _)| presence.server != **server)
        };
        orders.iter().filter(is_open).map(|(shard, _)| *shard).collect()
    }
}

#[cfg(test)]
mod tests;
