//! Lease stores that were restored or promoted: sealed, and opened by one command.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use idgen_daemon::lease::host_clock;

use crate::kit::daemon::{Answer, DaemonOptions, idgenctl, idgenctl_change};
use crate::kit::load::Report;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Daemon, Etcd, Load, PATIENCE, Pause, Server, ServerOptions, Store, eventually, eventually_true, sql,
};
use crate::leases_list::{list, of_another_epoch, seen};

/// Renewed every 6 s; a sealed lease ends within 16 s.
const TTL_MS: u64 = 20_000;
/// Its window and all margins are over within 6 s.
const SHORT_TTL_MS: u64 = 4_000;

fn epoch(command: &str, daemon: &Daemon, more: &[&str]) -> Answer {
    let config = daemon.config_path().display().to_string();
    let mut args = vec!["epoch", command, "--config", &config, "--output", "json"];
    args.extend(more);
    if command == "show" {
        return idgenctl(&args);
    }
    idgenctl_change(&args, || {
        let status = shown(daemon).1;
        (status["epoch"].clone(), status["nonce"].clone())
    })
}

fn shown(daemon: &Daemon) -> (Option<i32>, Value) {
    let shown = epoch("show", daemon, &[]);
    let status = serde_json::from_str(&shown.stdout).unwrap_or_else(|_| panic!("show: {}", shown.stderr));
    (shown.code, status)
}

/// Waits until the store is sealed, and returns why.
fn wait_sealed(daemon: &Daemon) -> String {
    eventually(PATIENCE, "the store is sealed", || {
        let (code, status) = shown(daemon);
        (code == Some(3)).then(|| status["sealed"].as_str().expect("a reason").to_owned())
    })
}

/// The one command.
fn advance(daemon: &Daemon) -> Value {
    let identity = shown(daemon).1["identity"].as_str().expect("identity").to_owned();
    let done = epoch(
        "advance",
        daemon,
        &["--identity", &identity, "--reason", "a test has restored it"],
    );
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    serde_json::from_str(&done.stdout).expect("JSON")
}

fn open_workers(server: &Server) -> Vec<i32> {
    let open = "SELECT identity FROM idgen.slots WHERE state = 'open' AND kind = 'worker'";
    sql::column(&mut server.connect(), open)
}

fn ceiling_ms(server: &Server) -> i64 {
    let highest = "SELECT coalesce(max(ceiling_ms), 0) FROM idgen.slot_states()";
    sql::value(&mut server.connect(), highest)
}

/// Of the other half, and open.
fn wait_for_other_half(server: &Server) {
    eventually_true(PATIENCE, "workers of the other half are open", || {
        let open = open_workers(server);
        !open.is_empty() && open.iter().all(|worker| *worker >= 512)
    });
}

fn assert_snowflakes_unique(reports: &[Report], at_least: usize) {
    let mut recorder = UniquenessRecorder::new();
    for report in reports {
        recorder.extend(report.snowflakes());
    }
    recorder.assert_unique("snowflakes of all sides", at_least);
}

/// Names a store that this is not.
fn advance_another(daemon: &Daemon) -> Answer {
    epoch("advance", daemon, &["--identity", "etcd/1", "--reason", "no"])
}

/// Two servers mint from one etcd. It is restored to a snapshot that holders have moved on from.
fn restored_under_load(token: Option<&str>, because: &str) {
    let mut etcd = Etcd::start();
    let servers = Server::several(2);
    let options = |n: usize| numbered(&servers, n, &etcd).ttl_ms(TTL_MS);
    let (first, second) = (options(0), options(1));
    let (first_daemon, second_daemon) = (first.start(), second.start());
    let loads: Vec<Load> = servers.iter().map(|server| Load::start(server, 2)).collect();
    loads.iter().for_each(|load| load.wait_statements(20));

    let snapshot = etcd.save("before");
    // Holders move on: what they get now the snapshot does not know.
    let before = open_workers(&servers[1]);
    second_daemon.kill();
    let mut second_daemon = second.start();
    assert_ne!(
        open_workers(&servers[1]),
        before,
        "other workers than the snapshot says"
    );
    loads.iter().for_each(|load| load.wait_statements(20));
    etcd.restore(&snapshot, token);

    let reason = wait_sealed(&first_daemon);
    assert!(reason.contains(because), "{reason}");
    let ceilings: Vec<i64> = servers.iter().map(ceiling_ms).collect();
    for server in &servers {
        eventually_true(PATIENCE, "a sealed lease ends", || {
            open_workers(server).is_empty()
        });
    }
    let wrong = advance_another(&first_daemon);
    assert_eq!(wrong.code, Some(3), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("epoch show"), "{}", wrong.stderr);
    let later: Vec<i64> = servers.iter().map(ceiling_ms).collect();
    assert!(
        later.iter().max() <= ceilings.iter().max(),
        "no ceiling was raised: {ceilings:?} {later:?}"
    );

    let asked = Instant::now();
    let status = advance(&first_daemon);
    assert_eq!(status["epoch"], 1);
    assert_eq!(status["history"][0]["reason"], "a test has restored it");
    servers.iter().for_each(wait_for_other_half);
    eprintln!("minting is back {:?} after the command began", asked.elapsed());
    second_daemon.wait_ready();
    loads.iter().for_each(|load| load.wait_statements(20));
    assert_eq!(shown(&first_daemon).0, Some(0), "open");
    let again = advance_another(&first_daemon);
    assert_eq!(
        again.code,
        Some(3),
        "an open store is not advanced: {}",
        again.stderr
    );

    let reports: Vec<Report> = loads.into_iter().map(Load::finish).collect();
    assert_snowflakes_unique(&reports, 4_000);
}

