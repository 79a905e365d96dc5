//! What the trail of lease events knows of an identity.

use super::Looked;
use crate::config::Config;
use crate::event::{LEASE_KIND, LeaseDetail};
use crate::operator::events::{Trail, Wish};
use idgen_core::clock::UnixMs;
use idgen_core::forensics::{LeaseStep, StepKind};
use idgen_core::lease::events::Record;

/// Events of one identity that are read: the last so many.
const EVENTS_MAX: u32 = 100_000;

/// Everything that has happened to an identity.
pub(super) async fn read(config: &Config, identity: &str) -> (Looked, Option<Vec<LeaseStep>>) {
    let wish = Wish {
        subject: Some(identity.to_owned()),
        kind: None,
        since: None,
        limit: EVENTS_MAX,
    };
    let read = async { Trail::open(config).await?.records(&wish).await };
    Looked::at("trail of leases", read.await, |records| {
        let steps: Vec<_> = records.iter().filter_map(step_of_trail).collect();
        (format!("{} events of {identity}", steps.len()), steps)
    })
}

fn step_of_trail(record: &Record) -> Option<LeaseStep> {
    let detail = serde_json::from_str(&record.detail).unwrap_or_default();
    let seq = i64::try_from(record.seq).ok()?;
    step_of(&record.kind, seq, UnixMs(record.at_ms), detail)
}

/// A step, where the event is one. `kind` may have the prefix that it has outside of its table.
pub(super) fn step_of(kind: &str, seq: i64, at: UnixMs, detail: LeaseDetail) -> Option<LeaseStep> {
    let kind = kind.strip_prefix(LEASE_KIND).unwrap_or(kind);
    let ceiling = detail.ceiling_ms.map(UnixMs);
    let kind = match kind {
        "granted" => StepKind::Granted {
            holder: detail.holder.unwrap_or_default(),
            instance: detail.instance.unwrap_or_default(),
            token: detail.token.unwrap_or_default(),
            is_first: detail.generation == Some(1),
        },
        "released" | "expired" | "removed" | "force_released" | "deleted" | "lost" => {
            StepKind::Ended { how: kind.to_owned() }
        }
        _ => return None,
    };
    Some(LeaseStep {
        seq,
        at,
        kind,
        ceiling,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: UnixMs = UnixMs(1_796_032_800_000);

    fn detail(json: &str) -> LeaseDetail {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn steps_are_those_that_begin_and_end_a_lease() {
        let of = |kind: &str| {
            let told = detail(
                "{\"holder\": \"db-a\", \"instance\": \"f0\", \"token\": \"0/7\", \"ceiling_ms\": 9, \"generation\": 3}",
            );
            step_of(kind, 5, AT, told)
        };
        let granted = StepKind::Granted {
            holder: "db-a".to_owned(),
            instance: "f0".to_owned(),
            token: "0/7".to_owned(),
            is_first: false,
        };
        for kind in ["granted", "snowflake.lease.granted"] {
            let step = of(kind).unwrap();
            assert_eq!((step.seq, step.at, step.ceiling), (5, AT, Some(UnixMs(9))));
            assert_eq!(step.kind, granted);
        }
        assert!(matches!(of("expired").unwrap().kind, StepKind::Ended { how } if how == "expired"));
        assert_eq!(of("assigned"), None);
        assert!(step_of("granted", 1, AT, LeaseDetail::default()).is_some());
    }
}
