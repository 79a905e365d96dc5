//! What others have seen of grants: the highest id of each tag, by who has recorded it.

use crate::archive::commit::FileEntry;
use crate::archive::index::each_of;
use crate::archive::objects::Objects;
use crate::archive::verify::{FilesOf, files_of};
use crate::error::{Error, Result};
use crate::event::{Event, GRANT};
use idgen_core::day::Day;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// See the module. Nothing is kept of a single grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// By source and space.
    highest: BTreeMap<(Uuid, Uuid), BTreeMap<String, i64>>,
    grants: u64,
}

impl Seen {
    /// One event more, in whatever order they come.
    pub(super) fn hear(&mut self, event: &Event) {
        if let Some(hi) = event.hi.filter(|_| event.kind == GRANT) {
            self.note((event.source, event.space), &event.tag, hi);
        }
    }

    fn note(&mut self, of: (Uuid, Uuid), tag: &str, hi: i64) {
        self.grants += 1;
        let tags = self.highest.entry(of).or_default();
        match tags.get_mut(tag) {
            Some(highest) => *highest = hi.max(*highest),
            None => drop(tags.insert(tag.to_owned(), hi)),
        }
    }

    /// What another one has seen as well.
    pub(super) fn merge(&mut self, other: Self) {
        self.grants += other.grants;
        for (of, tags) in other.highest {
            let ours = self.highest.entry(of).or_default();
            for (tag, hi) in tags {
                let highest = ours.entry(tag).or_insert(hi);
                *highest = hi.max(*highest);
            }
        }
    }

    /// Grants that were heard of, of all spaces.
    pub(super) const fn grants(&self) -> u64 {
        self.grants
    }

    /// The highest id of each tag of a space. `sources`: who has recorded it; none: whoever it was.
    pub(super) fn of(&self, space: Uuid, sources: Option<&BTreeSet<Uuid>>) -> BTreeMap<&str, i64> {
        let mut found = BTreeMap::new();
        let wanted = self.highest.iter().filter(|((source, of), _)| {
            *of == space && sources.is_none_or(|sources| sources.contains(source))
        });
        for (tag, hi) in wanted.flat_map(|(_, tags)| tags) {
            let highest = found.entry(tag.as_str()).or_insert(*hi);
            *highest = (*hi).max(*highest);
        }
        found
    }
}

/// What the archive has of the days from `first` to `last`; `None`: it has nothing at all.
///
/// # Errors
/// Something of it cannot be read: what is in there nobody knows.
pub(super) async fn of_archive<O: Objects>(objects: &Arc<O>, first: Day, last: Day) -> Result<Option<Seen>> {
    let FilesOf {
        files,
        problems,
        began_us,
    } = files_of(&**objects, first, last).await?;
    if let Some(problem) = problems.into_iter().next() {
        return Err(Error::retry(format!("the archive is not whole: {problem}")));
    }
    let files: BTreeMap<String, FileEntry> = files
        .into_iter()
        .map(|(_, file)| (file.key.clone(), file))
        .collect();
    let keys: Vec<String> = files.keys().cloned().collect();
    let (count, files) = (keys.len(), Arc::new(files));
    let read = each_of(objects, keys, move |key, bytes| {
        let mut seen = Seen::default();
        let Some(file) = files.get(key) else {
            return Ok(seen);
        };
        let opened = file
            .open(bytes.clone())
            .map_err(|why| format!("file {key} {why}"))?;
        if !opened.is_foreign {
            let read = opened.each_grant(|of, tag, hi| seen.note(of, tag, hi));
            read.map_err(|error| format!("file {key}: {error}"))?;
        }
        Ok::<_, String>(seen)
    });
    let read = read.await?;
    if read.len() < count {
        let gone = count - read.len();
        return Err(Error::retry(format!("{gone} files of the archive are gone")));
    }
    let mut all = Seen::default();
    for one in read {
        all.merge(one.map_err(|why| Error::retry(format!("the archive cannot be read: {why}")))?);
    }
    Ok(began_us.map(|_| all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::parquet::tests::event;

    fn grant(source: u128, tag: &str, hi: i64) -> Event {
        Event {
            kind: "segment.grant".to_owned(),
            source: Uuid::from_u128(source),
            space: Uuid::from_u128(9),
            tag: tag.to_owned(),
            lo: Some(1),
            hi: Some(hi),
            ..event(1)
        }
    }

    fn seen(events: &[Event]) -> Seen {
        let mut seen = Seen::default();
        events.iter().for_each(|event| seen.hear(event));
        seen
    }

    #[test]
    fn the_highest_grant_of_a_tag_counts_in_whatever_order_and_whoever_has_heard_of_it() {
        let events = [
            grant(1, "a", 20),
            grant(1, "a", 10),
            grant(2, "a", 30),
            grant(1, "b", 5),
        ];
        let mut halves = seen(&events[2..]);
        halves.merge(seen(&events[..2]));
        assert_eq!(halves, seen(&events));
        assert_eq!(halves.grants(), 4);
        let space = Uuid::from_u128(9);
        assert_eq!(halves.of(space, None), [("a", 30), ("b", 5)].into());
        // Of several masters each grants ids of its own.
        let ours = [Uuid::from_u128(1)].into();
        assert_eq!(halves.of(space, Some(&ours)), [("a", 20), ("b", 5)].into());
        assert!(halves.of(Uuid::from_u128(8), None).is_empty(), "another space");
    }

    #[test]
    fn what_is_no_grant_says_nothing_of_ids_in_use() {
        let burnt = Event {
            kind: "segment.burn".to_owned(),
            ..grant(1, "a", 70)
        };
        assert_eq!(seen(&[burnt]), Seen::default());
    }
}
