//! What serves segments: what `idgen.segments` tells of it, many databases and few workers, locks that somebody has
//! forgotten, databases that slept.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, ServerOptions, eventually, eventually_true, pace, sql};

fn draw(client: &mut Client, tag: &str, count: u32) -> Vec<i64> {
    sql::column(
        client,
        &format!("SELECT idgen_segment('{tag}') FROM generate_series(1, {count})"),
    )
}

/// Of one tag in `idgen.segments`.
fn seen<T: postgres::types::FromSqlOwned>(client: &mut Client, tag: &str, column: &str) -> T {
    sql::value(
        client,
        &format!("SELECT {column} FROM idgen.segments WHERE tag = '{tag}'"),
    )
}

fn own_pid(client: &mut Client) -> i32 {
    sql::value(client, "SELECT pg_backend_pid()")
}

/// Draws until memory is empty: the DETAIL of the refusal.
fn drain(client: &mut Client, tag: &str) -> String {
    sql::run(client, "SET idgen.segment_wait_ms = 400");
    let drain = format!("SELECT idgen_segment('{tag}') FROM generate_series(1, 10)");
    let refused = sql::refusal(client, &drain, "IG007");
    sql::run(client, "RESET idgen.segment_wait_ms");
    refused.detail().unwrap_or_default().to_owned()
}

#[test]
fn the_view_tells_how_fast_a_tag_is_used_how_long_a_refill_takes_and_what_was_burned() {
    let mut server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 100, max_step => 100)",
    );
    assert_eq!(
        seen::<Option<f64>>(&mut client, "t", "ids_per_s"),
        None,
        "not used yet"
    );
    draw(&mut client, "t", 1_010);
    // It is measured every second; something was drawn in between.
    let rate = eventually(PATIENCE, "a rate is measured", || {
        draw(&mut client, "t", 100);
        seen::<Option<f64>>(&mut client, "t", "ids_per_s").filter(|rate| *rate > 0.0)
    });
    assert!(rate < 100_000.0, "{rate}");
    let fits = "seconds_left BETWEEN remaining / ids_per_s * 0.9 AND remaining / ids_per_s * 1.1";
    assert!(seen::<bool>(&mut client, "t", fits));
    let latency = "refill_ms > 0 AND refill_ms <= refill_ms_max AND refill_ms_mean <= refill_ms_max AND refill_ms_max < 30000";
    assert!(seen::<bool>(&mut client, "t", latency));
    assert_eq!(seen::<Option<String>>(&mut client, "t", "blocker"), None);

    sql::run(&mut client, "SELECT idgen_seek_segment('t', 1000000)");
    let burned: i64 = seen(&mut client, "t", "(burned->>'seek')::bigint");
    assert!((1..=200).contains(&burned), "{burned}: at most what memory holds");
    assert!(seen::<bool>(&mut client, "t", "burned ? 'restart' = false"));
    draw(&mut client, "t", 1);
    drop(client);
    server.restart();
    let mut client = server.connect();
    draw(&mut client, "t", 1);
    let burned: i64 = seen(&mut client, "t", "(burned->>'restart')::bigint");
    let open: i64 = sql::value(
        &mut client,
        "SELECT sum(hi - lo + 1)::bigint FROM idgen.audit_event WHERE kind = 'segment.open'",
    );
    assert_eq!(burned, open, "as the events say");
    assert!(seen::<bool>(
        &mut client,
        "t",
        "burned->>'restart' IN ('100', '200')"
    ));
}

