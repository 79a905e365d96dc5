//! Masters, those who draw from them, and what is to be true of it afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use idgen_core::segment::Stripes;
use postgres::Client;

use crate::kit::daemon::{Answer, idgenctl, idgenctl_change};
use crate::kit::{
    Daemon, DaemonOptions, PATIENCE, Server, ServerOptions, Store, eventually, eventually_true, sql,
};

/// Of the lease of an authority; its deadline is 80 % of it.
const TTL_MS: u64 = 5_000;
/// `idgen.segment_wait_ms` is this by default: no call waits longer on a machine that is not late.
pub const DEADLINE: Duration = Duration::from_millis(2_000);
/// The smallest stripe, so that a test comes over many of them.
pub const SIZE: &str = "10000";
#[derive(Clone, Copy, PartialEq)]
pub enum Authority {
    Local,
    Leased,
}

/// A server with the database `postgres` that is to be a master, and its daemon.
pub struct Master {
    pub name: String,
    pub server: Server,
    store: Store,
    pub daemon: Option<Daemon>,
}

impl Master {
    pub fn start(name: &str, store: &Store, authority: Authority) -> Self {
        let settings = match authority {
            Authority::Local => Vec::new(),
            Authority::Leased => vec!["idgen.authority = leased".into()],
        };
        let server = Server::with(ServerOptions {
            own_identity: true,
            settings,
            ..Default::default()
        });
        sql::run(&mut server.connect(), "SELECT idgen.grant_admin('idgend')");
        let mut master = Self {
            name: name.to_owned(),
            server,
            store: store.clone(),
            daemon: None,
        };
        master.start_daemon();
        master
    }

    pub fn start_daemon(&mut self) {
        let daemon = DaemonOptions::new(&self.server)
            .name(&self.name)
            .store(self.store.clone())
            .authority(TTL_MS)
            .start();
        self.daemon = Some(daemon);
    }

    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("a daemon")
    }

    pub fn space(&self) -> String {
        sql::value(
            &mut self.server.connect(),
            "SELECT space_id::text FROM idgen.health",
        )
    }

    /// Of its space, as it says itself.
    pub fn stripes(&self) -> Stripes {
        let mut client = self.server.connect();
        let row = client
            .query_one("SELECT stripe, stripes, stripe_size FROM idgen.health", &[])
            .expect("health");
        let number = |at| row.get::<_, i32>(at).unsigned_abs();
        let size: i64 = row.get(2);
        Stripes::new(number(0), number(1), size.unsigned_abs()).expect("stripes")
    }

    pub fn run(&self, command: &str, space: &str, more: &[&str]) -> Answer {
        let config = self.daemon.as_ref().expect("a daemon").config_path();
        let config = config.to_str().expect("a path");
        let args = ["stripes", command, "--config", config, "--space", space];
        let args = [&args[..], more].concat();
        if command == "list" {
            return idgenctl(&args);
        }
        idgenctl_change(&args, || {
            let member = "SELECT concat_ws(' ', space_id, stripe, stripes, stripe_size) FROM idgen.health";
            sql::value::<String>(&mut self.server.connect(), member)
        })
    }

    pub fn claim(&self, space: &str, index: &str, of: &str) -> Answer {
        self.run("claim", space, &["--stripe", index, "--of", of, "--size", SIZE])
    }

    pub fn join(&self, space: &str) -> Answer {
        self.run("join", space, &[])
    }

    pub fn claim_and_join(&self, space: &str, index: &str, of: &str) {
        done(&self.claim(space, index, of));
        done(&self.join(space));
    }

    pub fn make_tag(&self) {
        let make = "SELECT idgen_create_segment('t', step => 500, max_step => 4000)";
        sql::run(&mut self.server.connect(), make);
    }

    /// One number of the tag, as soon as one is granted.
    pub fn draws(&self) -> i64 {
        let mut client = self.server.connect();
        eventually(PATIENCE, "a range is granted", || {
            let row = client.query_one("SELECT idgen_segment('t')", &[]);
            row.ok().map(|row| row.get(0))
        })
    }

    /// kill -9 of all of the server and of its daemon.
    pub fn kill(&mut self) {
        self.daemon.take().expect("a daemon").kill();
        self.server.kill_everything();
    }

    pub fn revive(&mut self) {
        self.server.run();
        self.start_daemon();
    }
}

#[track_caller]
pub fn done(answer: &Answer) {
    assert_eq!(answer.code, Some(0), "{}", answer.stderr);
}