#[test]
fn an_etcd_restored_under_the_same_token_is_sealed_and_one_command_opens_it() {
    restored_under_load(None, "was restored");
}

#[test]
fn an_etcd_restored_under_a_new_token_is_sealed_and_one_command_opens_it() {
    restored_under_load(Some("another"), "belongs to store");
}

/// The daemon of one of several servers on one etcd; its leases are short.
fn numbered(servers: &[Server], n: usize, etcd: &Etcd) -> DaemonOptions {
    DaemonOptions::new(&servers[n])
        .store(Store::etcd(etcd))
        .ttl_ms(SHORT_TTL_MS)
        .name(&format!("server-{n}"))
}

/// The operator's server has slept through an epoch, and the store has lost it. Who knows of it is heard first.
#[test]
fn an_advance_rises_above_an_epoch_that_only_another_server_remembers() {
    let mut etcd = Etcd::start();
    let servers = Server::several(2);
    let options = |n: usize| numbered(&servers, n, &etcd);
    let (knows, slept) = (options(0), options(1));
    let knowing = knows.start();
    let snapshot = etcd.save("before");
    // What is renewed from here on the snapshot does not know.
    let sleeper = slept.start();
    sleeper.terminate();
    etcd.restore(&snapshot, Some("another"));
    wait_sealed(&knowing);
    assert_eq!(advance(&knowing)["epoch"], 1);
    wait_for_other_half(&servers[0]);

    let pause = Pause::of([knowing.pid()]);
    etcd.restore(&snapshot, Some("another"));
    let operator = slept.launch();
    wait_sealed(&operator);
    let waiting = std::thread::spawn({
        let operator = operator.config_path().to_owned();
        move || {
            let config = operator.display().to_string();
            let shown = idgenctl(&["epoch", "show", "--config", &config, "--output", "json"]);
            let status: Value = serde_json::from_str(&shown.stdout).expect("JSON");
            let identity = status["identity"].as_str().expect("identity");
            let args = [
                "--identity",
                identity,
                "--reason",
                "restored once more",
                "--output",
                "json",
                "--yes",
            ];
            idgenctl(&[&["epoch", "advance", "--config", &config][..], &args].concat())
        }
    });
    pause.resume();
    let done = waiting.join().expect("the command");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("waiting"), "{}", done.stderr);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(status["epoch"], 2, "{status}");
}

