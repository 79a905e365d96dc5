//! What the probe counts. Those that say how things stand are of the daemon that reads the topic.

use super::registered;
use crate::audit::FindingKind;
use crate::error::Result;
use idgen_core::audit::Counts;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Kinds that the probe finds.
const KINDS: [FindingKind; 5] = [
    FindingKind::Overlap,
    FindingKind::Rewritten,
    FindingKind::Missing,
    FindingKind::Malformed,
    FindingKind::LeaseOverlap,
];

/// See the module.
#[derive(Clone)]
pub struct ProbeMetrics {
    /// 1: it is this daemon that reads.
    pub reading: IntGauge,
    /// Seconds from a message's arrival at its broker to here.
    pub lag: IntGauge,
    /// Open findings of ids that may have been given out twice.
    pub overlap_open: IntGauge,
    /// Gaps in streams that are open.
    pub gap_open: IntGauge,
    /// Findings that are not stored yet.
    pub waiting: IntGauge,
    /// ... and of those the database's refusals.
    pub refused: IntGauge,
    /// Findings that the database has taken in a reduced form.
    pub reduced: IntCounter,
    /// Messages that are no events.
    pub foreign: IntCounter,
    news: IntCounter,
    copies: IntCounter,
    unjudged: IntCounter,
    holes: IntCounter,
    degraded: IntGaugeVec,
    findings: IntCounterVec,
}

impl ProbeMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let events = Opts::new(
            "idgen_probe_events_total",
            "Messages that the probe has read, by what they were: news, copy, unjudged (a copy from so long ago that it is not compared, \
             or of a tag beyond the limit), foreign (no event of this version).",
        );
        let events = registered(registry, IntCounterVec::new(events, &["result"]))?;
        let degraded = Opts::new(
            "idgen_probe_degraded_tags",
            "Tags of which the probe does not know everything, by why: memory, gone (events that topic and archive have no more), limit (1: there are \
             more tags or identities than it may keep).",
        );
        let findings = Opts::new(
            "idgen_probe_findings_total",
            "Findings of the probe that were new, by kind.",
        );
        let metrics = Self {
            reading: gauge(
                "idgen_probe_reading",
                "1 while this daemon is the one that reads the topic of events for the probe.",
            )?,
            lag: gauge(
                "idgen_probe_lag_seconds",
                "How long ago the last message that the probe has read came to its broker; 0: it has read all. While brokers do not answer, or too many findings wait, since when.",
            )?,
            overlap_open: gauge(
                "idgen_overlap_open",
                "Findings that ids were given out twice, or could be, that nobody has closed. More than 0: see the runbook.",
            )?,
            gap_open: gauge(
                "idgen_seq_gap_open",
                "Gaps in the numbers of streams of events: something that was recorded has not come.",
            )?,
            waiting: gauge(
                "idgen_probe_findings_waiting",
                "Findings that wait to be stored. While it is 1000 or more the topic is not read on.",
            )?,
            refused: gauge(
                "idgen_probe_findings_refused",
                "Findings that the database refuses for good, and that are kept in memory. More than 0: see the runbook.",
            )?,
            reduced: registered(
                registry,
                IntCounter::new(
                    "idgen_probe_findings_reduced_total",
                    "Findings with texts that the database does not take: they are stored escaped and cut.",
                ),
            )?,
            foreign: events.with_label_values(&["foreign"]),
            news: events.with_label_values(&["news"]),
            copies: events.with_label_values(&["copy"]),
            unjudged: events.with_label_values(&["unjudged"]),
            holes: registered(
                registry,
                IntCounter::new(
                    "idgen_probe_holes_total",
                    "Grants that left ids out. Normal where a space has several masters.",
                ),
            )?,
            degraded: registered(registry, IntGaugeVec::new(degraded, &["reason"]))?,
            findings: registered(registry, IntCounterVec::new(findings, &["kind"]))?,
        };
        for kind in KINDS {
            metrics.findings.with_label_values(&[kind.name()]);
        }
        metrics.set_degraded(0, 0, 0);
        Ok(metrics)
    }

    /// One that was not known.
    pub fn count_finding(&self, kind: FindingKind) {
        self.findings.with_label_values(&[kind.name()]).inc();
    }

    /// Of how many tags not everything is known.
    pub fn set_degraded(&self, memory: usize, gone: usize, limit: usize) {
        for (reason, count) in [("memory", memory), ("gone", gone), ("limit", limit)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.degraded.with_label_values(&[reason]).set(count);
        }
    }

    /// What was counted between two looks.
    pub fn count_events(&self, before: &Counts, now: &Counts) {
        let unjudged = |counts: &Counts| counts.copies_unjudged + counts.untracked;
        for (counter, before, now) in [
            (&self.news, before.events, now.events),
            (&self.copies, before.copies, now.copies),
            (&self.unjudged, unjudged(before), unjudged(now)),
            (&self.holes, before.holes, now.holes),
        ] {
            counter.inc_by(now.saturating_sub(before));
        }
    }

    /// How many messages there were, of any kind.
    #[must_use]
    pub fn heard(&self) -> u64 {
        let counters = [&self.news, &self.copies, &self.unjudged, &self.foreign];
        counters.iter().map(|counter| counter.get()).sum()
    }

    /// Another daemon reads, or none.
    pub fn rests(&self) {
        for gauge in [&self.reading, &self.lag, &self.gap_open] {
            gauge.set(0);
        }
        self.set_degraded(0, 0, 0);
    }
}
