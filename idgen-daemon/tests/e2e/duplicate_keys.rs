//! Errors of unique constraints, counted in shared memory while they happen, and told to Prometheus.

use std::thread;

use postgres::Client;

use crate::kit::process::{Signal, signal_pid};
use crate::kit::{Daemon, PATIENCE, Server, eventually, eventually_true, sql};

const SESSIONS: usize = 8;
const EACH: usize = 150;

fn of_orders(client: &mut Client) -> i64 {
    sql::value(
        client,
        "SELECT coalesce(sum(errors), 0)::bigint FROM idgen.duplicate_key_errors WHERE relation = 'orders'::regclass",
    )
}

fn make_orders(client: &mut Client, rows: &str) {
    sql::run(
        client,
        &format!(
            "SELECT idgen_create_segment('orders');
             CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT idgen_segment('orders'), email text UNIQUE);
             INSERT INTO orders VALUES {rows}"
        ),
    );
}

/// What the daemon shows of a table's column; it looks at once when it starts.
fn shown(daemon: &mut Daemon, database: &str) -> Option<String> {
    let (_, text) = daemon.get("/metrics")?;
    let begin = format!(
        "idgen_duplicate_key_errors_total{{column=\"id\",database=\"{database}\",table=\"public.orders\"}} "
    );
    Some(
        text.lines()
            .find_map(|line| line.strip_prefix(&begin))?
            .to_owned(),
    )
}

#[test]
fn errors_of_many_sessions_add_up_exactly_and_a_crash_restart_forgets_them() {
    let server = Server::start();
    let mut client = server.connect();
    make_orders(&mut client, "(7, 'a')");
    sql::run(&mut client, "CREATE DATABASE other");
    server.install_extension("other");
    let mut other = server.connect_to("other");
    make_orders(&mut other, "(7, 'a')");
    // The first error of each constraint comes from all of them at once.
    thread::scope(|scope| {
        for session in 0..SESSIONS {
            let server = &server;
            scope.spawn(move || {
                let mut client = match session % 4 {
                    0 => server.connect_to("other"),
                    _ => server.connect(),
                };
                for _ in 0..EACH {
                    sql::refusal(&mut client, "INSERT INTO orders VALUES (7, 'b')", "23505");
                    sql::refusal(&mut client, "INSERT INTO orders VALUES (8, 'a')", "23505");
                }
            });
        }
    });
    let ours = i64::try_from(EACH * SESSIONS).expect("a number") / 4;
    assert_eq!(of_orders(&mut client), 3 * ours);
    assert_eq!(of_orders(&mut other), ours);
    let all: i64 = sql::value(
        &mut client,
        "SELECT sum(errors)::bigint FROM idgen.duplicate_key_counts()",
    );
    assert_eq!(all, 6 * ours, "two constraints, of this database");

    // What else the server has counted for itself is told with them.
    sql::run(&mut client, "SET idgen.lease_wait_ms = 0");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    sql::run(
        &mut client,
        "SELECT idgen_segment('orders') FROM generate_series(1, 5)",
    );
    let mut daemon = Daemon::start(&server);
    for (database, errors) in [("postgres", 3 * ours), ("other", ours)] {
        let told = eventually(PATIENCE, "the daemon tells of it", || {
            shown(&mut daemon, database)
        });
        assert_eq!(told, errors.to_string(), "{database}");
    }
    let (_, text) = daemon.get("/metrics").expect("metrics");
    for line in [
        "idgen_ids_issued_total 5",
        "idgen_mint_refusals_total{cause=\"no_lease\",fault=\"service\",sqlstate=\"IG001\"} 1",
        "idgen_duplicate_key_errors_other_total 0",
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "{line} is missing in\n{text}"
        );
    }
    daemon.terminate();

    let mut victim = server.connect();
    let pid: i32 = sql::value(&mut victim, "SELECT pg_backend_pid()");
    assert!(signal_pid(u32::try_from(pid).expect("pid"), Signal::KILL));
    eventually_true(PATIENCE, "the crash reaches our session", || {
        client.simple_query("").is_err()
    });
    let mut client = eventually(PATIENCE, "the server is back", || server.try_connect().ok());
    assert_eq!(of_orders(&mut client), 0);
    sql::refusal(&mut client, "INSERT INTO orders VALUES (7, 'b')", "23505");
    assert_eq!(of_orders(&mut client), 1);
}

#[test]
fn an_error_of_a_parallel_worker_is_one_and_a_server_without_preload_counts_none() {
    let mut server = Server::start();
    let mut client = server.connect();
    make_orders(&mut client, "(7, 'a')");
    sql::run(
        &mut client,
        // Both of a pair are in one block, so that it is a worker who finds them, and tells its leader.
        "CREATE TABLE copied AS SELECT g / 2 AS id FROM generate_series(1, 300000) g;
         SET min_parallel_table_scan_size = 0; SET max_parallel_maintenance_workers = 2; SET maintenance_work_mem = '128MB';
         SET parallel_leader_participation = off",
    );
    for errors in 1..=5_i64 {
        sql::refusal(
            &mut client,
            "CREATE UNIQUE INDEX copied_id ON copied (id)",
            "23505",
        );
        let counted: i64 = sql::value(
            &mut client,
            "SELECT sum(errors)::bigint FROM idgen.duplicate_key_counts() WHERE constraint_name = 'copied_id'",
        );
        assert_eq!(counted, errors);
    }
    assert!(server.log().contains("parallel worker"), "a worker has found it");
    drop(client);
    server.set_preload(false);
    server.restart();
    let mut client = server.connect();
    sql::refusal(&mut client, "INSERT INTO orders VALUES (7, 'b')", "23505");
    assert_eq!(of_orders(&mut client), 0);
}
