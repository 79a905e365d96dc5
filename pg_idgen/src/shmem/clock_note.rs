//! What the daemon has said of this server's wall clock, for `idgen.health`.

use super::Shared;
use idgen_core::clock::BootMs;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The daemon says it every 5 s; one that has been silent for this long may not know any more.
const FRESH_MS: u64 = 30_000;

/// Stands for NULL.
const NONE: i64 = i64::MIN;

/// A text of at most `8 * WORDS` bytes, in words. Zero bytes end it.
pub(super) struct Text<const WORDS: usize>([AtomicU64; WORDS]);

/// The last note. Written and read under the `control` lock, so that its parts belong together.
pub struct ClockNote {
    /// BOOTTIME of the note; 0: none.
    noted_boot_ms: AtomicU64,
    offset_us: AtomicI64,
    error_us: AtomicI64,
    state: Text<4>,
    reason: Text<20>,
}

/// The note as it is said and shown.
pub struct ClockWords<T> {
    pub state: T,
    pub reason: T,
    pub offset_us: Option<i64>,
    pub error_us: Option<i64>,
}

impl<const WORDS: usize> Text<WORDS> {
    pub(super) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Cut to what fits, between two characters.
    pub(super) fn store(&self, text: &str) {
        let mut end = text.len().min(8 * WORDS);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = text.as_bytes()[..end].chunks(8);
        for word in &self.0 {
            let mut eight = [0; 8];
            let chunk = bytes.next().unwrap_or_default();
            eight[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(eight), Relaxed);
        }
    }

    pub(super) fn load(&self) -> [u64; WORDS] {
        std::array::from_fn(|index| self.0[index].load(Relaxed))
    }
}

pub(super) fn words_to_text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl ClockNote {
    pub(super) fn new() -> Self {
        Self {
            noted_boot_ms: AtomicU64::new(0),
            offset_us: AtomicI64::new(NONE),
            error_us: AtomicI64::new(NONE),
            state: Text::new(),
            reason: Text::new(),
        }
    }
}

impl Shared {
    /// The daemon says what it knows of the wall clock.
    pub fn note_clock(&self, now: BootMs, said: &ClockWords<&str>) {
        let note = &self.head.clock_note;
        let _locked = self.lock_control();
        note.state.store(said.state);
        note.reason.store(said.reason);
        note.offset_us.store(said.offset_us.unwrap_or(NONE), Relaxed);
        note.error_us.store(said.error_us.unwrap_or(NONE), Relaxed);
        note.noted_boot_ms.store(now.0, Relaxed);
    }

    /// What it said last; `None`: nothing, or too long ago.
    pub fn clock_note(&self, now: BootMs) -> Option<ClockWords<String>> {
        let note = &self.head.clock_note;
        let locked = self.lock_control();
        let (noted_boot_ms, state, reason) = (
            note.noted_boot_ms.load(Relaxed),
            note.state.load(),
            note.reason.load(),
        );
        let [offset_us, error_us] = [&note.offset_us, &note.error_us].map(|number| number.load(Relaxed));
        drop(locked);
        let fresh = noted_boot_ms != 0 && now.0.saturating_sub(noted_boot_ms) < FRESH_MS;
        let number = |number| (number != NONE).then_some(number);
        fresh.then(|| ClockWords {
            state: words_to_text(&state),
            reason: words_to_text(&reason),
            offset_us: number(offset_us),
            error_us: number(error_us),
        })
    }
}
