//! Segments with a local authority over copies, promotions, recoveries and rollbacks: what may not know of every range
//! passes over them, what may be a copy refuses, and nothing is issued a second time.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use postgres::Client;

use crate::kit::server::program;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{PATIENCE, Server, ServerOptions, eventually_true, sql};

fn make(server: &Server) {
    sql::run(
        &mut server.connect(),
        "SELECT idgen_create_segment('t', step => 500, max_step => 2000)",
    );
}

fn draw(client: &mut Client, count: u32) -> Vec<i64> {
    let draw = format!("SELECT idgen_segment('t') FROM generate_series(1, {count})");
    sql::column(client, &draw)
}

fn draw_at(server: &Server, count: u32) -> Vec<i64> {
    draw(&mut server.connect(), count)
}

fn state(server: &Server) -> String {
    sql::value(&mut server.connect(), "SELECT authority_state FROM idgen.health")
}

/// Causes of what was passed over of the tag, in order.
fn burns(server: &Server) -> Vec<String> {
    let burns = "SELECT payload->>'cause' FROM idgen.audit_event WHERE kind = 'segment.burn' AND tag = 't' ORDER BY tag_seq";
    sql::column(&mut server.connect(), burns)
}

pub fn run(command: &mut Command) {
    let output = command.output().expect("run a program");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub fn wait_until_promoted(server: &Server) {
    let mut client = server.connect();
    eventually_true(PATIENCE, "recovery is over", || {
        !sql::value::<bool>(&mut client, "SELECT pg_is_in_recovery()")
    });
}

/// Draws until it is told to stop, or its server is gone.
struct Load {
    stop: Arc<AtomicBool>,
    drawing: JoinHandle<Vec<i64>>,
}

impl Load {
    fn on(server: &Server) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, connect) = (Arc::clone(&stop), server.connector());
        let drawing = std::thread::spawn(move || {
            let mut client = connect().expect("connect");
            let mut drawn = Vec::new();
            while !told.load(Ordering::Relaxed) {
                match client.query("SELECT idgen_segment('t') FROM generate_series(1, 50)", &[]) {
                    Ok(rows) => drawn.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
                    Err(_) if client.is_closed() => break,
                    Err(error) => panic!("draw under load: {error:?}"),
                }
            }
            drawn
        });
        Load { stop, drawing }
    }

    fn end(self) -> Vec<i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.drawing.join().expect("the load ends well")
    }
}

fn primary() -> Server {
    let server = Server::with(ServerOptions {
        own_identity: true,
        settings: vec!["wal_log_hints = on".into(), "wal_keep_size = 256MB".into()],
        ..Default::default()
    });
    make(&server);
    server
}

/// From now on nothing of its primary reaches it.
pub fn cut_off(standby: &Server) {
    let mut client = standby.connect();
    sql::run(&mut client, "ALTER SYSTEM SET primary_conninfo = ''");
    sql::run(&mut client, "SELECT pg_reload_conf()");
    eventually_true(PATIENCE, "the standby receives nothing", || {
        sql::value::<i64>(&mut client, "SELECT count(*) FROM pg_stat_wal_receiver") == 0
    });
}

fn follow(primary: &Server, standby: &Server) {
    let mut client = primary.connect();
    let end: String = sql::value(&mut client, "SELECT pg_current_wal_insert_lsn()::text");
    let mut client = standby.connect();
    eventually_true(PATIENCE, "the standby has caught up", || {
        sql::value(
            &mut client,
            &format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn"),
        )
    });
}

fn promote(standby: &Server) {
    sql::run(&mut standby.connect(), "SELECT pg_promote()");
    wait_until_promoted(standby);
}

/// INCIDENTS 51: over to the standby and back again, both times with lag and the old side alive for a while.
#[test]
fn incident_51_promoted_with_lag_and_back_again_issues_nothing_twice() {
    let mut first = primary();
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&first, 4_000));
    let mut second = Server::backup_of(&first, true);
    second.run();
    let old_side = Load::on(&first);
    let mut standby = second.connect();
    eventually_true(PATIENCE, "the standby has seen at what rate numbers go", || {
        sql::value::<i64>(&mut standby, "SELECT max_id FROM idgen.segment") > 100_000
    });
    drop(standby);

    // Lag: the old primary grants what the standby never hears of, and goes on after the promotion.
    cut_off(&second);
    all.extend(draw_at(&first, 15_000));
    promote(&second);
    assert_eq!(state(&second), "burns first");
    let new_side = Load::on(&second);
    all.extend(draw_at(&second, 5_000));
    all.extend(draw_at(&first, 1_000));
    assert_eq!(burns(&second), ["another timeline"]);
    // Fenced, well within the time that the burn is reckoned for.
    all.extend(old_side.end());
    all.extend(new_side.end());
    first.stop();

    // What the old side has granted by itself is undone, and it follows.
    rewind(&first, &second);
    first.run();
    follow(&second, &first);
    cut_off(&first);
    all.extend(draw_at(&second, 12_000));
    promote(&first);
    all.extend(draw_at(&first, 8_000));
    second.stop();
    assert_eq!(burns(&first), ["another timeline", "another timeline"]);
    assert_eq!(state(&first), "granting");
    all.assert_unique("numbers of both servers over two promotions", 140_000);
}

