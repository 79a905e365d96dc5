//! `idgenctl leases list` and the pool in `idgenctl status`, on real stores.

use serde_json::Value;

use crate::kit::daemon::{Daemon, DaemonOptions, idgenctl};
use crate::kit::process::Signal;
use crate::kit::{Etcd, PATIENCE, Server, Store, eventually_true, sql};

/// The standard output of a command about a daemon's cell, which ends well.
fn asked(daemon: &Daemon, command: &[&str]) -> String {
    let config = daemon.config_path().to_str().expect("utf-8");
    let answer = idgenctl(&[command, &["--config", config]].concat());
    assert_eq!(answer.code, Some(0), "{command:?}: {}", answer.stderr);
    answer.stdout
}

pub fn list(daemon: &Daemon, class: &str) -> Value {
    let command = ["leases", "list", "--output", "json", "--class", class];
    serde_json::from_str(&asked(daemon, &command)).expect("JSON")
}

/// Class, state and holder of each lease.
pub fn seen(list: &Value) -> Vec<String> {
    let leases = list["leases"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().unwrap_or("nobody").to_owned();
    let said = |lease: &Value| {
        let parts = [&lease["class"], &lease["state"], &lease["holder"]["name"]];
        parts.map(text).join(" ")
    };
    leases.iter().map(said).collect()
}

/// Of each lease that has, or had, a holder.
pub fn of_another_epoch(list: &Value) -> Vec<bool> {
    let leases = list["leases"].as_array().expect("a list").iter();
    leases
        .filter_map(|lease| lease["holder"]["other_epoch"].as_bool())
        .collect()
}

#[test]
fn idgenctl_lists_who_has_what_in_tables() {
    let servers = Server::several(2);
    who_has_what(&servers, Store::on(&servers[0]));
}

#[test]
fn idgenctl_lists_who_has_what_in_a_real_etcd() {
    let etcd = Etcd::start();
    who_has_what(&Server::several(2), Store::etcd(&etcd));
}

fn who_has_what(servers: &[Server], store: Store) {
    let options = |n: usize, name: &str| DaemonOptions::new(&servers[n]).store(store.clone()).name(name);
    let first = options(0, "server-a").shards("7, \"16-18\"").start();
    let second = options(1, "server-b").workers(1).start();

    let mut workers = seen(&list(&first, "worker"));
    workers.sort_unstable();
    assert_eq!(
        workers,
        [
            "worker held server-a",
            "worker held server-a",
            "worker held server-b"
        ]
    );
    assert_eq!(seen(&list(&first, "shard")), ["shard held server-a"; 4]);
    let text = asked(&second, &["leases", "list"]);
    for part in [
        "16-18",
        "server-a",
        "server-b",
        "epoch 0",
        "3 of 512 identities taken (0 %): 3 held, 0 cooling",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let boot_id: String = sql::value(
        &mut servers[1].connect(),
        "SELECT boot_id::text FROM idgen.health",
    );
    assert!(text.contains(&boot_id), "the shared memory of the second\n{text}");
    let status = asked(&second, &["status"]);
    assert!(status.contains("3 of 512 identities taken"), "{status}");

    // What is given back is free at once, with its exact high water.
    second.terminate();
    assert_eq!(seen(&list(&first, "worker")), ["worker held server-a"; 2]);
    // Nobody is there to renew, yet the store tells of whoever went.
    let (_, metrics) = { first }.get("/metrics").expect("metrics");
    assert!(
        metrics.contains("idgen_pool_size{class=\"worker\"} 512"),
        "{metrics}"
    );
}

/// A store that is sealed, and then begins a new epoch while the old side lives on, as that of a promoted standby.
#[test]
fn both_sides_of_a_new_epoch_are_named_and_a_sealed_store_tells_too() {
    let servers = Server::several(2);
    let options = |n: usize, name: &str| {
        DaemonOptions::new(&servers[n])
            .store(Store::on(&servers[0]))
            .name(name)
    };
    let old = options(0, "old-primary").start();
    old.signal(Signal::STOP);
    let mut store = servers[0].connect();
    sql::run(
        &mut store,
        "UPDATE idgen.cell SET sealed_reason = 'seen to be a copy'",
    );
    let text = asked(&old, &["leases", "list"]);
    assert!(
        text.contains("sealed, nothing is granted or renewed: seen to be a copy"),
        "{text}"
    );
    assert_eq!(seen(&list(&old, "worker")), ["worker held old-primary"; 2]);

    sql::run(
        &mut store,
        "UPDATE idgen.cell SET epoch = 1, epoch_nonce = gen_random_uuid(), sealed_reason = NULL",
    );
    let new = options(1, "promoted").start();
    let sides = list(&new, "worker");
    let expected = [["worker held old-primary"; 2], ["worker held promoted"; 2]].concat();
    assert_eq!(seen(&sides), expected, "the halves of the pool, in order");
    assert_eq!(of_another_epoch(&sides), [true, true, false, false]);
    assert!(asked(&new, &["leases", "list"]).contains("held, in another epoch"));
}

/// Everybody but one server has the pool, and somebody should look.
#[test]
fn a_pool_that_runs_full_is_told_of_everywhere() {
    let server = Server::start();
    let mut client = server.connect();
    let options = DaemonOptions::new(&server).ttl_ms(4_000);
    options.start().terminate();
    sql::run(
        &mut client,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'somebody', 0, 0, gen_random_uuid(), now() + interval '1 day'
           FROM generate_series(0, 449) n
         ON CONFLICT (kind, identity) DO NOTHING",
    );
    let mut daemon = options.start();
    let ready = daemon.get("/readyz").expect("readyz");
    assert_eq!(ready.0, 200);
    assert!(ready.1.contains("workers: the pool runs full: 4"), "{}", ready.1);
    let (_, metrics) = daemon.get("/metrics").expect("metrics");
    assert!(
        metrics.contains("idgen_pool_pressure{class=\"worker\"} 1"),
        "{metrics}"
    );
    assert!(daemon.log().contains("worker pool: 4"), "{}", daemon.log());
    let status = asked(&daemon, &["status"]);
    assert!(status.contains("of 512 identities taken (8"), "{status}");

    // More than nineteen in twenty; the daemon looks again with every sixth renewal.
    sql::run(
        &mut client,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'somebody', 0, 0, gen_random_uuid(), now() + interval '1 day'
           FROM generate_series(450, 500) n
         ON CONFLICT (kind, identity) DO NOTHING",
    );
    eventually_true(PATIENCE, "the pressure is the highest", || {
        let (_, metrics) = daemon.get("/metrics").expect("metrics");
        metrics.contains("idgen_pool_pressure{class=\"worker\"} 2")
    });
    daemon.terminate();
}
