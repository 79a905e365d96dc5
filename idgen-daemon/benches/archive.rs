//! How fast messages become files of the archive: `make bench SUITE=archive`.
//!
//! Half a million events as they come from a topic are read, sorted, written as Parquet and read back, as the archiver does
//! before it puts a file; and beside that, in the same run, the same events are written as lines of JSON and compressed as hard,
//! which nobody could read a column of. The number to hold is rows per second; the ratio says what the machine has to do with it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends, as a test does"
)]

use idgen_daemon::archive::pack;
use idgen_daemon::archive::parquet::{Message, Spot};
use idgen_daemon::event::{Event, EventToken, SCHEMA};
use serde_json::value::RawValue;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uuid::Uuid;

const ROWS: i64 = 500_000;
const ROUNDS: usize = 5;
/// Rows per second, of the whole of it.
const HOLD: f64 = 100_000.0;
const ZSTD_LEVEL: i32 = 3;

fn event(id: i64) -> Event {
    Event {
        schema: SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(0x0b1c_9d3e_5a6f_4f70_8a91_b2c3_d4e5_f607),
        event_id: id,
        at: format!(
            "2026-04-03T10:{:02}:{:02}.{:06}Z",
            id / 60_000 % 60,
            id / 1_000 % 60,
            id * 7 % 1_000_000
        ),
        service: "billing".into(),
        space: Uuid::from_u128(0x8f14_e45f_ceea_467f_a0e6_7d2f_3c1b_9a55),
        tag: format!("tag {}", id * 31 % 1_000),
        tag_seq: id / 1_000,
        lo: Some(id * 1_000 + 1),
        hi: Some(id * 1_000 + 1_000),
        token: Some(EventToken {
            epoch: 1,
            revision: id / 3,
        }),
        tx: Some((id + 770).to_string()),
        stub: None,
        payload: RawValue::from_string("{\"step\": 1000}".into()).unwrap(),
    }
}

fn values() -> Vec<Vec<u8>> {
    (0..ROWS).map(|id| event(id).to_json().unwrap()).collect()
}

fn messages(values: &[Vec<u8>]) -> Vec<Message> {
    let spots = (0..).map(|offset| Spot {
        partition: (offset % 12) as i32,
        offset: offset / 12,
        at_ms: 1_775_210_000_000 + offset / 1_000,
    });
    spots
        .zip(values)
        .map(|(spot, value)| Message::read(spot, Some(1), None, Some(value)))
        .collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let made = work();
    (begun.elapsed(), made)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn main() -> ExitCode {
    let values = values();
    let (mut reading, mut packing, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let (mut parquet_bytes, mut json_bytes) = (0, 0);
    for _ in 0..ROUNDS {
        let (time, read) = timed(|| messages(&values));
        reading.push(time);
        let (time, packed) = timed(|| pack(read, "idgen.audit", 1, None).expect("files"));
        packing.push(time);
        parquet_bytes = packed.iter().map(|file| file.entry.bytes).sum::<u64>();
        assert_eq!(
            packed.iter().map(|file| file.entry.rows).sum::<u64>(),
            ROWS.cast_unsigned()
        );
        let (time, compressed) = timed(|| {
            let mut all = Vec::new();
            for value in &values {
                all.extend_from_slice(value);
                all.push(b'\n');
            }
            zstd::encode_all(&*all, ZSTD_LEVEL).expect("zstd")
        });
        lines.push(time);
        json_bytes = compressed.len() as u64;
    }
    let rate = |seconds: f64| ROWS as f64 / seconds;
    let (reading, packing, lines) = (median(reading), median(packing), median(lines));
    let whole = rate(reading + packing);
    println!("archive, one core, {ROWS} events, median of {ROUNDS}:");
    println!("  read from messages          {:>10.0} rows/s", rate(reading));
    println!("  sort, write, read back      {:>10.0} rows/s", rate(packing));
    println!("  all of it                   {whole:>10.0} rows/s (to hold: {HOLD:.0})");
    println!("  JSON lines with zstd        {:>10.0} rows/s", rate(lines));
    println!(
        "  time, as a ratio to those   {:>10.2}",
        (reading + packing) / lines
    );
    println!(
        "  bytes, as a ratio to those  {:>10.2} ({parquet_bytes} and {json_bytes})",
        parquet_bytes as f64 / json_bytes as f64
    );
    if whole >= HOLD {
        ExitCode::SUCCESS
    } else {
        println!("the number does not hold on this machine");
        ExitCode::FAILURE
    }
}
