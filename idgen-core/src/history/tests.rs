//! Each check on a history that breaks it, and on the same history mended.

use super::grants::Key;
use super::*;
use crate::clock::{BootMs, UnixMs};
use crate::format::CLASSIC;
use crate::lease::{BootId, Class, Epoch, Identity, InstanceId, Revision, Token};

const WALL: u64 = 1_800_000_000_000;
const KEY: Key = (Class::Worker, Identity(7));
const MEMORY: BootId = BootId(1);

fn id(ms: u64, seq: u64) -> u64 {
    let node = u64::from(KEY.1.0);
    ((WALL + ms - CLASSIC.epoch.0) << (CLASSIC.node_bits + CLASSIC.seq_bits))
        | (node << CLASSIC.seq_bits)
        | seq
}

fn token(revision: u64) -> Token {
    Token {
        epoch: Epoch(0),
        revision: Revision(revision),
    }
}

fn row(generation: u64, ceiling: u64, version: u64, holder: Option<(u128, u64)>) -> RowState {
    RowState {
        generation,
        ceiling: UnixMs(WALL + ceiling),
        exact: false,
        version: Some(version),
        holder: holder.map(|(instance, revision)| HeldBy {
            instance: InstanceId(instance),
            token: token(revision),
            boot_id: BootId(instance),
            expires_at: None,
        }),
    }
}

fn at(us: u64, change: Change) -> Commit {
    Commit {
        branch: Branch(0),
        revision: Revision(us),
        after: Moment(us),
        seen: Moment(us + 1),
        store_time: None,
        change,
    }
}

fn put(us: u64, row: RowState) -> Commit {
    at(us, Change::Row(KEY.0, KEY.1, row))
}

fn mint(history: &mut History, server: u8, us: u64, runs: &[(u64, u64)]) {
    let statement = Statement {
        session: u32::from(server),
        server,
        boot_id: BootId(u128::from(server) + 1),
        class: KEY.0,
        invoked: Moment(us),
        returned: Moment(us + 5),
        succeeded: true,
        pieces: 0..0,
    };
    history.add(
        statement,
        runs.iter().map(|(start, len)| Run {
            start: *start,
            len: *len,
        }),
    );
}

/// Granted at 10 us up to 100 ms, minted at 50 us.
fn good() -> History {
    let mut history = History {
        servers: 1,
        trail: vec![put(10, row(1, 100, 1, Some((1, 10))))],
        times: Times {
            ttl_ms: 6_000,
            period_ms: 2_000,
            shard_ttl_ms: 6_000,
        },
        ..History::default()
    };
    mint(&mut history, 0, 50, &[(id(3, 0), 4_096), (id(4, 0), 10)]);
    history
}

fn verdict(history: &History, invariant: Invariant) -> Verdict {
    check(history).swap_remove(invariant.number() - 1)
}

fn assert_broken(history: &History, invariant: Invariant) {
    let verdict = verdict(history, invariant);
    assert_eq!(verdict.invariant, invariant);
    assert_eq!(verdict.violations, 1, "{verdict:?}");
    assert_eq!(verdict.shown.len(), 1);
}

fn assert_kept(history: &History) {
    for verdict in check(history) {
        assert!(verdict.is_kept(), "{verdict:?}");
    }
}

#[test]
fn a_good_history_is_kept() {
    let history = good();
    assert_kept(&history);
    assert_eq!(history.id_count(), 4_106);
    assert_eq!(verdict(&history, Invariant::Unique).checked, 4_106);
    assert_eq!(verdict(&history, Invariant::Committed).checked, 4_106);
}

#[test]
fn a_run_is_cut_where_the_next_identity_begins() {
    let mut history = History::default();
    mint(&mut history, 0, 1, &[(id(3, 4_090), 10)]);
    let lens: Vec<u32> = history.pieces.iter().map(|piece| piece.len).collect();
    assert_eq!(lens, [6, 4]);
    let (_, identity) = record::fields(KEY.0, history.pieces[1].start);
    assert_eq!(identity, Identity(8));
}

