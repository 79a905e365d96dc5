//! What needs two people: who counts as one is said by the store, whatever anybody claims, and an approval is for one request.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::audit;
use crate::kit::daemon::{Answer, idgenctl};
use crate::kit::process::Signal;
use crate::kit::{
    Authority, CertDir, Daemon, DaemonOptions, Etcd, EtcdOptions, Load, PATIENCE, Scratch, Server, Store,
    eventually, eventually_true, sql, users,
};

pub const PREFIX: &str = "/pg_idgen/default";
const PASSWORD: &str = "not-so-secret";

/// A cell, and files that say how people log in to its store.
pub struct Site {
    pub server: Server,
    pub daemon: Daemon,
    files: Scratch,
}

impl Site {
    pub fn ask(&self, command: &[&str]) -> Answer {
        let config = self.daemon.config_path().to_str().expect("utf-8");
        idgenctl(&[command, &["--config", config, "--output", "json"]].concat())
    }

    pub fn told(&self, command: &[&str]) -> Value {
        let answer = self.ask(command);
        assert_eq!(answer.code, Some(0), "{command:?}: {}", answer.stderr);
        serde_json::from_str(&answer.stdout).expect("JSON")
    }

    pub fn force_release(&self, identity: &str) -> String {
        let command = ["leases", "force-release", identity, "--reason", "its host burns"];
        let asked = self.told(&command);
        assert_eq!(
            (&asked["state"], &asked["needed"]),
            (&"open".into(), &2.into()),
            "{asked}"
        );
        asked["request"].as_str().expect("a request").to_owned()
    }

    /// As often as the store does not answer in time: an approval that is given twice is one.
    fn approve(&self, who: &str, request: &str) -> Answer {
        let credentials = self.files.join(who);
        let credentials = credentials.to_str().expect("utf-8");
        let approve = [
            "approvals",
            "approve",
            request,
            "--credentials",
            credentials,
            "--yes",
        ];
        eventually(PATIENCE, "the store answers", || {
            Some(self.ask(&approve)).filter(|answer| answer.code != Some(1))
        })
    }

    /// Who has approved it then, and what has become of it.
    pub fn approved(&self, who: &str, request: &str) -> (Vec<String>, String) {
        let answer = self.approve(who, request);
        assert_eq!(answer.code, Some(0), "{who}: {}", answer.stderr);
        let shown: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        let by = shown["approved_by"].as_array().expect("a list").iter();
        let by = by.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        (by, shown["state"].as_str().expect("a state").to_owned())
    }

    fn refused(&self, who: &str, request: &str, why: &str) {
        let answer = self.approve(who, request);
        assert_eq!(answer.code, Some(3), "{who}: {}{}", answer.stdout, answer.stderr);
        assert!(
            answer.stderr.contains(why),
            "{who}: {why} is not in {}",
            answer.stderr
        );
    }

    pub fn lease(&self, identity: &str) -> Value {
        self.told(&["leases", "show", identity])
    }

    pub fn held_again(&self, identity: &str, after: &Value) -> Value {
        eventually(PATIENCE, "it is held again", || {
            let lease = self.lease(identity);
            let revision = |lease: &Value| lease["holder"]["revision"].as_u64();
            (revision(&lease) > revision(after)).then_some(lease)
        })
    }
}

fn put(files: &Scratch, name: &str, content: &str) {
    let path = files.join(name);
    fs::write(&path, content).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("close the file");
}

const SHARD_TIMES: &str = "7, 8";

