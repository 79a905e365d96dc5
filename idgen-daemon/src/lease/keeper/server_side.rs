//! What the keeper does with its server: reads its clocks, installs, extends, fences.

use super::*;

impl<S: LeaseStore, C: Connect> Keeper<S, C> {
    /// Install, extend or fence; an error that can be waited out counts as the server being lost.
    pub(super) async fn act_on_server(&mut self, action: Action) -> Result<Event> {
        let Some(server) = &self.server else {
            return Ok(Event::ServerLost);
        };
        let (class, timing) = (self.config.class.class, self.config.class.timing);
        let (what, event) = match action {
            Action::Install { held, anchor } => {
                history::publishing(class, &held);
                let install = server.install(&held, known(self.desk.cell())?, anchor);
                let outcome = remember_first(server, &held, self.desk.anchor(), &timing, install).await;
                if matches!(outcome, Ok(InstallOutcome::Done)) {
                    let identities = identities_of(&held.leased);
                    let token = newest_token(&held.leased);
                    tracing::info!(%token, identities = %Ranges(&identities), "lease installed");
                    history::installed(class, &held);
                }
                (
                    "install",
                    outcome.map(|outcome| judge(outcome, Event::Installed, Event::InstallRefused)),
                )
            }
            Action::Extend { held, anchor } => {
                history::publishing(class, &held);
                let extend = server.extend(&held, known(self.desk.cell())?, anchor);
                let outcome = remember_first(server, &held, self.desk.anchor(), &timing, extend).await;
                (
                    "extend",
                    outcome.map(|outcome| judge(outcome, Event::Extended, Event::ExtendRefused)),
                )
            }
            Action::Fence { boot_id, claims } => {
                note_closing(&mut self.found_open);
                let fenced = server.fence(boot_id, &claims).await;
                if let Ok(Some(marks)) = &fenced {
                    history::fenced(class, boot_id, marks);
                }
                let event = |marks| match marks {
                    Some(marks) => Event::Fenced { marks },
                    None => Event::ServerForgot,
                };
                ("fence", fenced.map(event))
            }
            _ => return Err(Error::runtime("not an action on the server")),
        };
        match event {
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&format!("{what} lease: {error}"));
                Ok(Event::ServerLost)
            }
            other => other,
        }
    }

    pub(super) async fn inspect(&mut self) -> Result<Event> {
        let Some(server) = &self.server else {
            return Ok(Event::ServerLost);
        };
        match server.slots().await {
            Ok(slots) => {
                for slot in &slots {
                    self.memory.note_ceiling(slot.claim.identity, slot.bound);
                }
                let claims: Vec<Claim> = slots
                    .iter()
                    .filter(|slot| slot.open)
                    .map(|slot| slot.claim)
                    .collect();
                self.found_open = claims.len();
                Ok(Event::Inspected { claims })
            }
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&format!("list slots: {error}"));
                Ok(Event::ServerLost)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the server's clocks, connecting first where needed.
    pub(super) async fn look(&mut self) -> Result<Event> {
        match self.read_server().await {
            Ok(reading) => {
                self.server_trouble.settle("postgres answers");
                Ok(Event::Reading(reading))
            }
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.lose_server(&error.to_string());
                Ok(Event::ServerLost)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn read_server(&mut self) -> Result<Reading> {
        // One that is of no use any more is closed here, before the next one asks for its claim.
        let open = self.server.take();
        let server = match open.and_then(|mut server| server.is_usable().then_some(server)) {
            Some(server) => server,
            None => {
                let server = self.connect.connect(self.config.class.class).await?;
                let before = tokio::time::Instant::now();
                let memory = server.memory().await?;
                self.remembered.asked = memory.asked_ago.and_then(|ago| before.checked_sub(ago));
                self.remembered.anchors = memory.anchors;
                self.remembered.home = memory.home;
                server
            }
        };
        // Put back only after an answer: an error closes the session.
        let said = server.server_clock().await?;
        self.server = Some(server);
        self.remembered.cell = said.cell_id;
        self.reading = Some((said.clock, Instant::now()));
        if self.boot_id.replace(said.boot_id) != Some(said.boot_id) {
            let boot_id = Uuid::from_u128(said.boot_id.0);
            tracing::info!(%boot_id, "postgres has new shared memory");
            self.clock.forget_told();
        }
        let judged = self.clock.judge(said.clock, said.boot_id);
        if let (Some(news), Some(server)) = (self.clock.news(Instant::now()), &self.server)
            && let Err(error) = server.note_clock(&news).await
        {
            self.server = None;
            return Err(error);
        }
        // Taken out: it is told by us.
        if let Some(server) = self.server.take() {
            self.tell_drain(&server, said.boot_id).await?;
            self.server = Some(server);
        }
        Ok(Reading {
            clock: said.clock,
            boot_id: said.boot_id,
            clock_good: judged.may_raise,
            may_acquire: judged.may_acquire,
            random: random(),
        })
    }

    /// An operator says that the clock is right: as it is now. What was read before may be from before it was corrected,
    /// and would be found right, and the correction wrong a moment later.
    pub(super) async fn accept_clock(&mut self, request: AcceptRequest) -> Result<Event> {
        let event = self.look().await?;
        let accepted = match event {
            Event::Reading(_) if request.dry_run => Ok(self.clock.would_accept()),
            Event::Reading(_) => Ok(self.clock.accept()),
            _ => Err(self
                .server_trouble
                .text()
                .unwrap_or("postgres is away")
                .to_owned()),
        };
        if matches!(accepted, Ok(Some(_))) && !request.dry_run {
            self.look_at = Instant::now();
        }
        // Whoever asked may have gone; the clock is accepted all the same.
        let _ = request.answer.send(accepted);
        Ok(event)
    }

    pub(super) fn lose_server(&mut self, why: &str) {
        let now = Instant::now();
        if self.server.take().is_some() || self.server_trouble.text().is_none() {
            self.lost_at = now;
            self.metrics.count_failure("server_lost");
        }
        self.server_trouble.raise(format!("postgres: {why}"), now);
    }
}
