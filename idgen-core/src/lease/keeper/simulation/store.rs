//! The store's part of the world, and a rival who uses it.

use super::node::{Request, failure};
use super::*;

#[derive(Clone, Debug)]
struct Lent {
    instance: InstanceId,
    token: Token,
    boot_id: BootId,
    expires_at: u64,
}

#[derive(Clone, Debug)]
struct Stored {
    generation: u64,
    ceiling: UnixMs,
    revision: Revision,
    lent: Option<Lent>,
}

/// What all share: real time, the store, and the record of what was minted.
pub(super) struct Ground {
    class: Class,
    cell: Cell,
    /// Every format that the cell has had, and from when.
    history: Vec<(UnixMs, CellFormat)>,
    /// Real time; boot time and the store's clock run with it.
    pub(super) now: u64,
    revision: u64,
    rows: BTreeMap<Identity, Stored>,
    /// Who minted a timestamp of an identity.
    pub(super) minted: HashMap<(Identity, UnixMs), (Token, BootId)>,
    pub(super) committed: HashMap<(Identity, Token), UnixMs>,
    rivals: u128,
}

impl Ground {
    pub(super) fn new(class: Class) -> Self {
        Self {
            class,
            cell: Cell::example(),
            history: vec![(UnixMs(0), CellFormat::new(CLASSIC, None).unwrap())],
            now: 100_000,
            revision: 0,
            rows: BTreeMap::new(),
            minted: HashMap::new(),
            committed: HashMap::new(),
            rivals: 0,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let rows = self.rows.iter().map(|(identity, row)| Row {
            identity: *identity,
            generation: row.generation,
            ceiling: row.ceiling,
            revision: row.revision,
            holder: row.lent.as_ref().map(|lent| Holder {
                instance: lent.instance,
                name: String::new(),
                token: lent.token,
                boot_id: lent.boot_id,
                expired: self.now >= lent.expires_at,
            }),
        });
        let others = half(Epoch(0))
            .skip(WORKERS)
            .map(|worker| somebodys(Identity(worker)));
        let rows = match self.class {
            Class::Worker => rows.chain(others).collect(),
            Class::Shard => rows.collect(),
        };
        Snapshot::new(self.cell.clone(), Revision(self.revision), rows)
    }

    pub(super) fn wall(&self) -> UnixMs {
        UnixMs(1_700_000_000_000 + self.now)
    }

    pub(super) fn plan(&self) -> FormatPlan {
        self.cell.worker_format.parse().unwrap()
    }

    /// The format of ids that carry `at`, whoever mints them.
    pub(super) fn format_at(&self, at: UnixMs) -> CellFormat {
        self.history.iter().rfind(|(from, _)| *from <= at).unwrap().1
    }

    /// To whatever the cell does not have now; `None`: it is refused.
    pub(super) fn switch(&mut self, later_ms: u64) -> Option<UnixMs> {
        if self.class != Class::Worker {
            return None;
        }
        let classic = CellFormat::new(CLASSIC, None).unwrap();
        let other: CellFormat = "other(1577836800000,1,41,0,1,10,11)".parse().unwrap();
        let to = match self.format_at(self.wall()) {
            format if format == classic => other,
            _ => classic,
        };
        let window_ms = timing().window_ms();
        let at = self.wall().saturating_add(window_ms + 3_000 + later_ms);
        let plan = plan_switch(&self.snapshot(), to, at, self.wall(), window_ms).ok()?;
        self.revision += 1;
        self.cell.worker_format = plan.formats;
        self.cell.min_floor = plan.min_floor;
        self.history.push((at, to));
        Some(at)
    }

    fn grant(&mut self, instance: InstanceId, boot_id: BootId, grants: &[PlannedGrant]) -> Token {
        assert!(
            grants
                .iter()
                .all(|planned| planned.leased.window.floor >= self.cell.min_floor)
        );
        self.revision += 1;
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(self.revision),
        };
        for planned in grants {
            let Leased { identity, window } = planned.leased;
            let old = self.rows.get(&identity);
            let held = old
                .and_then(|row| row.lent.as_ref())
                .filter(|lent| self.now < lent.expires_at);
            assert!(
                held.is_none_or(|lent| lent.instance == instance && planned.replaces == Some(lent.token)),
                "taken from somebody who holds it"
            );
            assert!(
                old.is_none_or(|row| row.ceiling < window.floor),
                "a floor below a high water"
            );
            let lent = Some(Lent {
                instance,
                token,
                boot_id,
                expires_at: self.now + TTL_MS,
            });
            let (generation, ceiling, revision) = (planned.generation, window.ceiling, token.revision);
            self.rows.insert(
                identity,
                Stored {
                    generation,
                    ceiling,
                    revision,
                    lent,
                },
            );
            self.committed.insert((identity, token), window.ceiling);
        }
        token
    }

