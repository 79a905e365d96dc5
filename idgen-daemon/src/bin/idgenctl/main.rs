//! `idgenctl`: the operator's view of a server with pg_idgen, and what an operator may change. One file per noun.
#![forbid(unsafe_code)]

mod approvals;
#[cfg(feature = "outbox")]
mod archive;
#[cfg(feature = "outbox")]
mod audit;
#[cfg(feature = "outbox")]
mod bar;
mod clock;
mod completions;
#[cfg(feature = "outbox")]
mod doctor;
mod epoch;
mod events;
mod forensics;
mod format;
mod leases;
mod lock;
#[cfg(feature = "outbox")]
mod outbox;
mod region;
mod server;
mod shards;
mod shared;
mod status;
mod stripes;
#[cfg(test)]
mod tests;

use clap::{Parser, Subcommand};
use idgen_daemon::command_line;
use idgen_daemon::error::Result;
use idgen_daemon::secret::tell_panics_redacted;
use idgen_daemon::tls::install_provider;
use shared::Ended;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "idgenctl",
    version,
    about = "Look at the leases of a Postgres server that has pg_idgen, and change what an operator may change.",
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 finding (no open lease, a sealed store, a broken trail) or \
                  refused, 4 inconclusive (a lock was lost, a move is not done in time, a trail not compared).\n\
                  Every command has an example: idgenctl COMMAND --help."
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
    /// The region of a cell, which all its ids carry from some moment on.
    #[command(subcommand)]
    Region(region::RegionCommand),
    /// The epoch of a cell: whether its lease store is sealed, and how it is opened.
    #[command(subcommand)]
    Epoch(epoch::EpochCommand),
    /// Who has which identity, as the lease store of a cell says it.
    #[command(subcommand)]
    Leases(leases::LeasesCommand),
    /// What needs two people: who has asked for what, and who has approved it.
    #[command(subcommand)]
    Approvals(approvals::ApprovalsCommand),
    /// What happened to the leases of a cell: the trail that idgend derives from the log of the lease store.
    #[command(subcommand)]
    Events(events::EventsCommand),
    /// The outbox: what waits to be sent to Kafka, dead letters, and what is to be sent once more.
    #[cfg(feature = "outbox")]
    #[command(subcommand)]
    Outbox(outbox::OutboxCommand),
    /// Which database has which stripe of a space that several masters share.
    #[command(subcommand)]
    Stripes(stripes::StripesCommand),
    /// Which server has which shard; shards are moved while all servers mint.
    #[command(subcommand)]
    Shards(shards::ShardsCommand),
    /// A whole server: it gives back what it has, and takes nothing until it is resumed.
    #[command(subcommand)]
    Server(server::ServerCommand),
    /// Commands that run as long as they alone hold a name.
    #[command(subcommand)]
    Lock(lock::LockCommand),
    /// Events as files: what there is, whether it is whole, and what to do where it is not.
    #[cfg(feature = "outbox")]
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
    /// The audits: whether every id was granted once, and what to do where it was not.
    #[cfg(feature = "outbox")]
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Tell what an id is: its format, time and identity, who held that, or which range it was granted in, when, by whom. Ends
    /// with 3 when it was granted twice or minted without a lease, with 4 when nothing is known of it.
    Whois(forensics::WhoisArguments),
    /// List the tables and ids to check after something went wrong with a worker, a shard or a tag.
    Impact(forensics::ImpactArguments),
    /// Ask everything that idgend depends on whether it is as it must be.
    #[cfg(feature = "outbox")]
    Doctor(doctor::DoctorArguments),
    /// Write a script that lets a shell complete the arguments.
    Completions(completions::CompletionsArguments),
}

impl Command {
    fn run(self) -> Result<Ended> {
        match self {
            Self::Status(status) => status.run(),
            Self::Clock(command) => command.run(),
            Self::Format(command) => command.run(),
            Self::Region(command) => command.run(),
            Self::Epoch(command) => command.run(),
            Self::Leases(command) => command.run(),
            Self::Approvals(command) => command.run(),
            Self::Events(command) => command.run(),
            #[cfg(feature = "outbox")]
            Self::Outbox(command) => command.run(),
            Self::Stripes(command) => command.run(),
            Self::Shards(command) => command.run(),
            Self::Server(command) => command.run(),
            Self::Lock(command) => command.run(),
            #[cfg(feature = "outbox")]
            Self::Archive(command) => command.run(),
            Self::Whois(whois) => whois.run(),
            Self::Impact(impact) => impact.run(),
            #[cfg(feature = "outbox")]
            Self::Audit(command) => command.run(),
            #[cfg(feature = "outbox")]
            Self::Doctor(doctor) => doctor.run(),
            Self::Completions(completions) => completions.run(),
        }
    }
}

fn main() -> ExitCode {
    tell_panics_redacted();
    install_provider();
    let arguments = match command_line::parse::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command.run() {
        Ok(Ended::Ours(exit)) => exit.into(),
        Ok(Ended::As(code)) => code.into(),
        Err(error) => {
            eprintln!("idgenctl: {error}");
            error.exit_code()
        }
    }
}
