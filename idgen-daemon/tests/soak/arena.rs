//! Three servers, their daemons, the store, and who watches them.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use idgen_core::clock::UnixMs;
use idgen_core::history::Moment;
use idgen_core::lease::ledger::PlannedGrant;
use idgen_core::lease::{BootId, Class, GrantPlan, Identity, InstanceId, Leased, Window};
use idgen_daemon::lease::{
    EtcdConfig, EtcdSecurity, EtcdStore, Expected, HolderName, LeaseStore, PostgresStore, PostgresStoreConfig,
};
use uuid::Uuid;

use crate::files::{EVENTS, Lines, Record, TOLD};
use crate::kit::etcd::Release;
use crate::kit::process::Signal;
use crate::kit::{Daemon, DaemonOptions, EtcdCluster, Proxy, Server, ServerOptions, Store, eventually};
use crate::mint::{Minters, SHARD};
use crate::plan::{CLOCK_SERVER, PERIOD_MS, SERVERS, StoreKind, TTL_MS};
use crate::trail::Trail;
use crate::{logs, told, trail_etcd, trail_postgres};

/// Workers of each server.
const WORKERS: u32 = 2;
/// All other workers are held by somebody for the whole run, so that these change hands all the time.
const FREE_WORKERS: u16 = 14;
/// That somebody. What it holds is of no interest.
pub const FILLER: Uuid = Uuid::from_u128(0xF111_E500_0000_4000_8000_0000_0000_0001);
const FILLER_TTL_MS: u64 = 86_400_000;
/// One transaction of etcd takes 128 operations.
const FILL_AT_ONCE: usize = 60;
const FIRST_IDS: Duration = Duration::from_secs(30);

pub struct Arena {
    pub servers: Vec<Server>,
    pub options: Vec<DaemonOptions>,
    pub daemons: Vec<Option<Daemon>>,
    /// Of a store in etcd.
    pub cluster: Option<EtcdCluster>,
    /// A standby that was promoted: the store is its database. None: it is in the first of the servers, or in etcd.
    pub promoted: Option<Server>,
    /// So many were promoted.
    pub promotions: u32,
    /// To each member, for each daemon.
    pub proxies: Vec<Vec<Proxy>>,
    pub minters: Vec<Minters>,
    pub trail: Option<Trail>,
    pub events: Lines,
    told: Lines,
    pub dir: PathBuf,
    lives: usize,
}

impl Arena {
    /// Everything runs, and every server mints.
    pub fn start(kind: StoreKind, etcd: Release, seed: u64, dir: &Path) -> Arena {
        let servers = start_servers(kind);
        let cluster = (kind == StoreKind::Etcd).then(|| EtcdCluster::start(etcd));
        let proxies: Vec<Vec<Proxy>> = match &cluster {
            Some(cluster) => (0..SERVERS)
                .map(|_| {
                    cluster
                        .members
                        .iter()
                        .map(|member| Proxy::to(member.addr()))
                        .collect()
                })
                .collect(),
            None => Vec::new(),
        };
        fill_pool(&servers[0], cluster.as_ref());
        let trail = match &cluster {
            Some(cluster) => trail_etcd::start(cluster.endpoints(), dir),
            None => trail_postgres::start(&servers[0], dir, 0),
        };
        let options: Vec<DaemonOptions> = (0..SERVERS)
            .map(|n| daemon_options(n, &servers, &proxies))
            .collect();
        let mut arena = Arena {
            options,
            daemons: (0..SERVERS).map(|_| None).collect(),
            cluster,
            promoted: None,
            promotions: 0,
            proxies,
            minters: Vec::new(),
            trail: Some(trail),
            events: Lines::append(&dir.join(EVENTS)),
            told: Lines::append(&dir.join(TOLD)),
            dir: dir.to_owned(),
            lives: 0,
            servers,
        };
        arena.events.write(&Record::Run {
            store: kind,
            seed,
            servers: SERVERS as u8,
            ttl_ms: TTL_MS,
            period_ms: PERIOD_MS,
            shard_ttl_ms: TTL_MS,
        });
        for n in 0..SERVERS {
            arena.launch(n);
            arena
                .minters
                .push(Minters::start(&arena.servers[n], n, seed, dir));
        }
        arena
            .wait_minting(Moment(0), FIRST_IDS)
            .expect("every server mints");
        arena
    }

    pub fn launch(&mut self, n: usize) {
        self.daemons[n] = Some(self.options[n].launch());
    }

    pub fn daemon(&self, n: usize) -> &Daemon {
        self.daemons[n].as_ref().expect("the daemon runs")
    }

    /// Of a store in Postgres.
    pub fn store_server(&self) -> &Server {
        self.promoted.as_ref().unwrap_or(&self.servers[0])
    }

    pub fn trail(&self) -> &Trail {
        self.trail.as_ref().expect("a recorder")
    }

    /// Ends a daemon with this signal, and keeps what it has logged.
    pub fn end_daemon(&mut self, n: usize, signal: Signal) {
        let mut daemon = self.daemons[n].take().expect("the daemon runs");
        daemon.signal(signal);
        daemon.wait_exit();
        self.lives += 1;
        let log = daemon.log();
        logs::copy(&log, &self.told);
        std::fs::write(self.dir.join(format!("daemon-{n}-{}.log", self.lives)), log).expect("keep a log");
    }

