//! Whether somebody has drained this server, as the daemon says it: for `idgen.health`, and for callers that get no id.

use super::Shared;
use super::clock_note::{Text, words_to_text};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What was said last; it stays until something else is said, or until this memory is made anew.
pub struct DrainNote {
    /// Read without the lock; whoever gets no id looks at it often.
    drained: AtomicBool,
    /// Written and read under the `control` lock.
    why: Text<32>,
}

impl DrainNote {
    pub(super) fn new() -> Self {
        Self {
            drained: AtomicBool::new(false),
            why: Text::new(),
        }
    }
}

impl Shared {
    /// `None`: it is not drained, or not any more.
    pub fn note_drained(&self, why: Option<&str>) {
        let note = &self.head.drain_note;
        let _locked = self.lock_control();
        note.why.store(why.unwrap_or_default());
        note.drained.store(why.is_some(), Relaxed);
    }

    pub fn is_drained(&self) -> bool {
        self.head.drain_note.drained.load(Relaxed)
    }

    /// Who has drained it, when and why.
    pub fn drained(&self) -> Option<String> {
        let note = &self.head.drain_note;
        let locked = self.lock_control();
        let (drained, why) = (note.drained.load(Relaxed), note.why.load());
        drop(locked);
        drained.then(|| words_to_text(&why))
    }
}
