//! A small world of one server, one store, a rival and every fault we know of, driven by random events.
//!
//! The server and the store follow the rules that the extension and the adapters follow. What is checked
//! is what the product promises: no timestamp of an identity is minted under two tokens, nothing is
//! minted above a committed ceiling, and the keeper never asks for what its rules forbid.
//!
//! A failing run prints its steps, shrunk; proptest keeps its seed in `proptest-regressions`.

mod extension;
mod store;

use self::extension::Server;
use self::store::Stored;
use super::*;
use crate::clock::UnixMs;
use crate::lease::ledger::{
    Cell, Holder, PlannedGrant, Row, Snapshot, Standing, settle_grant, settle_renewal,
};
use crate::lease::pool::{Memory, PlanFor, half, plan_grant};
use crate::lease::step::StepGuard;
use crate::lease::timing::{Timing, TimingSpec};
use crate::lease::token::{CellId, Epoch, EpochNonce, InstanceId, WorkerId};
use crate::lease::window::Window;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, VecDeque};

const TTL_MS: u64 = 10_000;
/// All other identities are held by somebody for ever, so that the same ones change hands all the time.
const WORKERS: usize = 4;
const RIVAL: InstanceId = InstanceId(u128::MAX);

fn timing() -> Timing {
    Timing::new(TimingSpec {
        ttl_ms: TTL_MS,
        window_ms: None,
        period_ms: Some(3_000),
        margin_ms: None,
    })
    .unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Real time passes.
    Wait(u64),
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
    /// The daemon is killed and started again.
    Restart,
    /// It is asked to stop, and started again once it has.
    Stop,
    /// Another daemon takes what it can get, and mints at once.
    Rival,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u64..4_000).prop_map(Step::Wait),
        8 => Just(Step::Look),
        8 => Just(Step::StoreWorks),
        1 => Just(Step::StoreAway),
        8 => Just(Step::Answer),
        1 => Just(Step::AnswerLost),
        6 => Just(Step::Mint),
        1 => Just(Step::Crash),
        1 => Just(Step::Cut),
        1 => Just(Step::CutNext),
        1 => (-20_000i64..20_000).prop_map(Step::SetWall),
        1 => Just(Step::Restart),
        1 => Just(Step::Stop),
        2 => Just(Step::Rival),
    ]
}

#[derive(Clone, Debug)]
enum Request {
    Probe {
        ticket: Ticket,
    },
    Acquire {
        ticket: Ticket,
        boot_id: BootId,
        reading: ClockReading,
        doubt: Option<Attempt>,
    },
    Renew {
        ticket: Ticket,
        held: Held,
        wanted: Vec<Leased>,
    },
    Release {
        ticket: Ticket,
        boot_id: BootId,
        marks: Vec<Mark>,
    },
}

struct World {
    timing: Timing,
    state: State,
    instance: InstanceId,
    memory: Memory,
    steps: StepGuard,
    stopping: bool,
    /// Real time; boot time and the store's clock run with it.
    now: u64,
    wall_set_ms: i64,
    server: Server,
    orphans: Vec<Server>,
    cut_next: bool,
    revision: u64,
    rows: BTreeMap<WorkerId, Stored>,
    requests: VecDeque<Request>,
    answers: VecDeque<(Event, Event)>,
    /// Who minted a timestamp of an identity.
    minted: HashMap<(WorkerId, UnixMs), (Token, BootId)>,
    committed: HashMap<(WorkerId, Token), UnixMs>,
    fenced: Vec<(BootId, Mark)>,
    installed: HashMap<BootId, Token>,
    seen: Option<(BootId, BootMs)>,
    installs: usize,
}

impl World {
    fn new() -> Self {
        Self {
            timing: timing(),
            state: State::new(),
            instance: InstanceId(1),
            memory: Memory::new(),
            steps: StepGuard::new(),
            stopping: false,
            now: 100_000,
            wall_set_ms: 0,
            server: Server {
                boot_id: BootId(1),
                slots: BTreeMap::new(),
            },
            orphans: Vec::new(),
            cut_next: false,
            revision: 0,
            rows: BTreeMap::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            minted: HashMap::new(),
            committed: HashMap::new(),
            fenced: Vec::new(),
            installed: HashMap::new(),
            seen: None,
            installs: 0,
        }
    }

