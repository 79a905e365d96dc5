//! Faults of the daemon, of its leases in etcd and of its way to the server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, Txn, TxnOp};
use serde_json::Value;

use crate::etcd_side::{WORKERS, committed_by, committed_of, holders};
use crate::kit::process::{Signal, signal_pid};
use crate::kit::{Daemon, Flow, Mode, PATIENCE, Pause, Release, eventually_true, sql};
use crate::scene::{FENCE, LEASE_ENDED, RIDE, Scene, Stage, deadline_ahead_ms};

/// Identities of workers.
const POOL: u32 = 1_024;
/// Of an etcd transaction, with two per identity.
const OPERATIONS_MAX: usize = 128;

/// etcd leases that exist.
pub fn lease_ids(scene: &Scene) -> Vec<String> {
    let said = scene.cluster.members[0].ctl_ok(&["lease", "list"]);
    // A line that counts them, and one per lease.
    said.lines().skip(1).map(|line| line.trim().to_owned()).collect()
}

/// Leases that no key is on any more: what a renewal has left behind.
fn left_behind(scene: &Scene) -> usize {
    let etcd = &scene.cluster.members[0];
    let bare = |id: &String| {
        let said = etcd.ctl(&["lease", "timetolive", id, "--keys"]).stdout;
        said.contains("attached keys([])")
    };
    lease_ids(scene).iter().filter(|id| bare(id)).count()
}

/// The fewest within a second: those of renewals that are under way do not count.
fn left_for_a_second(scene: &Scene) -> usize {
    let until = Instant::now() + Duration::from_secs(1);
    let mut least = left_behind(scene);
    while Instant::now() < until {
        least = least.min(left_behind(scene));
    }
    least
}

/// The answer to a renewal is held up, so that the next request, which revokes the old lease, can be lost.
pub fn f26_the_revocation_of_an_old_lease_is_lost(release: Release) {
    let scene = Stage::new("F26", release, RIDE).set().under_load();
    assert_eq!(left_for_a_second(&scene), 0, "old leases are revoked");
    scene.sides[0].network(Mode::Delay(Flow::Replies, Duration::from_millis(800)));
    let before = committed_by(&scene, 0);
    eventually_true(PATIENCE, "a renewal is committed", || {
        committed_by(&scene, 0) > before
    });
    scene.sides[0].network(Mode::Lose(Flow::Requests));
    thread::sleep(Duration::from_millis(1_100));
    scene.sides[0].network(Mode::Pass);
    assert!(left_for_a_second(&scene) > 0, "the old lease was not revoked");
    eventually_true(PATIENCE, "the old lease expires by itself", || {
        left_behind(&scene) == 0
    });
    scene.go_on_for(Duration::from_secs(1));
    scene.finish().assert_nobody_noticed();
}

/// Writes keys of all identities that nobody holds, as if the daemon held them that holds `held`. The holder keys of them.
pub fn fill_pool(scene: &Scene, held: i32) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let mut client = Client::connect(scene.cluster.endpoints(), None)
            .await
            .expect("connect");
        let mut values = Vec::new();
        for key in ["hw", "holder"] {
            let answer = client
                .get(format!("{WORKERS}{held}/{key}"), None)
                .await
                .expect("get");
            values.push((key, answer.kvs()[0].value().to_vec()));
        }
        let all = GetOptions::new().with_prefix().with_keys_only();
        let answer = client.get(WORKERS, Some(all)).await.expect("get");
        let taken: BTreeSet<String> = answer
            .kvs()
            .iter()
            .filter_map(|pair| pair.key_str().ok())
            .map(str::to_owned)
            .collect();
        let mut filled = Vec::new();
        let mut puts = Vec::new();
        for identity in 0..POOL {
            let holder = format!("{WORKERS}{identity}/holder");
            if !taken.contains(&holder) {
                puts.extend(values.iter().map(|(key, value)| {
                    TxnOp::put(format!("{WORKERS}{identity}/{key}"), value.clone(), None)
                }));
                filled.push(holder);
            }
        }
        for chunk in puts.chunks(OPERATIONS_MAX) {
            client.txn(Txn::new().and_then(chunk)).await.expect("put");
        }
        filled
    })
}

