//! The tools that inject faults do what they say: a fault that is not there proves nothing.

use std::time::{Duration, Instant};

use crate::kit::process::Signal;
use crate::kit::{
    EtcdCluster, Flow, Mode, Pause, Proxy, Release, SyncFault, SyncFaultGuard, eventually_true,
};

fn each_release(test: impl Fn(&EtcdCluster)) {
    for release in Release::ALL {
        assert!(
            release.version().starts_with(release.name()),
            "{release} is {}",
            release.version()
        );
        test(&EtcdCluster::start(release));
    }
}

#[test]
fn a_cluster_moves_its_leader_and_elects_another_for_one_that_is_paused() {
    each_release(|cluster| {
        let before = cluster.leader();
        let moved = cluster.move_leader();
        assert_ne!(before, moved);
        let pause = Pause::of([cluster.members[moved].pid()]);
        let elected = cluster.leader_among(|n| n != moved);
        assert_ne!(elected, moved);
        cluster.members[elected].ctl_ok(&["put", "key", "value"]);
        pause.resume();
        cluster.wait_healthy();
        assert!(cluster.members[moved].ctl_ok(&["get", "key"]).contains("value"));
        // A signal to one member reaches that one only.
        cluster.members[moved].signal(Signal::CONT);
    });
}

#[test]
fn a_sync_that_is_delayed_makes_the_leader_late_and_ends_with_its_guard() {
    each_release(|cluster| {
        let leader = cluster.leader();
        let delay = SyncFaultGuard::on(
            cluster.members[leader].pid(),
            SyncFault::Delay(Duration::from_millis(700)),
        );
        let asked = Instant::now();
        cluster.members[leader].ctl_ok(&["put", "key", "slow"]);
        assert!(
            asked.elapsed() >= Duration::from_millis(600),
            "{:?}",
            asked.elapsed()
        );
        assert!(delay.met() > 0);
        drop(delay);
        let asked = Instant::now();
        eventually_true(Duration::from_secs(10), "a put is fast again", || {
            let asked = Instant::now();
            cluster.members[leader].ctl_ok(&["put", "key", "fast"]);
            asked.elapsed() < Duration::from_millis(400)
        });
        assert!(asked.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn a_member_behind_a_proxy_is_out_of_reach_while_the_rest_has_it() {
    each_release(|cluster| {
        let proxy = Proxy::to(cluster.members[0].addr());
        let healthy = || crate::kit::http::get(proxy.addr(), "/health").is_some();
        assert!(healthy());
        for mode in [Mode::Stall(Flow::Both), Mode::Lose(Flow::Replies), Mode::Reset] {
            proxy.set(mode);
            assert!(!healthy(), "{mode:?}");
            assert!(cluster.members[0].is_healthy());
            proxy.heal();
            assert!(healthy(), "healed after {mode:?}");
        }
    });
}
