//! What the archive knows of an id, when it has left Postgres.
//!
//! The index of a day says which ids and leases its files are about, so a few days of many are read. What an index does not
//! know, because its day was not checked yet, is behind the last commits that the newest index has seen.

use super::in_trail::step_of;
use super::{Looked, Range};
use crate::archive::commit::{BadFile, FileEntry};
use crate::archive::index::{DayIndex, each_of, files_behind, indexes, subject_of};
use crate::archive::objects::AnyObjects;
use crate::archive::parquet::{About, Arrived, FileError};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::event::{Event, LEASE_TAG, LeaseDetail};
use bytes::Bytes;
use idgen_core::clock::UnixMs;
use idgen_core::day::Day;
use idgen_core::forensics::LeaseStep;
use idgen_core::utc::parse_us;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Days with events of an identity that are read, back from the time in question: enough to see who held it before.
const DAYS_BACK: usize = 8;

/// The archive of a configuration. What is read of it to find anything at all is read once.
pub(super) struct Search {
    objects: Arc<AnyObjects>,
    known: OnceCell<BTreeMap<Day, DayIndex>>,
    /// Files that no index names yet.
    newer: OnceCell<Vec<FileEntry>>,
}

/// What is looked for.
#[derive(Clone, Debug)]
enum Sought {
    /// Events about this id, of this tag or of any.
    Id(i64, Option<String>),
    /// Events of this identity's leases.
    Leases(String),
}

impl Sought {
    fn is_it(&self, about: &About<'_>) -> bool {
        match self {
            Self::Id(id, tag) => {
                let has = about.ids.is_some_and(|(lo, hi)| (lo..=hi).contains(id));
                has && tag.as_ref().is_none_or(|tag| tag == about.tag)
            }
            Self::Leases(identity) => {
                let subject = about
                    .payload
                    .filter(|_| about.tag == LEASE_TAG)
                    .and_then(subject_of);
                subject.as_ref() == Some(identity)
            }
        }
    }

    /// The column is most of a file.
    const fn needs_payload(&self) -> bool {
        matches!(self, Self::Leases(_))
    }

    fn is_in(&self, index: &DayIndex) -> bool {
        match self {
            Self::Id(id, tag) => index.may_have(*id, tag.as_deref()),
            Self::Leases(identity) => index.subjects.contains(identity),
        }
    }
}

/// An event, and the file that it is in.
type Found = (String, Arrived);

impl Search {
    /// `None`: there is none.
    pub(super) async fn open(config: &Config) -> Option<Self> {
        let archive = config.archive.as_ref()?;
        Some(Self {
            objects: Arc::new(AnyObjects::open(&archive.place).await),
            known: OnceCell::new(),
            newer: OnceCell::new(),
        })
    }

    /// Events that are about an id of a tag, or of any.
    pub(super) async fn grants(
        &self,
        id: i64,
        tag: Option<&str>,
        whole: bool,
    ) -> (Looked, Option<Vec<Range>>) {
        let sought = Sought::Id(id, tag.map(str::to_owned));
        let found = match whole {
            true => self.in_all(&sought).await,
            false => self.by_index(&sought, |_| {}).await,
        };
        Looked::at("archive", found, |(outcome, found)| {
            (outcome, found.iter().map(range_of).collect())
        })
    }

    /// What has happened to an identity about that time, in the order of the trail.
    pub(super) async fn steps(
        &self,
        identity: &str,
        at: UnixMs,
        whole: bool,
    ) -> (Looked, Option<Vec<LeaseStep>>) {
        let sought = Sought::Leases(identity.to_owned());
        let day = Day::of_unix(i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX));
        let found = match whole {
            true => self.in_all(&sought).await,
            false => self.by_index(&sought, |days| about_that_day(days, day)).await,
        };
        Looked::at("archive", found, |(outcome, found)| (outcome, steps_of(&found)))
    }

    async fn in_all(&self, sought: &Sought) -> Result<(String, Vec<Found>)> {
        let files = files_behind(&*self.objects, &[]).await?;
        let count = files.len();
        let found = self.read(files, sought).await?;
        Ok((format!("{} events in all {count} files", found.len()), found))
    }

    /// `choose`: which of the days that have what is sought are read, in rising order.
    async fn by_index(
        &self,
        sought: &Sought,
        choose: impl Fn(&mut Vec<Day>),
    ) -> Result<(String, Vec<Found>)> {
        let known = self.known.get_or_try_init(|| indexes(&self.objects)).await?;
        let mut days: Vec<Day> = known
            .iter()
            .filter(|(_, index)| sought.is_in(index))
            .map(|(day, _)| *day)
            .collect();
        choose(&mut days);
        let named = days
            .iter()
            .filter_map(|day| known.get(day))
            .flat_map(|index| index.files.clone())
            .collect();
        let mut found = self.read(named, sought).await?;
        // Days after that of the newest index have none yet: their files are behind what it has seen. Where no day was ever
        // checked that is everything.
        let is_leases = matches!(sought, Sought::Leases(_));
        if found.is_empty() || is_leases {
            let newest = known.values().next_back();
            let behind = || files_behind(&*self.objects, newest.map_or(&[], |index| &index.chains));
            let newer = self.newer.get_or_try_init(behind).await?;
            found.extend(self.read(newer.clone(), sought).await?);
        }
        let outcome = match found.len() {
            0 => format!(
                "nothing in the {} days that have an index, nor behind them (--whole reads every file)",
                known.len()
            ),
            events => format!("{events} events"),
        };
        Ok((outcome, found))
    }

    async fn read(&self, files: Vec<FileEntry>, sought: &Sought) -> Result<Vec<Found>> {
        let keys = files.iter().map(|file| file.key.clone()).collect();
        let wanted: HashMap<String, FileEntry> =
            files.into_iter().map(|file| (file.key.clone(), file)).collect();
        let sought = sought.clone();
        let read = each_of(&self.objects, keys, move |key, bytes| {
            wanted
                .get(key)
                .map_or(Ok(Vec::new()), |file| read_file(file, bytes, &sought))
        });
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        for events in read.await? {
            // An event may have been sent twice.
            found.extend(events?.into_iter().filter(|(_, row)| {
                let event = &row.event;
                seen.insert((event.source, event.event_id, row.at_us))
            }));
        }
        found.sort_by_key(|(_, row)| (row.at_us, row.event.source, row.event.event_id));
        Ok(found)
    }
}

