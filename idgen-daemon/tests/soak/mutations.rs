//! Rules of the daemon that are broken on purpose, on real servers: the checker finds the duplicate.
//!
//! The test plays both daemons and the store: it writes down what a store would have committed, and tells the servers
//! what a daemon without that rule would tell them. With the rule kept, the same steps break nothing.

use idgen_core::contract::CONTRACT_VERSION;
use idgen_core::history::{Verdict, check};
use idgen_core::lease::Class;
use postgres::Client;
use uuid::Uuid;

use crate::files::{
    self, ClassName, EVENTS, Holder, Lines, Record, Row, RowChange, Seen, TOLD, TRAIL, TokenText,
};
use crate::kit::{Scratch, Server};
use crate::mint::{Runs, Writer, copy};
use crate::moment;
use crate::plan::{PERIOD_MS, StoreKind, TTL_MS};

/// Windows begin ahead of the clocks, so that what is minted begins with them whenever it is asked for.
const AHEAD_MS: i64 = 5_000;
const WINDOW_MS: i64 = 10;
/// More than two windows have: 4,096 of them fit into a millisecond.
const ALL: u64 = 4_096 * 30;
/// Two windows have 81,920; what a fence cuts off is lost.
const IDS_MIN: u64 = 70_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    FloorAboveTheOldCeiling,
    InstallAfterTheCommit,
    FenceBeforeTheRelease,
    GuardRenewals,
}

impl Rule {
    const ALL: [Rule; 4] = [
        Rule::FloorAboveTheOldCeiling,
        Rule::InstallAfterTheCommit,
        Rule::FenceBeforeTheRelease,
        Rule::GuardRenewals,
    ];
}

#[test]
fn a_rule_that_is_broken_on_real_servers_gives_a_duplicate_and_a_kept_one_does_not() {
    let servers = Server::several(2);
    for (nth, rule) in Rule::ALL.into_iter().enumerate() {
        let workers = nth as u16 * 2..nth as u16 * 2 + 2;
        let broken = play(&servers, workers.start, rule, false);
        let twice = broken[0].violations;
        println!(
            "{rule:?} broken: {twice} duplicates among {} ids",
            broken[0].checked
        );
        assert!(twice > 0, "{broken:?}");
        let kept = play(&servers, workers.start + 1, rule, true);
        assert!(kept[0].checked > IDS_MIN, "{:?}", kept[0]);
        for verdict in kept {
            assert!(verdict.is_kept(), "{rule:?} kept: {verdict:?}");
        }
    }
}

/// A server, and what it says of itself.
struct Node {
    client: Client,
    boot_id: Uuid,
    number: usize,
}

struct Stage {
    nodes: Vec<Node>,
    worker: u16,
    trail: Lines,
    cell: Uuid,
    revision: u64,
    /// Where the first window begins, in Unix ms.
    start_ms: i64,
    scratch: Scratch,
}

/// The first holder and the second, and what they mint.
fn play(servers: &[Server], worker: u16, rule: Rule, keeps: bool) -> Vec<Verdict> {
    let mut stage = Stage::set(servers, worker);
    let (floor, ceiling) = (stage.start_ms, stage.start_ms + WINDOW_MS - 1);
    stage.put(1, ceiling, false, Some(0));
    // What the first server is told, which is what the store has granted it unless a rule is broken.
    let beyond = ceiling + WINDOW_MS;
    let early = rule == Rule::InstallAfterTheCommit && !keeps;
    stage.install(0, 1, floor, if early { beyond } else { ceiling });
    let next_floor = match (rule, keeps) {
        (Rule::FloorAboveTheOldCeiling, false) => {
            stage.expire(1, ceiling);
            ceiling
        }
        (Rule::FenceBeforeTheRelease, _) => stage.release(keeps),
        (Rule::GuardRenewals, false) => {
            stage.expire(1, ceiling);
            stage.extend(0, 1, beyond);
            ceiling + 1
        }
        _ => {
            stage.expire(1, ceiling);
            ceiling + 1
        }
    };
    stage.put(2, beyond, false, Some(1));
    stage.install(1, 2, next_floor, beyond);
    stage.both_mint();
    stage.nodes.iter_mut().for_each(Node::fence_all);
    let history = files::read(stage.scratch.path());
    check(&history)
}

impl Stage {
    fn set(servers: &[Server], worker: u16) -> Stage {
        let scratch = Scratch::new("mutation");
        let nodes = servers.iter().enumerate();
        let nodes = nodes.map(|(number, server)| Node::of(server, number)).collect();
        let events = Lines::append(&scratch.join(EVENTS));
        events.write(&Record::Run {
            store: StoreKind::Postgres,
            seed: 0,
            servers: 2,
            ttl_ms: TTL_MS,
            period_ms: PERIOD_MS,
            shard_ttl_ms: TTL_MS,
        });
        let _told = Lines::append(&scratch.join(TOLD));
        let mut stage = Stage {
            nodes,
            worker,
            trail: Lines::append(&scratch.join(TRAIL)),
            cell: Uuid::from_u128(7),
            revision: 0,
            start_ms: 0,
            scratch,
        };
        stage.start_ms = stage.nodes[0].clock().0 + AHEAD_MS;
        stage
    }

