//! The keeper of a database on the store in memory, whose answers get lost, and a server that follows the rules of the
//! extension.

use super::*;
use crate::lease::store_memory::{Clock, Fault, MemoryPlace, MemoryStore};
use crate::lease::{Committed, HolderName, LeaseStore, NamedStore};
use crate::metrics::Metrics;
use idgen_core::clock::UnixMs;
use idgen_core::lease::named::{
    ClaimPlan, Cut, JoinPlan, LeaseName, NamedLook, NamedRow, Raise, ReleasePlan, Stored, StripeClaim,
    StripeWish,
};
use idgen_core::lease::{Anchor, Class, Revision, TimingSpec};
use idgen_core::segment::Stripes;
use std::collections::BTreeMap;
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

const TTL_MS: u64 = 10_000;
const SPACE: (u128, u32) = (7, 0);
const TAG: &str = "invoices";
/// Simulated time begins here.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// What the extension has in memory, and the row of the one tag.
#[derive(Clone, Debug, Default)]
struct Memory {
    boot_id: u128,
    boot_ms: u64,
    open: Option<(Token, u64)>,
    latest: Token,
    stretch: Option<(i64, i64)>,
    max_id: i64,
    anchors: Vec<Anchor>,
    system: u64,
    local: bool,
    /// No workers are leased for it.
    unserved: bool,
    /// Of several masters.
    cut: Option<Stripes>,
    /// Sessions that were opened, and whether the last one is of no use any more.
    opened: usize,
    outdated: bool,
}

#[derive(Clone)]
struct Server {
    memory: Arc<StdMutex<Memory>>,
    place: MemoryPlace,
}

impl Server {
    fn new(number: u128, anchors: Vec<Anchor>, place: MemoryPlace) -> Self {
        let memory = Memory {
            boot_id: number,
            boot_ms: 1_000,
            anchors,
            system: 5,
            ..Memory::default()
        };
        Self {
            memory: Arc::new(StdMutex::new(memory)),
            place,
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, ms: u64) {
        self.memory().boot_ms += ms;
    }

    /// A crash-restart: shared memory is new, the row is not.
    fn restart(&self, boot_id: u128) {
        let mut memory = self.memory();
        memory.boot_id = boot_id;
        (memory.open, memory.stretch, memory.latest) = (None, None, Token::default());
    }

    /// A refill: the next ids, if any may be granted.
    fn grant(&self, count: i64) -> Option<(i64, i64)> {
        let mut memory = self.memory();
        let open = memory.open.is_some_and(|(_, deadline)| memory.boot_ms < deadline);
        let (floor, ceiling) = memory.stretch.filter(|_| open)?;
        let first = memory.max_id.max(floor) + 1;
        let last = (first + count - 1).min(ceiling);
        (first <= last).then(|| {
            memory.max_id = last;
            (first, last)
        })
    }
}

impl Open for Server {
    type Database = Self;

    async fn open(&self, _: &str) -> Result<Self> {
        let mut memory = self.memory();
        memory.opened += 1;
        memory.outdated = false;
        Ok(self.clone())
    }

    async fn databases(&self) -> Result<Vec<String>> {
        Ok(vec!["app".to_owned()])
    }
}

impl Database for Server {
    fn is_usable(&mut self) -> bool {
        !self.memory().outdated
    }

    async fn has_extension(&self) -> Result<bool> {
        Ok(true)
    }

    async fn clock(&self) -> Result<Option<(BootId, BootMs)>> {
        let memory = self.memory();
        Ok(Some((BootId(memory.boot_id), BootMs(memory.boot_ms))))
    }

    async fn anchors(&self) -> Result<Vec<Anchor>> {
        Ok(self.memory().anchors.clone())
    }

    async fn system_identifier(&self) -> Result<u64> {
        Ok(self.memory().system)
    }

