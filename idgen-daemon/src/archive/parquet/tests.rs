use super::*;
use serde_json::value::RawValue;
use uuid::Uuid;

pub(crate) fn spot(partition: i32, offset: i64) -> Spot {
    Spot {
        partition,
        offset,
        at_ms: 1_775_210_000_000 + offset,
    }
}

pub(crate) fn event(id: i64) -> Event {
    Event {
        schema: crate::event::SCHEMA,
        kind: "segment.grant".into(),
        source: Uuid::from_u128(7),
        event_id: id,
        at: format!("2026-04-03T10:11:12.{:06}Z", id % 1_000_000),
        service: "billing".into(),
        space: Uuid::from_u128(9),
        tag: format!("tag {}", id % 5),
        tag_seq: id / 5,
        lo: Some(id * 10),
        hi: Some(id * 10 + 9),
        token: (id % 2 == 0).then_some(crate::event::EventToken {
            epoch: 1,
            revision: id,
        }),
        tx: Some(id.to_string()),
        stub: None,
        payload: RawValue::from_string(format!("{{\"step\": {id}}}")).unwrap(),
    }
}

pub(crate) fn message(partition: i32, offset: i64, event: &Event) -> Message {
    let value = event.to_json().unwrap();
    Message::read(
        spot(partition, offset),
        Some(4),
        Some(event.key().as_bytes()),
        Some(&value),
    )
}

pub(crate) fn arrived(count: i64) -> Vec<Arrived> {
    let messages = (0..count).map(|id| message((id % 3) as i32, id / 3, &event(id)));
    messages
        .map(|message| match message {
            Message::Event(arrived) => *arrived,
            Message::Foreign(foreign) => panic!("{}", foreign.why),
        })
        .collect()
}

#[test]
fn what_is_written_is_read_back_whole() {
    let mut rows = arrived(1_000);
    let stubbed = rows[3]
        .event
        .clone()
        .into_stub(crate::event::StubReason::TooLarge);
    rows[3].event = stubbed;
    let encoded = encode_events(&mut rows, "idgen.audit", 3).unwrap();
    let opened = Opened::open(encoded.bytes.clone()).unwrap();
    assert_eq!(
        (opened.rows, opened.events, opened.is_foreign),
        (1_000, 1_000, false)
    );
    let mut back = Vec::new();
    opened.each_event(|row| back.push(row)).unwrap();
    assert_eq!(back.len(), rows.len());
    for (ours, theirs) in rows.iter().zip(&back) {
        assert_eq!(ours.event.to_json().unwrap(), theirs.event.to_json().unwrap());
        assert_eq!(
            (ours.spot, ours.epoch, ours.at_us),
            (theirs.spot, theirs.epoch, theirs.at_us)
        );
    }
    assert!(rows.is_sorted_by_key(|row| (row.event.tag.clone(), row.event.lo)));
}

#[test]
fn equal_rows_give_equal_bytes_whatever_order_they_came_in() {
    let mut rows = arrived(500);
    let first = encode_events(&mut rows.clone(), "c", 1).unwrap();
    rows.reverse();
    assert_eq!(
        encode_events(&mut rows.clone(), "c", 1).unwrap().bytes,
        first.bytes
    );
    rows.pop();
    assert_ne!(encode_events(&mut rows, "c", 1).unwrap().bytes, first.bytes);
}

#[test]
fn copies_stay_and_are_counted() {
    let mut rows = arrived(10);
    let mut copy = rows[4].clone();
    copy.spot = spot(2, 77);
    rows.push(copy);
    let encoded = encode_events(&mut rows, "c", 1).unwrap();
    assert_eq!((encoded.summary.rows, encoded.summary.events), (11, 10));
}

