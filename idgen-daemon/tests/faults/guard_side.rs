//! Faults of what guards etcd: quota, disk, users, tokens, limits.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::etcd_side::holders;
use crate::kit::{EtcdCluster, PATIENCE, Release, Scratch, eventually_true, sql};
use crate::scene::{FENCE, RIDE, Scene, Stage};

const MIB: usize = 1 << 20;
const QUOTA: &str = "8388608";
const FILLER: &str = "/filler/";
const ROOT: &str = "root:secret";
const PREFIX: &str = "/pg_idgen/default/";

/// Puts a value of 1 MiB; false when etcd refuses it.
fn put_mebibyte(cluster: &EtcdCluster, member: usize, release: Release, n: usize) -> bool {
    let mut put = Command::new(release.program("etcdctl"))
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &cluster.members[member].endpoint(), "put"])
        .arg(format!("{FILLER}{n}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run etcdctl");
    let mut stdin = put.stdin.take().expect("its input");
    // It may end without reading all of it.
    let _ = stdin.write_all(&vec![b'x'; MIB]);
    drop(stdin);
    put.wait().expect("wait for etcdctl").success()
}

pub fn f11_etcd_is_full_by_its_quota(release: Release) {
    let mut stage = Stage::new("F11", release, RIDE);
    stage.etcd = stage.etcd.args(&["--quota-backend-bytes", QUOTA]);
    let mut scene = stage.set().under_load();
    let filled = (0..64).find(|n| !put_mebibyte(&scene.cluster, 0, release, *n));
    assert!(filled.is_some(), "the quota is not met");
    let fault = Instant::now();
    let alarms = scene.cluster.members[0].ctl_ok(&["alarm", "list"]);
    assert!(alarms.contains("NOSPACE"), "{alarms}");
    scene.sides[0]
        .daemon()
        .wait_log(&["WARN", "NOSPACE", "alarm disarm"]);

    let held = holders(&scene, 0);
    scene.sides[1].terminate_daemon();
    assert_eq!(
        (held, holders(&scene, 0)),
        (4, 2),
        "given back although etcd is full"
    );
    scene.wait_stopped();
    scene.sides[0].daemon().wait_unready_with("NOSPACE");
    let healed = Instant::now();
    make_room(&scene);
    scene.sides[1].launch_daemon();
    scene.recover();
    let outcome = scene.finish();
    outcome.assert_fenced(0, fault, healed);
    outcome.assert_refused_for_the_lease(1);
}

fn make_room(scene: &Scene) {
    let first = &scene.cluster.members[0];
    first.ctl_ok(&["del", "--prefix", FILLER]);
    let revision = first.status().expect("status")["header"]["revision"].to_string();
    first.ctl_ok(&["compact", &revision, "--physical"]);
    for member in &scene.cluster.members {
        member.ctl_ok(&["defrag"]);
    }
    first.ctl_ok(&["alarm", "disarm"]);
}