fn rewind(target: &Server, source: &Server) {
    // pg_rewind of 15 looks for the new timeline in the control file, where it is from the next checkpoint on.
    sql::run(&mut source.connect(), "CHECKPOINT");
    let mut command = target.as_account(program("pg_rewind"));
    command
        .arg("--target-pgdata")
        .arg(target.data_dir())
        .arg("--source-server")
        .arg(source.conninfo());
    run(&mut command);
    // The configuration came along from the source.
    target.set_socket_dir();
    target.set("primary_conninfo", &source.conninfo());
    // Of the cut; it would win.
    let auto = target.data_dir().join("postgresql.auto.conf");
    fs::write(auto, "").expect("empty postgresql.auto.conf");
    fs::write(target.data_dir().join("standby.signal"), "").expect("write standby.signal");
}

#[test]
fn recovered_to_a_point_in_time_issues_nothing_of_what_came_after_it() {
    let mut origin = primary();
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&origin, 3_000));
    let mut copy = Server::backup_of(&origin, false);
    all.extend(draw_at(&origin, 3_000));
    sql::run(&mut origin.connect(), "SELECT pg_create_restore_point('here')");
    all.extend(draw_at(&origin, 9_000));
    sql::run(&mut origin.connect(), "SELECT pg_switch_wal()");
    origin.stop();

    copy.recover_to("here", &origin);
    wait_until_promoted(&copy);
    all.extend(draw_at(&copy, 20_000));
    assert_eq!(burns(&copy), ["another timeline"]);
    all.assert_unique("numbers before and after the recovery", 35_000);
}

#[test]
fn a_base_backup_beside_its_original_refuses_until_it_is_adopted() {
    let mut origin = primary();
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&origin, 2_500));
    let mut copy = Server::backup_of(&origin, false);
    copy.run();
    assert_eq!(state(&copy), "copy");
    let mut client = copy.connect();
    sql::refusal(&mut client, "SELECT idgen_segment('t')", "IG031");
    // A transaction that makes its own tag is no way around it.
    sql::refusal(
        &mut client,
        "SELECT idgen_create_segment('own'), idgen_segment('own')",
        "IG031",
    );
    all.extend(draw_at(&origin, 4_000));
    assert_eq!(state(&origin), "granting");
    origin.stop();

    sql::run(
        &mut client,
        "SELECT idgen.adopt_authority('the original is gone')",
    );
    all.extend(draw(&mut client, 10_000));
    assert_eq!(burns(&copy), ["adopted"]);
    let reason = "SELECT payload->>'reason' FROM idgen.audit_event WHERE kind = 'authority.adopt'";
    assert_eq!(sql::value::<String>(&mut client, reason), "the original is gone");
    // At home from now on.
    copy.restart();
    assert_eq!(state(&copy), "granting");
    all.extend(draw_at(&copy, 1_000));
    assert_eq!(burns(&copy), ["adopted"]);
    all.assert_unique("numbers of the original and of the copy", 17_500);
}

#[test]
fn a_clone_by_template_is_another_space() {
    let server = Server::start();
    make(&server);
    let before = draw_at(&server, 700);
    let mut admin = server.connect_to("template1");
    eventually_true(PATIENCE, "nobody is in the database", || {
        let clone = "CREATE DATABASE clone TEMPLATE postgres";
        admin.batch_execute(clone).is_ok()
    });
    let mut clone = server.connect_to("clone");
    // With what it had granted ahead.
    let of_the_original: i64 = sql::value(&mut clone, "SELECT max(max_id) FROM idgen.segment");
    let drawn = draw(&mut clone, 5_000);
    assert!(
        drawn[0] > before[699],
        "above what the original had granted: {}",
        drawn[0]
    );
    let spaces = |client: &mut Client| -> (String, String) {
        let identity = "SELECT space_id::text, source_id::text FROM idgen.health";
        let row = client.query_one(identity, &[]).expect("read identity");
        (row.get(0), row.get(1))
    };
    let (of_clone, of_original) = (spaces(&mut clone), spaces(&mut server.connect()));
    assert!(of_clone.0 != of_original.0 && of_clone.1 != of_original.1);
    let foreign = format!(
        "SELECT count(*) FROM idgen.audit_event WHERE kind = 'segment.grant' AND lo > {of_the_original} AND space_id <> '{}'",
        of_clone.0
    );
    assert_eq!(
        sql::value::<i64>(&mut clone, &foreign),
        0,
        "no grant of the clone is of the original's space"
    );
    let mut all = UniquenessRecorder::new();
    all.extend(draw(&mut clone, 5_000));
    all.extend(drawn);
    all.assert_unique("numbers of the clone", 10_000);
}

