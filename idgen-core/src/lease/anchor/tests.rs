use super::super::ledger::{Holder, Row};
use super::super::token::{BootId, InstanceId, Token};
use super::*;
use proptest::prelude::*;

fn row(identity: u16, revision: u64, held: bool) -> Row {
    let holder = held.then(|| Holder {
        instance: InstanceId(1),
        name: "a".to_owned(),
        token: Token::default(),
        boot_id: BootId(5),
        expired: false,
    });
    Row {
        identity: Identity(identity),
        generation: 1,
        ceiling: UnixMs(0),
        revision: Revision(revision),
        holder,
    }
}

fn look(revision: u64, rows: Vec<Row>) -> Snapshot {
    Snapshot::new(Cell::example(), Revision(revision), rows)
}

fn anchor(revision: u64) -> Anchor {
    Anchor::of(&Cell::example(), Revision(revision))
}

fn changed(revision: u64, change: impl FnOnce(&mut Cell)) -> Snapshot {
    let mut cell = Cell::example();
    change(&mut cell);
    Snapshot::new(cell, Revision(revision), Vec::new())
}

fn advanced(revision: u64) -> Snapshot {
    changed(revision, |cell| {
        cell.epoch = Epoch(1);
        cell.epoch_nonce = EpochNonce(9);
        cell.identity = StoreIdentity::new("test/2").unwrap();
    })
}

#[test]
fn every_way_to_fall_short_of_an_anchor_is_named() {
    let elsewhere = StoreIdentity::new("test/2").unwrap();
    let cases: [(Snapshot, Departure); 4] = [
        (
            changed(10, |cell| cell.cell_id = CellId(2)),
            Departure::AnotherCell,
        ),
        (
            changed(10, |cell| cell.epoch_nonce = EpochNonce(2)),
            Departure::AnotherHistory { epoch: Epoch(0) },
        ),
        (
            changed(10, |cell| cell.identity = elsewhere.clone()),
            Departure::AnotherStore {
                was: Cell::example().identity,
                is: elsewhere.clone(),
            },
        ),
        (
            changed(9, |_| {}),
            Departure::RevisionFell {
                was: Revision(10),
                is: Revision(9),
            },
        ),
    ];
    for (snapshot, departure) in cases {
        let judged = anchor(10).admits(&snapshot.cell, snapshot.revision);
        assert_eq!(judged, Err(departure));
    }
    let older = Anchor {
        epoch: Epoch(1),
        ..anchor(10)
    };
    let (was, is) = (Epoch(1), Epoch(0));
    assert_eq!(
        older.admits(&Cell::example(), Revision(99)),
        Err(Departure::OlderEpoch { was, is })
    );
}

#[test]
fn a_store_that_went_on_is_the_same() {
    assert_eq!(anchor(10).admits(&Cell::example(), Revision(10)), Ok(()));
    let advanced = advanced(1);
    assert_eq!(
        anchor(10).admits(&advanced.cell, advanced.revision),
        Ok(()),
        "an operator vouches for another store and a lower revision"
    );
}

#[test]
fn a_restored_store_whose_revision_was_raised_still_shows_its_old_rows() {
    let witness = Some(Witness {
        identity: Identity(3),
        revision: Revision(8),
    });
    let anchors = [Anchor {
        witness,
        ..anchor(10)
    }];
    let judge = |rows| Pins::default().judge(&look(1_000, rows), &anchors);
    assert_eq!(judge(vec![row(3, 8, true)]), Ok(()));
    assert_eq!(
        judge(vec![row(3, 900, false)]),
        Ok(()),
        "somebody else has it now"
    );
    let fell = Err(Departure::RowFell {
        identity: Identity(3),
        was: Revision(8),
    });
    assert_eq!(judge(vec![row(3, 7, true)]), fell);
    assert_eq!(judge(vec![row(4, 8, true)]), fell);
}

#[test]
fn a_departure_stays_one_until_the_epoch_was_advanced() {
    let mut pins = Pins::default();
    pins.judge(&look(10, vec![]), &[]).unwrap();
    assert!(pins.judge(&look(9, vec![]), &[]).is_err());
    assert!(
        pins.judge(&look(11, vec![]), &[]).is_err(),
        "a restored store catches up and is not forgiven"
    );
    assert_eq!(pins.judge(&advanced(3), &[]), Ok(()));
    assert!(
        pins.judge(&look(99, vec![]), &[]).is_err(),
        "and what was left behind is not gone back to"
    );
}

#[test]
fn another_cell_is_refused_and_not_held_against_the_first() {
    let mut pins = Pins::default();
    pins.judge(&look(10, vec![]), &[]).unwrap();
    let other = changed(10, |cell| cell.cell_id = CellId(2));
    assert_eq!(pins.judge(&other, &[]), Err(Departure::AnotherCell));
    assert_eq!(pins.judge(&look(10, vec![]), &[]), Ok(()));
    let left_behind = Anchor {
        cell_id: CellId(2),
        ..anchor(99)
    };
    assert_eq!(
        pins.judge(&look(10, vec![]), &[left_behind]),
        Ok(()),
        "an anchor of a cell that was forgotten on purpose"
    );
}

#[test]
fn a_commit_is_remembered_with_its_row() {
    let mut pins = Pins::default();
    pins.judge(&look(10, vec![]), &[]).unwrap();
    pins.note_committed(Identity(3), Revision(12));
    let noted = pins.anchor().unwrap();
    assert_eq!(noted.revision, Revision(12));
    pins.judge(&look(12, vec![row(3, 12, true)]), &[]).unwrap();
    assert!(pins.judge(&look(13, vec![row(3, 11, true)]), &[]).is_err());
}

