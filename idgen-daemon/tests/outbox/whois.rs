//! `idgenctl whois` of ids whose events have left Postgres: the archive says where they come from.

use std::fs;
use std::path::Path;

use postgres::Client;
use serde_json::Value;

use super::archive_scene::{idgenctl_of, in_folder, wait_all_published};
use crate::kit::daemon::{Daemon, DaemonOptions};
use crate::kit::{PATIENCE, Scratch, Server, eventually, eventually_true, sql};

const DAYS: [&str; 3] = ["2020-02-28", "2020-02-29", "2020-03-01"];

/// Three old days: on each ten grants of ten ids to each of two tags, the days one behind the other on the axis.
fn old_days(client: &mut Client) {
    sql::run(
        client,
        "DO $$
         DECLARE d date; n integer := 0;
         BEGIN
             FOR d IN SELECT generate_series('2020-02-28'::date, '2020-03-01', '1 day') LOOP
                 EXECUTE format('CREATE TABLE idgen.%I PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
                                to_char(d, '\"audit_event_\"YYYYMMDD'), d || ' 00:00:00+00', d + 1 || ' 00:00:00+00');
                 INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq, lo, hi)
                 SELECT s.source_id, (d || ' 12:00:00+00')::timestamptz, 'segment.grant', s.space_id, t.tag, n + g,
                        10 * (n + g) - 9, 10 * (n + g)
                   FROM idgen.space s, unnest(ARRAY['a', 'b']) t(tag), generate_series(1, 10) g;
                 n := n + 10;
             END LOOP;
         END $$",
    );
}

fn whois(options: &DaemonOptions, daemon: &Daemon, args: &[&str]) -> (Option<i32>, Value) {
    let said = idgenctl_of(options, daemon, &[&["whois", "--output", "json"], args].concat());
    let json = serde_json::from_str(&said.stdout);
    (
        said.code,
        json.unwrap_or_else(|_| panic!("{}{}", said.stdout, said.stderr)),
    )
}

fn forget(client: &mut Client) {
    for day in DAYS {
        sql::run(
            client,
            &format!("DROP TABLE idgen.audit_event_{}", day.replace('-', "")),
        );
    }
}

fn found_in(said: &Value) -> &str {
    said["readings"][0]["found_in"].as_str().unwrap_or_default()
}