#[test]
fn an_id_inside_of_a_long_run_is_seen_twice() {
    let mut history = good();
    mint(&mut history, 1, 60, &[(id(3, 1_000), 1)]);
    assert_broken(&history, Invariant::Unique);
    // Also when a shorter run lies between the two.
    let mut history = good();
    mint(&mut history, 1, 60, &[(id(3, 10), 2), (id(3, 4_095), 1)]);
    assert_eq!(verdict(&history, Invariant::Unique).violations, 3);
}

#[test]
fn the_same_number_of_a_shard_is_another_id() {
    let mut history = good();
    mint(&mut history, 0, 60, &[(id(5, 0), 1)]);
    if let Some(statement) = history.statements.last_mut() {
        statement.class = Class::Shard;
    }
    mint(&mut history, 0, 70, &[(id(5, 0), 1)]);
    assert!(verdict(&history, Invariant::Unique).is_kept());
}

#[test]
fn an_id_above_the_ceiling_or_of_another_memory_has_no_window() {
    let mut history = good();
    mint(&mut history, 0, 60, &[(id(101, 0), 1)]);
    assert_broken(&history, Invariant::Committed);
    let mut history = good();
    mint(&mut history, 1, 60, &[(id(50, 0), 1)]);
    assert_broken(&history, Invariant::Committed);
}

#[test]
fn a_window_that_is_committed_after_the_id_was_returned_does_not_count() {
    let mut history = good();
    mint(&mut history, 0, 60, &[(id(150, 0), 1)]);
    let raised = |us| put(us, row(1, 200, 2, Some((1, 10))));
    history.trail.push(raised(65));
    assert_kept(&history);
    history.trail[1] = raised(66);
    assert_broken(&history, Invariant::Committed);
}

#[test]
fn the_next_grant_mints_above_the_one_before() {
    let mut history = good();
    history.trail.push(put(7_000_000, row(1, 100, 1, None)));
    history.trail.push(put(7_000_010, row(2, 200, 2, Some((2, 30)))));
    mint(&mut history, 1, 7_000_020, &[(id(101, 0), 1)]);
    assert_kept(&history);
    mint(&mut history, 1, 7_000_030, &[(id(4, 20), 1)]);
    assert!(!verdict(&history, Invariant::Committed).is_kept());
    assert!(!verdict(&history, Invariant::Rising).is_kept());
    // A forked store granted the same window to another memory.
    let mut history = good();
    history.trail.push(at(20, Change::Restored));
    history.trail.push(at(21, Change::Epoch(Epoch(1))));
    history.trail.push(put(30, row(1, 200, 1, Some((2, 30)))));
    mint(&mut history, 1, 60, &[(id(2, 0), 1)]);
    assert_broken(&history, Invariant::InTurn);
}

#[test]
fn ids_of_a_session_rise() {
    let mut history = good();
    mint(&mut history, 0, 52, &[(id(4, 5_000 - 4_096), 1), (id(4, 100), 1)]);
    assert_broken(&history, Invariant::Rising);
}

#[test]
fn ids_rise_over_sessions_where_one_call_began_after_another_had_ended() {
    let mut history = good();
    let overlapping = |history: &mut History, us| {
        mint(history, 0, us, &[(id(2, 0), 1)]);
        if let Some(statement) = history.statements.last_mut() {
            statement.session = 99;
        }
    };
    overlapping(&mut history, 55);
    assert_kept(&history);
    overlapping(&mut history, 56);
    // Once below what the first session had, and once in its own session.
    assert_eq!(verdict(&history, Invariant::Rising).violations, 2);
}

#[test]
fn nothing_is_called_for_after_the_deadline() {
    let mut history = good();
    history.deadlines.push(Deadline {
        at: Moment(12),
        class: KEY.0,
        token: token(10),
        deadline: BootMs(40),
    });
    mint(&mut history, 0, 40_999, &[(id(5, 0), 1)]);
    assert_kept(&history);
    mint(&mut history, 0, 41_000, &[(id(6, 0), 1)]);
    assert_broken(&history, Invariant::Deadline);
}

