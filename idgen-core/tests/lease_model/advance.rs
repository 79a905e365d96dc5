//! A new epoch, as the core plans it for the operator.

use idgen_core::clock::UnixMs;
use idgen_core::lease::window::FLOOR_LEAD_MS;
use idgen_core::lease::{AdvancePlan, AdvanceWish, Class, Epoch, EpochNonce, Survey, Told, plan_advance};

use crate::scenario::{Broken, Scenario};
use crate::world::{State, Store, first_tick, identity, ms, revision};

/// The store in its new epoch; `None` when it is too early for one.
pub fn advanced(scenario: &Scenario, state: &State, store: usize) -> Option<Store> {
    let from = &state.stores[store];
    let nonce = state.advances + 1;
    let window_ms = ms(scenario.window).0;
    let wish = AdvanceWish {
        identity: identity(),
        reason: String::new(),
        by: String::new(),
        nonce: EpochNonce(u128::from(nonce)),
        formats: None,
        worker_window_ms: window_ms,
        shard_window_ms: window_ms,
    };
    let survey = survey(scenario, state, from);
    let planned = plan_advance(&survey, &[], wish).ok()?;
    let floor = match scenario.broken {
        Some(Broken::AdvanceWithoutMargin) => UnixMs(0),
        Some(Broken::LeadNotInMargin) => planned.shard_min_floor.saturating_sub(FLOOR_LEAD_MS),
        _ => planned.shard_min_floor,
    };
    let min_floor = match scenario.class {
        Class::Worker => first_tick(planned.worker_min_floor),
        Class::Shard => from.min_floor.max(first_tick(floor)),
    };
    Some(Store {
        epoch: epoch(scenario, from, &planned),
        nonce,
        since: first_tick(planned.since),
        sealed: false,
        min_floor,
        revision: from.revision + 1,
        grants: 0,
        ..*from
    })
}

fn epoch(scenario: &Scenario, from: &Store, planned: &AdvancePlan) -> u8 {
    if scenario.breaks(Broken::EpochFromStoreOnly) {
        from.epoch + 1
    } else {
        u8::try_from(planned.to.0).unwrap()
    }
}

/// What the operator sees: the store, and what daemons have written into it as they sealed it.
fn survey(scenario: &Scenario, state: &State, from: &Store) -> Survey {
    let mut cell = from.cell();
    let told = if scenario.unnoticed {
        state.known
    } else {
        state.epoch_seen
    };
    let mut known = Told {
        epoch: Epoch(u64::from(told)),
        since: ms(state.advanced_at),
        formats: Vec::new(),
    };
    if scenario.breaks(Broken::AdvancesCloseTogether) {
        (cell.epoch_since, known.since) = (UnixMs(0), UnixMs(0));
    }
    let wrong_by = scenario.operator_clock[usize::from(state.advances > 0)];
    let now = state.now.checked_add_signed(wrong_by).unwrap();
    Survey {
        cell,
        shard_min_floor: ms(from.min_floor),
        here: identity(),
        sealed_reason: Some("restored".to_owned()),
        sealed_at: None,
        damage: None,
        known,
        revision: revision(from.revision),
        now: ms(now),
        workers: Vec::new(),
        shards: Vec::new(),
        history: Vec::new(),
    }
}
