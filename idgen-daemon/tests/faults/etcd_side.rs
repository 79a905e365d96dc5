//! Faults of etcd and of the network between etcd and the daemons.

use std::time::{Duration, Instant};

use crate::kit::process::Signal;
use crate::kit::{
    Flow, Mode, PATIENCE, Pause, Release, SyncFault, SyncFaultGuard, eventually, eventually_true,
};
use crate::scene::{FENCE, RIDE, Scene, Stage};

/// How often the holder keys are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Below it are the keys of workers.
pub const WORKERS: &str = "/pg_idgen/default/w/";

/// Keys of holders, as any member but the stalled one sees them.
pub fn holders(scene: &Scene, member: usize) -> usize {
    let answer = scene.cluster.members[member].ctl(&["get", "--prefix", WORKERS, "--keys-only"]);
    let keys = answer.stdout.lines();
    keys.filter(|key| key.ends_with("/holder")).count()
}

/// Two requests may hang on the stalled leader before an election, all of it after a whole period: room for that on a slow
/// machine. Less than a sync takes, so that the leader stalls all the time.
const ELECTION_RIDE: Duration = Duration::from_secs(15);

fn f01_scene(release: Release) -> (Scene, usize, [i64; 2]) {
    let scene = Stage::new("F01", release, ELECTION_RIDE).set().under_load();
    let tokens = [scene.sides[0].token(), scene.sides[1].token()];
    let leader = lead_by_used(&scene);
    (scene, leader, tokens)
}

pub fn f01_the_leader_cannot_sync(release: Release) {
    let (mut scene, leader, tokens) = f01_scene(release);
    let stall = SyncFaultGuard::on(
        scene.cluster.members[leader].pid(),
        SyncFault::Delay(Duration::from_secs(20)),
    );
    let fault = Instant::now();
    let elected = scene.cluster.leader_among(|n| n != leader);
    scene.note(&format!("new leader in {:.1} s", fault.elapsed().as_secs_f32()));
    while fault.elapsed() < ELECTION_RIDE + Duration::from_secs(3) {
        assert_eq!(holders(&scene, elected), 4, "no holder key is ever missing");
        scene.wait_minting();
        std::thread::sleep(LOOK_EVERY);
    }
    drop(stall);
    scene.cluster.wait_healthy();
    let after = [scene.sides[0].token(), scene.sides[1].token()];
    assert_eq!(after, tokens, "renewed all the time, never replaced");
    scene.finish().assert_nobody_noticed();
}

pub fn f02_the_leader_is_paused(release: Release) {
    let scene = Stage::new("F02", release, RIDE).set().under_load();
    for pause in [5, 12] {
        let leader = lead_by_used(&scene);
        let paused = Pause::of([scene.cluster.members[leader].pid()]);
        scene.go_on_for(Duration::from_secs(pause));
        paused.resume();
        scene.cluster.wait_healthy();
        scene.go_on_for(Duration::from_secs(1));
    }
    scene.finish().assert_nobody_noticed();
}

pub fn f03_both_followers_are_paused(release: Release) {
    let mut scene = Stage::new("F03", release, FENCE).set().under_load();
    let tokens = [scene.sides[0].token(), scene.sides[1].token()];
    let leader = scene.cluster.leader();
    let followers = (0..3)
        .filter(|n| *n != leader)
        .map(|n| scene.cluster.members[n].pid());
    let fault = Instant::now();
    let paused = Pause::of(followers);
    scene.wait_stopped();
    let healed = Instant::now();
    paused.resume();
    scene.recover();
    assert_newer_tokens(&scene, tokens);
    assert_both_fenced(scene, fault, healed);
}

fn assert_newer_tokens(scene: &Scene, before: [i64; 2]) {
    for (side, before) in scene.sides.iter().zip(before) {
        let now = side.token();
        assert!(now > before, "a new token: {now} after {before}");
    }
}

fn assert_both_fenced(mut scene: Scene, fault: Instant, healed: Instant) {
    scene.note(&format!("fenced under a TTL of {} s", scene.stage.ttl.as_secs()));
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_fenced(side, fault, healed);
    }
}

