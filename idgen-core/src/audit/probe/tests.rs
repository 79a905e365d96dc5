use super::*;
use crate::audit::leases::Leases;
use proptest::prelude::*;
use std::collections::HashSet;

const SPACE: u128 = 1;
const SOURCE: u128 = 2;
const PARTITION: i32 = 0;

struct Log {
    probe: Probe,
    offset: i64,
}

impl Log {
    fn new(limits: Limits) -> Self {
        let probe = Probe::new(limits);
        Self { probe, offset: 0 }
    }

    fn hear(
        &mut self,
        (source, space, tag): (u128, u128, &str),
        tag_seq: i64,
        at_us: i64,
        ids: Ids,
    ) -> Heard {
        let offset = self.offset;
        self.offset += 1;
        let range = match ids {
            Ids::Granted(span) | Ids::PassedOver(span) => (span.lo(), span.hi()),
            Ids::None | Ids::Malformed => (0, 0),
        };
        let print = crate::mix::mix(range.0.cast_unsigned())
            ^ crate::mix::mix(range.1.cast_unsigned().wrapping_add(7))
            ^ crate::mix::mix(at_us.cast_unsigned().wrapping_add(99));
        self.probe.tell(Told {
            origin: Origin {
                source,
                event_id: 100 + tag_seq,
                partition: PARTITION,
                offset,
            },
            space,
            tag,
            tag_seq,
            at_us,
            print,
            ids,
        })
    }

    /// A grant, recorded at the second of its number.
    fn tell(&mut self, of: (u128, u128, &str), tag_seq: i64, ids: (i64, i64)) -> Vec<Alarm> {
        self.hear(of, tag_seq, tag_seq, Ids::Granted(span(ids.0, ids.1)))
            .alarms
    }

    /// Through a checkpoint.
    fn saved(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let leases = Leases::new(10);
        self.probe
            .save(&leases, &mut |chunk| bytes.extend_from_slice(chunk));
        bytes
    }

    fn restart(&mut self) {
        let loaded = Probe::load(&self.saved(), self.probe.limits, 10);
        self.probe = loaded.expect("what was saved").0;
    }
}

const A: (u128, u128, &str) = (SOURCE, SPACE, "a");

fn span(lo: i64, hi: i64) -> Span {
    Span::new(lo, hi).unwrap()
}

fn small(spans: usize, recent: usize) -> Limits {
    Limits {
        spans,
        recent,
        tags: 100,
    }
}

#[test]
fn a_log_with_copies_is_silent() {
    let mut log = Log::new(Limits::default());
    for tag_seq in [1, 2, 1, 2, 3, 2, 3, 4] {
        assert_eq!(log.tell(A, tag_seq, (tag_seq * 10 + 1, tag_seq * 10 + 10)), []);
    }
    let counts = log.probe.counts();
    assert_eq!((counts.events, counts.copies, counts.holes), (4, 4, 0));
    assert_eq!(log.probe.open_gaps().count(), 0);
}

#[test]
fn equal_names_in_several_spaces_and_several_tags_are_nobodys_business() {
    let mut log = Log::new(Limits::default());
    for (source, space, tag) in [(1, 1, "a"), (2, 2, "a"), (1, 1, "b"), (2, 2, "A"), (2, 2, "")] {
        assert_eq!(log.tell((source, space, tag), 1, (1, 10)), []);
    }
}

#[test]
fn two_databases_that_grant_the_same_ids_are_both_named() {
    let mut log = Log::new(Limits::default());
    assert_eq!(log.tell((1, SPACE, "a"), 1, (1, 10)), []);
    assert_eq!(log.tell((1, SPACE, "a"), 2, (11, 20)), []);
    let alarms = log.tell((2, SPACE, "a"), 1, (8, 12));
    let found: Vec<_> = alarms
        .iter()
        .map(|alarm| {
            let Alarm::Overlap {
                earlier: Some((_, first)),
                later,
                common,
                ranges: 1,
            } = alarm
            else {
                panic!("{alarm:?}");
            };
            (first.source, first.offset, later.1.source, *common)
        })
        .collect();
    assert_eq!(
        found,
        [(1, 0, 2, span(8, 10)), (1, 1, 2, span(11, 12))],
        "the ranges before it touch, and each has its own record"
    );
}

