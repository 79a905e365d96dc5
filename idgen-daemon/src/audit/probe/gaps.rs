//! Gaps in streams over time: told when they are seen, a finding when they stay, over when what was late has come.

use super::super::finding::{Finding, FindingKind, Issuer};
use idgen_core::audit::OpenGap;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What is late comes within seconds: a producer sends again what was not acknowledged.
const LATE: Duration = Duration::from_secs(60);

/// Space, tag, source and first number.
type Which = (u128, String, u128, i64);

struct Known {
    since: Instant,
    told: Option<Finding>,
}

/// What has become of gaps.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// They stay.
    pub(super) findings: Vec<Finding>,
    /// They were findings, and what was missing has come.
    pub(super) over: Vec<Finding>,
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

    /// Looks at those that are open now.
    pub(super) fn look<'a>(&mut self, open: impl Iterator<Item = OpenGap<'a>>, now: Instant) -> Changed {
        let (mut before, mut changed) = (std::mem::take(&mut self.known), Changed::default());
        for gap in open {
            let source = gap.before.source;
            let which = (gap.space, gap.tag.to_owned(), source, gap.numbers.lo());
            let mut known = before.remove(&which).unwrap_or(Known {
                since: now,
                told: None,
            });
            if known.told.is_none() && now.duration_since(known.since) >= LATE {
                let finding = finding(&gap);
                changed.findings.push(finding.clone());
                known.told = Some(finding);
            }
            self.known.insert(which, known);
        }
        changed.over = before.into_values().filter_map(|known| known.told).collect();
        changed
    }
}

fn finding(gap: &OpenGap<'_>) -> Finding {
    let source = Uuid::from_u128(gap.before.source).to_string();
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
            source,
            ..Issuer::default()
        }),
        second: None,
        detail,
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
    fn a_gap_that_stays_is_one_finding_and_is_over_when_it_is_filled() {
        let (mut watch, start) = (GapWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = |gaps: &[OpenGap<'static>], seconds| {
            let changed = watch.look(gaps.iter().copied(), at(seconds));
            (changed.findings, changed.over, watch.len())
        };
        assert_eq!(look(&[gap(2, 3)], 0), (vec![], vec![], 1));
        assert_eq!(look(&[gap(2, 3), gap(7, 7)], 59), (vec![], vec![], 2));
        let (findings, over, open) = look(&[gap(2, 3)], 60);
        assert_eq!((over, open), (vec![], 1), "what came in time is no finding");
        let [finding] = &findings[..] else {
            panic!("{findings:?}");
        };
        assert_eq!(
            (finding.kind, finding.common),
            (FindingKind::Missing, Some((2, 3)))
        );
        assert_eq!(look(&[gap(2, 3)], 1_000), (vec![], vec![], 1));
        let (again, over, open) = look(&[], 1_001);
        assert_eq!((again, over, open), (vec![], findings, 0));
    }
}