#[track_caller]
pub fn refused(answer: &Answer, why: &str) {
    assert_eq!(answer.code, Some(3), "{}{}", answer.stdout, answer.stderr);
    assert!(answer.stderr.contains(why), "{why} is not in {}", answer.stderr);
}

/// A call: when it began, how long it took, what it gave.
#[derive(Clone, Copy)]
pub struct Drawn {
    pub began: Instant,
    pub took: Duration,
    pub id: i64,
}

/// Sessions that draw from the tag until they are told to stop, one number at a time; every hundredth time many.
pub struct Drawers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Drawn>>>,
}

impl Drawers {
    /// `may_fail`: the server may be killed under them; they come back to it.
    pub fn start(master: &Master, may_fail: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let draw = |_| {
            let (connect, stop) = (master.server.connector(), Arc::clone(&stop));
            thread::spawn(move || draw_until(&stop, connect, may_fail))
        };
        Self {
            threads: (0..2).map(draw).collect(),
            stop,
        }
    }

    pub fn finish(self) -> Vec<Drawn> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("a drawer"));
        joined.flatten().collect()
    }
}

fn draw_until(
    stop: &AtomicBool,
    connect: impl Fn() -> Result<Client, postgres::Error>,
    may_fail: bool,
) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    let mut client = connect().ok();
    let mut calls = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = client.as_mut() else {
            // Not at once: a server that is down has nothing to say.
            thread::sleep(Duration::from_millis(20));
            client = connect().ok();
            continue;
        };
        calls += 1;
        let statement = match calls % 100 {
            0 => "SELECT idgen_segment_batch('t', 3000)",
            _ => "SELECT idgen_segment('t')",
        };
        let began = Instant::now();
        match open.query(statement, &[]) {
            Ok(rows) => {
                let took = began.elapsed();
                let one = |row: &postgres::Row| Drawn {
                    began,
                    took,
                    id: row.get(0),
                };
                drawn.extend(rows.iter().map(one));
            }
            Err(error) => {
                assert!(may_fail, "{}", sql::describe(&error));
                if open.is_closed() {
                    client = None;
                }
            }
        }
    }
    drawn
}

pub fn max_id(server: &Server) -> i64 {
    sql::value(
        &mut server.connect(),
        "SELECT max_id FROM idgen.segment WHERE tag = 't'",
    )
}

/// Waits until so many more ids of the tag are granted.
pub fn let_them_draw(master: &Master, ids: i64) {
    let from = max_id(&master.server);
    eventually_true(PATIENCE, "the drawers go on", || {
        max_id(&master.server) >= from + ids
    });
}

/// What any of the events of the tag say of an id: `lo` and `hi` of all masters of the space.
pub fn events(master: &Master, space: &str) -> Vec<(i64, i64)> {
    let rows = master.server.connect().query(
        "SELECT lo, hi FROM idgen.audit_event
          WHERE tag = 't' AND lo IS NOT NULL AND kind <> 'segment.open' AND space_id = $1::text::uuid",
        &[&space],
    );
    rows.expect("events")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

/// No event of one master is about an id of another one, and none about an id twice.
pub fn assert_no_overlap(mut events: Vec<(i64, i64)>) {
    assert!(events.len() > 10, "only {} events", events.len());
    events.sort_unstable();
    let mut before = 0;
    for (lo, hi) in events {
        assert!(lo > before, "{lo} to {hi} begins at or below {before}");
        before = hi;
    }
}

/// As docs/operations.md states it: ids that two masters make at one time lie no further apart than they differ in how
/// much they have made, times their number, and two rounds of stripes.
pub fn assert_disorder(one: (Stripes, &[Drawn]), other: (Stripes, &[Drawn])) {
    let ((stripes, drawn), (other_stripes, other_drawn)) = (one, other);
    let mut others = other_drawn.to_vec();
    others.sort_by_key(|call| call.began);
    let mut compared = 0;
    for (nth, call) in drawn.iter().enumerate().step_by(50) {
        // The last one that the other had begun to draw then.
        let before = others.partition_point(|beside| beside.began <= call.began);
        let Some(beside) = before.checked_sub(1).and_then(|last| others.get(last)) else {
            continue;
        };
        let places = (stripes.places_to(call.id), other_stripes.places_to(beside.id));
        let bound = stripes.disorder_max(places.0, places.1);
        let apart = call.id.abs_diff(beside.id);
        assert!(
            apart <= bound,
            "call {nth}: {} and {} are {apart} apart, not {bound}",
            call.id,
            beside.id
        );
        compared += 1;
    }
    assert!(compared > 10, "only {compared} pairs");
}
