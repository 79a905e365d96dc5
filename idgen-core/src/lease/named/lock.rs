//! Locks of callers: a command that runs as long as it alone has a name.
//!
//! ```text
//!  reading of the clock            asked to stop    deadline   expiry in the store
//!  |---- ttl - margin - a sixth ---------|------------|- margin -|
//! ```
//! A command that is paused over its deadline (a stopped process, a suspended machine) cannot be ended in time by
//! anybody. Where that matters, what it writes to must know the highest token that it has seen and refuse a lower one:
//! see `idgen.fence()`.

use super::super::timing::Timing;
use crate::clock::BootMs;

/// What keeps out a holder whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// The resource: it is shown the token with every write, and refuses one that is lower than another that it has seen.
    Fenced,
    /// Nothing but time: a paused holder may go on beside the next one.
    Advisory,
}

impl LockMode {
    /// As configuration and lists name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Advisory => "advisory",
        }
    }
}

/// When a command under a lock is asked to stop, so that it has ended by itself at the deadline.
#[must_use]
pub fn stop_at(deadline: BootMs, timing: &Timing) -> BootMs {
    deadline.saturating_sub(timing.ttl_ms() / 6)
}

#[cfg(test)]
mod tests {
    use super::super::lease_timing;
    use super::*;

    #[test]
    fn a_command_is_asked_to_stop_before_its_deadline_and_after_three_renewals_have_failed() {
        let timing = Timing::new(lease_timing(Some(30_000))).unwrap();
        let deadline = timing.deadline(BootMs(0), timing.ttl_ms());
        let stop = stop_at(deadline, &timing);
        assert_eq!(deadline.0 - stop.0, 5_000);
        assert!(stop.0 > 3 * timing.longest_period_ms());
    }
}
