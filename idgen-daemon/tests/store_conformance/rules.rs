//! The rules.

use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::format::{CLASSIC, CellFormat, REGIONAL};
use idgen_core::lease::Revision;
use idgen_core::lease::anchor::Witness;
use idgen_core::lease::approval::{Digest, RequestId};
use idgen_core::lease::ledger::{Attempt, PlannedGrant, Standing, settle_grant, settle_renewal};
use idgen_core::lease::pool::{PlanError, PlanFor, half, plan_grant};
use idgen_core::lease::window::FLOOR_LEAD_MS;
use idgen_core::lease::{
    AdvancePlan, AdvanceWish, Anchor, BootId, CellId, Claim, Class, Epoch, EpochNonce, GrantPlan, Identity,
    InstanceId, Leased, Mark, Memory, NotFree, Occupied, Survey, SwitchPlan, SwitchRefused, Tenancy, Timing,
    TimingSpec, Token, Told, Wanted, plan_advance, plan_switch,
};
use idgen_daemon::lease::{
    CellStore, Committed, Expected, HolderName, LeaseStore, Renewal, RequestStore, Seal, StoreErrorKind,
    host_clock,
};
use std::collections::BTreeSet;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::kit::{PATIENCE, eventually, eventually_true};

/// The shortest that etcd keeps at its default election timeout.
pub const TTL_MS: u64 = 2_000;
/// Longer than any window that these tests are granted.
const WINDOW_MS: u64 = 5_000;
pub const BOOT: BootId = BootId(11);

/// A running store that many daemons can open.
pub trait Place {
    type Store: RequestStore;

    /// The store of a class as one daemon sees it, with this TTL.
    fn open(&self, class: Class, holder: HolderName, ttl_ms: u64) -> Self::Store;
    /// As an operator does it.
    fn seal(&self, reason: &str);
    /// Everything in it is deleted, as by `etcdctl del --prefix` or an extension that is made anew.
    fn wipe(&self);
    /// The next epoch with a new name. Holders stay as they are: the hardest case.
    fn advance_epoch(&self);
    /// Every lease ends now, whatever its TTL.
    fn expire(&self);
    /// Somebody, whom the store knows by this name, approves the text with this digest.
    fn approve(&self, who: &str, id: RequestId, digest: Digest);
    /// Until [`Place::thaw`], nobody answers.
    fn freeze(&mut self);
    fn thaw(&mut self);
}

pub fn holder(instance: u128) -> HolderName {
    HolderName {
        instance: InstanceId(instance),
        name: format!("daemon-{instance}"),
    }
}

/// As a daemon opens it whose server was never served from any cell.
pub fn newcomer<P: Place>(place: &P, class: Class, holder: HolderName, ttl_ms: u64) -> P::Store {
    let mut store = place.open(class, holder, ttl_ms);
    store.expect(Expected::Nothing);
    store
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime")
}

fn timing() -> Timing {
    Timing::new(TimingSpec::of_ttl(TTL_MS)).expect("timing")
}

/// One daemon: a store, who it is, and a place to wait in.
pub struct Daemon<'r, S> {
    pub store: S,
    runtime: &'r Runtime,
    instance: InstanceId,
}

/// What a daemon holds.
pub struct Lease {
    plan: GrantPlan,
    pub token: Token,
    pub committed: Committed,
}

impl Lease {
    pub fn leased(&self) -> Vec<Leased> {
        self.plan.grants.iter().map(|planned| planned.leased).collect()
    }

    pub fn renewal(&self, by_ms: u64) -> Renewal {
        let mut leased = self.tenancies();
        for leased in &mut leased {
            leased.window.ceiling = leased.window.ceiling.saturating_add(by_ms);
        }
        Renewal {
            epoch: self.token.epoch,
            epoch_nonce: self.plan.epoch_nonce,
            formats: self.plan.formats.clone(),
            boot_id: BOOT,
            leased,
        }
    }

    fn tenancies(&self) -> Vec<Tenancy> {
        let (token, guard) = (self.token, self.committed.revision);
        let leased = self.leased().into_iter();
        leased.map(|leased| Tenancy::new(leased, token, guard)).collect()
    }

    pub fn mark(&self, index: usize, above_floor_ms: u64) -> Mark {
        let leased = self.leased()[index];
        let claim = Claim {
            identity: leased.identity,
            token: self.token,
        };
        Mark {
            claim,
            last: leased.window.floor.saturating_add(above_floor_ms),
        }
    }
}

/// What an operator wants of a store that was restored.
fn wish_for(sealed: &Survey) -> AdvanceWish {
    AdvanceWish {
        identity: sealed.here.clone(),
        reason: "restored".to_owned(),
        by: "somebody".to_owned(),
        nonce: EpochNonce(77),
        formats: None,
        worker_window_ms: WINDOW_MS,
        shard_window_ms: WINDOW_MS,
    }
}

impl<'r, S: CellStore> Daemon<'r, S> {
    /// One that leases workers.
    pub fn new(place: &impl Place<Store = S>, runtime: &'r Runtime, instance: u128, ttl_ms: u64) -> Self {
        Self::of(Class::Worker, place, runtime, instance, ttl_ms)
    }

