//! The golden vectors of docs/vectors against the core. The same files are fed through SQL by the end-to-end
//! tests (INCIDENTS 15: a port put the wrong fields into its ids, because every port had vectors of its own).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test crate")]

use std::path::Path;

use idgen_core::clock::UnixMs;
use idgen_core::format::{self, Format, Parts};
use idgen_core::public_id::{self, Prefix};
use idgen_core::seal::SealKeys;
use idgen_core::{base32, base62, uuid, uuidv7};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/vectors")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

#[derive(Deserialize)]
struct Invalid {
    text: String,
    why: String,
}

#[derive(Deserialize)]
struct Base62 {
    valid: Vec<Base62Valid>,
    invalid: Vec<Invalid>,
}

#[derive(Deserialize)]
struct Base62Valid {
    number: String,
    text: String,
}

#[test]
fn incident_15_base62() {
    let vectors: Base62 = read("base62.json");
    assert!(vectors.valid.len() > 20 && vectors.invalid.len() > 10);
    for Base62Valid { number, text } in vectors.valid {
        let number = self::number(&number);
        assert_eq!(&base62::encode(number)[..], text.as_bytes());
        assert_eq!(base62::decode(text.as_bytes()), Ok(number));
    }
    for Invalid { text, why } in vectors.invalid {
        assert!(base62::decode(text.as_bytes()).is_err(), "{text:?}: {why}");
    }
}

#[derive(Deserialize)]
struct PublicId {
    valid: Vec<PublicIdValid>,
    invalid: Vec<Invalid>,
}

#[derive(Deserialize)]
struct PublicIdValid {
    text: String,
    prefix: String,
    number: String,
}

#[test]
fn incident_15_public_ids() {
    let vectors: PublicId = read("public-id.json");
    assert!(vectors.valid.len() > 5 && vectors.invalid.len() > 15);
    for id in vectors.valid {
        let prefix = Prefix::parse(id.prefix.as_bytes()).unwrap();
        let number = number(&id.number);
        assert_eq!(public_id::compose(prefix, number).as_str(), id.text);
        assert_eq!(public_id::parse(id.text.as_bytes()), Ok((prefix, number)));
    }
    for Invalid { text, why } in vectors.invalid {
        assert!(public_id::parse(text.as_bytes()).is_err(), "{text:?}: {why}");
    }
}

#[derive(Deserialize)]
struct Seal {
    keys: Vec<String>,
    valid: Vec<SealValid>,
    refused: Vec<SealOther>,
    malformed: Vec<SealOther>,
}

#[derive(Deserialize)]
struct SealValid {
    key: usize,
    id: String,
    prefix: String,
    text: String,
}

#[derive(Deserialize)]
struct SealOther {
    text: String,
    prefix: String,
    why: String,
}

#[test]
fn incident_15_sealed_ids() {
    let vectors: Seal = read("seal.json");
    assert!(vectors.valid.len() > 15 && vectors.refused.len() > 5 && vectors.malformed.len() > 5);
    let all = SealKeys::parse(vectors.keys.join("\n").as_bytes()).unwrap();
    for SealValid {
        key,
        id,
        prefix,
        text,
    } in vectors.valid
    {
        let prefix = Prefix::parse(prefix.as_bytes()).unwrap();
        let one = SealKeys::parse(vectors.keys[key].as_bytes()).unwrap();
        assert_eq!(
            public_id::compose(prefix, one.seal(number(&id), prefix)).as_str(),
            text
        );
        let (_, sealed) = public_id::parse(text.as_bytes()).unwrap();
        assert_eq!(all.open(sealed, prefix), Some(number(&id)), "{text}");
    }
    for SealOther { text, prefix, why } in vectors.refused {
        let (found, sealed) = public_id::parse(text.as_bytes()).unwrap();
        let prefix = Prefix::parse(prefix.as_bytes()).unwrap();
        let opened = all.open(sealed, prefix).filter(|_| found == prefix);
        assert_eq!(opened, None, "{text}: {why}");
    }
    for SealOther { text, why, .. } in vectors.malformed {
        assert!(public_id::parse(text.as_bytes()).is_err(), "{text:?}: {why}");
    }
}

#[derive(Deserialize)]
struct Encode {
    valid: Vec<Encoded>,
    also_read: Vec<Encoded>,
    not_encoded: Vec<NoId>,
    invalid: Vec<Invalid>,
}

#[derive(Deserialize)]
struct Encoded {
    id: String,
    text: String,
}

#[derive(Deserialize)]
struct NoId {
    id: String,
    why: String,
}

#[test]
fn incident_15_encoded_ids() {
    let vectors: Encode = read("encode.json");
    assert!(vectors.valid.len() > 10 && vectors.also_read.len() > 5 && vectors.invalid.len() > 8);
    for Encoded { id, text } in vectors.valid {
        let id = number(&id);
        assert_eq!(base32::encode(id).unwrap()[..], *text.as_bytes());
        assert_eq!(base32::decode(text.as_bytes()), Ok(id));
    }
    for Encoded { id, text } in vectors.also_read {
        assert_eq!(base32::decode(text.as_bytes()), Ok(number(&id)), "{text}");
    }
    for NoId { id, why } in vectors.not_encoded {
        assert_eq!(base32::encode(number(&id)), None, "{id}: {why}");
    }
    for Invalid { text, why } in vectors.invalid {
        assert!(base32::decode(text.as_bytes()).is_err(), "{text:?}: {why}");
    }
}

#[derive(Deserialize)]
struct UuidV7 {
    compose: Vec<Compose>,
    compose_refused: Vec<ComposeRefused>,
    parse: Vec<ParseUuid>,
    bounds: Vec<UuidBounds>,
}