#[test]
fn the_view_names_what_holds_a_refill_up() {
    let server = Server::start();
    let (mut client, mut holder) = (server.connect(), server.connect());
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 1, max_step => 1)",
    );
    draw(&mut client, "t", 1);
    let pid = own_pid(&mut holder);
    for (lock, blocker) in [
        ("SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE", "row lock"),
        ("LOCK TABLE idgen.audit_event IN EXCLUSIVE MODE", "table lock"),
    ] {
        sql::run(&mut holder, &format!("BEGIN; {lock}"));
        let detail = drain(&mut client, "t");
        assert!(detail.contains(&format!("Process {pid} ")), "{blocker}: {detail}");
        let found: (String, i32) = (
            seen(&mut client, "t", "blocker"),
            seen(&mut client, "t", "blocker_pid"),
        );
        assert_eq!(found, (blocker.to_owned(), pid));
        sql::run(&mut holder, "ROLLBACK");
        draw(&mut client, "t", 3);
        assert_eq!(seen::<Option<String>>(&mut client, "t", "blocker"), None);
        assert_eq!(seen::<Option<i32>>(&mut client, "t", "blocker_pid"), None);
    }
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('few', limit_id => 2); SELECT idgen_segment('few'), idgen_segment('few')",
    );
    sql::refusal(&mut client, "SELECT idgen_segment('few')", "IG006");
    assert_eq!(seen::<String>(&mut client, "few", "blocker"), "exhausted");
}

/// What is in memory of a tag is shown to those who may see the tag, in the view and in what it reads.
#[test]
fn the_counts_of_a_tag_are_shown_to_its_owner_and_to_monitors_only() {
    let server = Server::start();
    let mut admin = server.connect();
    sql::run(
        &mut admin,
        "CREATE ROLE owner LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor",
    );
    let mut owner = server.connect_as("owner");
    sql::run(&mut owner, "SELECT idgen_create_segment('mine')");
    sql::run(&mut admin, "SELECT idgen_create_segment('other')");
    // Not in the transaction that has made it, which has its ranges for itself.
    draw(&mut owner, "mine", 1);
    draw(&mut admin, "other", 1);
    for (role, tags) in [("owner", 1), ("stranger", 0), ("monitor", 2), ("postgres", 2)] {
        let mut client = server.connect_as(role);
        for from in [
            "idgen.segment_buffers()",
            "idgen.segments WHERE remaining > 0",
            "idgen.stats WHERE scope = 'tag' AND counter = 'ids'",
        ] {
            let count: i64 = sql::value(&mut client, &format!("SELECT count(*) FROM {from}"));
            assert_eq!(count, tags, "{role} in {from}");
        }
    }
}

/// Many more databases than there may be workers: each is served in its turn.
#[test]
fn fifty_databases_are_served_by_two_workers_without_an_error() {
    const DATABASES: usize = 50;
    let server = Server::with(ServerOptions {
        settings: vec![
            "max_worker_processes = 8".to_owned(),
            "max_connections = 120".to_owned(),
            // How quickly fifty are served depends on the machine; that each is, does not.
            "idgen.segment_wait_ms = '30s'".to_owned(),
        ],
        ..Default::default()
    });
    let mut admin = server.connect();
    sql::run(&mut admin, "CREATE DATABASE origin");
    server.install_extension("origin");
    let mut origin = server.connect_to("origin");
    sql::run(&mut origin, "SELECT idgen_create_segment('t')");
    draw(&mut origin, "t", 1);
    origin.close().expect("close");
    let mut sessions = Vec::new();
    for n in 0..DATABASES {
        let create = format!("CREATE DATABASE d{n} TEMPLATE origin");
        // The worker of the template may be on its way out.
        eventually_true(PATIENCE, "the template is free", || {
            admin.batch_execute(&create).is_ok()
        });
        let mut client = server.connect_to(&format!("d{n}"));
        draw(&mut client, "t", 1);
        sessions.push(client);
    }
    // Each goes through two ranges.
    let drawing: Vec<_> = sessions
        .into_iter()
        .map(|mut client| {
            thread::spawn(move || {
                let mut slowest = Duration::ZERO;
                for _ in 0..1_500 {
                    let began = Instant::now();
                    draw(&mut client, "t", 1);
                    slowest = slowest.max(began.elapsed());
                }
                slowest
            })
        })
        .collect();
    let waits = drawing
        .into_iter()
        .map(|session| session.join().expect("no error in any session"));
    let slowest = waits.max().expect("sessions");
    println!("fifty databases: the slowest call took {slowest:?}");
}

