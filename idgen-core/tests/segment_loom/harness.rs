//! Scenarios, and what must hold after each of their executions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64 as PlainI64, AtomicU64 as PlainU64, Ordering::Relaxed};

use idgen_core::segment::{Buffer, Publication, Range, Take};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Preemptions per execution. A late refill needs three: after its grant, after the discard, before a take.
const PREEMPTIONS_MAX: usize = 3;

/// Values granted after k discards lie in `k * ERA .. (k + 1) * ERA`.
const ERA: i64 = 1_000;

pub trait Ranges: Send + Sync + 'static {
    fn take(&self, n: u64) -> Take;
    fn take_of(&self, incarnation: u64, n: u64) -> Option<Take>;
    fn incarnation(&self) -> u64;
    /// Moves on from a range that is used up.
    fn has_room(&self) -> bool;
    /// Under the lock.
    fn publish(&self, range: Publication) -> bool;
    /// Under the lock; what was burned.
    fn discard(&self) -> Vec<Range>;
}

impl Ranges for Buffer {
    fn take(&self, n: u64) -> Take {
        Buffer::take(self, n)
    }

    fn take_of(&self, incarnation: u64, n: u64) -> Option<Take> {
        Buffer::take_of(self, incarnation, n)
    }

    fn incarnation(&self) -> u64 {
        Buffer::incarnation(self)
    }

    fn has_room(&self) -> bool {
        Buffer::has_room(self)
    }

    fn publish(&self, range: Publication) -> bool {
        let room = self.has_room();
        let published = Buffer::publish(self, range).is_ok();
        // Takers only make room.
        assert!(
            !room || published || self.incarnation() != range.incarnation,
            "no room after all"
        );
        published
    }

    fn discard(&self) -> Vec<Range> {
        let burned = Buffer::discard(self);
        burned.current.into_iter().chain(burned.next).collect()
    }
}

#[derive(Clone, Copy)]
pub struct Scenario {
    /// One taker per entry, which takes so often.
    pub takes: &'static [usize],
    /// How many values a take asks for.
    pub n: u64,
    /// Takers remember the first incarnation and want no values of another.
    pub remembers: bool,
    /// There are more values than takes from the start: no take finds the buffer empty.
    pub enough: bool,
    /// Lengths of the ranges published before anybody starts.
    pub before: &'static [u64],
    /// How many values the main thread takes of them.
    pub taken_before: usize,
    /// How often the main thread takes beside the takers, before it refills or discards.
    pub main_takes: usize,
    /// One refill per entry, which publishes ranges of these lengths.
    pub refills: &'static [&'static [u64]],
    /// How often the main thread discards.
    pub discards: usize,
    /// Length of the range that it publishes after each.
    pub refills_after: &'static [u64],
}

impl Scenario {
    pub const NONE: Scenario = Scenario {
        takes: &[],
        n: 1,
        remembers: false,
        enough: false,
        before: &[],
        taken_before: 0,
        main_takes: 0,
        refills: &[],
        discards: 0,
        refills_after: &[],
    };
}

/// The tag's row, under its own lock.
#[derive(Default)]
struct Row {
    /// Values granted so far.
    granted: i64,
    /// How often the row was raised to the next era; each time a discard follows.
    raised: i64,
}

struct World<B> {
    buffer: B,
    /// The lock that publishers and discarders owe.
    lock: Mutex<()>,
    row: Mutex<Row>,
    /// Discards that have returned. No atomic of loom's: it tells what has happened in the order of the
    /// execution.
    discards: PlainI64,
    /// Ranges that the buffer took in.
    published: PlainU64,
}

impl<B: Ranges> World<B> {
    /// A refill: read the incarnation, grant and commit, then publish.
    fn refill(&self, len: u64) -> Option<Range> {
        let incarnation = self.buffer.incarnation();
        let base = {
            let mut row = self.row.lock().unwrap();
            let base = row.raised * ERA + row.granted + 1;
            row.granted += i64::try_from(len).unwrap();
            base
        };
        let _held = self.lock.lock().unwrap();
        let published = self.buffer.publish(Publication {
            base,
            len,
            incarnation,
        });
        self.published.fetch_add(u64::from(published), Relaxed);
        published.then_some(Range {
            first: base,
            count: len,
        })
    }

    fn discard(&self) -> Vec<Range> {
        self.row.lock().unwrap().raised += 1;
        let _held = self.lock.lock().unwrap();
        let burned = self.buffer.discard();
        self.discards.fetch_add(1, Relaxed);
        burned
    }

