use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// RFC 9562, appendix A.6: 2022-02-22T14:22:22.00-05:00.
const RFC_EXAMPLE: [u8; 16] = 0x017F22E2_79B0_7CC3_98C4_DC0C0C07398F_u128.to_be_bytes();
const RFC_MS: u64 = 1_645_557_742_000;
const RFC_RAND_A: u64 = 0xCC3;
const RFC_RAND_B: u64 = 0x18C4_DC0C_0C07_398F;

fn rand_a(uuid: &[u8; 16]) -> u64 {
    (u128::from_be_bytes(*uuid) >> 64) as u64 & 0xfff
}

fn rand_b(uuid: &[u8; 16]) -> u64 {
    u128::from_be_bytes(*uuid) as u64 & (u64::MAX >> 2)
}

fn ms(uuid: &[u8; 16]) -> u64 {
    timestamp_ms(uuid).unwrap()
}

#[test]
fn the_example_of_the_rfc_is_read() {
    assert_eq!(timestamp_ms(&RFC_EXAMPLE), Some(RFC_MS));
}

#[test]
fn the_example_of_the_rfc_is_made_from_its_time_and_random_bits() {
    // The first ns whose fraction is 0xCC3 / 4096 of a ms.
    let fraction_ns = (RFC_RAND_A * NS_PER_MS).div_ceil(4096);
    let uuid = Generator::new().next(RFC_MS * NS_PER_MS + fraction_ns, RFC_RAND_B);
    assert_eq!(uuid, RFC_EXAMPLE);
}

#[test]
fn the_fraction_covers_the_whole_millisecond() {
    let fraction = |ns| rand_a(&Generator::new().next(RFC_MS * NS_PER_MS + ns, 0));
    assert_eq!(fraction(0), 0);
    assert_eq!(fraction(244), 0);
    assert_eq!(fraction(245), 1);
    assert_eq!(fraction(500_000), 2_048);
    assert_eq!(fraction(999_999), 4_095);
}

#[test]
fn other_versions_and_variants_carry_no_time() {
    let with = |byte: usize, value: u8| {
        let mut uuid = RFC_EXAMPLE;
        uuid[byte] = value;
        timestamp_ms(&uuid)
    };
    for version in (0..16).filter(|&version| version != 7) {
        assert_eq!(with(6, version << 4 | 0x0c), None, "version {version}");
    }
    for variant in [0x18, 0x58, 0xd8] {
        assert_eq!(with(8, variant), None, "variant byte {variant:x}");
    }
    assert_eq!(with(8, 0xb8), Some(RFC_MS));
    assert_eq!(timestamp_ms(&[0; 16]), None);
    assert_eq!(timestamp_ms(&[0xff; 16]), None);
}

#[test]
fn a_fresh_tick_takes_61_random_bits_and_a_standing_one_44() {
    let mut generator = Generator::new();
    let all = u64::MAX >> 2;
    let first = generator.next(RFC_MS * NS_PER_MS, all);
    assert_eq!(rand_b(&first), all >> 1, "all ones but the room to count");
    let second = generator.next(RFC_MS * NS_PER_MS, 0);
    assert_eq!(rand_b(&second) >> 44, (1 << 17), "the counter went up by one");
    assert_eq!(rand_b(&second) & RANDOM_MASK, 0, "the rest is random anew");
}

#[test]
fn a_full_counter_moves_the_tick_by_one_and_starts_again() {
    let mut generator = Generator::new();
    let now_ns = RFC_MS * NS_PER_MS;
    let mut last = generator.next(now_ns, 0);
    for _ in 0..COUNTER_MAX {
        last = generator.next(now_ns, 0);
    }
    assert_eq!((rand_a(&last), rand_b(&last) >> 44), (0, COUNTER_MAX));
    let over = generator.next(now_ns, 5 << 44);
    assert_eq!((ms(&over), rand_a(&over), rand_b(&over) >> 44), (RFC_MS, 1, 5));
}