    pub fn of(
        class: Class,
        place: &impl Place<Store = S>,
        runtime: &'r Runtime,
        instance: u128,
        ttl_ms: u64,
    ) -> Self {
        let holder = holder(instance);
        let instance = holder.instance;
        Self {
            store: newcomer(place, class, holder, ttl_ms),
            runtime,
            instance,
        }
    }

    fn survey(&mut self) -> Survey {
        let survey = self.runtime.block_on(self.store.survey()).expect("survey");
        survey.expect("the store is in use")
    }

    pub fn plan(&mut self, count: usize, random: u64) -> GrantPlan {
        self.try_plan(&Wanted::Any(count), random).expect("plan")
    }

    fn try_plan(&mut self, wanted: &Wanted, random: u64) -> Result<GrantPlan, PlanError> {
        self.plan_at(host_clock(), wanted, random)
    }

    fn plan_at(&mut self, wall: UnixMs, wanted: &Wanted, random: u64) -> Result<GrantPlan, PlanError> {
        let snapshot = self.runtime.block_on(self.store.read()).expect("read");
        let asked = PlanFor {
            instance: self.instance,
            boot_id: BOOT,
            wall,
            wanted,
            random,
        };
        plan_grant(&snapshot, &Memory::new(), &timing(), asked)
    }

    pub fn shards(&mut self, shards: &[u16]) -> Result<GrantPlan, PlanError> {
        self.try_plan(&Wanted::Listed(shards.iter().copied().map(Identity).collect()), 0)
    }

    pub fn grant(&mut self, plan: GrantPlan) -> Result<Lease, StoreErrorKind> {
        let committed = self
            .runtime
            .block_on(self.store.grant(&plan))
            .map_err(|error| error.kind)?;
        let token = Token {
            epoch: plan.epoch,
            revision: committed.revision,
        };
        Ok(Lease {
            plan,
            token,
            committed,
        })
    }

    pub fn acquire(&mut self, count: usize) -> Lease {
        let plan = self.plan(count, 7);
        self.grant(plan).expect("grant")
    }

    pub fn renew(&mut self, renewal: &Renewal) -> Result<Committed, StoreErrorKind> {
        self.runtime
            .block_on(self.store.renew(renewal))
            .map_err(|error| error.kind)
    }

    /// As `idgenctl format switch` does it.
    pub fn plan_switch(&mut self, to: CellFormat, later_ms: u64) -> SwitchPlan {
        let snapshot = self.runtime.block_on(self.store.read()).expect("read");
        let now = self.runtime.block_on(self.store.clock()).expect("clock");
        let at = now.saturating_add(WINDOW_MS + 3_000 + later_ms);
        plan_switch(&snapshot, to, at, now, WINDOW_MS).expect("plan")
    }

    pub fn switch(&mut self, plan: &SwitchPlan) -> Result<(), StoreErrorKind> {
        self.runtime
            .block_on(self.store.switch(plan))
            .map_err(|error| error.kind)
    }

    fn formats(&mut self) -> String {
        let snapshot = self.runtime.block_on(self.store.read()).expect("read");
        snapshot.cell.worker_format
    }

    pub fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> Vec<Mark> {
        self.runtime
            .block_on(self.store.release(boot_id, marks))
            .expect("release")
    }

    pub fn standing(&mut self, lease: &Lease) -> Standing {
        let snapshot = self.runtime.block_on(self.store.read()).expect("read");
        settle_renewal(&snapshot, self.instance, BOOT, &lease.tenancies())
    }

    fn read_kind(&mut self) -> Option<StoreErrorKind> {
        self.runtime
            .block_on(self.store.read())
            .err()
            .map(|error| error.kind)
    }
}

pub fn everybody_sees_one_cell(place: &impl Place) {
    let runtime = runtime();
    let reads = runtime.block_on(async {
        let mut reads = JoinSet::new();
        for n in 0..4 {
            let mut store = newcomer(place, Class::Worker, holder(n), TTL_MS);
            reads.spawn(async move { store.read().await.expect("read").cell });
        }
        reads.join_all().await
    });
    assert!(reads.windows(2).all(|pair| pair[0] == pair[1]), "{reads:?}");
    assert_eq!(reads[0].worker_format, "classic");
    assert_eq!(
        half(reads[0].epoch),
        0..512,
        "a new cell begins in the lower half"
    );
}

pub fn a_grant_is_made_once_and_as_a_whole(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let mut two = Daemon::new(place, &runtime, 2, TTL_MS);
    let plan = one.plan(2, 7);
    let both = two.plan(3, 7);
    let shared = |plan: &GrantPlan| {
        plan.grants
            .iter()
            .map(|planned| planned.leased.identity)
            .collect::<BTreeSet<_>>()
    };
    let common = shared(&plan).intersection(&shared(&both)).count();
    assert!(common > 0, "the plans collide");
    let lease = one.grant(plan).expect("granted");
    assert_eq!(two.grant(both).err(), Some(StoreErrorKind::Conflict));
    assert_eq!(lease.committed.ttl_ms, TTL_MS);
    let snapshot = runtime.block_on(one.store.read()).expect("read");
    assert_eq!(snapshot.rows().len(), 2, "nothing of the refused grant stays");
    for planned in &lease.plan.grants {
        let row = snapshot.row(planned.leased.identity).expect("row");
        assert_eq!(row.ceiling, planned.leased.window.ceiling);
        assert_eq!((row.generation, row.revision), (1, lease.committed.revision));
        let holder = row.holder.as_ref().expect("holder");
        assert_eq!((holder.instance, holder.boot_id), (InstanceId(1), BOOT));
        assert_eq!((holder.token, holder.name.as_str()), (lease.token, "daemon-1"));
        assert!(!holder.expired);
    }
    let later = two.acquire(2);
    assert!(later.token > lease.token, "tokens rise");
}

