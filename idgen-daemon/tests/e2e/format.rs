//! The format of a cell is switched at a moment to come, under load, and nobody notices but the ids.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use idgen_daemon::lease::host_clock;

use crate::kit::daemon::{Answer, DaemonOptions, idgenctl, idgenctl_change};
use crate::kit::load::Report;
use crate::kit::{Daemon, Etcd, Load, PATIENCE, Server, Store, eventually_true, sql};

/// Windows of 3.2 s: a switch can be asked for 6.2 s ahead.
const SHORT_TTL_MS: u64 = 4_000;
const AHEAD: &str = "+9s";
/// 2020-01-01 in Unix ms: the epoch of classic and regional.
const EPOCH_MS: i64 = 1_577_836_800_000;
/// Both keep the time above these bits.
const TIME_SHIFT: u32 = 22;

fn now_ms() -> i64 {
    host_clock().0.cast_signed()
}

fn format(daemon: &Daemon, args: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("utf-8");
    let args = [&["format"], args, &["--config", config]].concat();
    if args.contains(&"show") {
        return idgenctl(&args);
    }
    idgenctl_change(&args, || format(daemon, &["show"]).stdout)
}

/// Switches, and returns the moment.
fn switch(daemon: &Daemon, args: &[&str]) -> i64 {
    let answer = format(daemon, &[&["switch"], args, &["--output", "json"]].concat());
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let formats: Value = serde_json::from_str(&answer.stdout).expect("JSON");
    formats["switch"]["at_ms"].as_i64().expect("a moment")
}

fn wait_until(at_ms: i64) {
    let left = Duration::from_millis(u64::try_from(at_ms - now_ms()).unwrap_or(0));
    eventually_true(left + PATIENCE, "the moment has passed", || now_ms() > at_ms);
}

fn short(server: &Server, store: &Store) -> DaemonOptions {
    DaemonOptions::new(server)
        .store(store.clone())
        .ttl_ms(SHORT_TTL_MS)
}

#[test]
fn two_servers_go_over_to_another_format_under_load() {
    let servers = Server::several(2);
    over_a_switch(&servers, &Store::on(&servers[0]));
}

#[test]
fn two_servers_on_a_real_etcd_go_over_to_another_format_under_load() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    over_a_switch(&servers, &Store::etcd(&etcd));
}

fn over_a_switch(servers: &[Server], store: &Store) {
    let mut daemons: Vec<Daemon> = servers
        .iter()
        .map(|server| short(server, store).start())
        .collect();
    let workers: BTreeSet<i64> = servers.iter().flat_map(open_workers).collect();
    let loads: Vec<Load> = servers.iter().map(|server| Load::start(server, 2)).collect();
    loads.iter().for_each(|load| load.wait_statements(50));

    let at_ms = switch(&daemons[0], &["--to", "regional", "--region", "1", "--at", AHEAD]);
    wait_until(at_ms + 1_000);
    loads.iter().for_each(|load| load.wait_statements(50));
    let reports: Vec<Report> = loads.into_iter().map(Load::finish).collect();
    for report in &reports {
        report.assert_no_refusal();
        report.assert_rising();
        let (before, after): (Vec<i64>, Vec<i64>) = report
            .snowflakes()
            .partition(|id| (id >> TIME_SHIFT) + EPOCH_MS < at_ms);
        assert!(
            before.len() > 500 && after.len() > 500,
            "{} and {}",
            before.len(),
            after.len()
        );
        for id in before {
            assert!(workers.contains(&((id >> 12) & 0x3ff)), "{id} is classic");
        }
        for id in after {
            assert_eq!((id >> 19) & 0b111, 0b010, "{id} has region 1 and version 0");
            assert!(workers.contains(&((id >> 9) & 0x3ff)), "{id} is regional");
        }
    }
    // Each server counts its own segments; snowflakes are what must differ.
    let mut recorder = crate::kit::unique::UniquenessRecorder::new();
    for report in &reports {
        recorder.extend(report.snowflakes());
    }
    recorder.assert_unique("snowflakes of both servers", 2_000);
    for daemon in &mut daemons {
        // The first renewal that met the switch looked again and went through, in one request.
        let (_, metrics) = daemon.get("/metrics").expect("metrics");
        assert!(!metrics.contains("reason=\"store_conflict\""), "{metrics}");
    }
    let still: BTreeSet<i64> = servers.iter().flat_map(open_workers).collect();
    assert_eq!(still, workers, "no lease was lost");
    let format: String = sql::value(
        &mut servers[1].connect(),
        "SELECT worker_format FROM idgen.health",
    );
    assert!(format.starts_with("regional"), "{format}");
    daemons.into_iter().for_each(Daemon::terminate);
}

