//! `idgenctl audit`.

use crate::bar::Bar;
use crate::shared::{CellArguments, DryRunArguments, Ended, wait_for};
use clap::{Args, Subcommand};
use idgen_core::audit::Extent;
use idgen_daemon::audit::table::{TableAudit, TableWish, audit_table};
use idgen_daemon::config::{Config, parse_postgres};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::audit::{Shown, close, exit_of, run_now, runs_text, show};
use idgen_daemon::postgres::PostgresUrl;

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
    /// Look for values that are there more than once in a column without a unique index. What was stopped goes on where it was.
    /// Ends with 3 when there are some.
    #[command(
        after_help = "Example:\n  idgenctl audit table --config /etc/idgend.toml --database orders public.orders --column id"
    )]
    Table(TableArguments),
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

#[derive(Args)]
pub struct TableArguments {
    #[command(flatten)]
    cell: CellArguments,
    /// The database.
    #[arg(long, value_name = "DATABASE")]
    database: String,
    /// The table, as SQL names it.
    #[arg(value_name = "SCHEMA.TABLE")]
    table: String,
    /// The column.
    #[arg(long)]
    column: String,
    /// Rows of an index that are looked at in one statement.
    #[arg(long, value_name = "ROWS", default_value_t = 100_000, value_parser = clap::value_parser!(i64).range(1..=10_000_000))]
    page: i64,
    /// Begin at the beginning, and not where an earlier run was stopped.
    #[arg(long)]
    anew: bool,
    /// How a role logs in that may read the table, where the daemon's may not.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

impl TableArguments {
    fn run(self) -> Result<Ended> {
        let config = self.cell.load()?;
        let url = login(&config, self.postgres.as_deref())?.in_database(&self.database);
        let wish = TableWish {
            relation: self.table,
            column: self.column,
            page: self.page,
            anew: self.anew,
        };
        let bar = Bar::of("parts", 0);
        let told = |done: u64, of: u64| bar.at(done, of);
        let by = format!("idgenctl of {}", config.name);
        let audit = wait_for(audit_table(
            &url,
            config.postgres.connect_timeout,
            (&by, &wish),
            &told,
        ))??;
        drop(bar);
        self.cell.output.show(&audit, TableAudit::text)?;
        Ok(Ended::Ours(exit_of([audit.verdict.as_str()])))
    }
}

/// That of the configuration, or another one.
fn login(config: &Config, postgres: Option<&str>) -> Result<PostgresUrl> {
    match postgres {
        Some(url) => parse_postgres("--postgres", url),
        None => Ok(config.postgres.url.clone()),
    }
}

impl AuditCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Table(table) => table.run(),
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
                let url = login(&config, postgres.as_deref())?;
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
