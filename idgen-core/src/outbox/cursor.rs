//! Which rows of the queue are read next.
//!
//! The queue is read in *sweeps*, in the order of event ids, a page at a time. All pages of a sweep show what the first one
//! saw: whoever reads the second asks for rows of transactions that its snapshot sees. Else an event of a tag that commits
//! below the cursor, and the tag's next one above it, would be sent in the wrong order. A sweep ends with a page that is not
//! full, or after two seconds, and the next one begins at the floor: so what has committed late is seen.
//!
//! The *floor* is an id at or below which nothing will ever come: else every look would pass over what was published since
//! the oldest snapshot of any session. An event id is drawn by a transaction that has its number already. So once all
//! transactions that were running when a sweep began have ended, what lies below its highest id is visible or never will
//! be; a sweep after that has seen it. Each minute a sweep begins at zero all the same: the floor is for speed, and no
//! promise rests on it alone.

use core::fmt;

/// A sweep goes on for so long at the most.
const SWEEP_MS: u64 = 2_000;
/// So often a sweep begins at zero.
const FULL_MS: u64 = 60_000;

/// What `pg_current_snapshot()` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    text: String,
    xmin: u64,
    xmax: u64,
}

/// Why a text is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotError(String);

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not xmin:xmax:transactions", self.0)
    }
}

impl Snapshot {
    /// Reads `xmin:xmax:xip,…`.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        let wrong = || SnapshotError(text.to_owned());
        let mut parts = text.splitn(3, ':');
        let mut number = || {
            parts
                .next()
                .and_then(|part| part.parse::<u64>().ok())
                .ok_or_else(wrong)
        };
        let (xmin, xmax) = (number()?, number()?);
        if xmin > xmax || parts.next().is_none() {
            return Err(wrong());
        }
        Ok(Self {
            text: text.to_owned(),
            xmin,
            xmax,
        })
    }

    /// As Postgres reads it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Every transaction below has ended.
    #[must_use]
    pub fn xmin(&self) -> u64 {
        self.xmin
    }

    /// No transaction from here on had begun.
    #[must_use]
    pub fn xmax(&self) -> u64 {
        self.xmax
    }
}

/// What to read next: rows that are not published, above an id, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Only ids above.
    pub after: i64,
    /// Only rows that this snapshot sees; `None`: whatever is there now.
    pub seen_by: Option<Snapshot>,
}

#[derive(Clone, Debug)]
struct Sweep {
    began_ms: u64,
    snapshot: Snapshot,
    /// Last id that was read.
    after: i64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    floor: i64,
    highest: i64,
    sweep: Option<Sweep>,
    full_ms: Option<u64>,
    /// The highest id that was known when a sweep began, and the first transaction that had not begun then.
    candidate: Option<(i64, u64)>,
}

impl Cursor {
    /// One that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What to read next.
    pub fn next(&mut self, now_ms: u64) -> Look {
        if let Some(sweep) = &self.sweep {
            if now_ms.saturating_sub(sweep.began_ms) < SWEEP_MS {
                return Look {
                    after: sweep.after,
                    seen_by: Some(sweep.snapshot.clone()),
                };
            }
            // It has not come to its end, so it says nothing of the floor.
            self.sweep = None;
        }
        if self.full_ms.is_none_or(|at| now_ms.saturating_sub(at) >= FULL_MS) {
            self.full_ms = Some(now_ms);
            self.floor = 0;
        }
        Look {
            after: self.floor,
            seen_by: None,
        }
    }

    /// What was read: under which snapshot, the last id, and whether there is more. `lowest`: of what is in flight with what
    /// was read.
    pub fn read(
        &mut self,
        now_ms: u64,
        snapshot: Snapshot,
        last: Option<i64>,
        more: bool,
        lowest: Option<i64>,
    ) {
        self.highest = self.highest.max(last.unwrap_or_default());
        let mut sweep = self.sweep.take().unwrap_or(Sweep {
            began_ms: now_ms,
            snapshot,
            after: self.floor,
        });
        sweep.after = last.unwrap_or(sweep.after);
        if more {
            self.sweep = Some(sweep);
        } else {
            self.end(&sweep, lowest);
        }
    }

