//! A small world of two servers with their daemons, one store, a rival and every fault we know of, driven
//! by random events, for both classes of identities.
//!
//! The servers and the store follow the rules that the extension and the adapters follow. What is checked
//! is what the product promises: no timestamp of an identity is minted under two tokens, nothing is
//! minted above a committed ceiling, every timestamp is minted in the format that the cell has for it, however often
//! it is switched, and the keeper never asks for what its rules forbid.
//!
//! A failing run prints its steps, shrunk; proptest keeps its seed in `proptest-regressions`.

mod extension;
mod node;
mod store;

use self::extension::Server;
use self::node::Node;
use self::store::Ground;
use super::*;
use crate::clock::UnixMs;
use crate::format::{CLASSIC, CellFormat, FormatPlan};
use crate::lease::class::Class;
use crate::lease::ledger::{
    Cell, Holder, PlannedGrant, Row, Snapshot, Standing, settle_grant, settle_renewal,
};
use crate::lease::pool::{Memory, PlanFor, Wanted, half, plan_grant};
use crate::lease::step::{STEP_MS_MAX, StepGuard};
use crate::lease::switch::plan_switch;
use crate::lease::timing::{Timing, TimingSpec};
use crate::lease::token::{Epoch, Identity, InstanceId, Token};
use crate::lease::window::Window;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, VecDeque};

const TTL_MS: u64 = 10_000;
/// All other workers are held by somebody for ever, so that the same ones change hands all the time.
const WORKERS: usize = 6;
/// Each daemon wants two identities.
const COUNT: usize = 2;

fn timing() -> Timing {
    Timing::new(TimingSpec {
        period_ms: Some(3_000),
        ..TimingSpec::of_ttl(TTL_MS)
    })
    .unwrap()
}

/// Shards 1 and 2 for one server, 2 and 3 for the other: a mistake that somebody makes, and what happens
/// whenever a shard moves.
fn wanted(class: Class, node: usize) -> Wanted {
    match class {
        Class::Worker => Wanted::Any(COUNT),
        Class::Shard => Wanted::Listed([1, 2].map(|shard| Identity(shard + node as u16)).to_vec()),
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Real time passes.
    Wait(u64),
    /// Something happens at one of the servers.
    At(usize, NodeStep),
    /// Another daemon takes what it can get, and mints at once.
    Rival,
    /// Somebody switches the format of the cell, this much later than the earliest moment there is.
    Switch(u64),
}

#[derive(Clone, Copy, Debug)]
enum NodeStep {
    /// The daemon looks at the server.
    Look,
    /// The oldest request reaches the store; its answer waits.
    StoreWorks,
    /// The oldest request is lost on the way.
    StoreAway,
    /// The oldest waiting answer arrives.
    Answer,
    /// It is lost; the daemon knows no more than that.
    AnswerLost,
    /// Every open identity mints.
    Mint,
    /// Shared memory is made anew; the old one goes on minting in orphans.
    Crash,
    /// The connection to the server ends.
    Cut,
    /// The next action on the server is done, but its answer gets lost.
    CutNext,
    /// The wall clock is set.
    SetWall(i64),
    /// Others of the shards 1 to 4 are wanted: a bit for each.
    Want(u8),
    /// The daemon is killed and started again.
    Restart,
    /// It hears that an operator has ordered the end of what it holds.
    Ordered,
    /// It is asked to stop, and started again once it has.
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    let node_step = prop_oneof![
        8 => Just(NodeStep::Look),
        8 => Just(NodeStep::StoreWorks),
        1 => Just(NodeStep::StoreAway),
        8 => Just(NodeStep::Answer),
        1 => Just(NodeStep::AnswerLost),
        6 => Just(NodeStep::Mint),
        1 => Just(NodeStep::Crash),
        1 => Just(NodeStep::Cut),
        1 => Just(NodeStep::CutNext),
        1 => (-20_000i64..20_000).prop_map(NodeStep::SetWall),
        2 => (0u8..16).prop_map(NodeStep::Want),
        1 => Just(NodeStep::Restart),
        1 => Just(NodeStep::Ordered),
        1 => Just(NodeStep::Stop),
    ];
    prop_oneof![
        6 => (1u64..4_000).prop_map(Step::Wait),
        // One of the two has more to do, so that it gets somewhere.
        36 => (prop_oneof![2 => Just(0usize), 1 => Just(1)], node_step).prop_map(|(node, step)| Step::At(node, step)),
        2 => Just(Step::Rival),
        1 => (0u64..3_000).prop_map(Step::Switch),
    ]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Worker), Just(Class::Shard)]
}

struct World {
    ground: Ground,
    nodes: [Node; 2],
}

impl World {
    fn new(class: Class) -> Self {
        Self {
            ground: Ground::new(class),
            nodes: [0, 1].map(|node| Node::new(node, wanted(class, node))),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Wait(ms) => self.ground.now += ms,
            Step::At(node, step) => self.nodes[node].run(&mut self.ground, step),
            Step::Rival => self.ground.rival(),
            Step::Switch(later_ms) => drop(self.ground.switch(later_ms)),
        }
    }

    /// Nothing goes wrong for a while.
    fn rest(&mut self, node: usize, rounds: usize) {
        for _ in 0..rounds {
            for step in [NodeStep::Look, NodeStep::StoreWorks, NodeStep::Answer] {
                self.run(Step::At(node, step));
            }
            self.run(Step::Wait(500));
        }
    }

