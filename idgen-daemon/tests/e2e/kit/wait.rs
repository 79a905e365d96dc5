//! Waiting for conditions, never for time to pass.

use std::thread;
use std::time::{Duration, Instant};

/// Short beside every deadline under test, long beside one probe.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// Probes until there is a value; fails the test when the deadline passes first.
pub fn eventually<T>(deadline: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            started.elapsed() < deadline,
            "waited {deadline:?} in vain for: {what}"
        );
        thread::sleep(PROBE_EVERY);
    }
}

/// [`eventually`] for a yes or no; returns how long it took.
pub fn eventually_true(deadline: Duration, what: &str, mut probe: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    eventually(deadline, what, || probe().then_some(()));
    started.elapsed()
}

/// For clean-up, which must not fail the test: whether it came true within the deadline.
pub fn within(deadline: Duration, mut probe: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if probe() {
            return true;
        }
        if started.elapsed() >= deadline {
            return false;
        }
        thread::sleep(PROBE_EVERY);
    }
}
