use super::*;
use crate::day::Day;
use crate::utc::{parse_us, show_us};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// As the bytes of a commit would be hashed.
fn sha(link: &Link) -> [u8; 32] {
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(&Sha256::digest(format!("{link:?}")));
    sha256
}

/// Commits as an object store keeps them: a conditional create each.
#[derive(Default)]
struct Store {
    commits: Vec<Link>,
}

impl Store {
    fn create(&mut self, link: &Link) -> Answer {
        if self.commits.len() as u64 >= link.seq {
            return Answer::Exists;
        }
        self.commits.push(link.clone());
        Answer::Created
    }

    fn look(&self, link: &Link) -> Found {
        match usize::try_from(link.seq)
            .ok()
            .and_then(|seq| self.commits.get(seq - 1))
        {
            None => Found::Nothing,
            Some(there) if there == link => Found::Ours,
            Some(_) => Found::Theirs,
        }
    }
}

/// A writer that has read up to some offset and perhaps stands between any two of its steps.
#[derive(Clone, Default)]
struct Writer {
    chain: Chain,
    read: BTreeMap<i32, i64>,
}

impl Writer {
    fn restart(store: &Store) -> Self {
        let chain = store.commits.last().map(|last| Chain::behind(last, sha(last)));
        Self {
            chain: chain.unwrap_or_default(),
            read: BTreeMap::new(),
        }
    }

    /// Commits what it has read; whatever happened, it goes on behind what counts.
    fn commit(&mut self, store: &mut Store, epoch: u64, loses_answer: bool) {
        let link = self.chain.extend(&self.read, Vec::new(), epoch);
        let mut step = Step::Again;
        let mut answers = 0;
        while step == Step::Again || step == Step::Look {
            step = if step == Step::Look {
                after_look(store.look(&link))
            } else {
                let answer = store.create(&link);
                answers += 1;
                after_answer(if loses_answer && answers == 1 {
                    Answer::Lost
                } else {
                    answer
                })
            };
        }
        self.read.clear();
        match step {
            Step::Done => self.chain.append(&link, sha(&link)).unwrap(),
            _ => *self = Self::restart(store),
        }
    }
}

fn each_offset_once(commits: &[Link]) -> Result<BTreeMap<i32, i64>, ChainError> {
    let mut chain = Chain::default();
    let mut counted: BTreeMap<(i32, i64), u32> = BTreeMap::new();
    for link in commits {
        chain.append(link, sha(link))?;
        for one in &link.covered {
            (one.start..one.end).for_each(|offset| *counted.entry((one.partition, offset)).or_default() += 1);
        }
    }
    assert!(counted.values().all(|times| *times == 1), "{counted:?}");
    for (partition, end) in chain.vector() {
        assert!((0..*end).all(|offset| counted.contains_key(&(*partition, offset))));
    }
    Ok(chain.vector().clone())
}

/// What one of two writers does next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Read(bool, i32, i64),
    Commit(bool, bool),
    Kill(bool),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        (any::<bool>(), 0..3_i32, 1..9_i64)
            .prop_map(|(who, partition, more)| Move::Read(who, partition, more)),
        (any::<bool>(), any::<bool>()).prop_map(|(who, lost)| Move::Commit(who, lost)),
        any::<bool>().prop_map(Move::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// kafka-connect-storage-cloud#253: two tasks write one key, and offsets are lost; #341, #388: any clock cuts anywhere,
    /// and killed at any moment. Pauses are what lies between two moves of one writer.
    #[test]
    fn a34_a35_two_writers_with_pauses_cuts_and_crashes_leave_each_offset_in_one_commit(
        moves in proptest::collection::vec(moves(), 1..60)
    ) {
        let mut store = Store::default();
        let mut writers = [Writer::default(), Writer::default()];
        for (time, next) in moves.into_iter().enumerate() {
            match next {
                Move::Read(who, partition, more) => {
                    let writer = &mut writers[usize::from(who)];
                    let from = writer.chain.next_of(partition);
                    *writer.read.entry(partition).or_insert(from) += more;
                }
                // The epoch is of whoever took over last; a stale one must not get through either.
                Move::Commit(who, lost) => writers[usize::from(who)].commit(&mut store, time as u64 / 9, lost),
                Move::Kill(who) => writers[usize::from(who)] = Writer::restart(&store),
            }
        }
        each_offset_once(&store.commits).unwrap();
    }

    #[test]
    fn one_change_anywhere_breaks_the_chain(
        ends in proptest::collection::vec((0..3_i32, 1..50_i64), 2..12), at in any::<proptest::sample::Index>()
    ) {
        let mut chain = Chain::default();
        let mut commits = Vec::new();
        for (partition, more) in ends {
            let ends = BTreeMap::from([(partition, chain.next_of(partition) + more)]);
            let link = chain.extend(&ends, Vec::new(), 1);
            chain.append(&link, sha(&link)).unwrap();
            commits.push(link);
        }
        let at = at.index(commits.len() - 1);
        commits[at].epoch += 1;
        prop_assert!(each_offset_once(&commits).is_err());
    }

    #[test]
    fn days_and_moments_are_written_and_read_back(us in 0..253_402_300_800_000_000_i64) {
        prop_assert_eq!(parse_us(&show_us(us)), Some(us));
        let day = Day::of_us(us);
        prop_assert_eq!(day.to_string().parse::<Day>(), Ok(day));
        let whole = show_us(us);
        let date = day.to_string();
        prop_assert_eq!(whole.split('T').next(), Some(date.as_str()));
    }

    #[test]
    fn the_digest_knows_no_order_and_sees_one_change(
        events in proptest::collection::btree_map(any::<i64>(), any::<i64>(), 1..50)
    ) {
        let events: Vec<EventKey> = events.into_iter().collect();
        let there = IdDigest::of(events.iter().copied());
        prop_assert_eq!(there, IdDigest::of(events.iter().rev().copied()));
        // Another number, and another event under its number: a database that has lost commits counts on from before.
        for change in [(1, 0), (0, 1)] {
            let mut other = events.clone();
            other[0] = (other[0].0.wrapping_add(change.0), other[0].1.wrapping_add(change.1));
            if !events.contains(&other[0]) {
                prop_assert_ne!(there, IdDigest::of(other));
            }
        }
    }
}

