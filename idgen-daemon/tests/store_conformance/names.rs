//! The rules of named leases, ceilings and stripes.

use crate::kit::{PATIENCE, eventually, eventually_true};
use crate::rules::{BOOT, Place, TTL_MS, holder, newcomer};
use idgen_core::clock::UnixMs;
use idgen_core::lease::named::{
    Acquisition, ClaimPlan, Cut, Held, JoinPlan, LeaseName, Raise, ReleasePlan, Standing, Stored, StripeWish,
    Who,
};
use idgen_core::lease::{BootId, Class, InstanceId, Revision, Token};
use idgen_daemon::lease::{CEILINGS_AT_ONCE, CellStore, NamedStore, StoreError, StoreErrorKind, StripeStore};
use std::collections::BTreeMap;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Longer than any of these tests.
const LONG_MS: u64 = 60_000;

pub fn name(text: &str) -> LeaseName {
    text.parse().expect("a name")
}

/// One daemon that leases names.
pub struct Namer<'r, S> {
    pub store: S,
    runtime: &'r Runtime,
    who: Who,
}

fn kind<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind)
}

impl<'r, S: CellStore + StripeStore> Namer<'r, S> {
    /// In a place that has a cell.
    pub fn new(place: &impl Place<Store = S>, runtime: &'r Runtime, instance: u128, ttl_ms: u64) -> Self {
        let mut store = newcomer(place, Class::Worker, holder(instance), ttl_ms);
        runtime.block_on(store.read()).expect("a cell");
        let who = Who {
            instance: InstanceId(instance),
            boot_id: BOOT,
        };
        Self { store, runtime, who }
    }

    pub fn standing(&mut self, of: &LeaseName) -> Standing {
        let look = self.runtime.block_on(self.store.look_at(of)).expect("look");
        look.standing(of, self.who)
    }

    pub fn plan(&mut self, of: &LeaseName) -> Acquisition {
        match self.standing(of) {
            Standing::Free(acquisition) => acquisition,
            other => panic!("{of} is not free: {other:?}"),
        }
    }

    pub fn acquire(&mut self, plan: &Acquisition) -> Result<Held, StoreError> {
        let committed = self.runtime.block_on(self.store.acquire(plan))?;
        Ok(Held {
            name: plan.name.clone(),
            boot_id: plan.boot_id,
            token: Token {
                epoch: plan.epoch,
                revision: committed.revision,
            },
            epoch_nonce: plan.epoch_nonce,
            guard: committed.revision,
        })
    }

    pub fn take(&mut self, of: &LeaseName) -> Held {
        let plan = self.plan(of);
        self.acquire(&plan).expect("granted")
    }

    fn renew(&mut self, held: &mut Held) -> Result<(), StoreError> {
        let committed = self.runtime.block_on(self.store.renew_held(held))?;
        held.guard = committed.revision;
        Ok(())
    }

    fn give_up(&mut self, held: &Held) -> bool {
        let given_up = self.runtime.block_on(self.store.give_up(&held.name, held.token));
        given_up.expect("give up")
    }

    fn ceilings(&mut self, of: &LeaseName, keys: &[&str]) -> BTreeMap<String, Stored> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let read = self.runtime.block_on(self.store.ceilings(of, &keys));
        read.expect("read ceilings")
    }

    pub fn raise(&mut self, held: &Held, raises: &[Raise]) -> Result<Revision, StoreError> {
        self.runtime.block_on(self.store.raise(held, raises))
    }
}

pub fn to(key: &str, seen: Option<Stored>, to: i64) -> Raise {
    Raise {
        key: key.to_owned(),
        seen,
        to,
    }
}

fn runtime() -> Runtime {
    Runtime::new().expect("runtime")
}

pub fn names_need_a_cell_that_somebody_has_made<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut store = place.open(Class::Worker, holder(1), LONG_MS);
    let looked = runtime.block_on(store.look_at(&name("a")));
    assert_eq!(kind(looked), Some(StoreErrorKind::Denied));
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    one.take(&name("a"));
}