    /// What the store would commit.
    fn put(&mut self, generation: u64, ceiling_ms: i64, exact: bool, holder: Option<usize>) {
        self.revision += 1;
        let now = moment::now().0;
        let holder = holder.map(|n| Holder {
            instance: Uuid::from_u128(n as u128),
            token: TokenText(format!("0/{generation}")),
            boot_id: self.nodes[n].boot_id,
            expires_ms: None,
        });
        self.trail.write(&Record::Commit {
            seen: Seen {
                branch: 0,
                revision: self.revision,
                after: now,
                seen: now + TTL_MS * 1_000,
                store_ms: None,
            },
            change: RowChange::Put,
            class: ClassName::Worker,
            identity: self.worker,
            row: Row {
                generation,
                ceiling_ms: u64::try_from(ceiling_ms).expect("after 1970"),
                exact,
                version: None,
                holder,
            },
        });
    }

    fn expire(&mut self, generation: u64, ceiling_ms: i64) {
        self.put(generation, ceiling_ms, false, None);
    }

    fn install(&mut self, n: usize, token: i64, floor_ms: i64, ceiling_ms: i64) {
        let (node, worker) = (&mut self.nodes[n], self.worker);
        let (wall_ms, boot_ms) = node.clock();
        let sql = format!(
            "SELECT idgen.install_lease({CONTRACT_VERSION}, '{}', '{}', 'classic', 'worker', {worker}, 0, {token}, \
             {floor_ms}, {ceiling_ms}, {boot_ms} + 60000, {wall_ms}, {boot_ms})",
            node.boot_id, self.cell
        );
        crate::kit::sql::run(&mut node.client, &sql);
    }

    fn extend(&mut self, n: usize, token: i64, ceiling_ms: i64) {
        let (node, worker) = (&mut self.nodes[n], self.worker);
        let (wall_ms, boot_ms) = node.clock();
        let sql = format!(
            "SELECT idgen.extend_lease({CONTRACT_VERSION}, '{}', 'classic', 'worker', {worker}, 0, {token}, \
             {ceiling_ms}, {boot_ms} + 60000, {wall_ms}, {boot_ms})",
            node.boot_id
        );
        crate::kit::sql::run(&mut node.client, &sql);
    }

    /// The first holder mints a little and gives back what it has: after its fence, or before. The next floor.
    fn release(&mut self, fenced: bool) -> i64 {
        let mut out = Writer::create(&self.scratch.join("mints-first.bin"));
        self.nodes[0].mint(10_000, &mut out);
        out.flush();
        let (node, worker) = (&mut self.nodes[0], self.worker);
        let last: i64 = if fenced {
            let sql = format!(
                "SELECT idgen.fence_lease('{}', 'worker', {worker}, 0, 1)",
                node.boot_id
            );
            crate::kit::sql::value(&mut node.client, &sql)
        } else {
            let sql = format!("SELECT last_ms FROM idgen.slots WHERE identity = {worker}");
            crate::kit::sql::value(&mut node.client, &sql)
        };
        self.put(1, last, true, None);
        last + 1
    }

    fn both_mint(&mut self) {
        for node in &mut self.nodes {
            let path = self.scratch.join(&format!("mints-{}.bin", node.number));
            let mut out = Writer::create(&path);
            node.mint(ALL, &mut out);
            out.flush();
        }
    }
}

impl Node {
    fn of(server: &Server, number: usize) -> Node {
        let mut client = server.connect();
        // Nobody waits for a daemon that is not there.
        crate::kit::sql::run(&mut client, "SET idgen.lease_wait_ms = 0");
        let boot_id: String = crate::kit::sql::value(&mut client, "SELECT boot_id::text FROM idgen.health");
        Node {
            client,
            boot_id: boot_id.parse().expect("a uuid"),
            number,
        }
    }

    /// Wall and boot time in ms.
    fn clock(&mut self) -> (i64, i64) {
        let sql = "SELECT wall_ms, boottime_ms FROM idgen.server_clock()";
        let row = self.client.query_one(sql, &[]).expect("read the clocks");
        (row.get(0), row.get(1))
    }

    /// Nothing is left for the next play.
    fn fence_all(&mut self) {
        let sql = "SELECT idgen.fence_lease(h.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision) \
                     FROM idgen.slots s CROSS JOIN idgen.health h WHERE s.state = 'open'";
        crate::kit::sql::run(&mut self.client, sql);
    }

    /// As many as it gives out, up to the end of its window.
    fn mint(&mut self, ids: u64, out: &mut Writer) {
        out.connection(self.number, Class::Worker, self.boot_id);
        let mut runs = Runs::default();
        let invoked = moment::now();
        let ended = copy(&mut self.client, ids, &mut runs);
        out.statement(invoked, moment::now(), ended.is_ok(), &runs.0);
    }
}
