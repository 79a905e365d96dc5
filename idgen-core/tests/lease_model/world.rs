//! What the model remembers: the stores, the servers with their daemons, what is on its way, what was minted.
//!
//! One *tick* is as long as a believed clock may be wrong, so the window arithmetic of the core can be asked, with
//! its own constants. A state is a few plain numbers, so that it can be copied, compared and hashed.

use idgen_core::clock::UnixMs;
use idgen_core::lease::anchor::Witness;
use idgen_core::lease::ledger::{Cell, Holder as HolderRow, Row as LedgerRow};
use idgen_core::lease::window::FLOOR_LEAD_MS;
use idgen_core::lease::{
    Anchor, BootId, CellId, Class, Epoch, EpochNonce, Identity, InstanceId, Leased, Revision, Snapshot,
    StoreIdentity, Token as CoreToken, Window, pool,
};

pub type Tick = u8;

/// A floor may lie two ticks ahead of the clock, and clocks are wrong by one.
pub const TICK_MS: u64 = FLOOR_LEAD_MS / 2;

/// Identities that the pool of a scenario has at most.
pub const IDENTITIES: usize = 2;
pub const NODES: usize = 2;
/// Real time begins here, so that a clock that is behind is still above zero.
pub const START: Tick = 4;

pub fn ms(tick: Tick) -> UnixMs {
    UnixMs(u64::from(tick) * TICK_MS)
}

/// The first tick that is not before this moment.
pub fn first_tick(at: UnixMs) -> Tick {
    Tick::try_from(at.0.div_ceil(TICK_MS)).unwrap()
}

/// The last tick that is not after it.
pub fn last_tick(at: UnixMs) -> Tick {
    Tick::try_from(at.0 / TICK_MS).unwrap()
}

/// Fencing token, small. The order of the fields is how tokens compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub epoch: u8,
    pub revision: u8,
}

/// Who holds an identity, by a store's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub node: u8,
    pub token: Token,
    /// The store lets others take it; until then it can still be renewed.
    pub expired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Row {
    pub ceiling: Option<Tick>,
    pub revision: u8,
    pub holder: Option<Holder>,
}

/// A lease store: the cell and its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub epoch: u8,
    /// Name of the epoch: how many advances there had been anywhere.
    pub nonce: u8,
    /// When the epoch began.
    pub since: Tick,
    pub sealed: bool,
    pub min_floor: Tick,
    pub revision: u8,
    /// Grants of this epoch, which a scenario limits.
    pub grants: u8,
    pub rows: [Row; IDENTITIES],
}

/// A window in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub floor: Tick,
    pub ceiling: Tick,
    /// Last tick that was minted; one below the floor when none was.
    pub last: Tick,
}

/// A lease as a server and its daemon have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: Token,
    pub nonce: u8,
    /// Revision of its rows, as far as the daemon knows.
    pub guard: u8,
    pub held: [Option<Held>; IDENTITIES],
}

/// How far the store had come, as a server has written it down with its last lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    pub epoch: u8,
    pub nonce: u8,
    /// Of the store, and of the row of this identity.
    pub revision: u8,
    pub identity: u8,
}

/// A server with its daemon. The daemon remembers nothing but its lease and, where restores go unnoticed, the anchor
/// of its server: the real one has a memory of ceilings and of all rows, and nothing may rest on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its wall clock, from real time.
    pub skew: i8,
    /// The store that its daemon uses.
    pub store: u8,
    pub lease: Option<Lease>,
    pub seen: Option<Seen>,
    /// The store was asked for that after the backup.
    pub recent: bool,
    /// The daemon has looked at the store since that was restored.
    pub spoke: bool,
}

/// A renewal on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Renewal {
    pub node: u8,
    pub store: u8,
    pub token: Token,
    pub nonce: u8,
    pub guard: u8,
    pub ceilings: [Option<Tick>; IDENTITIES],
    /// It was sent after the backup.
    pub recent: bool,
    /// `None`: the request; else the answer, with the revision of the commit.
    pub committed: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Tick,
    /// The store, and its standby, which may be promoted.
    pub stores: [Store; 2],
    pub promoted: bool,
    pub nodes: [Node; NODES],
    /// Backends of the first server that outlive their postmaster.
    pub orphan: Option<Lease>,
    /// One at a time: more would only be more of the same.
    pub renewal: Option<Renewal>,
    /// A backup of a store.
    pub backup: Option<Store>,
    pub restores: u8,
    /// It was restored, unnoticed, less than a grace ago.
    pub unsettled: bool,
    /// The highest epoch that daemons have told the store.
    pub known: u8,
    /// Epoch advances so far, and the highest epoch that anybody has seen.
    pub advances: u8,
    pub epoch_seen: u8,
    /// When an epoch was last advanced, by the operator's clock.
    pub advanced_at: Tick,
    /// Ticks minted of each identity, as bits.
    pub minted: [u32; IDENTITIES],
}

