//! `idgenctl whois` and `idgenctl impact`.

use crate::shared::{CellArguments, Ended, moment, wait_for};
use clap::Args;
use idgen_core::clock::UnixMs;
use idgen_daemon::error::{Error, Result};
use idgen_daemon::forensics::{ImpactWish, Verdict, WhoisWish, impact, impact_text, whois, whois_text};

/// Arguments of `idgenctl whois`.
#[derive(Args)]
#[command(after_help = "Example:\n  idgenctl whois --config /etc/idgend.toml 4711 --tag invoices")]
pub struct WhoisArguments {
    #[command(flatten)]
    cell: CellArguments,
    /// A snowflake or a value of a segment (in decimal, or as idgen_encode() writes it), a UUID, a public or a sealed id.
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    id: String,
    /// It is a value of this segment tag.
    #[arg(long, conflicts_with = "format")]
    tag: Option<String>,
    /// It is a snowflake of this format; without it those of the cell are tried.
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Look at every event of the tables and of the archive, and not only where an index leads: then a second grant is found too.
    #[arg(long)]
    whole: bool,
}

impl WhoisArguments {
    pub fn run(self) -> Result<Ended> {
        let wish = WhoisWish {
            tag: self.tag,
            format: self.format,
            whole: self.whole,
        };
        let config = self.cell.load()?;
        let found = wait_for(whois(&config, &self.id, &wish))??;
        self.cell.output.show(&found, whois_text)?;
        Ok(match found.verdict {
            Verdict::Found => Ended::OK,
            Verdict::Finding => Ended::FINDING,
            Verdict::Inconclusive => Ended::INCONCLUSIVE,
        })
    }
}

/// Arguments of `idgenctl impact`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  idgenctl impact --config /etc/idgend.toml --worker 5 --from 2h --to 30m --count"
)]
pub struct ImpactArguments {
    #[command(flatten)]
    cell: CellArguments,
    /// Ids of this worker.
    #[arg(long, value_name = "N", conflicts_with_all = ["shard", "tag"], requires = "from")]
    worker: Option<u64>,
    /// Ids of this logical shard.
    #[arg(long, value_name = "N", conflicts_with = "tag", requires = "from")]
    shard: Option<u64>,
    /// Ids of this segment tag.
    #[arg(long, requires = "lo", requires = "hi")]
    tag: Option<String>,
    /// Minted from then on: so long ago, as 30m or 2days, or a time as 2026-11-30T08:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<UnixMs>,
    /// Minted until then; without it until now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<UnixMs>,
    /// First id.
    #[arg(long, value_name = "ID")]
    lo: Option<i64>,
    /// Last id.
    #[arg(long, value_name = "ID")]
    hi: Option<i64>,
    /// Format of the ids; without it that of the cell.
    #[arg(long, value_name = "NAME", conflicts_with = "tag")]
    format: Option<String>,
    /// Count the rows too. Reads a whole table where the column has no index.
    #[arg(long)]
    count: bool,
}

impl ImpactArguments {
    pub fn run(self) -> Result<Ended> {
        let now = || moment("0s").map_err(Error::runtime);
        let wish = match (self.worker, self.shard, self.tag) {
            (_, _, Some(tag)) => ImpactWish::Tag {
                tag,
                lo: self.lo.unwrap_or(i64::MIN),
                hi: self.hi.unwrap_or(i64::MAX),
            },
            (worker, shard, None) => {
                let number = worker
                    .or(shard)
                    .ok_or_else(|| Error::usage("of what? Name a --worker, a --shard or a --tag"))?;
                ImpactWish::Identity {
                    class: if shard.is_some() { "shard" } else { "worker" }.to_owned(),
                    number,
                    from: self.from.map_or_else(now, Ok)?,
                    to: self.to.map_or_else(now, Ok)?,
                    format: self.format,
                }
            }
        };
        let config = self.cell.load()?;
        let found = wait_for(impact(&config, &wish, self.count))??;
        self.cell.output.show(&found, impact_text)?;
        let is_whole = found.looked.iter().all(|looked| !looked.failed);
        Ok(if is_whole { Ended::OK } else { Ended::INCONCLUSIVE })
    }
}
