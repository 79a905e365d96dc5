use super::*;

const VECTORS: &str = include_str!("../../../docs/vectors/events.json");

#[derive(Deserialize)]
struct Vectors {
    events: Vec<Vector>,
    foreign: Vec<ForeignVector>,
}

#[derive(Deserialize)]
struct Vector {
    key: String,
    value: String,
}

#[derive(Deserialize)]
struct ForeignVector {
    value: String,
    error: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(VECTORS).unwrap()
}

#[test]
fn every_vector_is_read_and_written_as_it_is() {
    let vectors = vectors();
    assert!(vectors.events.len() >= 4);
    for vector in vectors.events {
        let event = Event::parse(vector.value.as_bytes()).unwrap();
        assert_eq!(event.key(), vector.key);
        let written = String::from_utf8(event.to_json().unwrap()).unwrap();
        assert_eq!(written, vector.value);
    }
}

#[test]
fn what_is_foreign_is_named() {
    for vector in vectors().foreign {
        let refused = Event::parse(vector.value.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains(&vector.error), "{refused}");
    }
}

#[test]
fn fields_of_a_later_release_are_passed_over() {
    let value = vectors().events[0].value.replacen('{', "{\"later\":[1],", 1);
    assert_eq!(Event::parse(value.as_bytes()).unwrap().schema, SCHEMA);
}

#[test]
fn a_stub_keeps_everything_but_the_payload() {
    let event = Event::parse(vectors().events[0].value.as_bytes()).unwrap();
    let (payload, key) = (event.payload.get().to_owned(), event.key());
    let stub = event.into_stub(StubReason::TooLarge);
    assert_eq!((stub.key(), stub.payload.get()), (key, "{}"));
    let what = stub.stub.clone().unwrap();
    assert_eq!(what.bytes, payload.len() as u64);
    assert_eq!(what.sha256.len(), 64);
    let again = Event::parse(&stub.to_json().unwrap()).unwrap();
    assert_eq!((again.stub, again.tag_seq), (Some(what), stub.tag_seq));
}

/// It becomes a folder's name: one that cannot be made stopped the archive for good.
#[test]
fn a_text_that_postgres_cannot_have_is_foreign() {
    let whole = Event::parse(vectors().events[0].value.as_bytes()).unwrap();
    for field in 0..4 {
        let mut event = whole.clone();
        let text = "a\0b".to_owned();
        match field {
            0 => event.kind = text,
            1 => event.at = text,
            2 => event.tag = text,
            _ => event.tx = Some(text),
        }
        let why = Event::parse(&event.to_json().unwrap()).unwrap_err().to_string();
        assert!(why.contains("a zero byte"), "{why}");
    }
}

#[test]
fn a_service_that_no_database_can_have_is_foreign() {
    let mut event = Event::parse(vectors().events[0].value.as_bytes()).unwrap();
    for (service, is_well) in [
        ("x".repeat(63), true),
        ("é/..%".to_owned(), true),
        ("x".repeat(64), false),
        ("\u{e9}".repeat(32), false),
        (String::new(), false),
        ("a\0b".to_owned(), false),
    ] {
        event.service = service;
        let read = Event::parse(&event.to_json().unwrap());
        assert_eq!(read.is_ok(), is_well, "{}", event.service);
        if let Err(why) = read {
            assert!(why.to_string().contains("its service is not"), "{why}");
        }
    }
}
