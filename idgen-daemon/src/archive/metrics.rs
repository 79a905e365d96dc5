//! What the archiver counts. The names are told in docs/operations.md.

use super::objects::ObjectErrorKind;
use crate::error::Result;
use crate::metrics::registered;
use idgen_core::archive::Cut;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone)]
pub struct ArchiveMetrics {
    lag: IntGaugeVec,
    seq: IntGaugeVec,
    commits: IntCounterVec,
    rows: IntCounterVec,
    /// Bytes of files that were committed.
    pub bytes: IntCounter,
    gaps: IntCounterVec,
    failures: IntCounterVec,
    verify: IntGaugeVec,
    checked_at: IntGauge,
}

const CUTS: [Cut; 6] = [
    Cut::Time,
    Cut::Idle,
    Cut::Bytes,
    Cut::Shutdown,
    Cut::Gap,
    Cut::Backfill,
];
const STATES: [&str; 3] = ["verified", "mismatch", "incomplete"];

impl ArchiveMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry) -> Result<Self> {
        let gauge =
            |name, help, label| registered(registry, IntGaugeVec::new(Opts::new(name, help), &[label]));
        let counter =
            |name, help, label| registered(registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        let metrics = Self {
            lag: gauge(
                "idgen_archive_commit_lag_seconds",
                "How long the oldest event that the archiver has read and not committed waits; 0: none waits.",
                "chain",
            )?,
            seq: gauge("idgen_archive_seq", "Number of the last commit.", "chain")?,
            commits: counter(
                "idgen_archive_commits_total",
                "Commits, by why they were made.",
                "cut",
            )?,
            rows: counter(
                "idgen_archive_rows_total",
                "Rows that were committed: events, and messages that are none or of another schema version.",
                "kind",
            )?,
            bytes: registered(
                registry,
                IntCounter::new("idgen_archive_bytes_total", "Bytes of files that were committed."),
            )?,
            gaps: counter(
                "idgen_archive_gap_offsets_total",
                "Offsets that were gone before they were read. More than 0: see the runbook.",
                "chain",
            )?,
            failures: counter(
                "idgen_archive_failures_total",
                "Times that the archiver began anew behind the last commit, by reason.",
                "reason",
            )?,
            verify: gauge(
                "idgen_archive_verify_state",
                "Days and sources in each state, by their last check, of the days that are in the tables still.",
                "state",
            )?,
            checked_at: registered(
                registry,
                IntGauge::new(
                    "idgen_archive_checked_timestamp_seconds",
                    "When the daily check ended last, in Unix seconds; 0: not yet.",
                ),
            )?,
        };
        for cut in CUTS {
            metrics.commits.with_label_values(&[cut.name()]);
        }
        for kind in ["event", "foreign"] {
            metrics.rows.with_label_values(&[kind]);
        }
        for state in STATES {
            metrics.verify.with_label_values(&[state]);
        }
        Ok(metrics)
    }

    /// So long the oldest waits.
    pub fn set_lag(&self, chain: &str, seconds: u64) {
        self.lag
            .with_label_values(&[chain])
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// The chain ends here.
    pub fn set_seq(&self, chain: &str, seq: u64) {
        self.seq
            .with_label_values(&[chain])
            .set(i64::try_from(seq).unwrap_or(i64::MAX));
        // Shown as 0 from the first look at the chain on.
        self.gaps.with_label_values(&[chain]);
    }

    /// One more commit.
    pub fn count_commit(&self, cut: Cut, events: u64, foreign: u64, bytes: u64) {
        self.commits.with_label_values(&[cut.name()]).inc();
        self.rows.with_label_values(&["event"]).inc_by(events);
        self.rows.with_label_values(&["foreign"]).inc_by(foreign);
        self.bytes.inc_by(bytes);
    }

    /// Commits up to now.
    #[must_use]
    pub fn commits(&self) -> u64 {
        let of = |cut: Cut| self.commits.with_label_values(&[cut.name()]).get();
        CUTS.into_iter().map(of).sum()
    }

    /// So many offsets are gone.
    pub fn count_gap(&self, chain: &str, offsets: u64) {
        self.gaps.with_label_values(&[chain]).inc_by(offsets);
    }

    /// It began anew.
    pub fn count_failure(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// It began anew because of the place.
    pub fn count_place(&self, kind: ObjectErrorKind) {
        self.count_failure(kind.name());
    }

    /// How many days and sources are in each state.
    pub fn set_states(&self, counts: &BTreeMap<String, i64>) {
        for state in STATES {
            let count = counts.get(state).copied().unwrap_or(0);
            self.verify.with_label_values(&[state]).set(count);
        }
    }

    /// The daily check has ended.
    pub fn set_checked(&self, now_s: u64) {
        self.checked_at.set(i64::try_from(now_s).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    /// Prometheus has a label `job` of its own, and would rename ours.
    #[test]
    fn when_it_was_checked_has_no_label_of_its_own() {
        let registry = Registry::new();
        let metrics = ArchiveMetrics::new(&registry).unwrap();
        metrics.set_checked(77);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let line = "idgen_archive_checked_timestamp_seconds 77";
        assert!(text.lines().any(|have| have == line), "{text}");
        assert!(!text.contains("job="), "{text}");
    }
}
