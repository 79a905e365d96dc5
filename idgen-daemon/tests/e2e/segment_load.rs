//! Segments under load: many sessions on one tag whose refills are slow, and few sessions on very many tags. Nobody gets
//! an error, and no id comes twice. `make bench` has the numbers of the same two scenes.

use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

use postgres::Client;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, eventually_true, sql};

/// Each session runs `statement`, which gives tags and ids, so many times; an error of any kind fails the test.
fn draw(server: &Server, sessions: u32, times: u32, statement: &'static str) -> Vec<(String, i64)> {
    let sessions: Vec<_> = (1..=sessions)
        .map(|session| {
            let connect = server.connector();
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                // Each its own tags, the same in every run.
                sql::run(&mut client, &format!("SELECT setseed(1.0 / {session})"));
                let mut drawn = Vec::new();
                for _ in 0..times {
                    let rows = client
                        .query(statement, &[])
                        .unwrap_or_else(|error| panic!("{}", sql::describe(&error)));
                    drawn.extend(rows.iter().map(|row| (row.get(0), row.get(1))));
                }
                drawn
            })
        })
        .collect();
    let joined = sessions.into_iter();
    joined
        .flat_map(|session| session.join().expect("a session"))
        .collect()
}

/// The worker sleeps in its transaction, with the row of the tag locked and raised, as for a slow disk.
fn slow_refills(client: &mut Client) {
    sql::run(
        client,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON idgen.audit_event
             FOR EACH ROW WHEN (NEW.kind = 'segment.grant') EXECUTE FUNCTION slow();",
    );
}

fn errors(client: &mut Client) -> i64 {
    sql::value(
        client,
        "SELECT coalesce(sum(value), 0)::bigint FROM idgen.stats WHERE scope = 'error'",
    )
}

/// Ranges so small that all sessions wait for each of them.
#[test]
fn thirty_two_sessions_wait_for_slow_refills_of_one_tag_without_an_error() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('hot', step => 100, max_step => 100)",
    );
    slow_refills(&mut client);
    let begun = Instant::now();
    let ids = draw(&server, 32, 60, "SELECT 'hot', idgen_segment('hot')");
    let refills = begun.elapsed().as_millis() / 50;
    let granted: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM idgen.audit_event WHERE kind = 'segment.grant'",
    );
    assert!(
        (1..=refills + 1).contains(&u128::from(granted.unsigned_abs())),
        "{granted} grants, {refills} slow ones at the most"
    );
    assert_eq!(errors(&mut client), 0);
    let mut seen = UniquenessRecorder::new();
    seen.extend(ids);
    seen.assert_unique("ids of one tag", 1_920);
}

#[test]
fn a_thousand_tags_are_drawn_from_at_random_without_an_error() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t' || n, step => 2, max_step => 100) FROM generate_series(1, 1000) n",
    );
    let ids = draw(
        &server,
        4,
        100,
        "SELECT tag, idgen_segment(tag)
           FROM (SELECT 't' || (1 + floor(random() * 1000)) AS tag FROM generate_series(1, 10) OFFSET 0) picked",
    );
    assert_eq!(errors(&mut client), 0);
    let tags: BTreeSet<&str> = ids.iter().map(|(tag, _)| tag.as_str()).collect();
    assert!(tags.len() > 900, "only {} tags were drawn from", tags.len());
    let mut seen = UniquenessRecorder::new();
    seen.extend(ids);
    seen.assert_unique("ids, each with its tag", 4_000);
}

/// Hundreds of tags may want their next range ahead at the same moment; who has nothing left does not queue up behind them.
#[test]
fn an_empty_tag_is_refilled_before_those_that_only_fetch_ahead() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('ahead' || n, step => 4, max_step => 4) FROM generate_series(1, 300) n;
         SELECT idgen_create_segment('empty' || n) FROM generate_series(1, 10) n",
    );
    sql::run(
        &mut client,
        "SELECT idgen_segment('ahead' || n) FROM generate_series(1, 300) n",
    );
    eventually_true(PATIENCE, "nothing is asked for any more", || {
        sql::value::<i64>(&mut client, "SELECT count(*) FROM idgen.segments WHERE wanted") == 0
    });
    slow_refills(&mut client);
    let grants = "SELECT count(*) FROM idgen.audit_event WHERE kind = 'segment.grant'";
    let before: i64 = sql::value(&mut client, grants);
    sql::run(
        &mut client,
        "SELECT idgen_segment('ahead' || n), idgen_segment('ahead' || n) FROM generate_series(1, 300) n",
    );
    for tag in 1..=10 {
        let ids: Vec<i64> = sql::column(&mut client, &format!("SELECT idgen_segment('empty{tag}')"));
        assert_eq!(ids, [1]);
    }
    let ahead = sql::value::<i64>(&mut client, grants) - before;
    assert!(ahead < 150, "{ahead} grants while ten were waited for");
    assert_eq!(errors(&mut client), 0);
}
