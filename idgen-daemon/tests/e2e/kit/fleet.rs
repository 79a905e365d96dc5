//! Many keepers at once: real keepers on a real store, each with a stand-in for its Postgres server.
//!
//! The stand-ins follow the rules of the extension that matter here, and keep one book: an identity that two of them
//! have open at a time is written down, and so is a floor that is not above what was minted of it.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::keeper::Held;
use idgen_core::lease::{
    Anchor, BootId, Cell, CellId, Claim, Class, GrantPlan, Identity, InstanceId, Mark, Reach, Snapshot,
    Timing, Token, Wanted,
};
use idgen_daemon::config::ClassConfig;
use idgen_daemon::error::Result;
use idgen_daemon::lease::{
    ClockInputs, Committed, Connect, EtcdConfig, EtcdSecurity, EtcdStore, Expected, HolderName, Keeper,
    KeeperConfig, LeaseStore, MintingServer, Renewal, Report, Seal, StoreError, StoreErrorKind,
    accept_channel, host_clock, order_channel,
};
use idgen_daemon::metrics::Metrics;
use idgen_daemon::postgres::{InstallOutcome, OpenSlot, ServerClock, ServerMemory};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Etcd, eventually_true};

/// As the default of the configuration.
const POLL: Duration = Duration::from_millis(500);
const REACH: Reach = Reach {
    timeout_ms: 1_000,
    members: 1,
};

type StoreResult<T> = std::result::Result<T, StoreError>;

/// What happened, over all servers.
#[derive(Default)]
pub struct Book {
    /// Who has an identity open, and until when by the common boot clock.
    open: BTreeMap<Identity, (InstanceId, Claim, BootMs)>,
    /// The highest time that anybody may have minted of it.
    minted: BTreeMap<Identity, UnixMs>,
    /// What must not happen.
    pub violations: Vec<String>,
    /// Installations.
    pub installs: u64,
    pub grants: Calls,
    pub renewals: Calls,
    /// Grants that met rows which others had changed.
    pub conflicts: u64,
    /// The most grants that one keeper needed until it had a lease.
    pub tries_max: u64,
}

/// How long calls took that did what they should.
#[derive(Default)]
pub struct Calls(pub Vec<Duration>);

