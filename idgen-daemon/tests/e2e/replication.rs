//! Logical replication between two servers of one cell, and what a standby does by itself.

use std::collections::BTreeSet;
use std::fs;

use crate::kit::{
    Daemon, DaemonOptions, PATIENCE, Server, ServerOptions, Store, eventually_true, sql,
    unique::UniquenessRecorder,
};

const ROWS: i64 = 2_000;

/// Keys of all three kinds, and columns that the target makes from them.
const TABLE: &str = "
    CREATE TABLE item (
        id     bigint PRIMARY KEY DEFAULT idgen_snowflake(),
        uid    uuid NOT NULL UNIQUE DEFAULT idgen_uuidv7(),
        number bigint NOT NULL DEFAULT idgen_segment('items'),
        origin text NOT NULL,
        at     timestamptz GENERATED ALWAYS AS (idgen_timestamp(id)) STORED,
        code   text GENERATED ALWAYS AS (idgen_encode(id)) STORED
    );";

/// Two servers whose daemons share one store, and a subscription of the second to the first.
struct Pair {
    source: Server,
    target: Server,
    _daemons: [Daemon; 2],
}

impl Pair {
    fn start() -> Pair {
        let logical = || ServerOptions {
            settings: vec!["wal_level = logical".into()],
            own_identity: true,
            ..Default::default()
        };
        let (source, target) = (Server::with(logical()), Server::with(logical()));
        let at_source = DaemonOptions::new(&source).name("source").start();
        let at_target = DaemonOptions::new(&target)
            .name("target")
            .store(Store::on(&source))
            .start();
        for server in [&source, &target] {
            let mut client = server.connect();
            sql::run(&mut client, "SELECT idgen_create_segment('items')");
            sql::run(&mut client, TABLE);
        }
        Pair {
            source,
            target,
            _daemons: [at_source, at_target],
        }
    }

    /// Copies what is there and follows from then on.
    fn subscribe(&self) {
        sql::run(
            &mut self.source.connect(),
            "CREATE PUBLICATION items FOR TABLE item",
        );
        let source = self.source.socket_dir().display();
        sql::run(
            &mut self.target.connect(),
            &format!(
                "CREATE SUBSCRIPTION items CONNECTION 'host={source} port=5432 user=postgres dbname=postgres'
                 PUBLICATION items"
            ),
        );
    }

    fn wait_for_rows(&self, count: i64) {
        let mut client = self.target.connect();
        let arrived = "SELECT count(*) FROM item WHERE origin = 'source'";
        eventually_true(PATIENCE, "the rows have arrived", || {
            sql::value::<i64>(&mut client, arrived) == count
        });
    }
}

fn insert(server: &Server, origin: &str) {
    let rows = format!("INSERT INTO item (origin) SELECT '{origin}' FROM generate_series(1, {ROWS})");
    sql::run(&mut server.connect(), &rows);
}

/// Every row of the source, key by key, in one line each.
fn rows_of_source(server: &Server) -> Vec<String> {
    let rows = "SELECT concat_ws(' ', id, uid, number) FROM item WHERE origin = 'source' ORDER BY id";
    sql::column(&mut server.connect(), rows)
}

fn ids(server: &Server, origin: &str) -> Vec<i64> {
    let ids = format!("SELECT id FROM item WHERE origin = '{origin}'");
    sql::column(&mut server.connect(), &ids)
}

fn workers(server: &Server, origin: &str) -> BTreeSet<i32> {
    let workers = format!("SELECT DISTINCT (idgen_parse(id)).worker FROM item WHERE origin = '{origin}'");
    sql::column(&mut server.connect(), &workers).into_iter().collect()
}

