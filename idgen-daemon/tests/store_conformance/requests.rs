//! The rules for what needs two people. Who they are is said by each real store in a way of its own, which `e2e/approvals.rs`
//! tries; here it is only that what was judged is what is done, once.

use crate::rules::{self, Daemon, Lease, Place};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::{Act, Ask, Digest, Needed, Request, RequestId, means};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{Class, Order, Survey};
use idgen_daemon::lease::{Asked, OrderStore, RequestStore, StoreErrorKind};
use tokio::runtime::Runtime;

/// An operator's store, and a place to wait in.
struct Operator<'r, S> {
    store: S,
    runtime: &'r Runtime,
}

impl<S: RequestStore> Operator<'_, S> {
    fn survey(&mut self) -> Survey {
        let survey = self.runtime.block_on(self.store.survey()).expect("survey");
        survey.expect("a cell")
    }

    fn asked(&mut self) -> Asked {
        self.runtime.block_on(self.store.asked()).expect("asked")
    }

    fn request(&mut self, id: RequestId) -> Request {
        let requests = self.asked().requests;
        let found = requests.into_iter().find(|request| request.ask.id == id);
        found.expect("the request")
    }

    fn ask(&mut self, id: u128, act: Act) -> RequestId {
        let survey = self.survey();
        let ask = Ask {
            id: RequestId(id),
            cell_id: survey.cell.cell_id,
            act,
            reason: "its host \"burns\"".to_owned(),
            by: "somebody at db1".to_owned(),
            at: survey.now,
            expires: survey.now.saturating_add(3_600_000),
        };
        self.runtime.block_on(self.store.ask(&ask)).expect("asked");
        assert_eq!(self.request(ask.id).ask, ask, "as it was written");
        let again = self.runtime.block_on(self.store.ask(&ask));
        let kind = again.err().map(|error| error.kind);
        assert_eq!(kind, Some(StoreErrorKind::Conflict), "the name is taken");
        ask.id
    }

    fn force(&mut self, request: &Request, row: &Row, order: &Order) -> Option<StoreErrorKind> {
        let forced = self.store.force_release(request, row, order);
        self.runtime.block_on(forced).err().map(|error| error.kind)
    }
}

fn force_of(lease: &Lease, row: &Row) -> Act {
    Act::ForceRelease {
        class: Class::Worker,
        identity: row.identity,
        token: lease.token,
        generation: row.generation,
    }
}

fn order_of(lease: &Lease, row: &Row, id: RequestId) -> Order {
    Order {
        class: Class::Worker,
        identity: row.identity,
        token: lease.token,
        at: UnixMs(1_795_910_400_123),
        by: "somebody".to_owned(),
        reason: "its host burns".to_owned(),
        request: Some(id.0),
    }
}

pub fn what_people_have_approved_is_done_once_and_leaves_the_ceiling<P: Place>(place: &P) {
    let runtime = rules::runtime();
    let mut one = Daemon::new(place, &runtime, 1, 60_000);
    let lease = one.acquire(1);
    let mut operator = Operator {
        store: rules::newcomer(place, Class::Worker, rules::holder(9), 60_000),
        runtime: &runtime,
    };
    let row = operator.survey().workers.remove(0);
    let id = operator.ask(1, force_of(&lease, &row));
    let digest = operator.request(id).digest;
    place.approve("alice", id, digest);
    place.approve("bob", id, Digest::of("another text"));
    let request = operator.request(id);
    assert_eq!(request.approvers().into_iter().collect::<Vec<_>>(), ["alice"]);
    place.approve("bob", id, digest);
    let order = order_of(&lease, &row, id);
    let approved = operator.request(id);
    assert_eq!(approved.approvers().len(), 2);
    assert!(means(&approved.ask.act, &row));
    // What it was judged by has changed since.
    let renewed = one.renew(&lease.renewal(500)).expect("renewed");
    let conflict = Some(StoreErrorKind::Conflict);
    assert_eq!(
        operator.force(&approved, &row, &order),
        conflict,
        "the row is another one"
    );
    let row = operator.survey().workers.remove(0);
    assert_eq!(row.revision, renewed.revision);
    assert_eq!(operator.force(&approved, &row, &order), None);
    let left = operator.survey().workers.remove(0);
    assert_eq!((left.holder, left.ceiling), (None, row.ceiling));
    assert_eq!(left.generation, row.generation);
    let orders = runtime.block_on(operator.store.orders()).expect("orders");
    assert_eq!(orders, std::slice::from_ref(&order));
    assert!(operator.request(id).done.is_some());
    assert_eq!(
        one.renew(&lease.renewal(900)).err(),
        conflict,
        "it is not its any more"
    );
    assert_eq!(operator.force(&approved, &row, &order), conflict, "it was used");
    // Somebody else may have it, above all that was granted.
    let mut two = Daemon::new(place, &runtime, 2, 60_000);
    two.acquire(1);
}

pub fn how_many_are_needed_is_kept_by_the_cell<P: Place>(place: &P) {
    let runtime = rules::runtime();
    Daemon::new(place, &runtime, 1, 60_000).acquire(1);
    let mut operator = Operator {
        store: rules::newcomer(place, Class::Worker, rules::holder(9), 60_000),
        runtime: &runtime,
    };
    let nobody = Needed {
        set: None,
        has_two: false,
    };
    assert_eq!(operator.asked().needed, nobody);
    let id = operator.ask(1, Act::Need { approvals: 2 });
    let request = operator.request(id);
    runtime
        .block_on(operator.store.need(&request, 2))
        .expect("two are needed");
    assert_eq!(operator.asked().needed.set, Some(2));
    let again = runtime.block_on(operator.store.need(&request, 1));
    assert_eq!(
        again.err().map(|error| error.kind),
        Some(StoreErrorKind::Conflict),
        "it was used"
    );
    place.advance_epoch();
    assert_eq!(operator.asked().needed.set, Some(2), "in every epoch");
}
