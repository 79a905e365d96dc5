//! Why a lease ends, and whether another may follow at once.

use crate::lease::timing::Timing;

/// Why a lease is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The shared memory it was granted for is gone.
    BootIdChanged,
    /// It was not renewed in time.
    DeadlinePassed,
    /// The store shows another holder, or none.
    StoreLost,
    /// The store is in a newer epoch, whose leases are taken from the other half of the pool.
    EpochAdvanced,
    /// An operator has ordered its end.
    Revoked,
    /// The server would not install or extend it.
    ServerRefused,
    /// It could not be fenced before the end.
    Unreachable,
}

impl Loss {
    /// How long no new lease is asked for after it; [`Loss::ServerRefused`] has a back-off of its own.
    ///
    /// Only a lease that the store took away needs it: whatever took it may take the next one too. One that
    /// passed its deadline lasted for TTL - margin, so another that ends the same way does not follow sooner
    /// than that, and callers are waiting. Shared memory that was made anew, an epoch that an operator
    /// opened, and an order, which is against one lease only, want a lease at once.
    #[must_use]
    pub fn hold_off_ms(self, timing: &Timing) -> u64 {
        match self {
            Self::StoreLost => timing.hold_off_ms(),
            Self::BootIdChanged
            | Self::DeadlinePassed
            | Self::EpochAdvanced
            | Self::Revoked
            | Self::ServerRefused
            | Self::Unreachable => 0,
        }
    }

    /// As metrics and logs name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BootIdChanged => "boot_id_changed",
            Self::DeadlinePassed => "deadline_passed",
            Self::StoreLost => "store_lost",
            Self::EpochAdvanced => "epoch_advanced",
            Self::Revoked => "revoked",
            Self::ServerRefused => "server_refused",
            Self::Unreachable => "unreachable",
        }
    }
}
