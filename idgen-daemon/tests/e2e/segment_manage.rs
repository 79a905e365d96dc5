//! Tags that are moved, dropped and drawn from in bulk while others draw, crash and give up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, ServerOptions, eventually_true, sql, within};

/// Longer than a postmaster needs to see that a process of it is dead; a worker may have gone by itself before.
const CRASH_IS_SEEN: Duration = Duration::from_secs(2);

/// Sessions that draw one number at a time until they are told to stop.
struct Drawers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(Instant, i64)>>>,
}

impl Drawers {
    /// `excused`: a SQLSTATE that they may meet.
    fn start(server: &Server, sessions: usize, excused: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let draw = |_| {
            let (connect, stop) = (server.connector(), Arc::clone(&stop));
            thread::spawn(move || draw_until(&stop, &mut connect().expect("connect"), excused))
        };
        Self {
            threads: (0..sessions).map(draw).collect(),
            stop,
        }
    }

    /// When each call began, and what it gave.
    fn finish(self) -> Vec<(Instant, i64)> {
        self.stop.store(true, Ordering::Relaxed);
        let drawn = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("a drawer"));
        drawn.flatten().collect()
    }
}

fn draw_until(stop: &AtomicBool, client: &mut Client, excused: &str) -> Vec<(Instant, i64)> {
    let mut drawn = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        match client.query_one("SELECT idgen_segment('t')", &[]) {
            Ok(row) => drawn.push((began, row.get(0))),
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned());
                assert_eq!(code.as_deref(), Some(excused), "{}", sql::describe(&error));
            }
        }
    }
    drawn
}

fn max_id(client: &mut Client) -> i64 {
    sql::value(client, "SELECT max_id FROM idgen.segment WHERE tag = 't'")
}

/// Wait until the drawers have taken `ids` more of the tag.
fn let_them_draw(client: &mut Client, ids: i64) {
    let from = max_id(client);
    eventually_true(PATIENCE, "the drawers go on", || max_id(client) >= from + ids);
}

fn assert_no_overlap(client: &mut Client) {
    let overlaps: i64 = sql::value(
        client,
        "SELECT count(*) FROM (SELECT lo, max(hi) OVER (ORDER BY lo, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM idgen.audit_event WHERE tag = 't' AND lo IS NOT NULL) e WHERE lo <= before",
    );
    assert_eq!(overlaps, 0, "no two events of the tag are about one id");
    let (events, counted): (i64, i64) = (
        sql::value(client, "SELECT count(*) FROM idgen.audit_event WHERE tag = 't'"),
        sql::value(
            client,
            "SELECT max(tag_seq) FROM idgen.audit_event WHERE tag = 't'",
        ),
    );
    assert_eq!(
        events, counted,
        "the events of the tag are numbered without a gap"
    );
}

/// vitess PR#18415, #9442: the counter was raised on disk, and stale caches served values from before.
#[test]
fn incident_53_no_session_draws_a_value_from_before_a_seek_that_has_returned() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 50, max_step => 200)",
    );
    let drawers = Drawers::start(&server, 4, "none");
    let mut seeks = Vec::new();
    for round in 0..25 {
        let_them_draw(&mut client, 300);
        let next_id = max_id(&mut client) + 20_000;
        if round % 5 == 4 {
            sql::run(
                &mut client,
                &format!("BEGIN; SELECT idgen_seek_segment('t', {next_id}); ROLLBACK"),
            );
        }
        sql::run(&mut client, &format!("SELECT idgen_seek_segment('t', {next_id})"));
        seeks.push((Instant::now(), next_id));
    }
    let_them_draw(&mut client, 300);
    let drawn = drawers.finish();
    for (returned, next_id) in seeks {
        let late = drawn
            .iter()
            .find(|(began, id)| *began > returned && *id < next_id);
        assert_eq!(late, None, "drawn after the seek to {next_id} had returned");
    }
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(drawn.into_iter().map(|(_, id)| id));
    recorder.assert_unique("numbers over the seeks", 2_000);
    assert_no_overlap(&mut client);
}

/// Hazard H2, read in Leaf: a tag that is deleted and inserted again begins below what it had given out.
#[test]
fn hazard_h2_a_tag_that_is_dropped_and_made_again_under_load_repeats_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    let create =
        "SET client_min_messages = warning; SELECT idgen_create_segment('t', step => 50, max_step => 200)";
    sql::run(&mut client, create);
    let drawers = Drawers::start(&server, 4, "IG005");
    for round in 0..25 {
        let_them_draw(&mut client, 300);
        let between = if round % 2 == 0 { "" } else { "COMMIT; BEGIN;" };
        sql::run(
            &mut client,
            &format!("BEGIN; SELECT idgen_drop_segment('t'); {between} {create}; COMMIT"),
        );
    }
    let_them_draw(&mut client, 300);
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(drawers.finish().into_iter().map(|(_, id)| id));
    recorder.assert_unique("numbers over the drops", 2_000);
    assert_no_overlap(&mut client);
}

