//! Three daemons on one lease store, in random schedules: the core's keeper and the [`Desk`] as they are, a store in
//! memory with every fault that we know of, and servers that follow the rules of the extension.
//!
//! The core simulates its keeper with a store of its own, and switches of formats. What is tried here is what lies
//! between keeper and store: reads, plans, writes and second looks of several daemons fall between each other at every
//! await, answers get lost on either side, requests are done long after they were given up, the store is restored
//! under another identity or under its old one, and somebody advances its epoch.
//!
//! A failing schedule is printed, shrunk, and its seed kept in `proptest-regressions`.

mod node;

use self::node::{Node, NodeStep};
use super::store_memory::{Backup, Clock, Fault, MemoryPlace, MemoryStore};
use super::{CellStore, HolderName};
use idgen_core::clock::UnixMs;
use idgen_core::lease::trust::CELL_YOUNG_MS;
use idgen_core::lease::window::SKEW_MS;
use idgen_core::lease::{
    AdvanceWish, Anchor, BootId, Class, EpochNonce, Identity, InstanceId, Token, Wanted, plan_advance,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

const NODES: usize = 3;
/// Each daemon wants two identities.
const COUNT: usize = 2;
/// So many workers of each half are left to them; all others are somebody's for ever.
const WORKERS: u16 = 7;
const TTL_MS: u64 = 10_000;
/// No state is put back that is younger: of a cell or epoch that has only just begun, or of a moment ago.
const PUT_BACK_MS: u64 = CELL_YOUNG_MS + 2 * SKEW_MS;
/// Longer than the pause between two attempts to get a lease.
const QUIET_MS: u64 = 3_000;
/// A daemon looks at its server this often.
const LOOKS_MS: u64 = 500;
/// Simulated time begins here.
const EPOCH_MS: u64 = 1_700_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Real time goes by.
    Wait(u64),
    At(usize, NodeStep),
    /// What becomes of requests from now on.
    Store(Fault),
    /// What was given up long ago is done now.
    Arrive,
    /// Every lease ends, whatever its TTL.
    Expire,
    Backup,
    Restore,
    /// The same under the old identity: nobody notices but who remembers more. All daemons are alive and within reach
    /// until they have had the time to speak.
    RestoreUnnoticed,
    /// An operator opens a sealed store.
    Advance,
}

fn step() -> impl Strategy<Value = Step> {
    let skew = i64::try_from(SKEW_MS).unwrap();
    let node_step = prop_oneof![
        8 => Just(NodeStep::Look),
        24 => (1usize..8).prop_map(NodeStep::Work),
        8 => Just(NodeStep::Mint),
        1 => Just(NodeStep::Crash),
        1 => Just(NodeStep::Cut),
        1 => (-skew..=skew).prop_map(NodeStep::SetWall),
        1 => Just(NodeStep::Restart),
        1 => Just(NodeStep::Stop),
    ];
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Away),
        1 => Just(Fault::RequestLost),
        1 => Just(Fault::AnswerLost),
        1 => Just(Fault::Late),
    ];
    prop_oneof![
        8 => (1u64..4_000).prop_map(Step::Wait),
        60 => (0..NODES, node_step).prop_map(|(node, step)| Step::At(node, step)),
        6 => fault.prop_map(Step::Store),
        2 => Just(Step::Arrive),
        2 => Just(Step::Expire),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
        2 => Just(Step::RestoreUnnoticed),
        1 => Just(Step::Advance),
    ]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Worker), Just(Class::Shard)]
}

/// Shards that each server shares with both others: what happens whenever shards move.
fn wanted(class: Class, node: usize) -> Wanted {
    match class {
        Class::Worker => Wanted::Any(COUNT),
        Class::Shard => {
            let mut shards = [node, (node + 1) % NODES].map(|shard| Identity(u16::try_from(shard).unwrap()));
            shards.sort();
            Wanted::Listed(shards.to_vec())
        }
    }
}

/// Who minted of an identity: under which token, in which shared memory.
type Minter = (Token, BootId);

/// What was minted of each identity: who, from which floor, and how far.
#[derive(Default)]
struct Minted(HashMap<Identity, HashMap<Minter, (UnixMs, UnixMs)>>);

impl Minted {
    /// I1 and I3: the windows of successive grants, as far as they were minted, lie apart and rise.
    fn note(&mut self, identity: Identity, minter: Minter, floor: UnixMs, at: UnixMs) {
        let spans = self.0.entry(identity).or_default();
        for (other, (first, last)) in spans.iter().filter(|(other, _)| **other != minter) {
            let apart = if minter.0 > other.0 {
                floor > *last
            } else {
                at < *first
            };
            assert!(
                apart,
                "identity {identity}: {minter:?} minted {at:?} of a window from {floor:?}, {other:?} {first:?} to {last:?}"
            );
        }
        let span = spans.entry(minter).or_insert((floor, at));
        span.1 = span.1.max(at);
    }
}

struct World {
    class: Class,
    now: u64,
    place: MemoryPlace,
    /// With the number of the store, and when it was made.
    backup: Option<(Backup, u32, u64)>,
    restores: u32,
    number: u32,
    /// Until when everybody has spoken to a store that was restored unnoticed.
    speaks_until: u64,
    advances: u128,
    nodes: Vec<Node>,
    minted: Minted,
}

