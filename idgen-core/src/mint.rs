//! The mint word: where an identity's ids come from, and the only place where uniqueness is decided.
//!
//! One [`Slot`] serves one identity (a worker or a logical shard) and is three self-describing 64-bit
//! words, each tagged with an 11-bit generation:
//!
//! ```text
//! word    = generation 11 | tick 41 | sequence 12     the last id given out
//! ceiling = generation 11 | tick 41 | 0               highest tick that may be used
//! dead    = generation 11 | boot ms 41 | 0            CLOCK_BOOTTIME ms at which minting stops
//! ```
//!
//! A *tick* is a millisecond since 2020-01-01 UTC (see [`crate::format::layout`]). A generation is open while ceiling and
//! dead both carry the tag of the word. The floor needs no word of its own: [`Slot::install`] leaves
//! `floor - 1` with a full sequence in the word, so the first id lies at the floor or above.
//!
//! Why no id is given out twice: an id is claimed by one successful compare-and-swap of `word`, every such
//! swap makes `tick | sequence` strictly larger, and no value of the word ever comes back (a change of
//! generation raises it too). A mint that sleeps between its checks and its swap therefore loses against
//! everything that happened meanwhile: another mint, a fence, an install. Between two slots of one identity
//! (two servers, two boots) the windows `[floor, ceiling]` of the lease store are disjoint.
//!
//! Limits: generations wrap after 2,048 installs; a process would have to sleep through all of them inside
//! one swap, and would still meet a larger tick. Checked with loom in `tests/mint_loom.rs` against fence,
//! install and extend; the layout was chosen over descriptor arrays and a seqlock, see
//! `docs/decisions/mint-word.md`.

mod lanes;
mod policy;

use crate::mix::mix;
use crate::sync::{AtomicU64, Ordering};

pub use lanes::{Identities, Lanes, Minted, mint, mint_within};
pub use policy::{AHEAD_MS_MAX, Policy, Sequence};

const TICK_BITS: u32 = 41;
const SEQ_BITS: u32 = 12;
const GENERATION_BITS: u32 = 11;
const _: () = assert!(TICK_BITS + SEQ_BITS + GENERATION_BITS == u64::BITS);

const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// Largest tick (and boot time in ms) that a word can hold.
pub const TICK_MAX: u64 = TICK_MASK;

/// As the `tick_limit` of [`Slot::reserve`]: only the lease's ceiling limits.
pub const NO_LIMIT: u64 = u64::MAX;

/// Sequence written by every change of generation. It is at or above every format's largest sequence, so
/// the path that skips the tags (same millisecond, room left) can never pass over such a word.
pub const SEQ_FULL: u64 = SEQ_MASK;

const fn pack(generation: u64, tick: u64, seq: u64) -> u64 {
    (generation & GENERATION_MASK) << (TICK_BITS + SEQ_BITS) | (tick & TICK_MASK) << SEQ_BITS | seq
}
const fn generation_of(word: u64) -> u64 {
    word >> (TICK_BITS + SEQ_BITS)
}
const fn tick_of(word: u64) -> u64 {
    word >> SEQ_BITS & TICK_MASK
}
const fn seq_of(word: u64) -> u64 {
    word & SEQ_MASK
}

/// Consecutive ids of one identity within one tick, claimed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Milliseconds since 2020-01-01 UTC.
    pub tick: u64,
    /// Sequence of the first id.
    pub seq: u64,
    /// How many ids: sequences `seq .. seq + len`. At least one.
    pub len: u64,
    /// Generation that minted it.
    pub generation: u64,
}

/// Why nothing was minted. In order of how much there is to hope for, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No generation of this identity is open.
    NoLease,
    /// The lease's deadline has passed.
    DeadlinePassed,
    /// The next tick lies above the granted ceiling.
    WindowUsedUp,
    /// The clock is further behind its maximum, or behind the last tick, than [`Policy::rewind_ms_max`].
    ClockBehind {
        /// How far, in ms.
        behind_ms: u64,
    },
    /// This tick is used up; asked only when a limit was set.
    TickFull,
    /// The next tick is ahead of the clock: try again within a millisecond.
    Wait,
}

