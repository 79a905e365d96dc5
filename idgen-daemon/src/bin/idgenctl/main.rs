//! `idgenctl`: the operator's view of a server with pg_idgen, and what an operator may change. One file per noun.
#![forbid(unsafe_code)]

mod clock;
mod epoch;
mod format;
mod leases;
mod lock;
mod shared;
mod status;
mod stripes;

use clap::{Parser, Subcommand};
use idgen_daemon::error::Result;
use idgen_daemon::tls::install_provider;
use shared::Ended;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "idgenctl",
    version,
    about = "Look at the leases of a Postgres server that has pg_idgen, and change what an operator may change.",
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 finding (no open lease, a sealed store) or refused, \
                  4 inconclusive (a lock was lost)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show server, cell, slots, tokens, seconds to the deadline and ceiling lead.
    Status(status::StatusArguments),
    /// The wall clock that idgend believes.
    #[command(subcommand)]
    Clock(clock::ClockCommand),
    /// The format of the ids that the workers of a cell mint.
    #[command(subcommand)]
    Format(format::FormatCommand),
    /// The epoch of a cell: whether its lease store is sealed, and how it is opened.
    #[command(subcommand)]
    Epoch(epoch::EpochCommand),
    /// Who has which identity, as the lease store of a cell says it.
    #[command(subcommand)]
    Leases(leases::LeasesCommand),
    /// Which database has which stripe of a space that several masters share.
    #[command(subcommand)]
    Stripes(stripes::StripesCommand),
    /// Commands that run as long as they alone hold a name.
    #[command(subcommand)]
    Lock(lock::LockCommand),
}

impl Command {
    fn run(self) -> Result<Ended> {
        match self {
            Self::Status(status) => status.run(),
            Self::Clock(command) => command.run(),
            Self::Format(command) => command.run(),
            Self::Epoch(command) => command.run(),
            Self::Leases(command) => command.run(),
            Self::Stripes(command) => command.run(),
            Self::Lock(command) => command.run(),
        }
    }
}

fn main() -> ExitCode {
    install_provider();
    match Arguments::parse().command.run() {
        Ok(Ended::Ours(exit)) => exit.into(),
        Ok(Ended::As(code)) => code.into(),
        Err(error) => {
            eprintln!("idgenctl: {error}");
            error.exit_code()
        }
    }
}
