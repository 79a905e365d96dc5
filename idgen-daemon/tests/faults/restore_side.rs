//! Faults of etcd's memory: restored from a snapshot, or keys deleted by hand. The store is sealed, and one command
//! opens it again.

use std::path::PathBuf;
use std::time::Duration;

use idgen_core::lease::pool::{PlanFor, half, plan_grant};
use idgen_core::lease::{BootId, Class, Epoch, Identity, InstanceId, Memory, Timing, TimingSpec, Wanted};
use idgen_daemon::lease::{EtcdConfig, EtcdSecurity, EtcdStore, HolderName, LeaseStore, host_clock};
use serde_json::Value;

use crate::etcd_side::{WORKERS, committed_by};
use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::{PATIENCE, Pause, Release, eventually, eventually_true, sql};
use crate::scene::{FENCE, RIDE, Scene, Side, Stage, load_options};

/// Epoch 0 takes workers of the first half of the pool, epoch 1 those from here on.
const OTHER_HALF: i32 = 512;
/// A lease that outlives the restore, its discovery and the command.
const LONG: Duration = Duration::from_secs(60);
/// With this period a daemon that knows nothing newer waits 6 s for the others, and has a memory that is a moment old
/// for 10 s.
const QUICK: &str = "period_ms = 1000\n";
const MOMENT_MS: i64 = 10_000;
/// More revisions than the lost future can have had.
const BUMP: u64 = 1_000_000_000;

fn epoch(side: &mut Side, command: &str, more: &[&str]) -> Answer {
    let config = side.daemon().config_path().display().to_string();
    let mut args = vec!["epoch", command, "--config", &config, "--output", "json"];
    args.extend(more);
    if command == "advance" {
        args.push("--yes");
    }
    idgenctl(&args)
}

/// Exit code and status.
fn shown(side: &mut Side) -> (Option<i32>, Value) {
    let shown = epoch(side, "show", &[]);
    let status = serde_json::from_str(&shown.stdout).unwrap_or_default();
    (shown.code, status)
}

/// Why the store is sealed, as anybody sees it.
fn wait_sealed(scene: &mut Scene, side: usize, because: &str) {
    let reason = eventually(PATIENCE, "the store is sealed", || {
        let (code, status) = shown(&mut scene.sides[side]);
        (code == Some(3)).then(|| status["sealed"].as_str().expect("a reason").to_owned())
    });
    assert!(reason.contains(because), "{reason}");
}

/// The one command.
fn advance(scene: &mut Scene, side: usize) {
    let status = shown(&mut scene.sides[side]).1;
    let identity = status["identity"].as_str().expect("identity");
    let more = ["--identity", identity, "--reason", "a test has restored it"];
    let done = epoch(&mut scene.sides[side], "advance", &more);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

fn wait_for_other_half(side: &Side) {
    eventually_true(PATIENCE, "workers of the other half are open", || {
        let open = side.open().0;
        !open.is_empty() && open.iter().all(|worker| *worker >= OTHER_HALF)
    });
}

/// The command opens it, and both servers mint from the other half of the pool.
fn open_again(scene: &mut Scene) {
    advance(scene, 0);
    scene.recover();
    scene.sides.iter().for_each(wait_for_other_half);
    scene.go_on_for(Duration::from_secs(1));
}

fn save(scene: &Scene) -> PathBuf {
    scene.cluster.members[0].save("before")
}

/// What it holds from now on no snapshot from before knows.
fn take_other_workers(side: &mut Side) {
    let before = side.open().0;
    side.kill_daemon();
    side.launch_daemon();
    side.daemon().wait_ready();
    assert_ne!(side.open().0, before, "other workers than the snapshot says");
}

/// Holders move on after the snapshot, then the store goes back to it.
fn restored(fault: &'static str, release: Release, because: &str, restore: impl FnOnce(&mut Scene, PathBuf)) {
    let mut scene = Stage::new(fault, release, RIDE).set().under_load();
    let snapshot = save(&scene);
    take_other_workers(&mut scene.sides[1]);
    restore(&mut scene, snapshot);
    wait_sealed(&mut scene, 0, because);
    scene.wait_stopped();
    open_again(&mut scene);
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_refused_for_the_lease(side);
    }
}

pub fn f15_restored_under_the_same_token(release: Release) {
    restored("F15", release, "was restored", |scene, snapshot| {
        scene.cluster.restore(&snapshot, None);
    });
    who_remembers_less_comes_first(release);
}

