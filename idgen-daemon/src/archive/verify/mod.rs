//! The check of a day: every commit since the last check and every file of the day is read again, and compared with what the
//! chain says and with the table.

mod daily;
mod table;
mod walk;

pub use self::daily::check_daily;
pub use self::walk::{Walked, chains, walk};

use self::table::{Databases, TableDay};
use super::commit::{FileEntry, daily_key, digest_text, sha256};
use super::objects::{ObjectErrorKind, Objects};
use super::parquet::Opened;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::event::hex;
use crate::lease::host_clock;
use bytes::Bytes;
use idgen_core::archive::{Day, DayEvidence, DayVerdict, IdDigest, judge};
use idgen_core::utc::show_us;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Ids that are named, of those that are missing.
const NAMED_MAX: usize = 10;
/// Problems that are listed.
const PROBLEMS_MAX: usize = 100;
/// A chain is walked from where the check of the day before yesterday found it: then no event of the day was there yet.
const CHECKPOINT_DAYS: u32 = 2;

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// So many commits of a chain are to be read.
    Commits(u64),
    /// One was.
    Commit,
    /// So many files are to be read.
    Files(u64),
    /// One was, of so many bytes.
    File(u64),
}

/// What is told meanwhile.
pub type Told<'t> = &'t (dyn Fn(Progress) + Send + Sync);

/// What a check has found: `_daily/DATE.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayReport {
    /// Version of the form.
    pub schema: u32,
    /// The day.
    pub day: String,
    /// `verified`, `mismatch` or `incomplete`: the worst of its sources.
    pub state: String,
    /// When it was checked.
    pub checked_at: String,
    /// By whom.
    pub checked_by: String,
    /// Files of the day.
    pub files: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where each chain ended then.
    pub chains: Vec<ChainHead>,
    /// Each source of events.
    pub sources: Vec<SourceReport>,
    /// Everything that is wrong.
    pub problems: Vec<String>,
}

/// Where a chain ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// The chain.
    pub chain: String,
    /// Its last commit.
    pub seq: u64,
    /// SHA-256 of it.
    pub sha256: String,
}

/// One source of events on that day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source.
    pub source: Uuid,
    /// The database that it was compared with; `None`: none of this server.
    pub database: Option<String>,
    /// Different events in the archive.
    pub archived: u64,
    /// Events in the table.
    pub table: Option<u64>,
    /// What that comes to; of a source of no database here `None`.
    pub state: Option<String>,
    /// Why it is not verified.
    pub reason: Option<String>,
    /// The first of the events that the archive has not.
    pub missing: Vec<i64>,
    /// The first of the events that the table has not.
    pub extra: Vec<i64>,
}

/// What the files of a day have.
#[derive(Default)]
struct DayFiles {
    ids: BTreeMap<Uuid, Vec<i64>>,
    files: u64,
    rows: u64,
    bytes: u64,
    problems: Vec<String>,
}

/// Checks a day, and writes down what it has found: in the databases of the server, and beside the archive.
///
/// # Errors
/// The place or the server does not answer: nothing is known then, and nothing is written.
pub async fn check_day<O: Objects>(
    objects: &Arc<O>,
    config: &Config,
    day: Day,
    (by, whole): (&str, bool),
    told: Told<'_>,
) -> Result<DayReport> {
    let (heads, found) = read_day(objects, day, whole, told).await?;
    let mut databases = Databases::open(config).await?;
    let mut sources = compare(&mut databases, day, &found).await?;
    let text = |head: &ChainHead| format!("{} {}:{}", head.chain, head.seq, head.sha256);
    let head = heads.iter().map(text).collect::<Vec<_>>().join(", ");
    for (report, verdict, archived) in &sources {
        if let (Some(database), Some(verdict)) = (&report.database, verdict) {
            databases
                .write(database, day, (report.source, verdict, *archived), (&head, by))
                .await?;
        }
    }
    let now_us = i64::try_from(host_clock().0).unwrap_or(0).saturating_mul(1_000);
    let mut found = found;
    found.problems.truncate(PROBLEMS_MAX);
    let worst = worst(
        sources.iter().filter_map(|(_, verdict, _)| verdict.as_ref()),
        &found.problems,
    );
    let mut report = DayReport {
        schema: 1,
        day: day.to_string(),
        state: worst.to_owned(),
        checked_at: show_us(now_us),
        checked_by: by.to_owned(),
        files: found.files,
        rows: found.rows,
        bytes: found.bytes,
        chains: heads,
        sources: sources.drain(..).map(|(report, ..)| report).collect(),
        problems: found.problems,
    };
    keep_others(&mut report, read_report(&**objects, day).await?);
    write_report(&**objects, day, &report).await?;
    Ok(report)
}

