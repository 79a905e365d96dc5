//! The golden vectors of docs/vectors through SQL; idgen-core/tests/vectors.rs reads the same files.
//!
//! INCIDENTS 15: ports of one generator had vectors of their own, and one of them put the wrong fields into its
//! ids. Here there is one set, and every line of it is asked of every way to an id.

use std::path::Path;

use postgres::Client;
use postgres::types::{FromSqlOwned, ToSql};
use serde_json::Value;
use uuid::Uuid;

use crate::kit::{Server, seal, sql};

type Arguments<'a> = &'a [&'a (dyn ToSql + Sync)];

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/vectors")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).expect("read vectors")).expect("JSON")
}

fn list<'v>(vectors: &'v Value, name: &str) -> &'v [Value] {
    let list = vectors[name].as_array().map_or(&[][..], Vec::as_slice);
    assert!(!list.is_empty(), "no vectors: {name}");
    list
}

fn text<'v>(vector: &'v Value, field: &str) -> &'v str {
    vector[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {vector}"))
}

fn big(vector: &Value, field: &str) -> i64 {
    text(vector, field)
        .parse()
        .unwrap_or_else(|_| panic!("no bigint {field} in {vector}"))
}

fn ask<T: FromSqlOwned>(client: &mut Client, query: &str, arguments: Arguments<'_>, vector: &Value) -> T {
    match client.query_one(query, arguments) {
        Ok(row) => row.get(0),
        Err(error) => panic!("{vector}: {}", sql::describe(&error)),
    }
}

fn refused(client: &mut Client, query: &str, arguments: Arguments<'_>, sqlstate: &str, vector: &Value) {
    match client.query(query, arguments) {
        Ok(_) => panic!("{vector}: must be refused"),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert_eq!(
                code.as_deref(),
                Some(sqlstate),
                "{vector}: {}",
                sql::describe(&error)
            );
        }
    }
}

const OPEN: &str = "SELECT idgen_open($1, $2)";

/// Texts that are public ids by their form reach the keys, and no further; the others are named as such.
#[test]
fn incident_15_public_ids_through_sql() {
    let server = seal::server();
    let mut client = server.connect();
    let keys = read("seal.json");
    let key = list(&keys, "keys")[0].as_str().expect("a key");
    seal::write(&server, key, 0o600);
    let base62 = read("base62.json");
    for vector in list(&base62, "valid") {
        let id = format!("ord_{}", text(vector, "text"));
        refused(&mut client, OPEN, &[&id, &"ord"], "IG022", vector);
    }
    for vector in list(&base62, "invalid") {
        let id = format!("ord_{}", text(vector, "text"));
        refused(&mut client, OPEN, &[&id, &"ord"], "22P02", vector);
    }
    let public = read("public-id.json");
    for vector in list(&public, "valid") {
        let (id, prefix) = (text(vector, "text"), text(vector, "prefix"));
        refused(&mut client, OPEN, &[&id, &prefix], "IG022", vector);
        sql::run(&mut client, &format!("SELECT idgen_register_prefix('{prefix}')"));
        let made: String = ask(&mut client, "SELECT idgen_public_id($1)", &[&prefix], vector);
        assert_eq!(made.len(), id.len());
        assert_eq!(made[..=prefix.len()], id[..=prefix.len()]);
    }
    for vector in list(&public, "invalid") {
        refused(
            &mut client,
            OPEN,
            &[&text(vector, "text"), &"ord"],
            "22P02",
            vector,
        );
    }
}

#[test]
fn incident_15_sealed_ids_through_sql() {
    let server = seal::server();
    let mut client = server.connect();
    let vectors = read("seal.json");
    let keys: Vec<&str> = list(&vectors, "keys").iter().filter_map(Value::as_str).collect();
    for (index, key) in keys.iter().enumerate() {
        // This key seals; the others are behind it and open too.
        let others: Vec<&str> = keys.iter().copied().filter(|other| other != key).collect();
        seal::write(&server, format!("{key}\n{}\n", others.join("\n")), 0o600);
        seal::reload(&mut [&mut client]);
        for vector in list(&vectors, "valid") {
            let (id, prefix) = (big(vector, "id"), text(vector, "prefix"));
            if vector["key"] == index {
                let sealed: String = ask(&mut client, "SELECT idgen_seal($1, $2)", &[&id, &prefix], vector);
                assert_eq!(sealed, text(vector, "text"), "{vector}");
            }
            let opened: i64 = ask(&mut client, OPEN, &[&text(vector, "text"), &prefix], vector);
            assert_eq!(opened, id, "{vector}");
        }
        for (name, sqlstate) in [("refused", "IG022"), ("malformed", "22P02")] {
            for vector in list(&vectors, name) {
                let arguments: Arguments<'_> = &[&text(vector, "text"), &text(vector, "prefix")];
                refused(&mut client, OPEN, arguments, sqlstate, vector);
            }
        }
    }
}

#[test]
fn incident_15_encoded_ids_through_sql() {
    let server = Server::start();
    let mut client = server.connect();
    let vectors = read("encode.json");
    const ENCODE: &str = "SELECT idgen_encode($1)";
    const DECODE: &str = "SELECT idgen_decode($1)";
    for vector in list(&vectors, "valid") {
        let encoded: String = ask(&mut client, ENCODE, &[&big(vector, "id")], vector);
        assert_eq!(encoded, text(vector, "text"), "{vector}");
    }
    for vector in list(&vectors, "valid").iter().chain(list(&vectors, "also_read")) {
        let decoded: i64 = ask(&mut client, DECODE, &[&text(vector, "text")], vector);
        assert_eq!(decoded, big(vector, "id"), "{vector}");
    }
    for vector in list(&vectors, "not_encoded") {
        refused(&mut client, ENCODE, &[&big(vector, "id")], "22023", vector);
    }
    for vector in list(&vectors, "invalid") {
        refused(&mut client, DECODE, &[&text(vector, "text")], "22P02", vector);
    }
}

