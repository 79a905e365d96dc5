//! Faults of clocks, on servers that run under libfaketime, with their leases in etcd.

use std::time::{Duration, Instant};

use crate::kit::daemon::idgenctl;
use crate::kit::process::pids_in;
use crate::kit::{FakeClock, PATIENCE, Pause, Release, eventually_true, fake_clock};
use crate::scene::{FENCE, RIDE, Scene, Stage};

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
    let outcome = scene.finish();
    outcome.assert_refused_at_most_for(0, &CLOCK_OR_LEASE);
    outcome.assert_unnoticed_by(1);
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
    let ceiling = scene.sides[0].ceiling_ms();
    // The deadline goes on being renewed, so it is the window that ends.
    renewed(&scene);
    renewed(&scene);
    assert!(
        scene.sides[0].ceiling_ms() <= ceiling,
        "the store has no ceiling an hour ahead"
    );
    scene.sides[0].server.clock().set_offset_ms(0);
    assert_only_the_first_noticed(scene);
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
    let outcome = scene.finish();
    outcome.assert_refused_at_most_for(0, &CLOCK_OR_LEASE);
    outcome.assert_unnoticed_by(1);
}
