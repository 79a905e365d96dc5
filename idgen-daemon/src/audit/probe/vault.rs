//! The archive of the topic: where the probe begins without a checkpoint, where it finds what the topic has no more, and where
//! it looks up an earlier record.

use super::checkpoint::Offsets;
use super::desk::Tray;
use super::hear::Mind;
use crate::archive::commit::{BadFile, Commit, Range};
use crate::archive::objects::{AnyObjects, ObjectErrorKind, Objects};
use crate::archive::parquet::EventRow;
use crate::archive::verify::{Back, chains, follow, last_listed, missing};
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
            for chain in chains(&*self.objects).await? {
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
            let commit = match follow(&*self.objects, name, &mut chain).await? {
                Some(Ok(commit)) => commit,
                Some(Err(why)) => {
                    not_whole(&why);
                    break;
                }
                None => {
                    let end = chain.head().seq;
                    if last_listed(&*self.objects, name, end).await? > end {
                        not_whole(&missing(name, end + 1));
                    }
                    break;
                }
            };
            self.tell_commit(&commit, None, mind, teller).await?;
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                tracing::info!(
                    chain = name,
                    seq = commit.seq,
                    events = mind.probe.counts().events,
                    "the probe reads the archive"
                );
            }
        }
        // Of the topic it goes on there: in the topic, or by `tell_part` with what the archive has behind a hole.
        Ok(chain.vector().clone())
    }

    /// Offsets that the topic has no more: of each partition from where to where. What is in a hole of the chain cuts the
    /// partition, as a hole of the topic does. Returns how far each has come.
    pub(super) async fn tell_part(
        &self,
        wanted: &BTreeMap<i32, (i64, i64)>,
        mind: &mut Mind,
        teller: Teller<'_>,
    ) -> Result<Offsets> {
        let mut back = Back::from_end(&*self.objects, &self.topic).await?;
        let mut commits = Vec::new();
        while let Some(commit) = back.step().await? {
            let begins_behind =
                |range: &Range| wanted.get(&range.p).is_some_and(|(from, _)| range.start > *from);
            let is_enough = commit
                .as_ref()
                .is_ok_and(|commit| !commit.ranges.iter().any(begins_behind));
            commits.push(commit);
            if is_enough {
                break;
            }
        }
        let mut reached: Offsets = wanted
            .iter()
            .map(|(partition, (from, _))| (*partition, *from))
            .collect();
        for commit in commits.into_iter().rev() {
            match commit {
                Ok(commit) => {
                    cut_before(&commit, wanted, &mut reached, mind);
                    self.tell_commit(&commit, Some(wanted), mind, teller).await?;
                }
                Err(why) => not_whole(&why),
            }
        }
        for (partition, (_, to)) in wanted {
            reached.entry(*partition).and_modify(|end| *end = (*end).min(*to));
        }
        Ok(reached)
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
        let is_wanted = |partition: i32, offset: i64| {
            wanted.is_none_or(|wanted| {
                wanted
                    .get(&partition)
                    .is_some_and(|(from, to)| (*from..*to).contains(&offset))
            })
        };
        let is_of_topic = commit.chain == self.topic;
        let is_met = |partition: i32, from: i64, to: i64| {
            let met = |wanted: &(i64, i64)| from < wanted.1 && to > wanted.0;
            is_of_topic && from < to && wanted.is_none_or(|wanted| wanted.get(&partition).is_some_and(met))
        };
        let rows = match self.rows(commit).await? {
            Ok(rows) => rows,
            Err(why) => {
                tracing::error!(
                    chain = commit.chain,
                    seq = commit.seq,
                    "a file of the archive cannot be read: {why}"
                );
                let lost = commit
                    .ranges
                    .iter()
                    .filter(|range| is_met(range.p, range.start, range.end));
                lost.for_each(|range| mind.probe.cut(range.p));
                return Ok(());
            }
        };
        let gaps = commit.gaps.iter().filter(|gap| is_met(gap.p, gap.from, gap.to));
        let mut gaps: Vec<(i32, i64)> = gaps.map(|gap| (gap.p, gap.to)).collect();
        gaps.sort_unstable();
        let mut gaps = gaps.into_iter().peekable();
        for row in &rows {
            let (partition, offset) = (row.spot.partition, row.spot.offset);
            if !is_wanted(partition, offset) {
                continue;
            }
            // Before what comes behind it, and behind what comes before.
            while let Some((partition, _)) = gaps.next_if(|gap| *gap <= (partition, offset)) {
                mind.probe.cut(partition);
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
        gaps.for_each(|(partition, _)| mind.probe.cut(partition));
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
        let mut back = Back::from_end(&*self.objects, &self.topic).await?;
        while let Some(commit) = back.step().await? {
            if let Ok(commit) = commit
                && may_have(&commit)
                && let Ok(rows) = self.rows(&commit).await?
                && let Some(row) = rows.into_iter().rev().find(&is_wanted)
            {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// What lies between where the partitions are and where this commit begins is lost with the commits that had it.
fn cut_before(commit: &Commit, wanted: &BTreeMap<i32, (i64, i64)>, reached: &mut Offsets, mind: &mut Mind) {
    for range in &commit.ranges {
        let (Some(at), Some((_, to))) = (reached.get_mut(&range.p), wanted.get(&range.p)) else {
            continue;
        };
        if range.start > *at && *at < *to {
            tracing::error!(
                partition = range.p,
                from = *at,
                to = range.start.min(*to),
                "these offsets are gone from the topic, and the commits of the archive that had them too: of tags that had \
                 events there the probe does not know everything"
            );
            mind.probe.cut(range.p);
        }
        *at = range.end.max(*at);
    }
}

fn not_whole(why: &str) {
    tracing::error!("the archive is not whole: {why}; the probe goes on with what there is");
}

#[cfg(test)]
mod tests;
