use super::super::pool::half;
use super::super::token::Identity;
use super::*;

const NOW: UnixMs = UnixMs(1_790_000_000_000);
const WORKER_WINDOW_MS: u64 = 480_000;
const SHARD_WINDOW_MS: u64 = 10_000;

fn store(text: &str) -> StoreIdentity {
    StoreIdentity::new(text).unwrap()
}

fn survey() -> Survey {
    Survey {
        cell: Cell::example(),
        shard_min_floor: UnixMs(0),
        here: store("test/2"),
        sealed_reason: None,
        sealed_at: None,
        damage: None,
        known: (Epoch(0), UnixMs(0)),
        revision: Revision(5),
        now: NOW,
        workers: Vec::new(),
        shards: Vec::new(),
        history: Vec::new(),
    }
}

fn wish() -> AdvanceWish {
    AdvanceWish {
        identity: store("test/2"),
        reason: "restored".to_owned(),
        by: "me".to_owned(),
        nonce: EpochNonce(77),
        worker_window_ms: WORKER_WINDOW_MS,
        shard_window_ms: SHARD_WINDOW_MS,
    }
}

fn anchor(epoch: u64, since: UnixMs) -> Anchor {
    Anchor {
        epoch: Epoch(epoch),
        since,
        ..Anchor::of(&Cell::example(), Revision(5))
    }
}

#[test]
fn an_advance_adopts_the_store_and_takes_the_other_half() {
    let plan = plan_advance(&survey(), &[], wish()).unwrap();
    assert_eq!(plan.seen, (Epoch(0), EpochNonce(1)));
    assert_eq!((plan.to, plan.nonce, plan.since), (Epoch(1), EpochNonce(77), NOW));
    assert_eq!(plan.identity, store("test/2"));
    assert_ne!(half(plan.to), half(Epoch(0)));
}

#[test]
fn only_a_sealed_store_is_advanced_and_only_the_named_one() {
    let itself = Survey {
        here: store("test/1"),
        ..survey()
    };
    let named = |identity| AdvanceWish {
        identity: store(identity),
        ..wish()
    };
    assert_eq!(
        plan_advance(&itself, &[], named("test/1")),
        Err(AdvanceRefused::Open)
    );
    let sealed = Survey {
        sealed_reason: Some("its revision fell".to_owned()),
        ..itself.clone()
    };
    assert!(plan_advance(&sealed, &[], named("test/1")).is_ok());
    let here = store("test/1");
    assert_eq!(
        plan_advance(&sealed, &[], named("test/2")),
        Err(AdvanceRefused::OtherStore { here })
    );
    let ahead = Anchor {
        revision: Revision(6),
        ..anchor(0, UnixMs(0))
    };
    assert!(
        plan_advance(&itself, &[ahead], named("test/1")).is_ok(),
        "the server knows what no daemon has told the store"
    );
    let of_another_cell = Anchor {
        cell_id: CellId(8),
        ..anchor(9, NOW)
    };
    assert_eq!(itself.sealed_because(&[of_another_cell]), None);
}

#[test]
fn a_new_epoch_rises_above_all_that_were_ever_seen() {
    let long_ago = UnixMs(1);
    let known = Survey {
        known: (Epoch(4), long_ago),
        ..survey()
    };
    assert_eq!(plan_advance(&known, &[], wish()).unwrap().to, Epoch(5));
    let anchors = [anchor(7, long_ago), anchor(2, long_ago)];
    assert_eq!(plan_advance(&known, &anchors, wish()).unwrap().to, Epoch(8));
}

#[test]
fn two_advances_lie_a_window_and_its_margin_apart() {
    let margin_ms = epoch_margin_ms(WORKER_WINDOW_MS);
    assert_eq!(margin_ms, 482_001);
    let ago = |ms| NOW.saturating_sub(ms);
    for (changed, refused) in [(ago(margin_ms - 1), true), (ago(margin_ms), false)] {
        let mut by_cell = survey();
        by_cell.cell.epoch = Epoch(1);
        by_cell.cell.epoch_since = changed;
        let by_daemons = Survey {
            known: (Epoch(1), changed),
            ..survey()
        };
        let by_anchor = [anchor(1, changed)];
        for (survey, anchors) in [(by_cell, &[][..]), (by_daemons, &[]), (survey(), &by_anchor)] {
            let planned = plan_advance(&survey, anchors, wish());
            if let Ok(plan) = &planned {
                let above = changed.saturating_add(margin_ms);
                assert_eq!(plan.worker_min_floor, above, "whatever clocks do later");
            }
            let at = changed.saturating_add(margin_ms);
            let too_soon = AdvanceRefused::TooSoon { at, wait_ms: 1 };
            assert_eq!(planned.err(), refused.then_some(too_soon));
        }
    }
}

#[test]
fn the_making_of_the_cell_is_no_change_of_the_epoch() {
    let mut young = survey();
    young.cell.epoch_since = NOW;
    assert!(plan_advance(&young, &[], wish()).is_ok());
}

#[test]
fn shards_wait_until_all_that_was_lost_has_run_out() {
    let floor = |survey: &Survey| plan_advance(survey, &[], wish()).unwrap().shard_min_floor;
    assert_eq!(floor(&survey()), NOW.saturating_add(12_001));
    let ceiling = NOW.saturating_add(50_000);
    let shards = vec![Row {
        identity: Identity(3),
        generation: 1,
        ceiling,
        revision: Revision(1),
        holder: None,
    }];
    assert_eq!(floor(&Survey { shards, ..survey() }), ceiling);
}

#[test]
fn every_daemon_is_heard_before_an_epoch_begins() {
    let skew_ms = 2 * SKEW_MS;
    assert_eq!(
        survey().unheard_ms(5_000, 0),
        5_000 + skew_ms,
        "nobody says since when"
    );
    assert_eq!(
        survey().unheard_ms(5_000, 1_000),
        4_000 + skew_ms,
        "but it was seen"
    );
    let sealed = |ago_ms| Survey {
        sealed_at: Some(NOW.saturating_sub(ago_ms)),
        ..survey()
    };
    assert_eq!(sealed(1_000).unheard_ms(5_000, 0), 4_000 + skew_ms);
    assert_eq!(sealed(5_000 + skew_ms).unheard_ms(5_000, 0), 0);
    let ahead = Survey {
        sealed_at: Some(NOW.saturating_add(9_000)),
        ..survey()
    };
    assert_eq!(
        ahead.unheard_ms(5_000, 0),
        5_000 + skew_ms,
        "a clock that is wrong proves nothing"
    );
}
