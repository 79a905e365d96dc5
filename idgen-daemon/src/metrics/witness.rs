//! What is counted of databases that were promoted.

use super::registered;
use crate::error::Result;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

const DATABASE: &str = "database";

/// See the module.
#[derive(Clone)]
pub struct WitnessMetrics {
    pending: IntGaugeVec,
    raised: IntCounterVec,
}

impl WitnessMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let pending = Opts::new(
            "idgen_witness_pending",
            "1 while a database has another history, as after a promotion, and topic and archive have not been asked yet what it has lost.",
        );
        let raised = Opts::new(
            "idgen_witness_raised_total",
            "Tags that had lost grants in a promotion, and have passed over them.",
        );
        Ok(Self {
            pending: registered(registry, IntGaugeVec::new(pending, &[DATABASE]))?,
            raised: registered(registry, IntCounterVec::new(raised, &[DATABASE]))?,
        })
    }

    /// Whether the database is asked for.
    pub fn set_pending(&self, database: &str, is_pending: bool) {
        self.pending
            .with_label_values(&[database])
            .set(i64::from(is_pending));
        // A counter that begins with its first increase has no rate.
        self.raised.with_label_values(&[database]);
    }

    /// One tag more.
    pub fn raised(&self, database: &str) {
        self.raised.with_label_values(&[database]).inc();
    }

    /// There is no such database any more.
    pub fn forget(&self, database: &str) {
        // Either may not be there.
        drop(self.pending.remove_label_values(&[database]));
        drop(self.raised.remove_label_values(&[database]));
    }
}