/// Why a generation was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// The floor is not above the last tick of this slot: an older token, or a store that went back.
    FloorNotAbove {
        /// Last tick of the slot.
        last_tick: u64,
    },
}

/// What the slow path needs to know of the clocks; asked at most once per attempt, and not at all when an id
/// falls into the millisecond of the one before.
#[derive(Clone, Copy, Debug)]
pub struct SlowClock {
    /// `CLOCK_BOOTTIME` in ms.
    pub boot_ms: u64,
    /// The wall clock is believed up to this tick only (see [`crate::clock::ClockAnchor::ceiling`]).
    pub wall_tick_max: u64,
    /// How far the wall clock is behind its own maximum, in ms (see [`crate::clock::WallWatch`]).
    pub behind_ms: u64,
}

/// What one session (a backend process) has to remember so that its ids rise strictly whatever happens to
/// slots, leases and clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    tick: u64,
    identity: u64,
    wait_tick: u64,
    wait_since_boot_ms: u64,
}

impl Session {
    /// A session that has no id yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tick: 0,
            identity: 0,
            wait_tick: 0,
            wait_since_boot_ms: 0,
        }
    }

    /// Lowest tick that keeps this session's ids rising on `identity`: ids compare by tick, then by identity,
    /// so a lower identity needs the next tick.
    #[inline(always)]
    const fn floor(&self, identity: u64) -> u64 {
        self.tick + (identity < self.identity) as u64
    }
}

/// One identity's words. Alone on its cache lines: 128 bytes, because neighbours are prefetched in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Slot {
    word: AtomicU64,
    ceiling: AtomicU64,
    dead: AtomicU64,
}

/// A slot as it stood for a moment; for views, never for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Generation of the word.
    pub generation: u64,
    /// Last tick.
    pub tick: u64,
    /// Ceiling and dead carry the word's generation.
    pub open: bool,
    /// Ceiling tick of the word's generation, 0 when it has none.
    pub ceiling_tick: u64,
    /// Deadline (boot ms) of the word's generation, 0 when it has none.
    pub dead_boot_ms: u64,
}

/// What a caller asks for.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// How many ids at the most, at least 1.
    pub n: u64,
    /// Limits of the format and the operator.
    pub policy: &'r Policy,
    /// The wall clock now, in ticks.
    pub wall_tick: u64,
    /// Called only when the tick has to change.
    pub slow_clock: &'r dyn Fn() -> SlowClock,
}