/// The data directory as it was, put back into its place.
#[test]
fn a_snapshot_that_is_rolled_back_in_place_is_noticed_by_the_anchor() {
    let mut server = primary();
    let anchors = server.socket_dir().display().to_string();
    server.set("idgen.anchor_directory", &anchors);
    server.restart();
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&server, 3_000));
    server.stop();
    let snapshot = server.socket_dir().join("snapshot");
    run(Command::new("cp").arg("-a").arg(server.data_dir()).arg(&snapshot));

    server.run();
    all.extend(draw_at(&server, 2_000));
    // Neither a restart nor a crash is a rollback.
    server.restart();
    all.extend(draw_at(&server, 2_000));
    server.kill_everything();
    server.run();
    all.extend(draw_at(&server, 2_000));
    assert!(burns(&server).is_empty());
    server.stop();

    put_back(&snapshot, &server.data_dir());
    server.run();
    all.extend(draw_at(&server, 15_000));
    assert_eq!(burns(&server), ["rolled back behind the anchor"]);
    server.restart();
    all.extend(draw_at(&server, 1_000));
    assert_eq!(burns(&server).len(), 1, "once");
    all.assert_unique("numbers before and after the rollback", 25_000);
}

/// As a snapshot of the file system does: what is in the directory changes, not the directory.
pub fn put_back(snapshot: &Path, data: &Path) {
    for entry in fs::read_dir(data).expect("read the data directory") {
        let path = entry.expect("read an entry").path();
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.expect("empty the data directory");
    }
    run(Command::new("cp").arg("-a").arg(snapshot.join(".")).arg(data));
}

#[test]
fn an_anchor_inside_the_data_directory_stops_the_start_and_a_torn_one_burns() {
    let mut server = primary();
    let anchors = server.socket_dir().join("anchors");
    fs::create_dir(&anchors).expect("make a directory");
    run(Command::new("chmod").arg("777").arg(&anchors));
    server.set("idgen.anchor_directory", &anchors.display().to_string());
    server.restart();
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&server, 1_000));
    server.stop();
    // One that is being written may be left over.
    let files: Vec<_> = fs::read_dir(&anchors)
        .expect("list anchors")
        .map(|entry| entry.expect("read an entry").path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "new"))
        .collect();
    assert_eq!(files.len(), 1, "one database, one anchor: {files:?}");
    let text = fs::read_to_string(&files[0]).expect("read the anchor");
    fs::write(&files[0], text.replace("segments1", "segments2")).expect("change the anchor");
    server.run();
    all.extend(draw_at(&server, 5_000));
    assert_eq!(burns(&server), ["anchor cannot be read"]);
    all.assert_unique("numbers before and after", 6_000);

    let inside = server.data_dir().display().to_string();
    server.set("idgen.anchor_directory", &inside);
    server.stop();
    let mut start = server.as_account(program("postgres"));
    let output = start
        .arg("-D")
        .arg(server.data_dir())
        .output()
        .expect("run postgres");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("inside the data directory"), "{said}");
}

#[test]
fn a_logical_replica_becomes_the_master_above_what_was_issued() {
    let logical = || ServerOptions {
        settings: vec!["wal_level = logical".into()],
        own_identity: true,
        ..Default::default()
    };
    let (old, new) = (Server::with(logical()), Server::with(logical()));
    make(&old);
    let mut all = UniquenessRecorder::new();
    all.extend(draw_at(&old, 1_000));
    sql::run(
        &mut old.connect(),
        "CREATE PUBLICATION tags FOR TABLE idgen.segment, idgen.segment_grant",
    );
    let mut replica = new.connect();
    sql::run(
        &mut replica,
        &format!(
            "CREATE SUBSCRIPTION tags CONNECTION '{}' PUBLICATION tags",
            old.conninfo()
        ),
    );
    all.extend(draw_at(&old, 6_000));
    let arrived: i64 = sql::value(&mut old.connect(), "SELECT max_id FROM idgen.segment");
    eventually_true(PATIENCE, "the row has arrived", || {
        let max_id = "SELECT coalesce(max(max_id), 0) FROM idgen.segment";
        sql::value::<i64>(&mut replica, max_id) >= arrived
    });
    let marked = "SELECT needs_burn AND mark IS NULL FROM idgen.segment";
    assert!(sql::value::<bool>(&mut replica, marked));
    sql::run(&mut replica, "ALTER SUBSCRIPTION tags DISABLE");
    all.extend(draw_at(&old, 6_000));

    let source = "SELECT source_id::text FROM idgen.health";
    let before: String = sql::value(&mut replica, source);
    sql::run(&mut replica, "SELECT idgen.promote('the old master is fenced')");
    all.extend(draw(&mut replica, 10_000));
    assert_ne!(sql::value::<String>(&mut replica, source), before);
    assert_eq!(burns(&new), ["row came from elsewhere"]);
    let events = "SELECT count(*) FROM idgen.audit_event WHERE kind = 'authority.promote'";
    assert_eq!(sql::value::<i64>(&mut replica, events), 1);
    all.assert_unique("numbers of the old and the new master", 23_000);
}
