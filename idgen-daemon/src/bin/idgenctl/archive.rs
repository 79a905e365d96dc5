//! `idgenctl archive`.

use crate::bar::Bar;
use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_core::day::Day;
use idgen_daemon::archive::backfill::Backfill;
use idgen_daemon::archive::verify::Progress;
use idgen_daemon::error::Result;
use idgen_daemon::operator::archive::{Archive, CatWish, Listing, report_text};
use std::io::{Write, stdout};

#[derive(Subcommand)]
pub enum ArchiveCommand {
    /// Show the chains of commits, and with --files the files that count. Ends with 3 when a chain is broken.
    #[command(
        after_help = "Example:\n  idgenctl archive ls --config /etc/idgend.toml --day 2026-04-03 --files"
    )]
    Ls {
        #[command(flatten)]
        cell: CellArguments,
        /// Files of this UTC day alone.
        #[arg(long, value_name = "DATE")]
        day: Option<Day>,
        /// The names of the files, one a line: whoever reads the archive reads these, and no others that lie there.
        #[arg(long)]
        files: bool,
    },
    /// Read every file of a day again, compare it with its commit and the day with the table, and write down what was found.
    /// Ends with 3 when something was changed or lost, with 4 when something is not there yet.
    #[command(after_help = "Example:\n  idgenctl archive verify --config /etc/idgend.toml 2026-04-03")]
    Verify {
        #[command(flatten)]
        cell: CellArguments,
        /// UTC days.
        #[arg(value_name = "DATE", required = true)]
        days: Vec<Day>,
        /// Walk the chains from their first commit on, and not from where an earlier check has left them.
        #[arg(long)]
        whole: bool,
    },
    /// Take from the table what the archive of a day has not, because the topic had lost it.
    #[command(
        after_help = "Example:\n  idgenctl archive backfill --config /etc/idgend.toml 2026-04-03 --dry-run"
    )]
    Backfill {
        #[command(flatten)]
        cell: CellArguments,
        /// The UTC day.
        #[arg(value_name = "DATE")]
        day: Day,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Write the events of a day, one JSON object a line.
    #[command(
        after_help = "Example:\n  idgenctl archive cat --config /etc/idgend.toml 2026-04-03 --tag invoices"
    )]
    Cat {
        #[command(flatten)]
        cell: CellArguments,
        /// The UTC day.
        #[arg(value_name = "DATE")]
        day: Day,
        /// Of this tag alone.
        #[arg(long)]
        tag: Option<String>,
        /// Messages that are no events of this version, with the reason, instead of events.
        #[arg(long, conflicts_with = "tag")]
        foreign: bool,
    },
}

/// A check goes through commits, and through their files.
struct Bars {
    commits: Bar,
    files: Bar,
}

impl Bars {
    fn new() -> Self {
        Self {
            commits: Bar::of("commits", 0),
            files: Bar::of("files  ", 0),
        }
    }

    fn show(&self, progress: Progress) {
        match progress {
            Progress::Commits(more) => self.commits.more(more),
            Progress::Commit => self.commits.step(),
            Progress::Files(more) => self.files.more(more),
            Progress::File(_) => self.files.step(),
        }
    }
}

impl ArchiveCommand {
    pub fn run(self) -> Result<Ended> {
        let bars = Bars::new();
        let told = |progress| bars.show(progress);
        match self {
            Self::Ls { cell, day, files } => {
                let listing =
                    wait_for(async { Archive::open(cell.load()?).await?.list(day, files, &told).await })??;
                drop(bars);
                let for_people = if files { Listing::names } else { Listing::table };
                cell.output.show(&listing, for_people)?;
                Ok(Ended::unless(listing.is_well()))
            }
            Self::Verify { cell, days, whole } => {
                let reports = wait_for(async {
                    let archive = Archive::open(cell.load()?).await?;
                    let mut reports = Vec::new();
                    for day in days {
                        reports.push(archive.verify(day, whole, &told).await?);
                    }
                    Ok::<_, idgen_daemon::error::Error>(reports)
                })??;
                drop(bars);
                cell.output.show(&reports, |reports| {
                    reports.iter().map(report_text).collect::<Vec<_>>().join("\n")
                })?;
                let has = |state: &str| reports.iter().any(|report| report.state == state);
                Ok(match (has("mismatch"), has("incomplete")) {
                    (true, _) => Ended::FINDING,
                    (false, true) => Ended::INCONCLUSIVE,
                    (false, false) => Ended::OK,
                })
            }
            Self::Backfill { cell, day, consent } => {
                let consent = consent.consent()?;
                let change = wait_for(async {
                    Archive::open(cell.load()?)
                        .await?
                        .backfill(day, consent, &told)
                        .await
                })??;
                drop(bars);
                cell.output.show_change(&change, backfill_text)?;
                Ok(Ended::OK)
            }
            Self::Cat {
                cell,
                day,
                tag,
                foreign,
            } => {
                let wish = CatWish { tag, foreign };
                // Whoever has seen enough closes the pipe.
                let write = |line: &str| writeln!(stdout(), "{line}").is_ok();
                wait_for(async {
                    Archive::open(cell.load()?)
                        .await?
                        .cat(day, &wish, write, &told)
                        .await
                })??;
                Ok(Ended::OK)
            }
        }
    }
}

fn backfill_text(done: &Backfill) -> String {
    if done.sources.is_empty() {
        return format!("day {}: nothing is missing", done.day);
    }
    let lines = done.sources.iter().map(|source| {
        let waiting = source.missing - source.archived;
        format!(
            "day {}, {}: {} events archived from the table, {waiting} not published yet",
            done.day, source.database, source.archived
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}