/// A small file system of its own over a directory, gone when dropped.
struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Takes over what the directory has.
    fn over(at: &Path, size: &str) -> SmallDisk {
        let aside = at.with_extension("aside");
        fs::rename(at, &aside).expect("put the data aside");
        fs::create_dir(at).expect("make a mount point");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "tmpfs"])
            .arg(at));
        let disk = SmallDisk { at: at.to_owned() };
        run(Command::new("cp").arg("-a").arg(aside.join(".")).arg(at));
        disk
    }

    /// Not one more byte fits.
    fn fill(&self) -> PathBuf {
        let path = self.at.join("filler");
        let mut file = File::create(&path).expect("make a file");
        let block = vec![0; 4096];
        while file.write_all(&block).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("run the program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

pub fn f12_the_disk_of_a_member_is_full(release: Release) {
    let mut scene = Stage::new("F12", release, RIDE).set().under_load();
    let member = scene.cluster.leader();
    let other = (member + 1) % 3;
    scene.cluster.members[member].kill();
    // Two files of the log of 64 MB each, and some room for the data.
    let disk = SmallDisk::over(&scene.cluster.members[member].data_dir(), "200m");
    scene.cluster.members[member].run();
    scene.go_on_for(Duration::from_secs(1));
    let filler = disk.fill();
    let mut written = 0;
    eventually_true(PATIENCE * 2, "the member dies of its full disk", || {
        put_mebibyte(&scene.cluster, other, release, written);
        written += 1;
        !scene.cluster.members[member].is_healthy()
    });
    scene.note(&format!("dead after {written} MiB"));
    scene.go_on_for(RIDE);
    fs::remove_file(filler).expect("make space");
    scene.cluster.members[member].kill();
    scene.cluster.members[member].run();
    scene.go_on_for(Duration::from_secs(2));
    scene.cluster.members[member].kill();
    drop(disk);
    scene.finish().assert_nobody_noticed();
}

/// Daemons that have a user in an etcd that does not ask for one yet.
fn with_user(fault: &'static str, release: Release, ttl: Duration, files: &Scratch) -> Stage {
    let password = files.join("password");
    fs::write(&password, "daemon-secret\n").expect("write the password");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&password, closed).expect("close the file");
    let mut stage = Stage::new(fault, release, ttl);
    stage.store = format!(
        "username = \"idgend\"\npassword_file = \"{}\"",
        password.display()
    );
    stage
}

/// Switches authentication on.
fn guard(scene: &Scene) {
    let member = &scene.cluster.members[0];
    for step in [
        &["user", "add", ROOT][..],
        &["role", "add", "idgend"],
        &[
            "role",
            "grant-permission",
            "--prefix",
            "idgend",
            "readwrite",
            PREFIX,
        ],
        &["user", "add", "idgend:daemon-secret"],
        &["user", "grant-role", "idgend", "idgend"],
        &["auth", "enable"],
    ] {
        member.ctl_ok(step);
    }
}

fn as_root(scene: &Scene, args: &[&str]) {
    scene.cluster.members[0].ctl_ok(&[&["--user", ROOT], args].concat());
}

/// Every daemon has met the fault.
fn wait_log(scene: &mut Scene, parts: &[&str]) {
    for side in &mut scene.sides {
        side.daemon().wait_log(parts);
    }
}

pub fn f21_the_token_expires(release: Release) {
    let files = Scratch::new("auth");
    let mut stage = with_user("F21", release, RIDE, &files);
    stage.etcd = stage.etcd.args(&["--auth-token-ttl", "1"]);
    let mut scene = stage.set().under_load();
    guard(&scene);
    wait_log(&mut scene, &["WARN", "invalid auth token"]);
    scene.go_on_for(RIDE + Duration::from_secs(1));
    scene.finish().assert_nobody_noticed();
}

pub fn f22_the_revision_of_the_auth_store_is_old(release: Release) {
    let files = Scratch::new("auth");
    let [private, public] = ["jwt.key", "jwt.pub"].map(|name| files.join(name).display().to_string());
    for args in [
        &["genrsa", "-out", &private, "2048"][..],
        &["rsa", "-in", &private, "-pubout", "-out", &public],
    ] {
        run(Command::new("openssl").args(args));
    }
    let mut stage = with_user("F22", release, RIDE, &files);
    let token = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
    stage.etcd = stage.etcd.args(&["--auth-token", &token]);
    let mut scene = stage.set().under_load();
    guard(&scene);
    scene.go_on_for(Duration::from_secs(4));
    as_root(&scene, &["user", "add", "somebody:else"]);
    wait_log(&mut scene, &["WARN", "revision of auth store is old"]);
    scene.go_on_for(RIDE);
    scene.finish().assert_nobody_noticed();
}

pub fn f23_the_role_loses_its_permission(release: Release) {
    let files = Scratch::new("auth");
    let mut scene = with_user("F23", release, FENCE, &files).set().under_load();
    guard(&scene);
    scene.go_on_for(FENCE);
    let tokens = [scene.sides[0].token(), scene.sides[1].token()];
    let fault = Instant::now();
    as_root(
        &scene,
        &["role", "revoke-permission", "--prefix", "idgend", PREFIX],
    );
    scene.wait_stopped();
    wait_log(&mut scene, &["WARN", "permission denied", "grant-permission"]);
    let healed = Instant::now();
    as_root(
        &scene,
        &[
            "role",
            "grant-permission",
            "--prefix",
            "idgend",
            "readwrite",
            PREFIX,
        ],
    );
    scene.recover();
    for (side, before) in scene.sides.iter().zip(tokens) {
        assert!(side.token() > before, "a new token");
    }
    let outcome = scene.finish();
    for side in [0, 1] {
        outcome.assert_fenced(side, fault, healed);
    }
}

pub fn f25_the_ttl_is_raised_by_the_server(release: Release) {
    let mut stage = Stage::new("F25", release, FENCE);
    let slow = ["--heartbeat-interval", "500", "--election-timeout", "5000"];
    stage.etcd = stage.etcd.args(&slow);
    let mut scene = stage.set().under_load();
    let leases = scene.cluster.members[0].ctl_ok(&["lease", "list"]);
    let id = leases.lines().last().expect("a lease").to_owned();
    let kept = scene.cluster.members[0].ctl_ok(&["lease", "timetolive", &id]);
    scene.note(kept.trim());
    let left = "SELECT max(deadline_in_ms) FROM idgen.slots WHERE state = 'open'";
    let longest: i64 = sql::value(&mut scene.sides[0].client(), left);
    let asked = i64::try_from(FENCE.as_millis()).expect("ms");
    assert!(
        longest > asked,
        "{longest} ms to the deadline: not that of a TTL of {asked} ms"
    );
    scene.go_on_for(FENCE * 2);
    scene.finish().assert_nobody_noticed();
}
