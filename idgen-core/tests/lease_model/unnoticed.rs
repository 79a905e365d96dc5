//! A store that was restored under its old identity: sealed by whoever remembers more, when that one next looks.

use idgen_core::lease::Pins;
use idgen_core::lease::window::epoch_margin_ms;

use crate::scenario::{Broken, Scenario};
use crate::steps::{Step, Steps};
use crate::world::{Holder, Lease, Seen, State, TICK_MS, Tick};

/// What the server writes down before it uses a grant or renewal.
pub fn remember(scenario: &Scenario, state: &mut State, node: usize, lease: &Lease, recent: bool) {
    if !scenario.unnoticed {
        return;
    }
    let node = &mut state.nodes[node];
    let identity = lease.identities().next().map_or(0, |(index, _)| index);
    node.seen = Some(Seen {
        epoch: lease.token.epoch,
        nonce: lease.nonce,
        revision: lease.guard,
        identity: u8::try_from(identity).unwrap(),
    });
    node.recent = recent;
    node.spoke = true;
}

/// A holder gives up before its lease ends, by the margin. Nothing rests on that but this: in a store that was restored
/// a lease that had ended, and whose identity was taken since, comes back to life, and must have nobody who renews it.
pub fn still_mints(state: &State, holder: Holder) -> bool {
    let lease = state.nodes[usize::from(holder.node)].lease;
    lease.is_some_and(|lease| lease.token == holder.token)
}

/// Nobody has looked yet. A request that was on its way ended with its connection.
pub fn restored(scenario: &Scenario, state: &mut State) {
    if scenario.unnoticed {
        state.renewal = state.renewal.filter(|renewal| renewal.committed.is_some());
        state.unsettled = true;
        state.known = 0;
        state.nodes.iter_mut().for_each(|node| node.spoke = false);
    }
}

/// Is the store not what the server remembers?
pub fn departs(scenario: &Scenario, state: &State, node: usize) -> bool {
    let seen = state.nodes[node].seen;
    let store = &state.stores[usize::from(state.nodes[node].store)];
    let snapshot = store.snapshot(scenario.identities);
    seen.is_some_and(|seen| {
        let anchor = seen.anchor(scenario.identities);
        Pins::default().judge(&snapshot, &[anchor]).is_err()
    })
}

/// A look without fault, and the grace is over, or the server's lease was written a moment ago.
pub fn may_lease(scenario: &Scenario, state: &State, node: usize) -> bool {
    if departs(scenario, state, node) {
        return false;
    }
    !state.unsettled || state.nodes[node].recent || scenario.breaks(Broken::NoGrace)
}

pub fn steps(scenario: &Scenario, state: &State, out: &mut Steps) {
    if !scenario.unnoticed || !state.unsettled {
        return;
    }
    for node in 0..state.nodes.len() {
        if state.nodes[node].spoke {
            continue;
        }
        let store = usize::from(state.nodes[node].store);
        let mut next = *state;
        next.nodes[node].spoke = true;
        let seals = !state.stores[store].sealed && departs(scenario, state, node);
        next.stores[store].sealed |= seals;
        if next.stores[store].sealed {
            let epoch = state.nodes[node].seen.map_or(0, |seen| seen.epoch);
            next.known = next.known.max(epoch);
        }
        out.push((Step::Look { node, seals }, Ok(next)));
    }
    // Within it everybody who is alive has looked; only who holds a lease matters. What was minted under leases that
    // have ended lies behind every clock.
    if state.nodes.iter().all(|node| node.spoke || node.lease.is_none()) {
        let mut next = *state;
        next.unsettled = false;
        next.now += Tick::try_from(epoch_margin_ms(0).div_ceil(TICK_MS)).unwrap();
        out.push((Step::Grace, Ok(next)));
    }
}
