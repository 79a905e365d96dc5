//! `idgenctl stripes`: an index of a space is claimed once, and given up by a checked procedure.

use crate::kit::daemon::{Answer, idgenctl, idgenctl_change};
use crate::kit::{Daemon, DaemonOptions, Etcd, PATIENCE, Server, ServerOptions, Store, eventually_true, sql};
use serde_json::Value;

fn server() -> Server {
    Server::with(ServerOptions {
        own_identity: true,
        settings: vec!["idgen.authority = leased".into()],
        ..Default::default()
    })
}

fn daemon(server: &Server, name: &str, store: &Store) -> Daemon {
    DaemonOptions::new(server)
        .name(name)
        .store(store.clone())
        .authority(5_000)
        .start()
}

/// A command on the stripes of one space.
struct Stripes<'a> {
    space: &'a str,
}

impl Stripes<'_> {
    fn claim(&self, daemon: &Daemon, stripe: &str, of: &str) -> Answer {
        self.run("claim", daemon, &["--stripe", stripe, "--of", of])
    }

    fn release(&self, daemon: &Daemon, stripe: &str, reason: &str) -> Answer {
        self.run("release", daemon, &["--stripe", stripe, "--reason", reason])
    }

    fn run(&self, command: &str, daemon: &Daemon, more: &[&str]) -> Answer {
        let config = daemon.config_path().to_str().expect("a path");
        let args = ["stripes", command, "--config", config, "--space", self.space];
        let args = [&args[..], more].concat();
        if command == "list" {
            return idgenctl(&args);
        }
        idgenctl_change(&args, || {
            self.list(daemon)
                .into_iter()
                .map(|mut stripe| {
                    // That comes and goes by itself.
                    stripe["held_by"] = Value::Null;
                    stripe["leased_before"] = Value::Null;
                    stripe
                })
                .collect::<Vec<_>>()
        })
    }

    fn list(&self, daemon: &Daemon) -> Vec<Value> {
        let answer = self.run("list", daemon, &["--output", "json"]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        let listed: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        listed["stripes"].as_array().expect("a list").clone()
    }
}

#[track_caller]
fn refused(answer: &Answer, why: &str) {
    assert_eq!(answer.code, Some(3), "{}{}", answer.stdout, answer.stderr);
    assert!(answer.stderr.contains(why), "{why} is not in {}", answer.stderr);
}

#[track_caller]
fn done(answer: &Answer) {
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
}

fn stripes_are_claimed_once(store: &Store) {
    let (north, south) = (server(), server());
    let (at_north, at_south) = (daemon(&north, "north", store), daemon(&south, "south", store));
    let space: String = sql::value(&mut north.connect(), "SELECT space_id::text FROM idgen.space");
    let stripes = Stripes { space: &space };
    assert!(stripes.list(&at_north).is_empty());

    done(&stripes.claim(&at_north, "0", "2"));
    done(&stripes.claim(&at_north, "0", "2"));
    refused(
        &stripes.claim(&at_north, "1", "2"),
        "has index 0 of the space already",
    );
    refused(
        &stripes.claim(&at_south, "0", "2"),
        "belongs to database postgres of server north",
    );
    refused(
        &stripes.claim(&at_south, "1", "3"),
        "cut in 2 stripes of 100000 ids above 0, for good",
    );
    assert_eq!(
        stripes.claim(&at_south, "2", "2").code,
        Some(2),
        "there is no such index"
    );
    assert_eq!(stripes.claim(&at_south, "0", "1").code, Some(2), "no stripes");
    done(&stripes.claim(&at_south, "1", "2"));
    let listed = stripes.list(&at_south);
    let servers: Vec<&Value> = listed.iter().map(|stripe| &stripe["server"]).collect();
    assert_eq!(servers, ["north", "south"]);
    assert_eq!(listed[0]["held_by"], "north", "it is its own space");
    sql::run(&mut north.connect(), "SELECT idgen.grant_admin('idgend')");
    done(&stripes.run("join", &at_north, &[]));
    eventually_true(PATIENCE, "its authority is leased again", || {
        stripes.list(&at_north)[0]["held_by"] == "north"
    });
    assert_eq!(
        (&listed[1]["held_by"], &listed[1]["leased_before"]),
        (&Value::Null, &Value::Bool(false))
    );

    refused(
        &stripes.release(&at_south, "0", "sold"),
        "north holds its authority now",
    );
    assert_eq!(
        stripes.release(&at_south, "1", " ").code,
        Some(2),
        "a reason is needed"
    );
    done(&stripes.release(&at_south, "1", "by mistake"));
    refused(
        &stripes.release(&at_south, "1", "once more"),
        "nobody has that index",
    );
    // The clean stop gives the authority up; what was granted under index 0 is known to the store.
    at_north.terminate();
    done(&stripes.release(&at_south, "0", "north was sold"));
    done(&stripes.claim(&at_south, "0", "2"));
    let listed = stripes.list(&at_south);
    assert_eq!(
        (&listed[0]["server"], &listed[0]["released_at"]),
        (&Value::from("south"), &Value::Null)
    );
    let reason = listed[1]["release_reason"].as_str().expect("a reason");
    assert!(reason.starts_with("by mistake ("), "{reason}");
    // Nobody knows what south granted as index 1, had it granted by itself.
    let third = server();
    let at_third = daemon(&third, "third", store);
    refused(
        &stripes.claim(&at_third, "1", "2"),
        "the store has no ceilings of it",
    );
}

#[test]
fn stripes_are_claimed_once_in_an_etcd() {
    let etcd = Etcd::start();
    stripes_are_claimed_once(&Store::etcd(&etcd));
}

#[test]
fn stripes_are_claimed_once_in_tables_of_another_server() {
    let store = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    stripes_are_claimed_once(&Store::on(&store));
}
