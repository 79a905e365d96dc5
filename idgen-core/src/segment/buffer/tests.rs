use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn publication(buffer: &Buffer, base: i64, len: u64) -> Publication {
    Publication {
        base,
        len,
        incarnation: buffer.incarnation(),
    }
}

fn filled(base: i64, len: u64) -> Buffer {
    let buffer = Buffer::new();
    buffer.publish(publication(&buffer, base, len)).unwrap();
    buffer
}

fn ids(first: i64, count: u64) -> Take {
    Take::Ids {
        first,
        count,
        refill: false,
    }
}

fn ids_and_refill(first: i64, count: u64) -> Take {
    Take::Ids {
        first,
        count,
        refill: true,
    }
}

const EMPTY: Take = Take::Empty { refill: true };

#[test]
fn a_new_buffer_is_empty_and_has_room() {
    let buffer = Buffer::new();
    assert_eq!(buffer.take(1), EMPTY);
    assert!(buffer.has_room());
    assert_eq!(buffer.remaining(), 0);
    let nothing = Snapshot {
        generation: 0,
        incarnation: 0,
        current: None,
        next: None,
    };
    assert_eq!(buffer.snapshot(), nothing);
}

#[test]
fn values_come_in_order_and_a_take_stops_at_the_end_of_the_range() {
    let buffer = filled(1_001, 10);
    assert_eq!(buffer.take(1), ids(1_001, 1));
    assert_eq!(buffer.take(2), ids(1_002, 2));
    assert_eq!(buffer.take(100), ids_and_refill(1_004, 7));
    assert_eq!(buffer.take(1), EMPTY);
}

#[test]
fn taking_none_takes_one() {
    let buffer = filled(1, 10);
    assert_eq!(buffer.take(0), ids(1, 1));
}

#[test]
fn the_next_range_follows_without_a_gap_in_service() {
    let buffer = filled(1, 2);
    buffer.publish(publication(&buffer, 501, 2)).unwrap();
    let taken: Vec<_> = (0..5).map(|_| buffer.take(1)).collect();
    assert_eq!(
        taken,
        [ids(1, 1), ids(2, 1), ids_and_refill(501, 1), ids(502, 1), EMPTY]
    );
}

#[test]
fn the_refill_is_asked_for_once_at_the_half() {
    let buffer = filled(1, 100);
    let asked: Vec<_> = (1..=100_i64)
        .filter(|&id| buffer.take(1) == ids_and_refill(id, 1))
        .collect();
    assert_eq!(asked, [50]);

    let buffer = filled(1, 1);
    assert_eq!(
        buffer.take(1),
        ids_and_refill(1, 1),
        "a range of one is half used at once"
    );
}

#[test]
fn no_refill_is_asked_for_while_a_next_range_is_there() {
    let buffer = filled(1, 4);
    buffer.publish(publication(&buffer, 5, 4)).unwrap();
    assert_eq!(buffer.take(4), ids(1, 4));
    assert_eq!(buffer.take(1), ids(5, 1));
    assert_eq!(buffer.take(1), ids_and_refill(6, 1));
}

#[test]
fn a_third_range_is_refused_until_the_first_is_used_up() {
    let buffer = filled(1, 2);
    assert!(buffer.has_room());
    buffer.publish(publication(&buffer, 3, 2)).unwrap();
    assert!(!buffer.has_room());
    assert_eq!(
        buffer.publish(publication(&buffer, 5, 2)),
        Err(PublishError::Full)
    );
    buffer.take(1);
    assert_eq!(
        buffer.publish(publication(&buffer, 5, 2)),
        Err(PublishError::Full)
    );
    buffer.take(1);
    assert!(buffer.has_room());
    assert_eq!(buffer.publish(publication(&buffer, 5, 2)), Ok(()));
    assert_eq!(buffer.take(2), ids(3, 2));
    assert_eq!(buffer.take(2), ids_and_refill(5, 2));
}

#[test]
fn lengths_and_ends_are_checked() {
    let buffer = Buffer::new();
    let publish = |base, len| buffer.publish(publication(&buffer, base, len));
    assert_eq!(publish(1, 0), Err(PublishError::BadLength(0)));
    assert_eq!(publish(1, 1_000_001), Err(PublishError::BadLength(1_000_001)));
    assert_eq!(publish(1, u64::MAX), Err(PublishError::BadLength(u64::MAX)));
    assert_eq!(publish(i64::MAX, 2), Err(PublishError::Overflow));
    assert_eq!(buffer.take(1), EMPTY, "nothing of a refused range is there");
    assert_eq!(publish(i64::MAX - 1, 2), Ok(()));
    assert_eq!(buffer.take(1), ids_and_refill(i64::MAX - 1, 1));
    assert_eq!(publish(-3, 1_000_000), Ok(()));
    assert_eq!(buffer.take(9), ids(i64::MAX, 1));
    assert_eq!(buffer.take(5), ids(-3, 5));
}

