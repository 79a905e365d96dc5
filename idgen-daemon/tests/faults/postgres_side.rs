//! Faults of the servers that mint, with their leases in etcd.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::daemon_side::fill_pool;
use crate::etcd_side::holders;
use crate::kit::process::{Signal, pids_in, signal_pid};
use crate::kit::{
    DaemonOptions, PATIENCE, Pause, Release, Server, ServerOptions, Store, eventually, eventually_true, sql,
};
use crate::scene::{FENCE, LEASE_ENDED, RIDE, Scene, Stage, load_options};

/// LEASES.md F36: the gap in minting after a crash-restart is 1.5 s, from the moment that sessions are let in. The rest is
/// for a machine whose processors are wanted by a dozen other servers.
const GAP_MAX: Duration = Duration::from_millis(1_500 + 2_000);
/// As long as a postmaster waits for a backend that does not answer, and a restart.
const STUCK_BACKEND: Duration = Duration::from_secs(12);
/// Daemons of a server of their own end with this when the server is not as it must be.
const REFUSED: i32 = 3;

/// kill -9 of one backend: all sessions end, and shared memory with them.
fn kill_backend(scene: &Scene) {
    let mut victim = scene.sides[0].client();
    let pid: i32 = sql::value(&mut victim, "SELECT pg_backend_pid()");
    assert!(signal_pid(u32::try_from(pid).expect("a pid"), Signal::KILL));
}

fn wait_new_memory(scene: &Scene, before: &str, within: Duration) {
    eventually_true(within, "the server has new shared memory", || {
        let mut client = scene.sides[0].client();
        let boot_id = client.query_one("SELECT boot_id::text FROM idgen.health", &[]);
        boot_id.is_ok_and(|row| row.get::<_, String>(0) != before)
    });
}

/// The server mints again soon after it has let sessions in, under a new token.
fn assert_new_lease_soon(scene: &mut Scene, token: i64) {
    let accepting = Instant::now();
    scene.sides[0].wait_statements(1);
    let gap = accepting.elapsed();
    assert!(gap <= GAP_MAX, "minting is back {gap:?} after the server");
    assert!(scene.sides[0].token() > token, "a new token");
    scene.recover();
}

