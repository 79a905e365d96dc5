//! Faults of clocks, on servers that run under libfaketime, with their leases in etcd.

use std::time::{Duration, Instant};

use crate::kit::daemon::idgenctl;
use crate::kit::process::pids_in;
use crate::kit::{
    Chrony, Daemon, DaemonOptions, EtcdCluster, EtcdOptions, FakeClock, PATIENCE, Pause, Release, Server,
    ServerOptions, Store, TimeSource, eventually_true, fake_clock, sql,
};
use crate::scene::{FENCE, RIDE, Scene, Side, Stage};

const HOUR_MS: i64 = 3_600_000;
/// Beyond `idgen.max_clock_rewind_ms`.
const FAR_BACK_MS: i64 = -30_000;
const NEAR_BACK_MS: i64 = -5_000;
/// Of a clock that is not believed, or of what follows from that: lease, window, clock, deadline.
const CLOCK_OR_LEASE: [&str; 4] = ["IG001", "IG002", "IG003", "IG004"];

/// Servers whose wall clocks can be set.
fn scene(fault: &'static str, release: Release, ttl: Duration) -> Scene {
    let mut stage = Stage::new(fault, release, ttl);
    stage.server.fake_clock = true;
    let scene = stage.set().under_load();
    for side in &scene.sides {
        FakeClock::assert_boot_time_is_true(&mut side.client());
    }
    scene
}

/// Sessions and daemon of the first server get on again.
fn assert_only_the_first_noticed(mut scene: Scene) {
    scene.recover();
    scene.finish().assert_only_first_noticed(&CLOCK_OR_LEASE);
}

fn renewed(scene: &Scene) {
    let (before, asked) = (scene.sides[0].deadline_ms(), Instant::now());
    eventually_true(PATIENCE, "a renewal", || scene.sides[0].deadline_ms() > before);
    assert!(asked.elapsed() < scene.stage.ttl);
}

pub fn f46_the_wall_clock_is_set_back(release: Release) {
    let scene = scene("F46", release, RIDE);
    scene.sides[0].server.clock().set_offset_ms(NEAR_BACK_MS);
    renewed(&scene);
    let ceiling = scene.sides[0].ceiling_ms();
    renewed(&scene);
    assert_eq!(
        scene.sides[0].ceiling_ms(),
        ceiling,
        "no ceiling from a clock that was set"
    );
    scene.wait_minting();
    scene.sides[0].server.clock().set_offset_ms(FAR_BACK_MS);
    scene.sides[1].wait_statements(20);
    scene.sides[0].server.clock().set_offset_ms(0);
    assert_only_the_first_noticed(scene);
}

pub fn f47_the_wall_clock_is_set_ahead(release: Release) {
    let scene = scene("F47", release, FENCE);
    scene.sides[0].server.clock().set_offset_ms(HOUR_MS);
    // The deadline goes on being renewed, so it is the window that ends. The first renewal may have read the clock before.
    renewed(&scene);
    let ceiling = scene.sides[0].ceiling_ms();
    let wall: i64 = sql::value(
        &mut scene.sides[1].client(),
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    );
    assert!(
        ceiling < wall + HOUR_MS / 2,
        "a ceiling {} ms ahead",
        ceiling - wall
    );
    renewed(&scene);
    renewed(&scene);
    assert!(
        scene.sides[0].ceiling_ms() <= ceiling,
        "the store has no ceiling an hour ahead"
    );
    scene.sides[0].server.clock().set_offset_ms(0);
    assert_only_the_first_noticed(scene);
}

/// What the daemon of a server says of its clock.
fn clock_state(server: &Server) -> Option<String> {
    sql::value(&mut server.connect(), "SELECT clock_state FROM idgen.health")
}

fn wait_clock(server: &Server, state: &str) {
    eventually_true(PATIENCE, &format!("the clock is {state}"), || {
        clock_state(server).as_deref() == Some(state)
    });
}

fn wait_unready_because(daemon: &mut Daemon, why: &str) {
    eventually_true(PATIENCE, &format!("/readyz says: {why}"), || {
        let page = daemon.get("/readyz");
        page.is_some_and(|(status, body)| status == 503 && body.contains(why))
    });
}

