//! What puts another history in the place of the store's: a restore, a promotion, an epoch that an operator begins.

use crate::advance::advanced;
use crate::scenario::{Broken, Scenario};
use crate::steps::{Step, Steps, reachable};
use crate::unnoticed;
use crate::world::{NODES, Renewal, State, Store};

/// A backup of the store that serves, and its restore there: everything since is forgotten, the epoch too.
pub fn backups(scenario: &Scenario, state: &State, out: &mut Steps) {
    let serving = usize::from(state.promoted);
    let Some(backup) = state.backup else {
        if scenario.restores > 0 {
            let mut next = *state;
            next.backup = Some(state.stores[serving]);
            next.nodes.iter_mut().for_each(|node| node.recent = false);
            next.renewal = next.renewal.map(|renewal| Renewal {
                recent: false,
                ..renewal
            });
            out.push((Step::Backup, Ok(next)));
        }
        return;
    };
    if state.restores < scenario.restores {
        let mut next = *state;
        next.restores += 1;
        next.epoch_seen = next.epoch_seen.max(state.stores[serving].epoch);
        next.stores[serving] = Store {
            sealed: !scenario.unnoticed && !scenario.breaks(Broken::RestoreNotSealed),
            ..backup
        };
        unnoticed::restored(scenario, &mut next);
        out.push((Step::Restore, Ok(next)));
    }
}

pub fn advances(scenario: &Scenario, state: &State, out: &mut Steps) {
    for store in 0..2 {
        let sealed = state.stores[store].sealed && (store == 0 || state.promoted);
        if !sealed || state.advances == scenario.advances || !reachable(scenario, state, store) {
            continue;
        }
        if scenario.unnoticed && state.unsettled && !scenario.breaks(Broken::AdvanceUntold) {
            continue;
        }
        let Some(advanced) = advanced(scenario, state, store) else {
            continue;
        };
        let mut next = *state;
        next.stores[store] = advanced;
        next.advances += 1;
        next.advanced_at = advanced.since;
        next.epoch_seen = next.epoch_seen.max(advanced.epoch);
        let (epoch, min_floor) = (advanced.epoch, advanced.min_floor);
        let step = Step::Advance {
            store,
            epoch,
            min_floor,
        };
        out.push((step, Ok(next)));
    }
}

/// The standby follows, or not, and becomes a primary. From then on there are two stores.
pub fn promotion(scenario: &Scenario, state: &State, out: &mut Steps) {
    if scenario.promotion.is_none() {
        return;
    }
    if state.promoted {
        for node in 0..NODES {
            let mut next = *state;
            let store = 1 - state.nodes[node].store;
            next.nodes[node].store = store;
            out.push((Step::Move { node, store }, Ok(next)));
        }
        return;
    }
    let mut replicated = *state;
    replicated.stores[1] = state.stores[0];
    if !scenario.synchronous && replicated != *state {
        out.push((Step::Replicate, Ok(replicated)));
    }
    let mut next = *state;
    next.promoted = true;
    next.stores[1].sealed = !(scenario.promoted_serves || scenario.breaks(Broken::PromotedNotSealed));
    out.push((Step::Promote, Ok(next)));
}
