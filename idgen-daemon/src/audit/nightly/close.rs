//! A close look at a tag: everything of it, in the order of its numbers and in that of its ids.

use super::halt::{Halt, column};
use super::ledger::{Axes, Ledger, at_us};
use super::prove::{FINDINGS_MAX, Proof, missing};
use super::reader::Reader;
use super::sweep::{Leaves, span, still_cover};
use crate::audit::finding::{Finding, FindingKind, Issuer};
use idgen_core::audit::{Floor, Point, Rise, Span, Stream, Sweep};
use idgen_core::utc::show_us;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Who has recorded events of a tag.
const SOURCES: &str =
    "SELECT DISTINCT source_id FROM idgen.audit_event WHERE space_id = $1 AND tag = $2 ORDER BY 1";

/// A stream by its numbers.
const BY_NUMBER: &str = "
    SELECT tag_seq, event_id, at, kind = 'segment.grant', lo, hi, token_epoch, token_revision
      FROM idgen.audit_event
     WHERE space_id = $1 AND tag = $2 AND source_id = $3 AND (tag_seq, event_id) > ($4, $5)
     ORDER BY tag_seq, event_id LIMIT $6";

/// A tag by its ids.
const BY_ID: &str = "
    SELECT lo, hi, event_id, source_id, at, token_epoch, token_revision
      FROM idgen.audit_event
     WHERE space_id = $1 AND tag = $2 AND kind = 'segment.grant' AND lo IS NOT NULL
       AND (lo, hi, event_id, source_id) > ($3, $4, $5, $6)
     ORDER BY lo, hi, event_id, source_id LIMIT $7";

/// What the tag itself has granted; no row: it is of another space, whose tags this database does not have.
const GRANTED: &str = "
    SELECT (SELECT s.max_id FROM idgen.segment s WHERE s.tag = $2) FROM idgen.space p WHERE p.space_id = $1";

/// An event of a tag that is looked at closely.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    event: i64,
    at_us: i64,
    span: Option<Span>,
    token: Option<String>,
}

impl Seen {
    pub(super) fn issuer(&self, source: Uuid) -> Issuer {
        Issuer {
            source: source.to_string(),
            event_id: Some(self.event),
            at: Some(show_us(self.at_us)),
            lo: self.span.map(Span::lo),
            hi: self.span.map(Span::hi),
            token: self.token.clone(),
            ..Issuer::default()
        }
    }
}

fn token(row: &Row, at: usize) -> Result<Option<String>, Halt> {
    let (epoch, revision) = (
        column::<Option<i64>>(row, at)?,
        column::<Option<i64>>(row, at + 1)?,
    );
    Ok(epoch.map(|epoch| format!("{epoch}/{}", revision.unwrap_or_default())))
}

/// What a close look at a tag has found.
#[derive(Default)]
struct Looked {
    streams: BTreeMap<Uuid, Stream>,
    findings: Vec<Finding>,
    /// Numbers that are missing, and the moments between which they were given.
    gaps: Vec<(Uuid, Span, i64, i64)>,
    /// Grants that fall back, and behind which id.
    fallen: Vec<(Uuid, Seen, i64)>,
    /// Highest id of each source's grants, as far as the tag knows of them.
    reach: BTreeMap<Uuid, Option<i64>>,
}

/// Returns the tags with ids that were granted twice.
pub(super) async fn look_closely(
    ledger: &mut Ledger,
    reader: &mut Reader,
    axes: &mut Axes,
    leaves: &mut Leaves,
    proof: &mut Proof,
) -> Result<BTreeSet<(Uuid, String)>, Halt> {
    let mut overlapping = BTreeSet::new();
    for (space, tags) in axes {
        for (tag, axis) in tags.iter_mut().filter(|(_, axis)| axis.is_suspect()) {
            if proof.findings.len() >= FINDINGS_MAX {
                return Ok(overlapping);
            }
            let looking = look_at(reader, (*space, tag), axis.floors());
            let mut looked = ledger.meanwhile(looking).await??;
            for (source, gap, from_us, to_us) in looked.gaps {
                // Where days between were dropped it is the archive that knows.
                if still_cover(ledger, reader, leaves, (from_us, to_us)).await? {
                    let detail = format!(
                        "events {gap} of tag {tag} of {source} are missing, between {} and {}",
                        show_us(from_us),
                        show_us(to_us)
                    );
                    proof.add(missing((source, *space, tag), gap, detail));
                }
            }
            for finding in looked.findings {
                if finding.kind == FindingKind::Overlap {
                    overlapping.insert((*space, tag.clone()));
                }
                proof.add(finding);
            }
            keep_known(axis.streams(), &mut looked.streams);
            axis.settle(looked.streams);
        }
    }
    Ok(overlapping)
}

