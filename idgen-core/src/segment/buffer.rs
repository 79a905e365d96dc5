//! Two granted ranges of one tag, in shared memory: many takers without a lock, one publisher.
//!
//! ```text
//! word         generation 40 bits | used 24 bits     the only word that takers change
//! ready        highest generation whose range is published
//! base, len    [2], the range of generation g at index g % 2
//! ```
//!
//! Generation g is *current* while the word carries it. Its range is used up from the front; then whoever
//! sees it moves the word to (g + 1, 0), if g + 1 is ready. A publisher fills in the generation after
//! `ready`, and only while that is at most the one after the current. [`Buffer::discard`] moves the word
//! to the generation after `ready` with [`USED_ALL`], which is more than any range has.
//!
//! # Why a successful compare-and-swap proves the range
//! A taker loads the word (g, used), then base and len of g % 2, then swaps (g, used) for (g, used + n).
//! 1. The word never returns to a value: the generation only rises, `used` only rises within one.
//!    (40 bits: a grant per 100 µs without a pause needs 3.5 years to come round. With fewer bits a
//!    backend that is stopped between the load and the swap could meet its old word again.)
//!    So a successful swap means the word was (g, used) all the time between.
//! 2. base and len of g were there before: the word reached g by a swap whose maker had read `ready` >= g
//!    (acquire), which is stored (release) after base and len. The taker's load of the word (acquire)
//!    reads that swap or a later one, all of them read-modify-writes, hence sees what came before it. The
//!    generations that `discard` makes have no range, and hand out nothing since used >= len.
//! 3. base and len of g were not yet overwritten by g + 2: its publisher has loaded (acquire) a word of
//!    g + 1 or later, which comes after the swap in the order of the word's values, so the taker's loads
//!    happen before its stores.
//!
//! For the same reason [`Buffer::discard`] is exact: after its swap no swap on an older word succeeds.
//!
//! # What the caller owes
//! [`Buffer::publish`] and [`Buffer::discard`] are serialised among themselves by a lock of the caller,
//! one per buffer. [`Buffer::take`] needs no lock. A refill reads [`Buffer::incarnation`] *before* it
//! begins its transaction, and publishes after commit: a range that was granted before a discard is
//! refused after it. Memory of zeros is an empty buffer. A buffer is handed to another tag by `discard`,
//! never by writing zeros over it; takers that may hold on to a buffer use [`Buffer::take_of`].

use core::fmt;

use super::{HARD_STEP_MAX, Range};
use crate::sync::{AtomicI64, AtomicU64, Ordering};

const USED_BITS: u32 = 24;
/// Marks a generation that has no range.
const USED_ALL: u64 = (1 << USED_BITS) - 1;
const GENERATION_MAX: u64 = (1 << (u64::BITS - USED_BITS)) - 1;

const _: () = assert!(
    (HARD_STEP_MAX as u64) < USED_ALL,
    "used must be able to pass every range"
);

const fn pack(generation: u64, used: u64) -> u64 {
    generation << USED_BITS | used
}

const fn generation_of(word: u64) -> u64 {
    word >> USED_BITS
}

const fn used_of(word: u64) -> u64 {
    word & USED_ALL
}

const fn index_of(generation: u64) -> usize {
    (generation % 2) as usize
}

/// Up to two granted ranges of one tag; see the module for the layout and what the caller owes.
// 128 bytes: the adjacent-line prefetcher pairs cache lines, and buffers lie in an array.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Buffer {
    word: AtomicU64,
    ready: AtomicU64,
    base: [AtomicI64; 2],
    len: [AtomicU64; 2],
    incarnation: AtomicU64,
}

/// What [`Buffer::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// The caller owns `first ..= first + count - 1` alone.
    Ids {
        /// The lowest value.
        first: i64,
        /// How many; at least 1, at most what was asked for.
        count: u64,
        /// Wake the refill: this take crossed the half of the range and no range follows it yet. True
        /// for one take per range.
        refill: bool,
    },
    /// Nothing left. Wake the refill, wait for it, and take again.
    Empty {
        /// Always true.
        refill: bool,
    },
}

/// A range granted by a committed transaction, on its way into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Publication {
    /// The lowest value granted.
    pub base: i64,
    /// How many values: 1 to [`HARD_STEP_MAX`].
    pub len: u64,
    /// [`Buffer::incarnation`] as it was before the transaction began.
    pub incarnation: u64,
}

