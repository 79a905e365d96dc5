//! Counters of the server. They are added to in handfuls (see [`crate::stats`]), never once per id.

use crate::error::REFUSALS;
use idgen_core::clock::{BootMs, WallWatch};
use idgen_core::rate::RateMeter;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Roles that are counted apart; those that come later share one entry.
const ROLES_MAX: usize = 128;

/// More ids per second than this, by one role, are worth a warning: 250 times what most applications need, and
/// a quarter of one slot's.
pub const ROLE_IDS_PER_S_MAX: u64 = 1_000_000;

/// Of one role.
pub struct RoleCounter {
    /// Oid; 0: free, or all others in the last entry.
    pub role: AtomicU32,
    pub ids: RateMeter,
}

/// Everything that is counted for the whole server. (Ids per identity: with its lease. Ids per tag: with its buffer.)
pub struct Stats {
    pub wall: WallWatch,
    /// How far an id was ahead of the highest wall time, at the most, in ms.
    pub lead_ms_max: AtomicU64,
    /// Calls that found every sequence of the millisecond used and had to wait.
    pub exhaustions: AtomicU64,
    /// Calls that had to wait for a lease.
    pub lease_waits: AtomicU64,
    /// Time spent in both kinds of wait, in ms.
    pub waited_ms: AtomicU64,
    /// Ids that were claimed and not given out.
    pub burnt: AtomicU64,
    /// Tags whose place was given to another one.
    pub evictions: AtomicU64,
    /// Errors, by position in [`REFUSALS`].
    pub refusals: [AtomicU64; REFUSALS.len()],
    roles: [RoleCounter; ROLES_MAX + 1],
    /// Unix ms since when all of this is counted.
    pub since_ms: AtomicU64,
}

impl Stats {
    pub fn new(now_ms: u64) -> Self {
        Self {
            wall: WallWatch::new(),
            lead_ms_max: AtomicU64::new(0),
            exhaustions: AtomicU64::new(0),
            lease_waits: AtomicU64::new(0),
            waited_ms: AtomicU64::new(0),
            burnt: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            refusals: [const { AtomicU64::new(0) }; REFUSALS.len()],
            roles: std::array::from_fn(|_| RoleCounter {
                role: AtomicU32::new(0),
                ids: RateMeter::new(),
            }),
            since_ms: AtomicU64::new(now_ms),
        }
    }

    /// `n` more ids of a role.
    pub fn count_role(&self, role: u32, n: u64, now: BootMs) {
        self.role(role).ids.add(n, now, ROLE_IDS_PER_S_MAX);
    }

    /// The entry of a role, claimed if it has none.
    fn role(&self, role: u32) -> &RoleCounter {
        let (others, own) = (&self.roles[ROLES_MAX], &self.roles[..ROLES_MAX]);
        let start = role as usize % ROLES_MAX;
        for entry in own[start..].iter().chain(&own[..start]) {
            let found = match entry
                .role
                .compare_exchange(0, role, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => role,
                Err(found) => found,
            };
            if found == role {
                return entry;
            }
        }
        others
    }

    /// The roles that have drawn ids.
    pub fn roles(&self) -> impl Iterator<Item = &RoleCounter> {
        self.roles.iter().filter(|entry| entry.ids.view().total > 0)
    }

    pub fn reset(&self, now_ms: u64) {
        self.wall.reset();
        for counter in [
            &self.lead_ms_max,
            &self.exhaustions,
            &self.lease_waits,
            &self.waited_ms,
            &self.burnt,
            &self.evictions,
        ]
        .into_iter()
        .chain(&self.refusals)
        {
            counter.store(0, Ordering::Relaxed);
        }
        for entry in &self.roles {
            entry.ids.reset();
            // The place is free again. A count that comes in at this very moment goes to its next owner.
            entry.role.store(0, Ordering::Relaxed);
        }
        self.since_ms.store(now_ms, Ordering::Relaxed);
    }
}
