//! That everything was looked at: each tag of the primary, each number of each stream, and of some tags the same in another way.

use super::close::{look_closely, overlaps_of};
use super::halt::{Halt, column};
use super::ledger::{Axes, Ledger, Run, at_us};
use super::listed::{Listed, Missing, heads, suspect_tails, tails};
use super::reader::Reader;
use super::sweep::{Leaves, still_cover};
use crate::audit::finding::{Finding, FindingKind, Issuer};
use idgen_core::archive::mix_id;
use idgen_core::audit::{Extent, Span, Stream};
use idgen_core::utc::show_us;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Findings of one run. Whoever sees so many looks at the server first.
pub(super) const FINDINGS_MAX: usize = 1_000;
/// One tag of so many is checked in another way, and these at the least.
const SAMPLE: u64 = 100;
const SAMPLE_MIN: usize = 3;
/// A tag with more is none of the sample: the other way keeps all of it in memory.
const SAMPLE_RANGES_MAX: u64 = 1_000_000;

/// Read after the events, so no event that was read is above it.
const HIGHEST: &str = "SELECT p.space_id, s.tag, s.max_id FROM idgen.segment s CROSS JOIN idgen.space p";

/// In one statement: what the tag grants meanwhile is not above.
const ABOVE: &str = "
    SELECT source_id, event_id, at, lo, hi FROM idgen.audit_event
     WHERE space_id = $1 AND tag = $2 AND kind = 'segment.grant'
       AND hi > coalesce((SELECT s.max_id FROM idgen.segment s WHERE s.tag = $2), 0)
     ORDER BY hi DESC LIMIT 10";

/// In another way: what all ranges together have, against the sum of what each has. Numbers, because the range that holds the
/// last id of all has no end that a bigint could name.
const ANOTHER_WAY: &str = "
    SELECT count(*), coalesce(sum(hi::numeric - lo + 1), 0)
           = coalesce((SELECT sum(upper(r) - lower(r)) FROM unnest(range_agg(numrange(lo, hi::numeric + 1))) r), 0)
      FROM idgen.audit_event WHERE space_id = $1 AND tag = $2 AND kind = 'segment.grant'";

/// What was found, and what could not be known.
#[derive(Debug, Default)]
pub struct Proof {
    /// Each finding.
    pub findings: Vec<Finding>,
    /// What an incremental run has come across by the way: findings only if no run before it has had them.
    pub aside: Vec<Finding>,
    /// Why nothing can be said.
    pub doubt: Option<String>,
    /// Tags that were looked at.
    pub tags: u64,
}

impl Proof {
    pub(super) fn doubts(&mut self, why: String) {
        self.doubt.get_or_insert(why);
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
        // What comes after is not looked at. Should each of these be closed already, that is no PASS.
        if self.findings.len() >= FINDINGS_MAX {
            self.doubts(format!("{FINDINGS_MAX} findings, and no more were looked for"));
        }
    }
}

pub(super) fn missing((source, space, tag): (Uuid, Uuid, &str), numbers: Span, detail: String) -> Finding {
    Finding {
        kind: FindingKind::Missing,
        space: Some(space),
        tag: Some(tag.to_owned()),
        common: Some((numbers.lo(), numbers.hi())),
        first: Some(Issuer {
            source: source.to_string(),
            ..Issuer::default()
        }),
        second: None,
        detail,
    }
}

/// What everything is proved from.
pub struct Evidence<'a> {
    /// What was read.
    pub axes: &'a mut Axes,
    /// The days that there were, and are now.
    pub leaves: &'a mut Leaves,
    /// The tags of the primary, from before the fence.
    pub listed: &'a [Listed],
    /// What the last conclusive run had.
    pub before: &'a Axes,
    /// Until when, Unix microseconds.
    pub now_us: i64,
}

