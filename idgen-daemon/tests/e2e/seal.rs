//! Sealed ids on a real server: the key file, its rights, its rotation, and that nothing of it gets out.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use postgres::Client;

use crate::kit::process::ServerAccount;
use crate::kit::{Server, seal, sql};

/// Keys as people make them: nothing that a log could hold by chance.
const OLD: &str = "5f1d3c2b9a8e7f60415263748596a7b8c9daebfc0d1e2f30415263748596a7b9";
const NEW: &str = "c0ffee254729296a45a3885639ac7e10";
const SEAL: &str = "SELECT idgen_seal(42, 'ord')";

fn open(text: &str) -> String {
    format!("SELECT idgen_open('{text}', 'ord')")
}

fn count(client: &mut Client) -> i32 {
    sql::value(client, "SELECT idgen.seal_key_count()")
}

/// In the log, in whatever case; half a key is too much already.
fn assert_no_key(server: &Server, also: &[String]) {
    let log = server.log().to_lowercase();
    assert!(
        log.contains("idgen_open"),
        "the log has the statements, so it can have keys"
    );
    for key in [OLD, NEW, "beef"] {
        let half = &key[..key.len().min(16)];
        assert!(!log.contains(half), "the log holds a key");
        assert!(
            also.iter().all(|text| !text.to_lowercase().contains(half)),
            "an error holds a key: {also:?}"
        );
    }
}

#[test]
fn keys_rotate_with_reloads_and_a_dropped_key_is_gone() {
    let server = seal::server();
    let (mut one, mut other) = (server.connect(), server.connect());
    seal::write(&server, format!("# the first\n{OLD}\n"), 0o600);
    let old: String = sql::value(&mut one, SEAL);
    assert_eq!(
        old,
        sql::value::<String>(&mut other, SEAL),
        "equal in every session"
    );
    assert_eq!(sql::value::<i64>(&mut other, &open(&old)), 42);
    assert_eq!(count(&mut one), 1);

    // On top, so that it seals from the reload on, and not before.
    seal::write(&server, format!("{NEW}\n{OLD}\n"), 0o400);
    assert_eq!(sql::value::<String>(&mut one, SEAL), old);
    seal::reload(&mut [&mut one, &mut other]);
    let new: String = sql::value(&mut one, SEAL);
    assert_ne!(new, old);
    for client in [&mut one, &mut other] {
        assert_eq!(count(client), 2);
        for text in [&old, &new] {
            assert_eq!(sql::value::<i64>(client, &open(text)), 42);
        }
    }

    seal::write(&server, format!("{NEW}\n"), 0o600);
    seal::reload(&mut [&mut one, &mut other]);
    for client in [&mut one, &mut other, &mut server.connect()] {
        assert_eq!(count(client), 1);
        assert_eq!(sql::value::<i64>(client, &open(&new)), 42);
        sql::refusal(client, &open(&old), "IG022");
    }
    assert_no_key(&server, &[]);
}

/// Never the keys of before: they may have been taken out because somebody knows them.
#[test]
fn a_file_that_is_bad_after_a_reload_stops_sealing_until_it_is_mended() {
    let server = seal::server();
    let mut client = server.connect();
    seal::write(&server, OLD, 0o600);
    let text: String = sql::value(&mut client, SEAL);
    fs::remove_file(seal::file(&server)).expect("remove the key file");
    assert_eq!(
        sql::value::<String>(&mut client, SEAL),
        text,
        "it is not looked at before a reload"
    );
    seal::reload(&mut [&mut client]);
    for statement in [SEAL, &open(&text), "SELECT idgen.seal_key_count()"] {
        let refused = sql::refusal(&mut client, statement, "IG021");
        assert!(
            refused
                .detail()
                .is_some_and(|detail| detail.contains("cannot be read")),
            "{refused:?}"
        );
    }
    // Mended: at once, without another reload.
    seal::write(&server, OLD, 0o600);
    assert_eq!(sql::value::<String>(&mut client, SEAL), text);
    // Out of the configuration: another error, and again none of the old keys.
    sql::run(&mut client, "ALTER SYSTEM SET idgen.seal_key_file = ''");
    seal::reload(&mut [&mut client]);
    sql::refusal(&mut client, SEAL, "IG020");
    sql::refusal(&mut client, &open(&text), "IG020");
    assert_eq!(count(&mut client), 0);
}

#[test]
fn a_file_that_others_could_read_or_change_is_refused() {
    let server = seal::server();
    let mut client = server.connect();
    for mode in [0o640, 0o604, 0o660, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777] {
        seal::write(&server, OLD, mode);
        let refused = sql::refusal(&mut client, SEAL, "IG021");
        assert!(
            refused.detail().is_some_and(|detail| detail.contains("0600")),
            "{mode:o}: {refused:?}"
        );
    }
    for mode in [0o600, 0o400, 0o700] {
        seal::write(&server, OLD, mode);
        sql::value::<String>(&mut server.connect(), SEAL);
    }
    if rustix::process::geteuid().is_root() {
        owners(&server, &mut client);
    } else {
        eprintln!("not root: files of other owners were not tried");
    }
}

