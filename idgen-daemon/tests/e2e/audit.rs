//! The auditor of what needs two people, which is `idgenctl events verify`: two people are in order, and root is flagged. And
//! one request as it is shown whole.

use serde_json::Value;

use crate::approvals::{PREFIX, Site, in_etcd, in_tables};
use crate::kit::daemon::idgenctl;
use crate::kit::{CertDir, Etcd, PATIENCE, eventually, sql};

/// What root does by hand to a lease, past the approvals: class, number and request.
type ByHand<'h> = &'h dyn Fn(&Site, &str, u64, &str);

fn list(site: &Site, command: &[&str], field: &str) -> Vec<Value> {
    site.told(command)[field].as_array().expect("a list").clone()
}

/// Compared, whatever it finds.
fn verify(site: &Site) -> (Option<i32>, Value) {
    let answer = eventually(PATIENCE, "store and trail are compared", || {
        Some(site.ask(&["events", "verify"])).filter(|answer| answer.code != Some(4))
    });
    (answer.code, serde_json::from_str(&answer.stdout).expect("JSON"))
}

/// After a release of shard 7 by alice and bob. `release`: it is taken by hand; `forge`: as idgenctl would, down to the use of a
/// request that one person has approved.
fn root_is_flagged_and_two_people_are_not(site: &Site, release: ByHand<'_>, forge: ByHand<'_>) {
    let released = ["events", "list", "--kind", "force_released", "--limit", "1000"];
    let forced = eventually(PATIENCE, "the release is in the trail", || {
        list(site, &released, "events").pop()
    });
    assert_eq!(
        (&forced["subject"], &forced["finding"]),
        (&"shard 7".into(), &Value::Null)
    );
    let by = forced["detail"]["by"].as_str().expect("by whom");
    assert!(by.contains("approved by alice, bob"), "{by}");
    let (code, verdict) = verify(site);
    assert_eq!(code, Some(0), "{verdict}");

    let leases = list(site, &["leases", "list", "--class", "worker"], "leases");
    let held = leases.iter().filter(|lease| lease["state"] == "held");
    let worker = held
        .filter_map(|lease| lease["identity"].as_u64())
        .next()
        .expect("a worker");
    for (by_hand, class, number, told_in) in [
        (forge, "shard", 8, "unapproved"),
        (release, "worker", worker, "findings"),
    ] {
        let request = site.force_release(&format!("{class}/{number}"));
        assert_eq!(site.approved("alice", &request).0, ["alice"]);
        by_hand(site, class, number, &request);
        let subject = format!("{class} {number}");
        let (code, verdict) = eventually(PATIENCE, "the auditor has found it", || {
            Some(verify(site)).filter(|(_, verdict)| verdict[told_in].to_string().contains(&subject))
        });
        assert_eq!(code, Some(3), "{verdict}");
        let found = verdict[told_in].as_array().expect("a list");
        assert_eq!(found.len(), 1, "and nothing else: {verdict}");
        println!("root has taken {subject}: {}", found[0]);
        match found[0].as_str() {
            Some(unapproved) => assert!(unapproved.ends_with("(approved by alice)"), "{unapproved}"),
            None => assert_eq!(found[0]["finding"], "removed_early"),
        }
    }
}

pub fn in_tables_root_is_flagged_and_two_people_are_not(site: &Site) {
    let of = |class: &str, number: u64| format!("WHERE kind = '{class}' AND identity = {number}");
    let take = |class: &str, number: u64, request: &str| {
        let (of, by) = (of(class, number), "root, approved by alice, bob");
        format!(
            "INSERT INTO idgen.lease_order
             SELECT kind, identity, token_epoch, token_revision, now(), '{by}', 'x', '{request}'::uuid, revision
               FROM idgen.lease {of}
                 ON CONFLICT (kind, identity) DO UPDATE
                SET token_revision = excluded.token_revision, request_id = excluded.request_id;
             UPDATE idgen.lease SET holder = NULL, holder_name = NULL, token_epoch = NULL, token_revision = NULL,
                    boot_id = NULL, expires_at = NULL {of};"
        )
    };
    let run = |site: &Site, statements: &str| {
        sql::run(&mut site.server.connect(), &format!("BEGIN; {statements} COMMIT"));
    };
    let release = |site: &Site, class: &str, number: u64, request: &str| {
        run(site, &take(class, number, request));
    };
    let forge = |site: &Site, class: &str, number: u64, request: &str| {
        let done = "UPDATE idgen.request SET done_at = now(), outcome = 'taken' WHERE request_id =";
        run(
            site,
            &format!("{} {done} '{request}';", take(class, number, request)),
        );
    };
    root_is_flagged_and_two_people_are_not(site, &release, &forge);
}