/// Three million ids from one reading: a tenth of a second of minting without a clock, and far within 1 ms.
#[test]
fn a_frozen_clock_is_not_left_behind_by_a_millisecond() {
    let mut generator = Generator::new();
    let now_ns = RFC_MS * NS_PER_MS;
    let mut last = [0; 16];
    for i in 0..3_000_000_u64 {
        let uuid = generator.next(now_ns, i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert!(uuid > last);
        last = uuid;
    }
    assert_eq!(ms(&last), RFC_MS);
    assert!(
        rand_a(&last) < 3_000_000 / 131_072 + 1,
        "one tick per 131,072 ids at the most"
    );
}

#[test]
fn a_clock_that_went_back_is_waited_for() {
    let mut generator = Generator::new();
    let now_ns = RFC_MS * NS_PER_MS;
    let before = generator.next(now_ns, 7);
    for back_ns in [1, NS_PER_MS, 3_600_000 * NS_PER_MS, now_ns] {
        let after = generator.next(now_ns - back_ns, 7);
        assert!(after > before);
        assert_eq!(
            (ms(&after), rand_a(&after)),
            (RFC_MS, 0),
            "on from the last, not ahead of it"
        );
    }
    let caught_up = generator.next(now_ns + NS_PER_MS, 7);
    assert_eq!(ms(&caught_up), RFC_MS + 1);
}

#[test]
fn the_ends_of_time_are_taken() {
    let mut generator = Generator::new();
    let zero = generator.next(0, 0);
    let last = generator.next(u64::MAX, 0);
    let after = generator.next(u64::MAX, 0);
    assert!(zero < last && last < after);
    assert_eq!(timestamp_ms(&last), Some(u64::MAX / NS_PER_MS));
}

#[test]
fn the_pool_gives_each_byte_once_and_wipes_it() {
    let mut pool = RandomPool::new();
    assert_eq!(pool.take(), None);
    let mut byte = 0_u8;
    pool.refill(|bytes| {
        for b in bytes.iter_mut() {
            byte = byte.wrapping_mul(5).wrapping_add(3);
            *b = byte | 1;
        }
    });
    let mut words = Vec::new();
    while let Some(word) = pool.take() {
        words.push(word);
        assert!(
            pool.bytes[pool.left..].iter().all(|&b| b == 0),
            "used bytes are wiped"
        );
        assert!(
            pool.bytes[..pool.left].iter().all(|&b| b != 0),
            "the others are untouched"
        );
    }
    assert_eq!(words.len(), RANDOM_POOL_LEN / 8);
    assert_eq!(pool.bytes, [0; RANDOM_POOL_LEN]);
    assert_eq!(pool.take(), None);
}

#[test]
fn a_cleared_pool_and_a_failed_refill_are_empty() {
    let mut pool = RandomPool::new();
    pool.refill(|bytes| bytes.fill(7));
    pool.clear();
    assert_eq!(pool.take(), None);
    assert_eq!(pool.bytes, [0; RANDOM_POOL_LEN]);

    let failed = pool.try_refill(|bytes| {
        bytes.fill(7);
        Err("no entropy")
    });
    assert_eq!(failed, Err("no entropy"));
    assert_eq!(pool.take(), None);
    assert_eq!(pool.bytes, [0; RANDOM_POOL_LEN]);

    let filled: Result<(), ()> = pool.try_refill(|bytes| {
        bytes.fill(7);
        Ok(())
    });
    assert_eq!((filled, pool.take()), (Ok(()), Some(0x0707_0707_0707_0707)));
}

#[test]
fn the_pool_is_never_printed() {
    let mut pool = RandomPool::new();
    pool.refill(|bytes| bytes.fill(0xab));
    assert_eq!(format!("{pool:?}"), "RandomPool { left: 4096, .. }");
}

/// A clock as it really moves: readings some ns apart, now and then frozen, or stepped either way.
fn clock_trace() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![
        5 => 0..2_000_i64,
        3 => Just(0_i64),
        1 => -50_000_000..50_000_000_i64,
        1 => -4_000_000_000_000..4_000_000_000_000_i64,
    ];
    (0..=u64::MAX, prop::collection::vec(step, 1..400)).prop_map(|(start_ns, steps)| {
        steps
            .iter()
            .scan(start_ns, |now_ns, &step| {
                *now_ns = now_ns.saturating_add_signed(step);
                Some(*now_ns)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn ids_rise_and_keep_their_form_whatever_the_clock_does(
        trace in clock_trace(), random in prop::collection::vec(any::<u64>(), 400),
    ) {
        let mut generator = Generator::new();
        let (mut last, mut seen, mut latest_ns) = ([0; 16], HashSet::new(), 0);
        for (&now_ns, &random) in trace.iter().zip(&random) {
            let uuid = generator.next(now_ns, random);
            prop_assert!(uuid > last);
            prop_assert!(seen.insert(uuid));
            prop_assert_eq!(uuid[6] >> 4, 7);
            prop_assert_eq!(uuid[8] >> 6, 0b10);
            latest_ns = latest_ns.max(now_ns);
            // Never ahead of the latest reading by a ms, and never behind this one.
            prop_assert!(ms(&uuid) <= latest_ns / NS_PER_MS + 1);
            prop_assert!(ms(&uuid) >= now_ns / NS_PER_MS);
            last = uuid;
        }
    }

    /// From any state that a clock which never goes back can lead to.
    #[test]
    fn the_lead_over_a_clock_that_never_goes_back_is_below_a_millisecond(
        now_ns in 0..u64::MAX / 2, steps in prop::collection::vec(0..3_u64, 1..300),
        counters in prop::collection::vec(any::<u64>(), 300),
    ) {
        let (mut generator, mut now_ns) = (Generator::new(), now_ns);
        for (step, random) in steps.iter().zip(counters) {
            now_ns += step * 100;
            // The worst that 131,071 calls at this reading could have done.
            generator.counter = generator.counter.max(COUNTER_MAX - 1);
            let uuid = generator.next(now_ns, random);
            prop_assert!(ms(&uuid) <= now_ns / NS_PER_MS + 1);
        }
    }

    #[test]
    fn two_generators_with_the_same_clock_differ_by_their_random_bits(
        trace in clock_trace(), a in prop::collection::vec(any::<u64>(), 400),
        b in prop::collection::vec(any::<u64>(), 400),
    ) {
        let (mut one, mut other) = (Generator::new(), Generator::new());
        let mut seen = HashSet::new();
        for ((&now_ns, &a), &b) in trace.iter().zip(&a).zip(&b) {
            prop_assert!(seen.insert(one.next(now_ns, a)));
            prop_assert!(seen.insert(other.next(now_ns, b)));
        }
    }
}

#[test]
fn boundary_uuids_split_as_the_times_do() {
    for at_us in [0, 1, 999, 1_000, 1_645_557_742_000_001] {
        let (lowest, highest) = (lowest_at(at_us), highest_at(at_us));
        let time_us = |uuid| timestamp_ms(uuid).unwrap() as i64 * 1_000;
        assert!(
            time_us(&lowest) >= at_us && time_us(&lowest) < at_us + 1_000,
            "{at_us}"
        );
        assert!(
            time_us(&highest) <= at_us && time_us(&highest) > at_us - 1_000,
            "{at_us}"
        );
        assert!(lowest[6..] == [0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert!(highest[6..] == [0x7f, 0xff, 0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }
    assert_eq!(lowest_at(i64::MIN), lowest_at(0));
    assert_eq!(highest_at(i64::MIN), lowest_at(0));
    assert_eq!(timestamp_ms(&highest_at(i64::MAX)), Some((1 << 48) - 1));
    assert_eq!(lowest_at(i64::MAX), highest_at(i64::MAX));
}

#[test]
fn a_uuid_of_the_past_carries_its_time_and_the_random_bits() {
    let uuid = at(1_645_557_742_123_500, u64::MAX).unwrap();
    assert_eq!(timestamp_ms(&uuid), Some(1_645_557_742_123));
    assert_eq!(rand_a(&uuid), 2_048);
    assert_eq!(rand_b(&uuid), (1 << 62) - 1);
    assert!(lowest_at(1_645_557_742_123_000) < uuid && uuid <= highest_at(1_645_557_742_123_000));
    assert_eq!(at(-1, 0), None);
    assert_eq!(at(i64::MAX, 0).is_none(), i64::MAX as u64 / 1_000 > (1 << 48) - 1);
}

#[test]
fn a_shift_moves_the_time_and_nothing_else() {
    let hour_us = 3_600_000_000;
    let later = shifted(&RFC_EXAMPLE, hour_us).unwrap();
    assert_eq!(timestamp_ms(&later), Some(RFC_MS + 3_600_000));
    assert_eq!((rand_a(&later), rand_b(&later)), (RFC_RAND_A, RFC_RAND_B));
    assert_eq!(shifted(&later, -hour_us), Some(RFC_EXAMPLE));
    // Half a millisecond is 2,048 of its 4,096 parts.
    assert_eq!(rand_a(&shifted(&RFC_EXAMPLE, -500).unwrap()), RFC_RAND_A - 2_048);
}

#[test]
fn a_shift_out_of_the_range_is_refused() {
    let (first, last) = (lowest_at(0), highest_at(i64::MAX));
    assert_eq!(shifted(&first, 0), Some(first));
    assert_eq!(shifted(&first, -1), None);
    assert_eq!(shifted(&last, 0), Some(last));
    assert_eq!(shifted(&last, 1), None);
    assert_eq!(shifted(&first, i64::MAX), None);
    assert_eq!(shifted(&last, i64::MIN), None);
}

proptest! {
    #[test]
    fn ids_that_rise_still_do_when_shifted(
        now_ns in 0..4_000_000_000_000_000_000_u64, steps in prop::collection::vec(0..2_000_u64, 2..50),
        delta_us in -1_000_000_000_000_i64..1_000_000_000_000,
    ) {
        let mut generator = Generator::new();
        let mut now_ns = now_ns;
        let mut last = None;
        for step in steps {
            now_ns += step;
            let moved = shifted(&generator.next(now_ns, step), delta_us);
            if let (Some(last), Some(moved)) = (last, moved) {
                prop_assert!(last < moved);
            }
            last = moved;
        }
    }
}
