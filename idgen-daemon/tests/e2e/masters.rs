//! Several masters of one space: each grants its own stripes, joins and leaves by a checked procedure, and waits for
//! nobody.

mod party;

use std::time::{Duration, Instant};

use self::party::{
    Authority, DEADLINE, Drawers, Drawn, Master, SIZE, assert_disorder, assert_no_overlap, done, events,
    let_them_draw, max_id, refused,
};
use crate::kit::daemon::answer;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Etcd, PATIENCE, Server, ServerOptions, Store, eventually_true, pace, sql};

/// How long a master is dead; `IDGEN_MASTER_DOWN_S=60` for a whole minute. Longer than the deadline of its lease.
const DOWN_S: u64 = 6;

/// So many masters, the last of which dies for a while, server and daemon.
fn one_of_them_dies(store: &Store, names: &[&str], authority: Authority) {
    let count = names.len().to_string();
    let mut masters: Vec<Master> = names
        .iter()
        .map(|name| Master::start(name, store, authority))
        .collect();
    let space = masters[0].space();
    for (index, master) in masters.iter().enumerate() {
        master.claim_and_join(&space, &index.to_string(), &count);
        master.make_tag();
        assert_eq!(master.space(), space);
        master.draws();
    }
    let last = masters.len() - 1;
    let drawers: Vec<Drawers> = masters
        .iter()
        .enumerate()
        .map(|(index, master)| Drawers::start(master, index == last))
        .collect();
    for master in &masters {
        let_them_draw(master, 40_000);
    }
    masters[last].kill();
    let killed = Instant::now();
    let down = std::env::var("IDGEN_MASTER_DOWN_S")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    let down = Duration::from_secs(down.unwrap_or(DOWN_S));
    eventually_true(down + PATIENCE, "it is dead for a while", || {
        killed.elapsed() >= down
    });
    let revived = Instant::now();
    masters[last].revive();
    masters[last].draws();
    for master in &masters {
        let_them_draw(master, 30_000);
    }
    let drawn: Vec<Vec<Drawn>> = drawers.into_iter().map(Drawers::finish).collect();
    judge(&masters, &drawn, (killed, revived));
    assert_no_overlap(masters.iter().flat_map(|master| events(master, &space)).collect());
}

/// What sessions of each master have drawn; the last one was dead from one moment to the other.
fn judge(masters: &[Master], drawn: &[Vec<Drawn>], (killed, revived): (Instant, Instant)) {
    let last = masters.len() - 1;
    let mut all = UniquenessRecorder::new();
    for (index, (master, drawn)) in masters.iter().zip(drawn).enumerate() {
        let stripes = master.stripes();
        assert_eq!(
            (stripes.index() as usize, stripes.count() as usize),
            (index, masters.len())
        );
        let strange = drawn
            .iter()
            .find(|call| stripes.id(stripes.places_to(call.id)) != call.id);
        assert!(
            strange.is_none(),
            "{}: {} is another master's",
            master.name,
            strange.map_or(0, |call| call.id)
        );
        all.extend(drawn.iter().map(|call| call.id));
        if index == last {
            continue;
        }
        let slowest = drawn.iter().max_by_key(|call| call.took).expect("calls");
        let meanwhile = drawn
            .iter()
            .filter(|call| (killed..revived).contains(&call.began))
            .count();
        println!(
            "{}: {} ids, {meanwhile} while the other was dead",
            master.name,
            drawn.len()
        );
        for call in drawn.iter().filter(|call| call.took >= DEADLINE).chain([slowest]) {
            let what = format!("{}: a call", master.name);
            pace::assert_took(call.began, call.began + call.took, DEADLINE, &what);
        }
        assert!(
            meanwhile > 10_000,
            "{}: {meanwhile} ids while the other was dead",
            master.name
        );
    }
    all.assert_unique("numbers of all masters", 100_000);
    assert_disorder(
        (masters[0].stripes(), &drawn[0]),
        (masters[last].stripes(), &drawn[last]),
    );
}

#[test]
fn of_three_masters_one_dies_and_the_others_wait_for_nobody() {
    let etcd = Etcd::start();
    one_of_them_dies(
        &Store::etcd(&etcd),
        &["north", "south", "west"],
        Authority::Leased,
    );
}

#[test]
fn of_two_masters_with_a_local_authority_one_dies_and_the_other_waits_for_nobody() {
    let store = store_server();
    one_of_them_dies(&Store::on(&store), &["north", "south"], Authority::Local);
}

fn store_server() -> Server {
    Server::with(ServerOptions {
        own_identity: true,
        ..Default::default()
    })
}