impl World {
    fn new(class: Class) -> Self {
        let place = MemoryPlace::new(Clock::At(UnixMs(EPOCH_MS)));
        // A backup of an empty store is another cell, and daemons end when they meet one.
        place.make_cell();
        if class == Class::Worker {
            let half = class.size() / 2;
            let taken = (0..class.size()).filter(|worker| worker % half >= WORKERS);
            place.occupy(class, taken.map(Identity), UnixMs(u64::MAX));
        }
        let nodes = (0..NODES).map(|number| Node::new(number, class, wanted(class, number), &place));
        Self {
            class,
            now: 0,
            nodes: nodes.collect(),
            place,
            backup: None,
            restores: 0,
            number: 1,
            speaks_until: 0,
            advances: 0,
            minted: Minted::default(),
        }
    }

    async fn run(&mut self, step: Step) {
        match step {
            Step::Wait(mut ms) => {
                while self.now < self.speaks_until && ms > 0 {
                    let some = ms.min(LOOKS_MS);
                    self.all_look_after(some).await;
                    ms -= some;
                }
                self.wait(ms).await;
            }
            Step::At(node, NodeStep::Mint) => {
                let minted = &mut self.minted;
                self.nodes[node].mint(self.now, &self.place, minted);
            }
            Step::At(node, step) => self.nodes[node].run(self.now, step).await,
            Step::Store(_) if self.now < self.speaks_until => {}
            Step::Store(fault) => self.place.set_fault(fault),
            Step::Arrive => self.place.arrive(),
            Step::Expire => self.place.expire(),
            Step::Backup => self.backup = Some((self.place.backup(), self.number, self.now)),
            Step::Restore => {
                if let Some((backup, ..)) = &self.backup {
                    self.restores += 1;
                    self.number = 1 + self.restores;
                    self.place.restore(backup, self.number);
                }
            }
            Step::RestoreUnnoticed => self.restore_unnoticed().await,
            Step::Advance => self.advance().await,
        }
    }

    /// Who waits for a lease looks every few seconds, and has seen what was granted before the store stopped.
    async fn restore_unnoticed(&mut self) {
        let of_age = |made_at: u64, now: u64| now - made_at > PUT_BACK_MS;
        if !self.backup.as_ref().is_some_and(|(.., at)| of_age(*at, self.now)) {
            return;
        }
        self.place.set_fault(Fault::None);
        let (mut quiet_ms, mut grants) = (0, 0);
        while quiet_ms < QUIET_MS {
            self.all_look_after(LOOKS_MS).await;
            quiet_ms = if self.place.grants() == grants {
                quiet_ms + LOOKS_MS
            } else {
                0
            };
            grants = self.place.grants();
        }
        let Some((backup, number, _)) = &self.backup else {
            return;
        };
        self.number = *number;
        self.place.restore(backup, *number);
        self.speaks_until = self.now + node::grace_ms();
    }

    async fn all_look_after(&mut self, ms: u64) {
        self.wait(ms).await;
        for node in &mut self.nodes {
            node.run(self.now, NodeStep::Look).await;
            node.run(self.now, NodeStep::Work(24)).await;
        }
    }

    async fn wait(&mut self, ms: u64) {
        self.now += ms;
        self.place.set_clock(UnixMs(EPOCH_MS + self.now));
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    /// As `idgenctl epoch advance` does it, with the anchors of all servers.
    async fn advance(&mut self) {
        let mut store = self.operator();
        let Ok(Some(survey)) = store.survey().await else {
            return;
        };
        self.advances += 1;
        let window_ms = node::timing().window_ms();
        let wish = AdvanceWish {
            identity: survey.here.clone(),
            reason: "restored".to_owned(),
            by: "operator".to_owned(),
            nonce: EpochNonce(1_000 + self.advances),
            formats: None,
            worker_window_ms: window_ms,
            shard_window_ms: window_ms,
        };
        let anchors: Vec<Anchor> = self.nodes.iter().filter_map(|node| node.disk.clone()).collect();
        if let Ok(plan) = plan_advance(&survey, &anchors, wish) {
            // It may be refused, or its answer lost: the operator looks again another time.
            let _ = store.advance(&plan).await;
        }
    }

    fn operator(&self) -> MemoryStore {
        let holder = HolderName {
            instance: InstanceId(u128::MAX),
            name: "operator".to_owned(),
        };
        self.place.open(self.class, holder, TTL_MS)
    }

    /// Nothing goes wrong for a while, and everybody works.
    async fn rest(&mut self, rounds: usize) {
        self.run(Step::Store(Fault::None)).await;
        self.run(Step::Advance).await;
        for _ in 0..rounds {
            for node in 0..NODES {
                self.run(Step::At(node, NodeStep::Look)).await;
                self.run(Step::At(node, NodeStep::Work(12))).await;
                self.run(Step::At(node, NodeStep::Mint)).await;
            }
            self.run(Step::Wait(500)).await;
        }
    }
}

/// Time stands still but for [`Step::Wait`].
fn simulate(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_schedule_of_three_daemons_mints_an_id_twice(
        class in class(),
        steps in prop::collection::vec(step(), 1..900),
    ) {
        simulate(async {
            let mut world = World::new(class);
            for step in steps {
                world.run(step).await;
            }
        });
    }

    /// After the faults the world is left alone, and every server must find its way to a lease.
    #[test]
    fn every_server_mints_again_after_any_faults(steps in prop::collection::vec(step(), 1..300)) {
        simulate(async {
            let mut world = World::new(Class::Worker);
            for step in steps {
                world.run(step).await;
            }
            for node in 0..NODES {
                world.run(Step::At(node, NodeStep::SetWall(0))).await;
                world.run(Step::At(node, NodeStep::Restart)).await;
            }
            // A store that was restored just before is opened when the epochs are far enough apart.
            for _ in 0..6 {
                world.rest(24).await;
            }
            for node in &world.nodes {
                assert_eq!(node.open(world.now), COUNT, "{:?}", node.phase());
            }
        });
    }
}