pub fn a_grant_needs_the_row_free_and_as_it_was_seen(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    let stale = two.plan(1, 7);
    assert_eq!(
        one.plan(1, 7).grants.len(),
        1,
        "whoever grants has read the store before"
    );
    let lease = one.grant(stale.clone()).expect("granted");
    let mut seen = stale.clone();
    seen.grants[0].seen = Some(lease.committed.revision);
    seen.grants[0].generation = 2;
    seen.grants[0].leased.window.ceiling.0 += 1_000;
    assert_eq!(
        two.grant(seen).err(),
        Some(StoreErrorKind::Conflict),
        "it is seen as it is, but held"
    );
    let mark = lease.mark(0, 3);
    assert_eq!(one.release(BOOT, &[mark]), [mark]);
    assert_eq!(
        two.grant(stale).err(),
        Some(StoreErrorKind::Conflict),
        "it is free, but not as it was seen"
    );
}

pub fn racing_daemons_never_share_an_identity(place: &impl Place) {
    const DAEMONS: u128 = 6;
    let runtime = runtime();
    let held = runtime.block_on(async {
        let mut races = JoinSet::new();
        for n in 0..DAEMONS {
            let mut store = newcomer(place, Class::Worker, holder(n), 60_000);
            races.spawn(async move {
                loop {
                    // The same choice for all: the worst case.
                    let snapshot = store.read().await.expect("read");
                    let asked = PlanFor {
                        instance: InstanceId(n),
                        boot_id: BOOT,
                        wall: host_clock(),
                        wanted: &Wanted::Any(3),
                        random: 7,
                    };
                    let plan = plan_grant(&snapshot, &Memory::new(), &timing(), asked).expect("plan");
                    match store.grant(&plan).await {
                        Ok(_) => {
                            return plan
                                .grants
                                .iter()
                                .map(|planned| planned.leased.identity)
                                .collect();
                        }
                        Err(error) => assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}"),
                    }
                }
            });
        }
        races
            .join_all()
            .await
            .into_iter()
            .collect::<Vec<Vec<_>>>()
            .concat()
    });
    let distinct: BTreeSet<_> = held.iter().collect();
    assert_eq!((held.len(), distinct.len()), (18, 18), "{held:?}");
}

pub fn a_renewal_keeps_the_token_and_needs_the_guard(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let lease = one.acquire(2);
    let renewal = lease.renewal(500);
    let renewed = one.renew(&renewal).expect("renewed");
    assert!(renewed.revision > lease.committed.revision);
    assert_eq!(renewed.ttl_ms, TTL_MS);
    let Standing::Mine { leased } = one.standing(&lease) else {
        panic!("lost")
    };
    let mut expected = renewal.leased.clone();
    for tenancy in &mut expected {
        tenancy.guard = renewed.revision;
    }
    assert_eq!(leased, expected, "the token is the old one, the ceilings are new");
    assert_eq!(
        one.renew(&renewal).err(),
        Some(StoreErrorKind::Conflict),
        "an old guard"
    );
    let mut foreign = Renewal {
        leased: expected,
        ..renewal
    };
    foreign.leased[1].token.revision = renewed.revision;
    assert_eq!(
        one.renew(&foreign).err(),
        Some(StoreErrorKind::Conflict),
        "another token"
    );
}

pub fn a_lost_answer_is_settled_by_reading<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let plan = one.plan(2, 7);
    let reading = ClockReading {
        wall: host_clock(),
        boot: BootMs(5),
    };
    let attempt = Attempt {
        plan: plan.clone(),
        reading,
    };
    let settle = |one: &mut Daemon<P::Store>| {
        let snapshot = runtime.block_on(one.store.read()).expect("read");
        settle_grant(&snapshot, &attempt, InstanceId(1), TTL_MS)
    };
    assert_eq!(settle(&mut one), None, "it was not made");
    let lease = one.grant(plan).expect("granted");
    let found = settle(&mut one).expect("it was made");
    assert_eq!(
        (found.token, found.guard),
        (lease.token, lease.committed.revision)
    );
    let mut two = Daemon::new(place, &runtime, 2, TTL_MS);
    let snapshot = runtime.block_on(two.store.read()).expect("read");
    assert_eq!(
        settle_grant(&snapshot, &attempt, InstanceId(2), TTL_MS),
        None,
        "not by another daemon"
    );
}