/// DROP DATABASE, RENAME and CREATE DATABASE ... TEMPLATE need a database without processes.
#[test]
fn a_database_in_use_a_moment_ago_can_be_cloned_renamed_and_dropped_within_three_seconds() {
    let server = Server::start();
    let mut admin = server.connect();
    sql::run(&mut admin, "CREATE DATABASE used");
    server.install_extension("used");
    let mut client = server.connect_to("used");
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 5, max_step => 5)",
    );
    client.close().expect("close");
    for ddl in [
        "CREATE DATABASE clone TEMPLATE used",
        "ALTER DATABASE used RENAME TO renamed",
        "ALTER DATABASE renamed RENAME TO used",
        "DROP DATABASE clone",
        "DROP DATABASE used",
    ] {
        let database = match ddl {
            "ALTER DATABASE renamed RENAME TO used" => "renamed",
            "DROP DATABASE clone" => "clone",
            _ => "used",
        };
        let mut client = server.connect_to(database);
        draw(&mut client, "t", 50);
        client.close().expect("close");
        let last_use = Instant::now();
        eventually_true(PATIENCE, ddl, || admin.batch_execute(ddl).is_ok());
        pace::assert_within(last_use, Duration::from_secs(3), ddl);
    }
}

/// A prepared transaction that nobody ends: no process has it, so only its name helps.
#[test]
fn a_forgotten_prepared_transaction_holds_up_its_own_tag_only_and_is_named() {
    let server = Server::with(ServerOptions {
        settings: vec!["max_prepared_transactions = 4".to_owned()],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment(t, step => 1, max_step => 1) FROM unnest(ARRAY['held', 'free']) t",
    );
    draw(&mut client, "held", 1);
    for change in [
        "SELECT idgen_alter_segment('held', max_step => 1)",
        "SELECT FROM idgen.segment WHERE tag = 'held' FOR UPDATE",
        "SAVEPOINT s; SELECT idgen_alter_segment('held', max_step => 1); RELEASE s",
    ] {
        let mut forgetful = server.connect();
        sql::run(
            &mut forgetful,
            &format!("BEGIN; {change}; PREPARE TRANSACTION 'forgotten \"move\" 7'"),
        );
        forgetful.close().expect("close");
        let detail = drain(&mut client, "held");
        assert!(
            detail.contains("Prepared transaction \"forgotten \"move\" 7\" holds the row"),
            "{change}: {detail}"
        );
        sql::run(&mut client, "SET idgen.segment_wait_ms = 400");
        let refused = sql::refusal(&mut client, "SELECT idgen_segment_range('held', 5)", "IG007");
        assert_eq!(refused.detail(), Some(detail.as_str()), "the same in bulk");
        let found: (String, String, Option<i32>) = (
            seen(&mut client, "held", "blocker"),
            seen(&mut client, "held", "blocker_gid"),
            seen(&mut client, "held", "blocker_pid"),
        );
        let expected = ("prepared transaction".into(), "forgotten \"move\" 7".into(), None);
        assert_eq!(found, expected, "{change}");
        assert_eq!(draw(&mut client, "free", 30).len(), 30, "other tags are served");
        sql::run(&mut client, "ROLLBACK PREPARED 'forgotten \"move\" 7'");
        assert_eq!(draw(&mut client, "held", 5).len(), 5, "{change}: it goes on");
    }
}

/// As ten days of sleep leave it: the leaves that were made ahead lie behind, the events too. (The tables are set back
/// instead of the clock forward, because a fake clock does not reach background workers.)
const SLEPT: &str = "
    CREATE TEMP TABLE event AS SELECT * FROM idgen.audit_event;
    DO $$
    DECLARE
        leaf regclass;
    BEGIN
        FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass LOOP
            EXECUTE format('DROP TABLE %s', leaf);
        END LOOP;
        FOR n IN -10 .. -3 LOOP
            EXECUTE format('CREATE TABLE idgen.audit_event_%s PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
                to_char(now() AT TIME ZONE 'UTC' + n * interval '1 day', 'YYYYMMDD'),
                to_char(now() AT TIME ZONE 'UTC' + n * interval '1 day', 'YYYY-MM-DD 00:00:00+00'),
                to_char(now() AT TIME ZONE 'UTC' + (n + 1) * interval '1 day', 'YYYY-MM-DD 00:00:00+00'));
        END LOOP;
    END $$;
    UPDATE event SET at = at - interval '10 days' WHERE at > now() - interval '1 day';
    INSERT INTO idgen.audit_event SELECT * FROM event;
    DROP TABLE event;";

#[test]
fn a_database_that_slept_for_ten_days_wakes_up_and_grants_in_utc() {
    let mut server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment(t, step => 1, max_step => 1) FROM unnest(ARRAY['t', 'other']) t",
    );
    assert_eq!(draw(&mut client, "t", 2), [1, 2]);
    // It is another day in one of them, at any time.
    for zone in ["Pacific/Kiritimati", "Etc/GMT+12"] {
        sql::run(
            &mut client,
            &format!("ALTER DATABASE postgres SET TimeZone = '{zone}'"),
        );
        drop(client);
        server.restart();
        client = server.connect();
        sql::run(&mut client, SLEPT);
        drop(client);
        server.restart();
        client = server.connect();
        assert_eq!(draw(&mut client, "t", 20).len(), 20, "{zone}");
        let in_its_leaf = "
            SELECT count(*) FILTER (WHERE tableoid::regclass::text
                                          = 'idgen.audit_event_' || to_char(at AT TIME ZONE 'UTC', 'YYYYMMDD')) = count(*)
               AND count(*) FILTER (WHERE at > now() - interval '1 hour') >= 18
              FROM idgen.audit_event WHERE tag = 't'";
        assert!(
            sql::value::<bool>(&mut client, in_its_leaf),
            "{zone}: each event lies in the leaf of its day in UTC, those since it woke up too"
        );
        let ahead = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass";
        assert_eq!(
            sql::value::<i64>(&mut client, ahead),
            8 + 8,
            "of then, and of now and a week ahead"
        );
        // A change of a tag needs a leaf too, and its session makes none.
        sql::run(&mut client, "SELECT idgen_alter_segment('other', step => 1)");
    }
}

