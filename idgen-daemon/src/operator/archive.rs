//! What `idgenctl archive` shows and does.

use super::consent::{Change, Consent};
use crate::archive::backfill::{self, Backfill};
use crate::archive::commit::{BadFile, Commit, FOREIGN_SERVICE, FileEntry};
use crate::archive::objects::{AnyObjects, Objects};
use crate::archive::parquet::{FileError, Opened};
use crate::archive::verify::{DayReport, Progress, Told, chains, check_day, walk};
use crate::archive::{ArchiveMetrics, Archiver};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::event::hex;
use crate::plain_table::plain_table;
use idgen_core::day::Day;
use serde::Serialize;
use std::sync::Arc;

/// The archive of a configuration.
pub struct Archive {
    config: Config,
    archiver: Archiver<AnyObjects>,
}

/// What there is.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Each chain.
    pub chains: Vec<ChainListing>,
}

/// A chain.
#[derive(Clone, Debug, Serialize)]
pub struct ChainListing {
    /// Its name.
    pub chain: String,
    /// Its last commit.
    pub seq: u64,
    /// SHA-256 of that. Whoever notes it elsewhere notices a change of anything before it.
    pub sha256: String,
    /// When that was made.
    pub committed_at: Option<String>,
    /// Files that count; of the day alone that was asked for.
    pub files: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Offsets that are missing.
    pub gap_offsets: i64,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// The files themselves, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<FileEntry>,
}