/// Two servers follow a switch of formats, and the store forgets it. Nobody switches again and no Postgres is restarted.
#[test]
fn a_switch_that_is_lost_with_a_restore_is_there_again_in_the_next_epoch() {
    let mut etcd = Etcd::start();
    let servers = Server::several(2);
    let options = |n: usize| numbered(&servers, n, &etcd);
    let (first_daemon, second_daemon) = (options(0).start(), options(1).start());
    let loads: Vec<Load> = servers.iter().map(|server| Load::start(server, 2)).collect();
    loads.iter().for_each(|load| load.wait_statements(20));
    let snapshot = etcd.save("before the switch");

    let at_ms = switch_to_regional(&first_daemon);
    eventually_true(PATIENCE, "both servers mint in the new format", || {
        servers.iter().all(|server| ceiling_ms(server) > at_ms) && host_clock().0.cast_signed() > at_ms
    });
    loads.iter().for_each(|load| load.wait_statements(50));
    etcd.restore(&snapshot, None);

    let reason = wait_sealed(&first_daemon);
    assert!(reason.contains("was restored"), "{reason}");
    for server in &servers {
        eventually_true(PATIENCE, "a sealed lease ends", || {
            open_workers(server).is_empty()
        });
    }
    let told = shown(&first_daemon).1;
    let plan = told["advance"]["formats"]
        .as_str()
        .expect("it is said to come back")
        .to_owned();
    assert_eq!(plan, format!("classic; regional/1 from {at_ms}"), "{told}");
    advance(&first_daemon);
    servers.iter().for_each(wait_for_other_half);
    loads.iter().for_each(|load| load.wait_statements(50));
    let config = second_daemon.config_path().display().to_string();
    let formats = idgenctl(&["format", "show", "--config", &config, "--output", "json"]);
    let formats: Value = serde_json::from_str(&formats.stdout).expect("JSON");
    assert_eq!(formats["plan"], plan.as_str());

    let reports: Vec<Report> = loads.into_iter().map(Load::finish).collect();
    for report in &reports {
        // Time is above the same bits in both formats. Region 1, version 0: from the switch on, over the epochs.
        let after = report
            .snowflakes()
            .filter(|id| (id >> 22) + EPOCH_2020_MS >= at_ms);
        assert!(after.map(|id| (id >> 19) & 0b111).all(|bits| bits == 0b010));
        report.assert_rising();
    }
    assert_snowflakes_unique(&reports, 2_000);
    drop((first_daemon, second_daemon));
}

/// In 2020 both formats begin.
const EPOCH_2020_MS: i64 = 1_577_836_800_000;

/// Returns the moment of the switch.
fn switch_to_regional(daemon: &Daemon) -> i64 {
    let config = daemon.config_path().display().to_string();
    let to = ["--to", "regional", "--region", "1", "--at", "+7s"];
    let more = ["--config", &config, "--output", "json"];
    let switched = idgenctl(&[&["format", "switch", "--yes"], &to[..], &more].concat());
    assert_eq!(switched.code, Some(0), "{}", switched.stderr);
    let formats: Value = serde_json::from_str(&switched.stdout).expect("JSON");
    formats["switch"]["at_ms"].as_i64().expect("a moment")
}

/// Nobody who remembers is awake when it happens, but the server's data directory does.
#[test]
fn a_restore_while_no_daemon_ran_is_found_by_the_servers_anchor() {
    let mut etcd = Etcd::start();
    let server = Server::start();
    let options = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .ttl_ms(SHORT_TTL_MS);
    let first = options.start();
    let snapshot = etcd.save("before");
    first.terminate();
    let second = options.start();
    second.terminate();
    etcd.restore(&snapshot, None);

    let mut daemon = options.launch();
    let why = daemon.wait_unready();
    let reason = wait_sealed(&daemon);
    assert!(reason.contains("was restored"), "{reason}");
    assert!(open_workers(&server).is_empty(), "{why}");
    eventually_true(PATIENCE, "the log names the command", || {
        daemon.log().contains("idgenctl epoch")
    });
    advance(&daemon);
    daemon.wait_ready();
    wait_for_other_half(&server);
}

/// The standby's own database is its store now. The old primary knows nothing of it and mints on.
#[test]
fn a_promoted_standby_mints_beside_its_old_primary_after_one_command() {
    let primary = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    let at_primary = DaemonOptions::new(&primary).name("old").ttl_ms(TTL_MS).start();
    let load = Load::start(&primary, 2);
    load.wait_statements(20);
    let mut standby = Server::backup_of(&primary, true);
    standby.run();
    load.wait_statements(20);
    sql::run(&mut standby.connect(), "SELECT pg_promote()");
    load.wait_statements(20);

    let options = DaemonOptions::new(&standby).name("new").ttl_ms(TTL_MS);
    let mut at_standby = options.workers_more("period_ms = 1000").launch();
    let why = at_standby.wait_unready();
    let reason = wait_sealed(&at_standby);
    assert!(reason.contains("promoted standby"), "{reason}");
    sql::refusal(&mut standby.connect(), "SELECT idgen_snowflake()", "IG001");
    assert!(!why.is_empty());
    let status = advance(&at_standby);
    assert_eq!(
        status["held"][0]["holders"][0], "old",
        "the other side is named: {status}"
    );
    at_standby.wait_ready();
    wait_for_other_half(&standby);
    let sides = list(&at_standby, "worker");
    // The old side has the lower half. Whether its leases have expired here by now depends on the machine.
    let names: Vec<String> = seen(&sides)
        .iter()
        .filter_map(|said| said.rsplit(' ').next().map(str::to_owned))
        .collect();
    assert_eq!(names, ["old", "old", "new", "new"], "{sides}");
    assert_eq!(of_another_epoch(&sides), [true, true, false, false], "{sides}");
    let new_load = Load::resume(&standby, 2);
    new_load.wait_statements(50);
    load.wait_statements(50);

    assert_eq!(shown(&at_primary).0, Some(0), "the old side goes on by itself");
    assert_snowflakes_unique(&[load.finish(), new_load.finish()], 4_000);
}

