//! `idgenctl epoch`.

use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for, with_state};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::approvals::Shown;
use idgen_daemon::operator::epoch::{self, Advanced, EpochStatus, Order};
use std::time::Duration;

#[derive(Subcommand)]
pub enum EpochCommand {
    /// Show the epoch, the identity of the store, whether it is sealed and why, and what an advance would do. Ends
    /// with 3 when it is sealed.
    #[command(after_help = "Example:\n  idgenctl epoch show --config /etc/idgend.toml")]
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Open a store that was restored, promoted or moved: the cell begins a new epoch in it. Workers mint again at
    /// once, from the other half of their numbers; shards when all that was lost has run out. Refused while the
    /// store is not sealed, and twice within the time that the longest window takes.
    #[command(
        after_help = "Example:\n  idgenctl epoch advance --config /etc/idgend.toml --identity etcd/cdf818194e3a8c32 --reason 'restored after the disk failure'"
    )]
    Advance {
        #[command(flatten)]
        cell: CellArguments,
        /// The store that is meant, as idgenctl epoch show prints it.
        #[arg(long, value_name = "ID")]
        identity: String,
        /// Why. It is kept with the epoch.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// The plan of formats that holds, as it is printed: only where servers follow plans that contradict each
        /// other. Workers are leased when all windows have run out, and servers that follow another plan mint again
        /// after a restart of Postgres.
        #[arg(long, value_name = "PLAN")]
        formats: Option<String>,
        /// How long it may wait for approvals where the cell needs more than one person (idgenctl epoch show): then it is asked
        /// for, and idgenctl approvals approve does it.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
        expires: Duration,
        #[command(flatten)]
        consent: ConsentArguments,
    },
}

impl EpochCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Show { cell } => {
                let status = wait_for(epoch::show(&cell.load()?))??;
                cell.output
                    .show(&status, |status| with_state(status.to_string(), status.is_open()))?;
                Ok(Ended::unless(status.is_open()))
            }
            Self::Advance {
                cell,
                identity,
                reason,
                formats,
                expires,
                consent,
            } => {
                let order = Order {
                    identity,
                    reason,
                    formats,
                    expires,
                };
                let (consent, config) = (consent.consent()?, cell.load()?);
                match wait_for(epoch::advance(&config, &order, consent))?? {
                    Advanced::Made(change) => cell.output.show_change(&change, EpochStatus::to_string)?,
                    Advanced::Asked(change) => cell.output.show_change(&change, Shown::text)?,
                }
                Ok(Ended::OK)
            }
        }
    }
}