pub fn f36_a_backend_is_killed(release: Release) {
    let mut scene = Stage::new("F36", release, RIDE).set().under_load();
    for _ in 0..3 {
        let (boot_id, token) = (scene.sides[0].boot_id(), scene.sides[0].token());
        kill_backend(&scene);
        wait_new_memory(&scene, &boot_id, PATIENCE);
        assert_new_lease_soon(&mut scene, token);
    }
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

pub fn f37_a_backend_is_killed_while_another_is_paused(release: Release) {
    let mut scene = Stage::new("F37", release, RIDE).set().under_load();
    let (boot_id, token) = (scene.sides[0].boot_id(), scene.sides[0].token());
    let paused = Pause::of(scene.sides[0].minting_pids().into_iter().take(1));
    let fault = Instant::now();
    kill_backend(&scene);
    wait_new_memory(&scene, &boot_id, STUCK_BACKEND);
    let took = fault.elapsed();
    scene.note(&format!("sessions again after {:.1} s", took.as_secs_f32()));
    drop(paused);
    assert_new_lease_soon(&mut scene, token);
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

/// Wherever they stand in a mint: what they do when they wake up lies below their old ceiling, or is refused.
pub fn f38_minting_backends_sleep_through_their_lease(release: Release) {
    let mut scene = Stage::new("F38", release, FENCE).set().under_load();
    // Nothing else is free, so the very same identities are leased again.
    let held = scene.sides[0].open().0;
    fill_pool(&scene, held[0]);
    for _ in 0..2 {
        let daemon = Pause::of([scene.sides[0].daemon().pid()]);
        let sleepers = Pause::of(scene.sides[0].minting_pids());
        scene.sides[0].wait_stopped();
        scene.sides[0].stop_load_after(|| sleepers.resume());
        daemon.resume();
        scene.sides[0].start_load(&load_options());
        scene.recover();
        assert_eq!(
            scene.sides[0].open().0,
            held,
            "above what the sleepers could take"
        );
        scene.go_on_for(Duration::from_secs(1));
    }
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

pub fn f39_the_postmaster_is_killed(release: Release) {
    let mut scene = Stage::new("F39", release, RIDE).set().under_load();
    let token = scene.sides[0].token();
    scene.sides[0].server.kill_postmaster();
    scene.sides[0].server.wait_orphans_gone();
    scene.sides[0].server.run();
    assert_new_lease_soon(&mut scene, token);
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

pub fn f40_the_server_is_stopped_at_once_and_in_order(release: Release) {
    let mut scene = Stage::new("F40", release, RIDE).set().under_load();
    for stop in [Server::stop_at_once, Server::stop] {
        let token = scene.sides[0].token();
        stop(&mut scene.sides[0].server);
        scene.sides[0].server.run();
        assert_new_lease_soon(&mut scene, token);
    }
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

/// A daemon of its own for a server that came later, and 5,000 ids of it.
fn mint_on_another(scene: &mut Scene, server: &Server) {
    let ttl_ms = scene.sides[0].options.ttl_ms;
    let options = DaemonOptions::new(server)
        .name("another")
        .store(Store::cluster(&scene.cluster));
    let daemon = options.ttl_ms(ttl_ms).start();
    let workers = "SELECT identity FROM idgen.slots WHERE state = 'open' ORDER BY identity";
    let own: Vec<i32> = sql::column(&mut server.connect(), workers);
    for side in &scene.sides {
        let theirs = side.open().0;
        assert!(
            own.iter().all(|id| !theirs.contains(id)),
            "{own:?} and {theirs:?}"
        );
    }
    let mint = "SELECT idgen_snowflake() FROM generate_series(1, 5000)";
    scene
        .others
        .extend(sql::column::<i64>(&mut server.connect(), mint));
    scene.wait_minting();
    daemon.terminate();
}

pub fn f41_a_copy_of_the_files_runs_beside_the_original(release: Release) {
    let mut scene = Stage::new("F41", release, RIDE).set().under_load();
    let mut copy = Server::backup_of(&scene.sides[0].server, false);
    copy.run();
    sql::refusal(&mut copy.connect(), "SELECT idgen_snowflake()", "IG001");
    mint_on_another(&mut scene, &copy);
    scene.finish().assert_nobody_noticed();
}

pub fn f42_a_standby_is_promoted_while_the_primary_lives(release: Release) {
    let mut scene = Stage::new("F42", release, RIDE).set().under_load();
    let mut standby = Server::backup_of(&scene.sides[0].server, true);
    standby.run();
    sql::refusal(&mut standby.connect(), "SELECT idgen_snowflake()", "IG012");
    let promoted: bool = sql::value(&mut standby.connect(), "SELECT pg_promote()");
    assert!(promoted);
    mint_on_another(&mut scene, &standby);
    scene.finish().assert_nobody_noticed();
}

pub fn f43_calls_are_cancelled_and_time_out(release: Release) {
    let mut scene = Stage::new("F43", release, RIDE).set().under_load();
    let boot_id = scene.sides[0].boot_id();
    scene.sides[0].stop_load();
    let mut load = load_options();
    load.sessions = 4;
    load.settings += "; SET statement_timeout = '2ms'";
    scene.sides[0].start_load(&load);
    let cancelling = AtomicBool::new(true);
    thread::scope(|threads| {
        let side = &scene.sides[0];
        threads.spawn(|| {
            let mut client = side.client();
            while cancelling.load(Ordering::Relaxed) {
                let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                               WHERE query LIKE '%idgen_segment(''load'')%' AND pid <> pg_backend_pid()";
                let _count: i64 = sql::value(&mut client, cancel);
            }
        });
        let until = Instant::now() + Duration::from_secs(4);
        eventually(PATIENCE, "four seconds of it", || {
            (Instant::now() > until).then_some(())
        });
        cancelling.store(false, Ordering::Relaxed);
    });
    scene.sides[0].stop_load();
    scene.sides[0].start_load(&load_options());
    scene.recover();
    assert_eq!(scene.sides[0].boot_id(), boot_id, "no crash, no lock left behind");
    let outcome = scene.finish();
    let cancelled = outcome.refusals_of(0);
    assert!(cancelled > 0, "nothing was cancelled");
    outcome.assert_refused_at_most_for(0, &["57014"]);
    outcome.assert_unnoticed_by(1);
}

/// The launcher and refill workers of the first server; the launcher is connected to no database, so no view has it.
fn background_workers(scene: &Scene) -> Vec<u32> {
    let ours = |pid: &u32| {
        let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.contains("pg_idgen launcher") || title.contains("pg_idgen refill")
    };
    pids_in(&scene.sides[0].server.data_dir())
        .into_iter()
        .filter(ours)
        .collect()
}

fn wait_other_workers(scene: &Scene, before: &[u32]) {
    eventually_true(PATIENCE, "other workers run", || {
        let now = background_workers(scene);
        !now.is_empty() && now.iter().all(|pid| !before.contains(pid))
    });
}

pub fn f44_background_workers_are_ended(release: Release) {
    let mut scene = Stage::new("F44", release, RIDE).set().under_load();
    let (boot_id, token) = (scene.sides[0].boot_id(), scene.sides[0].token());
    let before = background_workers(&scene);
    assert!(!before.is_empty(), "the launcher runs");
    for pid in &before {
        signal_pid(*pid, Signal::TERM);
    }
    wait_other_workers(&scene, &before);
    scene.go_on_for(Duration::from_secs(1));
    assert_eq!(
        scene.sides[0].boot_id(),
        boot_id,
        "asked to end, they take nothing along"
    );
    let before = background_workers(&scene);
    signal_pid(before[0], Signal::KILL);
    wait_new_memory(&scene, &boot_id, PATIENCE);
    assert_new_lease_soon(&mut scene, token);
    wait_other_workers(&scene, &before);
    scene.finish().assert_only_first_noticed(&LEASE_ENDED);
}

pub fn f45_a_server_without_the_library(release: Release) {
    let scene = Stage::new("F45", release, RIDE).set().under_load();
    let bare = Server::with(ServerOptions {
        preload: false,
        ..Default::default()
    });
    let others = holders(&scene, 0);
    let options = DaemonOptions::new(&bare).store(Store::cluster(&scene.cluster));
    let status = options.launch().wait_exit();
    assert_eq!(status.code(), Some(REFUSED), "the daemon gives up: {status}");
    assert_eq!(holders(&scene, 0), others, "and has taken no identity");
    let error = sql::refusal(&mut bare.connect(), "SELECT idgen_snowflake()", "IG011");
    assert!(!error.message().is_empty());
    scene.go_on_for(Duration::from_secs(1));
    scene.finish().assert_nobody_noticed();
}
