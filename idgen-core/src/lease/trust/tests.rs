use super::super::ledger::{Holder, Row};
use super::super::token::{BootId, Identity, InstanceId, Token};
use super::*;

const WAITS: Waits = Waits {
    grace_ms: 5_000,
    recent_ms: 10_000,
    all_ms: 30_000,
};
const WALL: UnixMs = UnixMs(9_000_000);

fn row(identity: u16, revision: u64, holder: Option<&str>) -> Row {
    Row {
        identity: Identity(identity),
        generation: 1,
        ceiling: UnixMs(0),
        revision: Revision(revision),
        holder: holder.map(|name| Holder {
            instance: InstanceId(1),
            name: name.to_owned(),
            token: Token::default(),
            boot_id: BootId(5),
            expired: true,
        }),
    }
}

fn look(revision: u64, rows: Vec<Row>) -> Snapshot {
    Snapshot::new(Cell::example(), Revision(revision), rows)
}

fn silent() -> Snapshot {
    look(10, vec![row(1, 10, Some("other")), row(2, 4, None)])
}

fn advanced() -> Snapshot {
    let mut cell = Cell::example();
    cell.epoch = Epoch(1);
    Snapshot::new(cell, Revision(20), silent().rows().to_vec())
}

fn at(asked: u64) -> Applicant<'static> {
    Applicant {
        asked: BootMs(asked),
        wall: WALL,
        remembers: true,
        committed: None,
        at_home: None,
    }
}

fn stranger(asked: u64) -> Applicant<'static> {
    Applicant {
        remembers: false,
        ..at(asked)
    }
}

/// Looks that take 10 ms each.
fn looks(snapshot: &Snapshot, at: impl IntoIterator<Item = u64>) -> Trust {
    let mut trust = Trust::default();
    for asked in at {
        note(&mut trust, snapshot, asked);
    }
    trust
}

fn note(trust: &mut Trust, snapshot: &Snapshot, asked: u64) {
    let around = (BootMs(asked), BootMs(asked + 10));
    trust.note_look(&WAITS, snapshot, around, false);
}

fn wait_ms(trust: &Trust, snapshot: &Snapshot, applicant: Applicant<'_>) -> u64 {
    match trust.settled(&WAITS, snapshot, &applicant) {
        Ok(()) => 0,
        Err(unsettled) => unsettled.wait_ms,
    }
}

#[test]
fn who_remembers_waits_until_all_others_have_spoken() {
    let trust = looks(&silent(), [1_000]);
    assert_eq!(wait_ms(&trust, &silent(), at(1_000)), 5_000);
    let trust = looks(&silent(), [1_000, 6_009]);
    assert_eq!(
        wait_ms(&trust, &silent(), at(6_009)),
        1,
        "from the end of the first look"
    );
    let trust = looks(&silent(), [1_000, 6_010]);
    assert_eq!(wait_ms(&trust, &silent(), at(6_010)), 0);
    let why = looks(&silent(), [1_000])
        .settled(&WAITS, &silent(), &at(1_000))
        .unwrap_err();
    assert!(why.to_string().contains("no lease is taken for 5 s"), "{why}");
}

#[test]
fn looks_that_lie_too_far_apart_say_nothing() {
    let trust = looks(&silent(), [1_000, 11_000, 21_000]);
    assert_eq!(wait_ms(&trust, &silent(), at(21_000)), 0);
    let trust = looks(&silent(), [1_000, 11_001]);
    assert_eq!(
        wait_ms(&trust, &silent(), at(11_001)),
        5_000,
        "it may have been restored between"
    );
    let mut renewed = looks(&silent(), [1_000]);
    renewed.note_committed(BootMs(9_000));
    note(&mut renewed, &silent(), 19_000);
    assert_eq!(wait_ms(&renewed, &silent(), at(19_000)), 0, "a renewal is a look");
}

#[test]
fn who_has_just_renewed_need_not_wait() {
    let mut trust = looks(&silent(), [1_000]);
    trust.note_committed(BootMs(1_500));
    note(&mut trust, &silent(), 11_500);
    assert_eq!(wait_ms(&trust, &silent(), at(11_500)), 0);
    let mut late = looks(&silent(), [1_000]);
    late.note_committed(BootMs(1_500));
    note(&mut late, &silent(), 11_501);
    assert_eq!(wait_ms(&late, &silent(), at(11_501)), 5_000);
    let before = Applicant {
        committed: Some(BootMs(900)),
        ..at(1_000)
    };
    let another = looks(&silent(), [1_000]);
    assert_eq!(
        wait_ms(&another, &silent(), before),
        0,
        "the daemon before this one did"
    );
    let no_anchor = Applicant {
        remembers: false,
        ..before
    };
    assert!(
        wait_ms(&another, &silent(), no_anchor) > 0,
        "there is nothing to judge by"
    );
}

