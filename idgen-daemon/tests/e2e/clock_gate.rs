//! No lease by a clock that nobody keeps right, or that most others contradict. A real chronyd says what is known of
//! the clock, so these tests do not depend on whether the machine is synchronised.

use std::time::Duration;

use postgres::Client;

use crate::kit::daemon::idgenctl;
use crate::kit::process::{Signal, signal_pid};
use crate::kit::{
    Chrony, Daemon, DaemonOptions, Etcd, Load, LoadOptions, PATIENCE, Server, ServerOptions, Store,
    TimeSource, eventually, eventually_true, pace, sql,
};

const AHEAD_MS: i64 = 2_000;

/// State and reason, as `idgen.health` has them.
fn clock_of(client: &mut Client) -> (Option<String>, Option<String>) {
    let row = client
        .query_one("SELECT clock_state, clock_reason FROM idgen.health", &[])
        .expect("idgen.health");
    (row.get(0), row.get(1))
}

fn wait_clock(client: &mut Client, state: &str) {
    eventually_true(PATIENCE, &format!("idgen.health: the clock is {state}"), || {
        clock_of(client).0.as_deref() == Some(state)
    });
}

/// What `/readyz` says once it says this.
fn wait_refused(daemon: &mut Daemon, because: &str) -> String {
    eventually(PATIENCE, &format!("/readyz says: {because}"), || {
        let (status, body) = daemon.get("/readyz")?;
        (status == 503 && body.contains(because)).then_some(body)
    })
}

fn metrics(daemon: &mut Daemon) -> String {
    daemon.get("/metrics").expect("metrics").1
}

