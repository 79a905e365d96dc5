use super::commit::{Commit, commit_key};
use super::objects::scripted::{Happens, Scripted};
use super::objects::{ObjectErrorKind, Objects};
use super::parquet::tests::{event, message};
use super::*;
use idgen_core::archive::Cut;
use idgen_core::day::Day;
use std::collections::BTreeMap;
use std::sync::Arc;

fn batch(ledger: &Ledger<Scripted>, offsets: std::ops::Range<i64>) -> Batch {
    let end = offsets.end;
    let messages = offsets.map(|offset| message(0, offset, &event(offset))).collect();
    Batch {
        files: pack(messages, ledger.name(), ledger.chain().head().seq + 1, None).unwrap(),
        ends: BTreeMap::from([(0, end)]),
        gaps: Vec::new(),
        epoch: 1,
        cut: Cut::Time,
        source: "kafka",
        locked_until: None,
    }
}

async fn open(place: &Scripted) -> Ledger<Scripted> {
    Ledger::open(Arc::new(place.clone()), "t").await.unwrap()
}

#[tokio::test]
async fn the_end_of_a_chain_is_found_without_listing_anything() {
    let place = Scripted::default();
    let mut writer = open(&place).await;
    for n in 0..21 {
        let next = batch(&writer, n..n + 1);
        assert_eq!(writer.append(next).await.unwrap(), Appended::Ours);
    }
    let before = place.log().len();
    let found = open(&place).await;
    assert_eq!((found.chain(), found.last().unwrap().seq), (writer.chain(), 21));
    let asked = place.log().split_off(before);
    assert!(asked.len() <= 12, "{asked:?}");
    assert!(
        asked
            .iter()
            .all(|line| line.starts_with("head ") || line.starts_with("get "))
    );
}

/// aws-sdk-java-v2#6580: 412 on one's own success, because the first answer was lost.
#[tokio::test(start_paused = true)]
async fn a41_a_lost_answer_is_looked_up_and_was_ours() {
    for lost in ["_commits", "dt="] {
        let place = Scripted::default();
        let mut writer = open(&place).await;
        place.next("put", lost, Happens::AnswerLost);
        let next = batch(&writer, 0..5);
        assert_eq!(writer.append(next).await.unwrap(), Appended::Ours);
        assert_eq!(open(&place).await.chain().next_of(0), 5);
        assert_eq!(place.keys().len(), 2);
    }
}

/// 409 says nothing of what is there: the request is repeated.
#[tokio::test(start_paused = true)]
async fn a42_a_conflict_is_tried_again() {
    let place = Scripted::default();
    let mut writer = open(&place).await;
    for _ in 0..3 {
        place.next("put", "_commits", Happens::Refused(ObjectErrorKind::Conflict));
    }
    let next = batch(&writer, 0..5);
    assert_eq!(writer.append(next).await.unwrap(), Appended::Ours);
    assert_eq!(open(&place).await.chain().next_of(0), 5);
}

#[tokio::test(start_paused = true)]
async fn tries_are_bounded_and_what_waiting_does_not_mend_is_told_at_once() {
    for (kind, requests) in [
        (ObjectErrorKind::Conflict, 6),
        (ObjectErrorKind::Denied, 1),
        (ObjectErrorKind::KeyDenied, 1),
        (ObjectErrorKind::NoPlace, 1),
        (ObjectErrorKind::Full, 1),
        (ObjectErrorKind::Clock, 1),
    ] {
        let place = Scripted::default();
        let mut writer = open(&place).await;
        for _ in 0..10 {
            place.next("put", "dt=", Happens::Refused(kind));
        }
        let next = batch(&writer, 0..5);
        assert_eq!(writer.append(next).await.unwrap_err().kind, kind);
        let puts = place.log().iter().filter(|line| line.starts_with("put")).count();
        assert_eq!(puts, requests, "{kind:?}");
        assert!(!place.keys().iter().any(|key| key.contains("_commits")));
    }
}

