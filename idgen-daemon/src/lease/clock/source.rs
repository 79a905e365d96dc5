//! Keeps asking whether the clock of this host is synchronised.

use super::chrony;
use super::kernel::kernel_clock;
use crate::config::ClockConfig;
use crate::error::Result;
use idgen_core::lease::Gate;
use idgen_core::lease::sync::Sync;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A clock that nobody keeps any more drifts by some ms in this time at the most.
const PERIOD: Duration = Duration::from_secs(2);

/// What was said last; `None`: nobody says anything.
pub type SyncSeen = watch::Receiver<Option<Sync>>;

/// Asks once, and returns what goes on asking. With the gate off nobody is ever asked.
pub async fn ask_for_ever(
    config: &ClockConfig,
    stop: CancellationToken,
) -> (SyncSeen, impl Future<Output = Result<()>> + Send + 'static) {
    let (gate, chrony) = (config.gate, config.chrony);
    let first = if gate == Gate::Off {
        None
    } else {
        ask(chrony).await
    };
    let (said, seen) = watch::channel(first);
    let asking = async move {
        if gate == Gate::Off {
            stop.cancelled().await;
            return Ok(());
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(PERIOD) => {}
            }
            said.send_replace(ask(chrony).await);
        }
    };
    (seen, asking)
}

/// chronyd where there is one, else the kernel.
async fn ask(chrony: Option<SocketAddr>) -> Option<Sync> {
    if let Some(addr) = chrony
        && let Some(sync) = chrony::ask(addr).await
    {
        return Some(sync);
    }
    kernel_clock().map(idgen_core::lease::KernelClock::sync)
}