pub fn f04_a_member_is_killed(release: Release) {
    let mut scene = Stage::new("F04", release, RIDE).set().under_load();
    let leader = lead_by_used(&scene);
    scene.cluster.members[leader].kill();
    scene.go_on_for(RIDE);
    scene.cluster.members[leader].run();
    scene.go_on_for(Duration::from_secs(2));
    scene.finish().assert_nobody_noticed();
}

pub fn f05_all_members_are_killed(release: Release) {
    let mut scene = Stage::new("F05", release, FENCE).set().under_load();
    let tokens = [scene.sides[0].token(), scene.sides[1].token()];
    let fault = Instant::now();
    scene.cluster.kill_all();
    scene.wait_stopped();
    scene.cluster.run_all();
    let healed = Instant::now();
    scene.recover();
    assert_newer_tokens(&scene, tokens);
    assert_both_fenced(scene, fault, healed);
}

/// The member that a daemon talks to: the one whose proxy has passed something since.
fn used_member(scene: &Scene, side: usize) -> usize {
    let proxies = &scene.sides[side].proxies;
    let before: Vec<u64> = proxies.iter().map(crate::kit::Proxy::bytes_passed).collect();
    eventually(PATIENCE, "the daemon talks to a member", || {
        (0..proxies.len()).find(|n| proxies[*n].bytes_passed() > before[*n])
    })
}

/// Makes the member the leader that the first daemon talks to, so that a fault of the leader is one for that daemon.
pub fn lead_by_used(scene: &Scene) -> usize {
    let used = used_member(scene, 0);
    eventually_true(PATIENCE, "the member that is used leads", || {
        scene.cluster.leader() == used || scene.cluster.move_leader() == used
    });
    used
}

pub fn f06_a_daemon_is_cut_from_the_member_it_uses(release: Release) {
    let scene = Stage::new("F06", release, RIDE).set().under_load();
    let cut = used_member(&scene, 0);
    scene.sides[0].proxies[cut].set(Mode::Stall(Flow::Both));
    scene.go_on_for(RIDE + Duration::from_secs(1));
    scene.sides[0].proxies[cut].heal();
    scene.go_on_for(Duration::from_secs(1));
    scene.finish().assert_nobody_noticed();
}

pub fn f07_a_daemon_is_cut_from_all_members(release: Release) {
    let mut scene = Stage::new("F07", release, FENCE).set().under_load();
    let fault = Instant::now();
    scene.sides[0].network(Mode::Stall(Flow::Both));
    scene.sides[0].wait_stopped();
    eventually_true(PATIENCE, "the daemon's warning names etcd", || {
        let log = scene.sides[0].daemon().log();
        log.lines()
            .any(|line| line.contains("WARN") && line.contains("etcd"))
    });
    let reason = scene.sides[0].daemon().wait_unready();
    assert!(
        reason.contains("etcd") || reason.contains("lease"),
        "/readyz says why: {reason}"
    );
    scene.sides[1].wait_statements(20);
    let healed = Instant::now();
    scene.sides[0].network(Mode::Pass);
    scene.recover();
    scene.finish().assert_only_first_fenced(fault, healed);
}

/// Requests arrive and are carried out, and nobody hears of it. Answers are late first, so that one is still on its way
/// when its renewal shows in etcd.
pub fn f08_answers_are_lost_while_requests_arrive(release: Release) {
    let mut stage = Stage::new("F08", release, RIDE);
    stage.store_more = "request_timeout_ms = 1500\n".to_owned();
    let mut scene = stage.set().under_load();
    let token = scene.sides[0].token();
    scene.sides[0].network(Mode::Delay(Flow::Replies, Duration::from_millis(900)));
    let before = committed_by(&scene, 0);
    eventually_true(PATIENCE, "a renewal is committed", || {
        committed_by(&scene, 0) > before
    });
    scene.sides[0].network(Mode::Stall(Flow::Replies));
    let deadline = scene.sides[0].deadline_ms();
    eventually_true(PATIENCE, "no slot is open", || {
        let now = scene.sides[0].deadline_ms();
        assert!(now <= deadline, "what nobody has heard of counts for nothing");
        scene.sides[0].open().0.is_empty()
    });
    let late_ms = scene.sides[0].boottime_ms() - deadline;
    assert!(
        (0..1_000).contains(&late_ms),
        "stopped {late_ms} ms after the deadline"
    );
    scene.sides[0].network(Mode::Pass);
    scene.recover();
    assert!(
        scene.sides[0].token() > token,
        "a new token, whatever was committed for the old one"
    );
    scene.finish().assert_only_first_refused();
}

