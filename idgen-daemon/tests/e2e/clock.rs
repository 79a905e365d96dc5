//! The wall clock of a running server is set, stopped, or comes to the end of the format. Whatever it does:
//! no id twice, the ids of each session rise, every wait is bounded and can be cancelled, and when the clock
//! is right again minting goes on by itself. What else happens depends on how far the clock went
//! (docs/architecture.md, *How failures end*).
//!
//! `incident_NN` are numbers of docs/incidents.md.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use idgen_daemon::lease::host_clock;

use crate::kit::daemon::{DaemonOptions, idgenctl};
use crate::kit::http;
use crate::kit::load::Report;
use crate::kit::process::{Signal, signal_pid};
use crate::kit::{
    Daemon, FakeClock, Load, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, pace, sql,
};

/// 2020-01-01 in Unix ms, and the bits below the time: the classic format.
const EPOCH_MS: i64 = 1_577_836_800_000;
const TIME_SHIFT: u32 = 22;
/// 2089-09-06T15:47:35.551Z: the last millisecond of the classic format.
const LAST_MS: i64 = EPOCH_MS + (1 << 41) - 1;
const HOUR_MS: i64 = 3_600_000;
/// "At once": no wait of the generators is this short (`idgen.lease_wait_ms` is 2 s).
const AT_ONCE: Duration = Duration::from_secs(1);

/// All there is: of several sessions one gets a millisecond whole, and the others nothing of it.
const GREEDY: &str = "SELECT count(*) FROM idgen_snowflake_batch(1000000000)";

fn fake_clock() -> ServerOptions {
    ServerOptions {
        fake_clock: true,
        ..Default::default()
    }
}

fn true_ms() -> i64 {
    host_clock().0.cast_signed()
}

fn time_of(id: i64) -> i64 {
    (id >> TIME_SHIFT) + EPOCH_MS
}

/// Sets the clock and shows that the server sees it, and sees its other clock unmoved.
fn set_clock(server: &Server, client: &mut Client, offset_ms: i64) {
    server.clock().set_offset_ms(offset_ms);
    let wall_ms: i64 = sql::value(client, "SELECT wall_ms FROM idgen.server_clock()");
    let off_by = wall_ms - true_ms() - offset_ms;
    assert!(
        off_by.abs() < 1_000,
        "the server's clock is {off_by} ms off the offset {offset_ms}"
    );
    FakeClock::assert_boot_time_is_true(client);
}

/// A number of the daemon's, of its worker lease.
fn metric(daemon: &mut Daemon, name: &str) -> Option<u64> {
    let (_, text) = daemon.get("/metrics")?;
    let value = text
        .lines()
        .filter(|line| line.contains("worker"))
        .find_map(|line| line.strip_prefix(name)?.rsplit_once(' '))?;
    value.1.parse().ok()
}

/// What the daemon says about the server's clock.
fn wait_clock_stepped(daemon: &mut Daemon, stepped: bool) {
    let what = format!("the daemon's verdict is: stepped {stepped}");
    eventually_true(PATIENCE, &what, || {
        metric(daemon, "idgen_clock_stepped") == Some(u64::from(stepped))
    });
}

/// A setting of the configuration file, as this session sees it from now on.
fn set_and_reload(server: &Server, client: &mut Client, name: &str, value: &str) {
    server.set(name, value);
    sql::run(client, "SELECT pg_reload_conf()");
    eventually_true(PATIENCE, "the setting is read", || {
        sql::value::<String>(client, &format!("SHOW {name}")) == value
    });
}

fn uuid(client: &mut Client) -> Vec<u8> {
    sql::value(client, "SELECT uuid_send(idgen_uuidv7())")
}

/// A counter of the server.
fn counted(client: &mut Client, counter: &str) -> i64 {
    let sql = format!("SELECT value FROM idgen.stats WHERE scope = 'server' AND counter = '{counter}'");
    sql::value(client, &sql)
}

