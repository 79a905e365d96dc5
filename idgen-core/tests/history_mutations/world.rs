//! The world, and the rules that may be dropped.

use idgen_core::clock::UnixMs;
use idgen_core::format::CLASSIC;
use idgen_core::history::{
    Branch, Change, Commit, Fence, HeldBy, History, Install, Moment, RowState, Run, Statement,
};
use idgen_core::lease::{BootId, Class, Epoch, Identity, InstanceId, Revision, Token};

/// What each mutation of the protocol drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    MintUpToTheCeiling,
    FloorAboveTheOldCeiling,
    InstallAfterTheCommit,
    FenceBeforeTheRelease,
    GuardRenewals,
    NeverGoBack,
    SealAfterARestore,
    NoRenewalWhileSealed,
    MarginOfAnEpoch,
}

const WINDOW_MS: u64 = 4;
const SKEW_MS: i64 = 2;
const LEAD_MS: u64 = 2;
const IDENTITY: Identity = Identity(0);
/// The first wall clock.
const START_MS: u64 = 1_800_000_000_000;

/// A store, as a snapshot of it is.
#[derive(Clone)]
struct Store {
    revision: u64,
    row: Option<RowState>,
    epoch: u64,
    min_floor: u64,
    sealed: bool,
}

/// What a server has in memory.
#[derive(Clone, Copy)]
struct Memory {
    token: Token,
    floor: u64,
    ceiling: u64,
    last: u64,
}

/// A lease as its daemon knows it. `None` in `ceiling`: the answer has not come.
#[derive(Clone, Copy)]
struct Lease {
    token: Token,
    floor: u64,
    ceiling: u64,
    answered: bool,
}

struct Node {
    number: u8,
    skew_ms: i64,
    boot_id: BootId,
    memory: Option<Memory>,
    lease: Option<Lease>,
    session: u32,
}

pub struct World {
    pub history: History,
    broken: Option<Rule>,
    random: u64,
    now_ms: u64,
    moment: u64,
    store: Store,
    snapshot: Option<Store>,
    nodes: [Node; 2],
    lives: u32,
}