/// F55 on any store that knows alice and bob as approvers, and mallory as nobody.
fn who_may_take_a_shard_by_force(site: &Site, mallory: &str) {
    let before = site.lease("shard/7");
    let first = site.force_release("shard/7");
    // One person, once and twice.
    assert_eq!(
        site.approved("alice", &first),
        (vec!["alice".to_owned()], "open".to_owned())
    );
    assert_eq!(
        site.approved("alice", &first),
        (vec!["alice".to_owned()], "open".to_owned())
    );
    site.refused("mallory", &first, mallory);
    assert_eq!(site.lease("shard/7")["holder"], before["holder"]);

    // Two people; the holder, which lives, stops, and nobody gets an id twice.
    Load::make_tag(&site.server);
    let load = Load::resume(&site.server, 1);
    load.wait_statements(3);
    let (by, state) = site.approved("bob", &first);
    assert_eq!(by, ["alice", "bob"]);
    assert!(state.contains("taken"), "{state}");
    let taken = site.lease("shard/7");
    assert_eq!(taken["order"]["request"], first.as_str(), "{taken}");
    assert_eq!(taken["order"]["revision"], before["holder"]["revision"]);
    assert!(
        taken["order"]["by"]
            .as_str()
            .is_some_and(|by| by.contains("approved by alice, bob"))
    );
    // Its old ceiling stays, so the next one begins above it.
    let after = site.held_again("shard/7", &before);
    assert!(after["ceiling_ms"].as_u64() > before["ceiling_ms"].as_u64());
    load.finish().assert_unique(20);

    // An old approval replayed: the request is used, and so are its approvals.
    site.refused("bob", &first, "the request was used");
    assert_eq!(site.lease("shard/7")["holder"], after["holder"]);

    // An approval for an older generation: the lease has ended meanwhile, and another one is not meant.
    let second = site.force_release("shard/7");
    let (by, _) = site.approved("bob", &second);
    assert_eq!(by, ["bob"], "those of the first request count for nothing");
    site.told(&["leases", "revoke", "shard/7", "--reason", "a new token"]);
    let later = site.held_again("shard/7", &after);
    site.refused("alice", &second, "whoever holds it now is not meant");
    assert_eq!(site.lease("shard/7")["holder"], later["holder"]);

    // Too late.
    let command = [
        "leases",
        "force-release",
        "shard/7",
        "--reason",
        "x",
        "--expires",
        "1ms",
    ];
    let third = site.told(&command)["request"]
        .as_str()
        .expect("a request")
        .to_owned();
    site.refused("alice", &third, "expired");
}

/// Before anything is done it is said in a sentence, and a dry run says it too.
fn what_will_happen_is_said_before(site: &Site) {
    let request = site.force_release("shard/8");
    let credentials = site.files.join("alice");
    let credentials = credentials.to_str().expect("utf-8");
    let approve = ["approvals", "approve", &request, "--credentials", credentials];
    let asked_nobody = site.ask(&approve);
    assert_eq!(asked_nobody.code, Some(2), "no terminal: {}", asked_nobody.stderr);
    let said = site.told(&[&approve[..], &["--dry-run"]].concat());
    let would = said["would"].as_str().expect("a sentence");
    for part in [
        "Shard 8 is taken from server site",
        "last heard of about",
        "The next holder begins above",
    ] {
        assert!(would.contains(part), "{part} is not in {would}");
    }
    assert_eq!(
        said["approved_by"],
        Value::Array(Vec::new()),
        "nothing was written"
    );
}

/// A server whose own database is the store, with logins for people.
pub fn in_tables() -> Site {
    let server = Server::start();
    let mut client = server.connect();
    for who in ["alice", "bob", "mallory"] {
        sql::run(&mut client, &format!("CREATE ROLE {who} LOGIN"));
    }
    sql::run(
        &mut client,
        "SELECT idgen.grant_approver('alice'), idgen.grant_approver('bob')",
    );
    let files = Scratch::new("people");
    for who in ["alice", "bob", "mallory", "postgres"] {
        let url = server.daemon_url().replace("user=idgend", &format!("user={who}"));
        put(&files, who, &format!("url = \"{url}\"\n"));
    }
    let options = DaemonOptions::new(&server).store(Store::on(&server)).name("site");
    let daemon = options.shards(SHARD_TIMES).start();
    Site {
        server,
        daemon,
        files,
    }
}

