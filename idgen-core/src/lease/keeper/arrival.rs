//! What an earlier daemon has left open in the server is closed first, when the store is within reach.

use super::pause;
use super::transitions::Core;
use super::{Action, Goal, Phase};
use crate::lease::token::{BootId, Claim};

impl Core<'_> {
    pub(super) fn arrive(&mut self, boot_id: BootId) -> Phase {
        self.act(Action::Inspect);
        Phase::Arriving { boot_id }
    }

    pub(super) fn on_inspected(&mut self, phase: Phase, claims: Vec<Claim>) -> Option<Phase> {
        let Phase::Arriving { boot_id } = phase else {
            return None;
        };
        if claims.is_empty() {
            let retry_at = self
                .now
                .saturating_add(pause::at_start_ms(self.ticket, self.random));
            return Some(self.reach(Goal::Replace { retry_at }, boot_id));
        }
        let ticket = self.draw_ticket();
        self.act(Action::Probe { ticket });
        Some(Phase::Probing {
            boot_id,
            claims,
            ticket,
        })
    }

    pub(super) fn on_probe(&mut self, phase: Phase, reached: bool) -> Option<Phase> {
        let Phase::Probing { boot_id, claims, .. } = phase else {
            return None;
        };
        if !reached {
            // The next reading asks again; until then the earlier daemon's lease goes on.
            return Some(Phase::Away { held: None });
        }
        self.act(Action::Fence {
            boot_id,
            claims: claims.clone(),
        });
        Some(Phase::Fencing {
            boot_id,
            claims,
            goal: Goal::Replace { retry_at: self.now },
        })
    }
}
