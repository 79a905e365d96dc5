//! `idgenctl leases`.

use crate::shared::{CellArguments, DryRunArguments, Ended, wait_for};
use clap::{Subcommand, ValueEnum};
use idgen_core::lease::Class;
use idgen_daemon::error::Result;
use idgen_daemon::operator::approvals::{self, Shown};
use idgen_daemon::operator::leases::{self, Leases};
use idgen_daemon::operator::revoke::{self, Detail, Revoked, Which, Wish};
use std::time::Duration;

#[derive(Subcommand)]
pub enum LeasesCommand {
    /// Show every worker and shard that is not free: state, holder, token, ceiling. Works on a sealed store too, and
    /// names the holders of another epoch, such as those of an old primary. Asks the store, not the servers.
    #[command(after_help = "Example:\n  idgenctl leases list --config /etc/idgend.toml --class worker")]
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Of one class only.
        #[arg(long, value_enum)]
        class: Option<Kind>,
    },
    /// Show one worker or shard: state, holder, token, ceiling, and what an operator has ordered last of a holder.
    #[command(after_help = "Example:\n  idgenctl leases show worker/17 --config /etc/idgend.toml")]
    Show {
        #[command(flatten)]
        cell: CellArguments,
        /// Such as worker/17 or shard/300.
        #[arg(value_name = "IDENTITY")]
        which: Which,
    },
    /// Have the server that holds an identity stop minting from it, and give it back with the exact high water: at once when
    /// its idgend hears of the order, else with its next renewal, or at its deadline when it is cut off from the store. All
    /// that the server has leased of the class is one lease, and is given back together. It then takes a new lease: other
    /// workers (this one last), but the same shards, which its configuration names. One person may do this, for it
    /// cannot make ids twice. Ends with 4 when it is not given back in time.
    #[command(after_help = REVOKE_HELP)]
    Revoke {
        #[command(flatten)]
        cell: CellArguments,
        /// Such as worker/17 or shard/300.
        #[arg(value_name = "IDENTITY")]
        which: Which,
        /// Why. It is kept with the order.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// How long to wait for it to be given back, as 15s or 1m.
        #[arg(long, value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
        wait: Duration,
        #[command(flatten)]
        dry: DryRunArguments,
    },
    /// Ask for an identity to be taken from a holder that does not answer. Two different people have to approve it
    /// (idgenctl approvals approve), as whom the lease store knows them; to ask is not to approve. No id can be given twice by it:
    /// the next holder begins above all that was granted. A lease that ends meanwhile, or a later one, is not meant.
    #[command(after_help = FORCE_HELP)]
    ForceRelease {
        #[command(flatten)]
        cell: CellArguments,
        /// Such as worker/17 or shard/300.
        #[arg(value_name = "IDENTITY")]
        which: Which,
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

const FORCE_HELP: &str = "\
Example:
  idgenctl leases force-release worker/17 --config /etc/idgend.toml --reason 'its host burns'
  idgenctl approvals approve REQUEST --config /etc/idgend.toml --credentials ~/.idgen.toml";

const REVOKE_HELP: &str = "\
Example:
  idgenctl leases revoke worker/17 --config /etc/idgend.toml --reason 'its host is to be looked at'";

#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    Worker,
    Shard,
}

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Worker => Self::Worker,
            Kind::Shard => Self::Shard,
        }
    }
}

impl LeasesCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::List { cell, class } => {
                let leases = wait_for(leases::list(&cell.load()?, class.map(Class::from)))??;
                cell.output.show(&leases, Leases::table)?;
                Ok(Ended::OK)
            }
            Self::Show { cell, which } => {
                let lease = wait_for(revoke::show(&cell.load()?, which))??;
                cell.output.show(&lease, Detail::text)?;
                Ok(Ended::OK)
            }
            Self::ForceRelease {
                cell,
                which,
                reason,
                expires,
                dry,
            } => {
                let wish = approvals::Wish {
                    reason,
                    expires,
                    dry_run: dry.dry_run,
                };
                let change = wait_for(approvals::ask_release(&cell.load()?, which, &wish))??;
                cell.output.show_change(&change, Shown::text)?;
                Ok(Ended::OK)
            }
            Self::Revoke {
                cell,
                which,
                reason,
                wait,
                dry,
            } => {
                let wish = Wish {
                    which,
                    reason,
                    wait,
                    dry_run: dry.dry_run,
                };
                let change = wait_for(revoke::revoke(&cell.load()?, &wish))??;
                cell.output.show_change(&change, Revoked::text)?;
                let is_done = change.dry_run || change.shown.given_back;
                Ok(if is_done { Ended::OK } else { Ended::INCONCLUSIVE })
            }
        }
    }
}