#[test]
fn in_tables_two_logins_take_a_shard_by_force_and_one_does_not() {
    let site = in_tables();
    who_may_take_a_shard_by_force(&site, "permission denied for function approve");
    what_will_happen_is_said_before(&site);
    audit::in_tables_root_is_flagged_and_two_people_are_not(&site);
}

/// `session_user` counts, and the tables are nobody's to write.
#[test]
fn in_tables_nobody_approves_as_somebody_else() {
    let site = in_tables();
    let request = site.force_release("shard/7");
    site.refused("postgres", &request, "or a superuser");
    let digest =
        format!("(SELECT sha256(convert_to(ask, 'UTF8')) FROM idgen.request WHERE request_id = '{request}')");
    let digest: Vec<u8> = sql::value(&mut site.server.connect(), &format!("SELECT {digest}"));
    sql::run(&mut site.server.connect(), "GRANT bob TO alice");
    let mut alice = site.server.connect_as("alice");
    sql::run(&mut alice, "SET ROLE bob");
    let approved = alice.query_one(
        "SELECT idgen.approve($1::text::uuid, $2)::text",
        &[&request, &digest],
    );
    let who: String = approved.expect("approved").get(0);
    assert_eq!(who, "alice", "SET ROLE forges nothing");
    for write in [
        format!("INSERT INTO idgen.approval VALUES ('{request}', 'bob', sha256(''))"),
        "UPDATE idgen.approval SET approver = 'bob'".to_owned(),
        "INSERT INTO idgen.approver VALUES ('mallory', 1)".to_owned(),
        "SELECT idgen.grant_approver('mallory')".to_owned(),
    ] {
        for who in ["alice", "idgend"] {
            sql::refusal(&mut site.server.connect_as(who), &write, "42501");
        }
    }
    // A request that is changed afterwards has no approvals.
    let change = format!(
        "UPDATE idgen.request SET ask = replace(ask, 'burns', 'is fine') WHERE request_id = '{request}'"
    );
    sql::refusal(&mut site.server.connect_as("idgend"), &change, "42501");
    sql::run(&mut site.server.connect(), &change);
    let (by, state) = site.approved("bob", &request);
    assert_eq!(
        (by, state),
        (vec!["bob".to_owned()], "open".to_owned()),
        "alice's was for another text"
    );
    let wrong = format!("SELECT idgen.approve('{request}', sha256(''))");
    sql::refusal(&mut site.server.connect_as("alice"), &wrong, "IG041");
}

/// etcd with client certificates: the common name is the user, and each may write below its own name only.
pub fn in_etcd() -> (Etcd, Authority, CertDir, Site) {
    let authority = Authority::new("people");
    let certs = CertDir::of(&authority);
    let etcd = Etcd::with(EtcdOptions::default().certs(&certs).args(&["--bcrypt-cost", "4"]));
    for user in ["root", "idgend", "alice", "bob", "mallory"] {
        etcd.ctl_ok(&["user", "add", &format!("{user}:{PASSWORD}")]);
    }
    etcd.ctl_ok(&["user", "grant-role", "root", "root"]);
    let permit = |role: &str, kind: &str, prefix: &str| {
        etcd.ctl_ok(&["role", "grant-permission", "--prefix", role, kind, prefix]);
    };
    for role in ["idgend", "alice", "bob", "mallory"] {
        etcd.ctl_ok(&["role", "add", role]);
        etcd.ctl_ok(&["user", "grant-role", role, role]);
    }
    permit("idgend", "readwrite", users::PREFIX);
    permit("idgend", "read", &format!("{PREFIX}.approval/"));
    for role in ["alice", "bob"] {
        permit(role, "readwrite", &format!("{PREFIX}.approval/{role}/"));
    }
    etcd.ctl_ok(&["auth", "enable"]);
    let files = Scratch::new("people");
    for who in ["alice", "bob", "mallory", "root"] {
        certs.put(who, &authority.client(who));
        let path = |end: &str| certs.join(&format!("{who}.{end}")).display().to_string();
        let lines = format!(
            "cert_file = \"{}\"\nkey_file = \"{}\"\n",
            path("pem"),
            path("key")
        );
        put(&files, who, &lines);
    }
    let server = Server::start();
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd)).name("site");
    let options = options.store_more(&certs.store_lines()).shards(SHARD_TIMES);
    let daemon = options.start();
    let site = Site {
        server,
        daemon,
        files,
    };
    (etcd, authority, certs, site)
}