#[test]
fn with_etcd_no_lease_is_taken_by_a_clock_that_nobody_keeps_right() {
    let chrony = Chrony::with(TimeSource::Nobody);
    let (server, etcd) = (Server::start(), Etcd::start());
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let mut daemon = options.clone().clock(&chrony.lines()).launch();
    let why = wait_refused(&mut daemon, "the clock is not synchronised, says chrony");
    assert!(why.contains("[clock] check = \"off\""), "what to do: {why}");
    let mut client = server.connect();
    wait_clock(&mut client, "unsynchronised");
    assert!(clock_of(&mut client).1.expect("a reason").contains("says chrony"));
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    assert_eq!(
        sql::value::<i64>(&mut client, "SELECT count(*) FROM idgen.slots"),
        0
    );
    let text = metrics(&mut daemon);
    let line = "idgen_clock_state{class=\"worker\",state=\"unsynchronised\"} 1";
    assert!(text.contains(line), "{text}");
    let status = idgenctl(&["status", "--postgres", &server.daemon_url(), "--output", "json"]);
    assert!(status.stdout.contains("\"unsynchronised\""), "{}", status.stdout);

    // An operator who knows better, until the daemon is started again ...
    let addr = daemon.addr().expect("it listens").to_string();
    let accepted = idgenctl(&["clock", "accept", "--http", &addr]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    assert!(
        accepted
            .stdout
            .contains("accepted; the clock is not synchronised"),
        "{}",
        accepted.stdout
    );
    daemon.wait_ready();
    let reason = clock_of(&mut client).1.expect("a reason");
    assert!(reason.contains("an operator has accepted it"), "{reason}");
    let _id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    daemon.terminate();

    // ... and the configuration of a machine without time synchronisation.
    let mut daemon = options.clock("check = \"off\"").start();
    wait_clock(&mut client, "unchecked");
    let _id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(metrics(&mut daemon).contains("idgen_clock_error_bound_seconds{class=\"worker\"} NaN"));
    daemon.terminate();
}

#[test]
fn what_chronyd_says_is_shown_and_with_the_embedded_store_it_is_only_said() {
    let source = Chrony::with(TimeSource::Local);
    let mut chrony = Chrony::with(TimeSource::Server(source.time_port()));
    let server = Server::start();
    let mut daemon = DaemonOptions::new(&server).clock(&chrony.lines()).start();
    let mut client = server.connect();
    wait_clock(&mut client, "good");
    // Both go on measuring, so they are compared until two readings of one moment meet.
    eventually_true(PATIENCE, "idgen.health and chronyc say the same", || {
        let bound = chrony.seconds(4).abs() + chrony.seconds(10) / 2.0 + chrony.seconds(11);
        let row = client
            .query_one("SELECT clock_offset_us, clock_error_us FROM idgen.health", &[])
            .expect("idgen.health");
        let [offset_us, error_us] = [0, 1].map(|column| row.get::<_, Option<i64>>(column));
        let (Some(offset_us), Some(error_us)) = (offset_us, error_us) else {
            return false;
        };
        let near = |us: i64, seconds: f64| (us as f64 - seconds * 1e6).abs() <= 200.0;
        bound > 0.0 && near(error_us, bound) && near(offset_us.abs(), chrony.seconds(4).abs())
    });

    chrony.set_source(TimeSource::Nobody);
    wait_clock(&mut client, "unsynchronised");
    daemon.wait_ready();
    daemon.terminate();
    let mut daemon = DaemonOptions::new(&server).clock(&chrony.lines()).start();
    daemon.wait_ready();
    assert!(
        daemon.log().contains("leases are taken all the same"),
        "{}",
        daemon.log()
    );
    let _id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    daemon.terminate();
    // Nobody knows any more; a minute is too long for a test, so this is only that it does not vanish at once.
    assert_eq!(clock_of(&mut client).0.as_deref(), Some("unsynchronised"));
}

/// Three servers of one coordinator; the last one's host is ahead.
#[test]
fn a_server_ahead_of_its_peers_in_the_embedded_store_takes_no_lease() {
    let chrony = Chrony::with(TimeSource::Local);
    let fake_clock = ServerOptions {
        fake_clock: true,
        ..Default::default()
    };
    let servers = Server::several_with(3, &fake_clock);
    let strict = format!("check = \"on\"\n{}", chrony.lines());
    let options = |server: &Server, store: Store| {
        DaemonOptions::new(server).store(store).clock(&strict).wrapped_in(
            &server
                .clock()
                .wrapper()
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        )
    };
    let coordinator = || Store::on(&servers[0]);
    let mut first = options(&servers[0], Store::Embedded).start();
    let second_options = options(&servers[1], coordinator());
    let mut second = second_options.start();
    // A daemon shows its clock right after its first lease; who starts in between hears nobody.
    eventually_true(PATIENCE, "both show their clocks", || {
        sql::value::<i64>(&mut servers[0].connect(), "SELECT count(*) FROM idgen.beacon") == 2
    });
    let mut client = servers[2].connect();
    servers[2].clock().set_offset_ms(AHEAD_MS);
    let third_options = options(&servers[2], coordinator());
    let mut third = third_options.launch();
    wait_refused(&mut third, "ms ahead of most of 2 peers");
    wait_clock(&mut client, "apart from peers");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    let offset_us: i64 = sql::value(&mut client, "SELECT clock_offset_us FROM idgen.health");
    assert!((1_500_000..2_500_000).contains(&offset_us), "{offset_us}");
    first.wait_ready();
    second.wait_ready();

    // Right from the start, it is one of them.
    third.kill();
    servers[2].clock().set_offset_ms(0);
    let third = third_options.start();

    // Who was listening all the time needs not wait: not after a crash of its server, and not when it is started anew.
    let load = Load::start(&servers[1], 2);
    load.wait_statements(20);
    let victim: i32 = sql::value(
        &mut servers[1].connect(),
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%idgen_segment(''load'')%' AND pid <> pg_backend_pid() LIMIT 1",
    );
    assert!(signal_pid(u32::try_from(victim).expect("a pid"), Signal::KILL));
    let crashed = std::time::Instant::now();
    eventually_true(PATIENCE, "ids after the crash", || {
        servers[1]
            .try_connect()
            .is_ok_and(|mut client| client.query("SELECT idgen_snowflake()", &[]).is_ok())
    });
    pace::assert_within(crashed, Duration::from_secs(8), "ids after the crash");
    let _ = load.finish();
    let load = Load::run(&servers[1], &LoadOptions::sessions(2));
    load.wait_statements(20);
    second.kill();
    let mut second = second_options.launch();
    second.wait_ready();
    load.wait_statements(20);
    load.finish().assert_no_refusal();
    for daemon in [first, second, third] {
        daemon.terminate();
    }
}