/// Who may own the file; only root can make such files.
fn owners(server: &Server, client: &mut Client) {
    let file = seal::file(server);
    seal::write(server, OLD, 0o600);
    let group = fs::metadata(&file).expect("stat the key file").gid();
    // Nobody's; the server can read it through its group, and must not.
    chown(&file, Some(65_534), Some(group)).expect("chown");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).expect("chmod");
    let refused = sql::refusal(client, SEAL, "IG021");
    assert!(
        refused
            .detail()
            .is_some_and(|detail| detail.contains("nor to root")),
        "{refused:?}"
    );
    chown(&file, Some(0), Some(group)).expect("chown");
    for (mode, fine) in [
        (0o640, true),
        (0o440, true),
        (0o660, false),
        (0o650, false),
        (0o644, false),
    ] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("chmod");
        let mut fresh = server.connect();
        if fine {
            sql::value::<String>(&mut fresh, SEAL);
        } else {
            sql::refusal(&mut fresh, SEAL, "IG021");
        }
    }
}

#[test]
fn a_file_that_is_no_key_file_is_refused_by_line_and_never_shown() {
    let server = seal::server();
    let mut client = server.connect();
    let mut seen = Vec::new();
    for (content, reason) in [
        (String::new(), "no key"),
        ("# nothing\n\n".to_owned(), "no key"),
        (format!("{OLD}\n\nbeefbeefbeefbeef\n"), "line 3 "),
        (format!("{OLD}beef"), "line 1 "),
        (format!("{NEW} {OLD}"), "line 1 "),
        (format!("key = {NEW}"), "line 1 "),
        (format!("{NEW}\n").repeat(17), "more than 16"),
        (format!("{NEW}\n{}", "#\n".repeat(40_000)), "larger than 65536"),
    ] {
        seal::write(&server, content, 0o600);
        for statement in [SEAL, &open("ord_0000000000000000000000")] {
            let refused = sql::refusal(&mut client, statement, "IG021");
            assert!(
                refused.detail().is_some_and(|detail| detail.contains(reason)),
                "{reason}: {refused:?}"
            );
            seen.push(format!("{refused:?}"));
        }
    }
    // The most that there may be, and the largest.
    seal::write(&server, format!("{NEW}\n").repeat(16), 0o600);
    assert_eq!(count(&mut client), 16);
    let filler = "#".repeat(64 * 1024 - NEW.len() - 1);
    seal::write(&server, format!("{NEW}\n{filler}"), 0o600);
    assert_eq!(count(&mut server.connect()), 1);
    assert_no_key(&server, &seen);
}

/// A pipe without a writer would block whoever opens it.
#[test]
fn what_is_no_regular_file_is_refused_and_blocks_nobody() {
    let server = seal::server();
    let mut client = server.connect();
    let path = seal::file(&server);
    let refused_as = |client: &mut Client, reason: &str| {
        let refused = sql::refusal(client, SEAL, "IG021");
        assert!(
            refused.detail().is_some_and(|detail| detail.contains(reason)),
            "{refused:?}"
        );
        let all = format!("{refused:?}");
        assert!(!all.contains("seal.keys"), "the path is not everybody's: {all}");
    };
    refused_as(&mut client, "cannot be read");
    fs::create_dir(&path).expect("make a directory");
    ServerAccount::get().own(&path);
    refused_as(&mut client, "no regular file");
    fs::remove_dir(&path).expect("remove the directory");
    let status = ServerAccount::get()
        .command("mkfifo", server.socket_dir())
        .arg("-m")
        .arg("600")
        .arg(&path)
        .status();
    assert!(status.expect("run mkfifo").success());
    sql::run(&mut client, "SET statement_timeout = '10s'");
    refused_as(&mut client, "no regular file");
}

/// Every place of a text, through SQL; the core's tests try every byte.
#[test]
fn a_sealed_id_with_one_changed_character_is_refused() {
    let server = seal::server();
    let mut client = server.connect();
    seal::write(&server, format!("{OLD}\n{NEW}"), 0o600);
    let text: String = sql::value(&mut client, SEAL);
    for at in 0..text.len() {
        for other in ['0', '1', 'z', 'Z', 'a', '_', '-', ' '] {
            let mut changed: Vec<char> = text.chars().collect();
            if changed[at] == other {
                continue;
            }
            changed[at] = other;
            let changed: String = changed.into_iter().collect();
            let error = client
                .query(&open(&changed), &[])
                .expect_err("a changed text is refused");
            let code = error.code().map_or("none", |code| code.code());
            assert!(["IG022", "22P02"].contains(&code), "{changed}: {code}");
        }
    }
    sql::refusal(
        &mut client,
        &format!("SELECT idgen_open('{text}', 'inv')"),
        "IG022",
    );
    let again: i64 = sql::value(&mut client, &open(&text));
    assert_eq!(again, 42, "the unchanged one opens");
    assert_no_key(&server, &[]);
}

#[test]
fn sealing_works_in_parallel_workers_and_without_preload() {
    let mut server = seal::server();
    seal::write(&server, OLD, 0o600);
    server.set_preload(false);
    server.restart();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "CREATE TABLE many AS SELECT generate_series(1, 10000)::bigint AS id;
         ALTER TABLE many SET (parallel_workers = 2);
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;",
    );
    let count = "SELECT count(*) FROM many WHERE idgen_open(idgen_seal(id, 'ord'), 'ord') = id";
    let plan = sql::column::<String>(&mut client, &format!("EXPLAIN {count}")).join("\n");
    assert!(plan.contains("Workers Planned: 2"), "{plan}");
    assert_eq!(sql::value::<i64>(&mut client, count), 10_000);
}