/// Days may have been dropped since this run has seen them.
fn keep_known<'a>(
    before: impl Iterator<Item = (&'a Uuid, &'a Stream)>,
    streams: &mut BTreeMap<Uuid, Stream>,
) {
    for (source, was) in before {
        let Some(is) = streams.get_mut(source) else {
            streams.insert(*source, was.clone());
            continue;
        };
        if is.last.seq < was.last.seq {
            is.last = was.last;
        }
    }
}

/// Reads everything of a tag in its order, and says what is wrong.
async fn look_at(reader: &mut Reader, axis: (Uuid, &str), floors: &[Floor]) -> Result<Looked, Halt> {
    let mut looked = Looked::default();
    let granted = granted(reader, axis).await?;
    let rows = reader
        .rows(SOURCES, &[(&axis.0, Type::UUID), (&axis.1, Type::TEXT)])
        .await?;
    for row in &rows {
        let (source, mut rise) = (column(row, 0)?, Rise::new(floors, granted));
        by_number(reader, axis, source, &mut rise, &mut looked).await?;
        looked.reach.insert(source, rise.reach());
    }
    // It goes on granting meanwhile.
    let granted = self::granted(reader, axis).await?;
    for (source, stream) in &mut looked.streams {
        if stream.max_hi.is_some_and(|hi| hi > granted) {
            stream.max_hi = looked.reach.get(source).copied().flatten();
        }
    }
    looked.findings.extend(overlaps_of(reader, axis).await?);
    let fallen = std::mem::take(&mut looked.fallen);
    for (source, seen, reach) in fallen {
        // Where the other one is there both are named already.
        let is_named =
            |issuer: &Issuer| issuer.source == source.to_string() && issuer.event_id == Some(seen.event);
        let mut overlaps = looked
            .findings
            .iter()
            .filter(|one| one.kind == FindingKind::Overlap);
        if !overlaps.any(|one| one.first.iter().chain(&one.second).any(is_named)) {
            looked.findings.push(falls_back(axis, source, (&seen, reach)));
        }
    }
    Ok(looked)
}

async fn granted(reader: &mut Reader, (space, tag): (Uuid, &str)) -> Result<i64, Halt> {
    let rows = reader
        .rows(GRANTED, &[(&space, Type::UUID), (&tag, Type::TEXT)])
        .await?;
    match rows.first() {
        Some(row) => Ok(column::<Option<i64>>(row, 0)?.unwrap_or_default()),
        None => Ok(i64::MAX),
    }
}

/// A grant of ids at or below `reach`, up to which ids had been granted before it.
fn falls_back(axis: (Uuid, &str), source: Uuid, (seen, reach): (&Seen, i64)) -> Finding {
    let ids = seen.span.map(|span| span.to_string()).unwrap_or_default();
    let detail = format!(
        "event {} of {source} grants ids {ids} of tag {}, and ids up to {reach} had been granted before it: whoever has had these ids \
         is not there any more, so take them as granted twice",
        seen.event, axis.1
    );
    Finding {
        common: seen.span.map(|span| (span.lo(), span.hi().min(reach))),
        first: Some(seen.issuer(source)),
        ..finding(FindingKind::Malformed, axis, detail)
    }
}

fn finding(kind: FindingKind, (space, tag): (Uuid, &str), detail: String) -> Finding {
    Finding {
        kind,
        space: Some(space),
        tag: Some(tag.to_owned()),
        common: None,
        first: None,
        second: None,
        detail,
    }
}

