//! Shards that move while servers mint: by `idgenctl shards`, followed by the daemons, seen in `idgen.shard_map`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::daemon::{Answer, DaemonOptions, idgenctl};
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Daemon, Etcd, PATIENCE, Server, Store, eventually, eventually_true, sql};

/// Short enough to wait for, long enough for several renewals on a busy machine.
const SHORT_TTL_MS: u64 = 4_000;

/// For idgenctl, which reads the daemon's file: an order that a busy etcd answers late is still one that it took.
const PATIENT_REQUESTS: &str = "request_timeout_ms = 10000";

/// The shard that moves, and one on each server that stays.
const MOVES: i32 = 5;
const STAYS: [i32; 2] = [1, 2];

fn options(servers: &[Server], store: &Store, n: usize) -> DaemonOptions {
    let options = DaemonOptions::new(&servers[n]).store(store.clone());
    options.name(&format!("server-{n}")).workers(1)
}

fn with_address(options: DaemonOptions, ids: &str, address: &str) -> DaemonOptions {
    let mut options = options.shards(ids);
    options.shards.push_str(&format!("address = \"{address}\"\n"));
    // The longest there may be: a renewal that a busy machine holds up by seconds must not close those that stay.
    options.shards.push_str("window_ms = 24000\n");
    options
}

fn order(daemon: &Daemon, args: &[&str]) -> Answer {
    let config = daemon.config_path().to_str().expect("a path").to_owned();
    idgenctl(&[&["shards"], args, &["--config", &config]].concat())
}

fn move_to(daemon: &Daemon, set: &str, server: &str) -> Answer {
    let answer = order(daemon, &["move", set, "--to", server, "--wait", "60s"]);
    assert_eq!(answer.code, Some(0), "{}{}", answer.stdout, answer.stderr);
    answer
}

/// Server and state of a shard, as the server's clients see it.
fn place(client: &mut Client, shard: i32) -> Option<(String, String)> {
    let query = "SELECT server, state FROM idgen.shard_map WHERE shard = $1";
    let row = client.query_opt(query, &[&shard]).expect("the view");
    row.map(|row| (row.get(0), row.get(1)))
}

fn serving(server: &str) -> Option<(String, String)> {
    Some((server.to_owned(), "serving".to_owned()))
}

fn open_shards(client: &mut Client) -> Vec<i32> {
    let open = "SELECT identity FROM idgen.slots WHERE state = 'open' AND kind = 'shard' ORDER BY identity";
    sql::column(client, open)
}

/// Mints of a shard wherever it is, one batch after another, and writes each as rows.
struct Minter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Minted>,
}

#[derive(Default)]
struct Minted {
    /// In the order in which they were had, and by which server.
    batches: Vec<(usize, Vec<i64>)>,
    /// Between the end of one batch and the end of the next on another server.
    pauses: Vec<Duration>,
    refused: Vec<String>,
}

impl Minter {
    fn start(servers: &[Server], shard: i32) -> Minter {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients: Vec<Client> = servers.iter().map(Server::connect).collect();
        for client in &mut clients {
            sql::run(client, "SET idgen.lease_wait_ms = 0");
        }
        let until = Arc::clone(&stop);
        let thread = thread::spawn(move || mint(&mut clients, shard, &until));
        Minter { stop, thread }
    }

    fn end(self) -> Minted {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the minter")
    }
}

