//! The archive of the topic: where the probe begins without a checkpoint, where it finds what the topic has no more, and where
//! it looks up an earlier record.

use super::checkpoint::Offsets;
use super::desk::Tray;
use super::hear::Mind;
use crate::archive::commit::{BadFile, Commit, commit_key, sha256};
use crate::archive::objects::{AnyObjects, ObjectErrorKind, Objects};
use crate::archive::parquet::EventRow;
use crate::archive::{Ledger, verify};
use crate::config::ArchivePlace;
use crate::error::{Error, Result};
use idgen_core::archive::Chain;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// What was taken from the table lies in no partition of the topic.
const NO_PARTITION: i32 = -1;

/// See the module.
#[derive(Clone)]
pub(super) struct Vault {
    objects: Arc<AnyObjects>,
    topic: String,
}

/// Where findings go, and what ends it while there is no room for them.
type Teller<'t> = (&'t Tray, &'t CancellationToken);

/// Whose rows of a commit are wanted; `None`: all.
type Wanted<'w> = Option<&'w BTreeMap<i32, (i64, i64)>>;

impl Vault {
    pub(super) async fn open(place: &ArchivePlace, topic: &str) -> Self {
        Self {
            objects: Arc::new(AnyObjects::open(place).await),
            topic: topic.to_owned(),
        }
    }

    /// Everything that there is, from the first commit on. Returns where the topic goes on.
    pub(super) async fn tell_all(&self, mind: &mut Mind, teller: Teller<'_>) -> Result<Offsets> {
        let next = self.tell_chain(&self.topic, mind, teller).await?;
        if mind.probe.unseen_streams() > 0 {
            // What the topic had lost may have been taken from the table since.
            for chain in verify::chains(&*self.objects).await? {
                if chain.starts_with("db-") {
                    self.tell_chain(&chain, mind, teller).await?;
                }
            }
        }
        Ok(next)
    }

