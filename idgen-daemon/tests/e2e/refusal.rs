//! Wrong input and wrong surroundings: a clear error with its own SQLSTATE or exit code, never a guess.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::kit::daemon::{Answer, DaemonOptions, IDGEND, answer};
use crate::kit::{Daemon, Scratch, Server, ServerOptions, sql};

const PRELOAD_LINE: &str = "shared_preload_libraries = 'pg_idgen'";

/// No id is minted under a cell that the data directory would have forgotten after a restart.
#[test]
fn no_lease_is_opened_while_the_cell_cannot_be_written_down() {
    let server = Server::start();
    let mut client = server.connect();
    let in_the_way = server.data_dir().join("pg_idgen_cell.new");
    fs::create_dir(&in_the_way).expect("put a directory where the file is to be written");
    let install = "SELECT idgen.install_lease(1, boot_id, gen_random_uuid(), 'classic', 'worker', 1, 0, 1,
                          wall_ms, wall_ms + 60000, boottime_ms + 60000, wall_ms, boottime_ms)
                     FROM idgen.server_clock()";
    let refused = sql::refusal(&mut client, install, "58030");
    assert!(
        refused.hint().is_some_and(|hint| hint.contains("disk space")),
        "{refused:?}"
    );
    sql::run(&mut client, "SET idgen.lease_wait_ms = 0");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
    fs::remove_dir(&in_the_way).expect("take the directory away");
    assert!(sql::value::<bool>(&mut client, install));
    assert!(sql::value::<i64>(&mut client, "SELECT idgen_snowflake()") > 0);
}

#[test]
fn without_preload_the_library_loads_quietly_and_says_which_line_is_missing() {
    let server = Server::with(ServerOptions {
        preload: false,
        ..Default::default()
    });
    let mut client = server.connect();
    for call in [
        "SELECT idgen_snowflake()",
        "SELECT idgen_segment('t')",
        "SELECT * FROM idgen.server_clock()",
    ] {
        let refused = sql::refusal(&mut client, call, "IG011");
        let text = format!(
            "{} {:?} {:?}",
            refused.message(),
            refused.detail(),
            refused.hint()
        );
        assert!(
            text.contains(PRELOAD_LINE),
            "{call}: the exact line to add: {text}"
        );
    }
    let version: i32 = sql::value(&mut client, "SELECT (idgen_parse(idgen_uuidv7())).version");
    assert_eq!(version, 7);
    let year: i32 = sql::value(
        &mut client,
        "SELECT extract(year FROM idgen_timestamp(1::bigint << 22))::int",
    );
    assert!((2019..=2020).contains(&year), "the classic epoch, not {year}");
    let state: String = sql::value(&mut client, "SELECT state FROM idgen.health");
    assert_eq!(state, "not preloaded");
    let slots: i64 = sql::value(&mut client, "SELECT count(*) FROM idgen.slots");
    assert_eq!(slots, 0);
    let noise: Vec<String> = server
        .log()
        .lines()
        .filter(|line| {
            ["WARNING:", "FATAL:", "PANIC:"]
                .iter()
                .any(|level| line.contains(level))
        })
        .map(str::to_owned)
        .collect();
    assert!(noise.is_empty(), "{noise:?}");
}

#[test]
fn a_standby_refuses_to_mint_until_it_is_promoted() {
    let mut server = Server::start();
    sql::run(&mut server.connect(), "SELECT idgen_create_segment('t')");
    let first: i64 = sql::value(&mut server.connect(), "SELECT idgen_segment('t')");
    server.stop();
    fs::write(server.data_dir().join("standby.signal"), "").expect("write standby.signal");
    server.run();
    let mut client = server.connect();
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG012");
    sql::refusal(&mut client, "SELECT idgen_segment('t')", "IG012");
    let version: i32 = sql::value(&mut client, "SELECT (idgen_parse(idgen_uuidv7())).version");
    assert_eq!(version, 7);
    assert_eq!(
        sql::value::<String>(&mut client, "SELECT state FROM idgen.health"),
        "in recovery"
    );
    assert!(sql::value::<bool>(&mut client, "SELECT pg_promote()"));
    let next: i64 = sql::value(&mut client, "SELECT idgen_segment('t')");
    assert!(next > first, "{next} after {first}");
}

// --- the daemon ---

fn idgend(args: &[&str], env: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(IDGEND);
    command.args(args).envs(env.iter().copied());
    answer(command)
}

