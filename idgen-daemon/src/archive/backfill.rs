//! What the archive has not, because the topic had lost it, comes from the table: as commits of a chain of its own, so that
//! nothing gets into the way of the archiver.

use super::feed_table::published;
use super::ledger::Appended;
use super::objects::Objects;
use super::run::{Archiver, Ready};
use super::tables::open;
use super::verify::{MissingEvents, Progress, Told, missing_events};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::host_ms;
use idgen_core::archive::Cut;
use idgen_core::day::Day;
use serde::Serialize;
use std::collections::BTreeMap;

/// Events of one commit.
const AT_ONCE: usize = 20_000;
/// Commits of others that this one goes behind, before it is given up.
const TRIES: u32 = 5;

/// What was, or would be, taken from the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backfill {
    /// The day.
    pub day: String,
    /// Each source.
    pub sources: Vec<SourceBackfill>,
}

/// Of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceBackfill {
    /// The source.
    pub source: uuid::Uuid,
    /// Its database.
    pub database: String,
    /// Events that the archive has not.
    pub missing: u64,
    /// Of them archived now. The others are not published yet: they come the usual way.
    pub archived: u64,
}

impl Backfill {
    /// Events that the archive had not.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.sources.iter().map(|source| source.missing).sum()
    }
}

/// Looks what a day has not.
///
/// # Errors
/// The place or the server does not answer.
pub async fn plan<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    day: Day,
    told: Told<'_>,
) -> Result<(Backfill, Vec<MissingEvents>)> {
    let missing = missing_events(&archiver.objects, config, day, told).await?;
    let source = |one: &MissingEvents| SourceBackfill {
        source: one.source,
        database: one.database.clone(),
        missing: one.events.len() as u64,
        archived: 0,
    };
    let planned = Backfill {
        day: day.to_string(),
        sources: missing.iter().map(source).collect(),
    };
    Ok((planned, missing))
}

/// Archives what is missing.
///
/// # Errors
/// The place or the server does not answer. What was committed by then counts.
pub async fn backfill<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    day: Day,
    missing: Vec<MissingEvents>,
    told: Told<'_>,
) -> Result<Backfill> {
    let mut sources = Vec::new();
    for one in missing {
        let archived = of_source(archiver, config, day, &one, told).await?;
        sources.push(SourceBackfill {
            source: one.source,
            missing: one.events.len() as u64,
            database: one.database,
            archived,
        });
    }
    Ok(Backfill {
        day: day.to_string(),
        sources,
    })
}

async fn of_source<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    day: Day,
    one: &MissingEvents,
    told: Told<'_>,
) -> Result<u64> {
    let url = config.postgres.url.in_database(&one.database);
    let session = open(&url, config.postgres.connect_timeout).await?;
    let service = config.outbox.service_of(&one.database);
    let mut ledger = archiver.open(&format!("db-{}", one.source)).await?;
    let mut archived = 0;
    told(Progress::Commits(one.events.len().div_ceil(AT_ONCE) as u64));
    for events in one.events.chunks(AT_ONCE) {
        let ids: Vec<i64> = events.iter().map(|event| event.0).collect();
        for tried in 0.. {
            let now_ms = host_ms();
            let next = ledger.chain().next_of(0);
            let messages = published(&session, service, (day, one.source, &ids), (next, now_ms)).await?;
            if messages.is_empty() {
                break;
            }
            let count = messages.len() as u64;
            let ready = Ready {
                ends: BTreeMap::from([(0, next.saturating_add(count.cast_signed()))]),
                messages,
                gaps: Vec::new(),
                epoch: 0,
                cut: Cut::Backfill,
                source: "db",
            };
            if archiver.commit(&mut ledger, ready).await? == Appended::Ours {
                archived += count;
                break;
            }
            if tried >= TRIES {
                return Err(Error::retry("somebody else fills the same gaps"));
            }
        }
        told(Progress::Commit);
    }
    Ok(archived)
}
