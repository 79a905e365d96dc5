//! The only clock reads of the extension: two clocks, two types.

use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use rustix::time::{ClockId, Timespec, clock_gettime};

fn ns(time: Timespec) -> u64 {
    // Both clocks are far above zero on any host that runs; a clock set before 1970 reads as 1970.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Wall time in ns since 1970: may be stepped by anybody at any time.
#[inline(always)]
pub fn wall_ns() -> u64 {
    ns(clock_gettime(ClockId::Realtime))
}

/// Wall time.
#[inline(always)]
pub fn wall() -> UnixMs {
    UnixMs(wall_ns() / 1_000_000)
}

/// Time since the host booted, suspend included: never goes back, the clock of every deadline.
pub fn boot() -> BootMs {
    BootMs(ns(clock_gettime(ClockId::Boottime)) / 1_000_000)
}

/// The same, for durations that are shorter than a millisecond.
pub fn boot_us() -> u64 {
    ns(clock_gettime(ClockId::Boottime)) / 1_000
}

/// Both, wall first.
pub fn reading() -> ClockReading {
    ClockReading {
        wall: wall(),
        boot: boot(),
    }
}
