//! Leases of workers and shards, as the archive tells of them: no two of one identity at a time, and no two with ms in common.
//!
//! By the rules of the probe (`idgen_core::audit::Leases`), which hears of each lease as it is granted. This is for what it did
//! not hear, and for a store of two histories that were archived both. Few files have such events, and an index says which.

use super::halt::Halt;
use super::ledger::Ledger;
use super::prove::Proof;
use crate::archive::commit::FileEntry;
use crate::archive::index::{DayIndex, each_of, files_behind, indexes};
use crate::archive::objects::{AnyObjects, Objects};
use crate::archive::parquet::EventRow;
use crate::audit::finding::{Finding, FindingKind, Issuer};
use crate::audit::probe::Mind;
use crate::config::ArchivePlace;
use crate::error::{Error, Result};
use crate::event::LEASE_TAG;
use idgen_core::audit::{Limits, OpenGap};
use idgen_core::day::Day;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// An incremental run reads so many days before those that it looks at: who held an identity before.
const DAYS_BACK: u32 = 8;
/// Trails of so many cells, and so many last events whose copies are known.
const LIMITS: Limits = Limits {
    spans: 1,
    recent: 100_000,
    tags: 1_000,
};

/// Says what overlaps, and which events of a trail the archive has not got. `from_s`: what has come since, Unix seconds; none:
/// everything.
///
/// # Errors
/// The archive cannot be read, or the lease has gone.
pub(super) async fn windows(
    ledger: &mut Ledger,
    place: &ArchivePlace,
    from_s: Option<i64>,
    proof: &mut Proof,
) -> std::result::Result<(), Halt> {
    let objects = Arc::new(AnyObjects::open(place).await);
    let first = from_s.map(|from| Day::of_unix(from).before(DAYS_BACK));
    let days = ledger
        .meanwhile(files_by_day(&objects, first))
        .await?
        .map_err(unread)?;
    let mut mind = Mind::new(LIMITS);
    for files in days {
        let rows = ledger
            .meanwhile(lease_events(&objects, files))
            .await?
            .map_err(unread)?;
        hear(&mut mind, rows, proof);
    }
    for gap in mind.probe.open_gaps() {
        proof.add(not_archived(gap));
    }
    Ok(())
}

fn unread(error: Error) -> Halt {
    Halt::Inconclusive(format!("the leases in the archive cannot be read: {error}"))
}

/// Files that may have events of leases, day by day.
async fn files_by_day<O: Objects>(objects: &Arc<O>, first: Option<Day>) -> Result<Vec<Vec<FileEntry>>> {
    let known = indexes(objects).await?;
    let heads = known
        .values()
        .next_back()
        .map_or(&[][..], |newest| &newest.chains[..]);
    let newer = files_behind(&**objects, heads).await?;
    Ok(by_day(&known, newer, first))
}

fn by_day(known: &BTreeMap<Day, DayIndex>, newer: Vec<FileEntry>, first: Option<Day>) -> Vec<Vec<FileEntry>> {
    let mut days: BTreeMap<Day, Vec<FileEntry>> = BTreeMap::new();
    for (day, index) in known.iter().filter(|(_, index)| !index.subjects.is_empty()) {
        days.entry(*day).or_default().extend(index.files.clone());
    }
    for file in newer {
        if let Some((day, _)) = file.place() {
            // A day that was checked may have files that came later.
            let of_day = days.entry(day).or_default();
            if !of_day.iter().any(|known| known.key == file.key) {
                of_day.push(file);
            }
        }
    }
    let wanted = days
        .into_iter()
        .filter(|(day, _)| first.is_none_or(|first| *day >= first));
    wanted.map(|(_, files)| files).collect()
}

/// In the order of their trails.
async fn lease_events<O: Objects>(objects: &Arc<O>, files: Vec<FileEntry>) -> Result<Vec<EventRow>> {
    let keys: Vec<String> = files.iter().map(|file| file.key.clone()).collect();
    let files: HashMap<String, FileEntry> = files.into_iter().map(|file| (file.key.clone(), file)).collect();
    let count = keys.len();
    let read = each_of(objects, keys, move |key, bytes| {
        let Some(file) = files.get(key) else {
            return Ok(Vec::new());
        };
        let opened = file
            .open(bytes.clone())
            .map_err(|why| format!("file {key} {why}"))?;
        let broken = |error| format!("file {key}: {error}");
        let mut has_any = false;
        let look = opened.each_about(false, |about| {
            has_any |= about.tag == LEASE_TAG;
            !has_any
        });
        look.map_err(broken)?;
        let mut rows = Vec::new();
        if has_any {
            let keep = |row: EventRow| {
                if row.event.is_of_lease() {
                    rows.push(row);
                }
            };
            opened.each_event(keep).map_err(broken)?;
        }
        Ok::<_, String>(rows)
    });
    let read = read.await?;
    if read.len() < count {
        return Err(Error::retry(format!("{} files are gone", count - read.len())));
    }
    let mut all = Vec::new();
    for rows in read {
        all.extend(rows.map_err(Error::retry)?);
    }
    all.sort_by_key(|row| (row.event.source, row.event.tag_seq, row.at_us));
    Ok(all)
}

fn hear(mind: &mut Mind, rows: Vec<EventRow>, proof: &mut Proof) {
    for row in rows {
        let became = mind.hear(&row.event, (row.spot.partition, row.spot.offset));
        let hits = became.into_iter().flat_map(|became| became.hits);
        hits.map(|hit| hit.finding)
            .filter(|finding| finding.kind == FindingKind::LeaseOverlap)
            .for_each(|finding| proof.add(finding));
    }
}

