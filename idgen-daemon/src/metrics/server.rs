//! What the server itself has counted, as [`crate::server_counts`] has read it.

use super::registered;
use crate::error::Result;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use std::collections::BTreeSet;

/// More columns of one database than these share a series: a schema of thousands of tables must not become thousands of series.
pub const COLUMNS_MAX: usize = 100;

/// The label of what shares a series.
const OTHERS: &str = "others";

/// Whose fault it is that a call got no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Ours: the caller was right to expect an id. This is what availability is reckoned from.
    Service,
    /// An operator wanted it so.
    Operator,
    /// The caller's: no such tag, no right, not this server.
    Caller,
}

impl Fault {
    /// As a label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Operator => "operator",
            Self::Caller => "caller",
        }
    }
}

/// The errors of generators, with a word for each; docs/errors.md has them all.
pub const REFUSALS: [(&str, &str, Fault); 20] = [
    ("IG001", "no_lease", Fault::Service),
    ("IG002", "window_used_up", Fault::Service),
    ("IG003", "clock_went_back", Fault::Service),
    ("IG004", "deadline_passed", Fault::Service),
    ("IG005", "unknown_tag", Fault::Caller),
    ("IG006", "tag_exhausted", Fault::Operator),
    ("IG007", "refill_timed_out", Fault::Service),
    ("IG008", "rate_limited", Fault::Operator),
    ("IG010", "end_of_epoch", Fault::Service),
    ("IG012", "in_recovery", Fault::Caller),
    ("IG013", "no_right", Fault::Caller),
    ("IG014", "shard_not_here", Fault::Caller),
    ("IG015", "no_next_millisecond", Fault::Service),
    ("IG017", "too_many_tags", Fault::Service),
    ("IG030", "no_authority", Fault::Service),
    ("IG031", "may_be_a_copy", Fault::Operator),
    ("IG032", "safety_burn_too_large", Fault::Operator),
    ("IG033", "waits_for_witness", Fault::Service),
    ("IG035", "not_cut", Fault::Operator),
    ("IG050", "drained", Fault::Operator),
];

/// Errors of a column that we feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnErrors {
    /// The table, with its schema.
    pub table: String,
    /// The column.
    pub column: String,
    /// How many.
    pub errors: u64,
}

/// What the server has counted for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ids given out; `None`: they are not counted (`idgen.track_ids`).
    pub ids: Option<u64>,
    /// Calls refused, by SQLSTATE.
    pub refusals: Vec<(String, u64)>,
    /// Calls that had to wait for a lease,
    pub lease_waits: u64,
    /// ... and for the next millisecond.
    pub exhaustions: u64,
    /// Times that the wall clock fell behind.
    pub clock_rewinds: u64,
    /// Errors 23505 of constraints that have no count of their own.
    pub other_duplicates: u64,
}

/// See the module.
#[derive(Clone)]
pub struct ServerMetrics {
    ids: IntCounterVec,
    refusals: IntCounterVec,
    waits: IntCounterVec,
    rewinds: IntCounter,
    duplicates: IntCounterVec,
    other_duplicates: IntCounter,
    read_at: IntGauge,
}

impl ServerMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let vec = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help| registered(registry, IntCounter::new(name, help));
        Ok(Self {
            // A vector without labels: it can be absent.
            ids: vec(
                "idgen_ids_issued_total",
                "Snowflakes and segment ids that the server has given out; absent while idgen.track_ids is off.",
                &[],
            )?,
            refusals: vec(
                "idgen_mint_refusals_total",
                "Calls of generators that got an error instead of an id, by SQLSTATE, with a word for it and whose fault it is.",
                &["sqlstate", "cause", "fault"],
            )?,
            waits: vec(
                "idgen_mint_waits_total",
                "Calls of generators that had to wait for a lease, or for the next millisecond.",
                &["for"],
            )?,
            rewinds: counter(
                "idgen_clock_rewinds_total",
                "How often the server's wall clock fell behind its own maximum by more than 5 ms.",
            )?,
            duplicates: vec(
                "idgen_duplicate_key_errors_total",
                "Errors 23505 (duplicate key) of columns that pg_idgen feeds.",
                &["database", "table", "column"],
            )?,
            other_duplicates: counter(
                "idgen_duplicate_key_errors_other_total",
                "Errors 23505 of constraints that came after the 256 that the server counts apart, of whatever column.",
            )?,
            read_at: registered(
                registry,
                IntGauge::new(
                    "idgen_server_counts_read_timestamp_seconds",
                    "When the counters of the server were read last, in Unix seconds; 0: not yet.",
                ),
            )?,
        })
    }

    /// The server was asked at `unix_s`.
    pub fn set(&self, counts: &Counts, unix_s: i64) {
        match counts.ids {
            Some(ids) => follow(&self.ids.with_label_values::<&str>(&[]), ids),
            None => self.ids.reset(),
        }
        for (code, cause, fault) in REFUSALS {
            let raised = counts.refusals.iter().find(|(have, _)| have == code);
            let counter = self.refusals.with_label_values(&[code, cause, fault.name()]);
            follow(&counter, raised.map_or(0, |(_, raised)| *raised));
        }
        let waits = [("lease", counts.lease_waits), ("millisecond", counts.exhaustions)];
        for (what, count) in waits {
            follow(&self.waits.with_label_values(&[what]), count);
        }
        follow(&self.rewinds, counts.clock_rewinds);
        follow(&self.other_duplicates, counts.other_duplicates);
        self.read_at.set(unix_s);
    }

    /// The columns that are fed in a database, those with most errors first.
    pub fn set_duplicates(&self, database: &str, columns: &[ColumnErrors]) {
        let (own, others) = columns.split_at(columns.len().min(COLUMNS_MAX));
        let mut shown: BTreeSet<[&str; 2]> = BTreeSet::new();
        for of in own {
            let labels = [database, &of.table, &of.column];
            follow(&self.duplicates.with_label_values(&labels), of.errors);
            shown.insert([&of.table, &of.column]);
        }
        if !others.is_empty() {
            let labels = [database, OTHERS, OTHERS];
            let errors = others.iter().map(|of| of.errors).sum();
            follow(&self.duplicates.with_label_values(&labels), errors);
            shown.insert([OTHERS, OTHERS]);
        }
        self.drop_duplicates(|of, table, column| of == database && !shown.contains(&[table, column]));
    }

    /// What is known of other databases than these is forgotten.
    pub fn keep_databases(&self, databases: &[String]) {
        self.drop_duplicates(|of, _, _| !databases.iter().any(|database| database == of));
    }

    fn drop_duplicates(&self, is_gone: impl Fn(&str, &str, &str) -> bool) {
        let families = self.duplicates.collect();
        for metric in families.iter().flat_map(|family| family.get_metric()) {
            let label = |name| {
                let mut pairs = metric.get_label().iter();
                pairs
                    .find(|pair| pair.name() == name)
                    .map_or("", |pair| pair.value())
            };
            let labels = ["database", "table", "column"].map(label);
            let [database, table, column] = labels;
            if is_gone(database, table, column) {
                // An error says that there is none.
                let _ = self.duplicates.remove_label_values(&labels);
            }
        }
    }
}