#[test]
fn three_ms_back_go_unnoticed() {
    let (rewinds, rewind_ms_max) = small_step(-3);
    assert_eq!(rewinds, 0, "jitter is no rewind");
    assert!(rewind_ms_max <= 5, "{rewind_ms_max} ms");
}

#[test]
fn three_seconds_back_cost_no_call_and_are_counted() {
    let (rewinds, rewind_ms_max) = small_step(-3_000);
    // A backend that slept between its two looks may have seen one of them twice.
    assert!((2..10).contains(&rewinds), "{rewinds} rewinds, two were made");
    assert!((2_900..=3_000).contains(&rewind_ms_max), "{rewind_ms_max} ms");
}

/// Twice back and forth under load: nobody notices. What the server has counted: rewinds, and the largest.
fn small_step(by_ms: i64) -> (i64, i64) {
    let server = Server::with(fake_clock());
    let mut daemon = Daemon::start(&server);
    let mut client = server.connect();
    let load = Load::start(&server, 4);
    load.wait_statements(50);
    for offset_ms in [by_ms, 0, by_ms, 0] {
        set_clock(&server, &mut client, offset_ms);
        load.wait_statements(50);
    }
    wait_clock_stepped(&mut daemon, false);
    daemon.wait_ready();
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_rising();
    report.assert_unique(4_000);
    daemon.terminate();
    (
        counted(&mut client, "clock_rewinds"),
        counted(&mut client, "clock_rewind_ms_max"),
    )
}

/// For whom a time that is wrong is worse than none.
#[test]
fn with_the_policy_halt_five_ms_back_are_the_limit() {
    let server = Server::with(ServerOptions {
        settings: vec!["idgen.clock_policy = halt".to_owned()],
        ..fake_clock()
    });
    let daemon = Daemon::start(&server);
    let mut client = server.connect();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    set_clock(&server, &mut client, -3);
    load.wait_statements(20);
    let last: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    set_clock(&server, &mut client, -3_000);
    assert_refused_at_once(&mut client, " 5 ms are allowed");
    assert!(counted(&mut client, "clock_behind_ms") > 2_000);

    // A reload changes the policy, and back.
    set_and_reload(&server, &mut client, "idgen.clock_policy", "tolerant");
    let next: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(next > last);
    set_and_reload(&server, &mut client, "idgen.clock_policy", "halt");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG003");

    set_clock(&server, &mut client, 0);
    eventually_true(PATIENCE, "the clock has caught up with what was minted", || {
        client.query("SELECT idgen_snowflake()", &[]).is_ok()
    });
    load.wait_statements(20);
    let report = load.finish();
    report.assert_refused_only_with("IG003");
    report.assert_rising();
    report.assert_unique(1_000);
    daemon.terminate();
}

/// One by one, and in runs.
const CALLS: [&str; 2] = [
    "SELECT idgen_snowflake()",
    "SELECT * FROM idgen_snowflake_batch(10)",
];

/// Each of them, with IG003 and this in its detail, and without a wait.
fn assert_refused_at_once(client: &mut Client, in_detail: &str) {
    for call in CALLS {
        let asked = Instant::now();
        let refused = sql::refusal(client, call, "IG003");
        pace::assert_within(asked, AT_ONCE, call);
        assert!(
            refused.detail().is_some_and(|detail| detail.contains(in_detail)),
            "{refused:?}"
        );
    }
}

/// apache/dolphinscheduler#6742 and a dozen others: duplicates when the clock is set back under load.
#[test]
fn incident_08_an_hour_back_under_load_is_refused_at_once_and_over_when_the_clock_is_back() {
    let server = Server::with(fake_clock());
    let mut daemon = Daemon::start(&server);
    let mut client = server.connect();
    let load = Load::start(&server, 4);
    load.wait_statements(50);
    let (mut id, mut unique) = (
        sql::value::<i64>(&mut client, "SELECT idgen_snowflake()"),
        uuid(&mut client),
    );

    set_clock(&server, &mut client, -HOUR_MS);
    assert_refused_at_once(&mut client, " ms behind");
    // Neither the other generators nor the daemon's latch stop anything else.
    let during = uuid(&mut client);
    assert!(during > unique, "uuids rise over a step back");
    unique = during;
    let _number: i64 = sql::value(&mut client, "SELECT idgen_segment('load')");
    wait_clock_stepped(&mut daemon, true);

    set_clock(&server, &mut client, 0);
    let next: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(next > id);
    id = next;
    assert!(uuid(&mut client) > unique, "uuids rise over a step forth");
    wait_clock_stepped(&mut daemon, false);
    daemon.wait_ready();
    load.wait_statements(50);
    let again: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(again > id);
    let report = load.finish();
    report.assert_refused_only_with("IG003");
    report.assert_rising();
    report.assert_unique(2_000);
    daemon.terminate();
}