#[test]
fn containment_is_an_overlap_either_way_round() {
    let mut log = Log::new(Limits::default());
    assert_eq!(log.tell((1, SPACE, "a"), 1, (1, 100)), []);
    assert!(matches!(
        log.tell((2, SPACE, "a"), 1, (40, 50))[..],
        [Alarm::Overlap { .. }]
    ));
    assert_eq!(log.tell((1, SPACE, "b"), 1, (40, 50)), []);
    assert!(
        matches!(log.tell((2, SPACE, "b"), 1, (1, 100))[..], [Alarm::Overlap { common, .. }] if common == span(40, 50))
    );
}

#[test]
fn ids_that_were_passed_over_are_granted_to_nobody() {
    let mut log = Log::new(Limits::default());
    assert_eq!(log.tell(A, 1, (1, 10)), []);
    let burn = Ids::PassedOver(span(5, 30));
    assert_eq!(
        log.hear(A, 2, 2, burn).alarms,
        [],
        "what is burned may have been granted: it is burned for that"
    );
    assert_eq!(log.tell(A, 3, (31, 40)), []);
    assert!(matches!(
        log.tell((9, SPACE, "a"), 1, (25, 26))[..],
        [Alarm::Overlap { earlier: Some((passed, _)), .. }] if passed == span(5, 30)
    ));
    assert_eq!(log.probe.counts().holes, 0, "what was passed over is no hole");
    log.tell(A, 4, (51, 60));
    assert_eq!(log.probe.counts().holes, 1);
}

#[test]
fn an_event_that_was_written_anew_is_told_from_a_copy_and_not_believed() {
    let mut log = Log::new(Limits::default());
    let granted = |lo, hi| Ids::Granted(span(lo, hi));
    log.hear(A, 1, 1, granted(1, 10));
    let heard = log.hear(A, 1, 1, granted(1, 11));
    assert!(
        matches!(heard.alarms[..], [Alarm::Rewritten { first: Some(first), later }] if first.offset == 0 && later.offset == 1)
    );
    assert!(!heard.is_news);
    assert_eq!(log.tell(A, 2, (11, 20)), []);
}

/// AUDIT.md 16: a row that a reader has seen is lost by a failover, and its number and its ids are given anew.
#[test]
fn what_another_history_has_put_in_the_place_of_an_event_has_happened() {
    let mut log = Log::new(small(100, 2));
    let granted = |lo, hi| Ids::Granted(span(lo, hi));
    for n in 1..=6 {
        log.hear(A, n, n, granted(n * 10 + 1, n * 10 + 10));
    }
    // In the memory of the last events:
    let heard = log.hear(A, 6, 60, granted(61, 65));
    assert!(
        matches!(
            heard.alarms[..],
            [
                Alarm::Rewritten { first: Some(_), .. },
                Alarm::Overlap { earlier: Some(_), .. }
            ]
        ),
        "{heard:?}"
    );
    // ... out of it, but recorded after everything that there was:
    let heard = log.hear(A, 2, 61, granted(21, 25));
    assert!(
        matches!(
            heard.alarms[..],
            [Alarm::Rewritten { first: None, .. }, Alarm::Overlap { common, .. }] if common == span(21, 25)
        ),
        "{heard:?}"
    );
    // ... out of it, and by a clock that is behind, but with ids that nobody had:
    let heard = log.hear(A, 1, 0, granted(5, 8));
    assert!(
        matches!(heard.alarms[..], [Alarm::Rewritten { first: None, .. }]),
        "{heard:?}"
    );
    // A copy of what has happened is a copy.
    assert_eq!(log.hear(A, 1, 0, granted(5, 8)).alarms, []);
    assert_eq!(log.tell(A, 7, (71, 80)), []);
}

#[test]
fn what_is_missing_is_told_once_and_may_come_late() {
    let mut log = Log::new(Limits::default());
    log.tell(A, 1, (1, 10));
    let alarms = log.tell(A, 4, (31, 40));
    assert!(
        matches!(alarms[..], [Alarm::Missing { numbers, out_of_sight: false, .. }] if numbers == span(2, 3))
    );
    let open = |log: &Log| -> Vec<_> {
        let gaps = log.probe.open_gaps();
        gaps.map(|gap| (gap.tag.to_owned(), gap.numbers, gap.left))
            .collect()
    };
    assert_eq!(open(&log), [("a".to_owned(), span(2, 3), 2)]);
    assert_eq!(log.tell(A, 3, (21, 30)), []);
    assert_eq!(open(&log), [("a".to_owned(), span(2, 3), 1)]);
    log.restart();
    assert_eq!(log.tell(A, 2, (11, 20)), []);
    assert_eq!(open(&log), []);
    assert_eq!(log.tell(A, 0, (1, 10)).len(), 1);
}

