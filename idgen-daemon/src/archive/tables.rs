//! The archiver of a server without Kafka: every database that has the extension, each boundary of time, one after another.

use super::feed_table::{Keys, keys_of, keys_of_commit, mark, source_of, unpublished};
use super::feed_trail::{events, trails};
use super::ledger::{Appended, Ledger};
use super::objects::Objects;
use super::parquet::Message;
use super::run::{Archiver, Ready, alone};
use crate::authority::Open;
use crate::complaint::Complaint;
use crate::config::{Config, PostgresConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::events::EventsConfig;
use crate::lease::{HolderName, Sole, host_clock, host_ms};
use crate::outbox::{Holder as DrainHolder, Lease, Stream};
use crate::postgres::{HAS_EXTENSION, PostgresUrl, Session, reach};
use idgen_core::archive::{Cut, Gap};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Of a statement: one reads 5,000 rows.
const STATEMENT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Where events of leases have no database of their own to be called after.
const LEASE_SERVICE: &str = "idgen";

/// Archives as long as it is the only one for this server, until `stop` or an error.
pub(super) async fn turn<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    holder: &HolderName,
    stop: &CancellationToken,
    trouble: &mut Complaint,
) -> Result<()> {
    let server = server_of(&config.postgres).await?;
    let mut sole = alone(&config.store, holder, &format!("tables/{server}"))?;
    let held = tokio::select! {
        () = stop.cancelled() => None,
        held = sole.held() => Some(held),
    };
    let outcome = match held {
        None => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(token)) => {
            let mut rounds = Rounds {
                archiver,
                config,
                holder,
                epoch: Sole::epoch(token),
                ledgers: HashMap::new(),
            };
            rounds.run(&sole, stop, trouble).await
        }
    };
    sole.give_up().await;
    outcome
}

async fn server_of(postgres: &PostgresConfig) -> Result<u64> {
    let session = open(&postgres.url, postgres.connect_timeout).await?;
    let row = session
        .row("SELECT system_identifier FROM pg_control_system()", &[])
        .await
        .map_err(|error| Error::retry(format!("ask the server who it is: {error}")))?;
    let identifier: i64 = row
        .try_get(0)
        .map_err(|error| Error::runtime(format!("system_identifier: {error}")))?;
    Ok(identifier.cast_unsigned())
}

pub(crate) async fn open(url: &PostgresUrl, connect: Duration) -> Result<Session> {
    open_for(url, connect, STATEMENT).await
}

/// With statements that may take so long.
pub(super) async fn open_for(url: &PostgresUrl, connect: Duration, statement: Duration) -> Result<Session> {
    reach(url, "idgend archive", connect, statement).await
}

pub(crate) async fn has_extension(session: &Session) -> Result<bool> {
    let row = session.row(HAS_EXTENSION, &[]).await;
    let row = row.map_err(|error| Error::retry(format!("look for the extension: {error}")))?;
    row.try_get(0)
        .map_err(|error| Error::runtime(format!("look for the extension: {error}")))
}

struct Rounds<'a, O> {
    archiver: &'a Archiver<O>,
    config: &'a Config,
    holder: &'a HolderName,
    epoch: u64,
    /// Chains whose last commit is marked.
    ledgers: HashMap<String, Ledger<O>>,
}

