//! The layout of [`idgen_core::segment::Buffer`] once more, with rules that can be switched off.

use idgen_core::segment::{Publication, Range, Take};
use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::harness::Ranges;

const USED_ALL: u64 = (1 << 24) - 1;

/// What a buffer must do; `false` breaks it.
#[derive(Clone, Copy)]
pub struct Rules {
    /// At most one range is published ahead of the current one.
    pub room_checked: bool,
    /// A take reads base and len before it swaps the word.
    pub range_before_swap: bool,
    /// A publisher writes base and len before it says so.
    pub ready_after_range: bool,
    /// A range that was granted before a discard is refused after it.
    pub incarnation_checked: bool,
    /// A discard moves the word before `ready`.
    pub discard_word_first: bool,
    /// A taker that remembers an incarnation looks at it after it has loaded the word.
    pub incarnation_after_word: bool,
    /// Only the take that crosses the half of a range asks for a refill.
    pub asked_once: bool,
    /// A taker that found nothing looks whether its word still stands.
    pub empty_looked_at_twice: bool,
}

impl Rules {
    pub const SOUND: Rules = Rules {
        room_checked: true,
        range_before_swap: true,
        ready_after_range: true,
        incarnation_checked: true,
        discard_word_first: true,
        incarnation_after_word: true,
        asked_once: true,
        empty_looked_at_twice: true,
    };
}

pub struct Copy {
    rules: Rules,
    word: AtomicU64,
    ready: AtomicU64,
    base: [AtomicI64; 2],
    len: [AtomicU64; 2],
    incarnation: AtomicU64,
}

fn index(generation: u64) -> usize {
    usize::from(!generation.is_multiple_of(2))
}

impl Copy {
    pub fn new(rules: Rules) -> Self {
        Copy {
            rules,
            word: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            base: [AtomicI64::new(0), AtomicI64::new(0)],
            len: [AtomicU64::new(0), AtomicU64::new(0)],
            incarnation: AtomicU64::new(0),
        }
    }

    fn swap(&self, old: u64, new: u64) -> bool {
        self.word
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn range(&self, generation: u64) -> (i64, u64) {
        let index = index(generation);
        (
            self.base[index].load(Ordering::Relaxed),
            self.len[index].load(Ordering::Relaxed),
        )
    }

    fn leave_used_up_range(&self) {
        let word = self.word.load(Ordering::Acquire);
        let next = (word >> 24) + 1;
        let len = self.len[index(word >> 24)].load(Ordering::Relaxed);
        if word & USED_ALL >= len && self.ready.load(Ordering::Acquire) == next {
            self.swap(word, next << 24);
        }
    }

    fn attempt(&self, word: u64, n: u64) -> Option<Take> {
        let (generation, used) = (word >> 24, word & USED_ALL);
        let (base, len) = self.range(generation);
        if used >= len {
            if self.ready.load(Ordering::Acquire) == generation + 1 {
                self.swap(word, (generation + 1) << 24);
                return None;
            }
            let stands = !self.rules.empty_looked_at_twice || self.word.load(Ordering::Acquire) == word;
            return stands.then_some(Take::Empty { refill: true });
        }
        let count = n.min(len - used);
        if !self.swap(word, word + count) {
            return None;
        }
        let base = if self.rules.range_before_swap {
            base
        } else {
            self.range(generation).0
        };
        let crossed = (2 * used < len || !self.rules.asked_once) && 2 * (used + count) >= len;
        let refill = crossed && self.ready.load(Ordering::Acquire) == generation;
        Some(Take::Ids {
            first: base.wrapping_add_unsigned(used),
            count,
            refill,
        })
    }
}

impl Ranges for Copy {
    fn take(&self, n: u64) -> Take {
        loop {
            if let Some(take) = self.attempt(self.word.load(Ordering::Acquire), n) {
                return take;
            }
        }
    }

    fn take_of(&self, incarnation: u64, n: u64) -> Option<Take> {
        loop {
            let early = self.incarnation.load(Ordering::Acquire);
            let word = self.word.load(Ordering::Acquire);
            let late = self.incarnation.load(Ordering::Acquire);
            let current = if self.rules.incarnation_after_word {
                late
            } else {
                early
            };
            if current != incarnation {
                return None;
            }
            if let Some(take) = self.attempt(word, n) {
                return Some(take);
            }
        }
    }

    fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        self.leave_used_up_range();
        let ready = self.ready.load(Ordering::Acquire);
        self.word.load(Ordering::Acquire) >> 24 >= ready
    }

    fn publish(&self, range: Publication) -> bool {
        let full = !self.has_room();
        let ready = self.ready.load(Ordering::Acquire);
        let late = self.incarnation.load(Ordering::Acquire) != range.incarnation;
        if self.rules.room_checked && full || self.rules.incarnation_checked && late {
            return false;
        }
        let generation = ready + 1;
        if !self.rules.ready_after_range {
            self.ready.store(generation, Ordering::Release);
        }
        self.base[index(generation)].store(range.base, Ordering::Relaxed);
        self.len[index(generation)].store(range.len, Ordering::Relaxed);
        self.ready.store(generation, Ordering::Release);
        true
    }

    fn discard(&self) -> Vec<Range> {
        let incarnation = self.incarnation.load(Ordering::Acquire) + 1;
        self.incarnation.store(incarnation, Ordering::Release);
        let ready = self.ready.load(Ordering::Acquire);
        if !self.rules.discard_word_first {
            self.ready.store(ready + 1, Ordering::Release);
        }
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (generation, used) = (word >> 24, word & USED_ALL);
            let (base, len) = self.range(generation);
            let mut burned = vec![(base.wrapping_add_unsigned(used), len.saturating_sub(used))];
            if ready == generation + 1 {
                burned.push(self.range(ready));
            }
            if self.swap(word, (ready + 1) << 24 | USED_ALL) {
                self.ready.store(ready + 1, Ordering::Release);
                burned.retain(|(_, count)| *count > 0);
                return burned
                    .into_iter()
                    .map(|(first, count)| Range { first, count })
                    .collect();
            }
        }
    }
}