fn open_workers(server: &Server) -> Vec<i64> {
    sql::column(
        &mut server.connect(),
        "SELECT identity::bigint FROM idgen.slots WHERE state = 'open' AND kind = 'worker'",
    )
}

fn assert_refused(daemon: &Daemon, args: &[&str], code: i32, why: &str) {
    let answer = format(daemon, &[&["switch"], args].concat());
    assert_eq!(
        answer.code,
        Some(code),
        "{args:?}: {}{}",
        answer.stdout,
        answer.stderr
    );
    assert!(answer.stderr.contains(why), "{args:?}: {}", answer.stderr);
}

/// With the formats that the test below has registered.
fn assert_switches_refused(daemon: &Daemon) {
    assert_refused(daemon, &["--to", "older", "--at", "+1s"], 3, "too near");
    assert_refused(
        daemon,
        &["--to", "younger", "--at", AHEAD],
        3,
        "ids would go back",
    );
    assert_refused(
        daemon,
        &["--to", "narrow", "--at", AHEAD],
        3,
        "9 bits for the worker",
    );
    assert_refused(
        daemon,
        &["--to", "sharded", "--at", AHEAD],
        3,
        "for logical shards",
    );
    assert_refused(daemon, &["--to", "regional", "--at", AHEAD], 3, "region");
    assert_refused(
        daemon,
        &["--to", "older", "--region", "1", "--at", AHEAD],
        3,
        "region",
    );
    assert_refused(
        daemon,
        &["--to", "classic", "--at", AHEAD],
        3,
        "has this format already",
    );
    assert_refused(
        daemon,
        &["--to", "nothing", "--at", AHEAD],
        2,
        "no format \"nothing\"",
    );
    assert_eq!(
        format(daemon, &["switch", "--to", "older", "--at", "soon"]).code,
        Some(2)
    );
    assert_eq!(
        format(daemon, &["show"]).stdout.trim(),
        "classic",
        "nothing was changed"
    );
}

#[test]
fn a_registered_format_is_minted_from_the_moment_of_the_switch_and_a_second_one_after_it() {
    let server = Server::start();
    let daemon = short(&server, &Store::Embedded).start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen.register_format('older', '2015-01-01 00:00+00', 41, 10, 12);
         SELECT idgen.register_format('oldest', '2014-01-01 00:00+00', 41, 10, 12);
         SELECT idgen.register_format('younger', '2024-01-01 00:00+00', 41, 10, 12);
         SELECT idgen.register_format('narrow', '2015-01-01 00:00+00', 41, 9, 12, 0, 1);",
    );
    assert_switches_refused(&daemon);

    let before: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    let at_ms = switch(&daemon, &["--to", "older", "--at", AHEAD]);
    assert_refused(
        &daemon,
        &["--to", "regional", "--region", "0", "--at", "+1h"],
        3,
        "pending",
    );
    let shown = format(&daemon, &["show"]).stdout;
    assert!(
        shown.starts_with("classic\nolder(1420070400000,1,41,0,0,10,12) from "),
        "{shown}"
    );
    wait_until(at_ms + 10);
    let minted: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(minted > before);
    let age_ms: f64 = sql::value(
        &mut client,
        &format!(
            "SELECT abs(extract(epoch FROM clock_timestamp() - (idgen_parse_registered({minted}, 'older')).ts))::float8
                    * 1000"
        ),
    );
    assert!(
        age_ms < 2_000.0,
        "as older it says when it was made: {age_ms} ms ago"
    );

    // The second switch drops the first from the plan; the server remembers, and goes on.
    let again_ms = switch(&daemon, &["--to", "oldest", "--at", "+200d"]);
    assert!(again_ms > at_ms);
    let formats: String = sql::value(&mut client, "SELECT worker_format FROM idgen.cell");
    assert!(formats.starts_with("older("), "{formats}");
    let floor_ms: i64 = sql::value(&mut client, "SELECT min_floor_ms FROM idgen.cell");
    assert_eq!(floor_ms, at_ms);
    let minted_again: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(minted_again > minted);
    daemon.terminate();
}