/// Long enough for the steps to be seen, short enough to be used up while the test watches.
const SHORT_TTL_MS: u64 = 8_000;

#[test]
fn an_hour_ahead_is_not_followed_and_the_window_is_used_to_its_end() {
    let server = Server::with(fake_clock());
    // A store with a clock of its own: nobody has set that one.
    let store = Server::start();
    let options = DaemonOptions::new(&server).store(Store::on(&store));
    hour_ahead(&server, options);
}

/// To the embedded store, which counts on the clock that was set, the lease has expired. Nobody has taken it, so it is
/// renewed all the same.
#[test]
fn an_hour_ahead_ends_no_lease_that_is_kept_in_the_same_server() {
    let server = Server::with(fake_clock());
    hour_ahead(&server, DaemonOptions::new(&server));
}

fn hour_ahead(server: &Server, options: DaemonOptions) {
    let mut daemon = options.ttl_ms(SHORT_TTL_MS).start();
    let mut client = server.connect();
    let load = Load::start(server, 4);
    load.wait_statements(50);

    // The anchor was taken at the last renewal: at most a TTL ago.
    let anchored = Instant::now() - Duration::from_millis(SHORT_TTL_MS);
    let mut unique = uuid(&mut client);
    set_clock(server, &mut client, HOUR_MS);
    let stepped = Instant::now();
    wait_clock_stepped(&mut daemon, true);
    load.wait_statements(50);
    let ceiling_ms: i64 = sql::value(&mut client, "SELECT max(ceiling_ms) FROM idgen.slot_states()");
    assert!(ceiling_ms < true_ms() + HOUR_MS / 2, "the step became a ceiling");
    // Renewals raise no ceiling while the clock is not believed, so the window comes to its end.
    eventually_true(PATIENCE, "the window is used up", || {
        client.query("SELECT idgen_snowflake()", &[]).is_err()
    });
    let ended = Instant::now();
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG002");

    set_clock(server, &mut client, 0);
    eventually_true(PATIENCE, "ids come again", || {
        client.query("SELECT idgen_snowflake()", &[]).is_ok()
    });
    let during = uuid(&mut client);
    assert!(during > unique);
    unique = during;
    wait_clock_stepped(&mut daemon, false);
    daemon.wait_ready();
    load.wait_statements(50);
    assert!(uuid(&mut client) > unique);
    let report = load.finish();
    report.assert_refused_only_with("IG002");
    report.assert_rising();

    assert_window_was_used(&report, stepped, ended);
    assert_not_followed(&report, anchored);
    report.assert_unique(2_000);
    daemon.terminate();
}

/// From the step on there is at least what was left of the window between two renewals, less the second
/// and the tenth by which ids may have run ahead.
fn assert_window_was_used(report: &Report, stepped: Instant, ended: Instant) {
    let (usable, period) = (SHORT_TTL_MS / 10 * 8, SHORT_TTL_MS / 3);
    let least = Duration::from_millis(usable - period * 11 / 10 - 1_000 - usable / 10);
    let minted_for = report
        .last_success_before(ended)
        .saturating_duration_since(stepped);
    assert!(
        minted_for >= least,
        "minting ended {minted_for:?} after the step, not before {least:?}"
    );
}

