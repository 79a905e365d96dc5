//! The trail of lease events: it is what the store's log says, whatever dies; what is missing is counted; what somebody did
//! by hand is flagged; and what was changed afterwards is named.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions};
use serde_json::Value;

use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::process::Signal;
use crate::kit::{Daemon, DaemonOptions, Etcd, PATIENCE, Server, Store, eventually, eventually_true, sql};

pub(crate) const PREFIX: &str = "/pg_idgen/default";
/// Rounds in which whoever follows is killed.
const KILLS: usize = 4;

pub(crate) fn events(daemon: &Daemon, args: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("a path");
    idgenctl(&[&["events", args[0], "--config", config], &args[1..]].concat())
}

/// The whole trail.
pub(crate) fn list(daemon: &Daemon) -> Vec<Value> {
    let answer = events(daemon, &["list", "--limit", "100000", "--output", "json"]);
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let shown: Value = serde_json::from_str(&answer.stdout).expect("JSON");
    shown["events"].as_array().expect("events").clone()
}

/// There is none at first.
fn list_or_none(daemon: &Daemon) -> Vec<Value> {
    let answer = events(daemon, &["list", "--limit", "100000", "--output", "json"]);
    let shown: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
    shown["events"].as_array().cloned().unwrap_or_default()
}

pub(crate) fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["kind"] == kind).count()
}

pub(crate) fn wait_for(daemon: &Daemon, what: &str, found: impl Fn(&Value) -> bool) -> Value {
    eventually(PATIENCE, what, || list_or_none(daemon).into_iter().find(&found))
}

pub(crate) fn finding<'f>(name: &'f str, subject: &'f str) -> impl Fn(&Value) -> bool + 'f {
    move |event| event["finding"] == name && event["subject"] == subject
}

/// Where the trail ends.
fn head_of(verified: &Answer) -> String {
    let head = verified.stdout.split_once("head ").expect("a head").1;
    head.lines().next().expect("a line").to_owned()
}

#[test]
fn an_embedded_store_has_a_trail_of_who_held_what_and_every_hand_in_it_is_told() {
    let server = Server::start();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "the grants are in the trail", || {
        count(&list_or_none(&daemon), "granted") == 2
    });
    daemon.terminate();
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "both lives are in the trail", || {
        let events = list(&daemon);
        count(&events, "granted") == 4 && count(&events, "released") == 2
    });
    let all = list(&daemon);
    assert_eq!(
        (&all[0]["kind"], &all[1]["kind"]),
        (&"began".into(), &"cell_made".into()),
        "{all:?}"
    );
    assert!(all.iter().all(|event| event["finding"].is_null()), "{all:?}");
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    assert!(
        verified.stdout.contains("the chain is whole"),
        "{}",
        verified.stdout
    );
    assert!(
        verified.stdout.contains("the store is what the trail says"),
        "{}",
        verified.stdout
    );

    let head = head_of(&verified);

    // Somebody takes a worker from its holder by hand.
    let held = "SELECT identity FROM idgen.lease WHERE kind = 'worker' AND holder IS NOT NULL ORDER BY identity LIMIT 1";
    let worker: i32 = sql::value(&mut client, held);
    sql::run(
        &mut client,
        &format!(
            "UPDATE idgen.lease SET holder = NULL, holder_name = NULL, token_epoch = NULL, token_revision = NULL, \
             boot_id = NULL, expires_at = NULL WHERE kind = 'worker' AND identity = {worker}"
        ),
    );
    let told = wait_for(
        &daemon,
        "the hand is told",
        finding("removed_early", &format!("worker {worker}")),
    );
    assert_eq!(told["detail"]["written_by"], "postgres", "{told}");
    daemon.wait_log(&["WARN", "removed_early"]);
    let verified = events(&daemon, &["verify", "--head", &head]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(verified.stdout.contains("removed_early"), "{}", verified.stdout);
}

