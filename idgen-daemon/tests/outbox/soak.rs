//! Events are written while everything that carries them is killed, paused, restarted and promoted, and S3 refuses, fails and
//! loses answers, in an order that a seed says. In the end the topic has what the table has and the archive what the topic has,
//! each tag's events in order at first sight and each offset in exactly one commit.
//!
//! Two daemons of one cell drain and archive. A third archives the same topic for a cell of its own: the leases of one know
//! nothing of the other, so there are two archivers at any time, and nothing but the chain keeps them apart.
//!
//! `make soak SUITE=outbox SEED= ROUNDS=200` takes other seeds, and more rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idgen_daemon::archive::commit::Commit;

use crate::archive_scene::{LOG_APPEND, idgenctl_of, wait_same_as_topic};
use crate::kit::kafka::{Kafka, Message};
use crate::kit::process::Signal;
use crate::kit::s3::{ArchivedRow, Meets, S3};
use crate::kit::sql::{self, value};
use crate::kit::{
    Daemon, DaemonOptions, PATIENCE, Scratch, Server, ServerOptions, eventually, eventually_true,
};
use crate::scene::{Scene, write};

/// Of `make test`: every fault is among these rounds.
const SEED: u64 = 17;
const ROUNDS: u32 = DECK.len() as u32;
/// Backlogs of several faults on a busy machine.
const DRAINED: Duration = Duration::from_secs(240);
/// Topic and archive are read whole so often.
const CHECK_EVERY: u32 = 25;

/// Of two daemons that drain, and the third one.
const DAEMONS: [&str; 3] = ["one", "two", "rival"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillDaemon,
    StopDaemon,
    PauseDaemon,
    KillBroker,
    RestartBroker,
    CrashPostgres,
    PromoteStandby,
    TakeLease,
    /// 409.
    S3Conflict,
    /// 412, and there is nothing.
    S3Refuses,
    /// It was done, and the answer is lost: the next try meets 412.
    S3LostAnswer,
    S3Fails,
    S3Slow,
    None,
}

/// Each once, before one of them comes again.
const DECK: [Fault; 15] = [
    Fault::KillDaemon,
    Fault::KillDaemon,
    Fault::StopDaemon,
    Fault::PauseDaemon,
    Fault::KillBroker,
    Fault::RestartBroker,
    Fault::CrashPostgres,
    Fault::PromoteStandby,
    Fault::TakeLease,
    Fault::S3Conflict,
    Fault::S3Refuses,
    Fault::S3LostAnswer,
    Fault::S3Fails,
    Fault::S3Slow,
    Fault::None,
];

/// Xorshift: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn nap(&mut self, below_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.below(below_ms)));
    }
}

/// Faults from a deck that is shuffled whenever it is at its end.
fn faults(seed: u64) -> impl Iterator<Item = Fault> {
    let mut dice = Dice::new(!seed);
    std::iter::repeat_with(move || {
        let mut deck = DECK;
        for at in (1..deck.len()).rev() {
            deck.swap(at, dice.below(at as u64 + 1) as usize);
        }
        deck
    })
    .flatten()
}

struct Soak {
    scene: Scene,
    /// Has every commit of the server before it is told that it is one.
    standby: Option<Server>,
    /// Where the daemons look for the server: a link to wherever it is.
    place: Scratch,
    _rival: Server,
    /// The lease store of the cell was promoted, and no operator has said that it counts.
    is_sealed: bool,
    s3: S3,
    options: [DaemonOptions; 3],
    daemons: [Option<Daemon>; 3],
    dice: Dice,
}

