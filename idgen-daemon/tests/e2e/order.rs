//! Ids of one session rise, in the order of its calls, whatever makes the calls and whatever happens to
//! slots, leases and daemons meanwhile; and nobody meets anybody else's.
//!
//! How much of the capacity a session at full speed uses depends on when the machine lets it run, so that is
//! shown with a clock that no machine disturbs: `idgen-core/tests/mint_full_speed.rs`.

use std::collections::BTreeSet;
use std::thread;

use postgres::Client;

use crate::kit::daemon::DaemonOptions;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Load, Server, sql};

/// Bits below the worker, and the worker's.
const WORKER_SHIFT: u32 = 12;
const WORKER_MASK: i64 = 1_023;

fn worker_of(id: i64) -> i64 {
    id >> WORKER_SHIFT & WORKER_MASK
}

/// As many ids as `calls` gives, one after the other: how many came of each worker, and whether each was
/// above the one before. Neither step sorts: the rows stay in the order they were made in.
fn rising_by_worker(client: &mut Client, calls: &str) -> Vec<(i64, i64)> {
    let sql = format!(
        "SELECT id >> {WORKER_SHIFT} & {WORKER_MASK} AS worker, count(*), bool_and(id > before)
           FROM (SELECT id, lag(id, 1, 0::bigint) OVER () AS before FROM ({calls} OFFSET 0) AS made (id)) AS pairs
          GROUP BY worker"
    );
    let rows = client
        .query(&sql, &[])
        .unwrap_or_else(|error| panic!("{calls}: {}", sql::describe(&error)));
    for row in &rows {
        assert!(
            row.get::<_, bool>(2),
            "{calls}: an id is not above the one before"
        );
    }
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

const FOUR_MILLION: i64 = 1 << 22;

#[test]
fn four_million_ids_of_one_session_rise_on_one_slot() {
    let server = Server::start();
    let _daemon = DaemonOptions::new(&server).workers(1).start();
    let calls = format!("SELECT idgen_snowflake() FROM generate_series(1, {FOUR_MILLION})");
    let by_worker = rising_by_worker(&mut server.connect(), &calls);
    assert!(matches!(by_worker[..], [(_, FOUR_MILLION)]), "{by_worker:?}");
}

/// In runs, so that it is faster than one slot, and goes on in the next ones.
#[test]
fn four_million_ids_of_one_session_rise_over_eight_slots() {
    let server = Server::start();
    let _daemon = DaemonOptions::new(&server).workers(8).start();
    let calls = format!("SELECT * FROM idgen_snowflake_batch({FOUR_MILLION})");
    let by_worker = rising_by_worker(&mut server.connect(), &calls);
    let sum: i64 = by_worker.iter().map(|(_, ids)| ids).sum();
    assert_eq!(sum, FOUR_MILLION, "{by_worker:?}");
    assert!(
        by_worker.len() > 1,
        "no millisecond was ever used up: {by_worker:?}"
    );
}

/// ppn-systems/nalix#310: nobody could say how many ids a tick has, and there were ticks of a second.
#[test]
fn incident_10_a_tick_is_a_millisecond_and_has_as_many_ids_as_the_view_says() {
    let server = Server::start();
    let _daemon = DaemonOptions::new(&server).workers(1).start();
    let mut client = server.connect();
    let said: i64 = sql::value(
        &mut client,
        "SELECT ids_per_ms::bigint FROM idgen.formats WHERE cell = 'now'",
    );
    let began: i64 = sql::value(&mut client, "SELECT wall_ms FROM idgen.server_clock()");
    let most: i64 = sql::value(
        &mut client,
        "SELECT max(ids) FROM (SELECT count(*) AS ids FROM idgen_snowflake_batch(200000) AS id
                                GROUP BY idgen_timestamp(id)) AS by_ms",
    );
    assert_eq!(most, said, "ids of the fullest millisecond");
    let (last, now): (i64, i64) = (
        sql::value(
            &mut client,
            "SELECT (extract(epoch FROM idgen_timestamp(idgen_snowflake())) * 1000)::bigint",
        ),
        sql::value(&mut client, "SELECT wall_ms FROM idgen.server_clock()"),
    );
    assert!(
        (began..=now + 2).contains(&last),
        "{last} is not a time in ms from {began} to {now}"
    );
}

/// Two sessions in tight loops: each uses up its own slot's milliseconds and goes on in the other's.
#[test]
fn two_sessions_that_spill_over_two_slots_rise_and_never_meet() {
    const IDS: usize = 300_000;
    let server = Server::start();
    let _daemon = DaemonOptions::new(&server).start();
    let sessions = [(), ()].map(|()| {
        let connect = server.connector();
        thread::spawn(move || {
            let mut client = connect().expect("connect");
            sql::column::<i64>(
                &mut client,
                &format!("SELECT * FROM idgen_snowflake_batch({IDS})"),
            )
        })
    });
    let mut recorder = UniquenessRecorder::new();
    for session in sessions {
        let ids = session.join().expect("a session");
        assert!(ids.is_sorted_by(|a, b| a < b), "ids rise within a session");
        let workers: BTreeSet<i64> = ids.iter().copied().map(worker_of).collect();
        assert_eq!(workers.len(), 2, "it has not spilled over: {workers:?}");
        recorder.extend(ids);
    }
    recorder.assert_unique("snowflakes", 2 * IDS);
}