    /// Waits until every server has minted in a call that began after `from`; which have not, if it takes longer.
    pub fn wait_minting(&mut self, from: Moment, limit: Duration) -> Result<(), Vec<usize>> {
        let begun = std::time::Instant::now();
        loop {
            let minted = |n: &usize| self.minters[*n].progress.minted_at() > from;
            let silent: Vec<usize> = (0..SERVERS).filter(|n| !minted(n)).collect();
            if silent.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > limit {
                return Err(silent);
            }
            for n in 0..SERVERS {
                if let Some(status) = self.daemons[n].as_mut().and_then(Daemon::exited) {
                    panic!("daemon {n} has ended: {status}");
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn ids(&self) -> u64 {
        self.minters.iter().map(|minters| minters.progress.ids()).sum()
    }

    /// Errors of calls, and connections that have ended.
    pub fn errors(&self) -> (u64, u64) {
        let progress = || self.minters.iter().map(|minters| &minters.progress);
        (
            progress().map(|all| all.refusals()).sum(),
            progress().map(|all| all.cuts()).sum(),
        )
    }

    /// Ends everything in order: sessions, daemons (which give their leases back), the recorder.
    pub fn finish(mut self) {
        for minters in self.minters.drain(..) {
            minters.finish();
        }
        for n in 0..SERVERS {
            self.end_daemon(n, Signal::TERM);
        }
        if let Some(trail) = self.trail.take() {
            trail.finish();
        }
        // An embedded store has one trail, which went over to the standby that was promoted last.
        let sinks = match &self.promoted {
            Some(promoted) => vec![promoted],
            None => self.servers.iter().collect(),
        };
        for (n, sink) in sinks.into_iter().enumerate() {
            told::keep(sink, n, &self.dir);
        }
    }
}

fn start_servers(kind: StoreKind) -> Vec<Server> {
    let starting: Vec<_> = (0..SERVERS)
        .map(|n| {
            let is_store = kind == StoreKind::Postgres && n == 0;
            let logical = is_store.then(|| "wal_level = 'logical'".to_owned());
            let options = ServerOptions {
                own_identity: true,
                fake_clock: n == CLOCK_SERVER,
                settings: logical.into_iter().collect(),
                ..ServerOptions::default()
            };
            thread::spawn(|| Server::with(options))
        })
        .collect();
    let started = starting
        .into_iter()
        .map(|server| server.join().expect("start a server"));
    started.collect()
}

fn daemon_options(n: usize, servers: &[Server], proxies: &[Vec<Proxy>]) -> DaemonOptions {
    let store = match proxies.get(n) {
        Some(proxies) => Store::behind(proxies),
        None if n == 0 => Store::Embedded,
        None => Store::on(&servers[0]),
    };
    DaemonOptions::new(&servers[n])
        .name(&format!("soak-{n}"))
        .store(store)
        .workers(WORKERS)
        .ttl_ms(TTL_MS)
        .shards(&SHARD.to_string())
        .log_level("debug")
}

/// Makes the cell, and takes all workers of the first epoch but a few out of it for a day.
fn fill_pool(server: &Server, cluster: Option<&EtcdCluster>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let holder = HolderName {
        instance: InstanceId(FILLER.as_u128()),
        name: "filler".to_owned(),
    };
    let request_timeout = Duration::from_secs(5);
    match cluster {
        Some(cluster) => {
            let config = EtcdConfig {
                class: Class::Worker,
                endpoints: cluster.endpoints(),
                prefix: trail_etcd::PREFIX.to_owned(),
                security: EtcdSecurity::default(),
                request_timeout,
                ttl_ms: FILLER_TTL_MS,
                holder,
            };
            runtime.block_on(fill(|| EtcdStore::new(config.clone())));
        }
        None => {
            let config = PostgresStoreConfig {
                class: Class::Worker,
                url: server.daemon_url().parse().expect("a URL"),
                connect_timeout: request_timeout,
                request_timeout,
                ttl_ms: FILLER_TTL_MS,
                holder,
            };
            runtime.block_on(fill(|| PostgresStore::new(config.clone())));
        }
    }
}

/// Each transaction by a store of its own: one keeps the lease of its latest grant only.
async fn fill<S: LeaseStore>(open: impl Fn() -> S) {
    let taken: Vec<u16> = (FREE_WORKERS..Class::Worker.size() / 2).collect();
    for identities in taken.chunks(FILL_AT_ONCE) {
        let mut store = open();
        store.expect(Expected::Nothing);
        let cell = store.read().await.expect("read the store").cell;
        let grants = identities.iter().map(|identity| PlannedGrant {
            leased: Leased {
                identity: Identity(*identity),
                window: Window {
                    floor: UnixMs(1),
                    ceiling: UnixMs(2),
                },
            },
            generation: 1,
            seen: None,
            replaces: None,
        });
        let plan = GrantPlan {
            epoch: cell.epoch,
            epoch_nonce: cell.epoch_nonce,
            formats: cell.worker_format,
            boot_id: BootId(1),
            grants: grants.collect(),
        };
        store.grant(&plan).await.expect("fill the pool");
    }
}

/// A process of the server that mints.
pub fn minting_backend(server: &Server) -> u32 {
    let sql = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%idgen_snowflake_batch%' \
               AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    backend(server, sql)
}

/// The processes of the store that serve daemons.
pub fn store_sessions(server: &Server) -> Vec<u32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'idgend store'";
    let mut client = server.connect();
    crate::kit::sql::column::<i32>(&mut client, sql)
        .into_iter()
        .map(|pid| u32::try_from(pid).expect("a pid"))
        .collect()
}

fn backend(server: &Server, sql: &str) -> u32 {
    let mut client = server.connect();
    let pid = eventually(Duration::from_secs(10), "a session mints", || {
        crate::kit::sql::column::<i32>(&mut client, sql).first().copied()
    });
    u32::try_from(pid).expect("a pid")
}
