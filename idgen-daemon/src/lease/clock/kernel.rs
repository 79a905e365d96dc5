//! The clock of the daemon's host, and what its kernel says of it.

use idgen_core::clock::UnixMs;
use idgen_core::lease::KernelClock;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the clock of this host shows.
pub fn host_clock() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The same in ms as the archive and the topic count them.
pub fn host_ms() -> i64 {
    i64::try_from(host_clock().0).unwrap_or(i64::MAX)
}

/// The same in microseconds, as events have them.
pub fn host_us() -> i64 {
    host_ms().saturating_mul(1_000)
}

/// What the kernel of this host says of its clock; `None` where it says nothing.
#[cfg(target_os = "linux")]
pub fn kernel_clock() -> Option<KernelClock> {
    use rtime_clock::adjtime::{Timex, adjtimex};

    /// The clock state TIME_ERROR of adjtimex(2): not synchronised.
    const TIME_ERROR: i32 = 5;
    /// The status bit STA_UNSYNC.
    const STA_UNSYNC: i32 = 0x40;

    // All zero is a question: nothing is changed, and no privilege is needed.
    let mut timex = Timex::new();
    let state = adjtimex(&mut timex).ok()?;
    Some(KernelClock {
        synchronised: state != TIME_ERROR && timex.0.status & STA_UNSYNC == 0,
        error_us_max: u64::try_from(timex.0.maxerror).ok()?,
        wall: host_clock(),
    })
}

/// What the kernel of this host says of its clock: nothing that we could read.
#[cfg(not(target_os = "linux"))]
pub fn kernel_clock() -> Option<KernelClock> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_is_asked_without_privilege_and_shows_the_time() {
        let before = std::time::SystemTime::now();
        let kernel = kernel_clock().expect("adjtimex answers");
        let wall = std::time::UNIX_EPOCH + Duration::from_millis(kernel.wall.0 + 1);
        assert!(wall >= before);
    }
}
