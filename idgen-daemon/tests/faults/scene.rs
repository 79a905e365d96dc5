//! Where a fault is run: two servers whose daemons share one pool in a cluster of three etcds, each daemon behind
//! proxies of its own, and sessions that mint on both servers all the time.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::kit::load::{Refusal, Report};
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{
    Daemon, DaemonOptions, EtcdCluster, EtcdOptions, Load, LoadOptions, Mode, PATIENCE, Proxy, Release,
    Scratch, Server, ServerOptions, Store, eventually, eventually_true, pace, sql,
};

/// A file that takes a line per fault with what was measured; `make test` shows it.
const MEASURED: &str = "IDGEN_FAULTS_MEASURED";
/// Of the default margin of 20 %.
const USABLE_PERCENT: u32 = 80;
/// A period is a third of the TTL, and up to a tenth longer.
const PERIOD_PERCENT_MAX: u32 = 37;
/// What scheduling on a busy machine adds to a moment that a session or the test itself sees.
const SCHEDULING: Duration = Duration::from_millis(700);
/// SQLSTATEs of a lease that has ended: none, window used up, deadline passed, shard not leased.
pub const LEASE_ENDED: [&str; 4] = ["IG001", "IG002", "IG004", "IG014"];

/// Longer than two requests that fail and one that is slow: such a fault must not be noticed.
pub const RIDE: Duration = Duration::from_secs(9);
/// As short as etcd allows with room for a round trip: a fault that must end the minting.
pub const FENCE: Duration = Duration::from_secs(4);

/// What a test chooses.
pub struct Stage {
    pub fault: &'static str,
    pub release: Release,
    pub ttl: Duration,
    pub etcd: EtcdOptions,
    pub server: ServerOptions,
    pub members: usize,
    /// More lines of section `[workers]` of the daemons.
    pub workers_more: String,
    /// More lines of section `[store]` of the daemons, and the files that they name.
    pub store_more: String,
    pub files: Option<Scratch>,
}

impl Stage {
    pub fn new(fault: &'static str, release: Release, ttl: Duration) -> Stage {
        Stage {
            fault,
            release,
            ttl,
            etcd: EtcdOptions::of(release),
            server: ServerOptions::default(),
            members: 3,
            workers_more: String::new(),
            store_more: String::new(),
            files: None,
        }
    }

    pub fn set(self) -> Scene {
        Scene::set(self)
    }
}

/// One server with its daemon, and how that reaches etcd.
pub struct Side {
    pub server: Server,
    pub options: DaemonOptions,
    pub daemon: Option<Daemon>,
    pub proxies: Vec<Proxy>,
    load: Option<Load>,
    reports: Vec<Report>,
}

