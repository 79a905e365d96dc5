use super::*;
use crate::event::EventToken;
use serde_json::json;
use serde_json::value::RawValue;

/// A grant of ids by a source, of tag `orders` of one space.
fn grant(source: u128, number: i64, (lo, hi): (i64, i64)) -> Event {
    Event {
        schema: crate::event::SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(source),
        event_id: 1_000 + number,
        at: format!("2026-04-03T10:11:12.{number:06}Z"),
        service: "billing".into(),
        space: Uuid::from_u128(7),
        tag: "orders".into(),
        tag_seq: number,
        lo: Some(lo),
        hi: Some(hi),
        token: Some(EventToken {
            epoch: 2,
            revision: 30,
        }),
        tx: Some("5".into()),
        stub: None,
        payload: RawValue::from_string("{}".into()).unwrap(),
    }
}

fn lease(seq: i64, kind: &str, finding: Option<&str>, detail: &serde_json::Value) -> Event {
    let payload = json!({"subject": "worker 5", "finding": finding, "detail": detail});
    Event {
        kind: format!("{LEASE_KIND}{kind}"),
        space: Uuid::from_u128(9),
        source: Uuid::from_u128(9),
        event_id: seq,
        tag: "lease".into(),
        lo: None,
        hi: None,
        token: None,
        tx: None,
        payload: serde_json::value::to_raw_value(&payload).unwrap(),
        ..grant(9, seq, (1, 1))
    }
}

fn detail(instance: u8, revision: u64, window: (u64, u64), generation: u64) -> serde_json::Value {
    json!({"holder": format!("db-{instance}"), "instance": format!("{instance:032x}"), "token": format!("0/{revision}"),
           "ceiling_ms": window.1, "generation": generation, "above_ms": window.0})
}

struct Log(Mind, i64);

impl Log {
    fn new() -> Self {
        Self(Mind::new(Limits::default()), 0)
    }

    fn hear(&mut self, event: &Event) -> Became {
        self.1 += 1;
        self.0.hear(event, (3, self.1)).expect("an event")
    }
}

#[test]
fn an_overlap_names_both_issuers_with_what_is_known_of_them() {
    let mut log = Log::new();
    assert!(log.hear(&grant(1, 1, (1, 10))).hits.is_empty());
    let hits = log.hear(&grant(2, 1, (8, 20))).hits;
    let [hit] = &hits[..] else { panic!("{hits:?}") };
    assert_eq!(hit.earlier, Earlier::At(3, 1));
    let finding = &hit.finding;
    assert_eq!(
        (finding.kind, finding.common, finding.tag.as_deref()),
        (FindingKind::Overlap, Some((8, 10)), Some("orders"))
    );
    let (first, second) = (finding.first.as_ref().unwrap(), finding.second.as_ref().unwrap());
    assert_eq!(
        (first.source.clone(), first.lo, first.offset),
        (Uuid::from_u128(1).to_string(), Some(1), Some(1))
    );
    assert_eq!(
        (second.token.as_deref(), second.service.as_deref(), second.offset),
        (Some("2/30"), Some("billing"), Some(2))
    );
}

#[test]
fn a_stub_and_the_event_that_it_stands_for_are_copies_and_another_time_is_another_event() {
    let mut log = Log::new();
    let event = grant(1, 1, (1, 10));
    assert!(log.hear(&event).is_news);
    let stub = event.clone().into_stub(crate::event::StubReason::TooLarge);
    let became = log.hear(&stub);
    assert!(!became.is_news && became.hits.is_empty());
    let mut other = event.clone();
    other.at = "2026-04-03T10:11:13.000000Z".into();
    let kinds: Vec<_> = log.hear(&other).hits.iter().map(|hit| hit.finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Rewritten, FindingKind::Overlap]);
    for change in [
        |event: &mut Event| event.hi = Some(9),
        |event: &mut Event| event.tx = None,
        |event: &mut Event| event.token = None,
        |event: &mut Event| event.kind = "segment.open".into(),
        |event: &mut Event| event.event_id = 5,
    ] {
        let mut log = Log::new();
        log.hear(&event);
        let mut changed = event.clone();
        change(&mut changed);
        assert_eq!(
            log.hear(&changed).hits.len(),
            1,
            "{changed:?} is no copy of {event:?}"
        );
    }
}

