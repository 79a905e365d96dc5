//! What was drawn against what was granted.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;

use super::sessions::Drawn;
use crate::kit::sql;

/// What the run has done, as far as it allows for holes.
#[derive(Default, Debug)]
pub struct Allowed {
    /// How often memory was lost.
    pub crashes: usize,
    /// Refills that were ended after their commit: each has burned its range.
    pub ended_waits: usize,
}

struct Event {
    seq: i64,
    kind: String,
    lo: i64,
    hi: i64,
}

/// One granted range, and how many of its ids somebody was given.
struct Range {
    lo: i64,
    hi: i64,
    seen: usize,
    /// An event says that it was open when memory was lost.
    recorded_open: bool,
}

impl Range {
    fn missing(&self) -> u64 {
        (self.hi - self.lo + 1).unsigned_abs() - self.seen as u64
    }
}

#[derive(Default)]
pub struct Verdict {
    pub ids: usize,
    pub grants: usize,
    pub open: usize,
    pub missing: u64,
    pub broken: Vec<String>,
}

/// All tags together.
pub fn judge(client: &mut Client, drawn: Vec<Drawn>, allowed: &Allowed) -> Verdict {
    let unanswered = drawn.iter().map(|drawn| drawn.unanswered).sum();
    let mut by_tag: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (tag, mut ids) in drawn.into_iter().flat_map(|drawn| drawn.ids) {
        by_tag.entry(tag).or_default().append(&mut ids);
    }
    let mut all = Verdict::default();
    let mut burned = 0;
    for (tag, ids) in by_tag {
        burned += judge_tag(tag, ids, &events(client, tag), (allowed, unanswered), &mut all);
    }
    if burned > allowed.ended_waits {
        let ended = allowed.ended_waits;
        all.broken.push(format!(
            "{burned} ranges are lost without a record, {ended} waits were ended"
        ));
    }
    all
}

/// Returns how many ranges are lost that no event tells of.
fn judge_tag(
    tag: &str,
    mut ids: Vec<i64>,
    events: &[Event],
    (allowed, unanswered): (&Allowed, u64),
    all: &mut Verdict,
) -> usize {
    ids.sort_unstable();
    let mut broken = |what: String| all.broken.push(format!("tag {tag}: {what}"));
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        broken(format!("{} was drawn twice", pair[0]));
    }
    if let Some((event, nth)) = events.iter().zip(1..).find(|(event, nth)| event.seq != *nth) {
        broken(format!("event {nth} has number {}", event.seq));
    }
    let mut ranges = granted(events);
    for pair in ranges.windows(2).filter(|pair| pair[0].hi >= pair[1].lo) {
        broken(format!(
            "{} to {} and {} to {} overlap",
            pair[0].lo, pair[0].hi, pair[1].lo, pair[1].hi
        ));
    }
    let mut rest = ids.as_slice();
    for range in &mut ranges {
        let before = rest.partition_point(|id| *id < range.lo);
        if before > 0 {
            broken(format!("{} was never granted", rest[0]));
        }
        let end = rest.partition_point(|id| *id <= range.hi);
        range.seen = end - before;
        rest = &rest[end..];
    }
    if let Some(id) = rest.first() {
        broken(format!("{id} was never granted"));
    }
    let lives = lives(events);
    // A worker whose first grant in a life was ended leaves that one open as well.
    if lives.len() < allowed.crashes || lives.len() > allowed.crashes + allowed.ended_waits {
        broken(format!(
            "memory was lost {} times, open ranges recorded {} times",
            allowed.crashes,
            lives.len()
        ));
    }
    if let Some(most) = lives.iter().max().filter(|most| **most > 2) {
        broken(format!("a crash has left {most} ranges open"));
    }
    all.ids += ids.len();
    all.grants += ranges.len();
    all.open += lives.iter().sum::<usize>();
    all.missing += ranges.iter().map(Range::missing).sum::<u64>();
    let (burned, lost) = unexplained(&ranges);
    if lost > unanswered {
        all.broken.push(format!("tag {tag}: {lost} ids are missing in ranges that were used up, {unanswered} statements had no answer"));
    }
    burned
}

/// What is missing where nothing was open: whole ranges, and single ids.
fn unexplained(ranges: &[Range]) -> (usize, u64) {
    // The last two may be in memory now.
    let closed = &ranges[..ranges.len().saturating_sub(2)];
    let closed = closed.iter().filter(|range| !range.recorded_open);
    let (whole, single): (Vec<&Range>, Vec<&Range>) = closed.partition(|range| range.seen == 0);
    (whole.len(), single.iter().map(|range| range.missing()).sum())
}