/// A limit holds up its own tag, says for how long, and loses nothing.
#[test]
fn a_tag_above_its_fetch_limit_is_refused_until_the_limit_allows_or_is_changed() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('slow', step => 1, max_step => 1, fetch_limit => 5);
         SELECT idgen_create_segment('bulk', fetch_limit => 3); SELECT idgen_create_segment('free', step => 1, max_step => 1)",
    );
    let drained = "SELECT idgen_segment('slow') FROM generate_series(1, 20)";
    let began = Instant::now();
    let refused = sql::refusal(&mut client, drained, "IG008");
    assert!(
        refused.message().contains("\"slow\" is rate limited"),
        "{refused:?}"
    );
    let detail = refused.detail().unwrap_or_default();
    assert!(
        detail.contains("5 ranges a minute") && detail.contains(" s."),
        "{detail}"
    );
    assert!(refused.hint().is_some_and(|hint| hint.contains("max_step")));
    // It will not be over in time, so nobody waits for it.
    pace::assert_within(began, Duration::from_secs(2), "refused at once");
    assert_eq!(seen::<String>(&mut client, "slow", "blocker"), "fetch limit");
    assert_eq!(seen::<i32>(&mut client, "slow", "fetches_per_minute"), 5);
    let granted = "SELECT count(*) FROM idgen.audit_event WHERE tag = 'slow' AND kind = 'segment.grant'";
    assert_eq!(sql::value::<i64>(&mut client, granted), 5, "not one more");
    sql::refusal(&mut client, "SELECT idgen_segment_range('slow', 2)", "IG008");
    assert_eq!(
        draw(&mut client, "free", 30).len(),
        30,
        "others are not concerned"
    );
    let raised: i64 = sql::value(
        &mut client,
        "SELECT value FROM idgen.stats WHERE object = 'IG008'",
    );
    assert!(raised >= 2, "{raised}");

    // What the refused statement had drawn is gone with it, nothing else.
    sql::run(
        &mut client,
        "SELECT idgen_alter_segment('slow', fetch_limit => 7)",
    );
    assert_eq!(draw(&mut client, "slow", 2), [6, 7], "what a higher limit leaves");
    sql::refusal(&mut client, "SELECT idgen_segment('slow')", "IG008");
    sql::run(
        &mut client,
        "SELECT idgen_alter_segment('slow', fetch_limit => 0)",
    );
    assert_eq!(draw(&mut client, "slow", 20), (8..=27).collect::<Vec<i64>>());

    // A bulk request is one fetch, however many ids it is for; one that is repeated by its key is none.
    for _ in 0..3 {
        sql::run(&mut client, "SELECT idgen_segment_range('bulk', 1000, 'key')");
    }
    assert_eq!(seen::<i32>(&mut client, "bulk", "fetches_per_minute"), 1);
    sql::run(
        &mut client,
        "SELECT idgen_segment_range('bulk', 1000); SELECT idgen_segment_range('bulk', 1000)",
    );
    sql::refusal(&mut client, "SELECT idgen_segment('bulk')", "IG008");
    sql::run(&mut client, "SELECT idgen_segment_range('bulk', 1000, 'key')");
}