pub fn a_name_has_one_holder<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let mut two = Namer::new(place, &runtime, 2, LONG_MS);
    two.who.boot_id = BootId(12);
    let of = name("authority/x/0");
    let (plan, other) = (one.plan(&of), two.plan(&of));
    let held = one.acquire(&plan).expect("granted");
    assert_eq!(kind(two.acquire(&other)), Some(StoreErrorKind::Conflict));
    let Standing::Taken(occupant) = two.standing(&of) else {
        panic!("it is taken")
    };
    assert_eq!((occupant.holder.token, occupant.guard), (held.token, held.guard));
    assert_eq!(occupant.holder.name, "daemon-1");
    assert!(matches!(one.standing(&of), Standing::Ours(_)));
    // Other names have nothing to do with it, whatever they begin with.
    let next = two.take(&name("authority/x/00"));
    assert!(next.token > held.token, "tokens rise");
    let listed = runtime.block_on(one.store.list("authority/x/")).expect("list");
    let names: Vec<&str> = listed.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["authority/x/0", "authority/x/00"]);
    assert!(listed.iter().all(|row| row.occupant.is_some()));
    assert!(
        runtime
            .block_on(one.store.list("authority/y/"))
            .expect("list")
            .is_empty()
    );
}

pub fn racing_daemons_never_share_a_name<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    Namer::new(place, &runtime, 99, LONG_MS);
    let granted = runtime.block_on(async {
        let mut races = JoinSet::new();
        for n in 0..6 {
            let mut store = place.open(Class::Worker, holder(n), LONG_MS);
            races.spawn(async move {
                let (of, who) = (
                    name("one"),
                    Who {
                        instance: InstanceId(n),
                        boot_id: BootId(n),
                    },
                );
                loop {
                    match store.look_at(&of).await.expect("look").standing(&of, who) {
                        Standing::Free(plan) => match store.acquire(&plan).await {
                            Ok(_) => return 1,
                            Err(error) => assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}"),
                        },
                        _ => return 0,
                    }
                }
            });
        }
        races.join_all().await
    });
    assert_eq!(granted.iter().sum::<i32>(), 1, "{granted:?}");
}

pub fn a_name_is_renewed_under_its_token_and_guard<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, TTL_MS);
    let of = name("lock/a");
    let mut held = one.take(&of);
    let stale = held.clone();
    let token = held.token;
    one.renew(&mut held).expect("renewed");
    assert!(held.guard > stale.guard, "the guard rises");
    let looked = runtime.block_on(one.store.look_at(&of)).expect("look");
    let guard = looked.guard_of(&held, one.who).expect("held");
    assert_eq!((held.token, guard), (token, held.guard));
    assert_eq!(
        kind(one.renew(&mut stale.clone())),
        Some(StoreErrorKind::Conflict)
    );
    let mut foreign = Held {
        token: Token {
            revision: Revision(token.revision.0 + 1),
            ..token
        },
        ..held.clone()
    };
    assert_eq!(kind(one.renew(&mut foreign)), Some(StoreErrorKind::Conflict));
    // As long as it is renewed it is held, beyond its TTL.
    let began = std::time::Instant::now();
    eventually_true(PATIENCE, "a TTL and a half have gone by", || {
        one.renew(&mut held).expect("renewed");
        began.elapsed().as_millis() > u128::from(TTL_MS * 3 / 2)
    });
    let mut two = Namer::new(place, &runtime, 2, TTL_MS);
    two.who.boot_id = BootId(12);
    assert!(matches!(two.standing(&of), Standing::Taken(_)));
}

