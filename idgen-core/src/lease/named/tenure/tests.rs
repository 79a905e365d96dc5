use super::super::super::ledger::{Cell, Holder};
use super::super::ledger::NamedRow;
use super::*;
use crate::lease::{InstanceId, TimingSpec};

const BOOT: BootId = BootId(6);
const WHO: Who = Who {
    instance: InstanceId(5),
    boot_id: BOOT,
};

fn tenure() -> Tenure {
    let spec = TimingSpec {
        period_ms: Some(2_000),
        ..TimingSpec::of_ttl(10_000)
    };
    Tenure::new("lock/a".parse().unwrap(), Timing::new(spec).unwrap())
}

fn look(row: Option<NamedRow>) -> NamedLook {
    NamedLook {
        cell: Cell::example(),
        revision: Revision(50),
        row,
    }
}

fn held_row(generation: u64, token: u64, guard: u64, instance: u128, boot_id: BootId) -> NamedRow {
    let holder = Holder {
        instance: InstanceId(instance),
        name: "x".to_owned(),
        token: Token {
            epoch: crate::lease::Epoch(0),
            revision: Revision(token),
        },
        boot_id,
        expired: false,
    };
    NamedRow {
        name: "lock/a".parse().unwrap(),
        generation,
        revision: Revision(guard),
        occupant: Some(Occupant {
            holder,
            guard: Revision(guard),
        }),
    }
}

/// Looks at a free name, and makes the grant's attempt after this reading.
fn attempt(tenure: &mut Tenure, reading: u64) -> Attempt {
    assert_eq!(tenure.pass(BootMs(reading), BOOT), None);
    assert_eq!(tenure.step(BootMs(reading)), Step::Look);
    match tenure.looked(&look(None), WHO, 0) {
        (Decision::Acquire(acquisition), None) => Attempt {
            acquisition,
            reading: BootMs(reading),
        },
        other => panic!("{other:?}"),
    }
}

fn held() -> Tenure {
    let mut tenure = tenure();
    let attempt = attempt(&mut tenure, 1_000);
    tenure.acquired(attempt, Revision(7), 10_000, 0);
    tenure
}

fn deadline(tenure: &Tenure) -> u64 {
    tenure.held().expect("held").1.0
}

#[test]
fn the_deadline_counts_from_the_reading_before_the_request_and_never_falls() {
    let mut tenure = held();
    assert_eq!(deadline(&tenure), 1_000 + 10_000 - 2_000 - 2);
    assert!(matches!(tenure.step(BootMs(2_000)), Step::RestUntil(_)));
    let Step::Renew(asked) = tenure.step(BootMs(3_300)) else {
        panic!("a period is over")
    };
    assert_eq!(asked.guard, Revision(7));
    tenure.renewed(BootMs(3_300), Revision(8), 10_000, 0);
    assert_eq!(deadline(&tenure), 3_300 + 7_998);
    let (after, _) = tenure.held().expect("held");
    assert_eq!((after.token.revision, after.guard), (Revision(7), Revision(8)));
    tenure.renewed(BootMs(3_400), Revision(9), 2_000, 0);
    assert_eq!(deadline(&tenure), 3_300 + 7_998, "of a token it never falls");
}

#[test]
fn at_the_deadline_and_in_new_shared_memory_nothing_is_held() {
    let mut tenure = held();
    assert_eq!(tenure.pass(BootMs(8_997), BOOT), None);
    assert_eq!(tenure.pass(BootMs(8_998), BOOT), Some(TenureLoss::Deadline));
    assert!(tenure.held().is_none() && !tenure.is_sure());
    let mut tenure = held();
    assert_eq!(
        tenure.pass(BootMs(1), BootId(9)),
        Some(TenureLoss::BootIdChanged),
        "whatever its clock says"
    );
    assert_eq!(tenure.step(BootMs(1)), Step::Look);
    let mut tenure = held();
    tenure.lose(BootMs(9_000_000));
    assert_eq!(tenure.pass(BootMs(1), BootId(9)), None);
    assert_eq!(
        tenure.step(BootMs(1)),
        Step::Look,
        "a pause of another life is none"
    );
}

#[test]
fn a_grant_without_an_answer_is_settled_by_a_look() {
    let mut tenure = tenure();
    let asked = attempt(&mut tenure, 1_000);
    tenure.acquire_unknown(asked.clone());
    assert!(tenure.held().is_none(), "until it is known, nothing");
    let made = look(Some(held_row(1, 7, 7, 5, BOOT)));
    assert_eq!(tenure.looked(&made, WHO, 0), (Decision::Hold, None));
    assert_eq!(deadline(&tenure), 8_998, "by the reading of the attempt");
    let mut tenure = held();
    tenure.lose(BootMs(1_000));
    tenure.acquire_unknown(asked);
    let (decision, _) = tenure.looked(&look(None), WHO, 0);
    assert!(matches!(decision, Decision::Acquire(_)), "it was not made");
}

#[test]
fn a_renewal_without_an_answer_keeps_the_old_deadline_until_a_look() {
    let mut tenure = held();
    tenure.doubt();
    assert!(!tenure.is_sure());
    assert_eq!(tenure.step(BootMs(1_500)), Step::Look);
    let renewed = look(Some(held_row(1, 7, 9, 5, BOOT)));
    assert_eq!(tenure.looked(&renewed, WHO, 0), (Decision::Hold, None));
    assert_eq!(deadline(&tenure), 8_998);
    assert_eq!(tenure.held().expect("held").0.guard, Revision(9));
    tenure.doubt();
    let (decision, lost) = tenure.looked(&look(None), WHO, 0);
    assert_eq!(lost, Some(TenureLoss::StoreLost));
    assert!(matches!(decision, Decision::Acquire(_)));
}

#[test]
fn what_an_earlier_run_left_is_given_up_and_what_others_hold_is_waited_for() {
    let mut tenure = tenure();
    let earlier_run = look(Some(held_row(4, 30, 31, 99, BOOT)));
    let token = Token {
        epoch: crate::lease::Epoch(0),
        revision: Revision(30),
    };
    assert_eq!(tenure.looked(&earlier_run, WHO, 0).0, Decision::GiveUp(token));
    let other = look(Some(held_row(4, 30, 31, 99, BootId(1))));
    assert!(matches!(tenure.looked(&other, WHO, 0).0, Decision::Wait(_)));
}

#[test]
fn after_a_refusal_there_is_a_pause() {
    let mut tenure = held();
    tenure.lose(BootMs(2_000));
    assert_eq!(tenure.step(BootMs(2_000)), Step::RestUntil(BootMs(2_000 + 3_333)));
    assert_eq!(tenure.step(BootMs(5_333)), Step::Look);
}
