//! The transitions: one function per kind of event, each a total match over the phases.

use super::pause::{self, REFUSAL_DOUBLINGS_MAX, RETRY_MS};
use super::set::{Growth, tenancies};
use super::{Action, Event, Goal, Grant, Held, IllegalTransition, Loss, Phase, Reading, State, Ticket};
use crate::clock::{BootMs, ClockReading};
use crate::lease::ledger::Attempt;
use crate::lease::timing::Timing;
use crate::lease::token::{BootId, Claim, Identity, Mark, Revision, Token};
use crate::lease::window::{Leased, Tenancy};
use std::collections::HashSet;

type Step = Result<(State, Vec<Action>), IllegalTransition>;

/// The next state, and what to do, in this order.
pub fn next(timing: &Timing, state: State, event: Event) -> Step {
    let illegal = IllegalTransition {
        phase: state.phase.name(),
        event: event.name(),
    };
    if let Some(ticket) = event.ticket()
        && state.phase.ticket() != Some(ticket)
    {
        // The answer to a request that is no longer waited for. A grant or renewal in it was committed,
        // but nobody relies on it: its windows stay unused, and the rows are read again before the next
        // request that concerns them.
        return Ok((state.distrusting(), Vec::new()));
    }
    let mut core = Core {
        timing,
        ticket: state.ticket,
        now: state.now,
        setbacks: state.setbacks,
        random: state.random,
        want: state.want,
        growth: state.growth,
        actions: Vec::new(),
    };
    let phase = match event {
        Event::Reading(reading) => core.on_reading(state.phase, reading),
        Event::ServerLost => core.on_server_lost(state.phase),
        Event::Stop => core.on_stop(state.phase),
        Event::Ordered { token } => core.on_ordered(state.phase, token),
        Event::Want { identities } => core.on_want(state.phase, identities),
        Event::ServerForgot => core.on_server_forgot(state.phase).ok_or(illegal)?,
        Event::Inspected { claims } => core.on_inspected(state.phase, claims).ok_or(illegal)?,
        Event::Probed { .. } | Event::ProbeFailed { .. } => {
            let reached = matches!(event, Event::Probed { .. });
            core.on_probe(state.phase, reached).ok_or(illegal)?
        }
        Event::Granted { grant, .. } => core.on_granted(state.phase, grant).ok_or(illegal)?,
        Event::GrantFailed { doubt, .. } => core.on_grant_failed(state.phase, doubt).ok_or(illegal)?,
        Event::Installed => core.on_installed(state.phase).ok_or(illegal)?,
        Event::InstallRefused => core.on_install_refused(state.phase).ok_or(illegal)?,
        Event::Renewed {
            guard,
            ttl_ms,
            leased,
            ..
        } => core
            .on_renewed(state.phase, guard, ttl_ms, &leased)
            .ok_or(illegal)?,
        Event::RenewFailed { doubt, .. } => core.on_renew_failed(state.phase, doubt).ok_or(illegal)?,
        Event::RenewLost { why, .. } => core.on_renew_lost(state.phase, why).ok_or(illegal)?,
        Event::Extended => core.on_extended(state.phase).ok_or(illegal)?,
        Event::ExtendRefused => core.on_extend_refused(state.phase).ok_or(illegal)?,
        Event::Fenced { marks } => core.on_fenced(state.phase, marks).ok_or(illegal)?,
        Event::Released { .. } | Event::ReleaseFailed { .. } => {
            let done = matches!(event, Event::Released { .. });
            core.on_release_done(state.phase, done).ok_or(illegal)?
        }
    };
    let state = State {
        phase,
        ticket: core.ticket,
        now: core.now,
        setbacks: core.setbacks,
        random: core.random,
        want: core.want,
        growth: core.growth,
    };
    Ok((state, core.actions))
}

/// What a step needs besides the phase; collects the actions.
pub(super) struct Core<'a> {
    pub(super) timing: &'a Timing,
    pub(super) ticket: Ticket,
    pub(super) now: BootMs,
    setbacks: u32,
    pub(super) random: u64,
    pub(super) want: Option<Vec<Identity>>,
    pub(super) growth: Growth,
    actions: Vec<Action>,
}

