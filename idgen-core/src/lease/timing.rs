//! TTL, margin, window and period, and how they must fit together.
//!
//! ```text
//!  reading            deadline       expiry in the store
//!  |----- ttl - margin -----|- margin -|
//!  |-- period --|-- period --| ...
//!  |------ window (ids) ----|
//! ```
//! The deadline counts from a clock reading made *before* the request was sent, so an answer that comes
//! late only shortens the lease. The margin covers clock *rates*: holder and store each count the TTL on
//! their own clock.

use super::window::epoch_margin_ms;
use crate::clock::BootMs;
use core::fmt;

/// Below this a renewal is late before it is sent: a period would be shorter than a slow round trip.
/// (etcd raises a TTL below 2 s by itself, and says so in its answer.)
pub const TTL_MS_MIN: u64 = 1_000;
/// A day. A crashed server's identities stay taken for one TTL; longer than this only wastes the pool.
pub const TTL_MS_MAX: u64 = 86_400_000;
/// Margin by default, in percent of the TTL.
pub const MARGIN_PERCENT: u64 = 20;
/// Least margin: chrony slews by up to 8.33 %, so a slow holder and a fast store differ by a factor of
/// 1.18; with less the store could hand out a lease that its holder still believes in.
pub const MARGIN_PERCENT_MIN: u64 = 18;
/// Longest period by default: the sign that a lease is lost should not take longer than this.
pub const PERIOD_MS_MAX: u64 = 10_000;
/// Longest hold-off: an operator who watches sees the loss, and not a flood of them.
pub const HOLD_OFF_MS_MAX: u64 = 5_000;
/// A deadline is published this much early: an id minted in the same millisecond as the last one does
/// not read the deadline, so the fence in time is exact only to one millisecond plus a reading.
pub const PUBLISH_EARLY_MS: u64 = 2;

/// Longest pause after a renewal that failed.
const RETRY_MS_MAX: u64 = 1_000;
/// Old answers that a daemon may get from a store that was restored before it believes what it sees: that to its
/// renewal, and that to one look, which may have come from a member that was paused.
const OLD_ANSWERS: u64 = 2;
/// No store is saved, stopped, and put back in less than this, or than two periods.
const RECENT_MS_MIN: u64 = 10_000;

/// How a lease store is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Limit of one request.
    pub timeout_ms: u64,
    /// Members of the store, at least 1.
    pub members: u64,
}

/// What is asked for; `None` takes the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingSpec {
    /// How long the store keeps a lease that is not renewed.
    pub ttl_ms: u64,
    /// How far a ceiling reaches beyond the clock. Default: TTL - margin.
    pub window_ms: Option<u64>,
    /// Time between renewals. Default: a third of the TTL, at most 10 s.
    pub period_ms: Option<u64>,
    /// How much before its expiry a lease is given up. Default: 20 % of the TTL.
    pub margin_ms: Option<u64>,
}

impl TimingSpec {
    /// This TTL, and the defaults for everything else.
    #[must_use]
    pub fn of_ttl(ttl_ms: u64) -> Self {
        Self {
            ttl_ms,
            window_ms: None,
            period_ms: None,
            margin_ms: None,
        }
    }

    /// What the default margin leaves of the TTL.
    #[must_use]
    pub fn usable_ms(&self) -> u64 {
        self.ttl_ms.saturating_sub(percent(self.ttl_ms, MARGIN_PERCENT))
    }
}

/// Checked values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    ttl_ms: u64,
    window_ms: u64,
    period_ms: u64,
    margin_ms: u64,
}