/// A single number waits for nobody while definitions change.
#[test]
fn altering_a_tag_under_load_fails_no_call_and_leaves_no_gap() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 50, max_step => 200)",
    );
    let drawers = Drawers::start(&server, 4, "none");
    for round in 0..25 {
        let_them_draw(&mut client, 300);
        sql::run(
            &mut client,
            &format!(
                "SELECT idgen_alter_segment('t', step => {0}, max_step => {0})",
                20 + round * 7
            ),
        );
    }
    let mut ids: Vec<i64> = drawers.finish().into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    let dense: Vec<i64> = (1..=i64::try_from(ids.len()).expect("a count")).collect();
    assert_eq!(ids, dense, "every number once, none left out");
    assert_no_overlap(&mut client);
}

#[test]
fn one_request_key_is_answered_once_however_many_ask() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let sessions: Vec<_> = (0..12)
        .map(|session| {
            let connect = server.connector();
            thread::spawn(move || -> Vec<(usize, i64)> {
                let mut client = connect().expect("connect");
                let ask = |job: usize| {
                    // Every session in another order.
                    let job = (job + session * 5) % 30;
                    let sql = format!("SELECT lower(idgen_segment_range('t', 1000, 'job {job}'))");
                    (job, sql::value(&mut client, &sql))
                };
                (0..30).map(ask).collect()
            })
        })
        .collect();
    let mut answers: BTreeMap<usize, i64> = BTreeMap::new();
    for (job, first) in sessions
        .into_iter()
        .flat_map(|session| session.join().expect("a session"))
    {
        assert_eq!(*answers.entry(job).or_insert(first), first, "job {job}");
    }
    let mut firsts: Vec<i64> = answers.into_values().collect();
    firsts.sort_unstable();
    let each: Vec<i64> = (0..30).map(|job| job * 1_000 + 1).collect();
    assert_eq!(firsts, each, "one grant per job, and nothing between");
    assert_no_overlap(&mut client);
}

/// A job that repeats its request until it is answered, over whatever happens to the server.
fn range_by_key(server: impl Fn() -> Result<Client, postgres::Error>, key: &str) -> (i64, i64) {
    let sql = format!("SELECT lower(r), upper(r) FROM idgen_segment_range('t', 10, '{key}') r");
    let mut answer = None;
    eventually_true(PATIENCE, "the request is answered", || {
        let row = server().and_then(|mut client| client.query_one(sql.as_str(), &[]));
        answer = row.ok().map(|row| (row.get(0), row.get(1)));
        answer.is_some()
    });
    answer.expect("an answer")
}

#[test]
fn a_request_key_has_one_answer_over_crashes_of_worker_backend_and_server() {
    let mut server = Server::start();
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('t')");
    let stop = Arc::new(AtomicBool::new(false));
    let jobs: Vec<_> = (0..4)
        .map(|session| {
            let (connect, stop) = (server.connector(), Arc::clone(&stop));
            thread::spawn(move || {
                let mut answers = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("{session} {}", answers.len());
                    answers.push((key.clone(), range_by_key(&connect, &key)));
                }
                answers
            })
        })
        .collect();
    for round in 0..6 {
        let mut client = server.connect();
        let_them_draw(&mut client, 400);
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                          WHERE backend_type = 'pg_idgen refill worker' OR query LIKE '%idgen_segment_range%' AND pid <> pg_backend_pid()";
        match round % 3 {
            0 => sql::run(&mut client, terminate),
            1 => {
                // Nobody reads what it was: the connection goes with the rest, a moment later, if there was a worker.
                let _ = client.batch_execute(
                    "COPY (SELECT 1) TO PROGRAM 'kill -9 $(pgrep -f \"refill worker\" -P $(head -1 postmaster.pid)) || true'",
                );
                within(CRASH_IS_SEEN, || client.simple_query("SELECT 1").is_err());
            }
            _ => {
                server.kill_everything();
                server.run();
            }
        }
        eventually_true(PATIENCE, "the server is back", || server.try_connect().is_ok());
    }
    stop.store(true, Ordering::Relaxed);
    let answers: Vec<(String, (i64, i64))> = jobs
        .into_iter()
        .flat_map(|job| job.join().expect("a job"))
        .collect();
    assert!(answers.len() > 200, "{} jobs", answers.len());
    let mut recorder = UniquenessRecorder::new();
    for (_, (first, end)) in &answers {
        assert_eq!(end - first, 10);
        recorder.extend(*first..*end);
    }
    recorder.assert_unique("numbers of all jobs", 2_000);
    let mut client = server.connect();
    for (key, answer) in answers.iter().step_by(17) {
        assert_eq!(range_by_key(server.connector(), key), *answer, "{key} repeated");
    }
    assert_no_overlap(&mut client);
}

