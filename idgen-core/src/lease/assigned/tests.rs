use super::*;
use crate::lease::token::{Epoch, Revision};
use proptest::prelude::*;

fn token(revision: u64) -> Token {
    Token {
        epoch: Epoch(0),
        revision: Revision(revision),
    }
}

fn record(server: &str) -> Assignment {
    Assignment {
        server: server.to_owned(),
        at: UnixMs(1),
        by: "somebody".to_owned(),
        reason: String::new(),
        version: 3,
    }
}

/// Server `number` is called `a`, `b` and so on.
fn presence(number: u8, holds: &[(u16, u64)]) -> Presence {
    let holding = |(shard, revision): &(u16, u64)| {
        let holding = Holding {
            token: token(*revision),
            since: UnixMs(9),
        };
        (Identity(*shard), holding)
    };
    Presence {
        instance: InstanceId(number.into()),
        server: char::from(b'a' + number).to_string(),
        boot_id: Some(BootId(number.into())),
        address: format!("host-{number}"),
        room: 10,
        lasts_ms: 40_000,
        holds: holds.iter().map(holding).collect(),
        at: UnixMs(5),
    }
}

fn assigned(records: &[(u16, &str)], servers: Vec<Presence>) -> Assigned {
    let record = |(shard, server): &(u16, &str)| (Identity(*shard), record(server));
    Assigned {
        records: records.iter().map(record).collect(),
        servers: servers
            .into_iter()
            .map(|server| (server.instance, server))
            .collect(),
    }
}

fn share(assigned: &Assigned, number: u8, configured: &[u16], holds: &[u16], room: usize) -> Share {
    let own = presence(number, &[]);
    let (configured, holds): (Vec<Identity>, BTreeSet<Identity>) = (
        configured.iter().copied().map(Identity).collect(),
        holds.iter().copied().map(Identity).collect(),
    );
    assigned.share_of(&Asker {
        server: &own.server,
        instance: own.instance,
        boot_id: own.boot_id,
        configured: &configured,
        holds: &holds,
        room,
    })
}

fn ids(shards: &[Identity]) -> Vec<u16> {
    shards.iter().map(|shard| shard.0).collect()
}

#[test]
fn without_records_the_configuration_holds_and_a_record_wins_over_it() {
    let none = Assigned::default();
    assert_eq!(ids(&share(&none, 0, &[5, 6], &[], 10).shards), [5, 6]);
    let moved = assigned(&[(5, "b"), (9, "a"), (6, "a")], vec![]);
    assert_eq!(ids(&share(&moved, 0, &[5, 6], &[5], 10).shards), [6, 9]);
    assert_eq!(ids(&share(&moved, 1, &[], &[], 10).shards), [5]);
    assert_eq!(
        ids(&share(&moved, 2, &[5, 9], &[], 10).shards),
        [0; 0],
        "named by nobody's record"
    );
}

#[test]
fn with_a_namesake_around_a_server_keeps_what_it_has_and_takes_no_more() {
    let mut other = presence(0, &[]);
    other.instance = InstanceId(77);
    other.boot_id = Some(BootId(77));
    let both = assigned(&[(5, "a"), (9, "a")], vec![presence(0, &[]), other.clone()]);
    let of_first = share(&both, 0, &[6], &[5], 10);
    assert_eq!((ids(&of_first.shards), of_first.has_namesake), (vec![5, 6], true));
    let refused = both.plan_move(&BTreeSet::from([Identity(1)]), "a").unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("more than one server is called a"),
        "{refused}"
    );
    // The same server with a new run of its daemon.
    other.boot_id = Some(BootId(0));
    let again = assigned(&[(5, "a"), (9, "a")], vec![presence(0, &[]), other]);
    let of_first = share(&again, 0, &[6], &[5], 10);
    assert_eq!(
        (ids(&of_first.shards), of_first.has_namesake),
        (vec![5, 6, 9], false)
    );
    assert!(again.plan_move(&BTreeSet::from([Identity(1)]), "a").is_ok());
}