fn not_archived(gap: OpenGap<'_>) -> Finding {
    let cell = Uuid::from_u128(gap.space);
    let (lo, hi) = (gap.numbers.lo(), gap.numbers.hi());
    Finding {
        kind: FindingKind::NotInArchive,
        space: None,
        tag: Some(gap.tag.to_owned()),
        common: Some((lo, hi)),
        first: Some(Issuer {
            source: cell.to_string(),
            ..Issuer::default()
        }),
        second: None,
        detail: format!(
            "{} of the events {lo} to {hi} of the trail of leases of cell {cell} are not in the archive: who held an identity then is not known",
            gap.left
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::parquet::tests::arrived;

    fn row(
        seq: i64,
        kind: &str,
        (instance, generation): (u8, u64),
        (above, ceiling): (u64, u64),
    ) -> EventRow {
        let mut row = arrived(1).remove(0);
        let payload = serde_json::json!({
            "subject": "worker 5", "detail": {
                "holder": "db", "instance": format!("{instance:032x}"), "token": format!("0/{generation}"),
                "ceiling_ms": ceiling, "above_ms": above, "generation": generation,
            },
        });
        row.event.kind = format!("snowflake.lease.{kind}");
        row.event.tag = LEASE_TAG.to_owned();
        (row.event.event_id, row.event.tag_seq) = (seq, seq);
        (row.event.lo, row.event.hi, row.event.token) = (None, None, None);
        row.event.space = Uuid::from_u128(7);
        row.event.source = row.event.space;
        row.event.payload = serde_json::value::to_raw_value(&payload).expect("JSON");
        row
    }

    fn heard(days: Vec<Vec<EventRow>>) -> (Mind, Vec<Finding>) {
        let (mut mind, mut proof) = (Mind::new(LIMITS), Proof::default());
        for rows in days {
            hear(&mut mind, rows, &mut proof);
        }
        (mind, proof.findings)
    }

    #[test]
    fn windows_of_leases_that_have_ms_in_common_are_found_over_days_and_copies_are_none() {
        let first = row(1, "granted", (1, 1), (0, 1_000));
        let ended = row(2, "released", (1, 1), (0, 900));
        let clean = vec![
            vec![first.clone(), first.clone(), ended.clone()],
            vec![row(3, "granted", (2, 2), (900, 2_000))],
        ];
        assert_eq!(heard(clean).1, []);
        let (mind, found) = heard(vec![
            vec![first.clone()],
            vec![ended],
            vec![row(3, "granted", (2, 2), (800, 2_000))],
        ]);
        let found: Vec<_> = found.iter().map(|found| (found.kind, found.common)).collect();
        assert_eq!(found, [(FindingKind::LeaseOverlap, Some((801, 900)))]);
        assert_eq!(mind.probe.open_gaps().count(), 0);
    }

    #[test]
    fn what_a_trail_lacks_is_named_and_nothing_is_said_of_who_held_it_then() {
        let (mind, found) = heard(vec![vec![
            row(1, "granted", (1, 1), (0, 1_000)),
            row(4, "granted", (2, 2), (2_000, 3_000)),
        ]]);
        assert_eq!(found, [], "it may have ended");
        let gaps: Vec<Finding> = mind.probe.open_gaps().map(not_archived).collect();
        assert_eq!(gaps.len(), 1);
        assert_eq!(
            (gaps[0].kind, gaps[0].common),
            (FindingKind::NotInArchive, Some((2, 3)))
        );
        assert!(
            gaps[0].detail.starts_with("2 of the events 2 to 3"),
            "{}",
            gaps[0].detail
        );
    }

    #[test]
    fn of_days_with_an_index_those_with_leases_are_read_and_of_the_others_all() {
        let day = |text: &str| text.parse::<Day>().expect("a day");
        let file = |of: &str, name: &str| FileEntry {
            key: format!("audit/v1/dt={of}/service=orders/{name}.parquet"),
            sha256: String::new(),
            bytes: 1,
            rows: 1,
            events: 1,
            min_at: String::new(),
            max_at: String::new(),
            id_min: 1,
            id_max: 1,
            id_digest: String::new(),
        };
        let index = |of: &str, has: bool| {
            let index = DayIndex {
                schema: 1,
                day: of.to_owned(),
                chains: Vec::new(),
                files: vec![file(of, "indexed")],
                axes: Vec::new(),
                subjects: has.then(|| "worker 5".to_owned()).into_iter().collect(),
            };
            (day(of), index)
        };
        let known = [
            index("2026-04-01", true),
            index("2026-04-02", false),
            index("2026-04-03", true),
        ]
        .into();
        let newer = vec![file("2026-04-04", "newer"), file("2026-04-03", "indexed")];
        let names = |first: Option<&str>| -> Vec<Vec<String>> {
            let days = by_day(&known, newer.clone(), first.map(day));
            let keys = |files: Vec<FileEntry>| files.into_iter().map(|file| file.key).collect();
            days.into_iter().map(keys).collect()
        };
        let of = |text: &str, name: &str| vec![file(text, name).key];
        let all = vec![
            of("2026-04-01", "indexed"),
            of("2026-04-03", "indexed"),
            of("2026-04-04", "newer"),
        ];
        assert_eq!(names(None), all);
        assert_eq!(names(Some("2026-04-02")), all[1..]);
    }
}
