//! Recoveries, clones, rollbacks and failovers of a database whose authority is leased: the store knows what was granted,
//! whatever the copy of the row says. And what a local authority cannot do: the documented duplicate of an old primary
//! that nobody has fenced.

use std::process::Command;

use postgres::Client;

use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Daemon, DaemonOptions, Etcd, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, sql,
};
use crate::segment_home::{cut_off, put_back, run, wait_until_promoted};

/// Of the lease of the authority.
const TTL_MS: u64 = 5_000;

fn options(authority: &str) -> ServerOptions {
    ServerOptions {
        settings: vec![
            format!("idgen.authority = {authority}"),
            "idgen.segment_wait_ms = 1500".to_owned(),
            "wal_keep_size = 256MB".to_owned(),
        ],
        own_identity: true,
        ..Default::default()
    }
}

const SMALL_RANGES: &str = "SELECT idgen_create_segment('t', step => 500, max_step => 2000)";

/// A server under a leased authority, with a tag.
fn leased(store: &Store, make: &str) -> (Server, Daemon) {
    let server = Server::with(options("leased"));
    sql::run(&mut server.connect(), make);
    let daemon = daemon(&server, store);
    (server, daemon)
}

fn daemon(server: &Server, store: &Store) -> Daemon {
    DaemonOptions::new(server)
        .name("north")
        .store(store.clone())
        .authority(TTL_MS)
        .start()
}

/// As soon as there is a lease.
fn draw(client: &mut Client, count: u32) -> Vec<i64> {
    let draw = format!("SELECT idgen_segment('t') FROM generate_series(1, {count})");
    let rows = eventually(PATIENCE, "ranges are granted", || {
        client.query(draw.as_str(), &[]).ok()
    });
    rows.iter().map(|row| row.get(0)).collect()
}

fn draw_at(server: &Server, count: u32) -> Vec<i64> {
    draw(&mut server.connect(), count)
}

/// Causes of what was passed over of the tag, in order, each once.
fn burns(client: &mut Client) -> Vec<String> {
    let burns =
        "SELECT DISTINCT payload->>'cause' FROM idgen.audit_event WHERE kind = 'segment.burn' AND tag = 't'";
    sql::column(client, burns)
}

fn recovered_to_a_point_in_time(store: &Store) {
    let (mut origin, at_origin) = leased(store, SMALL_RANGES);
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&origin, 3_000));
    let mut copy = Server::backup_of(&origin, false);
    all.extend(draw_at(&origin, 3_000));
    sql::run(&mut origin.connect(), "SELECT pg_create_restore_point('here')");
    all.extend(draw_at(&origin, 60_000));
    sql::run(&mut origin.connect(), "SELECT pg_switch_wal()");
    at_origin.terminate();
    origin.stop();

    copy.recover_to("here", &origin);
    wait_until_promoted(&copy);
    let _at_copy = daemon(&copy, store);
    all.extend(draw_at(&copy, 20_000));
    // No safety burn, which 60,000 numbers would have passed: the ceiling says how far it had come.
    assert_eq!(burns(&mut copy.connect()), ["ceiling of the last holder"]);
    all.assert_unique("numbers before and after the recovery", 86_000);
}

#[test]
fn recovered_to_a_point_in_time_a_leased_database_goes_on_above_by_tables_of_another_server() {
    let store = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    recovered_to_a_point_in_time(&Store::on(&store));
}

#[test]
fn recovered_to_a_point_in_time_a_leased_database_goes_on_above_by_an_etcd() {
    let etcd = Etcd::start();
    recovered_to_a_point_in_time(&Store::etcd(&etcd));
}

/// The data directory as it was, put back into its place, without an anchor: nothing in it tells.
#[test]
fn a_snapshot_that_is_rolled_back_under_a_leased_authority_repeats_nothing() {
    let etcd = Etcd::start();
    let store = Store::etcd(&etcd);
    let (mut server, first) = leased(&store, SMALL_RANGES);
    sql::run(
        &mut server.connect(),
        "CREATE TABLE parcel (id bigserial, n int); SELECT * FROM idgen_adopt_sequence('parcel_id_seq', 'parcel')",
    );
    let mut all = UniquenessRecorder::new();
    let mut parcels = UniquenessRecorder::new();
    let parcel = "INSERT INTO parcel (n) SELECT generate_series(1, 3000) RETURNING id";
    let insert = |server: &Server| -> Vec<i64> {
        let mut client = server.connect();
        let rows = eventually(PATIENCE, "rows are numbered", || client.query(parcel, &[]).ok());
        rows.iter().map(|row| row.get(0)).collect()
    };
    all.extend(draw_at(&server, 3_000));
    parcels.extend(insert(&server));
    first.terminate();
    server.stop();
    let snapshot = server.socket_dir().join("snapshot");
    run(Command::new("cp").arg("-a").arg(server.data_dir()).arg(&snapshot));
    server.run();
    let second = daemon(&server, &store);
    all.extend(draw_at(&server, 60_000));
    parcels.extend(insert(&server));
    second.terminate();
    server.stop();

    put_back(&snapshot, &server.data_dir());
    server.run();
    let _third = daemon(&server, &store);
    // Neither the row of the tag nor the table knows of the second life: the sequence must not go on above them.
    let mut client = server.connect();
    let release = "SELECT * FROM idgen_release_sequence('parcel')";
    sql::refusal(&mut client, release, "IG028");
    parcels.extend(insert(&server));
    sql::run(&mut client, release);
    parcels.extend(sql::column::<i64>(&mut client, parcel));
    all.extend(draw_at(&server, 20_000));
    assert_eq!(burns(&mut server.connect()), ["ceiling of the last holder"]);
    all.assert_unique("numbers before and after the rollback", 83_000);
    parcels.assert_unique("numbers of rows over the rollback and the release", 12_000);
}

