//! `idgenctl server drain` and `resume`: a planned restart.

use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;

use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::process::Signal;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Daemon, DaemonOptions, Etcd, PATIENCE, Server, Store, eventually, eventually_true, sql};

fn ask(daemon: &Daemon, command: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("utf-8");
    idgenctl(&[command, &["--config", config]].concat())
}

#[track_caller]
fn says(answer: &Answer, code: i32, parts: &[&str]) {
    let text = format!("{}{}", answer.stdout, answer.stderr);
    assert_eq!(answer.code, Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout)
        .unwrap_or_else(|_| panic!("JSON: {}{}", answer.stdout, answer.stderr))
}

fn leases(daemon: &Daemon) -> Value {
    json(&ask(daemon, &["leases", "list", "-o", "json"]))
}

/// What the server of this name holds, by class.
fn held_by(daemon: &Daemon, server: &str) -> Vec<(String, u64)> {
    let listed = leases(daemon);
    let all = listed["leases"].as_array().expect("leases").iter();
    all.filter(|lease| lease["holder"]["name"] == server)
        .map(|lease| {
            let class = lease["class"].as_str().expect("a class").to_owned();
            (class, lease["identity"].as_u64().expect("a number"))
        })
        .collect()
}

fn state(client: &mut Client) -> (String, Option<String>) {
    let row = client.query_one("SELECT state, drained FROM idgen.health", &[]);
    let row = row.expect("idgen.health");
    (row.get(0), row.get(1))
}

fn kinds(daemon: &Daemon, of: &str) -> Vec<String> {
    let answer = ask(daemon, &["events", "list", "--limit", "100000", "-o", "json"]);
    let shown: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
    let events = shown["events"].as_array().cloned().unwrap_or_default();
    let of = events.iter().filter(|event| event["subject"] == of);
    of.map(|event| event["kind"].as_str().expect("a kind").to_owned())
        .collect()
}

fn options(servers: &[Server], store: &Store, n: usize) -> DaemonOptions {
    let name = ["db-a", "db-b"][n];
    let options = DaemonOptions::new(&servers[n]).store(store.clone());
    options.name(name).shards(["5, 6", "7"][n])
}

const DRAIN: [&str; 7] = [
    "server",
    "drain",
    "db-a",
    "--to",
    "db-b",
    "--reason",
    "a new\tkernel",
];

#[test]
fn a_server_is_drained_for_a_planned_restart_with_its_store_in_tables() {
    let servers = Server::several(2);
    let store = Store::on(&servers[1]);
    a_planned_restart(servers, &store);
}

#[test]
fn a_server_is_drained_for_a_planned_restart_with_its_store_in_etcd() {
    let etcd = Etcd::start();
    a_planned_restart(Server::several(2), &Store::etcd(&etcd));
}

const MINT: &str = "SELECT idgen_snowflake() FROM generate_series(1, 500)";
const OF_SHARD: &str = "SELECT idgen_snowflake(5) FROM generate_series(1, 500)";

fn a_planned_restart(mut servers: Vec<Server>, store: &Store) {
    let mut first = options(&servers, store, 0).start();
    let mut second = options(&servers, store, 1).start();
    let (mut one, mut two) = (servers[0].connect(), servers[1].connect());
    let mut unique = UniquenessRecorder::new();
    let before: Vec<i64> = sql::column(&mut one, OF_SHARD);
    unique.extend(before.clone());
    unique.extend(sql::column::<i64>(&mut one, MINT));
    let had = held_by(&first, "db-a");
    assert_eq!(had.len(), 4, "two workers and two shards: {had:?}");

    what_is_not_done(&first, &had);
    all_is_given_back(&first, &second, &had);
    let after: Vec<i64> = sql::column(&mut two, OF_SHARD);
    assert!(after[0] > before[499], "the next holder begins above");
    unique.extend(after);
    eventually_true(PATIENCE, "the server knows", || state(&mut one).0 == "drained");
    what_is_seen(&mut first, &mut one);
    it_stays_as_it_was_said(&second);

    first.terminate();
    servers[0].restart();
    let mut first = options(&servers, store, 0).launch();
    first.wait_unready_with("was drained");
    let mut one = servers[0].connect();
    eventually_true(PATIENCE, "the new memory knows too", || {
        state(&mut one).0 == "drained"
    });
    assert_eq!(held_by(&second, "db-a"), []);

    it_is_resumed(&mut first, &second, &mut one);
    unique.extend(sql::column::<i64>(&mut one, MINT));
    unique.extend(sql::column::<i64>(&mut one, OF_SHARD));
    unique.assert_unique("ids over a planned restart", 2_500);
    it_is_in_the_trail(&second);
    first.terminate();
    second.wait_ready();
    second.terminate();
}

