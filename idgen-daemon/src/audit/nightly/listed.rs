//! The tags of the primary, and whether the first and the last event of each is there.
//!
//! The numbers of a tag go on by one under whatever name its database records them: as another source when its history changes, in
//! another space when it joins one, leaves it, or is a copy. So a number is there where any stream of the tag has it.

use super::halt::{Halt, column, trouble};
use super::ledger::{Axes, Ledger, at_us};
use super::prove::missing;
use super::reader::Reader;
use super::sweep::Leaves;
use crate::audit::finding::Finding;
use crate::postgres::Session;
use idgen_core::audit::{Span, Stream};
use idgen_core::utc::show_us;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

const LIST: &str = "
    SELECT p.source_id, p.space_id, s.tag, s.tag_seq, s.needs_burn, s.created_at, s.granted_at
      FROM idgen.segment s CROSS JOIN idgen.space p";

/// What says that nothing of the tag was recorded here before: it came from elsewhere (a burn), or was dropped and is made again,
/// long after (a first event that makes it).
const BEGINNINGS: &str = "
    SELECT source_id, space_id, tag, CASE WHEN kind = 'segment.create' THEN tag_seq END FROM idgen.audit_event
     WHERE kind = 'segment.create' AND tag_seq > 1
        OR kind = 'segment.burn' AND payload ->> 'cause' IN ('row came from elsewhere', 'promoted')";

/// A tag that the primary had before the fence.
#[derive(Clone, Debug)]
pub struct Listed {
    pub(super) source: Uuid,
    space: Uuid,
    tag: String,
    tag_seq: i64,
    /// It came from elsewhere, and nothing was recorded of it here since.
    is_new_here: bool,
    created_us: i64,
    /// When something was recorded for certain, Unix microseconds.
    recorded_us: i64,
}

/// The tags of the primary.
///
/// # Errors
/// It does not answer.
pub async fn list(primary: &Session) -> Result<Vec<Listed>, Halt> {
    let rows = primary.rows_typed(LIST, &[]).await.map_err(trouble)?;
    let listed = rows.iter().map(|row| {
        let granted: Option<SystemTime> = column(row, 6)?;
        let created_us = at_us(row, 5)?;
        let granted = granted
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
            .and_then(|since| i64::try_from(since.as_micros()).ok());
        Ok(Listed {
            source: column(row, 0)?,
            space: column(row, 1)?,
            tag: column(row, 2)?,
            tag_seq: column(row, 3)?,
            is_new_here: column(row, 4)?,
            created_us,
            recorded_us: granted.unwrap_or(created_us).max(created_us),
        })
    });
    listed.collect()
}

/// Numbers that are missing, if everything between two moments is still there.
pub(super) struct Missing {
    pub finding: Finding,
    pub between_us: (i64, i64),
}

/// All streams of a tag, of whatever space.
fn streams_of<'a>(axes: &'a Axes, tag: &'a str) -> impl Iterator<Item = &'a Stream> {
    let axes = axes.values().filter_map(move |tags| tags.get(tag));
    axes.flat_map(|axis| axis.streams().map(|(_, stream)| stream))
}

fn is_there(axes: &Axes, tag: &str, seq: i64) -> bool {
    streams_of(axes, tag).any(|stream| stream.first.seq <= seq && seq <= stream.last.seq)
}

impl Listed {
    fn last<'a>(&self, axes: &'a Axes) -> Option<&'a Stream> {
        let axis = axes.get(&self.space)?.get(&self.tag)?;
        axis.streams()
            .map(|(_, stream)| stream)
            .max_by_key(|stream| stream.last.seq)
    }
}

/// Of a tag whose last event was not read everything is read once more: it may have been made since that day was read.
pub(super) fn suspect_tails(axes: &mut Axes, listed: &[Listed]) {
    for one in listed {
        if one.tag_seq > 0 && !is_there(axes, &one.tag, one.tag_seq) {
            let tags = axes.entry(one.space).or_default();
            tags.entry(one.tag.clone()).or_default().suspect();
        }
    }
}

/// Is the last event of each tag there?
pub(super) fn tails(listed: &[Listed], axes: &Axes, now_us: i64) -> Vec<Missing> {
    let tail = |one: &Listed| {
        if is_there(axes, &one.tag, one.tag_seq) {
            return None;
        }
        let Listed { tag, tag_seq, .. } = one;
        let (gap, between_us, detail) = match one.last(axes) {
            Some(stream) => {
                let gap = Span::new(stream.last.seq.saturating_add(1), *tag_seq)?;
                let at_us = stream.last.at_us;
                let detail = format!(
                    "the last events {gap} of tag {tag} of {} are missing: the last that is there is of {}",
                    one.source,
                    show_us(at_us)
                );
                (gap, (at_us, now_us.min(one.recorded_us.max(at_us))), detail)
            }
            None if one.is_new_here => return None,
            None => {
                let detail = format!(
                    "tag {tag} has {tag_seq} events, the last of {}, and none of them is there",
                    show_us(one.recorded_us)
                );
                (
                    Span::new(1, *tag_seq)?,
                    (one.recorded_us, one.recorded_us),
                    detail,
                )
            }
        };
        Some(Missing {
            finding: missing((one.source, one.space, tag), gap, detail),
            between_us,
        })
    };
    listed.iter().filter_map(tail).collect()
}

/// Is the first event of each stream there that no run before has seen, or the one that it goes on from?
pub(super) async fn heads(
    ledger: &mut Ledger,
    reader: &mut Reader,
    listed: &[Listed],
    axes: &Axes,
    leaves: &Leaves,
) -> Result<Vec<Missing>, Halt> {
    let mut headless: Vec<(&Listed, Uuid, &Stream)> = Vec::new();
    for one in listed {
        let axis = axes.get(&one.space).and_then(|tags| tags.get(&one.tag));
        for (source, stream) in axis.into_iter().flat_map(|axis| axis.streams()) {
            let first = stream.first;
            if stream.known.is_none()
                && first.seq > 1
                && first.at_us >= one.created_us
                && leaves.cover(one.created_us, first.at_us)
                && !is_there(axes, &one.tag, first.seq - 1)
            {
                headless.push((one, *source, stream));
            }
        }
    }
    if headless.is_empty() {
        return Ok(Vec::new());
    }
    let mut begun: BTreeSet<(Uuid, Uuid, String, Option<i64>)> = BTreeSet::new();
    for row in &ledger.meanwhile(reader.rows(BEGINNINGS, &[])).await?? {
        begun.insert((column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?));
    }
    let found = headless.into_iter().filter_map(|(one, source, stream)| {
        let Listed { space, tag, .. } = one;
        let begins = |seq| begun.contains(&(source, *space, tag.clone(), seq));
        if begins(None) || begins(Some(stream.first.seq)) {
            return None;
        }
        let gap = Span::new(1, stream.first.seq - 1)?;
        let detail = format!(
            "the first events {gap} of tag {tag} of {source} are missing, the last of them at any rate: all days since the tag was \
             made on {} are there",
            show_us(one.created_us)
        );
        Some(Missing {
            finding: missing((source, *space, tag), gap, detail),
            between_us: (one.created_us, stream.first.at_us),
        })
    });
    Ok(found.collect())
}