/// Looks closely at what is suspect, and proves the rest.
///
/// # Errors
/// Something cannot be read, or the lease has gone.
pub async fn prove(
    ledger: &mut Ledger,
    reader: &mut Reader,
    run: &Run,
    evidence: Evidence<'_>,
) -> Result<Proof, Halt> {
    let mut proof = Proof::default();
    let Evidence {
        axes,
        leaves,
        listed,
        before,
        now_us,
    } = evidence;
    suspect_tails(axes, listed);
    let above = above_the_highest(ledger, reader, axes).await?;
    let overlapping = look_closely(ledger, reader, axes, leaves, &mut proof).await?;
    let mut missing = tails(listed, axes, now_us);
    missing.extend(heads(ledger, reader, listed, axes, leaves).await?);
    if run.extent == Extent::Full {
        for (space, tags) in before {
            for (tag, axis) in tags {
                for (source, was) in axis.streams() {
                    let is = axes
                        .get(space)
                        .and_then(|tags| tags.get(tag))
                        .and_then(|axis| axis.stream(source));
                    missing.extend(check_before((*source, *space, tag), (was, is), leaves));
                }
            }
        }
    }
    for one in missing {
        if still_cover(ledger, reader, leaves, one.between_us).await? {
            proof.add(one.finding);
        }
    }
    for finding in above {
        proof.add(finding);
    }
    match another_way(ledger, reader, (run, axes), &overlapping, &mut proof).await {
        Err(Halt::Inconclusive(why)) => proof.doubts(why),
        looked => looked?,
    }
    let tags = axes.values().flat_map(|tags| tags.values());
    proof.tags = tags.filter(|axis| axis.streams().next().is_some()).count() as u64;
    if proof.findings.len() >= FINDINGS_MAX {
        tracing::warn!("audit: {FINDINGS_MAX} findings, and no more are looked for");
    }
    Ok(proof)
}

/// Is what an earlier run has seen still there, as far as its day is?
fn check_before(
    name: (Uuid, Uuid, &str),
    (was, is): (&Stream, Option<&Stream>),
    leaves: &Leaves,
) -> Option<Missing> {
    let (source, _, tag) = name;
    let last = is.map_or(0, |is| is.last.seq);
    let (gone, at_us) = match is {
        Some(is) if is.first.seq > was.first.seq && leaves.cover(was.first.at_us, was.first.at_us) => {
            (Span::new(was.first.seq, is.first.seq - 1), was.first.at_us)
        }
        _ if last < was.last.seq => (
            Span::new(last.max(was.first.seq - 1) + 1, was.last.seq),
            was.last.at_us,
        ),
        _ => return None,
    };
    let gone = gone?;
    let detail = format!(
        "events {gone} of tag {tag} of {source} were there when the last audit looked, and are not now"
    );
    Some(Missing {
        finding: missing(name, gone, detail),
        between_us: (at_us, at_us),
    })
}

/// Grants of ids that the tag itself does not know of.
async fn above_the_highest(
    ledger: &mut Ledger,
    reader: &mut Reader,
    axes: &mut Axes,
) -> Result<Vec<Finding>, Halt> {
    let rows = ledger.meanwhile(reader.rows(HIGHEST, &[])).await??;
    let mut found = Vec::new();
    let mut highest: BTreeMap<Uuid, BTreeMap<String, i64>> = BTreeMap::new();
    for row in &rows {
        highest
            .entry(column(row, 0)?)
            .or_default()
            .insert(column(row, 1)?, column(row, 2)?);
    }
    for (space, tags) in axes.iter_mut() {
        // Of another space this database has no tags.
        let Some(known) = highest.get(space) else { continue };
        for (tag, axis) in tags {
            let reach = axis.streams().filter_map(|(_, stream)| stream.max_hi).max();
            let (Some(reach), max_id) = (reach, known.get(tag).copied()) else {
                continue;
            };
            if max_id.is_some_and(|max_id| reach <= max_id) {
                continue;
            }
            // What it claims must not be held against what the tag grants after it.
            axis.suspect();
            if found.len() >= FINDINGS_MAX {
                continue;
            }
            let rows = ledger
                .meanwhile(reader.rows(ABOVE, &[(space, Type::UUID), (tag, Type::TEXT)]))
                .await??;
            for row in &rows {
                let (source, event): (Uuid, i64) = (column(row, 0)?, column(row, 1)?);
                let (lo, hi): (i64, i64) = (column(row, 3)?, column(row, 4)?);
                let knows = match max_id {
                    Some(max_id) => format!("the tag has granted up to {max_id}"),
                    None => "there is no such tag".to_owned(),
                };
                found.push(Finding {
                    kind: FindingKind::Malformed,
                    space: Some(*space),
                    tag: Some(tag.clone()),
                    common: None,
                    first: Some(Issuer {
                        source: source.to_string(),
                        event_id: Some(event),
                        at: Some(show_us(at_us(row, 2)?)),
                        lo: Some(lo),
                        hi: Some(hi),
                        ..Issuer::default()
                    }),
                    second: None,
                    detail: format!(
                        "event {event} of {source} grants ids {lo} to {hi} of tag {tag}, and {knows}"
                    ),
                });
            }
        }
    }
    Ok(found)
}