#[test]
fn replicated_rows_keep_their_ids_and_the_targets_own_never_meet_them() {
    let pair = Pair::start();
    // Some are copied when the subscription begins, the others follow, and the target writes meanwhile.
    insert(&pair.source, "source");
    pair.subscribe();
    insert(&pair.source, "source");
    insert(&pair.target, "target");
    insert(&pair.source, "source");
    insert(&pair.target, "target");
    pair.wait_for_rows(3 * ROWS);

    assert_eq!(
        rows_of_source(&pair.source),
        rows_of_source(&pair.target),
        "not one key was made anew on the way"
    );
    let mut all = UniquenessRecorder::new();
    all.extend(ids(&pair.target, "source"));
    all.extend(ids(&pair.target, "target"));
    all.assert_unique("ids of both servers in one table", 5 * ROWS as usize);
    let cell = |server: &Server| -> String {
        sql::value(&mut server.connect(), "SELECT cell_id::text FROM idgen.health")
    };
    assert_eq!(
        cell(&pair.source),
        cell(&pair.target),
        "only within one cell are ids unique"
    );
    let (of_source, of_target) = (workers(&pair.target, "source"), workers(&pair.target, "target"));
    assert!(
        of_source.is_disjoint(&of_target) && !of_target.is_empty(),
        "each server mints under workers of its own: {of_source:?} {of_target:?}"
    );
    // What is generated is generated where the row lands.
    let wrong = "SELECT count(*) FROM item WHERE at IS DISTINCT FROM idgen_timestamp(id) OR code IS DISTINCT FROM idgen_encode(id)";
    assert_eq!(sql::value::<i64>(&mut pair.target.connect(), wrong), 0);
    // Rows that came drew nothing from the target's tag.
    let numbers = "SELECT max(number) FROM item WHERE origin = 'target'";
    assert_eq!(sql::value::<i64>(&mut pair.target.connect(), numbers), 2 * ROWS);
}

/// A column that only the target has takes its default there, row by row, in the process that applies.
#[test]
fn a_column_of_the_targets_own_is_filled_by_the_targets_workers() {
    let pair = Pair::start();
    sql::run(
        &mut pair.target.connect(),
        "ALTER TABLE item ADD COLUMN here bigint NOT NULL UNIQUE DEFAULT idgen_snowflake(),
                          ADD COLUMN here_uid uuid NOT NULL UNIQUE DEFAULT idgen_uuidv7(),
                          ADD COLUMN here_number bigint NOT NULL UNIQUE DEFAULT idgen_segment('items')",
    );
    pair.subscribe();
    insert(&pair.source, "source");
    pair.wait_for_rows(ROWS);

    let mut client = pair.target.connect();
    let own: i64 = sql::value(
        &mut client,
        "SELECT count(DISTINCT (here, here_uid, here_number)) FROM item WHERE here <> id AND here_uid <> uid",
    );
    assert_eq!(own, ROWS);
    let by: Vec<i32> = sql::column(
        &mut client,
        "SELECT DISTINCT (idgen_parse(here)).worker FROM item",
    );
    let of_source = workers(&pair.target, "source");
    assert!(
        by.iter().all(|worker| !of_source.contains(worker)),
        "{by:?} {of_source:?}"
    );
}

#[test]
fn a_standby_parses_bounds_encodes_and_makes_uuids_but_no_snowflakes() {
    let mut server = Server::start();
    let daemon = Daemon::start(&server);
    let mut client = server.connect();
    sql::run(
        &mut client,
        "CREATE TABLE item (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), at timestamptz DEFAULT clock_timestamp());
         CREATE INDEX item_time ON item (idgen_timestamp(id));
         INSERT INTO item SELECT FROM generate_series(1, 1000)",
    );
    drop(client);
    daemon.terminate();
    server.stop();
    fs::write(server.data_dir().join("standby.signal"), "").expect("write standby.signal");
    server.run();

    let mut client = server.connect();
    for works in [
        "SELECT count(*) = 1000 FROM item WHERE abs(extract(epoch FROM idgen_timestamp(id) - at)) < 60",
        "SELECT count(*) = 1000 FROM item WHERE id BETWEEN idgen_snowflake_min(at - interval '1 min')
                                                        AND idgen_snowflake_max(at + interval '1 min')",
        "SELECT bool_and(idgen_decode(idgen_encode(id)) = id AND (idgen_parse(id)).worker IS NOT NULL) FROM item",
        "SELECT bool_and(idgen_cursor_floor(id, '1 s') < id) FROM item",
        "SELECT count(DISTINCT u) = 1000 FROM idgen_uuidv7_batch(1000) u",
        "SELECT idgen_uuidv7_at('2026-01-01+00') BETWEEN idgen_uuidv7_min('2026-01-01+00')
                                                     AND idgen_uuidv7_max('2026-01-01+00')",
        "SELECT count(*) = 0 FROM idgen.slots",
    ] {
        assert!(sql::value::<bool>(&mut client, works), "{works}");
    }
    for refused in [
        "SELECT idgen_snowflake()",
        "SELECT count(*) FROM idgen_snowflake_batch(2)",
    ] {
        sql::refusal(&mut client, refused, "IG012");
    }
}