fn age_cell(etcd: &Etcd) {
    let value = etcd.ctl_ok(&["get", "--print-value-only", "/pg_idgen/default/cell"]);
    let mut cell: Value = serde_json::from_str(value.trim()).expect("JSON");
    cell["epoch_since_ms"] = 1.into();
    etcd.ctl_ok(&["put", "/pg_idgen/default/cell", &cell.to_string()]);
}

/// LEASES.md F19: it cannot tell whether the store was restored, so somebody who can must show himself.
#[test]
fn a_server_without_a_memory_waits_for_a_sign_of_somebody_who_has_one() {
    let etcd = Etcd::start();
    let servers = Server::several(3);
    let options = |n: usize| numbered(&servers, n, &etcd);
    let living = options(0).start();
    age_cell(&etcd);
    let mut second = options(1).launch();
    second.wait_ready();
    assert!(
        second.log().contains("has no memory of the cell"),
        "it waited for a renewal of the first"
    );
    living.kill();
    second.kill();
    let mut third = options(2).launch();
    let why = third.wait_unready();
    third.wait_ready();
    let log = third.log();
    assert!(log.contains("has no memory of the cell"), "{why}\n{log}");
    third.kill();

    let mut again = options(0).launch();
    again.wait_ready();
    let log = again.log();
    assert!(
        !log.contains("has no memory of the cell"),
        "one that remembers needs nobody: {log}"
    );
}

/// What its server writes down while it is looked at is newer than the look, and no sign of a restore.
#[test]
fn an_open_store_is_never_shown_as_sealed() {
    let etcd = Etcd::start();
    let server = Server::start();
    let options = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .ttl_ms(SHORT_TTL_MS)
        .workers_more("period_ms = 200");
    let daemon = options.start();
    for _ in 0..100 {
        let (code, status) = shown(&daemon);
        assert_eq!(code, Some(0), "{status}");
    }
}

/// LEASES.md F31.
#[test]
fn an_anchor_that_is_torn_keeps_the_server_from_leasing() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).ttl_ms(SHORT_TTL_MS);
    options.start().terminate();
    let file = server.data_dir().join("pg_idgen_anchor.worker");
    let whole = fs::read_to_string(&file).expect("the anchor");
    fs::write(&file, &whole[..whole.len() / 2]).expect("tear it");
    let mut client = server.connect();
    sql::refusal(&mut client, "SELECT * FROM idgen.anchors()", "IG107");

    let mut daemon = options.launch();
    eventually_true(PATIENCE, "readyz names the file", || {
        daemon
            .get("/readyz")
            .is_some_and(|(status, body)| status == 503 && body.contains("pg_idgen_anchor.worker"))
    });
    assert!(open_workers(&server).is_empty());
    fs::write(&file, whole).expect("mend it");
    daemon.wait_ready();
    drop(daemon);

    // What cannot be written down is not used either.
    let blocked = server.data_dir().join("pg_idgen_anchor.worker.new");
    fs::create_dir(&blocked).expect("block the file");
    let mut daemon = options.launch();
    eventually_true(PATIENCE, "readyz says that it cannot be written", || {
        daemon
            .get("/readyz")
            .is_some_and(|(status, body)| status == 503 && body.contains("could not write the anchor"))
    });
    fs::remove_dir(&blocked).expect("unblock it");
    daemon.wait_ready();
}

/// The margins of the new epoch rest on the time that it begins at.
#[test]
fn an_advance_by_a_clock_that_differs_from_the_servers_is_refused() {
    let etcd = Etcd::start();
    let server = Server::with(ServerOptions {
        fake_clock: true,
        ..Default::default()
    });
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let daemon = options.start();
    let identity = shown(&daemon).1["identity"]
        .as_str()
        .expect("identity")
        .to_owned();
    let args = ["--identity", &identity, "--reason", "a test"];
    for (offset_ms, why) in [(3_000, "the clock"), (-3_000, "the clock"), (0, "not sealed")] {
        server.clock().set_offset_ms(offset_ms);
        let refused = epoch("advance", &daemon, &args);
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{offset_ms}: {}", refused.stderr);
    }
}
