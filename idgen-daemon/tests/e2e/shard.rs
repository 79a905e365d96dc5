//! Logical shards: named in the configuration, leased, and never minted for by two servers.

use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::daemon::DaemonOptions;
use crate::kit::process::{Signal, signal_pid};
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Daemon, Etcd, PATIENCE, Server, Store, eventually, eventually_true, pace, sql};

/// Short enough to wait for, long enough for several renewals on a busy machine.
const SHORT_TTL_MS: u64 = 4_000;

fn open_shards(client: &mut Client) -> Vec<i32> {
    sql::column(
        client,
        "SELECT identity FROM idgen.slots WHERE state = 'open' AND kind = 'shard' ORDER BY identity",
    )
}

fn mint(client: &mut Client, shard: i32) -> Vec<i64> {
    sql::column(
        client,
        &format!("SELECT idgen_snowflake({shard}) FROM generate_series(1, 500)"),
    )
}

#[test]
fn a_server_mints_for_its_shards_beside_its_workers() {
    let server = Server::start();
    main_path(&server, DaemonOptions::new(&server));
}

#[test]
fn a_server_mints_for_its_shards_with_leases_in_a_real_etcd() {
    let (server, etcd) = (Server::start(), Etcd::start());
    main_path(&server, DaemonOptions::new(&server).store(Store::etcd(&etcd)));
}

fn main_path(server: &Server, options: DaemonOptions) {
    let mut daemon = options.shards("0, 8191, \"16-18\"").start();
    let mut client = server.connect();
    assert_eq!(open_shards(&mut client), [0, 16, 17, 18, 8_191]);
    let shards: i64 = sql::value(
        &mut client,
        "SELECT count(DISTINCT (idgen_parse(id, 'sharded')).shard)
           FROM (SELECT idgen_snowflake(s) AS id FROM unnest(ARRAY[0, 16, 17, 18, 8191]) s) ids",
    );
    assert_eq!(shards, 5, "each id names its shard");
    let refused = sql::refusal(&mut client, "SELECT idgen_snowflake(7)", "IG014");
    assert!(refused.message().contains('7'), "{refused:?}");
    let worker: i64 = sql::value(&mut client, "SELECT idgen_snowflake()");
    assert!(worker > 0);

    let (_, metrics) = daemon.get("/metrics").expect("metrics");
    for line in [
        "idgen_leases_held{class=\"shard\"} 5",
        "idgen_leases_held{class=\"worker\"} 2",
    ] {
        assert!(
            metrics.lines().any(|have| have == line),
            "{line} is missing in\n{metrics}"
        );
    }
    daemon.terminate();
    let state: String = sql::value(&mut client, "SELECT state FROM idgen.health");
    assert_eq!(state, "no lease", "a clean stop closes workers and shards");
}

/// A new list of shards takes a restart of the daemon; the shards that stay are waited for, like workers.
#[test]
fn a_restart_of_the_daemon_costs_no_call_of_a_shard_that_stays() {
    let server = Server::start();
    let options = DaemonOptions::new(&server);
    let daemon = options.clone().shards("5").start();
    let mut client = server.connect();
    sql::run(&mut client, "SET idgen.lease_wait_ms = '20s'");
    let before = mint(&mut client, 5);
    daemon.terminate();
    let waiting = std::thread::spawn(move || mint(&mut client, 5));
    let daemon = options.shards("5, 6").start();
    let after = waiting.join().expect("no call fails");
    assert!(after.first() > before.last(), "rising over the restart");
    daemon.terminate();
}

#[test]
fn a_server_can_have_shards_only() {
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).workers(0).shards("5").start();
    let mut client = server.connect();
    assert_eq!(mint(&mut client, 5).len(), 500);
    sql::run(&mut client, "SET idgen.lease_wait_ms = 0");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    daemon.terminate();
}

/// Grant, install, renewals every 2 s and the release of all 8,192 fit into their time limits.
#[test]
fn a_server_can_have_every_shard_there_is() {
    let server = Server::start();
    let mut daemon = DaemonOptions::new(&server).shards("\"0-8191\"").start();
    let mut client = server.connect();
    let renewed = |daemon: &mut Daemon| {
        let (_, metrics) = daemon.get("/metrics").expect("metrics");
        let name = "idgen_renewals_total{class=\"shard\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.expect("the counter").parse::<u64>().expect("a number")
    };
    let before = renewed(&mut daemon);
    eventually_true(PATIENCE, "some renewals", || renewed(&mut daemon) >= before + 5);
    daemon.wait_ready();
    for shard in [0, 4_711, 8_191] {
        assert_eq!(mint(&mut client, shard).len(), 500);
    }
    daemon.terminate();
    let free: i64 = sql::value(
        &mut client,
        "SELECT count(*) FROM idgen.lease WHERE kind = 'shard' AND holder IS NULL AND exact",
    );
    assert_eq!(free, 8_192);
}

