//! The archive of a site without Kafka: from the tables into a folder.

use std::fs;
use std::path::{Path, PathBuf};

use postgres::Client;

use super::archive_scene::{idgenctl_of, in_folder, segment_events, table_events, wait_all_published};
use crate::kit::daemon::{Daemon, DaemonOptions};
use crate::kit::s3::{Meets, S3, rows_in};
use crate::kit::{PATIENCE, Scratch, Server, SmallDisk, eventually_true};

struct Scene {
    server: Server,
    client: Client,
    scratch: Scratch,
}

impl Scene {
    fn new() -> Scene {
        let server = Server::start();
        let client = server.connect();
        Scene {
            server,
            client,
            scratch: Scratch::new("archive"),
        }
    }

    fn folder(&self) -> PathBuf {
        let folder = self.scratch.join("folder");
        if !folder.exists() {
            fs::create_dir(&folder).expect("make the folder");
        }
        folder
    }

    /// Events of `count` tags: one that it was made, and some of grants.
    fn draw(&mut self, prefix: &str, count: i32) {
        for number in 0..count {
            let tag = format!("{prefix} {number}");
            self.client
                .execute(
                    "SELECT idgen_create_segment($1, step => 10, max_step => 10)",
                    &[&tag],
                )
                .expect("make a tag");
            self.client
                .execute("SELECT idgen_segment($1) FROM generate_series(1, 25)", &[&tag])
                .expect("draw ids");
        }
    }

    fn today(&mut self) -> String {
        let row = self
            .client
            .query_one("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date::text", &[]);
        row.expect("ask for the day").get(0)
    }

    fn gate(&mut self, day: &str) -> Option<String> {
        let row = self
            .client
            .query_one("SELECT idgen.archive_gate($1::text::date)", &[&day]);
        row.expect("ask the gate").get(0)
    }
}