#[derive(Deserialize)]
struct Compose {
    unix_us: String,
    random: String,
    uuid: String,
}

#[derive(Deserialize)]
struct ComposeRefused {
    unix_us: String,
    why: String,
}

#[derive(Deserialize)]
struct ParseUuid {
    uuid: String,
    version: Option<u8>,
    unix_ms: Option<String>,
    unix_us: Option<String>,
}

#[derive(Deserialize)]
struct UuidBounds {
    unix_us: String,
    min: String,
    max: String,
}

fn bytes(uuid: &str) -> [u8; 16] {
    let digits = uuid.replace('-', "");
    assert_eq!(digits.len(), 32, "{uuid}");
    u128::from_str_radix(&digits, 16).unwrap().to_be_bytes()
}

#[test]
fn incident_15_uuids() {
    let vectors: UuidV7 = read("uuidv7.json");
    assert!(vectors.compose.len() > 5 && vectors.parse.len() > 10 && vectors.bounds.len() > 10);
    for Compose {
        unix_us,
        random,
        uuid,
    } in vectors.compose
    {
        assert_eq!(
            uuidv7::at(number(&unix_us), number(&random)),
            Some(bytes(&uuid)),
            "{uuid}"
        );
    }
    for ComposeRefused { unix_us, why } in vectors.compose_refused {
        assert_eq!(uuidv7::at(number(&unix_us), 0), None, "{unix_us}: {why}");
    }
    for id in vectors.parse {
        let uuid = bytes(&id.uuid);
        assert_eq!(uuid::version(&uuid), id.version, "{}", id.uuid);
        assert_eq!(
            uuidv7::timestamp_ms(&uuid),
            id.unix_ms.map(|ms| number(&ms)),
            "{}",
            id.uuid
        );
        assert_eq!(
            uuid::timestamp_us(&uuid),
            id.unix_us.map(|us| number(&us)),
            "{}",
            id.uuid
        );
    }
    for UuidBounds { unix_us, min, max } in vectors.bounds {
        let at_us = number(&unix_us);
        assert_eq!(uuidv7::lowest_at(at_us), bytes(&min), "min of {unix_us}");
        assert_eq!(uuidv7::highest_at(at_us), bytes(&max), "max of {unix_us}");
    }
}

#[derive(Deserialize)]
struct Snowflake {
    formats: Vec<Layout>,
    ids: Vec<Id>,
    not_ids: Vec<NotId>,
    bounds: Vec<Bounds>,
}

#[derive(Deserialize)]
struct Layout {
    name: String,
    epoch_unix_ms: String,
    sign_bits: u32,
    ts_bits: u32,
    region_bits: u32,
    version_bits: u32,
    node_bits: u32,
    seq_bits: u32,
    last_unix_ms: String,
    node: String,
}

#[derive(Deserialize)]
struct Id {
    format: String,
    id: String,
    unix_ms: String,
    region: Option<u64>,
    version: Option<u64>,
    node: u64,
    seq: u64,
}

#[derive(Deserialize)]
struct NotId {
    format: String,
    id: String,
    why: String,
}

#[derive(Deserialize)]
struct Bounds {
    format: String,
    unix_us: String,
    min: String,
    max: String,
}

fn named(name: &str) -> &'static Format {
    format::by_name(name).unwrap()
}

#[test]
fn incident_15_snowflake_layouts() {
    let vectors: Snowflake = read("snowflake.json");
    assert_eq!(
        vectors.formats.len(),
        format::ALL.len(),
        "every compiled-in format"
    );
    for layout in vectors.formats {
        let format = named(&layout.name);
        let widths = [
            u32::from(format.has_sign),
            format.ts_bits,
            format.region_bits,
            format.version_bits,
            format.node_bits,
            format.seq_bits,
        ];
        let expected = [
            layout.sign_bits,
            layout.ts_bits,
            layout.region_bits,
            layout.version_bits,
            layout.node_bits,
            layout.seq_bits,
        ];
        assert_eq!(widths, expected, "{}", layout.name);
        assert_eq!(format.epoch, UnixMs(number(&layout.epoch_unix_ms)));
        assert_eq!(format.last_ms(), UnixMs(number(&layout.last_unix_ms)));
        assert_eq!(format.is_shard, layout.node == "shard");
    }
}

#[test]
fn incident_15_snowflakes() {
    let vectors: Snowflake = read("snowflake.json");
    assert!(vectors.ids.len() > 30 && vectors.not_ids.len() > 5 && vectors.bounds.len() > 30);
    for id in vectors.ids {
        let format = named(&id.format);
        let parts = Parts {
            unix_ms: UnixMs(number(&id.unix_ms)),
            region: id.region,
            version: id.version,
            node: id.node,
            seq: id.seq,
            is_shard: format.is_shard,
        };
        assert_eq!(
            format.compose(parts),
            Ok(number(&id.id)),
            "{} {}",
            id.format,
            id.id
        );
        assert_eq!(
            format.parse(number(&id.id)),
            Some(parts),
            "{} {}",
            id.format,
            id.id
        );
    }
    for NotId { format, id, why } in vectors.not_ids {
        assert_eq!(named(&format).parse(number(&id)), None, "{format} {id}: {why}");
    }
    for bounds in vectors.bounds {
        let format = named(&bounds.format);
        let at_us = number(&bounds.unix_us);
        let found = (format.lowest_id_at(at_us), format.highest_id_at(at_us));
        let expected = (number(&bounds.min), number(&bounds.max));
        assert_eq!(found, expected, "{} {}", bounds.format, bounds.unix_us);
    }
}
