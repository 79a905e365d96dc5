//! Metrics for Prometheus; names begin with `idgen_`.

use crate::error::{Error, Result};
use crate::lease::Report;
use prometheus::{
    Encoder, Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::time::Instant;

/// All metrics. Gauges that follow from the keeper's report are set when they are read.
pub struct Metrics {
    registry: Registry,
    /// Renewals that the store committed.
    pub renewals: IntCounter,
    /// Failures, by reason.
    pub failures: IntCounterVec,
    /// Leases lost because shared memory was made anew.
    pub boot_id_changes: IntCounter,
    /// 1 while the wall clock is not believed.
    pub clock_stepped: IntGauge,
    postgres_up: IntGauge,
    leases_held: IntGauge,
    leases_wanted: IntGauge,
    seconds_to_deadline: Gauge,
    ceiling_lead_ms: IntGauge,
}

fn failed(error: prometheus::Error) -> Error {
    Error::runtime(format!("metrics: {error}"))
}

impl Metrics {
    /// Registers them.
    pub fn new() -> Result<Self> {
        let registry = Registry::new();
        let gauge = |name, help| -> Result<IntGauge> {
            let gauge = IntGauge::new(name, help).map_err(failed)?;
            registry.register(Box::new(gauge.clone())).map_err(failed)?;
            Ok(gauge)
        };
        let counter = |name, help| -> Result<IntCounter> {
            let counter = IntCounter::new(name, help).map_err(failed)?;
            registry.register(Box::new(counter.clone())).map_err(failed)?;
            Ok(counter)
        };
        let failures = IntCounterVec::new(
            Opts::new(
                "idgen_failures_total",
                "Failed requests and lost leases, by reason.",
            ),
            &["reason"],
        )
        .map_err(failed)?;
        registry.register(Box::new(failures.clone())).map_err(failed)?;
        let info = IntGaugeVec::new(
            Opts::new("idgen_info", "Always 1; the label is the version of idgend."),
            &["version"],
        )
        .map_err(failed)?;
        registry.register(Box::new(info.clone())).map_err(failed)?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let seconds_to_deadline = Gauge::new(
            "idgen_seconds_to_deadline",
            "Seconds until the server stops minting unless the lease is renewed; 0 without a lease.",
        )
        .map_err(failed)?;
        registry
            .register(Box::new(seconds_to_deadline.clone()))
            .map_err(failed)?;
        Ok(Self {
            renewals: counter("idgen_renewals_total", "Lease renewals committed by the store.")?,
            failures,
            boot_id_changes: counter(
                "idgen_boot_id_changes_total",
                "Leases lost because the server's shared memory was made anew.",
            )?,
            clock_stepped: gauge(
                "idgen_clock_stepped",
                "1 while the server's wall clock is not believed because it was set.",
            )?,
            postgres_up: gauge("idgen_postgres_up", "1 while the postgres server answers.")?,
            leases_held: gauge("idgen_leases_held", "Identities that the server mints from.")?,
            leases_wanted: gauge("idgen_leases_wanted", "Identities configured for the server.")?,
            seconds_to_deadline,
            ceiling_lead_ms: gauge(
                "idgen_ceiling_lead_ms",
                "How far the lowest ceiling reaches beyond the wall clock; 0 without a lease.",
            )?,
            registry,
        })
    }

    /// The text that Prometheus reads.
    pub fn render(&self, report: &Report, now: Instant) -> Result<String> {
        let open = report.lease.map_or(0, |lease| lease.open);
        self.leases_held.set(i64::try_from(open).unwrap_or(i64::MAX));
        self.leases_wanted
            .set(i64::try_from(report.wanted).unwrap_or(i64::MAX));
        self.postgres_up.set(i64::from(report.server_up));
        self.seconds_to_deadline
            .set(report.to_deadline(now).unwrap_or_default().as_secs_f64());
        self.ceiling_lead_ms
            .set(report.ceiling_lead_ms(now).unwrap_or_default());
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .map_err(failed)?;
        String::from_utf8(text).map_err(|error| Error::runtime(format!("metrics: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_metric_shows_before_anything_happened() {
        let metrics = Metrics::new().unwrap();
        metrics.failures.with_label_values(&["store_unreachable"]).inc();
        let report = Report::starting(2, Duration::from_secs(10));
        let text = metrics.render(&report, Instant::now()).unwrap();
        for line in [
            "idgen_leases_held 0",
            "idgen_leases_wanted 2",
            "idgen_seconds_to_deadline 0",
            "idgen_ceiling_lead_ms 0",
            "idgen_renewals_total 0",
            "idgen_boot_id_changes_total 0",
            "idgen_postgres_up 0",
            "idgen_failures_total{reason=\"store_unreachable\"} 1",
        ] {
            assert!(
                text.lines().any(|have| have == line),
                "{line} is missing in\n{text}"
            );
        }
        assert!(text.contains("idgen_info{version="), "{text}");
    }
}
