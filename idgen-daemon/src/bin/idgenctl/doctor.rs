//! `idgenctl doctor`.

use crate::shared::{CellArguments, Ended, wait_for};
use clap::Args;
use idgen_daemon::error::Result;
use idgen_daemon::operator::doctor::{Diagnosis, examine};

#[derive(Args)]
#[command(
    after_help = "Example:\n  idgenctl doctor --config /etc/idgend.toml\n\nEnds with 0 when all is well, with 3 when something is found, with 1 when something could not be asked."
)]
pub struct DoctorArguments {
    #[command(flatten)]
    cell: CellArguments,
}

impl DoctorArguments {
    pub fn run(self) -> Result<Ended> {
        let config = self.cell.load()?;
        let diagnosis = wait_for(examine(&config))?;
        self.cell.output.show(&diagnosis, Diagnosis::text)?;
        Ok(Ended::Ours(diagnosis.exit()))
    }
}