#[test]
fn in_etcd_two_certificates_take_a_shard_by_force_and_one_does_not() {
    let (etcd, _authority, certs, site) = in_etcd();
    who_may_take_a_shard_by_force(&site, "permission denied");
    what_will_happen_is_said_before(&site);
    audit::in_etcd_root_is_flagged_and_two_people_are_not(&site, &etcd, &certs);
}

#[test]
fn in_etcd_nobody_approves_as_somebody_else() {
    let (etcd, _authority, certs, site) = in_etcd();
    let request = site.force_release("shard/7");
    // Who may write for all is nobody in particular.
    site.refused("root", &request, "nobody in particular");
    etcd.ctl_ok(&[
        "role",
        "grant-permission",
        "--prefix",
        "mallory",
        "readwrite",
        &format!("{PREFIX}.approval/"),
    ]);
    site.refused("mallory", &request, "nobody in particular");
    // With somebody else's certificate and key one is that person; with one's own, not.
    let as_alice = |key: &str, value: &str| {
        let path = |end: &str| certs.join(&format!("alice.{end}")).display().to_string();
        etcd.ctl(&["--cert", &path("pem"), "--key", &path("key"), "put", key, value])
    };
    let bobs = format!("{PREFIX}.approval/bob/{request}");
    assert!(as_alice(&bobs, "x").stderr.contains("permission denied"));
    assert!(
        as_alice(&format!("{PREFIX}/request/{request}/done"), "x")
            .stderr
            .contains("permission denied")
    );
    // Below one's own name there are no other names, and a digest of nothing is none.
    let (by, _) = site.approved("alice", &request);
    assert_eq!(by, ["alice"]);
    let value = etcd.ctl_ok(&[
        "get",
        "--print-value-only",
        &format!("{PREFIX}.approval/alice/{request}"),
    ]);
    for key in [
        format!("{PREFIX}.approval/alice/bob/{request}"),
        format!("{PREFIX}.approval/alice//{request}"),
    ] {
        assert_eq!(as_alice(&key, value.trim()).code, Some(0), "{key}");
    }
    let listed = site.told(&["approvals", "list"]);
    assert_eq!(listed["needed"], 2, "people can be told apart");
    assert_eq!(listed["requests"][0]["approved_by"], serde_json::json!(["alice"]));
}

/// Where nobody can be told from anybody, nothing is taken by force, and one person opens a sealed store.
#[test]
fn without_users_nobody_is_two_people() {
    let etcd = Etcd::start();
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).store(Store::etcd(&etcd)).start();
    let files = Scratch::new("people");
    put(
        &files,
        "alice",
        "username = \"alice\"\npassword_file = \"/dev/null\"\n",
    );
    let site = Site {
        server,
        daemon,
        files,
    };
    assert_eq!(site.told(&["approvals", "list"])["needed"], 1);
    let workers = site.told(&["leases", "list"]);
    let worker = format!("worker/{}", workers["leases"][0]["identity"]);
    let answer = site.ask(&["leases", "force-release", &worker, "--reason", "x"]);
    assert_eq!(answer.code, Some(3), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("cannot tell two people apart"),
        "{}",
        answer.stderr
    );
}

