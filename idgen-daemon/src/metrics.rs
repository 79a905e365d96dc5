//! Metrics for Prometheus; names begin with `idgen_`. All but `idgen_info` say which class they are of.

#[cfg(feature = "outbox")]
mod audit;
#[cfg(feature = "outbox")]
mod outbox;
#[cfg(feature = "outbox")]
mod probe;
mod server;
#[cfg(feature = "outbox")]
mod witness;

#[cfg(feature = "outbox")]
pub use self::audit::{AuditMetrics, NightlyMetrics};
#[cfg(feature = "outbox")]
pub use self::outbox::{DrainMetrics, OutboxMetrics};
#[cfg(feature = "outbox")]
pub use self::probe::ProbeMetrics;
pub use self::server::{ColumnErrors, Counts as ServerCounts, Fault, REFUSALS, ServerMetrics};
#[cfg(feature = "outbox")]
pub use self::witness::WitnessMetrics;

#[cfg(feature = "outbox")]
use crate::archive::ArchiveMetrics;
use crate::authority::{DatabaseReport, Standing};
use crate::error::{Error, Result};
use crate::lease::Report;
use idgen_core::clock::UnixMs;
use idgen_core::lease::events::{Event as LeaseEvent, Finding};
use idgen_core::lease::{Class, ClockState, Judgement, Occupancy, Revision};
use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::time::Instant;

const CLASS: &str = "class";

/// All metrics. Gauges that follow from a keeper's report are set when they are read.
pub struct Metrics {
    registry: Registry,
    /// When our own certificates expire, by file.
    pub certificate_expiry: IntGaugeVec,
    renewals: IntCounterVec,
    failures: IntCounterVec,
    boot_id_changes: IntCounterVec,
    clock_stepped: IntGaugeVec,
    clock_state: IntGaugeVec,
    clock_offset_seconds: GaugeVec,
    clock_error_bound_seconds: GaugeVec,
    postgres_up: IntGaugeVec,
    leases_held: IntGaugeVec,
    leases_wanted: IntGaugeVec,
    seconds_to_deadline: GaugeVec,
    ceiling_lead_ms: IntGaugeVec,
    pool: PoolMetrics,
    authority: AuthorityGauges,
    events: EventMetrics,
    server: ServerMetrics,
    #[cfg(feature = "outbox")]
    archive: ArchiveMetrics,
    #[cfg(feature = "outbox")]
    audit: AuditMetrics,
    #[cfg(feature = "outbox")]
    outbox: OutboxMetrics,
    #[cfg(feature = "outbox")]
    witness: WitnessMetrics,
}

/// What the authority keeper shows, by database.
struct AuthorityGauges {
    counts: AuthorityMetrics,
    held: IntGaugeVec,
    seconds_to_deadline: GaugeVec,
}

/// What the authority keeper counts.
#[derive(Clone)]
pub struct AuthorityMetrics {
    failures: IntCounterVec,
    /// Ceilings that the store committed.
    pub raised: IntCounter,
}

impl AuthorityMetrics {
    /// A failed request or a lost lease.
    pub fn count_failure(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }
}

/// What the follower of lease events counts.
#[derive(Clone)]
pub struct EventMetrics {
    /// 1: it is this daemon that follows.
    pub following: IntGauge,
    events: IntCounterVec,
    findings: IntCounterVec,
    revision: IntGauge,
    read_at: IntGauge,
}

impl EventMetrics {
    fn new(registry: &Registry) -> Result<Self> {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let counter =
            |name, help, label| registered(registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        let metrics = Self {
            following: gauge(
                "idgen_lease_events_following",
                "1 while this daemon follows the log of the lease store and writes the trail; one of those that share a sink does.",
            )?,
            events: counter(
                "idgen_lease_events_total",
                "Lease events that were written, by kind.",
                "kind",
            )?,
            findings: counter(
                "idgen_lease_event_findings_total",
                "Lease events that somebody should look at, by finding.",
                "finding",
            )?,
            revision: gauge(
                "idgen_lease_events_revision",
                "Revision of the lease store up to which its log was read.",
            )?,
            read_at: gauge(
                "idgen_lease_events_read_timestamp_seconds",
                "When the log of the lease store was read last, in Unix seconds; 0: not yet.",
            )?,
        };
        for finding in Finding::ALL {
            metrics.findings.with_label_values(&[finding.name()]);
        }
        Ok(metrics)
    }

    /// One more was written.
    pub fn count(&self, event: &LeaseEvent) {
        self.events.with_label_values(&[event.kind.name()]).inc();
        if let Some(finding) = event.finding {
            self.findings.with_label_values(&[finding.name()]).inc();
        }
    }

    /// The log was read.
    pub fn read_up_to(&self, revision: Revision, now: UnixMs) {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.revision.set(signed(revision.0));
        self.read_at.set(signed(now.0 / 1_000));
    }
}

/// How full the pool of a class is.
struct PoolMetrics {
    identities: IntGaugeVec,
    size: IntGaugeVec,
    pressure: IntGaugeVec,
}

/// What the keeper of one class counts.
#[derive(Clone)]
pub struct ClassMetrics {
    class: Class,
    failures: IntCounterVec,
    /// Renewals that the store committed.
    pub renewals: IntCounter,
    /// Leases lost because shared memory was made anew.
    pub boot_id_changes: IntCounter,
}

impl ClassMetrics {
    /// A failed request or a lost lease.
    pub fn count_failure(&self, reason: &str) {
        self.failures
            .with_label_values(&[self.class.name(), reason])
            .inc();
    }
}

fn failed(error: prometheus::Error) -> Error {
    Error::runtime(format!("metrics: {error}"))
}

/// Registers what was made, if it was.
pub(crate) fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<M>,
) -> Result<M> {
    let metric = made.map_err(failed)?;
    registry.register(Box::new(metric.clone())).map_err(failed)?;
    Ok(metric)
}