/// twitter-archive/snowflake#11: every host had worker 0 in its configuration, and nobody noticed.
#[test]
fn incident_44_a_shard_that_two_servers_name_is_refused_loudly_and_moves_when_it_is_given_back() {
    let servers = Server::several(2);
    a_shard_moves(&servers, &Store::on(&servers[0]));
}

#[test]
fn a_shard_moves_between_servers_on_a_real_etcd() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    a_shard_moves(&servers, &Store::etcd(&etcd));
}

fn a_shard_moves(servers: &[Server], store: &Store) {
    let options = |n: usize| {
        let options = DaemonOptions::new(&servers[n]).store(store.clone());
        options
            .name(&format!("server-{n}"))
            .shards(if n == 0 { "6, 7" } else { "7, 8" })
    };
    let first = options(0).start();
    let mut second = options(1).launch();
    let (mut one, mut two) = (servers[0].connect(), servers[1].connect());
    let refused = eventually(PATIENCE, "only a shard of the second is missing", || {
        let (status, body) = second.get("/readyz")?;
        (status == 503 && !body.contains("workers: ") && body.contains("held by")).then_some(body)
    });
    let why = "1 of 2 identities are open: 1 of this server's shards cannot be leased: 7 is held by server-0";
    assert!(
        refused.starts_with("shards: ") && refused.contains(why),
        "{refused}"
    );
    assert_eq!(open_shards(&mut two), [8], "what is free waits for nobody");
    let beside: i64 = sql::value(&mut two, "SELECT idgen_snowflake()");
    assert!(beside > 0, "workers are not disturbed");

    let before = mint(&mut one, 7);
    first.terminate();
    let released = Instant::now();
    second.wait_ready();
    // The TTL is 30 s.
    pace::assert_within(released, Duration::from_secs(5), "taken over after the release");
    assert_eq!(open_shards(&mut two), [7, 8]);
    let after = mint(&mut two, 7);
    assert!(after[0] > before[499], "the next holder begins above");
    let mut recorder = UniquenessRecorder::new();
    recorder.extend(before);
    recorder.extend(after);
    recorder.assert_unique("ids of shard 7", 1_000);
    second.terminate();
}

/// CosId#771: two hosts had one name, and so one instance id. Both daemons are called `e2e` here.
#[test]
fn incident_37_a_namesake_of_a_killed_daemon_waits_for_its_ttl() {
    let servers = Server::several(2);
    let options = |n: usize| {
        let options = DaemonOptions::new(&servers[n]).store(Store::on(&servers[0]));
        options.ttl_ms(SHORT_TTL_MS).shards("7")
    };
    let first = options(0).start();
    let (mut one, mut two) = (servers[0].connect(), servers[1].connect());
    let before = mint(&mut one, 7);
    first.kill();
    let mut second = options(1).launch();
    eventually_true(PATIENCE, "the second is told that it is not the first", || {
        second
            .get("/readyz")
            .is_some_and(|(_, body)| body.contains("7 is held by e2e"))
    });
    second.wait_ready();
    let after = mint(&mut two, 7);
    sql::run(&mut one, "SET idgen.lease_wait_ms = 0");
    assert!(
        one.query("SELECT idgen_snowflake(7)", &[]).is_err(),
        "the first stopped by itself before the second began"
    );
    assert!(after[0] > before[499]);
    second.terminate();
}

/// Postgres forgets its shared memory; the daemon does not wait for its own old lease to expire.
#[test]
fn after_a_crash_restart_the_shards_come_back_when_their_window_has_ended() {
    let server = Server::start();
    let mut options = DaemonOptions::new(&server).shards("3, 4");
    options.shards.push_str("window_ms = 3000\nperiod_ms = 1000\n");
    let mut daemon: Daemon = options.start();
    let before = mint(&mut server.connect(), 3);
    let mut session = server.connect();
    let boot_id: String = sql::value(&mut session, "SELECT boot_id::text FROM idgen.health");
    let pid: i32 = sql::value(&mut session, "SELECT pg_backend_pid()");
    assert!(signal_pid(u32::try_from(pid).expect("pid"), Signal::KILL));
    let killed = Instant::now();
    let came_back = eventually_true(PATIENCE, "a new memory, and the shards are open in it", || {
        server.try_connect().is_ok_and(|mut client| {
            let open = "SELECT count(*) FROM idgen.slots, idgen.health
                         WHERE slots.state = 'open' AND kind = 'shard' AND boot_id::text <> $1";
            client
                .query_one(open, &[&boot_id])
                .is_ok_and(|row| row.get::<_, i64>(0) == 2)
        })
    });
    pace::assert_took(
        killed,
        killed + came_back,
        Duration::from_secs(15),
        "back before the TTL of 30 s",
    );
    let after = mint(&mut server.connect(), 3);
    assert!(after[0] > before[499]);
    daemon.wait_ready();
    daemon.terminate();
}