#[test]
fn trail_and_log_refuse_to_be_changed_and_a_record_that_is_rewritten_all_the_same_is_named() {
    let server = Server::start();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    eventually_true(PATIENCE, "the grants are in the trail", || {
        count(&list_or_none(&daemon), "granted") == 2
    });
    // The owner neither.
    for (table, column) in [("lease_event", "steps"), ("lease_change", "revision")] {
        for statement in [
            format!("UPDATE idgen.{table} SET {column} = {column}"),
            format!("DELETE FROM idgen.{table}"),
            format!("TRUNCATE idgen.{table}"),
        ] {
            sql::refusal(&mut client, &statement, "IG060");
        }
    }
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    // A head that somebody has noted elsewhere: this one, one of another trail, and one that is not there yet.
    let head = head_of(&verified);
    let (seq, hash) = head.split_once(':').expect("a number and a hash");
    let other = hash.chars().map(|digit| if digit == 'f' { '0' } else { 'f' });
    let other: String = other.collect();
    for (noted, code, said) in [
        (format!("{seq}:{hash}"), 0, "the chain is whole"),
        (format!("{seq}:{other}"), 3, "has another hash than was noted"),
        (format!("1000000:{hash}"), 3, "is not in it"),
    ] {
        let verified = events(&daemon, &["verify", "--head", &noted]);
        assert_eq!(verified.code, Some(code), "{noted}: {}", verified.stdout);
        assert!(verified.stdout.contains(said), "{noted}: {}", verified.stdout);
    }
    // Somebody who may do everything.
    sql::run(
        &mut client,
        "ALTER TABLE idgen.lease_event DISABLE TRIGGER trail_stays; \
         UPDATE idgen.lease_event SET subject = 'worker 2000' WHERE seq = 3; \
         ALTER TABLE idgen.lease_event ENABLE ALWAYS TRIGGER trail_stays",
    );
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(
        verified.stdout.contains("the chain breaks at record 3"),
        "{}",
        verified.stdout
    );
}

#[test]
fn a_change_behind_the_back_of_the_triggers_is_found_by_comparing_store_and_trail() {
    let server = Server::start();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    wait_for(&daemon, "a grant", |event| event["kind"] == "granted");
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    sql::run(
        &mut client,
        "ALTER TABLE idgen.lease DISABLE TRIGGER ALL; \
         UPDATE idgen.lease SET ceiling_ms = 5 WHERE kind = 'worker' AND holder IS NOT NULL; \
         ALTER TABLE idgen.lease ENABLE TRIGGER ALL",
    );
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(
        verified
            .stdout
            .contains("the store has changed this without a word in its log: worker"),
        "{}",
        verified.stdout
    );
}

/// Of a key, at a revision.
fn version_at(etcd: &Etcd, key: &str, revision: i64) -> u64 {
    let said = etcd.ctl_ok(&["get", key, "--rev", &revision.to_string(), "--write-out=json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    said["kvs"][0]["version"]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} at {revision}: {said}"))
}

fn revision(etcd: &Etcd) -> i64 {
    let status = etcd.status().expect("the status");
    status["header"]["revision"].as_i64().expect("a revision")
}

#[test]
fn a_compacted_part_of_the_log_is_told_with_its_bounds_and_what_is_lost_to_the_step() {
    let etcd = Etcd::start();
    let servers = Server::several(2);
    let follower = DaemonOptions::new(&servers[0])
        .name("follower")
        .store(Store::etcd(&etcd))
        .ttl_ms(6_000);
    let mut other = DaemonOptions::new(&servers[1])
        .name("other")
        .store(Store::etcd(&etcd))
        .ttl_ms(6_000);
    other
        .env
        .push(("IDGEND_EVENTS__ENABLED".to_owned(), "false".to_owned()));
    let mut other = other.start();
    let daemon = follower.start();
    wait_for(&daemon, "the follower's grant is followed", |event| {
        event["kind"] == "granted" && event["detail"]["holder"] == "follower"
    });
    daemon.kill();
    let mut client = servers[0].connect();
    let cursor: i64 = sql::value(&mut client, "SELECT cursor FROM idgen.lease_trail");

    // What nobody will have seen.
    let quiet = format!("{PREFIX}/w/700/hw");
    let value = etcd.ctl_ok(&["get", &quiet, "--print-value-only"]);
    for _ in 0..5 {
        etcd.ctl_ok(&["put", &quiet, value.trim()]);
    }
    other.wait_renewals(3);
    let compacted = revision(&etcd);
    etcd.ctl_ok(&["compact", &compacted.to_string()]);
    let expected = missed(&etcd, &servers[0], compacted);
    assert_eq!(expected.get("w/700/hw"), Some(&5));
    assert!(
        expected.len() >= 3,
        "the renewals of the other server are missing as well: {expected:?}"
    );

    let daemon = follower.start();
    let gap = wait_for(&daemon, "the gap is told", |event| event["kind"] == "gap");
    assert_eq!(gap["finding"], "gap", "{gap}");
    assert_eq!(
        (gap["detail"]["from"].as_i64(), gap["detail"]["to"].as_i64()),
        (Some(cursor + 1), Some(compacted)),
        "{gap}"
    );
    let all = list(&daemon);
    assert_eq!(lost(&all), expected);
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(
        verified.stdout.contains("the chain is whole"),
        "{}",
        verified.stdout
    );
    let bounds = [format!(" from={} ", cursor + 1), format!(" to={compacted}:")];
    let named = bounds.iter().all(|bound| verified.stdout.contains(bound));
    assert!(named, "{bounds:?} are named: {}", verified.stdout);
    // It goes on.
    let before = all.len();
    daemon.terminate();
    let daemon = follower.start();
    eventually_true(PATIENCE, "what comes after the gap is told", || {
        list(&daemon)[before..]
            .iter()
            .any(|event| event["kind"] == "granted")
    });
}

