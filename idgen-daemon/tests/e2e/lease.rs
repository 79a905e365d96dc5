//! The main job: ids flow while a lease is held, stop when it ends, and never repeat.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use serde_json::Value;

use crate::kit::daemon::{DaemonOptions, idgenctl};
use crate::kit::process::Signal;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Daemon, Etcd, Load, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, pace, sql,
};

/// Short enough to wait for, long enough for several renewals on a busy machine.
const SHORT_TTL_MS: u64 = 4_000;
/// A refusal may come late by a scheduling delay, not more.
const SLACK: Duration = Duration::from_millis(500);

/// (identity, token) of every open slot, the newest token first.
fn open_slots(client: &mut Client) -> Vec<(i32, (i64, i64))> {
    let rows = client
        .query(
            "SELECT identity, token_epoch, token_revision FROM idgen.slots
              WHERE state = 'open' AND kind = 'worker' ORDER BY token_epoch DESC, token_revision DESC",
            &[],
        )
        .expect("read idgen.slots");
    rows.iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect()
}

#[test]
fn without_a_lease_snowflakes_refuse_with_a_hint_and_the_rest_works() {
    let server = Server::start();
    let mut client = server.connect();

    let asked = Instant::now();
    let refused = sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    assert!(
        refused.hint().is_some_and(|hint| hint.contains("idgend")),
        "the hint names the daemon: {refused:?}"
    );
    // No daemon was ever seen here, so there is nothing to wait for.
    pace::assert_within(asked, Duration::from_secs(1), "refused");

    let state: String = sql::value(&mut client, "SELECT state FROM idgen.health");
    assert_eq!(state, "no lease");
    let version: i32 = sql::value(&mut client, "SELECT (idgen_parse(idgen_uuidv7())).version");
    assert_eq!(version, 7);
    let age_ms: f64 = sql::value(
        &mut client,
        "SELECT abs(extract(epoch FROM clock_timestamp() - idgen_timestamp(idgen_uuidv7())))::float8 * 1000",
    );
    assert!(age_ms < 1_000.0, "a fresh uuid is {age_ms} ms off");
    let worker: i32 = sql::value(
        &mut client,
        "SELECT (idgen_parse((7::bigint << 22) | (5 << 12) | 9)).worker",
    );
    assert_eq!(worker, 5);
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    assert_eq!(
        sql::column::<i64>(
            &mut client,
            "SELECT idgen_segment('t') FROM generate_series(1, 3)"
        ),
        [1, 2, 3]
    );
}

#[test]
fn a_table_fills_itself_and_the_views_and_idgenctl_tell_how() {
    main_path(None);
}

#[test]
fn a_table_fills_itself_with_leases_in_a_real_etcd() {
    let etcd = Etcd::start();
    main_path(Some(&etcd));
}

fn main_path(etcd: Option<&Etcd>) {
    let server = Server::start();
    let mut options = DaemonOptions::new(&server);
    if let Some(etcd) = etcd {
        options = options.store(Store::etcd(etcd));
    }
    let mut daemon = options.start();
    let mut client = server.connect();

    sql::run(
        &mut client,
        "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n int)",
    );
    sql::run(
        &mut client,
        "INSERT INTO orders (n) SELECT generate_series(1, 50000)",
    );
    let distinct: i64 = sql::value(&mut client, "SELECT count(DISTINCT id) FROM orders");
    assert_eq!(distinct, 50_000);
    let positive: bool = sql::value(&mut client, "SELECT bool_and(id > 0) FROM orders");
    assert!(positive);

    let slots = open_slots(&mut client);
    assert_eq!(slots.len(), 2, "{slots:?}");
    let foreign: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM orders
          WHERE (idgen_parse(id)).worker NOT IN (SELECT identity FROM idgen.slots WHERE state = 'open')",
    );
    assert_eq!(foreign, 0, "every id names a worker that is leased here");
    assert_views(&mut client);
    assert_pages(&mut daemon);
    assert_idgenctl(&daemon, &slots);
    daemon.terminate();
    let state: String = sql::value(&mut client, "SELECT state FROM idgen.health");
    assert_eq!(state, "no lease");
}

fn assert_views(client: &mut Client) {
    let row = client
        .query_one("SELECT * FROM idgen.health", &[])
        .expect("read idgen.health");
    assert_eq!(row.get::<_, String>("state"), "serving");
    assert!(row.get::<_, bool>("preloaded"));
    assert!(!row.get::<_, bool>("in_recovery"));
    assert_eq!(row.get::<_, String>("worker_format"), "classic");
    let counted: i64 = sql::value(client, "SELECT open_slots::bigint FROM idgen.health");
    assert_eq!(counted, 2);
    let seen_ms: i64 = sql::value(client, "SELECT daemon_seen_ms_ago::bigint FROM idgen.health");
    assert!(
        (0..5_000).contains(&seen_ms),
        "the daemon was seen {seen_ms} ms ago"
    );
    let sound: bool = sql::value(
        client,
        "SELECT bool_and(floor <= last AND last <= ceiling AND deadline_in_ms BETWEEN 1 AND 600000)
           FROM (SELECT to_timestamp(floor_ms / 1000.0) - interval '1 ms' AS floor,
                        to_timestamp(last_ms / 1000.0) AS last,
                        to_timestamp(ceiling_ms / 1000.0) AS ceiling, deadline_in_ms
                   FROM idgen.slot_states()) s",
    );
    assert!(
        sound,
        "floor - 1 <= last <= ceiling, and a deadline within the ttl"
    );
}

