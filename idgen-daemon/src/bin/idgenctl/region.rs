//! `idgenctl region`.

use crate::shared::{CellArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::region::{self, RegionStatus};

#[derive(Subcommand)]
pub enum RegionCommand {
    /// Show which region the cell has claimed. It does so by its first switch to a format that has one (idgenctl format
    /// switch --region N), for good.
    #[command(after_help = "Example:\n  idgenctl region show --config /etc/idgend.toml")]
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
}

impl RegionCommand {
    pub fn run(self) -> Result<Ended> {
        let Self::Show { cell } = self;
        let status = wait_for(region::show(&cell.load()?))??;
        cell.output.show(&status, RegionStatus::to_string)?;
        Ok(Ended::OK)
    }
}
