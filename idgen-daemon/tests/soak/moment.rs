//! The one clock that everything is written down by: `CLOCK_BOOTTIME` of this host, in microseconds.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_core::history::Moment;
use rustix::time::{ClockId, clock_gettime};

pub fn now() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    Moment(u64::try_from(us).expect("this host has booted"))
}

/// Of a wall time, such as a daemon's log has. Nobody sets this host's clock meanwhile: the faults set that of a
/// server only.
pub fn of_wall(wall: SystemTime) -> Moment {
    static BETWEEN_US: OnceLock<u64> = OnceLock::new();
    let unix_us = |wall: SystemTime| {
        let since = wall.duration_since(UNIX_EPOCH).expect("after 1970");
        u64::try_from(since.as_micros()).expect("a time of this century")
    };
    let between_us = BETWEEN_US.get_or_init(|| unix_us(SystemTime::now()) - now().0);
    Moment(unix_us(wall) - between_us)
}

pub fn since(earlier: Moment) -> Duration {
    Duration::from_micros(now().0.saturating_sub(earlier.0))
}