    async fn wanted(&self) -> Result<Wanted> {
        let memory = self.memory();
        if memory.local {
            return Ok(Wanted::default());
        }
        let (floor, ceiling) = memory.stretch.unwrap_or_default();
        let ceilings = vec![Want {
            key: TAG.to_owned(),
            ceiling: memory.max_id.max(floor) + 100,
        }];
        let enough = ceiling >= memory.max_id.max(floor) + 50;
        Ok(Wanted {
            of: Some(SPACE),
            cut: memory.cut,
            ceilings: if enough { Vec::new() } else { ceilings },
        })
    }

    async fn install(&self, of: (u128, u32), held: &Held, deadline: BootMs) -> Result<Said> {
        assert_eq!(of, SPACE);
        let mut memory = self.memory();
        let known = memory.open.is_some_and(|(token, _)| token == held.token);
        if held.boot_id.0 != memory.boot_id {
            return Ok(Said::Refused("boot id".to_owned()));
        }
        if deadline.0 <= memory.boot_ms || (!known && held.token <= memory.latest) {
            return Ok(Said::Refused("late or old".to_owned()));
        }
        if !known {
            let committed = self.place.named_token(&held.name);
            assert_eq!(committed, Some(held.token), "what is installed is committed");
            memory.stretch = None;
            memory.latest = held.token;
        }
        memory.open = Some((held.token, deadline.0));
        Ok(Said::Done)
    }

    async fn raise(&self, _: (u128, u32), held: &Held, tag: &str, stretch: (i64, i64)) -> Result<Said> {
        assert_eq!(tag, TAG);
        let mut memory = self.memory();
        if memory.open.is_none_or(|(token, _)| token != held.token) {
            return Ok(Said::Refused("token".to_owned()));
        }
        let (floor, ceiling) = memory.stretch.unwrap_or(stretch);
        memory.stretch = Some((floor, ceiling.max(stretch.1)));
        Ok(Said::Done)
    }

    async fn fence(&self, _: (u128, u32)) -> Result<()> {
        self.memory().open = None;
        Ok(())
    }
}

struct World {
    place: MemoryPlace,
    now_ms: u64,
    servers: Vec<Server>,
    granted: BTreeMap<i64, i64>,
}

impl World {
    fn new() -> Self {
        let place = MemoryPlace::new(Clock::At(UnixMs(EPOCH_MS)));
        place.make_cell();
        Self {
            place,
            now_ms: EPOCH_MS,
            servers: Vec::new(),
            granted: BTreeMap::new(),
        }
    }

    async fn server(&mut self, number: u128) -> Server {
        let seen = self.store(number).read().await.expect("read");
        let server = Server::new(
            number,
            vec![Anchor::of(&seen.cell, seen.revision)],
            self.place.clone(),
        );
        self.servers.push(server.clone());
        server
    }

    fn store(&self, number: u128) -> MemoryStore {
        let holder = HolderName {
            instance: InstanceId(number),
            name: format!("daemon-{number}"),
        };
        self.place.open(Class::Worker, holder, TTL_MS)
    }

    /// A run of a daemon.
    fn daemon(&self, number: u128, server: &Server) -> DatabaseKeeper<MemoryStore, Server> {
        keeper(number, server, self.store(number))
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.place.set_clock(UnixMs(self.now_ms));
        for server in &self.servers {
            server.pass(ms);
        }
    }