fn mint(clients: &mut [Client], shard: i32, stop: &AtomicBool) -> Minted {
    let insert =
        format!("INSERT INTO moved SELECT idgen_snowflake({shard}) FROM generate_series(1, 5) RETURNING id");
    let (mut minted, mut at, mut last) = (Minted::default(), 0, None::<(usize, Instant)>);
    while !stop.load(Ordering::SeqCst) {
        match clients[at].query(&insert, &[]) {
            Ok(rows) => {
                let now = Instant::now();
                if let Some((_, before)) = last.filter(|(server, _)| *server != at) {
                    minted.pauses.push(now - before);
                }
                last = Some((at, now));
                minted
                    .batches
                    .push((at, rows.iter().map(|row| row.get(0)).collect()));
                // A rate, not a wait.
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => {
                let code = error.as_db_error().map(|db| db.code().code().to_owned());
                assert!(
                    matches!(code.as_deref(), Some("IG014" | "IG001" | "IG002")),
                    "{error}"
                );
                minted.refused.extend(code);
                at = (at + 1) % clients.len();
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    minted
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times
        .get((times.len().saturating_sub(1)) * percent / 100)
        .copied()
        .unwrap_or_default()
}

/// How long a commit of one row takes on this machine while all of this goes on.
fn commits(server: &Server, stop: &Arc<AtomicBool>) -> JoinHandle<Vec<Duration>> {
    let (mut client, until) = (server.connect(), Arc::clone(stop));
    thread::spawn(move || {
        let mut took = Vec::new();
        while !until.load(Ordering::SeqCst) {
            let began = Instant::now();
            sql::run(&mut client, "INSERT INTO commits DEFAULT VALUES");
            took.push(began.elapsed());
            thread::sleep(Duration::from_millis(20));
        }
        took
    })
}

fn tables(servers: &[Server]) {
    for server in servers {
        let tables =
            "CREATE TABLE moved (id bigint PRIMARY KEY); CREATE TABLE commits (at timestamptz DEFAULT now())";
        sql::run(&mut server.connect(), tables);
    }
}

#[test]
fn a_shard_moved_100_times_under_load_with_leases_in_etcd() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    a_shard_moved_100_times(&servers, &Store::etcd(&etcd), "etcd");
}

#[test]
fn a_shard_moved_100_times_under_load_with_leases_in_postgres() {
    let servers = Server::several(2);
    a_shard_moved_100_times(&servers, &Store::on(&servers[0]), "postgres");
}

fn a_shard_moved_100_times(servers: &[Server], store: &Store, name: &str) {
    tables(servers);
    let first = with_address(options(servers, store, 0), "1, 5", "host-0").start();
    let second = with_address(options(servers, store, 1), "2", "host-1").start();
    let mut clients: Vec<Client> = servers.iter().map(Server::connect).collect();
    for (client, shards) in clients.iter_mut().zip([vec![1, MOVES], vec![2]]) {
        eventually_true(PATIENCE, "each has its own", || open_shards(client) == shards);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let commits = commits(&servers[0], &stop);
    let moving: Vec<Minter> = (0..2).map(|_| Minter::start(servers, MOVES)).collect();
    let staying: Vec<Minter> = STAYS
        .iter()
        .zip(servers)
        .map(|(shard, server)| Minter::start(std::slice::from_ref(server), *shard))
        .collect();

    let mut right = Vec::new();
    for round in 0..100 {
        let to = if round % 2 == 0 { 1 } else { 0 };
        move_to(&first, "5", &format!("server-{to}"));
        let done = Instant::now();
        for client in &mut clients {
            eventually_true(PATIENCE, "the map is right", || {
                place(client, MOVES) == serving(&format!("server-{to}"))
            });
            right.push(done.elapsed());
        }
    }
    stop.store(true, Ordering::SeqCst);
    let mut commits = commits.join().expect("commits");
    let moving: Vec<Minted> = moving.into_iter().map(Minter::end).collect();
    for (shard, minter) in STAYS.iter().zip(staying) {
        let minted = minter.end();
        assert!(
            minted.refused.is_empty(),
            "shard {shard} stays: no call of it is refused, and none waits: {:?}",
            minted.refused
        );
    }
    check_ids(servers, &moving);

    let mut pauses: Vec<Duration> = moving.iter().flat_map(|minted| minted.pauses.clone()).collect();
    let commit_p99 = quantile(&mut commits, 99);
    let (pause_p50, pause_p99) = (quantile(&mut pauses, 50), quantile(&mut pauses, 99));
    let (right_p50, right_p99) = (quantile(&mut right, 50), quantile(&mut right, 99));
    let ids: usize = moving
        .iter()
        .flat_map(|minted| &minted.batches)
        .map(|(_, ids)| ids.len())
        .sum();
    println!(
        "leases in {name}: 100 moves, {ids} ids of the shard; pause p50 {pause_p50:?}, p99 {pause_p99:?}; map right p50 \
         {right_p50:?}, p99 {right_p99:?} after a move; commit of one row p99 {commit_p99:?}"
    );
    assert!(pauses.len() >= 100, "{} changes of the server", pauses.len());
    // A move is some ten round trips between four processes, one after another; a machine that is slow or busy is so for
    // each of them.
    let bound = Duration::from_secs(1).max(commit_p99 * 100);
    assert!(
        pause_p99 < bound,
        "a pause of {pause_p99:?}, {bound:?} are allowed"
    );
    assert!(
        right_p99 < bound,
        "the map was right after {right_p99:?}, {bound:?} are allowed"
    );
    for daemon in [first, second] {
        daemon.terminate();
    }
}

/// No id twice, each minter's ids rise over all moves, and the rows are there as they were written.
fn check_ids(servers: &[Server], moving: &[Minted]) {
    let mut recorder = UniquenessRecorder::new();
    let mut of_server: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    for minted in moving {
        let ids: Vec<i64> = minted.batches.iter().flat_map(|(_, ids)| ids.clone()).collect();
        assert!(
            ids.is_sorted_by(|one, next| one < next),
            "ids rise over the moves"
        );
        for (server, ids) in &minted.batches {
            of_server.entry(*server).or_default().extend(ids);
        }
        recorder.extend(ids);
    }
    recorder.assert_unique("ids of the shard that moved", 100);
    for (server, ids) in of_server {
        let query = "SELECT id FROM moved WHERE (idgen_parse(id, 'sharded')).shard = 5";
        let rows: Vec<i64> = sql::column(&mut servers[server].connect(), query);
        let rows: BTreeSet<i64> = rows.into_iter().collect();
        assert!(
            rows == ids,
            "rows of server {server}: {} for {} ids",
            rows.len(),
            ids.len()
        );
    }
}

#[test]
fn what_cannot_be_ordered_is_refused_and_nothing_is_written() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    let store = Store::etcd(&etcd);
    let first = options(&servers, &store, 0).shards("5").start();
    let ended = |args: &[&str], code: i32, why: &str| {
        let answer = order(&first, args);
        let said = format!("{}{}", answer.stdout, answer.stderr);
        assert_eq!(answer.code, Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    };
    ended(
        &["move", "5", "--to", "server-9"],
        3,
        "no server server-9 is there, but server-0",
    );
    ended(
        &["move", "8192", "--to", "server-0"],
        2,
        "not a number or range within 0 to 8191",
    );
    ended(
        &["move", "1000-1099", "--to", "server-0"],
        3,
        "would have 101 shards and can have 63",
    );
    ended(
        &["drain", "server-0", "--to", "server-0"],
        3,
        "cannot be drained onto itself",
    );
    ended(&["drain", "server-9", "--to", "server-0"], 3, "has no shard");
    ended(
        &["move", "7", "--to", "server-0", "--dry-run"],
        0,
        "It would order: 7 to server-0.",
    );
    // Two servers of one name: nobody knows whom an order means.
    let namesake = options(&servers, &store, 1).name("server-0").shards("6").start();
    eventually_true(PATIENCE, "both are seen", || {
        let answer = order(&first, &["move", "7", "--to", "server-0"]);
        answer.code == Some(3) && answer.stderr.contains("more than one server is called server-0")
    });
    namesake.wait_log(&["another server is called server-0 too"]);
    namesake.terminate();
    assert_eq!(
        etcd.ctl_ok(&[
            "get",
            "--prefix",
            "--keys-only",
            "/pg_idgen/default/map/assigned/"
        ])
        .trim(),
        ""
    );

    let cell = etcd.ctl_ok(&["get", "--print-value-only", "/pg_idgen/default/cell"]);
    let sealed = cell
        .trim()
        .replacen('{', "{\"sealed_reason\":\"by a test\",", 1)
        .replace("\"sealed_reason\":null,", "");
    etcd.ctl_ok(&["put", "/pg_idgen/default/cell", &sealed]);
    ended(&["move", "7", "--to", "server-0"], 3, "sealed: by a test");
}

#[test]
fn without_orders_the_configuration_holds_and_every_server_has_the_map() {
    let (servers, mut etcd) = (Server::several(2), Etcd::start());
    let store = Store::etcd(&etcd);
    let mut first = with_address(options(&servers, &store, 0), "\"5-7\"", "host-0").start();
    // It has none yet, and takes part.
    let second = options(&servers, &store, 1).shards("").start();
    let mut clients: Vec<Client> = servers.iter().map(Server::connect).collect();
    for client in &mut clients {
        eventually_true(PATIENCE, "all of them", || {
            (5..=7).all(|shard| place(client, shard) == serving("server-0"))
        });
    }
    let row = clients[1]
        .query_one("SELECT address, token, version, goes_to, since < now() + '1 minute' FROM idgen.shard_map WHERE shard = 6", &[])
        .expect("the view");
    let (address, token): (Option<String>, String) = (row.get(0), row.get(1));
    assert_eq!(
        (address.as_deref(), row.get::<_, i64>(2), row.get::<_, &str>(3)),
        (Some("host-0"), 0, "server-0")
    );
    assert!(token.starts_with("0/") && row.get::<_, bool>(4), "{token}");
    let table = order(&first, &["list"]).stdout;
    assert!(table.contains("5-7") && table.contains("host-0"), "{table}");
    let map: serde_json::Value =
        serde_json::from_str(&order(&first, &["map", "--output", "json"]).stdout).expect("JSON");
    assert_eq!(map["shards"][1]["shard"], 6);
    let (_, page) = eventually(PATIENCE, "the page", || {
        first.get("/v1/shards").filter(|(status, _)| *status == 200)
    });
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(
        (&page["server"], &page["shards"]),
        (&"server-0".into(), &map["shards"])
    );
    assert!(
        page["store_revision"].as_u64() > Some(0) && page["age_ms"].is_u64(),
        "{page}"
    );

    etcd.kill();
    eventually_true(PATIENCE, "the view says how old it is", || {
        sql::value(&mut clients[1], "SELECT min(age) > '6 s' FROM idgen.shard_map")
    });
    assert_eq!(
        place(&mut clients[1], 6),
        serving("server-0"),
        "as far as anybody knows"
    );
    etcd.run();
    eventually_true(PATIENCE, "it is followed again", || {
        sql::value(&mut clients[1], "SELECT max(age) < '6 s' FROM idgen.shard_map")
    });
    for daemon in [first, second] {
        daemon.terminate();
    }
}

#[test]
fn a_shard_of_a_server_that_died_moves_when_its_window_has_ended() {
    let servers = Server::several(2);
    let store = Store::on(&servers[0]);
    let first = options(&servers, &store, 0)
        .ttl_ms(SHORT_TTL_MS)
        .shards("1, 5")
        .start();
    let second = options(&servers, &store, 1)
        .ttl_ms(SHORT_TTL_MS)
        .shards("2")
        .start();
    let mint = |client: &mut Client| -> Vec<i64> {
        sql::column(client, "SELECT idgen_snowflake(5) FROM generate_series(1, 100)")
    };
    let before = mint(&mut servers[0].connect());
    first.kill();
    let answer = order(&second, &["move", "5", "--to", "server-1", "--wait", "0s"]);
    assert_eq!(answer.code, Some(4), "{}{}", answer.stdout, answer.stderr);
    assert!(
        answer.stdout.contains("1 of 1 shards are not there"),
        "{}",
        answer.stdout
    );
    let again = order(&second, &["move", "5", "--to", "server-1", "--wait", "60s"]);
    assert_eq!(
        again.code,
        Some(0),
        "the order stands: {}{}",
        again.stdout,
        again.stderr
    );
    assert!(
        again.stderr.contains("0 of 1 shards are there"),
        "{}",
        again.stderr
    );
    let mut two = servers[1].connect();
    assert_eq!(open_shards(&mut two), [2, 5]);
    assert!(mint(&mut two)[0] > before[99], "above all that was granted");

    // The server that died comes back: what was moved is not its own any more.
    let first = options(&servers, &store, 0)
        .ttl_ms(SHORT_TTL_MS)
        .shards("1, 5")
        .start();
    assert_eq!(open_shards(&mut servers[0].connect()), [1]);
    assert_eq!(place(&mut two, 5), serving("server-1"));
    // Nobody has what it had while it is gone; all of it goes to the others.
    first.kill();
    let drained = order(
        &second,
        &["drain", "server-0", "--to", "server-1", "--wait", "60s"],
    );
    assert!(
        drained.code == Some(0) || drained.stderr.contains("has no shard"),
        "{}{}",
        drained.stdout,
        drained.stderr
    );
    second.terminate();
}

#[test]
fn a_server_is_drained_evenly() {
    let (servers, etcd) = (Server::several(3), Etcd::start());
    let store = Store::etcd(&etcd);
    let daemons: Vec<Daemon> = ["\"10-15\"", "20", "30, 31, 32"]
        .iter()
        .enumerate()
        .map(|(n, ids)| options(&servers, &store, n).shards(ids).start())
        .collect();
    let answer = order(
        &daemons[0],
        &[
            "drain",
            "server-0",
            "--to",
            "server-1,server-2",
            "--reason",
            "a new disk",
        ],
    );
    assert_eq!(answer.code, Some(0), "{}{}", answer.stdout, answer.stderr);
    let counts: Vec<usize> = servers
        .iter()
        .map(|server| open_shards(&mut server.connect()).len())
        .collect();
    assert_eq!(counts, [0, 5, 5]);
    let record = etcd.ctl_ok(&["get", "--print-value-only", "/pg_idgen/default/map/assigned/10"]);
    assert!(record.contains("a new disk"), "{record}");
    for daemon in daemons {
        daemon.terminate();
    }
}

#[test]
fn a_daemon_that_is_started_again_in_the_middle_of_a_move_completes_it() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    let store = Store::etcd(&etcd);
    let to = options(&servers, &store, 1).ttl_ms(SHORT_TTL_MS).shards("2");
    let first = options(&servers, &store, 0)
        .ttl_ms(SHORT_TTL_MS)
        .shards("1, 5")
        .start();
    let second = to.start();
    second.signal(crate::kit::process::Signal::STOP);
    let answer = order(&first, &["move", "5", "--to", "server-1", "--wait", "1s"]);
    assert_eq!(answer.code, Some(4), "{}{}", answer.stdout, answer.stderr);
    let mut one = servers[0].connect();
    eventually_true(PATIENCE, "the old holder gives it back", || {
        open_shards(&mut one) == [1]
    });
    second.kill();
    let mut second = to.start();
    assert_eq!(
        open_shards(&mut servers[1].connect()),
        [2, 5],
        "its own, and what was ordered meanwhile"
    );
    second.wait_ready();
    first.terminate();
    second.terminate();
}

#[test]
fn orders_that_follow_each_other_faster_than_they_are_done_end_where_the_last_one_says() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    tables(&servers);
    let store = Store::etcd(&etcd);
    let daemons: Vec<Daemon> = ["1, 5", "2"]
        .iter()
        .enumerate()
        .map(|(n, ids)| {
            options(&servers, &store, n)
                .store_more(PATIENT_REQUESTS)
                .shards(ids)
                .start()
        })
        .collect();
    let minter = Minter::start(&servers, MOVES);
    for round in 0..20 {
        let to = format!("server-{}", (round + 1) % 2);
        let answer = order(&daemons[round % 2], &["move", "5", "--to", &to, "--wait", "0s"]);
        assert!(
            matches!(answer.code, Some(0 | 4)),
            "{}{}",
            answer.stdout,
            answer.stderr
        );
    }
    let mut clients: Vec<Client> = servers.iter().map(Server::connect).collect();
    for client in &mut clients {
        eventually_true(PATIENCE, "where the last one says", || {
            place(client, MOVES) == serving("server-0")
        });
    }
    for (n, shards) in [vec![1, 5], vec![2]].into_iter().enumerate() {
        eventually_true(PATIENCE, "each has its own", || {
            open_shards(&mut clients[n]) == shards
        });
    }
    let minted = minter.end();
    check_ids(&servers, &[minted]);
    let version: i64 = sql::value(
        &mut clients[0],
        "SELECT version FROM idgen.shard_map WHERE shard = 5",
    );
    assert_eq!(version, 20);
    for daemon in daemons {
        daemon.terminate();
    }
}
