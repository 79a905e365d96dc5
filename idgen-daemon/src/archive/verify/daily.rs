//! The daily job: every day that has ended is checked until it is verified.

use super::table::Databases;
use super::{Progress, check_day};
use crate::archive::objects::Objects;
use crate::archive::run::{Archiver, alone};
use crate::complaint::Complaint;
use crate::config::Config;
use crate::error::Result;
use crate::lease::{HolderName, host_clock};
use idgen_core::archive::DayVerdict;
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
    let due = Databases::open(config).await?.due().await?;
    if due.is_empty() {
        return Ok(());
    }
    // The daemons of a cell, one after another: their reports of a day are one object.
    let mut sole = alone(&config.store, holder, "check")?;
    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        checked = async {
            sole.held().await?;
            let mut verdicts = Vec::new();
            for day in due {
                let quiet = |_: Progress| {};
                let report = check_day(&archiver.objects, config, day, (&holder.name, false), &quiet).await?;
                for problem in &report.problems {
                    tracing::error!(%day, "the archive is not as it was written: {problem}");
                }
                for source in &report.sources {
                    if let (Some(state), Some(reason)) = (&source.state, &source.reason) {
                        tracing::warn!(%day, source = %source.source, state, "the archive of a day is not complete: {reason}");
                    }
                    verdicts.extend(verdict(source.state.as_deref(), source.reason.as_deref()));
                }
                tracing::info!(%day, state = report.state, files = report.files, rows = report.rows, "a day of the archive was checked");
            }
            archiver.metrics.set_verdicts(&verdicts, host_clock().0 / 1_000);
            Ok(())
        } => checked,
    };
    sole.give_up().await;
    outcome
}

fn verdict(state: Option<&str>, reason: Option<&str>) -> Option<DayVerdict> {
    let reason = reason.unwrap_or_default().to_owned();
    match state? {
        "verified" => Some(DayVerdict::Verified),
        "mismatch" => Some(DayVerdict::Mismatch(reason)),
        _ => Some(DayVerdict::Incomplete(reason)),
    }
}