#[test]
fn what_an_event_says_of_ids() {
    let of = |kind: &str, lo, hi| {
        ids(&Event {
            kind: kind.into(),
            lo,
            hi,
            ..grant(1, 1, (1, 1))
        })
    };
    let span = Span::new(1, 9).unwrap();
    for (kind, wanted) in [
        ("segment.grant", Ids::Granted(span)),
        ("segment.burn", Ids::PassedOver(span)),
        ("segment.seek", Ids::PassedOver(span)),
        ("segment.drop", Ids::PassedOver(span)),
        ("segment.open", Ids::None),
        ("segment.later", Ids::None),
    ] {
        assert_eq!(of(kind, Some(1), Some(9)), wanted, "{kind}");
        assert_eq!(of(kind, Some(9), Some(1)), Ids::Malformed, "{kind}");
        assert_eq!(of(kind, Some(9), None), Ids::Malformed, "{kind}");
        let nothing = if kind == "segment.grant" {
            Ids::Malformed
        } else {
            Ids::None
        };
        assert_eq!(of(kind, None, None), nothing, "{kind}");
    }
}

#[test]
fn a_gap_is_a_line_for_the_log() {
    let mut log = Log::new();
    log.hear(&grant(1, 1, (1, 10)));
    let became = log.hear(&grant(1, 4, (31, 40)));
    assert!(became.hits.is_empty());
    assert!(
        became.gaps[0].contains("events 2 to 3 have not come"),
        "{:?}",
        became.gaps
    );
}

#[test]
fn leases_of_the_trail_are_judged_and_both_holders_named() {
    let mut log = Log::new();
    assert!(
        log.hear(&lease(
            1,
            "granted",
            None,
            &detail(1, 11, (0, 1_775_210_000_480), 1)
        ))
        .hits
        .is_empty()
    );
    assert!(
        log.hear(&lease(
            2,
            "expired",
            None,
            &json!({"token": "0/11", "holder": "db-1"})
        ))
        .hits
        .is_empty()
    );
    let second = detail(2, 12, (1_775_210_000_480, 1_775_211_000_960), 2);
    assert!(log.hear(&lease(3, "granted", None, &second)).hits.is_empty());
    let third = detail(3, 13, (1_775_210_000_900, 1_775_211_001_900), 3);
    let hits = log.hear(&lease(4, "granted", None, &third)).hits;
    let [hit] = &hits[..] else { panic!("{hits:?}") };
    let finding = &hit.finding;
    assert_eq!(
        (
            finding.kind,
            finding.tag.as_deref(),
            finding.space,
            finding.common
        ),
        (
            FindingKind::LeaseOverlap,
            Some("worker/5"),
            None,
            Some((1_775_210_000_901, 1_775_211_000_960))
        )
    );
    for part in [
        "worker 5 of db-2 (",
        " and of db-3 (",
        "had not ended",
        "may mint in the ms",
    ] {
        assert!(finding.detail.contains(part), "{part} in {}", finding.detail);
    }
    let tokens = [&finding.first, &finding.second].map(|of| of.as_ref().unwrap().token.clone().unwrap());
    assert_eq!(tokens, ["0/12", "0/13"]);
    // What the record says itself, without an end that anybody has seen.
    let fourth = detail(4, 14, (1_775_212_001_900, 1_775_213_000_000), 9);
    let robbed = lease(5, "granted", Some("granted_while_held"), &fourth);
    assert_eq!(log.hear(&robbed).hits.len(), 1);
}

#[test]
fn what_nobody_can_tell_of_leases_accuses_nobody() {
    for unknown in [
        lease(2, "gap", None, &json!({})),
        lease(2, "store_replaced", None, &json!({})),
        lease(2, "lost", None, &json!({})),
        lease(2, "released", None, &json!({"token": "no token"})),
        lease(2, "removed", None, &json!({})).into_stub(crate::event::StubReason::Refused),
    ] {
        let mut log = Log::new();
        log.hear(&lease(1, "granted", None, &detail(1, 11, (0, 480), 1)));
        assert!(log.hear(&unknown).hits.is_empty());
        let next = lease(3, "granted", None, &detail(2, 12, (480, 960), 2));
        assert_eq!(log.hear(&next).hits, [], "{unknown:?}");
    }
    let mut log = Log::new();
    log.hear(&lease(1, "granted", None, &detail(1, 11, (0, 480), 1)));
    log.hear(&lease(2, "taken", None, &json!({})));
    let next = lease(3, "granted", None, &detail(2, 12, (480, 960), 2));
    assert_eq!(log.hear(&next).hits.len(), 1, "others are of no interest");
}