fn assert_pages(daemon: &mut Daemon) {
    assert_eq!(daemon.get("/livez").expect("livez").0, 200);
    let (status, metrics) = daemon.get("/metrics").expect("metrics");
    assert_eq!(status, 200);
    assert!(
        metrics.lines().any(|line| line.starts_with("# TYPE ")),
        "prometheus text:\n{metrics}"
    );
}

fn assert_idgenctl(daemon: &Daemon, slots: &[(i32, (i64, i64))]) {
    let config = daemon.config_path().to_str().expect("utf-8");
    let table = idgenctl(&["status", "--config", config]);
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    let json = idgenctl(&["status", "--config", config, "--output", "json"]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let status: Value = serde_json::from_str(&json.stdout).expect("valid JSON");
    let identities = integers_named("identity", &status);
    for (identity, (_, revision)) in slots {
        assert!(table.stdout.contains(&identity.to_string()), "{}", table.stdout);
        assert!(identities.contains(&i64::from(*identity)), "{}", json.stdout);
        assert!(
            json.stdout.contains(&revision.to_string()),
            "the token of {identity}: {}",
            json.stdout
        );
    }
}

/// Every integer under this key, however deep.
fn integers_named(name: &str, value: &Value) -> Vec<i64> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match value.as_i64() {
                Some(number) if key == name => vec![number],
                _ => integers_named(name, value),
            })
            .collect(),
        Value::Array(list) => list
            .iter()
            .flat_map(|value| integers_named(name, value))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn idgenctl_reports_a_finding_an_error_and_wrong_usage_by_its_exit_code() {
    let server = Server::start();
    let url = server.daemon_url();
    let unleased = idgenctl(&["status", "--postgres", &url]);
    assert_eq!(
        unleased.code,
        Some(3),
        "no open lease is a finding: {}{}",
        unleased.stdout,
        unleased.stderr
    );
    let nowhere = idgenctl(&[
        "status",
        "--postgres",
        "host=/nowhere user=idgend dbname=postgres",
    ]);
    assert_eq!(nowhere.code, Some(1), "{}", nowhere.stderr);
    assert!(
        nowhere.stderr.contains("/nowhere"),
        "the message says what was tried: {}",
        nowhere.stderr
    );
    assert_eq!(idgenctl(&["status", "--no-such-flag"]).code, Some(2));
    assert_eq!(
        idgenctl(&["status", "--output", "yaml", "--postgres", &url]).code,
        Some(2)
    );
}

#[test]
fn a_frozen_daemon_stops_the_minting_at_the_deadline_and_takes_a_new_token_after() {
    let server = Server::start();
    frozen_daemon(&server, DaemonOptions::new(&server));
}

#[test]
fn a_frozen_daemon_on_etcd_stops_the_minting_at_the_deadline() {
    let etcd = Etcd::start();
    let server = Server::start();
    frozen_daemon(&server, DaemonOptions::new(&server).store(Store::etcd(&etcd)));
}

fn frozen_daemon(server: &Server, options: DaemonOptions) {
    let mut daemon = options.ttl_ms(SHORT_TTL_MS).start();
    let mut client = server.connect();
    let load = Load::start(server, 3);
    load.wait_statements(50);

    daemon.signal(Signal::STOP);
    // An extension may be on its way while the signal is; the deadline is read when it has stopped.
    let before = settled_deadline(&mut client);
    let (deadline, token) = (Instant::now() + before.0, before.1);
    eventually_true(PATIENCE, "no slot is open any more", || {
        open_slots(&mut client).is_empty()
    });
    assert!(
        Instant::now() + SLACK >= deadline,
        "closed long before its deadline"
    );
    let state: String = sql::value(&mut client, "SELECT state FROM idgen.health");
    assert_eq!(state, "no lease");
    let refused = client
        .query("SELECT idgen_snowflake()", &[])
        .expect_err("no lease, no id");
    let code = refused.code().map(|code| code.code().to_owned());
    assert!(
        matches!(code.as_deref(), Some("IG001" | "IG004")),
        "{}",
        sql::describe(&refused)
    );

    // Late mints need a chance to happen, or their absence proves nothing.
    eventually_true(PATIENCE, "a while after the deadline", || {
        Instant::now() > deadline + 2 * SLACK
    });
    let thawed = Instant::now();
    daemon.signal(Signal::CONT);
    let newest = eventually(PATIENCE, "a new token is installed", || {
        open_slots(&mut client)
            .first()
            .map(|slot| slot.1)
            .filter(|newer| *newer > token)
    });
    daemon.wait_ready();
    load.wait_statements(50);
    let report = load.finish();
    let last = report.last_success_before(thawed);
    assert!(
        last <= deadline + SLACK,
        "minted {:?} after the deadline",
        last - deadline
    );
    assert!(newest > token);
    report.assert_unique(1_000);
    daemon.terminate();
}