    /// Grants as long as there is something, and no number twice.
    fn grant_all(&mut self, server: &Server) -> i64 {
        let mut count = 0;
        while let Some((first, last)) = server.grant(10) {
            let before = self.granted.range(..=last).next_back().map(|(_, last)| *last);
            assert!(
                before.is_none_or(|before| before < first),
                "{first} to {last} again"
            );
            self.granted.insert(first, last);
            count += last - first + 1;
        }
        count
    }
}

fn keeper<S: StripeStore>(number: u128, server: &Server, store: S) -> DatabaseKeeper<S, Server> {
    let config = DatabaseConfig {
        database: "app".to_owned(),
        instance: InstanceId(number),
        timing: Timing::new(TimingSpec::of_ttl(TTL_MS)).expect("timing"),
        is_served: {
            let server = server.clone();
            Arc::new(move || !server.memory().unserved)
        },
        board: Board::default(),
        metrics: Metrics::new().expect("metrics").of_authority(),
    };
    let shared = Pinned::new(store);
    DatabaseKeeper::new(config, server.clone(), Arc::new(Mutex::new(shared)))
}

#[tokio::test]
async fn a_server_grants_under_its_lease_up_to_ceilings_and_stops_at_the_deadline() {
    let mut world = World::new();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    assert_eq!(world.grant_all(&server), 0);
    assert_eq!(daemon.visit().await.expect("visit"), Pace::Hot);
    assert_eq!(daemon.standing, Standing::Held);
    assert_eq!(world.grant_all(&server), 100);
    daemon.visit().await.expect("visit");
    assert_eq!(world.grant_all(&server), 100, "more is wanted, and raised");
    daemon.visit().await.expect("visit");
    world.pass(7_997);
    assert!(server.grant(1).is_some(), "until the deadline");
    world.pass(1);
    assert_eq!(server.grant(1), None);
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Held, "it takes a new lease");
    assert!(world.grant_all(&server) > 0);
}

#[tokio::test]
async fn a_session_of_certificates_that_were_replaced_is_not_used_again() {
    let mut world = World::new();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    for (outdated, opened) in [(false, 1), (false, 1), (true, 2), (false, 2)] {
        server.memory().outdated = outdated;
        daemon.visit().await.expect("visit");
        assert_eq!(server.memory().opened, opened);
    }
}

#[tokio::test]
async fn a_lease_is_renewed_and_the_deadline_counts_from_before_the_request() {
    let mut world = World::new();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    daemon.visit().await.expect("visit");
    let token = server.memory().open.expect("open").0;
    for _ in 0..10 {
        world.pass(3_900);
        daemon.visit().await.expect("visit");
    }
    let (after, deadline) = server.memory().open.expect("open");
    assert_eq!(after, token, "renewals keep the token");
    assert_eq!(deadline, server.memory().boot_ms + 7_998);
}

/// A store on whose n-th write something happens; looks between are answered.
struct Unlucky {
    store: MemoryStore,
    place: MemoryPlace,
    writes_left: usize,
    fault: Fault,
}

impl Unlucky {
    fn before_write(&mut self) {
        let meets = self.writes_left == 0;
        self.writes_left = self.writes_left.checked_sub(1).unwrap_or(usize::MAX);
        self.place.set_fault(if meets { self.fault } else { Fault::None });
    }

    fn after_write<T>(&self, answer: T) -> T {
        self.place.set_fault(Fault::None);
        answer
    }
}

type StoreResult<T> = std::result::Result<T, StoreError>;

impl NamedStore for Unlucky {
    async fn look_at(&mut self, name: &LeaseName) -> StoreResult<NamedLook> {
        self.store.look_at(name).await
    }

    async fn list(&mut self, prefix: &str) -> StoreResult<Vec<NamedRow>> {
        self.store.list(prefix).await
    }

    async fn acquire(&mut self, plan: &Acquisition) -> StoreResult<Committed> {
        self.before_write();
        let answer = self.store.acquire(plan).await;
        self.after_write(answer)
    }

    async fn renew_held(&mut self, held: &Held) -> StoreResult<Committed> {
        self.before_write();
        let answer = self.store.renew_held(held).await;
        self.after_write(answer)
    }

    async fn give_up(&mut self, name: &LeaseName, token: Token) -> StoreResult<bool> {
        self.before_write();
        let answer = self.store.give_up(name, token).await;
        self.after_write(answer)
    }

    async fn ceilings(&mut self, name: &LeaseName, keys: &[String]) -> StoreResult<BTreeMap<String, Stored>> {
        self.store.ceilings(name, keys).await
    }

    async fn raise(&mut self, held: &Held, raises: &[Raise]) -> StoreResult<Revision> {
        self.before_write();
        let answer = self.store.raise(held, raises).await;
        self.after_write(answer)
    }
}