impl Slot {
    /// A slot that has never been leased: generation 0, which nothing opens.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        // Tags that differ from the word's: closed from the first moment.
        Self {
            word: AtomicU64::new(pack(0, 0, SEQ_FULL)),
            ceiling: AtomicU64::new(pack(GENERATION_MASK, 0, 0)),
            dead: AtomicU64::new(pack(GENERATION_MASK, 0, 0)),
        }
    }

    /// A slot that has never been leased (loom's atomics cannot be made in a constant).
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(pack(0, 0, SEQ_FULL)),
            ceiling: AtomicU64::new(pack(GENERATION_MASK, 0, 0)),
            dead: AtomicU64::new(pack(GENERATION_MASK, 0, 0)),
        }
    }

    /// Claim consecutive ids for `session`, in a tick of at most `tick_limit`.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then except the session's note of a wait.
    #[inline(always)]
    pub fn reserve(
        &self,
        request: &Request<'_>,
        identity: u64,
        session: &mut Session,
        tick_limit: u64,
    ) -> Result<Run, Refusal> {
        let floor = session.floor(identity);
        let wall_tick = request.wall_tick;
        let seq_max = request.policy.sequence(wall_tick).max;
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (tick, seq) = (tick_of(word), seq_of(word));
            // The common path: one clock, one cache line, one swap. The tags need no look: they were checked
            // when this tick was opened, and a change of generation writes a full sequence.
            if tick == wall_tick && floor <= wall_tick && seq < seq_max {
                let len = request.n.min(seq_max - seq);
                if self
                    .word
                    .compare_exchange(word, word + len, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(Run {
                        tick,
                        seq: seq + 1,
                        len,
                        generation: generation_of(word),
                    });
                }
                continue;
            }
            if let Some(run) = self.reserve_slow(word, request, floor, session, tick_limit)? {
                return Ok(run);
            }
        }
    }

    /// A tick that is not the word's own: the tags, the deadline and the ceiling decide. `None`: the word has
    /// moved, look again.
    #[cold]
    #[inline(never)]
    fn reserve_slow(
        &self,
        word: u64,
        request: &Request<'_>,
        floor: u64,
        session: &mut Session,
        tick_limit: u64,
    ) -> Result<Option<Run>, Refusal> {
        let (generation, word_tick, word_seq) = (generation_of(word), tick_of(word), seq_of(word));
        let ceiling = self.ceiling.load(Ordering::Acquire);
        let dead = self.dead.load(Ordering::Acquire);
        if generation_of(ceiling) != generation || generation_of(dead) != generation {
            return self.refuse_unless_moved(word, Refusal::NoLease);
        }
        let clock = (request.slow_clock)();
        if clock.boot_ms >= tick_of(dead) {
            return self.refuse_unless_moved(word, Refusal::DeadlinePassed);
        }
        let policy = request.policy;
        let wall_tick = request.wall_tick.min(clock.wall_tick_max);
        let base = wall_tick.max(floor).max(word_tick);
        // What ids may run ahead of a good clock is no sign that it went back.
        let ahead_ms = (base - wall_tick).saturating_sub(policy.ahead_ms_max);
        let behind_ms = clock.behind_ms.max(ahead_ms);
        if behind_ms > policy.rewind_ms_max {
            return self.refuse_unless_moved(word, Refusal::ClockBehind { behind_ms });
        }
        let (tick, seq) = next_position(policy, base, word_tick, word_seq);
        if tick > tick_limit {
            return Err(Refusal::TickFull);
        }
        if tick > tick_of(ceiling) {
            return self.refuse_unless_moved(word, Refusal::WindowUsedUp);
        }
        // Ahead of the clock, one new tick per real millisecond: a stopped or rewound clock costs pace only.
        if tick > wall_tick + policy.ahead_ms_max && tick > word_tick.max(session.tick) {
            if session.wait_tick != tick {
                session.wait_tick = tick;
                session.wait_since_boot_ms = clock.boot_ms;
            }
            if clock.boot_ms <= session.wait_since_boot_ms {
                return Err(Refusal::Wait);
            }
        }
        let len = request.n.min(policy.sequence(tick).max - seq + 1);
        let swapped = self.word.compare_exchange(
            word,
            pack(generation, tick, seq + len - 1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        Ok(swapped.ok().map(|_| Run {
            tick,
            seq,
            len,
            generation,
        }))
    }

    /// A refusal holds only if the word it was concluded from still stands.
    fn refuse_unless_moved(&self, word: u64, refusal: Refusal) -> Result<Option<Run>, Refusal> {
        if self.word.load(Ordering::Relaxed) == word {
            Err(refusal)
        } else {
            Ok(None)
        }
    }

    /// Close `generation` now. Returns the exact last (tick, sequence) of it, or `None` when it is not the
    /// current one. After this returns, no id of that generation is minted.
    pub fn fence(&self, generation: u64) -> Option<(u64, u64)> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if generation_of(word) != generation {
                return None;
            }
            let closed = pack(generation + 1, tick_of(word), SEQ_FULL);
            if self.swap(word, closed) {
                return Some((tick_of(word), seq_of(word)));
            }
        }
    }

    /// Open a new generation for ticks in `floor_tick ..= ceiling_tick` until `dead_boot_ms`, and return it.
    ///
    /// # Errors
    /// [`InstallError::FloorNotAbove`]: the word never goes back.
    pub fn install(
        &self,
        floor_tick: u64,
        ceiling_tick: u64,
        dead_boot_ms: u64,
    ) -> Result<u64, InstallError> {
        let generation = loop {
            let word = self.word.load(Ordering::Acquire);
            if floor_tick <= tick_of(word) {
                return Err(InstallError::FloorNotAbove {
                    last_tick: tick_of(word),
                });
            }
            let generation = (generation_of(word) + 1) & GENERATION_MASK;
            // Strictly above the old word even where only the tag would differ: no 64-bit value comes back.
            let tick = (floor_tick - 1).max(tick_of(word) + u64::from(seq_of(word) == SEQ_FULL));
            if self.swap(word, pack(generation, tick, SEQ_FULL)) {
                break generation;
            }
        };
        raise(&self.dead, generation, dead_boot_ms, Tag::Create);
        // The publication: from here on the generation is open.
        raise(&self.ceiling, generation, ceiling_tick, Tag::Create);
        Ok(generation)
    }

    /// Raise ceiling and deadline of `generation`; never lowers either. `false`: it is not the one that is
    /// installed, and nothing has changed.
    pub fn extend(&self, generation: u64, ceiling_tick: u64, dead_boot_ms: u64) -> bool {
        generation_of(self.word.load(Ordering::Acquire)) == generation
            && raise(&self.ceiling, generation, ceiling_tick, Tag::Require)
            && raise(&self.dead, generation, dead_boot_ms, Tag::Require)
    }

    /// The slot as it stands, for views.
    #[must_use]
    pub fn view(&self) -> SlotView {
        let word = self.word.load(Ordering::Acquire);
        let (ceiling, dead) = (
            self.ceiling.load(Ordering::Acquire),
            self.dead.load(Ordering::Acquire),
        );
        let generation = generation_of(word);
        let own = |tagged| {
            if generation_of(tagged) == generation {
                tick_of(tagged)
            } else {
                0
            }
        };
        SlotView {
            generation,
            tick: tick_of(word),
            open: generation_of(ceiling) == generation && generation_of(dead) == generation,
            ceiling_tick: own(ceiling),
            dead_boot_ms: own(dead),
        }
    }

    fn swap(&self, old: u64, new: u64) -> bool {
        self.word
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the next run begins: this tick if it has room, else a new one.
const fn next_position(policy: &Policy, base: u64, word_tick: u64, word_seq: u64) -> (u64, u64) {
    let is_full = word_seq >= policy.sequence(word_tick).max;
    if base > word_tick {
        // After a full tick the traffic is dense and every sequence is wanted.
        let seq = if is_full {
            0
        } else {
            mix(base) & policy.sequence(base).start_mask
        };
        (base, seq)
    } else if is_full {
        (word_tick + 1, 0)
    } else {
        (word_tick, word_seq + 1)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Create,
    Require,
}

/// Raise a tagged word to (`generation`, `value`). A late writer of an older generation changes nothing.
fn raise(tagged: &AtomicU64, generation: u64, value: u64, tag: Tag) -> bool {
    // What the word cannot hold means its end, not what is left of the bits.
    let value = value.min(TICK_MAX);
    loop {
        let current = tagged.load(Ordering::Acquire);
        let same = generation_of(current) == generation;
        if same && tick_of(current) >= value {
            return true;
        }
        let ahead = generation_of(current).wrapping_sub(generation) & GENERATION_MASK;
        let newer = ahead != 0 && ahead <= GENERATION_MASK / 2;
        if !same && (tag == Tag::Require || newer) {
            return false;
        }
        let raised = pack(generation, value, 0);
        if tagged
            .compare_exchange(current, raised, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return true;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
