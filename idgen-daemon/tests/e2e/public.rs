//! Public ids where a single session does not suffice: other sessions' changes, standbys, no preload.

use std::fs;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Server, ServerOptions, sql};

const MAKE: &str = "SELECT idgen_public_id('ord')";

#[test]
fn what_another_session_registers_counts_from_its_commit_on() {
    let server = Server::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    sql::refusal(&mut one, MAKE, "IG018");
    sql::run(&mut other, "BEGIN; SELECT idgen_register_prefix('ord')");
    sql::refusal(&mut one, MAKE, "IG018");
    sql::run(&mut other, "COMMIT");
    let id: String = sql::value(&mut one, MAKE);
    assert!(id.starts_with("ord_"), "{id}");
}

/// A session that remembers the prefix must notice that it is gone with the extension.
#[test]
fn a_session_forgets_what_another_one_has_dropped() {
    let server = Server::start();
    let (mut one, mut other) = (server.connect(), server.connect());
    sql::run(&mut other, "SELECT idgen_register_prefix('ord')");
    sql::value::<String>(&mut one, MAKE);
    sql::run(&mut other, "DROP EXTENSION pg_idgen; CREATE EXTENSION pg_idgen");
    sql::refusal(&mut one, MAKE, "IG018");
    // Somebody else's table of that name is not believed.
    sql::run(
        &mut other,
        "DROP EXTENSION pg_idgen; CREATE SCHEMA idgen; CREATE TABLE idgen.prefix (prefix text, owner name);
         INSERT INTO idgen.prefix VALUES ('ord', 'me');
         CREATE FUNCTION idgen_public_id(text) RETURNS text LANGUAGE c VOLATILE AS 'pg_idgen', 'idgen_public_id'",
    );
    sql::refusal(&mut one, MAKE, "IG018");
}

#[test]
fn without_preload_and_on_a_standby_public_ids_are_made_and_none_is_registered_there() {
    let mut server = Server::with(ServerOptions {
        preload: false,
        ..Default::default()
    });
    sql::run(&mut server.connect(), "SELECT idgen_register_prefix('ord')");
    let mut recorder = UniquenessRecorder::new();
    let many = "SELECT idgen_public_id('ord') FROM generate_series(1, 1000)";
    recorder.extend(sql::column::<String>(&mut server.connect(), many));
    server.stop();
    // A standby of nobody: it has all the log there is and waits for more.
    fs::write(server.data_dir().join("standby.signal"), "").expect("write standby.signal");
    server.run();
    let mut client = server.connect();
    recorder.extend(sql::column::<String>(&mut client, many));
    sql::refusal(&mut client, "SELECT idgen_public_id('other')", "IG018");
    sql::refusal(&mut client, "SELECT idgen_register_prefix('other')", "IG012");
    recorder.assert_unique("public ids of two sessions", 2_000);
}