    /// The values taken, and how many takes asked for a refill at the half.
    fn taker(&self, takes: usize, scenario: Scenario) -> (Vec<i64>, u64) {
        let (mut values, mut refills) = (Vec::new(), 0);
        for _ in 0..takes {
            let era = self.discards.load(Relaxed) * ERA;
            let take = match scenario.remembers {
                true => self.buffer.take_of(0, scenario.n),
                false => Some(self.buffer.take(scenario.n)),
            };
            if let Some(Take::Empty { .. }) = take {
                assert!(!scenario.enough, "empty while values are there");
            }
            let Some(Take::Ids { first, count, refill }) = take else {
                continue;
            };
            assert!(era == 0 || first > era, "from before, after a discard: {first}");
            assert!(!scenario.remembers || first < ERA, "of the next owner: {first}");
            assert!(
                values.last().is_none_or(|last| *last < first),
                "books: not rising: {values:?} {first}"
            );
            values.extend(expand(Range { first, count }));
            refills += u64::from(refill);
        }
        (values, refills)
    }
}

fn expand(range: Range) -> impl Iterator<Item = i64> {
    range.first..=range.last()
}

fn execution<B: Ranges>(buffer: B, scenario: Scenario) -> usize {
    let world = World {
        buffer,
        lock: Mutex::new(()),
        row: Mutex::default(),
        discards: PlainI64::new(0),
        published: PlainU64::new(0),
    };
    let world = Arc::new(world);
    let mut published: Vec<Range> = scenario
        .before
        .iter()
        .filter_map(|&len| world.refill(len))
        .collect();
    world.buffer.has_room();
    let (mut taken, mut refills_asked) = world.taker(scenario.taken_before, scenario);
    let takers = scenario.takes.iter().map(|&takes| {
        let world = Arc::clone(&world);
        thread::spawn(move || world.taker(takes, scenario))
    });
    let takers: Vec<_> = takers.collect();
    // Where nobody discards, the refill is this thread: one fewer to interleave.
    let alone = scenario.discards == 0;
    let refills = scenario.refills.iter().filter(|_| !alone).map(|&lens| {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            lens.iter()
                .filter_map(|&len| world.refill(len))
                .collect::<Vec<_>>()
        })
    });
    let refills: Vec<_> = refills.collect();
    let (values, refills_of_main) = world.taker(scenario.main_takes, scenario);
    taken.extend(values);
    refills_asked += refills_of_main;
    if alone {
        published.extend(
            scenario
                .refills
                .iter()
                .copied()
                .flatten()
                .filter_map(|&len| world.refill(len)),
        );
    }
    let mut burned = Vec::new();
    for i in 0..scenario.discards {
        burned.extend(world.discard());
        published.extend(scenario.refills_after.get(i).and_then(|&len| world.refill(len)));
    }
    published.extend(refills.into_iter().flat_map(|refill| refill.join().unwrap()));
    for taker in takers {
        let (values, refills) = taker.join().unwrap();
        taken.extend(values);
        refills_asked += refills;
    }
    assert!(
        refills_asked <= world.published.load(Relaxed),
        "a range asked twice for a refill"
    );
    let count = taken.len();
    while let Take::Ids { first, count, .. } = world.buffer.take(u64::MAX) {
        taken.extend(expand(Range { first, count }));
    }
    balance(&published, &burned, taken);
    count
}

/// What was published is what was taken and what was burned.
fn balance(published: &[Range], burned: &[Range], mut taken: Vec<i64>) {
    let mut all: Vec<i64> = published.iter().copied().flat_map(expand).collect();
    taken.extend(burned.iter().copied().flat_map(expand));
    all.sort_unstable();
    taken.sort_unstable();
    assert!(
        all == taken,
        "the books do not balance: published {all:?}, taken and burned {taken:?}"
    );
}

fn explore<B: Ranges>(make: fn() -> B, scenario: Scenario) -> Result<u64, String> {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS, read by loom, goes before ours.
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.max_branches = 20_000;
    let counts = std::sync::Arc::new((PlainU64::new(0), PlainU64::new(0)));
    let counting = std::sync::Arc::clone(&counts);
    let checked = catch_unwind(AssertUnwindSafe(move || {
        builder.check(move || {
            counting.0.fetch_add(1, Relaxed);
            counting.1.fetch_add(execution(make(), scenario) as u64, Relaxed);
        });
    }));
    let (executions, values) = (counts.0.load(Relaxed), counts.1.load(Relaxed));
    println!("{executions} executions, {values} values");
    match checked {
        Ok(()) => Ok(values),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic
                .downcast::<&str>()
                .map(|message| (*message).to_owned())
                .unwrap_or_default(),
        }),
    }
}

/// No execution breaks a rule, and values are taken.
pub fn holds<B: Ranges>(make: fn() -> B, scenario: Scenario) {
    let values = explore(make, scenario);
    assert!(values.as_ref().is_ok_and(|&values| values > 0), "{values:?}");
}

/// Some execution breaks the rule named.
pub fn caught<B: Ranges>(make: fn() -> B, scenario: Scenario, rule: &str) {
    let caught = explore(make, scenario);
    assert!(
        caught.as_ref().is_err_and(|message| message.contains(rule)),
        "{caught:?}"
    );
}