#[test]
fn what_events_are_about_is_read_without_the_rest() {
    let mut rows = arrived(50);
    let encoded = encode_events(&mut rows, "c", 1).unwrap();
    let opened = Opened::open(encoded.bytes).unwrap();
    for with_payload in [false, true] {
        let mut read = Vec::new();
        let keep = |about: &About<'_>| {
            read.push((about.space, about.tag.to_owned(), about.ids));
            assert_eq!(about.payload.is_some(), with_payload);
            true
        };
        opened.each_about(with_payload, keep).unwrap();
        let wanted: Vec<_> = rows
            .iter()
            .map(|row| &row.event)
            .map(|event| (event.space, event.tag.clone(), event.lo.zip(event.hi)))
            .collect();
        assert_eq!(read, wanted);
    }
    let mut seen = 0;
    let enough = |_: &About<'_>| {
        seen += 1;
        seen < 3
    };
    opened.each_about(false, enough).unwrap();
    assert_eq!(seen, 3);
}

#[test]
fn fields_of_a_later_release_are_kept() {
    let value = String::from_utf8(event(1).to_json().unwrap())
        .unwrap()
        .replacen('{', "{\"later\":[1],", 1);
    let Message::Event(row) = Message::read(spot(0, 0), None, None, Some(value.as_bytes())) else {
        panic!("it is an event");
    };
    let encoded = encode_events(&mut [*row], "c", 1).unwrap();
    let mut back = Vec::new();
    Opened::open(encoded.bytes)
        .unwrap()
        .each_event(|row| back.push(row))
        .unwrap();
    assert_eq!(back[0].original.as_deref(), Some(value.as_str()));
}

#[test]
fn what_is_no_event_is_kept_as_it_came_with_the_reason() {
    let of = |value: Option<&[u8]>| match Message::read(spot(1, 5), None, Some(b"k"), value) {
        Message::Foreign(foreign) => foreign,
        Message::Event(_) => panic!("it is none"),
    };
    let mut rows = [
        of(Some(b"{\"schema\":2,\"kind\":\"x\"}")),
        of(Some(&[0xff, 0x00])),
        of(None),
    ];
    assert!(rows[0].why.contains("schema version 2"), "{}", rows[0].why);
    let wanted = rows.to_vec();
    let encoded = encode_foreign(&mut rows, "c", 1).unwrap();
    let opened = Opened::open(encoded.bytes).unwrap();
    let mut back = Vec::new();
    opened.each_foreign(|row| back.push(row)).unwrap();
    assert!(opened.is_foreign);
    assert_eq!(back, wanted);
}

/// duckdb#14990, openobserve#6099, parquet-java#3069: a file without its end is no file.
#[test]
fn a46_a_file_that_was_cut_off_is_refused_wherever_that_was() {
    let encoded = encode_events(&mut arrived(100), "c", 1).unwrap();
    for at in (0..encoded.bytes.len()).step_by(61) {
        assert!(Opened::open(encoded.bytes.slice(..at)).is_err(), "cut at {at}");
    }
}

/// arrow-rs#5828, #10071: one row group took memory without bound.
#[test]
fn a47_row_groups_are_closed_before_they_are_large() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    let groups = |rows: &mut [Arrived]| {
        let file = SerializedFileReader::new(encode_events(rows, "c", 1).unwrap().bytes).unwrap();
        let groups = file.metadata().row_groups();
        groups
            .iter()
            .map(|group| (group.num_rows(), group.compressed_size()))
            .collect::<Vec<_>>()
    };
    let mut large = arrived(600);
    for (n, row) in large.iter_mut().enumerate() {
        // What does not compress well.
        let noise =
            (n * 4_000..(n + 1) * 4_000).map(|at| format!("{:016x}", idgen_core::archive::mix_id(at as u64)));
        row.event.payload = RawValue::from_string(format!("\"{}\"", noise.collect::<String>())).unwrap();
    }
    let found = groups(&mut large);
    assert!(
        found.len() > 1 && found.iter().all(|(_, bytes)| *bytes <= 24 << 20),
        "{found:?}"
    );
    let found = groups(&mut arrived(140_000));
    assert!(
        found.len() > 1 && found.iter().all(|(rows, _)| *rows <= 131_072),
        "{found:?}"
    );
}
