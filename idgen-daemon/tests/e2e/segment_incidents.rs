//! What others met with segments, steps and caches, on a real server: docs/incidents.md has the list.

use std::thread;

use postgres::{Client, Error};

use crate::kit::daemon::answer;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Server, ServerOptions, sql};

/// What many sessions draw at once, each in its own way; no call may fail.
fn together<T: Send + 'static>(
    server: &Server,
    sessions: usize,
    work: impl Fn(usize, &mut Client) -> Result<Vec<T>, Error> + Clone + Send + 'static,
) -> Vec<T> {
    let sessions: Vec<_> = (0..sessions)
        .map(|session| {
            let (connect, work) = (server.connector(), work.clone());
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                work(session, &mut client).unwrap_or_else(|error| panic!("{}", sql::describe(&error)))
            })
        })
        .collect();
    let drawn = sessions
        .into_iter()
        .map(|session| session.join().expect("a session"));
    drawn.flatten().collect()
}

/// Leaf#35, #143, #48: with a small step and a slow database callers got "both two segments not ready" after a few thousand
/// spins. Here they wait for the refill that is under way; the step grows meanwhile.
#[test]
fn incident_45_two_hundred_callers_of_a_small_step_and_a_slow_database_meet_no_error() {
    let server = Server::with(ServerOptions {
        settings: vec![
            "max_connections = 220".into(),
            "idgen.segment_wait_ms = 20000".into(),
        ],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 10);
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON idgen.audit_event FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let drawn = together(&server, 200, |_, client| {
        let rows = client.query("SELECT idgen_segment('t') FROM generate_series(1, 20)", &[])?;
        Ok(rows.iter().map(|row| row.get::<_, i64>(0)).collect())
    });
    let mut all = UniquenessRecorder::new();
    all.extend(drawn);
    all.assert_unique("numbers of two hundred callers", 4_000);
}

/// Leaf#145, #151: is UPDATE and then SELECT safe at every isolation level? Here it is one UPDATE ... RETURNING of a worker,
/// so the caller's level does not come into it.
#[test]
fn incident_47_thirty_two_writers_of_all_isolation_levels_get_disjoint_ranges() {
    let server = Server::start();
    sql::run(
        &mut server.connect(),
        "SELECT idgen_create_segment('t', step => 10, max_step => 20)",
    );
    let drawn = together(&server, 32, |session, client| {
        let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][session % 3];
        let mut drawn = Vec::new();
        for _ in 0..10 {
            client.batch_execute(&format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM idgen.segments"
            ))?;
            for draw in [
                "SELECT idgen_segment('t') FROM generate_series(1, 15)",
                "SELECT idgen_segment_batch('t', 7)",
            ] {
                let rows = client.query(draw, &[])?;
                drawn.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
            }
            client.batch_execute(if session % 2 == 0 { "COMMIT" } else { "ROLLBACK" })?;
        }
        Ok(drawn)
    });
    let mut all = UniquenessRecorder::new();
    all.extend(drawn);
    all.assert_unique("numbers of all levels", 32 * 220);
}

/// Leaf#78: a restart wasted a million numbers. A clean stop wastes what is left of two ranges at the most, and says which.
#[test]
fn incident_48_a_clean_stop_wastes_two_ranges_at_most_and_says_which() {
    let mut server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 500, max_step => 500)",
    );
    let mut last = 0;
    for _ in 0..3 {
        let drawn: Vec<i64> = sql::column(
            &mut server.connect(),
            "SELECT idgen_segment('t') FROM generate_series(1, 300)",
        );
        let wasted = drawn[0] - last - 1;
        assert!((0..=1_000).contains(&wasted), "{wasted} after {last}");
        let unsaid = format!(
            "SELECT count(*) FROM generate_series({} + 1, {} - 1) n WHERE NOT EXISTS (SELECT FROM idgen.audit_event e
              WHERE e.tag = 't' AND e.kind = 'segment.open' AND n BETWEEN e.lo AND e.hi)",
            last, drawn[0]
        );
        assert_eq!(
            sql::value::<i64>(&mut server.connect(), &unsaid),
            0,
            "wasted in silence"
        );
        last = drawn[299];
        server.restart();
    }
}

