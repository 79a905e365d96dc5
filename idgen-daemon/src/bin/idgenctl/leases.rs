//! `idgenctl leases`.

use crate::shared::{CellArguments, Ended, wait_for};
use clap::{Subcommand, ValueEnum};
use idgen_core::lease::Class;
use idgen_daemon::error::Result;
use idgen_daemon::operator::leases::{self, Leases};

#[derive(Subcommand)]
pub enum LeasesCommand {
    /// Show every worker and shard that is not free: state, holder, token, ceiling. Works on a sealed store too, and
    /// names the holders of another epoch, such as those of an old primary. Asks the store, not the servers.
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Of one class only.
        #[arg(long, value_enum)]
        class: Option<Kind>,
    },
}

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
        let Self::List { cell, class } = self;
        let leases = wait_for(leases::list(&cell.load()?, class.map(Class::from)))??;
        cell.output.show(&leases, Leases::table)?;
        Ok(Ended::OK)
    }
}
