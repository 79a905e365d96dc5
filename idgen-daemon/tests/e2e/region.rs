//! Two cells in two regions: each claims its number once, both mint through a partition between them, and a server of one
//! takes no lease of the other.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::kit::daemon::{Answer, idgenctl, idgenctl_change};
use crate::kit::proxy::{Flow, Mode};
use crate::kit::{
    Daemon, DaemonOptions, Etcd, Load, PATIENCE, Proxy, Server, ServerOptions, Store, eventually,
    eventually_true, sql, unique::UniquenessRecorder,
};

/// A switch needs 1.5 x TTL + 3 s.
const TTL_MS: u64 = 3_000;
const AHEAD: &str = "+7s";

fn server() -> Server {
    Server::with(ServerOptions {
        tcp: true,
        own_identity: true,
        settings: vec!["wal_level = logical".into()],
        ..Default::default()
    })
}

fn config(daemon: &Daemon) -> String {
    daemon.config_path().display().to_string()
}

fn shown(daemon: &Daemon) -> Value {
    let shown = idgenctl(&["region", "show", "--config", &config(daemon), "-o", "json"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    serde_json::from_str(&shown.stdout).expect("JSON")
}

fn claim(daemon: &Daemon, region: &str, more: &[&str]) -> Answer {
    let config = config(daemon);
    let claim = [
        "format", "switch", "--config", &config, "--to", "regional", "--at", AHEAD,
    ];
    let args = [&claim[..], &["--region", region, "-o", "json"], more].concat();
    idgenctl_change(&args, || shown(daemon))
}

#[track_caller]
fn refused(answer: &Answer, why: &str) {
    assert_eq!(answer.code, Some(3), "{}{}", answer.stdout, answer.stderr);
    assert!(answer.stderr.contains(why), "{why}: {}", answer.stderr);
}

/// Unix ms of the switch.
#[track_caller]
fn switched(answer: &Answer) -> u64 {
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
    let formats: Value = serde_json::from_str(&answer.stdout).expect("JSON");
    formats["switch"]["at_ms"].as_u64().expect("a moment")
}

fn wait_until(at_ms: u64) {
    let now_ms = || SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let left = u128::from(at_ms).saturating_sub(now_ms());
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    eventually_true(left + PATIENCE, "the moment has passed", || {
        now_ms() > u128::from(at_ms)
    });
}

/// How many ids of these are of each region, as the server itself reads them.
fn by_region(server: &Server, ids: &[i64]) -> Vec<(i32, i64)> {
    let mut client = server.connect();
    let counted = "SELECT (idgen_parse(id, 'regional')).region, count(*) FROM unnest($1::bigint[]) id GROUP BY 1 ORDER BY 1";
    let rows = client.query(counted, &[&ids]).expect("count");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Rows of two regions in one table of the second: its own, and those that follow from the first through a proxy.
fn follow(from: &Server, to: &Server, through: &Proxy) {
    for (server, home) in [(from, "one"), (to, "two")] {
        let table = format!(
            "CREATE TABLE sale (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), home text NOT NULL DEFAULT '{home}')"
        );
        sql::run(&mut server.connect(), &table);
    }
    sql::run(&mut from.connect(), "CREATE PUBLICATION sales FOR TABLE sale");
    let port = through.addr().port();
    let subscribe = format!(
        "CREATE SUBSCRIPTION sales CONNECTION 'host=127.0.0.1 port={port} user=postgres dbname=postgres' PUBLICATION sales"
    );
    sql::run(&mut to.connect(), &subscribe);
}

fn sell(server: &Server, rows: u32) {
    let sell = format!("INSERT INTO sale SELECT FROM generate_series(1, {rows})");
    sql::run(&mut server.connect(), &sell);
}

fn sales(server: &Server, home: &str) -> Vec<i64> {
    let sales = format!("SELECT id FROM sale WHERE home = '{home}' ORDER BY id");
    sql::column(&mut server.connect(), &sales)
}

#[test]
fn two_regions_mint_through_a_partition_between_them() {
    // One cell in an etcd, one in tables: nothing is shared.
    let (one, two, etcd) = (server(), server(), Etcd::start());
    let at_one = DaemonOptions::new(&one)
        .store(Store::etcd(&etcd))
        .ttl_ms(TTL_MS)
        .start();
    let at_two = DaemonOptions::new(&two).ttl_ms(TTL_MS).start();
    assert_eq!(shown(&at_one)["region"], Value::Null);

    let first_at = switched(&claim(&at_one, "1", &[]));
    assert_eq!(shown(&at_one)["region"], 1);
    let beside = config(&at_one);
    refused(
        &claim(&at_two, "1", &["--beside", &beside]),
        "region 1 belongs to cell",
    );
    let second_at = switched(&claim(&at_two, "2", &["--beside", &beside]));
    assert_ne!(shown(&at_one)["cell_id"], shown(&at_two)["cell_id"]);
    wait_until(first_at.max(second_at));
    // Claimed once: not another one, and none is no way out either.
    refused(&claim(&at_one, "2", &[]), "has claimed region 1, for good");
    let classic = [
        "format", "switch", "--config", &beside, "--to", "classic", "--yes", "--at", AHEAD,
    ];
    refused(&idgenctl(&classic), "has claimed region 1, for good");

    let between = Proxy::to(one.addr());
    follow(&one, &two, &between);
    let loads = [Load::start(&one, 2), Load::start(&two, 2)];
    sell(&one, 500);
    sell(&two, 500);
    eventually_true(PATIENCE, "rows of one are at two", || {
        sales(&two, "one").len() == 500
    });
    between.set(Mode::Stall(Flow::Both));
    let passed = between.bytes_passed();
    for _ in 0..5 {
        sell(&one, 500);
        sell(&two, 500);
        loads.iter().for_each(|load| load.wait_statements(200));
    }
    assert_eq!(between.bytes_passed(), passed, "nothing gets through");
    assert_eq!(sales(&two, "one").len(), 500, "two hears nothing of one");
    between.heal();
    eventually_true(PATIENCE, "all rows of one are at two", || {
        sales(&two, "one").len() == 3_000
    });
    assert_eq!(sales(&one, "one"), sales(&two, "one"));

    let mut all = UniquenessRecorder::new();
    let [in_one, in_two] = loads.map(|load| {
        let report = load.finish();
        report.assert_no_refusal();
        report.snowflakes().collect::<Vec<i64>>()
    });
    let in_one = [in_one, sales(&one, "one")].concat();
    let in_two = [in_two, sales(&two, "two")].concat();
    for (server, ids, region) in [(&one, &in_one, 1), (&two, &in_two, 2)] {
        let count = i64::try_from(ids.len()).expect("a count");
        assert_eq!(by_region(server, ids), [(region, count)], "and nothing else");
        // The other one reads it just the same.
        let other = if region == 1 { &two } else { &one };
        assert_eq!(by_region(other, ids), [(region, count)]);
        all.extend(ids.iter().copied());
    }
    println!(
        "region 1: {} ids, region 2: {} ids, through a partition",
        in_one.len(),
        in_two.len()
    );
    all.assert_unique("ids of both regions", 10_000);
}

#[test]
fn a_server_that_has_minted_in_a_region_takes_no_lease_of_a_cell_of_another() {
    let (mut moved, other, etcd) = (server(), server(), Etcd::start());
    let own = DaemonOptions::new(&moved)
        .store(Store::etcd(&etcd))
        .ttl_ms(TTL_MS);
    let elsewhere = DaemonOptions::new(&other).ttl_ms(TTL_MS).start();
    let at_own = own.start();
    let moments = [
        switched(&claim(&at_own, "1", &[])),
        switched(&claim(&elsewhere, "2", &[])),
    ];
    moments.into_iter().for_each(wait_until);
    let minted: i64 = sql::value(&mut moved.connect(), "SELECT idgen_snowflake()");
    assert_eq!(by_region(&moved, &[minted]), [(1, 1)]);
    at_own.terminate();

    let to_other = DaemonOptions::new(&moved).store(Store::on(&other)).ttl_ms(TTL_MS);
    let ended_with = |moved: &Server, file: &str, why: &str| {
        let mut daemon = to_other.launch();
        assert_eq!(daemon.wait_exit().code(), Some(3), "{}", daemon.log());
        assert!(daemon.log().contains(why), "{file}: {}", daemon.log());
        assert_eq!(
            sql::value::<i64>(
                &mut moved.connect(),
                "SELECT count(*) FROM idgen.slots WHERE state = 'open'"
            ),
            0
        );
    };
    ended_with(&moved, "all files", "has been served from cell");
    // Whoever takes it to another cell on purpose does not come to another region by mistake.
    let forget = |server: &mut Server, files: &[&str]| {
        server.stop();
        for file in files {
            fs::remove_file(server.data_dir().join(file)).expect("it was there");
        }
        server.run();
    };
    forget(&mut moved, &["pg_idgen_cell", "pg_idgen_anchor.worker"]);
    ended_with(&moved, "the region's file", "IG109");
    // A cell that has claimed none is not of its region either.
    let none = Etcd::start();
    let mut daemon = DaemonOptions::new(&moved)
        .store(Store::etcd(&none))
        .ttl_ms(TTL_MS)
        .launch();
    assert_eq!(daemon.wait_exit().code(), Some(3), "{}", daemon.log());
    assert!(
        daemon.log().contains("the cell has claimed none"),
        "{}",
        daemon.log()
    );
    // The documented way out.
    assert!(
        !moved.data_dir().join("pg_idgen_cell").exists(),
        "a cell whose region is refused is not remembered either"
    );
    forget(&mut moved, &["pg_idgen_anchor.worker", "pg_idgen_region"]);
    let daemon = to_other.start();
    let there = eventually(PATIENCE, "it mints", || {
        let minted = moved.connect().query_one("SELECT idgen_snowflake()", &[]);
        minted.ok().map(|row| row.get::<_, i64>(0))
    });
    assert_eq!(by_region(&moved, &[there]), [(2, 1)]);
    daemon.terminate();
}