/// The right side has taken, since the snapshot, all that is free in it; its daemon stands still. The left one, which
/// knows nothing of that, finds a store that looks like itself, with just these workers to be had.
fn who_remembers_less_comes_first(release: Release) {
    let mut stage = Stage::new("F15", release, LONG);
    stage.workers_more = QUICK.to_owned();
    let mut scene = stage.set().under_load();
    age_cell(&scene);
    occupy_the_rest(&scene);
    scene.sides[0].terminate_daemon();
    let snapshot = save(&scene);
    let right = &mut scene.sides[1];
    right.kill_daemon();
    right.options = right.options.clone().workers(4);
    right.launch_daemon();
    right.daemon().wait_ready();
    let held = right.open().0;
    let left = &scene.sides[0];
    eventually_true(PATIENCE, "the memory of the left server is old", || {
        let age = "SELECT coalesce(age_ms, 0) FROM idgen.anchors() WHERE kind = 'worker'";
        sql::value::<i64>(&mut left.client(), age) > MOMENT_MS
    });
    let sleeper = Pause::of([scene.sides[1].daemon().pid()]);
    scene.cluster.restore(&snapshot, None);
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_unready_with("no lease is taken for");
    assert!(scene.sides[0].open().0.is_empty(), "nothing is granted");
    assert_eq!(scene.sides[1].open().0, held, "while the right one mints");
    sleeper.resume();
    scene.sides[0].daemon().wait_unready_with("sealed");
    assert!(
        scene.sides[0].open().0.is_empty(),
        "nothing was granted meanwhile"
    );
    advance(&mut scene, 0);
    scene.sides.iter().for_each(wait_for_other_half);
    scene.go_on_for(Duration::from_secs(1));
    let outcome = scene.finish();
    outcome.assert_refused_for_the_lease(0);
    outcome.assert_refused_at_most_for_the_lease(1);
}

/// In a cell that has only just begun nobody waits.
fn age_cell(scene: &Scene) {
    let (member, key) = (&scene.cluster.members[0], "/pg_idgen/default/cell");
    let value = member.ctl_ok(&["get", "--print-value-only", key]);
    let mut cell: Value = serde_json::from_str(value.trim()).expect("JSON");
    cell["epoch_since_ms"] = 1.into();
    member.ctl_ok(&["put", key, &cell.to_string()]);
}

/// Whatever is free in the first half of the pool is somebody's for a day.
fn occupy_the_rest(scene: &Scene) {
    const A_DAY_MS: u64 = 86_400_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let timing = Timing::new(TimingSpec::of_ttl(A_DAY_MS)).expect("timing");
    let mut instance = 0;
    loop {
        instance += 1;
        let holder = HolderName {
            instance: InstanceId(instance),
            name: "occupant".to_owned(),
        };
        let mut store = EtcdStore::new(EtcdConfig {
            class: Class::Worker,
            endpoints: scene.cluster.endpoints(),
            security: EtcdSecurity::default(),
            prefix: "/pg_idgen/default".to_owned(),
            request_timeout: PATIENCE,
            ttl_ms: A_DAY_MS,
            holder,
        });
        let snapshot = runtime.block_on(store.read()).expect("read");
        let free = half(Epoch(0)).filter(|worker| {
            let row = snapshot.row(Identity(*worker));
            row.is_none_or(|row| row.holder.is_none())
        });
        let count = free.count().min(60);
        if count == 0 {
            return;
        }
        let asked = PlanFor {
            instance: InstanceId(instance),
            boot_id: BootId(instance),
            wall: host_clock(),
            wanted: &Wanted::Any(count),
            random: 1,
        };
        let plan = plan_grant(&snapshot, &Memory::new(), &timing, asked).expect("plan");
        runtime.block_on(store.grant(&plan)).expect("grant");
    }
}

pub fn f16_restored_under_another_token(release: Release) {
    restored("F16", release, "belongs to store", |scene, snapshot| {
        scene.cluster.restore(&snapshot, Some("another"));
    });
    nobody_who_remembers_is_awake(release);
}

/// The left side knows nothing that is newer than the snapshot, the daemon of the right one stands still.
fn nobody_who_remembers_is_awake(release: Release) {
    let mut scene = Stage::new("F16", release, LONG).set().under_load();
    scene.sides[0].terminate_daemon();
    let snapshot = save(&scene);
    take_other_workers(&mut scene.sides[1]);
    let held = scene.sides[1].open().0;
    let sleeper = Pause::of([scene.sides[1].daemon().pid()]);
    scene.cluster.restore(&snapshot, Some("another"));
    scene.sides[0].launch_daemon();
    scene.sides[0].daemon().wait_unready_with("sealed");
    assert!(scene.sides[0].open().0.is_empty(), "nothing is granted");
    assert_eq!(scene.sides[1].open().0, held, "while the right one mints");
    sleeper.resume();
    advance(&mut scene, 0);
    scene.sides.iter().for_each(wait_for_other_half);
    let outcome = scene.finish();
    outcome.assert_refused_for_the_lease(0);
    outcome.assert_refused_at_most_for_the_lease(1);
}