/// Of some tags the same by other means: should both differ, neither is believed.
async fn another_way(
    ledger: &mut Ledger,
    reader: &mut Reader,
    (run, axes): (&Run, &Axes),
    overlapping: &BTreeSet<(Uuid, String)>,
    proof: &mut Proof,
) -> Result<(), Halt> {
    let mut all: Vec<(u64, Uuid, &str, u64)> = Vec::new();
    for (space, tags) in axes {
        for (tag, axis) in tags {
            let ranges = axis.ranges();
            if (1..=SAMPLE_RANGES_MAX).contains(&ranges) {
                let name = tag.bytes().fold(space.as_u64_pair().1, |mixed, byte| {
                    mix_id(mixed ^ u64::from(byte))
                });
                all.push((mix_id(name ^ run.id.cast_unsigned()), *space, tag, ranges));
            }
        }
    }
    all.sort_unstable();
    let count = all
        .len()
        .div_ceil(usize::try_from(SAMPLE).unwrap_or(1))
        .max(SAMPLE_MIN);
    for (_, space, tag, ranges) in all.into_iter().take(count) {
        let rows = ledger
            .meanwhile(reader.rows(ANOTHER_WAY, &[(&space, Type::UUID), (&tag, Type::TEXT)]))
            .await??;
        let Some(row) = rows.first() else { continue };
        let (there, is_clean): (i64, bool) = (column(row, 0)?, column(row, 1)?);
        let mut ours = !overlapping.contains(&(space, tag.to_owned()));
        if ours && !is_clean && run.extent == Extent::Incremental {
            // It has looked at what is new alone. What is older is known, or else it is a finding.
            let found = ledger.meanwhile(overlaps_of(reader, (space, tag))).await??;
            ours = found.is_empty();
            proof.aside.extend(found);
        }
        // More may have come since. Of an incremental run some may have gone with their days.
        let is_fewer = run.extent == Extent::Full && there.cast_unsigned() < ranges;
        if is_clean != ours || is_fewer {
            let say = |clean| if clean { "no id twice" } else { "ids twice" };
            proof.doubts(format!(
                "two ways of looking at tag {tag} differ: the sweep has found {} in {ranges} ranges, the other way {} in {there}",
                say(ours),
                say(is_clean)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_looking_after_so_many_findings_says_so() {
        let one = missing(
            (Uuid::nil(), Uuid::nil(), "orders"),
            Span::new(1, 1).unwrap(),
            String::new(),
        );
        let mut proof = Proof::default();
        for _ in 1..FINDINGS_MAX {
            proof.add(one.clone());
        }
        assert_eq!(proof.doubt, None, "everything was looked at");
        proof.add(one.clone());
        assert!(proof.doubt.is_some(), "what comes after is not looked at");
        proof.add(one);
        assert_eq!(proof.findings.len(), FINDINGS_MAX);
    }
}