pub fn what_is_not_renewed_expires_and_goes_to_others_above_its_ceiling(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let lease = one.acquire(1);
    let identity = lease.leased()[0].identity;
    let mut two = Daemon::new(place, &runtime, 2, TTL_MS);
    eventually_true(PATIENCE, "the lease expires", || {
        let snapshot = runtime.block_on(two.store.read()).expect("read");
        let row = snapshot.row(identity).expect("its row stays");
        assert_eq!(
            row.ceiling,
            lease.leased()[0].window.ceiling,
            "and so does its high water"
        );
        row.holder.as_ref().is_none_or(|holder| holder.expired)
    });
    let plan = eventually(PATIENCE, "it is planned again once it has cooled", || {
        // All identities: the one that expired must be among them.
        two.try_plan(&Wanted::Any(512), 7).ok()
    });
    let again = plan
        .grants
        .iter()
        .find(|planned| planned.leased.identity == identity)
        .expect("planned");
    let only = GrantPlan {
        grants: vec![*again],
        ..plan.clone()
    };
    let next = two.grant(only).expect("granted");
    assert!(next.leased()[0].window.floor > lease.leased()[0].window.ceiling);
    assert_eq!(next.plan.grants[0].generation, 2);
    assert_eq!(one.standing(&lease), Standing::Lost);
    assert_eq!(
        one.renew(&lease.renewal(600_000)).err(),
        Some(StoreErrorKind::Conflict),
        "it is too late"
    );
}

pub fn a_release_leaves_the_exact_high_water_and_is_free_at_once(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let lease = one.acquire(2);
    let marks = [lease.mark(0, 3), lease.mark(1, 4)];
    assert_eq!(
        one.release(BootId(12), &marks),
        [],
        "not of another shared memory"
    );
    let mut foreign = marks[0];
    foreign.claim.token.revision.0 += 1;
    assert_eq!(one.release(BOOT, &[foreign]), [], "not under another token");
    // A daemon that was started again releases what the one before it left.
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    assert_eq!(two.release(BOOT, &marks), marks);
    assert_eq!(two.release(BOOT, &marks), [], "only once");
    assert_eq!(
        one.renew(&lease.renewal(500)).err(),
        Some(StoreErrorKind::Conflict)
    );
    let snapshot = runtime.block_on(two.store.read()).expect("read");
    for mark in marks {
        let row = snapshot.row(mark.claim.identity).expect("row");
        assert_eq!((row.ceiling, row.holder.as_ref()), (mark.last, None));
    }
    assert_eq!(one.standing(&lease), Standing::Lost);
}

pub fn a_sealed_cell_grants_and_renews_nothing(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let lease = one.acquire(1);
    let plan = one.plan(1, 9);
    place.seal("restored from a backup");
    let error = runtime.block_on(one.store.read()).expect_err("sealed");
    assert_eq!(error.kind, StoreErrorKind::Sealed);
    assert!(error.message.contains("restored from a backup"), "{error}");
    // A store that looks only at its guards reports the change as a conflict; either way nothing.
    for refused in [one.renew(&lease.renewal(500)).err(), one.grant(plan).err()] {
        let sealed = [Some(StoreErrorKind::Sealed), Some(StoreErrorKind::Conflict)];
        assert!(sealed.contains(&refused), "{refused:?}");
    }
}

pub fn an_older_epoch_grants_and_renews_nothing(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, TTL_MS);
    let lease = one.acquire(1);
    let plan = one.plan(1, 9);
    place.advance_epoch();
    assert_eq!(one.grant(plan).err(), Some(StoreErrorKind::Conflict));
    assert_eq!(
        one.renew(&lease.renewal(500)).err(),
        Some(StoreErrorKind::Conflict)
    );
    assert_eq!(one.standing(&lease), Standing::Lost);
    let next = one.acquire(2);
    assert!(next.token > lease.token);
    assert!(
        next.leased()
            .iter()
            .all(|leased| (512..1_024).contains(&leased.identity.0)),
        "the other half"
    );
}

fn told(epoch: Epoch, since: UnixMs) -> Told {
    Told {
        epoch,
        since,
        formats: Vec::new(),
    }
}

pub fn an_epoch_is_advanced_once_and_opens_what_was_sealed<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let lease = one.acquire(1);
    let cell = runtime.block_on(one.store.read()).expect("read").cell;
    let mut seal = Seal {
        cell_id: CellId(7),
        reason: "its revision fell".to_owned(),
        known: told(Epoch(4), UnixMs(1)),
        remembered: Vec::new(),
    };
    runtime.block_on(one.store.seal(&seal)).expect("of another cell");
    assert_eq!(one.read_kind(), None, "nothing was sealed");
    seal.cell_id = cell.cell_id;
    runtime.block_on(one.store.seal(&seal)).expect("sealed");
    assert_eq!(one.read_kind(), Some(StoreErrorKind::Sealed));

    let sealed = operator.survey();
    assert_eq!(sealed.sealed_because(&[]).as_deref(), Some("its revision fell"));
    let sealed_at = sealed.sealed_at.expect("it is written down when");
    seal.known.epoch = Epoch(6);
    runtime.block_on(one.store.seal(&seal)).expect("sealed again");
    let sealed = operator.survey();
    assert_eq!(
        sealed.sealed_at,
        Some(sealed_at),
        "since when everybody could say so"
    );
    let wish = wish_for(&sealed);
    let plan = plan_advance(&sealed, &[], wish).expect("plan");
    assert_eq!(plan.to, Epoch(7), "above what anybody knew of");
    runtime.block_on(operator.store.advance(&plan)).expect("advanced");
    let again = runtime
        .block_on(operator.store.advance(&plan))
        .expect_err("only once");
    assert_eq!(again.kind, StoreErrorKind::Conflict, "{again}");

    let opened = operator.survey();
    assert_eq!((opened.sealed_because(&[]), opened.sealed_at), (None, None));
    let change = opened.history.last().expect("it is recorded");
    assert_eq!((change.epoch, change.by.as_str()), (Epoch(7), "somebody"));
    let next = one.acquire(1);
    assert!(next.token > lease.token);
    assert!(half(Epoch(7)).contains(&next.leased()[0].identity.0));
    assert_eq!(
        one.renew(&lease.renewal(500)).err(),
        Some(StoreErrorKind::Conflict)
    );
    let mut shards = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    assert!(
        matches!(shards.shards(&[7]), Err(PlanError::NotFree(_))),
        "shards wait out the old epoch"
    );
}