async fn by_number(
    reader: &mut Reader,
    (space, tag): (Uuid, &str),
    source: Uuid,
    rise: &mut Rise<'_>,
    looked: &mut Looked,
) -> Result<(), Halt> {
    let (mut after, mut is_more) = ((i64::MIN, i64::MIN), true);
    let mut before: Option<(i64, Seen)> = None;
    while is_more {
        let rows;
        (rows, is_more) = reader
            .page(
                BY_NUMBER,
                &[
                    (&space, Type::UUID),
                    (&tag, Type::TEXT),
                    (&source, Type::UUID),
                    (&after.0, Type::INT8),
                    (&after.1, Type::INT8),
                ],
            )
            .await?;
        for row in &rows {
            after = (column(row, 0)?, column(row, 1)?);
            let is_grant: bool = column(row, 3)?;
            let seen = Seen {
                event: after.1,
                at_us: at_us(row, 2)?,
                span: span(row, 4)?,
                token: token(row, 6)?,
            };
            if let Some(grant) = seen.span.filter(|_| is_grant)
                && let Some(reach) = rise.push(after, grant)
            {
                looked.fallen.push((source, seen.clone(), reach));
            }
            number_follows((space, tag), source, (after.0, &seen, is_grant), &before, looked);
            before = Some((after.0, seen));
        }
    }
    Ok(())
}

/// One more event of a stream, in the order of the numbers.
fn number_follows(
    axis: (Uuid, &str),
    source: Uuid,
    (seq, seen, is_grant): (i64, &Seen, bool),
    before: &Option<(i64, Seen)>,
    looked: &mut Looked,
) {
    let at = Point {
        seq,
        at_us: seen.at_us,
    };
    let stream = looked.streams.entry(source).or_insert(Stream {
        first: at,
        last: at,
        events: 0,
        ranges: 0,
        max_hi: None,
        known: None,
    });
    stream.last = at;
    stream.events += 1;
    if is_grant {
        stream.ranges += 1;
        stream.max_hi = stream.max_hi.max(seen.span.map(Span::hi));
    }
    if seq < 1 || (is_grant && seen.span.is_none()) {
        let detail = format!(
            "event {} of {source} is no event that is ever written: number {seq}",
            seen.event
        );
        looked.findings.push(Finding {
            first: Some(seen.issuer(source)),
            ..finding(FindingKind::Malformed, axis, detail)
        });
    }
    let Some((last, other)) = before else { return };
    if *last == seq {
        let detail = format!(
            "events {} and {} of {source} have the same number {seq} of tag {}",
            other.event, seen.event, axis.1
        );
        looked.findings.push(Finding {
            common: other
                .span
                .zip(seen.span)
                .and_then(|(one, two)| one.common(two))
                .map(|ids| (ids.lo(), ids.hi())),
            first: Some(other.issuer(source)),
            second: Some(seen.issuer(source)),
            ..finding(FindingKind::Rewritten, axis, detail)
        });
    } else if let Some(gap) = last.checked_add(1).and_then(|from| Span::new(from, seq - 1)) {
        looked.gaps.push((source, gap, other.at_us, seen.at_us));
    }
}

/// Ids that were granted twice, of those grants that are there.
pub(super) async fn overlaps_of(
    reader: &mut Reader,
    (space, tag): (Uuid, &str),
) -> Result<Vec<Finding>, Halt> {
    let (mut sweep, mut is_more, mut found) = (Sweep::new(), true, Vec::new());
    let mut after = (i64::MIN, i64::MIN, i64::MIN, Uuid::nil());
    while is_more {
        let rows;
        (rows, is_more) = reader
            .page(
                BY_ID,
                &[
                    (&space, Type::UUID),
                    (&tag, Type::TEXT),
                    (&after.0, Type::INT8),
                    (&after.1, Type::INT8),
                    (&after.2, Type::INT8),
                    (&after.3, Type::UUID),
                ],
            )
            .await?;
        for row in &rows {
            after = (column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?);
            let Some(grant) = Span::new(after.0, after.1) else {
                continue;
            };
            let seen = Seen {
                event: after.2,
                at_us: at_us(row, 4)?,
                span: Some(grant),
                token: token(row, 5)?,
            };
            let overlap = sweep
                .push(grant, (after.3, seen))
                .map_err(|error| Halt::Inconclusive(format!("tag {tag}: {error}")))?;
            if let Some(overlap) = overlap {
                let ((one, (first, earlier)), (two, (second, later))) = (overlap.earlier, overlap.later);
                let detail = format!(
                    "ids {} of tag {tag} were granted twice: {one} by event {} of {first}, and {two} by event {} of {second}",
                    overlap.common, earlier.event, later.event
                );
                found.push(Finding {
                    common: Some((overlap.common.lo(), overlap.common.hi())),
                    first: Some(earlier.issuer(first)),
                    second: Some(later.issuer(second)),
                    ..finding(FindingKind::Overlap, (space, tag), detail)
                });
            }
        }
    }
    Ok(found)
}