#[test]
fn nothing_is_called_for_after_a_fence_nor_above_it() {
    let fence = Fence {
        at: Moment(100),
        boot_id: MEMORY,
        class: KEY.0,
        identity: KEY.1,
        token: token(10),
        last: UnixMs(WALL + 4),
    };
    let mut history = good();
    history.fences.push(fence);
    mint(&mut history, 0, 100, &[(id(4, 100), 1)]);
    assert_kept(&history);
    let mut late = history.clone();
    mint(&mut late, 0, 106, &[(id(4, 101), 1)]);
    assert_broken(&late, Invariant::Fenced);
    mint(&mut history, 0, 99, &[(id(5, 0), 1)]);
    assert_eq!(verdict(&history, Invariant::Fenced).violations, 1);
}

#[test]
fn what_was_released_binds_ids_too() {
    let mut history = good();
    let released = RowState {
        exact: true,
        ..row(1, 4, 2, None)
    };
    history.trail.push(put(60, released));
    assert_kept(&history);
    history.trail[1] = put(
        60,
        RowState {
            ceiling: UnixMs(WALL + 3),
            ..released
        },
    );
    assert_broken(&history, Invariant::Committed);
}

#[test]
fn an_older_token_is_not_installed_again() {
    let install = |us, revision| Install {
        at: Moment(us),
        boot_id: MEMORY,
        class: KEY.0,
        identity: KEY.1,
        token: token(revision),
        floor: UnixMs(WALL),
    };
    let mut history = good();
    history.installs = vec![install(1, 10), install(2, 11)];
    assert_kept(&history);
    history.installs.push(install(3, 11));
    assert_broken(&history, Invariant::Installs);
}

#[test]
fn the_store_raises_ceilings_and_counts() {
    let broken = [
        row(1, 99, 2, Some((1, 10))),
        row(2, 100, 2, Some((1, 20))),
        row(2, 200, 2, Some((1, 10))),
        row(1, 200, 3, Some((1, 10))),
    ];
    for after in broken {
        let mut history = good();
        history.trail.push(put(60, after));
        assert_eq!(verdict(&history, Invariant::Ceilings).violations, 1, "{after:?}");
    }
}

#[test]
fn nobody_is_granted_what_another_holds() {
    let mut history = good();
    history.trail.push(put(60, row(2, 200, 2, Some((2, 60)))));
    assert_broken(&history, Invariant::OneHolder);
    let holder = |history: &mut History| history.trail[0].change.clone();
    let Change::Row(class, identity, mut held) = holder(&mut history) else {
        panic!("a row");
    };
    held.holder = held.holder.map(|held| HeldBy {
        expires_at: Some(UnixMs(WALL + 50)),
        ..held
    });
    history.trail[0].change = Change::Row(class, identity, held);
    history.trail[1].store_time = Some(UnixMs(WALL + 50));
    assert_kept(&history);
    history.trail[1].store_time = Some(UnixMs(WALL + 49));
    assert_broken(&history, Invariant::OneHolder);
}

#[test]
fn nothing_is_granted_between_a_restore_and_the_next_epoch() {
    let restored = |next: &[RowState]| {
        let mut history = good();
        history.trail.push(at(60, Change::Restored));
        let found = row(1, 100, 1, Some((1, 10)));
        history.trail.push(at(61, Change::Found(KEY.0, KEY.1, found)));
        history.trail.extend(next.iter().map(|row| put(62, *row)));
        history
    };
    let renewed = |version| row(1, 100 + version, version, Some((1, 10)));
    let granted = row(2, 300, 2, Some((2, 11)));
    let mut advanced = restored(&[]);
    advanced.trail.push(at(62, Change::Epoch(Epoch(1))));
    advanced
        .trail
        .extend([renewed(2), renewed(3)].map(|row| put(63, row)));
    assert_kept(&advanced);
    // The answer to this one tells of the restore. Whoever renews again has seen it.
    assert_kept(&restored(&[renewed(2)]));
    assert_broken(&restored(&[renewed(2), renewed(3)]), Invariant::Sealed);
    assert_broken(&restored(&[granted]), Invariant::Sealed);
}