/// How often the high waters were written of the identities that a side has now.
pub fn committed_by(scene: &Scene, side: usize) -> u64 {
    committed_of(scene, &scene.sides[side].open().0)
}

/// How often the high waters of these were written.
pub fn committed_of(scene: &Scene, workers: &[i32]) -> u64 {
    let keys: Vec<String> = workers.iter().map(|id| format!("/{id}/hw")).collect();
    versions(scene, |key| keys.iter().any(|end| key.ends_with(end)))
}

/// Sum of the versions of high waters.
fn versions(scene: &Scene, counts: impl Fn(&str) -> bool) -> u64 {
    let said = scene.cluster.members[0].ctl_ok(&["get", "--prefix", WORKERS, "--write-out=fields"]);
    let (mut sum, mut is_high_water) = (0, false);
    for (name, value) in said.lines().filter_map(|line| line.split_once(" : ")) {
        match name {
            "\"Key\"" => {
                let key = value.trim_matches('"');
                is_high_water = key.ends_with("/hw") && counts(key);
            }
            "\"Version\"" if is_high_water => sum += value.parse::<u64>().expect("a version"),
            _ => {}
        }
    }
    sum
}

pub fn f09_every_request_takes_900_ms(release: Release) {
    let mut stage = Stage::new("F09", release, RIDE);
    // The default is 1 s; a busy machine alone takes more than the 100 ms that would be left.
    stage.store_more = "request_timeout_ms = 1500\n".to_owned();
    let scene = stage.set().under_load();
    let token = scene.sides[0].token();
    scene.sides[0].network(Mode::Delay(Flow::Requests, Duration::from_millis(900)));
    let ceiling = scene.sides[0].ceiling_ms();
    scene.go_on_for(RIDE * 2);
    assert!(
        scene.sides[0].ceiling_ms() > ceiling,
        "renewed through the slow network"
    );
    assert_eq!(scene.sides[0].token(), token, "and never replaced");
    scene.sides[0].network(Mode::Pass);
    scene.finish().assert_nobody_noticed();
}

pub fn f10_every_request_takes_2_s(release: Release) {
    let mut scene = Stage::new("F10", release, FENCE).set().under_load();
    let fault = Instant::now();
    scene.sides[0].network(Mode::Delay(Flow::Requests, Duration::from_secs(2)));
    scene.sides[0].wait_stopped();
    let installs = |scene: &mut Scene| scene.sides[0].daemon().log().matches("lease installed").count();
    let before = installs(&mut scene);
    let until = Instant::now() + FENCE * 2;
    eventually_true(PATIENCE, "two TTLs of a network that is too slow", || {
        Instant::now() > until
    });
    assert_eq!(installs(&mut scene), before, "no lease comes and goes meanwhile");
    let healed = Instant::now();
    scene.sides[0].network(Mode::Pass);
    scene.recover();
    scene.finish().assert_only_first_fenced(fault, healed);
}

/// No lease rests on a watch or on old revisions.
pub fn f13_history_is_compacted_and_members_are_defragmented(release: Release) {
    let scene = Stage::new("F13", release, RIDE).set().under_load();
    for _ in 0..3 {
        let member = &scene.cluster.members[scene.cluster.leader()];
        let revision = member.status().expect("status")["header"]["revision"].to_string();
        member.ctl_ok(&["compact", &revision, "--physical"]);
        for member in &scene.cluster.members {
            member.ctl_ok(&["defrag"]);
        }
        scene.go_on_for(RIDE / 3);
    }
    scene.finish().assert_nobody_noticed();
}

/// A rolling upgrade passes through every mixture of versions: 3.4 to 3.5, or the members of one release restarted.
pub fn f24_members_of_two_versions(release: Release) {
    let mut scene = Stage::new("F24", release, RIDE).set().under_load();
    for member in 0..3 {
        scene.cluster.members[member].signal(Signal::TERM);
        scene.cluster.members[member].kill();
        scene.cluster.members[member].set_release(Release::V3_5);
        scene.cluster.members[member].run();
        scene.go_on_for(RIDE / 3);
    }
    scene.note(&format!("restarted one by one as {}", Release::V3_5.version()));
    scene.finish().assert_nobody_noticed();
}