impl Side {
    fn set(stage: &Stage, server: Server, cluster: &EtcdCluster, name: &str) -> Side {
        let proxies: Vec<Proxy> = cluster
            .members
            .iter()
            .map(|member| Proxy::to(member.addr()))
            .collect();
        let ttl_ms = u64::try_from(stage.ttl.as_millis()).expect("a TTL in ms");
        let options = DaemonOptions::new(&server)
            .name(name)
            .store(Store::behind(&proxies))
            .store_more(&stage.store_more)
            .workers_more(&stage.workers_more)
            .ttl_ms(ttl_ms);
        let daemon = Some(options.launch());
        Load::make_tag(&server);
        Side {
            server,
            options,
            daemon,
            proxies,
            load: None,
            reports: Vec::new(),
        }
    }

    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("the daemon runs")
    }

    /// All ways to etcd at once.
    pub fn network(&self, mode: Mode) {
        self.proxies.iter().for_each(|proxy| proxy.set(mode));
    }

    pub fn client(&self) -> Client {
        eventually(PATIENCE, "the server accepts a session", || {
            self.server.try_connect().ok()
        })
    }

    /// Identities that mint now, and the newest token.
    pub fn open(&self) -> (Vec<i32>, i64) {
        let mut client = self.client();
        let identities = sql::column(
            &mut client,
            "SELECT identity FROM idgen.slots WHERE state = 'open' ORDER BY identity",
        );
        let token = "SELECT coalesce(max(token_revision), 0) FROM idgen.slot_states() WHERE state = 'open'";
        (identities, sql::value(&mut client, token))
    }

    pub fn token(&self) -> i64 {
        self.open().1
    }

    pub fn worker_token(&self) -> i64 {
        let token = "SELECT coalesce(max(token_revision), 0) FROM idgen.slot_states()
                      WHERE state = 'open' AND kind = 'worker'";
        sql::value(&mut self.client(), token)
    }

    pub fn ceiling_ms(&self) -> i64 {
        let ceiling = "SELECT coalesce(max(ceiling_ms), 0) FROM idgen.slot_states()
                        WHERE state = 'open' AND kind = 'worker'";
        sql::value(&mut self.client(), ceiling)
    }

    pub fn deadline_ms(&self) -> i64 {
        let deadline = "SELECT coalesce(max(deadline_ms), 0) FROM idgen.slot_states() WHERE state = 'open'";
        sql::value(&mut self.client(), deadline)
    }

    pub fn boottime_ms(&self) -> i64 {
        sql::value(&mut self.client(), "SELECT boottime_ms FROM idgen.server_clock()")
    }

    pub fn boot_id(&self) -> String {
        sql::value(&mut self.client(), "SELECT boot_id::text FROM idgen.health")
    }

    pub fn start_load(&mut self, options: &LoadOptions) {
        self.load = Some(Load::run(&self.server, options));
    }

    /// Processes of the sessions of the load.
    pub fn minting_pids(&self) -> Vec<u32> {
        let running = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%idgen_segment(''load'')%' AND pid <> pg_backend_pid()";
        let pids: Vec<i32> = sql::column(&mut self.client(), running);
        pids.into_iter()
            .map(|pid| u32::try_from(pid).expect("a pid"))
            .collect()
    }

    pub fn stop_load(&mut self) {
        if let Some(load) = self.load.take() {
            self.reports.push(load.finish());
        }
    }

    /// This many more statements are answered.
    pub fn wait_statements(&self, more: u64) {
        self.load.as_ref().expect("a load").wait_statements(more);
    }

    /// Minting begins again; how long that took.
    pub fn wait_minting(&self) -> Duration {
        let asked = Instant::now();
        self.wait_statements(2);
        asked.elapsed()
    }

    /// The sessions do what they are in the middle of once `wake` was called, and no more.
    pub fn stop_load_after(&mut self, wake: impl FnOnce()) {
        let load = self.load.take().expect("a load");
        load.ask_to_stop();
        wake();
        self.reports.push(load.finish());
    }

    /// kill -9; the server keeps what it has.
    pub fn kill_daemon(&mut self) {
        self.daemon.take().expect("the daemon runs").kill();
    }

    pub fn terminate_daemon(&mut self) {
        self.daemon.take().expect("the daemon runs").terminate();
    }

    pub fn launch_daemon(&mut self) {
        self.daemon = Some(self.options.launch());
    }

    pub fn wait_stopped(&self) {
        eventually_true(PATIENCE, "no slot is open", || self.open().0.is_empty());
    }
}

pub struct Scene {
    pub stage: Stage,
    pub cluster: EtcdCluster,
    pub sides: Vec<Side>,
    /// Snowflakes that no load took.
    pub others: Vec<i64>,
    measured: Vec<String>,
}

impl Scene {
    fn set(stage: Stage) -> Scene {
        // The scope waits for the cluster, and so stops it, where a server does not start.
        let (cluster, servers) = thread::scope(|scope| {
            let starting = scope.spawn(|| EtcdCluster::with(stage.etcd.clone(), stage.members));
            let servers = Server::several_with(2, &stage.server);
            (starting.join().expect("start the cluster"), servers)
        });
        let sides: Vec<Side> = servers
            .into_iter()
            .zip(["left", "right"])
            .map(|(server, name)| Side::set(&stage, server, &cluster, name))
            .collect();
        let mut scene = Scene {
            stage,
            cluster,
            sides,
            others: Vec::new(),
            measured: Vec::new(),
        };
        for side in &mut scene.sides {
            side.daemon().wait_ready();
        }
        scene
    }