pub fn f27_the_pool_is_exhausted(release: Release) {
    let mut scene = Stage::new("F27", release, FENCE).set().under_load();
    scene.sides[0].terminate_daemon();
    let filled = fill_pool(&scene, scene.sides[1].open().0[0]);
    scene.sides[0].launch_daemon();
    let daemon = scene.sides[0].daemon();
    eventually_true(PATIENCE, "the daemon says that nothing is free", || {
        let log = daemon.log();
        log.lines()
            .any(|line| line.contains("WARN") && line.contains("lease store"))
    });
    assert!(!daemon.is_ready());
    scene.sides[1].wait_statements(20);
    assert_eq!(
        scene.sides[0].open().0,
        Vec::<i32>::new(),
        "nothing is taken over"
    );
    for key in &filled[..64] {
        scene.cluster.members[0].ctl_ok(&["del", key]);
    }
    scene.recover();
    scene.finish().assert_only_first_refused();
}

pub fn f28_the_daemon_is_killed(release: Release) {
    let mut scene = Stage::new("F28", release, FENCE).set().under_load();
    let token = scene.sides[0].token();
    let fault = Instant::now();
    scene.sides[0].kill_daemon();
    scene.sides[0].wait_statements(10);
    scene.sides[0].wait_stopped();
    let healed = Instant::now();
    scene.sides[0].launch_daemon();
    scene.recover();
    assert!(
        scene.sides[0].token() > token,
        "the token that was found is not revived"
    );
    scene.finish().assert_only_first_fenced(fault, healed);
}

pub fn f29_the_daemon_is_paused(release: Release) {
    let mut scene = Stage::new("F29", release, FENCE).set().under_load();
    let token = scene.sides[0].token();
    let short = Pause::of([scene.sides[0].daemon().pid()]);
    scene.go_on_for(Duration::from_millis(800));
    short.resume();
    // Renewed since, so that the deadline of the long pause counts from a whole lease.
    let ceiling = scene.sides[0].ceiling_ms();
    eventually_true(PATIENCE, "a renewal after the short pause", || {
        scene.sides[0].ceiling_ms() > ceiling
    });
    assert_eq!(scene.sides[0].token(), token, "the short pause cost nothing");
    let fault = Instant::now();
    let long = Pause::of([scene.sides[0].daemon().pid()]);
    scene.sides[0].wait_stopped();
    let until = Instant::now() + FENCE;
    eventually_true(PATIENCE, "another TTL", || Instant::now() > until);
    let healed = Instant::now();
    long.resume();
    scene.recover();
    assert!(scene.sides[0].token() > token, "what the daemon knew is dead");
    scene.finish().assert_only_first_fenced(fault, healed);
}

/// The store has granted, the daemon has the answer in its socket, and stands still until the grant is dead.
pub fn f30_the_daemon_is_paused_between_commit_and_install(release: Release) {
    let mut scene = Stage::new("F30", release, FENCE).set().under_load();
    scene.sides[0].terminate_daemon();
    let others = holders(&scene, 0);
    scene.sides[0].network(Mode::Delay(Flow::Replies, Duration::from_millis(600)));
    scene.sides[0].launch_daemon();
    eventually_true(PATIENCE, "the grant is committed", || holders(&scene, 0) > others);
    let paused = Pause::of([scene.sides[0].daemon().pid()]);
    assert!(
        !scene.sides[0].daemon().log().contains("lease installed"),
        "paused in time"
    );
    let hole = scene.cluster.members[0].status().expect("status")["header"]["revision"]
        .as_i64()
        .expect("a revision");
    eventually_true(PATIENCE, "the grant has expired", || holders(&scene, 0) == others);
    scene.sides[0].network(Mode::Pass);
    paused.resume();
    scene.recover();
    let installed = tokens_installed(scene.sides[0].daemon());
    assert!(
        !installed.is_empty() && installed.iter().all(|token| *token > hole),
        "the grant of the hole is never installed: {installed:?} after {hole}"
    );
    scene.finish().assert_only_first_refused();
}

/// Of epoch 0, by the daemon's log.
fn tokens_installed(daemon: &Daemon) -> Vec<i64> {
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("lease installed"));
    let token = |line: &str| {
        let said: Value = serde_json::from_str(line).expect("a line of JSON");
        let token = said["token"].as_str().and_then(|token| token.strip_prefix("0/"));
        token.expect("a token of epoch 0").parse().expect("a revision")
    };
    lines.map(token).collect()
}