/// vitess#18415: a cached range was served on after the counter had been raised.
#[test]
fn a_discard_leaves_nothing_and_says_what_it_burned() {
    let buffer = filled(1, 100);
    buffer.publish(publication(&buffer, 101, 50)).unwrap();
    buffer.take(30);
    let burned = buffer.discard();
    let current = Some(Range { first: 31, count: 70 });
    let next = Some(Range {
        first: 101,
        count: 50,
    });
    assert_eq!(
        burned,
        Burned {
            current,
            next,
            incarnation: 1
        }
    );
    assert_eq!(burned.count(), 120);
    assert_eq!(buffer.take(1), EMPTY);
    assert_eq!(buffer.remaining(), 0);

    let nothing = Burned {
        current: None,
        next: None,
        incarnation: 2,
    };
    assert_eq!(buffer.discard(), nothing, "a second one has nothing left to burn");
    assert_eq!(buffer.take(1), EMPTY);
}

#[test]
fn after_a_discard_both_places_are_free_again() {
    for before in 0..4 {
        let buffer = Buffer::new();
        for i in 0..before {
            buffer.publish(publication(&buffer, i * 10 + 1, 10)).unwrap();
            buffer.take(10);
        }
        buffer.publish(publication(&buffer, 501, 10)).unwrap();
        buffer.discard();
        buffer.publish(publication(&buffer, 1_001, 10)).unwrap();
        assert_eq!(buffer.take(10), ids_and_refill(1_001, 10));
        buffer.publish(publication(&buffer, 2_001, 10)).unwrap();
        assert_eq!(buffer.take(3), ids(2_001, 3));
    }
}

/// pd#4884: a late update refilled an allocator after its reset.
#[test]
fn a_range_granted_before_a_discard_is_refused_after_it() {
    let buffer = filled(1, 10);
    let late = publication(&buffer, 11, 10);
    buffer.discard();
    assert_eq!(buffer.publish(late), Err(PublishError::Discarded));
    assert_eq!(buffer.take(1), EMPTY);
}

#[test]
fn a_taker_that_remembers_another_incarnation_gets_nothing() {
    let buffer = filled(1, 10);
    let mine = buffer.incarnation();
    assert_eq!(buffer.take_of(mine, 1), Some(ids(1, 1)));
    let of_another_tag = buffer.discard().incarnation;
    buffer.publish(publication(&buffer, 7_001, 10)).unwrap();
    assert_eq!(buffer.take_of(mine, 1), None);
    assert_eq!(buffer.take_of(of_another_tag, 1), Some(ids(7_001, 1)));
}

#[test]
fn the_snapshot_is_what_can_be_taken() {
    let buffer = filled(1, 10);
    buffer.publish(publication(&buffer, 101, 5)).unwrap();
    buffer.take(4);
    let want = Snapshot {
        generation: 1,
        incarnation: 0,
        current: Some(Range { first: 5, count: 6 }),
        next: Some(Range { first: 101, count: 5 }),
    };
    assert_eq!(buffer.snapshot(), want);
    assert_eq!(buffer.remaining(), 11);
    buffer.take(6);
    assert_eq!(
        buffer.snapshot(),
        Snapshot {
            current: None,
            ..want
        }
    );
}

#[test]
fn generations_end_with_an_error_not_with_a_wrap() {
    let buffer = Buffer::new();
    buffer
        .word
        .store(pack(GENERATION_MAX - 2, USED_ALL), Ordering::Relaxed);
    buffer.ready.store(GENERATION_MAX - 2, Ordering::Relaxed);
    buffer.publish(publication(&buffer, 1, 10)).unwrap();
    assert_eq!(buffer.take(1), ids(1, 1));
    assert_eq!(
        buffer.publish(publication(&buffer, 11, 10)),
        Err(PublishError::GenerationsUsedUp)
    );
    assert_eq!(buffer.discard().count(), 9);
    assert_eq!(buffer.discard().count(), 0);
    assert_eq!(buffer.take(1), EMPTY);
    assert_eq!(
        buffer.publish(publication(&buffer, 11, 10)),
        Err(PublishError::GenerationsUsedUp)
    );
}

