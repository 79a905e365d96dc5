//! How long `idgenctl whois` takes, with 10 million events of 90 days: `make bench SUITE=whois` (EVENTS=10000000).
//!
//! Once from Postgres, and once from the archive, when the days have left Postgres. Beside it, in the same run, what the same
//! answer costs without what makes it fast: a look at every event of the table, and at every file of the archive. The folder of
//! the archive lies on this machine: a bucket adds the time of its answers, 16 at a time.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends, as a test does"
)]

#[path = "../tests/e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared with the end-to-end tests"
)]
mod kit;

use idgen_core::archive::Cut;
use idgen_daemon::archive::objects::Folder;
use idgen_daemon::archive::parquet::{Message, Spot};
use idgen_daemon::archive::{Batch, Ledger, pack};
use idgen_daemon::event::{Event, SCHEMA};
use kit::daemon::{Answer, IDGENCTL, answer};
use kit::sql::{self, value};
use kit::{Scratch, Server, setting};
use postgres::Client;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const DAYS: i64 = 90;
const TAGS: i64 = 1_000;
/// Ids of a grant.
const STEP: i64 = 1_000;
/// Commits of a day: one every quarter of an hour.
const COMMITS: i64 = 96;
const ROUNDS: usize = 5;
/// 2026-01-01 UTC.
const BEGINS_S: i64 = 1_767_225_600;
const DAY_S: i64 = 86_400;

const HOLD_POSTGRES: Duration = Duration::from_secs(1);
const HOLD_ARCHIVE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // `cargo test --benches` starts this too, and wants nothing measured.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    let events = setting("EVENTS", 10_000_000).cast_signed();
    let per_day = events / DAYS;
    let server = Server::start();
    let mut client = server.connect();
    let scratch = Scratch::new("whois");
    let folder = scratch.join("archive");
    fs::create_dir(&folder).expect("make the folder");
    let config = config(&server, &scratch, &folder);

    fill_tables(&mut client, per_day);
    // The id in the middle of a day in the middle, of a tag in the middle.
    let id = (DAYS / 2 * per_day + per_day / 2) / TAGS * STEP + STEP / 2;
    let ask = |more: &[&str]| median(&config, &[&["whois", &id.to_string()], more].concat());
    println!(
        "{} events of {DAYS} days, {TAGS} tags; medians of {ROUNDS}",
        per_day * DAYS
    );
    let tagged = ask(&["--tag", "t500"]);
    let any = ask(&[]);
    let scan = scan_of(&mut client, id);
    let mut holds = told(
        "from Postgres, of a tag that is named",
        tagged,
        scan,
        HOLD_POSTGRES,
    );
    holds &= told("from Postgres, of any tag", any, scan, HOLD_POSTGRES);

    archive(&mut client, &folder, per_day);
    index(&config);
    forget(&mut client);
    let indexed = ask(&["--tag", "t500"]);
    let whole = one(&config, &["whois", &id.to_string(), "--tag", "t500", "--whole"]);
    holds &= told("from the archive", indexed, whole, HOLD_ARCHIVE);
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told(what: &str, took: Duration, beside: Duration, hold: Duration) -> bool {
    let holds = took <= hold;
    println!(
        "{what:<40} {:>8.3} s   everything read: {:>8.3} s ({:.0}x)   hold {} s: {}",
        took.as_secs_f64(),
        beside.as_secs_f64(),
        beside.as_secs_f64() / took.as_secs_f64(),
        hold.as_secs(),
        if holds { "yes" } else { "NO" }
    );
    holds
}

fn config(server: &Server, scratch: &Scratch, folder: &Path) -> PathBuf {
    let path = scratch.join("idgend.toml");
    let text = format!(
        "[postgres]\nurl = \"{}\"\n[archive]\nkind = \"folder\"\npath = \"{}\"\n",
        server.daemon_url(),
        folder.display()
    );
    fs::write(&path, text).expect("write the configuration");
    path
}