/// Why a range was not taken in. Nothing of it was or will be handed out: it is burned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishError {
    /// A next range is there already. Ask [`Buffer::has_room`] before granting.
    Full,
    /// The buffer was discarded after the refill had read its incarnation.
    Discarded,
    /// `len` is 0 or above [`HARD_STEP_MAX`].
    BadLength(u64),
    /// `base + len - 1` is no 64-bit value.
    Overflow,
    /// 2^40 ranges went through this buffer.
    GenerationsUsedUp,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Full => f.write_str("a next range is there already"),
            PublishError::Discarded => f.write_str("the ranges were discarded while this one was granted"),
            PublishError::BadLength(len) => {
                write!(f, "a range of {len} values is not between 1 and {HARD_STEP_MAX}")
            }
            PublishError::Overflow => f.write_str("the range passes the end of bigint"),
            PublishError::GenerationsUsedUp => f.write_str("the buffer has no generation left"),
        }
    }
}

impl core::error::Error for PublishError {}

/// What [`Buffer::discard`] made unavailable: granted values that nobody will get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Burned {
    /// The rest of the current range.
    pub current: Option<Range>,
    /// The next range.
    pub next: Option<Range>,
    /// The incarnation from now on.
    pub incarnation: u64,
}

impl Burned {
    /// How many values in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        count(self.current) + count(self.next)
    }
}

/// A consistent view of the buffer at one moment between call and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Counts the ranges (and discards) that went through.
    pub generation: u64,
    /// Counts the discards.
    pub incarnation: u64,
    /// The rest of the current range.
    pub current: Option<Range>,
    /// The next range.
    pub next: Option<Range>,
}

impl Snapshot {
    /// How many values can be taken without a refill.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        count(self.current) + count(self.next)
    }
}