/// The first is paused before it commits, the second commits; the first finds that out and goes on behind it.
#[tokio::test]
async fn the_slower_of_two_writers_adopts_the_commit_of_the_faster() {
    let place = Scripted::default();
    let (mut slow, mut fast) = (open(&place).await, open(&place).await);
    let paused = batch(&slow, 0..9);
    let next = batch(&fast, 0..4);
    assert_eq!(fast.append(next).await.unwrap(), Appended::Ours);
    assert_eq!(slow.append(paused).await.unwrap(), Appended::Adopted);
    assert_eq!(slow.chain(), fast.chain());
    let next = batch(&slow, 4..9);
    assert_eq!(slow.append(next).await.unwrap(), Appended::Ours);
    let commits: Vec<Commit> = {
        let mut commits = Vec::new();
        for seq in 1..=2 {
            commits.push(Commit::parse(&place.get(&commit_key("t", seq)).await.unwrap()).unwrap());
        }
        commits
    };
    let ranges: Vec<_> = commits
        .iter()
        .map(|commit| (commit.ranges[0].start, commit.ranges[0].end))
        .collect();
    assert_eq!(ranges, [(0, 4), (4, 9)]);
}

#[tokio::test]
async fn a_commit_of_another_chain_or_one_that_does_not_follow_stops_everything() {
    let place = Scripted::default();
    let mut writer = open(&place).await;
    for n in 0..2 {
        let next = batch(&writer, n..n + 1);
        writer.append(next).await.unwrap();
    }
    let mut behind = open(&place).await;
    let next = batch(&writer, 2..3);
    writer.append(next).await.unwrap();
    place.change(&commit_key("t", 3), |bytes| {
        let text = String::from_utf8(bytes.clone())
            .unwrap()
            .replace("\"start\": 2", "\"start\": 1");
        *bytes = text.into_bytes();
    });
    let refused = behind.seek().await.unwrap_err().to_string();
    assert!(
        refused.contains("goes on at offset 2, and this commit begins at 1"),
        "{refused}"
    );
    place.change(&commit_key("t", 3), |bytes| *bytes = b"{}".to_vec());
    let refused = Ledger::open(Arc::new(place.clone()), "t")
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains("000000000003.json is no commit of this chain"),
        "{refused}"
    );
}

#[test]
fn files_are_by_day_and_service_and_what_is_foreign_has_its_own() {
    let mut other = event(2);
    other.service = "_foreign".into();
    let mut tomorrow = event(3);
    tomorrow.at = "2026-04-04T00:00:00.000000Z".into();
    let mut taken = event(4);
    taken.kind = "snowflake.lease.force_released".into();
    let events = [event(1), other, tomorrow, taken];
    let mut messages: Vec<_> = (0..)
        .zip(&events)
        .map(|(at, event)| message(0, at, event))
        .collect();
    let spot = parquet::tests::spot(0, 9);
    messages.push(parquet::Message::read(spot, None, None, Some(b"{\"schema\":2}")));
    let until = std::time::SystemTime::now();
    let packed = pack(messages, "t", 1, Some(until)).unwrap();
    let folders: Vec<_> = packed
        .iter()
        .map(|file| {
            let (day, service) = file.entry.place().unwrap();
            (
                format!("{day} {service}"),
                file.keep.locked_until.is_some(),
                file.entry.rows,
            )
        })
        .collect();
    let wanted = [
        ("2026-04-03 %5Fforeign", false),
        ("2026-04-03 billing", false),
        ("2026-04-03 billing", true),
        ("2026-04-04 billing", false),
        ("2026-04-03 _foreign", false),
    ];
    assert_eq!(
        folders,
        wanted.map(|(folder, locked)| (folder.to_owned(), locked, 1))
    );
}

/// What is put in the place of a file marked events as handed on that no file has.
#[tokio::test]
async fn only_events_of_files_that_are_as_they_were_written_are_marked() {
    let place = Scripted::default();
    let mut writer = open(&place).await;
    let next = batch(&writer, 0..3);
    writer.append(next).await.unwrap();
    let last = writer.last().unwrap().clone();
    let keys = feed_table::keys_of_commit(&place, &last).await.unwrap();
    let marked: Vec<i64> = keys.values().flatten().map(|key| key.0).collect();
    assert_eq!(marked, [0, 1, 2]);
    assert!(
        keys.iter()
            .all(|((day, _), keys)| keys.iter().all(|key| Day::of_us(key.1) == *day))
    );
    // A file that is whole, of another commit.
    let other = pack(vec![message(0, 9, &event(9))], "t", 1, None).unwrap();
    place.change(&last.files[0].key, |bytes| *bytes = other[0].bytes.to_vec());
    let refused = feed_table::keys_of_commit(&place, &last)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("is not what was written"), "{refused}");
}