impl Metrics {
    /// Registers them.
    pub fn new() -> Result<Self> {
        let registry = Registry::new();
        let gauge = |name, help| registered(&registry, IntGaugeVec::new(Opts::new(name, help), &[CLASS]));
        let counter = |name, help| registered(&registry, IntCounterVec::new(Opts::new(name, help), &[CLASS]));
        let failures = Opts::new(
            "idgen_failures_total",
            "Failed requests and lost leases, by reason.",
        );
        let seconds = |name, help| registered(&registry, GaugeVec::new(Opts::new(name, help), &[CLASS]));
        let clock_state = Opts::new(
            "idgen_clock_state",
            "1 for what is known of the server's wall clock, 0 for everything else.",
        );
        let info = Opts::new("idgen_info", "Always 1; the label is the version of idgend.");
        let certificate = Opts::new(
            "idgen_certificate_expiry_timestamp_seconds",
            "When a client certificate of idgend expires, in Unix seconds, by file; the first of its chain.",
        );
        let info = registered(&registry, IntGaugeVec::new(info, &["version"]))?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            renewals: counter("idgen_renewals_total", "Lease renewals committed by the store.")?,
            failures: registered(&registry, IntCounterVec::new(failures, &[CLASS, "reason"]))?,
            boot_id_changes: counter(
                "idgen_boot_id_changes_total",
                "Leases lost because the server's shared memory was made anew.",
            )?,
            clock_stepped: gauge(
                "idgen_clock_stepped",
                "1 while the server's wall clock is not believed because it was set.",
            )?,
            clock_state: registered(&registry, IntGaugeVec::new(clock_state, &[CLASS, "state"]))?,
            clock_offset_seconds: seconds(
                "idgen_clock_offset_seconds",
                "How far the server's wall clock is ahead of its time source, or else of its peers; NaN: nobody tells.",
            )?,
            clock_error_bound_seconds: seconds(
                "idgen_clock_error_bound_seconds",
                "How far the server's wall clock is off at the most; NaN: nobody tells.",
            )?,
            postgres_up: gauge("idgen_postgres_up", "1 while the postgres server answers.")?,
            leases_held: gauge("idgen_leases_held", "Identities that the server mints from.")?,
            leases_wanted: gauge("idgen_leases_wanted", "Identities configured for the server.")?,
            seconds_to_deadline: seconds(
                "idgen_seconds_to_deadline",
                "Seconds until the server stops minting unless the lease is renewed; 0 without a lease.",
            )?,
            ceiling_lead_ms: gauge(
                "idgen_ceiling_lead_ms",
                "How far the lowest ceiling reaches beyond the wall clock; 0 without a lease.",
            )?,
            certificate_expiry: registered(&registry, IntGaugeVec::new(certificate, &["file"]))?,
            pool: PoolMetrics::new(&registry)?,
            authority: AuthorityGauges::new(&registry)?,
            events: EventMetrics::new(&registry)?,
            server: ServerMetrics::new(&registry)?,
            #[cfg(feature = "outbox")]
            archive: ArchiveMetrics::new(&registry)?,
            #[cfg(feature = "outbox")]
            audit: AuditMetrics::new(&registry)?,
            #[cfg(feature = "outbox")]
            outbox: OutboxMetrics::new(&registry)?,
            #[cfg(feature = "outbox")]
            witness: WitnessMetrics::new(&registry)?,
            registry,
        })
    }

    /// What the authority keeper counts.
    #[must_use]
    pub fn of_authority(&self) -> AuthorityMetrics {
        self.authority.counts.clone()
    }

    /// What the follower of lease events counts.
    #[must_use]
    pub fn of_events(&self) -> EventMetrics {
        self.events.clone()
    }

    /// What the server has counted.
    #[must_use]
    pub fn of_server(&self) -> ServerMetrics {
        self.server.clone()
    }

    /// What the archiver counts.
    #[cfg(feature = "outbox")]
    #[must_use]
    pub fn of_archive(&self) -> ArchiveMetrics {
        self.archive.clone()
    }

    /// What the audits count.
    #[cfg(feature = "outbox")]
    #[must_use]
    pub fn of_audit(&self) -> AuditMetrics {
        self.audit.clone()
    }

    /// What is counted of databases that were promoted.
    #[cfg(feature = "outbox")]
    #[must_use]
    pub fn of_witness(&self) -> WitnessMetrics {
        self.witness.clone()
    }

    /// What the outbox counts.
    #[cfg(feature = "outbox")]
    #[must_use]
    pub fn of_outbox(&self) -> OutboxMetrics {
        self.outbox.clone()
    }

    /// What each database shows when the metrics are read next.
    pub fn set_authority<'r>(
        &self,
        reports: impl IntoIterator<Item = (&'r String, &'r DatabaseReport)>,
        now: Instant,
    ) {
        self.authority.set(reports, now);
    }

    /// What the keeper of a class counts; they show as 0 from now on.
    #[must_use]
    pub fn of(&self, class: Class) -> ClassMetrics {
        let label = [class.name()];
        ClassMetrics {
            class,
            failures: self.failures.clone(),
            renewals: self.renewals.with_label_values(&label),
            boot_id_changes: self.boot_id_changes.with_label_values(&label),
        }
    }

    /// Whether there is a metric of this name, also one that has nothing to show yet. For tests of what reads them.
    #[must_use]
    pub fn exports(&self, name: &str) -> bool {
        // A registry does not list its names, but takes none twice with another help.
        match IntGauge::new(name, "is there one?").map(Box::new) {
            Ok(other) if self.registry.register(other.clone()).is_ok() => {
                // It was registered by us just now, so that is no error.
                let _ = self.registry.unregister(other);
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// The text that Prometheus reads.
    pub fn render<'r>(
        &self,
        reports: impl IntoIterator<Item = (Class, &'r Report)>,
        now: Instant,
    ) -> Result<String> {
        for (class, report) in reports {
            self.set(class, report, now);
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .map_err(failed)?;
        String::from_utf8(text).map_err(|error| Error::runtime(format!("metrics: {error}")))
    }

    fn set(&self, class: Class, report: &Report, now: Instant) {
        let label = [class.name()];
        let count = |gauge: &IntGaugeVec, count: usize| {
            gauge
                .with_label_values(&label)
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        count(&self.leases_held, report.lease.map_or(0, |lease| lease.open));
        count(&self.leases_wanted, report.wanted);
        count(&self.postgres_up, usize::from(report.server_up));
        let to_deadline = report.to_deadline(now).unwrap_or_default().as_secs_f64();
        self.seconds_to_deadline
            .with_label_values(&label)
            .set(to_deadline);
        self.ceiling_lead_ms
            .with_label_values(&label)
            .set(report.ceiling_lead_ms(now).unwrap_or_default());
        self.set_clock(class, &report.clock);
        if let Some(pool) = &report.pool {
            self.pool.set(class, pool);
        }
    }

    fn set_clock(&self, class: Class, clock: &Judgement) {
        let label = [class.name()];
        let now = clock.state.name();
        for state in ClockState::NAMES {
            self.clock_state
                .with_label_values(&[class.name(), state])
                .set(i64::from(state == now));
        }
        self.clock_stepped
            .with_label_values(&label)
            .set(i64::from(matches!(clock.state, ClockState::Stepped(_))));
        let seconds = |us: Option<f64>| us.map_or(f64::NAN, |us| us / 1e6);
        self.clock_offset_seconds
            .with_label_values(&label)
            .set(seconds(clock.offset_us.map(|us| us as f64)));
        self.clock_error_bound_seconds
            .with_label_values(&label)
            .set(seconds(clock.error_us_max.map(|us| us as f64)));
    }
}

impl AuthorityGauges {
    fn new(registry: &Registry) -> Result<Self> {
        let database = ["database"];
        let failures = Opts::new(
            "idgen_authority_failures_total",
            "Failed requests and lost leases of the authority over segments, by reason.",
        );
        let raised = Opts::new(
            "idgen_authority_ceilings_raised_total",
            "Ceilings of tags that the store has committed.",
        );
        let held = Opts::new(
            "idgen_authority_held",
            "1 while ranges of segments may be granted in this database, 0 while they should be and may not.",
        );
        let deadline = Opts::new(
            "idgen_authority_seconds_to_deadline",
            "Seconds until granting stops in this database unless the lease is renewed; 0 without a lease.",
        );
        Ok(Self {
            counts: AuthorityMetrics {
                failures: registered(registry, IntCounterVec::new(failures, &["reason"]))?,
                raised: registered(registry, IntCounter::with_opts(raised))?,
            },
            held: registered(registry, IntGaugeVec::new(held, &database))?,
            seconds_to_deadline: registered(registry, GaugeVec::new(deadline, &database))?,
        })
    }

    /// Databases that are gone, or want none, are not shown.
    fn set<'r>(&self, reports: impl IntoIterator<Item = (&'r String, &'r DatabaseReport)>, now: Instant) {
        self.held.reset();
        self.seconds_to_deadline.reset();
        for (database, report) in reports {
            let none_wanted = [Standing::NoExtension, Standing::Local, Standing::Standby];
            if none_wanted.contains(&report.standing) {
                continue;
            }
            let left = report.to_deadline(now).unwrap_or_default();
            let held = report.standing == Standing::Held && !left.is_zero();
            self.held.with_label_values(&[database]).set(i64::from(held));
            let gauge = self.seconds_to_deadline.with_label_values(&[database]);
            gauge.set(left.as_secs_f64());
        }
    }
}

impl PoolMetrics {
    fn new(registry: &Registry) -> Result<Self> {
        let gauge = |name, help, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        Ok(Self {
            identities: gauge(
                "idgen_pool_identities",
                "Identities of the half of the pool that is in use, by state, when the store was last read.",
                &[CLASS, "state"],
            )?,
            size: gauge(
                "idgen_pool_size",
                "Identities that the half of the pool in use has.",
                &[CLASS],
            )?,
            pressure: gauge(
                "idgen_pool_pressure",
                "1 when 80 % of the half of the pool in use are not free, 2 at 95 %, else 0.",
                &[CLASS],
            )?,
        })
    }

    fn set(&self, class: Class, pool: &Occupancy) {
        let class = class.name();
        let states = [
            ("held", pool.held),
            ("cooling", pool.cooling),
            ("free", pool.free()),
        ];
        for (state, count) in states {
            let gauge = self.identities.with_label_values(&[class, state]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let size = i64::try_from(pool.size).unwrap_or(i64::MAX);
        self.size.with_label_values(&[class]).set(size);
        let level = i64::from(pool.pressure().level());
        self.pressure.with_label_values(&[class]).set(level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_metric_shows_for_each_class_before_anything_happened() {
        let metrics = Metrics::new().unwrap();
        let [worker, shard] = [Class::Worker, Class::Shard].map(|class| metrics.of(class));
        shard.count_failure("store_unreachable");
        worker.renewals.inc();
        let [mut two, three] = [2, 3].map(|wanted| Report::starting(wanted, Duration::from_secs(10)));
        two.pool = Some(Occupancy {
            size: 512,
            held: 400,
            cooling: 90,
        });
        let reports = [(Class::Worker, &two), (Class::Shard, &three)];
        let text = metrics.render(reports, Instant::now()).unwrap();
        for line in [
            "idgen_leases_held{class=\"worker\"} 0",
            "idgen_leases_wanted{class=\"worker\"} 2",
            "idgen_leases_wanted{class=\"shard\"} 3",
            "idgen_seconds_to_deadline{class=\"worker\"} 0",
            "idgen_ceiling_lead_ms{class=\"worker\"} 0",
            "idgen_renewals_total{class=\"worker\"} 1",
            "idgen_renewals_total{class=\"shard\"} 0",
            "idgen_boot_id_changes_total{class=\"worker\"} 0",
            "idgen_clock_stepped{class=\"shard\"} 0",
            "idgen_clock_state{class=\"worker\",state=\"unchecked\"} 1",
            "idgen_clock_state{class=\"worker\",state=\"good\"} 0",
            "idgen_clock_offset_seconds{class=\"worker\"} NaN",
            "idgen_clock_error_bound_seconds{class=\"worker\"} NaN",
            "idgen_postgres_up{class=\"worker\"} 0",
            "idgen_pool_identities{class=\"worker\",state=\"held\"} 400",
            "idgen_pool_identities{class=\"worker\",state=\"cooling\"} 90",
            "idgen_pool_identities{class=\"worker\",state=\"free\"} 22",
            "idgen_pool_size{class=\"worker\"} 512",
            "idgen_pool_pressure{class=\"worker\"} 2",
            "idgen_failures_total{class=\"shard\",reason=\"store_unreachable\"} 1",
        ] {
            assert!(
                text.lines().any(|have| have == line),
                "{line} is missing in\n{text}"
            );
        }
        assert!(text.contains("idgen_info{version="), "{text}");
        assert!(
            !text.contains("idgen_pool_size{class=\"shard\"}"),
            "shards have no pool"
        );
    }
}
