//! Reads the grants of a database as they were recorded, day by day. Of tags of which something does not go on from what came
//! before everything is read once more (close.rs).

use super::halt::{Halt, column};
use super::ledger::{Axes, Ledger, Run, at_us};
use super::reader::Reader;
use crate::metrics::NightlyMetrics;
use idgen_core::audit::{Point, Span};
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

pub(super) fn span(row: &Row, at: usize) -> Result<Option<Span>, Halt> {
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

/// Is everything between two moments there, and still there? Asked before anybody is accused: a day may have been dropped while the
/// run went on, and what was read of it after that is nothing.
///
/// # Errors
/// It cannot be read, or the lease has gone.
pub(super) async fn still_cover(
    ledger: &mut Ledger,
    reader: &mut Reader,
    days: &mut Leaves,
    (from_us, to_us): (i64, i64),
) -> Result<bool, Halt> {
    if days.cover(from_us, to_us) {
        *days = ledger.meanwhile(leaves(reader)).await??;
    }
    Ok(days.cover(from_us, to_us))
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