pub fn in_etcd_root_is_flagged_and_two_people_are_not(site: &Site, etcd: &Etcd, certs: &CertDir) {
    let path = |end: &str| certs.join(&format!("root.{end}")).display().to_string();
    let (cert, key) = (path("pem"), path("key"));
    let login = ["--cert", &cert, "--key", &key];
    let holder = |class: &str, number: u64| format!("{PREFIX}/{}/{number}/holder", &class[..1]);
    let release = |_: &Site, class: &str, number: u64, _: &str| {
        etcd.ctl_ok(&[&login[..], &["del", &holder(class, number)]].concat());
    };
    let forge = |site: &Site, class: &str, number: u64, request: &str| {
        let held = site.lease(&format!("{class}/{number}"))["holder"].clone();
        let order = serde_json::json!({"token_epoch": held["epoch"], "token_revision": held["revision"], "at_ms": 1,
            "by": "root, approved by alice, bob", "reason": "x", "request": request});
        let done = serde_json::json!({"at_ms": 1, "outcome": "taken", "approved_by": ["alice", "bob"]});
        // In double quotes: etcdctl cuts what stands in single ones.
        let quoted = |value: Value| Value::from(value.to_string()).to_string();
        let (order, done) = (quoted(order), quoted(done));
        let operations = [
            format!("put {PREFIX}/order/{}/{number} {order}", &class[..1]),
            format!("del {}", holder(class, number)),
            format!("put {PREFIX}/request/{request}/done {done}"),
        ];
        etcd.txn_ok(&login, &operations.join("\n"));
    };
    root_is_flagged_and_two_people_are_not(site, &release, &forge);
}

/// One request, whole; and that it is pending, where somebody looks at the lease.
fn a_request_is_shown_whole(site: &Site) {
    let request = site.force_release("shard/8");
    let shown = site.told(&["approvals", "show", &request]);
    assert_eq!(shown["request"], request.as_str());
    assert_eq!(shown["asks"]["force_release"]["identity"], 8, "{shown}");
    assert_eq!((&shown["state"], &shown["needed"]), (&"open".into(), &2.into()));
    let (would, left_s) = (shown["would"].as_str(), shown["expires_in_s"].as_u64());
    assert!(
        would.is_some_and(|would| would.contains("Shard 8 is taken from server site")),
        "{shown}"
    );
    assert!(
        left_s.is_some_and(|left_s| (1..=3_600).contains(&left_s)),
        "{shown}"
    );
    site.approved("alice", &request);
    let lease = site.lease("shard/8");
    assert_eq!(lease["requests"][0]["request"], request.as_str(), "{lease}");
    assert_eq!(lease["requests"][0]["approved_by"], serde_json::json!(["alice"]));
    let config = site.daemon.config_path().to_str().expect("utf-8");
    for (command, parts) in [
        (
            ["approvals", "show", &request],
            [
                "approved  by alice",
                "When enough have approved it: Shard 8 is taken",
            ],
        ),
        (
            ["leases", "show", "shard/8"],
            ["pending  request", "approved by alice, 2 are needed"],
        ),
    ] {
        let text = idgenctl(&[&command[..], &["--config", config]].concat()).stdout;
        for part in parts {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
    // What has ended by itself will not be taken.
    let before = site.lease("shard/8");
    site.told(&[
        "leases",
        "revoke",
        "shard/8",
        "--reason",
        "it can be reached after all",
    ]);
    let after = site.held_again("shard/8", &before);
    assert_eq!(after["requests"], Value::Array(Vec::new()), "another lease");
    let shown = site.told(&["approvals", "show", &request]);
    assert_eq!(shown["would"], Value::Null);
    let why = shown["would_not"].as_str().expect("why not");
    assert!(why.contains("whoever holds it now is not meant"), "{why}");
    let unknown = site.ask(&["approvals", "show", "6b1f0c0e-5a34-4a57-9d0c-0b5f3a1f7c11"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.stderr);
    let said = "there is no request 6b1f0c0e-5a34-4a57-9d0c-0b5f3a1f7c11 in this cell (hint: idgenctl approvals list";
    assert!(unknown.stderr.contains(said), "{}", unknown.stderr);
}

#[test]
fn in_tables_a_request_is_shown_whole() {
    a_request_is_shown_whole(&in_tables());
}

#[test]
fn in_etcd_a_request_is_shown_whole() {
    let (_etcd, _authority, _certs, site) = in_etcd();
    a_request_is_shown_whole(&site);
}
