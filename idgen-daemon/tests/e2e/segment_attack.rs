//! Tries to make one number come twice: transactions that are prepared over a crash, a log that is thrown away, databases that
//! take each other's name or space, an authority that is switched under load.

use std::collections::BTreeMap;
use std::fs;

use postgres::Client;

use crate::kit::server::program;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Daemon, DaemonOptions, Etcd, Load, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true,
    sql,
};
use crate::segment_home::run;

fn server(settings: &[&str]) -> Server {
    Server::with(ServerOptions {
        settings: settings.iter().map(|line| (*line).to_owned()).collect(),
        own_identity: true,
        ..Default::default()
    })
}

fn daemon(server: &Server, etcd: &Etcd) -> Daemon {
    DaemonOptions::new(server)
        .name("north")
        .store(Store::etcd(etcd))
        .authority(5_000)
        .start()
}

/// As soon as numbers are granted.
fn draw(client: &mut Client, tag: &str, count: u32) -> Vec<i64> {
    let draw = format!("SELECT idgen_segment('{tag}') FROM generate_series(1, {count})");
    let rows = eventually(PATIENCE, "numbers are granted", || {
        client.query(draw.as_str(), &[]).ok()
    });
    rows.iter().map(|row| row.get(0)).collect()
}

/// What was drawn under a prepared transaction counts whether it is committed or not; what it holds is held by the row, over
/// crashes too.
#[test]
fn prepared_transactions_over_crashes_repeat_nothing() {
    let mut server = server(&["max_prepared_transactions = 10"]);
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('moved'), idgen_create_segment('dropped')",
    );
    let mut all: BTreeMap<&str, UniquenessRecorder<i64>> = BTreeMap::new();
    for tag in ["moved", "dropped"] {
        let drawn = draw(&mut client, tag, 700);
        all.entry(tag).or_default().extend(drawn);
    }
    sql::run(&mut client, "BEGIN; SELECT idgen_create_segment('made')");
    all.entry("made").or_default().extend(sql::column::<i64>(
        &mut client,
        "SELECT idgen_segment('made') FROM generate_series(1, 1500)",
    ));
    // Under a savepoint that is rolled back: the row is mended as the transaction is prepared.
    sql::run(&mut client, "SAVEPOINT s");
    all.entry("made").or_default().extend(sql::column::<i64>(
        &mut client,
        "SELECT idgen_segment('made') FROM generate_series(1, 1500)",
    ));
    sql::run(
        &mut client,
        "ROLLBACK TO s; PREPARE TRANSACTION 'made';
         BEGIN; SELECT idgen_seek_segment('moved', 50000); PREPARE TRANSACTION 'moved';
         BEGIN; SELECT idgen_drop_segment('dropped'); PREPARE TRANSACTION 'dropped'",
    );
    for crash in [true, false] {
        if crash {
            server.kill_everything();
            server.run();
        } else {
            server.restart();
        }
        let mut client = server.connect();
        sql::run(&mut client, "SET idgen.segment_wait_ms = 300");
        sql::refusal(&mut client, "SELECT idgen_segment('moved')", "IG007");
        sql::refusal(&mut client, "SELECT idgen_segment('dropped')", "IG007");
        sql::refusal(&mut client, "SELECT idgen_segment('made')", "IG005");
    }
    let mut client = server.connect();
    sql::run(&mut client, "COMMIT PREPARED 'made'");
    sql::run(&mut client, "COMMIT PREPARED 'moved'");
    sql::run(&mut client, "ROLLBACK PREPARED 'dropped'");
    assert_eq!(draw(&mut client, "moved", 1), [50_000]);
    for tag in ["made", "moved", "dropped"] {
        let drawn = draw(&mut client, tag, 2_500);
        all.entry(tag).or_default().extend(drawn);
    }
    for (tag, drawn) in all {
        drawn.assert_unique(tag, 3_200);
    }
}

