//! Several holders of one name, a store that loses answers, time that stands or jumps: whatever happens, nothing is done
//! twice.

use super::*;
use crate::clock::BootMs;
use crate::lease::ledger::{Cell, Holder};
use crate::lease::{BootId, InstanceId, Revision, Timing, TimingSpec, Token};
use proptest::prelude::*;
use std::collections::BTreeMap;

const KEY: &str = "k";

/// What a holder does next; its index comes first.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// One step of its tenure.
    Step,
    /// It asks for so much more.
    Raise(u8),
    /// It does so much of what it may.
    Use(u8),
    /// Its shared memory is made anew, or its daemon.
    Reboot,
    RestartDaemon,
}

/// What becomes of the next request: for the store, and for the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Done,
    AnswerLost,
    RequestLost,
}

struct Holding {
    tenure: Tenure,
    ceilings: Ceilings,
    who: Who,
    /// What its server was told: it may go on with that by itself.
    installed: Option<(i64, i64)>,
    used: i64,
}

#[derive(Default)]
struct Store {
    revision: u64,
    generation: u64,
    row_revision: u64,
    occupant: Option<(Who, Token, Revision)>,
    ceiling: Option<Stored>,
}

impl Store {
    fn look(&self) -> NamedLook {
        let occupant = self.occupant.map(|(who, token, guard)| Occupant {
            holder: Holder {
                instance: who.instance,
                name: String::new(),
                token,
                boot_id: who.boot_id,
                expired: false,
            },
            guard,
        });
        NamedLook {
            cell: Cell::example(),
            revision: Revision(self.revision),
            row: (self.generation > 0).then(|| NamedRow {
                name: name(),
                generation: self.generation,
                revision: Revision(self.row_revision),
                occupant,
            }),
        }
    }

    fn next(&mut self) -> Revision {
        self.revision += 1;
        Revision(self.revision)
    }

    fn acquire(&mut self, plan: &Acquisition, who: Who) -> Option<Revision> {
        let seen = (self.generation > 0).then_some(Revision(self.row_revision));
        if self.occupant.is_some() || seen != plan.seen {
            return None;
        }
        let revision = self.next();
        self.generation = plan.generation;
        self.row_revision = revision.0;
        let token = Token {
            epoch: plan.epoch,
            revision,
        };
        self.occupant = Some((who, token, revision));
        Some(revision)
    }

    fn renew(&mut self, held: &Held) -> Option<Revision> {
        let (who, token, guard) = self.occupant?;
        if (token, guard) != (held.token, held.guard) {
            return None;
        }
        let revision = self.next();
        self.occupant = Some((who, token, revision));
        Some(revision)
    }

    fn raise(&mut self, held: &Held, raise: &Raise) -> Option<Revision> {
        let holds = self.occupant.is_some_and(|(_, token, _)| token == held.token);
        if !holds || self.ceiling != raise.seen {
            return None;
        }
        let revision = self.next();
        self.ceiling = Some(Stored {
            ceiling: raise.to,
            revision,
        });
        Some(revision)
    }
}

fn name() -> LeaseName {
    "lock/a".parse().unwrap()
}

fn holding(number: u128) -> Holding {
    let timing = Timing::new(TimingSpec::of_ttl(2_000)).unwrap();
    Holding {
        tenure: Tenure::new(name(), timing),
        ceilings: Ceilings::new(),
        who: Who {
            instance: InstanceId(number),
            boot_id: BootId(number),
        },
        installed: None,
        used: 0,
    }
}

/// Runs `request` as `fate` has it: what it did, if an answer came.
fn send<T>(fate: Fate, request: impl FnOnce() -> T) -> Option<T> {
    match fate {
        Fate::Done => Some(request()),
        Fate::AnswerLost => {
            drop(request());
            None
        }
        Fate::RequestLost => None,
    }
}

impl Holding {
    fn step(&mut self, now: BootMs, store: &mut Store, fate: Fate) {
        self.tenure.pass(now, self.who.boot_id);
        match self.tenure.step(now) {
            Step::RestUntil(_) => {}
            Step::Renew(held) => match send(fate, || store.renew(&held)) {
                Some(Some(revision)) => self.tenure.renewed(now, revision, 2_000, 0),
                _ => self.tenure.doubt(),
            },
            Step::Look => {
                let (decision, _) = self.tenure.looked(&store.look(), self.who, 0);
                match decision {
                    Decision::Acquire(acquisition) => self.acquire(now, acquisition, store, fate),
                    Decision::GiveUp(token) => {
                        self.installed = None;
                        send(fate, || store.occupant.take_if(|(_, held, _)| *held == token));
                    }
                    Decision::Wait(_) | Decision::Hold => {}
                }
            }
        }
    }