#[test]
fn a_row_of_somebody_else_is_a_witness_too() {
    let mut pins = Pins::default();
    pins.judge(&look(10, vec![row(3, 8, true), row(4, 9, true)]), &[])
        .unwrap();
    let restored = look(1_000, vec![row(3, 8, true), row(4, 7, true)]);
    let fell = Departure::RowFell {
        identity: Identity(4),
        was: Revision(9),
    };
    assert_eq!(pins.judge(&restored, &[]), Err(fell.clone()));
    let held_to = pins.fallen().expect("the row");
    let all_that = |snapshot: &Snapshot| held_to.admits_rows(snapshot).is_ok();
    assert!(!all_that(&restored), "whoever looks again is told of the row");
    assert!(all_that(&look(1_000, vec![row(3, 8, true), row(4, 9, false)])));
    assert_eq!(
        pins.judge(&advanced(1), &[]),
        Ok(()),
        "of another epoch nothing is known"
    );
}

#[test]
fn an_anchor_on_disk_never_goes_back() {
    let at = |epoch, nonce, revision| Anchor {
        epoch: Epoch(epoch),
        nonce: EpochNonce(nonce),
        ..anchor(revision)
    };
    let now = at(1, 1, 10);
    assert_eq!(now.may_become(&at(1, 1, 10)), Ok(()));
    assert_eq!(now.may_become(&at(2, 7, 1)), Ok(()));
    for older in [at(0, 1, 99), at(1, 2, 99), at(1, 1, 9)] {
        assert!(now.may_become(&older).is_err(), "{older:?}");
    }
}

const SWITCHED: &str = "classic; regional/1 from 1790000000000";
const OTHERWISE: &str = "classic; regional/2 from 1790000500000";

/// A restore whose revision was raised, and an operator who did not know: what is followed is not given up.
#[test]
fn a_store_that_has_lost_a_switch_is_not_what_it_was_in_any_epoch() {
    let following = |formats: &str| Anchor {
        formats: formats.to_owned(),
        ..anchor(10)
    };
    let lost = || {
        Err(Departure::SwitchLost {
            was: SWITCHED.to_owned(),
            is: "classic".to_owned(),
        })
    };
    let judge = |snapshot: &Snapshot| Pins::default().judge(snapshot, &[following(SWITCHED)]);
    assert_eq!(judge(&look(99, vec![])), lost());
    assert_eq!(judge(&advanced(99)), lost());
    assert_eq!(following(SWITCHED).may_become(&following("classic")), lost());

    let shows = |formats: &str, snapshot: Snapshot| {
        let mut cell = snapshot.cell;
        cell.worker_format = formats.to_owned();
        Snapshot::new(cell, Revision(99), Vec::new())
    };
    assert_eq!(judge(&shows(SWITCHED, look(99, vec![]))), Ok(()));
    assert_eq!(judge(&shows(SWITCHED, advanced(99))), Ok(()));
    let mut one = Pins::default();
    one.judge(&look(10, vec![]), &[]).unwrap();
    assert_eq!(
        one.judge(&shows(SWITCHED, look(11, vec![])), &[]),
        Ok(()),
        "it was switched"
    );
    assert_eq!(one.anchor().unwrap().formats, SWITCHED);
    assert!(one.judge(&look(12, vec![]), &[]).is_err());

    let other = [following(OTHERWISE)];
    let judge_other = |snapshot| Pins::default().judge(&snapshot, &other);
    assert!(
        judge_other(shows(SWITCHED, look(99, vec![]))).is_err(),
        "they contradict"
    );
    assert_eq!(
        judge_other(shows(SWITCHED, advanced(99))),
        Ok(()),
        "an operator has decided"
    );
}

prop_compose! {
    fn any_anchor()(
        cell_id: u128, epoch: u64, nonce: u128, since: u64, revision: u64,
        store in "[!-~]{1,120}", witness: Option<(u16, u64)>, formats in "[a-z0-9/;(),]{1,20}( [a-z0-9/;(),]{1,20}){0,3}",
    ) -> Anchor {
        Anchor {
            cell_id: CellId(cell_id),
            store: StoreIdentity::new(&store).unwrap(),
            epoch: Epoch(epoch),
            nonce: EpochNonce(nonce),
            since: UnixMs(since),
            revision: Revision(revision),
            witness: witness.map(|(identity, revision)| Witness {
                identity: Identity(identity),
                revision: Revision(revision),
            }),
            formats,
        }
    }
}

proptest! {
    #[test]
    fn an_anchor_reads_its_own_text(anchor in any_anchor()) {
        prop_assert_eq!(anchor.to_string().parse(), Ok(anchor));
    }

    #[test]
    fn a_torn_or_changed_text_is_no_anchor(anchor in any_anchor(), at: prop::sample::Index, byte in b'!'..=b'~') {
        let text = anchor.to_string();
        let at = at.index(text.len());
        prop_assert_eq!(text[..at].parse::<Anchor>(), Err(Garbled));
        let mut changed = text.clone().into_bytes();
        changed[at] = byte;
        let changed = String::from_utf8(changed).unwrap();
        prop_assert_eq!(changed.parse::<Anchor>().is_ok(), changed == text);
    }
}
