//! The store in memory, by the clock of this host.

use crate::rules::{self, Daemon, Place, TTL_MS};
use crate::store_memory::{Clock, Fault, MemoryPlace, MemoryStore};
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::approval::{Digest, RequestId};
use idgen_core::lease::ledger::{Attempt, settle_grant};
use idgen_core::lease::{Class, InstanceId};
use idgen_daemon::lease::{HolderName, LeaseStore, StoreErrorKind};

impl Place for MemoryPlace {
    type Store = MemoryStore;

    fn open(&self, class: Class, holder: HolderName, ttl_ms: u64) -> MemoryStore {
        self.open(class, holder, ttl_ms)
    }

    fn seal(&self, reason: &str) {
        self.seal(reason);
    }

    fn wipe(&self) {
        self.wipe();
    }

    fn advance_epoch(&self) {
        self.advance_epoch();
    }

    fn expire(&self) {
        self.expire();
    }

    fn approve(&self, who: &str, id: RequestId, digest: Digest) {
        self.approve(who, id, digest);
    }

    fn freeze(&mut self) {
        self.set_fault(Fault::Away);
    }

    fn thaw(&mut self) {
        self.set_fault(Fault::None);
    }
}

conformance!(MemoryPlace::new(Clock::Real));

#[test]
fn a_store_that_is_all_it_was_is_not_sealed() {
    rules::a_store_that_is_all_it_was_is_not_sealed(&MemoryPlace::new(Clock::Real));
}

/// What each fault does, and that only a read tells them apart.
#[test]
fn faults_are_settled_by_reading() {
    for (fault, made) in [
        (Fault::RequestLost, false),
        (Fault::AnswerLost, true),
        (Fault::Late, false),
    ] {
        let place = MemoryPlace::new(Clock::Real);
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let mut one = Daemon::new(&place, &runtime, 1, TTL_MS);
        let attempt = Attempt {
            plan: one.plan(2, 7),
            reading: ClockReading {
                wall: UnixMs(1),
                boot: BootMs(5),
            },
        };
        let settled = |one: &mut Daemon<MemoryStore>| {
            let snapshot = runtime.block_on(one.store.read()).expect("read");
            settle_grant(&snapshot, &attempt, InstanceId(1), TTL_MS).is_some()
        };
        place.set_fault(fault);
        let error = one.grant(attempt.plan.clone()).err();
        assert_eq!(error, Some(StoreErrorKind::Unknown), "{fault:?}");
        assert!(runtime.block_on(one.store.read()).is_err(), "{fault:?}");
        place.set_fault(Fault::None);
        assert_eq!(settled(&mut one), made, "{fault:?}");
        place.arrive();
        assert_eq!(settled(&mut one), made || fault == Fault::Late, "{fault:?}");
    }
}

/// Nothing of what was done since a backup is there after its restore, and the store is sealed.
#[test]
fn a_restored_store_is_another_one() {
    let place = MemoryPlace::new(Clock::Real);
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let mut one = Daemon::new(&place, &runtime, 1, TTL_MS);
    let plan = one.plan(1, 7);
    let backup = place.backup();
    one.grant(plan.clone()).expect("granted");
    place.restore(&backup, 2);
    let error = runtime.block_on(one.store.read()).expect_err("sealed");
    assert_eq!(error.kind, StoreErrorKind::Sealed, "{error}");
    assert_eq!(one.grant(plan).err(), Some(StoreErrorKind::Sealed));
}
