//! Hashes: whatever is done to a record is found, and the first one is named.

use super::*;

fn some_records() -> (Vec<Record>, Head) {
    let mut store = Store::new();
    for round in 0..3u128 {
        for worker in 0..3 {
            store.grant(worker, round + 1);
            store.renew(worker);
            store.release(worker);
        }
    }
    records(&trail(&store))
}

#[derive(Clone, Copy, Debug)]
enum Tampering {
    Position,
    Revision,
    At,
    Kind,
    Subject,
    Version,
    Steps,
    Finding,
    Detail,
    Branch,
    Hash,
    Remove,
    Swap,
    Repeat,
}

const TAMPERINGS: [Tampering; 14] = [
    Tampering::Position,
    Tampering::Revision,
    Tampering::At,
    Tampering::Kind,
    Tampering::Subject,
    Tampering::Version,
    Tampering::Steps,
    Tampering::Finding,
    Tampering::Detail,
    Tampering::Branch,
    Tampering::Hash,
    Tampering::Remove,
    Tampering::Swap,
    Tampering::Repeat,
];

/// The number of the first record that is not right afterwards.
fn tamper(records: &mut Vec<Record>, at: usize, how: Tampering) -> u64 {
    let seq = records[at].seq;
    let record = &mut records[at];
    match how {
        Tampering::Position => record.position += 1,
        Tampering::Revision => record.revision += 1,
        Tampering::At => record.at_ms += 1,
        Tampering::Kind => record.kind = "expired".to_owned() + &record.kind,
        Tampering::Subject => record.subject.push('0'),
        Tampering::Version => record.version += 1,
        Tampering::Steps => record.steps += 1,
        Tampering::Finding => record.finding = Some(String::new()),
        Tampering::Detail => record.detail.push(' '),
        Tampering::Branch => record.branch += 1,
        Tampering::Hash => record.hash[31] ^= 1,
        Tampering::Remove => drop(records.remove(at)),
        Tampering::Swap if at + 1 < records.len() => records.swap(at, at + 1),
        Tampering::Swap => records.swap(at, at - 1),
        Tampering::Repeat => records.insert(at, records[at].clone()),
    }
    match how {
        Tampering::Swap if at + 1 == records.len() => seq - 1,
        // The second of the two.
        _ => seq,
    }
}

fn place_of(broken: &Broken) -> u64 {
    match broken {
        Broken::Missing { from, .. } => *from,
        Broken::Misplaced(seq) | Broken::Changed(seq) => *seq,
        other => panic!("{other}"),
    }
}

proptest! {
    #[test]
    fn the_first_record_that_was_tampered_with_is_named(
        at in any::<prop::sample::Index>(), how in prop::sample::select(TAMPERINGS.as_slice()),
    ) {
        let (mut records, head) = some_records();
        let at = at.index(records.len());
        let seq = tamper(&mut records, at, how);
        let broken = check(Head::default(), head, &records).unwrap_err();
        prop_assert_eq!(place_of(&broken), seq, "{}", broken);
    }
}

#[test]
fn a_trail_that_was_made_anew_after_a_change_has_another_head() {
    let (_, noted) = some_records();
    let mut store = Store::new();
    store.grant(0, 9);
    let mut chain = Chain::new(CELL, 0, Head::default());
    let mut forged: Vec<Record> = trail(&store).iter().map(|event| chain.append(event)).collect();
    while chain.head().seq < noted.seq {
        let event = trail(&store)[0].clone();
        let event = Event {
            subject: format!("worker {}", chain.head().seq),
            ..event
        };
        forged.push(chain.append(&event));
    }
    let broken = check(Head::default(), noted, &forged).unwrap_err();
    assert!(matches!(broken, Broken::OtherHead { .. }), "{broken}");
}

#[test]
fn a_trail_is_of_one_cell_and_may_begin_where_it_was_pruned() {
    let (records, head) = some_records();
    let mut elsewhere = Verifier::new(CELL + 1, Head::default());
    assert_eq!(elsewhere.take(&records[0]), Err(Broken::Changed(1)));
    let pruned = Head {
        seq: records[3].seq,
        hash: records[3].hash,
    };
    assert_eq!(check(pruned, head, &records[4..]), Ok(()));
    assert_eq!(
        check(pruned, head, &records[5..]),
        Err(Broken::Missing { from: 5, to: 5 })
    );
    let last = records.len() as u64;
    let cut = &records[..records.len() - 1];
    assert_eq!(
        check(Head::default(), head, cut),
        Err(Broken::Missing { from: last, to: last })
    );
}

#[test]
fn a_step_that_is_missing_between_two_records_is_named_although_the_chain_is_whole() {
    let mut store = Store::new();
    store.grant(1, 1);
    store.release(1);
    store.grant(1, 2);
    let mut events = trail(&store);
    // As one would write them who leaves the release out.
    events.remove(1);
    let (records, head) = records(&events);
    assert_eq!(
        check(Head::default(), head, &records),
        Err(Broken::Skipped {
            subject: "worker 1".to_owned(),
            seq: 2,
            from_version: 1,
            to_version: 2
        })
    );
}
