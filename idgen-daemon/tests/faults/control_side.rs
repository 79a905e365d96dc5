//! Faults of the control plane: who may take a shard from its holder by force, and what becomes of the holder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::load::Report;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Flow, Load, LoadOptions, Mode, PATIENCE, Release, Scratch, eventually, eventually_true, pace, sql, users,
};
use crate::scene::{LEASE_ENDED, RIDE, Scene, Side, Stage, load_options};

const PASSWORD: &str = "correct horse battery staple";
const APPROVALS: &str = "/pg_idgen/default.approval/";
const SHARD: i32 = 7;
const NAME: &str = "shard/7";
/// Of ids of a shard: 13 bits for it and 10 for the sequence; since 2020.
const SHARDED_TIME_SHIFT: u32 = 23;
const EPOCH_MS: u64 = 1_577_836_800_000;
/// Longer than people and their programs need on a busy machine while the holder is cut off.
const FORCE: Duration = Duration::from_secs(15);
/// What a request to etcd and `idgenctl` add to a period.
const REQUEST: Duration = Duration::from_secs(2);

/// A scene whose etcd knows alice and bob as approvers, and mallory as nobody.
struct Council {
    scene: Scene,
    people: Scratch,
}

impl Council {
    /// The shard is held by the first server; the other one has shards as well.
    fn set(fault: &'static str, release: Release, ttl: Duration) -> Council {
        let (people, files) = (Scratch::new("people"), Scratch::new("auth"));
        let mut stage = Stage::new(fault, release, ttl);
        // A password must not cost a tenth of a second of a busy processor here.
        stage.etcd = stage.etcd.args(&["--bcrypt-cost", "4"]);
        stage.store_more = users::store_lines(&files, PASSWORD);
        stage.files = Some(files);
        let mut scene = stage.set();
        for (side, shards) in scene.sides.iter_mut().zip(["7, 8", "9"]) {
            side.terminate_daemon();
            side.options = side.options.clone().shards(shards);
            side.launch_daemon();
            side.daemon().wait_ready();
        }
        assert!(is_open(&scene.sides[0]));
        let council = Council { scene, people };
        council.add_people();
        Council {
            scene: council.scene.under_load(),
            people: council.people,
        }
    }

    fn add_people(&self) {
        let member = &self.scene.cluster.members[0];
        users::add_users(member, PASSWORD);
        let permit = |role: &str, kind: &str, prefix: &str| {
            member.ctl_ok(&["role", "grant-permission", "--prefix", role, kind, prefix]);
        };
        permit("idgend", "read", APPROVALS);
        let password = self.people.join("password");
        put(&self.people, "password", PASSWORD);
        for who in ["alice", "bob", "mallory"] {
            member.ctl_ok(&["user", "add", &format!("{who}:{PASSWORD}")]);
            member.ctl_ok(&["role", "add", who]);
            member.ctl_ok(&["user", "grant-role", who, who]);
            let lines = format!(
                "username = \"{who}\"\npassword_file = \"{}\"\n",
                password.display()
            );
            put(&self.people, who, &lines);
        }
        for who in ["alice", "bob"] {
            permit(who, "readwrite", &format!("{APPROVALS}{who}/"));
        }
        member.ctl_ok(&["auth", "enable"]);
    }

    /// By the configuration of the last server, which nothing cuts off. As often as the store does not answer in time.
    fn ask(&self, command: &[&str]) -> Answer {
        let side = self.scene.sides.last().expect("a side");
        let config = side.daemon.as_ref().expect("a daemon").config_path();
        let config = config.to_str().expect("utf-8");
        eventually(PATIENCE, "the store answers", || {
            let answer = idgenctl(&[command, &["--config", config, "--output", "json"]].concat());
            Some(answer).filter(|answer| answer.code != Some(1))
        })
    }

