//! The archive against the database, day by day and both ways.
//!
//! What the archive has and the database has not was lost in a failover, and its ids may be in use: the one case in which an id
//! generator grants the same twice, and in which only somebody else can know. What was lost is passed over at once.

use super::halt::{Halt, column, trouble};
use super::ledger::{Ledger, at_us};
use super::prove::Proof;
use super::reader::Reader;
use super::sweep::{Leaves, moment, still_cover};
use crate::archive::commit::FileEntry;
use crate::archive::objects::{AnyObjects, Objects};
use crate::archive::parquet::Opened;
use crate::archive::verify::{FilesOf, files_of};
use crate::audit::finding::{Finding, FindingKind, Issuer};
use crate::config::ArchivePlace;
use crate::error::Error;
use crate::event::Event;
use idgen_core::archive::mix_id;
use idgen_core::day::Day;
use idgen_core::utc::show_us;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// A day is as the archive has it this long after its end, in seconds: as its own check has it.
const SETTLED_S: i64 = 1_800;

const ROWS: &str = "
    SELECT event_id, source_id, at, kind, space_id, tag, tag_seq, lo, hi, published
      FROM idgen.audit_event WHERE at >= $1 AND at < $2 AND event_id > $3 ORDER BY event_id LIMIT $4";

/// On the primary, at the end: what came while this was read is there.
const STILL: &str = "SELECT event_id, at FROM idgen.audit_event WHERE source_id = $1 AND event_id = ANY($2)";

/// Who has granted any of these ids.
const ALSO: &str = "
    SELECT source_id, event_id, at, lo, hi FROM idgen.audit_event
     WHERE space_id = $1 AND tag = $2 AND kind = 'segment.grant' AND lo <= $4 AND hi >= $3 ORDER BY lo LIMIT 1";

const PASS_OVER: &str = "SELECT idgen.pass_over($1, $2, $3)";

/// An event, by what makes it this one.
type Key = (Uuid, i64, i64);
/// Each event of the archive, and its content.
type Archived = BTreeMap<Key, u64>;
/// Each event of the database, its content, and whether it was handed on.
type There = BTreeMap<Key, (u64, bool)>;

/// What is in it, as a number.
fn content(kind: &str, space: Uuid, tag: &str, seq: i64, range: (Option<i64>, Option<i64>)) -> u64 {
    let number = |id: Option<i64>| id.map_or(1, |id| mix_id(id.cast_unsigned()));
    let (high, low) = space.as_u64_pair();
    let text = |mixed: u64, text: &str| {
        text.bytes()
            .fold(mixed, |mixed, byte| mix_id(mixed ^ u64::from(byte)))
    };
    let mixed = mix_id(mix_id(mix_id(high) ^ low) ^ seq.cast_unsigned());
    let mixed = mix_id(mixed ^ number(range.0).rotate_left(1) ^ number(range.1).rotate_left(17));
    text(text(mixed, kind), tag)
}

/// What an archive is compared with.
pub(super) struct Sides<'a> {
    /// Where the archive is.
    pub place: &'a ArchivePlace,
    /// Days that there are.
    pub leaves: &'a Leaves,
    /// Days from here on, Unix seconds; none: all.
    pub from_s: Option<i64>,
    /// Now, Unix seconds.
    pub now_s: i64,
    /// Sources that are this database's.
    pub sources: BTreeSet<Uuid>,
}

/// Compares every day, and says what is wrong.
///
/// # Errors
/// Something cannot be read, or the lease has gone.
pub(super) async fn reconcile(
    ledger: &mut Ledger,
    reader: &mut Reader,
    sides: Sides<'_>,
    proof: &mut Proof,
) -> Result<(), Halt> {
    let days: Vec<Day> = sides
        .leaves
        .0
        .iter()
        .filter(|(from, to)| sides.from_s.is_none_or(|since| *to > since) && *from <= sides.now_s)
        .map(|(from, _)| Day::of_unix(*from))
        .collect();
    let (Some(first), Some(last)) = (days.first(), days.last()) else {
        return Ok(());
    };
    let objects = Arc::new(AnyObjects::open(sides.place).await);
    let found = ledger
        .meanwhile(files_of(&*objects, *first, *last))
        .await?
        .map_err(unread)?;
    let FilesOf {
        files,
        problems,
        began_us,
    } = found;
    if let Some(problem) = problems.into_iter().next() {
        proof.doubts(format!("the archive cannot be compared: {problem}"));
        return Ok(());
    }
    let Some(began_us) = began_us else {
        // Nothing was archived yet.
        return Ok(());
    };
    reader.set_in_order(true).await;
    for day in days {
        let of_day: Vec<FileEntry> = files
            .iter()
            .filter(|(of, _)| *of == day)
            .map(|(_, file)| file.clone())
            .collect();
        let archived = ledger
            .meanwhile(archived(&objects, &of_day, &sides.sources))
            .await??;
        let there = rows_of(ledger, reader, day).await?;
        let is_settled = day.ends() + SETTLED_S <= sides.now_s && day.start_us() >= began_us;
        let differing = compare(&archived, &there, (day, is_settled), proof);
        // Dropped while this was read, it is the archive's alone.
        let mut days = sides.leaves.clone();
        if differing.is_empty()
            || !still_cover(ledger, reader, &mut days, (day.start_us(), day.start_us())).await?
        {
            continue;
        }
        let details = ledger.meanwhile(details(&objects, &of_day, &differing)).await??;
        tell(ledger, &archived, (&there, details), proof).await?;
    }
    reader.set_in_order(false).await;
    Ok(())
}