/// libfaketime around the daemon alone, with what it is to show.
fn fake_daemon_clock(release: Release, fault: &'static str, settings: &[&str]) -> Scene {
    let mut scene = Stage::new(fault, release, RIDE).set();
    scene.sides[0].terminate_daemon();
    let preload = format!("LD_PRELOAD={}", fake_clock::library().display());
    let wrapper: Vec<&str> = ["env", &preload]
        .into_iter()
        .chain(settings.iter().copied())
        .collect();
    scene.sides[0].options = scene.sides[0].options.clone().wrapped_in(&wrapper);
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_ready();
    scene.under_load()
}

fn assert_renewed_as_ever(scene: Scene) {
    let (token, other) = (scene.sides[0].token(), scene.sides[1].ceiling_ms());
    scene.go_on_for(RIDE * 2);
    let ceiling = scene.sides[0].ceiling_ms();
    assert!(ceiling > other, "renewed");
    assert!(
        ceiling < other + HOUR_MS / 2,
        "by the server's clock, not by the daemon's"
    );
    assert_eq!(scene.sides[0].token(), token);
    scene.finish().assert_nobody_noticed();
}

pub fn f48_the_daemons_wall_clock_is_ahead(release: Release) {
    let ahead = ["FAKETIME=+3600s", "FAKETIME_DONT_FAKE_MONOTONIC=1"];
    assert_renewed_as_ever(fake_daemon_clock(release, "F48", &ahead));
}

pub fn f50_the_wall_clock_runs_at_another_rate(release: Release) {
    let mut scene = scene("F50", release, FENCE);
    for rate in [2.0, 0.5] {
        scene.sides[0].server.clock().set_rate(rate);
        let until = Instant::now() + FENCE;
        eventually_true(PATIENCE, "a TTL of it", || Instant::now() > until);
    }
    scene.sides[0].server.clock().set_offset_ms(0);
    // Each look was within what a slewed clock may do, so the jump back to the truth looks like a step.
    let addr = scene.sides[0].daemon().addr().expect("it listens").to_string();
    // Accepted is what the daemon saw last, which may be the clock from before the jump: so more than once.
    eventually_true(
        PATIENCE,
        "the clock is accepted, and the daemon holds a lease",
        || {
            let accepted = idgenctl(&["clock", "accept", "--http", &addr]);
            assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
            std::thread::sleep(Duration::from_secs(1));
            scene.sides[0].daemon().is_ready() && accepted.stdout.contains("believed already")
        },
    );
    assert_only_the_first_noticed(scene);
}

/// Timers of a daemon that counts too slowly are late by a tenth.
pub fn f51_the_daemons_monotonic_clock_is_slow(release: Release) {
    assert_renewed_as_ever(fake_daemon_clock(release, "F51", &["FAKETIME=+0 x0.9"]));
}

/// As a machine that its host has paused: nothing runs, and the wall clock has stood still with it.
pub fn f52_server_and_daemon_stand_still_and_their_clock_with_them(release: Release) {
    let mut scene = scene("F52", release, FENCE);
    let token = scene.sides[0].token();
    let machine = pids_in(&scene.sides[0].server.data_dir());
    let daemon = scene.sides[0].daemon().pid();
    let paused = Pause::of(machine.into_iter().chain([daemon]));
    let stood = Instant::now();
    let until = Instant::now() + FENCE * 2;
    eventually_true(PATIENCE, "two TTLs", || Instant::now() > until);
    let behind = i64::try_from(stood.elapsed().as_millis()).expect("ms");
    scene.sides[0].server.clock().set_offset_ms(-behind);
    paused.resume();
    scene.sides[1].wait_statements(20);
    scene.sides[0].server.clock().set_offset_ms(0);
    scene.recover();
    assert!(
        scene.sides[0].token() > token,
        "the lease from before the pause is over"
    );
    scene.finish().assert_only_first_noticed(&CLOCK_OR_LEASE);
}

