//! The slots of every identity, worker or logical shard, and which lease each has.

use super::Shared;
use idgen_core::mint::{Identities, Slot};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What core and daemon call a class is a kind here, as in SQL.
pub use idgen_core::lease::Class as Kind;

/// Worker identities of a cell.
const WORKERS: usize = Kind::Worker.size() as usize;

/// Logical shards of a cell.
pub const SHARDS: usize = Kind::Shard.size() as usize;

/// One identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub kind: Kind,
    /// Below [`Kind::size`].
    pub number: u16,
}

impl Identity {
    /// Of a logical shard.
    pub fn of_shard(shard: u16) -> Self {
        Self {
            kind: Kind::Shard,
            number: shard,
        }
    }

    fn index(self) -> usize {
        usize::from(self.number)
    }
}

/// Which lease an identity has, for the control functions and views. Written under the `control` lock.
#[derive(Default)]
pub struct TokenCell {
    pub epoch: AtomicU64,
    pub revision: AtomicU64,
    pub generation: AtomicU64,
    pub floor_tick: AtomicU64,
    /// Ids minted since the statistics were reset.
    pub ids: AtomicU64,
    /// It was installed at least once since this memory was made.
    pub known: AtomicBool,
}

impl TokenCell {
    /// The token of the latest install, if there was one.
    pub fn token(&self) -> Option<(u64, u64)> {
        self.known.load(Ordering::Relaxed).then(|| {
            (
                self.epoch.load(Ordering::Relaxed),
                self.revision.load(Ordering::Relaxed),
            )
        })
    }
}

/// All of them; 1.5 MiB.
#[repr(C)]
pub struct Leases {
    /// Bit per worker: mints try it.
    active: [AtomicU64; WORKERS / 64],
    workers: [Slot; WORKERS],
    shards: [Slot; SHARDS],
    worker_tokens: [TokenCell; WORKERS],
    shard_tokens: [TokenCell; SHARDS],
}

impl Leases {
    /// Nothing leased. In place: it is too large for the stack.
    ///
    /// # Safety
    /// `memory` must be writable, aligned, and unseen by anybody else.
    pub unsafe fn write(memory: *mut Self) {
        /// # Safety
        /// As above.
        unsafe fn fill<T, const N: usize>(array: *mut [T; N], vacant: impl Fn() -> T) {
            for index in 0..N {
                // SAFETY: inside the array, which is ours.
                unsafe { array.cast::<T>().add(index).write(vacant()) };
            }
        }
        // SAFETY: each field once, by the caller's promise.
        unsafe {
            fill(&raw mut (*memory).active, AtomicU64::default);
            fill(&raw mut (*memory).workers, Slot::new);
            fill(&raw mut (*memory).shards, Slot::new);
            fill(&raw mut (*memory).worker_tokens, TokenCell::default);
            fill(&raw mut (*memory).shard_tokens, TokenCell::default);
        }
    }

    /// What is known of the lease of an identity.
    pub fn token(&self, identity: Identity) -> &TokenCell {
        match identity.kind {
            Kind::Worker => &self.worker_tokens[identity.index() % WORKERS],
            Kind::Shard => &self.shard_tokens[identity.index() % SHARDS],
        }
    }

    /// Where its ids come from.
    pub fn slot_of(&self, identity: Identity) -> &Slot {
        match identity.kind {
            Kind::Worker => &self.workers[identity.index() % WORKERS],
            Kind::Shard => &self.shards[identity.index() % SHARDS],
        }
    }

    /// The identities that were installed since this memory was made.
    pub fn known(&self) -> impl Iterator<Item = (Identity, &TokenCell, &Slot)> {
        let all = Kind::ALL
            .into_iter()
            .flat_map(|kind| (0..kind.size()).map(move |number| Identity { kind, number }));
        all.map(|identity| (identity, self.token(identity), self.slot_of(identity)))
            .filter(|(_, token, _)| token.known.load(Ordering::Relaxed))
    }

    /// Let mints try this identity, or no more. Shards are asked for by number and need no such mark.
    pub fn set_active(&self, identity: Identity, active: bool) {
        if identity.kind == Kind::Shard {
            return;
        }
        let index = identity.index();
        let (word, bit) = (&self.active[index / 64], 1 << (index % 64));
        if active {
            word.fetch_or(bit, Ordering::AcqRel)
        } else {
            word.fetch_and(!bit, Ordering::AcqRel)
        };
    }

    pub fn active_count(&self) -> u32 {
        self.active
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// The lowest of the `n` highest active workers: `n` at least 1 and at most as many as there are.
    pub fn nth_highest_active(&self, n: u32) -> Option<u64> {
        let mut left = n;
        for (index, word) in self.active.iter().enumerate().rev() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let highest = 63 - bits.leading_zeros();
                left -= 1;
                if left == 0 {
                    return Some((index * 64) as u64 + u64::from(highest));
                }
                bits &= !(1 << highest);
            }
        }
        None
    }
}

/// Mints look for workers.
impl Identities for Leases {
    #[inline(always)]
    fn slot(&self, identity: u64) -> &Slot {
        &self.workers[identity as usize % WORKERS]
    }

    #[inline(always)]
    fn next_active(&self, from: u64) -> Option<u64> {
        let from = from as usize;
        if from >= WORKERS {
            return None;
        }
        let first = self.active[from / 64].load(Ordering::Acquire) & (u64::MAX << (from % 64));
        if first != 0 {
            return Some((from / 64 * 64) as u64 + u64::from(first.trailing_zeros()));
        }
        (from / 64 + 1..WORKERS / 64).find_map(|index| {
            let word = self.active[index].load(Ordering::Acquire);
            (word != 0).then(|| (index * 64) as u64 + u64::from(word.trailing_zeros()))
        })
    }
}

impl Shared {
    /// Slots and leases of all identities.
    #[inline(always)]
    pub fn leases(&self) -> &Leases {
        &self.leases
    }
}