/// Ranges far too small for the load: a warning once, in the log and in the view.
#[test]
fn a_thousand_fetches_a_minute_are_warned_of_once() {
    let server = Server::with(ServerOptions {
        settings: vec!["fsync = off".to_owned(), "idgen.segment_wait_ms = 20s".to_owned()],
        ..Default::default()
    });
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment(t, step => 1, max_step => 1) FROM unnest(ARRAY['busy', 'calm']) t",
    );
    draw(&mut client, "calm", 500);
    assert_eq!(seen::<Option<String>>(&mut client, "calm", "warning"), None);
    draw(&mut client, "busy", 1_200);
    let warning: String = seen(&mut client, "busy", "warning");
    assert!(warning.starts_with("more than 1000 ranges a minute"), "{warning}");
    assert!(seen::<i32>(&mut client, "busy", "fetches_per_minute") >= 1_000);
    let log = server.log();
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("WARNING") && line.contains("were fetched from the database"))
        .collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("1000 ranges of segment tag \"busy\""),
        "{warnings:?}"
    );
}

/// More tags than places, all of them used now and then, some without a pause.
const TAGS: i64 = 40;
/// Ids of a tag begin at its number times this, so that an id tells whose it is.
const SPAN: i64 = 1_000_000;

fn few_places() -> Server {
    let server = Server::with(ServerOptions {
        settings: vec![
            "idgen.max_segments = 16".to_owned(),
            "idgen.segment_idle_time = 1s".to_owned(),
        ],
        ..Default::default()
    });
    sql::run(
        &mut server.connect(),
        &format!(
            "SELECT idgen_create_segment('t' || n, start_id => n * {SPAN}, step => 10, max_step => 10)
               FROM generate_series(1, {TAGS}) n"
        ),
    );
    server
}

/// The next id of a tag, once a place is free; the refusals on the way are counted.
fn draw_when_there_is_room(client: &mut Client, tag: i64, refused: &mut u32) -> i64 {
    eventually(PATIENCE, "a place is free", || {
        match client.query_one(&format!("SELECT idgen_segment('t{tag}')"), &[]) {
            Ok(row) => Some(row.get(0)),
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned());
                assert_eq!(code.as_deref(), Some("IG017"), "{}", sql::describe(&error));
                *refused += 1;
                None
            }
        }
    })
}