#[derive(Clone, Debug)]
enum Op {
    Take(u64),
    Begin,
    Publish(u64),
    Discard,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..40_u64).prop_map(Op::Take),
        2 => Just(Op::Begin),
        4 => (1..60_u64).prop_map(Op::Publish),
        1 => Just(Op::Discard),
    ]
}

/// The buffer as a queue of values, without any of its tricks.
#[derive(Default)]
struct Queue {
    current: std::collections::VecDeque<i64>,
    next: std::collections::VecDeque<i64>,
}

proptest! {
    #[test]
    fn behaves_as_two_queues(ops in prop::collection::vec(any_op(), 1..200)) {
        let buffer = Buffer::new();
        let mut queue = Queue::default();
        let (mut top, mut seen_incarnation, mut incarnation) = (0_i64, 0, 0);
        let mut current_len = 0_usize;
        let mut taken = HashSet::new();
        for op in ops {
            if queue.current.is_empty() && !queue.next.is_empty() {
                queue.current = std::mem::take(&mut queue.next);
                current_len = queue.current.len();
            }
            match op {
                Op::Take(n) => {
                    let used = current_len - queue.current.len();
                    let want: Vec<_> = (0..n.max(1)).map_while(|_| queue.current.pop_front()).collect();
                    match buffer.take(n) {
                        Take::Empty { refill } => prop_assert!(refill && want.is_empty()),
                        Take::Ids { first, count, refill } => {
                            let got: Vec<_> = (first..).take(usize::try_from(count).unwrap()).collect();
                            prop_assert_eq!(&got, &want);
                            let crossed = used * 2 < current_len && (used + got.len()) * 2 >= current_len;
                            prop_assert_eq!(refill, crossed && queue.next.is_empty());
                            for id in got {
                                prop_assert!(taken.insert(id), "{} twice", id);
                            }
                        }
                    }
                }
                Op::Begin => seen_incarnation = buffer.incarnation(),
                Op::Publish(len) => {
                    let published =
                        buffer.publish(Publication { base: top + 1, len, incarnation: seen_incarnation });
                    if seen_incarnation != incarnation {
                        prop_assert_eq!(published, Err(PublishError::Discarded));
                    } else if !queue.next.is_empty() {
                        prop_assert_eq!(published, Err(PublishError::Full));
                    } else {
                        prop_assert_eq!(published, Ok(()));
                        queue.next = (top + 1..).take(usize::try_from(len).unwrap()).collect();
                    }
                    // Granted is granted: a refused range is burned.
                    top += i64::try_from(len).unwrap() + 5;
                }
                Op::Discard => {
                    let burned = buffer.discard();
                    let range = |queue: &std::collections::VecDeque<i64>| {
                        queue.front().map(|&first| Range { first, count: queue.len() as u64 })
                    };
                    // Which of the two a last range is depends on whether somebody has looked since.
                    let burned = burned.current.into_iter().chain(burned.next);
                    let queued = range(&queue.current).into_iter().chain(range(&queue.next));
                    prop_assert_eq!(burned.collect::<Vec<_>>(), queued.collect::<Vec<_>>());
                    incarnation += 1;
                    queue = Queue::default();
                    current_len = 0;
                }
            }
            let left = queue.current.len() + queue.next.len();
            prop_assert_eq!(buffer.remaining(), left as u64);
        }
    }
}

/// Real threads; the small state space is checked exhaustively in `tests/segment_loom.rs`.
#[test]
fn eight_takers_and_a_refill_share_a_million_values() {
    const TOTAL: u64 = 1_000_000;
    let buffer = Buffer::new();
    let mut all: Vec<(i64, u64)> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..8_u64)
            .map(|i| {
                let buffer = &buffer;
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    loop {
                        match buffer.take(1 + i * 3) {
                            Take::Ids { first, count, .. } => mine.push((first, count)),
                            Take::Empty { .. } if buffer.incarnation() > 0 => return mine,
                            Take::Empty { .. } => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        let mut top = 0;
        while top < TOTAL {
            let len = (1 + top % 997).min(TOTAL - top);
            let base = i64::try_from(top).unwrap() + 1;
            match buffer.publish(Publication {
                base,
                len,
                incarnation: 0,
            }) {
                Ok(()) => top += len,
                Err(PublishError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        while buffer.remaining() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(buffer.discard().count(), 0);
        takers
            .into_iter()
            .flat_map(|taker| taker.join().unwrap())
            .collect()
    });
    all.sort_unstable();
    let mut next = 1;
    for (first, count) in all {
        assert_eq!(first, next, "a value was lost or given out twice");
        next += i64::try_from(count).unwrap();
    }
    assert_eq!(next, 1_000_001);
}