impl Core<'_> {
    pub(super) fn draw_ticket(&mut self) -> Ticket {
        self.ticket = Ticket(self.ticket.0 + 1);
        self.ticket
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn setback_pause_ms(&mut self, doublings_max: u32) -> u64 {
        let pause_ms = pause::after_setbacks_ms(self.setbacks, doublings_max, self.random);
        self.setbacks = self.setbacks.saturating_add(1);
        pause_ms
    }

    fn give_up(&mut self, held: &Held, why: Loss) {
        let leased = [held.leased.as_slice(), &held.arrivals].concat();
        self.give_up_these(leased, why);
    }

    pub(super) fn give_up_these(&mut self, leased: Vec<Tenancy>, why: Loss) {
        self.act(Action::Lost { leased, why });
    }

    pub(super) fn fence(&mut self, held: &Held, goal: Goal) -> Phase {
        let (boot_id, claims) = (held.boot_id, held.claims());
        self.act(Action::Fence {
            boot_id,
            claims: claims.clone(),
        });
        Phase::Fencing {
            boot_id,
            claims,
            goal,
        }
    }

    /// `pause_ms`: what the server's own refusals ask for.
    fn replace(&mut self, held: &Held, why: Loss, pause_ms: u64) -> Phase {
        self.give_up(held, why);
        let pause_ms = pause_ms.max(why.hold_off_ms(self.timing));
        self.fence(
            held,
            Goal::Replace {
                retry_at: self.now.saturating_add(pause_ms),
            },
        )
    }

    /// After a fence or release.
    pub(super) fn reach(&mut self, goal: Goal, boot_id: BootId) -> Phase {
        match goal {
            Goal::Stop => Phase::Stopped,
            Goal::Replace { retry_at } => {
                self.act(Action::ReadClock);
                Phase::Vacant {
                    boot_id,
                    retry_at,
                    doubt: None,
                }
            }
        }
    }

    fn acquire(&mut self, reading: Reading, doubt: Option<Attempt>) -> Phase {
        let boot_id = reading.boot_id;
        // A grant for another shared memory is of no use, and a high water taken from a clock that was
        // stepped would poison the store.
        let doubt = doubt.filter(|attempt| attempt.plan.boot_id == boot_id);
        let wants_any = self.want.as_ref().is_none_or(|want| !want.is_empty());
        if !reading.may_acquire || !wants_any {
            return Phase::Vacant {
                boot_id,
                retry_at: reading.clock.boot,
                doubt,
            };
        }
        let ticket = self.draw_ticket();
        // What was in doubt beside others that are lost by now was for those that are missing; all are now.
        self.growth.doubt = None;
        self.act(Action::Acquire {
            ticket,
            boot_id,
            reading: reading.clock,
            doubt,
            identities: self.want.clone(),
        });
        Phase::Acquiring { boot_id, ticket }
    }

    fn on_reading(&mut self, phase: Phase, reading: Reading) -> Phase {
        self.now = reading.clock.boot;
        self.random = reading.random;
        if let Some(held) = phase.held()
            && held.boot_id != reading.boot_id
        {
            self.give_up(held, Loss::BootIdChanged);
            return self.acquire(reading, None);
        }
        match phase {
            Phase::Away { held: Some(held) } => self.read_back(held, reading),
            Phase::Away { held: None } if !reading.may_acquire => phase,
            Phase::Away { held: None } => self.arrive(reading.boot_id),
            Phase::Arriving { boot_id } if boot_id != reading.boot_id => self.arrive(reading.boot_id),
            Phase::Arriving { .. } | Phase::Stopped => phase,
            Phase::Probing { boot_id, .. } if boot_id != reading.boot_id => self.acquire(reading, None),
            Phase::Probing { .. } => phase,
            Phase::Vacant {
                boot_id,
                retry_at,
                doubt,
            } => {
                if boot_id == reading.boot_id && reading.clock.boot < retry_at {
                    return Phase::Vacant {
                        boot_id,
                        retry_at,
                        doubt,
                    };
                }
                self.acquire(reading, doubt)
            }
            Phase::Acquiring { boot_id, .. } if boot_id != reading.boot_id => self.acquire(reading, None),
            Phase::Acquiring { .. } => phase,
            Phase::Holding { held } => self.read_while_holding(held, reading),
            Phase::Renewing { held, .. } | Phase::Returning { held, .. } | Phase::Growing { held, .. }
                if reading.clock.boot >= held.deadline =>
            {
                self.replace(&held, Loss::DeadlinePassed, 0)
            }
            Phase::Renewing { .. } | Phase::Returning { .. } | Phase::Growing { .. } => phase,
            // The answer of the server is due first; it comes before the next reading.
            Phase::Installing { .. } | Phase::Extending { .. } | Phase::Shedding { .. } => phase,
            Phase::Fencing { boot_id, goal, .. } if boot_id != reading.boot_id => match goal {
                Goal::Stop => Phase::Stopped,
                Goal::Replace { .. } => self.acquire(reading, None),
            },
            Phase::Fencing { .. } => phase,
            // The high waters were proved in the old memory; the release stays right. What follows it
            // is for the new one.
            Phase::Releasing { ticket, goal, .. } => Phase::Releasing {
                boot_id: reading.boot_id,
                ticket,
                goal,
            },
        }
    }

    /// The server is back, with the memory it had.
    fn read_back(&mut self, held: Held, reading: Reading) -> Phase {
        if reading.clock.boot >= held.deadline {
            return self.replace(&held, Loss::DeadlinePassed, 0);
        }
        if held.installed {
            return self.read_while_holding(held, reading);
        }
        if !reading.clock_good {
            // Installing needs an anchor, so this grant cannot be used.
            return self.replace(&held, Loss::ServerRefused, 0);
        }
        self.act(Action::Install {
            held: held.clone(),
            anchor: reading.clock,
        });
        Phase::Installing { held }
    }

    fn read_while_holding(&mut self, held: Held, reading: Reading) -> Phase {
        if reading.clock.boot >= held.deadline {
            return self.replace(&held, Loss::DeadlinePassed, 0);
        }
        if !held.published {
            return self.extend(held, reading.clock_good.then_some(reading.clock));
        }
        if !held.arrivals.is_empty() {
            // Installing needs an anchor.
            return if reading.clock_good {
                self.install_arrivals(held, reading.clock)
            } else {
                self.on_arrivals_refused(held, 0)
            };
        }
        if reading.clock.boot < held.renew_at {
            return self.follow_list(held, reading);
        }
        let wall = reading.clock_good.then_some(reading.clock.wall);
        let wanted = held
            .leased
            .iter()
            .map(|leased| Leased {
                identity: leased.identity,
                window: leased.window.renewed(wall, self.timing.window_ms()),
            })
            .collect();
        let ticket = self.draw_ticket();
        self.act(Action::Renew {
            ticket,
            held: held.clone(),
            wanted,
        });
        let renew_at = reading
            .clock
            .boot
            .saturating_add(self.timing.jittered_period_ms(reading.random));
        Phase::Renewing {
            held,
            ticket,
            asked: reading.clock,
            clock_good: reading.clock_good,
            renew_at,
        }
    }

    fn extend(&mut self, held: Held, anchor: Option<ClockReading>) -> Phase {
        self.act(Action::Extend {
            held: held.clone(),
            anchor,
        });
        Phase::Extending { held }
    }

    fn on_server_lost(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Installing { held }
            | Phase::Holding { held }
            | Phase::Extending { held }
            | Phase::Shedding { held } => Phase::Away { held: Some(held) },
            // A grant that is committed all the same is never installed, and is replaced by the next.
            Phase::Growing { held, .. } => Phase::Away { held: Some(held) },
            Phase::Returning { mut held, claims, .. } => {
                held.closing.extend(claims);
                Phase::Away { held: Some(held) }
            }
            Phase::Renewing { held, .. } => Phase::Away {
                held: Some(Held { doubt: true, ..held }),
            },
            Phase::Fencing { goal: Goal::Stop, .. } => Phase::Stopped,
            Phase::Away { .. } | Phase::Releasing { .. } | Phase::Stopped => phase,
            Phase::Arriving { .. }
            | Phase::Probing { .. }
            | Phase::Vacant { .. }
            | Phase::Acquiring { .. }
            | Phase::Fencing { .. } => Phase::Away { held: None },
        }
    }

    fn on_stop(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Installing { held }
            | Phase::Holding { held }
            | Phase::Renewing { held, .. }
            | Phase::Extending { held }
            | Phase::Shedding { held }
            | Phase::Growing { held, .. } => self.fence(&held, Goal::Stop),
            Phase::Returning { mut held, claims, .. } => {
                held.closing.extend(claims);
                self.fence(&held, Goal::Stop)
            }
            Phase::Fencing { boot_id, claims, .. } => Phase::Fencing {
                boot_id,
                claims,
                goal: Goal::Stop,
            },
            Phase::Releasing { boot_id, ticket, .. } => Phase::Releasing {
                boot_id,
                ticket,
                goal: Goal::Stop,
            },
            Phase::Away { held: Some(held) } => {
                self.give_up(&held, Loss::Unreachable);
                Phase::Stopped
            }
            Phase::Away { held: None }
            | Phase::Arriving { .. }
            | Phase::Probing { .. }
            | Phase::Vacant { .. }
            | Phase::Acquiring { .. }
            | Phase::Stopped => Phase::Stopped,
        }
    }

    /// The holder gives the lease up at once, with its exact end, which a renewal that is under way does not change: its
    /// answer is dropped. Where the server is away there is nobody to close it; the renewal is refused then.
    fn on_ordered(&mut self, phase: Phase, token: Token) -> Phase {
        match phase {
            Phase::Holding { held } | Phase::Renewing { held, .. }
                if held.leased.iter().any(|tenancy| tenancy.token == token) =>
            {
                self.replace(&held, Loss::Revoked, 0)
            }
            other => other,
        }
    }

    fn on_server_forgot(&mut self, phase: Phase) -> Option<Phase> {
        match phase {
            Phase::Installing { held } | Phase::Extending { held } | Phase::Shedding { held } => {
                self.give_up(&held, Loss::BootIdChanged);
                self.act(Action::ReadClock);
                Some(Phase::Away { held: None })
            }
            Phase::Fencing { goal: Goal::Stop, .. } => Some(Phase::Stopped),
            Phase::Fencing { .. } => {
                self.act(Action::ReadClock);
                Some(Phase::Away { held: None })
            }
            _ => None,
        }
    }

    fn on_granted(&mut self, phase: Phase, grant: Grant) -> Option<Phase> {
        let boot_id = match phase {
            Phase::Acquiring { boot_id, .. } => boot_id,
            Phase::Growing { held, .. } => return Some(self.on_grown(held, grant)),
            _ => return None,
        };
        let deadline = self.timing.deadline(grant.reading.boot, grant.ttl_ms);
        let held = Held {
            boot_id: grant.boot_id,
            deadline,
            renew_at: grant.reading.boot.saturating_add(self.timing.period_ms()),
            leased: tenancies(&grant),
            arrivals: Vec::new(),
            closing: Vec::new(),
            close_at: BootMs(0),
            installed: false,
            published: false,
            doubt: false,
        };
        if grant.boot_id != boot_id || self.now >= deadline {
            // Nothing was minted under it, and nothing may be: it expires in the store.
            self.give_up(&held, Loss::DeadlinePassed);
            return Some(self.reach(Goal::Replace { retry_at: self.now }, boot_id));
        }
        self.act(Action::Install {
            held: held.clone(),
            anchor: grant.reading,
        });
        Some(Phase::Installing { held })
    }

    fn on_grant_failed(&mut self, phase: Phase, doubt: Option<Attempt>) -> Option<Phase> {
        let boot_id = match phase {
            Phase::Acquiring { boot_id, .. } => boot_id,
            Phase::Growing { held, .. } => return Some(self.on_growth_failed(held, doubt)),
            _ => return None,
        };
        let pause_ms = self.grant_pause_ms();
        let retry_at = self.now.saturating_add(pause_ms);
        Some(Phase::Vacant {
            boot_id,
            retry_at,
            doubt,
        })
    }

    fn on_installed(&mut self, phase: Phase) -> Option<Phase> {
        let Phase::Installing { held } = phase else {
            return None;
        };
        self.setbacks = 0;
        if held.installed {
            return Some(self.on_arrived(held));
        }
        self.growth.retry_at = self.now;
        Some(Phase::Holding {
            held: Held {
                installed: true,
                published: true,
                ..held
            },
        })
    }

    fn on_install_refused(&mut self, phase: Phase) -> Option<Phase> {
        let Phase::Installing { held } = phase else {
            return None;
        };
        let pause_ms = self.setback_pause_ms(REFUSAL_DOUBLINGS_MAX);
        if held.installed {
            return Some(self.on_arrivals_refused(held, pause_ms));
        }
        Some(self.replace(&held, Loss::ServerRefused, pause_ms))
    }

    fn on_renewed(&mut self, phase: Phase, guard: Revision, ttl_ms: u64, leased: &[Leased]) -> Option<Phase> {
        let Phase::Renewing {
            held,
            asked,
            clock_good,
            renew_at,
            ..
        } = phase
        else {
            return None;
        };
        if leased.len() != held.leased.len() {
            return None;
        }
        let deadline = held.deadline.max(self.timing.deadline(asked.boot, ttl_ms));
        let mut renewed = Held {
            deadline,
            renew_at,
            published: false,
            doubt: false,
            ..held.clone()
        };
        for (mine, committed) in renewed.leased.iter_mut().zip(leased) {
            if mine.identity != committed.identity {
                return None;
            }
            mine.window.ceiling = mine.window.ceiling.max(committed.window.ceiling);
            mine.guard = guard;
        }
        Some(self.extend(renewed, clock_good.then_some(asked)))
    }

    fn on_renew_failed(&mut self, phase: Phase, doubt: bool) -> Option<Phase> {
        let Phase::Renewing { held, asked, .. } = phase else {
            return None;
        };
        let renew_at = asked.boot.saturating_add(self.timing.retry_ms());
        Some(Phase::Holding {
            held: Held {
                renew_at,
                doubt: held.doubt || doubt,
                ..held
            },
        })
    }

    fn on_renew_lost(&mut self, phase: Phase, why: Loss) -> Option<Phase> {
        let Phase::Renewing { held, .. } = phase else {
            return None;
        };
        Some(self.replace(&held, why, 0))
    }

    fn on_extended(&mut self, phase: Phase) -> Option<Phase> {
        let Phase::Extending { held } = phase else {
            return None;
        };
        Some(Phase::Holding {
            held: Held {
                published: true,
                ..held
            },
        })
    }

    fn on_extend_refused(&mut self, phase: Phase) -> Option<Phase> {
        let Phase::Extending { held } = phase else {
            return None;
        };
        Some(self.replace(&held, Loss::ServerRefused, RETRY_MS))
    }

    fn on_fenced(&mut self, phase: Phase, marks: Vec<Mark>) -> Option<Phase> {
        let (boot_id, claims, goal) = match phase {
            Phase::Fencing {
                boot_id,
                claims,
                goal,
            } => (boot_id, claims, goal),
            Phase::Shedding { held } => return self.on_shed(held, marks),
            _ => return None,
        };
        let asked: HashSet<&Claim> = claims.iter().collect();
        if !marks.iter().all(|mark| asked.contains(&mark.claim)) {
            return None;
        }
        if marks.is_empty() {
            return Some(self.reach(goal, boot_id));
        }
        let ticket = self.draw_ticket();
        self.act(Action::Release {
            ticket,
            boot_id,
            marks,
        });
        Some(Phase::Releasing {
            boot_id,
            ticket,
            goal,
        })
    }

    fn on_release_done(&mut self, phase: Phase, done: bool) -> Option<Phase> {
        match phase {
            Phase::Releasing { boot_id, goal, .. } => Some(self.reach(goal, boot_id)),
            Phase::Returning { held, claims, .. } => Some(self.on_returned(held, claims, done)),
            _ => None,
        }
    }
}
