//! `idgenctl format`.

use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::config::Config;
use idgen_daemon::error::Result;
use idgen_daemon::operator::format::{self, Formats, When, Wish};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum FormatCommand {
    /// Show the format, and the switch to another one, past or to come.
    #[command(after_help = "Example:\n  idgenctl format show --config /etc/idgend.toml")]
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Switch to another format at a moment to come. Every server of the cell follows by itself; nothing is
    /// restarted. Refused while another switch is pending, and unless ids go on rising over it. It cannot be taken
    /// back.
    #[command(
        after_help = "Example:\n  idgenctl format switch --config /etc/idgend.toml --to regional --region 1 --at +15m --dry-run"
    )]
    Switch {
        #[command(flatten)]
        cell: CellArguments,
        /// Name of a format that is compiled in, or registered in the server's database.
        #[arg(long, value_name = "NAME")]
        to: String,
        /// Region of the cell, for a format that has one. The first switch to such a format claims it, for good; later ones
        /// have it without saying so. Give each cell another one, in all places whose ids may meet.
        #[arg(long, value_name = "N")]
        region: Option<u64>,
        /// Configuration file of an idgend of another cell, which must not have that region. May be repeated.
        #[arg(long, value_name = "FILE")]
        beside: Vec<PathBuf>,
        /// The moment, as 2026-12-01T03:00:00Z, or how long from now, as +15m. It must lie beyond every window
        /// that was or is being granted.
        #[arg(long, value_name = "WHEN", default_value = "+15m")]
        at: When,
        #[command(flatten)]
        consent: ConsentArguments,
    },
}

impl FormatCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Show { cell } => {
                let formats = wait_for(format::show(&cell.load()?))??;
                cell.output.show(&formats, Formats::to_string)?;
            }
            Self::Switch {
                cell,
                to,
                region,
                beside,
                at,
                consent,
            } => {
                let (consent, config) = (consent.consent()?, cell.load()?);
                let beside = beside.iter().map(|file| Config::load(file));
                let wish = Wish {
                    to,
                    region,
                    beside: beside.collect::<Result<_>>()?,
                    when: at,
                };
                let change = wait_for(format::switch(&config, &wish, consent))??;
                cell.output.show_change(&change, Formats::to_string)?;
            }
        }
        Ok(Ended::OK)
    }
}