#[test]
fn a_malformed_config_is_refused_with_exit_code_2_and_the_place() {
    let scratch = Scratch::new("config");
    let file = scratch.join("idgend.toml");
    let path = file.to_str().expect("utf-8");
    let good = "[postgres]\nurl = \"host=/tmp user=idgend dbname=postgres\"\n";
    let cases = [
        ("[postgres\n", "1"),
        ("[postgres]\nurl = 5\n", "url"),
        ("[postgres]\nurl = \"host=/tmp\"\nurll = \"x\"\n", "urll"),
        ("[postgres]\nurl = \"nonsense without a key\"\n", "url"),
        ("[workers]\ncount = 2\n", "url"),
        ("{good}[workers]\ncount = 0\n", "count"),
        ("{good}[workers]\ncount = 65\n", "count"),
        ("{good}[workers]\ncount = \"two\"\n", "count"),
        ("{good}[workers]\nttl_ms = 1000\nwindow_ms = 2000\n", "window_ms"),
        ("{good}[store]\nkind = \"redis\"\n", "kind"),
        ("{good}[store]\nkind = \"etcd\"\n", "endpoints"),
        ("{good}[http]\nlisten = \"everywhere\"\n", "listen"),
        ("{good}[log]\nlevel = \"loud\"\n", "level"),
        ("{good}[surprise]\n", "surprise"),
    ];
    for (config, place) in cases {
        let config = config.replace("{good}", good);
        fs::write(&file, &config).expect("write config");
        for args in [&["check-config", "--config", path][..], &["--config", path][..]] {
            let refused = idgend(args, &[]);
            assert_eq!(
                refused.code,
                Some(2),
                "{args:?} on:\n{config}\n{}",
                refused.stderr
            );
            assert!(
                refused.stderr.contains(path),
                "the file is named: {}",
                refused.stderr
            );
            assert!(
                refused.stderr.contains(place),
                "`{place}` is named for:\n{config}\n{}",
                refused.stderr
            );
            assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
        }
    }
    fs::write(&file, good).expect("write config");
    let accepted = idgend(&["check-config", "--config", path], &[]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
}

#[test]
fn the_environment_overrides_the_config_and_is_checked_as_strictly() {
    let scratch = Scratch::new("config");
    let file = scratch.join("idgend.toml");
    let path = file.to_str().expect("utf-8");
    fs::write(
        &file,
        "[postgres]\nurl = \"host=/tmp user=idgend dbname=postgres\"\n",
    )
    .expect("write config");
    let check = &["check-config", "--config", path];
    assert_eq!(idgend(check, &[("IDGEND_WORKERS__COUNT", "4")]).code, Some(0));
    for (name, value) in [
        ("IDGEND_WORKERS__COUNT", "0"),
        ("IDGEND_STORE__KIND", "redis"),
        ("IDGEND_NO_SUCH_KEY", "1"),
        ("IDGEND_WORKERS__NO_SUCH_KEY", "1"),
    ] {
        let refused = idgend(check, &[(name, value)]);
        assert_eq!(refused.code, Some(2), "{name}={value}: {}", refused.stderr);
    }
}

#[test]
fn wrong_usage_ends_with_exit_code_2() {
    assert_eq!(idgend(&["--no-such-flag"], &[]).code, Some(2));
    let missing = idgend(&["--config", "/nowhere/idgend.toml"], &[]);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("/nowhere/idgend.toml"),
        "{}",
        missing.stderr
    );
}

/// The daemon must end by itself with code 3: trying again cannot help.
fn refused_for_good(mut daemon: Daemon, why: &str) {
    let status = daemon.wait_exit();
    assert_eq!(status.code(), Some(3), "{status}\n{}", daemon.log());
    assert!(
        daemon.log().contains(why),
        "the log says `{why}`:\n{}",
        daemon.log()
    );
}

#[test]
fn an_extension_with_another_contract_is_refused_for_good() {
    let server = Server::start();
    sql::run(
        &mut server.connect(),
        "CREATE OR REPLACE FUNCTION idgen.server_clock(
             OUT boot_id uuid, OUT boottime_ms bigint, OUT wall_ms bigint, OUT in_recovery boolean,
             OUT cell_id uuid, OUT extension_version text, OUT contract_version integer)
         RETURNS record LANGUAGE sql VOLATILE
         AS $$ SELECT gen_random_uuid(), 1000::bigint, 2000::bigint, false, NULL::uuid, '9.9.9', 99 $$",
    );
    refused_for_good(DaemonOptions::new(&server).launch(), "99");
}

#[test]
fn a_server_of_another_contract_refuses_the_daemon_too() {
    let server = Server::start();
    sql::refusal(
        &mut server.connect(),
        "SELECT idgen.install_lease(99, gen_random_uuid(), gen_random_uuid(), 'classic', 'worker', 1, 0, 1, 1, 2, 3, 1, 1)",
        "IG106",
    );
}

#[test]
fn a_database_without_the_extension_is_refused_for_good() {
    let server = Server::start();
    sql::run(&mut server.connect(), "CREATE DATABASE bare");
    let options = DaemonOptions {
        postgres_url: server.daemon_url_to("bare"),
        ..DaemonOptions::new(&server)
    };
    refused_for_good(options.launch(), "CREATE EXTENSION pg_idgen");
}

#[test]
fn a_server_without_preload_is_refused_for_good() {
    let server = Server::with(ServerOptions {
        preload: false,
        ..Default::default()
    });
    refused_for_good(DaemonOptions::new(&server).launch(), "shared_preload_libraries");
}

#[test]
fn a_server_that_belongs_to_another_cell_is_refused_for_good() {
    let server = Server::start();
    let elsewhere = Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    });
    let options = DaemonOptions::new(&server);
    options.start().terminate();
    DaemonOptions::new(&elsewhere).start().terminate();
    refused_for_good(options.store(crate::kit::Store::on(&elsewhere)).launch(), "cell");
}

// --- the build ---

#[test]
fn the_makefile_refuses_another_postgres_major() {
    let scratch = Scratch::new("make");
    let fake = scratch.join("pg_config");
    fs::write(&fake, "#!/bin/sh\necho 'PostgreSQL 14.9'\n").expect("write the fake");
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("make it executable");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    for target in ["install", "installcheck"] {
        let mut make = Command::new("make");
        make.arg("-C")
            .arg(root)
            .arg(target)
            .arg(format!("PG_CONFIG={}", fake.display()));
        // Nothing of an outer make may reach the inner one.
        make.env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .env("DESTDIR", scratch.path());
        let refused = answer(make);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("PostgreSQL 14.9"), "{}", refused.stderr);
        assert!(refused.stderr.contains("15, 16, 17 and 18"), "{}", refused.stderr);
    }
}