/// Values that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimingError {
    /// The TTL is outside of what a store can keep.
    Ttl {
        /// What was asked for.
        ttl_ms: u64,
    },
    /// The margin does not cover the clock rates that may be met, or leaves nothing.
    Margin {
        /// What was asked for.
        margin_ms: u64,
        /// Least that is safe.
        margin_ms_min: u64,
    },
    /// The period is zero, or a lease would pass its deadline before it is renewed.
    Period {
        /// What was asked for.
        period_ms: u64,
        /// It must be below this.
        usable_ms: u64,
    },
    /// The window outlives the lease, or is used up before the lease is renewed.
    Window {
        /// What was asked for.
        window_ms: u64,
        /// It must be above this,
        period_ms: u64,
        /// and not above this.
        usable_ms: u64,
    },
}

impl TimingError {
    /// The name of the value that is wrong, as the configuration calls it.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Ttl { .. } => "ttl_ms",
            Self::Margin { .. } => "margin_ms",
            Self::Period { .. } => "period_ms",
            Self::Window { .. } => "window_ms",
        }
    }
}

impl fmt::Display for TimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ttl { ttl_ms } => {
                write!(f, "ttl_ms = {ttl_ms} is not in {TTL_MS_MIN} to {TTL_MS_MAX}")
            }
            Self::Margin {
                margin_ms,
                margin_ms_min,
            } => write!(
                f,
                "margin_ms = {margin_ms} is not at least {MARGIN_PERCENT_MIN} % of ttl_ms \
                 ({margin_ms_min}) and below ttl_ms"
            ),
            Self::Period { period_ms, usable_ms } => write!(
                f,
                "period_ms = {period_ms} is not in 1 to {} (ttl_ms - margin - 1)",
                usable_ms.saturating_sub(1)
            ),
            Self::Window {
                window_ms,
                period_ms,
                usable_ms,
            } => write!(
                f,
                "window_ms = {window_ms} is not above period_ms ({period_ms}) and at most {usable_ms} \
                 (ttl_ms - margin)"
            ),
        }
    }
}

impl core::error::Error for TimingError {}

impl Timing {
    /// Checks the values against each other.
    pub fn new(spec: TimingSpec) -> Result<Self, TimingError> {
        let ttl_ms = spec.ttl_ms;
        if !(TTL_MS_MIN..=TTL_MS_MAX).contains(&ttl_ms) {
            return Err(TimingError::Ttl { ttl_ms });
        }
        let margin_ms = spec.margin_ms.unwrap_or_else(|| percent(ttl_ms, MARGIN_PERCENT));
        let margin_ms_min = percent(ttl_ms, MARGIN_PERCENT_MIN);
        if margin_ms < margin_ms_min || margin_ms >= ttl_ms {
            return Err(TimingError::Margin {
                margin_ms,
                margin_ms_min,
            });
        }
        let usable_ms = ttl_ms - margin_ms;
        let period_ms = spec.period_ms.unwrap_or_else(|| (ttl_ms / 3).min(PERIOD_MS_MAX));
        if period_ms == 0 || period_ms >= usable_ms {
            return Err(TimingError::Period { period_ms, usable_ms });
        }
        let window_ms = spec.window_ms.unwrap_or(usable_ms);
        if window_ms <= period_ms || window_ms > usable_ms {
            return Err(TimingError::Window {
                window_ms,
                period_ms,
                usable_ms,
            });
        }
        Ok(Self {
            ttl_ms,
            window_ms,
            period_ms,
            margin_ms,
        })
    }

    /// How long the store keeps a lease that is not renewed.
    #[must_use]
    pub fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// How far a ceiling reaches beyond the clock.
    #[must_use]
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// Time between renewals.
    #[must_use]
    pub fn period_ms(&self) -> u64 {
        self.period_ms
    }

    /// How much before its expiry a lease is given up.
    #[must_use]
    pub fn margin_ms(&self) -> u64 {
        self.margin_ms
    }

    /// The deadline to publish: `reading` was made before the request was sent, `ttl_ms` is what the
    /// store says it granted. A store may raise a TTL; the margin then grows with it.
    #[must_use]
    pub fn deadline(&self, reading: BootMs, ttl_ms: u64) -> BootMs {
        let margin_ms = self.margin_ms.max(percent(ttl_ms, MARGIN_PERCENT_MIN));
        reading
            .saturating_add(ttl_ms)
            .saturating_sub(margin_ms + PUBLISH_EARLY_MS)
    }

