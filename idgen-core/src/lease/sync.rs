//! Does somebody keep the clock right, and how well?
//!
//! Two can tell: the kernel, which knows whether its clock is disciplined and how far it may be off, and chrony,
//! which knows its sources. Both are asked by the shell; here is what their answers mean for taking a lease.
//!
//! Uniqueness never rests on it: it decides whether ids say the right time, and whether a high water that lies in
//! the future is left in the store.

use crate::clock::UnixMs;

/// Error up to which the kernel's clock counts as right, in µs. What a clock that is kept by NTP over the internet
/// stays well below; the kernel's own estimate grows by 0.5 ms/s when nobody disciplines it.
pub const SYNC_ERROR_US_MAX: u64 = 100_000;

/// Error up to which a lease is taken, with a warning, in µs. CockroachDB's maximum offset.
pub const LOOSE_ERROR_US_MAX: u64 = 500_000;

/// Difference of two readings of one clock, in ms, one by the server and one by the daemon. More: they are on
/// different hosts, or one of them sees a time of its own.
pub const SAME_CLOCK_MS_MAX: u64 = 1_000;

/// What the kernel of the daemon's host says of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelClock {
    /// Somebody disciplines it: neither TIME_ERROR nor STA_UNSYNC. The kernel takes this back whenever the clock
    /// is set by hand.
    pub synchronised: bool,
    /// Its largest error, as the discipline reckons it.
    pub error_us_max: u64,
    /// What it shows.
    pub wall: UnixMs,
}

impl KernelClock {
    /// Is the server's wall clock right? `wall` was read by the server just before.
    #[must_use]
    pub fn proves(&self, wall: UnixMs) -> bool {
        self.synchronised
            && self.error_us_max <= SYNC_ERROR_US_MAX
            && self.wall.0.abs_diff(wall.0) <= SAME_CLOCK_MS_MAX
    }

    /// As the gate takes it. The kernel does not say which way its clock is off.
    #[must_use]
    pub fn sync(self) -> Sync {
        Sync {
            source: Source::Kernel,
            synchronised: self.synchronised,
            offset_us: None,
            error_us_max: self.error_us_max,
        }
    }
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `adjtimex`.
    Kernel,
    /// chronyd, whose word counts before the kernel's: it keeps the kernel's flag right only where it is told to
    /// (`rtcsync`).
    Chrony,
}

impl Source {
    /// As people know it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel",
            Self::Chrony => "chrony",
        }
    }
}

/// What one of them says of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Who.
    pub source: Source,
    /// Somebody disciplines the clock.
    pub synchronised: bool,
    /// How far it is ahead (positive) of the true time, where that is known.
    pub offset_us: Option<i64>,
    /// How far it is off at the most, the offset included.
    pub error_us_max: u64,
}

/// May a lease be taken by such a clock?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncVerdict {
    /// Yes.
    Good,
    /// Yes, but somebody should look at it.
    Loose,
    /// No: nobody disciplines it.
    Unsynchronised,
    /// No: it may be off too far.
    TooLoose,
}

impl Sync {
    /// Judges it.
    #[must_use]
    pub fn verdict(self) -> SyncVerdict {
        if !self.synchronised {
            SyncVerdict::Unsynchronised
        } else if self.error_us_max <= SYNC_ERROR_US_MAX {
            SyncVerdict::Good
        } else if self.error_us_max <= LOOSE_ERROR_US_MAX {
            SyncVerdict::Loose
        } else {
            SyncVerdict::TooLoose
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disciplined_clock_that_the_server_sees_too_proves_anything() {
        let kernel = KernelClock {
            synchronised: true,
            error_us_max: SYNC_ERROR_US_MAX,
            wall: UnixMs(1_000_000),
        };
        let (near, far) = (SAME_CLOCK_MS_MAX, SAME_CLOCK_MS_MAX + 1);
        assert!(kernel.proves(UnixMs(1_000_000 + near)) && kernel.proves(UnixMs(1_000_000 - near)));
        assert!(!kernel.proves(UnixMs(1_000_000 + far)) && !kernel.proves(UnixMs(1_000_000 - far)));
        let loose = KernelClock {
            error_us_max: SYNC_ERROR_US_MAX + 1,
            ..kernel
        };
        let alone = KernelClock {
            synchronised: false,
            ..kernel
        };
        assert!(!loose.proves(kernel.wall) && !alone.proves(kernel.wall));
    }

    #[test]
    fn thresholds_are_where_they_are_written() {
        let verdict = |synchronised, error_us_max| {
            let kernel = KernelClock {
                synchronised,
                error_us_max,
                wall: UnixMs(0),
            };
            kernel.sync().verdict()
        };
        assert_eq!(verdict(true, 100_000), SyncVerdict::Good);
        assert_eq!(verdict(true, 100_001), SyncVerdict::Loose);
        assert_eq!(verdict(true, 500_000), SyncVerdict::Loose);
        assert_eq!(verdict(true, 500_001), SyncVerdict::TooLoose);
        assert_eq!(verdict(false, 0), SyncVerdict::Unsynchronised);
    }
}
