use super::*;
use proptest::prelude::*;

fn worker(unix_ms: u64, node: u64, seq: u64) -> Parts {
    Parts {
        unix_ms: UnixMs(unix_ms),
        region: None,
        version: None,
        node,
        seq,
        is_shard: false,
    }
}

fn regional(unix_ms: u64, region: u64, version: u64, node: u64, seq: u64) -> Parts {
    Parts {
        region: Some(region),
        version: Some(version),
        ..worker(unix_ms, node, seq)
    }
}

fn shard(unix_ms: u64, node: u64, seq: u64) -> Parts {
    Parts {
        is_shard: true,
        ..worker(unix_ms, node, seq)
    }
}

/// The largest and the smallest value of each field that the format has.
fn filled(format: &Format, unix_ms: UnixMs, high: bool) -> Parts {
    let fill = |bits: u32| if high { mask(bits) } else { 0 };
    Parts {
        unix_ms,
        region: (format.region_bits > 0).then(|| fill(format.region_bits)),
        version: (format.version_bits > 0).then(|| fill(format.version_bits)),
        node: fill(format.node_bits),
        seq: fill(format.seq_bits),
        is_shard: format.is_shard,
    }
}

/// 2026-07-04T12:34:56.789Z.
const GOLDEN_MS: u64 = 1_783_168_496_789;

/// CosId#129, PR#1078: seconds taken for ms moved the end of a layout by decades.
#[test]
fn golden_ids_per_layout() {
    let classic = CLASSIC.compose(worker(GOLDEN_MS, 777, 1234));
    assert_eq!(classic, Ok(861_223_557_172_073_682));
    assert_eq!(
        CLASSIC.parse(861_223_557_172_073_682),
        Some(worker(GOLDEN_MS, 777, 1234))
    );

    let id = REGIONAL.compose(regional(GOLDEN_MS, 2, 1, 777, 345));
    assert_eq!(id, Ok(861_223_557_171_909_465));
    assert_eq!(
        REGIONAL.parse(861_223_557_171_909_465),
        Some(regional(GOLDEN_MS, 2, 1, 777, 345))
    );

    let id = SHARDED.compose(shard(GOLDEN_MS, 5432, 678));
    assert_eq!(id, Ok(1_722_447_114_343_342_758));
    assert_eq!(
        SHARDED.parse(1_722_447_114_343_342_758),
        Some(shard(GOLDEN_MS, 5432, 678))
    );
}

#[test]
fn golden_first_and_last_date_per_layout() {
    let ends = [3_776_860_055_551, 3_776_860_055_551, 2_677_348_427_775];
    for (format, end_ms) in ALL.iter().zip(ends) {
        assert_eq!(format.epoch, UnixMs(1_577_836_800_000), "{}", format.name);
        assert_eq!(format.last_ms(), UnixMs(end_ms), "{}", format.name);
        let first = filled(format, format.epoch, false);
        assert_eq!(format.compose(first), Ok(0));
        assert_eq!(format.parse(0), Some(first));
        let last = filled(format, format.last_ms(), true);
        assert_eq!(
            format.compose(last),
            Ok(i64::MAX),
            "{}: the life ends with the positive ids",
            format.name
        );
        assert_eq!(format.parse(i64::MAX), Some(last));
    }
}

/// The worked example of Instagram's post: 1387263000 ms after its epoch, shard 1341, sequence 5001 % 1024.
#[test]
fn sharded_is_the_published_layout() {
    let parts = shard(EPOCH_2020.0 + 1_387_263_000, 1341, 5001 % 1024);
    assert_eq!(SHARDED.compose(parts), Ok(11_637_205_501_278_089));
}

/// A public post of 2022-06-28T16:07:40.105Z: machine 378, sequence 0, Twitter's epoch.
#[test]
fn classic_is_the_published_layout() {
    let twitter = Format {
        epoch: UnixMs(1_288_834_974_657),
        ..CLASSIC
    };
    assert_eq!(
        twitter.parse(1_541_815_603_606_036_480),
        Some(worker(1_656_432_460_105, 378, 0))
    );
}

/// baidu/uid-generator#100, #29, #31: time bits ran out unchecked and ids went negative.
#[test]
fn one_ms_past_the_end_is_an_error_never_a_negative_id() {
    for format in ALL {
        let last = format.last_ms();
        assert!(format.compose(filled(format, last, true)).is_ok_and(|id| id > 0));
        for at in [last.saturating_add(1), UnixMs(u64::MAX)] {
            let error = FormatError::EndOfEpoch { at, last };
            assert_eq!(format.tick(at), Err(error));
            assert_eq!(format.compose(filled(format, at, false)), Err(error));
        }
    }
}

