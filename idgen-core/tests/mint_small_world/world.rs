//! One server, the server that it was before its last crash (its backends may live on), the store, a clock.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use idgen_core::clock::{UnixMs, WallWatch};
use idgen_core::lease::Window;
use idgen_core::mint::{
    Identities, InstallError, Minted, Policy, Refusal, Request, SEQ_FULL, Sequence, Session, Slot, SlowClock,
    TICK_MAX, mint,
};

const IDENTITIES: usize = 2;
const SESSIONS: usize = 2;
const START: u64 = 10;
/// Generations have 11 bits.
const GENERATION_MASK: u64 = 2_047;
/// A window has two ticks: the one at the clock, and this many more.
const WINDOW_MS: u64 = 1;
const TTL_MS: u64 = 3;
/// How far the wall may be ahead of what boot time says, as the anchor's slack.
const BELIEVED_MS: u64 = 2;
/// Two ids a tick, and three from tick 13 on: a switch of formats in the middle of everything.
const POLICY: Policy = Policy {
    before: Sequence {
        max: 1,
        start_mask: 0,
    },
    switch_tick: START + 3,
    after: Sequence {
        max: 2,
        start_mask: 0,
    },
    ahead_ms_max: 1,
    rewind_ms_max: 1,
};

/// A rule of the protocol that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    FloorOnCeiling,
    CeilingBeforeCommit,
    ReleaseUnfenced,
    RenewUnguarded,
    LeaseCarriedOver,
    HighWaterFromClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// One id, for a session.
    Mint(usize),
    /// As many as there are in the tick.
    Batch(usize),
    /// An id for a session of the server before the crash.
    MintOrphan(usize),
    /// A millisecond goes by.
    Pass,
    /// The wall is set back by one ...
    Back,
    /// ... or ahead by two.
    Ahead,
    /// Time to the end of every lease goes by.
    End,
    /// The next window of an identity is granted and installed, whoever had it.
    Lease(usize),
    /// The lease is renewed and extended.
    Renew(usize),
    /// The daemon of the server before the crash renews its lease.
    RenewOrphan(usize),
    /// An extension of the generation before, on its way since then, with all it could wish for.
    LateExtend(usize),
    /// A window that begins in the last tick that was used.
    InstallBelow(usize),
    /// Closed and released.
    Fence(usize),
    /// New shared memory; the backends of the old one live on.
    Crash,
}

impl Op {
    pub const ALL: &'static [Op] = &[
        Op::Mint(0),
        Op::Mint(1),
        Op::Batch(0),
        Op::MintOrphan(0),
        Op::Pass,
        Op::Back,
        Op::Ahead,
        Op::End,
        Op::Lease(0),
        Op::Lease(1),
        Op::Renew(0),
        Op::Renew(1),
        Op::RenewOrphan(0),
        Op::LateExtend(0),
        Op::InstallBelow(0),
        Op::Fence(0),
        Op::Fence(1),
        Op::Crash,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    token: u64,
    generation: u64,
    floor: u64,
    /// As the server has it, and as the store has committed it.
    ceiling: u64,
    committed: u64,
    dead: u64,
}

/// Tick, identity, sequence: how ids compare.
type Position = (u64, u64, u64);

struct Server {
    slots: [Slot; IDENTITIES],
    /// Tick and sequence of each word, from what was returned so far.
    words: [(u64, u64); IDENTITIES],
    leases: [Option<Lease>; IDENTITIES],
    sessions: [Session; SESSIONS],
    last: [Option<Position>; SESSIONS],
    watch: WallWatch,
}

impl Server {
    fn new() -> Self {
        Server {
            slots: Default::default(),
            words: [(0, SEQ_FULL); IDENTITIES],
            leases: [None; IDENTITIES],
            sessions: Default::default(),
            last: [None; SESSIONS],
            watch: WallWatch::new(),
        }
    }
}

impl Identities for Server {
    fn slot(&self, identity: u64) -> &Slot {
        &self.slots[usize::try_from(identity).unwrap()]
    }

    fn next_active(&self, from: u64) -> Option<u64> {
        (from..IDENTITIES as u64).find(|&identity| self.leases[usize::try_from(identity).unwrap()].is_some())
    }
}

/// What the store remembers of an identity.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Row {
    ceiling: Option<u64>,
    token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Minted,
    Refused,
    Other,
}

