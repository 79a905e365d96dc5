use super::*;
use crate::archive::objects::scripted::Scripted;

fn day(text: &str) -> Day {
    text.parse().unwrap()
}

fn report(of: Day, checked_at: &str, seq: u64) -> DayReport {
    DayReport {
        schema: 1,
        day: of.to_string(),
        state: "verified".to_owned(),
        checked_at: checked_at.to_owned(),
        checked_by: "a test".to_owned(),
        files: 0,
        rows: 0,
        bytes: 0,
        chains: vec![ChainHead {
            chain: "t".to_owned(),
            seq,
            sha256: String::new(),
        }],
        first: None,
        sources: Vec::new(),
        problems: Vec::new(),
    }
}

async fn begins_at(place: &Scripted, of: &str) -> Option<u64> {
    let found = checkpoint_of(place, day(of)).await.unwrap();
    found.first().map(|head| head.seq)
}

/// The report of the day before yesterday may have been made a minute ago: what its heads are behind of, the day is in.
#[tokio::test]
async fn a_day_is_walked_from_a_check_that_was_made_before_it_began() {
    let place = Scripted::default();
    assert_eq!(begins_at(&place, "2026-04-03").await, None);
    let usual = report(day("2026-03-31"), "2026-04-01T00:31:00.000000Z", 7);
    write_report(&place, day("2026-03-31"), &usual).await.unwrap();
    assert_eq!(begins_at(&place, "2026-04-02").await, Some(7));
    // idgenctl archive verify 2026-04-01 2026-04-02 2026-04-03, a week later.
    let late = report(day("2026-04-01"), "2026-04-10T12:00:00.000000Z", 900);
    write_report(&place, day("2026-04-01"), &late).await.unwrap();
    assert_eq!(begins_at(&place, "2026-04-03").await, Some(7));
    // Just before the day, by a clock that may be wrong.
    let close = report(day("2026-04-01"), "2026-04-02T23:59:00.000000Z", 8);
    write_report(&place, day("2026-04-01"), &close).await.unwrap();
    assert_eq!(begins_at(&place, "2026-04-03").await, Some(7));
    // A day that is checked again keeps what its first check was good for.
    let mut again = report(day("2026-03-31"), "2026-06-20T12:00:00.000000Z", 5_000);
    keep_what_was(&mut again, usual);
    let mut once_more = report(day("2026-03-31"), "2026-06-27T12:00:00.000000Z", 6_000);
    keep_what_was(&mut once_more, again);
    write_report(&place, day("2026-03-31"), &once_more).await.unwrap();
    assert_eq!(begins_at(&place, "2026-04-03").await, Some(7));
}

#[test]
fn where_there_is_nothing_nothing_is_verified_and_what_others_have_found_counts() {
    let mut found = report(day("2026-04-03"), "2026-04-04T00:31:00.000000Z", 1);
    assert_eq!(worst(&found), "incomplete");
    found.files = 1;
    assert_eq!(worst(&found), "verified");
    let mut theirs = found.clone();
    theirs.sources.push(SourceReport {
        source: Uuid::from_u128(7),
        database: Some("elsewhere".to_owned()),
        archived: 1,
        table: Some(2),
        state: Some("mismatch".to_owned()),
        reason: Some("x".to_owned()),
        missing: Vec::new(),
        extra: Vec::new(),
    });
    keep_what_was(&mut found, theirs);
    assert_eq!(worst(&found), "mismatch");
    found.sources.clear();
    found.problems.push("a file is missing".to_owned());
    assert_eq!(worst(&found), "mismatch");
}
