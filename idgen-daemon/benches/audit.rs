//! How fast the audits are: `make bench SUITE=audit`.
//!
//! The rule alone, on one core; a nightly run over a clean week of 10 million ranges, which must find nothing; and beside it, in the
//! same table, the join of the table with itself that an auditor would write first.

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

use idgen_core::audit::{Axis, Extent, Point, Span, Sweep};
use idgen_daemon::audit::nightly::{Site, open_ledger, run};
use idgen_daemon::config::AuditConfig;
use idgen_daemon::outbox::Holder;
use idgen_daemon::postgres::PostgresUrl;
use kit::sql::{self, value};
use kit::{Server, ServerOptions, setting};
use postgres::Client;
use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uuid::Uuid;

const ROUNDS: usize = 5;
const RULE_RANGES: i64 = 5_000_000;
/// Ranges a second on one core.
const HOLD_RULE: f64 = 1_000_000.0;
const TAGS: i64 = 1_000;
const DAYS: i64 = 7;
/// Of a nightly run over 8 million ranges.
const HOLD_NIGHTLY: Duration = Duration::from_secs(60);
const HOLD_RANGES: f64 = 8_000_000.0;
/// So long the join has.
const JOIN_LIMIT_S: u64 = 60;

fn main() -> ExitCode {
    // `cargo test --benches` starts this too, and wants nothing measured.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    let mut holds = rule();
    holds &= week(setting("RANGES", 10_000_000).cast_signed());
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told(what: &str, is_held: bool) -> bool {
    println!("{what}: {}", if is_held { "held" } else { "NOT HELD" });
    is_held
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("our own status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    line.split_whitespace()
        .next()
        .expect("a number")
        .parse()
        .expect("KiB")
}

/// Ranges a second: the median of some rounds.
fn rate(mut round: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            round();
            RULE_RANGES as f64 / began.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

fn rule() -> bool {
    let before = resident_kib();
    let sweep = rate(|| {
        let mut sweep = Sweep::new();
        for n in 0..RULE_RANGES {
            let span = Span::new(n * 10 + 1, n * 10 + 10).expect("a span");
            assert!(black_box(&mut sweep).push(span, n).expect("in order").is_none());
        }
    });
    let recorded = rate(|| {
        let mut axis = Axis::new();
        for n in 0..RULE_RANGES {
            let at = Point { seq: n + 1, at_us: n };
            black_box(&mut axis).see(&0_u128, at, Span::new(n * 10 + 1, n * 10 + 10));
        }
        assert!(!axis.is_suspect());
    });
    let grown = resident_kib().saturating_sub(before);
    println!(
        "rule, one core: sweep {:.1} M ranges/s, as recorded {:.1} M ranges/s, {grown} KiB more after {} M",
        sweep / 1e6,
        recorded / 1e6,
        RULE_RANGES * 2 * ROUNDS as i64 / 1_000_000
    );
    told(
        "at least 1 M ranges/s in constant memory",
        sweep.min(recorded) >= HOLD_RULE && grown < 1_024,
    )
}

/// Half of the tags are of another space, and have the names of the others.
fn fill(client: &mut Client, ranges: i64) {
    let half = TAGS / 2;
    sql::run(
        client,
        &format!("SELECT idgen_create_segment('tag ' || n) FROM generate_series(1, {half}) n"),
    );
    // What the tags have recorded at their making is none of the week.
    sql::run(client, "TRUNCATE idgen.audit_event");
    let of_tag = ranges / TAGS;
    for day in 0..DAYS {
        let (from, to) = (day * of_tag / DAYS, (day + 1) * of_tag / DAYS);
        sql::run(
            client,
            &format!(
                "DO $$ DECLARE d date := date '2026-03-01' + {day};
                 BEGIN
                     EXECUTE format('CREATE TABLE idgen.%I (LIKE idgen.audit_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', 'audit_event_' || to_char(d, 'YYYYMMDD'));
                     EXECUTE format('ALTER TABLE idgen.audit_event ATTACH PARTITION idgen.%I FOR VALUES FROM (%L) TO (%L)',
                                    'audit_event_' || to_char(d, 'YYYYMMDD'), d || ' 00:00:00+00', d + 1 || ' 00:00:00+00');
                 END $$;
                 INSERT INTO idgen.audit_event (source_id, at, kind, space_id, tag, tag_seq, lo, hi, published)
                 SELECT CASE WHEN t < {half} THEN p.source_id ELSE 'b0000000-0000-0000-0000-000000000000' END,
                        '2026-03-01 00:00:00+00'::timestamptz + {day} * interval '1 day' + (g - {from}) * interval '1 s', 'segment.grant',
                        CASE WHEN t < {half} THEN p.space_id ELSE 'a0000000-0000-0000-0000-000000000000' END,
                        'tag ' || 1 + t % {half}, g + 1, g * 1000 + 1, g * 1000 + 1000, true
                   FROM idgen.space p, generate_series({from}, {to} - 1) g, generate_series(0, {TAGS} - 1) t;
                 DO $$ DECLARE leaf name := 'audit_event_' || to_char(date '2026-03-01' + {day}, 'YYYYMMDD');
                 BEGIN
                     EXECUTE format('ALTER TABLE idgen.%I ADD PRIMARY KEY (event_id)', leaf);
                     EXECUTE format('CREATE INDEX ON idgen.%I (space_id, tag, tag_seq)', leaf);
                 END $$"
            ),
        );
    }
    sql::run(
        client,
        &format!(
            "UPDATE idgen.segment SET max_id = {of_tag} * 1000, tag_seq = {of_tag}; ANALYZE idgen.audit_event"
        ),
    );
}

fn week(ranges: i64) -> bool {
    let server = Server::with(ServerOptions {
        settings: vec![
            "max_wal_size = 4GB".to_owned(),
            "shared_buffers = 256MB".to_owned(),
        ],
        ..ServerOptions::default()
    });
    let mut client = server.connect();
    let began = Instant::now();
    fill(&mut client, ranges);
    let (rows, tags): (i64, i64) = (
        value(&mut client, "SELECT count(*) FROM idgen.audit_event"),
        value(
            &mut client,
            "SELECT count(*) FROM (SELECT DISTINCT space_id, tag FROM idgen.audit_event) t",
        ),
    );
    println!(
        "a clean week: {rows} ranges, {tags} tags of two spaces with equal names, made in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    let before = resident_kib();
    let began = Instant::now();
    let (verdict, findings, looked) = audit(&server);
    let took = began.elapsed();
    let grown = resident_kib().saturating_sub(before);
    let per_second = looked as f64 / took.as_secs_f64();
    println!(
        "nightly run, full: {verdict}, {findings} findings, {looked} ranges in {:.1} s: {:.2} M ranges/s, {grown} KiB more",
        took.as_secs_f64(),
        per_second / 1e6
    );
    let mut holds = told(
        "zero findings in a clean week",
        verdict == "PASS" && findings == 0,
    );
    holds &= told(
        "8 M ranges within 60 s",
        Duration::from_secs_f64(HOLD_RANGES / per_second) <= HOLD_NIGHTLY,
    );
    join(&mut client);
    holds
}

fn audit(server: &Server) -> (String, u64, i64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url: PostgresUrl = server.daemon_url().parse().expect("a connection string");
    let holder = Holder {
        instance: Uuid::new_v4(),
        name: "bench".into(),
    };
    let mut config = AuditConfig::standard().expect("the defaults");
    config.rate = 10_000_000;
    let site = Site {
        database: "postgres".into(),
        primary: url.clone(),
        connect_timeout: Duration::from_secs(10),
        config,
        archive: None,
        watches_leases: false,
        metrics: None,
    };
    let ended = runtime.block_on(async {
        let mut ledger = open_ledger(&url, site.connect_timeout, holder)
            .await
            .expect("the database")
            .expect("the extension");
        assert!(ledger.keep().await.expect("the lease"));
        run(&mut ledger, &site, (Extent::Full, None), &|_| {})
            .await
            .expect("a run")
    });
    if let Some(reason) = &ended.verdict.reason {
        println!("  {reason}");
    }
    let looked = value(&mut server.connect(), "SELECT max(ranges) FROM idgen.audit_run");
    (ended.verdict.name.to_owned(), ended.verdict.findings, looked)
}

/// Each pair that has an id in common, as the table can be asked without a rule.
fn join(client: &mut Client) {
    sql::run(client, &format!("SET statement_timeout = '{JOIN_LIMIT_S}s'"));
    let began = Instant::now();
    let asked = client.query_one(
        "SELECT count(*) FROM idgen.audit_event a JOIN idgen.audit_event b
             ON a.space_id = b.space_id AND a.tag = b.tag AND a.event_id < b.event_id AND a.lo <= b.hi AND b.lo <= a.hi",
        &[],
    );
    match asked {
        Ok(row) => println!(
            "the same by a join of the table with itself: {} pairs in {:.1} s",
            row.get::<_, i64>(0),
            began.elapsed().as_secs_f64()
        ),
        Err(error) if error.code().is_some_and(|code| code.code() == "57014") => println!(
            "the same by a join of the table with itself: no answer within {JOIN_LIMIT_S} s, given up"
        ),
        Err(error) => panic!("{}", sql::describe(&error)),
    }
}