/// What a person does who has no other way left.
fn reset_the_log(server: &Server) {
    fs::remove_file(server.data_dir().join("postmaster.pid")).expect("remove the lock file");
    run(server
        .as_account(program("pg_resetwal"))
        .arg("-f")
        .arg("-D")
        .arg(server.data_dir()));
}

/// With the writers asleep nothing of the rows is on disk but by the log, which is thrown away after the crash. The
/// administrator who does that says so.
#[test]
fn a_log_that_was_reset_repeats_nothing_once_the_authority_is_adopted() {
    let mut server = server(&[
        "bgwriter_lru_maxpages = 0",
        "checkpoint_timeout = 1h",
        "fsync = on",
    ]);
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t'); CHECKPOINT");
    let mut all = UniquenessRecorder::new();
    all.extend(draw(&mut client, "t", 500));
    sql::run(&mut client, "CHECKPOINT");
    all.extend(draw(&mut client, "t", 9_000));
    server.kill_everything();
    reset_the_log(&server);
    server.run();
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen.adopt_authority('pg_resetwal')");
    all.extend(draw(&mut client, "t", 20_000));
    all.assert_unique("numbers before and after the reset of the log", 29_500);
}

/// The store has the ceilings: nobody has to say anything.
#[test]
fn a_log_that_was_reset_under_a_leased_authority_repeats_nothing() {
    let etcd = Etcd::start();
    let mut server = server(&[
        "bgwriter_lru_maxpages = 0",
        "checkpoint_timeout = 1h",
        "idgen.authority = leased",
    ]);
    let mut client = server.connect();
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let first = daemon(&server, &etcd);
    let mut all = UniquenessRecorder::new();
    all.extend(draw(&mut client, "t", 500));
    sql::run(&mut client, "CHECKPOINT");
    all.extend(draw(&mut client, "t", 9_000));
    server.kill_everything();
    first.terminate();
    reset_the_log(&server);
    server.run();
    let _second = daemon(&server, &etcd);
    all.extend(draw(&mut server.connect(), "t", 20_000));
    all.assert_unique("numbers before and after the reset of the log", 29_500);
}

fn switch(server: &Server, authority: &str) {
    sql::run(
        &mut server.connect(),
        &format!("ALTER SYSTEM SET idgen.authority = {authority}"),
    );
    server.reload();
    let mut client = server.connect();
    eventually_true(PATIENCE, "the authority is another one, and grants", || {
        let state = "SELECT authority = current_setting('idgen.authority') AND authority_state = 'granting' FROM idgen.health";
        sql::value::<String>(&mut client, "SHOW idgen.authority") == authority
            && sql::value::<bool>(&mut client, state)
    });
}

/// Every process reads the setting anew when it comes to it: some grant by the old one while others grant by the new one.
#[test]
fn an_authority_that_is_switched_there_and_back_under_load_repeats_nothing() {
    let etcd = Etcd::start();
    let server = server(&["idgen.segment_wait_ms = 10000"]);
    let _daemon = daemon(&server, &etcd);
    sql::run(
        &mut server.connect(),
        "SELECT idgen_create_segment('load', step => 100, max_step => 200)",
    );
    let load = Load::resume(&server, 4);
    for _ in 0..4 {
        load.wait_statements(60);
        switch(&server, "leased");
        load.wait_statements(60);
        switch(&server, "local");
    }
    load.wait_statements(60);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(9_000);
    // By both kinds of authority, and no two events are about one number.
    let mut client = server.connect();
    let kinds = "SELECT count(DISTINCT token_revision IS NULL) FROM idgen.audit_event WHERE kind = 'segment.grant' AND tag = 'load'";
    assert_eq!(sql::value::<i64>(&mut client, kinds), 2);
    let overlaps = "SELECT count(*) FROM (SELECT lo, lag(hi) OVER (ORDER BY lo) AS before
                      FROM idgen.audit_event WHERE tag = 'load' AND lo IS NOT NULL) e WHERE lo <= before";
    assert_eq!(sql::value::<i64>(&mut client, overlaps), 0);
}

