use super::*;
use crate::lease::ledger::Holder;
use crate::lease::token::{BootId, InstanceId, Revision};
use proptest::prelude::*;

const CELL: CellId = CellId(1);
const NOW: UnixMs = UnixMs(1_000_000);
const TEXT: Digest = Digest([1; 32]);
const OTHER_TEXT: Digest = Digest([2; 32]);
const TWO: Needed = Needed {
    set: None,
    has_two: true,
};
const ONE: Needed = Needed {
    set: None,
    has_two: false,
};

const TOKEN: Token = Token {
    epoch: Epoch(3),
    revision: Revision(812),
};

fn force() -> Act {
    Act::ForceRelease {
        class: Class::Worker,
        identity: Identity(17),
        token: TOKEN,
        generation: 4,
    }
}

fn advance() -> Act {
    Act::AdvanceEpoch {
        from: (Epoch(3), EpochNonce(9)),
        identity: StoreIdentity::new("test/1").unwrap(),
        formats: None,
    }
}

fn request(act: Act, approvals: &[(&str, Digest)]) -> Request {
    Request {
        ask: Ask {
            id: RequestId(5),
            cell_id: CELL,
            act,
            reason: "its host burns".to_owned(),
            by: "somebody".to_owned(),
            at: NOW,
            expires: NOW.saturating_add(3_600_000),
        },
        digest: TEXT,
        approvals: approvals
            .iter()
            .map(|(approver, digest)| Approval {
                approver: (*approver).to_owned(),
                digest: *digest,
            })
            .collect(),
        done: None,
    }
}

fn few(have: &[&str], need: u32) -> NotEnough {
    NotEnough::Few {
        have: have.iter().map(|name| (*name).to_owned()).collect(),
        need,
    }
}

fn judged(request: &Request) -> Result<BTreeSet<String>, NotEnough> {
    request.judge(CELL, TWO, NOW)
}

#[test]
fn two_different_people_are_enough_and_one_is_not() {
    let both = judged(&request(force(), &[("alice", TEXT), ("bob", TEXT)])).unwrap();
    assert_eq!(both.into_iter().collect::<Vec<_>>(), ["alice", "bob"]);
    for (approvals, have) in [
        (&[][..], &[][..]),
        (&[("alice", TEXT)], &["alice"]),
        (&[("alice", TEXT), ("alice", TEXT)], &["alice"]),
        (&[("alice", TEXT), ("bob", OTHER_TEXT)], &["alice"]),
        (&[("alice", OTHER_TEXT), ("bob", OTHER_TEXT)], &[]),
    ] {
        assert_eq!(
            judged(&request(force(), approvals)),
            Err(few(have, 2)),
            "{approvals:?}"
        );
    }
}

#[test]
fn a_request_is_used_once_and_in_time_and_in_its_cell() {
    let both = [("alice", TEXT), ("bob", TEXT)];
    let mut used = request(force(), &both);
    used.done = Some("done".to_owned());
    assert_eq!(judged(&used), Err(NotEnough::Used("done".to_owned())));
    let fresh = request(force(), &both);
    let last = NOW.saturating_add(3_599_999);
    assert!(fresh.judge(CELL, TWO, last).is_ok());
    let expired = fresh.judge(CELL, TWO, last.saturating_add(1));
    assert_eq!(expired, Err(NotEnough::Expired));
    let elsewhere = fresh.judge(CellId(2), TWO, NOW);
    assert_eq!(elsewhere, Err(NotEnough::AnotherCell));
    let mut long = fresh;
    long.ask.expires = NOW.saturating_add(LIFE_MS_MAX + 1);
    assert_eq!(judged(&long), Err(NotEnough::TooLong));
}

#[test]
fn how_many_are_needed_is_said_by_the_cell() {
    let set = |set, has_two| Needed {
        set: Some(set),
        has_two,
    };
    // What, an advance, a force-release, and "need 1" and "need 2".
    for (needed, of_advance, of_force, of_one, of_two) in [
        (ONE, 1, 2, 1, 2),
        (TWO, 2, 2, 2, 2),
        (set(1, true), 1, 2, 1, 2),
        (set(2, false), 2, 2, 2, 2),
    ] {
        assert_eq!(needed.of(&advance()), of_advance, "{needed:?}");
        assert_eq!(needed.of(&force()), of_force, "{needed:?}");
        assert_eq!(needed.of(&Act::Need { approvals: 1 }), of_one, "{needed:?}");
        assert_eq!(needed.of(&Act::Need { approvals: 2 }), of_two, "{needed:?}");
    }
}

#[test]
fn a_later_lease_of_the_identity_is_not_meant() {
    let row = |token, generation| Row {
        identity: Identity(17),
        generation,
        ceiling: NOW,
        revision: Revision(900),
        holder: Some(Holder {
            instance: InstanceId(1),
            name: "a".to_owned(),
            token,
            boot_id: BootId(1),
            expired: false,
        }),
    };
    assert!(means(&force(), &row(TOKEN, 4)));
    let later = Token {
        revision: Revision(813),
        ..TOKEN
    };
    assert!(
        !means(&force(), &row(later, 5)),
        "an approval for an older generation"
    );
    assert!(!means(&force(), &row(TOKEN, 5)));
    let mut free = row(TOKEN, 4);
    free.holder = None;
    assert!(!means(&force(), &free));
    assert!(!means(&advance(), &row(TOKEN, 4)));
}

proptest! {
    /// Whatever else is in the store, it takes as many different people as are needed, each for this very text.
    #[test]
    fn no_set_of_approvals_passes_without_two_different_people(
        approvals in prop::collection::vec((0_usize..4, any::<bool>()), 0..12),
        set in prop::option::of(1_u32..3),
        has_two in any::<bool>(),
        forces in any::<bool>(),
    ) {
        let names = ["alice", "bob", "carol", "dave"];
        let approvals: Vec<(&str, Digest)> = approvals
            .into_iter()
            .map(|(who, same)| (names[who], if same { TEXT } else { OTHER_TEXT }))
            .collect();
        let act = if forces { force() } else { advance() };
        let request = request(act, &approvals);
        let needed = Needed { set, has_two };
        let people: BTreeSet<&str> = approvals
            .iter()
            .filter(|(_, digest)| *digest == TEXT)
            .map(|(who, _)| *who)
            .collect();
        let passes = request.judge(CELL, needed, NOW).is_ok();
        let wanted = if forces { 2 } else { set.unwrap_or(if has_two { 2 } else { 1 }) };
        prop_assert_eq!(passes, people.len() >= wanted as usize);
    }
}
