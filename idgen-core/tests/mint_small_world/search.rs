//! Breadth first, each state once.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::world::{Fault, Op, Outcome, World};

/// What a search has seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub events: usize,
    pub minted: usize,
    pub refused: usize,
    /// Events that have led to a new state at least once.
    pub changed_by: BTreeSet<Op>,
}

fn replay(fault: Fault, trace: &[Op]) -> World {
    let mut world = World::new(fault);
    for op in trace {
        world.apply(*op);
    }
    world
}

/// Every sequence of at most `depth` events; or the first rule that is broken, and a shortest trace to it.
pub fn explore(fault: Fault, depth: usize) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut known = HashSet::from([World::new(fault).key()]);
    let mut edge: Vec<Vec<Op>> = vec![Vec::new()];
    for _ in 0..depth {
        let mut next = Vec::new();
        for trace in &edge {
            for op in Op::ALL {
                let mut world = replay(fault, trace);
                let outcome = catch_unwind(AssertUnwindSafe(|| world.apply(*op)));
                let outcome =
                    outcome.map_err(|panic| format!("{}, after {trace:?} {op:?}", message(&*panic)))?;
                seen.events += 1;
                seen.minted += usize::from(outcome == Outcome::Minted);
                seen.refused += usize::from(outcome == Outcome::Refused);
                if known.insert(world.key()) {
                    seen.changed_by.insert(*op);
                    next.push(trace.iter().copied().chain([*op]).collect());
                }
            }
        }
        edge = next;
    }
    seen.states = known.len();
    Ok(seen)
}

fn message(panic: &dyn Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or_default().to_owned()
}

/// The search objects to a world with this fault, and says this.
pub fn found(fault: Fault, rule: &str) {
    /// The longest of the shortest traces has six events.
    const DEPTH_MAX: usize = 6;
    let objection = explore(fault, DEPTH_MAX).unwrap_err();
    println!("{objection}");
    assert!(objection.contains(rule), "{objection}");
}
