//! Runs the archiver of a configuration: from the topic where there is a Kafka, from the tables where there is none.

use super::ledger::{Appended, Batch, Ledger};
use super::metrics::ArchiveMetrics;
use super::objects::{AnyObjects, ObjectError, Objects};
use super::pack::{Packed, pack};
use super::parquet::Message;
use super::verify::check_daily;
use super::{kafka, tables};
use crate::complaint::Complaint;
use crate::config::{ArchiveConfig, Config, StoreConfig};
use crate::error::{Error, Result};
use crate::lease::{HolderName, Sole};
use idgen_core::archive::{Cut, Gap};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Before it begins anew; longer after each failure in a row.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// What lasts shorter is nobody's trouble: the cell of a new store is being made, a broker is restarted.
const TROUBLE_AFTER: Duration = Duration::from_secs(3);

/// What every kind of archiver works with.
pub struct Archiver<O> {
    /// As configured.
    pub config: ArchiveConfig,
    /// The place.
    pub objects: Arc<O>,
    /// What is counted.
    pub metrics: ArchiveMetrics,
}

impl<O> Clone for Archiver<O> {
    fn clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            objects: Arc::clone(&self.objects),
            metrics: self.metrics.clone(),
        }
    }
}

/// Turns that failed, one after another, without a commit between them. How long each of them took does not matter: an
/// attempt at a place that does not answer takes many seconds.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    since: Option<Instant>,
    times: u32,
}

impl Failing {
    /// One more, of a turn that lasted from `begun` to `now`. Does it last long enough to be told?
    fn again(&mut self, (begun, now): (Instant, Instant), has_committed: bool) -> bool {
        if has_committed {
            // What failed before is over, and this is new.
            (self.since, self.times) = (Some(now), 0);
        }
        self.times += 1;
        let since = *self.since.get_or_insert(begun);
        now.duration_since(since) >= TROUBLE_AFTER
    }

    /// A turn of `what` that began then has ended so. `has_moved`: something came of it meanwhile.
    pub(crate) fn ended(
        &mut self,
        outcome: Result<()>,
        what: &str,
        (begun, has_moved): (Instant, bool),
        trouble: &mut Complaint,
    ) {
        let Err(error) = outcome else {
            *self = Self::default();
            return;
        };
        let (text, now) = (format!("{what}: {error}"), Instant::now());
        if self.again((begun, now), has_moved) {
            trouble.raise(text, now);
        } else {
            tracing::debug!("{text}");
        }
    }

    /// Before the next turn.
    fn pause(&self) -> Duration {
        (PAUSE * 2_u32.pow(self.times.min(6))).min(PAUSE_MAX)
    }

    /// Waits that long, or until `stop`.
    pub(crate) async fn rest(&self, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(self.pause()) => {}
        }
    }
}

/// Archives until `stop`.
///
/// # Errors
/// None: what goes wrong is told and tried again.
pub async fn archive(
    config: Config,
    archive: ArchiveConfig,
    holder: HolderName,
    metrics: ArchiveMetrics,
    stop: CancellationToken,
) -> Result<()> {
    let objects = Arc::new(AnyObjects::open(&archive.place).await);
    let archiver = Archiver {
        config: archive,
        objects,
        metrics,
    };
    let checking = archiver.config.verify.then(|| {
        let (archiver, config, holder) = (archiver.clone(), config.clone(), holder.clone());
        tokio::spawn(check_daily(archiver, config, holder, stop.clone()))
    });
    let mut trouble = Complaint::default();
    let mut failing = Failing::default();
    while !stop.is_cancelled() {
        let (begun, commits) = (Instant::now(), archiver.metrics.commits());
        let ended = match &config.kafka {
            Some(kafka) => kafka::turn(&archiver, kafka, (&config.store, &holder), &stop, &mut trouble).await,
            None => tables::turn(&archiver, &config, &holder, &stop, &mut trouble).await,
        };
        let has_committed = archiver.metrics.commits() > commits;
        failing.ended(ended, "archive", (begun, has_committed), &mut trouble);
        failing.rest(&stop).await;
    }
    match checking {
        Some(checking) => checking
            .await
            .map_err(|error| Error::runtime(format!("check of the archive: {error}")))?,
        None => Ok(()),
    }
}

