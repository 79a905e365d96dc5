//! `idgenctl`: the operator's view of a server with pg_idgen.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use idgen_daemon::config::{Config, parse_postgres};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::status::{Status, table};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code of a status without an open lease.
const EXIT_FINDING: u8 = 3;

#[derive(Parser)]
#[command(
    name = "idgenctl",
    version,
    about = "Look at the leases of a Postgres server that has pg_idgen.",
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 finding (no open lease)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show server, cell, slots, tokens, seconds to the deadline and ceiling lead.
    Status {
        /// As a table for people, or as JSON.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
        /// Configuration file of the server's idgend.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "postgres",
            required_unless_present = "postgres"
        )]
        config: Option<PathBuf>,
        /// libpq URL or key=value string of the server.
        #[arg(long, value_name = "URL")]
        postgres: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let Command::Status {
        output,
        config,
        postgres,
    } = Arguments::parse().command;
    match show_status(output, config, postgres) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("idgenctl: {error}");
            error.exit_code()
        }
    }
}

fn show_status(output: Output, config: Option<PathBuf>, postgres: Option<String>) -> Result<ExitCode> {
    let (url, limit) = match (config, postgres) {
        (Some(path), _) => {
            let config = Config::load(&path)?;
            (config.postgres.url, config.postgres.connect_timeout)
        }
        (None, Some(url)) => (parse_postgres("--postgres", &url)?, Duration::from_secs(3)),
        (None, None) => return Err(Error::usage("neither --config nor --postgres is given")),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::runtime(format!("start the runtime: {error}")))?;
    let status = runtime.block_on(Status::read(&url, limit))?;
    let text = match output {
        Output::Table => table(&status),
        Output::Json => serde_json::to_string_pretty(&status)
            .map_err(|error| Error::runtime(format!("write JSON: {error}")))?,
    };
    // A reader that has seen enough, such as `head`, is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(if status.is_serving() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FINDING)
    })
}