/// No id says a later time than may be believed: a second, a tenth of the anchor's age, and a few ms that
/// ids may be ahead of that.
fn assert_not_followed(report: &Report, anchored: Instant) {
    let (now, now_ms) = (Instant::now(), true_ms());
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).expect("ms");
    for batch in &report.batches {
        let age_ms = ms(batch.ended.saturating_duration_since(anchored));
        let believed_ms = now_ms - ms(now - batch.ended) + 1_000 + age_ms / 10 + 10;
        for id in &batch.snowflakes {
            let ahead_ms = time_of(*id) - believed_ms;
            assert!(ahead_ms <= 0, "{id} is {ahead_ms} ms beyond what may be believed");
        }
    }
}

/// A clock that stands costs pace only: a new millisecond of ids for each that really goes by. Beyond the
/// limit for a clock that is behind they are refused, and that is over when the clock goes again.
#[test]
fn a_clock_that_stands_is_followed_by_real_time_up_to_the_limit() {
    let server = Server::with(fake_clock());
    let mut daemon = DaemonOptions::new(&server).workers(1).start();
    let mut client = server.connect();
    let load = Load::start(&server, 2);
    load.wait_statements(20);

    let stood_at_ms = true_ms() / 1_000 * 1_000;
    server.clock().freeze_at(stood_at_ms / 1_000);
    let frozen = Instant::now();
    load.wait_statements(50);
    // The last id of 100 full milliseconds: the clock is behind by what was minted before it stood, too.
    let last: i64 = sql::value(
        &mut client,
        "SELECT max(id) FROM idgen_snowflake_batch(409600) AS id",
    );
    let went_by = i64::try_from(frozen.elapsed().as_millis()).expect("ms");
    let ahead_ms = time_of(last) - stood_at_ms;
    assert!(
        ahead_ms <= 1_000 + went_by + 3,
        "{ahead_ms} ms of ids in {went_by} ms"
    );

    wait_clock_stepped(&mut daemon, true);

    set_and_reload(&server, &mut client, "idgen.max_clock_rewind_ms", "2s");
    // More than the limit lets through, and not for ever if it does not.
    let too_many = "SELECT count(*) FROM idgen_snowflake_batch(40000000)";
    let refused = sql::refusal(&mut client, too_many, "IG003");
    assert!(
        refused
            .detail()
            .is_some_and(|detail| detail.contains(" 2000 ms are allowed")),
        "{refused:?}"
    );

    set_clock(&server, &mut client, 0);
    let next: i64 = eventually(PATIENCE, "ids come again", || {
        let row = client.query_one("SELECT idgen_snowflake()", &[]).ok()?;
        Some(row.get(0))
    });
    assert!(next > last);
    load.wait_statements(20);
    let report = load.finish();
    report.assert_rising();
    assert!(
        report.refusals.iter().all(|refusal| refusal.code == "IG003"),
        "{:?}",
        report.refusals.first()
    );
    report.assert_unique(1_000);
    daemon.terminate();
}

/// Starts sessions that run `statement` until it fails, and waits until all of them are waiting for
/// something of the extension's. Their process ids, and where (process id, SQLSTATE) comes when one ends.
fn waiting(
    server: &Server,
    sessions: usize,
    setup: &str,
    statement: &str,
) -> (Vec<i32>, mpsc::Receiver<(i32, String)>) {
    let (ended, ends) = mpsc::channel();
    let mut pids = Vec::new();
    for _ in 0..sessions {
        let mut client = server.connect();
        sql::run(&mut client, setup);
        let pid = sql::value(&mut client, "SELECT pg_backend_pid()");
        pids.push(pid);
        let (statement, ended) = (statement.to_owned(), ended.clone());
        thread::spawn(move || {
            let error = client
                .query(&statement, &[])
                .expect_err("it has no end of its own");
            let code = error.code().map_or("-", |code| code.code()).to_owned();
            ended.send((pid, code)).expect("the test listens");
        });
    }
    let seen = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1) AND wait_event_type = 'Extension'";
    let mut client = server.connect();
    let mut unseen = pids.clone();
    eventually_true(PATIENCE, "every session waits", || {
        unseen.retain(|pid| {
            client
                .query_one(seen, &[&vec![*pid]])
                .expect(seen)
                .get::<_, i64>(0)
                == 0
        });
        unseen.is_empty()
    });
    (pids, ends)
}