impl Calls {
    /// The share `percent` took no longer.
    pub fn quantile(&mut self, percent: usize) -> Duration {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// Stores of workers in one etcd, for whoever is named.
pub fn on_etcd(etcd: &Etcd, limit: Duration, ttl_ms: u64) -> impl Fn(HolderName) -> EtcdStore {
    let endpoint = etcd.endpoint();
    move |holder| {
        EtcdStore::new(EtcdConfig {
            class: Class::Worker,
            endpoints: vec![endpoint.clone()],
            security: EtcdSecurity::default(),
            prefix: "/fleet".to_owned(),
            request_timeout: limit,
            ttl_ms,
            holder,
        })
    }
}

/// One that holds nothing, and looks.
pub fn somebody() -> HolderName {
    HolderName {
        instance: InstanceId(1),
        name: "somebody".to_owned(),
    }
}

type SharedBook = Arc<Mutex<Book>>;

/// The stand-in for one Postgres server.
#[derive(Clone)]
struct Stand {
    instance: InstanceId,
    began: Instant,
    book: SharedBook,
    memory: Arc<Mutex<Memory>>,
}

struct Memory {
    boot_id: BootId,
    slots: BTreeMap<Identity, Slot>,
    anchor: Option<Anchor>,
}

#[derive(Clone, Copy)]
struct Slot {
    token: Token,
    ceiling: UnixMs,
    open: bool,
}

impl Stand {
    fn boot(&self) -> BootMs {
        // Any beginning will do.
        let since = u64::try_from(self.began.elapsed().as_millis()).expect("fits");
        BootMs(1_000_000 + since)
    }

    /// Opens or extends; the book is told.
    fn open(&self, held: &Held, extends: bool) -> InstallOutcome {
        let mut memory = self.memory.lock().expect("not poisoned");
        if memory.boot_id != held.boot_id {
            return InstallOutcome::Forgot;
        }
        let mut book = self.book.lock().expect("not poisoned");
        let now = self.boot();
        book.installs += u64::from(!extends);
        for leased in &held.leased {
            let (identity, window) = (leased.identity, leased.window);
            let claim = Claim {
                identity,
                token: leased.token,
            };
            if let Some((other, theirs, until)) = book.open.get(&identity).copied()
                && other != self.instance
                && now < until
            {
                book.violations
                    .push(format!("{identity}: {theirs:?} and {claim:?} at once"));
            }
            let minted = book.minted.entry(identity).or_default();
            let below = (!extends && window.floor <= *minted).then_some(*minted);
            *minted = (*minted).max(window.ceiling);
            if let Some(minted) = below {
                book.violations.push(format!(
                    "{identity}: floor {:?} is not above {minted:?}",
                    window.floor
                ));
            }
            book.open.insert(identity, (self.instance, claim, held.deadline));
            let slot = Slot {
                token: leased.token,
                ceiling: window.ceiling,
                open: true,
            };
            memory.slots.insert(identity, slot);
        }
        InstallOutcome::Done
    }
}

impl Connect for Stand {
    type Server = Self;

    async fn connect(&self, _class: Class) -> Result<Self> {
        Ok(self.clone())
    }
}

impl MintingServer for Stand {
    fn is_usable(&mut self) -> bool {
        true
    }

    async fn server_clock(&self) -> Result<ServerClock> {
        Ok(ServerClock {
            boot_id: self.memory.lock().expect("not poisoned").boot_id,
            clock: ClockReading {
                wall: host_clock(),
                boot: self.boot(),
            },
            cell_id: None,
        })
    }

    async fn slots(&self) -> Result<Vec<OpenSlot>> {
        let memory = self.memory.lock().expect("not poisoned");
        let slot = |(identity, slot): (&Identity, &Slot)| OpenSlot {
            claim: Claim {
                identity: *identity,
                token: slot.token,
            },
            open: slot.open,
            bound: slot.ceiling,
        };
        Ok(memory.slots.iter().map(slot).collect())
    }

    async fn memory(&self) -> Result<ServerMemory> {
        let memory = self.memory.lock().expect("not poisoned");
        Ok(ServerMemory {
            anchors: memory.anchor.iter().cloned().collect(),
            ..ServerMemory::default()
        })
    }

    async fn remember(&self, boot_id: BootId, anchor: &Anchor, _asked: BootMs) -> Result<InstallOutcome> {
        let mut memory = self.memory.lock().expect("not poisoned");
        if memory.boot_id != boot_id {
            return Ok(InstallOutcome::Forgot);
        }
        memory.anchor = Some(anchor.clone());
        Ok(InstallOutcome::Done)
    }

    async fn install(&self, held: &Held, _cell: &Cell, _anchor: ClockReading) -> Result<InstallOutcome> {
        Ok(self.open(held, false))
    }

    async fn extend(
        &self,
        held: &Held,
        _cell: &Cell,
        _anchor: Option<ClockReading>,
    ) -> Result<InstallOutcome> {
        Ok(self.open(held, true))
    }

    async fn fence(&self, boot_id: BootId, claims: &[Claim]) -> Result<Option<Vec<Mark>>> {
        let mut memory = self.memory.lock().expect("not poisoned");
        if memory.boot_id != boot_id {
            return Ok(None);
        }
        let mut book = self.book.lock().expect("not poisoned");
        let mut marks = Vec::new();
        for claim in claims {
            let Some(slot) = memory.slots.get_mut(&claim.identity) else {
                continue;
            };
            if slot.token != claim.token {
                continue;
            }
            slot.open = false;
            let last = slot.ceiling.min(host_clock());
            book.minted.insert(claim.identity, last);
            book.open.remove(&claim.identity);
            marks.push(Mark { claim: *claim, last });
        }
        Ok(Some(marks))
    }

    async fn closed(&mut self) {
        pending().await
    }
}

/// A real store, with a clock at its door.
struct Timed<S> {
    store: S,
    book: SharedBook,
    tries: u64,
}

impl<S: LeaseStore> LeaseStore for Timed<S> {
    fn expect(&mut self, expected: Expected) {
        self.store.expect(expected);
    }

    async fn read(&mut self) -> StoreResult<Snapshot> {
        self.store.read().await
    }

    async fn grant(&mut self, plan: &GrantPlan) -> StoreResult<Committed> {
        let asked = Instant::now();
        let granted = self.store.grant(plan).await;
        self.tries += 1;
        let mut book = self.book.lock().expect("not poisoned");
        match &granted {
            Ok(_) => {
                book.grants.0.push(asked.elapsed());
                book.tries_max = book.tries_max.max(self.tries);
                self.tries = 0;
            }
            Err(error) => book.conflicts += u64::from(error.kind == StoreErrorKind::Conflict),
        }
        granted
    }

    async fn renew(&mut self, renewal: &Renewal) -> StoreResult<Committed> {
        let asked = Instant::now();
        let renewed = self.store.renew(renewal).await?;
        self.book
            .lock()
            .expect("not poisoned")
            .renewals
            .0
            .push(asked.elapsed());
        Ok(renewed)
    }

    async fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> StoreResult<Vec<Mark>> {
        self.store.release(boot_id, marks).await
    }

    async fn seal(&mut self, seal: &Seal) -> StoreResult<bool> {
        self.store.seal(seal).await
    }
}

struct Member {
    instance: InstanceId,
    memory: Arc<Mutex<Memory>>,
    report: watch::Receiver<Report>,
    running: JoinHandle<Result<()>>,
}

/// See the module.
pub struct Fleet {
    runtime: Runtime,
    workers: usize,
    timing: Timing,
    began: Instant,
    metrics: Metrics,
    stop: CancellationToken,
    members: Vec<Member>,
    pub book: SharedBook,
}

impl Fleet {
    /// Nobody yet.
    pub fn new(workers: usize, timing: Timing) -> Fleet {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("runtime");
        Fleet {
            runtime,
            workers,
            timing,
            began: Instant::now(),
            metrics: Metrics::new().expect("metrics"),
            stop: CancellationToken::new(),
            members: Vec::new(),
            book: SharedBook::default(),
        }
    }

    /// Starts that many keepers in one moment.
    pub fn launch<S: LeaseStore>(&mut self, count: usize, open: impl Fn(HolderName) -> S) {
        for _ in 0..count {
            let instance = InstanceId(Uuid::new_v4().as_u128());
            let memory = Arc::new(Mutex::new(Memory {
                boot_id: BootId(Uuid::new_v4().as_u128()),
                slots: BTreeMap::new(),
                anchor: None,
            }));
            let member = self.keeper(instance, memory, &open);
            self.members.push(member);
        }
    }

    fn keeper<S: LeaseStore>(
        &self,
        instance: InstanceId,
        memory: Arc<Mutex<Memory>>,
        open: impl Fn(HolderName) -> S,
    ) -> Member {
        let holder = HolderName {
            instance,
            name: format!("server-{:03}", self.members.len()),
        };
        let stand = Stand {
            instance,
            began: self.began,
            book: Arc::clone(&self.book),
            memory: Arc::clone(&memory),
        };
        let store = Timed {
            store: open(holder.clone()),
            book: Arc::clone(&self.book),
            tries: 0,
        };
        let class = ClassConfig {
            class: Class::Worker,
            wanted: Wanted::Any(self.workers),
            timing: self.timing,
        };
        let config = KeeperConfig {
            poll: POLL,
            class,
            holder,
            clock: ClockInputs::unchecked(),
            reach: REACH,
            list: None,
        };
        let (sender, report) = watch::channel(Report::starting(self.workers, POLL));
        let (_, accepts) = accept_channel();
        let keeper = Keeper::new(
            config,
            stand,
            store,
            accepts,
            order_channel().1,
            sender,
            self.metrics.of(Class::Worker),
        );
        Member {
            instance,
            memory,
            report,
            running: self.runtime.spawn(keeper.run(self.stop.clone())),
        }
    }

    /// As kill -9 of every server and of its daemon, and a start of both: what they held stays in the store.
    pub fn crash_and_relaunch<S: LeaseStore>(&mut self, which: usize, open: impl Fn(HolderName) -> S) {
        let member = self.members.remove(which);
        member.running.abort();
        self.book
            .lock()
            .expect("not poisoned")
            .open
            .retain(|_, (instance, _, _)| *instance != member.instance);
        self.launch(1, open);
    }

    /// How many have all that they want.
    pub fn settled(&self) -> usize {
        let full = |member: &&Member| {
            let report = member.report.borrow();
            report.lease.is_some_and(|lease| lease.open == self.workers)
        };
        self.members.iter().filter(full).count()
    }

    /// Why the last one that was launched has no lease.
    pub fn trouble_of_the_last(&self) -> Option<String> {
        let report = self.members.last()?.report.borrow();
        report.trouble.clone()
    }

    /// Waits until all have; how long that took.
    pub fn wait_settled(&self, limit: Duration) -> Duration {
        eventually_true(limit, "every keeper has its lease", || {
            assert!(self.members.iter().all(|member| !member.running.is_finished()));
            self.settled() == self.members.len()
        })
    }

    /// What the store and the servers say must be one: every identity that a server has open is its own in the
    /// store, under that token, and nobody holds more than was asked for.
    pub fn assert_granted_once(&self, store: &mut impl LeaseStore) {
        let snapshot = self.runtime.block_on(store.read()).expect("read the store");
        let book = self.book.lock().expect("not poisoned");
        assert_eq!(book.violations, Vec::<String>::new());
        let mut held: BTreeMap<InstanceId, usize> = BTreeMap::new();
        for row in snapshot.rows() {
            if let Some(holder) = row.holder.as_ref().filter(|holder| !holder.expired) {
                *held.entry(holder.instance).or_default() += 1;
            }
        }
        for member in &self.members {
            assert_eq!(held.get(&member.instance), Some(&self.workers));
            let memory = member.memory.lock().expect("not poisoned");
            let open: Vec<_> = memory.slots.iter().filter(|(_, slot)| slot.open).collect();
            assert_eq!(open.len(), self.workers);
            for (identity, slot) in open {
                let holder = snapshot.row(*identity).and_then(|row| row.holder.as_ref());
                let token = holder.map(|holder| (holder.instance, holder.token));
                assert_eq!(token, Some((member.instance, slot.token)), "{identity}");
            }
        }
    }

    /// For requests of the test's own.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Every keeper gives back what it has.
    pub fn stop(self) {
        self.stop.cancel();
        for member in self.members {
            let ended = self.runtime.block_on(member.running).expect("no panic");
            ended.expect("a clean end");
        }
    }
}