/// What their half was granted two epochs ago may be lost, so no row has it.
pub fn workers_of_a_new_epoch_begin_above_its_floor<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    one.acquire(1);
    place.seal("restored");
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let sealed = operator.survey();
    let wish = wish_for(&sealed);
    let plan = plan_advance(&sealed, &[], wish).expect("plan");
    let floor = host_clock().saturating_add(FLOOR_LEAD_MS);
    let plan = AdvancePlan {
        worker_min_floor: floor,
        ..plan
    };
    assert_ne!(plan.shard_min_floor, floor, "they are told apart");
    runtime.block_on(operator.store.advance(&plan)).expect("advanced");
    // By a clock as far behind as it may be, however long all this has taken.
    let wall = floor.saturating_sub(FLOOR_LEAD_MS);
    let granted = one.plan_at(wall, &Wanted::Any(3), 7).expect("plan");
    for leased in one.grant(granted).expect("granted").leased() {
        assert_eq!(leased.window.floor, floor);
    }
    let opened = operator.survey();
    assert_eq!(
        (opened.cell.min_floor, opened.shard_min_floor),
        (floor, plan.shard_min_floor)
    );
    let mut shards = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let seen = runtime.block_on(shards.store.read()).expect("read");
    assert_eq!(seen.cell.min_floor, plan.shard_min_floor);
}

/// The plan that the store has lost is told by one, and more by another.
pub fn a_switch_that_sealers_know_of_is_in_the_next_epoch<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let cell = runtime.block_on(one.store.read()).expect("read").cell;
    let switched = format!("classic; regional/1 from {}", host_clock().0);
    let mut seal = Seal {
        cell_id: cell.cell_id,
        reason: "its revision fell".to_owned(),
        known: told(cell.epoch, cell.epoch_since),
        remembered: Vec::new(),
    };
    runtime.block_on(one.store.seal(&seal)).expect("sealed");
    let before = one.survey();
    let wish = wish_for(&before);
    let unknowing = plan_advance(&before, &[], wish.clone()).expect("plan");
    assert_eq!(unknowing.formats, "classic");

    seal.known.formats = vec![switched.clone()];
    runtime.block_on(one.store.seal(&seal)).expect("told");
    let late = runtime
        .block_on(one.store.advance(&unknowing))
        .expect_err("more was told since");
    assert_eq!(late.kind, StoreErrorKind::Conflict, "{late}");
    let told_by_one = one.survey();
    assert_eq!(told_by_one.known.formats, [switched.as_str()]);
    seal.known.formats.clear();
    runtime.block_on(one.store.seal(&seal)).expect("nothing new");
    let sealed = one.survey();
    assert_eq!(
        (sealed.known.clone(), sealed.revision),
        (told_by_one.known, told_by_one.revision)
    );

    let plan = plan_advance(&sealed, &[], wish).expect("plan");
    runtime.block_on(one.store.advance(&plan)).expect("advanced");
    let opened = one.survey();
    assert_eq!(opened.cell.worker_format, switched);
    assert_eq!(opened.known.formats, Vec::<String>::new(), "the cell has it now");
    assert_eq!(opened.cell.min_floor, plan.worker_min_floor);
    assert_eq!(one.formats(), switched);
}

/// A daemon that waits reads "sealed", the operator advances, and only then it tells what it knows.
pub fn a_seal_that_comes_after_the_advance_leaves_the_new_epoch_open<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let cell = runtime.block_on(one.store.read()).expect("read").cell;
    let seal = Seal {
        cell_id: cell.cell_id,
        reason: "of the epoch before".to_owned(),
        known: told(cell.epoch, cell.epoch_since),
        remembered: Vec::new(),
    };
    place.seal("restored");
    assert_eq!(one.read_kind(), Some(StoreErrorKind::Sealed));
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let sealed = operator.survey();
    let wish = wish_for(&sealed);
    let plan = plan_advance(&sealed, &[], wish).expect("plan");
    runtime.block_on(operator.store.advance(&plan)).expect("advanced");
    runtime.block_on(one.store.seal(&seal)).expect("nothing to do");
    assert_eq!(one.read_kind(), None, "the new epoch stays open");
    let aware = Seal {
        known: told(plan.to, plan.since),
        ..seal
    };
    runtime.block_on(one.store.seal(&aware)).expect("sealed");
    assert_eq!(
        one.read_kind(),
        Some(StoreErrorKind::Sealed),
        "whoever knows it may seal it"
    );
}

