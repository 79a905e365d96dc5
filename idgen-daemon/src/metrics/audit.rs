//! What the audits count. Each part of them has a block of its own.

use super::registered;
use crate::error::Result;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

const DATABASE: &str = "database";
const KIND: &str = "kind";

/// Kinds of runs that the daemon makes by itself.
const KINDS: [&str; 2] = ["incremental", "full"];

/// What a run has come to, as the label `state` has it.
const STATES: [&str; 4] = ["running", "pass", "finding", "inconclusive"];

/// See the module.
#[derive(Clone)]
pub struct AuditMetrics {
    nightly: NightlyGauges,
    #[cfg(feature = "outbox")]
    probe: super::ProbeMetrics,
}

impl AuditMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        Ok(Self {
            nightly: NightlyGauges::new(registry)?,
            #[cfg(feature = "outbox")]
            probe: super::ProbeMetrics::new(registry)?,
        })
    }

    /// What the probe counts.
    #[cfg(feature = "outbox")]
    #[must_use]
    pub fn probe(&self) -> super::ProbeMetrics {
        self.probe.clone()
    }

    /// What the nightly audit of a database counts.
    #[must_use]
    pub fn nightly(&self, database: &str) -> NightlyMetrics {
        NightlyMetrics {
            of: self.nightly.clone(),
            database: database.to_owned(),
        }
    }
}

#[derive(Clone)]
struct NightlyGauges {
    conclusive: IntGaugeVec,
    state: IntGaugeVec,
    open: IntGaugeVec,
    ranges: IntCounterVec,
    lag: IntGauge,
}

impl NightlyGauges {
    fn new(registry: &Registry) -> Result<Self> {
        let gauge = |name, help, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let ranges = Opts::new(
            "idgen_audit_ranges_total",
            "Grants that nightly audits have looked at. Of the daemon that audits.",
        );
        let lag = Opts::new(
            "idgen_replica_replay_lag_bytes",
            "How far the replica of the audits was behind the primary when it was looked at last.",
        );
        Ok(Self {
            conclusive: gauge(
                "idgen_audit_last_conclusive_timestamp_seconds",
                "When the last audit of this kind that came to PASS or FINDING has ended, in Unix seconds; 0: there was none.",
                &[DATABASE, KIND],
            )?,
            state: gauge(
                "idgen_audit_state",
                "1 for what the last audit of this kind has come to (running, pass, finding, inconclusive), 0 for everything else.",
                &[DATABASE, KIND, "state"],
            )?,
            open: gauge(
                "idgen_audit_findings_open",
                "Findings of all audits of this database that nobody has closed.",
                &[DATABASE],
            )?,
            ranges: registered(registry, IntCounterVec::new(ranges, &[DATABASE]))?,
            lag: registered(registry, IntGauge::with_opts(lag))?,
        })
    }
}

/// What the nightly audit of one database counts. Every daemon that has the database shows it, whoever audits.
#[derive(Clone)]
pub struct NightlyMetrics {
    of: NightlyGauges,
    database: String,
}

impl NightlyMetrics {
    /// How the runs of a kind stand: `verdict` of the last as the table has it, or none while it runs.
    pub fn set_state(&self, kind: &str, verdict: Option<&str>) {
        let now = verdict.map_or_else(|| "running".to_owned(), str::to_lowercase);
        for state in STATES {
            self.of
                .state
                .with_label_values(&[self.database.as_str(), kind, state])
                .set(i64::from(state == now));
        }
    }

    /// When the last conclusive run of a kind has ended.
    pub fn set_conclusive(&self, kind: &str, unix_seconds: i64) {
        self.of
            .conclusive
            .with_label_values(&[self.database.as_str(), kind])
            .set(unix_seconds);
    }

    /// Findings that are open.
    pub fn set_open(&self, count: i64) {
        self.of.open.with_label_values(&[&self.database]).set(count);
    }

    /// More grants were looked at.
    pub fn count_ranges(&self, count: u64) {
        self.of.ranges.with_label_values(&[&self.database]).inc_by(count);
    }

    /// How far the replica is behind.
    pub fn set_lag(&self, bytes: i64) {
        self.of.lag.set(bytes);
    }

    /// The database is gone.
    pub fn forget(&self) {
        let database = self.database.as_str();
        // An error says that there is none.
        let _ = self.of.open.remove_label_values(&[database]);
        let _ = self.of.ranges.remove_label_values(&[database]);
        for kind in KINDS {
            let _ = self.of.conclusive.remove_label_values(&[database, kind]);
            for state in STATES {
                let _ = self.of.state.remove_label_values(&[database, kind, state]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    #[test]
    fn a_run_shows_as_one_state_of_four_and_a_database_that_is_gone_as_none() {
        let registry = Registry::new();
        let metrics = AuditMetrics::new(&registry).unwrap().nightly("orders");
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        metrics.set_state("full", None);
        metrics.set_state("full", Some("INCONCLUSIVE"));
        metrics.set_conclusive("full", 77);
        metrics.set_open(3);
        metrics.count_ranges(5);
        let shown = text();
        for line in [
            r#"idgen_audit_state{database="orders",kind="full",state="inconclusive"} 1"#,
            r#"idgen_audit_state{database="orders",kind="full",state="running"} 0"#,
            r#"idgen_audit_last_conclusive_timestamp_seconds{database="orders",kind="full"} 77"#,
            r#"idgen_audit_findings_open{database="orders"} 3"#,
            r#"idgen_audit_ranges_total{database="orders"} 5"#,
        ] {
            assert!(shown.lines().any(|have| have == line), "{line} in\n{shown}");
        }
        metrics.forget();
        assert!(!text().contains("orders"), "{}", text());
    }
}