/// A counter that somebody else counts: it may have begun anew.
fn follow(counter: &IntCounter, value: u64) {
    let have = counter.get();
    if value < have {
        counter.reset();
        counter.inc_by(value);
    } else {
        counter.inc_by(value - have);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, TextEncoder};

    fn text(registry: &Registry) -> String {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn lines(text: &str, name: &str) -> Vec<String> {
        let of = text.lines().filter(|line| line.starts_with(name));
        of.map(str::to_owned).collect()
    }

    fn column(table: &str, errors: u64) -> ColumnErrors {
        ColumnErrors {
            table: table.to_owned(),
            column: "id".to_owned(),
            errors,
        }
    }

    #[test]
    fn counters_follow_those_of_the_server_and_begin_anew_with_them() {
        let registry = Registry::new();
        let metrics = ServerMetrics::new(&registry).unwrap();
        assert!(!text(&registry).contains("idgen_ids_issued_total "));
        let mut counts = Counts {
            ids: Some(1_000),
            refusals: vec![("IG001".into(), 3), ("IG999".into(), 7)],
            lease_waits: 4,
            ..Counts::default()
        };
        metrics.set(&counts, 77);
        let now = text(&registry);
        for line in [
            "idgen_ids_issued_total 1000",
            "idgen_mint_refusals_total{cause=\"no_lease\",fault=\"service\",sqlstate=\"IG001\"} 3",
            // There before the first error: a rate sees the step from 0 to 1 only then.
            "idgen_mint_refusals_total{cause=\"drained\",fault=\"operator\",sqlstate=\"IG050\"} 0",
            "idgen_mint_waits_total{for=\"lease\"} 4",
            "idgen_server_counts_read_timestamp_seconds 77",
        ] {
            assert!(
                now.lines().any(|have| have == line),
                "{line} is missing in\n{now}"
            );
        }
        assert_eq!(lines(&now, "idgen_mint_refusals_total{").len(), REFUSALS.len());
        counts.ids = Some(10);
        metrics.set(&counts, 78);
        assert_eq!(
            lines(&text(&registry), "idgen_ids_issued_total"),
            ["idgen_ids_issued_total 10"]
        );
        counts.ids = None;
        metrics.set(&counts, 79);
        assert!(!text(&registry).contains("idgen_ids_issued_total "));
    }

    #[test]
    fn columns_that_are_gone_are_not_shown_and_no_database_has_more_than_its_share() {
        const NAME: &str = "idgen_duplicate_key_errors_total{";
        let registry = Registry::new();
        let metrics = ServerMetrics::new(&registry).unwrap();
        metrics.set_duplicates("a", &[column("public.x", 2), column("public.y", 0)]);
        metrics.set_duplicates("b", &[column("public.x", 1)]);
        assert_eq!(lines(&text(&registry), NAME).len(), 3);
        metrics.set_duplicates("a", &[column("public.x", 5)]);
        assert_eq!(
            lines(&text(&registry), NAME),
            [
                "idgen_duplicate_key_errors_total{column=\"id\",database=\"a\",table=\"public.x\"} 5",
                "idgen_duplicate_key_errors_total{column=\"id\",database=\"b\",table=\"public.x\"} 1",
            ]
        );
        let many: Vec<_> = (0..COLUMNS_MAX + 20)
            .map(|n| column(&format!("t{n:03}"), 1))
            .collect();
        metrics.set_duplicates("a", &many);
        let all = lines(&text(&registry), NAME);
        assert_eq!(all.len(), COLUMNS_MAX + 2);
        let others = "idgen_duplicate_key_errors_total{column=\"others\",database=\"a\",table=\"others\"} 20";
        assert!(all.iter().any(|line| line == others), "{all:?}");
        metrics.keep_databases(&["b".to_owned()]);
        assert_eq!(lines(&text(&registry), NAME).len(), 1);
    }
}