impl World {
    pub fn new(seed: u64, broken: Option<Rule>) -> World {
        let node = |number: u8| Node {
            number,
            skew_ms: 0,
            boot_id: BootId(u128::from(number) + 1),
            memory: None,
            lease: None,
            session: u32::from(number),
        };
        World {
            history: History {
                servers: 2,
                ..History::default()
            },
            broken,
            random: seed,
            now_ms: START_MS,
            moment: 0,
            store: Store {
                revision: 1,
                row: None,
                epoch: 0,
                min_floor: 0,
                sealed: false,
            },
            snapshot: None,
            nodes: [node(0), node(1)],
            lives: 2,
        }
    }

    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.moment += 10;
            let node = self.draw(2) as usize;
            match self.draw(40) {
                0..8 => self.now_ms += 1,
                8..12 => self.acquire(node),
                12..15 => self.renew(node),
                15..20 => self.answer(node),
                20..32 => self.mint(node),
                32 => self.expire(),
                33..35 => self.nodes[node].skew_ms = self.draw(5) as i64 - SKEW_MS,
                35 => self.release(node),
                36 => self.crash(node),
                37 => self.snapshot = Some(self.store.clone()),
                38 => self.restore(),
                _ => self.advance(),
            }
        }
        if let Some(row) = self.store.row {
            self.commit(Change::Shown(Class::Worker, IDENTITY, row));
        }
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// Below `n`; splitmix64.
    fn draw(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn wall(&self, node: usize) -> u64 {
        self.now_ms.saturating_add_signed(self.nodes[node].skew_ms)
    }

    fn commit(&mut self, change: Change) {
        self.history.trail.push(Commit {
            branch: Branch(0),
            revision: Revision(self.store.revision),
            after: Moment(self.moment),
            seen: Moment(self.moment),
            store_time: None,
            change,
        });
    }

    fn put(&mut self, row: RowState) {
        self.store.row = Some(row);
        self.commit(Change::Row(Class::Worker, IDENTITY, row));
    }

    fn acquire(&mut self, node: usize) {
        let (wall, row) = (self.wall(node), self.store.row);
        let held = row.is_some_and(|row| row.holder.is_some());
        let floor = match row {
            Some(row) => row.ceiling.0 + u64::from(self.keeps(Rule::FloorAboveTheOldCeiling)),
            None => wall,
        };
        let floor = floor.max(self.store.min_floor);
        if self.store.sealed || held || self.nodes[node].lease.is_some() || floor > wall + LEAD_MS {
            return;
        }
        let ceiling = floor.max(wall) + WINDOW_MS;
        self.store.revision += 1;
        let Node { number, boot_id, .. } = self.nodes[node];
        let token = Token {
            epoch: Epoch(self.store.epoch),
            revision: Revision(self.store.revision),
        };
        self.put(RowState {
            generation: row.map_or(0, |row| row.generation) + 1,
            ceiling: UnixMs(ceiling),
            exact: false,
            version: Some(row.and_then(|row| row.version).unwrap_or(0) + 1),
            holder: Some(HeldBy {
                instance: InstanceId(u128::from(number)),
                token,
                boot_id,
                expires_at: None,
            }),
        });
        self.nodes[node].lease = Some(Lease {
            token,
            floor,
            ceiling,
            answered: false,
        });
    }

    fn renew(&mut self, node: usize) {
        let (wall, Some(lease), Some(row)) = (self.wall(node), self.nodes[node].lease, self.store.row) else {
            return;
        };
        let ceiling = lease.ceiling.max(wall + WINDOW_MS);
        if !self.keeps(Rule::InstallAfterTheCommit) {
            self.publish(node, Lease { ceiling, ..lease });
            if self.draw(2) == 0 {
                // The request gets lost, and the daemon waits for its answer.
                return;
            }
        }
        let held = row.holder.is_some_and(|held| held.token == lease.token);
        let refused = (self.store.sealed && self.keeps(Rule::NoRenewalWhileSealed))
            || (!held && self.keeps(Rule::GuardRenewals));
        if refused {
            self.fence(node);
            self.nodes[node].lease = None;
            return;
        }
        self.store.revision += 1;
        self.put(RowState {
            ceiling: UnixMs(ceiling),
            exact: false,
            version: row.version.map(|version| version + 1),
            holder: Some(HeldBy {
                instance: InstanceId(u128::from(self.nodes[node].number)),
                token: lease.token,
                boot_id: self.nodes[node].boot_id,
                expires_at: None,
            }),
            ..row
        });
        self.nodes[node].lease = Some(Lease {
            ceiling,
            answered: false,
            ..lease
        });
    }

    /// The answer of the last commit arrives, and is published.
    fn answer(&mut self, node: usize) {
        if let Some(lease) = self.nodes[node].lease {
            self.publish(node, lease);
        }
    }

    fn publish(&mut self, node: usize, lease: Lease) {
        let at = Moment(self.moment);
        let node = &mut self.nodes[node];
        node.lease = Some(Lease {
            answered: true,
            ..lease
        });
        match &mut node.memory {
            Some(memory) if memory.token == lease.token => memory.ceiling = memory.ceiling.max(lease.ceiling),
            memory => {
                *memory = Some(Memory {
                    token: lease.token,
                    floor: lease.floor,
                    ceiling: lease.ceiling,
                    last: lease.floor - 1,
                });
                self.history.installs.push(Install {
                    at,
                    boot_id: node.boot_id,
                    class: Class::Worker,
                    identity: IDENTITY,
                    token: lease.token,
                    floor: UnixMs(lease.floor),
                });
            }
        }
    }

    fn mint(&mut self, node: usize) {
        let wall = self.wall(node);
        let (back, bounded) = (
            !self.keeps(Rule::NeverGoBack),
            self.keeps(Rule::MintUpToTheCeiling),
        );
        let node = &mut self.nodes[node];
        let Some(memory) = &mut node.memory else { return };
        let above = if back && wall < memory.last {
            0
        } else {
            memory.last + 1
        };
        let at = wall.max(memory.floor).max(above);
        if bounded && at > memory.ceiling {
            return;
        }
        memory.last = at;
        let statement = Statement {
            session: node.session,
            server: node.number,
            boot_id: node.boot_id,
            class: Class::Worker,
            invoked: Moment(self.moment),
            returned: Moment(self.moment + 1),
            succeeded: true,
            pieces: 0..0,
        };
        let start = (at - CLASSIC.epoch.0) << (CLASSIC.node_bits + CLASSIC.seq_bits);
        self.history.add(statement, [Run { start, len: 1 }]);
    }

    /// At any moment, whatever the TTL.
    fn expire(&mut self) {
        if let Some(row) = self.store.row.filter(|row| row.holder.is_some()) {
            self.store.revision += 1;
            self.put(RowState { holder: None, ..row });
        }
    }

    /// Closes what is installed, and says what was minted last.
    fn fence(&mut self, node: usize) -> Option<u64> {
        let node = &mut self.nodes[node];
        let memory = node.memory.take()?;
        self.history.fences.push(Fence {
            at: Moment(self.moment),
            boot_id: node.boot_id,
            class: Class::Worker,
            identity: IDENTITY,
            token: memory.token,
            last: UnixMs(memory.last),
        });
        Some(memory.last)
    }

    fn release(&mut self, node: usize) {
        let Some(lease) = self.nodes[node].lease.filter(|lease| lease.answered) else {
            return;
        };
        let remembered = self.nodes[node].memory.map(|memory| memory.last);
        let last = if self.keeps(Rule::FenceBeforeTheRelease) {
            self.fence(node)
        } else {
            remembered
        };
        self.nodes[node].lease = None;
        let (Some(last), Some(row)) = (last, self.store.row) else {
            return;
        };
        let held = row.holder.is_some_and(|held| held.token == lease.token);
        if held && !self.store.sealed {
            self.store.revision += 1;
            self.put(RowState {
                ceiling: UnixMs(last),
                exact: true,
                version: row.version.map(|version| version + 1),
                holder: None,
                ..row
            });
        }
    }

    /// Shared memory is made anew.
    fn crash(&mut self, node: usize) {
        self.lives += 1;
        let lives = self.lives;
        let node = &mut self.nodes[node];
        node.boot_id = BootId(u128::from(lives));
        node.session = lives;
        node.memory = None;
        node.lease = None;
    }

    fn restore(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else {
            return;
        };
        self.store = Store {
            sealed: self.keeps(Rule::SealAfterARestore),
            ..snapshot
        };
        self.commit(Change::Restored);
        if let Some(row) = self.store.row {
            self.commit(Change::Found(Class::Worker, IDENTITY, row));
        }
    }

    /// Takes the holders away and begins above everything that may have been granted before.
    fn advance(&mut self) {
        if !self.store.sealed {
            return;
        }
        let margin = WINDOW_MS + 2 * SKEW_MS.unsigned_abs() + LEAD_MS;
        let margin = if self.keeps(Rule::MarginOfAnEpoch) {
            margin
        } else {
            0
        };
        self.store.epoch += 1;
        self.store.sealed = false;
        self.store.revision += 1;
        self.store.min_floor = self.store.min_floor.max(self.now_ms + margin + 1);
        self.commit(Change::Epoch(Epoch(self.store.epoch)));
        if let Some(row) = self.store.row.filter(|row| row.holder.is_some()) {
            self.put(RowState { holder: None, ..row });
        }
    }
}
