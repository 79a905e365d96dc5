//! `idgenctl audit`.

use crate::bar::Bar;
use crate::shared::{CellArguments, DryRunArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_core::audit::Extent;
use idgen_daemon::config::parse_postgres;
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::audit::{Shown, close, exit_of, run_now, runs_text, show};

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Audit now: is every id of every tag granted once, and is every grant still there? Ends with 3 when something was found,
    /// with 4 when it says nothing, because something could not be read.
    #[command(after_help = "Example:\n  idgenctl audit run --config /etc/idgend.toml --full")]
    Run {
        #[command(flatten)]
        cell: CellArguments,
        /// Everything that is there, and not only what has come since the last run.
        #[arg(long)]
        full: bool,
        /// Of this database alone.
        #[arg(long, value_name = "DATABASE")]
        database: Option<String>,
    },
    /// Show the last runs and the findings that are open, with both issuers and what to do. Ends with 3 when one is open.
    #[command(after_help = "Example:\n  idgenctl audit show --config /etc/idgend.toml")]
    Show {
        #[command(flatten)]
        cell: CellArguments,
        /// Of this database alone.
        #[arg(long, value_name = "DATABASE")]
        database: Option<String>,
        /// This run, and what it was the first to find, closed or not.
        #[arg(value_name = "RUN", requires = "database")]
        run: Option<i64>,
    },
    /// Close a finding: it was dealt with. It stays in the table, with who closed it and why.
    #[command(
        after_help = "Example:\n  idgenctl audit close --config /etc/idgend.toml --database orders 7 --reason 'renumbered 1 to 5'"
    )]
    Close {
        #[command(flatten)]
        cell: CellArguments,
        /// The database.
        #[arg(long, value_name = "DATABASE")]
        database: String,
        /// Its number.
        #[arg(value_name = "FINDING")]
        finding: i64,
        /// What was done about it.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// How an administrator logs in to the server, where the daemon's role may not.
        #[arg(long, value_name = "URL")]
        postgres: Option<String>,
        #[command(flatten)]
        dry: DryRunArguments,
    },
}

impl AuditCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Run { cell, full, database } => {
                let config = cell.load()?;
                let extent = if full { Extent::Full } else { Extent::Incremental };
                let bar = Bar::of("ranges", 0);
                let told = |ranges: u64| bar.reached(ranges);
                let runs = wait_for(run_now(&config, extent, database.as_deref(), &told))??;
                drop(bar);
                cell.output.show(&runs, |runs| runs_text(runs))?;
                let verdicts = runs.iter().map(|run| run.verdict.as_str());
                Ok(Ended::Ours(exit_of(verdicts)))
            }
            Self::Show { cell, database, run } => {
                let config = cell.load()?;
                let shown = wait_for(show(&config, database.as_deref(), run))??;
                if let Some(run) = run
                    && shown.iter().all(|of| of.runs.is_empty())
                {
                    return Err(Error::refused(format!("there is no run {run}")));
                }
                cell.output.show(&shown, |shown| {
                    shown.iter().map(Shown::text).collect::<Vec<_>>().join("\n\n")
                })?;
                let mut findings = shown.iter().flat_map(|of| &of.findings);
                Ok(Ended::unless(findings.all(|finding| finding.closed.is_some())))
            }
            Self::Close {
                cell,
                database,
                finding,
                reason,
                postgres,
                dry,
            } => {
                let config = cell.load()?;
                let url = match postgres {
                    Some(url) => parse_postgres("--postgres", &url)?,
                    None => config.postgres.url.clone(),
                };
                let closed = wait_for(close(
                    &url.in_database(&database),
                    config.postgres.connect_timeout,
                    (finding, &reason),
                    dry.dry_run,
                ))??;
                cell.output.show(&closed, |closed| {
                    let what = match (closed.was_open, dry.dry_run) {
                        (false, _) => "is closed already",
                        (true, true) => "would be closed",
                        (true, false) => "is closed",
                    };
                    format!("finding {finding} {what}: {}", closed.detail)
                })?;
                Ok(Ended::OK)
            }
        }
    }
}
