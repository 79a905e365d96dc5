//! Notifications of the embedded store: anybody who can log in may send them, so they move nothing.

use crate::kit::daemon::{DaemonOptions, idgenctl};
use crate::kit::{PATIENCE, Server, eventually_true, sql};

const OPEN: &str = "SELECT identity::text || ' ' || token_epoch || '/' || token_revision
                      FROM idgen.slots WHERE state = 'open' AND kind = 'worker'";

#[test]
fn a_notification_from_a_stranger_ends_no_lease_and_hides_no_order() {
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).workers(1).start();
    let mut client = server.connect();
    let held: String = sql::value(&mut client, OPEN);
    let (worker, _) = held.split_once(' ').expect("two words");
    sql::run(&mut client, "CREATE ROLE stranger LOGIN");
    let mut stranger = server.connect_as("stranger");
    // What is held, as an order would name it; and what an order would have to exceed.
    for payload in [
        format!("worker {held}"),
        format!("worker {worker} 999999/9"),
        "?".to_owned(),
    ] {
        sql::run(
            &mut stranger,
            &format!("SELECT pg_notify('idgen_order', '{payload}')"),
        );
    }
    // A real order, which comes after them all.
    let config = daemon.config_path().to_str().expect("a path").to_owned();
    let revoke = [
        "leases",
        "revoke",
        &format!("worker/{worker}"),
        "--reason",
        "a test",
    ];
    let answer = idgenctl(&[&revoke[..], &["--config", &config]].concat());
    assert_eq!(answer.code, Some(0), "{}{}", answer.stdout, answer.stderr);
    eventually_true(PATIENCE, "another worker is leased", || {
        sql::column::<String>(&mut client, OPEN)
            .first()
            .is_some_and(|now| *now != held)
    });
    let ended = "SELECT count(*) FROM idgen.lease_event WHERE kind = 'revoked'";
    eventually_true(PATIENCE, "the trail has it", || {
        sql::value::<i64>(&mut client, ended) == 1
    });
    let before = "SELECT count(*) FROM idgen.lease_event WHERE kind = 'released'
                     AND position < (SELECT position FROM idgen.lease_event WHERE kind = 'revoked')";
    assert_eq!(
        sql::value::<i64>(&mut client, before),
        0,
        "nothing but the order ended a lease"
    );
    daemon.terminate();
}
