//! `idgenctl outbox`.

use crate::bar::Bar;
use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for};
use clap::{Args, Subcommand};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::consent::Change;
use idgen_daemon::operator::outbox::{Again, DeadLetter, OutboxOf, OutboxStatus, Replay, status};
use std::time::UNIX_EPOCH;

#[derive(Subcommand)]
pub enum OutboxCommand {
    /// Show for each database who drains it, what waits, and the tables of its days. Ends with 3 when an event has waited for
    /// more than a minute, when there are dead letters, or when days run short.
    #[command(after_help = "Example:\n  idgenctl outbox status --config /etc/idgend.toml")]
    Status {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Send the events of a day once more. Readers know them by their numbers: it is the same event.
    #[command(
        after_help = "Example:\n  idgenctl outbox replay --config /etc/idgend.toml --database orders --day 2026-11-30"
    )]
    Replay {
        #[command(flatten)]
        of: DatabaseArguments,
        /// Day of UTC, as 2026-11-30.
        #[arg(long, value_name = "DAY", value_parser = day)]
        day: i64,
        /// Of this tag alone.
        #[arg(long, value_name = "TAG")]
        tag: Option<String>,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Dead letters: events that could not be sent as they are. A stub has gone in their place.
    #[command(subcommand)]
    Dlq(DlqCommand),
}

#[derive(Subcommand)]
pub enum DlqCommand {
    /// Show those that were not sent whole since.
    #[command(after_help = "Example:\n  idgenctl outbox dlq ls --config /etc/idgend.toml --database orders")]
    Ls {
        #[command(flatten)]
        of: DatabaseArguments,
    },
    /// Send them anew, whole: when the topic takes longer messages now (max.message.bytes, and kafka.max_message_bytes).
    #[command(
        after_help = "Example:\n  idgenctl outbox dlq retry --config /etc/idgend.toml --database orders 4711"
    )]
    Retry {
        #[command(flatten)]
        of: DatabaseArguments,
        /// Numbers of events (event_id); none: all.
        #[arg(value_name = "EVENT")]
        events: Vec<i64>,
        #[command(flatten)]
        consent: ConsentArguments,
    },
}

/// One database of the server.
#[derive(Args)]
pub struct DatabaseArguments {
    #[command(flatten)]
    cell: CellArguments,
    /// Its name.
    #[arg(long, value_name = "DATABASE")]
    database: String,
}

/// First second of a day of UTC.
fn day(text: &str) -> std::result::Result<i64, String> {
    let at =
        humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).map_err(|_| "it is YYYY-MM-DD".to_owned())?;
    let since = at
        .duration_since(UNIX_EPOCH)
        .map_err(|_| "that is before 1970".to_owned())?;
    i64::try_from(since.as_secs()).map_err(|error| error.to_string())
}

impl DatabaseArguments {
    async fn open(&self) -> Result<OutboxOf> {
        OutboxOf::open(&self.cell.load()?, &self.database).await
    }
}

impl OutboxCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::Status { cell } => {
                let all = wait_for(async { status(&cell.load()?).await })??;
                cell.output.show(&all, |all| OutboxStatus::table(all))?;
                Ok(Ended::unless(all.iter().all(OutboxStatus::is_well)))
            }
            Self::Replay {
                of,
                day,
                tag,
                consent,
            } => {
                let consent = consent.consent()?;
                let replay = Replay { day_s: day, tag };
                let change = wait_for(async {
                    let outbox = of.open().await?;
                    let count = outbox.count(&replay).await?;
                    let sentence = format!("{count} events of database {} are sent once more.", of.database);
                    if !consent.may(&sentence)? {
                        return Ok(Change::tried(Again::of(count), sentence));
                    }
                    let bar = Bar::of("events", count);
                    let again = outbox.replay(&replay, |done| bar.done(done)).await?;
                    Ok::<_, Error>(Change::made(again))
                })??;
                of.cell.output.show_change(&change, of_again)?;
                Ok(Ended::OK)
            }
            Self::Dlq(DlqCommand::Ls { of }) => {
                let dead = wait_for(async { of.open().await?.dead_letters().await })??;
                of.cell.output.show(&dead, |dead| DeadLetter::table(dead))?;
                Ok(Ended::unless(dead.is_empty()))
            }
            Self::Dlq(DlqCommand::Retry { of, events, consent }) => {
                let consent = consent.consent()?;
                let change = wait_for(retry(&of, events, consent))??;
                of.cell.output.show_change(&change, of_again)?;
                Ok(Ended::OK)
            }
        }
    }
}

async fn retry(
    of: &DatabaseArguments,
    events: Vec<i64>,
    consent: idgen_daemon::operator::consent::Consent,
) -> Result<Change<Again>> {
    let outbox = of.open().await?;
    let dead = outbox.dead_letters().await?;
    if let Some(unknown) = events
        .iter()
        .find(|event| !dead.iter().any(|dead| dead.event_id == **event))
    {
        return Err(Error::refused(format!(
            "event {unknown} is no dead letter of database {}",
            of.database
        )));
    }
    let count = if events.is_empty() {
        dead.len()
    } else {
        events.len()
    };
    let sentence = format!("{count} dead letters of database {} are sent anew.", of.database);
    if !consent.may(&sentence)? {
        return Ok(Change::tried(Again::of(count as u64), sentence));
    }
    let wanted = (!events.is_empty()).then_some(events);
    Ok(Change::made(outbox.retry(wanted).await?))
}

fn of_again(again: &Again) -> String {
    let Again { events, gone } = again;
    match gone {
        0 => format!("{events} events are sent once more"),
        _ => format!(
            "{events} events are sent once more; {gone} dead letters cannot be: their events are not in idgen.audit_event"
        ),
    }
}
