//! The check of a day: every commit since the last check and every file of the day is read again, and compared with what the
//! chain says and with the table.

mod daily;
mod table;
#[cfg(test)]
mod tests;
mod walk;

pub use self::daily::check_daily;
pub(crate) use self::walk::{Back, follow, last_listed, missing};
pub use self::walk::{Walked, chains, walk};

use self::table::{Databases, TableDay};
use super::commit::{Commit, FileEntry, commit_key, daily_key, digest_text};
use super::index::{self, Gathered};
use super::objects::{ObjectErrorKind, Objects};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::host_us;
use bytes::Bytes;
use idgen_core::archive::{DayEvidence, DayVerdict, EventKey, IdDigest, judge};
use idgen_core::day::Day;
use idgen_core::utc::{parse_us, show_us};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Ids that are named, of those that are missing.
const NAMED_MAX: usize = 10;
/// Problems that are listed.
const PROBLEMS_MAX: usize = 100;
/// A chain is walked from where a check found it that was made before the day began, by any clock: then no event of the day was
/// there yet. As a rule that is the check of the day before yesterday; it is looked for so far back.
const CHECKPOINT_DAYS: std::ops::RangeInclusive<u32> = 2..=31;
const CLOCKS_US: i64 = 3_600_000_000;

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
    /// The first check of the day, where this is a later one: whoever checks a day after this one begins there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstCheck>,
    /// Each source of events.
    pub sources: Vec<SourceReport>,
    /// Everything that is wrong.
    pub problems: Vec<String>,
}

/// What the first check of a day found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstCheck {
    /// When.
    pub checked_at: String,
    /// Where each chain ended then.
    pub chains: Vec<ChainHead>,
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
    events: DayEvents,
    files: u64,
    rows: u64,
    bytes: u64,
    entries: Vec<FileEntry>,
    about: Gathered,
    /// Where each chain had no file of a later day yet.
    before_later: Vec<ChainHead>,
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
    let (heads, mut found) = read_day(objects, day, whole, told).await?;
    let mut databases = Databases::open(config).await?;
    let mut sources = compare(&mut databases, day, &found).await?;
    let text = |head: &ChainHead| format!("{} {}:{}", head.chain, head.seq, head.sha256);
    let head = heads.iter().map(text).collect::<Vec<_>>().join(", ");
    for (report, judged) in &sources {
        if let Some((verdict, table)) = judged {
            databases
                .write(day, (report.source, table, verdict), (&head, by))
                .await?;
        }
    }
    let about = std::mem::take(&mut found.about);
    let chains = std::mem::take(&mut found.before_later);
    let index = about.into_index(day, chains, std::mem::take(&mut found.entries));
    index::write(&**objects, day, &index).await?;
    let now_us = host_us();
    found.problems.truncate(PROBLEMS_MAX);
    let mut report = DayReport {
        schema: 1,
        day: day.to_string(),
        state: String::new(),
        checked_at: show_us(now_us),
        checked_by: by.to_owned(),
        files: found.files,
        rows: found.rows,
        bytes: found.bytes,
        chains: heads,
        first: None,
        sources: sources.drain(..).map(|(report, _)| report).collect(),
        problems: found.problems,
    };
    if let Some(before) = read_report(&**objects, day).await? {
        keep_what_was(&mut report, before);
    }
    worst(&report).clone_into(&mut report.state);
    write_report(&**objects, day, &report).await?;
    Ok(report)
}

/// Where the chains ended before an event of the day was there; nothing: they are walked from their beginning.
async fn checkpoint_of<O: Objects>(objects: &O, day: Day) -> Result<Vec<ChainHead>> {
    for days in CHECKPOINT_DAYS {
        if let Some(report) = read_report(objects, day.before(days)).await? {
            let (checked_at, chains) = match report.first {
                Some(first) => (first.checked_at, first.chains),
                None => (report.checked_at, report.chains),
            };
            let is_before = |us: i64| us.saturating_add(CLOCKS_US) <= day.start_us();
            if parse_us(&checked_at).is_some_and(is_before) {
                return Ok(chains);
            }
        }
    }
    Ok(Vec::new())
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
        checkpoint_of(&**objects, day).await?
    };
    let (mut heads, mut entries, mut found) = (Vec::new(), Vec::new(), DayFiles::default());
    for chain in chains(&**objects).await? {
        let from = known.iter().find(|head| head.chain == chain);
        let walked = walk(&**objects, &chain, from, told).await?;
        found.problems.extend(walked.problem);
        let before = index::before_later_days(&walked.commits, &walked.head, day);
        found.before_later.push(before);
        let of_day = walked.commits.into_iter().flat_map(|commit| commit.files);
        entries.extend(of_day.filter(|file| file.place().is_some_and(|(of, _)| of == day)));
        heads.push(walked.head);
    }
    told(Progress::Files(entries.len() as u64));
    for entry in entries {
        check_file(&**objects, &entry, &mut found).await?;
        told(Progress::File(entry.bytes));
        found.entries.push(entry);
    }
    for events in found.events.values_mut() {
        events.sort_unstable();
        events.dedup();
    }
    Ok((heads, found))
}