/// The store is sealed; two people open it, the second one does it.
#[test]
fn two_people_advance_the_epoch_where_there_are_two() {
    let site = in_tables();
    let store = site.told(&["epoch", "show"]);
    assert_eq!(store["approvals_needed"], 2);
    sql::run(
        &mut site.server.connect(),
        "UPDATE idgen.cell SET sealed_reason = 'to be tried'",
    );
    let identity = store["identity"].as_str().expect("an identity");
    let advance = [
        "epoch",
        "advance",
        "--identity",
        identity,
        "--reason",
        "tried",
        "--yes",
    ];
    let asked = site.told(&advance);
    let request = asked["request"].as_str().expect("a request").to_owned();
    assert_eq!(asked["needed"], 2, "{asked}");
    let epoch =
        |site: &Site| -> i64 { sql::value(&mut site.server.connect(), "SELECT epoch FROM idgen.cell") };
    assert_eq!(site.approved("alice", &request).1, "open");
    assert_eq!(epoch(&site), 0);
    let (by, state) = site.approved("bob", &request);
    assert_eq!((by.len(), state.as_str()), (2, "epoch 1 has begun"));
    assert_eq!(epoch(&site), 1);
    let changed: String = sql::value(&mut site.server.connect(), "SELECT changed_by FROM idgen.epoch");
    assert!(changed.ends_with("approved by alice, bob"), "{changed}");
    eventually_true(PATIENCE, "it mints again", || {
        site.server
            .connect()
            .query_one("SELECT idgen_snowflake()", &[])
            .is_ok()
    });
    site.refused("bob", &request, "the request was used");

    // To need fewer takes as many as are needed.
    let need = site.told(&["approvals", "need", "1", "--reason", "one of us leaves"]);
    let request = need["request"].as_str().expect("a request").to_owned();
    assert_eq!(site.approved("alice", &request).1, "open");
    assert_eq!(site.told(&["approvals", "list"])["needed"], 2);
    site.approved("bob", &request);
    let listed = site.told(&["approvals", "list"]);
    assert_eq!((&listed["needed"], &listed["is_set"]), (&1.into(), &true.into()));
    assert!(site.told(&["epoch", "show",]).get("approvals_needed") == Some(&1.into()));
}

/// F56 in a frozen daemon: the server mints to its deadline, and the next holder begins above its ceiling.
#[test]
fn a_holder_whose_daemon_is_frozen_loses_a_worker_by_force_and_no_id_is_given_twice() {
    let site = in_tables();
    let mut other = DaemonOptions::new(&site.server);
    other.name = "frozen".to_owned();
    let second = Server::start();
    let frozen = DaemonOptions {
        postgres_url: second.daemon_url(),
        ..other
    };
    let frozen = frozen.store(Store::on(&site.server)).ttl_ms(6_000).start();
    let of_frozen = |list: &Value| {
        let leases = list["leases"].as_array().expect("a list").iter();
        let held = leases.filter(|lease| lease["holder"]["name"] == "frozen" && lease["class"] == "worker");
        held.filter_map(|lease| lease["identity"].as_u64()).next()
    };
    let worker = eventually(PATIENCE, "it holds a worker", || {
        of_frozen(&site.told(&["leases", "list"]))
    });
    let identity = format!("worker/{worker}");
    let before = site.lease(&identity);
    Load::make_tag(&second);
    let load = Load::resume(&second, 1);
    load.wait_statements(3);
    frozen.signal(Signal::STOP);
    let request = site.force_release(&identity);
    site.approved("alice", &request);
    site.approved("bob", &request);
    let after = site.lease(&identity);
    assert_eq!(after["holder"], Value::Null, "{after}");
    assert!(
        after["ceiling_ms"].as_u64() >= before["ceiling_ms"].as_u64(),
        "what it may have minted stays its own"
    );
    frozen.signal(Signal::CONT);
    frozen.wait_log(&["lease lost"]);
    load.finish().assert_unique(20);
}