/// Shards go to the other, workers are free at once: the exact high water is no window that lies minutes ahead.
fn all_is_given_back(first: &Daemon, second: &Daemon, had: &[(String, u64)]) {
    let drained = ask(first, &[&DRAIN[..], &["--yes", "-o", "json"]].concat());
    assert_eq!(drained.code, Some(0), "{}{}", drained.stdout, drained.stderr);
    let done = json(&drained);
    println!(
        "drained in {} ms, shards moved in {} ms",
        done["took_ms"], done["moved"]["took_ms"]
    );
    assert_eq!(
        (&done["server"]["drained"], &done["already"]),
        (&true.into(), &false.into())
    );
    let none = Value::Array(vec![]);
    assert_eq!((&done["workers"], &done["moved"]["open"]), (&none, &none));
    assert_eq!(held_by(second, "db-a"), []);
    for (class, identity) in had {
        let identity = format!("{class}/{identity}");
        let shown = json(&ask(second, &["leases", "show", &identity, "-o", "json"]));
        match class.as_str() {
            "worker" => assert_eq!(shown["state"], Value::Null, "{shown}"),
            _ => assert_eq!(shown["holder"]["name"], "db-b", "{shown}"),
        }
    }
}

/// Said twice, and shards that are to go there.
fn it_stays_as_it_was_said(second: &Daemon) {
    let since = leases(second)["drained"][0]["since"].clone();
    let again = ask(second, &["server", "drain", "db-a", "--yes", "-o", "json"]);
    assert_eq!((again.code, &json(&again)["already"]), (Some(0), &true.into()));
    let shown = leases(second);
    assert_eq!(shown["drained"][0]["since"], since, "nothing was written");
    let refused = ask(second, &["shards", "move", "7", "--to", "db-a"]);
    let parts = ["server db-a is drained", "idgenctl server resume db-a"];
    says(&refused, 3, &parts);
}

fn it_is_resumed(first: &mut Daemon, second: &Daemon, one: &mut Client) {
    let tried = ask(second, &["server", "resume", "db-a", "--dry-run"]);
    says(&tried, 0, &["dry run", "would take leases again"]);
    assert_eq!(state(one).0, "drained");
    let resumed = ask(second, &["server", "resume", "db-a"]);
    says(&resumed, 0, &["db-a: resumed", "takes leases again"]);
    first.wait_ready();
    eventually_true(PATIENCE, "it serves", || {
        state(one) == ("serving".to_owned(), None)
    });
    let again = ask(first, &["server", "resume", "db-a"]);
    says(&again, 0, &["it was so before", "nothing was changed"]);
    let back = ["shards", "move", "5,6", "--to", "db-a", "--wait", "60s"];
    says(&ask(first, &back), 0, &["moved in"]);
}

fn it_is_in_the_trail(second: &Daemon) {
    eventually_true(PATIENCE, "it is in the trail", || {
        kinds(second, "server db-a") == ["drained", "resumed"]
    });
    let verified = eventually(PATIENCE, "store and trail agree", || {
        let verified = ask(second, &["events", "verify"]);
        (verified.code != Some(4)).then_some(verified)
    });
    says(&verified, 0, &["the chain is whole"]);
}

