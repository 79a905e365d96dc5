//! TTL, margin, window and period of a lease: whatever is asked for, what is accepted fits together.
#![no_main]

use arbitrary::Arbitrary;
use idgen_core::lease::{Timing, TimingSpec};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    ttl_ms: u64,
    window_ms: Option<u64>,
    period_ms: Option<u64>,
    margin_ms: Option<u64>,
    /// Small numbers are what people write.
    small: bool,
}

fuzz_target!(|input: Input| {
    let scale = |ms: u64| if input.small { ms % 1_000_000 } else { ms };
    let spec = TimingSpec {
        ttl_ms: scale(input.ttl_ms),
        window_ms: input.window_ms.map(scale),
        period_ms: input.period_ms.map(scale),
        margin_ms: input.margin_ms.map(scale),
    };
    match Timing::new(spec) {
        Ok(timing) => {
            let usable_ms = timing.ttl_ms() - timing.margin_ms();
            assert!(
                timing.margin_ms() * 100 >= timing.ttl_ms() * 18,
                "covers the clock rates"
            );
            assert!(
                (1..usable_ms).contains(&timing.period_ms()),
                "renewed before it ends"
            );
            assert!(timing.period_ms() < timing.window_ms() && timing.window_ms() <= usable_ms);
            // What was checked once is fine as a question, too.
            let again = TimingSpec {
                ttl_ms: timing.ttl_ms(),
                window_ms: Some(timing.window_ms()),
                period_ms: Some(timing.period_ms()),
                margin_ms: Some(timing.margin_ms()),
            };
            assert_eq!(Timing::new(again), Ok(timing));
        }
        Err(error) => assert!(error.to_string().starts_with(error.setting())),
    }
});