/// Walks the chains and reads the files of a day.
async fn read_day<O: Objects>(
    objects: &Arc<O>,
    day: Day,
    whole: bool,
    told: Told<'_>,
) -> Result<(Vec<ChainHead>, DayFiles)> {
    let known = if whole {
        Vec::new()
    } else {
        let before = read_report(&**objects, day.before(CHECKPOINT_DAYS)).await?;
        before.map_or_else(Vec::new, |report| report.chains)
    };
    let (mut heads, mut entries, mut found) = (Vec::new(), Vec::new(), DayFiles::default());
    for chain in chains(&**objects).await? {
        let from = known.iter().find(|head| head.chain == chain);
        let walked = walk(&**objects, &chain, from, told).await?;
        found.problems.extend(walked.problem);
        let of_day = walked.commits.into_iter().flat_map(|commit| commit.files);
        entries.extend(of_day.filter(|file| file.place().is_some_and(|(of, _)| of == day)));
        heads.push(walked.head);
    }
    told(Progress::Files(entries.len() as u64));
    for entry in entries {
        check_file(&**objects, &entry, &mut found).await?;
        told(Progress::File(entry.bytes));
    }
    for ids in found.ids.values_mut() {
        ids.sort_unstable();
        ids.dedup();
    }
    Ok((heads, found))
}

/// An event that the table has and the archive has not.
pub struct MissingEvents {
    /// The database.
    pub database: String,
    /// The source.
    pub source: Uuid,
    /// Their `event_id`, in rising order.
    pub ids: Vec<i64>,
}

/// The events of a day that the archive has not. What is wrong with its files is no matter here: what they have counts as
/// archived where it can be read.
///
/// # Errors
/// As [`check_day`].
pub async fn missing_events<O: Objects>(
    objects: &Arc<O>,
    config: &Config,
    day: Day,
    told: Told<'_>,
) -> Result<Vec<MissingEvents>> {
    let (_, found) = read_day(objects, day, false, told).await?;
    let mut databases = Databases::open(config).await?;
    let mut missing = Vec::new();
    for (source, table) in databases.digests(day).await? {
        if table.is_gone {
            continue;
        }
        let archived = found.ids.get(&source).map_or(&[][..], Vec::as_slice);
        let mut ids = databases.ids(&table.database, day, source).await?;
        ids.retain(|id| archived.binary_search(id).is_err());
        if !ids.is_empty() {
            missing.push(MissingEvents {
                database: table.database,
                source,
                ids,
            });
        }
    }
    Ok(missing)
}

fn worst<'v>(verdicts: impl Iterator<Item = &'v DayVerdict>, problems: &[String]) -> &'static str {
    let mut names: Vec<_> = verdicts.map(DayVerdict::name).collect();
    if !problems.is_empty() {
        names.push("mismatch");
    }
    let found = ["mismatch", "incomplete"]
        .into_iter()
        .find(|state| names.contains(state));
    found.unwrap_or("verified")
}

/// Several servers may share an archive: what another one has found of its sources stays.
fn keep_others(report: &mut DayReport, before: Option<DayReport>) {
    let Some(before) = before else { return };
    for theirs in before.sources {
        let ours = report
            .sources
            .iter_mut()
            .find(|ours| ours.source == theirs.source);
        match ours {
            Some(ours) if ours.database.is_none() && theirs.database.is_some() => *ours = theirs,
            Some(_) => {}
            None => report.sources.push(theirs),
        }
    }
}