    /// Takes one identity with a clock that nobody set, and mints its whole window.
    pub(super) fn rival(&mut self) {
        self.rivals += 1;
        let wall = self.wall();
        let wanted = match self.class {
            Class::Worker => Wanted::Any(1),
            Class::Shard => Wanted::Listed(vec![Identity(2)]),
        };
        let (instance, boot_id) = (
            InstanceId(u128::MAX - self.rivals),
            BootId(u128::MAX - self.rivals),
        );
        let asked = PlanFor {
            instance,
            boot_id,
            wall,
            wanted: &wanted,
            random: self.now,
        };
        let Ok(plan) = plan_grant(&self.snapshot(), &Memory::new(), &timing(), asked) else {
            return;
        };
        let token = self.grant(instance, boot_id, &plan.grants);
        let Leased {
            identity,
            window: Window { floor, ceiling },
        } = plan.grants[0].leased;
        for at in (floor.0.max(wall.0)..=ceiling.0).step_by(500).map(UnixMs) {
            let who = (token, boot_id);
            assert_eq!(
                *self.minted.entry((identity, at)).or_insert(who),
                who,
                "minted twice by a rival"
            );
        }
    }
}

impl Node {
    /// The oldest request reaches the store.
    pub(super) fn store_works(&mut self, ground: &mut Ground) {
        let Some(request) = self.requests.pop_front() else {
            return;
        };
        let unknown = failure(&request, true);
        match request {
            Request::Probe { ticket } => self.answers.push_back((Event::Probed { ticket }, unknown)),
            Request::Acquire {
                ticket,
                boot_id,
                reading,
                doubt,
                identities,
            } => {
                let wanted = identities.map_or_else(|| self.wanted.clone(), Wanted::Listed);
                let pair = self.acquire(ground, ticket, (boot_id, reading), doubt, &wanted, unknown);
                self.answers.push_back(pair);
            }
            Request::Renew { ticket, held, wanted } => {
                let answer = self.renew(ground, ticket, &held, wanted);
                self.answers.push_back((answer, unknown));
            }
            Request::Release {
                ticket,
                boot_id,
                marks,
            } => {
                self.release(ground, boot_id, &marks);
                self.answers.push_back((Event::Released { ticket }, unknown));
            }
        }
    }

    fn release(&mut self, ground: &mut Ground, boot_id: BootId, marks: &[Mark]) {
        ground.revision += 1;
        for mark in marks {
            let row = ground.rows.get_mut(&mark.claim.identity).unwrap();
            let shown = row.lent.as_ref().map(|lent| (lent.token, lent.boot_id));
            if shown == Some((mark.claim.token, boot_id)) {
                row.lent = None;
                row.ceiling = mark.last;
                row.revision = Revision(ground.revision);
                self.memory.note_released(*mark);
            }
        }
    }

