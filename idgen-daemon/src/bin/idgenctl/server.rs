//! `idgenctl server`.

use crate::shared::{CellArguments, ConsentArguments, DryRunArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::server::{self, Done, Wish};
use std::time::Duration;

#[derive(Subcommand)]
pub enum ServerCommand {
    /// Have a server give back all that it has leased, with the exact high waters, and take nothing until it is resumed: before a
    /// planned restart. It stays drained over restarts of its idgend and of Postgres. Ends with 4 where it is not done in
    /// time; what was ordered stands, and the daemons go on.
    #[command(after_help = DRAIN_HELP)]
    Drain {
        /// The server: name in the configuration of its idgend.
        #[arg(value_name = "SERVER")]
        server: String,
        /// The servers that are to have its shards, evenly. They move before the rest is given back. Without it nobody has them
        /// until the server is resumed.
        #[arg(long, value_name = "SERVER", value_delimiter = ',')]
        to: Vec<String>,
        /// Why. It is kept, and shown to whoever asks the server for an id.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// How long to wait until it is done, as 30s or 5m.
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
        wait: Duration,
        #[command(flatten)]
        cell: CellArguments,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Let a server that was drained take leases again. Shards that were moved to others stay there: idgenctl shards move.
    #[command(after_help = "Example:\n  idgenctl server resume db-a --config /etc/idgend.toml")]
    Resume {
        /// The server: name in the configuration of its idgend.
        #[arg(value_name = "SERVER")]
        server: String,
        /// Why. It is kept.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        cell: CellArguments,
        #[command(flatten)]
        dry: DryRunArguments,
    },
}

const DRAIN_HELP: &str = "\
Example:
  idgenctl server drain db-a --to db-b,db-c --config /etc/idgend.toml --reason 'a new kernel'
  systemctl restart postgresql
  idgenctl server resume db-a --config /etc/idgend.toml";

impl ServerCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Drain {
                server,
                to,
                reason,
                wait,
                cell,
                consent,
            } => {
                let wish = Wish {
                    server,
                    to,
                    reason,
                    wait,
                };
                let (consent, config) = (consent.consent()?, cell.load()?);
                let say = |line: &str| eprintln!("{line}");
                let change = wait_for(server::drain(&config, &wish, consent, say))??;
                cell.output.show_change(&change, Done::text)?;
                let is_done = change.dry_run || change.shown.is_done();
                Ok(if is_done { Ended::OK } else { Ended::INCONCLUSIVE })
            }
            Self::Resume {
                server,
                reason,
                cell,
                dry,
            } => {
                let config = cell.load()?;
                let resumed = server::resume(&config, &server, &reason, dry.dry_run);
                let change = wait_for(resumed)??;
                cell.output.show_change(&change, Done::text)?;
                Ok(Ended::OK)
            }
        }
    }
}
