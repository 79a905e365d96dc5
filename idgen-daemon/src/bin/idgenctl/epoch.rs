//! `idgenctl epoch`.

use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::epoch::{self, EpochStatus, Order};

#[derive(Subcommand)]
pub enum EpochCommand {
    /// Show the epoch, the identity of the store, whether it is sealed and why, and what an advance would do. Ends
    /// with 3 when it is sealed.
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Open a store that was restored, promoted or moved: the cell begins a new epoch in it. Workers mint again at
    /// once, from the other half of their numbers; shards when all that was lost has run out. Refused while the
    /// store is not sealed, and twice within the time that the longest window takes.
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
        #[command(flatten)]
        consent: ConsentArguments,
    },
}

impl EpochCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Show { cell } => {
                let status = wait_for(epoch::show(&cell.load()?))??;
                cell.output.show(&status, EpochStatus::to_string)?;
                Ok(Ended::unless(status.is_open()))
            }
            Self::Advance {
                cell,
                identity,
                reason,
                formats,
                consent,
            } => {
                let order = Order {
                    identity,
                    reason,
                    formats,
                };
                let (consent, config) = (consent.consent()?, cell.load()?);
                let change = wait_for(epoch::advance(&config, &order, consent))??;
                cell.output.show_change(&change, EpochStatus::to_string)?;
                Ok(Ended::OK)
            }
        }
    }
}