/// The files of some days, as the chains name them.
pub(crate) struct FilesOf {
    /// Each file, and its day.
    pub files: Vec<(Day, FileEntry)>,
    /// What is wrong with the chains.
    pub problems: Vec<String>,
    /// When the archive was begun, Unix microseconds; none: it has nothing.
    pub began_us: Option<i64>,
}

/// The files of the days from `first` to `last`.
pub(crate) async fn files_of<O: Objects>(objects: &O, first: Day, last: Day) -> Result<FilesOf> {
    let known = checkpoint_of(objects, first).await?;
    let mut found = FilesOf {
        files: Vec::new(),
        problems: Vec::new(),
        began_us: None,
    };
    for chain in chains(objects).await? {
        let from = known.iter().find(|head| head.chain == chain);
        let walked = walk(objects, &chain, from, &|_| {}).await?;
        found.problems.extend(walked.problem);
        let of_days = walked.commits.into_iter().flat_map(|commit| commit.files);
        found.files.extend(of_days.filter_map(|file| {
            let (day, _) = file.place()?;
            (first..=last).contains(&day).then_some((day, file))
        }));
        if let Ok(bytes) = objects.get(&commit_key(&chain, 1)).await
            && let Ok(commit) = Commit::parse(&bytes)
            && let Some(us) = parse_us(&commit.created_at)
        {
            found.began_us = Some(found.began_us.map_or(us, |began| began.min(us)));
        }
    }
    Ok(found)
}

/// An event that the table has and the archive has not.
pub struct MissingEvents {
    /// The database.
    pub database: String,
    /// The source.
    pub source: Uuid,
    /// In rising order.
    pub events: Vec<EventKey>,
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
        let archived = found.events.get(&source).map_or(&[][..], Vec::as_slice);
        let mut events = databases.events(&table.database, day, source).await?;
        events.retain(|event| archived.binary_search(event).is_err());
        if !events.is_empty() {
            missing.push(MissingEvents {
                database: table.database,
                source,
                events,
            });
        }
    }
    Ok(missing)
}

/// The worst of all sources. Where there is nothing at all nothing is proved.
fn worst(report: &DayReport) -> &'static str {
    let has = |state: &str| report.sources.iter().any(|of| of.state.as_deref() == Some(state));
    if has("mismatch") || !report.problems.is_empty() {
        "mismatch"
    } else if has("incomplete") || (report.sources.is_empty() && report.files == 0) {
        "incomplete"
    } else {
        "verified"
    }
}

/// Several servers may share an archive: what another one has found of its sources stays, and so does what the first check of
/// the day has found of the chains.
fn keep_what_was(report: &mut DayReport, before: DayReport) {
    report.first = before.first.or(Some(FirstCheck {
        checked_at: before.checked_at,
        chains: before.chains,
    }));
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
        Ok((events, about)) => {
            found.about.merge(about);
            for (source, mut of_source) in events {
                found.events.entry(source).or_default().append(&mut of_source);
            }
        }
        Err(why) => found.problems.push(format!("file {} {why}", entry.key)),
    }
    Ok(())
}

type DayEvents = BTreeMap<Uuid, Vec<EventKey>>;

fn read_file(bytes: &Bytes, wanted: &FileEntry) -> std::result::Result<(DayEvents, Gathered), String> {
    let broken = |error: super::parquet::FileError| format!("cannot be read: {error}");
    let opened = wanted.open(bytes.clone()).map_err(|why| why.to_string())?;
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
    let (mut events, mut about) = (DayEvents::new(), Gathered::default());
    if !opened.is_foreign {
        let read = opened.each_key(|source, key| events.entry(source).or_default().push(key));
        read.and_then(|()| about.read(&opened)).map_err(broken)?;
    }
    Ok((events, about))
}

/// Of a source of a database here what it comes to, and what was compared.
type Compared = (SourceReport, Option<(DayVerdict, TableDay)>);

/// Every source that the files or the tables have.
async fn compare(databases: &mut Databases, day: Day, found: &DayFiles) -> Result<Vec<Compared>> {
    let mut tables = databases.digests(day).await?;
    let nothing = Vec::new();
    let mut compared = Vec::new();
    let sources: BTreeSet<_> = found.events.keys().chain(tables.keys()).copied().collect();
    for source in sources {
        let events = found.events.get(&source).unwrap_or(&nothing);
        let archived = IdDigest::of(events.iter().copied());
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
        let Some(mut table) = tables.remove(&source) else {
            compared.push((report, None));
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
                (source, &table, events),
                (&mut evidence, &mut report),
            )
            .await?;
            table.digest = evidence.table;
        }
        let verdict = judge(&evidence);
        report.database = Some(table.database.clone());
        report.table = Some(table.digest.rows);
        report.state = Some(verdict.name().to_owned());
        report.reason = verdict.reason().map(str::to_owned);
        compared.push((report, Some((verdict, table))));
    }
    Ok(compared)
}

/// Which events one has and the other has not.
async fn differ(
    databases: &mut Databases,
    day: Day,
    (source, table, archived): (Uuid, &TableDay, &[EventKey]),
    (evidence, report): (&mut DayEvidence, &mut SourceReport),
) -> Result<()> {
    let there = databases.events(&table.database, day, source).await?;
    let without = |events: &[EventKey], others: &[EventKey]| {
        let missing: Vec<i64> = events
            .iter()
            .filter(|event| others.binary_search(event).is_err())
            .map(|event| event.0)
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
