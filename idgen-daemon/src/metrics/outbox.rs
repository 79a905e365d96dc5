//! What the outbox counts, by database. The trail of lease events has the name of no database: `""`.

use super::registered;
use crate::error::Result;
use crate::outbox::Watched;
use idgen_core::outbox::{Gate, SendFault};
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use std::collections::BTreeMap;
use std::time::Duration;

const DATABASE: &str = "database";

/// See the module.
#[derive(Clone)]
pub struct OutboxMetrics {
    oldest: GaugeVec,
    backlog: IntGaugeVec,
    dead: IntGaugeVec,
    epoch: IntGaugeVec,
    events: IntCounterVec,
    batch: HistogramVec,
    resets: IntCounterVec,
    days_ahead: IntGaugeVec,
    kept: IntGaugeVec,
}

impl OutboxMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let gauge = |name, help, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let oldest = Opts::new(
            "idgen_outbox_oldest_unpublished_seconds",
            "For how long the oldest event that was not handed on has waited; 0: none waits. Of the daemon that drains.",
        );
        let batch = HistogramOpts::new(
            "idgen_drain_batch_seconds",
            "How long marking a batch of acknowledged events took.",
        )
        .buckets(vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0]);
        Ok(Self {
            oldest: registered(registry, GaugeVec::new(oldest, &[DATABASE]))?,
            backlog: gauge(
                "idgen_outbox_backlog_rows",
                "Events that were not handed on, counted up to a million. Of the daemon that drains.",
                &[DATABASE],
            )?,
            dead: gauge(
                "idgen_dlq_rows",
                "Dead letters: events that went as a stub, and not whole since.",
                &[DATABASE],
            )?,
            epoch: gauge(
                "idgen_drain_epoch",
                "Epoch under which this daemon drains; 0: another one does.",
                &[DATABASE],
            )?,
            events: counter(
                "idgen_drain_events_total",
                "Events by result: published, or stub (which is published too).",
                &[DATABASE, "result"],
            )?,
            batch: registered(registry, HistogramVec::new(batch, &[DATABASE]))?,
            resets: counter(
                "idgen_drain_resets_total",
                "How often what was in flight was given up and sent anew, by cause.",
                &[DATABASE, "cause"],
            )?,
            days_ahead: gauge(
                "idgen_partition_days_ahead",
                "Days after today that have a table for their events, without a hole; -1: today has none.",
                &[DATABASE],
            )?,
            kept: gauge(
                "idgen_partition_drop_blocked",
                "Days that are older than outbox.keep_days and are kept, by what keeps them.",
                &[DATABASE, "gate"],
            )?,
        })
    }

    /// What the drainer of a database counts.
    #[must_use]
    pub fn of(&self, database: &str) -> DrainMetrics {
        DrainMetrics {
            of: self.clone(),
            database: database.to_owned(),
        }
    }

    /// The database is gone.
    pub fn forget(&self, database: &str) {
        let label = [database];
        for gauge in [&self.backlog, &self.dead, &self.epoch, &self.days_ahead] {
            // An error says that there is none.
            let _ = gauge.remove_label_values(&label);
        }
        let _ = self.oldest.remove_label_values(&label);
        for gate in Gate::ALL {
            let _ = self.kept.remove_label_values(&[database, gate.name()]);
        }
    }
}

/// What the drainer of one database counts.
#[derive(Clone)]
pub struct DrainMetrics {
    of: OutboxMetrics,
    database: String,
}

impl DrainMetrics {
    fn set(&self, gauge: &IntGaugeVec, value: i64) {
        gauge.with_label_values(&[&self.database]).set(value);
    }

    fn count(&self, result: &str, count: usize) {
        let labels = [self.database.as_str(), result];
        self.of.events.with_label_values(&labels).inc_by(count as u64);
    }

    /// This daemon drains.
    pub fn holds(&self, epoch: i64) {
        if self.of.epoch.with_label_values(&[&self.database]).get() != epoch {
            self.count("published", 0);
            self.count("stub", 0);
            for fault in SendFault::ALL {
                let labels = [self.database.as_str(), fault.name()];
                self.of.resets.with_label_values(&labels).inc_by(0);
            }
        }
        self.set(&self.of.epoch, epoch);
    }

    /// Another one does: what is behind is for that one to say.
    pub fn stand_by(&self) {
        self.set(&self.of.epoch, 0);
        let label = [self.database.as_str()];
        let _ = self.of.oldest.remove_label_values(&label);
        for gauge in [&self.of.backlog, &self.of.dead] {
            let _ = gauge.remove_label_values(&label);
        }
    }

    /// So many were marked, and it took so long.
    pub fn marked(&self, count: usize, took: Duration) {
        self.count("published", count);
        let label = [self.database.as_str()];
        self.of
            .batch
            .with_label_values(&label)
            .observe(took.as_secs_f64());
    }

    /// A stub was made.
    pub fn count_stub(&self) {
        self.count("stub", 1);
    }

    /// What was in flight was given up.
    pub fn count_reset(&self, cause: &str) {
        let labels = [self.database.as_str(), cause];
        self.of.resets.with_label_values(&labels).inc();
    }

    /// What is behind.
    pub fn watched(&self, watched: &Watched) {
        self.set(&self.of.backlog, watched.backlog);
        self.set(&self.of.dead, watched.dead);
        let label = [self.database.as_str()];
        self.of
            .oldest
            .with_label_values(&label)
            .set(watched.oldest_s.max(0.0));
    }

    /// Days that are made ahead.
    pub fn days_ahead(&self, days: i32) {
        self.set(&self.of.days_ahead, i64::from(days));
    }

    /// Days that are kept although they are old, by what keeps them.
    pub fn kept(&self, kept: &BTreeMap<Gate, i64>) {
        for gate in Gate::ALL {
            let count = kept.get(&gate).copied().unwrap_or_default();
            self.of
                .kept
                .with_label_values(&[self.database.as_str(), gate.name()])
                .set(count);
        }
    }
}
