//! Errors of unique constraints, counted by constraint in a table of fixed size that processes share.
//!
//! Whoever counts may be anywhere: out of memory, in the midst of an abort, with locks held. So nothing here waits, allocates
//! or fails: a process takes a free entry by one compare-and-swap, writes the name, and shows it. One that comes while a name is
//! being written cannot tell whose it will be, and goes on to the next entry, so a constraint may have two: who reads adds them
//! up. An entry keeps its name for as long as the table is there. What has no room is counted as *others*.

use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Constraints that are counted apart. Rare errors of few tables are what is looked for; a server where 256 constraints
/// are violated has to read its log anyway.
pub const CONSTRAINTS_MAX: usize = 256;

/// Bytes of a name, as Postgres has them: longer ones can be no constraint's.
pub const NAME_BYTES_MAX: usize = 63;

const WORDS_PER_NAME: usize = (NAME_BYTES_MAX + 1) / 8;
const NAMES: usize = 3;
const KEY_WORDS: usize = 1 + NAMES * WORDS_PER_NAME;

/// Nobody's; also the first phase of memory that is all zero.
const FREE: u64 = 0;
const WRITING: u64 = 1;
const NAMED: u64 = 2;

/// Which constraint, as the error names it. Empty: the error does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violated<'n> {
    /// Oid of the database.
    pub database: u32,
    /// Schema of the table.
    pub schema: &'n [u8],
    /// The table.
    pub table: &'n [u8],
    /// The constraint or unique index.
    pub constraint: &'n [u8],
}

/// How often a constraint was violated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations {
    /// Schema, table and constraint.
    pub names: [Vec<u8>; NAMES],
    /// What was counted.
    pub seen: Violation,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violation {
    /// Errors.
    pub count: u64,
    /// When the first was, in Unix ms.
    pub first_ms: u64,
    /// ... and the last.
    pub last_ms: u64,
}

impl Violation {
    fn and(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            first_ms: self.first_ms.min(other.first_ms),
            last_ms: self.last_ms.max(other.last_ms),
        }
    }
}

type Key = [u64; KEY_WORDS];

impl Violated<'_> {
    /// `None`: a name is too long to be one.
    fn key(&self) -> Option<Key> {
        let mut key = [0; KEY_WORDS];
        let (database, names) = key.split_first_mut()?;
        *database = u64::from(self.database);
        let texts = [self.schema, self.table, self.constraint];
        for (words, text) in names.chunks_exact_mut(WORDS_PER_NAME).zip(texts) {
            if text.len() > NAME_BYTES_MAX {
                return None;
            }
            for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
                let mut eight = [0; 8];
                for (to, from) in eight.iter_mut().zip(bytes) {
                    *to = *from;
                }
                *word = u64::from_ne_bytes(eight);
            }
        }
        Some(key)
    }
}

fn name(words: &[u64]) -> Vec<u8> {
    words
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect()
}

