//! The rules for orders of operators.

use crate::rules::{self, Daemon, Lease, Place};
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::Standing;
use idgen_core::lease::{Class, Identity, Order, Revision, Token};
use idgen_daemon::lease::{LeaseStore, OrderStore, StoreErrorKind};
use tokio::runtime::Runtime;

fn against(lease: &Lease, index: usize) -> Order {
    Order {
        class: Class::Worker,
        identity: lease.leased()[index].identity,
        token: lease.token,
        at: UnixMs(1_795_910_400_123),
        by: "somebody at db1".to_owned(),
        reason: "mints twice?".to_owned(),
        request: None,
    }
}

fn give<S: OrderStore>(operator: &mut Daemon<S>, runtime: &Runtime, order: &Order) -> Option<StoreErrorKind> {
    runtime.block_on(operator.store.orders()).expect("orders");
    let given = runtime.block_on(operator.store.order(order));
    given.err().map(|error| error.kind)
}

/// With an order that it has not seen, and with one that it has.
pub fn what_is_ordered_to_end_is_not_renewed_and_is_given_back_exactly<P: Place>(place: &P) {
    for seen in [false, true] {
        let runtime = rules::runtime();
        let mut one = Daemon::new(place, &runtime, if seen { 2 } else { 1 }, 60_000);
        let mut operator = Daemon::new(place, &runtime, 9, 60_000);
        let mut lease = one.acquire(2);
        lease.committed = one.renew(&lease.renewal(500)).expect("renewed");
        let order = against(&lease, 1);
        assert_eq!(give(&mut operator, &runtime, &order), None);
        if seen {
            assert_eq!(one.standing(&lease), Standing::Ordered);
        }
        let refused = one.renew(&lease.renewal(900)).err();
        assert_eq!(refused, Some(StoreErrorKind::Conflict), "seen: {seen}");
        assert_eq!(one.standing(&lease), Standing::Ordered);
        let marks = [lease.mark(0, 3), lease.mark(1, 4)];
        assert_eq!(one.release(rules::BOOT, &marks), marks);
        let kept = runtime.block_on(operator.store.orders()).expect("orders");
        assert!(kept.contains(&order), "{kept:?}");
        // The next lease of the same identities, by the same daemon.
        let plan = one.plan(2, 7);
        let mut next = one.grant(plan).expect("granted");
        next.committed = one.renew(&next.renewal(500)).expect("renewed");
        assert!(matches!(one.standing(&next), Standing::Mine { .. }));
        runtime
            .block_on(
                one.store
                    .release(rules::BOOT, &[next.mark(0, 900), next.mark(1, 900)]),
            )
            .expect("released");
    }
}

pub fn an_order_is_against_whoever_holds_the_token(place: &impl Place) {
    let runtime = rules::runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let lease = one.acquire(1);
    let order = against(&lease, 0);
    let conflict = Some(StoreErrorKind::Conflict);
    let older = Order {
        token: Token {
            revision: Revision(lease.token.revision.0 - 1),
            ..lease.token
        },
        ..order.clone()
    };
    assert_eq!(give(&mut operator, &runtime, &older), conflict, "another token");
    let other = Order {
        identity: Identity(order.identity.0 ^ 1),
        ..order.clone()
    };
    assert_eq!(give(&mut operator, &runtime, &other), conflict, "nobody holds it");
    let shard = Order {
        class: Class::Shard,
        ..order.clone()
    };
    assert_eq!(
        give(&mut operator, &runtime, &shard),
        conflict,
        "the shard of the number"
    );
    assert_eq!(runtime.block_on(operator.store.orders()).expect("orders"), []);
    place.seal("restored");
    assert_eq!(give(&mut operator, &runtime, &order), None, "of a sealed store");
    let again = Order {
        reason: "once more".to_owned(),
        ..order
    };
    assert_eq!(give(&mut operator, &runtime, &again), None);
    let kept = runtime.block_on(operator.store.orders()).expect("orders");
    assert_eq!(kept, [again], "the last one");
}

/// Orders against others cost a look and nothing else.
pub fn an_order_against_another_lease_changes_nothing(place: &impl Place) {
    let runtime = rules::runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    let mut operator = Daemon::new(place, &runtime, 9, 60_000);
    let (mut mine, theirs) = (one.acquire(1), two.acquire(1));
    assert_eq!(give(&mut operator, &runtime, &against(&theirs, 0)), None);
    mine.committed = match one.renew(&mine.renewal(500)) {
        Ok(committed) => committed,
        Err(kind) => {
            assert_eq!(kind, StoreErrorKind::Conflict);
            assert!(matches!(one.standing(&mine), Standing::Mine { .. }));
            one.renew(&mine.renewal(500)).expect("renewed after a look")
        }
    };
    one.renew(&mine.renewal(700)).expect("renewed");
}