    async fn tell_chain(&self, name: &str, mind: &mut Mind, teller: Teller<'_>) -> Result<Offsets> {
        let (mut chain, mut said) = (Chain::default(), Instant::now());
        loop {
            let seq = chain.head().seq + 1;
            let bytes = match self.objects.get(&commit_key(name, seq)).await {
                Ok(bytes) => bytes,
                Err(error) if error.kind == ObjectErrorKind::Missing => break,
                Err(error) => return Err(error.into()),
            };
            let followed = Commit::parse(&bytes).and_then(|commit| {
                let link = commit.link()?;
                let appended = chain.append(&link, sha256(&bytes));
                appended.map_err(|error| error.to_string()).map(|_| commit)
            });
            let commit = match followed {
                Ok(commit) => commit,
                Err(why) => {
                    tracing::error!(
                        chain = name,
                        seq,
                        "the archive is not whole: {why}; the probe goes on where it is"
                    );
                    break;
                }
            };
            self.tell_commit(&commit, None, mind, teller).await?;
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                tracing::info!(
                    chain = name,
                    seq,
                    events = mind.probe.counts().events,
                    "the probe reads the archive"
                );
            }
        }
        let vector = chain.vector().iter();
        Ok(vector.map(|(partition, next)| (*partition, *next)).collect())
    }

    /// Offsets that the topic has no more: of each partition from where to where. Returns how far each has come.
    pub(super) async fn tell_part(
        &self,
        wanted: &BTreeMap<i32, (i64, i64)>,
        mind: &mut Mind,
        teller: Teller<'_>,
    ) -> Result<Offsets> {
        let ledger = Ledger::open(Arc::clone(&self.objects), self.topic.as_str()).await?;
        let (mut commits, mut last) = (Vec::new(), ledger.last().cloned());
        while let Some(commit) = last {
            let begins = |partition: i32| commit.ranges.iter().find(|range| range.p == partition);
            let is_further = |(partition, (from, _)): (&i32, &(i64, i64))| {
                begins(*partition).is_some_and(|range| range.start > *from)
            };
            let goes_on = wanted.iter().any(is_further) && commit.seq > 1;
            last = if goes_on {
                self.commit(commit.seq - 1).await?
            } else {
                None
            };
            commits.push(commit);
        }
        for commit in commits.iter().rev() {
            self.tell_commit(commit, Some(wanted), mind, teller).await?;
        }
        let chain = ledger.chain();
        let reached = |(partition, (from, to)): (&i32, &(i64, i64))| {
            let end = chain.next_of(*partition).clamp(*from, *to);
            (*partition, end)
        };
        Ok(wanted.iter().map(reached).collect())
    }

    async fn commit(&self, seq: u64) -> Result<Option<Commit>> {
        let bytes = match self.objects.get(&commit_key(&self.topic, seq)).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind == ObjectErrorKind::Missing => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match Commit::parse(&bytes) {
            Ok(commit) => Ok(Some(commit)),
            Err(why) => {
                tracing::error!(chain = self.topic, seq, "the archive is not whole: {why}");
                Ok(None)
            }
        }
    }

    async fn tell_commit(
        &self,
        commit: &Commit,
        wanted: Wanted<'_>,
        mind: &mut Mind,
        (tray, stop): Teller<'_>,
    ) -> Result<()> {
        if stop.is_cancelled() {
            return Err(Error::retry("it is to end"));
        }
        let partitions = commit.ranges.iter().filter(|range| range.end > range.start);
        let partitions: Vec<i32> = partitions.map(|range| range.p).collect();
        let is_wanted = |partition: i32, offset: i64| {
            wanted.is_none_or(|wanted| {
                wanted
                    .get(&partition)
                    .is_some_and(|(from, to)| (*from..*to).contains(&offset))
            })
        };
        let rows = match self.rows(commit).await? {
            Ok(rows) => rows,
            Err(why) => {
                tracing::error!(
                    chain = commit.chain,
                    seq = commit.seq,
                    "a file of the archive cannot be read: {why}"
                );
                for partition in partitions {
                    mind.probe.cut(partition);
                }
                return Ok(());
            }
        };
        let is_of_topic = commit.chain == self.topic;
        for row in &rows {
            let (partition, offset) = (row.spot.partition, row.spot.offset);
            if !is_wanted(partition, offset) {
                continue;
            }
            let partition = if is_of_topic { partition } else { NO_PARTITION };
            if tray.room() == 0 {
                tracing::warn!(
                    "too many findings wait to be stored: the probe reads the archive on when they are"
                );
                tokio::select! {
                    () = stop.cancelled() => return Err(Error::retry("it is to end")),
                    () = tray.has_room() => {}
                }
            }
            let heard = mind.hear(&row.event, (partition, offset));
            let hits = heard.into_iter().flat_map(|became| became.hits);
            hits.for_each(|hit| tray.found(hit));
        }
        for gap in commit.gaps.iter().filter(|_| is_of_topic) {
            let is_met = wanted.is_none_or(|wanted| {
                wanted
                    .get(&gap.p)
                    .is_some_and(|(from, to)| gap.from < *to && gap.to > *from)
            });
            if is_met {
                mind.probe.cut(gap.p);
            }
        }
        Ok(())
    }

    /// The events of a commit in the order of the log; within: why they cannot be read.
    async fn rows(&self, commit: &Commit) -> Result<std::result::Result<Vec<EventRow>, String>> {
        let mut rows = Vec::new();
        for file in commit.files.iter().filter(|file| !file.is_foreign()) {
            let bytes = match self.objects.get(&file.key).await {
                Ok(bytes) => bytes,
                Err(error) if error.kind == ObjectErrorKind::Missing => {
                    return Ok(Err(format!("{} is missing", file.key)));
                }
                Err(error) => return Err(error.into()),
            };
            let read = tokio::task::block_in_place(|| {
                let opened = file.open(bytes)?;
                opened.each_event(|row| rows.push(row)).map_err(BadFile::Broken)
            });
            if let Err(why) = read {
                return Ok(Err(format!("{} {why}", file.key)));
            }
        }
        rows.sort_by_key(|row| (row.spot.partition, row.spot.offset));
        Ok(Ok(rows))
    }

    /// The event at an offset.
    pub(super) async fn at(&self, partition: i32, offset: i64) -> Result<Option<EventRow>> {
        let has = |commit: &Commit| {
            let mut ranges = commit.ranges.iter();
            ranges.any(|range| range.p == partition && (range.start..range.end).contains(&offset))
        };
        self.find(has, |row| {
            (row.spot.partition, row.spot.offset) == (partition, offset)
        })
        .await
    }

    /// The newest event that is wanted, of commits that may have it.
    pub(super) async fn find(
        &self,
        may_have: impl Fn(&Commit) -> bool,
        is_wanted: impl Fn(&EventRow) -> bool,
    ) -> Result<Option<EventRow>> {
        let ledger = Ledger::open(Arc::clone(&self.objects), self.topic.as_str()).await?;
        let mut last = ledger.last().cloned();
        while let Some(commit) = last {
            if may_have(&commit)
                && let Ok(rows) = self.rows(&commit).await?
                && let Some(row) = rows.into_iter().rev().find(&is_wanted)
            {
                return Ok(Some(row));
            }
            last = match commit.seq {
                0 | 1 => None,
                seq => self.commit(seq - 1).await?,
            };
        }
        Ok(None)
    }
}