impl fmt::Debug for Soak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Soak")
    }
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let s3 = std::thread::spawn(S3::start);
        let rival = std::thread::spawn(|| {
            Server::with(ServerOptions {
                template: 1,
                ..ServerOptions::default()
            })
        });
        let settings = ["wal_keep_size = 128MB", "wal_retrieve_retry_interval = 200ms"];
        let options = ServerOptions {
            settings: settings.map(str::to_owned).to_vec(),
            ..ServerOptions::default()
        };
        let scene = Scene::without_topic(Arc::new(Kafka::start()), options);
        scene.kafka.create_topic_with(&scene.topic, 3, LOG_APPEND);
        let (s3, rival) = (s3.join().expect("an S3 server"), rival.join().expect("a server"));
        let place = Scratch::new("soak");
        point_at(&place, &scene.server);
        let url = format!(
            "host={}/pg port=5432 user=idgend dbname=postgres",
            place.path().display()
        );
        let options = DAEMONS.map(|name| {
            let mut options = scene.options().name(name).workers(1);
            options.postgres_url = if name == "rival" {
                rival.daemon_url()
            } else {
                url.clone()
            };
            options.sections = options
                .sections
                .replace("topic =", "ack_timeout_ms = 5000\ntopic =");
            options.env = s3.env();
            options
        });
        let daemons = [0, 1, 2].map(|n| Some(options[n].launch()));
        Soak {
            standby: Some(follower_of(&scene.server)),
            scene,
            place,
            _rival: rival,
            is_sealed: false,
            s3,
            options,
            daemons,
            dice: Dice::new(seed),
        }
    }

    fn kafka(&mut self, act: impl FnOnce(&mut Kafka)) {
        act(Arc::get_mut(&mut self.scene.kafka).expect("nobody else has it"));
    }

    fn write(&self, tags: u32, events: u32) {
        let mut client = eventually(PATIENCE, "the server answers", || {
            self.scene.server.try_connect().ok()
        });
        write(&mut client, tags, events, "'{\"soak\": true}'");
    }

    fn daemon(&mut self, end: impl FnOnce(Daemon)) {
        let n = self.dice.below(3) as usize;
        end(self.daemons[n].take().expect("it runs"));
        self.daemons[n] = Some(self.options[n].launch());
    }

    /// Something happens while events are written, sent and archived.
    fn act(&mut self, fault: Fault) {
        match fault {
            Fault::KillDaemon => self.daemon(Daemon::kill),
            Fault::StopDaemon => self.daemon(Daemon::terminate),
            Fault::PauseDaemon => {
                let n = self.dice.below(3) as usize;
                self.signal(n, Signal::STOP);
                self.write(7, 200);
                self.dice.nap(1_500);
                self.signal(n, Signal::CONT);
            }
            Fault::KillBroker => {
                self.kafka(Kafka::kill);
                self.write(7, 200);
                self.kafka(Kafka::run);
            }
            Fault::RestartBroker => self.kafka(Kafka::restart),
            Fault::CrashPostgres => {
                self.scene.server.stop_at_once();
                self.dice.nap(300);
                self.scene.server.run();
            }
            Fault::PromoteStandby => self.promote(),
            Fault::TakeLease => {
                let mut client = self.scene.server.connect();
                sql::run(
                    &mut client,
                    "UPDATE idgen.drain_lease SET epoch = epoch + 1, holder = gen_random_uuid(), expires = clock_timestamp() + interval '1 s'",
                );
            }
            Fault::S3Conflict => self.s3(2, Meets::Answer(409, "ConditionalRequestConflict")),
            Fault::S3Refuses => self.s3(1, Meets::Answer(412, "PreconditionFailed")),
            Fault::S3LostAnswer => self.s3(2, Meets::LostAnswer),
            Fault::S3Fails => {
                // More than the tries of one request.
                self.s3(8, Meets::Answer(500, "InternalError"));
            }
            // Seconds for a file.
            Fault::S3Slow => self.s3(3, Meets::Slow(2_000)),
            Fault::None => {}
        }
    }

    fn signal(&self, n: usize, signal: Signal) {
        self.daemons[n].as_ref().expect("it runs").signal(signal);
    }

    /// The next requests for commits and for files meet this; the round is over when they did.
    fn s3(&mut self, times: usize, meets: Meets) {
        self.s3.next(times, "PUT", "_commits", meets.clone());
        self.s3.next(times, "PUT", ".parquet", meets);
        eventually_true(DRAINED, "requests have met it", || {
            self.write(7, 20);
            self.dice.nap(500);
            self.s3.rules_left() == 0
        });
    }

    /// The server dies under load, and its standby takes its place. All that it has told anybody is on it.
    fn promote(&mut self) {
        wait_followed(&self.scene.server);
        self.write(7, 200);
        self.dice.nap(300);
        self.scene.server.kill_everything();
        let next = self.standby.take().expect("a standby");
        let promoted: bool = value(&mut next.connect(), "SELECT pg_promote()");
        assert!(promoted);
        self.scene.server = next;
        point_at(&self.place, &self.scene.server);
        self.standby = Some(follower_of(&self.scene.server));
        self.is_sealed = true;
    }

    /// As an operator does after a failover of the lease store, which is in the same server; until then nobody leases in it.
    /// Soon after another advance it is refused: then it is tried again a round later.
    fn advance_epoch(&mut self) {
        let daemon = self.daemons[0].as_ref().expect("it runs");
        let epoch = |args: &[&str]| idgenctl_of(&self.options[0], daemon, &[&["epoch"], args].concat());
        let shown = epoch(&["show", "--output", "json"]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap_or_default();
        let identity = shown["identity"].as_str().unwrap_or_default();
        let args = ["advance", "--yes", "--identity", identity, "--reason", "promoted"];
        self.is_sealed = epoch(&args).code != Some(0);
    }

    /// Table, topic and archive have the same.
    fn check(&self) -> (Vec<Message>, Vec<Commit>) {
        self.scene.wait_drained_within(DRAINED);
        let messages = self.scene.check();
        let (commits, rows) = wait_same_as_topic(&self.s3, (&self.scene.topic, &messages), DRAINED);
        assert!(commits.iter().all(|commit| commit.gaps.is_empty()));
        assert_in_order(&rows);
        (messages, commits)
    }

    /// The check that a day must pass before it leaves the table says the same of all that was written.
    fn verify(&self, commits: &[Commit]) {
        let files = commits.iter().flat_map(|commit| &commit.files);
        let days: BTreeSet<String> = files
            .filter_map(|file| Some(file.place()?.0.to_string()))
            .collect();
        let daemon = self.daemons[0].as_ref().expect("it runs");
        for day in days {
            let said = idgenctl_of(&self.options[0], daemon, &["archive", "verify", &day]);
            assert_eq!(said.code, Some(0), "{day}: {}{}", said.stdout, said.stderr);
        }
    }

    fn run(mut self, seed: u64, rounds: u32) {
        let begun = Instant::now();
        for (round, fault) in (1..=rounds).zip(faults(seed)) {
            println!("round {round}, {} s: {fault:?}", begun.elapsed().as_secs());
            let (tags, events) = (7 + self.dice.below(20), 100 + self.dice.below(900));
            self.write(tags as u32, events as u32);
            self.dice.nap(1_500);
            self.act(fault);
            if self.is_sealed {
                self.advance_epoch();
            }
            if round % CHECK_EVERY == 0 && round < rounds {
                self.check();
            }
        }
        self.s3.heal();
        let (messages, commits) = self.check();
        self.verify(&commits);
        let mut client = self.scene.server.connect();
        let events: i64 = value(&mut client, "SELECT count(*) FROM idgen.audit_event");
        let (epoch, timeline): (i64, i32) = (
            value(
                &mut client,
                "SELECT epoch FROM idgen.drain_lease WHERE stream = 'segment'",
            ),
            value(&mut client, "SELECT timeline_id FROM pg_control_checkpoint()"),
        );
        println!(
            "seed {seed}: {rounds} rounds in {} s, {events} events, {} messages, {} commits, epoch {epoch}, timeline {timeline}",
            begun.elapsed().as_secs(),
            messages.len(),
            commits.len()
        );
    }
}

