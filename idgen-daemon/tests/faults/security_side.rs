//! Faults of etcd's users, tokens and space, and of what it grants.

use std::time::{Duration, Instant};

use etcd_client::Client;

use crate::etcd_side::lead_by_used;
use crate::kit::{PATIENCE, Release, Scratch, SyncFault, SyncFaultGuard, eventually_true, users, within};
use crate::scene::{FENCE, RIDE, Scene, Stage, deadline_ahead_ms};

const PASSWORD: &str = "correct horse battery staple";
/// The least that etcd takes for a quota in earnest, and values that fill it.
const QUOTA: &str = "--quota-backend-bytes=8388608";
const FILLER: usize = 1 << 20;

/// Daemons with a user, on a cluster that asks for one.
fn guarded(mut stage: Stage) -> Scene {
    let files = Scratch::new("auth");
    // A password must not cost a tenth of a second of a busy processor here.
    stage.etcd = stage.etcd.args(&["--bcrypt-cost", "4"]);
    stage.store_more = users::store_lines(&files, PASSWORD);
    stage.files = Some(files);
    let scene = stage.set();
    users::add_users(&scene.cluster.members[0], PASSWORD);
    scene.cluster.members[0].ctl_ok(&["auth", "enable"]);
    scene.under_load()
}

fn renewals(scene: &mut Scene) -> u64 {
    scene.sides[0].daemon().renewals()
}

fn wait_renewals(scene: &mut Scene, more: u64) {
    let goal = renewals(scene) + more;
    eventually_true(PATIENCE, "leases are renewed", || renewals(scene) >= goal);
}

/// Values until the quota is met; whether that was reached.
fn fill(scene: &Scene) {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let mut client = Client::connect(scene.cluster.endpoints(), None)
            .await
            .expect("connect");
        for n in 0..64 {
            if client
                .put(format!("/filler/{n}"), vec![b'x'; FILLER], None)
                .await
                .is_err()
            {
                return;
            }
        }
        panic!("64 MB and no quota was met");
    });
}

pub fn f11_the_quota_is_used_up(release: Release) {
    let mut stage = Stage::new("F11", release, FENCE);
    stage.etcd = stage.etcd.args(&[QUOTA]);
    let mut scene = stage.set().under_load();
    let fault = Instant::now();
    fill(&scene);
    let alarm = scene.cluster.members[0].ctl_ok(&["alarm", "list"]);
    assert!(alarm.contains("NOSPACE"), "{alarm}");
    scene.wait_stopped();
    scene.sides[0]
        .daemon()
        .wait_log(&["WARN", "lease store: ", "space exceeded"]);
    let healed = Instant::now();
    let member = &scene.cluster.members[0];
    member.ctl_ok(&["del", "--prefix", "/filler/"]);
    let revision = member.status().expect("status")["header"]["revision"].to_string();
    member.ctl_ok(&["compact", &revision, "--physical"]);
    for member in &scene.cluster.members {
        member.ctl_ok(&["defrag"]);
    }
    member.ctl_ok(&["alarm", "disarm"]);
    scene.recover();
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_fenced_with_slack(side, fault, healed, FENCE);
    }
}

pub fn f12_the_disk_of_a_member_is_full(release: Release) {
    let mut scene = Stage::new("F12", release, RIDE).set().under_load();
    let leader = lead_by_used(&scene);
    let full = SyncFaultGuard::on(scene.cluster.members[leader].pid(), SyncFault::Error("ENOSPC"));
    eventually_true(PATIENCE, "the member gives up", || {
        scene.cluster.members[leader].has_ended()
    });
    drop(full);
    scene.go_on_for(RIDE);
    scene.cluster.members[leader].run();
    scene.go_on_for(Duration::from_secs(1));
    scene.finish().assert_nobody_noticed();
}

pub fn f21_the_token_expires(release: Release) {
    let mut stage = Stage::new("F21", release, RIDE);
    stage.etcd = stage.etcd.args(&["--auth-token-ttl", "1"]);
    let mut scene = guarded(stage);
    scene.sides[0].daemon().wait_log(&["WARN", "invalid auth token"]);
    wait_renewals(&mut scene, 3);
    scene.finish().assert_nobody_noticed();
}

pub fn f22_the_users_change_under_a_signed_token(release: Release) {
    let keys = Scratch::new("jwt");
    let mut stage = Stage::new("F22", release, RIDE);
    stage.etcd.args = users::signed_tokens(&keys).to_vec();
    let mut scene = guarded(stage);
    wait_renewals(&mut scene, 1);
    users::as_root(&scene.cluster.members[0], &["user", "add", "somebody:else"]);
    scene.sides[0]
        .daemon()
        .wait_log(&["WARN", "revision of auth store is old"]);
    wait_renewals(&mut scene, 3);
    scene.finish().assert_nobody_noticed();
}

pub fn f23_the_role_loses_its_permission(release: Release) {
    let mut scene = guarded(Stage::new("F23", release, FENCE));
    wait_renewals(&mut scene, 1);
    let member = &scene.cluster.members[0];
    let fault = Instant::now();
    users::as_root(
        member,
        &["role", "revoke-permission", "--prefix", "idgend", users::PREFIX],
    );
    scene.wait_stopped();
    scene.sides[0].daemon().wait_log(&["WARN", "permission denied"]);
    let healed = Instant::now();
    users::permit(&scene.cluster.members[0], &["--user", users::ROOT]);
    scene.recover();
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_fenced(side, fault, healed);
    }
}

/// etcd grants two seconds at least; who asked for one has a deadline that counts from two.
pub fn f25_etcd_raises_the_ttl(release: Release) {
    let mut scene = Stage::new("F25", release, Duration::from_secs(1))
        .set()
        .under_load();
    let mut client = scene.sides[0].client();
    let mut most = 0;
    let longer = within(PATIENCE, || {
        most = most.max(deadline_ahead_ms(&mut client));
        most > 1_300
    });
    assert!(longer, "a deadline is {most} ms ahead at most, of a TTL of 2 s");
    assert!(most < 2_000, "{most} ms is no margin");
    scene.note(&format!("asked for 1 s, a deadline {most} ms ahead"));
    // Slowly: a lease of this length is often over before its renewal on a busy machine.
    scene.sides.iter().for_each(|side| side.wait_statements(100));
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_refused_at_most_for_the_lease(side);
    }
}