impl State {
    pub fn new() -> Self {
        let store = Store {
            epoch: 0,
            nonce: 0,
            since: 0,
            sealed: false,
            min_floor: 0,
            revision: 0,
            grants: 0,
            rows: [Row::default(); IDENTITIES],
        };
        let node = Node {
            skew: 0,
            store: 0,
            lease: None,
            seen: None,
            recent: false,
            spoke: true,
        };
        Self {
            now: START,
            stores: [store; 2],
            promoted: false,
            nodes: [node; NODES],
            orphan: None,
            renewal: None,
            backup: None,
            restores: 0,
            unsettled: false,
            known: 0,
            advances: 0,
            epoch_seen: 0,
            advanced_at: 0,
            minted: [0; IDENTITIES],
        }
    }

    pub fn wall(&self, node: usize) -> Tick {
        self.now.checked_add_signed(self.nodes[node].skew).unwrap()
    }
}

impl Seen {
    /// As the core writes it down.
    pub fn anchor(&self, numbers: &[u16]) -> Anchor {
        Anchor {
            witness: Some(Witness {
                identity: Identity(numbers[usize::from(self.identity)]),
                revision: revision(self.revision),
            }),
            ..Anchor::of(&cell(self.epoch, self.nonce), revision(self.revision))
        }
    }
}

impl Row {
    pub fn is_free(&self) -> bool {
        self.holder.is_none_or(|holder| holder.expired)
    }

    pub fn is_held_by(&self, node: u8, token: Token) -> bool {
        self.holder
            .is_some_and(|holder| (holder.node, holder.token) == (node, token))
    }
}

impl Lease {
    pub fn identities(&self) -> impl Iterator<Item = (usize, Held)> + '_ {
        self.held
            .iter()
            .enumerate()
            .filter_map(|(index, held)| Some((index, (*held)?)))
    }

    /// As the core writes it down.
    pub fn leased(&self, numbers: &[u16]) -> Vec<Leased> {
        self.identities()
            .map(|(index, held)| Leased {
                identity: Identity(numbers[index]),
                window: held.window(),
            })
            .collect()
    }
}

impl Held {
    pub fn window(&self) -> Window {
        Window {
            floor: ms(self.floor),
            ceiling: ms(self.ceiling),
        }
    }
}

pub fn revision(number: u8) -> Revision {
    Revision(u64::from(number))
}

impl Token {
    pub fn core(self) -> CoreToken {
        CoreToken {
            epoch: Epoch(u64::from(self.epoch)),
            revision: Revision(u64::from(self.revision)),
        }
    }
}

/// The daemon of a node; the model has one for each, which is as if it never restarted. A new one has another id, and
/// finds nothing of its own.
pub fn instance(node: u8) -> InstanceId {
    InstanceId(u128::from(node) + 1)
}

pub const BOOT: BootId = BootId(1);

impl Store {
    pub fn cell(&self) -> Cell {
        Cell {
            epoch_since: ms(self.since),
            min_floor: ms(self.min_floor),
            ..cell(self.epoch, self.nonce)
        }
    }

    /// Do the rules of the pool let this identity be leased in this epoch?
    pub fn leases(&self, class: Class, number: u16) -> bool {
        class == Class::Shard || pool::half(Epoch(u64::from(self.epoch))).contains(&number)
    }

    /// What a daemon reads.
    pub fn snapshot(&self, numbers: &[u16]) -> Snapshot {
        let rows = self.rows.iter().zip(numbers).filter_map(|(row, number)| {
            Some(LedgerRow {
                identity: Identity(*number),
                generation: 1,
                ceiling: ms(row.ceiling?),
                revision: Revision(u64::from(row.revision)),
                holder: row.holder.map(holder),
            })
        });
        let revision = Revision(u64::from(self.revision));
        Snapshot::new(self.cell(), revision, rows.collect())
    }
}

/// As much of a cell as the core compares.
pub fn cell(epoch: u8, nonce: u8) -> Cell {
    Cell {
        cell_id: CellId(1),
        worker_format: String::new(),
        epoch: Epoch(u64::from(epoch)),
        epoch_nonce: EpochNonce(u128::from(nonce)),
        epoch_since: UnixMs(0),
        identity: identity(),
        min_floor: UnixMs(0),
    }
}

/// Stores are told apart by their seal here.
pub fn identity() -> StoreIdentity {
    StoreIdentity::new("model/1").unwrap()
}

fn holder(holder: Holder) -> HolderRow {
    HolderRow {
        instance: instance(holder.node),
        name: String::new(),
        token: holder.token.core(),
        boot_id: BOOT,
        expired: holder.expired,
    }
}
