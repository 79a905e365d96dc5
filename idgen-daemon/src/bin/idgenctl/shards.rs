//! `idgenctl shards`.

use crate::shared::{CellArguments, DryRunArguments, Ended, wait_for};
use clap::{Args, Subcommand};
use idgen_core::lease::Identity;
use idgen_daemon::error::Result;
use idgen_daemon::operator::shards::{self, How, Moved, ShardMapShown, Wish};
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Subcommand)]
pub enum ShardsCommand {
    /// Show which server has which shard, and who is to have it.
    #[command(
        visible_alias = "list",
        after_help = "Example:\n  idgenctl shards map --config /etc/idgend.toml --output json"
    )]
    Map {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Move shards to a server, whoever has them. Callers of a shard that moves wait for some milliseconds; all others notice
    /// nothing. Ends with 4 where it is not done in time; the order stands, and the daemons go on.
    #[command(after_help = "Example:\n  idgenctl shards move 10-19,40 --to db-b --config /etc/idgend.toml")]
    Move {
        /// The shards: 5, 5,7 or 10-19,40.
        #[arg(value_name = "SET", value_parser = Shards::parse)]
        shards: Shards,
        /// The server that is to have them: name in the configuration of its idgend.
        #[arg(long, value_name = "SERVER")]
        to: String,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Move all shards of a server to others, evenly. The server may be gone already. Ends as move does.
    #[command(after_help = "Example:\n  idgenctl shards drain db-a --to db-b,db-c --config /etc/idgend.toml")]
    Drain {
        /// The server that is to have none: name in the configuration of its idgend.
        #[arg(value_name = "SERVER")]
        from: String,
        /// The servers that are to have them.
        #[arg(long, value_name = "SERVER", value_delimiter = ',', required = true)]
        to: Vec<String>,
        #[command(flatten)]
        order: OrderArguments,
    },
}

/// A set of shards.
#[derive(Clone, Debug)]
pub struct Shards(BTreeSet<Identity>);

impl Shards {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        shards::parse_set(text).map(Self)
    }
}

#[derive(Args)]
pub struct OrderArguments {
    #[command(flatten)]
    cell: CellArguments,
    /// How long to wait until it is done, as 30s or 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Why. It is kept with the order.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    dry_run: DryRunArguments,
}

impl ShardsCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Map { cell } => {
                let map = wait_for(shards::map(&cell.load()?))??;
                cell.output.show(&map, ShardMapShown::table)?;
                Ok(Ended::OK)
            }
            Self::Move { shards, to, order } => order.run(&Wish::Move { shards: shards.0, to }),
            Self::Drain { from, to, order } => order.run(&Wish::Drain { from, to }),
        }
    }
}

impl OrderArguments {
    fn run(self, wish: &Wish) -> Result<Ended> {
        let how = How {
            reason: self.reason,
            wait: self.wait,
            dry_run: self.dry_run.dry_run,
        };
        let config = self.cell.load()?;
        let say = |line: &str| eprintln!("{line}");
        let change = wait_for(shards::order(&config, wish, &how, say))??;
        self.cell.output.show_change(&change, Moved::sentence)?;
        if change.shown.open.is_empty() {
            Ok(Ended::OK)
        } else {
            Ok(Ended::INCONCLUSIVE)
        }
    }
}