fn count(range: Option<Range>) -> u64 {
    range.map_or(0, |range| range.count)
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffer {
    /// An empty buffer; the same as memory of zeros.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            base: [AtomicI64::new(0), AtomicI64::new(0)],
            len: [AtomicU64::new(0), AtomicU64::new(0)],
            incarnation: AtomicU64::new(0),
        }
    }

    /// An empty buffer. (loom's atomics are not made at compile time.)
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            base: [AtomicI64::new(0), AtomicI64::new(0)],
            len: [AtomicU64::new(0), AtomicU64::new(0)],
            incarnation: AtomicU64::new(0),
        }
    }

    /// Take up to `n` consecutive values (0 counts as 1). Fewer come when the range ends: take again.
    /// Lock-free against every other call; what it returned nobody else gets.
    #[inline]
    pub fn take(&self, n: u64) -> Take {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if let Some(take) = self.try_take(word, n) {
                return take;
            }
        }
    }

    /// As [`Buffer::take`], but only while the buffer is in this incarnation: `None` once it was
    /// discarded, for whatever tag it serves by then. For takers that remember which buffer a tag has.
    #[inline]
    pub fn take_of(&self, incarnation: u64, n: u64) -> Option<Take> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            // In this order. A word that has values of a later incarnation was reached after that one was
            // written, and so shows it here; a word from before the discard makes our swap fail.
            if self.incarnation.load(Ordering::Acquire) != incarnation {
                return None;
            }
            if let Some(take) = self.try_take(word, n) {
                return Some(take);
            }
        }
    }

    /// One attempt on `word`; `None`: the word has changed (or was moved on), load it again.
    #[inline]
    fn try_take(&self, word: u64, n: u64) -> Option<Take> {
        let (generation, used) = (generation_of(word), used_of(word));
        let index = index_of(generation);
        let base = self.base[index].load(Ordering::Relaxed);
        let len = self.len[index].load(Ordering::Relaxed);
        if used >= len {
            return self.switch(word);
        }
        let count = n.clamp(1, len - used);
        if !self.swap(word, pack(generation, used + count)) {
            return None;
        }
        let crossed = 2 * used < len && 2 * (used + count) >= len;
        let refill = crossed && self.ready.load(Ordering::Acquire) == generation;
        // Cannot wrap once the swap has succeeded: `publish` has checked the end of this range.
        Some(Take::Ids {
            first: base.wrapping_add_unsigned(used),
            count,
            refill,
        })
    }

    /// The range of `word` is used up: go on to the next, if there is one.
    #[cold]
    fn switch(&self, word: u64) -> Option<Take> {
        let next = generation_of(word) + 1;
        if self.ready.load(Ordering::Acquire) == next {
            // Either way the word is another now.
            self.swap(word, pack(next, 0));
            return None;
        }
        // Read again before refusing: base and len may have been those of a later generation.
        (self.word.load(Ordering::Acquire) == word).then_some(Take::Empty { refill: true })
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Put a granted and committed range behind what is there. Needs the caller's lock.
    ///
    /// # Errors
    /// See [`PublishError`]; the buffer is unchanged then, and the range is to be recorded as burned.
    pub fn publish(&self, range: Publication) -> Result<(), PublishError> {
        if range.len == 0 || range.len > u64::from(HARD_STEP_MAX) {
            return Err(PublishError::BadLength(range.len));
        }
        if range.base.checked_add_unsigned(range.len - 1).is_none() {
            return Err(PublishError::Overflow);
        }
        if self.incarnation.load(Ordering::Acquire) != range.incarnation {
            return Err(PublishError::Discarded);
        }
        if !self.has_room() {
            return Err(PublishError::Full);
        }
        let generation = self.ready.load(Ordering::Acquire) + 1;
        // One is left for a discard.
        if generation >= GENERATION_MAX {
            return Err(PublishError::GenerationsUsedUp);
        }
        let index = index_of(generation);
        self.base[index].store(range.base, Ordering::Relaxed);
        self.len[index].store(range.len, Ordering::Relaxed);
        self.ready.store(generation, Ordering::Release);
        Ok(())
    }

    /// True when no next range is there. Under the caller's lock: [`Buffer::publish`] will find room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.leave_used_up_range();
        // The word second: it never passes `ready`, but `ready` may move between two loads.
        let ready = self.ready.load(Ordering::Acquire);
        generation_of(self.word.load(Ordering::Acquire)) >= ready
    }

    /// What the next taker would do first: a used-up range takes no room while nobody comes to take.
    fn leave_used_up_range(&self) {
        let word = self.word.load(Ordering::Acquire);
        let len = self.len[index_of(generation_of(word))].load(Ordering::Relaxed);
        if used_of(word) >= len {
            // If the word is another by now, so is the question.
            self.switch(word);
        }
    }

    /// Make everything that was published unavailable, and what is being granted unpublishable. After the
    /// return no take yields an older value. Needs the caller's lock.
    pub fn discard(&self) -> Burned {
        let incarnation = self.incarnation.load(Ordering::Acquire) + 1;
        // Before any range of the new one can be published: see `take_of`.
        self.incarnation.store(incarnation, Ordering::Release);
        let ready = self.ready.load(Ordering::Acquire);
        // At the very last generation the word cannot rise; it already holds nothing then, since
        // `publish` stops before.
        let generation = GENERATION_MAX.min(ready + 1);
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (current, next) = self.ranges(word, ready);
            if self.swap(word, pack(generation, USED_ALL)) {
                // After the swap: a ready generation without a range must never be the next one.
                self.ready.store(generation, Ordering::Release);
                return Burned {
                    current,
                    next,
                    incarnation,
                };
            }
        }
    }

    /// The ranges that `word` and `ready` stand for. Meaningful only if the generation of the word did
    /// not change meanwhile.
    fn ranges(&self, word: u64, ready: u64) -> (Option<Range>, Option<Range>) {
        let (generation, used) = (generation_of(word), used_of(word));
        let range = |generation, used| {
            let index = index_of(generation);
            let len = self.len[index].load(Ordering::Relaxed);
            let base = self.base[index].load(Ordering::Relaxed);
            let count = len.saturating_sub(used);
            (count > 0).then(|| Range {
                first: base.wrapping_add_unsigned(used),
                count,
            })
        };
        let next = if ready == generation + 1 {
            range(ready, 0)
        } else {
            None
        };
        (range(generation, used), next)
    }

    /// Counts the discards; what a refill reads before its transaction.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// How many values can be taken without a refill, at one moment between call and return.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.snapshot().remaining()
    }

    /// What the buffer holds, for a view.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let incarnation = self.incarnation.load(Ordering::Acquire);
            let ready = self.ready.load(Ordering::Acquire);
            let (current, next) = self.ranges(word, ready);
            // Only a change of generation can have mixed two ranges; it needs a refill, so this ends.
            let generation = generation_of(word);
            if generation_of(self.word.load(Ordering::Acquire)) == generation {
                return Snapshot {
                    generation,
                    incarnation,
                    current,
                    next,
                };
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
