//! Reads the grants of a database: first as they were recorded, day by day; then, of the tags of which something did not go on
//! from what came before, everything in its order.

use super::halt::{Halt, column};
use super::ledger::{Axes, Ledger, Run, at_us};
use super::reader::Reader;
use crate::audit::finding::{Finding, FindingKind, Issuer};
use crate::metrics::NightlyMetrics;
use idgen_core::audit::{Point, Span, Stream, Sweep};
use idgen_core::utc::show_us;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// What is read meanwhile is read again after a crash.
const SAVE_EVERY: Duration = Duration::from_secs(5);

const LEAVES: &str = "SELECT from_s, to_s FROM idgen.audit_leaves() ORDER BY from_s";

/// By the key of the day's table: within a tag the numbers of events rise as their `tag_seq` does.
const PAGE: &str = "
    SELECT event_id, source_id, at, kind = 'segment.grant', space_id, tag, tag_seq, lo, hi
      FROM idgen.audit_event WHERE at >= $1 AND at < $2 AND event_id > $3 ORDER BY event_id LIMIT $4";

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

/// Days that there are, as [from, to) in Unix seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaves(pub Vec<(i64, i64)>);

impl Leaves {
    /// Is everything from `from_us` to `to_us` still there?
    #[must_use]
    pub fn cover(&self, from_us: i64, to_us: i64) -> bool {
        let (mut reached, to) = (from_us.div_euclid(1_000_000), to_us.div_euclid(1_000_000));
        for &(from, end) in &self.0 {
            if from <= reached && reached < end {
                reached = end;
            }
        }
        reached > to
    }
}

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

fn span(row: &Row, at: usize) -> Result<Option<Span>, Halt> {
    let ends = (
        column::<Option<i64>>(row, at)?,
        column::<Option<i64>>(row, at + 1)?,
    );
    Ok(match ends {
        (Some(lo), Some(hi)) => Span::new(lo, hi),
        _ => None,
    })
}

pub(super) fn moment(seconds: i64) -> SystemTime {
    let since = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        SystemTime::UNIX_EPOCH - since
    } else {
        SystemTime::UNIX_EPOCH + since
    }
}

/// What is told meanwhile: grants so far.
pub type Told<'t> = &'t (dyn Fn(u64) + Send + Sync);

/// The days that there are.
///
/// # Errors
/// They cannot be read.
pub async fn leaves(reader: &mut Reader) -> Result<Leaves, Halt> {
    let rows = reader.rows(LEAVES, &[]).await?;
    let leaves = rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?)));
    leaves.collect::<Result<_, _>>().map(Leaves)
}

/// Reads everything that was recorded, from where the run has come to.
///
/// # Errors
/// It cannot be read, or the lease has gone.
pub async fn read(
    ledger: &mut Ledger,
    reader: &mut Reader,
    (run, axes): (&mut Run, &mut Axes),
    (metrics, told): (Option<&NightlyMetrics>, Told<'_>),
) -> Result<Leaves, Halt> {
    let days = ledger.meanwhile(leaves(reader)).await??;
    let mut saved = Instant::now();
    reader.set_in_order(true).await;
    let first = run.progress.leaf.or(run.progress.from_s);
    for &(from, to) in &days.0 {
        if run.progress.read || first.is_some_and(|first| to <= first) {
            continue;
        }
        let resumed = run.progress.leaf == Some(from);
        let mut after = run.progress.event.filter(|_| resumed).unwrap_or(i64::MIN);
        let (begins, ends) = (moment(from), moment(to));
        loop {
            let bounds: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] = [
                (&begins, Type::TIMESTAMPTZ),
                (&ends, Type::TIMESTAMPTZ),
                (&after, Type::INT8),
            ];
            let (rows, is_more) = ledger.meanwhile(reader.page(PAGE, &bounds)).await??;
            let ranges = take_in(&rows, axes)?;
            if let Some(row) = rows.last() {
                after = column(row, 0)?;
            }
            run.ranges += ranges;
            if let Some(metrics) = metrics {
                metrics.count_ranges(ranges);
            }
            told(run.ranges);
            (run.progress.leaf, run.progress.event) = (Some(from), Some(after));
            if saved.elapsed() >= SAVE_EVERY {
                ledger.save(run, axes).await?;
                saved = Instant::now();
            }
            if !is_more {
                break;
            }
        }
    }
    reader.set_in_order(false).await;
    run.progress.read = true;
    ledger.save(run, axes).await?;
    Ok(days)
}

/// Takes a page in. Returns how many grants of it are news.
fn take_in(rows: &[Row], axes: &mut Axes) -> Result<u64, Halt> {
    let mut ranges = 0;
    for row in rows {
        let (source, space): (Uuid, Uuid) = (column(row, 1)?, column(row, 4)?);
        let (is_grant, tag): (bool, &str) = (column(row, 3)?, column(row, 5)?);
        let at = Point {
            seq: column(row, 6)?,
            at_us: at_us(row, 2)?,
        };
        let grant = if is_grant { span(row, 7)? } else { None };
        let tags = axes.entry(space).or_default();
        if !tags.contains_key(tag) {
            tags.insert(tag.to_owned(), idgen_core::audit::Axis::new());
        }
        let Some(axis) = tags.get_mut(tag) else { continue };
        let is_news = axis.see(&source, at, grant);
        if is_news && is_grant && grant.is_none() {
            axis.suspect();
        }
        ranges += u64::from(is_news && is_grant);
    }
    Ok(ranges)
}

/// What a close look at a tag has found.
#[derive(Default)]
pub(super) struct Looked {
    pub streams: BTreeMap<Uuid, Stream>,
    pub findings: Vec<Finding>,
    /// Numbers that are missing, and the moments between which they were given.
    pub gaps: Vec<(Uuid, Span, i64, i64)>,
}

/// Reads everything of a tag in its order, and says what is wrong. `known`: what was looked at before is known still.
pub(super) async fn look_at(
    reader: &mut Reader,
    (space, tag): (Uuid, &str),
    sources: &[Uuid],
) -> Result<Looked, Halt> {
    let mut looked = Looked::default();
    for source in sources {
        by_number(reader, (space, tag), *source, &mut looked).await?;
    }
    by_id(reader, (space, tag), &mut looked).await?;
    Ok(looked)
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

async fn by_id(reader: &mut Reader, (space, tag): (Uuid, &str), looked: &mut Looked) -> Result<(), Halt> {
    let (mut sweep, mut is_more) = (Sweep::new(), true);
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
                looked.findings.push(Finding {
                    common: Some((overlap.common.lo(), overlap.common.hi())),
                    first: Some(earlier.issuer(first)),
                    second: Some(later.issuer(second)),
                    ..finding(FindingKind::Overlap, (space, tag), detail)
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_that_were_dropped_between_two_moments_leave_a_hole() {
        const DAY: i64 = 86_400;
        let us = |day: i64| (day * DAY + 5) * 1_000_000;
        let leaves = Leaves(vec![(DAY, 2 * DAY), (2 * DAY, 3 * DAY), (5 * DAY, 6 * DAY)]);
        assert!(leaves.cover(us(1), us(2)) && leaves.cover(us(5), us(5)));
        assert!(!leaves.cover(us(2), us(5)) && !leaves.cover(us(0), us(1)) && !leaves.cover(us(5), us(6)));
        assert!(!Leaves::default().cover(us(1), us(1)));
    }
}