    fn open(&self, node: usize) -> Vec<Identity> {
        let now = self.ground.now;
        let slots = self.nodes[node].server.slots.iter();
        slots
            .filter(|(_, slot)| slot.open && now < slot.deadline.0)
            .map(|(identity, _)| *identity)
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_timestamp_is_minted_under_two_tokens(class in class(), steps in prop::collection::vec(step(), 1..500)) {
        let mut world = World::new(class);
        for step in steps {
            world.run(step);
        }
    }

    /// After the faults the world is left alone; the keeper must find its way to a lease.
    #[test]
    fn minting_comes_back_after_any_faults(class in class(), steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new(class);
        for step in steps {
            world.run(step);
        }
        world.run(Step::At(0, NodeStep::SetWall(0)));
        world.run(Step::At(0, NodeStep::Want(0b11)));
        world.run(Step::At(0, NodeStep::Restart));
        if !world.nodes[0].server.follow(&world.ground.plan()) {
            // It has missed a switch that the plan does not tell of any more: its memory must be made anew.
            world.run(Step::At(0, NodeStep::Crash));
        }
        let installs = world.nodes[0].installs;
        world.rest(0, 80);
        prop_assert!(world.nodes[0].installs > installs, "{:?}", world.nodes[0].state);
        prop_assert_eq!(world.open(0).len(), COUNT, "{:?}", world.nodes[0].state);
    }
}

/// The first server gives up cleanly, the second has waited for the shard that both name.
#[test]
fn a_shard_moves_at_once_when_it_is_given_back() {
    let mut world = World::new(Class::Shard);
    world.rest(0, 4);
    world.rest(1, 4);
    assert_eq!(
        (world.open(0), world.open(1)),
        ([1, 2].map(Identity).to_vec(), vec![Identity(3)]),
        "the second has what is free"
    );
    world.run(Step::At(0, NodeStep::Mint));
    for step in [NodeStep::Stop, NodeStep::StoreWorks, NodeStep::Answer] {
        world.run(Step::At(0, step));
    }
    let before = world.ground.now;
    world.rest(1, 6);
    assert_eq!(
        world.open(1),
        [2, 3].map(Identity),
        "all of its own, {} ms later",
        world.ground.now - before
    );
    assert!(
        world.ground.now - before < TTL_MS / 2,
        "it does not wait for an expiry"
    );
    world.run(Step::At(1, NodeStep::Mint));
}

/// A shard goes back and forth; what stays on either server is renewed and nothing else.
#[test]
fn a_shard_that_moves_costs_those_that_stay_nothing() {
    let mut world = World::new(Class::Shard);
    for (node, set) in [(0, 0b0111), (1, 0b1000)] {
        world.run(Step::At(node, NodeStep::Want(set)));
        world.rest(node, 4);
    }
    let stays = |world: &World| {
        let token = |node: usize, shard| world.nodes[node].server.slots[&Identity(shard)].token;
        (token(0, 1), token(0, 3), token(1, 4))
    };
    let before = stays(&world);
    for round in 0..10 {
        let (from, to) = (round % 2, 1 - round % 2);
        let sets: [u8; 2] = if to == 1 {
            [0b0101, 0b1010]
        } else {
            [0b0111, 0b1000]
        };
        for node in [to, from] {
            world.run(Step::At(node, NodeStep::Want(sets[node])));
        }
        let began = world.ground.now;
        while !world.open(to).contains(&Identity(2)) {
            world.rest(from, 1);
            world.rest(to, 1);
            world.run(Step::At(to, NodeStep::Mint));
            assert!(world.open(0).starts_with(&[Identity(1)]) && world.open(1).ends_with(&[Identity(4)]));
        }
        assert!(world.ground.now - began < 5_000, "without an expiry");
        world.run(Step::At(from, NodeStep::Mint));
    }
    assert_eq!(stays(&world), before, "the very same leases");
}

/// Shared memory is made anew: the server's own old claim on a shard ends with the window, not the TTL.
#[test]
fn a_server_that_crashed_waits_for_its_own_window_only() {
    let mut world = World::new(Class::Shard);
    world.rest(0, 4);
    world.run(Step::At(0, NodeStep::Crash));
    let window_ms = timing().window_ms();
    let crashed = world.ground.now;
    while world.open(0).is_empty() {
        world.rest(0, 1);
        assert!(
            world.ground.now < crashed + window_ms + 2_500,
            "{:?}",
            world.nodes[0].state
        );
    }
}

/// A renewal that meets a fresh switch finds out, and succeeds all the same.
#[test]
fn a_switch_costs_no_lease_and_is_known_before_its_moment() {
    let mut world = World::new(Class::Worker);
    for node in [0, 1] {
        world.rest(node, 4);
    }
    let installs = world.nodes.each_ref().map(|node| node.installs);
    let at = world.ground.switch(0).unwrap();
    while world.ground.wall() <= at.saturating_add(5_000) {
        for node in [0, 1] {
            world.rest(node, 1);
            world.run(Step::At(node, NodeStep::Mint));
        }
    }
    assert_eq!(installs, world.nodes.each_ref().map(|node| node.installs));
    assert!(
        world.ground.minted.keys().any(|(_, minted)| *minted >= at),
        "somebody minted beyond it"
    );
    // The first switch is dropped from the plan; who remembers it goes on, and who begins now begins above it.
    world.ground.switch(0).unwrap();
    world.rest(0, 16);
    assert_eq!(
        (world.nodes[0].installs, world.open(0).len()),
        (installs[0], COUNT)
    );
    world.run(Step::At(1, NodeStep::Crash));
    world.rest(1, 30);
    let slots = world.nodes[1].server.slots.values();
    assert!(
        slots
            .filter(|slot| slot.open)
            .all(|slot| slot.last >= at.saturating_sub(1))
    );
    assert_eq!(world.open(1).len(), COUNT);
}