/// Asks to be the only archiver of this in the cell. The chain would keep two from doing harm; this keeps them from doing
/// everything twice.
pub(super) fn alone(store: &StoreConfig, holder: &HolderName, of: &str) -> Result<Sole> {
    Sole::ask_of(store, holder, "archive", of)
}

/// What is to become one commit.
pub(super) struct Ready {
    pub messages: Vec<Message>,
    pub ends: BTreeMap<i32, i64>,
    pub gaps: Vec<Gap>,
    pub epoch: u64,
    pub cut: Cut,
    pub source: &'static str,
}

impl<O: Objects> Archiver<O> {
    /// Opens the chain of a log.
    pub(super) async fn open(&self, name: &str) -> std::result::Result<Ledger<O>, ObjectError> {
        let ledger = Ledger::open(Arc::clone(&self.objects), name).await;
        let ledger = ledger.inspect_err(|error| self.metrics.count_place(error.kind))?;
        self.metrics.set_seq(name, ledger.chain().head().seq);
        Ok(ledger)
    }

    /// Makes files of the messages, puts them, and commits.
    pub(super) async fn commit(&self, ledger: &mut Ledger<O>, ready: Ready) -> Result<Appended> {
        let foreign = ready.messages.iter().filter_map(|message| match message {
            Message::Foreign(foreign) => Some(foreign),
            Message::Event(_) => None,
        });
        let mut foreign_rows = 0;
        for one in foreign {
            if foreign_rows == 0 {
                tracing::warn!(
                    chain = ledger.name(),
                    partition = one.spot.partition,
                    offset = one.spot.offset,
                    "a message is no event of this version ({}); it and others like it are archived as they came, in \
                     service=_foreign",
                    one.why
                );
            }
            foreign_rows += 1;
        }
        let events = ready.messages.len() as u64 - foreign_rows;
        let lock_until = self.config.lock_until();
        let (name, seq) = (ledger.name().to_owned(), ledger.chain().head().seq + 1);
        let messages = ready.messages;
        // It computes for seconds.
        let packing = tokio::task::spawn_blocking(move || pack(messages, &name, seq, lock_until));
        let files = packing
            .await
            .map_err(|error| Error::runtime(format!("write files: {error}")))?
            .map_err(|error| {
                self.metrics.count_failure("file");
                Error::retry(format!("write a file: {error}"))
            })?;
        let bytes = files.iter().map(|file| file.entry.bytes).sum();
        let locked_until = files.iter().find_map(|file: &Packed| file.keep.locked_until);
        let batch = Batch {
            files,
            ends: ready.ends,
            gaps: ready.gaps.clone(),
            epoch: ready.epoch,
            cut: ready.cut,
            source: ready.source,
            locked_until,
        };
        let appended = ledger.append(batch).await;
        let appended = appended.inspect_err(|error| self.metrics.count_place(error.kind))?;
        self.metrics.set_seq(ledger.name(), ledger.chain().head().seq);
        if appended == Appended::Ours {
            self.metrics.count_commit(ready.cut, events, foreign_rows, bytes);
            for gap in &ready.gaps {
                let offsets = u64::try_from(gap.to - gap.from).unwrap_or(0);
                self.metrics.count_gap(ledger.name(), offsets);
            }
        } else {
            self.metrics.count_failure("adopted");
        }
        Ok(appended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outage whose attempts take long was never told: each of them passed for new trouble.
    #[test]
    fn an_outage_is_told_however_long_each_attempt_takes_and_a_commit_ends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for each in [1, 6, 60] {
            let mut failing = Failing::default();
            let told = (0..10).map(|n| failing.again((at(n * each), at((n + 1) * each)), false));
            let silent = told.filter(|told| !told).count();
            assert!(silent <= 2, "attempts of {each} s: {silent} were not told");
            assert_eq!(failing.pause(), PAUSE_MAX);
        }
        let mut failing = Failing::default();
        assert!(!failing.again((at(0), at(1)), false), "a broker is restarted");
        assert!(failing.again((at(1), at(9)), false));
        // It has archived for an hour, and then something else happens.
        assert!(!failing.again((at(10), at(3_610)), true));
        assert_eq!(failing.pause(), PAUSE * 2);
        assert!(failing.again((at(3_611), at(3_620)), false));
    }
}