#[test]
fn one_ms_before_the_epoch_is_an_error() {
    for format in ALL {
        for at in [format.epoch.saturating_sub(1), UnixMs(0)] {
            let error = FormatError::BeforeEpoch {
                at,
                epoch: format.epoch,
            };
            assert_eq!(format.tick(at), Err(error));
            assert_eq!(format.compose(filled(format, at, false)), Err(error));
        }
    }
}

/// cockroach#108050, #47470: a node id above its bits was XORed into the time.
#[test]
fn a_field_above_its_bits_is_refused() {
    let too_large = |field, value, max| Err(FormatError::TooLarge { field, value, max });
    assert_eq!(
        CLASSIC.compose(worker(GOLDEN_MS, 1024, 0)),
        too_large(Field::Node, 1024, 1023)
    );
    assert_eq!(
        CLASSIC.compose(worker(GOLDEN_MS, 0, 4096)),
        too_large(Field::Seq, 4096, 4095)
    );
    assert_eq!(
        CLASSIC.compose(worker(GOLDEN_MS, u64::MAX, 0)),
        too_large(Field::Node, u64::MAX, 1023)
    );
    assert_eq!(
        SHARDED.compose(shard(GOLDEN_MS, 8192, 0)),
        too_large(Field::Node, 8192, 8191)
    );
    assert_eq!(
        SHARDED.compose(shard(GOLDEN_MS, 0, 1024)),
        too_large(Field::Seq, 1024, 1023)
    );
    assert_eq!(
        REGIONAL.compose(regional(GOLDEN_MS, 4, 0, 0, 0)),
        too_large(Field::Region, 4, 3)
    );
    assert_eq!(
        REGIONAL.compose(regional(GOLDEN_MS, 0, 2, 0, 0)),
        too_large(Field::Version, 2, 1)
    );
    assert_eq!(
        REGIONAL.compose(regional(GOLDEN_MS, 0, 0, 1024, 0)),
        too_large(Field::Node, 1024, 1023)
    );
    assert_eq!(
        REGIONAL.compose(regional(GOLDEN_MS, 0, 0, 0, 512)),
        too_large(Field::Seq, 512, 511)
    );
}

#[test]
fn fields_must_match_the_layout() {
    let with_region = Parts {
        region: Some(0),
        ..worker(GOLDEN_MS, 1, 1)
    };
    assert_eq!(
        CLASSIC.compose(with_region),
        Err(FormatError::Unexpected(Field::Region))
    );
    let with_version = Parts {
        version: Some(0),
        ..worker(GOLDEN_MS, 1, 1)
    };
    assert_eq!(
        CLASSIC.compose(with_version),
        Err(FormatError::Unexpected(Field::Version))
    );
    assert_eq!(
        REGIONAL.compose(worker(GOLDEN_MS, 1, 1)),
        Err(FormatError::Missing(Field::Region))
    );
    let no_version = Parts {
        version: None,
        ..regional(GOLDEN_MS, 0, 0, 1, 1)
    };
    assert_eq!(
        REGIONAL.compose(no_version),
        Err(FormatError::Missing(Field::Version))
    );
    assert_eq!(
        CLASSIC.compose(shard(GOLDEN_MS, 1, 1)),
        Err(FormatError::WrongKind)
    );
    assert_eq!(
        SHARDED.compose(worker(GOLDEN_MS, 1, 1)),
        Err(FormatError::WrongKind)
    );
}

#[test]
fn a_negative_number_is_no_id() {
    for format in ALL {
        for id in [-1, i64::MIN, i64::MIN + 1] {
            assert_eq!(format.parse(id), None, "{} {id}", format.name);
        }
    }
}

#[test]
fn a_number_past_the_end_of_a_shorter_life_is_no_id() {
    let short = Format {
        last_tick: LIFE_MS_MIN - 1,
        ..CLASSIC
    };
    assert!(short.is_sound());
    let last = i64::try_from(LIFE_MS_MIN << short.ts_shift()).unwrap() - 1;
    assert_eq!(short.parse(last), Some(filled(&short, short.last_ms(), true)));
    assert_eq!(short.parse(last + 1), None);
}