/// Unix µs as a timestamptz, exactly: what is multiplied with an interval goes through a double, so seconds apart.
const AT: &str = "('1970-01-01 00:00:00+00'::timestamptz
    + ($1::bigint / 1000000) * interval '1 second' + ($1::bigint % 1000000) * interval '1 microsecond')";

fn uuid(vector: &Value, field: &str) -> Uuid {
    text(vector, field)
        .parse()
        .unwrap_or_else(|_| panic!("no uuid {field} in {vector}"))
}

/// What no timestamptz can hold: SQL never sees it.
fn is_a_timestamptz(unix_us: i64) -> bool {
    const YEAR_US: i64 = 31_556_952_000_000;
    (-6_000 * YEAR_US..290_000 * YEAR_US).contains(&unix_us)
}

#[test]
fn incident_15_uuids_through_sql() {
    let server = Server::start();
    let mut client = server.connect();
    let vectors = read("uuidv7.json");
    let make = format!("SELECT idgen_uuidv7_at({AT})");
    for vector in list(&vectors, "compose") {
        let made: Uuid = ask(&mut client, &make, &[&big(vector, "unix_us")], vector);
        let expected = uuid(vector, "uuid");
        assert_eq!(made.as_bytes()[..8], expected.as_bytes()[..8], "{vector}");
    }
    for vector in list(&vectors, "compose_refused") {
        if is_a_timestamptz(big(vector, "unix_us")) {
            refused(&mut client, &make, &[&big(vector, "unix_us")], "22008", vector);
        }
    }
    for vector in list(&vectors, "parse") {
        let id = uuid(vector, "uuid");
        let version: Option<i16> = ask(&mut client, "SELECT idgen.uuid_version($1::uuid)", &[&id], vector);
        assert_eq!(version.map(i64::from), vector["version"].as_i64(), "{vector}");
        let parsed = "SELECT (idgen_parse($1::uuid)).version";
        let parsed: Option<i32> = ask(&mut client, parsed, &[&id], vector);
        assert_eq!(parsed, version.filter(|version| *version == 7).map(i32::from));
        for (function, field, unit) in [
            ("idgen_timestamp", "unix_ms", "1000"),
            ("idgen.uuid_timestamp", "unix_us", "1000000"),
        ] {
            let query = format!("SELECT (extract(epoch FROM {function}($1::uuid)) * {unit})::bigint");
            let found: Option<i64> = ask(&mut client, &query, &[&id], vector);
            let expected = vector[field].as_str().and_then(|number| number.parse().ok());
            assert_eq!(found, expected, "{function} {vector}");
        }
    }
    for vector in list(&vectors, "bounds") {
        let at = big(vector, "unix_us");
        if !is_a_timestamptz(at) {
            continue;
        }
        for bound in ["min", "max"] {
            let query = format!("SELECT idgen_uuidv7_{bound}({AT})");
            let found: Uuid = ask(&mut client, &query, &[&at], vector);
            assert_eq!(found, uuid(vector, bound), "{bound} {vector}");
        }
    }
}

#[test]
fn incident_15_snowflakes_through_sql() {
    let server = Server::start();
    let mut client = server.connect();
    let vectors = read("snowflake.json");
    let fields = "SELECT jsonb_build_object('unix_ms', (extract(epoch FROM ts) * 1000)::bigint::text,
                      'region', region, 'version', version, 'worker', worker, 'shard', shard, 'seq', sequence)::text
                    FROM idgen_parse($1::bigint, $2)";
    for vector in list(&vectors, "ids") {
        let (id, format) = (big(vector, "id"), text(vector, "format"));
        let found: String = ask(&mut client, fields, &[&id, &format], vector);
        let found: Value = serde_json::from_str(&found).expect("JSON");
        let node = node_kind(&vectors, format);
        let other = if node == "worker" { "shard" } else { "worker" };
        for field in ["unix_ms", "region", "version", "seq"] {
            assert_eq!(found[field], vector[field], "{field} {vector}");
        }
        assert_eq!(found[node], vector["node"], "{vector}");
        assert!(found[other].is_null(), "{vector}");
    }
    for vector in list(&vectors, "not_ids") {
        let arguments: Arguments<'_> = &[&big(vector, "id"), &text(vector, "format")];
        let time = "SELECT idgen_timestamp($1::bigint, $2) IS NULL AND (idgen_parse($1::bigint, $2)).sequence IS NULL";
        assert!(ask::<bool>(&mut client, time, arguments, vector), "{vector}");
    }
    for vector in list(&vectors, "bounds") {
        let (at, format) = (big(vector, "unix_us"), text(vector, "format"));
        if !is_a_timestamptz(at) {
            continue;
        }
        for bound in ["min", "max"] {
            let query = format!("SELECT idgen_snowflake_{bound}({AT}, $2)");
            let found: i64 = ask(&mut client, &query, &[&at, &format], vector);
            assert_eq!(found, big(vector, bound), "{bound} {vector}");
        }
    }
}

fn node_kind<'v>(vectors: &'v Value, format: &str) -> &'v str {
    let layouts = list(vectors, "formats");
    let layout = layouts.iter().find(|layout| layout["name"] == format);
    text(layout.unwrap_or(&Value::Null), "node")
}