#[test]
fn an_id_whose_day_has_left_postgres_is_found_in_the_archive() {
    let server = Server::start();
    let mut client = server.connect();
    let scratch = Scratch::new("whois");
    let folder = scratch.join("folder");
    fs::create_dir(&folder).expect("make the folder");
    old_days(&mut client);
    let mut options = in_folder(&server, &folder);
    for (name, value) in [("ARCHIVE__VERIFY", "false"), ("OUTBOX__KEEP_DAYS", "3650")] {
        options.env.push((format!("IDGEND_{name}"), value.to_owned()));
    }
    let daemon = options.start();
    wait_all_published(&mut client);
    // Two of three days are checked, and have an index then.
    let checked = idgenctl_of(&options, &daemon, &["archive", "verify", DAYS[0], DAYS[1]]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    forget(&mut client);

    for (id, day) in [
        ("1", DAYS[0]),
        ("100", DAYS[0]),
        ("101", DAYS[1]),
        ("295", DAYS[2]),
    ] {
        let (code, said) = whois(&options, &daemon, &[id, "--tag", "b"]);
        assert_eq!((code, &said["verdict"]), (Some(0), &"found".into()), "{said}");
        assert!(found_in(&said).contains(&format!("dt={day}/")), "{said}");
        assert_eq!(said["readings"].as_array().map(Vec::len), Some(1), "{said}");
    }
    let (code, said) = whois(&options, &daemon, &["301", "--tag", "b"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said["looked"].to_string().contains("--whole"), "{said}");
    let (code, said) = whois(&options, &daemon, &["5", "--tag", "c"]);
    assert_eq!(code, Some(4), "{said}");

    // An index that lies leads nowhere, and everything is still there to be read. Of a day that is gone from the table nothing
    // can be verified, and its index is made.
    idgenctl_of(&options, &daemon, &["archive", "verify", DAYS[2]]);
    let index = folder.join(format!("audit/v1/_index/{}.json", DAYS[0]));
    let text = fs::read_to_string(&index).expect("an index");
    fs::write(&index, text.replace("\"hi\":100", "\"hi\":1")).expect("damage it");
    assert_eq!(whois(&options, &daemon, &["95", "--tag", "b"]).0, Some(4));
    let (code, said) = whois(&options, &daemon, &["95", "--tag", "b", "--whole"]);
    assert_eq!(
        (code, found_in(&said).contains(DAYS[0])),
        (Some(0), true),
        "{said}"
    );
    fs::remove_dir_all(folder.join("audit/v1/_index")).expect("remove the indexes");
    assert_eq!(whois(&options, &daemon, &["95", "--tag", "b"]).0, Some(0));

    a_file_that_was_changed_is_not_believed(&options, &daemon, &folder);
}

fn a_file_that_was_changed_is_not_believed(options: &DaemonOptions, daemon: &Daemon, folder: &Path) {
    let day = folder.join(format!("audit/v1/dt={}", DAYS[0]));
    let service = fs::read_dir(day)
        .expect("a day")
        .next()
        .expect("a service")
        .expect("its name");
    let file = fs::read_dir(service.path())
        .expect("files")
        .next()
        .expect("a file")
        .expect("its name");
    let mut bytes = fs::read(file.path()).expect("read it");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file.path(), bytes).expect("flip a bit");
    let (code, said) = whois(options, daemon, &["95", "--tag", "b"]);
    assert_eq!(
        (code, &said["verdict"]),
        (Some(4), &"inconclusive".into()),
        "{said}"
    );
    assert!(
        said["looked"].to_string().contains("is not what was written"),
        "{said}"
    );
}

#[test]
fn a_lease_that_the_trail_has_forgotten_is_found_in_the_archive() {
    let server = Server::start();
    let mut client = server.connect();
    let scratch = Scratch::new("whois-lease");
    let folder = scratch.join("folder");
    fs::create_dir(&folder).expect("make the folder");
    let options = in_folder(&server, &folder);
    let daemon = options.start();
    let id: i64 = eventually(PATIENCE, "there is a lease", || {
        let row = client.query_one("SELECT idgen_snowflake()", &[]);
        row.ok().map(|row| row.get(0))
    });
    daemon.terminate();
    let daemon = options.start();
    let grants = "SELECT count(*) FROM idgen.lease_event WHERE kind IN ('granted', 'released')";
    eventually_true(PATIENCE, "both lives are in the trail", || {
        sql::value::<i64>(&mut client, grants) == 6
    });
    // Both of them, should midnight lie between.
    let days: Vec<String> = sql::column(
        &mut client,
        "SELECT DISTINCT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM idgen.lease_event",
    );
    eventually_true(PATIENCE, "all of it is archived", || {
        let of_day = |day: &String| {
            let said = idgenctl_of(&options, &daemon, &["archive", "cat", day, "--tag", "lease"]);
            said.stdout.matches("snowflake.lease.granted").count()
        };
        days.iter().map(of_day).sum::<usize>() >= 4
    });
    let (code, before) = whois(&options, &daemon, &[&id.to_string()]);
    assert_eq!(code, Some(0), "{before}");
    // As after 90 days.
    sql::run(
        &mut client,
        "ALTER TABLE idgen.lease_event DISABLE TRIGGER ALL; DELETE FROM idgen.lease_event;
         ALTER TABLE idgen.lease_event ENABLE ALWAYS TRIGGER trail_stays",
    );
    let (code, after) = whois(&options, &daemon, &[&id.to_string()]);
    assert_eq!(code, Some(0), "{after}");
    let held = |said: &Value| {
        let held = &said["readings"][0]["held"];
        (held["name"].clone(), held["token"].clone(), held["ended"].clone())
    };
    assert_eq!(held(&after), held(&before), "{after}");
    assert_eq!(after["readings"][0]["held"]["found_in"], "the archive");
}