#[test]
fn what_comes_late_is_judged_as_well() {
    let mut log = Log::new(Limits::default());
    log.tell(A, 1, (101, 110));
    log.tell(A, 3, (5, 14));
    assert!(matches!(log.tell(A, 2, (1, 10))[..], [Alarm::Overlap { .. }]));
}

#[test]
fn a_stream_may_begin_anywhere_and_what_was_before_is_news_when_it_comes() {
    let mut log = Log::new(Limits::default());
    assert_eq!(log.tell(A, 7, (61, 70)), [], "it was in another space before");
    assert_eq!((log.probe.open_gaps().count(), log.probe.degraded_tags()), (0, 0));
    assert!(log.hear(A, 6, 6, Ids::Granted(span(51, 60))).is_news);
    assert!(!log.hear(A, 6, 6, Ids::Granted(span(51, 60))).is_news);
    assert_eq!(log.tell(A, 5, (60, 60)).len(), 1);
}

#[test]
fn what_the_log_itself_has_lost_is_no_finding_and_degrades_the_tags_that_lost_something() {
    let mut log = Log::new(Limits::default());
    let b = (SOURCE, SPACE, "b");
    log.tell(A, 1, (1, 10));
    log.tell(b, 1, (1, 10));
    log.probe.cut(PARTITION);
    assert_eq!(log.tell(b, 2, (11, 20)), [], "it has lost nothing");
    let alarms = log.tell(A, 4, (31, 40));
    assert!(matches!(
        alarms[..],
        [Alarm::Missing {
            out_of_sight: true,
            ..
        }]
    ));
    log.tell((SOURCE, SPACE, "begun within"), 3, (1, 10));
    assert_eq!((log.probe.degraded_tags(), log.probe.open_gaps().count()), (2, 0));
    log.restart();
    // The archive has them after all.
    log.tell(A, 2, (11, 20));
    log.tell(A, 3, (21, 30));
    assert_eq!(log.probe.degraded_tags(), 1);
    assert!(matches!(
        log.tell(A, 6, (51, 60))[..],
        [Alarm::Missing {
            out_of_sight: false,
            ..
        }]
    ));
    // Cut once more, it knows that it was cut before.
    log.probe.cut(PARTITION);
    assert!(matches!(
        log.tell(A, 9, (81, 90))[..],
        [Alarm::Missing {
            out_of_sight: true,
            ..
        }]
    ));
}

#[test]
fn with_too_many_spans_the_tags_with_the_most_are_blurred_and_say_so() {
    let mut log = Log::new(small(10, 4));
    let (dense, sparse) = ((SOURCE, SPACE, "dense"), (SOURCE, SPACE, "sparse"));
    log.tell(dense, 1, (1, 10));
    for n in 1..=10 {
        assert_eq!(log.tell(sparse, n, (n * 10, n * 10)), []);
    }
    assert_eq!((log.probe.blurred_tags(), log.probe.degraded_tags()), (1, 1));
    assert_eq!(
        log.tell(sparse, 11, (50, 50)),
        [],
        "that cannot be known any more"
    );
    assert_eq!(log.probe.counts().grants_unjudged, 1);
    log.restart();
    assert_eq!(log.tell(sparse, 12, (1000, 1000)), []);
    assert_eq!(
        log.probe.counts().grants_unjudged,
        1,
        "above all that was granted nothing was forgotten"
    );
    assert_eq!(log.tell(sparse, 13, (1000, 1000)).len(), 1);
    assert_eq!(log.tell(dense, 2, (10, 10)).len(), 1, "others are as they were");
}

#[test]
fn tags_beyond_the_limit_are_counted_and_nothing_is_said_of_them() {
    let mut log = Log::new(Limits {
        tags: 1,
        ..small(10, 4)
    });
    log.tell(A, 1, (1, 10));
    let b = (SOURCE, SPACE, "b");
    assert_eq!(
        (log.tell(b, 1, (1, 9)), log.tell(b, 1, (1, 10))),
        (vec![], vec![])
    );
    assert_eq!((log.probe.tags(), log.probe.counts().untracked), (1, 2));
}