#[test]
fn an_idle_tag_gives_its_place_away_and_goes_on_above_what_it_had() {
    let server = few_places();
    let mut client = server.connect();
    let mut stays = server.connect();
    // The database has a place of its own, so that 15 are left.
    let first: Vec<i64> = (1..=15)
        .map(|tag| draw(&mut client, &format!("t{tag}"), 1)[0])
        .collect();
    assert_eq!(draw(&mut stays, "t1", 1), [SPAN + 1]);
    let refused = sql::refusal(&mut client, "SELECT idgen_segment('t16')", "IG017");
    assert!(
        refused
            .detail()
            .is_some_and(|detail| detail.contains("no tag has been idle for 1 s")),
        "{refused:?}"
    );
    // Others take over; one is drawn from all the time, and keeps what it has.
    let mut steady = vec![first[14]];
    let mut count = 0;
    for tag in 16..=TAGS {
        let id = eventually(PATIENCE, "a place is free", || {
            steady.extend(draw(&mut client, "t15", 1));
            client
                .query_one(&format!("SELECT idgen_segment('t{tag}')"), &[])
                .map_or(None, |row| Some(row.get::<_, i64>(0)))
        });
        assert_eq!(id, tag * SPAN, "the first id of its own tag");
        count += 1;
    }
    let dense: Vec<i64> = (0..steady.len() as i64).map(|n| 15 * SPAN + n).collect();
    assert_eq!(steady, dense, "a tag in use is never thrown out");
    let evictions: i64 = sql::value(
        &mut client,
        "SELECT value FROM idgen.stats WHERE counter = 'evictions'",
    );
    assert!(evictions >= count - 1, "{evictions} evictions for {count} tags");
    assert_eq!(
        seen::<Option<i64>>(&mut client, "t1", "remaining"),
        None,
        "out of memory"
    );

    // A session that remembers the place draws its own tag's ids, above those that are lost, and that is recorded.
    let mut refused = 0;
    let next = draw_when_there_is_room(&mut stays, 1, &mut refused);
    assert!(
        (SPAN + 2..=SPAN + 21).contains(&next),
        "{next}: at most two ranges of ten are lost"
    );
    let open = "SELECT string_agg(format('%s-%s %s', lo, hi, payload->>'cause'), ',' ORDER BY lo)
                  FROM idgen.audit_event WHERE tag = 't1' AND kind = 'segment.open'";
    let open: String = sql::value(&mut client, open);
    let ranges = |last: i64| -> Vec<String> {
        (0..last)
            .map(|n| format!("{}-{} eviction", SPAN + n * 10, SPAN + n * 10 + 9))
            .collect()
    };
    assert!(
        open == ranges(1).join(",") || open == ranges(2).join(","),
        "{open}"
    );
    let burned: String = seen(&mut client, "t1", "burned->>'eviction'");
    assert!(["10", "20"].contains(&burned.as_str()), "{burned}");
}

#[test]
fn many_sessions_on_few_places_never_draw_an_id_twice_or_of_another_tag() {
    let server = few_places();
    let sessions: Vec<_> = (0..6_i64)
        .map(|session| {
            let mut client = server.connect();
            thread::spawn(move || {
                let (mut drawn, mut refused, mut last) = (Vec::new(), 0, [0; TAGS as usize + 1]);
                for round in 0..40 {
                    // Every session in another order, most tags of several at a time.
                    let tag = (session * 7 + round * (session + 3)) % TAGS + 1;
                    let id = draw_when_there_is_room(&mut client, tag, &mut refused);
                    assert_eq!(id / SPAN, tag, "an id of another tag: {id}");
                    assert!(id > last[tag as usize], "ids rise in a session");
                    last[tag as usize] = id;
                    drawn.push(id);
                    // What is in memory without a look-up too.
                    drawn.extend(
                        client
                            .query(&format!("SELECT idgen_segment('t{tag}')"), &[])
                            .map_or(vec![], |rows| vec![rows[0].get::<_, i64>(0)]),
                    );
                }
                drawn
            })
        })
        .collect();
    let mut recorder = UniquenessRecorder::new();
    for session in sessions {
        recorder.extend(session.join().expect("a session"));
    }
    recorder.assert_unique("numbers of all tags", 400);
    let mut client = server.connect();
    let evictions: i64 = sql::value(
        &mut client,
        "SELECT value FROM idgen.stats WHERE counter = 'evictions'",
    );
    println!("many sessions on few places: {evictions} evictions");
    assert!(evictions > 50, "{evictions}");
    let overlaps = "SELECT count(*) FROM (SELECT lo, max(hi) OVER (PARTITION BY tag ORDER BY lo ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                      FROM idgen.audit_event WHERE kind = 'segment.grant') e WHERE lo <= before";
    assert_eq!(
        sql::value::<i64>(&mut client, overlaps),
        0,
        "no two grants of a tag overlap"
    );
}