pub struct World {
    fault: Fault,
    server: Server,
    orphan: Server,
    rows: [Row; IDENTITIES],
    tokens: u64,
    wall: u64,
    boot: u64,
    /// Last sequence per identity and tick, of every id ever given out.
    given: BTreeMap<(usize, u64), u64>,
}

impl World {
    /// Identity 0 is leased: a world without a lease has little to show.
    pub fn new(fault: Fault) -> Self {
        let mut world = World {
            fault,
            server: Server::new(),
            orphan: Server::new(),
            rows: Default::default(),
            tokens: 0,
            wall: START,
            boot: 0,
            given: BTreeMap::new(),
        };
        world.apply(Op::Lease(0));
        world
    }

    /// Panics where a rule is broken.
    pub fn apply(&mut self, op: Op) -> Outcome {
        match op {
            Op::Mint(session) => return self.mint(session, 1, false),
            Op::Batch(session) => return self.mint(session, 9, false),
            Op::MintOrphan(session) => return self.mint(session, 1, true),
            Op::Pass => self.pass(1),
            Op::End => self.pass(TTL_MS),
            Op::Back => self.wall -= 1,
            Op::Ahead => self.wall += 2,
            Op::Lease(identity) => self.lease(identity),
            Op::Renew(identity) => self.renew(identity, false),
            Op::RenewOrphan(identity) => self.renew(identity, true),
            Op::LateExtend(identity) => self.late_extend(identity),
            Op::InstallBelow(identity) => self.install_below(identity),
            Op::Fence(identity) => self.fence(identity),
            Op::Crash => self.crash(),
        }
        self.check_words();
        Outcome::Other
    }

    fn pass(&mut self, ms: u64) {
        self.wall += ms;
        self.boot += ms;
    }

    fn lease(&mut self, identity: usize) {
        let high_water = match self.fault {
            Fault::HighWaterFromClock => None,
            Fault::FloorOnCeiling => self.rows[identity].ceiling.map(|ceiling| ceiling - 1),
            _ => self.rows[identity].ceiling,
        };
        let granted = Window::grant(high_water.map(UnixMs), UnixMs(0), UnixMs(self.wall), WINDOW_MS).unwrap();
        let (floor, ceiling) = (granted.floor.0, granted.ceiling.0);
        self.tokens += 1;
        self.rows[identity] = Row {
            ceiling: Some(ceiling),
            token: self.tokens,
        };
        let dead = self.boot + TTL_MS;
        let (last_tick, last_seq) = self.server.words[identity];
        match self.server.slots[identity].install(floor, ceiling, dead) {
            Ok(generation) => {
                assert!(floor > last_tick, "installed below the word");
                let tick = (floor - 1).max(last_tick + u64::from(last_seq == SEQ_FULL));
                self.server.words[identity] = (tick, SEQ_FULL);
                self.server.leases[identity] = Some(Lease {
                    token: self.tokens,
                    generation,
                    floor,
                    ceiling,
                    committed: ceiling,
                    dead,
                });
            }
            Err(InstallError::FloorNotAbove { last_tick: said }) => {
                assert!(floor <= last_tick && said == last_tick, "refused for nothing");
                assert!(self.fault != Fault::None, "the store went back");
            }
        }
    }

    fn renew(&mut self, identity: usize, orphaned: bool) {
        let (row, wall, boot) = (&mut self.rows[identity], self.wall, self.boot);
        let server = if orphaned {
            &mut self.orphan
        } else {
            &mut self.server
        };
        let Some(lease) = &mut server.leases[identity] else {
            return;
        };
        let window = Window {
            floor: UnixMs(lease.floor),
            ceiling: UnixMs(lease.ceiling),
        };
        let ceiling = window.renewed(Some(UnixMs(wall)), WINDOW_MS).ceiling.0;
        if row.token == lease.token || self.fault == Fault::RenewUnguarded {
            row.ceiling = row.ceiling.max(Some(ceiling));
            lease.committed = ceiling;
        } else if self.fault != Fault::CeilingBeforeCommit {
            return;
        }
        (lease.ceiling, lease.dead) = (ceiling, boot + TTL_MS);
        assert!(server.slots[identity].extend(lease.generation, ceiling, lease.dead));
    }