    fn acquire(&mut self, reading: BootMs, acquisition: Acquisition, store: &mut Store, fate: Fate) {
        self.ceilings = Ceilings::new();
        let who = self.who;
        let attempt = Attempt {
            acquisition: acquisition.clone(),
            reading,
        };
        match send(fate, || store.acquire(&acquisition, who)) {
            Some(Some(revision)) => self.tenure.acquired(attempt, revision, 2_000, 0),
            Some(None) => {}
            None => self.tenure.acquire_unknown(attempt),
        }
    }

    fn raise(&mut self, by: i64, store: &mut Store, fate: Fate) {
        let Some((held, _)) = self.tenure.held() else {
            return;
        };
        let held = held.clone();
        let have = store.ceiling.map_or(0, |stored| stored.ceiling);
        let wants = [Want {
            key: KEY.to_owned(),
            ceiling: have + by,
        }];
        let unread = self.ceilings.unread(&wants);
        // Whether the lease is still there is for the guard of the raise; what is read is read all the same.
        let found = store.ceiling.map(|stored| (KEY.to_owned(), stored));
        if !unread.is_empty() && self.tenure.is_sure() {
            self.ceilings
                .note_read(&unread, &found.into_iter().collect::<BTreeMap<_, _>>());
        }
        for raise in self.ceilings.plan(&wants) {
            match send(fate, || store.raise(&held, &raise)) {
                Some(Some(revision)) => self.ceilings.note_raised(&[raise], revision),
                Some(None) => {
                    self.ceilings.note_doubt(&[raise]);
                    self.tenure.doubt();
                }
                None => self.ceilings.note_doubt(&[raise]),
            }
        }
        self.installed = self.ceilings.granted(KEY).or(self.installed);
    }

    /// The server goes on by itself with what it was told, however late: no deadline stops it here.
    fn use_some(&mut self, count: i64) -> Vec<i64> {
        let Some((floor, ceiling)) = self.installed else {
            return Vec::new();
        };
        let first = self.used.max(floor) + 1;
        let last = ceiling.min(first + count - 1);
        self.used = self.used.max(last);
        (first..=last).collect()
    }
}

fn any_move() -> impl Strategy<Value = (usize, Move, Fate, u64)> {
    let kind = prop_oneof![
        6 => Just(Move::Step),
        4 => (1u8..20).prop_map(Move::Raise),
        4 => (1u8..20).prop_map(Move::Use),
        1 => Just(Move::Reboot),
        1 => Just(Move::RestartDaemon),
    ];
    let fate = prop_oneof![
        6 => Just(Fate::Done), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::RequestLost)
    ];
    (0usize..3, kind, fate, 0u64..900)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn nothing_is_done_twice(
        moves in prop::collection::vec(any_move(), 1..120), expiries in prop::collection::vec(0usize..120, 0..12),
    ) {
        let mut store = Store::default();
        let mut holdings: Vec<Holding> = (1..=3).map(holding).collect();
        let (mut done, mut now, mut names) = (BTreeMap::new(), BootMs(1_000), 10u128);
        let mut orphans: Vec<Holding> = Vec::new();
        for (turn, (index, action, fate, pause)) in moves.into_iter().enumerate() {
            now = now.saturating_add(pause);
            if expiries.contains(&turn) {
                // The store takes it away at any time, early or late.
                store.occupant = None;
            }
            let holding = &mut holdings[index];
            match action {
                Move::Step => holding.step(now, &mut store, fate),
                Move::Raise(by) => holding.raise(i64::from(by), &mut store, fate),
                Move::Use(count) => {
                    // Processes of a server that is gone may go on for a while.
                    let orphan = orphans.last_mut().filter(|_| count % 3 == 0);
                    for id in orphan.unwrap_or(holding).use_some(i64::from(count)) {
                        let before = done.insert(id, index);
                        prop_assert_eq!(before, None, "{} is done again by {}", id, index);
                    }
                }
                Move::Reboot | Move::RestartDaemon => {
                    names += 1;
                    let who = match action {
                        Move::Reboot => Who { boot_id: BootId(names), ..holding.who },
                        _ => Who { instance: InstanceId(names), ..holding.who },
                    };
                    let old = std::mem::replace(holding, super::simulation::holding(names));
                    holding.who = who;
                    if matches!(action, Move::RestartDaemon) {
                        // Shared memory lives on, and with it what it was told.
                        holding.installed = old.installed;
                        holding.used = old.used;
                    } else {
                        orphans.push(old);
                    }
                }
            }
        }
    }
}