/// A session that asks for ten numbers: the first of them, or the SQLSTATE that it met.
fn asks_for_ten(server: &Server, wait_ms: u32) -> JoinHandle<Result<i64, String>> {
    let connect = server.connector();
    thread::spawn(move || {
        let mut client = connect().expect("connect");
        sql::run(&mut client, &format!("SET idgen.segment_wait_ms = {wait_ms}"));
        match client.query_one("SELECT lower(idgen_segment_range('t', 10))", &[]) {
            Ok(row) => Ok(row.get(0)),
            Err(error) => Err(error.code().map_or("gone".into(), |code| code.code().into())),
        }
    })
}

const ASKING: &str = "FROM pg_stat_activity
    WHERE query LIKE '%idgen_segment_range%' AND state = 'active' AND pid <> pg_backend_pid()";

/// More callers than there are places for requests, of which many give up in every way there is.
#[test]
fn callers_that_give_up_leave_no_place_taken() {
    let server = Server::with(ServerOptions {
        settings: vec!["max_connections = 120".to_owned()],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    assert_eq!(sql::value::<i64>(&mut client, "SELECT idgen_segment('t')"), 1);
    // The worker gets as far as the event and waits there for a while, again and again.
    sql::run(
        &mut client,
        "BEGIN; LOCK TABLE idgen.audit_event IN ACCESS EXCLUSIVE MODE",
    );
    let callers: Vec<_> = (0..80)
        .map(|caller| asks_for_ten(&server, if caller % 4 == 0 { 500 } else { 60_000 }))
        .collect();
    let mut other = server.connect();
    eventually_true(PATIENCE, "all that wait for long wait, and no others", || {
        let gave_up = callers.iter().filter(|caller| caller.is_finished()).count();
        gave_up == 20 && sql::value::<i64>(&mut other, &format!("SELECT count(*) {ASKING}")) == 60
    });
    for (give_up, which) in [("pg_cancel_backend", 1), ("pg_terminate_backend", 2)] {
        let nth = format!("SELECT pid, row_number() OVER (ORDER BY pid) AS nth {ASKING}");
        sql::run(
            &mut other,
            &format!("SELECT {give_up}(pid) FROM ({nth}) a WHERE nth % 3 = {which}"),
        );
    }
    sql::run(&mut client, "ROLLBACK");
    let outcomes: Vec<Result<i64, String>> = callers
        .into_iter()
        .map(|caller| caller.join().expect("a caller"))
        .collect();
    let met = |code: &str| {
        let it = |outcome: &&Result<i64, String>| outcome.as_ref().is_err_and(|met| met == code);
        outcomes.iter().filter(it).count()
    };
    assert_eq!(met("IG007"), 20, "{outcomes:?}");
    let mut recorder = UniquenessRecorder::new();
    let tens: Vec<i64> = outcomes.iter().flatten().copied().collect();
    assert!(met("57014") >= 15 && tens.len() >= 15, "{outcomes:?}");
    recorder.extend(tens.iter().flat_map(|first| *first..first + 10));
    // As many at once as there are places: none is taken any more.
    let again: Vec<_> = (0..64).map(|_| asks_for_ten(&server, 30_000)).collect();
    for caller in again {
        let first = caller.join().expect("a caller").expect("ten numbers");
        recorder.extend(first..first + 10);
    }
    recorder.assert_unique("numbers of ranges", 640);
    assert_no_overlap(&mut other);
}

/// The error of a caller tells what it waited for.
#[test]
fn a_worker_that_cannot_start_is_not_taken_for_one_that_failed() {
    let server = Server::with(ServerOptions {
        // The launcher, and that of logical replication.
        settings: vec![
            "max_worker_processes = 2".to_owned(),
            "max_parallel_workers = 0".to_owned(),
        ],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(&mut client, "SET idgen.segment_wait_ms = 500");
    let refused = sql::refusal(&mut client, "SELECT idgen_create_segment('t')", "IG007");
    let detail = refused.detail().unwrap_or_default();
    assert!(detail.contains("max_worker_processes"), "{detail}");
    // The same of a tag that is there, in bulk.
    let mut migration = server.connect();
    sql::run(&mut migration, "DROP EXTENSION pg_idgen");
    sql::run(
        &mut migration,
        "BEGIN; CREATE EXTENSION pg_idgen; SELECT idgen_create_segment('t'); COMMIT",
    );
    let refused = sql::refusal(&mut client, "SELECT idgen_segment_range('t', 5)", "IG007");
    let detail = refused.detail().unwrap_or_default();
    assert!(detail.contains("max_worker_processes"), "{detail}");
}