/// Space and tag name a number. What was drawn where is written down under the space that it was drawn in.
#[derive(Default)]
struct BySpace(BTreeMap<String, Vec<i64>>);

impl BySpace {
    fn draw(&mut self, client: &mut Client, count: u32) -> String {
        let drawn = draw(client, "t", count);
        let space: String = sql::value(client, "SELECT space_id::text FROM idgen.health");
        self.0.entry(space.clone()).or_default().extend(drawn);
        space
    }

    fn assert_unique(self) {
        for (space, drawn) in self.0 {
            let mut all = UniquenessRecorder::new();
            all.extend(drawn);
            all.assert_unique(&format!("numbers of space {space}"), 1_000);
        }
    }
}

fn rename(admin: &mut Client, from: &str, to: &str) {
    let rename = format!("ALTER DATABASE {from} RENAME TO {to}");
    eventually_true(PATIENCE, "nobody is in the database", || {
        admin.batch_execute(&rename).is_ok()
    });
}

/// The daemon knows databases by their names, the store by their spaces.
#[test]
fn databases_that_are_made_again_or_take_each_others_name_under_a_leased_authority_repeat_nothing() {
    let etcd = Etcd::start();
    let server = server(&["idgen.authority = leased", "idgen.segment_wait_ms = 1500"]);
    let mut admin = server.connect();
    let _daemon = daemon(&server, &etcd);
    let make = "SELECT idgen_create_segment('t', step => 100, max_step => 100)";
    for database in ["one", "two"] {
        sql::run(&mut admin, &format!("CREATE DATABASE {database}"));
        server.install_extension(database);
        sql::run(&mut server.connect_to(database), make);
    }
    let mut all = BySpace::default();
    let [one, two] = ["one", "two"].map(|database| all.draw(&mut server.connect_to(database), 1_500));
    rename(&mut admin, "one", "other");
    rename(&mut admin, "two", "one");
    rename(&mut admin, "other", "two");
    assert_eq!(all.draw(&mut server.connect_to("one"), 1_500), two);
    assert_eq!(all.draw(&mut server.connect_to("two"), 1_500), one);
    // The extension, and then the database, is another one of the same name.
    let mut client = server.connect_to("one");
    sql::run(&mut client, "DROP EXTENSION pg_idgen");
    drop(client);
    server.install_extension("one");
    let mut client = server.connect_to("one");
    sql::run(&mut client, make);
    let again = all.draw(&mut client, 1_500);
    assert_ne!(again, two);
    drop(client);
    eventually_true(PATIENCE, "nobody is in the database", || {
        admin.batch_execute("DROP DATABASE one").is_ok()
    });
    sql::run(&mut admin, "CREATE DATABASE one");
    server.install_extension("one");
    let mut client = server.connect_to("one");
    sql::run(&mut client, make);
    assert_ne!(all.draw(&mut client, 1_500), again);
    all.draw(&mut server.connect_to("two"), 1_500);
    all.assert_unique();
}

