//! The store's part of the world, and a rival who uses it.

use super::*;

#[derive(Clone, Debug)]
pub(super) struct Lent {
    instance: InstanceId,
    token: Token,
    boot_id: BootId,
    expires_at: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Stored {
    generation: u64,
    ceiling: UnixMs,
    revision: Revision,
    lent: Option<Lent>,
}

impl World {
    fn snapshot(&self) -> Snapshot {
        let rows = half(Epoch(0)).map(WorkerId).filter_map(|worker| {
            if usize::from(worker.0) >= WORKERS {
                return Some(somebodys(worker));
            }
            let row = self.rows.get(&worker)?;
            let holder = row.lent.as_ref().map(|lent| Holder {
                instance: lent.instance,
                name: String::new(),
                token: lent.token,
                boot_id: lent.boot_id,
                expired: self.now >= lent.expires_at,
            });
            let (generation, ceiling, revision) = (row.generation, row.ceiling, row.revision);
            Some(Row {
                worker,
                generation,
                ceiling,
                revision,
                holder,
            })
        });
        Snapshot {
            cell: cell(),
            rows: rows.collect(),
        }
    }

    pub(super) fn store_works(&mut self) {
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
            } => {
                let pair = self.acquire(ticket, boot_id, reading, doubt, unknown);
                self.answers.push_back(pair);
            }
            Request::Renew { ticket, held, wanted } => {
                let answer = self.renew(ticket, &held, wanted);
                self.answers.push_back((answer, unknown));
            }
            Request::Release {
                ticket,
                boot_id,
                marks,
            } => {
                self.revision += 1;
                for mark in marks {
                    let row = self.rows.get_mut(&mark.claim.worker).unwrap();
                    let shown = row.lent.as_ref().map(|lent| (lent.token, lent.boot_id));
                    if shown == Some((mark.claim.token, boot_id)) {
                        row.lent = None;
                        row.ceiling = mark.last;
                        row.revision = Revision(self.revision);
                        self.memory.note_released(mark);
                    }
                }
                self.answers.push_back((Event::Released { ticket }, unknown));
            }
        }
    }

    fn acquire(
        &mut self,
        ticket: Ticket,
        boot_id: BootId,
        reading: ClockReading,
        doubt: Option<Attempt>,
        unknown: Event,
    ) -> (Event, Event) {
        let snapshot = self.snapshot();
        if let Some(attempt) = &doubt
            && let Some(grant) = settle_grant(&snapshot, attempt, self.instance, TTL_MS)
        {
            return (Event::Granted { ticket, grant }, unknown);
        }
        let wanted = PlanFor {
            boot_id,
            wall: reading.wall,
            count: 2,
            random: self.now,
        };
        let Ok(plan) = plan_grant(&snapshot, &self.memory, &self.timing, wanted) else {
            let refused = Event::GrantFailed { ticket, doubt: None };
            return (refused.clone(), refused);
        };
        let token = self.grant(self.instance, boot_id, &plan.grants);
        let leased: Vec<Leased> = plan.grants.iter().map(|planned| planned.leased).collect();
        for leased in &leased {
            self.memory.note_ceiling(leased.worker, leased.window.ceiling);
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

    fn grant(&mut self, instance: InstanceId, boot_id: BootId, grants: &[PlannedGrant]) -> Token {
        self.revision += 1;
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(self.revision),
        };
        for planned in grants {
            let Leased { worker, window } = planned.leased;
            let open = self.server.slots.get(&worker).filter(|slot| slot.open);
            assert!(
                open.is_none_or(|slot| self.now >= slot.deadline.0),
                "two holders at one time"
            );
            let lent = Some(Lent {
                instance,
                token,
                boot_id,
                expires_at: self.now + TTL_MS,
            });
            let (generation, ceiling, revision) = (planned.generation, window.ceiling, token.revision);
            self.rows.insert(
                worker,
                Stored {
                    generation,
                    ceiling,
                    revision,
                    lent,
                },
            );
            self.committed.insert((worker, token), window.ceiling);
        }
        token
    }

    /// As the daemon does it: look first when in doubt, or after a conflict.
    fn renew(&mut self, ticket: Ticket, held: &Held, mut wanted: Vec<Leased>) -> Event {
        let guarded = held.leased.iter().all(|leased| {
            let row = self.rows.get(&leased.worker);
            row.is_some_and(|row| {
                let mine = row.lent.as_ref().is_some_and(|lent| {
                    lent.token == held.token && lent.instance == self.instance && self.now < lent.expires_at
                });
                mine && row.revision == held.guard
            })
        });
        if held.doubt || !guarded {
            let snapshot = self.snapshot();
            let (boot_id, token) = (held.boot_id, held.token);
            match settle_renewal(&snapshot, self.instance, boot_id, token, &held.leased) {
                Standing::Lost => return Event::RenewLost { ticket },
                Standing::Mine { leased, .. } => {
                    for (wanted, committed) in wanted.iter_mut().zip(leased) {
                        wanted.window.ceiling = wanted.window.ceiling.max(committed.window.ceiling);
                    }
                }
            }
        }
        self.revision += 1;
        for leased in &wanted {
            let row = self.rows.get_mut(&leased.worker).unwrap();
            assert!(row.ceiling <= leased.window.ceiling, "a high water fell");
            row.ceiling = leased.window.ceiling;
            row.revision = Revision(self.revision);
            row.lent.as_mut().unwrap().expires_at = self.now + TTL_MS;
            self.committed
                .insert((leased.worker, held.token), leased.window.ceiling);
            self.memory.note_ceiling(leased.worker, leased.window.ceiling);
        }
        Event::Renewed {
            ticket,
            guard: Revision(self.revision),
            ttl_ms: TTL_MS,
            leased: wanted,
        }
    }

    /// Takes one identity with a clock that nobody set, and mints its whole window.
    pub(super) fn rival(&mut self) {
        let wall = UnixMs(1_700_000_000_000 + self.now);
        let wanted = PlanFor {
            boot_id: BootId(u128::MAX),
            wall,
            count: 1,
            random: self.now,
        };
        let Ok(plan) = plan_grant(&self.snapshot(), &Memory::new(), &self.timing, wanted) else {
            return;
        };
        let token = self.grant(RIVAL, wanted.boot_id, &plan.grants);
        let Leased {
            worker,
            window: Window { floor, ceiling },
        } = plan.grants[0].leased;
        for at in (floor.0.max(wall.0)..=ceiling.0).step_by(500).map(UnixMs) {
            let who = (token, wanted.boot_id);
            assert_eq!(
                *self.minted.entry((worker, at)).or_insert(who),
                who,
                "minted twice by a rival"
            );
        }
    }
}

fn cell() -> Cell {
    Cell {
        cell_id: CellId(1),
        worker_format: "classic".to_owned(),
        epoch: Epoch(0),
        epoch_nonce: EpochNonce(1),
        min_floor: UnixMs(0),
    }
}

fn somebodys(worker: WorkerId) -> Row {
    let holder = Holder {
        instance: InstanceId(u128::MAX - 1),
        name: String::new(),
        token: Token::default(),
        boot_id: BootId(u128::MAX - 1),
        expired: false,
    };
    Row {
        worker,
        generation: 1,
        ceiling: UnixMs(0),
        revision: Revision(0),
        holder: Some(holder),
    }
}
