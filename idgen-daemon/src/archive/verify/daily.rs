//! The daily job: every day that has ended is checked until it is verified.

use super::table::Databases;
use super::{Progress, check_day};
use crate::archive::objects::Objects;
use crate::archive::run::{Archiver, alone};
use crate::complaint::Complaint;
use crate::config::Config;
use crate::error::Result;
use crate::lease::{HolderName, host_clock};
use idgen_core::day::Day;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks for days that are due.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After a look that has failed.
const AGAIN: Duration = Duration::from_secs(5);

/// Checks days until `stop`.
///
/// # Errors
/// None: what goes wrong is told and tried again.
pub async fn check_daily<O: Objects>(
    archiver: Archiver<O>,
    config: Config,
    holder: HolderName,
    stop: CancellationToken,
) -> Result<()> {
    let mut trouble = Complaint::default();
    let mut failing: Option<Instant> = None;
    while !stop.is_cancelled() {
        match look(&archiver, &config, &holder, &stop).await {
            Ok(()) => {
                failing = None;
                trouble.settle("the archive is checked");
            }
            // The first time a cell may be in the making, or a server start.
            Err(error) if failing.replace(Instant::now()).is_none() => {
                tracing::debug!("check of the archive: {error}")
            }
            Err(error) => trouble.raise(format!("check of the archive: {error}"), Instant::now()),
        }
        let pause = if failing.is_some() { AGAIN } else { LOOK_EVERY };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    Ok(())
}

async fn look<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    holder: &HolderName,
    stop: &CancellationToken,
) -> Result<()> {
    let due = Databases::open(config)
        .await?
        .due(config.outbox.retention.in_days())
        .await?;
    if !due.is_empty() {
        // The daemons of a cell, one after another: their reports of a day are one object.
        let mut sole = alone(&config.store, holder, "check")?;
        let outcome: Result<()> = tokio::select! {
            () = stop.cancelled() => Ok(()),
            checked = async {
                sole.held().await?;
                for day in due {
                    check(archiver, config, holder, day).await?;
                }
                archiver.metrics.set_checked(host_clock().0 / 1_000);
                Ok(())
            } => checked,
        };
        sole.give_up().await;
        outcome?;
    }
    // Of all days that are there, and not only of those that were due: a mismatch stays one until its day is checked anew.
    let states = Databases::open(config).await?.states().await?;
    archiver.metrics.set_states(&states);
    Ok(())
}

async fn check<O: Objects>(
    archiver: &Archiver<O>,
    config: &Config,
    holder: &HolderName,
    day: Day,
) -> Result<()> {
    let quiet = |_: Progress| {};
    let report = check_day(&archiver.objects, config, day, (&holder.name, false), &quiet).await?;
    for problem in &report.problems {
        tracing::error!(%day, "the archive is not as it was written: {problem}");
    }
    for source in &report.sources {
        if let (Some(state), Some(reason)) = (&source.state, &source.reason) {
            tracing::warn!(%day, source = %source.source, state, "the archive of a day is not complete: {reason}");
        }
    }
    tracing::info!(%day, state = report.state, files = report.files, rows = report.rows, "a day of the archive was checked");
    Ok(())
}
