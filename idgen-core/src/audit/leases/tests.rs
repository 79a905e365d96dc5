use super::*;
use proptest::prelude::*;

const WORKER_5: Subject = Subject {
    cell: 1,
    class: Class::Worker,
    identity: Identity(5),
};

fn token(epoch: u64, revision: u64) -> Token {
    Token {
        epoch: Epoch(epoch),
        revision: Revision(revision),
    }
}

struct Trail {
    leases: Leases,
    seq: i64,
    is_whole: bool,
}

impl Trail {
    fn new() -> Self {
        Self {
            leases: Leases::new(100),
            seq: 0,
            is_whole: true,
        }
    }

    fn tell(&mut self, at_ms: u64, deed: LeaseDeed) -> Vec<LeaseAlarm> {
        self.seq += 1;
        let origin = Origin {
            source: 1,
            event_id: self.seq,
            partition: 0,
            offset: self.seq,
        };
        self.leases.tell(WORKER_5, (origin, at_ms), deed, self.is_whole)
    }

    fn ended(&mut self, at_ms: u64, revision: u64, high_water: Option<(u64, bool)>, early_ms: Option<u64>) {
        let deed = LeaseDeed::Ended {
            token: token(0, revision),
            ceiling_ms: high_water.map(|(ms, _)| ms),
            exact: high_water.is_some_and(|(_, exact)| exact),
            early_ms,
        };
        assert_eq!(self.tell(at_ms, deed), []);
    }

    fn restart(&mut self) {
        let mut bytes = Vec::new();
        let mut keep = |chunk: &[u8]| bytes.extend_from_slice(chunk);
        let mut out = Out::new(&mut keep);
        self.leases.put(&mut out);
        out.end();
        let mut from = In::new(&bytes);
        self.leases = Leases::take(&mut from, 100).unwrap();
        from.end().unwrap();
    }
}

/// Grant number `generation` to daemon `instance`, of the ms from `above` + 1 to `ceiling`.
fn grant(instance: u128, generation: u64, (above, ceiling): (u64, u64)) -> LeaseDeed {
    let lease = Leased {
        holder: format!("db-{instance}"),
        instance: InstanceId(instance),
        token: token(0, 100 + generation),
        generation,
        ceiling_ms: ceiling,
        above_ms: Some(above),
    };
    LeaseDeed::Granted { lease, robbed: false }
}

#[test]
fn leases_that_follow_each_other_are_silent_whichever_way_they_end() {
    let mut trail = Trail::new();
    assert_eq!(trail.tell(1_000, grant(1, 1, (0, 1_480))), []);
    // Its window was never used up: what it gives back is less.
    trail.ended(1_200, 101, Some((1_150, true)), None);
    assert_eq!(trail.tell(1_201, grant(2, 2, (1_150, 1_680))), []);
    trail.restart();
    trail.ended(2_000, 102, None, None);
    // Renewals have raised the ceiling, and nobody has told.
    assert_eq!(trail.tell(2_000, grant(3, 3, (1_900, 2_400))), []);
    // The same daemon takes it anew at once.
    assert_eq!(trail.tell(2_010, grant(3, 4, (2_400, 2_900))), []);
    assert_eq!(trail.tell(2_010, grant(3, 4, (2_400, 2_900))), [], "a copy");
    // It was removed early, and nobody has it before its time is over.
    trail.ended(2_020, 104, None, Some(500));
    assert_eq!(trail.tell(2_520, grant(1, 5, (2_900, 3_400))), []);
    // Of another identity nobody says anything.
    let other = Subject {
        identity: Identity(6),
        ..WORKER_5
    };
    let origin = Origin {
        source: 1,
        event_id: 9,
        partition: 0,
        offset: 9,
    };
    assert_eq!(
        trail
            .leases
            .tell(other, (origin, 2_600), grant(9, 1, (0, 3_000)), true),
        []
    );
    assert_eq!((trail.leases.len(), trail.leases.unjudged()), (2, 0));
}

#[test]
fn two_live_leases_of_an_identity_are_told_with_both_holders() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.restart();
    let alarms = trail.tell(1_100, grant(2, 2, (1_480, 1_900)));
    let [alarm] = &alarms[..] else {
        panic!("{alarms:?}");
    };
    assert_eq!(
        (alarm.both_live, alarm.windows, alarm.same_grant),
        (true, None, false)
    );
    assert_eq!(
        (
            alarm.earlier.lease.holder.as_str(),
            alarm.later.lease.holder.as_str(),
            alarm.earlier.lease.token,
            alarm.later.origin.event_id
        ),
        ("db-1", "db-2", token(0, 101), 2)
    );
}

#[test]
fn a_lease_that_was_removed_early_is_live_until_its_holder_stops() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.ended(1_100, 101, None, Some(300));
    assert!(matches!(
        trail.tell(1_399, grant(2, 2, (1_480, 1_900)))[..],
        [LeaseAlarm { both_live: true, .. }]
    ));
    // What the record itself says counts, whatever else is known.
    let robbed = match grant(3, 3, (1_900, 2_400)) {
        LeaseDeed::Granted { lease, .. } => LeaseDeed::Granted { lease, robbed: true },
        other => other,
    };
    trail.ended(1_500, 102, None, None);
    assert_eq!(trail.tell(1_600, robbed).len(), 1);
}