fn unread(error: Error) -> Halt {
    Halt::Inconclusive(format!("the archive cannot be read: {error}"))
}

async fn opened<O: Objects>(objects: &Arc<O>, entry: &FileEntry) -> Result<Opened, Halt> {
    let bytes = objects
        .get(&entry.key)
        .await
        .map_err(|error| unread(error.into()))?;
    let broken = |why| Halt::Inconclusive(format!("the archive cannot be read: file {} {why}", entry.key));
    entry.open(bytes).map_err(broken)
}

/// Calls `see` with each event of the files, and where the topic had it.
async fn each_event<O: Objects>(
    objects: &Arc<O>,
    files: &[FileEntry],
    mut see: impl FnMut(Event, i64, (i32, i64)),
) -> Result<(), Halt> {
    for entry in files {
        let file = opened(objects, entry).await?;
        if file.is_foreign {
            continue;
        }
        let read = file.each_event(|row| see(row.event, row.at_us, (row.spot.partition, row.spot.offset)));
        read.map_err(|error| {
            Halt::Inconclusive(format!("the archive cannot be read: file {}: {error}", entry.key))
        })?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Of our sources; of copies the first.
async fn archived<O: Objects>(
    objects: &Arc<O>,
    files: &[FileEntry],
    sources: &BTreeSet<Uuid>,
) -> Result<Archived, Halt> {
    let mut found = BTreeMap::new();
    each_event(objects, files, |event, at, _| {
        if sources.contains(&event.source) {
            let content = content(
                &event.kind,
                event.space,
                &event.tag,
                event.tag_seq,
                (event.lo, event.hi),
            );
            found.entry((event.source, event.event_id, at)).or_insert(content);
        }
    })
    .await?;
    Ok(found)
}

/// What the database has of a day: content, and whether it was handed on.
async fn rows_of(ledger: &mut Ledger, reader: &mut Reader, day: Day) -> Result<There, Halt> {
    let (begins, ends) = (moment(day.begins()), moment(day.ends()));
    let (mut there, mut after, mut is_more) = (BTreeMap::new(), i64::MIN, true);
    while is_more {
        let rows;
        (rows, is_more) = ledger
            .meanwhile(reader.page(
                ROWS,
                &[
                    (&begins, Type::TIMESTAMPTZ),
                    (&ends, Type::TIMESTAMPTZ),
                    (&after, Type::INT8),
                ],
            ))
            .await??;
        for row in &rows {
            after = column(row, 0)?;
            let content = content(
                column(row, 3)?,
                column(row, 4)?,
                column(row, 5)?,
                column(row, 6)?,
                (column(row, 7)?, column(row, 8)?),
            );
            there.insert(
                (column(row, 1)?, after, at_us(row, 2)?),
                (content, column(row, 9)?),
            );
        }
    }
    Ok(there)
}

/// Returns what the archive has otherwise, or alone.
fn compare(
    archived: &Archived,
    there: &There,
    (day, is_settled): (Day, bool),
    proof: &mut Proof,
) -> BTreeSet<Key> {
    if is_settled {
        let mut missing: BTreeMap<Uuid, (i64, i64, u64)> = BTreeMap::new();
        for (source, event, _) in there
            .iter()
            .filter(|(key, (_, is_published))| *is_published && !archived.contains_key(*key))
            .map(|(key, _)| *key)
        {
            let of = missing.entry(source).or_insert((event, event, 0));
            *of = (of.0.min(event), of.1.max(event), of.2 + 1);
        }
        for (source, (first, last, count)) in missing {
            proof.add(Finding {
                kind: FindingKind::NotInArchive,
                space: None,
                tag: None,
                common: Some((first, last)),
                first: Some(Issuer {
                    source: source.to_string(),
                    ..Issuer::default()
                }),
                second: None,
                detail: format!(
                    "{count} events of {source} of {day} were handed on and are not in the archive: events {first} to {last}"
                ),
            });
        }
    }
    let differs = |(key, content): &(&Key, &u64)| there.get(*key).is_none_or(|(ours, _)| ours != *content);
    archived.iter().filter(differs).map(|(key, _)| *key).collect()
}

/// An event as the archive has it.
struct Detail {
    event: Event,
    spot: (i32, i64),
}

async fn details<O: Objects>(
    objects: &Arc<O>,
    files: &[FileEntry],
    wanted: &BTreeSet<Key>,
) -> Result<BTreeMap<Key, Detail>, Halt> {
    let mut found = BTreeMap::new();
    each_event(objects, files, |event, at, spot| {
        let key = (event.source, event.event_id, at);
        if wanted.contains(&key) {
            found.entry(key).or_insert(Detail { event, spot });
        }
    })
    .await?;
    Ok(found)
}

fn issuer(of: &Detail) -> Issuer {
    let Detail { event, spot } = of;
    Issuer {
        source: event.source.to_string(),
        service: Some(event.service.clone()),
        event_id: Some(event.event_id),
        at: Some(event.at.clone()),
        lo: event.lo,
        hi: event.hi,
        token: event
            .token
            .map(|token| format!("{}/{}", token.epoch, token.revision)),
        partition: Some(spot.0),
        offset: Some(spot.1),
    }
}

/// What of this the primary has by now is left out; what is left is a finding, and lost ids are passed over.
async fn tell(
    ledger: &mut Ledger,
    archived: &Archived,
    (there, details): (&There, BTreeMap<Key, Detail>),
    proof: &mut Proof,
) -> Result<(), Halt> {
    let mut asked: BTreeMap<Uuid, Vec<i64>> = BTreeMap::new();
    for (source, event, _) in details.keys() {
        asked.entry(*source).or_default().push(*event);
    }
    let mut still = BTreeSet::new();
    for (source, events) in &asked {
        let params = [(source as _, Type::UUID), (events as _, Type::INT8_ARRAY)];
        for row in &ledger.primary.rows_typed(STILL, &params).await.map_err(trouble)? {
            still.insert((*source, column::<i64>(row, 0)?, at_us(row, 1)?));
        }
    }
    let mut lost: BTreeMap<(Uuid, String), i64> = BTreeMap::new();
    let mut told = Vec::new();
    for (key, detail) in &details {
        let event = &detail.event;
        if there.contains_key(key) && archived.contains_key(key) {
            told.push(rewritten(detail));
        } else if !still.contains(key) {
            if let Some(hi) = event.hi.filter(|_| event.kind == "segment.grant") {
                let highest = lost.entry((event.space, event.tag.clone())).or_insert(hi);
                *highest = (*highest).max(hi);
            }
            told.push(lost_in_failover(ledger, detail).await?);
        }
    }
    for ((space, tag), up_to) in lost {
        if !ledger.keep().await? {
            return Err(Halt::NotOurs);
        }
        let params = [
            (&space as _, Type::UUID),
            (&tag as _, Type::TEXT),
            (&up_to as _, Type::INT8),
        ];
        let rows = ledger
            .primary
            .rows_typed(PASS_OVER, &params)
            .await
            .map_err(trouble)?;
        let next: Option<i64> = rows.first().map(|row| column(row, 0)).transpose()?.flatten();
        let done = match next {
            Some(next) => format!("; tag {tag} goes on at {next} now"),
            None => format!("; tag {tag} had passed these ids already"),
        };
        tracing::error!("audit: a failover has lost grants of tag {tag} up to id {up_to}{done}");
        let of_tag = |finding: &&mut Finding| {
            finding.kind == FindingKind::NotInDatabase
                && finding.common.is_some()
                && finding.tag.as_ref() == Some(&tag)
        };
        told.iter_mut()
            .filter(of_tag)
            .for_each(|finding| finding.detail.push_str(&done));
    }
    told.into_iter().for_each(|finding| proof.add(finding));
    Ok(())
}

fn rewritten(detail: &Detail) -> Finding {
    let event = &detail.event;
    Finding {
        kind: FindingKind::Rewritten,
        space: Some(event.space),
        tag: Some(event.tag.clone()),
        common: event.lo.zip(event.hi),
        first: Some(issuer(detail)),
        second: None,
        detail: format!(
            "event {} of {} of {} is not what the archive has of it: there it is {} number {} of tag {}",
            event.event_id, event.source, event.at, event.kind, event.tag_seq, event.tag
        ),
    }
}

async fn lost_in_failover(ledger: &Ledger, detail: &Detail) -> Result<Finding, Halt> {
    let event = &detail.event;
    let grant = event.lo.zip(event.hi).filter(|_| event.kind == "segment.grant");
    let mut second = None;
    if let Some((lo, hi)) = grant {
        let params = [
            (&event.space as _, Type::UUID),
            (&event.tag as _, Type::TEXT),
            (&lo as _, Type::INT8),
            (&hi as _, Type::INT8),
        ];
        let rows = ledger.primary.rows_typed(ALSO, &params).await.map_err(trouble)?;
        if let Some(row) = rows.first() {
            second = Some(Issuer {
                source: column::<Uuid>(row, 0)?.to_string(),
                event_id: Some(column(row, 1)?),
                at: Some(show_us(at_us(row, 2)?)),
                lo: Some(column(row, 3)?),
                hi: Some(column(row, 4)?),
                ..Issuer::default()
            });
        }
    }
    let what = match (grant, &second) {
        (Some((lo, hi)), Some(other)) => format!(
            "a grant of ids {lo} to {hi} of tag {}, WHICH WERE GRANTED AGAIN, by event {}",
            event.tag,
            other.event_id.unwrap_or_default()
        ),
        (Some((lo, hi)), None) => format!("a grant of ids {lo} to {hi} of tag {}", event.tag),
        (None, _) => format!("{} number {} of tag {}", event.kind, event.tag_seq, event.tag),
    };
    let common = match (grant, &second) {
        (Some((lo, hi)), Some(other)) => Some((
            other.lo.map_or(lo, |other| other.max(lo)),
            other.hi.map_or(hi, |other| other.min(hi)),
        )),
        (grant, _) => grant,
    };
    Ok(Finding {
        kind: FindingKind::NotInDatabase,
        space: Some(event.space),
        tag: Some(event.tag.clone()),
        common,
        first: Some(issuer(detail)),
        second,
        detail: format!(
            "event {} of {} of {} is in the archive and not in the database, as after a failover that has lost commits: {what}",
            event.event_id, event.source, event.at
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(event: i64, at: i64) -> Key {
        (Uuid::nil(), event, at)
    }

    #[test]
    fn both_sides_are_compared_by_number_time_and_content() {
        let archived: Archived = [(key(1, 10), 5), (key(2, 20), 6), (key(3, 30), 7)].into();
        let there: There = [
            (key(1, 10), (5, true)),
            (key(2, 20), (9, true)),
            // The number of one that was lost.
            (key(3, 31), (7, true)),
            (key(4, 40), (1, false)),
        ]
        .into();
        let mut proof = Proof::default();
        let differing = compare(&archived, &there, (Day(1), true), &mut proof);
        assert_eq!(Vec::from_iter(differing), [key(2, 20), key(3, 30)]);
        assert_eq!(proof.findings.len(), 1);
        let finding = &proof.findings[0];
        assert_eq!(
            (finding.kind, finding.common),
            (FindingKind::NotInArchive, Some((3, 3)))
        );
        let mut early = Proof::default();
        compare(&archived, &there, (Day(1), false), &mut early);
        assert!(early.findings.is_empty(), "its time has not come");
    }

    #[test]
    fn whatever_of_an_event_is_changed_its_content_is_another() {
        let of = |kind, tag, seq, range| content(kind, Uuid::nil(), tag, seq, range);
        let one = of("segment.grant", "a", 1, (Some(1), Some(10)));
        assert_eq!(one, of("segment.grant", "a", 1, (Some(1), Some(10))));
        for other in [
            of("segment.burn", "a", 1, (Some(1), Some(10))),
            of("segment.grant", "b", 1, (Some(1), Some(10))),
            of("segment.grant", "a", 2, (Some(1), Some(10))),
            of("segment.grant", "a", 1, (Some(2), Some(10))),
            of("segment.grant", "a", 1, (Some(1), Some(11))),
            of("segment.grant", "a", 1, (None, None)),
            content("segment.grant", Uuid::max(), "a", 1, (Some(1), Some(10))),
        ] {
            assert_ne!(one, other);
        }
    }
}
