//! One run, from its seed to its verdicts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use idgen_core::history::{Verdict, alive, check};

use crate::arena::Arena;
use crate::kit::{Release, pace};
use crate::plan::{Plan, Planned, SERVERS, StoreKind};
use crate::{files, moment, table, told};

/// What `make test` runs: etcd is restored first, and a standby promoted as the fourth fault.
const SEED: u64 = 20_261_119;
const SECONDS: f64 = 45.0;
/// A server that is silent for this long after a fault will not come back.
const GIVE_UP: Duration = Duration::from_secs(45);
/// At most twice this is allowed for a machine that was late, beside the 12 s of I13.
const LATE: Duration = Duration::from_secs(3);

pub fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} = {text} is not a number")),
    )
}

pub fn soak(store: StoreKind) {
    if let Some(dir) = setting::<PathBuf>("SOAK_CHECK") {
        judge(&dir);
        return;
    }
    let seed: u64 = setting("SOAK_SEED").unwrap_or(SEED);
    let seconds = setting("SOAK_MINUTES").map_or(SECONDS, |minutes: f64| minutes * 60.0);
    let etcd = release();
    let (called, chosen) = match store {
        StoreKind::Etcd => (format!("etcd-{etcd}"), format!("STORE=etcd ETCD={etcd}")),
        StoreKind::Postgres => ("postgres".to_owned(), "STORE=postgres".to_owned()),
    };
    let dir = directory(&called, seed);
    println!(
        "leases in {called}, seed {seed}, {seconds} s; record: {}",
        dir.path.display()
    );
    let length = Duration::from_secs_f64(seconds);
    run(store, etcd, seed, length, &dir.path);
    let verdicts = judge(&dir.path);
    let broken = verdicts.iter().any(|verdict| !verdict.is_kept());
    if broken {
        let minutes = seconds / 60.0;
        println!("run it again: make soak SUITE=leases {chosen} SEED={seed} MINUTES={minutes}");
        println!(
            "judge it again: make soak SUITE=leases {chosen} CHECK={}",
            dir.path.display()
        );
    }
    assert!(!broken, "invariants were broken");
    table::assert_something_was_checked(&verdicts);
    dir.remove();
}

/// Of the etcds, where the store is in etcd.
fn release() -> Release {
    let chosen: String = setting("SOAK_ETCD").unwrap_or_else(|| Release::default().name().to_owned());
    let found = Release::ALL.into_iter().find(|release| release.name() == chosen);
    found.unwrap_or_else(|| panic!("SOAK_ETCD = {chosen} is no release of etcd that is tested"))
}

/// Where the record of a run goes. It stays unless the run was good.
struct Directory {
    path: PathBuf,
}

fn directory(called: &str, seed: u64) -> Directory {
    let kept = std::env::var("SOAK_DIR").ok().filter(|dir| !dir.is_empty());
    let root = kept.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/soak"),
        PathBuf::from,
    );
    let path = root.join(format!("{called}-{seed}"));
    let _old = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("make the directory of the record");
    Directory {
        path: path.canonicalize().expect("it was just made"),
    }
}

impl Directory {
    fn remove(self) {
        if std::env::var_os("SOAK_KEEP").is_none() {
            fs::remove_dir_all(&self.path).expect("remove the record");
        }
    }
}

fn run(store: StoreKind, etcd: Release, seed: u64, length: Duration, dir: &Path) {
    let mut arena = Arena::start(store, etcd, seed, dir);
    let begun = Instant::now();
    let plan: Vec<Planned> = Plan::new(store, seed).take(1_000).collect();
    save(&plan, dir);
    for (nth, planned) in plan.iter().enumerate() {
        if begun.elapsed() + planned.hold > length {
            break;
        }
        let ended = arena.suffer(planned);
        arena.mend();
        let silent = arena.wait_minting(ended, GIVE_UP);
        let back = moment::since(ended);
        let now = Instant::now();
        arena.was_late(pace::allowance(now - back, now, LATE));
        let back = back.as_millis();
        println!(
            "{:5.0} s {:>13} ids  {:3} {planned}: minting again {back} ms after its end",
            begun.elapsed().as_secs_f64(),
            table::thousands(arena.ids()),
            nth + 1,
        );
        if let Err(silent) = silent {
            println!("servers {silent:?} do not mint any more");
            break;
        }
        std::thread::sleep(planned.calm);
    }
    let (refusals, cuts) = arena.errors();
    println!("{refusals} calls were refused, {cuts} connections ended");
    arena.finish();
}

/// The whole plan is known from the seed; a run gets through as much of it as it has time for.
fn save(plan: &[Planned], dir: &Path) {
    let lines: Vec<String> = plan.iter().map(|planned| format!("{planned}\n")).collect();
    fs::write(dir.join("plan.txt"), lines.concat()).expect("save the plan");
}

fn judge(dir: &Path) -> Vec<Verdict> {
    let read = Instant::now();
    let history = files::read(dir);
    let checked = Instant::now();
    let verdicts = check(&history);
    table::print(&history, &verdicts);
    let mut by_kind: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (fault, after) in history.faults.iter().zip(alive::recoveries(&history)) {
        let kind = fault.name.split(['(', ' ']).next().unwrap_or_default().to_owned();
        by_kind
            .entry(kind)
            .or_default()
            .extend(after.into_iter().flatten());
    }
    table::print_recoveries(&history, &by_kind);
    let told = told::compare(dir, &history, SERVERS);
    println!("{told} steps are told alike by the record and the product's trail of lease events");
    println!(
        "read in {:.1} s, judged in {:.1} s",
        (checked - read).as_secs_f64(),
        checked.elapsed().as_secs_f64()
    );
    verdicts
}