/// Of each high water: how many changes there were up to this revision that the trail has not seen.
fn missed(etcd: &Etcd, sink: &Server, revision: i64) -> BTreeMap<String, u64> {
    let kept = "SELECT key, version FROM idgen.lease_event_key WHERE key LIKE 'w/%/hw' AND (told > 1 OR key = 'w/700/hw')";
    let rows = sink.connect().query(kept, &[]).expect("the keys");
    let of_key = |row: &postgres::Row| {
        let (key, version): (String, i64) = (row.get(0), row.get(1));
        let is = version_at(etcd, &format!("{PREFIX}/{key}"), revision);
        (key, is - version.unsigned_abs())
    };
    rows.iter().map(of_key).filter(|(_, lost)| *lost > 0).collect()
}

/// Of each high water: how many changes the trail says are lost.
fn lost(events: &[Value]) -> BTreeMap<String, u64> {
    let of_event = |event: &Value| {
        let key = event["detail"]["key"].as_str().expect("a key").to_owned();
        (key, event["detail"]["changes"].as_u64().expect("a number"))
    };
    let lost = events
        .iter()
        .filter(|event| event["kind"] == "lost")
        .map(of_event);
    lost.filter(|(key, _)| key.ends_with("/hw")).collect()
}

#[test]
fn a_holder_that_root_deletes_in_etcd_is_flagged() {
    let etcd = Etcd::start();
    let server = Server::start();
    let mut daemon = DaemonOptions::new(&server).store(Store::etcd(&etcd)).start();
    let granted = wait_for(&daemon, "a grant", |event| event["kind"] == "granted");
    let subject = granted["subject"].as_str().expect("a subject").to_owned();
    let worker = subject.strip_prefix("worker ").expect("a worker");
    etcd.ctl_ok(&["del", &format!("{PREFIX}/w/{worker}/holder")]);
    let told = wait_for(
        &daemon,
        "the deletion is told",
        finding("removed_early", &subject),
    );
    assert_eq!(told["kind"], "unexplained", "{told}");
    daemon.wait_log(&["WARN", "removed_early"]);
    let (_, metrics) = eventually(PATIENCE, "metrics", || daemon.get("/metrics"));
    assert!(
        metrics.contains("idgen_lease_event_findings_total{finding=\"removed_early\"} 1"),
        "{metrics}"
    );
    // And a high water that is lowered.
    let high_water = format!("{PREFIX}/w/900/hw");
    etcd.ctl_ok(&[
        "put",
        &high_water,
        r#"{"generation":3,"ceiling_ms":7,"exact":true,"epoch":0}"#,
    ]);
    wait_for(
        &daemon,
        "the high water is told",
        finding("high_water_alone", "worker 900"),
    );
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
}

/// What happened to a subject at a revision, as far as a plain watch can say: whoever is gone may have expired or not.
type Step = (i64, String, &'static str);

/// Every commit from the first revision on, by a watch of its own, without what the product makes of it.
fn replay(etcd: &Etcd, up_to: i64) -> BTreeSet<Step> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect([etcd.endpoint()], None).await.expect("connect");
        let options = WatchOptions::new().with_prefix().with_start_revision(1);
        let mut watch = client.watch_client().max_decoding_message_size(64 << 20);
        let mut watch = watch
            .watch(format!("{PREFIX}/"), Some(options))
            .await
            .expect("watch");
        let mut by_revision: BTreeMap<i64, Vec<(String, Option<i64>)>> = BTreeMap::new();
        let mut seen = 0;
        while seen < up_to {
            let answer = watch
                .message()
                .await
                .expect("a message")
                .expect("the watch lasts");
            for event in answer.events() {
                let pair = event.kv().expect("a key");
                let key = String::from_utf8_lossy(pair.key()).into_owned();
                let key = key.strip_prefix(&format!("{PREFIX}/")).expect("ours").to_owned();
                let made = (event.event_type() == EventType::Put).then(|| pair.create_revision());
                by_revision
                    .entry(pair.mod_revision())
                    .or_default()
                    .push((key, made));
                seen = pair.mod_revision();
            }
        }
        by_revision
            .into_iter()
            .filter(|(at, _)| *at <= up_to)
            .flat_map(|(at, keys)| steps(at, &keys))
            .collect()
    })
}

