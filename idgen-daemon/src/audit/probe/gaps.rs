//! Gaps in streams over time: told when they are seen, a finding when they stay, closed when what was late has come.
//!
//! Which of them are findings the database says: the events may come while nobody reads, and another daemon, or the same after
//! a restart, is the one that hears them.

use super::super::finding::{Finding, FindingKind, Issuer};
use super::hear::at;
use crate::error::{Error, Result};
use crate::postgres::Session;
use idgen_core::audit::{OpenGap, Probe, Span};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// What is late comes within seconds: a producer sends again what was not acknowledged.
const LATE: Duration = Duration::from_secs(60);

/// Space, tag, source and first number.
type Which = (u128, String, u128, i64);

struct Known {
    since: Instant,
    is_told: bool,
}

/// Those that are open.
#[derive(Default)]
pub(super) struct GapWatch {
    known: BTreeMap<Which, Known>,
}

impl GapWatch {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Looks at those that are open now. Returns those that stay, as many as there is room for. While the topic is not read
    /// nothing comes, be it late or not: `is_reading`.
    pub(super) fn look<'a>(
        &mut self,
        open: impl Iterator<Item = OpenGap<'a>>,
        (now, is_reading): (Instant, bool),
        room: usize,
    ) -> Vec<Finding> {
        let (mut before, mut findings) = (std::mem::take(&mut self.known), Vec::new());
        for gap in open {
            let source = gap.before.source;
            let which = (gap.space, gap.tag.to_owned(), source, gap.numbers.lo());
            let mut known = before.remove(&which).unwrap_or(Known {
                since: now,
                is_told: false,
            });
            if !is_reading {
                known.since = now;
            }
            if !known.is_told && now.duration_since(known.since) >= LATE && findings.len() < room {
                findings.push(finding(&gap));
                known.is_told = true;
            }
            self.known.insert(which, known);
        }
        findings
    }
}

fn finding(gap: &OpenGap<'_>) -> Finding {
    let detail = format!(
        "{} of the events {} have not come, and event {} of partition {}, offset {}, that has the next number came before {} s",
        gap.left,
        gap.numbers,
        gap.before.event_id,
        gap.before.partition,
        gap.before.offset,
        LATE.as_secs()
    );
    Finding {
        kind: FindingKind::Missing,
        space: Some(Uuid::from_u128(gap.space)),
        tag: Some(gap.tag.to_owned()),
        common: Some((gap.numbers.lo(), gap.numbers.hi())),
        first: Some(Issuer {
            source: Uuid::from_u128(gap.before.source).to_string(),
            ..Issuer::default()
        }),
        // What came instead. A table that has lost these events names none, so that is another finding.
        second: Some(at(gap.before, None)),
        detail,
    }
}

/// A finding of a probe that events have not come, and nobody has closed.
#[derive(Clone, Debug)]
pub(super) struct Told {
    fingerprint: String,
    space: Uuid,
    tag: String,
    source: Uuid,
    numbers: Span,
}

/// So many are looked at; the next when these are closed.
const TOLD: &str = "
    SELECT fingerprint, space_id, tag, lo, hi, first ->> 'source'
      FROM idgen.audit_finding
     WHERE closed_at IS NULL AND kind = 'missing' AND found_by = 'probe'
     ORDER BY finding_id LIMIT 10000";

impl Told {
    /// Those that the database has.
    pub(super) async fn all(session: &Session) -> Result<Vec<Self>> {
        let failed = |error: String| Error::retry(format!("read the findings: {error}"));
        let rows = session.rows_typed(TOLD, &[]).await;
        let rows = rows.map_err(|error| failed(error.to_string()))?;
        let told = rows.iter().filter_map(|row| Self::of(row).transpose());
        told.collect::<std::result::Result<_, _>>()
            .map_err(|error| failed(error.to_string()))
    }

    /// `None`: it does not say of which stream it is, so people close it.
    fn of(row: &Row) -> std::result::Result<Option<Self>, tokio_postgres::Error> {
        let (lo, hi): (Option<i64>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
        let source: Option<String> = row.try_get(5)?;
        let source = source.and_then(|source| source.parse().ok());
        let numbers = lo.zip(hi).and_then(|(lo, hi)| Span::new(lo, hi));
        let (space, tag): (Option<Uuid>, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
        let fingerprint = row.try_get(0)?;
        let all = space.zip(tag).zip(source.zip(numbers));
        Ok(all.map(|((space, tag), (source, numbers))| Self {
            fingerprint,
            space,
            tag,
            source,
            numbers,
        }))
    }

    /// Have they come after all?
    pub(super) fn has_come(&self, probe: &Probe) -> bool {
        let of = (self.space.as_u128(), self.tag.as_str());
        probe.has_all(of, self.source.as_u128(), self.numbers)
    }

    /// Closes it.
    pub(super) async fn settle(&self, session: &Session) -> Result<()> {
        let reason = "the events came late";
        let settled = session
            .rows_typed(
                "SELECT idgen.audit_settle($1, $2)",
                &[(&self.fingerprint, Type::TEXT), (&reason, Type::TEXT)],
            )
            .await;
        settled.map_err(|error| Error::retry(format!("close a finding: {error}")))?;
        tracing::info!(
            tag = self.tag,
            numbers = %self.numbers,
            "what was missing has come: the finding is closed"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::audit::{Origin, Span};

    fn gap(lo: i64, hi: i64) -> OpenGap<'static> {
        OpenGap {
            space: 1,
            tag: "a",
            before: Origin {
                source: 2,
                event_id: 77,
                partition: 0,
                offset: 9,
            },
            numbers: Span::new(lo, hi).unwrap(),
            left: 1,
        }
    }

    #[test]
    fn a_gap_that_stays_is_one_finding_as_soon_as_there_is_room() {
        let (mut watch, start) = (GapWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = |gaps: &[OpenGap<'static>], seconds, room| {
            let findings = watch.look(gaps.iter().copied(), (at(seconds), true), room);
            (findings, watch.len())
        };
        assert_eq!(look(&[gap(2, 3)], 0, 9), (vec![], 1));
        assert_eq!(look(&[gap(2, 3), gap(7, 7)], 59, 9), (vec![], 2));
        assert_eq!(
            look(&[gap(2, 3)], 60, 0),
            (vec![], 1),
            "what came in time is no finding"
        );
        let (findings, _) = look(&[gap(2, 3)], 61, 1);
        let [finding] = &findings[..] else {
            panic!("{findings:?}");
        };
        assert_eq!(
            (finding.kind, finding.common),
            (FindingKind::Missing, Some((2, 3)))
        );
        let second = finding.second.as_ref().unwrap();
        assert_eq!((second.event_id, second.offset), (Some(77), Some(9)));
        assert_eq!(look(&[gap(2, 3)], 1_000, 9), (vec![], 1));
        assert_eq!(look(&[], 1_001, 9), (vec![], 0));
    }

    #[test]
    fn nothing_is_late_while_the_topic_is_not_read() {
        let (mut watch, start) = (GapWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, is_reading, found) in [(0, true, 0), (300, false, 0), (359, true, 0), (360, true, 1)] {
            let findings = watch.look([gap(2, 3)].into_iter(), (at(seconds), is_reading), 9);
            assert_eq!(findings.len(), found, "at {seconds} s");
        }
    }
}
