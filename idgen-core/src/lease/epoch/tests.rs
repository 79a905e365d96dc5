use super::super::anchor::Witness;
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
        known: Told::default(),
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
        formats: None,
        worker_window_ms: WORKER_WINDOW_MS,
        shard_window_ms: SHARD_WINDOW_MS,
    }
}

fn told(epoch: u64, since: UnixMs) -> Told {
    Told {
        epoch: Epoch(epoch),
        since,
        ..Told::default()
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
        known: told(4, long_ago),
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
            known: told(1, changed),
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
    let shards = vec![row(ceiling)];
    assert_eq!(floor(&Survey { shards, ..survey() }), ceiling);
}

fn row(ceiling: UnixMs) -> Row {
    Row {
        identity: Identity(3),
        generation: 1,
        ceiling,
        revision: Revision(1),
        holder: None,
    }
}

const PENDING: UnixMs = UnixMs(NOW.0 + 100_000);
const OTHERWISE: &str = "classic; regional/2 from 1790000050000";

fn switched() -> String {
    format!("classic; regional/1 from {}", PENDING.0)
}

fn following(formats: &str) -> Anchor {
    Anchor {
        formats: formats.to_owned(),
        ..anchor(0, UnixMs(0))
    }
}

#[test]
fn a_switch_that_was_lost_is_there_again() {
    let plan = plan_advance(&survey(), &[], wish()).unwrap();
    assert_eq!(
        (plan.formats.as_str(), plan.worker_min_floor),
        ("classic", UnixMs(0))
    );
    let by_daemons = Survey {
        known: Told {
            formats: vec![switched()],
            ..Told::default()
        },
        ..survey()
    };
    let by_anchor = [following("classic"), following(&switched())];
    for (survey, anchors) in [(by_daemons, &[][..]), (survey(), &by_anchor)] {
        let plan = plan_advance(&survey, anchors, wish()).unwrap();
        assert_eq!(
            (plan.formats_seen.as_str(), &plan.formats),
            ("classic", &switched())
        );
        assert_eq!(plan.worker_min_floor, NOW, "whatever it has left behind is past");
        assert!(plan.is_for(&survey.cell, &survey.known, &survey.here));
        let more = survey.known.and(&told(1, NOW));
        assert!(
            !plan.is_for(&survey.cell, &more, &survey.here),
            "more was told since"
        );
        let mut other = survey.cell.clone();
        other.worker_format = switched();
        assert!(!plan.is_for(&other, &survey.known, &survey.here));
    }
    let of_another_cell = Anchor {
        cell_id: CellId(8),
        ..following(&switched())
    };
    assert_eq!(
        plan_advance(&survey(), &[of_another_cell], wish())
            .unwrap()
            .formats,
        "classic"
    );
}

/// Granted since the restore: its server mints classic ids after the switch.
#[test]
fn workers_begin_above_whoever_did_not_know_of_the_switch() {
    let floor = |ceiling| {
        let survey = Survey {
            workers: vec![row(UnixMs(5)), row(ceiling)],
            ..survey()
        };
        let plan = plan_advance(&survey, &[following(&switched())], wish()).unwrap();
        plan.worker_min_floor
    };
    assert_eq!(floor(PENDING.saturating_sub(1)), NOW);
    assert_eq!(floor(PENDING), PENDING.saturating_add(1));
}

#[test]
fn plans_that_contradict_refuse_the_advance_until_one_is_named() {
    let anchors = [following(&switched()), following(OTHERWISE)];
    let refused = plan_advance(&survey(), &anchors, wish()).unwrap_err();
    let plans = vec![switched(), OTHERWISE.to_owned()];
    assert_eq!(refused, AdvanceRefused::Formats(PlansApart { plans }));
    let named = |formats: &str| AdvanceWish {
        formats: Some(formats.to_owned()),
        ..wish()
    };
    let plan = plan_advance(&survey(), &anchors, named(OTHERWISE)).unwrap();
    assert_eq!(plan.formats, OTHERWISE);
    assert_eq!(
        plan.worker_min_floor,
        NOW.saturating_add(epoch_margin_ms(WORKER_WINDOW_MS)),
        "above all that are minted by the other one"
    );
    let refused = plan_advance(&survey(), &anchors, named("classic")).unwrap_err();
    assert!(matches!(refused, AdvanceRefused::Formats(_)), "{refused:?}");
}

/// A member that was behind has given an old answer: who asks again must find everything that is remembered.
#[test]
fn a_store_is_all_that_was_remembered_or_it_is_not() {
    let row = |revision| Row {
        identity: Identity(3),
        generation: 1,
        ceiling: NOW,
        revision: Revision(revision),
        holder: None,
    };
    let open = Survey {
        here: store("test/1"),
        workers: vec![row(4)],
        ..survey()
    };
    let remembered = |revision, row| Anchor {
        witness: Some(Witness {
            identity: Identity(3),
            revision: Revision(row),
        }),
        ..Anchor::of(&open.cell, Revision(revision))
    };
    let all = |class, remembered: &[Anchor]| open.is_all_that(class, remembered);
    assert!(all(Class::Worker, &[remembered(5, 4)]));
    assert!(all(Class::Worker, &[remembered(2, 1), remembered(5, 4)]));
    assert!(!all(Class::Worker, &[]), "nothing is remembered");
    assert!(!all(Class::Worker, &[remembered(6, 4)]), "its revision is behind");
    assert!(!all(Class::Worker, &[remembered(5, 5)]), "a row is behind");
    assert!(
        !all(Class::Worker, &[remembered(5, 4), remembered(5, 5)]),
        "of all"
    );
    assert!(!all(Class::Shard, &[remembered(5, 4)]), "workers are no shards");
    let of_another_cell = Anchor {
        cell_id: CellId(8),
        ..remembered(5, 4)
    };
    assert!(!all(Class::Worker, std::slice::from_ref(&of_another_cell)));
    assert!(all(Class::Worker, &[of_another_cell, remembered(5, 4)]));
    let of_a_later_epoch = Anchor {
        epoch: Epoch(1),
        ..remembered(5, 4)
    };
    assert!(!all(Class::Worker, &[of_a_later_epoch]), "of a later epoch");
    let sealed = Survey {
        sealed_reason: Some("seen to be a copy".to_owned()),
        ..open.clone()
    };
    assert!(!sealed.is_all_that(Class::Worker, &[remembered(5, 4)]));
    let another = Survey {
        here: store("test/2"),
        ..open.clone()
    };
    assert!(!another.is_all_that(Class::Worker, &[remembered(5, 4)]));
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