/// Days with events of an identity that say who held it on `day`: that one, some before, and the first one behind, on which
/// its lease may have ended.
fn about_that_day(days: &mut Vec<Day>, day: Day) {
    let upto = days.partition_point(|of| *of <= day);
    days.truncate(upto + 1);
    days.drain(..days.len().saturating_sub(DAYS_BACK));
}

fn read_file(file: &FileEntry, bytes: &Bytes, sought: &Sought) -> Result<Vec<Found>> {
    let unread = |why: BadFile| Error::refused(format!("file {} {why}", file.key));
    let broken = |error: FileError| unread(BadFile::Broken(error));
    let opened = file.open(bytes.clone()).map_err(unread)?;
    let mut has_it = false;
    let look = |about: &About<'_>| {
        has_it |= sought.is_it(about);
        !has_it
    };
    opened.each_about(sought.needs_payload(), look).map_err(broken)?;
    let mut found = Vec::new();
    if has_it {
        let keep = |row: Arrived| {
            if sought.is_it(&about_of(&row.event)) {
                found.push((file.key.clone(), row));
            }
        };
        opened.each_event(keep).map_err(broken)?;
    }
    Ok(found)
}

fn about_of(event: &Event) -> About<'_> {
    About {
        space: event.space,
        tag: &event.tag,
        ids: event.lo.zip(event.hi),
        payload: Some(event.payload.get()),
    }
}

fn range_of((file, row): &Found) -> Range {
    let event = &row.event;
    Range {
        tag: event.tag.clone(),
        space: event.space.to_string(),
        event: event.kind.clone(),
        lo: event.lo.unwrap_or_default(),
        hi: event.hi.unwrap_or_default(),
        at: event.at.clone(),
        source: event.source.to_string(),
        event_id: event.event_id,
        token: event.token.map(|token| token.to_string()),
        tx: event.tx.clone(),
        payload: serde_json::from_str(event.payload.get()).unwrap_or_default(),
        found_in: format!(
            "{file}, offset {} of partition {}",
            row.spot.offset, row.spot.partition
        ),
    }
}

#[derive(Default, Deserialize)]
struct Payload {
    #[serde(default)]
    detail: LeaseDetail,
}

/// Of one cell: that whose events are the most recent.
fn steps_of(found: &[Found]) -> Vec<LeaseStep> {
    let Some(cell) = found.last().map(|(_, row)| row.event.source) else {
        return Vec::new();
    };
    let by_number: BTreeMap<i64, &Event> = found
        .iter()
        .map(|(_, row)| &row.event)
        .filter(|event| event.source == cell)
        .map(|event| (event.event_id, event))
        .collect();
    let step = |event: &&Event| {
        let payload: Payload = serde_json::from_str(event.payload.get()).unwrap_or_default();
        let at_ms = u64::try_from(parse_us(&event.at)? / 1_000).ok()?;
        step_of(&event.kind, event.event_id, UnixMs(at_ms), payload.detail)
    };
    by_number.values().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_chosen_about_the_one_in_question() {
        let chosen = |days: &[i32], day: i32| {
            let mut days: Vec<Day> = days.iter().map(|day| Day(*day)).collect();
            about_that_day(&mut days, Day(day));
            days.into_iter().map(|day| day.0).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[1, 5, 9, 12], 7), [1, 5, 9]);
        assert_eq!(chosen(&[1, 5, 9, 12], 9), [1, 5, 9, 12]);
        assert_eq!(chosen(&[9], 3), [9]);
        assert_eq!(chosen(&[], 3), [0_i32; 0]);
        let many: Vec<i32> = (0..100).collect();
        assert_eq!(chosen(&many, 50), (44..=51).collect::<Vec<_>>());
    }
}