/// A dry run, no consent, names that nobody has.
fn what_is_not_done(first: &Daemon, had: &[(String, u64)]) {
    let tried = ask(first, &[&DRAIN[..], &["--dry-run"]].concat());
    says(
        &tried,
        0,
        &[
            "dry run, nothing was changed",
            "shards of db-a would move to db-b",
            "IG050",
        ],
    );
    says(&ask(first, &DRAIN), 2, &["--yes"]);
    let unknown = ask(first, &["server", "drain", "db-x", "--yes"]);
    says(
        &unknown,
        3,
        &["no server db-x has a lease", "there are: db-a, db-b"],
    );
    says(
        &ask(first, &["server", "resume", "db-x"]),
        3,
        &["there are: db-a, db-b"],
    );
    let nowhere = ask(first, &["server", "drain", "db-a", "--to", "db-x", "--yes"]);
    says(&nowhere, 3, &["db-x"]);
    let onto_itself = ask(first, &["server", "drain", "db-a", "--to", "db-a", "--yes"]);
    assert_eq!(onto_itself.code, Some(3), "{}", onto_itself.stderr);
    let not_drained = ask(first, &["server", "resume", "db-a"]);
    says(&not_drained, 0, &["nothing was said of this server"]);
    assert_eq!(held_by(first, "db-a"), had);
    assert_eq!(leases(first)["drained"], Value::Array(vec![]));
}

/// By callers, `idgen.health`, `idgenctl status`, `leases list` and `/readyz`.
fn what_is_seen(first: &mut Daemon, one: &mut Client) {
    let (_, why) = state(one);
    let why = why.expect("who, when and why");
    for part in ["server db-a was drained at ", " by ", ": a new kernel"] {
        assert!(why.contains(part), "{why}");
    }
    // Nobody waits for a lease that is not to come.
    sql::run(one, "SET idgen.lease_wait_ms = '60s'");
    let asked = Instant::now();
    let refused = sql::refusal(one, "SELECT idgen_snowflake()", "IG050");
    assert!(asked.elapsed() < Duration::from_secs(45), "{:?}", asked.elapsed());
    assert_eq!(refused.detail(), Some(format!("{why}.").as_str()));
    assert!(
        refused
            .hint()
            .is_some_and(|hint| hint.contains("idgenctl server resume")),
        "{refused:?}"
    );
    sql::refusal(one, "SELECT idgen_snowflake(5)", "IG014");
    says(
        &ask(first, &["status"]),
        3,
        &["drained", "server db-a was drained at "],
    );
    let status = json(&ask(first, &["status", "-o", "json"]));
    assert_eq!(
        (&status["server"]["state"], &status["server"]["drained"]),
        (&"drained".into(), &why.into())
    );
    says(&ask(first, &["leases", "list"]), 0, &["server db-a: drained at "]);
    first.wait_unready_with("was drained");
}

/// Without others to take them its shards are nobody's; a daemon that stands still gives nothing back, and is told so.
#[test]
fn a_server_whose_daemon_stands_still_is_drained_when_it_goes_on() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).name("db-a").shards("5");
    let mut daemon = options.ttl_ms(60_000).start();
    daemon.signal(Signal::STOP);
    let late = ask(&daemon, &["server", "drain", "db-a", "--yes", "--wait", "1s"]);
    says(
        &late,
        4,
        &["not given back yet: workers ", "shards 5", "deadline"],
    );
    daemon.signal(Signal::CONT);
    eventually_true(PATIENCE, "it is given back", || {
        held_by(&daemon, "db-a").is_empty()
    });
    let mut client = server.connect();
    let exact = "SELECT bool_and(exact) FROM idgen.lease";
    assert!(sql::value::<bool>(&mut client, exact));
    daemon.wait_unready_with("was drained");
    says(&ask(&daemon, &["server", "resume", "db-a"]), 0, &["resumed"]);
    daemon.wait_ready();
    assert_eq!(
        sql::column::<i64>(&mut client, "SELECT idgen_snowflake(5)").len(),
        1
    );

    sql::run(&mut client, "CREATE ROLE nobody LOGIN");
    sql::run(&mut client, "SET ROLE nobody");
    let write = "INSERT INTO idgen.server_drain VALUES ('db-a', true, now(), 'nobody', '', 9)";
    sql::refusal(&mut client, write, "42501");
    sql::refusal(&mut client, "SELECT idgen.note_drained('by nobody')", "42501");
    daemon.terminate();
}