fn steps(at: i64, keys: &[(String, Option<i64>)]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (key, made) in keys {
        let worker = key
            .strip_prefix("w/")
            .and_then(|rest| rest.strip_suffix("/holder"));
        let name = key.strip_prefix("named/holder/");
        let (subject, granted, given_back) = match (worker, name) {
            (Some(worker), _) => (format!("worker {worker}"), "granted", "released"),
            (_, Some(name)) => (format!("name {name}"), "taken", "gone"),
            _ => continue,
        };
        let with_high_water = keys
            .iter()
            .any(|(other, _)| Some(other.as_str()) == worker.map(|w| format!("w/{w}/hw")).as_deref());
        match made {
            Some(made) if *made == at => steps.push((at, subject, granted)),
            Some(_) => {}
            None if with_high_water => steps.push((at, subject, given_back)),
            None => steps.push((at, subject, "gone")),
        }
    }
    steps
}

fn told(events: &[Value], up_to: i64) -> BTreeSet<Step> {
    let step = |event: &Value| {
        let kind = match event["kind"].as_str().expect("a kind") {
            "granted" => "granted",
            "released" => "released",
            "taken" => "taken",
            "expired" | "removed" | "given_back" => "gone",
            _ => return None,
        };
        let subject = event["subject"].as_str().expect("a subject").to_owned();
        Some((event["revision"].as_i64().expect("a revision"), subject, kind))
    };
    let all: Vec<Step> = events
        .iter()
        .filter_map(step)
        .filter(|(at, ..)| *at <= up_to)
        .collect();
    let set: BTreeSet<Step> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "something is told twice: {all:?}");
    set
}

#[test]
fn followers_that_are_killed_leave_nothing_out_and_tell_nothing_twice() {
    let etcd = Etcd::start();
    let servers = Server::several(2);
    let options: Vec<DaemonOptions> = ["first", "second"]
        .into_iter()
        .zip(&servers)
        .map(|(name, server)| {
            let mut options = DaemonOptions::new(server)
                .name(name)
                .store(Store::etcd(&etcd))
                .ttl_ms(6_000)
                .locks("[locks.busy]\nttl_ms = 4000\n");
            options
                .env
                .push(("IDGEND_EVENTS__URL".to_owned(), servers[0].daemon_url()));
            options
        })
        .collect();
    let mut daemons: Vec<Daemon> = options.iter().map(DaemonOptions::start).collect();
    let mut client = servers[0].connect();
    let followed_by = "SELECT followed_by FROM idgen.lease_trail";
    eventually_true(PATIENCE, "somebody follows", || {
        !sql::column::<String>(&mut client, followed_by).is_empty()
    });
    for round in 0..KILLS {
        // Locks are taken and given back all the time, also at the moment of the kill.
        let config = daemons[1].config_path().to_str().expect("a path").to_owned();
        let busy = thread::spawn(move || {
            for n in 0..6 {
                let name = format!("r{round}/n{n}");
                idgenctl(&[
                    "lock", "run", "--config", &config, "--class", "busy", "--name", &name, "--", "true",
                ]);
            }
        });
        thread::sleep(Duration::from_millis(100 * (round as u64 + 1)));
        let who: String = sql::value(&mut client, followed_by);
        let n = usize::from(who == "second");
        daemons[n].signal(Signal::KILL);
        daemons[n].wait_exit();
        busy.join().expect("locks");
        daemons[n] = options[n].start();
    }
    let end = revision(&etcd);
    eventually_true(PATIENCE, "the trail has caught up", || {
        // The cursor alone is written down now and then; a lock that is taken is an event.
        let config = daemons[0].config_path().to_str().expect("a path");
        idgenctl(&[
            "lock", "run", "--config", config, "--class", "busy", "--name", "last", "--", "true",
        ]);
        sql::value::<i64>(&mut client, "SELECT cursor FROM idgen.lease_trail") > end
    });
    let replayed = replay(&etcd, end);
    let answer = events_of(
        &daemons[1],
        &servers[0],
        &["list", "--limit", "100000", "--output", "json"],
    );
    let shown: Value = serde_json::from_str(&answer.stdout).expect("JSON");
    let told = told(shown["events"].as_array().expect("events"), end);
    let missing: Vec<&Step> = replayed.difference(&told).collect();
    let invented: Vec<&Step> = told.difference(&replayed).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "missing: {missing:?}; invented: {invented:?}"
    );
    println!(
        "{} steps, replayed and told, through {KILLS} kills of whoever followed",
        told.len()
    );
    assert!(told.len() > 30, "{told:?}");
    let verified = events_of(&daemons[1], &servers[0], &["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

/// The URL of the trail is in the environment of the daemons.
fn events_of(daemon: &Daemon, sink: &Server, args: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("a path");
    let mut command = std::process::Command::new(crate::kit::daemon::IDGENCTL);
    command
        .env("IDGEND_EVENTS__URL", sink.daemon_url())
        .args(["events", args[0], "--config", config])
        .args(&args[1..]);
    crate::kit::daemon::answer(command)
}