/// Five hosts, each with a server and a daemon that see one clock; the clocks of two are 2 s ahead.
pub fn f49_two_hosts_are_ahead_of_their_peers(release: Release) {
    let chrony = Chrony::with(TimeSource::Local);
    let cluster = EtcdCluster::with(EtcdOptions::of(release), 1);
    let fake_clock = ServerOptions {
        fake_clock: true,
        ..Default::default()
    };
    let servers = Server::several_with(5, &fake_clock);
    let launch = |server: &Server| {
        let wrapper = server.clock().wrapper();
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let options = DaemonOptions::new(server)
            .store(Store::cluster(&cluster))
            .ttl_ms(u64::try_from(FENCE.as_millis()).expect("ms"));
        options.clock(&chrony.lines()).wrapped_in(&wrapper).launch()
    };
    let (right, ahead) = servers.split_at(3);
    let mut daemons: Vec<Daemon> = right.iter().map(launch).collect();
    daemons.iter_mut().for_each(Daemon::wait_ready);

    ahead
        .iter()
        .for_each(|server| server.clock().set_offset_ms(2_000));
    let mut refused: Vec<Daemon> = ahead.iter().map(launch).collect();
    for (server, daemon) in ahead.iter().zip(&mut refused) {
        // Two that were heard are enough to tell; the third may speak later.
        wait_unready_because(daemon, "ms ahead of most of");
        wait_clock(server, "apart from peers");
        let leases: i64 = sql::value(&mut server.connect(), "SELECT count(*) FROM idgen.slots");
        assert_eq!(leases, 0, "nothing was acquired");
    }
    for (server, daemon) in right.iter().zip(&mut daemons) {
        daemon.wait_ready();
        wait_clock(server, "good");
    }

    // Set right, and started anew as their hosts would be.
    refused.into_iter().for_each(Daemon::kill);
    ahead.iter().for_each(|server| server.clock().set_offset_ms(0));
    daemons.extend(ahead.iter().map(launch));
    daemons.iter_mut().for_each(Daemon::wait_ready);

    // Whose clock goes astray in steps too small for the step check mints on, and raises no ceiling.
    let (server, until) = (&servers[0], Instant::now() + Duration::from_secs(90));
    let mut offset_ms = 0;
    while clock_state(server).as_deref() != Some("apart from peers") {
        assert!(
            Instant::now() < until,
            "{offset_ms} ms ahead: {:?}",
            clock_state(server)
        );
        // What the store needs for an answer is allowed for, and a busy machine needs long.
        offset_ms = (offset_ms + 80).min(5_000);
        server.clock().set_offset_ms(offset_ms);
        std::thread::sleep(Duration::from_secs(1));
    }
    let (deadline, ceiling) = ends_of(server);
    eventually_true(PATIENCE, "a renewal", || ends_of(server).0 > deadline);
    assert_eq!(ends_of(server).1, ceiling, "no ceiling rises");
}

/// Deadline and ceiling.
fn ends_of(server: &Server) -> (i64, i64) {
    let ends = "SELECT max(deadline_ms), max(ceiling_ms) FROM idgen.slot_states()";
    let row = server.connect().query_one(ends, &[]).expect("slots");
    (row.get(0), row.get(1))
}

/// chronyd loses its sources: who holds a lease goes on, and nobody takes another one.
pub fn f54_nobody_keeps_the_clock_right_any_more(release: Release) {
    let mut chrony = Chrony::with(TimeSource::Local);
    let mut scene = Stage::new("F54", release, RIDE).set();
    scene.sides[0].terminate_daemon();
    scene.sides[0].options = scene.sides[0].options.clone().clock(&chrony.lines());
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_ready();
    wait_clock(&scene.sides[0].server, "good");
    let mut scene = scene.under_load();
    chrony.set_source(TimeSource::Nobody);
    wait_clock(&scene.sides[0].server, "unsynchronised");
    let (token, ceiling) = (scene.sides[0].token(), scene.sides[0].ceiling_ms());
    scene.go_on_for(RIDE * 2);
    assert!(scene.sides[0].ceiling_ms() > ceiling, "ceilings rise");
    assert_eq!(scene.sides[0].token(), token);
    scene.sides[0].daemon().wait_ready();
    scene.sides.iter_mut().for_each(Side::stop_load);

    scene.sides[0].terminate_daemon();
    scene.sides[0].launch_daemon();
    wait_unready_because(scene.sides[0].daemon(), "not synchronised, says chrony");
    // It has had the time.
    scene.sides[1].daemon().wait_renewals(2);
    assert!(scene.sides[0].open().0.is_empty(), "nothing was acquired");
    chrony.set_source(TimeSource::Local);
    scene.sides[0].daemon().wait_ready();
    scene.finish().assert_nobody_noticed();
}