#[test]
fn a_copy_from_long_ago_is_counted_and_not_judged() {
    let mut log = Log::new(small(10, 2));
    for n in 1..=4 {
        log.tell(A, n, (n, n));
    }
    assert_eq!(log.tell(A, 1, (1, 1)), []);
    assert_eq!(log.probe.counts().copies_unjudged, 1);
}

#[test]
fn a_restart_forgets_nothing() {
    let mut log = Log::new(Limits::default());
    log.tell(A, 1, (1, 10));
    log.tell((3, SPACE, "é"), 1, (1, 10));
    let before = log.saved();
    log.restart();
    assert_eq!(log.saved(), before);
    assert_eq!(log.tell(A, 1, (1, 10)), [], "a copy");
    assert!(matches!(
        log.tell(A, 1, (1, 11))[..],
        [Alarm::Rewritten { first: Some(_), .. }]
    ));
    assert!(matches!(
        log.tell((4, SPACE, "a"), 1, (10, 12))[..],
        [Alarm::Overlap { earlier: Some((_, first)), .. }] if first.source == SOURCE
    ));
}

#[test]
fn what_is_no_state_of_a_probe_is_refused() {
    let mut log = Log::new(Limits::default());
    log.tell(A, 1, (1, 10));
    log.tell(A, 4, (31, 40));
    let bytes = log.saved();
    let load = |bytes: &[u8]| Probe::load(bytes, Limits::default(), 10);
    assert!(load(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(load(&bytes[..len]).is_err(), "{len} bytes of it");
    }
    assert!(load(&[&bytes[..], &[0]].concat()).is_err());
    let mut other = bytes;
    other[0] += 1;
    assert_eq!(
        load(&other).unwrap_err().to_string(),
        "it is of another version of the program"
    );
}

/// A week of one (space, tag), as one or two masters write it.
#[derive(Clone, Debug)]
struct Week {
    masters: u128,
    /// Length of each range, and what is burned before it.
    grants: Vec<(i64, i64)>,
}

fn week() -> impl Strategy<Value = Week> {
    let grants = prop::collection::vec(
        (1..10_000_i64, prop_oneof![9 => Just(0), 1 => 1..50_000_i64]),
        1..8,
    );
    (1..3_u128, grants).prop_map(|(masters, grants)| Week { masters, grants })
}

/// The events of a stream in their order: number, ids.
fn events(week: &Week, master: u128) -> Vec<(i64, Ids)> {
    let mut events = vec![(1, Ids::None)];
    // Stripes of a million; master i of n has each nth.
    let mut next = 1 + i64::try_from(master).unwrap() * 1_000_000;
    let mut push = |ids| events.push((i64::try_from(events.len()).unwrap() + 1, ids));
    for &(len, burned) in &week.grants {
        if burned > 0 {
            push(Ids::PassedOver(span(next, next + burned - 1)));
            next += burned;
        }
        push(Ids::Granted(span(next, next + len - 1)));
        next += len;
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// 1,000 tags in two spaces with the same names, in any order that a log may have, with copies and a restart.
    #[test]
    fn a_clean_week_has_no_finding(weeks in prop::collection::vec(week(), 500), seed in any::<u64>()) {
        let mut log = Log::new(Limits::default());
        let mut streams = Vec::new();
        for (n, week) in weeks.iter().enumerate() {
            for space in [1, 2] {
                for master in 0..week.masters {
                    streams.push((space * 10 + master, space, format!("tag {n}"), events(week, master), 0_usize));
                }
            }
        }
        let mut random = seed;
        let mut live: Vec<usize> = (0..streams.len()).collect();
        let mut told = 0_u64;
        while !live.is_empty() {
            random = crate::mix::mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
            let nth = usize::try_from(random % live.len() as u64).unwrap();
            let (source, space, tag, events, at) = &mut streams[live[nth]];
            let (number, ids) = events[*at];
            let heard = log.hear((*source, *space, tag), number, number, ids);
            prop_assert_eq!(heard.alarms, []);
            told += u64::from(heard.is_news);
            // It comes again, with some that were before it.
            *at = if random % 5 == 0 { at.saturating_sub(usize::try_from(random >> 61).unwrap()) } else { *at + 1 };
            if *at == events.len() {
                live.swap_remove(nth);
            }
            if random % 4_001 == 0 {
                log.restart();
            }
        }
        let all: usize = streams.iter().map(|(.., events, _)| events.len()).sum();
        prop_assert_eq!(told, all as u64);
        prop_assert_eq!((log.probe.degraded_tags(), log.probe.open_gaps().count()), (0, 0));
        prop_assert_eq!(log.probe.tags(), 1_000);
    }

    /// Every fault is told, and nothing else, against a set of single ids.
    #[test]
    fn an_overlap_is_told_exactly_where_an_id_was_granted_before(
        grants in prop::collection::vec((0..3_u128, 0..40_i64, 0..6_i64), 1..40)
    ) {
        let (mut log, mut ids) = (Log::new(Limits::default()), HashSet::new());
        let mut numbers = [0_i64; 3];
        for (source, lo, more) in grants {
            let number = &mut numbers[usize::try_from(source).unwrap()];
            *number += 1;
            let alarms = log.tell((source, SPACE, "a"), *number, (lo, lo + more));
            let mut told = HashSet::new();
            for alarm in &alarms {
                let Alarm::Overlap { earlier: Some((earlier, _)), common, .. } = alarm else {
                    panic!("{alarm:?}");
                };
                prop_assert_eq!(earlier.common(*common), Some(*common));
                told.extend(common.lo()..=common.hi());
            }
            let known: HashSet<i64> = (lo..=lo + more).filter(|id| !ids.insert(*id)).collect();
            // Of many earlier ones not all are told.
            if alarms.len() < 4 {
                prop_assert_eq!(told, known);
            } else {
                prop_assert!(told.is_subset(&known));
            }
        }
    }
}

/// What comes from the archive in between is of no partition, and makes nothing forgotten.
#[test]
fn a_cut_is_known_whatever_comes_from_elsewhere_in_between() {
    let mut log = Log::new(Limits::default());
    log.probe.cut(PARTITION);
    log.tell(A, 1, (1, 10));
    let from_elsewhere = Told {
        origin: Origin {
            source: SOURCE,
            event_id: 102,
            partition: -1,
            offset: 0,
        },
        space: SPACE,
        tag: "a",
        tag_seq: 2,
        at_us: 2,
        print: 2,
        ids: Ids::Granted(span(11, 20)),
    };
    assert_eq!(log.probe.tell(from_elsewhere).alarms, []);
    assert!(matches!(
        log.tell(A, 4, (31, 40))[..],
        [Alarm::Missing {
            out_of_sight: false,
            ..
        }]
    ));
}

#[test]
fn of_a_grant_over_very_many_earlier_ones_some_are_told_one_by_one_and_the_others_as_one() {
    let mut log = Log::new(small(10_000, 10));
    let many = i64::try_from(PER_GRANT).unwrap() + 5;
    for n in 1..=many {
        assert_eq!(log.tell(A, n, (n * 10, n * 10)), []);
    }
    let alarms = log.tell(A, many + 1, (1, many * 10));
    assert_eq!(alarms.len(), PER_GRANT + 1);
    let Some(Alarm::Overlap { common, ranges, .. }) = alarms.last() else {
        panic!("{:?}", alarms.last());
    };
    assert_eq!((*common, *ranges), (span((many - 4) * 10, many * 10), 5));
}

#[test]
fn what_has_come_is_known_by_stream_and_over_a_restart() {
    let mut log = Log::new(Limits::default());
    for tag_seq in [5, 9, 7] {
        log.tell(A, tag_seq, (tag_seq * 10, tag_seq * 10));
    }
    for _ in 0..2 {
        let has = |of: (u128, &str), source, lo, hi| log.probe.has_all(of, source, span(lo, hi));
        assert!(has((SPACE, "a"), SOURCE, 7, 7) && has((SPACE, "a"), SOURCE, 9, 9));
        // The first of a stream were never heard, though they are no gap.
        for (lo, hi) in [(6, 7), (8, 8), (9, 10), (1, 5), (4, 4)] {
            assert!(!has((SPACE, "a"), SOURCE, lo, hi), "{lo} to {hi}");
        }
        assert!(!has((SPACE, "b"), SOURCE, 7, 7) && !has((SPACE, "a"), SOURCE + 1, 7, 7));
        log.restart();
    }
}