/// tidb#52680, #56476: a table that was imported began at 1 again. The rows of tags come by COPY into an extension that is
/// there already, as `pg_restore --data-only` brings them.
#[test]
fn incident_56_a_restore_of_data_only_goes_on_above() {
    let source = Server::start();
    let mut client = source.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let before: Vec<i64> = sql::column(
        &mut client,
        "SELECT idgen_segment('t') FROM generate_series(1, 2500)",
    );
    let mut dump = source.client_program("pg_dump");
    dump.args(["--data-only", "-t", "idgen.segment", "postgres"]);
    let dumped = answer(dump);
    assert_eq!(dumped.code, Some(0), "{}", dumped.stderr);
    assert!(dumped.stdout.contains("COPY idgen.segment "), "{}", dumped.stdout);
    let target = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    let file = target.socket_dir().join("data.sql");
    std::fs::write(&file, dumped.stdout).expect("write the dump");
    let mut psql = target.client_program("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f"])
        .arg(&file);
    let restored = answer(psql);
    assert_eq!((restored.code, restored.stderr.as_str()), (Some(0), ""));
    let next: i64 = sql::value(&mut target.connect(), "SELECT idgen_segment('t')");
    assert!(next > before[2_499], "{next} after {}", before[2_499]);
}

/// incubator-seata#1731, #1046: the reset after an overflow raced with the increments. Here the end is an error for
/// everybody, and every number before it is given out once, whoever comes when.
#[test]
fn incident_58_sessions_that_meet_the_end_of_a_tag_get_every_number_once_and_then_an_error() {
    let server = Server::start();
    let mut client = server.connect();
    for (tag, start, limit) in [("small", 1, 4_321), ("at the end", i64::MAX - 4_320, i64::MAX)] {
        sql::run(
            &mut client,
            &format!(
                "SELECT idgen_create_segment('{tag}', {start}, step => 100, max_step => 300, limit_id => {limit})"
            ),
        );
        let draw = format!("SELECT idgen_segment('{tag}')");
        let mut drawn = together(&server, 8, move |_, client| {
            let mut drawn = Vec::new();
            loop {
                match client.query_one(draw.as_str(), &[]) {
                    Ok(row) => drawn.push(row.get::<_, i64>(0)),
                    Err(error) if error.code().is_some_and(|code| code.code() == "IG006") => {
                        return Ok(drawn);
                    }
                    Err(error) => return Err(error),
                }
            }
        });
        drawn.sort_unstable();
        assert!(
            drawn.iter().copied().eq(start..=limit),
            "{tag}: {} numbers",
            drawn.len()
        );
    }
}

/// PostgreSQL bug #6748: the first nextval() after ALTER SEQUENCE was not in the log, and came again after a crash. The first
/// number after each change of a tag is used, and then the power goes.
#[test]
fn incident_60_a_crash_right_after_the_first_number_after_a_change_repeats_nothing() {
    let mut server = Server::with(ServerOptions {
        settings: vec![
            "wal_writer_delay = 10s".into(),
            "wal_writer_flush_after = 1GB".into(),
        ],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(&mut client, "CREATE TABLE parcel (id bigserial, n int)");
    let number = "INSERT INTO parcel (n) VALUES (1) RETURNING id";
    let mut last: i64 = sql::value(&mut client, number);
    let changes = [
        "SELECT count(*) FROM idgen_adopt_sequence('parcel_id_seq', 't')",
        "SELECT idgen_alter_segment('t', step => 7, max_step => 7)",
        "SELECT idgen_seek_segment('t', 50000)",
        "SELECT idgen_drop_segment('t'); SELECT idgen_create_segment('t', step => 5, max_step => 5)",
        // From here on it is a sequence, whose numbers are as durable as the caller's commit.
        "SELECT count(*) FROM idgen_release_sequence('t'); SET synchronous_commit = on",
        "SELECT count(*) FROM idgen_adopt_sequence('parcel_id_seq', 't')",
    ];
    for change in changes {
        let mut client = server.connect();
        sql::run(
            &mut client,
            "SET synchronous_commit = off; SET client_min_messages = warning",
        );
        for statement in change.split("; ") {
            sql::run(&mut client, statement);
        }
        let first: i64 = sql::value(&mut client, number);
        assert!(first > last, "{first} after {last}: {change}");
        server.kill_everything();
        server.run();
        last = sql::value(&mut server.connect(), number);
        assert!(last > first, "{last} after {first} and a crash: {change}");
    }
}
