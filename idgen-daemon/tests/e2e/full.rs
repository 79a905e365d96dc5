//! An etcd without room: its quota is used up, or its disk.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::kit::{
    Daemon, DaemonOptions, Etcd, EtcdOptions, Load, PATIENCE, Server, SmallDisk, Store, eventually_true, sql,
};

const MIB: usize = 1 << 20;
/// As small as etcd takes in earnest.
const QUOTA: [&str; 2] = ["--quota-backend-bytes", "8388608"];
const FILLER: &str = "/filler/";
/// Minting ends 7.2 s after the last renewal.
const SHORT_TTL_MS: u64 = 9_000;

fn daemon(server: &Server, etcd: &Etcd) -> DaemonOptions {
    DaemonOptions::new(server)
        .store(Store::etcd(etcd))
        .ttl_ms(SHORT_TTL_MS)
        .workers_more("period_ms = 500")
}

/// Of workers and shards: those of names have other keys.
fn holders(etcd: &Etcd) -> usize {
    let keys = etcd.ctl_ok(&["get", "--prefix", "--keys-only", "/pg_idgen"]);
    keys.lines().filter(|key| key.ends_with("/holder")).count()
}

fn open_workers(server: &Server) -> i64 {
    let open = "SELECT count(*) FROM idgen.slots WHERE state = 'open'";
    sql::value(&mut server.connect(), open)
}

/// Puts a value of 1 MiB; false when etcd refuses it or is gone.
fn put_mebibyte(etcd: &Etcd, n: usize) -> bool {
    let mut put = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &etcd.endpoint(), "--command-timeout", "2s", "put"])
        .arg(format!("{FILLER}{n}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run etcdctl");
    let mut input = put.stdin.take().expect("its input");
    // It may end without reading all of it.
    let _ = input.write_all(&vec![b'x'; MIB]);
    drop(input);
    put.wait().expect("wait for etcdctl").success()
}

fn use_up_the_quota(etcd: &Etcd) {
    assert!(
        (0..64).any(|n| !put_mebibyte(etcd, n)),
        "64 MiB, and no quota was met"
    );
    let alarms = etcd.ctl_ok(&["alarm", "list"]);
    assert!(alarms.contains("NOSPACE"), "{alarms}");
}

/// What the hint in the log says.
fn make_room(etcd: &Etcd) {
    etcd.ctl_ok(&["del", "--prefix", FILLER]);
    let revision = etcd.status().expect("status")["header"]["revision"].to_string();
    etcd.ctl_ok(&["compact", &revision, "--physical"]);
    etcd.ctl_ok(&["defrag"]);
    etcd.ctl_ok(&["alarm", "disarm"]);
}

/// LEASES.md F11. etcd takes deletes then, so identities need not wait for their TTL.
#[test]
fn identities_are_given_back_to_an_etcd_that_is_full_and_their_ceilings_stay() {
    let etcd = Etcd::with(EtcdOptions::default().args(&QUOTA));
    let servers = Server::several(2);
    let [first, second] = [&servers[0], &servers[1]];
    let leaving = daemon(first, &etcd).ttl_ms(600_000).workers(1).start();
    let mut staying = daemon(second, &etcd).workers(1).start();
    let load = Load::start(second, 1);
    let worker: i32 = sql::value(
        &mut first.connect(),
        "SELECT identity FROM idgen.slots WHERE state = 'open'",
    );
    let high_water = || {
        etcd.ctl_ok(&[
            "get",
            "--print-value-only",
            &format!("/pg_idgen/default/w/{worker}/hw"),
        ])
    };
    use_up_the_quota(&etcd);
    staying.wait_log(&["WARN", "database space exceeded", "NOSPACE", "alarm disarm"]);
    let before = high_water();
    assert_eq!(holders(&etcd), 2);
    let log = leave(leaving);
    assert!(log.contains("given back without their exact ends"), "{log}");
    assert_eq!(holders(&etcd), 1, "given back although nothing can be written");
    assert_eq!(
        high_water(),
        before,
        "the next holder begins above the whole window"
    );
    assert!(before.contains("\"exact\":false"), "{before}");

    load.wait_statements(20);
    staying.wait_unready_with("NOSPACE");
    eventually_true(PATIENCE, "minting ends at the deadline", || {
        open_workers(second) == 0
    });
    make_room(&etcd);
    staying.wait_ready();
    load.wait_statements(20);
    load.finish().assert_unique(400);
    staying.terminate();
}

/// SIGTERM; returns the log.
fn leave(mut daemon: Daemon) -> String {
    daemon.signal(crate::kit::process::Signal::TERM);
    let status = daemon.wait_exit();
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
    daemon.log()
}

/// LEASES.md F12.
#[test]
fn an_etcd_whose_disk_is_full_is_waited_for() {
    let server = Server::start();
    let mut etcd = Etcd::reserve();
    // Two files of its log of 64 MB each, and some room for the data.
    let disk = SmallDisk::at(&etcd.data_dir(), "200m");
    etcd.run();
    let mut daemon = daemon(&server, &etcd).start();
    let load = Load::start(&server, 1);
    load.wait_statements(20);
    let filler = disk.fill();
    let mut written = 0;
    eventually_true(PATIENCE * 2, "etcd dies of its full disk", || {
        put_mebibyte(&etcd, written);
        written += 1;
        !etcd.is_healthy()
    });
    daemon.wait_log(&["WARN", &etcd.endpoint()]);
    eventually_true(PATIENCE, "minting ends at the deadline", || {
        open_workers(&server) == 0
    });
    etcd.kill();
    fs::remove_file(filler).expect("make room");
    etcd.run();
    daemon.wait_ready();
    load.wait_statements(20);
    load.finish().assert_unique(400);
    daemon.terminate();
    etcd.kill();
    drop(disk);
}