/// `pg_cancel_backend` ends each wait, one by one and at once.
fn assert_each_can_be_cancelled(server: &Server, setup: &str, statement: &str) {
    const SESSIONS: usize = 50;
    let (pids, ends) = waiting(server, SESSIONS, setup, statement);
    let mut client = server.connect();
    for pid in pids {
        let asked = Instant::now();
        assert!(sql::value::<bool>(
            &mut client,
            &format!("SELECT pg_cancel_backend({pid})")
        ));
        let end = ends.recv_timeout(PATIENCE).expect("a cancelled session ends");
        assert_eq!(end, (pid, "57014".to_owned()));
        pace::assert_within(asked, AT_ONCE, "cancelled");
    }
}

/// sony/sonyflake#39: where a full sequence met a rollback it slept for eight hours, holding the mutex.
#[test]
fn incident_05_fifty_backends_out_of_sequence_after_a_rollback_can_be_cancelled() {
    let server = Server::with(fake_clock());
    let daemon = DaemonOptions::new(&server).workers(1).start();
    let mut client = server.connect();
    let before: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    set_clock(&server, &mut client, -3_000);
    assert_each_can_be_cancelled(&server, "", GREEDY);
    let after: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(after > before);
    daemon.terminate();
}

#[test]
fn fifty_backends_that_wait_for_a_lease_can_be_cancelled() {
    let server = Server::start();
    Daemon::start(&server).terminate();
    // A daemon was here a moment ago, so callers wait for the next one.
    assert_each_can_be_cancelled(
        &server,
        "SET idgen.lease_wait_ms = '60s'",
        "SELECT idgen_snowflake()",
    );
}

/// The wait for the next millisecond has an end of its own, and an error. On a clock that goes nobody gets
/// there: it takes a clock that stands, somebody who takes every millisecond whole, and a process that was
/// itself stopped for longer than the limit.
#[test]
fn a_session_that_never_gets_a_millisecond_is_refused_after_two_seconds() {
    const LIMIT: Duration = Duration::from_secs(2);
    const TRIES: usize = 5;
    let server = Server::with(ServerOptions {
        settings: vec!["idgen.max_clock_rewind_ms = '1h'".to_owned()],
        ..fake_clock()
    });
    let _daemon = DaemonOptions::new(&server).workers(1).start();
    server.clock().freeze_at(true_ms() / 1_000);
    let (_greedy, _running) = waiting(&server, 2, "", GREEDY);
    let (pids, ends) = waiting(&server, 1, "", GREEDY);
    let pid = u32::try_from(pids[0]).expect("pid");
    // It may be stopped between two waits; it is back in one right after.
    let code = (0..TRIES).find_map(|_| {
        signal_pid(pid, Signal::STOP);
        let stopped = Instant::now();
        eventually_true(PATIENCE, "longer than the limit", || {
            stopped.elapsed() > LIMIT + LIMIT / 10
        });
        signal_pid(pid, Signal::CONT);
        ends.recv_timeout(AT_ONCE).ok()
    });
    assert_eq!(code, Some((pids[0], "IG015".to_owned())));
}

