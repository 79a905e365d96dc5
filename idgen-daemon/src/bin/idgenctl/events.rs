//! `idgenctl events`.

use crate::shared::{CellArguments, Ended, moment, wait_for};
use clap::Subcommand;
use idgen_core::clock::UnixMs;
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::events::{Events, Proof, Trail, Verdict, Wish};
use std::io::Write;
use std::time::Duration;

/// Between two looks of whoever follows.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Subcommand)]
pub enum EventsCommand {
    /// Show what happened to leases: who was granted what and gave it back, what expired, what was ordered, and what
    /// nothing explains. Renewals are not events.
    #[command(
        after_help = "Example:\n  idgenctl events list --config /etc/idgend.toml --identity 'worker 5' --since 1day --follow"
    )]
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Not before this: so long ago, as 30m or 2days, or a time as 2026-11-30T08:00:00Z.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        since: Option<UnixMs>,
        /// Of this subject alone, as "worker 5", "shard 7", "name lock/settlement" or "cell".
        #[arg(long, value_name = "SUBJECT")]
        identity: Option<String>,
        /// Of this kind alone, as granted, released, expired or unexplained.
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// The last so many of them.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Go on: show each event as it is written, one line each, until interrupted.
        #[arg(long)]
        follow: bool,
    },
    /// Prove the trail: the chain of hashes, the steps of every key, and whether the store is what the trail says. Ends with
    /// 3 when something is found (a broken link, missing changes, a change that nothing explains), with 4 when the store
    /// could not be compared.
    #[command(after_help = "Example:\n  idgenctl events verify --config /etc/idgend.toml --since 1day")]
    Verify {
        #[command(flatten)]
        cell: CellArguments,
        /// Findings before this are known: so long ago, or a time.
        #[arg(long, value_name = "TIME", value_parser = moment)]
        since: Option<UnixMs>,
        /// A head that an earlier run has shown: it must be in the trail still.
        #[arg(long, value_name = "NUMBER:HASH", value_parser = head)]
        head: Option<(u64, String)>,
    },
}

fn head(text: &str) -> std::result::Result<(u64, String), String> {
    let (seq, hash) = text.split_once(':').ok_or("it is NUMBER:HASH")?;
    let seq = seq.parse().map_err(|_| format!("\"{seq}\" is not a number"))?;
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash
        .then(|| (seq, hash.to_ascii_lowercase()))
        .ok_or_else(|| "a hash has 64 hexadecimal digits".to_owned())
}

impl EventsCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::List {
                cell,
                since,
                identity,
                kind,
                limit,
                follow,
            } => {
                let wish = Wish {
                    subject: identity,
                    kind,
                    since,
                    limit,
                };
                wait_for(list(&cell, &wish, follow))?
            }
            Self::Verify { cell, since, head } => {
                let verdict = wait_for(verify(&cell, &Proof { since, head }))??;
                cell.output.show(&verdict, Verdict::text)?;
                Ok(match (verdict.is_well(), verdict.is_conclusive()) {
                    (false, _) => Ended::FINDING,
                    (true, false) => Ended::INCONCLUSIVE,
                    (true, true) => Ended::OK,
                })
            }
        }
    }
}

async fn verify(cell: &CellArguments, proof: &Proof) -> Result<Verdict> {
    let config = cell.load()?;
    Trail::open(&config).await?.verify(&config, proof).await
}

async fn list(cell: &CellArguments, wish: &Wish, follow: bool) -> Result<Ended> {
    let mut trail = Trail::open(&cell.load()?).await?;
    let mut events = trail.list(wish).await?;
    if !follow {
        cell.output.show(&events, Events::table)?;
        return Ok(Ended::OK);
    }
    let mut last = 0;
    loop {
        for event in &events.events {
            last = last.max(event.seq);
            let line = if cell.output.is_json() {
                serde_json::to_string(event)
                    .map_err(|error| Error::runtime(format!("write JSON: {error}")))?
            } else {
                event.line()
            };
            // Whoever has seen enough closes the pipe.
            if writeln!(std::io::stdout(), "{line}").is_err() {
                return Ok(Ended::OK);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
        events = trail.after(last, wish).await?;
    }
}