    /// Neither the generation before is there to be extended, nor one that a fence has left behind.
    fn late_extend(&self, identity: usize) {
        let slot = &self.server.slots[identity];
        let view = slot.view();
        let before = view.generation.wrapping_sub(1) & GENERATION_MASK;
        let closed = (!view.open).then_some(view.generation);
        for generation in [Some(before), closed].into_iter().flatten() {
            let extended = slot.extend(generation, TICK_MAX, TICK_MAX);
            assert!(!extended, "extended a generation that is not open");
            assert_eq!(slot.view(), view, "an extension that was refused left something");
        }
    }

    /// An older token, or a store that went back, would begin where ids may have been given out.
    fn install_below(&self, identity: usize) {
        let slot = &self.server.slots[identity];
        let view = slot.view();
        let refused = slot.install(view.tick, view.tick + 9, self.boot + TTL_MS);
        let last_tick = view.tick;
        assert_eq!(
            refused,
            Err(InstallError::FloorNotAbove { last_tick }),
            "installed at the word"
        );
        assert_eq!(slot.view(), view, "an install that was refused left something");
    }

    fn fence(&mut self, identity: usize) {
        let server = &mut self.server;
        let Some(lease) = server.leases[identity] else {
            return;
        };
        let word = &mut server.words[identity];
        if self.fault != Fault::ReleaseUnfenced {
            let exact = server.slots[identity].fence(lease.generation).unwrap();
            assert_eq!(exact, *word, "the high water is not exact");
            word.1 = SEQ_FULL;
            server.leases[identity] = None;
            assert_eq!(server.slots[identity].fence(lease.generation), None);
        }
        let row = &mut self.rows[identity];
        if row.token == lease.token {
            row.ceiling = Some(word.0);
        }
    }

    fn crash(&mut self) {
        self.orphan = std::mem::replace(&mut self.server, Server::new());
        if self.fault == Fault::LeaseCarriedOver {
            for identity in 0..IDENTITIES {
                let Some(lease) = self.orphan.leases[identity] else {
                    continue;
                };
                let slot = &self.server.slots[identity];
                let generation = slot.install(lease.floor, lease.ceiling, lease.dead).unwrap();
                self.server.words[identity] = (lease.floor - 1, SEQ_FULL);
                self.server.leases[identity] = Some(Lease { generation, ..lease });
            }
        }
    }

    /// The slots are as we believe them to be.
    fn check_words(&self) {
        for (identity, slot) in self.server.slots.iter().enumerate() {
            let (view, lease) = (slot.view(), &self.server.leases[identity]);
            assert_eq!(view.tick, self.server.words[identity].0, "the word moved");
            assert_eq!(view.open, lease.is_some(), "{view:?} {lease:?}");
            if let Some(lease) = lease {
                let have = (view.generation, view.ceiling_tick, view.dead_boot_ms);
                assert_eq!(have, (lease.generation, lease.ceiling, lease.dead));
            }
        }
    }

    /// The wall as far as it is believed.
    fn believed(&self) -> u64 {
        self.wall.min(START + self.boot + BELIEVED_MS)
    }

    fn mint(&mut self, session: usize, n: u64, orphaned: bool) -> Outcome {
        let (wall_tick, boot_ms, believed) = (self.wall, self.boot, self.believed());
        let server = if orphaned {
            &mut self.orphan
        } else {
            &mut self.server
        };
        let behind_ms = server.watch.seen().0.saturating_sub(believed);
        let want = expected(server, session, wall_tick, believed, boot_ms, behind_ms);
        let slow_clock = || SlowClock {
            boot_ms,
            wall_tick_max: believed,
            behind_ms: server.watch.observe(server.watch.seen(), UnixMs(believed)),
        };
        let request = Request {
            n,
            policy: &POLICY,
            wall_tick,
            slow_clock: &slow_clock,
        };
        let mut state = server.sessions[session];
        let result = mint(&*server, &request, session as u64, &mut state);
        server.sessions[session] = state;
        match result {
            Ok(minted) => {
                // A wait may be over; every other refusal stands.
                assert!(
                    matches!(want, None | Some(Refusal::Wait)),
                    "{want:?}, but {minted:?}"
                );
                self.take(session, minted, orphaned);
                Outcome::Minted
            }
            Err(refusal) => {
                assert_eq!(Some(refusal), want, "refused without that reason");
                Outcome::Refused
            }
        }
    }