pub fn a_name_that_is_not_renewed_goes_to_others<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, TTL_MS);
    let mut two = Namer::new(place, &runtime, 2, LONG_MS);
    two.who.boot_id = BootId(12);
    let of = name("lock/a");
    let mut held = one.take(&of);
    one.raise(&held, &[to("k", None, 50)]).expect("raised");
    let plan = eventually(PATIENCE, "it expires", || match two.standing(&of) {
        Standing::Free(plan) => Some(plan),
        _ => None,
    });
    assert_eq!(plan.generation, 2);
    let next = two.acquire(&plan).expect("granted");
    assert!(next.token > held.token);
    assert_eq!(kind(one.renew(&mut held)), Some(StoreErrorKind::Conflict));
    let seen = two.ceilings(&of, &["k"]).remove("k");
    assert_eq!(
        seen.map(|seen| seen.ceiling),
        Some(50),
        "ceilings outlive their lease"
    );
    let late = one.raise(&held, &[to("k", seen, 60)]);
    assert_eq!(kind(late), Some(StoreErrorKind::Conflict), "the token is over");
    two.raise(&next, &[to("k", seen, 70)]).expect("raised");
    assert!(!one.give_up(&held), "it is not theirs to give up");
    assert!(matches!(two.standing(&of), Standing::Ours(_)));
}

pub fn a_name_is_given_up_by_its_token_and_free_at_once<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let mut later_run = Namer::new(place, &runtime, 2, LONG_MS);
    let of = name("lock/a");
    let held = one.take(&of);
    one.raise(&held, &[to("k", None, 5)]).expect("raised");
    // The same shared memory, another run of the daemon.
    let Standing::Ours(occupant) = later_run.standing(&of) else {
        panic!("it is for the same shared memory")
    };
    assert_eq!(occupant.holder.token, held.token);
    assert!(later_run.give_up(&held));
    assert!(!later_run.give_up(&held), "once");
    let next = later_run.take(&of);
    assert!(next.token > held.token);
    let seen = later_run.ceilings(&of, &["k"]).remove("k");
    assert_eq!(seen.map(|seen| seen.ceiling), Some(5));
    // Who holds it does not help: the token counts.
    assert!(later_run.give_up(&next));
    let last = later_run.take(&of);
    let over = later_run.raise(&next, &[to("k", seen, 6)]);
    assert_eq!(kind(over), Some(StoreErrorKind::Conflict));
    let guarded_now = Held {
        guard: last.guard,
        ..next
    };
    assert_eq!(
        kind(later_run.renew(&mut guarded_now.clone())),
        Some(StoreErrorKind::Conflict)
    );
    later_run.raise(&last, &[to("k", seen, 6)]).expect("raised");
}

pub fn ceilings_only_rise_and_all_or_none<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let (of, odd) = (name("authority/x/0"), "ein \"Täg\": 'a/b:c' %\\");
    let held = one.take(&of);
    let first = one
        .raise(&held, &[to("a", None, 10), to(odd, None, 20)])
        .expect("raised");
    assert!(first > held.guard);
    let read = one.ceilings(&of, &["a", odd, "none"]);
    let stored = |ceiling, revision| Some(Stored { ceiling, revision });
    assert_eq!(
        (read.get("a").copied(), read.get(odd).copied(), read.len()),
        (stored(10, first), stored(20, first), 2)
    );
    let conflict = |result| assert_eq!(kind(result), Some(StoreErrorKind::Conflict));
    conflict(one.raise(&held, &[to("a", stored(10, first), 10)]));
    conflict(one.raise(&held, &[to("a", stored(10, first), 9)]));
    conflict(one.raise(&held, &[to("a", None, 30)]));
    conflict(one.raise(&held, &[to("a", stored(5, Revision(first.0 - 1)), 30)]));
    // What one of them is refused for, none gets.
    conflict(one.raise(&held, &[to("b", None, 30), to("a", None, 30)]));
    assert!(!one.ceilings(&of, &["b"]).contains_key("b"));
    let second = one
        .raise(&held, &[to("b", None, 1), to("a", stored(10, first), 30)])
        .expect("raised");
    assert_eq!(one.ceilings(&of, &["a"]).remove("a"), stored(30, second));
    // Keys of a name whose text another one begins with are not mixed up.
    let other = name("authority/x/0.b");
    one.take(&other);
    assert!(one.ceilings(&other, &["a"]).is_empty());
    let mut renewed = held.clone();
    one.renew(&mut renewed).expect("renewed");
    one.raise(&held, &[to("a", stored(30, second), 31)])
        .expect("raised, by the token");
}