    /// The period ± 10 %, so that many servers do not renew in step. `random` is any number.
    #[must_use]
    pub fn jittered_period_ms(&self, random: u64) -> u64 {
        spread(self.period_ms, 10, random)
    }

    /// The longest of them.
    #[must_use]
    pub fn longest_period_ms(&self) -> u64 {
        self.period_ms + self.period_ms / 10 + 1
    }

    /// Pause after a renewal that failed.
    #[must_use]
    pub fn retry_ms(&self) -> u64 {
        (self.period_ms / 4).clamp(1, RETRY_MS_MAX)
    }

    /// From a moment at which the store answers: when every daemon that is alive and within reach of it has spoken to
    /// it, and sealed it if it is not what that daemon has seen. All servers of a cell should have the same period.
    ///
    /// By then what was minted under leases that have ended meanwhile, which nobody speaks for, lies behind every clock.
    ///
    /// A daemon renews, or looks, once a period. Its first request may be lost with its connection, and so may one more
    /// for each member that can be away while the store answers; then come old answers; then it looks and seals. Its
    /// clock and ours may go at different rates, as those that the margin covers.
    #[must_use]
    pub fn grace_ms(&self, reach: Reach) -> u64 {
        let lost = 1 + reach.members.saturating_sub(1) / 2;
        let pauses_ms = (lost + OLD_ANSWERS).saturating_mul(self.retry_ms());
        let requests_ms = (lost + 1).saturating_mul(reach.timeout_ms);
        let all_ms = self.longest_period_ms().saturating_add(pauses_ms);
        percent(all_ms.saturating_add(requests_ms), 100 + MARGIN_PERCENT_MIN).max(epoch_margin_ms(0))
    }

    /// A row that was written by oneself less than this ago is younger than any state that a store is put back to.
    #[must_use]
    pub fn recent_ms(&self) -> u64 {
        self.period_ms.saturating_mul(2).max(RECENT_MS_MIN)
    }

    /// How long no new lease is asked for after the store has shown that one was lost: a store that takes
    /// leases away would otherwise be asked for ever more of them. A third of a short TTL, so that the time
    /// to come back stays well below TTL + 2 periods.
    #[must_use]
    pub fn hold_off_ms(&self) -> u64 {
        (self.ttl_ms / 3).min(HOLD_OFF_MS_MAX)
    }
}

/// `ms` ± `percent`. `random` is any number.
#[must_use]
pub(super) fn spread(ms: u64, percent: u64, random: u64) -> u64 {
    let aside_ms = ms.saturating_mul(percent) / 100;
    (ms - aside_ms + random % (2 * aside_ms + 1)).max(1)
}

/// Rounded up: a margin is never less than its share.
fn percent(ms: u64, share: u64) -> u64 {
    ms.saturating_mul(share).div_ceil(100)
}

#[cfg(test)]
mod tests {
    use super::super::class::Class;
    use super::*;
    use proptest::prelude::*;

    fn spec(ttl_ms: u64) -> TimingSpec {
        TimingSpec::of_ttl(ttl_ms)
    }

    #[test]
    fn the_defaults_of_the_worker_class() {
        let timing = Timing::new(spec(600_000)).unwrap();
        assert_eq!(
            (timing.margin_ms(), timing.window_ms(), timing.period_ms()),
            (120_000, 480_000, 10_000)
        );
        assert_eq!(
            Timing::new(spec(15_000)).unwrap().period_ms(),
            5_000,
            "a third of a short TTL"
        );
    }