/// As a name that follows the server does.
fn point_at(place: &Scratch, server: &Server) {
    let (link, new) = (place.join("pg"), place.join("new"));
    std::os::unix::fs::symlink(server.socket_dir(), &new).expect("make a link");
    std::fs::rename(new, link).expect("move the link");
}

/// A standby that has every commit before anybody hears of it.
fn follower_of(primary: &Server) -> Server {
    let mut standby = Server::backup_of(primary, true);
    // Of the primary that it will be, until it has a standby.
    standby.set("synchronous_standby_names", "");
    standby.run();
    primary.set("synchronous_standby_names", "*");
    primary.reload();
    wait_followed(primary);
    standby
}

/// Until the standby has what is there, those commits as well that nobody waited for because the server crashed.
fn wait_followed(primary: &Server) {
    let mut client = primary.connect();
    let there: String = value(&mut client, "SELECT pg_current_wal_insert_lsn()::text");
    eventually_true(PATIENCE, "the standby follows", || {
        let followed = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming' AND flush_lsn >= '{there}')"
        );
        value(&mut client, &followed)
    });
}

/// In the order of offsets each tag's events follow each other, at first sight.
fn assert_in_order(rows: &[ArchivedRow]) {
    let mut last: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.kind.starts_with("snowflake.")) {
        let last = last.entry((&row.source, &row.tag)).or_default();
        assert!(row.tag_seq <= *last + 1, "{row:?} comes after {last}");
        *last = row.tag_seq.max(*last);
    }
}

fn of_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn soak(seed: u64, rounds: u32) {
    let seed = of_environment("SOAK_SEED").unwrap_or(seed);
    let rounds = of_environment("SOAK_ROUNDS").unwrap_or(rounds);
    println!("soak: SUITE=outbox SEED={seed} ROUNDS={rounds}");
    Soak::new(seed).run(seed, rounds);
}

#[test]
fn events_come_through_whatever_is_killed() {
    soak(SEED, ROUNDS);
}

#[test]
fn the_fixed_seed_has_every_fault() {
    let seen: BTreeSet<Fault> = faults(SEED).take(ROUNDS as usize).collect();
    for kind in DECK {
        assert!(seen.contains(&kind), "{kind:?} is not in {seen:?}");
    }
}
