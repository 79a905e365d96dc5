//! Texts of formats and plans: refused, or their own canonical form; and no accepted switch lets ids of two formats
//! meet.
#![no_main]

use arbitrary::Arbitrary;
use idgen_core::clock::UnixMs;
use idgen_core::format::register::Widths;
use idgen_core::format::{CellFormat, Format, FormatPlan};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    text: String,
    epoch_ms: u64,
    widths: [u8; 6],
    region: Option<u8>,
    now_ms: u64,
    ahead_ms: u32,
}

fn text_is_canonical(text: &str) {
    if let Ok(plan) = text.parse::<FormatPlan>() {
        assert_eq!(plan.to_string(), text);
    }
    if let Ok(format) = text.parse::<Format>() {
        assert_eq!(format.to_string(), text);
    }
}

fn registered(input: &Input) -> Option<Format> {
    let [sign, ts, region, version, node, seq] = input.widths.map(u32::from);
    let widths = Widths {
        sign,
        ts,
        region,
        version,
        node,
        seq,
    };
    Format::register("mine", UnixMs(input.epoch_ms), widths, false).ok()
}

/// Unix µs of a moment that a format has.
fn us(at: UnixMs) -> i64 {
    i64::try_from(at.0).expect("formats end far below 2^63 ms") * 1_000
}

fn formats_never_meet(from: CellFormat, to: CellFormat, input: &Input) {
    let (now, at) = (
        UnixMs(input.now_ms),
        UnixMs(input.now_ms.saturating_add(u64::from(input.ahead_ms))),
    );
    let Ok(plan) = FormatPlan::of(from).switched_to(to, at, now) else {
        return;
    };
    text_is_canonical(&plan.to_string());
    let last = from.format().highest_id_at(us(at) - 1);
    let first = to.format().lowest_id_at(us(at));
    assert!(first > last, "{plan}: {first} is not above {last}");
}

fuzz_target!(|input: Input| {
    text_is_canonical(&input.text);
    let classic: CellFormat = "classic".parse().expect("compiled in");
    let Some(format) = registered(&input) else { return };
    text_is_canonical(&format.to_string());
    if let Ok(mine) = CellFormat::new(format, input.region.map(u64::from)) {
        formats_never_meet(classic, mine, &input);
        formats_never_meet(mine, classic, &input);
    }
});