/// A standby was promoted at 60 us, and its old primary goes on.
#[test]
fn an_old_primary_goes_on_by_itself() {
    let promoted = |us, change| Commit {
        branch: Branch(1),
        ..at(us, change)
    };
    let found = row(1, 100, 1, Some((1, 10)));
    let mut history = good();
    history.trail.extend([
        promoted(60, Change::Restored),
        promoted(61, Change::Found(KEY.0, KEY.1, found)),
        put(62, row(1, 300, 2, Some((1, 10)))),
        put(63, row(1, 300, 3, None)),
        put(64, row(2, 500, 4, Some((1, 64)))),
        at(65, Change::Shown(KEY.0, KEY.1, row(2, 500, 4, Some((1, 64))))),
        promoted(66, Change::Shown(KEY.0, KEY.1, found)),
    ]);
    mint(&mut history, 0, 70, &[(id(400, 0), 1)]);
    assert_kept(&history);

    // The promoted one is sealed until its epoch is advanced, whatever the other does.
    let other = Change::Row(KEY.0, Identity(520), row(1, 900, 1, Some((2, 67))));
    let epoch = Change::Epoch(Epoch(1));
    let mut sealed = history.clone();
    sealed
        .trail
        .extend([at(67, epoch.clone()), promoted(68, other.clone())]);
    assert_broken(&sealed, Invariant::Sealed);
    let mut opened = history.clone();
    opened.trail.extend([promoted(67, epoch), promoted(68, other)]);
    assert_kept(&opened);

    // What one branch says of an identity is nothing to the other.
    history.trail.push(promoted(
        69,
        Change::Shown(KEY.0, KEY.1, row(2, 500, 4, Some((1, 64)))),
    ));
    assert_broken(&history, Invariant::Complete);
}

#[test]
fn a_holder_that_is_gone_before_its_time_was_removed_by_somebody() {
    let removed = |us: u64, next: u128| {
        let mut history = good();
        history.trail.push(put(us, row(1, 100, 1, None)));
        history.trail.push(put(us + 1, row(2, 200, 2, Some((next, 99)))));
        history
    };
    assert_broken(&removed(3_900_000, 2), Invariant::NotForced);
    // Its etcd lease is older than the holder.
    assert_kept(&removed(4_100_000, 2));
    assert_kept(&removed(6_000_011, 2));
    // To make room for its own next grant.
    assert_kept(&removed(3_900_000, 1));
    // Its daemon has taken another identity, for memory that was made anew.
    let mut given_up = removed(3_900_000, 2);
    let taken = Change::Row(KEY.0, Identity(8), row(1, 100, 1, Some((1, 60))));
    given_up.trail.insert(given_up.trail.len() - 2, at(60, taken));
    assert_kept(&given_up);
}

#[test]
fn a_commit_that_was_not_recorded_shows() {
    let mut history = good();
    let shown = |ceiling| at(70, Change::Shown(KEY.0, KEY.1, row(1, ceiling, 1, Some((1, 10)))));
    history.trail.push(shown(100));
    assert_kept(&history);
    history.trail[1] = shown(101);
    assert_broken(&history, Invariant::Complete);
}

#[test]
fn minting_is_back_within_its_time() {
    let limit_ms = alive::back_within_ms(&good().times);
    assert_eq!(limit_ms, 6_000 + 4_000 + 2_000);
    let fault = Fault {
        name: "daemon killed".to_owned(),
        begun: Moment(100),
        ended: Moment(200),
        late_ms: 0,
    };
    let back_at = |us| {
        let mut history = good();
        history.faults.push(fault.clone());
        mint(&mut history, 0, us - 5, &[(id(50, 0), 1)]);
        history
    };
    let last = 200 + limit_ms * 1_000;
    assert_kept(&back_at(last));
    assert_broken(&back_at(last + 1_000), Invariant::Alive);
    let mut on_a_late_machine = back_at(last + 1_000);
    on_a_late_machine.faults[0].late_ms = 1;
    assert_kept(&on_a_late_machine);
    // A call that began before the fault had ended shows nothing.
    assert_broken(&back_at(204), Invariant::Alive);
    // Nor does one after the next fault has begun.
    let mut history = back_at(10_000);
    history.faults.push(Fault {
        begun: Moment(9_999),
        ended: Moment(10_001),
        ..fault
    });
    mint(&mut history, 0, 20_000, &[(id(51, 0), 1)]);
    assert_broken(&history, Invariant::Alive);
}
