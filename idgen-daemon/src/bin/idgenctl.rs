//! `idgenctl`: the operator's view of a server with pg_idgen, and what an operator may change.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand, ValueEnum};
use idgen_daemon::config::{Config, parse_postgres};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::format::{Formats, When, Wish};
use idgen_daemon::operator::{clock, format};
use idgen_daemon::status::{Status, table};
use idgen_daemon::tls::install_provider;
use serde::Serialize;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code of a status without an open lease.
const EXIT_FINDING: u8 = 3;

#[derive(Parser)]
#[command(
    name = "idgenctl",
    version,
    about = "Look at the leases of a Postgres server that has pg_idgen, and change what an operator may change.",
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 finding (no open lease) or refused."
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
    /// The wall clock that idgend believes.
    #[command(subcommand)]
    Clock(ClockCommand),
    /// The format of the ids that the workers of a cell mint.
    #[command(subcommand)]
    Format(FormatCommand),
}

#[derive(Subcommand)]
enum ClockCommand {
    /// Say that the server's wall clock is right as it is now, although it was set, is not synchronised or is apart
    /// from the peers': idgend takes new leases and raises ceilings by it again, until that is over. May be repeated;
    /// does nothing when the clock is believed already. The idgend must run on this host and serve HTTP.
    Accept {
        /// Configuration file of the idgend.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "http",
            required_unless_present = "http"
        )]
        config: Option<PathBuf>,
        /// Address and port that it listens at.
        #[arg(long, value_name = "ADDR")]
        http: Option<SocketAddr>,
    },
}

#[derive(Subcommand)]
enum FormatCommand {
    /// Show the format, and the switch to another one, past or to come.
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Switch to another format at a moment to come. Every server of the cell follows by itself; nothing is
    /// restarted. Refused while another switch is pending, and unless ids go on rising over it. It cannot be taken
    /// back.
    Switch {
        #[command(flatten)]
        cell: CellArguments,
        /// Name of a format that is compiled in, or registered in the server's database.
        #[arg(long, value_name = "NAME")]
        to: String,
        /// Region of the cell, for a format that has one.
        #[arg(long, value_name = "N")]
        region: Option<u64>,
        /// The moment, as 2026-12-01T03:00:00Z, or how long from now, as +15m. It must lie beyond every window
        /// that was or is being granted.
        #[arg(long, value_name = "WHEN", default_value = "+15m")]
        at: When,
    },
}

#[derive(Args)]
struct CellArguments {
    /// Configuration file of an idgend of the cell; of the one with the longest window where they differ.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// As text for people, or as JSON.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    install_provider();
    let outcome = match Arguments::parse().command {
        Command::Status {
            output,
            config,
            postgres,
        } => show_status(output, config, postgres),
        Command::Clock(ClockCommand::Accept { config, http }) => accept_clock(config, http),
        Command::Format(FormatCommand::Show { cell }) => show_formats(&cell),
        Command::Format(FormatCommand::Switch { cell, to, region, at }) => {
            switch_format(&cell, &Wish { to, region, when: at })
        }
    };
    match outcome {
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
    let status = wait_for(Status::read(&url, limit))??;
    show(output, &status, table)?;
    Ok(if status.is_serving() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FINDING)
    })
}

fn accept_clock(config: Option<PathBuf>, http: Option<SocketAddr>) -> Result<ExitCode> {
    let addr = match (config, http) {
        (_, Some(addr)) => addr,
        (Some(path), None) => http_of(&Config::load(&path)?)?,
        (None, None) => return Err(Error::usage("neither --config nor --http is given")),
    };
    say(clock::accept(addr)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Where the idgend of this configuration can be asked.
fn http_of(config: &Config) -> Result<SocketAddr> {
    let unknown = |why: &str| {
        let error = Error::usage(format!("{why}, so idgend cannot be asked"));
        Err(error.with_hint("restarting idgend accepts the clock too"))
    };
    match config.http_listen {
        None => unknown("http.listen is empty"),
        Some(addr) if addr.port() == 0 => unknown("http.listen leaves the port open, give --http ADDR"),
        Some(addr) if addr.ip().is_unspecified() => {
            Ok(SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), addr.port()))
        }
        Some(addr) => Ok(addr),
    }
}

fn show_formats(cell: &CellArguments) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let formats = wait_for(format::show(&config))??;
    show(cell.output, &formats, Formats::to_string)?;
    Ok(ExitCode::SUCCESS)
}

fn switch_format(cell: &CellArguments, wish: &Wish) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let formats = wait_for(format::switch(&config, wish))??;
    show(cell.output, &formats, Formats::to_string)?;
    Ok(ExitCode::SUCCESS)
}

fn wait_for<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::runtime(format!("start the runtime: {error}")))?;
    Ok(runtime.block_on(work))
}

fn show<T: Serialize>(output: Output, what: &T, for_people: impl Fn(&T) -> String) -> Result<()> {
    let text = match output {
        Output::Table => for_people(what),
        Output::Json => serde_json::to_string_pretty(what)
            .map_err(|error| Error::runtime(format!("write JSON: {error}")))?,
    };
    say(&text);
    Ok(())
}

fn say(text: &str) {
    // A reader that has seen enough, such as `head`, is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
}
