//! Identities that are listed, and how the list changes while a server mints: those that go are fenced and given back
//! with their exact high waters, those that come are granted beside the others. Those that stay notice nothing: their
//! tokens, ceilings and deadlines are not touched, and their renewals come first.

use super::pause::GRANT_DOUBLINGS_MAX;
use super::transitions::Core;
use super::{Action, Goal, Held, Loss, Phase, Reading, State};
use crate::clock::{BootMs, ClockReading};
use crate::lease::ledger::{Attempt, Grant};
use crate::lease::token::{Claim, Identity, Mark};
use crate::lease::window::Tenancy;

/// After the list has changed the first tries follow each other fast: whoever had it before is giving it back.
const EAGER_FIRST_MS: u64 = 20;
/// They double this often, so up to 80 ms,
const EAGER_DOUBLINGS_MAX: u32 = 2;
/// and there are this many of them, for about 8 s. Whoever has not given it back by then is gone, or does not know that
/// it should.
const EAGER_TRIES: u32 = 100;

/// How identities that are missing are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Not before this time, on the server's boot clock.
    pub(super) retry_at: BootMs,
    /// Failed tries since the list was changed last.
    pub(super) tries: u32,
    /// A grant that was sent and whose answer got lost.
    pub(super) doubt: Option<Attempt>,
}

impl Default for Growth {
    fn default() -> Self {
        Self {
            retry_at: BootMs(0),
            tries: EAGER_TRIES,
            doubt: None,
        }
    }
}

impl State {
    /// Is there anything to ask for at all?
    pub(super) fn wants_any(&self) -> bool {
        self.want.as_ref().is_none_or(|want| !want.is_empty())
    }

    /// When the list asks for something, where it does.
    pub(super) fn set_due(&self, held: &Held) -> Option<BootMs> {
        let want = self.want.as_ref()?;
        if held
            .leased
            .iter()
            .any(|tenancy| !contains(want, tenancy.identity))
        {
            return Some(self.now);
        }
        let closes = (!held.closing.is_empty()).then_some(held.close_at);
        let grows = self.growth.doubt.is_some() || missing(want, held).next().is_some();
        let grows = grows.then_some(self.growth.retry_at);
        closes.into_iter().chain(grows).min()
    }
}

/// Lists are in rising order.
fn contains(want: &[Identity], identity: Identity) -> bool {
    want.binary_search(&identity).is_ok()
}

fn missing<'a>(want: &'a [Identity], held: &'a Held) -> impl Iterator<Item = Identity> + 'a {
    let has = |identity| {
        let leased = held
            .leased
            .binary_search_by_key(&identity, |tenancy| tenancy.identity);
        leased.is_ok() || held.closing.iter().any(|claim| claim.identity == identity)
    };
    want.iter().copied().filter(move |identity| !has(*identity))
}