/// docs/operations.md, "Several masters of one space": what it says, in its order.
#[test]
fn masters_are_added_and_removed_by_the_procedure_while_others_write() {
    let store = store_server();
    let store = Store::on(&store);
    let [north, mut south, mut west] =
        ["north", "south", "west"].map(|name| Master::start(name, &store, Authority::Leased));
    let mut all = UniquenessRecorder::new();
    let space = north.space();
    two_join(&north, &south, &mut all);

    // The third, while the others write.
    let drawers = [Drawers::start(&north, false), Drawers::start(&south, false)];
    let_them_draw(&south, 20_000);
    a_third_joins(&mut west, &space);
    all.extend([west.draws()]);
    let_them_draw(&south, 20_000);

    // One goes, and another database gets its index: above what it had granted.
    let [at_north, at_south] = drawers;
    all.extend(at_south.finish().iter().map(|call| call.id));
    let release = ["--stripe", "1", "--reason", "sold"];
    refused(
        &north.run("release", &space, &release),
        "south holds its authority",
    );
    done(&south.run("leave", &space, &["--reason", "sold"]));
    assert_ne!(south.space(), space);
    let stripes: i32 = sql::value(&mut south.server.connect(), "SELECT stripes FROM idgen.health");
    assert_eq!(stripes, 1);
    let mut events_of_all = events(&south, &space);
    south.daemon.take().expect("a daemon").terminate();
    let east = Master::start("east", &store, Authority::Leased);
    east.claim_and_join(&space, "1", "3");
    east.make_tag();
    let at_east = Drawers::start(&east, false);
    let_them_draw(&east, 30_000);
    for drawers in [at_north, at_east] {
        all.extend(drawers.finish().iter().map(|call| call.id));
    }
    all.assert_unique("numbers of the space", 30_000);
    for master in [&north, &west, &east] {
        events_of_all.extend(events(master, &space));
    }
    assert_no_overlap(events_of_all);
    all_is_listed(&east, &space);
}

/// The first has been in use for long, the other is new.
fn two_join(north: &Master, south: &Master, all: &mut UniquenessRecorder<i64>) {
    north.make_tag();
    north.draws();
    let mut client = north.server.connect();
    let before: Vec<i64> = sql::column(
        &mut client,
        "SELECT idgen_segment('t') FROM generate_series(1, 5000)",
    );
    all.extend(before);
    let space = north.space();
    refused(&south.claim(&space, "1", "3"), "this database has not made it");
    refused(&south.join(&space), "has claimed no index of the space");
    // Too low, and nobody has joined yet: another claim decides.
    done(&north.claim(&space, "0", "3"));
    refused(&north.join(&space), "has granted ids that are other masters'");
    done(&north.run("release", &space, &["--stripe", "0", "--reason", "too low"]));
    let above = max_id(&north.server) + 50_000;
    let text = above.to_string();
    let first = ["--stripe", "0", "--of", "3", "--size", SIZE, "--above", &text];
    done(&north.run("claim", &space, &first));
    done(&south.claim(&space, "1", "3"));
    refused(&south.join(&space), "has not joined it");
    // It grants without stripes until it has joined.
    all.extend([north.draws()]);
    done(&north.join(&space));
    done(&north.join(&space));
    done(&south.join(&space));
    south.make_tag();
    let first_ids = [north.draws(), south.draws()];
    assert!(
        first_ids.iter().all(|id| *id > above),
        "{first_ids:?} above {above}"
    );
    all.extend(first_ids);
}

/// After everything that is refused.
fn a_third_joins(west: &mut Master, space: &str) {
    refused(
        &west.claim(space, "0", "3"),
        "belongs to database postgres of server north",
    );
    refused(&west.claim(space, "2", "4"), "is cut in 3 stripes of 10000 ids");
    let other_size = ["--stripe", "2", "--of", "3", "--size", "20000"];
    refused(
        &west.run("claim", space, &other_size),
        "is cut in 3 stripes of 10000 ids",
    );
    refused(&west.join(space), "has claimed no index of the space");
    west.make_tag();
    west.draws();
    done(&west.run("claim", space, &["--stripe", "2", "--of", "3"]));
    refused(&west.join(space), "has granted ids in another space");
    made_anew(west);
    done(&west.join(space));
    west.make_tag();
}

/// Its database had ids of its own space; one without is put in its place.
fn made_anew(master: &mut Master) {
    let drop = "DROP EXTENSION pg_idgen CASCADE; CREATE EXTENSION pg_idgen;
                SELECT idgen.grant_daemon('idgend'), idgen.grant_admin('idgend')";
    sql::run(&mut master.server.connect(), drop);
    master.daemon().wait_ready();
}