/// Where to begin to look: any spread will do.
fn place(key: &Key) -> usize {
    let mixed = key.iter().fold(0_u64, |sum, word| {
        (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    });
    usize::try_from(mixed % CONSTRAINTS_MAX as u64).unwrap_or_default()
}

#[derive(Debug)]
struct Counter {
    count: AtomicU64,
    /// `u64::MAX` before the first.
    first_ms: AtomicU64,
    last_ms: AtomicU64,
}

impl Counter {
    fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            first_ms: AtomicU64::new(u64::MAX),
            last_ms: AtomicU64::new(0),
        }
    }

    fn add(&self, at_ms: u64) {
        self.first_ms.fetch_min(at_ms, Relaxed);
        self.last_ms.fetch_max(at_ms, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    fn view(&self) -> Violation {
        let last_ms = self.last_ms.load(Relaxed);
        Violation {
            count: self.count.load(Relaxed),
            // One that is being added while all is set to zero may have left its time of before.
            first_ms: self.first_ms.load(Relaxed).min(last_ms),
            last_ms,
        }
    }

    fn reset(&self) {
        self.count.store(0, Relaxed);
        self.first_ms.store(u64::MAX, Relaxed);
        self.last_ms.store(0, Relaxed);
    }
}

#[derive(Debug)]
struct Entry {
    phase: AtomicU64,
    /// Written once, by whoever took the entry, before it is shown as named.
    key: [AtomicU64; KEY_WORDS],
    counter: Counter,
}

impl Entry {
    fn new() -> Self {
        Self {
            phase: AtomicU64::new(FREE),
            key: std::array::from_fn(|_| AtomicU64::new(0)),
            counter: Counter::new(),
        }
    }

    /// It has this name, or had none and has got it now.
    fn takes(&self, key: &Key) -> bool {
        match self.phase.compare_exchange(FREE, WRITING, Acquire, Acquire) {
            Ok(_) => {
                for (to, word) in self.key.iter().zip(key) {
                    to.store(*word, Relaxed);
                }
                self.phase.store(NAMED, Release);
                true
            }
            Err(NAMED) => self
                .key
                .iter()
                .zip(key)
                .all(|(have, want)| have.load(Relaxed) == *want),
            Err(_) => false,
        }
    }

    fn named(&self) -> Option<Key> {
        (self.phase.load(Acquire) == NAMED)
            .then(|| std::array::from_fn(|n| self.key.get(n).map_or(0, |word| word.load(Relaxed))))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Duplicates {
    entries: [Entry; CONSTRAINTS_MAX],
    others: Counter,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self::new()
    }
}

impl Duplicates {
    /// Nothing counted.
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| Entry::new()),
            others: Counter::new(),
        }
    }

    /// One more error, at this time in Unix ms.
    pub fn count(&self, of: &Violated<'_>, at_ms: u64) {
        let counter = of.key().and_then(|key| self.counter(&key));
        counter.unwrap_or(&self.others).add(at_ms);
    }

    fn counter(&self, key: &Key) -> Option<&Counter> {
        let (front, back) = self.entries.split_at_checked(place(key))?;
        let entry = back.iter().chain(front).find(|entry| entry.takes(key))?;
        Some(&entry.counter)
    }

    /// What was counted in a database, by name; a constraint without an error is left out.
    #[must_use]
    pub fn of(&self, database: u32) -> Vec<Violations> {
        let mut found = std::collections::BTreeMap::<Key, Violation>::new();
        for entry in &self.entries {
            let (Some(key), seen) = (entry.named(), entry.counter.view()) else {
                continue;
            };
            if key.first() == Some(&u64::from(database)) && seen.count > 0 {
                let sum = found.get(&key).map_or(seen, |have| have.and(seen));
                found.insert(key, sum);
            }
        }
        let mut all: Vec<Violations> = found
            .into_iter()
            .map(|(key, seen)| {
                let mut names = key
                    .get(1..)
                    .unwrap_or_default()
                    .chunks_exact(WORDS_PER_NAME)
                    .map(name);
                Violations {
                    names: std::array::from_fn(|_| names.next().unwrap_or_default()),
                    seen,
                }
            })
            .collect();
        all.sort_by(|a, b| a.names.cmp(&b.names));
        all
    }

    /// Errors of all databases that had no entry of their own.
    #[must_use]
    pub fn others(&self) -> Violation {
        self.others.view()
    }

    /// Counts from zero. The entries keep their names.
    pub fn reset(&self) {
        self.entries.iter().for_each(|entry| entry.counter.reset());
        self.others.reset();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn violated<'n>(database: u32, constraint: &'n str) -> Violated<'n> {
        Violated {
            database,
            schema: b"public",
            table: b"orders",
            constraint: constraint.as_bytes(),
        }
    }

    fn counts(table: &Duplicates, database: u32) -> Vec<(String, u64)> {
        let of = table.of(database).into_iter();
        of.map(|of| (String::from_utf8_lossy(&of.names[2]).into_owned(), of.seen.count))
            .collect()
    }

    #[test]
    fn each_constraint_of_each_database_has_its_own_count_and_times() {
        let table = Duplicates::new();
        for (database, constraint, at) in [
            (1, "a", 50),
            (1, "b", 40),
            (2, "a", 30),
            (1, "a", 20),
            (1, "a", 60),
            (1, "", 70),
        ] {
            table.count(&violated(database, constraint), at);
        }
        assert_eq!(
            counts(&table, 1),
            [(String::new(), 1), ("a".into(), 3), ("b".into(), 1)]
        );
        assert_eq!(counts(&table, 2), [("a".into(), 1)]);
        assert_eq!(counts(&table, 3), []);
        let a = &table.of(1)[1];
        assert_eq!((a.seen.first_ms, a.seen.last_ms), (20, 60));
        assert_eq!(a.names, [b"public".to_vec(), b"orders".to_vec(), b"a".to_vec()]);
        assert_eq!(table.others().count, 0);
    }

    #[test]
    fn names_that_begin_alike_are_two_and_the_longest_name_is_whole() {
        let table = Duplicates::new();
        let long = "c".repeat(NAME_BYTES_MAX);
        for name in [&long, &long[..62], "cccccccc", "ccccccc", "c"] {
            table.count(&violated(1, name), 1);
        }
        let found = counts(&table, 1);
        assert_eq!(found.len(), 5);
        assert!(found.contains(&(long.clone(), 1)));
        // The same letters in other places are another constraint.
        let moved = Violated {
            table: b"orderscc",
            constraint: b"",
            ..violated(1, "")
        };
        table.count(&moved, 1);
        assert_eq!(table.of(1).len(), 6);
    }

    #[test]
    fn what_has_no_room_and_what_no_constraint_can_be_called_is_counted_as_others() {
        let table = Duplicates::new();
        for n in 0..CONSTRAINTS_MAX {
            table.count(&violated(1, &format!("c{n}")), 5);
        }
        assert_eq!(table.of(1).len(), CONSTRAINTS_MAX);
        assert_eq!(table.others().count, 0);
        table.count(&violated(1, "one too many"), 7);
        table.count(&violated(2, "c1"), 8);
        table.count(&violated(1, "c17"), 9);
        assert_eq!(table.of(1).len(), CONSTRAINTS_MAX);
        assert_eq!(
            table.others(),
            Violation {
                count: 2,
                first_ms: 7,
                last_ms: 8
            }
        );
        let fresh = Duplicates::new();
        fresh.count(&violated(1, &"x".repeat(NAME_BYTES_MAX + 1)), 1);
        assert_eq!((fresh.of(1).len(), fresh.others().count), (0, 1));
    }

    #[test]
    fn after_a_reset_it_counts_from_zero_and_the_names_have_their_places() {
        let table = Duplicates::new();
        for n in 0..=CONSTRAINTS_MAX {
            table.count(&violated(1, &format!("c{n}")), 5);
        }
        table.reset();
        assert_eq!((table.of(1).len(), table.others().count), (0, 0));
        table.count(&violated(1, "c3"), 9);
        table.count(&violated(1, "another"), 9);
        assert_eq!(counts(&table, 1), [("c3".into(), 1)]);
        let seen = table.of(1)[0].seen;
        assert_eq!((seen.first_ms, seen.last_ms), (9, 9));
        assert_eq!(table.others().count, 1);
    }

    #[test]
    fn counts_of_many_at_once_add_up_exactly() {
        const THREADS: u64 = 8;
        const EACH: u64 = 20_000;
        let table = Arc::new(Duplicates::new());
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let table = Arc::clone(&table);
                std::thread::spawn(move || {
                    for n in 0..EACH {
                        let name = format!("c{}", (n + thread) % 40);
                        table.count(&violated(1, &name), 1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let found = counts(&table, 1);
        assert_eq!(found.len(), 40);
        assert_eq!(table.others().count, 0);
        for (name, count) in found {
            assert_eq!(count, THREADS * EACH / 40, "{name}");
        }
    }

    #[test]
    fn an_entry_whose_name_is_being_written_keeps_nobody_waiting() {
        let table = Duplicates::new();
        let of = violated(1, "a");
        let first = &table.entries[place(&of.key().unwrap())];
        first.phase.store(WRITING, Relaxed);
        table.count(&of, 1);
        table.count(&of, 2);
        assert_eq!(counts(&table, 1), [("a".into(), 2)]);
        // Whoever wrote it shows it later: two entries of one constraint are one row.
        for (to, word) in first.key.iter().zip(of.key().unwrap()) {
            to.store(word, Relaxed);
        }
        first.counter.add(9);
        first.phase.store(NAMED, Release);
        assert_eq!(counts(&table, 1), [("a".into(), 3)]);
        assert_eq!(table.of(1)[0].seen.last_ms, 9);
    }
}