/// Grant `n` of all is one of tag `n % TAGS`.
fn fill_tables(client: &mut Client, per_day: i64) {
    // The first tag has the leaf of today made, whose shape the old ones take.
    sql::run(
        client,
        "SELECT idgen_create_segment('shape'); SELECT idgen_segment('shape')",
    );
    let shape: String = value(
        client,
        "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
          WHERE i.inhparent = 'idgen.audit_event'::regclass ORDER BY 1 LIMIT 1",
    );
    let begun = Instant::now();
    for day in 0..DAYS {
        let (from, first) = (BEGINS_S + day * DAY_S, day * per_day);
        sql::run(
            client,
            &format!(
                "DO $$
                 DECLARE leaf text := to_char(to_timestamp({from}) AT TIME ZONE 'UTC', '\"audit_event_\"YYYYMMDD');
                 BEGIN
                     EXECUTE format('CREATE TABLE idgen.%I (LIKE idgen.{shape} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)', leaf);
                     EXECUTE format('ALTER TABLE idgen.%I DROP CONSTRAINT {shape}_day', leaf);
                     EXECUTE format('INSERT INTO idgen.%I (source_id, at, kind, space_id, tag, tag_seq, lo, hi, published)
                         SELECT p.source_id, to_timestamp({from}) + n * interval ''1 second'' * {DAY_S} / {per_day}, ''segment.grant'',
                                p.space_id, ''t'' || ({first} + n) %% {TAGS}, ({first} + n) / {TAGS} + 1,
                                ({first} + n) / {TAGS} * {STEP} + 1, ({first} + n) / {TAGS} * {STEP} + {STEP}, true
                           FROM idgen.space p, generate_series(0, {per_day} - 1) n', leaf);
                     EXECUTE format('ALTER TABLE idgen.audit_event ATTACH PARTITION idgen.%I FOR VALUES FROM (%L) TO (%L)',
                                    leaf, to_timestamp({from}), to_timestamp({from} + {DAY_S}));
                 END $$"
            ),
        );
    }
    sql::run(
        client,
        &format!(
            "INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step)
             SELECT 't' || n, 'postgres', 1, 4000000000, 9000000000000, {STEP}, {STEP} FROM generate_series(0, {TAGS} - 1) n"
        ),
    );
    // As a daemon does with days that are over; those of the last two days are open.
    sql::run(
        client,
        &format!(
            "INSERT INTO idgen.audit_day (day, fence_tx, sealed_at)
             SELECT (to_timestamp({BEGINS_S}) AT TIME ZONE 'UTC')::date + n, '1', now() FROM generate_series(0, {DAYS} - 3) n"
        ),
    );
    while value::<Option<String>>(client, "SELECT idgen.index_audit_day()::text").is_some() {}
    sql::run(client, "VACUUM ANALYZE idgen.audit_event");
    eprintln!("the tables are filled: {} s", begun.elapsed().as_secs());
}

/// What it costs without the index.
fn scan_of(client: &mut Client, id: i64) -> Duration {
    let begun = Instant::now();
    sql::run(
        client,
        &format!(
            "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
             SELECT FROM idgen.audit_event WHERE lo <= {id} AND hi >= {id} AND tag = 't500'"
        ),
    );
    begun.elapsed()
}

/// The same events as files, as an archiver makes them.
fn archive(client: &mut Client, folder: &Path, per_day: i64) {
    let row = client.query_one("SELECT source_id, space_id FROM idgen.space", &[]);
    let row = row.expect("the space");
    let (source, space): (Uuid, Uuid) = (row.get(0), row.get(1));
    let begun = Instant::now();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let objects = Arc::new(Folder::new(folder.to_owned()));
        let mut ledger = Ledger::open(objects, "t").await.expect("a ledger");
        for commit in 0..DAYS * COMMITS {
            let (first, end) = (commit * per_day / COMMITS, (commit + 1) * per_day / COMMITS);
            let messages = (first..end).map(|n| message(n, per_day, (source, space)));
            let seq = ledger.chain().head().seq + 1;
            let files = pack(messages.collect(), "t", seq, None).expect("files");
            let batch = Batch {
                files,
                ends: BTreeMap::from([(0, end)]),
                gaps: Vec::new(),
                epoch: 1,
                cut: Cut::Time,
                source: "kafka",
                locked_until: None,
            };
            ledger.append(batch).await.expect("a commit");
        }
    });
    eprintln!("the archive is written: {} s", begun.elapsed().as_secs());
}

fn message(n: i64, per_day: i64, (source, space): (Uuid, Uuid)) -> Message {
    let at_us = (BEGINS_S + n / per_day * DAY_S) * 1_000_000 + n % per_day * DAY_S * 1_000_000 / per_day;
    let event = Event {
        schema: SCHEMA,
        kind: "segment.grant".into(),
        source,
        event_id: n + 1,
        at: idgen_core::utc::show_us(at_us),
        service: "postgres".into(),
        space,
        tag: format!("t{}", n % TAGS),
        tag_seq: n / TAGS + 1,
        lo: Some(n / TAGS * STEP + 1),
        hi: Some(n / TAGS * STEP + STEP),
        token: None,
        tx: Some((n + 770).to_string()),
        stub: None,
        payload: RawValue::from_string("{\"step\": 1000}".into()).unwrap(),
    };
    let spot = Spot {
        partition: 0,
        offset: n,
        at_ms: at_us / 1_000,
    };
    Message::read(spot, Some(1), None, Some(&event.to_json().unwrap()))
}

/// The check of each day makes its index.
fn index(config: &Path) {
    let begun = Instant::now();
    let days: Vec<String> = (0..DAYS)
        .map(|day| idgen_core::day::Day::of_unix(BEGINS_S + day * DAY_S).to_string())
        .collect();
    let mut args = vec!["archive", "verify"];
    args.extend(days.iter().map(String::as_str));
    run(config, &args);
    eprintln!("the days are checked: {} s", begun.elapsed().as_secs());
}

fn forget(client: &mut Client) {
    sql::run(
        client,
        "DO $$
         DECLARE leaf regclass;
         BEGIN
             FOR leaf IN SELECT i.inhrelid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                          WHERE i.inhparent = 'idgen.audit_event'::regclass AND c.relname < 'audit_event_202606' LOOP
                 EXECUTE format('DROP TABLE %s', leaf);
             END LOOP;
         END $$",
    );
}

fn run(config: &Path, args: &[&str]) -> Answer {
    let mut command = Command::new(IDGENCTL);
    command.args(args).arg("--config").arg(config);
    answer(command)
}

/// One answer, which must be that the id is known.
fn one(config: &Path, args: &[&str]) -> Duration {
    let begun = Instant::now();
    let said = run(config, args);
    let took = begun.elapsed();
    assert!(said.stdout.contains("FOUND"), "{}{}", said.stdout, said.stderr);
    took
}

fn median(config: &Path, args: &[&str]) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| one(config, args)).collect();
    times.sort();
    times[times.len() / 2]
}