async fn read_report<O: Objects>(objects: &O, day: Day) -> Result<Option<DayReport>> {
    match objects.get(&daily_key(day)).await {
        // One that cannot be read is no checkpoint: the chain is walked from its beginning.
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind == ObjectErrorKind::Missing => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn write_report<O: Objects>(objects: &O, day: Day, report: &DayReport) -> Result<()> {
    let mut bytes =
        serde_json::to_vec_pretty(report).map_err(|error| Error::runtime(format!("write JSON: {error}")))?;
    bytes.push(b'\n');
    Ok(objects.put(&daily_key(day), &Bytes::from(bytes)).await?)
}

/// Reads a file again: it must be, byte for byte, what the commit names, and have what the commit says.
async fn check_file<O: Objects>(objects: &O, entry: &FileEntry, found: &mut DayFiles) -> Result<()> {
    found.files += 1;
    let bytes = match objects.get(&entry.key).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind == ObjectErrorKind::Missing => {
            found.problems.push(format!("file {} is missing", entry.key));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    found.rows += entry.rows;
    found.bytes += entry.bytes;
    let wanted = entry.clone();
    // It computes for seconds.
    let read = tokio::task::spawn_blocking(move || read_file(&bytes, &wanted));
    match read
        .await
        .map_err(|error| Error::runtime(format!("read a file: {error}")))?
    {
        Ok(ids) => {
            for (source, mut of_source) in ids {
                found.ids.entry(source).or_default().append(&mut of_source);
            }
        }
        Err(why) => found.problems.push(format!("file {} {why}", entry.key)),
    }
    Ok(())
}

type FileIds = BTreeMap<Uuid, Vec<i64>>;

fn read_file(bytes: &Bytes, wanted: &FileEntry) -> std::result::Result<FileIds, String> {
    let hash = hex(&sha256(bytes));
    if hash != wanted.sha256 || bytes.len() as u64 != wanted.bytes {
        return Err(format!(
            "is not what was written: its SHA-256 is {hash}, and the commit says {}",
            wanted.sha256
        ));
    }
    let broken = |error: super::parquet::FileError| format!("cannot be read: {error}");
    let opened = Opened::open(bytes.clone()).map_err(broken)?;
    let summary = opened.summary().map_err(broken)?;
    let is_same = summary.rows == wanted.rows
        && summary.events == wanted.events
        && summary.ids == (wanted.id_min, wanted.id_max)
        && digest_text(&summary) == wanted.id_digest;
    if !is_same {
        return Err(format!(
            "has {} rows that are not those of its commit",
            summary.rows
        ));
    }
    let mut ids = FileIds::new();
    if !opened.is_foreign {
        let read = opened.each_id(|source, id, _| {
            ids.entry(source.parse().unwrap_or_default())
                .or_default()
                .push(id);
        });
        read.map_err(broken)?;
    }
    Ok(ids)
}

type Compared = (SourceReport, Option<DayVerdict>, IdDigest);

/// Every source that the files or the tables have.
async fn compare(databases: &mut Databases, day: Day, found: &DayFiles) -> Result<Vec<Compared>> {
    let mut tables = databases.digests(day).await?;
    let nothing = Vec::new();
    let mut compared = Vec::new();
    let sources: std::collections::BTreeSet<_> = found.ids.keys().chain(tables.keys()).copied().collect();
    for source in sources {
        let ids = found.ids.get(&source).unwrap_or(&nothing);
        let archived = IdDigest::of(ids.iter().copied());
        let mut report = SourceReport {
            source,
            database: None,
            archived: archived.rows,
            table: None,
            state: None,
            reason: None,
            missing: Vec::new(),
            extra: Vec::new(),
        };
        let Some(table) = tables.remove(&source) else {
            compared.push((report, None, archived));
            continue;
        };
        let mut evidence = DayEvidence {
            broken: found.problems.first().cloned(),
            archived,
            table: table.digest,
            missing: 0,
            extra: 0,
        };
        if archived != table.digest && !table.is_gone {
            differ(
                databases,
                day,
                (source, &table, ids),
                (&mut evidence, &mut report),
            )
            .await?;
        }
        let verdict = judge(&evidence);
        report.database = Some(table.database);
        report.table = Some(table.digest.rows);
        report.state = Some(verdict.name().to_owned());
        report.reason = verdict.reason().map(str::to_owned);
        compared.push((report, Some(verdict), archived));
    }
    Ok(compared)
}

/// Which events one has and the other has not.
async fn differ(
    databases: &mut Databases,
    day: Day,
    (source, table, archived): (Uuid, &TableDay, &[i64]),
    (evidence, report): (&mut DayEvidence, &mut SourceReport),
) -> Result<()> {
    let there = databases.ids(&table.database, day, source).await?;
    let without = |ids: &[i64], others: &[i64]| {
        let missing: Vec<i64> = ids
            .iter()
            .filter(|id| others.binary_search(id).is_err())
            .copied()
            .collect();
        (
            missing.len() as u64,
            missing.into_iter().take(NAMED_MAX).collect(),
        )
    };
    (evidence.missing, report.missing) = without(&there, archived);
    (evidence.extra, report.extra) = without(archived, &there);
    // Rows may have come between both looks.
    evidence.table = IdDigest::of(there);
    Ok(())
}
