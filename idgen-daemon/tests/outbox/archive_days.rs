//! The check of days that have ended: which of them are looked at, from where, and what is known of those that have left.

use std::fs;

use postgres::Client;

use super::archive_scene::{idgenctl_of, in_folder, wait_all_published};
use crate::kit::daemon::{Answer, Daemon, DaemonOptions};
use crate::kit::sql::{self, value};
use crate::kit::{PATIENCE, Scratch, Server, eventually_true};

const DAYS: [&str; 3] = ["2020-02-28", "2020-02-29", "2020-03-01"];

/// The leaves of old days, with ten events each, and one more without any.
fn old_days(client: &mut Client) {
    sql::run(
        client,
        "DO $$
         DECLARE d date;
         BEGIN
             FOR d IN SELECT generate_series('2020-02-28'::date, '2020-03-02', '1 day') LOOP
                 EXECUTE format('CREATE TABLE idgen.%I PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
                                to_char(d, '\"audit_event_\"YYYYMMDD'), d || ' 00:00:00+00', d + 1 || ' 00:00:00+00');
                 INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq)
                 SELECT s.source_id, (d || ' 12:00:00+00')::timestamptz, 'segment.grant', s.space_id, 'old ' || d, n
                   FROM idgen.space s, generate_series(1, 10) n WHERE d < '2020-03-02';
             END LOOP;
         END $$",
    );
}

/// All verified, and each of them looked at within the last minutes.
fn wait_verified(client: &mut Client, what: &str, wanted: i64) {
    eventually_true(PATIENCE, what, || {
        let found: i64 = value(
            client,
            "SELECT count(*) FROM idgen.archive_day
              WHERE state = 'verified' AND day < '2021-01-01' AND checked_at > clock_timestamp() - interval '50 minutes'",
        );
        found == wanted
    });
}

fn verify(options: &DaemonOptions, daemon: &Daemon, days: &[&str]) -> Answer {
    let args: Vec<&str> = ["archive", "verify"].iter().chain(days).copied().collect();
    idgenctl_of(options, daemon, &args)
}

fn digests(client: &mut Client) -> String {
    value(
        client,
        "SELECT string_agg(concat_ws(' ', day, source_id, rows, digest_xor, digest_sum), ', ' ORDER BY day, source_id)
           FROM idgen.archive_day WHERE day < '2021-01-01'",
    )
}

#[test]
fn days_that_have_ended_are_checked_and_checked_again_where_they_must_be_and_those_that_have_left_keep_their_proof()
 {
    let server = Server::start();
    let mut client = server.connect();
    let scratch = Scratch::new("archive-days");
    let folder = scratch.join("folder");
    fs::create_dir(&folder).expect("make the folder");
    old_days(&mut client);
    // So long that none of them is dropped, or about to be.
    let mut options = in_folder(&server, &folder);
    options
        .env
        .push(("IDGEND_OUTBOX__KEEP_DAYS".into(), "3650".into()));
    let daemon = options.start();
    wait_all_published(&mut client);
    // All on one day, one after another: the report of the first is no place to begin the third at.
    let said = verify(&options, &daemon, &DAYS);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    assert_eq!(said.stdout.matches("VERIFIED").count(), 3, "{}", said.stdout);
    daemon.kill();

    // Checked while it lasted; and of one of two sources nothing.
    sql::run(
        &mut client,
        "UPDATE idgen.archive_day SET checked_at = '2020-02-28 20:00:00+00' WHERE day = '2020-02-28';
         INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq)
         SELECT '00000000-0000-0000-0000-00000000000b', '2020-02-29 13:00:00+00', 'segment.grant', space_id, 'of another', 1
           FROM idgen.space",
    );
    let mut daemon = options.start();
    wait_all_published(&mut client);
    // Its first look may have been before the archiver's: then the day is looked at again an hour later, or now.
    if daemon_has_looked_too_early(&mut client) {
        daemon.kill();
        sql::run(
            &mut client,
            "UPDATE idgen.archive_day SET checked_at = checked_at - interval '2 hours' WHERE state <> 'verified'",
        );
        daemon = options.start();
    }
    wait_verified(&mut client, "every source of every day is verified anew", 4);
    for day in DAYS {
        let gate: Option<String> = value(&mut client, &format!("SELECT idgen.archive_gate('{day}')"));
        assert_eq!(gate, None);
    }
    let report = fs::read_to_string(folder.join("audit/v1/_daily/2020-02-29.json")).expect("the report");
    assert!(report.contains("\"state\": \"verified\""), "{report}");
    // Nobody asks for a day that nothing has happened on.
    assert!(!folder.join("audit/v1/_daily/2020-03-02.json").exists());
    let none = verify(&options, &daemon, &["2020-03-02"]);
    assert_eq!(none.code, Some(4), "nothing proves nothing: {}", none.stdout);
    metric_is(&mut daemon, "verified", 4);

    // Where days are dropped at 90, the proof must be fresh. A reader keeps them, so that they can be looked at.
    let mut reader = server.connect();
    sql::run(&mut reader, "BEGIN; SELECT count(*) FROM idgen.audit_event");
    daemon.terminate();
    sql::run(
        &mut client,
        "UPDATE idgen.archive_day SET checked_at = checked_at - interval '6 days' WHERE day = '2020-03-01'",
    );
    let options = in_folder(&server, &folder);
    let daemon = options.start();
    wait_verified(&mut client, "a proof that is old is renewed", 4);
    daemon.terminate();
    sql::run(&mut reader, "COMMIT");
    drop(reader);
    one_that_leaves_keeps_its_proof(&mut client, &options, &scratch);
}

/// What is known of a day that has left is what it had, whatever a look at the wrong folder says.
fn one_that_leaves_keeps_its_proof(client: &mut Client, options: &DaemonOptions, scratch: &Scratch) {
    let folder = scratch.join("folder");
    let known = digests(client);
    sql::run(client, "DROP TABLE idgen.audit_event_20200229");
    let away = scratch.join("away");
    fs::rename(&folder, &away).expect("take the folder away");
    fs::create_dir(&folder).expect("another folder");
    let daemon = options.start();
    for _ in 0..2 {
        let said = verify(options, &daemon, &["2020-02-29"]);
        assert_eq!(said.code, Some(3), "{}{}", said.stdout, said.stderr);
        assert_eq!(digests(client), known);
    }
    daemon.kill();
    fs::remove_dir_all(&folder).expect("remove the other folder");
    fs::rename(&away, &folder).expect("bring it back");
    let daemon = options.start();
    let said = verify(options, &daemon, &["2020-02-29"]);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    assert_eq!(digests(client), known);
}

fn daemon_has_looked_too_early(client: &mut Client) -> bool {
    eventually_true(PATIENCE, "a verdict on the new source", || {
        value::<i64>(
            client,
            "SELECT count(*) FROM idgen.archive_day WHERE source_id = '00000000-0000-0000-0000-00000000000b'",
        ) == 1
    });
    value(
        client,
        "SELECT EXISTS (SELECT FROM idgen.archive_day WHERE state <> 'verified' AND day < '2021-01-01')",
    )
}

/// A look that finds nothing that is due says how all days stand too.
fn metric_is(daemon: &mut Daemon, state: &str, wanted: i64) {
    let line = format!("idgen_archive_verify_state{{state=\"{state}\"}} {wanted}\n");
    eventually_true(PATIENCE, &line, || {
        let metrics = daemon.get("/metrics").map(|(_, text)| text).unwrap_or_default();
        metrics.contains(&line)
    });
}