/// A daemon that is killed leaves its identities taken: the next one closes them, in the middle of the
/// sessions' work, and gets others, above or below.
#[test]
fn sixteen_sessions_rise_over_leases_of_other_workers() {
    const RELEASES: usize = 4;
    let server = Server::start();
    let options = DaemonOptions::new(&server);
    let mut daemon = options.start();
    let load = Load::start(&server, 16);
    for _ in 0..RELEASES {
        load.wait_statements(200);
        daemon.kill();
        daemon = options.start();
    }
    load.wait_statements(200);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_rising();
    let workers: BTreeSet<i64> = report.snowflakes().map(worker_of).collect();
    // Which ones the next daemon gets is chance, and one that was given back may be among them.
    assert!(
        workers.len() > RELEASES,
        "the same workers all along: {workers:?}"
    );
    report.assert_unique(10_000);
    daemon.terminate();
}

const FOUNDATION: &str = "
    CREATE TABLE wide AS SELECT n FROM generate_series(1, 20000) n;
    CREATE TABLE filled (id bigint PRIMARY KEY, n int);
    CREATE TABLE defaulted (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n int);
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.id := idgen_snowflake(); RETURN NEW; END $$;
    CREATE TRIGGER fill BEFORE INSERT ON filled FOR EACH ROW EXECUTE FUNCTION fill();
    CREATE FUNCTION plain() RETURNS bigint LANGUAGE sql AS 'SELECT idgen_snowflake()';
    CREATE FUNCTION nested(depth int) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
    BEGIN
        RETURN NEXT idgen_snowflake();
        BEGIN
            IF depth > 0 THEN RETURN QUERY SELECT * FROM nested(depth - 1); END IF;
            RETURN NEXT plain();
            RAISE EXCEPTION 'undone' USING ERRCODE = 'P0099';
        EXCEPTION WHEN SQLSTATE 'P0099' THEN
            RETURN NEXT idgen_snowflake();
        END;
    END $$;
    -- Every plan that can be parallel is, and what can run in a worker runs there.
    SET parallel_leader_participation = off;
    SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
    SET max_parallel_workers_per_gather = 2;";

/// Every way to make an id, once each, in the order of the calls.
fn by_every_way(client: &mut Client, ids: &mut Vec<i64>) {
    let parallel = "SELECT n, idgen_snowflake() FROM wide WHERE n % 7 = 0";
    let plan = sql::column::<String>(client, &format!("EXPLAIN (COSTS OFF) {parallel}")).join("\n");
    assert!(plan.contains("Parallel Seq Scan"), "not a parallel plan:\n{plan}");

    let mut transaction = client.transaction().expect("begin");
    let mut take = |sql: &str| {
        let rows = transaction
            .query(sql, &[])
            .unwrap_or_else(|error| panic!("{sql}: {}", sql::describe(&error)));
        ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    };
    take("SELECT idgen_snowflake()");
    take("DECLARE slow CURSOR FOR SELECT idgen_snowflake() FROM generate_series(1, 1000)");
    for fetch in 0..5 {
        take("FETCH 100 FROM slow");
        take("SELECT * FROM idgen_snowflake_batch(100)");
        if fetch == 2 {
            take("SELECT * FROM nested(3)");
        }
        take("INSERT INTO filled (n) SELECT n FROM wide LIMIT 50 RETURNING id");
        take("INSERT INTO defaulted (n) SELECT n FROM wide LIMIT 50 RETURNING id");
    }
    take(&format!("SELECT id FROM ({parallel}) AS made (n, id)"));
    take("SELECT plain() FROM wide LIMIT 100");
    transaction.rollback().expect("rollback");
    ids.push(sql::value(client, "SELECT idgen_snowflake()"));
}

#[test]
fn cursors_functions_triggers_and_parallel_plans_of_one_session_rise() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).workers(4);
    let mut daemon = options.start();
    let mut client = server.connect();
    sql::run(&mut client, FOUNDATION);
    // Others are at work on the same slots.
    let load = Load::start(&server, 3);
    load.wait_statements(20);
    let mut ids = Vec::new();
    for _ in 0..3 {
        by_every_way(&mut client, &mut ids);
        daemon.kill();
        daemon = options.start();
    }
    by_every_way(&mut client, &mut ids);
    let breaks: Vec<&[i64]> = ids.windows(2).filter(|pair| pair[0] >= pair[1]).take(3).collect();
    assert!(breaks.is_empty(), "not rising: {breaks:?}");
    let workers: BTreeSet<i64> = ids.iter().copied().map(worker_of).collect();
    assert!(workers.len() > 1, "one worker only: {workers:?}");
    let report = load.finish();
    report.assert_rising();
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(ids);
    recorder.extend(report.snowflakes());
    recorder.assert_unique("snowflakes", 20_000);
    daemon.terminate();
}
