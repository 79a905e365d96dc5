//! Incidents of leases elsewhere, with the whole chain of daemon, store and server.

use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::daemon::DaemonOptions;
use crate::kit::process::Signal;
use crate::kit::{Daemon, Etcd, Load, PATIENCE, Server, Store, eventually, eventually_true, pace, sql};

/// Short enough to wait for, long enough for several renewals on a busy machine.
const TTL: Duration = Duration::from_secs(4);
const TTL_MS: u64 = 4_000;
/// A third of the TTL; see `Timing::hold_off_ms`.
const HOLD_OFF: Duration = Duration::from_millis(1_333);
/// A refusal may come late by a scheduling delay, not more.
const SLACK: Duration = Duration::from_millis(500);

const SHARD: i32 = 7;

fn mint_shard(client: &mut Client) -> Vec<i64> {
    let statement = format!("SELECT idgen_snowflake({SHARD}) FROM generate_series(1, 500)");
    sql::column(client, &statement)
}

/// Who has the shard in the store, under which token, and up to when.
fn in_store(store: &mut Client) -> (Option<String>, Option<i64>, i64) {
    let row = store
        .query_one(
            "SELECT holder_name, token_revision, ceiling_ms FROM idgen.lease WHERE kind = 'shard' AND identity = $1",
            &[&SHARD],
        )
        .expect("the row of the shard");
    (row.get(0), row.get(1), row.get(2))
}

/// A daemon is frozen until another server has its shard; then it goes on, after `told`.
fn frozen_past_its_lease(told: Option<Signal>) {
    let servers = Server::several(2);
    let options = |n: usize, name: &str| {
        let options = DaemonOptions::new(&servers[n]).store(Store::on(&servers[0]));
        options.name(name).ttl_ms(TTL_MS).shards("7")
    };
    let mut first = options(0, "first").start();
    let (mut one, mut two) = (servers[0].connect(), servers[1].connect());
    let before = mint_shard(&mut one);
    first.signal(Signal::STOP);
    let second = options(1, "second").start();
    let after = mint_shard(&mut two);
    assert!(after[0] > before[499], "the next holder begins above");
    let (holder, token, ceiling_ms) = in_store(&mut one);
    assert_eq!(holder.as_deref(), Some("second"));

    if let Some(told) = told {
        first.signal(told);
    }
    first.signal(Signal::CONT);
    if told.is_some() {
        assert_eq!(first.wait_exit().code(), Some(0), "{}", first.log());
    } else {
        eventually_true(PATIENCE, "the first finds out", || {
            let body = first.get("/readyz").map(|(_, body)| body);
            body.is_some_and(|body| body.contains("7 is held by second"))
        });
    }
    let now = in_store(&mut one);
    assert_eq!((now.0.as_deref(), now.1), (Some("second"), token), "{now:?}");
    assert!(now.2 >= ceiling_ms, "its high water never fell: {now:?}");
    let last = mint_shard(&mut two);
    assert!(last[0] > after[499]);
    sql::run(&mut one, "SET idgen.lease_wait_ms = 0");
    let refused = one.query("SELECT idgen_snowflake(7)", &[]);
    assert!(refused.is_err(), "nothing is minted without the lease");
    second.terminate();
}

/// tikv/pd#9157, PR#9171: a former leader saved its window after it had lost the leadership.
#[test]
fn incident_18_a_daemon_that_slept_past_its_lease_changes_nothing_of_the_next_holder() {
    frozen_past_its_lease(None);
}

/// pingcap/tidb#46444: a former leader wrote its lower maximum on its way out.
#[test]
fn incident_54_a_fenced_daemon_that_is_told_to_stop_leaves_the_high_water_alone() {
    frozen_past_its_lease(Some(Signal::TERM));
}

/// The moment of the first line of a daemon's log that says this, in ms of the day.
fn logged_at(daemon: &Daemon, what: &str, since: usize) -> Option<(usize, u64)> {
    let log = daemon.log();
    let (n, line) = log
        .lines()
        .enumerate()
        .skip(since)
        .find(|(_, line)| line.contains(what))?;
    let (_, time) = line.split_once('T')?;
    let digits = |from: usize, to: usize| time.get(from..to)?.parse::<u64>().ok();
    let seconds = digits(0, 2)? * 3_600 + digits(3, 5)? * 60 + digits(6, 8)?;
    Some((n, seconds * 1_000 + digits(9, 12)?))
}