/// baidu/uid-generator#100: the time bits ended, nobody looked, ids went negative.
#[test]
fn incident_64_after_the_last_millisecond_of_the_format_there_is_an_error_and_no_id() {
    /// Time for the daemon to come up.
    const BEFORE_END_MS: i64 = 6_000;
    /// Of two clocks that are cut to ms.
    const ROUNDING_MS: i64 = 2;
    let server = Server::with(fake_clock());
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let offset_ms = LAST_MS - BEFORE_END_MS - true_ms();
    set_clock(&server, &mut client, offset_ms);
    let mut daemon = Daemon::start(&server);
    let mut ids = Vec::new();
    let refused = loop {
        let asked_ms = true_ms() + offset_ms;
        match client.query("SELECT id FROM idgen_snowflake_batch(100) AS id", &[]) {
            Ok(rows) => ids.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
            Err(error) => break error,
        }
        assert!(
            asked_ms <= LAST_MS + ROUNDING_MS,
            "ids for a call that was made {} ms after the end",
            asked_ms - LAST_MS
        );
    };
    assert_eq!(
        refused.code().map(|code| code.code()),
        Some("IG010"),
        "{}",
        sql::describe(&refused)
    );
    assert!(
        ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| *id > 0),
        "rising and positive"
    );
    let last = ids.last().copied().expect("ids before the end");
    assert!(
        time_of(last) <= LAST_MS && time_of(last) > LAST_MS - 1_000,
        "{last} is not of the last second"
    );
    for call in CALLS {
        let refused = sql::refusal(&mut client, call, "IG010");
        assert!(refused.message().contains("classic"), "{refused:?}");
    }
    assert!(
        uuid(&mut client) < uuid(&mut client),
        "uuids go on for 8,000 years"
    );
    assert_eq!(sql::value::<i64>(&mut client, "SELECT idgen_segment('t')"), 1);
    assert!(daemon.exited().is_none(), "{}", daemon.log());
}

/// Every identity but those in use is somebody else's for a year, so a daemon gets the same one again.
fn take_the_other_identities(client: &mut Client) {
    sql::run(
        client,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'somebody', 0, 0, gen_random_uuid(), now() + interval '1 year'
           FROM generate_series(0, 1023) n
         ON CONFLICT DO NOTHING",
    );
}

/// mguenther/idem#5, cockroach#13441: a rollback while the process is down is invisible to it.
#[test]
fn incident_11_a_clock_set_back_while_the_server_was_down_gives_out_nothing_below_the_old_window() {
    let mut server = Server::with(fake_clock());
    let options = DaemonOptions::new(&server).workers(1);
    let daemon = options.start();
    let mut client = server.connect();
    let last: i64 = sql::value(
        &mut client,
        "SELECT max(id) FROM idgen_snowflake_batch(1000) AS id",
    );
    take_the_other_identities(&mut client);
    daemon.terminate();

    server.stop();
    server.clock().set_offset_ms(-HOUR_MS);
    server.run();
    let mut client = server.connect();
    let daemon = options.launch();
    eventually_true(PATIENCE, "the daemon has asked for an identity", || {
        daemon.log().contains("lease store:")
    });
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    let held: i64 = sql::value(&mut client, "SELECT count(*) FROM idgen.slot_states()");
    assert_eq!(held, 0, "no window begins below the old one's end");

    // A clock that was wrong from the start and was then set right: the daemon asks to be restarted.
    set_clock(&server, &mut client, 0);
    daemon.terminate();
    let daemon = options.start();
    let next: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(next > last, "{next} after {last}");
    daemon.terminate();
}

/// Leaf#216: one second back and a restart within the interval of the heartbeat issued a second of ids again.
#[test]
fn incident_02_a_restart_after_a_step_back_between_two_heartbeats_repeats_nothing() {
    /// Back by more than the restart takes, or the clock would have caught up before the first id.
    const STEP_MS: i64 = -3_000;
    /// Renewals every 2 s.
    const TTL_MS: u64 = 6_000;
    let mut server = Server::with(fake_clock());
    let options = DaemonOptions::new(&server).workers(1).ttl_ms(TTL_MS);
    let mut daemon = options.start();
    let mut client = server.connect();
    take_the_other_identities(&mut client);
    let load = Load::start(&server, 4);
    load.wait_statements(50);
    let mut renewals = || metric(&mut daemon, "idgen_renewals_total");
    let known = renewals();
    eventually_true(PATIENCE, "a heartbeat", || renewals() > known);
    let heartbeat = Instant::now();
    eventually_true(PATIENCE, "almost the next one", || {
        heartbeat.elapsed() > Duration::from_millis(1_700)
    });
    daemon.kill();
    server.clock().set_offset_ms(STEP_MS);
    server.restart();

    let mut daemon = options.launch();
    daemon.wait_ready();
    set_clock(&server, &mut server.connect(), STEP_MS);
    load.wait_statements(50);
    let report = load.finish();
    let other = report.refusals.iter().find(|refusal| refusal.code != "IG001");
    assert!(other.is_none(), "{other:?}");
    report.assert_rising();
    report.assert_unique(2_000);
    daemon.terminate();
}

