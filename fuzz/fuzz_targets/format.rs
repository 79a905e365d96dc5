//! The compiled-in snowflake formats: parse and compose undo each other, and bounds split as times do.
#![no_main]

use arbitrary::Arbitrary;
use idgen_core::clock::UnixMs;
use idgen_core::format::{ALL, Format, Parts};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    id: i64,
    unix_ms: u64,
    region: Option<u64>,
    version: Option<u64>,
    node: u64,
    seq: u64,
    is_shard: bool,
    at_us: i64,
}

fn round_trips(format: &Format, input: &Input) {
    if let Some(parts) = format.parse(input.id) {
        assert_eq!(format.compose(parts), Ok(input.id));
    }
    let parts = Parts {
        unix_ms: UnixMs(input.unix_ms),
        region: input.region,
        version: input.version,
        node: input.node,
        seq: input.seq,
        is_shard: input.is_shard,
    };
    match format.compose(parts) {
        Ok(id) => {
            assert!(id >= 0);
            assert_eq!(format.parse(id), Some(parts));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn bounds_split(format: &Format, input: &Input) {
    let (lowest, highest) = (
        format.lowest_id_at(input.at_us),
        format.highest_id_at(input.at_us),
    );
    assert!(lowest >= 0 && highest >= -1);
    if let Some(parts) = format.parse(input.id) {
        let time_us = i64::try_from(parts.unix_ms.0).expect("far below 2^63") * 1_000;
        // Past the end there is no id, so nothing is at or above that bound.
        let last_us = i64::try_from(format.last_ms().0).expect("far below 2^63") * 1_000;
        if input.at_us <= last_us {
            assert_eq!(input.id >= lowest, time_us >= input.at_us);
        }
        assert_eq!(input.id <= highest, time_us <= input.at_us);
    }
}

fuzz_target!(|input: Input| {
    for format in ALL {
        round_trips(format, &input);
        bounds_split(format, &input);
    }
});