fn files_of(dir: &Path, of: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("read a folder") {
        let path = entry.expect("read a folder").path();
        if path.is_dir() {
            found.extend(files_of(&path, of));
        } else if path.to_string_lossy().contains(of) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A day that no midnight comes into.
fn verify(scene: &mut Scene, options: &DaemonOptions, daemon: &Daemon) -> (Option<i32>, String, String) {
    let day = scene.today();
    let said = idgenctl_of(options, daemon, &["archive", "verify", &day]);
    (said.code, said.stdout + &said.stderr, day)
}

#[test]
fn events_of_the_table_are_archived_once_whatever_kills_the_daemon_and_pyarrow_reads_them() {
    let mut scene = Scene::new();
    let folder = scene.folder();
    let options = in_folder(&scene.server, &folder);
    let mut daemon = options.start();
    for round in 0..3 {
        scene.draw(&format!("round {round}"), 10);
        // At any moment of a commit: the first is killed early, the last ones while they mark.
        let commits = files_of(&folder, "_commits/table-").len();
        if round > 0 {
            eventually_true(PATIENCE, "one more commit", || {
                files_of(&folder, "_commits/table-").len() > commits
            });
        }
        daemon.kill();
        daemon = options.start();
    }
    wait_all_published(&mut scene.client);
    let rows = rows_in(&folder);
    let archived = segment_events(&rows);
    assert_eq!(
        archived
            .keys()
            .cloned()
            .collect::<std::collections::BTreeSet<_>>(),
        table_events(&mut scene.client)
    );
    assert!(
        archived.values().all(|times| *times == 1),
        "an event is in two commits"
    );
    // The daemons' own leases.
    eventually_true(PATIENCE, "events of leases are archived", || {
        rows_in(&folder)
            .iter()
            .any(|row| row.kind == "snowflake.lease.granted")
    });
    let (code, said, day) = verify(&mut scene, &options, &daemon);
    // The day before may have had its last events.
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("VERIFIED"), "{said}");
    assert_eq!(scene.gate(&day), None);
    let cat = idgenctl_of(&options, &daemon, &["archive", "cat", &day, "--tag", "round 0 3"]);
    assert!(cat.stdout.lines().count() >= 2, "{}{}", cat.stdout, cat.stderr);
    assert!(
        cat.stdout
            .lines()
            .all(|line| line.contains("\"tag\":\"round 0 3\"")),
        "{}",
        cat.stdout
    );
    let listed = idgenctl_of(&options, &daemon, &["archive", "ls", "--files"]);
    let on_disk = files_of(&folder, ".parquet").len();
    assert_eq!(
        (listed.code, listed.stdout.lines().count()),
        (Some(0), on_disk),
        "{}",
        listed.stderr
    );
}

/// arrow-rs#6290 and the promise that rests on it: whatever byte of whatever file is changed, the check says so, names the
/// file, and the day does not leave the table.
#[test]
fn a48_one_byte_flipped_in_one_file_is_found_named_and_keeps_the_day_in_the_table() {
    let mut scene = Scene::new();
    let folder = scene.folder();
    let options = in_folder(&scene.server, &folder);
    let daemon = options.start();
    scene.draw("a", 5);
    wait_all_published(&mut scene.client);
    let (code, said, day) = verify(&mut scene, &options, &daemon);
    assert_eq!((code, scene.gate(&day)), (Some(0), None), "{said}");

    let files = files_of(&folder, "service=postgres");
    let file = files
        .iter()
        .find(|path| path.to_string_lossy().contains("table-"))
        .expect("a file");
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let whole = fs::read(file).expect("read the file");
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        fs::write(file, &flipped).expect("flip a byte");
        let (code, said, day) = verify(&mut scene, &options, &daemon);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("MISMATCH") && said.contains(&name), "{said}");
        let why = scene.gate(&day).expect("a reason");
        assert!(
            why.contains("MISMATCH") && why.contains(&name) && why.contains("is not what was written"),
            "{why}"
        );
    }
    fs::remove_file(file).expect("remove the file");
    let (code, said, day) = verify(&mut scene, &options, &daemon);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        scene
            .gate(&day)
            .is_some_and(|why| why.contains(&name) && why.contains("is missing"))
    );
    fs::write(file, &whole).expect("put it back");
    assert_eq!(verify(&mut scene, &options, &daemon).0, Some(0));
    assert_eq!(scene.gate(&day), None);

    // A commit that was changed, and one that is gone.
    scene.draw("b", 2);
    wait_all_published(&mut scene.client);
    assert!(
        scene
            .gate(&day)
            .is_some_and(|why| why.contains("events in the table now"))
    );
    assert_eq!(verify(&mut scene, &options, &daemon).0, Some(0));
    let commit = files_of(&folder, "_commits/table-").remove(0);
    let bytes = fs::read(&commit).expect("read the commit");
    let changed = String::from_utf8_lossy(&bytes).replacen("\"rows\": ", "\"rows\":  ", 1);
    fs::write(&commit, changed).expect("change the commit");
    let (code, said, _) = verify(&mut scene, &options, &daemon);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("is not the one that the next commit was made behind"),
        "{said}"
    );
    fs::remove_file(&commit).expect("remove the commit");
    let (code, said, _) = verify(&mut scene, &options, &daemon);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("commit 1 of chain") && said.contains("is missing"),
        "{said}"
    );
}

/// duckdb#14990 and its like happen where a disk is full or a folder is gone: that is named, nothing is lost, and nothing half.
#[test]
fn a46_a_full_disk_and_a_folder_that_is_gone_are_named_and_nothing_is_lost() {
    let mut scene = Scene::new();
    let folder = scene.scratch.join("small");
    let disk = SmallDisk::at(&folder, "2m");
    let options = in_folder(&scene.server, &folder);
    let filler = disk.fill();
    let daemon = options.start();
    scene.draw("full", 5);
    daemon.wait_log(&["archive", "No space left on device", "make room"]);
    assert!(files_of(&folder, ".parquet").is_empty() && files_of(&folder, "_commits").is_empty());
    fs::remove_file(filler).expect("make room");
    wait_all_published(&mut scene.client);
    let whole = segment_events(&rows_in(&folder));
    assert_eq!(whole.len(), table_events(&mut scene.client).len());

    let gone = scene.scratch.join("gone");
    drop(disk);
    fs::rename(&folder, &gone).expect("take the folder away");
    scene.draw("gone", 5);
    daemon.wait_log(&["archive", "is not there", "must exist"]);
    fs::rename(&gone, &folder).expect("bring it back");
    wait_all_published(&mut scene.client);
    // What lay on the disk is gone with it. Of what came since nothing may be missing, and nothing twice.
    let archived = segment_events(&rows_in(&folder));
    let events = scene.client.query(
        "SELECT source_id::text, event_id FROM idgen.audit_event WHERE tag LIKE 'gone %'",
        &[],
    );
    let events = events.expect("read the outbox");
    assert!(events.len() >= 10);
    for event in &events {
        let key = (event.get(0), event.get(1));
        assert_eq!(archived.get(&key), Some(&1), "{key:?}");
    }
}