impl Core<'_> {
    pub(super) fn on_want(&mut self, phase: Phase, mut identities: Vec<Identity>) -> Phase {
        identities.sort_unstable();
        identities.dedup();
        let changed = self.want.as_ref() != Some(&identities);
        self.want = Some(identities);
        self.growth.retry_at = self.now;
        if changed {
            self.growth.tries = 0;
        }
        self.act(Action::ReadClock);
        match phase {
            Phase::Vacant { boot_id, doubt, .. } if changed || self.is_eager() => Phase::Vacant {
                boot_id,
                retry_at: self.now,
                doubt,
            },
            other => other,
        }
    }

    fn is_eager(&self) -> bool {
        self.growth.tries < EAGER_TRIES
    }

    /// After a grant that failed.
    pub(super) fn grant_pause_ms(&mut self) -> u64 {
        if self.want.is_some() && self.is_eager() {
            let doublings = self.growth.tries.min(EAGER_DOUBLINGS_MAX);
            self.growth.tries += 1;
            return EAGER_FIRST_MS << doublings;
        }
        self.setback_pause_ms(GRANT_DOUBLINGS_MAX)
    }

    /// Nothing else is due: what does the list ask for?
    pub(super) fn follow_list(&mut self, mut held: Held, reading: Reading) -> Phase {
        let Some(want) = self.want.clone() else {
            return Phase::Holding { held };
        };
        let (stay, go): (Vec<Tenancy>, Vec<Tenancy>) = held
            .leased
            .iter()
            .partition(|tenancy| contains(&want, tenancy.identity));
        if !go.is_empty() {
            held.closing.extend(go.iter().map(Tenancy::claim));
            held.leased = stay;
            held.close_at = self.now;
        }
        if held.leased.is_empty() {
            return self.fence(&held, Goal::Replace { retry_at: self.now });
        }
        if !held.closing.is_empty() && reading.clock.boot >= held.close_at {
            return self.shed(held);
        }
        let identities: Vec<Identity> = missing(&want, &held).collect();
        let asks = !identities.is_empty() || self.growth.doubt.is_some();
        if !asks || !reading.may_acquire || reading.clock.boot < self.growth.retry_at {
            return Phase::Holding { held };
        }
        let ticket = self.draw_ticket();
        let doubt = self.growth.doubt.take();
        self.act(Action::Acquire {
            ticket,
            boot_id: held.boot_id,
            reading: reading.clock,
            doubt: doubt.filter(|attempt| attempt.plan.boot_id == held.boot_id),
            identities: Some(identities),
        });
        Phase::Growing { held, ticket }
    }

    fn shed(&mut self, held: Held) -> Phase {
        self.act(Action::Fence {
            boot_id: held.boot_id,
            claims: held.closing.clone(),
        });
        Phase::Shedding { held }
    }

    /// The server has closed those that go; it gave the exact high water of these.
    pub(super) fn on_shed(&mut self, mut held: Held, marks: Vec<Mark>) -> Option<Phase> {
        let claims = std::mem::take(&mut held.closing);
        if !marks.iter().all(|mark| claims.contains(&mark.claim)) {
            return None;
        }
        if marks.is_empty() {
            self.act(Action::ReadClock);
            return Some(Phase::Holding { held });
        }
        let ticket = self.draw_ticket();
        self.act(Action::Release {
            ticket,
            boot_id: held.boot_id,
            marks,
        });
        Some(Phase::Returning { held, ticket, claims })
    }

    /// `done`: the store has taken them back; otherwise they are closed and given back once more.
    pub(super) fn on_returned(&mut self, mut held: Held, claims: Vec<Claim>, done: bool) -> Phase {
        if !done {
            held.closing.extend(claims);
            held.close_at = self.now.saturating_add(self.timing.retry_ms());
        }
        self.act(Action::ReadClock);
        Phase::Holding { held }
    }

    /// The store has committed those that come.
    pub(super) fn on_grown(&mut self, mut held: Held, grant: Grant) -> Phase {
        let deadline = self.timing.deadline(grant.reading.boot, grant.ttl_ms);
        let arrivals = tenancies(&grant);
        if grant.boot_id != held.boot_id || self.now >= deadline {
            // Nothing was minted under it, and nothing may be: it expires in the store.
            self.give_up_these(arrivals, Loss::DeadlinePassed);
            return Phase::Holding { held };
        }
        held.deadline = held.deadline.min(deadline);
        held.arrivals = arrivals;
        self.install_arrivals(held, grant.reading)
    }

    pub(super) fn install_arrivals(&mut self, held: Held, anchor: ClockReading) -> Phase {
        let alone = Held {
            leased: held.arrivals.clone(),
            arrivals: Vec::new(),
            closing: Vec::new(),
            ..held.clone()
        };
        self.act(Action::Install { held: alone, anchor });
        Phase::Installing { held }
    }

    pub(super) fn on_growth_failed(&mut self, held: Held, doubt: Option<Attempt>) -> Phase {
        self.growth.doubt = doubt;
        let pause_ms = self.grant_pause_ms();
        self.growth.retry_at = self.now.saturating_add(pause_ms);
        Phase::Holding { held }
    }

    /// The server mints those that came as well.
    pub(super) fn on_arrived(&mut self, mut held: Held) -> Phase {
        held.leased.append(&mut held.arrivals);
        held.leased.sort_unstable_by_key(|tenancy| tenancy.identity);
        self.growth.retry_at = self.now;
        self.act(Action::ReadClock);
        Phase::Holding { held }
    }

    /// It does not: they are closed, as far as they are open, and given back.
    pub(super) fn on_arrivals_refused(&mut self, mut held: Held, pause_ms: u64) -> Phase {
        let arrivals = std::mem::take(&mut held.arrivals);
        held.closing.extend(arrivals.iter().map(Tenancy::claim));
        held.close_at = self.now;
        self.growth.retry_at = self.now.saturating_add(pause_ms);
        self.give_up_these(arrivals, Loss::ServerRefused);
        self.act(Action::ReadClock);
        Phase::Holding { held }
    }
}

pub(super) fn tenancies(grant: &Grant) -> Vec<Tenancy> {
    let leased = grant.leased.iter();
    leased
        .map(|leased| Tenancy::new(*leased, grant.token, grant.guard))
        .collect()
}