    fn end(&mut self, sweep: &Sweep, lowest: Option<i64>) {
        let (highest, running) = *self.candidate.get_or_insert((self.highest, sweep.snapshot.xmax));
        if sweep.snapshot.xmin >= running && sweep.snapshot.xmax > running {
            let unpublished = lowest.map_or(i64::MAX, |lowest| lowest.saturating_sub(1));
            self.floor = self.floor.max(highest.min(unpublished));
            self.candidate = Some((self.highest, sweep.snapshot.xmax));
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn snapshot(xmin: u64, xmax: u64) -> Snapshot {
        Snapshot::parse(&format!("{xmin}:{xmax}:")).unwrap()
    }

    #[test]
    fn snapshots_are_read_as_postgres_writes_them() {
        let one = Snapshot::parse("10:20:10,14,15").unwrap();
        assert_eq!((one.xmin(), one.xmax(), one.text()), (10, 20, "10:20:10,14,15"));
        assert!(Snapshot::parse("10:10:").is_ok());
        for wrong in ["", "10", "10:20", "20:10:", "a:b:", "-1:2:"] {
            assert!(Snapshot::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pages_of_a_sweep_show_what_the_first_saw() {
        let mut cursor = Cursor::new();
        assert_eq!(cursor.next(0).seen_by, None);
        cursor.read(0, snapshot(5, 9), Some(100), true, Some(1));
        let second = cursor.next(10);
        assert_eq!((second.after, second.seen_by), (100, Some(snapshot(5, 9))));
        cursor.read(10, snapshot(7, 12), Some(200), true, Some(1));
        assert_eq!(
            cursor.next(20).seen_by,
            Some(snapshot(5, 9)),
            "the snapshot of the first"
        );
        cursor.read(20, snapshot(8, 13), None, false, Some(1));
        assert_eq!(
            cursor.next(30),
            Look {
                after: 0,
                seen_by: None
            },
            "from the floor again"
        );
    }

    #[test]
    fn a_sweep_ends_after_two_seconds() {
        let mut cursor = Cursor::new();
        cursor.read(0, snapshot(5, 9), Some(100), true, Some(1));
        assert_eq!(cursor.next(1_999).after, 100);
        assert_eq!(
            cursor.next(2_000),
            Look {
                after: 0,
                seen_by: None
            }
        );
    }

    #[test]
    fn the_floor_rises_when_whoever_might_be_late_has_ended() {
        let mut cursor = Cursor::new();
        cursor.next(0);
        cursor.read(0, snapshot(5, 9), Some(100), false, Some(60));
        cursor.read(1, snapshot(8, 12), None, false, Some(60));
        assert_eq!(cursor.next(2).after, 0, "transaction 8 still runs");
        cursor.read(2, snapshot(9, 12), None, false, Some(60));
        assert_eq!(cursor.next(3).after, 59, "60 is not published");
        cursor.read(3, snapshot(12, 13), None, false, None);
        assert_eq!(cursor.next(4).after, 100);
        assert_eq!(cursor.next(60_000).after, 0, "each minute all of it");
    }

    /// A random history: transactions of tags draw ids while they hold their tag, and commit in any order. Whatever is read
    /// at whatever moment, each tag's events come in order, and all come.
    mod histories {
        use super::*;
        use crate::outbox::{Flight, FlightLimits};
        use proptest::prelude::*;
        use std::collections::BTreeMap;

        const TAGS: usize = 3;
        const PAGE: usize = 2;

        #[derive(Clone, Debug)]
        enum Step {
            Begin(usize),
            Commit(usize),
            Look,
            Acknowledge,
            Mark,
            Wait(u64),
        }

        #[derive(Clone, Copy, Debug)]
        struct Row {
            id: i64,
            tag: usize,
            seq: u64,
            tx: u64,
        }

        #[derive(Default)]
        struct World {
            next_id: i64,
            next_tx: u64,
            running: BTreeMap<usize, Row>,
            committed: Vec<Row>,
            seqs: [u64; TAGS],
            published: std::collections::BTreeSet<i64>,
        }

        impl World {
            fn snapshot(&self) -> Snapshot {
                let running: Vec<u64> = self.running.values().map(|row| row.tx).collect();
                let xmax = self.next_tx + 1;
                let xmin = running.iter().copied().min().unwrap_or(xmax);
                let list: Vec<String> = running.iter().map(ToString::to_string).collect();
                Snapshot::parse(&format!("{xmin}:{xmax}:{}", list.join(","))).unwrap()
            }

            fn sees(snapshot: &Snapshot, tx: u64) -> bool {
                let list = snapshot.text().rsplit(':').next().unwrap_or_default();
                tx < snapshot.xmax() && !list.split(',').any(|running| running.parse() == Ok(tx))
            }

            fn page(&self, look: &Look) -> Vec<Row> {
                let mut rows: Vec<Row> = self
                    .committed
                    .iter()
                    .filter(|row| row.id > look.after && !self.published.contains(&row.id))
                    .filter(|row| look.seen_by.as_ref().is_none_or(|s| Self::sees(s, row.tx)))
                    .copied()
                    .collect();
                rows.sort_by_key(|row| row.id);
                rows.truncate(PAGE);
                rows
            }
        }

        fn step() -> impl Strategy<Value = Step> {
            prop_oneof![
                3 => (0..TAGS).prop_map(Step::Begin),
                3 => (0..TAGS).prop_map(Step::Commit),
                6 => Just(Step::Look),
                2 => Just(Step::Acknowledge),
                2 => Just(Step::Mark),
                1 => (1_u64..70_000).prop_map(Step::Wait),
            ]
        }

        fn look(
            world: &World,
            cursor: &mut Cursor,
            flight: &mut Flight<i64, Row>,
            now: u64,
            sent: &mut Vec<Row>,
        ) {
            let looked = cursor.next(now);
            let page = world.page(&looked);
            for row in &page {
                if !flight.has(&row.id) {
                    flight.add(row.id, 1, *row, now);
                    sent.push(*row);
                }
            }
            let last = page.last().map(|row| row.id);
            cursor.read(now, world.snapshot(), last, page.len() == PAGE, flight.lowest());
        }

        fn apply(
            step: &Step,
            world: &mut World,
            cursor: &mut Cursor,
            flight: &mut Flight<i64, Row>,
            now: &mut u64,
            sent: &mut Vec<Row>,
        ) {
            match step {
                Step::Begin(tag) if !world.running.contains_key(tag) => {
                    world.next_tx += 1;
                    world.next_id += 1;
                    world.seqs[*tag] += 1;
                    let row = Row {
                        id: world.next_id,
                        tag: *tag,
                        seq: world.seqs[*tag],
                        tx: world.next_tx,
                    };
                    world.running.insert(*tag, row);
                }
                Step::Commit(tag) => world.committed.extend(world.running.remove(tag)),
                Step::Look => look(world, cursor, flight, *now, sent),
                Step::Acknowledge => {
                    let first = flight.tickets().next();
                    if let Some(ticket) = first {
                        flight.acknowledge(ticket, *now);
                    }
                }
                Step::Mark => {
                    for id in flight.acknowledged(10) {
                        world.published.insert(id);
                        flight.marked(&id);
                    }
                }
                Step::Wait(ms) => *now += ms,
                Step::Begin(_) => {}
            }
        }

        proptest! {
            #[test]
            fn each_tags_events_are_sent_in_order_and_all_of_them(steps in prop::collection::vec(step(), 1..200)) {
                let (mut world, mut cursor, mut now, mut sent) = (World::default(), Cursor::new(), 0, Vec::new());
                let mut flight = Flight::new(FlightLimits { rows: 1_000, bytes: 1_000 });
                for step in &steps {
                    apply(step, &mut world, &mut cursor, &mut flight, &mut now, &mut sent);
                }
                for tag in 0..TAGS {
                    world.committed.extend(world.running.remove(&tag));
                }
                // However it stands: within a minute and as many looks as there are pages everything is sent.
                now += FULL_MS;
                for _ in 0..world.committed.len() + 3 {
                    look(&world, &mut cursor, &mut flight, now, &mut sent);
                }
                for tag in 0..TAGS {
                    let seqs: Vec<u64> = sent.iter().filter(|row| row.tag == tag).map(|row| row.seq).collect();
                    let all: Vec<u64> = (1..=world.seqs[tag]).collect();
                    prop_assert_eq!(seqs, all, "tag {}", tag);
                }
            }

            /// The floor is never above a row that is not published, seen or not.
            #[test]
            fn nothing_is_left_below_the_floor(steps in prop::collection::vec(step(), 1..200)) {
                let (mut world, mut cursor, mut now, mut sent) = (World::default(), Cursor::new(), 0, Vec::new());
                let mut flight = Flight::new(FlightLimits { rows: 1_000, bytes: 1_000 });
                for step in &steps {
                    apply(step, &mut world, &mut cursor, &mut flight, &mut now, &mut sent);
                    let open = world.running.values().chain(&world.committed);
                    let lowest = open.map(|row| row.id).filter(|id| !world.published.contains(id)).min();
                    prop_assert!(lowest.is_none_or(|lowest| cursor.floor < lowest), "{} {:?}", cursor.floor, lowest);
                }
            }
        }
    }
}
