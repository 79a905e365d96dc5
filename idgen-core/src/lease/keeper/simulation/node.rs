//! One server and its daemon: what the daemon's shell does with the keeper's actions.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Probe {
        ticket: Ticket,
    },
    Acquire {
        ticket: Ticket,
        boot_id: BootId,
        reading: ClockReading,
        doubt: Option<Attempt>,
        identities: Option<Vec<Identity>>,
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

pub(super) struct Node {
    pub(super) wanted: Wanted,
    pub(super) timing: Timing,
    pub(super) state: State,
    pub(super) instance: InstanceId,
    pub(super) memory: Memory,
    /// As it was read last.
    pub(super) cell: Option<Cell>,
    steps: StepGuard,
    stopping: bool,
    wall_set_ms: i64,
    pub(super) server: Server,
    pub(super) orphans: Vec<Server>,
    cut_next: bool,
    pub(super) requests: VecDeque<Request>,
    /// What the store said, and what the daemon is told when that gets lost.
    pub(super) answers: VecDeque<(Event, Event)>,
    pub(super) fenced: Vec<(BootId, Mark)>,
    pub(super) installed: HashMap<BootId, Token>,
    seen: Option<(BootId, BootMs)>,
    pub(super) installs: usize,
}

impl Node {
    pub(super) fn new(number: usize, wanted: Wanted) -> Self {
        // Names of two nodes never meet: each counts up from its own million.
        let first = number as u128 * 1_000_000 + 1;
        Self {
            state: begin(&wanted),
            wanted,
            timing: timing(),
            instance: InstanceId(first),
            memory: Memory::new(),
            cell: None,
            steps: StepGuard::new(),
            stopping: false,
            wall_set_ms: 0,
            server: Server {
                boot_id: BootId(first),
                formats: Vec::new(),
                slots: BTreeMap::new(),
            },
            orphans: Vec::new(),
            cut_next: false,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            fenced: Vec::new(),
            installed: HashMap::new(),
            seen: None,
            installs: 0,
        }
    }

    pub(super) fn clock(&self, now: u64) -> ClockReading {
        let wall = (1_700_000_000_000 + now).saturating_add_signed(self.wall_set_ms);
        ClockReading {
            wall: UnixMs(wall),
            boot: BootMs(now),
        }
    }

    pub(super) fn run(&mut self, ground: &mut Ground, step: NodeStep) {
        match step {
            NodeStep::Look => self.look(ground),
            NodeStep::StoreWorks => self.store_works(ground),
            NodeStep::StoreAway => {
                if let Some(request) = self.requests.pop_front() {
                    self.tell(ground, failure(&request, false));
                }
            }
            NodeStep::Answer => {
                if let Some((answer, _)) = self.answers.pop_front() {
                    self.tell(ground, answer);
                }
            }
            NodeStep::AnswerLost => {
                if let Some((_, unknown)) = self.answers.pop_front() {
                    self.tell(ground, unknown);
                }
            }
            NodeStep::Mint => self.mint(ground),
            NodeStep::Crash => {
                let fresh = Server {
                    boot_id: BootId(self.server.boot_id.0 + 1),
                    formats: Vec::new(),
                    slots: BTreeMap::new(),
                };
                self.orphans.push(std::mem::replace(&mut self.server, fresh));
                self.tell(ground, Event::ServerLost);
            }
            NodeStep::Cut => self.tell(ground, Event::ServerLost),
            NodeStep::CutNext => self.cut_next = true,
            NodeStep::SetWall(ms) => self.wall_set_ms = ms,
            NodeStep::Want(set) => self.want(ground, set),
            NodeStep::Restart => self.restart(ground),
            NodeStep::Ordered => {
                if let Some(held) = self.state.phase.held()
                    && let Some(tenancy) = held.leased.first()
                {
                    let token = tenancy.token;
                    self.tell(ground, Event::Ordered { token });
                }
            }
            NodeStep::Stop => {
                self.stopping = true;
                self.tell(ground, Event::Stop);
            }
        }
        if self.stopping && self.state.phase == Phase::Stopped {
            self.restart(ground);
        }
    }

    /// Whatever the others want: moves overlap, and go back and forth.
    fn want(&mut self, ground: &mut Ground, set: u8) {
        if matches!(self.wanted, Wanted::Listed(_)) {
            let identities: Vec<Identity> = (0..4)
                .filter(|bit| set & (1 << bit) != 0)
                .map(|bit| Identity(bit + 1))
                .collect();
            self.wanted = Wanted::Listed(identities.clone());
            self.tell(ground, Event::Want { identities });
        }
    }

    fn restart(&mut self, ground: &mut Ground) {
        self.state = begin(&self.wanted);
        self.instance = InstanceId(self.instance.0 + 1);
        self.memory = Memory::new();
        self.cell = None;
        self.steps = StepGuard::new();
        self.stopping = false;
        self.seen = None;
        // What is under way still reaches the store; nobody waits for it.
        while !self.requests.is_empty() {
            self.store_works(ground);
        }
        self.answers.clear();
    }

    fn look(&mut self, ground: &mut Ground) {
        let clock = self.clock(ground.now);
        self.seen = Some((self.server.boot_id, clock.boot));
        let clock_good = self.steps.observe(clock).is_good();
        let reading = Reading {
            clock,
            boot_id: self.server.boot_id,
            clock_good,
            may_acquire: clock_good,
            random: ground.now,
        };
        self.tell(ground, Event::Reading(reading));
    }

    fn tell(&mut self, ground: &mut Ground, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (state, actions) = next(&self.timing, self.state.clone(), event).unwrap();
            self.state = state;
            for action in actions {
                events.extend(self.act(ground, action));
            }
        }
    }

    fn act(&mut self, ground: &mut Ground, action: Action) -> Option<Event> {
        let event = match action {
            Action::ReadClock => return None,
            Action::Lost { leased, .. } => {
                for leased in &leased {
                    self.memory.note_ceiling(leased.identity, leased.window.ceiling);
                    self.memory.note_lost(leased.identity);
                }
                return None;
            }
            Action::Inspect => self.inspect(),
            Action::Install { held, anchor } => {
                // A clock may gain that much without being called stepped.
                let latest = held.leased[0].window.ceiling.saturating_add(STEP_MS_MAX);
                assert!(anchor.wall <= latest);
                self.check_alive(ground, &held);
                self.install(ground.now, &held)
            }
            Action::Extend { held, .. } => {
                self.check_alive(ground, &held);
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
                identities,
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
                    identities,
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
        for (identity, slot) in &self.server.slots {
            self.memory
                .note_ceiling(*identity, if slot.open { slot.ceiling } else { slot.last });
        }
        let open = self.server.slots.iter().filter(|(_, slot)| slot.open);
        let claims = open
            .map(|(identity, slot)| Claim {
                identity: *identity,
                token: slot.token,
            })
            .collect();
        Event::Inspected { claims }
    }

    /// What the server is told.
    pub(super) fn formats(&self) -> FormatPlan {
        self.cell.as_ref().unwrap().worker_format.parse().unwrap()
    }

    fn check_alive(&self, ground: &Ground, held: &Held) {
        let boot_id = self.seen.unwrap().0;
        assert_eq!(held.boot_id, boot_id, "never into another shared memory");
        for leased in &held.leased {
            let committed = ground.committed[&(leased.identity, leased.token)];
            assert!(
                leased.window.ceiling <= committed,
                "a ceiling is published before it is committed"
            );
            // A plan says nothing of the time before a switch that it has dropped; a server that still mints there
            // remembers (what it mints is checked id by id).
            let ceiling = leased.window.ceiling;
            assert!(
                ceiling < self.cell.as_ref().unwrap().min_floor
                    || *self.formats().at(ceiling) == ground.format_at(ceiling),
                "a ceiling above an unknown switch"
            );
        }
    }
}

fn begin(wanted: &Wanted) -> State {
    match wanted {
        Wanted::Any(_) => State::new(),
        Wanted::Listed(identities) => State::wanting(identities.clone()),
    }
}

/// What the daemon is told when no answer came.
pub(super) fn failure(request: &Request, may_be_done: bool) -> Event {
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
