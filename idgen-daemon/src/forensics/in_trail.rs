//! What the trail of lease events knows of an identity.

use super::Looked;
use crate::config::Config;
use crate::event::LEASE_KIND;
use crate::operator::events::{Event, Trail, Wish};
use idgen_core::clock::UnixMs;
use idgen_core::forensics::{LeaseStep, StepKind};
use idgen_core::utc::parse_us;
use serde::Deserialize;

/// Events of one identity that are read: the last so many.
const EVENTS_MAX: u32 = 100_000;

/// See the module.
pub(super) struct LeaseTrail;

impl LeaseTrail {
    /// Everything that has happened to an identity.
    pub(super) async fn read(config: &Config, identity: &str) -> (Looked, Option<Vec<LeaseStep>>) {
        let wish = Wish {
            subject: Some(identity.to_owned()),
            kind: None,
            since: None,
            limit: EVENTS_MAX,
        };
        let read = async { Trail::open(config).await?.list(&wish).await };
        let (outcome, steps) = match read.await {
            Ok(events) => {
                let steps: Vec<_> = events.events.iter().filter_map(step_of_trail).collect();
                (format!("{} events of {identity}", steps.len()), Some(steps))
            }
            Err(error) => (error.to_string(), None),
        };
        let looked = Looked {
            place: "trail of leases".to_owned(),
            failed: steps.is_none(),
            outcome,
        };
        (looked, steps)
    }
}

/// What of an event's detail matters.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Detail {
    holder: String,
    instance: String,
    token: String,
    ceiling_ms: Option<u64>,
    generation: u64,
}

fn step_of_trail(event: &Event) -> Option<LeaseStep> {
    let detail = Detail::deserialize(&event.detail).unwrap_or_default();
    let seq = i64::try_from(event.seq).ok()?;
    step_of(&event.kind, seq, &event.at, detail)
}

/// A step, where the event is one. `kind` may have the prefix that it has outside of its table.
pub(super) fn step_of(kind: &str, seq: i64, at: &str, detail: Detail) -> Option<LeaseStep> {
    let kind = kind.strip_prefix(LEASE_KIND).unwrap_or(kind);
    let at = moment(at)?;
    let ceiling = detail.ceiling_ms.map(UnixMs);
    let kind = match kind {
        "granted" => StepKind::Granted {
            holder: detail.holder,
            instance: detail.instance,
            token: detail.token,
            is_first: detail.generation == 1,
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

fn moment(text: &str) -> Option<UnixMs> {
    let us = match parse_us(text) {
        Some(us) => us.cast_unsigned(),
        None => {
            let at = humantime::parse_rfc3339_weak(text).ok()?;
            u64::try_from(at.duration_since(std::time::UNIX_EPOCH).ok()?.as_micros()).ok()?
        }
    };
    Some(UnixMs(us / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(json: &str) -> Detail {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn steps_are_those_that_begin_and_end_a_lease() {
        let of = |kind: &str| {
            let told = detail(
                "{\"holder\": \"db-a\", \"instance\": \"f0\", \"token\": \"0/7\", \"ceiling_ms\": 9, \"generation\": 3}",
            );
            step_of(kind, 5, "2026-11-30T10:00:00.000001Z", told)
        };
        let at = UnixMs(1_796_032_800_000);
        let granted = StepKind::Granted {
            holder: "db-a".to_owned(),
            instance: "f0".to_owned(),
            token: "0/7".to_owned(),
            is_first: false,
        };
        for kind in ["granted", "snowflake.lease.granted"] {
            let step = of(kind).unwrap();
            assert_eq!((step.seq, step.at, step.ceiling), (5, at, Some(UnixMs(9))));
            assert_eq!(step.kind, granted);
        }
        assert!(matches!(of("expired").unwrap().kind, StepKind::Ended { how } if how == "expired"));
        assert_eq!(of("assigned"), None);
        assert_eq!(step_of("granted", 1, "soon", Detail::default()), None);
        assert!(step_of("granted", 1, "2026-11-30T10:00:00Z", Detail::default()).is_some());
    }
}