fn granted(events: &[Event]) -> Vec<Range> {
    let open: BTreeSet<(i64, i64)> = events
        .iter()
        .filter(|event| event.kind == "segment.open")
        .map(|event| (event.lo, event.hi))
        .collect();
    let mut ranges: Vec<Range> = events
        .iter()
        .filter(|event| event.kind == "segment.grant")
        .map(|event| Range {
            lo: event.lo,
            hi: event.hi,
            seen: 0,
            recorded_open: open.contains(&(event.lo, event.hi)),
        })
        .collect();
    ranges.sort_unstable_by_key(|range| range.lo);
    ranges
}

/// How many ranges were recorded as open, for each time that there were some.
fn lives(events: &[Event]) -> Vec<usize> {
    events
        .chunk_by(|one, next| one.kind == next.kind)
        .filter(|events| events[0].kind == "segment.open")
        .map(<[Event]>::len)
        .collect()
}

fn events(client: &mut Client, tag: &str) -> Vec<Event> {
    let query = "SELECT tag_seq, kind, coalesce(lo, 0), coalesce(hi, 0) FROM idgen.audit_event WHERE tag = $1 ORDER BY tag_seq";
    let rows = client.query(query, &[&tag]);
    rows.unwrap_or_else(|error| panic!("{query}: {}", sql::describe(&error)))
        .iter()
        .map(|row| Event {
            seq: row.get(0),
            kind: row.get(1),
            lo: row.get(2),
            hi: row.get(3),
        })
        .collect()
}

/// A tag of two lives: three grants, a crash that leaves the last two open, two grants more.
fn example() -> (Vec<i64>, Vec<Event>) {
    let ids = [1..=10, 11..=17, 31..=40, 41..=45]
        .into_iter()
        .flatten()
        .collect();
    let kinds = [
        ("segment.create", 0, 0),
        ("segment.grant", 1, 10),
        ("segment.grant", 11, 20),
        ("segment.grant", 21, 30),
        ("segment.open", 11, 20),
        ("segment.open", 21, 30),
        ("segment.grant", 31, 40),
        ("segment.grant", 41, 50),
    ];
    let events = kinds.into_iter().zip(1..).map(|((kind, lo, hi), seq)| Event {
        seq,
        kind: kind.to_owned(),
        lo,
        hi,
    });
    (ids, events.collect())
}

#[test]
fn the_judge_bites() {
    let judged = |break_it: &dyn Fn(&mut Vec<i64>, &mut Vec<Event>)| -> (usize, String) {
        let (mut ids, mut events) = example();
        break_it(&mut ids, &mut events);
        let allowed = Allowed {
            crashes: 1,
            ended_waits: 0,
        };
        let mut all = Verdict::default();
        let burned = judge_tag("t", ids, &events, (&allowed, 0), &mut all);
        (burned, all.broken.join("; "))
    };
    assert_eq!(judged(&|_, _| {}), (0, String::new()));
    let (_, twice) = judged(&|ids, _| ids.push(12));
    assert!(twice.contains("12 was drawn twice"), "{twice}");
    let (_, ungranted) = judged(&|ids, _| ids.push(51));
    assert!(ungranted.contains("51 was never granted"), "{ungranted}");
    let (_, overlap) = judged(&|_, events| events[6].lo = 30);
    assert!(overlap.contains("overlap"), "{overlap}");
    let (_, hole) = judged(&|ids, _| ids.retain(|id| *id != 5));
    assert!(hole.contains("1 ids are missing"), "{hole}");
    // A range that no session was given anything of, and no event tells of.
    let (burned, _) = judged(&|ids, _| ids.retain(|id| *id > 10));
    assert_eq!(burned, 1);
    let (burned, unrecorded) = judged(&|_, events| {
        events.retain(|event| event.kind != "segment.open");
    });
    assert!(
        unrecorded.contains("open ranges recorded 0 times"),
        "{unrecorded}"
    );
    assert_eq!(burned, 1);
    assert!(unrecorded.contains("3 ids are missing"), "{unrecorded}");
    let (_, gap) = judged(&|_, events| events[3].seq = 9);
    assert!(gap.contains("event 4 has number 9"), "{gap}");
}
