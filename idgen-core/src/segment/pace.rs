//! How fast a tag is drawn from, for people who look: never an input of a grant.
//!
//! An exponentially weighted mean, as the load average of a Unix host: what was drawn [`PACE_MS`] ago counts for
//! a third of what is drawn now.

/// Time constant of the mean.
pub const PACE_MS: u64 = 60_000;

/// Ids per second after `drawn` more in `elapsed_ms`; `before`: as it was, `None` when nothing was measured yet.
#[must_use]
pub fn pace(before: Option<f64>, drawn: u64, elapsed_ms: u64) -> f64 {
    if elapsed_ms == 0 {
        return before.unwrap_or(0.0);
    }
    let elapsed_ms = elapsed_ms as f64;
    let now = drawn as f64 * 1_000.0 / elapsed_ms;
    match before {
        None => now,
        Some(before) => now + (before - now) * (-elapsed_ms / PACE_MS as f64).exp(),
    }
}

/// A pace that shows as 0 with three decimals.
const STANDS: f64 = 0.000_5;

/// For how many seconds `remaining` ids last at this pace; `None`: nothing is drawn.
#[must_use]
pub fn seconds_left(remaining: u64, ids_per_s: f64) -> Option<f64> {
    (ids_per_s >= STANDS).then(|| remaining as f64 / ids_per_s)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_measure_counts_as_it_is() {
        assert!((pace(None, 50, 1_000) - 50.0).abs() < 1e-9);
        assert!((pace(None, 50, 500) - 100.0).abs() < 1e-9);
        assert!(pace(None, 0, 1_000).abs() < 1e-9);
        assert!(pace(None, 50, 0).abs() < 1e-9, "no time, no pace");
    }

    #[test]
    fn what_stops_fades_by_a_third_of_its_worth_per_minute() {
        let after = pace(Some(900.0), 0, 60_000);
        assert!((after - 331.1).abs() < 0.1, "{after}");
        let many = (0..600).fold(900.0, |before, _| pace(Some(before), 0, 1_000));
        assert!(
            seconds_left(1_000, many).is_some(),
            "still visible after ten minutes"
        );
        let none = (0..1_800).fold(900.0, |before, _| pace(Some(before), 0, 1_000));
        assert_eq!(seconds_left(1_000, none), None, "{none}");
    }

    #[test]
    fn what_is_in_memory_lasts_as_long_as_it_takes_to_draw_it() {
        assert_eq!(seconds_left(1_000, 10.0), Some(100.0));
        assert_eq!(seconds_left(0, 10.0), Some(0.0));
        assert_eq!(seconds_left(1_000, 0.0), None);
    }

    proptest! {
        /// A steady pace is shown as it is, however often it is measured.
        #[test]
        fn a_steady_pace_is_met(per_s in 1..100_000_u64, seconds in proptest::collection::vec(1..20_u64, 1..60)) {
            let mut shown = None;
            for seconds in seconds {
                shown = Some(pace(shown, per_s * seconds, seconds * 1_000));
            }
            let shown = shown.unwrap_or_default();
            prop_assert!((shown - per_s as f64).abs() < 1e-6 * per_s as f64, "{}", shown);
        }

        /// It lies between what it was and what is measured.
        #[test]
        fn it_never_overshoots(before in 0.0..1e6_f64, drawn in 0..1_000_000_u64, elapsed_ms in 1..100_000_u64) {
            let now = drawn as f64 * 1_000.0 / elapsed_ms as f64;
            let shown = pace(Some(before), drawn, elapsed_ms);
            prop_assert!(shown >= before.min(now) - 1e-6 && shown <= before.max(now) + 1e-6);
        }
    }
}