/// The step was the correction: nobody sets the clock back, so somebody has to say that it is right.
#[test]
fn a_clock_that_an_operator_accepts_is_followed_again() {
    let server = Server::with(fake_clock());
    let mut daemon = DaemonOptions::new(&server).shards("7").start();
    let mut client = server.connect();
    let before: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    set_clock(&server, &mut client, HOUR_MS);
    wait_clock_stepped(&mut daemon, true);
    eventually_true(PATIENCE, "whoever keeps the shards has seen it too", || {
        daemon
            .get("/metrics")
            .is_some_and(|(_, text)| text.contains("idgen_clock_stepped{class=\"shard\"} 1"))
    });

    let addr = daemon.addr().expect("it listens").to_string();
    let accept = || idgenctl(&["clock", "accept", "--http", &addr]);
    let forged =
        http::request(addr.parse().expect("an address"), "POST", "/clock/accept").expect("an answer");
    assert_eq!(forged.0, 403, "a page in a browser can send this: {}", forged.1);
    let tried = idgenctl(&["clock", "accept", "--http", &addr, "--dry-run"]);
    assert_eq!(tried.code, Some(0), "{}", tried.stderr);
    assert_eq!(
        tried
            .stdout
            .matches("s: would be accepted; the clock was set by ")
            .count(),
        2,
        "{}",
        tried.stdout
    );
    // It would say "believed already" otherwise.
    let accepted = accept();
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    for class in ["workers", "shards"] {
        assert_accepted_by_an_hour(&accepted.stdout, class);
    }
    wait_clock_stepped(&mut daemon, false);
    daemon.wait_ready();
    eventually_true(PATIENCE, "ids follow the clock", || {
        let id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
        let shard: i64 = sql::value(&mut client, "SELECT idgen_snowflake(7)");
        assert!(id > before);
        let hour_ahead = time_of(before) + HOUR_MS;
        time_of(id) >= hour_ahead && (shard >> 23) + EPOCH_MS >= hour_ahead
    });
    let again = accept();
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(
        again.stdout.matches("believed already").count(),
        2,
        "{}",
        again.stdout
    );
    daemon.terminate();
}

/// Two clocks are read, and both are cut to ms.
#[track_caller]
fn assert_accepted_by_an_hour(answer: &str, class: &str) {
    let begin = format!("{class}: accepted; the clock was set by ");
    let by_ms = answer
        .lines()
        .find_map(|line| line.strip_prefix(&begin)?.split(' ').next()?.parse::<i64>().ok());
    assert!(
        by_ms.is_some_and(|by_ms| (by_ms - HOUR_MS).abs() < 100),
        "{answer}"
    );
}

/// The operator corrects the clock and says so, before the daemon has looked at it again.
#[test]
fn a_clock_is_accepted_as_it_is_when_the_operator_says_so() {
    let server = Server::with(fake_clock());
    let mut options = DaemonOptions::new(&server);
    let seldom = ("IDGEND_POSTGRES__POLL_MS".to_owned(), "60000".to_owned());
    options.env.push(seldom);
    let mut daemon = options.start();
    let mut client = server.connect();
    let before: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    let addr = daemon.addr().expect("it listens").to_string();
    // It looks with each renewal too: one has just been, and the next is seconds away.
    daemon.wait_renewals(1);
    set_clock(&server, &mut client, HOUR_MS);
    let accepted = idgenctl(&["clock", "accept", "--http", &addr]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    // What was read before is not what is accepted.
    assert_accepted_by_an_hour(&accepted.stdout, "workers");
    daemon.wait_renewals(1);
    eventually_true(PATIENCE, "ids follow the clock", || {
        let id: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
        time_of(id) >= time_of(before) + HOUR_MS
    });
    daemon.terminate();
}
