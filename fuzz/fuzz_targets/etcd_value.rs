//! The lease store in etcd: any keys and values are a store, a new store, or a refusal, in any order.
#![no_main]

use arbitrary::Arbitrary;
use etcd_client::KeyValue;
use etcd_client::proto::PbKeyValue;
use idgen_daemon::lease::fuzzing::etcd_store;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

const PREFIX: &str = "/fuzz";

#[derive(Arbitrary, Debug)]
enum Key<'a> {
    Cell,
    HighWater(u16),
    Holder(u16),
    Below(&'a str),
    Any(&'a [u8]),
}

#[derive(Arbitrary, Debug)]
enum Value<'a> {
    Cell {
        epoch: u64,
        floor_ms: u64,
        format: &'a str,
        sealed: Option<&'a str>,
        /// What those who sealed it know.
        known: (u64, u64, Vec<&'a str>),
    },
    HighWater {
        generation: u64,
        ceiling_ms: u64,
    },
    Holder {
        name: &'a str,
        epoch: u64,
    },
    Any(&'a [u8]),
}

#[derive(Arbitrary, Debug)]
struct Pair<'a> {
    key: Key<'a>,
    value: Value<'a>,
    revision: i64,
}

fn key(key: &Key<'_>) -> Vec<u8> {
    match key {
        Key::Cell => format!("{PREFIX}/cell").into_bytes(),
        Key::HighWater(id) => format!("{PREFIX}/w/{id}/hw").into_bytes(),
        Key::Holder(id) => format!("{PREFIX}/w/{id}/holder").into_bytes(),
        Key::Below(rest) => format!("{PREFIX}/w/{rest}").into_bytes(),
        Key::Any(bytes) => bytes.to_vec(),
    }
}

fn value(value: &Value<'_>) -> Vec<u8> {
    const UUID: &str = "45b12f36-b919-4ea1-bf11-ddb72d096172";
    // Rust's escapes are mostly JSON's: what is not is a refusal to be tried as well.
    match value {
        Value::Cell {
            epoch,
            floor_ms,
            format,
            sealed,
            known: (known, since_ms, formats),
        } => {
            let sealed = sealed.map_or("null".to_owned(), |reason| format!("{reason:?}"));
            format!(
                r#"{{"cell_id":"{UUID}","worker_format":{format:?},"epoch":{epoch},"epoch_nonce":"{UUID}",
                    "epoch_since_ms":1,"min_floor_ms":{floor_ms},"sealed_reason":{sealed},"cluster_id":7,
                    "epoch_known":{known},"epoch_known_since_ms":{since_ms},"formats_known":{formats:?}}}"#
            )
            .into_bytes()
        }
        Value::HighWater {
            generation,
            ceiling_ms,
        } => format!(r#"{{"generation":{generation},"ceiling_ms":{ceiling_ms},"exact":true,"epoch":0}}"#)
            .into_bytes(),
        Value::Holder { name, epoch } => format!(
            r#"{{"holder":"{UUID}","holder_name":{name:?},"token_epoch":{epoch},"boot_id":"{UUID}"}}"#
        )
        .into_bytes(),
        Value::Any(bytes) => bytes.to_vec(),
    }
}

#[derive(Arbitrary, Debug)]
struct Keys<'a> {
    made: u8,
    pairs: Vec<Pair<'a>>,
}

impl Keys<'_> {
    /// The high waters of all workers are made with the cell, and a store without them is refused. To read them all
    /// takes a hundred times as long as everything else, so that most stores have few.
    fn blanks(&self) -> u16 {
        if self.made % 32 == 1 { 1_024 } else { 3 }
    }
}

fuzz_target!(|keys: Keys<'_>| {
    // etcd has a key once.
    let mut store: BTreeMap<Vec<u8>, KeyValue> = BTreeMap::new();
    let blank = Value::HighWater {
        generation: 0,
        ceiling_ms: 0,
    };
    let blanks = (0..keys.blanks()).map(|id| (key(&Key::HighWater(id)), value(&blank), 1));
    let pairs = keys
        .pairs
        .iter()
        .map(|pair| (key(&pair.key), value(&pair.value), pair.revision));
    for (key, value, revision) in blanks.chain(pairs) {
        let made = PbKeyValue {
            key,
            value,
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 0,
        };
        store.insert(made.key.clone(), KeyValue(made));
    }
    let forwards: Vec<KeyValue> = store.into_values().collect();
    let backwards: Vec<KeyValue> = forwards.iter().rev().cloned().collect();
    match (etcd_store(PREFIX, &forwards), etcd_store(PREFIX, &backwards)) {
        (Ok(seen), Ok(also)) => {
            assert_eq!(seen, also, "the order of keys does not matter");
            let cell = format!("{PREFIX}/cell").into_bytes();
            let has_cell = forwards.iter().any(|pair| pair.key() == cell);
            assert_eq!(
                seen.is_some(),
                has_cell,
                "a store without its cell is never taken for one"
            );
        }
        (Err(error), Err(_)) => assert!(!error.message.is_empty()),
        (one, other) => panic!("the order of keys matters: {one:?} {other:?}"),
    }
});
