//! Which faults, in which order: from the seed alone, so that a seed can be run again.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub const SERVERS: usize = 3;
pub const MEMBERS: usize = 3;
/// Only this server has a clock that can be set: reading it takes five hundred times as long.
pub const CLOCK_SERVER: usize = SERVERS - 1;
/// Short, so that leases expire and change hands all the time.
pub const TTL_MS: u64 = 6_000;
pub const PERIOD_MS: u64 = TTL_MS / 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    Etcd,
    /// Tables in the first of the servers.
    Postgres,
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreKind::Etcd => "etcd",
            StoreKind::Postgres => "postgres",
        })
    }
}

/// What a server, its daemon, the store or the net between them can suffer. Numbers are servers or members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9, and started again when the fault ends.
    DaemonKilled(usize),
    DaemonPaused(usize),
    /// SIGTERM: the lease is given back.
    DaemonRestarted(usize),
    /// kill -9 of a backend that mints: shared memory is made anew.
    BackendKilled(usize),
    BackendPaused(usize),
    /// Immediate shutdown.
    ServerStopped(usize),
    /// kill -9 of the postmaster alone: its backends run on as orphans.
    PostmasterKilled(usize),
    /// kill -9 of every process of it.
    PowerCut(usize),
    ServerRestarted(usize),
    /// By so many ms, and back.
    ClockSet(i64),
    MemberKilled(usize),
    MemberPaused(usize),
    LeaderKilled,
    LeaderPaused,
    LeaderMoved,
    /// Every fdatasync of the leader takes longer than an election.
    LeaderSyncStalls,
    AllMembersKilled,
    /// A server's daemon reaches no member.
    DaemonCutOff(usize),
    /// Requests arrive, answers do not.
    AnswersLost(usize),
    /// One member of the three is out of reach of all daemons.
    MemberCutOff(usize),
    /// Everything to the store is late by this many ms.
    StoreSlow(u64),
    /// The processes of the store that serve daemons stand still.
    StoreSessionsPaused,
    StoreSessionsEnded,
    /// A standby of the store, which lacks its newest grants, is promoted while its old primary lives. One daemon stays
    /// with that; the others are killed (else ended), come to the new one, and an operator advances its epoch.
    StandbyPromoted {
        behind: usize,
        killed: bool,
    },
    /// Restored from a snapshot that others have minted beyond, under a new cluster token or the old one, then
    /// advanced to the next epoch.
    StoreRestored {
        new_token: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub fault: Fault,
    /// How long it lasts.
    pub hold: Duration,
    /// How long nothing is broken afterwards, once everybody mints again.
    pub calm: Duration,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {} ms", self.fault, self.hold.as_millis())
    }
}

/// Numbers from a seed; splitmix64.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        let last = u64::try_from(of.len()).expect("a length");
        of[usize::try_from(self.below(last)).expect("an index")]
    }

    fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).expect("an index")
    }
}

/// Without an end: a run takes as many as it has time for.
pub struct Plan {
    store: StoreKind,
    draws: Draws,
    /// Of these each comes once before one comes twice.
    deck: Vec<usize>,
}

impl Plan {
    pub fn new(store: StoreKind, seed: u64) -> Plan {
        Plan {
            store,
            draws: Draws::new(seed),
            deck: Vec::new(),
        }
    }

    fn kinds(&self) -> usize {
        COMMON
            + match self.store {
                StoreKind::Etcd => ETCD,
                StoreKind::Postgres => POSTGRES,
            }
    }

    fn next_kind(&mut self) -> usize {
        if self.deck.is_empty() {
            self.deck = (0..self.kinds()).collect();
        }
        let drawn = self.draws.index(self.deck.len());
        self.deck.swap_remove(drawn)
    }
}

const COMMON: usize = 10;
const ETCD: usize = 12;
const POSTGRES: usize = 3;

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let kind = self.next_kind();
        let draws = &mut self.draws;
        let (server, member) = (draws.index(SERVERS), draws.index(MEMBERS));
        let set_ms = draws.one_of(&[-20_000, -3_000, -300, 300, 5_000, 3_600_000]);
        let heads = draws.below(2) == 0;
        let slow_ms = draws.one_of(&[100, 400, 900]);
        // From a blink to beyond the deadline and the expiry of a lease.
        let hold = draws.one_of(&[300, 1_000, 2_500, 4_000, 6_500, 9_000]);
        let calm = 500 + draws.below(2_000);
        let fault = match (kind, self.store) {
            (0, _) => Fault::DaemonKilled(server),
            (1, _) => Fault::DaemonPaused(server),
            (2, _) => Fault::DaemonRestarted(server),
            (3, _) => Fault::BackendKilled(server),
            (4, _) => Fault::BackendPaused(server),
            (5, _) => Fault::ServerStopped(server),
            (6, _) => Fault::PostmasterKilled(server),
            (7, _) => Fault::PowerCut(server),
            (8, _) => Fault::ServerRestarted(server),
            (9, _) => Fault::ClockSet(set_ms),
            (10, StoreKind::Postgres) => Fault::StoreSessionsPaused,
            (11, StoreKind::Postgres) => Fault::StoreSessionsEnded,
            (_, StoreKind::Postgres) => Fault::StandbyPromoted {
                behind: server,
                killed: heads,
            },
            (10, _) => Fault::MemberKilled(member),
            (11, _) => Fault::MemberPaused(member),
            (12, _) => Fault::LeaderKilled,
            (13, _) => Fault::LeaderPaused,
            (14, _) => Fault::LeaderMoved,
            (15, _) => Fault::LeaderSyncStalls,
            (16, _) => Fault::AllMembersKilled,
            (17, _) => Fault::DaemonCutOff(server),
            (18, _) => Fault::AnswersLost(server),
            (19, _) => Fault::MemberCutOff(member),
            (20, _) => Fault::StoreSlow(slow_ms),
            (_, StoreKind::Etcd) => Fault::StoreRestored { new_token: heads },
        };
        Some(Planned {
            fault,
            hold: Duration::from_millis(hold),
            calm: Duration::from_millis(calm),
        })
    }
}

#[test]
fn the_same_seed_plans_the_same() {
    let plan = |seed| -> Vec<String> {
        let plan = Plan::new(StoreKind::Etcd, seed);
        plan.take(50).map(|planned| format!("{planned}")).collect()
    };
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
}

#[test]
fn every_kind_comes_before_one_comes_twice() {
    for (store, kinds) in [
        (StoreKind::Etcd, COMMON + ETCD),
        (StoreKind::Postgres, COMMON + POSTGRES),
    ] {
        let planned = Plan::new(store, 3).take(kinds);
        let mut names: Vec<String> = planned
            .map(|planned| format!("{:?}", planned.fault))
            .map(|name| name.split(['(', ' ']).next().unwrap_or_default().to_owned())
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), kinds, "{names:?}");
    }
}
