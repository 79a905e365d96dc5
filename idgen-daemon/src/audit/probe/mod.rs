//! The streaming probe: reads the topic of events as it grows, and says within seconds what cannot be. The rules are in
//! `idgen_core::audit`.
//!
//! ```text
//!  topic    -> reader.rs -> hear.rs -> Probe, Leases -> alarms -> desk.rs -> idgen.audit_finding
//!  archive  -> vault.rs  /     |                      gaps.rs  /    (looked up in topic, table and archive)
//!                        checkpoint.rs
//! ```
//! One daemon of a cell reads a topic, by a named lease. It commits nothing anywhere: where it goes on is in its checkpoint,
//! together with what it knows, so both are of one moment. A checkpoint is written only when every finding is stored: what a
//! kill takes from the memory is found again. Where too many wait to be stored nothing more is read.

mod checkpoint;
mod desk;
mod gaps;
mod hear;
mod reader;
mod vault;

pub use self::hear::{Became, Earlier, Hit, Mind};

use self::checkpoint::Checkpoint;
use self::desk::Desk;
use self::reader::{Setup, turn};
use self::vault::Vault;
use crate::archive::Failing;
use crate::complaint::Complaint;
use crate::config::{AuditConfig, Config, KafkaConfig};
use crate::error::{Error, Result};
use crate::lease::{HolderName, Sole};
use crate::metrics::ProbeMetrics;
use idgen_core::audit::Limits;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Reads the topic until `stop`.
///
/// # Errors
/// The part of it that stores findings has panicked. What else goes wrong is told and tried again.
pub async fn probe(
    config: Config,
    (audit, kafka): (AuditConfig, KafkaConfig),
    holder: HolderName,
    metrics: ProbeMetrics,
    stop: CancellationToken,
) -> Result<()> {
    let vault = match &config.archive {
        Some(archive) => Some(Vault::open(&archive.place, &kafka.topic).await),
        None => None,
    };
    let (desk, tray) = Desk::new(
        config.postgres.clone(),
        kafka.clone(),
        vault.clone(),
        metrics.clone(),
    );
    let checkpoint = audit.checkpoint_dir.as_deref();
    let setup = Setup {
        checkpoint: checkpoint.map(|folder| Checkpoint::new(folder, &kafka.topic)),
        kafka,
        limits: Limits::of_mib(usize::try_from(audit.probe_memory_mib).unwrap_or(usize::MAX)),
        vault,
        metrics,
        tray,
    };
    // Findings are stored as long as some may come.
    let ending = CancellationToken::new();
    let storing = tokio::spawn(desk.run(ending.clone()));
    let (mut state, mut trouble, mut failing) = (None, Complaint::default(), Failing::default());
    while !stop.is_cancelled() && !storing.is_finished() {
        let begun = Instant::now();
        let before = setup.metrics.heard();
        let ended = async {
            let mut sole = Sole::ask_of(&config.store, &holder, "probe", &setup.kafka.topic)?;
            let held = tokio::select! {
                () = stop.cancelled() => Ok(false),
                held = sole.held() => held.map(|_| true),
            };
            let outcome = match held {
                Ok(true) => turn(&setup, &mut state, &sole, &stop, &mut trouble).await,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            sole.give_up().await;
            outcome
        }
        .await;
        setup.metrics.rests();
        let has_heard = setup.metrics.heard() > before;
        failing.ended(ended, "probe", (begun, has_heard), &mut trouble);
        failing.rest(&stop).await;
    }
    ending.cancel();
    storing
        .await
        .map_err(|error| Error::runtime(format!("findings of the probe: {error}")))
}
