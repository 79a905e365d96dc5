//! `idgenctl whois` and `idgenctl impact`: what an id is, whose it was, and what to check after an incident.

use postgres::Client;
use serde_json::Value;
use uuid::Uuid;

use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::{Daemon, PATIENCE, Server, eventually, eventually_true, seal, sql};

fn ask(daemon: &Daemon, command: &str, args: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("a path");
    idgenctl(&[&[command, "--config", config], args].concat())
}

/// What is said, and with which exit code.
fn told(daemon: &Daemon, command: &str, args: &[&str]) -> (Option<i32>, Value) {
    let answer = ask(daemon, command, &[args, &["--output", "json"]].concat());
    let json = serde_json::from_str(&answer.stdout);
    (
        answer.code,
        json.unwrap_or_else(|_| panic!("{}{}", answer.stdout, answer.stderr)),
    )
}

fn reading<'r>(said: &'r Value, kind: &str) -> &'r Value {
    let readings = said["readings"].as_array().expect("readings");
    let found = readings.iter().find(|reading| reading["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}: {said}"))
}

/// A server with a daemon, whose grants are in the trail.
fn scene() -> (Server, Client, Daemon) {
    let server = seal::server();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "the grants are in the trail", || {
        sql::value::<i64>(
            &mut client,
            "SELECT count(*) FROM idgen.lease_event WHERE kind = 'granted'",
        ) == 2
    });
    (server, client, daemon)
}

#[test]
fn a_snowflake_is_traced_to_the_lease_that_it_was_minted_under() {
    let (_server, mut client, daemon) = scene();
    let first: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    daemon.terminate();
    let daemon = Daemon::start(&_server);
    eventually_true(PATIENCE, "both lives are in the trail", || {
        sql::value::<i64>(
            &mut client,
            "SELECT count(*) FROM idgen.lease_event WHERE kind IN ('granted', 'released')",
        ) == 6
    });
    let second: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    for (id, has_ended) in [(first, true), (second, false)] {
        traced(&mut client, &daemon, id, has_ended);
    }
    // Whatever form it comes in.
    let encoded: String = sql::value(&mut client, &format!("SELECT idgen_encode({first})"));
    assert_eq!(told(&daemon, "whois", &[&encoded]).0, Some(0));
    // For people.
    let text = ask(&daemon, "whois", &[&first.to_string()]).stdout;
    for part in [
        "FOUND",
        "worker ",
        "token",
        "released at",
        "looked in",
        "trail of leases",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    // Made up: the same worker, an hour before anybody had it.
    let forged = first - (3_600_000 << 22);
    let (code, said) = told(&daemon, "whois", &[&forged.to_string()]);
    assert_eq!(
        (code, &said["verdict"]),
        (Some(4), &"inconclusive".into()),
        "{said}"
    );
    // Later than any clock may be: no id of the cell's format has that time yet.
    let (code, said) = told(&daemon, "whois", &[&(second + (7_200_000 << 22)).to_string()]);
    let readings = said["readings"].as_array().expect("readings");
    assert_eq!(code, Some(4), "{said}");
    assert!(
        readings.iter().all(|reading| reading["format"] != "classic"),
        "{said}"
    );
}

/// What is said of it is what the server says of it, and its holder is the one of the trail.
fn traced(client: &mut Client, daemon: &Daemon, id: i64, has_ended: bool) {
    let (code, said) = told(daemon, "whois", &[&id.to_string()]);
    assert_eq!(
        (code, &said["verdict"]),
        (Some(0), &Value::from("found")),
        "{said}"
    );
    let snowflake = reading(&said, "snowflake");
    let parsed = client
            .query_one(
                "SELECT 'worker ' || coalesce(worker, shard), sequence::int8, to_char(ts AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')
                   FROM idgen_parse($1::bigint) p",
                &[&id],
            )
            .expect("parse");
    let (identity, sequence, at): (String, i64, String) = (parsed.get(0), parsed.get(1), parsed.get(2));
    assert_eq!(
        (
            snowflake["identity"].as_str(),
            snowflake["sequence"].as_i64(),
            snowflake["at"].as_str()
        ),
        (Some(identity.as_str()), Some(sequence), Some(at.as_str())),
        "{said}"
    );
    let held = &snowflake["held"];
    let token: String = sql::value(
        client,
        &format!(
            "SELECT detail ->> 'token' FROM idgen.lease_event WHERE kind = 'granted' AND subject = '{identity}' ORDER BY seq {} LIMIT 1",
            if has_ended { "" } else { "DESC" }
        ),
    );
    assert_eq!(
        (&held["name"], &held["token"]),
        (&"e2e".into(), &token.into()),
        "{said}"
    );
    assert_eq!(held["ended"].is_null(), !has_ended, "{said}");
    assert_eq!(held["state"], "holder", "its bounds are known: {said}");
}

/// A worker that ended, and an id of a time after its high water: minted by nobody who was allowed to.
#[test]
fn an_id_that_no_lease_covers_is_a_finding() {
    let (server, mut client, daemon) = scene();
    let id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    daemon.terminate();
    // What a server would mint that had gone on for ten minutes after it had given its worker back.
    let stolen = id + (600_000 << 22);
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "other workers are granted", || {
        sql::value::<i64>(
            &mut client,
            "SELECT count(*) FROM idgen.lease_event WHERE kind = 'granted'",
        ) == 4
    });
    let (code, said) = eventually(PATIENCE, "its end is in the trail", || {
        Some(told(&daemon, "whois", &[&stolen.to_string()]))
            .filter(|(_, said)| !said["readings"][0]["held"]["before"].is_null())
    });
    assert_eq!((code, &said["verdict"]), (Some(3), &"finding".into()), "{said}");
    assert_eq!(reading(&said, "snowflake")["held"]["state"], "nobody");
}