#[test]
fn windows_that_have_ms_in_common_are_told() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.ended(1_490, 101, Some((1_480, false)), None);
    // Somebody has set the high water back.
    let alarms = trail.tell(1_500, grant(2, 2, (1_300, 2_000)));
    assert!(
        matches!(&alarms[..], [LeaseAlarm { windows: Some(common), both_live: false, .. }]
            if *common == Span::new(1_301, 1_480).unwrap()),
        "{alarms:?}"
    );
    // A record of a release before this one does not say where its window begins: only its last ms is sure.
    let old = match grant(3, 3, (0, 1_900)) {
        LeaseDeed::Granted { lease, robbed } => LeaseDeed::Granted {
            lease: Leased {
                above_ms: None,
                ..lease
            },
            robbed,
        },
        other => other,
    };
    trail.ended(1_600, 102, None, None);
    assert!(
        matches!(&trail.tell(1_700, old)[..], [LeaseAlarm { windows: Some(common), .. }] if *common == Span::of(1_900))
    );
}

/// Two siblings were promoted from one parent, and both lease.
#[test]
fn a_store_with_two_histories_gives_one_grant_twice() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 7, (0, 1_480)));
    // The trail is not whole then, which matters not.
    trail.is_whole = false;
    let alarms = trail.tell(1_001, grant(2, 7, (0, 1_481)));
    let [alarm] = &alarms[..] else {
        panic!("{alarms:?}");
    };
    assert!(
        alarm.same_grant && alarm.windows.is_some() && !alarm.both_live,
        "{alarm:?}"
    );
    assert_eq!(
        alarm.earlier.lease.token, alarm.later.lease.token,
        "not even the token tells them apart"
    );
}

#[test]
fn what_is_missing_from_the_trail_may_have_ended_a_lease() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.is_whole = false;
    assert_eq!(trail.tell(1_300, grant(2, 2, (1_200, 1_900))), []);
    trail.is_whole = true;
    assert_eq!(trail.tell(1_400, LeaseDeed::Unknown), []);
    assert_eq!(trail.tell(1_500, grant(3, 3, (1_900, 2_400))), []);
    trail.leases.forget(1, None);
    assert_eq!(trail.tell(1_600, grant(4, 4, (2_400, 2_900))), []);
    // One in between was never told: what it was nobody knows.
    assert_eq!(trail.tell(1_700, grant(5, 6, (3_400, 3_900))), []);
    trail.leases.forget(2, None);
    assert_eq!(trail.tell(1_800, grant(6, 7, (3_900, 4_400))).len(), 1);
}

#[test]
fn another_epoch_begins_above_all_windows_though_no_record_says_where() {
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.ended(1_490, 101, None, None);
    let restored = |ceiling, generation| match grant(2, generation, (700, ceiling)) {
        LeaseDeed::Granted { lease, robbed } => LeaseDeed::Granted {
            lease: Leased {
                token: token(1, generation),
                ..lease
            },
            robbed,
        },
        other => other,
    };
    assert_eq!(trail.tell(2_000, restored(2_400, 2)), []);
    trail.ended(2_490, 2, None, None);
    let mut trail = Trail::new();
    trail.tell(1_000, grant(1, 1, (0, 1_480)));
    trail.ended(1_490, 101, None, None);
    assert_eq!(trail.tell(2_000, restored(1_400, 2)).len(), 1, "it ends within");
}

#[test]
fn identities_beyond_the_limit_are_counted() {
    let mut trail = Trail::new();
    trail.leases.max = 0;
    assert_eq!(trail.tell(1_000, grant(1, 1, (0, 1_480))), []);
    assert_eq!((trail.leases.is_empty(), trail.leases.unjudged()), (true, 1));
}

/// What a store does to one identity.
#[derive(Clone, Copy, Debug)]
enum Act {
    Grant { instance: u128, renewed: u64 },
    Release { unused: u64 },
    Expire,
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..5_u128, 0..3_000_u64).prop_map(|(instance, renewed)| Act::Grant { instance, renewed }),
        2 => (0..400_u64).prop_map(|unused| Act::Release { unused }),
        2 => Just(Act::Expire),
        3 => (1..2_000_u64).prop_map(Act::Wait),
    ]
}

proptest! {
    /// A store that keeps its promises is never accused; one whose high water is set back into a window that was told is.
    #[test]
    fn a_store_that_keeps_its_promises_is_silent(acts in prop::collection::vec(act(), 1..60), back in 1..400_u64) {
        let mut trail = Trail::new();
        let (mut now, mut high_water, mut generation) = (1_000_u64, 0_u64, 0_u64);
        // Revision, high water as it was granted.
        let mut held: Option<(u64, u64)> = None;
        for act in acts {
            match act {
                Act::Wait(ms) => now += ms,
                Act::Grant { instance, renewed } if held.is_none() => {
                    generation += 1;
                    let ceiling = high_water.max(now) + 480;
                    prop_assert_eq!(trail.tell(now, grant(instance, generation, (high_water, ceiling))), []);
                    held = Some((100 + generation, ceiling));
                    now += renewed;
                    high_water = ceiling.max(now + 480);
                }
                Act::Release { unused } => if let Some((revision, granted)) = held.take() {
                    high_water = high_water.saturating_sub(unused).max(granted - 480);
                    trail.ended(now, revision, Some((high_water, true)), None);
                },
                Act::Expire => if let Some((revision, _)) = held.take() {
                    now += 600;
                    trail.ended(now, revision, None, None);
                },
                Act::Grant { .. } => {}
            }
        }
        if let Some((revision, _)) = held {
            trail.ended(now, revision, Some((high_water, false)), None);
            let above = high_water - back;
            let alarms = trail.tell(now + 1, grant(9, generation + 1, (above, high_water + 480)));
            prop_assert!(matches!(alarms[..], [LeaseAlarm { windows: Some(_), both_live: false, .. }]), "{:?}", alarms);
        }
    }
}