/// Of stores that may give old answers: whoever was given one looks again before it seals.
pub fn a_store_that_is_all_it_was_is_not_sealed(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let lease = one.acquire(1);
    let seen = runtime.block_on(one.store.read()).expect("read");
    let (identity, revision) = (lease.leased()[0].identity, lease.committed.revision);
    let remembered = Anchor {
        witness: Some(Witness { identity, revision }),
        ..Anchor::of(&seen.cell, seen.revision)
    };
    let mut seal = Seal {
        cell_id: seen.cell.cell_id,
        reason: "an old answer".to_owned(),
        known: told(seen.cell.epoch, seen.cell.epoch_since),
        remembered: vec![remembered],
    };
    let sealed = runtime.block_on(one.store.seal(&seal));
    assert_eq!(sealed.map_err(|error| error.kind), Ok(false));
    assert_eq!(one.read_kind(), None);
    let lost = revision.0 + 1;
    seal.remembered[0].witness = Some(Witness {
        identity,
        revision: Revision(lost),
    });
    let sealed = runtime.block_on(one.store.seal(&seal));
    assert_eq!(sealed.map_err(|error| error.kind), Ok(true), "its row is older");
    assert_eq!(one.read_kind(), Some(StoreErrorKind::Sealed));
}

/// A new cell would be young, and lease at once while holders of the old one mint.
pub fn a_store_that_is_wiped_gets_a_new_cell_from_strangers_only(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let cell = runtime.block_on(one.store.read()).expect("read").cell;
    one.acquire(1);
    place.wipe();
    for expected in [Expected::Cell(cell.cell_id), Expected::Unknown] {
        one.store.expect(expected);
        let error = runtime.block_on(one.store.read()).expect_err("empty");
        assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
        assert!(error.message.contains("the lease store is empty"), "{error}");
    }
    let survey = runtime.block_on(one.store.survey()).expect("survey");
    assert!(survey.is_none(), "nothing was made: {survey:?}");
    let mut stranger = Daemon::new(place, &runtime, 2, 60_000);
    let other = runtime
        .block_on(stranger.store.read())
        .expect("it is new to it")
        .cell;
    assert_ne!(other.cell_id, cell.cell_id);
}

pub fn what_expires_goes_to_others_with_a_higher_generation_and_token(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::of(Class::Shard, place, &runtime, 2, 60_000);
    let plan = one.shards(&[3, 4]).expect("plan");
    let lease = one.grant(plan).expect("granted");
    assert!(matches!(two.shards(&[4]), Err(PlanError::NotFree(_))), "held");
    place.expire();
    let plan = eventually(PATIENCE, "the old window has cooled", || two.shards(&[4]).ok());
    let next = two.grant(plan).expect("granted");
    assert_eq!(next.plan.grants[0].generation, 2);
    assert!(next.token > lease.token);
    assert!(next.leased()[0].window.floor > lease.leased()[1].window.ceiling);
    // Of two identities one is gone, so all of the lease is.
    assert_eq!(one.standing(&lease), Standing::Lost);
    let late = one.renew(&lease.renewal(600_000)).err();
    assert_eq!(late, Some(StoreErrorKind::Conflict), "all or nothing");
    let snapshot = runtime.block_on(two.store.read()).expect("read");
    let row = snapshot.row(Identity(3)).expect("row");
    assert_eq!(
        row.ceiling,
        lease.leased()[0].window.ceiling,
        "nothing of it stays"
    );
}

pub fn revisions_rise_and_every_answered_write_is_seen(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    let mut lease = one.acquire(2);
    let mut revision = lease.committed.revision;
    for by_ms in 1..=5 {
        let renewal = lease.renewal(by_ms * 100);
        lease.committed = one.renew(&renewal).expect("renewed");
        assert!(lease.committed.revision > revision);
        revision = lease.committed.revision;
        let snapshot = runtime.block_on(two.store.read()).expect("read");
        assert!(snapshot.revision >= revision, "the store is as far as its rows");
        for leased in &renewal.leased {
            let row = snapshot.row(leased.identity).expect("row");
            assert_eq!((row.revision, row.ceiling), (revision, leased.window.ceiling));
        }
    }
    let other = two.acquire(1);
    assert!(other.committed.revision > revision);
    assert_eq!(other.token.revision, other.committed.revision);
}

pub fn ceilings_fall_only_to_an_exact_high_water<P: Place>(place: &P) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let lease = one.acquire(1);
    let identity = lease.leased()[0].identity;
    let ceiling = lease.leased()[0].window.ceiling;
    let mut lower = lease.renewal(0);
    lower.leased[0].window.ceiling = ceiling.saturating_sub(1);
    assert_eq!(one.renew(&lower).err(), Some(StoreErrorKind::Conflict));
    let above = Mark {
        last: ceiling.saturating_add(1),
        ..lease.mark(0, 0)
    };
    assert_eq!(one.release(BOOT, &[above]), [], "no id can be above the ceiling");
    let shown = |one: &mut Daemon<P::Store>| {
        let snapshot = runtime.block_on(one.store.read()).expect("read");
        snapshot.row(identity).expect("row").ceiling
    };
    assert_eq!(shown(&mut one), ceiling);
    let exact = lease.mark(0, 9);
    assert_eq!(one.release(BOOT, &[exact]), [exact]);
    assert_eq!(shown(&mut one), exact.last);
}