/// yiwen-ai/xid-ts#13: a wrong shift left 254 distinct ids. Every bit belongs to exactly one field.
#[test]
fn every_bit_belongs_to_one_field() {
    for format in ALL {
        let fields = [
            mask(format.seq_bits),
            mask(format.node_bits) << format.node_shift(),
            mask(format.version_bits) << format.version_shift(),
            mask(format.region_bits) << format.region_shift(),
            mask(format.ts_bits) << format.ts_shift(),
        ];
        let all = fields.iter().fold(0_u64, |all, field| {
            assert_eq!(all & field, 0, "{}: fields overlap", format.name);
            all | field
        });
        assert_eq!(all.leading_zeros(), u32::from(format.has_sign), "{}", format.name);
        assert_eq!(
            all.count_ones(),
            64 - u32::from(format.has_sign),
            "{}",
            format.name
        );
    }
}

/// The same as above, seen from outside: a run of 1 M ids holds every node and every sequence.
#[test]
fn a_million_ids_have_full_entropy_per_field() {
    for format in ALL {
        let mut ids = std::collections::HashSet::new();
        let (mut nodes, mut seqs) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        for i in 0..1_000_000_u64 {
            let mut parts = filled(format, UnixMs(GOLDEN_MS + (i >> 20)), false);
            parts.seq = i & format.seq_max();
            parts.node = (i >> format.seq_bits) & format.node_max();
            parts.unix_ms = parts
                .unix_ms
                .saturating_add(i >> (format.seq_bits + format.node_bits));
            let id = format.compose(parts).unwrap();
            ids.insert(id);
            let parsed = format.parse(id).unwrap();
            nodes.insert(parsed.node);
            seqs.insert(parsed.seq);
        }
        assert_eq!(ids.len(), 1_000_000, "{}", format.name);
        assert_eq!(seqs.len() as u64, format.capacity_per_ms(), "{}", format.name);
        let nodes_used = (1_000_000_u64.div_ceil(format.capacity_per_ms())).min(format.node_max() + 1);
        assert_eq!(nodes.len() as u64, nodes_used, "{}", format.name);
    }
}

/// ppn-systems/nalix#310: the reported capacity must be the layout's.
#[test]
fn capacity_is_the_layouts() {
    let capacities: Vec<_> = ALL.iter().map(Format::capacity_per_ms).collect();
    assert_eq!(capacities, [4096, 512, 1024]);
    let nodes: Vec<_> = ALL.iter().map(Format::node_max).collect();
    assert_eq!(nodes, [1023, 1023, 8191]);
    let shifts: Vec<_> = ALL.iter().map(|f| (f.node_shift(), f.ts_shift())).collect();
    assert_eq!(shifts, [(12, 22), (9, 22), (10, 23)]);
}

#[test]
fn names_are_found_exactly() {
    for format in ALL {
        assert_eq!(by_name(format.name.as_str()), Some(format));
    }
    for name in ["", "Classic", "classic ", "clas", "instagram"] {
        assert_eq!(by_name(name), None, "{name:?}");
    }
}

#[test]
fn unsound_layouts_are_recognised() {
    type Change = fn(&mut Format);
    let unsound: [(&str, Change); 12] = [
        ("sums to 63", |f| f.node_bits = 9),
        ("sums to 65", |f| (f.node_bits, f.last_tick) = (11, (1 << 40) - 1)),
        ("42 ts", |f| (f.ts_bits, f.node_bits) = (42, 9)),
        ("13 seq", |f| (f.seq_bits, f.node_bits) = (13, 9)),
        ("no node", |f| (f.node_bits, f.region_bits) = (0, 10)),
        ("no seq", |f| (f.seq_bits, f.region_bits) = (0, 12)),
        ("no ts", |f| {
            (f.ts_bits, f.region_bits, f.last_tick, f.has_sign) = (0, 42, 0, false)
        }),
        ("life past its bits", |f| f.last_tick = 1 << 41),
        ("negative ids", |f| {
            *f = Format {
                last_tick: 1 << 40,
                ..SHARDED
            }
        }),
        ("a short life", |f| f.last_tick = LIFE_MS_MIN - 2),
        ("an epoch past all time", |f| f.epoch = UnixMs(u64::MAX - 1)),
        ("widths that overflow", |f| {
            (f.region_bits, f.version_bits) = (u32::MAX, 1)
        }),
    ];
    for (why, change) in unsound {
        let mut format = CLASSIC;
        change(&mut format);
        assert!(!format.is_sound(), "{why}");
    }
}

#[test]
fn errors_read_as_sentences() {
    let error = CLASSIC.compose(worker(GOLDEN_MS, 1024, 0)).unwrap_err();
    assert_eq!(error.to_string(), "node 1024 is larger than 1023");
    let error = CLASSIC.tick(UnixMs(5)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "time 5 ms lies before the epoch of the format, 1577836800000 ms"
    );
}