/// It becomes another space, of which the store knows nothing: here too it is the safety burn that keeps what was granted
/// since the dump from coming again.
#[test]
fn a_dump_restored_over_a_used_database_with_a_leased_authority_burns() {
    let etcd = Etcd::start();
    // Not the one that the daemon is connected to: it ends when the extension is dropped there.
    let (server, _daemon) = leased(&Store::etcd(&etcd), "CREATE DATABASE app");
    server.install_extension("app");
    let mut client = server.connect_to("app");
    sql::run(&mut client, "SELECT idgen_create_segment('t')");
    let mut all = UniquenessRecorder::new();
    all.extend(draw(&mut client, 10));
    let dump = server.socket_dir().join("dump");
    run(server
        .client_program("pg_dump")
        .args(["-Fc", "-f"])
        .arg(&dump)
        .arg("app"));
    all.extend(draw(&mut client, 5_300));
    let space = "SELECT space_id::text FROM idgen.health";
    let before: String = sql::value(&mut client, space);
    drop(client);
    run(server
        .client_program("pg_restore")
        .args(["--clean", "--if-exists", "-d", "app"])
        .arg(&dump));
    let mut client = server.connect_to("app");
    assert_ne!(sql::value::<String>(&mut client, space), before);
    all.extend(draw(&mut client, 30_000));
    assert_eq!(burns(&mut client), ["row came from elsewhere"]);
    all.assert_unique("numbers before and since the restore", 35_310);
}

#[test]
fn a_clone_by_template_of_a_leased_database_has_a_lease_of_its_own() {
    let etcd = Etcd::start();
    let (server, _daemon) = leased(&Store::etcd(&etcd), "CREATE DATABASE app");
    server.install_extension("app");
    let mut app = server.connect_to("app");
    sql::run(&mut app, SMALL_RANGES);
    let before = draw(&mut app, 700);
    drop(app);
    let mut admin = server.connect();
    eventually_true(PATIENCE, "nobody is in the database", || {
        let clone = "CREATE DATABASE clone TEMPLATE app";
        admin.batch_execute(clone).is_ok()
    });
    let mut clients = ["app", "clone"].map(|database| server.connect_to(database));
    let mut drawn = [before.clone(), Vec::new()];
    for _ in 0..3 {
        for (client, drawn) in clients.iter_mut().zip(&mut drawn) {
            drawn.extend(draw(client, 5_000));
        }
    }
    assert!(drawn[1][0] > before[699], "above what the original had granted");
    let spaces: Vec<String> = clients
        .iter_mut()
        .map(|client| sql::value(client, "SELECT space_id::text FROM idgen.health"))
        .collect();
    assert_ne!(spaces[0], spaces[1]);
    for (drawn, which) in drawn.into_iter().zip(["the original", "the clone"]) {
        let mut all = UniquenessRecorder::new();
        all.extend(drawn);
        all.assert_unique(which, 15_000);
    }
}

/// What the documentation says of a local authority, and of the way out.
#[test]
fn an_old_primary_that_is_never_fenced_issues_numbers_of_the_new_one_as_documented() {
    let old = Server::with(options("local"));
    sql::run(
        &mut old.connect(),
        "SELECT idgen_create_segment('t', step => 100, max_step => 100)",
    );
    let mut seen = draw_at(&old, 500);
    let mut new = Server::backup_of(&old, true);
    new.run();
    cut_off(&new);
    let mut client = new.connect();
    sql::run(&mut client, "SELECT pg_promote()");
    wait_until_promoted(&new);
    let promised = draw_at(&new, 1_000);
    // As many as it granted in the time of the safety burn at its rate of then: still nothing twice.
    seen.extend(draw_at(&old, 4_000));
    let mut within = UniquenessRecorder::new();
    within.extend(seen.iter().copied().chain(promised.iter().copied()));
    within.assert_unique("numbers of both sides within the time of the burn", 5_500);
    // Nothing stops it there.
    let late = draw_at(&old, 6_000);
    assert!(
        late.iter().any(|id| promised.contains(id)),
        "if this does not happen any more, docs/operations.md is to be changed: {:?} and {:?}",
        late.last(),
        promised.first()
    );
}

/// Marks of before are still equal when nobody has drawn since the promotion.
#[test]
fn a_sequence_is_not_given_back_by_a_promoted_standby_before_the_burn() {
    let old = Server::with(options("local"));
    sql::run(
        &mut old.connect(),
        "CREATE TABLE parcel (id bigserial, n int); SELECT * FROM idgen_adopt_sequence('parcel_id_seq', 'parcel')",
    );
    let insert = "INSERT INTO parcel (n) SELECT generate_series(1, 2500) RETURNING id";
    let mut all = UniquenessRecorder::new();
    all.extend(sql::column::<i64>(&mut old.connect(), insert));
    let mut new = Server::backup_of(&old, true);
    new.run();
    cut_off(&new);
    let mut client = new.connect();
    all.extend(sql::column::<i64>(&mut old.connect(), insert));
    sql::run(&mut client, "SELECT pg_promote()");
    wait_until_promoted(&new);
    let release = "SELECT * FROM idgen_release_sequence('parcel')";
    sql::refusal(&mut client, release, "IG028");
    all.extend(sql::column::<i64>(&mut client, "SELECT idgen_segment('parcel')"));
    sql::run(&mut client, release);
    all.extend(sql::column::<i64>(&mut client, insert));
    all.assert_unique("numbers of tag and sequence over the promotion", 7_501);
}