pub fn a_store_that_does_not_answer_is_given_up_and_found_again(place: &mut impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let lease = one.acquire(1);
    place.freeze();
    assert_eq!(
        one.read_kind(),
        Some(StoreErrorKind::Unreachable),
        "a read changes nothing"
    );
    let unsure = one.renew(&lease.renewal(500)).err();
    let known = [Some(StoreErrorKind::Unreachable), Some(StoreErrorKind::Unknown)];
    assert!(known.contains(&unsure), "{unsure:?}");
    place.thaw();
    eventually_true(PATIENCE, "the store answers", || one.read_kind().is_none());
    // The renewal from before may be done only now, also between this look and the next request.
    eventually(PATIENCE, "the lease is renewed as it stands now", || {
        let Standing::Mine { leased } = one.standing(&lease) else {
            panic!("lost")
        };
        one.renew(&Renewal {
            leased,
            ..lease.renewal(0)
        })
        .ok()
    });
}

pub fn a_shard_that_two_servers_name_goes_to_one_and_workers_never_notice(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::of(Class::Shard, place, &runtime, 2, 60_000);
    let mut worker = Daemon::new(place, &runtime, 2, 60_000);
    let (plan, both) = (
        one.shards(&[7, 8]).expect("plan"),
        two.shards(&[8, 9]).expect("plan"),
    );
    let lease = one.grant(plan).expect("granted");
    assert_eq!(
        two.grant(both).err(),
        Some(StoreErrorKind::Conflict),
        "planned at the same time"
    );
    let error = two.shards(&[8]).expect_err("held");
    let by = "daemon-1".to_owned();
    assert_eq!(
        error,
        PlanError::NotFree(vec![NotFree {
            identity: Identity(8),
            why: Occupied::Held { by }
        }]),
        "planned afterwards"
    );
    let nine = two.shards(&[8, 9]).expect("a plan of what is free");
    assert_eq!(nine.grants.len(), 1);
    two.grant(nine).expect("nothing of the refused grant stays");

    let workers = worker.acquire(2);
    worker.renew(&workers.renewal(500)).expect("renewed");
    one.renew(&lease.renewal(500)).expect("renewed");
    let seen = runtime.block_on(worker.store.read()).expect("read");
    assert_eq!(seen.rows().len(), 2, "worker 7 and shard 7 are two things");
}

pub fn a_shard_moves_at_once_and_above_its_exact_high_water(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::of(Class::Shard, place, &runtime, 2, 60_000);
    let plan = one.shards(&[0, 8_191]).expect("plan");
    let lease = one.grant(plan).expect("granted");
    let marks = [lease.mark(0, 3), lease.mark(1, 500)];
    assert_eq!(one.release(BOOT, &marks), marks);
    // Half a second ahead of the clock is within the lead: nobody waits.
    let plan = two.shards(&[0, 8_191]).expect("free at once");
    let next = two.grant(plan).expect("granted");
    for (mark, leased) in marks.iter().zip(next.leased()) {
        assert_eq!(leased.window.floor, mark.last.saturating_add(1));
    }
    assert!(next.token > lease.token);
    assert_eq!(
        one.renew(&lease.renewal(500)).err(),
        Some(StoreErrorKind::Conflict)
    );
    assert_eq!(one.standing(&lease), Standing::Lost);
}

pub fn what_a_daemon_left_behind_is_replaced_by_itself_only(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::of(Class::Shard, place, &runtime, 2, 60_000);
    let plan = one.shards(&[3, 4]).expect("plan");
    let lease = one.grant(plan).expect("granted");
    let plan = eventually(PATIENCE, "the old window has cooled", || one.shards(&[3, 4]).ok());
    assert_eq!(plan.grants[0].replaces, Some(lease.token));
    assert_eq!(
        two.grant(plan.clone()).err(),
        Some(StoreErrorKind::Conflict),
        "the plan of one, sent by another"
    );
    let honest = GrantPlan {
        grants: plan
            .grants
            .iter()
            .map(|grant| PlannedGrant {
                replaces: None,
                ..*grant
            })
            .collect(),
        ..plan.clone()
    };
    assert_eq!(
        one.grant(honest).err(),
        Some(StoreErrorKind::Conflict),
        "it was said to be free"
    );
    let again = one.grant(plan.clone()).expect("replaced");
    assert!(again.token > lease.token, "a new token");
    assert_eq!(one.grant(plan).err(), Some(StoreErrorKind::Conflict), "only once");
    assert_eq!(one.standing(&lease), Standing::Lost);
    one.renew(&again.renewal(500)).expect("renewed");
}

fn with_ceilings(mut leased: Vec<Tenancy>, of: &[Tenancy]) -> Vec<Tenancy> {
    for (tenancy, other) in leased.iter_mut().zip(of) {
        tenancy.window = other.window;
    }
    leased
}

