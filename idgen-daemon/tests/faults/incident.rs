//! What others have met with etcd, under the numbers of docs/incidents.md.

use std::thread;
use std::time::{Duration, Instant};

use crate::daemon_side::{fill_pool, lease_ids};
use crate::etcd_side::holders;
use crate::kit::{
    EtcdOptions, Flow, Mode, PATIENCE, Pause, Release, SyncFault, SyncFaultGuard, eventually_true,
};
use crate::scene::{FENCE, RIDE, Scene, Stage};

/// Free identities for the daemons of both servers.
fn empty_pool(scene: &Scene, filled: &[String]) {
    for key in &filled[..16] {
        scene.cluster.members[0].ctl_ok(&["del", key]);
    }
}

/// etcd#15247, #12528: a leader that stalls makes the next one revoke leases that their holders believe in. Here the holder
/// sleeps, its identities go to another server while it mints, and that one begins above all that it can mint.
fn a_lease_revoked_early(release: Release) {
    let mut scene = Stage::new("i23", release, RIDE).set().under_load();
    let held = scene.sides[0].open().0;
    scene.sides[1].terminate_daemon();
    // Nothing is free but what the first server holds.
    let filled = fill_pool(&scene, held[0]);
    let fault = Instant::now();
    let sleeping = Pause::of([scene.sides[0].daemon().pid()]);
    for id in &lease_ids(&scene) {
        // Those that nobody renews may have expired since.
        scene.cluster.members[0].ctl(&["lease", "revoke", id]);
    }
    scene.sides[1].launch_daemon();
    scene.sides[0].wait_statements(20);
    scene.sides[1].daemon().wait_ready();
    assert_eq!(scene.sides[1].open().0, held, "the very same identities");
    scene.sides[1].wait_statements(20);
    let handed_over = fault.elapsed();
    empty_pool(&scene, &filled);
    sleeping.resume();
    scene.recover();
    scene.note(&format!("handed over in {:.1} s", handed_over.as_secs_f32()));
    let outcome = scene.finish();
    outcome.assert_refused_at_most_for_the_lease(0);
    outcome.assert_refused_at_most_for_the_lease(1);
}

/// etcd#9395, #13294, #20273: every new leader gives every lease its whole TTL again, so the identities of a dead server stay
/// taken for longer than a TTL. Whoever finds the pool exhausted meanwhile says so, and goes on when they are free.
fn five_leader_moves(release: Release) {
    let mut scene = Stage::new("i26", release, RIDE).set().under_load();
    let held = scene.sides[1].open().0;
    fill_pool(&scene, held[0]);
    let taken = holders(&scene, 0);
    // With its server: nobody is left who could give the identities back.
    scene.sides[0].kill_daemon();
    scene.sides[0].server.kill_everything();
    let killed = Instant::now();
    scene.sides[0].server.run();
    scene.sides[0].launch_daemon();
    for _ in 0..5 {
        scene.cluster.move_leader();
        thread::sleep(RIDE / 4);
    }
    let moved = killed.elapsed();
    assert!(moved > RIDE, "{moved:?}: a lease would have expired");
    assert_eq!(
        holders(&scene, 0),
        taken,
        "the dead daemon's identities are still taken"
    );
    eventually_true(PATIENCE, "the daemon says that nothing is free", || {
        let log = scene.sides[0].daemon().log();
        log.lines()
            .any(|line| line.contains("WARN") && line.contains("lease store"))
    });
    assert!(!scene.sides[0].daemon().is_ready(), "and says no on /readyz");
    scene.recover();
    scene.note(&format!(
        "taken {:.1} s after the death of their daemon",
        killed.elapsed().as_secs_f32()
    ));
    scene.finish().assert_only_first_refused();
}

/// etcd#12291: expiry followed a clock that was not the one of the lease. The members' clocks differ by days, and the leader
/// moves from one to the other.
fn members_with_clocks_of_their_own(release: Release) {
    let mut stage = Stage::new("i27", release, RIDE);
    stage.etcd = EtcdOptions::of(release).days_apart();
    let scene = stage.set().under_load();
    let tokens = [scene.sides[0].token(), scene.sides[1].token()];
    for _ in 0..3 {
        scene.cluster.move_leader();
        scene.go_on_for(RIDE / 3);
    }
    assert_eq!([scene.sides[0].token(), scene.sides[1].token()], tokens);
    scene.finish().assert_nobody_noticed();
}

/// PostHog/posthog PR#74478: the pause between two tries hid that the lease was over. The deadline is read by whoever mints, so
/// no loop of the daemon can sleep over it.
fn a_partition_of_two_ttls(release: Release) {
    let mut scene = Stage::new("i28", release, FENCE).set().under_load();
    let fault = Instant::now();
    scene.sides[0].network(Mode::Stall(Flow::Both));
    eventually_true(PATIENCE, "two TTLs", || fault.elapsed() > FENCE * 2);
    let healed = Instant::now();
    scene.sides[0].network(Mode::Pass);
    scene.recover();
    let stopped = scene.finish().assert_only_first_fenced(fault, healed);
    assert!(
        stopped < FENCE,
        "before the store could give the identities to others"
    );
}

/// tidb-operator#222, pd#8806: a slow disk of etcd ended the leader's term, and looked like a clock that was off.
fn every_sync_of_etcd_takes_two_seconds(release: Release) {
    let ttl = Duration::from_secs(12);
    let mut scene = Stage::new("i75", release, ttl).set().under_load();
    let slow = SyncFault::Delay(Duration::from_secs(2));
    let guards: Vec<SyncFaultGuard> = scene
        .cluster
        .members
        .iter()
        .map(|member| SyncFaultGuard::on(member.pid(), slow))
        .collect();
    let until = Instant::now() + ttl;
    eventually_true(PATIENCE, "a TTL of it", || Instant::now() > until);
    drop(guards);
    scene.cluster.wait_healthy();
    scene.recover();
    for side in &mut scene.sides {
        let log = side.daemon().log();
        assert!(
            !log.contains("wall clock was set"),
            "a slow disk is no clock that was set"
        );
    }
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_refused_at_most_for_the_lease(side);
    }
}

macro_rules! incidents {
    ($(fn $test:ident = $run:ident;)*) => {
        mod on_etcd_3_4 { use super::*; $(#[test] fn $test() { $run(Release::V3_4); })* }
        mod on_etcd_3_5 { use super::*; $(#[test] fn $test() { $run(Release::V3_5); })* }
    };
}

incidents! {
    fn incident_23_a_lease_revoked_early_goes_to_a_holder_above_the_old_window = a_lease_revoked_early;
    fn incident_26_five_leader_moves_do_not_exhaust_the_pool_silently = five_leader_moves;
    fn incident_27_members_whose_clocks_differ_by_days_expire_nothing_early = members_with_clocks_of_their_own;
    fn incident_28_a_partition_of_two_ttls_stops_the_minting_at_the_deadline = a_partition_of_two_ttls;
    fn incident_75_syncs_of_two_seconds_cost_leases_at_most = every_sync_of_etcd_takes_two_seconds;
}