/// Time to the deadline of the longest lease, once it only shrinks, and the newest token.
fn settled_deadline(client: &mut Client) -> (Duration, (i64, i64)) {
    let read = "SELECT max(deadline_ms) FROM idgen.slot_states() WHERE state = 'open'";
    let mut known: i64 = sql::value(client, read);
    for _ in 0..3 {
        let again: i64 = sql::value(client, read);
        known = known.max(again);
    }
    let left_ms: i64 = sql::value(
        client,
        "SELECT max(deadline_in_ms) FROM idgen.slot_states() WHERE state = 'open'",
    );
    let token = open_slots(client).first().expect("an open slot").1;
    (
        Duration::from_millis(u64::try_from(left_ms).expect("time left")),
        token,
    )
}

#[test]
fn sigterm_releases_with_the_exact_high_water() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).workers(1);
    let daemon = options.start();
    let mut client = server.connect();
    let worker = open_slots(&mut client).first().expect("an open slot").0;
    let last_ms: i64 = sql::value(
        &mut client,
        "SELECT (extract(epoch FROM max(idgen_timestamp(id))) * 1000)::bigint
           FROM (SELECT idgen_snowflake() AS id FROM generate_series(1, 1000)) ids",
    );
    daemon.terminate();

    let row = client
        .query_one(
            "SELECT ceiling_ms, exact, holder IS NULL FROM idgen.lease WHERE kind = 'worker' AND identity = $1",
            &[&worker],
        )
        .expect("the lease row");
    assert_eq!(
        (row.get(0), row.get(1), row.get(2)),
        (last_ms, true, true),
        "(high water, exact, free)"
    );

    // Whoever takes an identity now begins above what was minted, at once.
    let _daemon = options.start();
    let floor_ms: i64 = sql::value(
        &mut client,
        "SELECT max(floor_ms) FROM idgen.slot_states() WHERE state = 'open'",
    );
    assert!(floor_ms > last_ms);
    let next: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(next > 0);
}

#[test]
fn the_next_holder_of_an_identity_begins_one_above_the_last_millisecond() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).workers(1);
    options.start().terminate();
    let mut client = server.connect();
    // Every other identity is taken by somebody until tomorrow, so the released one is all there is.
    sql::run(
        &mut client,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'somebody', 0, 0, gen_random_uuid(), now() + interval '1 day'
           FROM generate_series(0, 1023) n
         ON CONFLICT DO NOTHING",
    );
    let high_water_ms: i64 = sql::value(
        &mut client,
        "SELECT ceiling_ms FROM idgen.lease WHERE holder IS NULL AND exact",
    );
    let _daemon = options.start();
    let floor_ms: i64 = sql::value(
        &mut client,
        "SELECT floor_ms FROM idgen.slot_states() WHERE state = 'open'",
    );
    assert_eq!(floor_ms, high_water_ms + 1);
}

#[test]
fn a_second_sigterm_changes_nothing() {
    let server = Server::start();
    let mut daemon = Daemon::start(&server);
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    let status = daemon.wait_exit();
    assert_eq!(status.code(), Some(0), "{status}");
    let held: i64 = sql::value(
        &mut server.connect(),
        "SELECT count(*) FROM idgen.lease WHERE holder IS NOT NULL",
    );
    assert_eq!(held, 0, "everything was released");
}

/// hutool#949, zheng-ji/goSnowFlake#11 and others: one generator per request or process.
#[test]
fn incident_42_two_hundred_connections_share_one_worker_without_a_duplicate() {
    const SESSIONS: usize = 200;
    const IDS: i32 = 10_000;
    let server = Server::with(ServerOptions {
        settings: vec!["max_connections = 250".to_owned()],
        ..Default::default()
    });
    let _daemon = DaemonOptions::new(&server).workers(1).start();
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let connect = server.connector();
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                let sql = format!("SELECT idgen_snowflake() FROM generate_series(1, {IDS})");
                sql::column::<i64>(&mut client, &sql)
            })
        })
        .collect();
    let mut recorder = UniquenessRecorder::new();
    for session in sessions {
        let ids = session.join().expect("a session");
        assert!(ids.is_sorted(), "ids rise within a session");
        recorder.extend(ids);
    }
    recorder.assert_unique("snowflakes of one worker", 2_000_000);
}
