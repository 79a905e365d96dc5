//! What stops the trail of lease events, if anything does: nothing that can be put into a store may.

use crate::events::{PREFIX, count, events, finding, list, wait_for};
use crate::kit::{Daemon, DaemonOptions, Etcd, PATIENCE, Server, Store, eventually_true, sql};
use etcd_client::Client;
use serde_json::Value;

#[test]
fn a_transaction_that_changes_a_row_several_times_does_not_stop_the_trail() {
    let server = Server::start();
    let mut client = server.connect();
    let daemon = Daemon::start(&server);
    wait_for(&daemon, "a grant", |event| event["kind"] == "granted");
    let change =
        |reason: &str| format!("UPDATE idgen.lease_order SET reason = '{reason}' WHERE identity = 500; ");
    sql::run(
        &mut client,
        "INSERT INTO idgen.lease_order (kind, identity, token_epoch, token_revision, ordered_at, ordered_by, reason, revision) \
         VALUES ('worker', 500, 0, 1, now(), 'nobody', 'x', 1)",
    );
    let thrice = [change("a"), change("b"), change("c")].concat();
    sql::run(&mut client, &format!("BEGIN; {thrice}COMMIT"));
    let told = wait_for(&daemon, "the last change is told", |event| {
        event["subject"] == "order on worker 500" && event["detail"]["reason"] == "c"
    });
    assert_eq!(
        (&told["kind"], &told["finding"]),
        (&"revoked".into(), &Value::Null)
    );
    assert_eq!(count(&list(&daemon), "lost"), 0, "{:?}", list(&daemon));
    // How many people are needed is changed by their own gate only.
    for (needed, findings) in [("2", 1), ("1", 2)] {
        sql::run(
            &mut client,
            &format!("UPDATE idgen.cell SET approvals_needed = {needed}"),
        );
        eventually_true(PATIENCE, "the number that was changed by hand is told", || {
            let events = list(&daemon);
            let set = events.iter().filter(|event| event["kind"] == "approvals_set");
            let found = set.filter(|event| event["finding"] == "unapproved");
            found.count() == findings
        });
    }
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(verified.stdout.contains("unapproved"), "{}", verified.stdout);
}

/// Letters that no index can make shorter.
fn noise(length: usize) -> String {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        char::from(letters[usize::from(state.to_be_bytes()[0] >> 2)])
    };
    (0..length).map(letter).collect()
}

#[test]
fn keys_that_are_too_long_and_keys_that_look_like_others_do_not_stop_the_trail() {
    let etcd = Etcd::start();
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).store(Store::etcd(&etcd)).start();
    wait_for(&daemon, "a grant", |event| event["kind"] == "granted");
    let long = noise(4_000);
    for key in [long.as_str(), "w/05/hw", "w/+5/hw"] {
        etcd.ctl_ok(&["put", &format!("{PREFIX}/{key}"), "x"]);
    }
    let short = format!("key {}...sha256:", &long[..128]);
    wait_for(&daemon, "the long key is told", |event| {
        event["subject"]
            .as_str()
            .is_some_and(|subject| subject.starts_with(&short))
    });
    for alias in ["w/05/hw", "w/+5/hw"] {
        let told = wait_for(&daemon, "the alias is told", |event| {
            event["subject"] == format!("key {alias}")
        });
        assert_eq!(told["kind"], "changed", "{told}");
    }
    // Nobody has taken them for the worker 5.
    assert!(list(&daemon).iter().all(|event| event["finding"].is_null()));
    let cell = etcd.ctl_ok(&["get", &format!("{PREFIX}/cell"), "--print-value-only"]);
    let mut cell: Value = serde_json::from_str(&cell).expect("JSON");
    cell["approvals_needed"] = 1.into();
    etcd.ctl_ok(&["put", &format!("{PREFIX}/cell"), &cell.to_string()]);
    let told = wait_for(&daemon, "the gate is told", finding("unapproved", "cell"));
    assert_eq!(told["kind"], "approvals_set", "{told}");
}

#[test]
fn a_backlog_that_no_message_is_large_enough_for_is_followed() {
    /// Twice in what etcd sends, with what was there before: more than the follower takes in one message.
    const VALUES: usize = 40;
    const VALUE_BYTES: usize = 1_400_000;
    let etcd = Etcd::start();
    let server = Server::start();
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let daemon = options.start();
    wait_for(&daemon, "a grant", |event| event["kind"] == "granted");
    daemon.terminate();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut client = Client::connect([etcd.endpoint()], None).await.expect("connect");
        for n in 0..VALUES {
            let value = vec![b'a' + u8::try_from(n % 26).expect("a letter"); VALUE_BYTES];
            client
                .put(format!("{PREFIX}/later"), value, None)
                .await
                .expect("put");
        }
    });
    let daemon = options.start();
    eventually_true(PATIENCE, "all of them are told", || {
        let of_key = |event: &&Value| event["subject"] == "key later";
        list(&daemon).iter().filter(of_key).count() == VALUES
    });
    let verified = events(&daemon, &["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}
