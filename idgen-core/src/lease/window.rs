//! Floor and ceiling of a window.

use super::token::{Claim, Identity, Revision, Token};
use crate::clock::UnixMs;
use core::fmt;

/// How far a floor may lie ahead of the wall clock, in ms. This is a rule of uniqueness, not of taste: an
/// epoch change assumes that no id of the old epoch lies further ahead than the longest window plus this
/// lead, so a larger floor is refused and another identity taken. One second, because an exact high
/// water of a server that minted in bursts is at most a few ms ahead, and nobody waits longer than that.
pub const FLOOR_LEAD_MS: u64 = 1_000;

/// How far the wall clock of a server may be from the true time, in ms: the clock gate refuses leases beyond it.
pub const SKEW_MS: u64 = 500;

/// How far from a moment, by whatever clock, the first millisecond lies that no window of `window_ms`, granted before
/// it, can have: the server's clock may have been as far ahead as ours is behind. Ceilings are minted, so it is one
/// more than the sum.
#[must_use]
pub const fn epoch_margin_ms(window_ms: u64) -> u64 {
    window_ms.saturating_add(2 * SKEW_MS + FLOOR_LEAD_MS + 1)
}

/// The timestamps that may be minted, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Lowest timestamp.
    pub floor: UnixMs,
    /// Highest timestamp.
    pub ceiling: UnixMs,
}

/// A window of one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leased {
    /// The identity.
    pub identity: Identity,
    /// What it may mint.
    pub window: Window,
}

/// One identity of a lease that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tenancy {
    /// The identity.
    pub identity: Identity,
    /// What the store has committed.
    pub window: Window,
    /// The fencing token of its grant.
    pub token: Token,
    /// Revision of the store's row: guards the next renewal.
    pub guard: Revision,
}

impl Tenancy {
    /// Granted under this token, and as the store has left it.
    #[must_use]
    pub fn new(leased: Leased, token: Token, guard: Revision) -> Self {
        let Leased { identity, window } = leased;
        Self {
            identity,
            window,
            token,
            guard,
        }
    }

    /// Without token and guard.
    #[must_use]
    pub fn leased(&self) -> Leased {
        Leased {
            identity: self.identity,
            window: self.window,
        }
    }

    /// As shared memory and the store name it.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim {
            identity: self.identity,
            token: self.token,
        }
    }
}

/// The floor would lie too far ahead of the wall clock: wait, or take another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloorAhead {
    /// Where the window would have to begin.
    pub floor: UnixMs,
    /// The wall clock.
    pub wall: UnixMs,
}

impl fmt::Display for FloorAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ahead_ms = self.floor.since(self.wall);
        write!(
            f,
            "the next window begins {ahead_ms} ms ahead of the clock, {FLOOR_LEAD_MS} are allowed"
        )
    }
}

impl core::error::Error for FloorAhead {}

impl Window {
    /// The first window of a new grant: one above everything that was ever granted of this identity
    /// (`high_water`, the larger of the store's and the daemon's own memory; `None` when nothing was),
    /// and not below the cell's `min_floor`. It reaches `window_ms` beyond the later of floor and wall.
    pub fn grant(
        high_water: Option<UnixMs>,
        min_floor: UnixMs,
        wall: UnixMs,
        window_ms: u64,
    ) -> Result<Self, FloorAhead> {
        // Nobody ever minted under a fresh identity; its ids begin now, not in 1970.
        let above = high_water.map_or(wall, |ms| ms.saturating_add(1));
        let floor = above.max(min_floor);
        if floor > wall.saturating_add(FLOOR_LEAD_MS) {
            return Err(FloorAhead { floor, wall });
        }
        Ok(Self {
            floor,
            ceiling: floor.max(wall).saturating_add(window_ms),
        })
    }

    /// The window after a renewal at `wall`: the ceiling follows the clock and never shrinks. `wall` is
    /// `None` while the clock is not believed; then nothing is raised.
    #[must_use]
    pub fn renewed(self, wall: Option<UnixMs>, window_ms: u64) -> Self {
        let wanted = wall.map_or(self.ceiling, |ms| ms.saturating_add(window_ms));
        Self {
            floor: self.floor,
            ceiling: self.ceiling.max(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WALL: UnixMs = UnixMs(1_000_000);

    #[test]
    fn a_window_begins_above_the_old_ceiling_even_when_the_clock_is_behind() {
        let window = Window::grant(Some(UnixMs(1_000_500)), UnixMs(0), WALL, 100).unwrap();
        assert_eq!(
            window,
            Window {
                floor: UnixMs(1_000_501),
                ceiling: UnixMs(1_000_601)
            }
        );
        let window = Window::grant(Some(UnixMs(5)), UnixMs(0), WALL, 100).unwrap();
        assert_eq!(
            window,
            Window {
                floor: UnixMs(6),
                ceiling: UnixMs(1_000_100)
            }
        );
    }

    #[test]
    fn a_fresh_identity_begins_at_the_clock() {
        let window = Window::grant(None, UnixMs(0), WALL, 100).unwrap();
        assert_eq!(
            window,
            Window {
                floor: WALL,
                ceiling: UnixMs(1_000_100)
            }
        );
    }

    #[test]
    fn the_lead_is_a_hard_limit() {
        let at = |high_water| Window::grant(Some(UnixMs(high_water)), UnixMs(0), WALL, 100);
        assert!(at(WALL.0 + FLOOR_LEAD_MS - 1).is_ok());
        assert_eq!(
            at(WALL.0 + FLOOR_LEAD_MS),
            Err(FloorAhead {
                floor: UnixMs(1_001_001),
                wall: WALL
            })
        );
        assert!(
            Window::grant(None, UnixMs(1_001_001), WALL, 100).is_err(),
            "the cell's floor counts too"
        );
    }

    #[test]
    fn no_window_reaches_the_floor_of_the_next_epoch() {
        let window_ms = 100;
        let ahead = WALL.saturating_add(SKEW_MS);
        let high_water = ahead.saturating_add(FLOOR_LEAD_MS - 1);
        let highest = Window::grant(Some(high_water), UnixMs(0), ahead, window_ms).unwrap();
        let behind = WALL.saturating_sub(SKEW_MS);
        let floor = behind.saturating_add(epoch_margin_ms(window_ms));
        assert_eq!(floor, highest.ceiling.saturating_add(1));
    }

    #[test]
    fn a_renewal_raises_nothing_while_the_clock_is_not_believed() {
        let window = Window {
            floor: UnixMs(10),
            ceiling: UnixMs(20),
        };
        assert_eq!(window.renewed(None, 1_000), window);
    }

    proptest! {
        #[test]
        fn a_grant_lies_above_all_that_was_granted(high: u64, min_floor: u64, wall: u64, window_ms: u64) {
            if let Ok(window) = Window::grant(Some(UnixMs(high)), UnixMs(min_floor), UnixMs(wall), window_ms) {
                prop_assert!(high == u64::MAX || window.floor.0 > high);
                prop_assert!(window.floor.0 >= min_floor);
                prop_assert!(window.floor.0 <= wall.saturating_add(FLOOR_LEAD_MS));
                prop_assert!(window.ceiling >= window.floor);
            }
        }

        #[test]
        fn a_renewal_never_shrinks(floor: u64, ceiling: u64, wall: Option<u64>, window_ms: u64) {
            let window = Window { floor: UnixMs(floor), ceiling: UnixMs(ceiling) };
            let renewed = window.renewed(wall.map(UnixMs), window_ms);
            prop_assert!(renewed.ceiling >= window.ceiling);
            prop_assert_eq!(renewed.floor, window.floor);
        }
    }
}