/// Keys, rights and clocks: each is named, with what to do, and over when its cause is.
#[test]
fn what_s3_refuses_is_named_with_what_to_do_and_nothing_is_lost() {
    let s3 = std::thread::spawn(S3::start);
    let mut scene = Scene::new();
    let s3 = s3.join().expect("start the S3 server");
    let mut options = DaemonOptions::new(&scene.server);
    options.env = s3.env();
    let mut daemon = options.start();
    for (n, (reason, code, status, words)) in [
        ("key_denied", "KMS.DisabledException", 400, "kms:GenerateDataKey"),
        ("denied", "AccessDenied", 403, "idgend needs GetObject"),
        ("clock", "RequestTimeTooSkewed", 403, "set this machine's clock"),
    ]
    .into_iter()
    .enumerate()
    {
        s3.always("PUT", ".parquet", Meets::Answer(status, code));
        scene.draw(&format!("refused {n}"), 2);
        daemon.wait_log(&["archive:", code, words]);
        let archived = segment_events(&s3.rows());
        let waits: Vec<_> = table_events(&mut scene.client)
            .into_iter()
            .filter(|event| !archived.contains_key(event))
            .collect();
        assert!(!waits.is_empty(), "{code}");
        s3.heal();
        wait_all_published(&mut scene.client);
        let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
        let line = format!("idgen_archive_failures_total{{reason=\"{reason}\"}}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let archived = segment_events(&s3.rows());
    assert!(archived.values().all(|times| *times == 1));
    assert!(table_events(&mut scene.client).iter().eq(archived.keys()));
}

/// The check compares with the table, and what is missing comes from there.
#[test]
fn what_the_archive_has_not_is_named_and_taken_from_the_table() {
    let mut scene = Scene::new();
    let folder = scene.folder();
    let options = in_folder(&scene.server, &folder);
    scene.draw("lost", 3);
    // As if the topic had lost them: published, and in no commit.
    let lost = scene
        .client
        .execute("UPDATE idgen.audit_event SET published = true", &[])
        .expect("mark");
    let daemon = options.start();
    scene.draw("kept", 3);
    wait_all_published(&mut scene.client);
    let (code, said, day) = verify(&mut scene, &options, &daemon);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("INCOMPLETE") && said.contains(&format!("{lost} of ")),
        "{said}"
    );
    assert!(said.contains("not in the archive: event_id ["), "{said}");
    assert!(scene.gate(&day).is_some_and(|why| why.contains("INCOMPLETE")));
    let tried = idgenctl_of(&options, &daemon, &["archive", "backfill", &day, "--dry-run"]);
    assert!(
        tried.stdout.contains(&format!("{lost} events of {day} would be")),
        "{}{}",
        tried.stdout,
        tried.stderr
    );
    let done = idgenctl_of(&options, &daemon, &["archive", "backfill", &day, "--yes"]);
    assert!(
        done.stdout.contains(&format!("{lost} events archived")),
        "{}{}",
        done.stdout,
        done.stderr
    );
    let (code, said, _) = verify(&mut scene, &options, &daemon);
    assert_eq!((code, scene.gate(&day)), (Some(0), None), "{said}");
    let events = segment_events(&rows_in(&folder));
    assert!(events.values().all(|times| *times == 1));
}