impl<O: Objects> Rounds<'_, O> {
    async fn run(&mut self, sole: &Sole, stop: &CancellationToken, trouble: &mut Complaint) -> Result<()> {
        let every_ms = self.archiver.config.cut.every_ms;
        let mut last = None;
        while sole.is_held() && !stop.is_cancelled() {
            let window = host_clock().0 / every_ms;
            // The first at once: there may be events of hours.
            if last != Some(window) {
                match self.round(sole, stop).await {
                    Ok(()) => {
                        last = Some(window);
                        trouble.settle("the tables are archived");
                    }
                    Err(error) => {
                        // Which of the chains it was does not matter: all begin anew.
                        self.ledgers.clear();
                        return Err(error);
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        Ok(())
    }

    /// Once through all databases. What fails in one does not keep the others from their turn.
    async fn round(&mut self, sole: &Sole, stop: &CancellationToken) -> Result<()> {
        let postgres = &self.config.postgres;
        let mut outcome = Ok(());
        for database in postgres.databases().await? {
            if stop.is_cancelled() || !sole.is_held() {
                return outcome;
            }
            if let Err(error) = self.database(&database).await {
                outcome = Err(in_database(&database, &error));
            }
        }
        let events = &self.config.events;
        if events.enabled
            && let Err(error) = self.trail(events).await
        {
            outcome = Err(error);
        }
        outcome
    }

    async fn ledger(&mut self, chain: &str) -> Result<(Ledger<O>, bool)> {
        match self.ledgers.remove(chain) {
            Some(ledger) => Ok((ledger, true)),
            None => Ok((self.archiver.open(chain).await?, false)),
        }
    }

    async fn database(&mut self, database: &str) -> Result<()> {
        let postgres = &self.config.postgres;
        let session = open(&postgres.url.in_database(database), postgres.connect_timeout).await?;
        if !has_extension(&session).await? {
            return Ok(());
        }
        let Some(source) = source_of(&session).await? else {
            return Ok(());
        };
        let drains = DrainHolder {
            instance: Uuid::from_u128(self.holder.instance.0),
            name: self.holder.name.clone(),
        };
        let mut lease = Lease::new(Stream::Segment, drains);
        // Another daemon hands them on, to a Kafka perhaps.
        if lease.keep(&session).await?.is_none() {
            return Ok(());
        }
        let handed = self.hand_on(&session, &mut lease, (database, source)).await;
        // It runs out by itself where this fails.
        let given_back = lease.give_back(&session).await;
        handed.and(given_back)
    }

    async fn hand_on(
        &mut self,
        session: &Session,
        lease: &mut Lease,
        (database, source): (&str, Uuid),
    ) -> Result<()> {
        let service = self.config.outbox.service_of(database);
        let chain = format!("table-{source}");
        let (mut ledger, is_marked) = self.ledger(&chain).await?;
        if !is_marked {
            mark_last(session, lease, &ledger).await?;
        }
        let begun = Instant::now();
        loop {
            let place = (
                ledger.chain().next_of(0),
                host_ms(),
                self.archiver.config.cut.bytes_max,
            );
            let (messages, more) = unpublished(session, service, place).await?;
            if messages.is_empty() {
                break;
            }
            let keys = keys_of(&messages);
            let cut = if more { Cut::Bytes } else { Cut::Time };
            match self.commit(&mut ledger, messages, Vec::new(), cut).await? {
                Appended::Ours => mark(session, lease, &keys).await?,
                Appended::Adopted => mark_last(session, lease, &ledger).await?,
            }
            self.archiver
                .metrics
                .set_lag(&chain, if more { begun.elapsed().as_secs() } else { 0 });
            if !more {
                break;
            }
        }
        self.ledgers.insert(chain, ledger);
        Ok(())
    }

    async fn trail(&mut self, events_config: &EventsConfig) -> Result<()> {
        let session = open(&events_config.url, events_config.connect_timeout).await?;
        if !has_extension(&session).await? || source_of(&session).await?.is_none() {
            return Ok(());
        }
        let service = self.config.outbox.service_of(LEASE_SERVICE);
        for trail in trails(&session).await? {
            let (mut ledger, _) = self.ledger(&trail.chain).await?;
            loop {
                let next = ledger.chain().next_of(0);
                let (messages, more) = events(&session, &trail, service, (next, host_ms())).await?;
                let Some(first) = messages.first().map(|message| message.spot().offset) else {
                    break;
                };
                let gap = Gap {
                    partition: 0,
                    from: next,
                    to: first,
                };
                let gaps = if first > next { vec![gap] } else { Vec::new() };
                let cut = if more { Cut::Bytes } else { Cut::Time };
                self.commit(&mut ledger, messages, gaps, cut).await?;
                if !more {
                    break;
                }
            }
            self.ledgers.insert(trail.chain, ledger);
        }
        Ok(())
    }

    async fn commit(
        &self,
        ledger: &mut Ledger<O>,
        messages: Vec<Message>,
        gaps: Vec<Gap>,
        cut: Cut,
    ) -> Result<Appended> {
        let end = messages.last().map_or(0, |message| message.spot().offset + 1);
        let ready = Ready {
            messages,
            ends: BTreeMap::from([(0, end)]),
            gaps,
            epoch: self.epoch,
            cut,
            source: "table",
        };
        self.archiver.commit(ledger, ready).await
    }
}

async fn mark_last<O: Objects>(session: &Session, lease: &mut Lease, ledger: &Ledger<O>) -> Result<()> {
    let keys = match ledger.last() {
        Some(commit) => keys_of_commit(&**ledger.objects(), commit).await?,
        None => Keys::new(),
    };
    mark(session, lease, &keys).await
}
fn in_database(database: &str, error: &Error) -> Error {
    Error::new(ErrorKind::Retry, format!("database {database}: {error}"))
}