    fn acquire(
        &mut self,
        ground: &mut Ground,
        ticket: Ticket,
        (boot_id, reading): (BootId, ClockReading),
        doubt: Option<Attempt>,
        wanted: &Wanted,
        unknown: Event,
    ) -> (Event, Event) {
        let snapshot = ground.snapshot();
        self.cell = Some(snapshot.cell.clone());
        if let Some(attempt) = &doubt
            && let Some(grant) = settle_grant(&snapshot, attempt, self.instance, TTL_MS)
        {
            return (Event::Granted { ticket, grant }, unknown);
        }
        let asked = PlanFor {
            instance: self.instance,
            boot_id,
            wall: reading.wall,
            wanted,
            random: ground.now,
        };
        let Ok(plan) = plan_grant(&snapshot, &self.memory, &self.timing, asked) else {
            let refused = Event::GrantFailed { ticket, doubt: None };
            return (refused.clone(), refused);
        };
        self.check_nobody_else_mints(ground.now, &plan.grants);
        let token = ground.grant(self.instance, boot_id, &plan.grants);
        let leased: Vec<Leased> = plan.grants.iter().map(|planned| planned.leased).collect();
        for leased in &leased {
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
        }
        let grant = Grant {
            boot_id,
            token,
            guard: token.revision,
            ttl_ms: TTL_MS,
            reading,
            leased,
        };
        let attempt = Attempt { plan, reading };
        (
            Event::Granted { ticket, grant },
            Event::GrantFailed {
                ticket,
                doubt: Some(attempt),
            },
        )
    }

    /// What this server mints from is not granted again, not even to itself.
    fn check_nobody_else_mints(&self, now: u64, grants: &[PlannedGrant]) {
        for planned in grants {
            let open = self
                .server
                .slots
                .get(&planned.leased.identity)
                .filter(|slot| slot.open);
            assert!(
                open.is_none_or(|slot| now >= slot.deadline.0),
                "two holders at one time"
            );
        }
    }

    /// As the daemon does it: look first when in doubt, or after a conflict.
    fn renew(&mut self, ground: &mut Ground, ticket: Ticket, held: &Held, mut wanted: Vec<Leased>) -> Event {
        let guarded = held.leased.iter().all(|leased| {
            let row = ground.rows.get(&leased.identity);
            row.is_some_and(|row| {
                let mine = row
                    .lent
                    .as_ref()
                    .is_some_and(|lent| lent.token == leased.token && lent.instance == self.instance);
                mine && row.revision == leased.guard
            })
        });
        // The guard by the text of the plan: a daemon that has not read a switch must not get beyond it.
        let knows = self
            .cell
            .as_ref()
            .is_some_and(|cell| cell.worker_format == ground.cell.worker_format);
        if held.doubt || !guarded || !knows {
            let snapshot = ground.snapshot();
            self.cell = Some(snapshot.cell.clone());
            match settle_renewal(&snapshot, self.instance, held.boot_id, &held.leased) {
                Standing::Lost | Standing::Ordered => {
                    return Event::RenewLost {
                        ticket,
                        why: Loss::StoreLost,
                    };
                }
                Standing::Mine { leased } => {
                    for (wanted, committed) in wanted.iter_mut().zip(leased) {
                        wanted.window.ceiling = wanted.window.ceiling.max(committed.window.ceiling);
                    }
                }
            }
        }
        ground.revision += 1;
        for (leased, tenancy) in wanted.iter().zip(&held.leased) {
            let row = ground.rows.get_mut(&leased.identity).unwrap();
            assert!(row.ceiling <= leased.window.ceiling, "a high water fell");
            row.ceiling = leased.window.ceiling;
            row.revision = Revision(ground.revision);
            row.lent.as_mut().unwrap().expires_at = ground.now + TTL_MS;
            ground
                .committed
                .insert((leased.identity, tenancy.token), leased.window.ceiling);
            self.memory.note_ceiling(leased.identity, leased.window.ceiling);
        }
        Event::Renewed {
            ticket,
            guard: Revision(ground.revision),
            ttl_ms: TTL_MS,
            leased: wanted,
        }
    }
}

fn somebodys(identity: Identity) -> Row {
    let holder = Holder {
        instance: InstanceId(u128::MAX / 2),
        name: String::new(),
        token: Token::default(),
        boot_id: BootId(u128::MAX / 2),
        expired: false,
    };
    Row {
        identity,
        generation: 1,
        ceiling: UnixMs(0),
        revision: Revision(0),
        holder: Some(holder),
    }
}