#[test]
fn what_does_not_follow_is_named() {
    let mut chain = Chain::default();
    let first = chain.extend(&BTreeMap::from([(0, 10), (1, 5)]), Vec::new(), 3);
    chain.append(&first, sha(&first)).unwrap();
    let next = chain.extend(&BTreeMap::from([(0, 12)]), Vec::new(), 2);
    assert_eq!(next.epoch, 3, "an epoch never falls");
    let with = |change: fn(&mut Link)| {
        let mut link = next.clone();
        change(&mut link);
        chain.clone().append(&link, [1; 32]).unwrap_err().to_string()
    };
    assert_eq!(with(|link| link.seq = 4), "commit 2 is due, and this is 4");
    assert_eq!(
        with(|link| link.prev_sha256 = [9; 32]),
        "commit 1 is not the one that the next commit was made behind"
    );
    assert_eq!(
        with(|link| link.covered[0].start = 9),
        "partition 0 goes on at offset 10, and this commit begins at 9"
    );
    assert_eq!(
        with(|link| link.covered[0].end = 9),
        "the offsets of partition 0 make no sense"
    );
    assert_eq!(with(|link| link.covered.truncate(1)), "partition 1 is missing");
    assert_eq!(
        with(|link| link.epoch = 2),
        "it was written under a lease older than epoch 3"
    );
    let gap = |partition, from, to| Gap { partition, from, to };
    for outside in [gap(0, 9, 11), gap(0, 11, 13), gap(0, 11, 11), gap(7, 0, 1)] {
        let mut link = next.clone();
        link.gaps.push(outside);
        assert_eq!(
            chain.clone().append(&link, [1; 32]),
            Err(ChainError::Range(outside.partition))
        );
    }
    let mut link = next.clone();
    link.gaps.push(gap(0, 10, 12));
    assert_eq!(chain.append(&link, [1; 32]), Ok(()));
}

#[test]
fn a_boundary_of_time_and_a_full_buffer_cut() {
    let mut cutter = Cutter::new(CutRule {
        bytes_max: 100,
        ..CutRule::default()
    });
    assert_eq!(
        (cutter.before(u64::MAX), cutter.idle(u64::MAX, 0)),
        (None, None),
        "nothing is buffered"
    );
    assert_eq!(cutter.add(299_999, 60, 0), None);
    assert_eq!(cutter.before(299_999), None);
    assert_eq!(cutter.before(0), None, "a late one goes along");
    assert_eq!(cutter.before(300_000), Some(Cut::Time));
    assert_eq!(cutter.add(299_999, 40, 0), Some(Cut::Bytes));
    assert_eq!(cutter.bytes(), 100);
    cutter.clear();
    assert_eq!((cutter.bytes(), cutter.before(300_000)), (0, None));
}

#[test]
fn a_backlog_is_not_cut_because_it_is_old() {
    let mut cutter = Cutter::new(CutRule::default());
    assert_eq!(cutter.overdue(u64::MAX), None, "nothing is buffered");
    cutter.add(10_000, 1, 5);
    let much_later = 86_400_000;
    assert_eq!(cutter.idle(much_later, 6), Some(Cut::Idle), "nothing more came");
    assert_eq!(cutter.overdue(330_004), None, "more comes");
    assert_eq!(cutter.overdue(330_005), Some(Cut::Idle));
}