    fn take(&mut self, session: usize, minted: Minted, orphaned: bool) {
        let Minted { run, identity } = minted;
        let index = usize::try_from(identity).unwrap();
        let last_seq = run.seq + run.len - 1;
        assert!(last_seq <= POLICY.sequence(run.tick).max, "{run:?}");
        let before = self.given.insert((index, run.tick), last_seq);
        assert!(
            before.is_none_or(|before| run.seq > before),
            "twice: {identity} {run:?}, last was {before:?}"
        );
        let boot = self.boot;
        let server = if orphaned {
            &mut self.orphan
        } else {
            &mut self.server
        };
        let lease = server.leases[index].unwrap();
        assert_eq!(run.generation, lease.generation, "of another generation");
        assert!(
            (lease.floor..=lease.ceiling).contains(&run.tick),
            "outside its window: {run:?} {lease:?}"
        );
        assert!(run.tick <= lease.committed, "not committed: {run:?} {lease:?}");
        let opened = server.words[index].0 == run.tick && server.words[index].1 < SEQ_FULL;
        assert!(boot < lease.dead || opened, "opened after the deadline: {run:?}");
        server.words[index] = (run.tick, last_seq);
        let last = &mut server.last[session];
        assert!(
            *last < Some((run.tick, identity, run.seq)),
            "not rising: {last:?} {minted:?}"
        );
        *last = Some((run.tick, identity, last_seq));
    }

    /// Everything that later events can depend on, or that a check can.
    pub fn key(&self) -> Key {
        let mut numbers = vec![self.wall, self.boot];
        for (identity, row) in self.rows.iter().enumerate() {
            numbers.extend([row.ceiling.unwrap_or(0), row.token]);
            numbers.extend(
                self.given
                    .iter()
                    .filter(|((of, _), _)| *of == identity)
                    .flat_map(|(&(of, tick), &seq)| [of as u64, tick, seq]),
            );
        }
        for server in [&self.server, &self.orphan] {
            numbers.push(server.watch.seen().0);
            for ((tick, seq), lease) in server.words.iter().zip(&server.leases) {
                numbers.extend([*tick, *seq]);
                numbers.extend(
                    lease
                        .iter()
                        .flat_map(|l| [l.token, l.generation, l.floor, l.ceiling, l.committed, l.dead]),
                );
                numbers.push(u64::MAX);
            }
            for (tick, identity, seq) in server.last.iter().map(|last| last.unwrap_or_default()) {
                numbers.extend([tick, identity, seq]);
            }
        }
        Key {
            numbers,
            sessions: [self.server.sessions, self.orphan.sessions],
        }
    }
}

/// What must come of a call, from the rules as they are written down: `None`: an id; `Wait`: perhaps an id.
/// Of several identities the most hopeful answer counts.
fn expected(
    server: &Server,
    session: usize,
    wall: u64,
    believed: u64,
    boot: u64,
    behind_ms: u64,
) -> Option<Refusal> {
    let (last_tick, last_identity, _) = server.last[session].unwrap_or_default();
    let mut best = Refusal::NoLease;
    for (identity, lease) in server.leases.iter().enumerate() {
        let Some(lease) = lease else { continue };
        let (tick, seq) = server.words[identity];
        let floor = last_tick + u64::from((identity as u64) < last_identity);
        let full = seq >= POLICY.sequence(tick).max;
        if tick == wall && floor <= wall && !full {
            return None;
        }
        let base = believed.max(floor).max(tick);
        let next = if base == tick && full { tick + 1 } else { base };
        let behind_ms = behind_ms.max((base - believed).saturating_sub(POLICY.ahead_ms_max));
        let refusal = if boot >= lease.dead {
            Refusal::DeadlinePassed
        } else if behind_ms > POLICY.rewind_ms_max {
            Refusal::ClockBehind { behind_ms }
        } else if next > lease.ceiling {
            Refusal::WindowUsedUp
        } else if next > believed + POLICY.ahead_ms_max && next > tick.max(last_tick) {
            Refusal::Wait
        } else {
            return None;
        };
        best = best.max(refusal);
    }
    Some(best)
}

/// See [`World::key`]. Sessions are compared; they are not hashed, because what they remember of a wait is
/// nobody's business.
#[derive(PartialEq, Eq)]
pub struct Key {
    numbers: Vec<u64>,
    sessions: [[Session; SESSIONS]; 2],
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
    }
}
