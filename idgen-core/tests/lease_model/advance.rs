//! A new epoch, by the operator.

use idgen_core::lease::Class;
use idgen_core::lease::window::FLOOR_LEAD_MS;

use crate::scenario::{Broken, Scenario};
use crate::world::{State, Store, TICK_MS, first_tick, ms};

/// How wrong a believed clock may be.
const SKEW_MS: u64 = TICK_MS;

/// The store in its new epoch; `None` when it is too early for one.
pub fn advanced(scenario: &Scenario, state: &State, store: usize) -> Option<Store> {
    let from = &state.stores[store];
    let seen = if scenario.breaks(Broken::EpochFromStoreOnly) {
        from.epoch
    } else {
        from.epoch.max(state.epoch_seen)
    };
    let wall = ms(if scenario.operator_behind {
        state.now - 1
    } else {
        state.now
    });
    let lead = if scenario.breaks(Broken::LeadNotInMargin) {
        0
    } else {
        FLOOR_LEAD_MS
    };
    // Ceilings may be minted: the first free millisecond is the one after.
    let margin = ms(scenario.window).0 + 2 * SKEW_MS + lead + 1;
    let too_soon = state.advances > 0 && wall < ms(state.advanced_at).saturating_add(margin);
    let min_floor = match scenario.class {
        _ if too_soon && !scenario.breaks(Broken::AdvancesCloseTogether) => return None,
        Class::Shard if !scenario.breaks(Broken::AdvanceWithoutMargin) => wall.saturating_add(margin),
        _ => ms(0),
    };
    Some(Store {
        epoch: seen + 1,
        nonce: state.advances + 1,
        sealed: false,
        min_floor: from.min_floor.max(first_tick(min_floor)),
        grants: 0,
        ..*from
    })
}
