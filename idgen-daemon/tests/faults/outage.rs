//! etcd away for longer than the leases of shards and shorter than those of workers.
//!
//! At full length it is five minutes, with the TTLs of production: `make soak SUITE=outage`. Every run of the tests has
//! it in seconds, with the same proportions.

use std::time::{Duration, Instant};

use crate::kit::load::Report;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Load, LoadOptions, PATIENCE, Release, eventually_true, pace};
use crate::scene::{Scene, Stage, load_options};

/// Seconds of an outage at full length; set by make soak.
const SECONDS: &str = "IDGEN_OUTAGE_SECONDS";
const SECONDS_SHORT: u64 = 10;
/// Production: leases of workers last 600 s, those of shards 30 s, the outage 300 s.
const WORKER_TTL_PER_OUTAGE: u64 = 2;
const SHARD_TTLS_PER_OUTAGE: u64 = 10;
/// And they are renewed every 10 s.
const PERIODS_PER_OUTAGE: u128 = 30;
/// etcd grants no less.
const SHARD_TTL_S_MIN: u64 = 2;
/// What is minted for, on the first server.
const SHARD: i32 = 7;
/// Of the shards' TTL; the deadline is at 80 %, and a session sees it a little later.
const SHARDS_STOP_WITHIN_PERCENT: u32 = 90;
const SCHEDULING: Duration = Duration::from_secs(1);

struct Outage {
    length: Duration,
    shard_ttl: Duration,
}

impl Outage {
    fn of(seconds: u64) -> Outage {
        Outage {
            length: Duration::from_secs(seconds),
            shard_ttl: Duration::from_secs((seconds / SHARD_TTLS_PER_OUTAGE).max(SHARD_TTL_S_MIN)),
        }
    }

    fn stage(&self, release: Release) -> Scene {
        let ttl = self.length * u32::try_from(WORKER_TTL_PER_OUTAGE).expect("a small factor");
        let mut stage = Stage::new("out", release, ttl);
        stage.workers_more = format!("period_ms = {}", self.length.as_millis() / PERIODS_PER_OUTAGE);
        let mut scene = stage.set();
        let side = &mut scene.sides[0];
        side.terminate_daemon();
        side.options = side.options.clone().shards(&SHARD.to_string());
        side.options.shards = format!("ids = [{SHARD}]\nttl_ms = {}\n", self.shard_ttl.as_millis());
        side.launch_daemon();
        side.daemon().wait_ready();
        scene.under_load()
    }
}

fn shard_load(scene: &Scene) -> Load {
    let options = LoadOptions {
        shard: Some(SHARD),
        ..load_options()
    };
    let load = Load::run(&scene.sides[0].server, &options);
    load.wait_statements(5);
    load
}

/// Shards: their last id, and what was said afterwards.
fn assert_shards_stopped(shards: &Report, outage: &Outage, fault: Instant, healed: Instant) -> Duration {
    let stopped = shards
        .last_success_before(healed)
        .saturating_duration_since(fault);
    let most = outage.shard_ttl * SHARDS_STOP_WITHIN_PERCENT / 100 + SCHEDULING;
    assert!(
        stopped <= most,
        "shards minted on for {stopped:?}, {most:?} at most"
    );
    let refused = &shards.refusals;
    assert!(!refused.is_empty(), "calls fail while the shard has no lease");
    for refusal in refused {
        let expected = ["IG002", "IG004", "IG014", "IG001"].contains(&refusal.code.as_str());
        assert!(expected, "an error that says what has ended: {refusal:?}");
        assert!(
            refusal.text.contains("hint: ") && !refusal.text.contains("hint: -"),
            "{refusal:?}"
        );
    }
    stopped
}

fn outage(release: Release, outage: &Outage) {
    let mut scene = outage.stage(release);
    let tokens: Vec<i64> = scene.sides.iter().map(crate::scene::Side::worker_token).collect();
    let load = shard_load(&scene);

    let fault = Instant::now();
    scene.cluster.kill_all();
    scene.go_on_for(outage.length);
    let ceilings: Vec<i64> = scene.sides.iter().map(crate::scene::Side::ceiling_ms).collect();
    scene.cluster.run_all();
    let healed = Instant::now();
    // The outage was shorter than the workers' leases: renewed under the token that they had.
    for (side, before) in scene.sides.iter().zip(ceilings) {
        eventually_true(PATIENCE, "the workers are renewed", || side.ceiling_ms() > before);
    }
    let renewed = healed.elapsed();
    load.wait_statements(5);
    let limit = outage.shard_ttl * 2 + Duration::from_secs(2);
    let shards_back = pace::assert_within(healed, limit, "shards are back");
    let after: Vec<i64> = scene.sides.iter().map(crate::scene::Side::worker_token).collect();
    assert_eq!(after, tokens, "the workers' tokens are those of before");
    scene.recover();

    let shards = load.finish();
    let stopped = assert_shards_stopped(&shards, outage, fault, healed);
    shards.assert_rising();
    let mut ids = UniquenessRecorder::new();
    ids.extend(shards.snowflakes());
    ids.assert_unique("snowflakes of the shard", 100);
    scene.note(&format!(
        "etcd away for {} s, shards (TTL {} s) stopped after {:.1} s and were back {:.1} s after etcd, \
         workers (TTL {} s) renewed {:.1} s after etcd",
        outage.length.as_secs(),
        outage.shard_ttl.as_secs(),
        stopped.as_secs_f32(),
        shards_back.as_secs_f32(),
        scene.stage.ttl.as_secs(),
        renewed.as_secs_f32(),
    ));
    scene.finish().assert_nobody_noticed();
}

fn length() -> Outage {
    let seconds = std::env::var(SECONDS)
        .ok()
        .map(|text| text.parse().expect("a number of seconds"));
    Outage::of(seconds.unwrap_or(SECONDS_SHORT))
}

#[test]
fn an_outage_of_etcd_3_4_stops_shards_and_no_worker() {
    outage(Release::V3_4, &length());
}

#[test]
fn an_outage_of_etcd_3_5_stops_shards_and_no_worker() {
    outage(Release::V3_5, &length());
}