    fn told(&self, command: &[&str]) -> Value {
        let answer = self.ask(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {}", answer.stderr);
        serde_json::from_str(&answer.stdout).expect("JSON")
    }

    fn request(&self, expires: &str) -> String {
        let why = ["--reason", "its host burns", "--expires", expires];
        let asked = self.told(&[&["leases", "force-release", NAME], &why[..]].concat());
        asked["request"].as_str().expect("a request").to_owned()
    }

    fn approve(&self, who: &str, request: &str) -> Answer {
        let credentials = self.people.join(who).display().to_string();
        self.ask(&[
            "approvals",
            "approve",
            request,
            "--credentials",
            &credentials,
            "--yes",
        ])
    }

    /// What has become of the request then.
    fn approved(&self, who: &str, request: &str) -> String {
        let answer = self.approve(who, request);
        assert_eq!(answer.code, Some(0), "{who}: {}", answer.stderr);
        let shown: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        shown["state"].as_str().expect("a state").to_owned()
    }

    fn refused(&self, who: &str, request: &str, why: &str) {
        let answer = self.approve(who, request);
        assert_eq!(answer.code, Some(3), "{who}: {}{}", answer.stdout, answer.stderr);
        assert!(answer.stderr.contains(why), "{who}: {}", answer.stderr);
    }

    fn holder(&self) -> Value {
        self.told(&["leases", "show", NAME])["holder"].clone()
    }

    /// Another lease than this one, of whoever it is.
    fn held_anew(&self, before: &Value) -> Value {
        eventually(PATIENCE, "the shard is held anew", || {
            let (holder, revision) = (self.holder(), |holder: &Value| holder["revision"].as_u64());
            (revision(&holder) > revision(before)).then_some(holder)
        })
    }

    fn shard_load(&self, side: usize) -> Load {
        let options = LoadOptions {
            shard: Some(SHARD),
            ..load_options()
        };
        let load = Load::run(&self.scene.sides[side].server, &options);
        load.wait_statements(5);
        load
    }
}

fn put(files: &Scratch, name: &str, content: &str) {
    let path = files.join(name);
    fs::write(&path, content).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("close the file");
}

/// The token of the shard where it mints.
fn open_token(side: &Side) -> Option<i64> {
    let token = format!(
        "SELECT max(token_revision) FROM idgen.slot_states() WHERE state = 'open' AND kind = 'shard' AND identity = {SHARD}"
    );
    sql::value(&mut side.client(), &token)
}

fn is_open(side: &Side) -> bool {
    open_token(side).is_some()
}

fn assert_refused_for_the_lease(report: &Report) {
    let known = |code: &str| LEASE_ENDED.contains(&code);
    let other = report.refusals.iter().find(|refusal| !known(&refusal.code));
    assert!(other.is_none(), "{other:?}");
}

fn assert_unique(reports: &[&Report]) {
    let mut ids = UniquenessRecorder::new();
    for report in reports {
        ids.extend(report.snowflakes());
        report.assert_rising();
    }
    ids.assert_unique("snowflakes of the shard", 100);
}

/// Two people who are different and whom the store knows, of a request that has not expired, for the lease that is held.
pub fn f55_force_release_by_too_few(release: Release) {
    let council = Council::set("F55", release, RIDE);
    let load = council.shard_load(0);
    let before = council.holder();
    let first = council.request("1h");
    assert_eq!(council.approved("alice", &first), "open", "one");
    assert_eq!(council.approved("alice", &first), "open", "the same one twice");
    council.refused("mallory", &first, "permission denied");
    assert_eq!(
        council.holder()["revision"],
        before["revision"],
        "nobody has taken it"
    );
    let state = council.approved("bob", &first);
    assert!(state.contains("taken"), "two: {state}");
    let after = council.held_anew(&before);
    council.refused("bob", &first, "the request was used");

    let second = council.request("1h");
    assert_eq!(
        council.approved("bob", &second),
        "open",
        "what was for the first one"
    );
    council.told(&["leases", "revoke", NAME, "--reason", "a new token"]);
    let later = council.held_anew(&after);
    council.refused("alice", &second, "whoever holds it now is not meant");
    let third = council.request("1ms");
    council.refused("alice", &third, "expired");
    assert_eq!(
        council.holder()["revision"],
        later["revision"],
        "nobody has taken it"
    );
    load.wait_statements(5);
    let report = load.finish();
    assert_refused_for_the_lease(&report);
    assert_unique(&[&report]);
    council.scene.finish().assert_nobody_noticed();
}

pub fn f56_force_release_of_a_live_holder(release: Release) {
    a_holder_that_hears_of_it(release);
    a_holder_that_is_cut_off(release);
}

/// It gives the lease back with the order, or with its next renewal at the latest.
fn a_holder_that_hears_of_it(release: Release) {
    let mut council = Council::set("F56", release, FORCE);
    let load = council.shard_load(0);
    let token = open_token(&council.scene.sides[0]);
    let before = council.holder();
    let request = council.request("1h");
    council.approved("alice", &request);
    let ordered = Instant::now();
    let state = council.approved("bob", &request);
    assert!(state.contains("taken"), "{state}");
    let side = &council.scene.sides[0];
    eventually_true(PATIENCE, "it mints no more by what it had", || {
        open_token(side) != token
    });
    let limit = council.scene.period() + REQUEST;
    let took = pace::assert_within(
        ordered,
        limit,
        "from the second approval until the holder has stopped",
    );
    council
        .scene
        .note(&format!("heard of after {} ms", took.as_millis()));
    council.held_anew(&before);
    load.wait_statements(5);
    let report = load.finish();
    assert_refused_for_the_lease(&report);
    assert_unique(&[&report]);
    council.scene.finish().assert_nobody_noticed();
}

/// It mints to its deadline; whoever has the shard next begins above its ceiling.
fn a_holder_that_is_cut_off(release: Release) {
    let mut council = Council::set("F56", release, FORCE);
    let load = council.shard_load(0);
    let before = council.holder();
    let request = council.request("1h");
    council.approved("alice", &request);
    council.scene.sides[0].network(Mode::Stall(Flow::Both));
    let fault = Instant::now();
    let state = council.approved("bob", &request);
    assert!(state.contains("taken"), "{state}");
    let ceiling_ms = council.told(&["leases", "show", NAME])["ceiling_ms"].as_u64();
    council.told(&["shards", "move", "7", "--to", "right", "--wait", "60s"]);
    assert_eq!(council.held_anew(&before)["name"], "right");
    eventually_true(PATIENCE, "the next one has it", || {
        is_open(&council.scene.sides[1])
    });
    let next_load = council.shard_load(1);
    council.scene.sides[0].wait_stopped();
    let healed = Instant::now();
    council.scene.sides[0].network(Mode::Pass);
    let (report, next) = (load.finish(), next_load.finish());
    council.scene.recover();
    let stopped = report
        .last_success_before(healed)
        .saturating_duration_since(fault);
    let usable = council.scene.usable();
    pace::assert_took(
        fault,
        fault + stopped,
        usable,
        "from the cut to the last id of the shard",
    );
    assert_unique(&[&report, &next]);
    let last = report.snowflakes().max().expect("ids of the first one");
    let first = next.snowflakes().min().expect("ids of the next one");
    assert!(first > last, "{first} is not above {last}");
    let first_ms = (first.cast_unsigned() >> SHARDED_TIME_SHIFT) + EPOCH_MS;
    assert!(Some(first_ms) > ceiling_ms, "{first_ms} and {ceiling_ms:?}");
    assert_refused_for_the_lease(&report);
    council
        .scene
        .note(&format!("cut off, to its deadline: {} ms", stopped.as_millis()));
    let outcome = council.scene.finish();
    outcome.assert_refused_for_the_lease(0);
    outcome.assert_unnoticed_by(1);
}
