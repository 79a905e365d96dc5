//! Faults that are put into a topic are found, and both issuers are named; what is well is silent.

use super::probe_scene::{CELL, SOURCE, SPACE, Scene, grant, grants, lease, metric, wait_metric, wait_news};
use crate::kit::daemon::{Daemon, DaemonOptions, Store};
use crate::kit::sql;
use crate::kit::{PATIENCE, Server, ServerOptions, eventually_true};
use idgen_daemon::event::Event;
use std::time::Instant;
use uuid::Uuid;

const OTHER: u128 = 0xd;

fn source_of(issuer: &serde_json::Value) -> Uuid {
    let text = issuer["source"].as_str().expect("a source");
    text.parse().expect("a uuid")
}

/// Several spaces with tags of equal names, two masters with stripes, and a clean trail of leases.
fn clean() -> Vec<Event> {
    let mut clean = Vec::new();
    for (source, space) in [(SOURCE, SPACE), (OTHER, 0xe), (0xf, 0x10)] {
        for tag in ["orders", "contained", "rewritten", "missing"] {
            clean.extend(grants((source, space), tag, 1..=50));
        }
    }
    clean.push(grant((OTHER, SPACE), "orders", 1, (1_000_001, 1_001_000)));
    clean.extend([
        lease(1, "granted", 1, 1, (0, 1_775_210_000_480)),
        lease(2, "released", 1, 1, (0, 1_775_210_000_400)),
        lease(3, "granted", 2, 2, (1_775_210_000_400, 1_775_210_000_960)),
    ]);
    clean
}

#[test]
fn faults_in_the_topic_are_found_and_both_issuers_named_and_what_is_well_is_silent() {
    let scene = Scene::new();
    let mut daemon = scene.options(&scene.checkpoint()).start();
    let clean = clean();
    let copies: Vec<Event> = clean.iter().step_by(3).cloned().collect();
    scene.send(&clean);
    scene.send(&copies);
    wait_news(&mut daemon, clean.len() as f64);
    let copied = "idgen_probe_events_total{result=\"copy\"} ";
    wait_metric(&mut daemon, copied, copies.len() as f64);
    assert_eq!(scene.findings(), []);

    overlaps(&scene);
    rewrites(&scene, &clean);
    late(&scene, &mut daemon);
    leases(&scene);
    scene.send(&[grant((SOURCE, SPACE), "malformed", 1, (5, 4))]);
    scene.found("malformed", "malformed");

    let overlaps = scene.findings();
    let overlaps = overlaps.iter().filter(|found| found.kind.ends_with("overlap"));
    wait_metric(&mut daemon, "idgen_overlap_open ", overlaps.count() as f64);
    assert_eq!(metric(&mut daemon, "idgen_probe_reading "), Some(1.0));
    wait_metric(&mut daemon, "idgen_probe_lag_seconds ", 0.0);
    daemon.terminate();
}

fn overlaps(scene: &Scene) {
    // Behind our back, by a database that believes to be the same.
    scene.send(&[grant((OTHER, SPACE), "orders", 2, (55, 74))]);
    let found = scene.found("overlap", "orders");
    assert_eq!(
        (source_of(&found.first), source_of(&found.second)),
        (Uuid::from_u128(SOURCE), Uuid::from_u128(OTHER)),
        "{found:?}"
    );
    assert!(
        found.ids.is_some_and(|(lo, hi)| lo >= 55 && hi <= 74),
        "{found:?}"
    );
    for issuer in [&found.first, &found.second] {
        for name in [
            "service",
            "event_id",
            "at",
            "lo",
            "hi",
            "token",
            "partition",
            "offset",
        ] {
            assert!(!issuer[name].is_null(), "{name} in {found:?}");
        }
    }
    assert_eq!(found.found_by, "probe");
    assert!(found.detail.contains("both records were read"), "{found:?}");
    scene.send(&[grant((OTHER, SPACE), "contained", 1, (101, 400))]);
    let found = scene.found("overlap", "contained");
    assert_eq!(source_of(&found.first), Uuid::from_u128(SOURCE));
}