/// The revision never falls: only the rows tell.
pub fn f17_restored_with_a_bumped_revision(release: Release) {
    restored("F17", release, "was restored", |scene, snapshot| {
        scene.cluster.restore_bumped(&snapshot, BUMP);
    });
}

/// Its holder key comes back to life with the snapshot, and its own memory is older than that: others must tell it.
pub fn f18_a_holder_sleeps_through_a_restore(release: Release) {
    let mut scene = Stage::new("F18", release, FENCE).set().under_load();
    let held = scene.sides[0].open().0;
    let snapshot = save(&scene);
    let daemon = Pause::of([scene.sides[0].daemon().pid()]);
    let sleepers = Pause::of(scene.sides[0].minting_pids());
    scene.sides[0].wait_stopped();
    take_other_workers(&mut scene.sides[1]);
    scene.cluster.restore(&snapshot, None);
    wait_sealed(&mut scene, 1, "was restored");
    let holder = format!("{WORKERS}{}/holder", held[0]);
    let restored = scene.cluster.members[0].ctl_ok(&["get", &holder]);
    scene.sides[0].stop_load_after(|| sleepers.resume());
    daemon.resume();
    scene.sides[0].start_load(&load_options());
    scene.sides[0].daemon().wait_unready_with("sealed");
    let now = scene.cluster.members[0].ctl_ok(&["get", &holder]);
    assert!(
        now.is_empty() || now == restored,
        "what came back is not renewed: {now}"
    );
    scene.wait_stopped();
    open_again(&mut scene);
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_refused_for_the_lease(side);
    }
}

/// Two epochs are alive at once: the daemon of the old one stands still, and its server mints to its deadline.
pub fn f20_the_epoch_advances_under_an_old_holder(release: Release) {
    let mut scene = Stage::new("F20", release, LONG).set().under_load();
    let snapshot = save(&scene);
    // Both have ceilings that the snapshot does not know, and the sleeper a lease that has just begun.
    for side in [0, 1] {
        let before = committed_by(&scene, side);
        eventually_true(PATIENCE, "it is renewed", || committed_by(&scene, side) > before);
    }
    let held = scene.sides[1].open().0;
    scene.sides[0].kill_daemon();
    let sleeper = Pause::of([scene.sides[1].daemon().pid()]);
    scene.cluster.restore(&snapshot, None);
    scene.sides[0].launch_daemon();
    wait_sealed(&mut scene, 0, "was restored");
    advance(&mut scene, 0);
    wait_for_other_half(&scene.sides[0]);
    scene.go_on_for(Duration::from_secs(1));
    assert_eq!(scene.sides[1].open().0, held, "the old holder mints beside it");
    sleeper.resume();
    wait_for_other_half(&scene.sides[1]);
    scene.go_on_for(Duration::from_secs(1));
    scene.note(&format!("{:?} minted beside {held:?}", scene.sides[0].open().0));
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_refused_at_most_for_the_lease(side);
    }
}

pub fn f57_keys_are_deleted_by_hand(release: Release) {
    a_holder_key_is_deleted(release);
    a_high_water_is_deleted(release);
}

fn delete(scene: &Scene, key: &str) {
    let worker = scene.sides[0].open().0[0];
    let deleted = scene.cluster.members[0].ctl_ok(&["del", &format!("{WORKERS}{worker}/{key}")]);
    assert_eq!(deleted.trim(), "1", "a key of worker {worker} that was there");
}

/// Whoever holds the identity loses it, and nobody else does.
fn a_holder_key_is_deleted(release: Release) {
    let mut scene = Stage::new("F57", release, RIDE).set().under_load();
    let token = scene.sides[0].token();
    delete(&scene, "holder");
    eventually_true(PATIENCE, "a newer token", || scene.sides[0].token() > token);
    scene.recover();
    let outcome = scene.finish();
    outcome.assert_refused_at_most_for_the_lease(0);
    outcome.assert_unnoticed_by(1);
}

/// Where windows have been granted to is forgotten: nothing is granted any more before somebody says so.
fn a_high_water_is_deleted(release: Release) {
    let mut scene = Stage::new("F57", release, FENCE).set().under_load();
    delete(&scene, "hw");
    scene.sides[0].wait_stopped();
    wait_sealed(&mut scene, 0, "was deleted");
    open_again(&mut scene);
    let outcome = scene.finish();
    outcome.assert_refused_for_the_lease(0);
    outcome.assert_refused_at_most_for_the_lease(1);
}
