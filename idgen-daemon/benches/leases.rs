//! What the leases of many servers cost one etcd: `make bench-leases`.
//!
//! Real keepers and the real adapter against one real member; only the Postgres servers are stand-ins. All keepers
//! start in one moment, and must settle in [`SETTLED`] with no identity granted twice. Then they renew: first nothing
//! else is asked of etcd, and its raft entries and processor time are taken; then plain puts run beside, as many as there
//! are renewals, and both are timed, so that the ratio is of one run.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot go on ends, as a test does"
)]

#[path = "../tests/e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared with the end-to-end tests"
)]
mod kit;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use etcd_client::{Client, StatusResponse};
use idgen_core::lease::{Timing, TimingSpec};
use kit::etcd::Release;
use kit::fleet::{Calls, Fleet, on_etcd, somebody};
use kit::{Etcd, setting};

/// All have their lease within this.
const SETTLED: Duration = Duration::from_secs(10);
/// As the defaults of the configuration.
const TTL_MS: u64 = 600_000;
const WORKERS: usize = 2;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The kernel counts processor time in these (`getconf CLK_TCK`; 100 on every Linux that we run on).
const TICK: Duration = Duration::from_millis(10);

fn main() {
    // `cargo test --benches` starts this too, and wants nothing measured.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let servers = setting("SERVERS", 200);
    let half = Duration::from_secs(setting("SECONDS", 60) / 2);
    let timing = Timing::new(TimingSpec::of_ttl(TTL_MS)).expect("timing");
    let etcd = Etcd::start();
    let open = on_etcd(&etcd, REQUEST_TIMEOUT, TTL_MS);
    println!(
        "{servers} keepers, {WORKERS} identities each, TTL {} s, period {} s; etcd {}, one member",
        TTL_MS / 1_000,
        timing.period_ms() / 1_000,
        Release::V3_4.version()
    );

    let mut fleet = Fleet::new(WORKERS, timing);
    fleet.launch(usize::try_from(servers).expect("fits"), &open);
    let took = fleet.wait_settled(SETTLED);
    fleet.assert_granted_once(&mut open(somebody()));
    report_start(&fleet, took);

    let alone = Watch::of(&etcd, &fleet).over(half);
    alone.report();
    let watch = Watch::of(&etcd, &fleet);
    let puts = plain_puts(&etcd, &fleet, half, alone.renewals);
    let beside = watch.renewal_times();
    report_times(beside, puts);

    fleet.assert_granted_once(&mut open(somebody()));
    fleet.stop();
}

fn report_start(fleet: &Fleet, took: Duration) {
    let mut book = fleet.book.lock().expect("not poisoned");
    let (median, worst) = (book.grants.quantile(50), book.grants.quantile(99));
    println!(
        "start    all at once, settled in {:.2} s; no identity granted twice",
        took.as_secs_f64()
    );
    println!(
        "         {} grants, p50 {}, p99 {}; {} more met another daemon's, at most {} tries of one keeper",
        book.grants.0.len(),
        ms(median),
        ms(worst),
        book.conflicts,
        book.tries_max
    );
}

/// etcd and the renewals at one moment.
struct Watch<'a> {
    etcd: &'a Etcd,
    fleet: &'a Fleet,
    at: Instant,
    status: StatusResponse,
    cpu: Duration,
    renewals: usize,
}

struct Cost {
    elapsed: Duration,
    renewals: usize,
    entries: u64,
    cpu: Duration,
    db_bytes: i64,
}

impl<'a> Watch<'a> {
    fn of(etcd: &'a Etcd, fleet: &'a Fleet) -> Self {
        Self {
            at: Instant::now(),
            status: status(etcd, fleet),
            cpu: cpu_time(etcd.pid()),
            renewals: fleet.book.lock().expect("not poisoned").renewals.0.len(),
            etcd,
            fleet,
        }
    }

    fn over(self, time: Duration) -> Cost {
        thread::sleep(time.saturating_sub(self.at.elapsed()));
        let after = Watch::of(self.etcd, self.fleet);
        Cost {
            elapsed: after.at - self.at,
            renewals: after.renewals - self.renewals,
            entries: after.status.raft_index() - self.status.raft_index(),
            cpu: after.cpu.saturating_sub(self.cpu),
            db_bytes: after.status.db_size(),
        }
    }

    /// Of those since then.
    fn renewal_times(&self) -> Calls {
        let book = self.fleet.book.lock().expect("not poisoned");
        Calls(book.renewals.0[self.renewals..].to_vec())
    }
}

impl Cost {
    fn report(&self) {
        let seconds = self.elapsed.as_secs_f64();
        let renewals = as_f64(self.renewals);
        let entries = self.entries as f64;
        let cpu = self.cpu.as_secs_f64();
        println!(
            "steady   {} renewals in {seconds:.0} s: {:.1}/s; {} raft entries: {:.1}/s, {:.2} per renewal",
            self.renewals,
            renewals / seconds,
            self.entries,
            entries / seconds,
            entries / renewals
        );
        println!(
            "         etcd takes {:.1} % of a core, {:.2} ms per renewal; its database has {:.1} MB",
            cpu / seconds * 100.0,
            cpu * 1_000.0 / renewals,
            self.db_bytes as f64 / 1e6
        );
    }
}

/// As many puts as renewals, evenly over the time, each of about the bytes of a high water.
fn plain_puts(etcd: &Etcd, fleet: &Fleet, time: Duration, count: usize) -> Calls {
    let mut calls = Calls::default();
    let mut client = client(etcd, fleet);
    let pause = time.div_f64(as_f64(count.max(1)));
    let began = Instant::now();
    for n in 0..count {
        thread::sleep((pause * u32::try_from(n).expect("fits")).saturating_sub(began.elapsed()));
        let value = format!("{{\"n\":{n},\"padding\":\"{}\"}}", "x".repeat(60));
        let asked = Instant::now();
        let put = client.put("/bench-plain", value, None);
        fleet.runtime().block_on(put).expect("put");
        calls.0.push(asked.elapsed());
    }
    calls
}

fn report_times(mut renewals: Calls, mut puts: Calls) {
    for percent in [50, 99] {
        let (renewal, put) = (renewals.quantile(percent), puts.quantile(percent));
        println!(
            "p{percent}      a renewal takes {}, a plain put {}: {:.1} x",
            ms(renewal),
            ms(put),
            renewal.as_secs_f64() / put.as_secs_f64()
        );
    }
    println!(
        "         over {} renewals and {} puts",
        renewals.0.len(),
        puts.0.len()
    );
}

fn client(etcd: &Etcd, fleet: &Fleet) -> Client {
    let connecting = Client::connect([etcd.endpoint()], None);
    fleet.runtime().block_on(connecting).expect("connect")
}

fn status(etcd: &Etcd, fleet: &Fleet) -> StatusResponse {
    let mut client = client(etcd, fleet);
    fleet.runtime().block_on(client.status()).expect("status")
}

/// User and system time of a process: fields 14 and 15 of its `stat`, counted after the name in parentheses.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat of etcd");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks: u32 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u32>().expect("a number"))
        .sum();
    TICK * ticks
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("fits"))
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}