    /// Sessions on both servers, which do not wait for a lease: a fence shows at once.
    pub fn under_load(mut self) -> Scene {
        let options = load_options();
        for side in &mut self.sides {
            side.start_load(&options);
        }
        self.wait_minting();
        self
    }

    pub fn wait_minting(&self) {
        for side in &self.sides {
            side.wait_statements(10);
        }
    }

    /// From the last renewal to its deadline.
    pub fn usable(&self) -> Duration {
        self.stage.ttl * USABLE_PERCENT / 100
    }

    pub fn period(&self) -> Duration {
        self.stage.ttl * PERIOD_PERCENT_MAX / 100
    }

    /// Issue 4: back within TTL + 2 P + 2 s once the fault is over.
    pub fn recovery_limit(&self) -> Duration {
        self.stage.ttl + self.period() * 2 + Duration::from_secs(2)
    }

    /// Everything goes on for this long: longer than a lease that nobody renews.
    pub fn go_on_for(&self, duration: Duration) {
        let until = Instant::now() + duration;
        while Instant::now() < until {
            self.wait_minting();
            // Longer than a session needs for what was waited for: this costs no processor.
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all minting has stopped, which a fault of this moment must bring about.
    pub fn wait_stopped(&self) {
        self.sides.iter().for_each(Side::wait_stopped);
    }

    /// After the fault: everything mints again within the limit, and says it is ready.
    pub fn recover(&mut self) -> Duration {
        let healed = Instant::now();
        for side in &self.sides {
            side.wait_minting();
        }
        let took = healed.elapsed();
        let limit = self.recovery_limit();
        pace::assert_took(healed, healed + took, limit, "minting is back");
        for side in &mut self.sides {
            side.daemon().wait_ready();
        }
        self.note(&format!("back in {:.1} s", took.as_secs_f32()));
        took
    }

    /// For the line of this fault in what was measured.
    pub fn note(&mut self, what: &str) {
        self.measured.push(what.to_owned());
    }

    /// Ends the load and looks at every id of both servers: none twice, those of a session rise.
    pub fn finish(mut self) -> Outcome {
        self.sides.iter_mut().for_each(Side::stop_load);
        let reports: Vec<Vec<Report>> = self
            .sides
            .iter_mut()
            .map(|side| side.reports.drain(..).collect())
            .collect();
        let outcome = Outcome {
            reports,
            others: std::mem::take(&mut self.others),
            usable: self.usable(),
            period: self.period(),
        };
        let ids = outcome.assert_unique();
        self.note(&format!("{ids} ids"));
        self.write_measured();
        outcome
    }

    fn write_measured(&self) {
        let version = self.stage.release.version();
        let line = format!(
            "{:<5} etcd {version:<7} {}\n",
            self.stage.fault,
            self.measured.join(", ")
        );
        print!("{line}");
        if let Some(path) = std::env::var_os(MEASURED) {
            let mut file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .expect("open the file of measurements");
            file.write_all(line.as_bytes()).expect("write what was measured");
        }
    }
}

/// How far the furthest deadline of a server lies ahead of its boot clock; 0: nothing is open.
pub fn deadline_ahead_ms(client: &mut Client) -> i64 {
    let ahead = "SELECT coalesce(max(deadline_ms) - (SELECT boottime_ms FROM idgen.server_clock()), 0)
                   FROM idgen.slot_states() WHERE state = 'open'";
    sql::value(client, ahead)
}

/// Light enough for a dozen servers on two processors.
pub fn load_options() -> LoadOptions {
    LoadOptions {
        pause: Duration::from_millis(4),
        settings: "SET synchronous_commit = off; SET idgen.lease_wait_ms = 0".to_owned(),
        ..LoadOptions::sessions(2)
    }
}

/// What the sessions of each server saw.
pub struct Outcome {
    reports: Vec<Vec<Report>>,
    others: Vec<i64>,
    usable: Duration,
    period: Duration,
}

impl Outcome {
    /// Snowflakes and UUIDs over all servers, numbers of the tag within each.
    fn assert_unique(&self) -> usize {
        let (mut snowflakes, mut uuids) = (UniquenessRecorder::new(), UniquenessRecorder::new());
        let mut count = 0;
        for reports in &self.reports {
            let mut segments = UniquenessRecorder::new();
            for batch in reports.iter().flat_map(|report| &report.batches) {
                snowflakes.extend(batch.snowflakes.iter().copied());
                uuids.extend(batch.uuids.iter().copied());
                segments.extend(batch.segments.iter().copied());
                count += batch.snowflakes.len();
            }
            segments.assert_unique("segment numbers of one server", 1);
            reports.iter().for_each(Report::assert_rising);
        }
        snowflakes.extend(self.others.iter().copied());
        snowflakes.assert_unique("snowflakes of both servers", 1_000);
        uuids.assert_unique("uuids of both servers", 1_000);
        count
    }

    pub fn refusals_of(&self, side: usize) -> usize {
        self.refusals(side).count()
    }

    fn refusals(&self, side: usize) -> impl Iterator<Item = &Refusal> {
        self.reports[side].iter().flat_map(|report| &report.refusals)
    }

    pub fn assert_nobody_noticed(&self) {
        (0..self.reports.len()).for_each(|side| self.assert_unnoticed_by(side));
    }

    pub fn assert_unnoticed_by(&self, side: usize) {
        let count = self.refusals(side).count();
        assert_eq!(count, 0, "side {side}: such as {:?}", self.refusals(side).next());
    }

    /// The minting of a side ended at its deadline after the fault, neither sooner nor later, and what was refused
    /// says that the lease has ended.
    pub fn assert_fenced(&self, side: usize, fault: Instant, healed: Instant) -> Duration {
        self.assert_fenced_with_slack(side, fault, healed, Duration::ZERO)
    }

    /// The same for a fault that takes up to `slack` to come about.
    pub fn assert_fenced_with_slack(
        &self,
        side: usize,
        fault: Instant,
        healed: Instant,
        slack: Duration,
    ) -> Duration {
        let given = self.reports[side].iter().flat_map(|report| &report.batches);
        let last = given
            .map(|batch| batch.started)
            .filter(|started| *started < healed)
            .max()
            .expect("ids before the heal");
        let stopped = last.saturating_duration_since(fault);
        let (least, most) = (
            self.usable.saturating_sub(self.period + SCHEDULING),
            self.usable + SCHEDULING + slack,
        );
        assert!(
            (least..=most).contains(&stopped),
            "side {side} minted on for {stopped:?}, expected {least:?} to {most:?}"
        );
        self.assert_refused_for_the_lease(side);
        stopped
    }

    /// The first server stopped at its deadline, and the other one noticed nothing.
    pub fn assert_only_first_fenced(&self, fault: Instant, healed: Instant) -> Duration {
        let stopped = self.assert_fenced(0, fault, healed);
        self.assert_unnoticed_by(1);
        stopped
    }

    /// The first server refused for its lease, and the other one noticed nothing.
    pub fn assert_only_first_refused(&self) {
        self.assert_refused_for_the_lease(0);
        self.assert_unnoticed_by(1);
    }

    /// The first server refused at most with these, and the other one noticed nothing.
    pub fn assert_only_first_noticed(&self, codes: &[&str]) {
        self.assert_refused_at_most_for(0, codes);
        self.assert_unnoticed_by(1);
    }

    /// Something was refused, and nothing but for a lease that has ended.
    pub fn assert_refused_for_the_lease(&self, side: usize) {
        assert!(
            self.refusals(side).next().is_some(),
            "side {side} was refused nothing"
        );
        self.assert_refused_at_most_for_the_lease(side);
    }

    pub fn assert_refused_at_most_for_the_lease(&self, side: usize) {
        self.assert_refused_at_most_for(side, &LEASE_ENDED);
    }

    pub fn assert_refused_at_most_for(&self, side: usize, codes: &[&str]) {
        let other = self
            .refusals(side)
            .find(|refusal| !codes.contains(&refusal.code.as_str()));
        assert!(other.is_none(), "side {side}: {other:?}");
    }
}