/// What comes is granted beside what there is, and all are renewed in one step, each under its own token.
pub fn shards_come_and_go_one_by_one_under_tokens_of_their_own(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::of(Class::Shard, place, &runtime, 1, 60_000);
    let mut two = Daemon::of(Class::Shard, place, &runtime, 2, 60_000);
    let plan = one.shards(&[3, 4]).expect("plan");
    let first = one.grant(plan).expect("granted");
    let plan = one.shards(&[9]).expect("plan");
    let second = one.grant(plan).expect("granted beside");
    assert!(second.token > first.token);
    assert!(matches!(one.standing(&first), Standing::Mine { .. }), "untouched");

    let both = |by_ms| {
        let mut renewal = first.renewal(by_ms);
        renewal.leased.extend(second.renewal(by_ms).leased);
        renewal
    };
    let mut wrong = both(500);
    wrong.leased[2].guard = first.committed.revision;
    assert_eq!(
        one.renew(&wrong).err(),
        Some(StoreErrorKind::Conflict),
        "a guard of another"
    );
    let renewed = one.renew(&both(500)).expect("renewed in one step");

    // One of the first grant goes; the other two stay as they are.
    let mark = first.mark(0, 3);
    assert_eq!(one.release(BOOT, &[mark]), [mark]);
    let plan = two.shards(&[3]).expect("free at once");
    let taken = two.grant(plan).expect("granted");
    assert_eq!(taken.leased()[0].window.floor, mark.last.saturating_add(1));
    let mut rest = both(1_000);
    rest.leased.remove(0);
    for tenancy in &mut rest.leased {
        tenancy.guard = renewed.revision;
    }
    one.renew(&rest).expect("those that stay are renewed");
    let seen = runtime.block_on(one.store.read()).expect("read");
    let held: Vec<_> = seen
        .rows()
        .iter()
        .map(|row| {
            row.holder
                .as_ref()
                .map(|holder| (holder.name.as_str(), holder.token))
        })
        .collect();
    let expected = [
        ("daemon-2", taken.token),
        ("daemon-1", first.token),
        ("daemon-1", second.token),
    ];
    assert_eq!(held, expected.map(Some));
}

fn regional(region: u64) -> CellFormat {
    CellFormat::new(REGIONAL, Some(region)).expect("a worker format")
}

pub fn a_switch_is_made_once_and_every_daemon_must_know_it(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    let mut shards = Daemon::of(Class::Shard, place, &runtime, 3, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let lease = one.acquire(2);
    let planned_before = two.plan(2, 9);
    let sharded = shards.shards(&[7]).expect("plan");
    let sharded = shards.grant(sharded).expect("granted");

    let switch = operator.plan_switch(regional(1), 0);
    operator.switch(&switch).expect("switched");
    assert_eq!(one.formats(), switch.formats, "and everybody sees it");
    assert_eq!(
        operator.switch(&switch).err(),
        Some(StoreErrorKind::Conflict),
        "only once"
    );

    // One has read the switch just now, but its renewal was planned before: the text tells, not the revision.
    let old = lease.renewal(500);
    assert_eq!(one.renew(&old).err(), Some(StoreErrorKind::Conflict));
    assert_eq!(two.grant(planned_before).err(), Some(StoreErrorKind::Conflict));
    let Standing::Mine { leased } = one.standing(&lease) else {
        panic!("lost")
    };
    let formats = switch.formats.clone();
    one.renew(&Renewal {
        leased: with_ceilings(leased, &old.leased),
        formats: formats.clone(),
        ..old
    })
    .expect("in the same period");
    two.acquire(2);
    assert!(matches!(shards.standing(&sharded), Standing::Mine { .. }));
    shards
        .renew(&Renewal {
            formats,
            ..sharded.renewal(500)
        })
        .expect("shards go on");
}

pub fn a_switch_is_refused_when_a_grant_slips_in_between(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let lease = one.acquire(1);
    for beyond in ["renewal", "grant"] {
        let switch = operator.plan_switch(regional(1), 0);
        if beyond == "renewal" {
            let mut renewal = lease.renewal(0);
            renewal.leased[0].window.ceiling = switch.at;
            one.renew(&renewal).expect("nobody has switched yet");
        } else {
            let mut plan = one.plan(1, 9);
            plan.grants[0].leased.window.ceiling = switch.at;
            one.grant(plan).expect("nobody has switched yet");
        }
        assert_eq!(
            operator.switch(&switch).err(),
            Some(StoreErrorKind::Conflict),
            "{beyond}"
        );
        let snapshot = runtime.block_on(operator.store.read()).expect("read");
        assert_eq!(snapshot.cell.worker_format, "classic");
        let at = switch.at;
        let then = at.saturating_sub(WINDOW_MS + 3_000);
        let again = plan_switch(&snapshot, regional(1), at, then, WINDOW_MS).expect_err("it is above now");
        assert!(matches!(again, SwitchRefused::Granted { .. }), "{again}");
        // Out of the way of the next one.
        eventually_true(PATIENCE, "the next moment lies above", || {
            host_clock().saturating_add(WINDOW_MS) > at
        });
    }
}

pub fn a_second_switch_raises_the_floor_of_the_cell(place: &impl Place) {
    let runtime = runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let lease = one.acquire(1);
    // Without a region: that would be for good.
    let other: CellFormat = "other(1577836800000,1,41,0,1,10,11)".parse().expect("a format");
    let first = operator.plan_switch(other, 0);
    operator.switch(&first).expect("switched");
    eventually_true(PATIENCE, "its moment has passed", || host_clock() > first.at);
    let classic = CellFormat::new(CLASSIC, None).expect("a worker format");
    let second = operator.plan_switch(classic, 0);
    operator.switch(&second).expect("switched");
    let snapshot = runtime.block_on(one.store.read()).expect("read");
    assert_eq!(
        snapshot.cell.worker_format,
        format!("{other}; classic from {}", second.at.0)
    );
    assert_eq!(snapshot.cell.min_floor, first.at);
    assert!(
        matches!(one.standing(&lease), Standing::Mine { .. }),
        "it has lived through both"
    );
    assert!(one.acquire(1).leased()[0].window.floor >= first.at);
}