pub fn a_hundred_ceilings_rise_at_once<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let of = name("authority/x/0");
    let held = one.take(&of);
    let keys: Vec<String> = (0..=CEILINGS_AT_ONCE).map(|n| format!("tag-{n}")).collect();
    let mut raises: Vec<Raise> = keys.iter().map(|key| to(key, None, 7)).collect();
    assert_eq!(kind(one.raise(&held, &raises)), Some(StoreErrorKind::Denied));
    raises.pop();
    let revision = one.raise(&held, &raises).expect("raised");
    let keys: Vec<&str> = raises.iter().map(|raise| raise.key.as_str()).collect();
    let read = one.ceilings(&of, &keys);
    assert_eq!(read.len(), CEILINGS_AT_ONCE);
    assert!(
        read.values()
            .all(|stored| *stored == Stored { ceiling: 7, revision })
    );
    for raise in &mut raises {
        (raise.seen, raise.to) = (read.get(&raise.key).copied(), 8);
    }
    one.raise(&held, &raises).expect("raised");
    runtime
        .block_on(one.store.look_at(&of))
        .expect("nothing is missing");
}

pub fn a_sealed_cell_grants_and_raises_no_names<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let (of, other) = (name("lock/a"), name("lock/b"));
    let mut held = one.take(&of);
    let plan = one.plan(&other);
    place.seal("on purpose");
    let looked = runtime.block_on(one.store.look_at(&of)).expect_err("sealed");
    assert_eq!(
        (looked.kind, looked.message.as_str()),
        (StoreErrorKind::Sealed, "on purpose")
    );
    // A store that compares revisions says that something has changed; what, its next look tells.
    let refused = [
        kind(one.acquire(&plan)),
        kind(one.renew(&mut held)),
        kind(one.raise(&held, &[to("k", None, 5)])),
        kind(runtime.block_on(one.store.stripes(None))),
    ];
    for kind in refused {
        assert!(
            matches!(kind, Some(StoreErrorKind::Sealed | StoreErrorKind::Conflict)),
            "{refused:?}"
        );
    }
    let given_up = runtime.block_on(one.store.give_up(&of, held.token));
    assert_eq!(kind(given_up), Some(StoreErrorKind::Sealed), "it is evidence");
}

pub fn an_older_epoch_grants_and_raises_no_names<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let (of, other) = (name("lock/a"), name("lock/b"));
    let mut held = one.take(&of);
    let raised = one.raise(&held, &[to("k", None, 5)]).expect("raised");
    let plan = one.plan(&other);
    place.advance_epoch();
    // Also once the new epoch was seen.
    for look in [false, true] {
        if look {
            let looked = runtime.block_on(one.store.look_at(&of)).expect("look");
            assert_eq!(looked.guard_of(&held, one.who), None);
        }
        let seen = Some(Stored {
            ceiling: 5,
            revision: raised,
        });
        let refused = [
            kind(one.acquire(&plan)),
            kind(one.renew(&mut held)),
            kind(one.raise(&held, &[to("k", seen, 6)])),
        ];
        assert_eq!(refused, [Some(StoreErrorKind::Conflict); 3], "{look}");
    }
    assert!(one.give_up(&held), "what this run holds it may give up");
    let next = one.take(&of);
    assert!(next.token > held.token);
    assert_eq!(one.ceilings(&of, &["k"])["k"].ceiling, 5);
    one.raise(&next, &[to("l", None, 6)]).expect("raised");
}

/// Of `space_id` in three stripes, with the revision that was seen of it.
fn claim_plan(space_id: u128, stripe: u32, seen: Option<Revision>) -> ClaimPlan {
    let wish = StripeWish {
        space_id,
        stripe,
        cut: Cut {
            stripes: 3,
            size: 10_001,
            above: i64::MAX,
        },
        server: u64::MAX - 5,
        database: "app".to_owned(),
        name: "north".to_owned(),
        at: UnixMs(1_700_000_000_123),
        by: "me".to_owned(),
    };
    ClaimPlan {
        wish,
        seen,
        joined: None,
    }
}