    fn clock(&self) -> ClockReading {
        let wall = (1_700_000_000_000 + self.now).saturating_add_signed(self.wall_set_ms);
        ClockReading {
            wall: UnixMs(wall),
            boot: BootMs(self.now),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Wait(ms) => self.now += ms,
            Step::Look => self.look(),
            Step::StoreWorks => self.store_works(),
            Step::StoreAway => {
                if let Some(request) = self.requests.pop_front() {
                    self.tell(failure(&request, false));
                }
            }
            Step::Answer => {
                if let Some((answer, _)) = self.answers.pop_front() {
                    self.tell(answer);
                }
            }
            Step::AnswerLost => {
                if let Some((_, unknown)) = self.answers.pop_front() {
                    self.tell(unknown);
                }
            }
            Step::Mint => self.mint(),
            Step::Crash => {
                let boot_id = BootId(self.server.boot_id.0 + 1);
                let old = std::mem::replace(
                    &mut self.server,
                    Server {
                        boot_id,
                        slots: BTreeMap::new(),
                    },
                );
                self.orphans.push(old);
                self.tell(Event::ServerLost);
            }
            Step::Cut => self.tell(Event::ServerLost),
            Step::CutNext => self.cut_next = true,
            Step::SetWall(ms) => self.wall_set_ms = ms,
            Step::Restart => self.restart(),
            Step::Stop => {
                self.stopping = true;
                self.tell(Event::Stop);
            }
            Step::Rival => self.rival(),
        }
        if self.stopping && self.state.phase == Phase::Stopped {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.state = State::new();
        self.instance = InstanceId(self.instance.0 + 1);
        self.memory = Memory::new();
        self.steps = StepGuard::new();
        self.stopping = false;
        self.answers.clear();
        self.seen = None;
        // What is under way still reaches the store; nobody waits for it.
        while !self.requests.is_empty() {
            self.store_works();
        }
        self.answers.clear();
    }

    fn look(&mut self) {
        let clock = self.clock();
        self.seen = Some((self.server.boot_id, clock.boot));
        let clock_good = self.steps.observe(clock).is_good();
        let random = self.now;
        self.tell(Event::Reading(Reading {
            clock,
            boot_id: self.server.boot_id,
            clock_good,
            random,
        }));
    }

    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (state, actions) = next(&self.timing, self.state.clone(), event).unwrap();
            self.state = state;
            for action in actions {
                events.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        let event = match action {
            Action::ReadClock => return None,
            Action::Lost { leased, .. } => {
                for leased in &leased {
                    self.memory.note_ceiling(leased.worker, leased.window.ceiling);
                    self.memory.note_lost(leased.worker);
                }
                return None;
            }
            Action::Inspect => self.inspect(),
            Action::Install { held, anchor } => {
                assert!(anchor.wall <= held.leased[0].window.ceiling);
                self.check_alive(&held);
                self.install(&held)
            }
            Action::Extend { held, .. } => {
                self.check_alive(&held);
                self.extend(&held)
            }
            Action::Fence { boot_id, claims } => self.fence(boot_id, &claims),
            action => {
                self.send(action);
                return None;
            }
        };
        // Done; but the connection may break before the answer is back.
        Some(if std::mem::take(&mut self.cut_next) {
            Event::ServerLost
        } else {
            event
        })
    }

    fn send(&mut self, action: Action) {
        let request = match action {
            Action::Probe { ticket } => Request::Probe { ticket },
            Action::Acquire {
                ticket,
                boot_id,
                reading,
                doubt,
            } => {
                assert_eq!(
                    Some(boot_id),
                    self.seen.map(|seen| seen.0),
                    "for the memory seen last"
                );
                Request::Acquire {
                    ticket,
                    boot_id,
                    reading,
                    doubt,
                }
            }
            Action::Renew { ticket, held, wanted } => {
                let (boot_id, now) = self.seen.unwrap();
                assert!(
                    held.boot_id == boot_id && now < held.deadline,
                    "a dead token is never renewed"
                );
                assert!(held.installed && held.published);
                Request::Renew { ticket, held, wanted }
            }
            Action::Release {
                ticket,
                boot_id,
                marks,
            } => {
                let fenced = |mark: &Mark| self.fenced.contains(&(boot_id, *mark));
                assert!(marks.iter().all(fenced), "no release without a live fence");
                Request::Release {
                    ticket,
                    boot_id,
                    marks,
                }
            }
            action => panic!("not for the store: {action:?}"),
        };
        self.requests.push_back(request);
    }

    fn inspect(&mut self) -> Event {
        for (worker, slot) in &self.server.slots {
            self.memory
                .note_ceiling(*worker, if slot.open { slot.ceiling } else { slot.last });
        }
        let open = self.server.slots.iter().filter(|(_, slot)| slot.open);
        let claims = open
            .map(|(worker, slot)| Claim {
                worker: *worker,
                token: slot.token,
            })
            .collect();
        Event::Inspected { claims }
    }

    fn check_alive(&self, held: &Held) {
        let boot_id = self.seen.unwrap().0;
        assert_eq!(held.boot_id, boot_id, "never into another shared memory");
        for leased in &held.leased {
            let committed = self.committed[&(leased.worker, held.token)];
            assert!(
                leased.window.ceiling <= committed,
                "a ceiling is published before it is committed"
            );
        }
    }
}

/// What the daemon is told when no answer came.
fn failure(request: &Request, may_be_done: bool) -> Event {
    match request {
        Request::Probe { ticket } => Event::ProbeFailed { ticket: *ticket },
        Request::Acquire { ticket, doubt, .. } => Event::GrantFailed {
            ticket: *ticket,
            doubt: doubt.clone(),
        },
        Request::Renew { ticket, .. } => Event::RenewFailed {
            ticket: *ticket,
            doubt: may_be_done,
        },
        Request::Release { ticket, .. } => Event::ReleaseFailed { ticket: *ticket },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_timestamp_is_minted_under_two_tokens(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
    }

    /// After the faults the world is left alone; the keeper must find its way to a lease.
    #[test]
    fn minting_comes_back_after_any_faults(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.run(Step::SetWall(0));
        world.run(Step::Restart);
        let installs = world.installs;
        for _ in 0..80 {
            for step in [Step::Look, Step::StoreWorks, Step::Answer, Step::Wait(500)] {
                world.run(step);
            }
        }
        prop_assert!(world.installs > installs, "{:?}", world.state);
        let open = world.server.slots.values().filter(|slot| slot.open && world.now < slot.deadline.0);
        prop_assert_eq!(open.count(), 2, "{:?}", world.state);
    }
}