/// Somebody with all rights copies the row that names the space: two databases, one name in the store.
#[test]
fn two_databases_of_one_space_never_grant_one_number_under_a_leased_authority() {
    let etcd = Etcd::start();
    let server = server(&["idgen.authority = leased", "idgen.segment_wait_ms = 500"]);
    let mut admin = server.connect();
    sql::run(
        &mut admin,
        "SELECT idgen_create_segment('t', step => 100, max_step => 100)",
    );
    sql::run(&mut admin, "CREATE DATABASE other");
    server.install_extension("other");
    let mut other = server.connect_to("other");
    sql::run(
        &mut other,
        "SELECT idgen_create_segment('t', step => 100, max_step => 100)",
    );
    let space: String = sql::value(&mut admin, "SELECT space_id::text FROM idgen.space");
    sql::run(
        &mut other,
        &format!("UPDATE idgen.space SET space_id = '{space}'"),
    );
    let _daemon = daemon(&server, &etcd);
    let mut all = UniquenessRecorder::new();
    let mut turns = [0, 0];
    // They take the one lease from each other, so either may be refused for a while.
    eventually_true(PATIENCE, "both have granted several times", || {
        for (client, turns) in [&mut admin, &mut other].into_iter().zip(&mut turns) {
            let rows = client.query("SELECT idgen_segment('t') FROM generate_series(1, 150)", &[]);
            if let Ok(rows) = rows {
                all.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                *turns += 1;
            }
        }
        turns.iter().all(|turns| *turns >= 4)
    });
    all.assert_unique("numbers of two databases of one space", 1_200);
}

/// A new launcher knows nothing of a worker that the old one has started.
#[test]
fn launchers_and_workers_that_are_terminated_under_load_repeat_nothing() {
    let server = server(&["idgen.segment_wait_ms = 10000"]);
    let mut client = server.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 20, max_step => 20)",
    );
    let drawers: Vec<_> = (0..4)
        .map(|_| {
            let connect = server.connector();
            std::thread::spawn(move || {
                let mut client = connect().expect("connect");
                let rounds = (0..60).flat_map(|_| draw(&mut client, "t", 50));
                rounds.collect::<Vec<i64>>()
            })
        })
        .collect();
    while drawers.iter().any(|drawer| !drawer.is_finished()) {
        for kind in ["launcher", "refill worker"] {
            let terminate = format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'pg_idgen {kind}'"
            );
            sql::value::<i64>(&mut client, &terminate);
        }
        let max_id = "SELECT max_id FROM idgen.segment WHERE tag = 't'";
        let goal = sql::value::<i64>(&mut client, max_id) + 400;
        eventually_true(PATIENCE, "ranges are granted again", || {
            sql::value::<i64>(&mut client, max_id) >= goal
                || drawers.iter().all(|drawer| drawer.is_finished())
        });
    }
    let mut all = UniquenessRecorder::new();
    for drawer in drawers {
        all.extend(drawer.join().expect("a session"));
    }
    all.assert_unique("numbers over the terminations", 12_000);
}

/// The data directory is copied while the server runs, without a backup, and put into another place; the clone, its original
/// and a clone by template of the clone draw at once.
#[test]
fn a_copied_directory_and_a_template_of_it_grant_nothing_of_the_originals_space() {
    let origin = server(&["full_page_writes = on"]);
    let mut client = origin.connect();
    sql::run(
        &mut client,
        "SELECT idgen_create_segment('t', step => 500, max_step => 500)",
    );
    let mut all = BySpace::default();
    let space = all.draw(&mut client, 2_000);
    let mut copy = Server::backup_of(&origin, false);
    copy.run();
    let mut at_copy = copy.connect();
    sql::refusal(&mut at_copy, "SELECT idgen_segment('t')", "IG031");
    drop(at_copy);
    let mut admin = copy.connect_to("template1");
    eventually_true(PATIENCE, "nobody is in the database", || {
        let clone = "CREATE DATABASE clone TEMPLATE postgres";
        admin.batch_execute(clone).is_ok()
    });
    // What refuses is a copy, of whatever name.
    let mut clone = copy.connect_to("clone");
    sql::refusal(&mut clone, "SELECT idgen_segment('t')", "IG031");
    sql::run(
        &mut clone,
        "SELECT idgen.adopt_authority('a database of its own')",
    );
    assert_ne!(all.draw(&mut clone, 3_000), space);
    sql::refusal(&mut copy.connect(), "SELECT idgen_segment('t')", "IG031");
    assert_eq!(all.draw(&mut client, 3_000), space);
    all.assert_unique();
}