/// kafka-connect-storage-cloud#144, #70, #177: what a quiet topic has is never written. Nor by a clock that stands still.
#[test]
fn a36_one_message_and_then_silence_is_cut_half_a_minute_past_the_boundary() {
    let mut cutter = Cutter::new(CutRule::default());
    cutter.add(10_000, 1, 5);
    assert_eq!(cutter.idle(329_999, 5), None);
    assert_eq!(cutter.idle(330_000, 5), Some(Cut::Idle));
    assert_eq!(cutter.idle(0, 330_004), None);
    assert_eq!(
        cutter.idle(0, 330_005),
        Some(Cut::Idle),
        "the wall clock stands still"
    );
}

/// kafka-connect-storage-cloud#375: on the day of 25 hours every record got a file of its own.
#[test]
fn a37_the_day_that_has_25_hours_elsewhere_is_cut_as_any_other() {
    // In Berlin the hour from 00:00 UTC on comes twice on that day.
    let from = "2026-10-25".parse::<Day>().unwrap().start_us() / 1_000;
    let from = u64::try_from(from).unwrap();
    let mut cutter = Cutter::new(CutRule::default());
    let mut cuts = 0;
    for second in 0..25 * 3_600_u64 {
        let now = from + second * 1_000;
        if cutter.before(now).is_some() {
            cutter.clear();
            cuts += 1;
        }
        assert_eq!(cutter.add(now, 100, second * 1_000), None);
        let us = i64::try_from(now * 1_000).unwrap();
        let day = if second < 86_400 {
            "2026-10-25"
        } else {
            "2026-10-26"
        };
        assert_eq!(Day::of_us(us).to_string(), day);
    }
    assert_eq!(cuts, 25 * 12 - 1);
}

#[test]
fn days_are_read_strictly() {
    for (text, days) in [("1970-01-01", 0), ("2000-02-29", 11_016), ("2026-04-03", 20_546)] {
        assert_eq!(text.parse::<Day>(), Ok(Day(days)));
    }
    for text in [
        "2026-02-29",
        "2026-04-31",
        "2026-13-01",
        "1969-12-31",
        "2026-4-3",
        "2026-04-03-01",
        "+026-04-03",
        "",
    ] {
        assert!(text.parse::<Day>().is_err(), "{text}");
    }
    for text in [
        "2026-02-29T00:00:00.000000Z",
        "2026-04-03T24:00:00.000000Z",
        "2026-04-03T10:11:12Z",
        "2026-04-03T10:11:12.123456+",
        "2026-04-03 10:11:12.123456Z",
    ] {
        assert_eq!(parse_us(text), None, "{text}");
    }
}

/// The numbers that `idgen.mix_id()` and `idgen.event_digest()` give as well (regress `37_archive`).
#[test]
fn ids_are_mixed_as_splitmix64_does() {
    assert_eq!(mix_id(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(mix_id(1), 0x910a_2dec_8902_5cc1);
    assert_eq!(mix_id(u64::MAX), 0xe4d9_7177_1b65_2c20);
    let last_of_2020_02_29 = 1_583_020_799_999_999;
    let one = IdDigest::of([(7, last_of_2020_02_29)]);
    assert_eq!(
        (one.xor.cast_signed(), one.sum),
        (3_421_000_776_803_822_903, one.xor)
    );
}

#[test]
fn a_day_is_verified_incomplete_or_a_mismatch() {
    let of = |ids: &[i64]| IdDigest::of(ids.iter().map(|id| (*id, 7)));
    let all = of(&[1, 2, 3]);
    let day = |archived: &[i64], missing, extra, broken: Option<&str>| {
        let verdict = judge(&DayEvidence {
            broken: broken.map(str::to_owned),
            archived: of(archived),
            table: all,
            missing,
            extra,
        });
        (verdict.name(), verdict.reason().unwrap_or_default().to_owned())
    };
    assert_eq!(day(&[3, 2, 1], 0, 0, None), ("verified", String::new()));
    assert_eq!(
        day(&[1], 2, 0, None),
        ("incomplete", "2 of 3 events are not in the archive".into())
    );
    assert_eq!(
        day(&[1, 2, 3, 4], 0, 1, None),
        (
            "mismatch",
            "1 events are in the archive and not in the table".into()
        )
    );
    let differ = "the archive has 3 events and the table 3, and their digests differ";
    assert_eq!(day(&[1, 2, 4], 0, 0, None), ("mismatch", differ.into()));
    assert_eq!(
        day(&[3, 2, 1], 0, 0, Some("file x")),
        ("mismatch", "file x".into())
    );
}