pub fn a_stripe_is_claimed_once_and_stays_after_its_release<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let mut claim = |plan: &ClaimPlan| runtime.block_on(one.store.claim_stripe(plan));
    claim(&claim_plan(7, 2, None)).expect("claimed");
    claim(&claim_plan(7, 0, None)).expect("claimed");
    claim(&claim_plan(8, 1, None)).expect("claimed");
    let again = claim(&claim_plan(7, 2, None));
    assert_eq!(kind(again), Some(StoreErrorKind::Conflict));
    let claims = runtime.block_on(one.store.stripes(Some(7))).expect("list");
    let stripes: Vec<u32> = claims.iter().map(|claim| claim.stripe).collect();
    assert_eq!(stripes, [0, 2]);
    let mine = &claims[1];
    assert_eq!(
        (mine.server, mine.at, mine.by.as_str()),
        (u64::MAX - 5, UnixMs(1_700_000_000_123), "me")
    );
    assert_eq!((mine.cut, mine.joined), (claim_plan(7, 2, None).wish.cut, None));
    assert_eq!(runtime.block_on(one.store.stripes(None)).expect("list").len(), 3);
    let release = ReleasePlan {
        space_id: 7,
        stripe: 2,
        at: UnixMs(1_700_000_001_000),
        reason: "sold".to_owned(),
        seen: mine.revision,
    };
    runtime
        .block_on(one.store.release_stripe(&release))
        .expect("released");
    let again = runtime.block_on(one.store.release_stripe(&release));
    assert_eq!(kind(again), Some(StoreErrorKind::Conflict));
    let claims = runtime.block_on(one.store.stripes(Some(7))).expect("list");
    assert_eq!(
        claims[1].released,
        Some((UnixMs(1_700_000_001_000), "sold".to_owned()))
    );
    let next = claim_plan(7, 2, Some(claims[1].revision));
    runtime
        .block_on(one.store.claim_stripe(&next))
        .expect("claimed anew");
    let claims = runtime.block_on(one.store.stripes(Some(7))).expect("list");
    assert_eq!((&claims[1].released, claims[1].database.as_str()), (&None, "app"));
}

pub fn a_stripe_is_joined_under_its_claim_and_that_stays_known<P: Place<Store: StripeStore>>(place: &P) {
    let runtime = runtime();
    let mut one = Namer::new(place, &runtime, 1, LONG_MS);
    let plan = claim_plan(7, 2, None);
    runtime.block_on(one.store.claim_stripe(&plan)).expect("claimed");
    let seen = |one: &mut Namer<'_, P::Store>| {
        let claims = runtime.block_on(one.store.stripes(Some(7))).expect("list");
        claims[0].clone()
    };
    let (at, conflict) = (UnixMs(1_700_000_000_500), Some(StoreErrorKind::Conflict));
    let join = JoinPlan {
        space_id: 7,
        stripe: 2,
        at,
        seen: seen(&mut one).revision,
    };
    runtime.block_on(one.store.join_stripe(&join)).expect("joined");
    let again = runtime.block_on(one.store.join_stripe(&join));
    assert_eq!(kind(again), conflict, "it is not as it was seen");
    let joined = seen(&mut one);
    assert_eq!((joined.joined, joined.cut), (Some(at), plan.wish.cut));
    let release = ReleasePlan {
        space_id: 7,
        stripe: 2,
        at,
        reason: "sold".to_owned(),
        seen: joined.revision,
    };
    runtime
        .block_on(one.store.release_stripe(&release))
        .expect("released");
    let released = seen(&mut one);
    let join = JoinPlan {
        seen: released.revision,
        ..join
    };
    let refused = runtime.block_on(one.store.join_stripe(&join));
    assert_eq!(kind(refused), conflict, "it is nobody's");
    let next = ClaimPlan {
        joined: released.joined,
        ..claim_plan(7, 2, Some(released.revision))
    };
    runtime
        .block_on(one.store.claim_stripe(&next))
        .expect("claimed anew");
    assert_eq!(seen(&mut one).joined, Some(at), "the index was used");
}