    #[test]
    fn the_grace_is_a_period_and_some_seconds() {
        let grace_ms = |class: Class, members| {
            let timing = Timing::new(class.timing(None)).unwrap();
            timing.grace_ms(Reach {
                timeout_ms: 1_000,
                members,
            })
        };
        assert_eq!(grace_ms(Class::Worker, 1), 18_882);
        assert_eq!(grace_ms(Class::Worker, 3), 21_242);
        assert_eq!(grace_ms(Class::Shard, 1), 6_728);
        let quick = TimingSpec {
            period_ms: Some(50),
            ..spec(1_000)
        };
        let near = Reach {
            timeout_ms: 50,
            members: 1,
        };
        assert_eq!(Timing::new(quick).unwrap().grace_ms(near), epoch_margin_ms(0));
        let never = Reach {
            timeout_ms: u64::MAX,
            members: u64::MAX,
        };
        assert!(Timing::new(spec(TTL_MS_MAX)).unwrap().grace_ms(never) > TTL_MS_MAX);
    }

    #[test]
    fn each_wrong_value_is_named() {
        let setting = |spec| Timing::new(spec).unwrap_err().setting();
        assert_eq!(setting(spec(999)), "ttl_ms");
        assert_eq!(setting(spec(86_400_001)), "ttl_ms");
        assert_eq!(
            setting(TimingSpec {
                margin_ms: Some(1_799),
                ..spec(10_000)
            }),
            "margin_ms"
        );
        assert_eq!(
            setting(TimingSpec {
                margin_ms: Some(10_000),
                ..spec(10_000)
            }),
            "margin_ms"
        );
        assert_eq!(
            setting(TimingSpec {
                period_ms: Some(0),
                ..spec(10_000)
            }),
            "period_ms"
        );
        assert_eq!(
            setting(TimingSpec {
                period_ms: Some(8_000),
                ..spec(10_000)
            }),
            "period_ms"
        );
        assert_eq!(
            setting(TimingSpec {
                window_ms: Some(8_001),
                ..spec(10_000)
            }),
            "window_ms"
        );
        assert_eq!(
            setting(TimingSpec {
                window_ms: Some(3_333),
                ..spec(10_000)
            }),
            "window_ms"
        );
        assert!(
            Timing::new(TimingSpec {
                margin_ms: Some(1_800),
                ..spec(10_000)
            })
            .is_ok()
        );
    }

    #[test]
    fn a_deadline_counts_from_the_reading_before_the_request() {
        let timing = Timing::new(spec(10_000)).unwrap();
        assert_eq!(
            timing.deadline(BootMs(500), 10_000),
            BootMs(500 + 10_000 - 2_000 - 2)
        );
        assert_eq!(
            timing.deadline(BootMs(500), 100_000),
            BootMs(500 + 100_000 - 18_000 - 2)
        );
        assert_eq!(
            timing.deadline(BootMs(0), 0),
            BootMs(0),
            "a TTL of nothing is over at once"
        );
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_leaves_the_store_the_margin(
            ttl_ms in 1_000u64..90_000_000, window_ms: Option<u32>, period_ms: Option<u32>,
            margin_ms: Option<u32>, random: u64, reading in 0u64..1 << 41,
        ) {
            let wide = |ms: Option<u32>| ms.map(u64::from);
            let spec = TimingSpec {
                ttl_ms, window_ms: wide(window_ms), period_ms: wide(period_ms), margin_ms: wide(margin_ms),
            };
            if let Ok(timing) = Timing::new(spec) {
                prop_assert!(timing.margin_ms() * 100 >= ttl_ms * MARGIN_PERCENT_MIN);
                prop_assert!(timing.period_ms() < timing.window_ms());
                prop_assert!(timing.window_ms() <= ttl_ms - timing.margin_ms());
                let end = reading + ttl_ms;
                prop_assert!(timing.deadline(BootMs(reading), ttl_ms).0 + timing.margin_ms() < end);
                let period_ms = timing.jittered_period_ms(random);
                prop_assert!(period_ms <= timing.longest_period_ms());
                prop_assert!(period_ms * 10 >= timing.period_ms() * 9);
            }
        }
    }
}
