//! `idgenctl approvals`.

use crate::shared::{CellArguments, ConsentArguments, DryRunArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::approvals::{self, Approvals, Shown, Wish};
use idgen_daemon::operator::requests::{self, Whole};
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

#[derive(Subcommand)]
pub enum ApprovalsCommand {
    /// Show every request, who has approved it, and how many people are needed.
    #[command(after_help = "Example:\n  idgenctl approvals list --config /etc/idgend.toml")]
    List {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Show one request whole: who has approved it, until when, and in a sentence what will happen when enough have.
    #[command(
        after_help = "Example:\n  idgenctl approvals show 6b1f0c0e-5a34-4a57-9d0c-0b5f3a1f7c11 --config /etc/idgend.toml"
    )]
    Show {
        #[command(flatten)]
        cell: CellArguments,
        /// The request, as idgenctl approvals list prints it.
        #[arg(value_name = "REQUEST")]
        request: Uuid,
    },
    /// Approve a request, as whoever the lease store takes you for; when that is enough, it is done at once. Says in a sentence
    /// what will happen, and asks. Nobody approves for two: a second approval of one person changes nothing.
    #[command(after_help = APPROVE_HELP)]
    Approve {
        #[command(flatten)]
        cell: CellArguments,
        /// The request, as idgenctl approvals list prints it.
        #[arg(value_name = "REQUEST")]
        request: Uuid,
        /// A file of your own that says how you, and nobody else, log in to the lease store: url for a store in Postgres;
        /// username and password_file, or ca_file, cert_file and key_file for an etcd. Who you are is said by the store.
        #[arg(long, value_name = "FILE")]
        credentials: PathBuf,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Ask for another number of people to be needed for an advance of the epoch. It needs as many as are needed now, or then.
    #[command(
        after_help = "Example:\n  idgenctl approvals need 2 --config /etc/idgend.toml --reason 'we are two by now'"
    )]
    Need {
        #[command(flatten)]
        cell: CellArguments,
        /// 1 or 2.
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
        approvals: u32,
        /// Why. It is kept with the request.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// How long it may be approved, up to a day.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
        expires: Duration,
        #[command(flatten)]
        dry: DryRunArguments,
    },
}

const APPROVE_HELP: &str = "\
Example:
  idgenctl approvals approve 6b1f0c0e-5a34-4a57-9d0c-0b5f3a1f7c11 --config /etc/idgend.toml --credentials ~/.idgen.toml";

impl ApprovalsCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::List { cell } => {
                let shown = wait_for(approvals::list(&cell.load()?))??;
                cell.output.show(&shown, Approvals::text)?;
            }
            Self::Show { cell, request } => {
                let shown = wait_for(requests::show(&cell.load()?, request))??;
                cell.output.show(&shown, Whole::text)?;
            }
            Self::Approve {
                cell,
                request,
                credentials,
                consent,
            } => {
                let (consent, config) = (consent.consent()?, cell.load()?);
                let change = wait_for(approvals::approve(&config, request, &credentials, consent))??;
                cell.output.show_change(&change, Shown::text)?;
            }
            Self::Need {
                cell,
                approvals,
                reason,
                expires,
                dry,
            } => {
                let wish = Wish {
                    reason,
                    expires,
                    dry_run: dry.dry_run,
                };
                let change = wait_for(approvals::ask_need(&cell.load()?, approvals, &wish))??;
                cell.output.show_change(&change, Shown::text)?;
            }
        }
        Ok(Ended::OK)
    }
}