#[test]
fn who_remembers_nothing_waits_for_a_sign_or_until_all_has_run_out() {
    let trust = looks(&silent(), [1_000, 6_010]);
    assert_eq!(wait_ms(&trust, &silent(), stranger(6_010)), 24_990 + 10);
    let released = look(12, vec![row(1, 12, None), row(2, 4, None)]);
    assert!(
        wait_ms(&trust, &released, stranger(6_010)) > 0,
        "who gives up proves nothing"
    );
    let renewed = look(11, vec![row(1, 11, Some("other")), row(2, 4, None)]);
    assert_eq!(wait_ms(&trust, &renewed, stranger(6_010)), 0);
    let early = looks(&silent(), [1_000, 2_000]);
    assert_eq!(
        wait_ms(&early, &renewed, stranger(2_000)),
        4_010,
        "a sign is not that all have spoken"
    );
    let patient = looks(&silent(), (1_000..=31_010).step_by(5_002));
    assert_eq!(wait_ms(&patient, &silent(), stranger(31_010)), 0);
    let why = trust.settled(&WAITS, &silent(), &stranger(6_010)).unwrap_err();
    assert!(why.to_string().contains("has no memory of the cell"), "{why}");
    assert!(why.to_string().contains("anew after each restart"), "{why}");
}

#[test]
fn who_has_seen_the_seal_may_go_by_whoever_opens_it() {
    let mut trust = looks(&silent(), [1_000]);
    trust.note_sealed(Epoch(0));
    note(&mut trust, &advanced(), 2_000);
    assert_eq!(wait_ms(&trust, &advanced(), stranger(2_000)), 0);
    note(&mut trust, &advanced(), 13_000);
    assert!(
        wait_ms(&trust, &advanced(), at(13_000)) > 0,
        "it may have been restored since"
    );

    let mut put_back = looks(&silent(), (0..10_000).step_by(1_000));
    assert_eq!(wait_ms(&put_back, &silent(), at(9_000)), 0);
    put_back.note_sealed(Epoch(0));
    note(&mut put_back, &silent(), 10_000);
    assert_eq!(
        wait_ms(&put_back, &silent(), at(10_000)),
        5_000,
        "a seal that is gone was not opened"
    );

    let mut departed = looks(&silent(), [1_000]);
    departed.note_look(&WAITS, &advanced(), (BootMs(2_000), BootMs(2_010)), true);
    assert_eq!(wait_ms(&departed, &advanced(), at(2_000)), 0);
}

#[test]
fn the_servers_of_a_new_cell_start_together() {
    let mut cell = Cell::example();
    cell.epoch_since = UnixMs(1_000_000);
    let young = Snapshot::new(cell, Revision(1), Vec::new());
    let trust = looks(&young, [1_000]);
    let at_wall = |wall| {
        let wall = UnixMs(wall);
        let applicant = Applicant {
            wall,
            ..stranger(1_000)
        };
        wait_ms(&trust, &young, applicant)
    };
    assert_eq!(at_wall(1_000_000 + CELL_YOUNG_MS - 1), 0);
    assert!(at_wall(1_000_000 + CELL_YOUNG_MS) > 0);
    assert_eq!(
        at_wall(1_000_000 - epoch_margin_ms(0)),
        0,
        "as far as clocks may be apart"
    );
    assert!(
        at_wall(1_000_000 - epoch_margin_ms(0) - 1) > 0,
        "a beginning in the future proves nothing"
    );
}

#[test]
fn a_server_that_is_its_own_store_waits_for_others_only() {
    let home = Applicant {
        at_home: Some("me"),
        ..at(1_000)
    };
    let lonely = look(10, vec![row(1, 10, Some("me")), row(2, 4, None)]);
    assert_eq!(wait_ms(&looks(&lonely, [1_000]), &lonely, home), 0);
    let trust = looks(&silent(), [1_000]);
    assert!(
        wait_ms(&trust, &silent(), home) > 0,
        "another one leases here, or did"
    );
    assert!(wait_ms(&looks(&lonely, [1_000]), &lonely, at(1_000)) > 0);
}