impl Listing {
    /// Is nothing wrong?
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.chains.iter().all(|chain| chain.problem.is_none())
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = plain_table();
        table.set_header([
            "chain",
            "commits",
            "last commit",
            "files",
            "rows",
            "bytes",
            "missing offsets",
        ]);
        for chain in &self.chains {
            table.add_row([
                chain.chain.clone(),
                chain.seq.to_string(),
                chain.committed_at.clone().unwrap_or_default(),
                chain.files.to_string(),
                chain.rows.to_string(),
                chain.bytes.to_string(),
                chain.gap_offsets.to_string(),
            ]);
        }
        let mut text = table.to_string();
        for problem in self.chains.iter().filter_map(|chain| chain.problem.as_ref()) {
            text.push_str(&format!("\nwrong: {problem}"));
        }
        text
    }

    /// The names of the files, one a line: for tools that read them.
    #[must_use]
    pub fn names(&self) -> String {
        let entries = self.chains.iter().flat_map(|chain| &chain.entries);
        entries
            .map(|entry| entry.key.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// What is told of a check.
#[must_use]
pub fn report_text(report: &DayReport) -> String {
    let mut table = plain_table();
    table.set_header([
        "source",
        "database",
        "in the archive",
        "in the table",
        "state",
        "why",
    ]);
    for source in &report.sources {
        table.add_row([
            source.source.to_string(),
            source.database.clone().unwrap_or_else(|| "elsewhere".to_owned()),
            source.archived.to_string(),
            source.table.map_or_else(String::new, |rows| rows.to_string()),
            source.state.clone().unwrap_or_default(),
            source.reason.clone().unwrap_or_default(),
        ]);
    }
    let mut text = format!(
        "day {}: {} ({} files, {} rows, {} bytes)\n{table}",
        report.day,
        report.state.to_uppercase(),
        report.files,
        report.rows,
        report.bytes
    );
    for problem in &report.problems {
        text.push_str(&format!("\nwrong: {problem}"));
    }
    for source in &report.sources {
        for (what, ids) in [
            ("not in the archive", &source.missing),
            ("not in the table", &source.extra),
        ] {
            if !ids.is_empty() {
                text.push_str(&format!("\n{} {what}: event_id {ids:?}", source.source));
            }
        }
    }
    text
}

/// What of a day is to be read out.
#[derive(Clone, Debug, Default)]
pub struct CatWish {
    /// Of this tag alone.
    pub tag: Option<String>,
    /// Messages that are no events of this version, instead of events.
    pub foreign: bool,
}

/// A foreign message for people and tools.
#[derive(Serialize)]
struct ForeignLine {
    partition: i32,
    offset: i64,
    why: String,
    key: Option<String>,
    value: Option<String>,
    /// Where the value is no text.
    value_hex: Option<String>,
}

impl Archive {
    /// Reaches nothing yet but credentials.
    ///
    /// # Errors
    /// There is no archive in the configuration.
    pub async fn open(config: Config) -> Result<Self> {
        let wanted = config.archive.clone().ok_or_else(|| {
            Error::usage("there is no [archive] in this configuration")
                .with_hint("docs/operations.md tells how it is set up")
        })?;
        let registry = prometheus::Registry::new();
        let archiver = Archiver {
            objects: Arc::new(AnyObjects::open(&wanted.place).await),
            config: wanted,
            metrics: ArchiveMetrics::new(&registry)?,
        };
        Ok(Self { config, archiver })
    }

    fn objects(&self) -> &AnyObjects {
        &self.archiver.objects
    }

    async fn commits(&self, told: Told<'_>) -> Result<Vec<(ChainListing, Vec<Commit>)>> {
        let mut found = Vec::new();
        for chain in chains(self.objects()).await? {
            let walked = walk(self.objects(), &chain, None, told).await?;
            let listing = ChainListing {
                seq: walked.head.seq,
                sha256: walked.head.sha256,
                committed_at: walked.commits.last().map(|commit| commit.created_at.clone()),
                files: 0,
                rows: 0,
                bytes: 0,
                gap_offsets: walked
                    .commits
                    .iter()
                    .flat_map(|commit| &commit.gaps)
                    .map(|gap| gap.to - gap.from)
                    .sum(),
                problem: walked.problem,
                entries: Vec::new(),
                chain,
            };
            found.push((listing, walked.commits));
        }
        Ok(found)
    }

    /// What there is, of all days or one.
    ///
    /// # Errors
    /// The place does not answer.
    pub async fn list(&self, day: Option<Day>, with_files: bool, told: Told<'_>) -> Result<Listing> {
        let mut chains = Vec::new();
        for (mut listing, commits) in self.commits(told).await? {
            let files = commits.into_iter().flat_map(|commit| commit.files);
            let of_day =
                |file: &FileEntry| day.is_none_or(|day| file.place().is_some_and(|(of, _)| of == day));
            for file in files.filter(of_day) {
                listing.files += 1;
                listing.rows += file.rows;
                listing.bytes += file.bytes;
                if with_files {
                    listing.entries.push(file);
                }
            }
            chains.push(listing);
        }
        Ok(Listing { chains })
    }

    /// Checks a day.
    ///
    /// # Errors
    /// The place or the server does not answer.
    pub async fn verify(&self, day: Day, whole: bool, told: Told<'_>) -> Result<DayReport> {
        let by = format!("idgenctl, {}", self.config.name);
        check_day(&self.archiver.objects, &self.config, day, (&by, whole), told).await
    }

    /// Takes from the table what the archive has not.
    ///
    /// # Errors
    /// The place or the server does not answer, or nobody has said yes.
    pub async fn backfill(&self, day: Day, consent: Consent, told: Told<'_>) -> Result<Change<Backfill>> {
        let (planned, missing) = backfill::plan(&self.archiver, &self.config, day, told).await?;
        let would = format!(
            "{} events of {day} would be archived from the table.",
            planned.missing()
        );
        if planned.missing() == 0 {
            return Ok(match consent {
                Consent::DryRun => Change::tried(planned, would),
                _ => Change::made(planned),
            });
        }
        if !consent.may(&would)? {
            return Ok(Change::tried(planned, would));
        }
        let done = backfill::backfill(&self.archiver, &self.config, day, missing, told).await?;
        Ok(Change::made(done))
    }

    /// Calls `line` with each event of a day, as JSON in one line.
    ///
    /// # Errors
    /// The place does not answer, or a file cannot be read. `line` says false when it has seen enough.
    pub async fn cat(
        &self,
        day: Day,
        wish: &CatWish,
        mut line: impl FnMut(&str) -> bool,
        told: Told<'_>,
    ) -> Result<()> {
        let listing = self.list(Some(day), true, &|_| {}).await?;
        let entries: Vec<_> = listing
            .chains
            .into_iter()
            .flat_map(|chain| chain.entries)
            .collect();
        told(Progress::Files(entries.len() as u64));
        for entry in entries {
            let is_foreign = entry
                .place()
                .is_some_and(|(_, service)| service == FOREIGN_SERVICE);
            if is_foreign == wish.foreign {
                let bytes = self.objects().get(&entry.key).await?;
                let unread = |why: BadFile| {
                    let text = format!("file {} {why}", entry.key);
                    match why {
                        BadFile::Changed(_) => Error::refused(text),
                        BadFile::Broken(_) => Error::runtime(text),
                    }
                };
                let opened = entry.open(bytes).map_err(unread)?;
                for text in lines(&opened, wish).map_err(|error| unread(BadFile::Broken(error)))? {
                    if !line(&text) {
                        return Ok(());
                    }
                }
            }
            told(Progress::File(entry.bytes));
        }
        Ok(())
    }
}

fn lines(opened: &Opened, wish: &CatWish) -> std::result::Result<Vec<String>, FileError> {
    let mut lines = Vec::new();
    if wish.foreign {
        opened.each_foreign(|row| {
            let text =
                |bytes: Option<&Vec<u8>>| bytes.and_then(|bytes| String::from_utf8(bytes.clone()).ok());
            let value = text(row.value.as_ref());
            let line = ForeignLine {
                partition: row.spot.partition,
                offset: row.spot.offset,
                key: text(row.key.as_ref()),
                value_hex: row.value.as_deref().filter(|_| value.is_none()).map(hex),
                value,
                why: row.why,
            };
            lines.extend(serde_json::to_string(&line).ok());
        })?;
    } else {
        opened.each_event(|row| {
            if wish.tag.as_ref().is_none_or(|tag| *tag == row.event.tag) {
                lines.extend(row.original.or_else(|| serde_json::to_string(&row.event).ok()));
            }
        })?;
    }
    Ok(lines)
}
