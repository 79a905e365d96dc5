//! Keeps the authority of one database: what the core decides about a [`Tenure`] and its [`Ceilings`], done.
//!
//! The server's clock is read first, then the store is asked, and only what is known to be committed is installed. While
//! the store or this daemon is away the server goes on up to the ceilings that it knows, and stops by itself at the
//! deadline.

use super::IsServed;
use super::elsewhere::elsewhere;
use super::post::Post;
use super::report::{Board, DatabaseReport, Standing};
use super::server::{Database, Open, Said, Wanted};
use crate::complaint::Complaint;
use crate::error::Result;
use crate::lease::{CEILINGS_AT_ONCE, Pinned, StoreError, StoreErrorKind, StripeStore};
use crate::metrics::AuthorityMetrics;
use crate::random::random;
use idgen_core::clock::BootMs;
use idgen_core::lease::named::stripes::has_joined;
use idgen_core::lease::named::{Acquisition, Attempt, Ceilings, Decision, Held, LeaseName, Step, Want, Who};
use idgen_core::lease::{BootId, InstanceId, Timing, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Steps of a lease in one visit, at the most: give up, look, acquire, and once more where another daemon was faster.
const STEPS_PER_VISIT: u32 = 6;
/// A tag whose floor was not known is asked about again at once; more than that waits for the next visit.
const RAISES_PER_VISIT: u32 = 3;
/// A session that was of no use for so long is closed: an open one keeps `DROP DATABASE` and clones from beginning.
const SESSION_IDLE: Duration = Duration::from_secs(2);
/// At a stop the store may be away; there is nothing else to wait for.
const GIVE_UP_TRIES: u32 = 3;
const GIVE_UP_PAUSE: Duration = Duration::from_millis(200);

/// What the keeper of one database works with.
pub(super) struct DatabaseConfig {
    pub(super) database: String,
    pub(super) instance: InstanceId,
    pub(super) timing: Timing,
    pub(super) is_served: IsServed,
    pub(super) board: Board,
    pub(super) metrics: AuthorityMetrics,
}

/// See the module.
pub(super) struct DatabaseKeeper<S, O: Open> {
    config: DatabaseConfig,
    open: O,
    shared: Arc<Mutex<Pinned<S>>>,
    session: Option<O::Database>,
    used_at: Instant,
    post: Option<Post>,
    standing: Standing,
    reading: Option<(BootMs, Instant)>,
    server_trouble: Complaint,
    store_trouble: Complaint,
}

impl<S: StripeStore, O: Open> DatabaseKeeper<S, O> {
    pub(super) fn new(config: DatabaseConfig, open: O, shared: Arc<Mutex<Pinned<S>>>) -> Self {
        config.board.post(&config.database, DatabaseReport::starting());
        Self {
            config,
            open,
            shared,
            session: None,
            used_at: Instant::now(),
            post: None,
            standing: Standing::Away,
            reading: None,
            server_trouble: Complaint::default(),
            store_trouble: Complaint::default(),
        }
    }

    /// Visits the database again and again until `stop`, then gives its lease back. `pace`: how long until the next visit,
    /// by whether it is in use.
    pub(super) async fn run(mut self, stop: CancellationToken, pace: impl Fn(Pace) -> Duration) {
        loop {
            let visited = self.visit().await;
            let next = self.next_visit(visited, &pace);
            self.report();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(next) => {}
            }
        }
        self.leave().await;
        self.config.board.remove(&self.config.database);
    }

    /// What came of a visit, and when to come again.
    fn next_visit(&mut self, visited: Result<Pace>, pace: &impl Fn(Pace) -> Duration) -> Duration {
        let now = Instant::now();
        let mut next = match visited {
            Ok(at) => {
                self.server_trouble.settle(&format!(
                    "authority of database {}: postgres answers",
                    self.config.database
                ));
                pace(at)
            }
            Err(error) => {
                if self.standing != Standing::Held {
                    self.standing = Standing::Away;
                }
                self.config.metrics.count_failure("server_lost");
                let text = format!("authority of database {}: {error}", self.config.database);
                self.server_trouble.raise(text, now);
                pace(Pace::Unsettled)
            }
        };
        if now.duration_since(self.used_at) >= SESSION_IDLE {
            self.session = None;
        }
        let due = self
            .post
            .as_ref()
            .and_then(|post| match (self.reading, &post.tenure) {
                (Some((reading, _)), tenure) => match tenure.step(reading) {
                    Step::RestUntil(until) => Some(Duration::from_millis(until.since(reading))),
                    _ => None,
                },
                _ => None,
            });
        if let Some(due) = due {
            next = next.min(due);
        }
        next
    }

    async fn visit(&mut self) -> Result<Pace> {
        let Some(session) = self.take_session().await? else {
            self.standing = Standing::NoExtension;
            return Ok(Pace::Absent);
        };
        let pace = self.attend(&session).await?;
        // Put back only after answers: an error closes the session.
        self.session = Some(session);
        if pace == Pace::Hot {
            self.used_at = Instant::now();
        }
        Ok(pace)
    }

    async fn take_session(&mut self) -> Result<Option<O::Database>> {
        if let Some(mut session) = self.session.take()
            && session.is_usable()
        {
            return Ok(Some(session));
        }
        let session = self.open.open(&self.config.database).await?;
        Ok(session.has_extension().await?.then_some(session))
    }

    async fn attend(&mut self, session: &O::Database) -> Result<Pace> {
        let Some((boot_id, reading)) = session.clock().await? else {
            self.abandon(Standing::Standby).await;
            return Ok(Pace::Idle);
        };
        self.reading = Some((reading, Instant::now()));
        let mut wanted = session.wanted().await?;
        let Some(of) = wanted.of else {
            self.abandon(Standing::Local).await;
            return Ok(Pace::Idle);
        };
        let cut = wanted.cut;
        let another = |post: &Post| (post.of, post.cut) != (of, cut);
        if self.post.as_ref().is_some_and(another) {
            self.abandon(Standing::Wanted).await;
        }
        let timing = self.config.timing;
        let post = self.post.get_or_insert_with(|| Post::new(of, cut, timing));
        if let Some(loss) = post.tenure.pass(reading, boot_id) {
            self.note_lost(loss.name());
        }
        let token = self.token();
        self.keep(session, boot_id, reading).await?;
        if self.token() != token {
            // What was allowed under the old one counts no more.
            wanted = session.wanted().await?;
        }
        let mut busy = !wanted.ceilings.is_empty();
        for _ in 0..RAISES_PER_VISIT {
            if !self.raise(session, &wanted).await? {
                break;
            }
            wanted = session.wanted().await?;
            busy |= !wanted.ceilings.is_empty();
        }
        let held = self.post.as_ref().is_some_and(|post| post.in_force().is_some());
        if held {
            self.standing = Standing::Held;
        }
        Ok(match (held, busy) {
            (false, _) => Pace::Unsettled,
            (true, true) => Pace::Hot,
            (true, false) => Pace::Idle,
        })
    }

    /// That the server knows of.
    fn token(&self) -> Option<Token> {
        let (token, _) = self.post.as_ref()?.installed?;
        Some(token)
    }

    /// Whatever the lease needs: a look, a grant, a renewal; and the server is told what is known to be committed.
    async fn keep(&mut self, session: &O::Database, boot_id: BootId, reading: BootMs) -> Result<()> {
        for _ in 0..STEPS_PER_VISIT {
            let Some(post) = &self.post else { return Ok(()) };
            let done = match post.tenure.step(reading) {
                Step::RestUntil(_) => true,
                Step::Renew(held) => self.renew(held, reading).await,
                Step::Look => self.look(session, boot_id, reading).await?,
            };
            self.install(session, reading).await?;
            if done {
                break;
            }
        }
        Ok(())
    }

    /// True: there is nothing more to do in this visit.
    async fn renew(&mut self, held: Held, reading: BootMs) -> bool {
        let answer = self.shared.lock().await.renew(&held).await;
        let Some(post) = &mut self.post else { return true };
        match answer {
            Ok(committed) => {
                post.tenure
                    .renewed(reading, committed.revision, committed.ttl_ms, random());
                self.store_answers();
                true
            }
            Err(error) => {
                // Whatever the answer was, the next look tells.
                if error.kind != StoreErrorKind::Unreachable {
                    post.tenure.doubt();
                }
                let conflict = error.kind == StoreErrorKind::Conflict;
                self.store_fails(&error);
                !conflict
            }
        }
    }

    /// True: there is nothing more to do in this visit.
    async fn look(&mut self, session: &O::Database, boot_id: BootId, reading: BootMs) -> Result<bool> {
        // In this order: what the server writes down after the look is newer than the look.
        let anchors = session.anchors().await?;
        let own_system = session.system_identifier().await?;
        let Some(post) = &mut self.post else {
            return Ok(true);
        };
        let name = post.tenure.name().clone();
        let looked = self.shared.lock().await.look_at(&name, &anchors).await;
        let look = match looked.and_then(|look| elsewhere(look, own_system)) {
            Ok(look) => look,
            Err(error) => {
                self.store_fails(&error);
                return Ok(true);
            }
        };
        let who = Who {
            instance: self.config.instance,
            boot_id,
        };
        let (decision, lost) = post.tenure.looked(&look, who, random());
        self.store_answers();
        if let Some(lost) = lost {
            self.note_lost(lost.name());
        }
        match decision {
            Decision::Hold => Ok(false),
            Decision::Acquire(acquisition) => {
                // Whatever those had to wait for, and to find out about the store, goes for this one too.
                let remembers = anchors.iter().any(|anchor| anchor.cell_id == look.cell.cell_id);
                if !remembers || !(self.config.is_served)() {
                    let why = "waiting until leases of workers or shards are installed in this server";
                    self.store_fails(&StoreError::new(StoreErrorKind::Denied, why));
                    return Ok(true);
                }
                if let Err(error) = self.check_claim(own_system).await {
                    self.store_fails(&error);
                    return Ok(true);
                }
                Ok(self.acquire(acquisition, reading).await)
            }
            Decision::GiveUp(token) => self.give_up(session, token).await,
            Decision::Wait(occupant) => {
                let holder = occupant.holder.name;
                if self.standing != Standing::Taken(holder.clone()) {
                    tracing::warn!(database = self.config.database, %name, holder, "the authority is taken; waiting");
                }
                self.standing = Standing::Taken(holder);
                Ok(true)
            }
        }
    }

    /// Of several masters only that database leases an index which has claimed and joined it.
    async fn check_claim(&mut self, own_system: u64) -> std::result::Result<(), StoreError> {
        let Some((post, cut)) = self.post.as_ref().and_then(|post| Some((post, post.cut?))) else {
            return Ok(());
        };
        let (space_id, _) = post.of;
        let claims = self.shared.lock().await.store.stripes(Some(space_id)).await?;
        if has_joined(&claims, own_system, &self.config.database, cut) {
            return Ok(());
        }
        let (index, count) = (cut.index(), cut.count());
        let why = format!(
            "this database has not joined stripe {index} of {count} of its space by idgenctl stripes, so nothing is \
             leased for it (hint: idgenctl stripes list)"
        );
        Err(StoreError::new(StoreErrorKind::Denied, why))
    }

    async fn acquire(&mut self, acquisition: Acquisition, reading: BootMs) -> bool {
        self.standing = Standing::Wanted;
        let answer = self.shared.lock().await.acquire(&acquisition).await;
        let Some(post) = &mut self.post else { return true };
        let attempt = Attempt { acquisition, reading };
        match answer {
            Ok(committed) => {
                post.tenure
                    .acquired(attempt, committed.revision, committed.ttl_ms, random());
                self.store_answers();
                true
            }
            Err(error) => {
                if error.kind == StoreErrorKind::Unknown {
                    post.tenure.acquire_unknown(attempt);
                }
                self.store_fails(&error);
                error.kind != StoreErrorKind::Conflict
            }
        }
    }

    /// Closes what this shared memory may still know under a token that is of no use, and gives that up.
    async fn give_up(&mut self, session: &O::Database, token: Token) -> Result<bool> {
        let Some(post) = &self.post else { return Ok(true) };
        session.fence(post.of).await?;
        let name = post.tenure.name().clone();
        tracing::info!(database = self.config.database, %name, %token, "an earlier lease is given up");
        match self.give_up_in_store(&name, token).await {
            Ok(()) => Ok(false),
            Err(error) => {
                self.store_fails(&error);
                Ok(true)
            }
        }
    }

    /// Tells the server what is held, where it does not know it yet.
    async fn install(&mut self, session: &O::Database, reading: BootMs) -> Result<()> {
        let Some(post) = &mut self.post else { return Ok(()) };
        let Some((held, deadline)) = post.tenure.held() else {
            return Ok(());
        };
        let (held, before) = (held.clone(), post.installed);
        if before == Some((held.token, deadline)) {
            return Ok(());
        }
        match session.install(post.of, &held, deadline).await? {
            Said::Done => {
                post.installed = Some((held.token, deadline));
                if post.ceilings.0 != Some(held.token) {
                    post.ceilings = (Some(held.token), Ceilings::new());
                    let (database, name) = (&self.config.database, &held.name);
                    tracing::info!(database, %name, token = %held.token, "authority installed");
                }
            }
            Said::Refused(why) => {
                tracing::warn!(
                    database = self.config.database,
                    "postgres refuses the authority: {why}"
                );
                post.tenure.lose(reading);
                self.note_lost("server_refused");
                if let Err(error) = self.give_up_in_store(&held.name, held.token).await {
                    self.store_fails(&error);
                }
            }
        }
        Ok(())
    }

    /// Raises ceilings in the store, then in the server. True: some tag's floor became known only now, so what it wants
    /// above that is to be asked.
    async fn raise(&mut self, session: &O::Database, wanted: &Wanted) -> Result<bool> {
        let mut ask_again = false;
        for wants in wanted.ceilings.chunks(CEILINGS_AT_ONCE) {
            let Some(held) = self.post.as_ref().and_then(Post::in_force) else {
                return Ok(false);
            };
            if let Err(error) = self.raise_in_store(&held, wants).await {
                self.store_fails(&error);
                return Ok(false);
            }
            self.store_answers();
            ask_again |= self.raise_in_server(session, &held, wants).await?;
        }
        Ok(ask_again)
    }

    async fn raise_in_store(&mut self, held: &Held, wants: &[Want]) -> std::result::Result<(), StoreError> {
        let Some(post) = &mut self.post else { return Ok(()) };
        let ceilings = &mut post.ceilings.1;
        let mut shared = self.shared.lock().await;
        let unread = ceilings.unread(wants);
        if !unread.is_empty() {
            let found = shared.store.ceilings(&held.name, &unread).await?;
            ceilings.note_read(&unread, &found);
        }
        let raises = ceilings.plan(wants);
        if raises.is_empty() {
            return Ok(());
        }
        match shared.raise(held, &raises).await {
            Ok(revision) => {
                ceilings.note_raised(&raises, revision);
                self.config.metrics.raised.inc_by(raises.len() as u64);
                Ok(())
            }
            Err(error) => {
                if error.kind != StoreErrorKind::Unreachable {
                    ceilings.note_doubt(&raises);
                }
                // The lease may be somebody else's: the next visit looks.
                if error.kind == StoreErrorKind::Conflict {
                    post.tenure.doubt();
                }
                Err(error)
            }
        }
    }

    async fn raise_in_server(&mut self, session: &O::Database, held: &Held, wants: &[Want]) -> Result<bool> {
        let mut ask_again = false;
        for want in wants {
            let Some(post) = &mut self.post else {
                return Ok(false);
            };
            let Some((floor, ceiling)) = post.ceilings.1.granted(&want.key) else {
                continue;
            };
            match session.raise(post.of, held, &want.key, (floor, ceiling)).await? {
                Said::Done => ask_again |= ceiling == floor,
                Said::Refused(why) => {
                    tracing::warn!(
                        database = self.config.database,
                        tag = want.key,
                        "postgres refuses a ceiling: {why}"
                    );
                    // It is told of the lease once more, and says what is wrong with it.
                    post.installed = None;
                    return Ok(false);
                }
            }
        }
        Ok(ask_again)
    }

    /// Nothing is to be leased here any more, or something else.
    async fn abandon(&mut self, standing: Standing) {
        self.standing = standing;
        let Some(post) = self.post.take() else { return };
        let Some((held, _)) = post.tenure.held() else {
            return;
        };
        let (database, name) = (&self.config.database, &held.name);
        tracing::info!(database, %name, standing = self.standing.name(), "authority given up");
        if let Err(error) = self.give_up_in_store(&held.name, held.token).await {
            self.store_fails(&error);
        }
    }

    /// So that the next holder need not wait for the end of the lease.
    async fn give_up_in_store(&self, name: &LeaseName, token: Token) -> std::result::Result<(), StoreError> {
        self.shared
            .lock()
            .await
            .store
            .give_up(name, token)
            .await
            .map(drop)
    }

    /// At a stop: the server grants no more, and the store knows it.
    async fn leave(&mut self) {
        let Some(post) = self.post.take() else { return };
        let Some((held, _)) = post.tenure.held() else {
            return;
        };
        let fenced = match self.take_session().await {
            Ok(Some(session)) => session.fence(post.of).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // A server that cannot be told stops at the deadline by itself; whoever comes next begins above its ceilings.
        if let Err(error) = fenced {
            tracing::warn!(database = self.config.database, "close the authority: {error}");
        }
        let mut tries = 1;
        loop {
            match self.give_up_in_store(&held.name, held.token).await {
                Ok(_) => {
                    tracing::info!(database = self.config.database, name = %held.name, "authority released");
                    return;
                }
                Err(error) if tries == GIVE_UP_TRIES || error.kind == StoreErrorKind::Sealed => {
                    tracing::warn!(database = self.config.database, "release the authority: {error}");
                    return;
                }
                Err(_) => tries += 1,
            }
            tokio::time::sleep(GIVE_UP_PAUSE).await;
        }
    }

    fn note_lost(&mut self, why: &'static str) {
        self.standing = Standing::Wanted;
        tracing::warn!(database = self.config.database, why, "authority lost");
        self.config.metrics.count_failure(why);
    }

    fn store_fails(&mut self, error: &StoreError) {
        self.config.metrics.count_failure(error.kind.name());
        let text = format!(
            "authority of database {}: lease store: {error}",
            self.config.database
        );
        self.store_trouble.raise(text, Instant::now());
        if !matches!(self.standing, Standing::Held | Standing::Taken(_)) {
            self.standing = Standing::Wanted;
        }
    }

    fn store_answers(&mut self) {
        self.store_trouble.settle(&format!(
            "authority of database {}: lease store answers",
            self.config.database
        ));
    }

    fn report(&self) {
        let trouble = [&self.server_trouble, &self.store_trouble]
            .into_iter()
            .find_map(Complaint::text);
        let held = self.post.as_ref().and_then(|post| post.tenure.held());
        let report = DatabaseReport {
            standing: self.standing.clone(),
            name: self.post.as_ref().map(|post| post.tenure.name().to_string()),
            token: held.map(|(held, _)| held.token),
            deadline: held.map(|(_, deadline)| deadline),
            reading: self.reading,
            trouble: trouble.map(str::to_owned),
        };
        self.config.board.post(&self.config.database, report);
    }
}

/// How soon a database is visited again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Ceilings were raised just now: more may be wanted soon.
    Hot,
    /// Something is missing, or wrong.
    Unsettled,
    /// Nothing is wanted.
    Idle,
    /// The extension is not there.
    Absent,
}

#[cfg(test)]
mod tests;
