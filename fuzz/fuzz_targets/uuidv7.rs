//! UUIDs: reading agrees with making, bounds split as times do, and a generator rises whatever its clock does.
#![no_main]

use arbitrary::Arbitrary;
use idgen_core::uuid;
use idgen_core::uuidv7::{Generator, at, highest_at, lowest_at, shifted, timestamp_ms};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    bytes: [u8; 16],
    at_us: i64,
    delta_us: i64,
    random: u64,
    clock_ns: Vec<u64>,
}

fn reading(bytes: &[u8; 16]) {
    let ms = timestamp_ms(bytes);
    assert_eq!(ms.is_some(), uuid::version(bytes) == Some(7));
    if let Some(ms) = ms {
        assert_eq!(uuid::timestamp_us(bytes), i64::try_from(ms * 1_000).ok());
    }
}

fn making(input: &Input) {
    let (lowest, highest) = (lowest_at(input.at_us), highest_at(input.at_us));
    for bound in [lowest, highest] {
        assert_eq!(uuid::version(&bound), Some(7));
    }
    if let Some(made) = at(input.at_us, input.random) {
        assert_eq!(
            timestamp_ms(&made).map(|ms| ms as i64),
            Some(input.at_us.div_euclid(1_000))
        );
        assert!(made <= highest);
        // Only a whole millisecond's own ids are above its lower bound; past the last one the bound is the last id.
        assert_eq!(made >= lowest, input.at_us % 1_000 == 0 || made == lowest);
    }
    if let Some(ms) = timestamp_ms(&input.bytes) {
        let time_us = ms as i64 * 1_000;
        let in_range = (0..=((1_i64 << 48) - 1) * 1_000).contains(&input.at_us);
        if in_range {
            assert_eq!(input.bytes >= lowest, time_us >= input.at_us);
            assert_eq!(input.bytes <= highest, time_us <= input.at_us);
        }
    }
}

fn rising(input: &Input) {
    let mut generator = Generator::new();
    let (mut last, mut last_moved) = (None, None);
    for now_ns in &input.clock_ns {
        let next = generator.next(*now_ns, input.random);
        assert_eq!(uuid::version(&next), Some(7));
        assert!(last < Some(next), "rises");
        last = Some(next);
        let moved = shifted(&next, input.delta_us);
        if let (Some(before), Some(now)) = (last_moved, moved) {
            assert!(before < now, "rises when shifted");
        }
        last_moved = moved;
    }
}

fuzz_target!(|input: Input| {
    reading(&input.bytes);
    making(&input);
    rising(&input);
});
