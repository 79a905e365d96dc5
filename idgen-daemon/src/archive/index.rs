//! The index of a day: which files it has, and which ids and leases they are about. Made by the check of the day, which reads all
//! of them anyhow. It only saves reading: whatever is not found by it may be looked for in all files.

use super::commit::{Commit, FileEntry, index_key, indexes_prefix};
use super::objects::{ObjectErrorKind, Objects};
use super::parquet::{About, FileError, Opened};
use super::verify::{ChainHead, chains, walk};
use crate::error::{Error, Result};
use crate::event::LEASE_TAG;
use bytes::Bytes;
use idgen_core::day::Day;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Version of the form. One of another version is none.
const INDEX_SCHEMA: u32 = 1;
/// Objects that are asked for at once.
const GETS: usize = 16;

/// `_index/DATE.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayIndex {
    /// [`INDEX_SCHEMA`].
    pub schema: u32,
    /// The day.
    pub day: String,
    /// The last commit of each chain before the first that has a file of a later day.
    pub chains: Vec<ChainHead>,
    /// The files of events of the day.
    pub files: Vec<FileEntry>,
    /// What they are about.
    pub axes: Vec<Axis>,
    /// Whose leases they tell of: `worker 5`, `shard 7`, …
    pub subjects: BTreeSet<String>,
}

/// The ids of a tag that the events of a day are about: all of them lie between these, and not all that lie between are of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The space.
    pub space: Uuid,
    /// The tag.
    pub tag: String,
    /// The first id.
    pub lo: i64,
    /// The last id.
    pub hi: i64,
}

impl DayIndex {
    /// May its files have an event that is about this id?
    #[must_use]
    pub fn may_have(&self, id: i64, tag: Option<&str>) -> bool {
        self.axes
            .iter()
            .any(|axis| tag.is_none_or(|tag| tag == axis.tag) && (axis.lo..=axis.hi).contains(&id))
    }

    /// The day, as a day.
    #[must_use]
    pub fn of_day(&self) -> Option<Day> {
        self.day.parse().ok()
    }
}

/// What is gathered while the files of a day are read.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    axes: BTreeMap<Uuid, BTreeMap<String, (i64, i64)>>,
    subjects: BTreeSet<String>,
}

#[derive(Deserialize)]
struct OfLease {
    subject: String,
}

/// What an event of a lease is about.
pub(crate) fn subject_of(payload: &str) -> Option<String> {
    let read: std::result::Result<OfLease, _> = serde_json::from_str(payload);
    read.ok().map(|of| of.subject)
}

impl Gathered {
    /// The events of one more file.
    pub(super) fn read(&mut self, opened: &Opened) -> std::result::Result<(), FileError> {
        opened.each_about(true, |about| {
            self.take(about);
            true
        })
    }

    fn take(&mut self, about: &About<'_>) {
        if let Some(ids) = about.ids {
            self.widen(about.space, about.tag, ids);
        } else if about.tag == LEASE_TAG
            && let Some(subject) = about.payload.and_then(subject_of)
        {
            self.subjects.insert(subject);
        }
    }

    fn widen(&mut self, space: Uuid, tag: &str, (lo, hi): (i64, i64)) {
        let tags = self.axes.entry(space).or_default();
        match tags.get_mut(tag) {
            Some(held) => *held = (held.0.min(lo), held.1.max(hi)),
            None => {
                tags.insert(tag.to_owned(), (lo, hi));
            }
        }
    }

    /// What others have gathered too.
    pub(super) fn merge(&mut self, other: Self) {
        for (space, tags) in other.axes {
            for (tag, ids) in tags {
                self.widen(space, &tag, ids);
            }
        }
        self.subjects.extend(other.subjects);
    }

    pub(super) fn into_index(self, day: Day, chains: Vec<ChainHead>, files: Vec<FileEntry>) -> DayIndex {
        let axes = self.axes.into_iter().flat_map(|(space, tags)| {
            tags.into_iter()
                .map(move |(tag, (lo, hi))| Axis { space, tag, lo, hi })
        });
        DayIndex {
            schema: INDEX_SCHEMA,
            day: day.to_string(),
            chains,
            files: files.into_iter().filter(|file| !file.is_foreign()).collect(),
            axes: axes.collect(),
            subjects: self.subjects,
        }
    }
}

/// The last commit before the first one that has a file of a day after `day`; `walked`: those that may have one, `end`: the last
/// of all.
pub(super) fn before_later_days(walked: &[Commit], end: &ChainHead, day: Day) -> ChainHead {
    let is_later = |file: &FileEntry| file.place().is_some_and(|(of, _)| of > day);
    let first = walked.iter().find(|commit| commit.files.iter().any(is_later));
    first.map_or_else(
        || end.clone(),
        |commit| ChainHead {
            chain: end.chain.clone(),
            seq: commit.seq.saturating_sub(1),
            sha256: commit.prev_sha256.clone(),
        },
    )
}

pub(super) async fn write<O: Objects>(objects: &O, day: Day, index: &DayIndex) -> Result<()> {
    let bytes = serde_json::to_vec(index).map_err(|error| Error::runtime(format!("write JSON: {error}")))?;
    Ok(objects.put(&index_key(day), &Bytes::from(bytes)).await?)
}