fn all_is_listed(master: &Master, space: &str) {
    let listed = master.run("list", space, &["--output", "json"]);
    done(&listed);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let claims = listed["stripes"].as_array().expect("a list");
    let servers: Vec<&str> = claims
        .iter()
        .filter_map(|claim| claim["server"].as_str())
        .collect();
    assert_eq!(servers, ["north", "east", "west"]);
    for claim in claims {
        assert!(
            claim["joined_at"].is_string() && claim["released_at"].is_null(),
            "{claim}"
        );
        assert_eq!(
            (claim["of"].as_u64(), claim["size"].as_u64()),
            (Some(3), Some(10_000))
        );
    }
}

/// Nothing stops an administrator from calling the function by hand; a leased authority does.
#[test]
fn without_a_claim_nothing_is_leased_for_a_stripe() {
    let etcd = Etcd::start();
    let mut north = Master::start("north", &Store::etcd(&etcd), Authority::Leased);
    north.make_tag();
    let id = north.draws();
    let mut client = north.server.connect();
    let by_hand = "SELECT idgen.join_space(space_id, 1, 3, 10000, 1000000) FROM idgen.health";
    sql::run(&mut client, by_hand);
    north
        .daemon()
        .wait_unready_with("has not joined stripe 1 of 3 of its space");
    sql::refusal(&mut client, "SELECT idgen_segment('t')", "IG030");
    sql::run(&mut client, "SELECT idgen.leave_space('by mistake')");
    let next = north.draws();
    assert!(next > id && next < 1_010_000, "{next}: every id again");
}

/// What a database says of itself when it is another one than it was.
#[test]
fn a_master_that_was_restored_cloned_or_made_anew_grants_nothing_that_is_anothers() {
    let store = store_server();
    let mut north = Master::start("north", &Store::on(&store), Authority::Local);
    let space = north.space();
    north.claim_and_join(&space, "0", "2");
    north.make_tag();
    let had = north.draws();

    // A dump is another space, and its tag is not cut as that.
    restore_a_dump(&north);
    let mut client = north.server.connect_to("restored");
    sql::refusal(&mut client, "SELECT idgen_segment('t')", "IG035");
    sql::run(
        &mut client,
        "SELECT idgen.grant_admin('idgend'), idgen.grant_daemon('idgend')",
    );
    // It becomes a master with an index of its own, and its tag goes on above.
    let of_restored = ["--database", "restored"];
    let claim = [
        "--stripe",
        "1",
        "--of",
        "2",
        "--size",
        SIZE,
        "--database",
        "restored",
    ];
    done(&north.run("claim", &space, &claim));
    done(&north.run("join", &space, &of_restored));
    let id: i64 = sql::value(&mut client, "SELECT idgen_segment('t')");
    assert!(
        id > had && (id - 1) / 10_000 % 2 == 1,
        "{id} is master 1's, above {had}"
    );
    drop(client);

    // A clone is a space of its own in which it has the stripes that the original has.
    let clone = "CREATE DATABASE cloned TEMPLATE restored";
    let mut client = north.server.connect();
    eventually_true(PATIENCE, "nobody is in the template", || {
        client.batch_execute(clone).is_ok()
    });
    let mut cloned = north.server.connect_to("cloned");
    let id: i64 = sql::value(&mut cloned, "SELECT idgen_segment('t')");
    let of_clone: String = sql::value(&mut cloned, "SELECT space_id::text FROM idgen.health");
    assert!(
        (id - 1) / 10_000 % 2 == 1 && of_clone != space,
        "{id} of {of_clone}"
    );
    drop(cloned);

    // A database of the old name is not the old one: nobody knows how far that had come.
    sql::run(&mut client, "DROP DATABASE restored WITH (FORCE)");
    sql::run(&mut client, "CREATE DATABASE restored");
    north.server.install_extension("restored");
    sql::run(
        &mut north.server.connect_to("restored"),
        "SELECT idgen.grant_admin('idgend')",
    );
    refused(
        &north.run("join", &space, &of_restored),
        "has granted under index 1 before",
    );
    done(&north.run("release", &space, &["--stripe", "1", "--reason", "dropped"]));
    refused(
        &north.run("claim", &space, &claim),
        "the store has no ceilings of it",
    );
    north.daemon().wait_ready();
}

/// Of its database, into another one of its server.
fn restore_a_dump(north: &Master) {
    let mut dump = north.server.client_program("pg_dump");
    dump.arg("postgres");
    let dumped = answer(dump);
    assert_eq!(dumped.code, Some(0), "{}", dumped.stderr);
    sql::run(&mut north.server.connect(), "CREATE DATABASE restored");
    let file = north.server.socket_dir().join("dump.sql");
    std::fs::write(&file, dumped.stdout).expect("write the dump");
    let mut psql = north.server.client_program("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "restored", "-f"])
        .arg(&file);
    let restored = answer(psql);
    assert_eq!(restored.code, Some(0), "{}", restored.stderr);
}