impl StripeStore for Unlucky {
    async fn stripes(&mut self, space_id: Option<u128>) -> StoreResult<Vec<StripeClaim>> {
        self.store.stripes(space_id).await
    }

    async fn claim_stripe(&mut self, plan: &ClaimPlan) -> StoreResult<()> {
        self.store.claim_stripe(plan).await
    }

    async fn join_stripe(&mut self, plan: &JoinPlan) -> StoreResult<()> {
        self.store.join_stripe(plan).await
    }

    async fn release_stripe(&mut self, plan: &ReleasePlan) -> StoreResult<()> {
        self.store.release_stripe(plan).await
    }
}

/// Each write of the first few gets lost on either way, or is done long after it was given up; what was granted before
/// and after is never the same, and it goes on.
#[tokio::test]
async fn answers_that_get_lost_are_settled_by_reading() {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Late, Fault::Away] {
        for write in 0..12 {
            let mut world = World::new();
            let server = world.server(1).await;
            let store = Unlucky {
                store: world.store(1),
                place: world.place.clone(),
                writes_left: write,
                fault,
            };
            let mut daemon = keeper(1, &server, store);
            for round in 0..20 {
                world.pass(1_700);
                daemon.visit().await.expect("visit");
                world.grant_all(&server);
                if round == 12 {
                    world.place.arrive();
                }
            }
            daemon.visit().await.expect("visit");
            assert_eq!(daemon.standing, Standing::Held, "{fault:?} {write}");
            assert!(daemon.store_trouble.text().is_none(), "{fault:?} {write}");
            world.grant_all(&server);
            daemon.visit().await.expect("visit");
            assert!(world.grant_all(&server) > 0, "{fault:?} {write}");
            // Whoever comes next finds all of it below.
            daemon.leave().await;
            let copy = world.server(2).await;
            let mut next = world.daemon(2, &copy);
            next.visit().await.expect("visit");
            assert!(world.grant_all(&copy) > 0, "{fault:?} {write}");
        }
    }
}

/// A master of several: it is told what is wrong, and goes on when the claim is as it should be.
#[tokio::test]
async fn an_index_is_leased_by_the_database_that_has_joined_it() {
    let mut world = World::new();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Held, "one master needs no claim");
    let cut = Cut {
        stripes: 3,
        size: Cut::SIZE,
        above: 0,
    };
    server.memory().cut = Some(cut.of(0).expect("a cut"));
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Wanted, "given up with the change");
    let trouble = daemon.store_trouble.text().unwrap_or_default().to_owned();
    assert!(trouble.contains("has not joined stripe 0 of 3"), "{trouble}");
    let mut store = world.store(9);
    let wish = StripeWish {
        space_id: SPACE.0,
        stripe: 0,
        cut,
        server: server.memory().system,
        database: "app".to_owned(),
        name: "north".to_owned(),
        at: UnixMs(EPOCH_MS),
        by: "me".to_owned(),
    };
    let plan = ClaimPlan {
        wish,
        seen: None,
        joined: None,
    };
    store.claim_stripe(&plan).await.expect("claimed");
    world.pass(1_700);
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Wanted, "claimed is not joined");
    let claims = store.stripes(None).await.expect("list");
    let join = JoinPlan {
        space_id: SPACE.0,
        stripe: 0,
        at: UnixMs(EPOCH_MS),
        seen: claims[0].revision,
    };
    store.join_stripe(&join).await.expect("joined");
    world.pass(1_700);
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Held);
    assert!(world.grant_all(&server) > 0);
}