/// The indexes that there are, by their days. One that cannot be read is none.
///
/// # Errors
/// The place does not answer.
pub async fn indexes<O: Objects>(objects: &Arc<O>) -> Result<BTreeMap<Day, DayIndex>> {
    let mut keys = Vec::new();
    loop {
        let after = keys.last().map(String::as_str);
        let listed = objects.list(&indexes_prefix(), after).await?;
        if listed.is_empty() {
            break;
        }
        keys.extend(listed.into_iter().map(|meta| meta.key));
    }
    let mut found = BTreeMap::new();
    let read = each_of(objects, keys, |_, bytes| {
        serde_json::from_slice::<DayIndex>(bytes).ok()
    })
    .await?;
    for index in read.into_iter().flatten() {
        if let Some(day) = index.of_day().filter(|_| index.schema == INDEX_SCHEMA) {
            found.insert(day, index);
        }
    }
    Ok(found)
}

/// Files of events behind these heads: what no index names yet.
///
/// # Errors
/// The place does not answer, or a chain is not as it was written.
pub(crate) async fn files_behind<O: Objects>(objects: &O, heads: &[ChainHead]) -> Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    for chain in chains(objects).await? {
        let from = heads.iter().find(|head| head.chain == chain);
        let walked = walk(objects, &chain, from, &|_| {}).await?;
        if let Some(problem) = walked.problem {
            return Err(Error::refused(format!(
                "the archive is not as it was written: {problem}"
            )));
        }
        let of_chain = walked.commits.into_iter().flat_map(|commit| commit.files);
        files.extend(of_chain.filter(|file| !file.is_foreign()));
    }
    Ok(files)
}

/// Reads objects, several at once, and makes something of each, on threads that may compute. What is gone is passed over. In no
/// order.
pub(crate) async fn each_of<O: Objects, T: Send + 'static>(
    objects: &Arc<O>,
    keys: Vec<String>,
    make: impl Fn(&str, &Bytes) -> T + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let make = Arc::new(make);
    let (mut waiting, mut reading, mut made) = (keys.into_iter(), JoinSet::new(), Vec::new());
    loop {
        while reading.len() < GETS
            && let Some(key) = waiting.next()
        {
            let (objects, make) = (Arc::clone(objects), Arc::clone(&make));
            reading.spawn(async move {
                match objects.get(&key).await {
                    Ok(bytes) => tokio::task::spawn_blocking(move || make(&key, &bytes))
                        .await
                        .map(Some)
                        .map_err(|error| Error::runtime(format!("read an object: {error}"))),
                    Err(error) if error.kind == ObjectErrorKind::Missing => Ok(None),
                    Err(error) => Err(Error::from(error)),
                }
            });
        }
        match reading.join_next().await {
            None => return Ok(made),
            Some(Ok(one)) => made.extend(one?),
            Some(Err(error)) => return Err(Error::runtime(format!("read an object: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::commit::data_key;
    use crate::archive::objects::scripted::Scripted;
    use crate::archive::parquet::Summary;
    use crate::archive::parquet::encode_events;
    use crate::archive::parquet::tests::arrived;
    use idgen_core::archive::{Chain, Cut};

    fn day(text: &str) -> Day {
        text.parse().unwrap()
    }

    /// Days may share a commit: whoever looks for what no index has begins before it.
    #[test]
    fn files_of_later_days_are_behind_what_an_index_names() {
        let of = day("2026-04-03");
        let commit = |seq: u64, days: &[&str]| {
            let link = Chain::default().extend(&BTreeMap::new(), Vec::new(), 1);
            let mut commit = Commit::new("t", &link, (Cut::Time, "kafka"), Vec::new(), 0);
            (commit.seq, commit.prev_sha256) = (seq, format!("{:064x}", seq - 1));
            commit.files = days
                .iter()
                .map(|day_of| {
                    let key = data_key(day(day_of), Some("s"), "t", seq, &[0; 32]);
                    FileEntry::of(key, b"", &Summary::default())
                })
                .collect();
            commit
        };
        let end = ChainHead {
            chain: "t".to_owned(),
            seq: 9,
            sha256: "of the last".to_owned(),
        };
        let walked = [
            commit(6, &["2026-04-02", "2026-04-03"]),
            commit(7, &["2026-04-03", "2026-04-04"]),
            commit(8, &["2026-04-05"]),
        ];
        let found = before_later_days(&walked, &end, of);
        assert_eq!((found.seq, found.sha256), (6, format!("{:064x}", 6)));
        assert_eq!(before_later_days(&walked[..1], &end, of), end);
    }

    #[tokio::test]
    async fn an_index_tells_which_ids_and_leases_a_day_is_about() {
        let mut rows = arrived(40);
        let lease = &mut rows[39].event;
        lease.tag = LEASE_TAG.to_owned();
        (lease.lo, lease.hi) = (None, None);
        lease.payload =
            serde_json::value::RawValue::from_string("{\"subject\": \"worker 5\"}".into()).unwrap();
        let encoded = encode_events(&mut rows, "c", 1).unwrap();
        let mut gathered = Gathered::default();
        gathered.read(&Opened::open(encoded.bytes).unwrap()).unwrap();
        let mut twice = Gathered::default();
        twice.merge(gathered);
        let of = day("2026-04-03");
        let index = twice.into_index(of, Vec::new(), Vec::new());
        // Tag 0 has the events 0, 5, … 35, each of ten ids.
        assert!(index.may_have(350, None) && index.may_have(359, Some("tag 0")));
        assert!(!index.may_have(360, Some("tag 0")) && !index.may_have(350, Some("tag")));
        assert_eq!(index.subjects, BTreeSet::from(["worker 5".to_owned()]));
        let place = Arc::new(Scripted::default());
        write(&*place, of, &index).await.unwrap();
        place
            .put(&index_key(day("2026-04-04")), &Bytes::from_static(b"{}"))
            .await
            .unwrap();
        let found = indexes(&place).await.unwrap();
        assert_eq!(
            found,
            BTreeMap::from([(of, index)]),
            "what is none is passed over"
        );
    }
}