fn any_parts() -> impl Strategy<Value = (&'static Format, Parts)> {
    (0..ALL.len(), any::<[u64; 5]>()).prop_map(|(i, [ts, region, version, node, seq])| {
        let format = &ALL[i];
        let parts = Parts {
            unix_ms: format.unix_ms(ts % (format.last_tick + 1)),
            region: (format.region_bits > 0).then_some(region & mask(format.region_bits)),
            version: (format.version_bits > 0).then_some(version & mask(format.version_bits)),
            node: node & format.node_max(),
            seq: seq & format.seq_max(),
            is_shard: format.is_shard,
        };
        (format, parts)
    })
}

proptest! {
    #[test]
    fn parse_undoes_compose((format, parts) in any_parts()) {
        let id = format.compose(parts).unwrap();
        prop_assert!(id >= 0);
        prop_assert_eq!(format.parse(id), Some(parts));
    }

    #[test]
    fn compose_undoes_parse(i in 0..ALL.len(), id in 0..=i64::MAX) {
        let parts = ALL[i].parse(id).unwrap();
        prop_assert_eq!(ALL[i].compose(parts), Ok(id));
    }

    #[test]
    fn a_later_millisecond_is_a_larger_id(
        (format, parts) in any_parts(), ahead_ms in 1..1_000_000_u64, high: bool,
    ) {
        let later = filled(format, parts.unix_ms.saturating_add(ahead_ms), high);
        if let Ok(id) = format.compose(later) {
            prop_assert!(id > format.compose(parts).unwrap());
        }
    }

    #[test]
    fn no_time_wraps(i in 0..ALL.len(), at: u64) {
        let format = &ALL[i];
        match format.tick(UnixMs(at)) {
            Ok(tick) => prop_assert_eq!(format.unix_ms(tick), UnixMs(at)),
            Err(FormatError::BeforeEpoch { .. }) => prop_assert!(at < format.epoch.0),
            Err(_) => prop_assert!(at > format.last_ms().0),
        }
    }

    #[test]
    fn whatever_compose_accepts_parse_gives_back(
        i in 0..ALL.len(), unix_ms: u64, fields in any::<[u64; 4]>(), bits in 1..64_u32, shape in 0..8_u8,
    ) {
        let format = &ALL[i];
        let [region, version, node, seq] = fields.map(|field| field >> bits);
        let parts = Parts {
            unix_ms: UnixMs(format.epoch.0 + (unix_ms >> 22)),
            region: (shape & 1 > 0).then_some(region),
            version: (shape & 2 > 0).then_some(version),
            node,
            seq,
            is_shard: shape & 4 > 0,
        };
        if let Ok(id) = format.compose(parts) {
            prop_assert_eq!(format.parse(id), Some(parts));
        }
    }
}

/// The bounds and what they bound: a bound is right where it splits ids exactly as their times do.
#[test]
fn boundary_ids_split_as_the_times_do() {
    for format in ALL {
        let time_us = |id| format.parse(id).unwrap().unix_ms.0 as i64 * 1_000;
        let epoch_us = format.epoch.0 as i64 * 1_000;
        for at_us in [
            epoch_us + 1,
            epoch_us + 999,
            epoch_us + 1_000,
            epoch_us + 86_400_000_000 + 1,
        ] {
            let (lowest, highest) = (format.lowest_id_at(at_us), format.highest_id_at(at_us));
            assert!(
                time_us(lowest) >= at_us && time_us(lowest - 1) < at_us,
                "{} {at_us}",
                format.name
            );
            assert!(
                time_us(highest) <= at_us && time_us(highest + 1) > at_us,
                "{} {at_us}",
                format.name
            );
        }
    }
}

#[test]
fn boundary_ids_are_clamped_to_the_life_of_the_format() {
    for format in ALL {
        for before in [i64::MIN, -1, 0, format.epoch.0 as i64 * 1_000 - 1] {
            assert_eq!(
                (format.lowest_id_at(before), format.highest_id_at(before)),
                (0, -1),
                "{before}"
            );
        }
        assert_eq!(format.lowest_id_at(format.epoch.0 as i64 * 1_000), 0);
        let last_id = format.last_tick << format.ts_shift() | mask(format.ts_shift());
        for after in [i64::MAX, (format.last_ms().0 as i64 + 1) * 1_000] {
            assert_eq!(format.lowest_id_at(after), i64::MAX);
            assert_eq!(format.highest_id_at(after), last_id as i64);
        }
    }
}