#[tokio::test]
async fn a_copy_waits_and_goes_on_above_what_the_other_may_have_granted() {
    let mut world = World::new();
    let (old, copy) = (world.server(1).await, world.server(2).await);
    let (mut first, mut second) = (world.daemon(1, &old), world.daemon(2, &copy));
    first.visit().await.expect("visit");
    assert_eq!(world.grant_all(&old), 100);
    first.visit().await.expect("visit");
    second.visit().await.expect("visit");
    assert_eq!(second.standing, Standing::Taken("daemon-1".to_owned()));
    assert_eq!(copy.grant(1), None, "the copy's own row says 0");
    // The first daemon dies; its server does not know, and the store's clock is ahead.
    world.place.expire();
    second.visit().await.expect("visit");
    assert_eq!(second.standing, Standing::Held);
    let all = world.grant_all(&copy) + world.grant_all(&old);
    assert!(all > 100, "both grant for a moment, and never the same");
    // The first comes back: it may raise nothing, and the next look tells.
    first.visit().await.expect("visit");
    first.visit().await.expect("visit");
    assert_eq!(first.standing, Standing::Taken("daemon-2".to_owned()));
    second.visit().await.expect("visit");
    assert!(world.grant_all(&copy) > 0);
}

#[tokio::test]
async fn a_new_run_and_new_shared_memory_take_over_at_once() {
    let mut world = World::new();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    daemon.visit().await.expect("visit");
    world.grant_all(&server);
    let before = server.memory().latest;
    let mut next = world.daemon(11, &server);
    next.visit().await.expect("visit");
    assert_eq!(next.standing, Standing::Held, "for the same shared memory");
    assert!(server.memory().latest > before);
    assert!(world.grant_all(&server) > 0);
    server.restart(99);
    assert_eq!(server.grant(1), None);
    next.visit().await.expect("visit");
    assert_eq!(next.standing, Standing::Held, "by the same run");
    assert!(world.grant_all(&server) > 0);
}

#[tokio::test]
async fn at_a_stop_the_server_is_closed_and_the_next_one_takes_over_at_once() {
    let mut world = World::new();
    let (server, other) = (world.server(1).await, world.server(2).await);
    let (mut daemon, mut next) = (world.daemon(1, &server), world.daemon(2, &other));
    daemon.visit().await.expect("visit");
    daemon.leave().await;
    assert_eq!(server.grant(1), None, "closed");
    next.visit().await.expect("visit");
    assert_eq!(next.standing, Standing::Held);
}

#[tokio::test]
async fn a_restored_store_is_not_believed() {
    let mut world = World::new();
    let backup = world.place.backup();
    let server = world.server(1).await;
    let mut daemon = world.daemon(1, &server);
    daemon.visit().await.expect("visit");
    let held = world.grant_all(&server);
    assert!(held > 0);
    // The same store at an earlier time; only what was seen of it tells.
    world.place.restore(&backup, 1);
    world.pass(9_000);
    for _ in 0..3 {
        daemon.visit().await.expect("visit");
        assert_eq!(server.grant(1), None);
    }
    let trouble = daemon.store_trouble.text().unwrap_or_default().to_owned();
    assert!(trouble.contains("it was restored"), "{trouble}");
}

#[tokio::test]
async fn a_server_without_leases_of_workers_waits() {
    let mut world = World::new();
    let server = world.server(1).await;
    server.memory().anchors.clear();
    let mut daemon = world.daemon(1, &server);
    daemon.visit().await.expect("visit");
    assert_eq!((server.grant(1), &daemon.standing), (None, &Standing::Wanted));
    let trouble = daemon.store_trouble.text().unwrap_or_default();
    assert!(trouble.contains("waiting until leases"), "{trouble}");
    let remembering = world.server(3).await;
    remembering.memory().unserved = true;
    let mut other = world.daemon(3, &remembering);
    other.visit().await.expect("visit");
    assert_eq!((remembering.grant(1), &other.standing), (None, &Standing::Wanted));
    remembering.memory().unserved = false;
    other.visit().await.expect("visit");
    assert_eq!(other.standing, Standing::Held);
    // What is held is renewed all the same.
    remembering.memory().unserved = true;
    for _ in 0..5 {
        world.pass(3_900);
        other.visit().await.expect("visit");
        assert!(world.grant_all(&remembering) > 0);
    }
    server.memory().local = true;
    daemon.visit().await.expect("visit");
    assert_eq!(daemon.standing, Standing::Local);
}