/// What a tag has learned of its load is in its row: a restart does not begin at the smallest range again.
#[test]
fn the_size_of_ranges_outlasts_a_restart() {
    let mut server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 10, max_step => 100000)",
    );
    draw(&mut client, "t", 3_000);
    let last_range = "SELECT payload->>'step' FROM idgen.audit_event WHERE tag = 't' AND kind = 'segment.grant' ORDER BY tag_seq DESC LIMIT 1";
    eventually_true(PATIENCE, "no refill is on its way", || {
        !seen::<bool>(&mut client, "t", "wanted")
    });
    let learned: String = sql::value(&mut client, last_range);
    assert!(
        learned.parse::<i64>().expect("a step") >= 1_000,
        "{learned}: doubled while it was in a hurry"
    );
    for crash in [false, true] {
        drop(client);
        if crash {
            server.kill_everything();
            server.run();
        } else {
            server.restart();
        }
        client = server.connect();
        draw(&mut client, "t", 1);
        assert_eq!(
            sql::value::<String>(&mut client, last_range),
            learned,
            "crash: {crash}"
        );
    }
}

/// Whatever a refill dies of: when it is over the tag goes on, and nothing was left out.
#[test]
fn a_refill_that_fails_leaves_its_tag_able_to_go_on() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 1, max_step => 1)",
    );
    let mut drawn = draw(&mut client, "t", 2);
    // As a disk that is full, or a right that was taken away: the event cannot be written.
    let failing = "
        CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER full_disk BEFORE INSERT ON idgen.audit_event FOR EACH ROW EXECUTE FUNCTION full_disk()";
    sql::run(&mut client, failing);
    let detail = drain(&mut client, "t");
    assert!(detail.contains("met an error"), "{detail}");
    assert_eq!(seen::<String>(&mut client, "t", "blocker"), "error");
    assert!(server.log().contains("No space left on device"));
    sql::run(&mut client, "DROP FUNCTION full_disk() CASCADE");
    drawn.extend(draw(&mut client, "t", 5));

    // The worker is ended while it waits for a lock, before its row is written and after.
    let mut holder = server.connect();
    let worker = "backend_type = 'pg_idgen refill worker'";
    for table in ["segment", "audit_event"] {
        sql::run(
            &mut holder,
            &format!("BEGIN; LOCK TABLE idgen.{table} IN EXCLUSIVE MODE"),
        );
        let mut waiter = server.connect();
        let waiting = thread::spawn(move || {
            sql::run(&mut waiter, "SET idgen.segment_wait_ms = '30s'");
            draw(&mut waiter, "t", 4)
        });
        eventually_true(PATIENCE, "a worker that waits for the lock is ended", || {
            let ended = format!(
                "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE {worker} AND wait_event_type = 'Lock'"
            );
            sql::value::<bool>(&mut client, &ended)
        });
        sql::run(&mut holder, "ROLLBACK");
        drawn.extend(waiting.join().expect("the waiter"));
    }
    drawn.extend(draw(&mut client, "t", 5));
    // The refused statement has drawn what was in memory.
    let distinct = drawn.iter().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(distinct.len(), drawn.len(), "no id twice");
    let highest = drawn.iter().max().expect("ids");
    assert!(
        usize::try_from(*highest).expect("an id") <= drawn.len() + 4,
        "{drawn:?}"
    );
}