#[test]
fn a_value_of_a_segment_is_traced_to_its_grant_and_one_that_was_granted_twice_is_a_finding() {
    let (_server, mut client, daemon) = scene();
    sql::run(&mut client, "SELECT idgen_create_segment('invoices')");
    sql::run(&mut client, "SELECT idgen_create_segment('orders')");
    let id: i64 = sql::value(&mut client, "SELECT idgen_segment('invoices')");
    let (code, said) = told(&daemon, "whois", &[&id.to_string(), "--tag", "invoices"]);
    assert_eq!((code, &said["verdict"]), (Some(0), &"found".into()), "{said}");
    let range = reading(&said, "segment");
    let row = client
        .query_one(
            "SELECT event_id, source_id, lo, hi FROM idgen.audit_event WHERE kind = 'segment.grant' AND tag = 'invoices' ORDER BY lo LIMIT 1",
            &[],
        )
        .expect("the grant");
    let (event, source, lo, hi): (i64, Uuid, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(
        (
            range["event_id"].as_i64(),
            range["source"].as_str(),
            range["lo"].as_i64(),
            range["hi"].as_i64()
        ),
        (Some(event), Some(source.to_string().as_str()), Some(lo), Some(hi)),
        "{said}"
    );
    // A tag that has not granted it, and one that does not exist.
    for tag in ["orders", "nosuch"] {
        let (code, said) = told(&daemon, "whois", &[&id.to_string(), "--tag", tag]);
        assert_eq!(
            (code, &said["verdict"]),
            (Some(4), &"inconclusive".into()),
            "{said}"
        );
    }
    // Behind our back.
    sql::run(
        &mut client,
        "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi)
         SELECT source_id, kind, space_id, tag, tag_seq + 1000, lo, lo + 1 FROM idgen.audit_event
          WHERE kind = 'segment.grant' AND tag = 'invoices' ORDER BY lo LIMIT 1",
    );
    let (code, said) = told(&daemon, "whois", &[&lo.to_string(), "--tag", "invoices"]);
    assert_eq!((code, &said["verdict"]), (Some(3), &"finding".into()), "{said}");
    let text = ask(&daemon, "whois", &[&lo.to_string(), "--tag", "invoices"]).stdout;
    assert_eq!(text.matches("issuer").count(), 2, "both are named:\n{text}");
    // A range that was drawn in bulk is larger than any refill.
    sql::run(&mut client, "SELECT idgen_segment_range('orders', 3000000)");
    let (lo, hi): (i64, i64) = {
        let row = client
            .query_one(
                "SELECT lo, hi FROM idgen.audit_event WHERE tag = 'orders' AND kind = 'segment.grant' ORDER BY hi - lo DESC LIMIT 1",
                &[],
            )
            .expect("the grant");
        (row.get(0), row.get(1))
    };
    assert!(hi - lo > 2_000_000);
    assert_eq!(
        told(&daemon, "whois", &[&hi.to_string(), "--tag", "orders"]).0,
        Some(0)
    );
    // A small range within it, behind our back: that is what is near, and everything shows both.
    sql::run(
        &mut client,
        &format!(
            "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi)
             SELECT source_id, 'segment.grant', space_id, 'orders', 5000, {hi}, {hi} FROM idgen.space"
        ),
    );
    for (more, code) in [(&[][..], 0), (&["--whole"], 3)] {
        let id = hi.to_string();
        let args = [&[id.as_str(), "--tag", "orders"], more].concat();
        assert_eq!(told(&daemon, "whois", &args).0, Some(code), "{more:?}");
    }
}

#[test]
fn uuids_public_and_sealed_ids_say_what_they_are() {
    let (server, mut client, daemon) = scene();
    let v7: Uuid = sql::value(&mut client, "SELECT idgen_uuidv7()");
    let (code, said) = told(&daemon, "whois", &[&v7.to_string()]);
    assert_eq!((code, &reading(&said, "uuid")["version"]), (Some(0), &7.into()));
    let at = reading(&said, "uuid")["at"].as_str().expect("a time").to_owned();
    let parsed: String = sql::value(
        &mut client,
        &format!(
            "SELECT to_char(idgen_timestamp('{v7}'::uuid) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        ),
    );
    assert_eq!(at, parsed);

    sql::run(&mut client, "SELECT idgen_register_prefix('ord')");
    let public: String = sql::value(&mut client, "SELECT idgen_public_id('ord')");
    let (code, said) = told(&daemon, "whois", &[&public]);
    assert_eq!(code, Some(0), "{said}");
    let registered = reading(&said, "public")["registered"].to_string();
    assert!(registered.contains("postgres"), "{said}");
    let foreign = public.replacen("ord", "inv", 1);
    assert_eq!(told(&daemon, "whois", &[&foreign]).0, Some(4));

    let id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    seal::write(&server, "5f1d3c2b9a8e7f60415263748596a7b8\n", 0o600);
    let sealed: String = sql::value(&mut server.connect(), &format!("SELECT idgen_seal({id}, 'ord')"));
    let (code, said) = told(&daemon, "whois", &[&sealed]);
    assert_eq!(
        (code, &reading(&said, "sealed")["id"]),
        (Some(0), &id.into()),
        "{said}"
    );
    assert!(!reading(&said, "snowflake")["held"]["token"].is_null(), "{said}");
}

#[test]
fn what_is_no_id_and_what_cannot_be_asked_is_told() {
    let (mut server, _, daemon) = scene();
    for no_id in ["x", "ord_1", "9223372036854775808"] {
        let answer = ask(&daemon, "whois", &[no_id]);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{no_id}");
        assert!(
            answer.stderr.contains(no_id) && answer.stderr.contains("hint"),
            "{}",
            answer.stderr
        );
    }
    let answer = ask(&daemon, "whois", &["1", "--format", "nosuch"]);
    assert_eq!(answer.code, Some(2), "{}", answer.stderr);
    server.stop();
    let answer = ask(&daemon, "whois", &["4711"]);
    assert_eq!(answer.code, Some(1), "{}", answer.stdout);
}

/// A table of snowflakes with a copy, and one of values of a tag; returns the worker of the former.
fn tables(client: &mut Client) -> i64 {
    sql::run(
        client,
        "SELECT idgen_create_segment('it''s');
         CREATE TABLE events (\"Id\" bigint DEFAULT idgen_snowflake(), what text);
         CREATE TABLE paid (no bigint PRIMARY KEY DEFAULT idgen_segment('it''s'), what text);
         INSERT INTO events (what) SELECT 'x' FROM generate_series(1, 10);
         INSERT INTO paid (what) SELECT 'x' FROM generate_series(1, 10);
         INSERT INTO events SELECT min(\"Id\"), 'a copy' FROM events;
         GRANT SELECT ON events TO idgend",
    );
    sql::value(client, "SELECT min(\"Id\") >> 12 & 1023 FROM events")
}

#[test]
fn the_impact_of_a_worker_is_columns_ids_and_the_sql_to_check_them() {
    let (_server, mut client, daemon) = scene();
    let worker = tables(&mut client);
    let (code, said) = told(
        &daemon,
        "impact",
        &["--worker", &worker.to_string(), "--from", "1h", "--count"],
    );
    assert_eq!(code, Some(0), "{said}");
    let columns = said["columns"].as_array().expect("columns");
    assert_eq!(columns.len(), 1, "{said}");
    let of_worker: i64 = sql::value(
        &mut client,
        &format!("SELECT count(*) FROM events WHERE \"Id\" >> 12 & 1023 = {worker}"),
    );
    assert_eq!(
        (
            &columns[0]["relation"],
            &columns[0]["column"],
            &columns[0]["rows"],
            &columns[0]["is_unique"]
        ),
        (
            &"public.events".into(),
            &"\"Id\"".into(),
            &of_worker.into(),
            &false.into()
        ),
        "{said}"
    );
    assert_eq!(said["holders"].as_array().map(Vec::len), Some(1), "{said}");
    // The SQL that is shown runs, and finds the copy.
    let duplicates = columns[0]["duplicates_sql"].as_str().expect("SQL");
    assert_eq!(client.query(duplicates, &[]).expect("run it").len(), 1);
    // Before there was a worker nothing was minted.
    let none = told(
        &daemon,
        "impact",
        &[
            "--worker",
            &worker.to_string(),
            "--from",
            "3days",
            "--to",
            "2days",
            "--count",
        ],
    );
    assert_eq!(none.1["columns"][0]["rows"], 0, "{}", none.1);
    assert_eq!(none.1["holders"].as_array().map(Vec::len), Some(0), "{}", none.1);
    let text = ask(
        &daemon,
        "impact",
        &["--worker", &worker.to_string(), "--from", "1h"],
    )
    .stdout;
    assert!(
        text.contains("HAVING count(*) > 1;") && text.contains("not counted"),
        "{text}"
    );
}

#[test]
fn the_impact_of_a_tag_is_the_columns_of_that_tag() {
    let (_server, mut client, daemon) = scene();
    tables(&mut client);
    let (code, said) = told(&daemon, "impact", &["--tag", "it's", "--lo", "3", "--hi", "5"]);
    assert_eq!(
        (code, said["columns"].as_array().map(Vec::len)),
        (Some(0), Some(1)),
        "{said}"
    );
    let rows = said["columns"][0]["sql"].as_str().expect("SQL");
    assert_eq!(client.query(rows, &[]).expect("run it").len(), 3);
    // No right to count: that is said, and nothing is made up.
    let (code, said) = told(
        &daemon,
        "impact",
        &["--tag", "it's", "--lo", "3", "--hi", "5", "--count"],
    );
    assert_eq!(
        (code, said["columns"][0]["rows"].is_null()),
        (Some(4), true),
        "{said}"
    );
    assert!(said["looked"].to_string().contains("permission denied"), "{said}");
}

#[test]
fn an_impact_of_nothing_is_refused() {
    let (_server, _, daemon) = scene();
    for (args, why) in [
        (&["--from", "1h"][..], "--worker"),
        (&["--worker", "5"], "--from"),
        (&["--worker", "1024", "--from", "1h"], "the last one is 1023"),
        (
            &["--worker", "5", "--from", "1h", "--to", "2h"],
            "--from is after --to",
        ),
        (&["--tag", "a", "--lo", "5", "--hi", "4"], "--lo is above --hi"),
        (&["--tag", "a", "--lo", "5"], "--hi"),
        (
            &[
                "--tag", "a", "--lo", "5", "--hi", "6", "--worker", "1", "--from", "1h",
            ],
            "cannot be used",
        ),
    ] {
        let answer = ask(&daemon, "impact", args);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(answer.stderr.contains(why), "{args:?}: {}", answer.stderr);
    }
}