pub fn f32_two_daemons_for_one_server(release: Release) {
    let mut scene = Stage::new("F32", release, RIDE).set().under_load();
    let token = scene.sides[0].token();
    let first = scene.sides[0].daemon.take().expect("a daemon");
    scene.sides[0].options = scene.sides[0].options.clone().name("second");
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_unready();
    scene.go_on_for(RIDE / 2);
    assert_eq!(scene.sides[0].token(), token, "the first one's lease goes on");
    scene.sides[0].stop_load();
    first.kill();
    scene.sides[0].daemon().wait_ready();
    assert!(
        scene.sides[0].token() > token,
        "the second takes a lease of its own"
    );
    let load = crate::scene::load_options();
    scene.sides[0].start_load(&load);
    scene.recover();
    scene.finish().assert_nobody_noticed();
}

/// As when max_connections is used up: the session that was is gone, and no new one is let in.
pub fn f33_the_daemon_cannot_reach_its_server(release: Release) {
    let mut scene = Stage::new("F33", release, FENCE).set().under_load();
    let mut client = scene.sides[0].client();
    let fault = Instant::now();
    sql::run(&mut client, "ALTER ROLE idgend NOLOGIN");
    sql::run(
        &mut client,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'idgend'",
    );
    // A renewal may have been under way.
    scene.sides[0].daemon().wait_log(&["WARN", "postgres: "]);
    let held = scene.sides[0].open().0;
    assert!(!held.is_empty(), "the lease is good for a while");
    let written = committed_of(&scene, &held);
    scene.sides[0].wait_stopped();
    assert_eq!(
        committed_of(&scene, &held),
        written,
        "what cannot be fenced is not renewed"
    );
    let healed = Instant::now();
    sql::run(&mut client, "ALTER ROLE idgend LOGIN");
    scene.recover();
    scene.finish().assert_only_first_fenced(fault, healed);
}

/// The deadline counts on the server's clock alone, so the daemon's may say what it likes.
pub fn f34_the_daemon_is_in_another_time_namespace(release: Release) {
    let mut scene = Stage::new("F34", release, FENCE).set();
    scene.sides[0].terminate_daemon();
    let unshare = [
        "unshare",
        "--time",
        "--boottime",
        "864000",
        "--monotonic",
        "864000",
        "--fork",
        "--kill-child",
    ];
    scene.sides[0].options = scene.sides[0].options.clone().wrapped_in(&unshare);
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_ready();
    let mut scene = scene.under_load();
    let (token, ceiling) = (scene.sides[0].token(), scene.sides[0].ceiling_ms());
    scene.go_on_for(FENCE * 2);
    assert_eq!(scene.sides[0].token(), token);
    assert!(scene.sides[0].ceiling_ms() > ceiling, "renewed");
    let fault = Instant::now();
    scene.sides[0].network(Mode::Stall(Flow::Both));
    scene.sides[0].wait_stopped();
    let healed = Instant::now();
    scene.sides[0].network(Mode::Pass);
    scene.recover();
    scene.finish().assert_only_first_fenced(fault, healed);
}

/// Runs for a moment now and then, as beside a load that leaves it no processor.
pub fn f35_the_daemon_is_starved(release: Release) {
    let mut scene = Stage::new("F35", release, FENCE).set().under_load();
    let (mut client, mut most_ms) = (scene.sides[0].client(), 0);
    let (pid, starved) = (scene.sides[0].daemon().pid(), AtomicBool::new(true));
    thread::scope(|threads| {
        threads.spawn(|| {
            while starved.load(Ordering::Relaxed) {
                signal_pid(pid, Signal::STOP);
                thread::sleep(Duration::from_millis(900));
                signal_pid(pid, Signal::CONT);
                thread::sleep(Duration::from_millis(30));
            }
        });
        let until = Instant::now() + FENCE * 3;
        eventually_true(PATIENCE, "three TTLs of it", || {
            most_ms = most_ms.max(deadline_ahead_ms(&mut client));
            Instant::now() > until
        });
        starved.store(false, Ordering::Relaxed);
    });
    let usable_ms = i64::try_from(scene.usable().as_millis()).expect("ms");
    assert!(
        (1..=usable_ms).contains(&most_ms),
        "a lease is good for {usable_ms} ms, and was believed for {most_ms}"
    );
    scene.recover();
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}