#[test]
fn what_does_not_fit_is_left_out_but_never_what_is_there() {
    let many = assigned(&[(1, "a"), (2, "a"), (9, "a")], vec![]);
    let share = share(&many, 0, &[3], &[9], 2);
    assert_eq!(
        (ids(&share.shards), ids(&share.left_out)),
        (vec![1, 9], vec![2, 3])
    );
}

#[test]
fn the_map_shows_the_newest_holder_and_where_a_shard_goes() {
    let world = assigned(
        &[(1, "b"), (2, "b"), (3, "b")],
        vec![presence(0, &[(1, 4), (2, 5), (7, 2)]), presence(1, &[(1, 6)])],
    );
    let map = world.map();
    let seen: Vec<_> = map
        .iter()
        .map(|place| {
            (
                place.shard.0,
                place.server.as_str(),
                place.goes_to.as_str(),
                place.state,
                place.version,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (1, "b", "b", PlaceState::Serving, 3),
            (2, "a", "b", PlaceState::Moving, 3),
            (3, "b", "b", PlaceState::Nobody, 3),
            (7, "a", "a", PlaceState::Serving, 0),
        ]
    );
    let addresses: Vec<&str> = map.iter().map(|place| place.address.as_str()).collect();
    assert_eq!(addresses, ["host-1", "host-0", "host-1", "host-0"]);
    assert_eq!(map[0].holding.map(|holding| holding.token), Some(token(6)));
}

#[test]
fn orders_that_cannot_be_given_are_refused_with_the_reason() {
    let world = assigned(&[(1, "a")], vec![presence(0, &[(1, 4)]), presence(1, &[(2, 5)])]);
    let shards = |list: &[u16]| list.iter().copied().map(Identity).collect::<BTreeSet<_>>();
    let text = |refused: Result<Orders, MoveRefused>| refused.unwrap_err().to_string();
    assert!(text(world.plan_move(&shards(&[1]), "x")).starts_with("no server x is there, but a, b "));
    assert!(text(Assigned::default().plan_move(&shards(&[1]), "x")).contains("none shows itself"));
    let full = text(world.plan_move(&(10..20).map(Identity).collect(), "b"));
    assert!(
        full.starts_with("server b would have 11 shards and can have 10"),
        "{full}"
    );
    assert!(
        world.plan_move(&(2..12).map(Identity).collect(), "b").is_ok(),
        "2 is there already"
    );
    assert!(text(world.plan_drain("x", &["b".to_owned()])).contains("has no shard"));
    assert!(text(world.plan_drain("a", &["a".to_owned()])).contains("onto itself"));
}

#[test]
fn a_drain_spreads_evenly_by_what_each_is_to_have() {
    let mut world = assigned(
        &[(4, "c")],
        vec![
            presence(0, &[(1, 4), (2, 4), (3, 4), (4, 4)]),
            presence(1, &[(8, 5), (9, 5)]),
        ],
    );
    let third = presence(2, &[]);
    world.servers.insert(third.instance, third);
    let orders = world.plan_drain("a", &["b".to_owned(), "c".to_owned()]).unwrap();
    let orders: Vec<_> = orders.iter().map(|(shard, to)| (shard.0, to.as_str())).collect();
    assert_eq!(orders, [(1, "c"), (2, "b"), (3, "c")], "4 is on its way already");
}

#[test]
fn a_record_counts_up_and_one_that_says_so_already_is_left_alone() {
    let world = assigned(
        &[(1, "a"), (2, "b")],
        vec![presence(0, &[(1, 4)]), presence(1, &[])],
    );
    let shards = [1, 2, 3].map(Identity).into_iter().collect();
    let orders = world.plan_move(&shards, "b").unwrap();
    let records = world.records_for(&orders, UnixMs(8), "me", "why");
    let seen: Vec<_> = records
        .iter()
        .map(|(shard, seen, record)| (shard.0, *seen, record.version))
        .collect();
    assert_eq!(seen, [(1, 3, 4), (3, 0, 1)]);
    assert_eq!(ids(&world.open_orders(&orders)), [1, 2, 3]);
}

proptest! {
    /// Whatever is recorded, configured and held: a shard that has a record is wanted by nobody but servers of the name
    /// in it, one without a record by those that are configured for it; and nothing else is wanted.
    #[test]
    fn each_shard_is_wanted_by_whom_it_was_given(
        records in prop::collection::btree_map(0u16..12, 0u8..4, 0..12),
        configured in prop::collection::vec(prop::collection::btree_set(0u16..12, 0..6), 3),
        holds in prop::collection::btree_set(0u16..12, 0..12),
        namesake: bool,
        room in 0usize..12,
    ) {
        let names: Vec<String> = (0..4).map(|number| presence(number, &[]).server).collect();
        let records: Vec<(u16, &str)> =
            records.iter().map(|(shard, server)| (*shard, names[usize::from(*server)].as_str())).collect();
        let mut servers = vec![presence(0, &[]), presence(1, &[])];
        if namesake {
            servers.push(Presence { instance: InstanceId(70), boot_id: Some(BootId(70)), ..presence(0, &[]) });
        }
        let world = assigned(&records, servers);
        let holds: Vec<u16> = holds.into_iter().collect();
        for number in 0..3u8 {
            let list: Vec<u16> = configured[usize::from(number)].iter().copied().collect();
            let share = share(&world, number, &list, &holds, room);
            prop_assert_eq!(share.has_namesake, namesake && number == 0);
            prop_assert!(share.shards.is_sorted() && share.shards.len() <= room);
            prop_assert!(share.left_out.is_empty() || share.shards.len() == room);
            let is_held = |shard: &Identity| holds.contains(&shard.0);
            prop_assert!(!share.left_out.iter().any(is_held) || share.shards.iter().all(is_held), "held ones come first");
            let all: BTreeSet<Identity> = share.shards.iter().chain(&share.left_out).copied().collect();
            prop_assert_eq!(all.len(), share.shards.len() + share.left_out.len());
            for shard in (0..12).map(Identity) {
                let wanted = match world.records.get(&shard) {
                    Some(record) => {
                        record.server == names[usize::from(number)] && (!share.has_namesake || is_held(&shard))
                    }
                    None => list.contains(&shard.0),
                };
                prop_assert_eq!(all.contains(&shard), wanted);
            }
        }
    }

    #[test]
    fn a_drain_leaves_nothing_and_is_even(
        shards in prop::collection::btree_set(0u16..200, 1..60),
        loads in prop::collection::vec(0usize..5, 2..5),
    ) {
        let held: Vec<(u16, u64)> = shards.iter().map(|shard| (*shard, 1)).collect();
        let mut servers = vec![Presence { room: 1_000, ..presence(0, &held) }];
        let mut next = 1_000;
        for (number, load) in loads.iter().enumerate() {
            let held: Vec<(u16, u64)> = (0..*load).map(|_| { next += 1; (next, 1) }).collect();
            servers.push(Presence { room: 1_000, ..presence(u8::try_from(number).unwrap() + 1, &held) });
        }
        let world = assigned(&[], servers);
        let to: Vec<String> = (0..loads.len()).map(|n| presence(u8::try_from(n).unwrap() + 1, &[]).server).collect();
        let orders = world.plan_drain("a", &to).unwrap();
        prop_assert_eq!(orders.len(), shards.len());
        let after: Vec<usize> =
            to.iter().zip(&loads).map(|(name, load)| load + orders.values().filter(|to| *to == name).count()).collect();
        let (least, most) = (after.iter().min().unwrap(), after.iter().max().unwrap());
        prop_assert!(most - least <= 1 || after.iter().zip(&loads).all(|(after, load)| after == load || after - 1 <= *least));
    }
}
