//! A server and its daemon: the core's keeper, the desk, and what the shell does between them.

use super::{COUNT, EPOCH_MS, Minted, TTL_MS};
use crate::lease::HolderName;
use crate::lease::desk::{Acquire, Answer, Desk, Remembered, Request};
use crate::lease::store_memory::{MemoryPlace, MemoryStore};
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::keeper::{Held, Phase, Reading};
use idgen_core::lease::{
    Action, Anchor, BootId, CellId, Claim, Class, Event, Identity, InstanceId, Mark, Memory, Reach, State,
    StepGuard, Timing, TimingSpec, Token, Wanted, next,
};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

const REACH: Reach = Reach {
    timeout_ms: 1_000,
    members: 1,
};

/// How long after a restore every daemon has spoken.
pub(super) fn grace_ms() -> u64 {
    timing().grace_ms(REACH)
}

pub(super) fn timing() -> Timing {
    Timing::new(TimingSpec {
        period_ms: Some(3_000),
        ..TimingSpec::of_ttl(TTL_MS)
    })
    .unwrap()
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NodeStep {
    /// The daemon looks at the server.
    Look,
    /// Its request goes on by so many awaits.
    Work(usize),
    /// Every open identity mints.
    Mint,
    /// Shared memory is made anew; the old one goes on minting in orphans.
    Crash,
    /// The connection to the server ends.
    Cut,
    /// The wall clock is this far from the truth.
    SetWall(i64),
    /// The daemon is killed and started again. What it has asked for is not done any more.
    Restart,
    /// It is asked to stop, and started again once it has.
    Stop,
}

/// A slot of shared memory, by the rules of the extension.
struct Slot {
    token: Token,
    open: bool,
    last: UnixMs,
    ceiling: UnixMs,
    deadline: BootMs,
}

struct Server {
    boot_id: BootId,
    cell: Option<CellId>,
    slots: BTreeMap<Identity, Slot>,
    /// I7: tokens that were installed rise.
    newest: Token,
    /// Before the store was asked for what the server has written down last.
    asked: Option<BootMs>,
}

impl Server {
    fn new(boot_id: BootId) -> Self {
        Self {
            boot_id,
            cell: None,
            slots: BTreeMap::new(),
            newest: Token::default(),
            asked: None,
        }
    }

    fn install(&mut self, now: BootMs, held: &Held) -> Event {
        for leased in &held.leased {
            let slot = self.slots.get(&leased.identity);
            if slot.is_some_and(|slot| slot.token == leased.token) {
                continue;
            }
            let above = slot.is_none_or(|slot| leased.token > slot.token && leased.window.floor > slot.last);
            if !above || now >= held.deadline {
                return Event::InstallRefused;
            }
            let slot = Slot {
                token: leased.token,
                open: true,
                last: leased.window.floor.saturating_sub(1),
                ceiling: leased.window.ceiling,
                deadline: held.deadline,
            };
            self.slots.insert(leased.identity, slot);
        }
        let token = held.leased[0].token;
        assert!(token >= self.newest, "an older token is installed");
        self.newest = token;
        Event::Installed
    }

    fn extend(&mut self, held: &Held) -> Event {
        for leased in &held.leased {
            match self.slots.get_mut(&leased.identity) {
                Some(slot) if slot.open && slot.token == leased.token => {
                    slot.ceiling = slot.ceiling.max(leased.window.ceiling);
                    slot.deadline = slot.deadline.max(held.deadline);
                }
                _ => return Event::ExtendRefused,
            }
        }
        Event::Extended
    }

    fn fence(&mut self, claims: &[Claim]) -> Event {
        let mut marks = Vec::new();
        for claim in claims {
            if let Some(slot) = self
                .slots
                .get_mut(&claim.identity)
                .filter(|slot| slot.token == claim.token)
            {
                slot.open = false;
                marks.push(Mark {
                    claim: *claim,
                    last: slot.last,
                });
            }
        }
        Event::Fenced { marks }
    }
}

pub(super) struct Node {
    class: Class,
    wanted: Wanted,
    place: MemoryPlace,
    desk: Desk<MemoryStore>,
    state: State,
    memory: Memory,
    steps: StepGuard,
    instance: InstanceId,
    wall_set_ms: i64,
    stopping: bool,
    server: Server,
    orphans: Vec<Server>,
    /// What the server has written down of its store.
    pub(super) disk: Option<Anchor>,
}

impl Node {
    pub(super) fn new(number: usize, class: Class, wanted: Wanted, place: &MemoryPlace) -> Self {
        // Names of two nodes never meet: each counts up from its own million.
        let first = number as u128 * 1_000_000 + 1;
        let instance = InstanceId(first);
        Self {
            class,
            wanted,
            desk: desk(place, class, instance),
            place: place.clone(),
            state: State::new(),
            memory: Memory::new(),
            steps: StepGuard::new(),
            instance,
            wall_set_ms: 0,
            stopping: false,
            server: Server::new(BootId(first)),
            orphans: Vec::new(),
            disk: None,
        }
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.state.phase
    }

    /// Identities that can be minted from.
    pub(super) fn open(&self, now: u64) -> usize {
        let slots = self.server.slots.values();
        slots
            .filter(|slot| slot.open && BootMs(now) < slot.deadline)
            .count()
    }

    fn clock(&self, now: u64) -> ClockReading {
        ClockReading {
            wall: UnixMs((EPOCH_MS + now).saturating_add_signed(self.wall_set_ms)),
            boot: BootMs(now),
        }
    }

    pub(super) async fn run(&mut self, now: u64, step: NodeStep) {
        match step {
            NodeStep::Look => self.look(now),
            NodeStep::Work(awaits) => {
                for _ in 0..awaits {
                    self.work(now).await;
                }
            }
            NodeStep::Mint => {}
            NodeStep::Crash => {
                let fresh = Server::new(BootId(self.server.boot_id.0 + 1));
                self.orphans.push(std::mem::replace(&mut self.server, fresh));
                self.drive(now, Event::ServerLost);
            }
            NodeStep::Cut => self.drive(now, Event::ServerLost),
            NodeStep::SetWall(ms) => self.wall_set_ms = ms,
            NodeStep::Restart => self.restart(),
            NodeStep::Stop => {
                self.stopping = true;
                self.drive(now, Event::Stop);
            }
        }
        if self.stopping && self.state.phase == Phase::Stopped {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.instance = InstanceId(self.instance.0 + 1);
        self.desk = desk(&self.place, self.class, self.instance);
        self.state = State::new();
        self.memory = Memory::new();
        self.steps = StepGuard::new();
        self.stopping = false;
    }

    fn look(&mut self, now: u64) {
        let clock = self.clock(now);
        let clock_good = self.steps.observe(clock).is_good();
        let reading = Reading {
            clock,
            boot_id: self.server.boot_id,
            clock_good,
            may_acquire: clock_good,
            random: now,
        };
        self.drive(now, Event::Reading(reading));
        // The shell does it once a period.
        if let Phase::Away { .. } = self.state.phase {
            let remembered = self.remembered(now);
            self.desk.submit_if_idle(Request::Look(remembered));
        }
    }

    fn remembered(&self, now: u64) -> Remembered {
        let ago = |asked: BootMs| Duration::from_millis(BootMs(now).since(asked));
        Remembered {
            cell: self.server.cell,
            anchors: self.disk.iter().cloned().collect(),
            asked: self
                .server
                .asked
                .and_then(|asked| tokio::time::Instant::now().checked_sub(ago(asked))),
            home: None,
        }
    }

    /// Polls the request that is under way once, and hears its answer if that is there.
    async fn work(&mut self, now: u64) {
        let polled = {
            let mut answer = pin!(self.desk.answer());
            poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await
        };
        let Poll::Ready(answer) = polled else { return };
        let Answer {
            event,
            refused,
            asked,
            released,
            ..
        } = answer;
        assert!(refused.is_none(), "the daemon ends: {refused:?}");
        for leased in &asked {
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
        }
        for mark in &released {
            self.memory.note_released(*mark);
        }
        if let Some(event) = event {
            self.drive(now, event);
        }
    }

    fn drive(&mut self, now: u64, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (state, actions) = next(&timing(), self.state.clone(), event).unwrap();
            self.state = state;
            for action in actions {
                events.extend(self.act(now, action));
            }
        }
    }

    fn act(&mut self, now: u64, action: Action) -> Option<Event> {
        match action {
            Action::ReadClock => {}
            Action::Lost { leased, .. } => {
                for leased in &leased {
                    self.memory.note_ceiling(leased.identity, leased.window.ceiling);
                    self.memory.note_lost(leased.identity);
                }
            }
            Action::Inspect => return Some(self.inspect()),
            Action::Install { held, .. } => {
                return Some(self.publish(&held, |server| server.install(BootMs(now), &held)));
            }
            Action::Extend { held, .. } => return Some(self.publish(&held, |server| server.extend(&held))),
            Action::Fence { boot_id, .. } if boot_id != self.server.boot_id => {
                return Some(Event::ServerForgot);
            }
            Action::Fence { claims, .. } => return Some(self.server.fence(&claims)),
            Action::Probe { ticket } => {
                let (remembered, wall) = (self.remembered(now), self.clock(now).wall);
                self.desk.submit(Request::Probe {
                    ticket,
                    remembered,
                    wall,
                });
            }
            Action::Acquire {
                ticket,
                boot_id,
                reading,
                doubt,
                identities,
            } => self.desk.submit(Request::Acquire(Acquire {
                ticket,
                boot_id,
                remembered: self.remembered(now),
                reading,
                doubt,
                memory: self.memory.clone(),
                wanted: identities.map_or_else(|| self.wanted.clone(), Wanted::Listed),
                // The same choice for all: the worst case.
                random: 7,
            })),
            Action::Renew { ticket, held, wanted } => {
                self.desk.submit(Request::Renew { ticket, held, wanted })
            }
            Action::Release {
                ticket,
                boot_id,
                marks,
            } => self.desk.submit(Request::Release {
                ticket,
                boot_id,
                marks,
            }),
        }
        None
    }

    /// What the store has shown is written down before anything of it is used.
    fn publish(&mut self, held: &Held, publish: impl FnOnce(&mut Server) -> Event) -> Event {
        if held.boot_id != self.server.boot_id {
            return Event::ServerForgot;
        }
        let shown = self.desk.anchor().unwrap().clone();
        if let Some(disk) = &self.disk
            && disk.may_become(&shown).is_err()
        {
            return Event::InstallRefused;
        }
        self.server.cell = Some(shown.cell_id);
        self.server.asked = Some(held.asked_after(&timing()));
        self.disk = Some(shown);
        assert!(held.leased.len() <= COUNT);
        publish(&mut self.server)
    }

    fn inspect(&mut self) -> Event {
        let mut claims = Vec::new();
        for (identity, slot) in &self.server.slots {
            let bound = if slot.open { slot.ceiling } else { slot.last };
            self.memory.note_ceiling(*identity, bound);
            if slot.open {
                claims.push(Claim {
                    identity: *identity,
                    token: slot.token,
                });
            }
        }
        Event::Inspected { claims }
    }

    /// One id of every identity that is open here, and in every memory that backends have outlived.
    pub(super) fn mint(&mut self, now: u64, place: &MemoryPlace, minted: &mut Minted) {
        let clock = self.clock(now);
        for server in self.orphans.iter_mut().chain([&mut self.server]) {
            for (identity, slot) in &mut server.slots {
                let at = clock.wall.max(slot.last.saturating_add(1));
                if !slot.open || clock.boot >= slot.deadline || at > slot.ceiling {
                    continue;
                }
                slot.last = at;
                let granted = place
                    .granted(self.class, *identity, slot.token, server.boot_id)
                    .unwrap();
                assert!(
                    granted.floor <= at && at <= granted.ceiling,
                    "{at:?} is not in {granted:?}"
                );
                minted.note(*identity, (slot.token, server.boot_id), granted.floor, at);
            }
        }
    }
}

fn desk(place: &MemoryPlace, class: Class, instance: InstanceId) -> Desk<MemoryStore> {
    let name = HolderName {
        instance,
        name: String::new(),
    };
    Desk::new(place.open(class, name.clone(), TTL_MS), name, timing(), REACH)
}
