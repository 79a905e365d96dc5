//! The layout of [`idgen_core::mint`] once more, with rules that can be switched off.

use loom::sync::atomic::{AtomicU64, Ordering};

use crate::harness::{Id, Layout, Lease, SEQ_MAX};

const SEQ_FULL: u64 = 4095;

/// What a layout must do; `false` breaks it.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Generations are counted within this mask.
    pub generation_mask: u64,
    /// A fence leaves a full sequence behind.
    pub fence_fills: bool,
    /// An install refuses a floor that is not above the word.
    pub floor_checked: bool,
    /// An extend never creates a tag.
    pub extend_requires_tag: bool,
    /// An extend raises the generation that it names, not the one that it meets.
    pub extend_keeps_generation: bool,
    /// An install swaps the word before it writes ceiling and deadline.
    pub word_first: bool,
    /// A new tick needs the tags of the word's generation.
    pub tags_checked: bool,
    /// An installer that comes late leaves a newer tag alone.
    pub newer_tag_stays: bool,
    /// A mint claims its id by compare-and-swap.
    pub mint_swaps: bool,
}

impl Rules {
    pub const SOUND: Rules = Rules {
        generation_mask: 2047,
        fence_fills: true,
        floor_checked: true,
        extend_requires_tag: true,
        extend_keeps_generation: true,
        word_first: true,
        tags_checked: true,
        newer_tag_stays: true,
        mint_swaps: true,
    };
}

pub struct Copy {
    rules: Rules,
    word: AtomicU64,
    ceiling: AtomicU64,
    dead: AtomicU64,
}

fn pack(generation: u64, tick: u64, seq: u64) -> u64 {
    generation << 53 | tick << 12 | seq
}

fn unpack(word: u64) -> (u64, u64, u64) {
    (word >> 53, word >> 12 & ((1 << 41) - 1), word & 4095)
}

impl Copy {
    pub fn new(rules: Rules) -> Self {
        let Lease { floor, ceiling, dead } = Lease::FIRST;
        Copy {
            rules,
            word: AtomicU64::new(pack(1, floor - 1, SEQ_FULL)),
            ceiling: AtomicU64::new(pack(1, ceiling, 0)),
            dead: AtomicU64::new(pack(1, dead, 0)),
        }
    }

    fn swap(word: &AtomicU64, old: u64, new: u64) -> bool {
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn raise(&self, tagged: &AtomicU64, generation: u64, value: u64, create: bool) -> bool {
        let mask = self.rules.generation_mask;
        loop {
            let current = tagged.load(Ordering::Acquire);
            let (tag, old, _) = unpack(current);
            if tag == generation && old >= value {
                return true;
            }
            let newer = tag != generation && (tag.wrapping_sub(generation) & mask) <= mask / 2;
            if tag != generation && (!create || newer && self.rules.newer_tag_stays) {
                return false;
            }
            if Self::swap(tagged, current, pack(generation, value, 0)) {
                return true;
            }
        }
    }

    fn raise_both(&self, generation: u64, lease: Lease) {
        self.raise(&self.dead, generation, lease.dead, true);
        self.raise(&self.ceiling, generation, lease.ceiling, true);
    }
}

impl Layout for Copy {
    type Session = ();

    fn mint(&self, (): &mut (), wall: u64, boot: u64) -> Option<Id> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (generation, old_tick, old_seq) = unpack(word);
            let (tick, seq) = if old_tick == wall && old_seq < SEQ_MAX {
                (wall, old_seq + 1)
            } else {
                let (ceiling_tag, ceiling, _) = unpack(self.ceiling.load(Ordering::Acquire));
                let (dead_tag, dead, _) = unpack(self.dead.load(Ordering::Acquire));
                let open = ceiling_tag == generation && dead_tag == generation;
                if self.rules.tags_checked && !open || boot >= dead {
                    return None;
                }
                let (tick, seq) = match () {
                    () if wall > old_tick => (wall, 0),
                    () if old_seq < SEQ_MAX => (old_tick, old_seq + 1),
                    () => (old_tick + 1, 0),
                };
                if tick > ceiling {
                    return None;
                }
                (tick, seq)
            };
            let new = pack(generation, tick, seq);
            if !self.rules.mint_swaps {
                self.word.store(new, Ordering::Release);
            } else if !Self::swap(&self.word, word, new) {
                continue;
            }
            return Some(Id {
                tick,
                seq,
                generation,
                boot,
            });
        }
    }

    fn fence(&self, generation: u64) -> Option<(u64, u64)> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (current, tick, seq) = unpack(word);
            if current != generation {
                return None;
            }
            let left = if self.rules.fence_fills { SEQ_FULL } else { seq };
            if Self::swap(
                &self.word,
                word,
                pack((generation + 1) & self.rules.generation_mask, tick, left),
            ) {
                return Some((tick, seq));
            }
        }
    }

    fn install(&self, lease: Lease) -> Option<u64> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (old, tick, seq) = unpack(word);
            if self.rules.floor_checked && lease.floor <= tick {
                return None;
            }
            let generation = (old + 1) & self.rules.generation_mask;
            if !self.rules.word_first {
                self.raise_both(generation, lease);
            }
            let mut left = lease.floor - 1;
            if self.rules.floor_checked {
                left = left.max(tick + u64::from(seq == SEQ_FULL));
            }
            if Self::swap(&self.word, word, pack(generation, left, SEQ_FULL)) {
                if self.rules.word_first {
                    self.raise_both(generation, lease);
                }
                return Some(generation);
            }
        }
    }

    fn extend(&self, generation: u64, ceiling: u64, dead: u64) {
        let create = !self.rules.extend_requires_tag;
        let met = |tagged: &AtomicU64| match self.rules.extend_keeps_generation {
            true => generation,
            false => unpack(tagged.load(Ordering::Acquire)).0,
        };
        if self.raise(&self.ceiling, met(&self.ceiling), ceiling, create) {
            self.raise(&self.dead, met(&self.dead), dead, create);
        }
    }
}