fn rewrites(scene: &Scene, clean: &[Event]) {
    let is_it = |event: &&Event| event.tag == "rewritten" && event.tag_seq == 7;
    let mut rewritten = clean.iter().find(is_it).expect("the event").clone();
    rewritten.hi = Some(79);
    scene.send(&[rewritten]);
    let found = scene.found("rewritten", "rewritten");
    assert_eq!(
        (found.first["hi"].as_i64(), found.second["hi"].as_i64()),
        (Some(80), Some(79))
    );
}

/// Within a minute what is missing is only told.
fn late(scene: &Scene, daemon: &mut Daemon) {
    let began = Instant::now();
    scene.send(&[grant((SOURCE, SPACE), "missing", 52, (521, 530))]);
    wait_metric(daemon, "idgen_seq_gap_open ", 1.0);
    println!(
        "a missing event: told after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    daemon.wait_log(&["events 51 to 51 have not come"]);
    scene.send(&[grant((SOURCE, SPACE), "missing", 51, (511, 520))]);
    wait_metric(daemon, "idgen_seq_gap_open ", 0.0);
}

/// Two live leases whose windows are apart, then two whose windows are not.
fn leases(scene: &Scene) {
    scene.send(&[lease(4, "granted", 3, 3, (1_775_210_000_960, 1_775_210_001_400))]);
    let found = scene.found("lease_overlap", "worker/5");
    for part in ["db-2", "db-3", "had not ended"] {
        assert!(found.detail.contains(part), "{found:?}");
    }
    assert_eq!(
        (found.first["token"].as_str(), found.second["token"].as_str()),
        (Some("0/102"), Some("0/103"))
    );
    assert_eq!(source_of(&found.first), Uuid::from_u128(CELL));
    scene.send(&[
        lease(5, "expired", 3, 3, (0, 1_775_210_001_400)),
        lease(6, "granted", 4, 4, (1_775_210_001_200, 1_775_210_001_900)),
    ]);
    eventually_true(PATIENCE, "the windows that meet are found", || {
        let findings = scene.findings();
        let mut leases = findings.iter().filter(|found| found.kind == "lease_overlap");
        leases.any(|found| found.ids == Some((1_775_210_001_201, 1_775_210_001_400)))
    });
}

/// AUDIT.md 16: what was granted and handed on is lost by a failover, and granted anew. No safety burn lies between: that is
/// the fault that is put in.
#[test]
fn a16_what_an_older_base_grants_anew_is_found_in_the_topic() {
    let scene = Scene::new();
    let origin = Server::with(ServerOptions::default());
    let mut client = origin.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('orders'), idgen.set_safety_burn('orders', 0)",
    );
    sql::run(&mut client, "SELECT idgen_segment_range('orders', 1000)");
    let mut copy = Server::backup_of(&origin, false);
    sql::run(&mut client, "SELECT idgen_segment_range('orders', 3000)");

    let draining = |server: &Server, name: &str| -> DaemonOptions {
        let options = scene.options("probe = false").name(name);
        DaemonOptions {
            postgres_url: server.daemon_url(),
            store: Store::on(&scene.store),
            ..options
        }
    };
    let probe = scene.options("").start();
    let daemon = draining(&origin, "origin").launch();
    let all_sent = "SELECT NOT EXISTS (SELECT FROM idgen.audit_event WHERE NOT published)";
    eventually_true(PATIENCE, "the origin has handed all on", || {
        sql::value(&mut client, all_sent)
    });
    daemon.terminate();
    drop(client);
    let mut origin = origin;
    origin.stop();

    copy.run();
    let mut client = copy.connect();
    sql::run(
        &mut client,
        "SELECT idgen.adopt_authority('the original is gone')",
    );
    sql::run(&mut client, "SELECT idgen_segment_range('orders', 5000)");
    let daemon = draining(&copy, "copy").launch();
    let found = scene.found("overlap", "orders");
    let id = |issuer: &serde_json::Value| issuer["event_id"].as_i64();
    assert_ne!(
        source_of(&found.first),
        source_of(&found.second),
        "each history is a source of its own"
    );
    assert!(
        id(&found.first).is_some() && id(&found.second).is_some(),
        "{found:?}"
    );
    assert_ne!(found.first["at"], found.second["at"], "{found:?}");
    daemon.terminate();
    probe.terminate();
}