/// tikv/pd#9051, PR#9056: timestamps were served by one that was no leader any more. Somebody revokes the lease under
/// load (LEASES.md F57): it is fenced with the next renewal, and no other is taken for the hold-off (F10).
#[test]
fn incident_19_a_lease_that_is_revoked_under_load_is_fenced_and_not_replaced_at_once() {
    let (server, etcd) = (Server::start(), Etcd::start());
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let daemon = options.ttl_ms(TTL_MS).workers(1).start();
    let mut client = server.connect();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    let open = "SELECT identity, token_revision FROM idgen.slots WHERE state = 'open' AND kind = 'worker'";
    let row = client.query_one(open, &[]).expect("one worker");
    let (worker, token): (i32, i64) = (row.get(0), row.get(1));
    let revoked = Instant::now();
    etcd.ctl_ok(&["del", &format!("/pg_idgen/default/w/{worker}/holder")]);

    let (line, lost_ms) = eventually(PATIENCE, "the daemon finds out", || {
        logged_at(&daemon, "lease lost", 0)
    });
    pace::assert_within(
        revoked,
        TTL,
        "found out with the next renewal, not at the deadline",
    );
    let lost = daemon.log().lines().nth(line).unwrap_or_default().to_owned();
    assert!(lost.contains("store_lost"), "{lost}");
    let (_, installed_ms) = eventually(PATIENCE, "another lease", || {
        logged_at(&daemon, "lease installed", line)
    });
    let pause = Duration::from_millis(installed_ms.saturating_sub(lost_ms));
    // The loss is decided, the slot fenced, and only then the line written: on a busy machine that takes a while.
    assert!(
        pause >= HOLD_OFF.mul_f32(0.7) && pause < HOLD_OFF + Duration::from_secs(3),
        "{pause:?}"
    );
    let newer: i64 = sql::value(
        &mut client,
        "SELECT max(token_revision) FROM idgen.slots WHERE state = 'open'",
    );
    assert!(newer > token);
    load.wait_statements(20);
    load.finish().assert_unique(800);
    daemon.terminate();
}

/// posthog/posthog PR#74478: a pause between retries hid that the lease was lost, and the old owner went on. tikv/pd#9179,
/// PR#9180: the task that updated the window ended with an error, and nothing started it again.
#[test]
fn incident_20_and_28_retries_hide_no_deadline_and_end_when_etcd_is_back() {
    let (server, etcd) = (Server::start(), Etcd::start());
    let options = DaemonOptions::new(&server).store(Store::etcd(&etcd));
    let mut daemon = options.ttl_ms(TTL_MS).start();
    let mut client = server.connect();
    let load = Load::start(&server, 2);
    load.wait_statements(20);
    etcd.signal(Signal::STOP);
    let away = Instant::now();
    // No renewal gets through any more, so the deadline stands.
    let left = "SELECT max(deadline_in_ms) FROM idgen.slots WHERE state = 'open'";
    let left_ms: i64 = sql::value(&mut client, left);
    let deadline = Instant::now() + Duration::from_millis(u64::try_from(left_ms).expect("time left"));
    eventually_true(PATIENCE, "etcd is away for two TTLs", || away.elapsed() > 2 * TTL);
    assert!(!daemon.is_ready());
    let back = Instant::now();
    etcd.signal(Signal::CONT);
    daemon.wait_ready();
    load.wait_statements(20);
    let report = load.finish();
    let last = report.last_success_before(back);
    assert!(
        last <= deadline + SLACK,
        "minted {:?} after the deadline",
        last - deadline
    );
    report.assert_unique(800);
    daemon.terminate();
}

/// tikv/pd PR#3322: the base was set apart from the end, and after a restart came out too low.
#[test]
fn incident_21_the_first_id_after_each_restart_is_above_all_before() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).shards("7");
    let mut highest = 0;
    for restart in 0..5 {
        let daemon = options.start();
        let ids = mint_shard(&mut server.connect());
        assert!(
            ids[0] > highest,
            "restart {restart}: {} is not above {highest}",
            ids[0]
        );
        highest = ids[499];
        if restart % 2 == 0 {
            daemon.kill();
        } else {
            daemon.terminate();
        }
    }
}
