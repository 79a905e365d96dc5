//! The server, and how a refill is brought to a moment and something to its end there.
//!
//! No code of the extension is made for this: a lock of ours holds a refill before its commit, a synchronous standby
//! that there is not holds it after, and a stopped process goes on with nothing.

use std::fs;
use std::os::unix::fs::symlink;

use postgres::Client;

use super::TAGS;
use super::plan::{Fault, Moment, Round};
use super::sessions::Sessions;
use crate::kit::process::{Signal, signal_pid};
use crate::kit::{PATIENCE, Scratch, Server, ServerOptions, SmallDisk, eventually, eventually_true, sql};

const WORKER: &str = "backend_type = 'pg_idgen refill worker'";
const IN_WAIT: &str = "wait_event = 'SyncRep'";
/// The log's segments are of 16 MB, and two of them are kept.
const LOG_DISK: &str = "80m";

pub struct Scene {
    pub server: Server,
    log_disk: SmallDisk,
    /// Where that is mounted; to be removed when it is not any more.
    _place: Scratch,
}

/// What holds a refill at its moment.
struct Held {
    /// Has a lock.
    _locks: Option<Client>,
    /// The worker, stopped.
    stopped: Option<u32>,
}

impl Scene {
    pub fn start() -> Scene {
        let mut server = Server::with(ServerOptions {
            settings: [
                "min_wal_size = 32MB",
                "max_wal_size = 32MB",
                "checkpoint_timeout = 1h",
                "autovacuum_naptime = 1s",
                "restart_after_crash = on",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Default::default()
        });
        let mut client = server.connect();
        for tag in TAGS {
            let make = format!("SELECT idgen_create_segment('{tag}', step => 40, max_step => 160)");
            sql::run(&mut client, &make);
        }
        drop(client);
        server.stop();
        let log = server.data_dir().join("pg_wal");
        let scratch = Scratch::new("wal");
        let place = scratch.join("log");
        let log_disk = SmallDisk::at(&place, LOG_DISK);
        let moved = server
            .as_account("cp")
            .arg("-a")
            .arg(log.join("."))
            .arg(&place)
            .status();
        assert!(moved.expect("run cp").success(), "move the log");
        fs::remove_dir_all(&log).expect("remove the old log");
        symlink(&place, &log).expect("link the log");
        server.run();
        Scene {
            server,
            log_disk,
            _place: scratch,
        }
    }

    pub fn boot_id(&self) -> String {
        let mut client = self.connect();
        sql::value(&mut client, "SELECT boot_id::text FROM idgen.health")
    }

    /// Once it is back.
    pub fn connect(&self) -> Client {
        eventually(PATIENCE, "the server is back", || self.server.try_connect().ok())
    }

    /// The round's fault at its moment, and everything in order again, though not all sessions may be back.
    pub fn suffer(&mut self, round: Round, sessions: &Sessions) {
        let mut observer = self.connect();
        let held = self.bring_to(round.moment, &mut observer);
        // Read by the next start, or by the reload below.
        self.server.set("synchronous_standby_names", "");
        match round.fault {
            Fault::BackendKilled => {
                let victim = eventually(PATIENCE, "a session", || sessions.backend());
                signal_pid(victim, Signal::KILL);
                held.let_go_when_told();
                cut(&mut observer);
            }
            Fault::WorkerKilled => {
                let victim = eventually(PATIENCE, "a refill worker", || worker(&mut observer, "true"));
                signal_pid(victim, Signal::KILL);
                cut(&mut observer);
            }
            Fault::PostmasterKilled => {
                self.server.kill_postmaster();
                held.go_on();
                drop(observer);
                drop(held);
                self.server.wait_orphans_gone();
                self.server.run();
            }
            Fault::ServerStopped => {
                let stopped = held.stopped;
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        Held {
                            _locks: None,
                            stopped,
                        }
                        .let_go_when_told()
                    });
                    self.server.stop_at_once();
                });
                self.server.run();
            }
            Fault::PowerCut => {
                self.server.kill_everything();
                self.server.run();
            }
            Fault::LogDiskFull => self.fill_log(&mut observer),
            Fault::WaitCancelled => cancel_wait(&mut observer),
            Fault::WaitTerminated => self.terminate_wait(&mut observer),
        }
        drop(self.connect());
        self.server.reload();
    }

    /// Whatever the sessions do, the next refill comes to that moment.
    fn bring_to(&self, moment: Moment, observer: &mut Client) -> Held {
        let mut held = Held {
            _locks: None,
            stopped: None,
        };
        match moment {
            Moment::Any => {}
            Moment::BeforeUpdate => {
                let mut holder = self.connect();
                let lock = format!(
                    "BEGIN; SELECT FROM idgen.segment WHERE tag = '{}' FOR UPDATE",
                    TAGS[0]
                );
                sql::run(&mut holder, &lock);
                let pid: i32 = sql::value(&mut holder, "SELECT pg_backend_pid()");
                let met =
                    format!("SELECT EXISTS (SELECT FROM idgen.segment_buffers() WHERE blocker_pid = {pid})");
                eventually_true(PATIENCE, "a refill meets the lock", || sql::value(observer, &met));
                held._locks = Some(holder);
            }
            Moment::BeforeCommit => {
                let mut holder = self.connect();
                sql::run(
                    &mut holder,
                    "BEGIN; LOCK TABLE idgen.audit_event IN EXCLUSIVE MODE",
                );
                held._locks = Some(holder);
                held.stopped = Some(eventually(PATIENCE, "a refill is stopped at its event", || {
                    stop_at_its_event(observer)
                }));
            }
            Moment::BeforePublish => {
                self.server.set("synchronous_standby_names", "nobody");
                self.server.reload();
                eventually(PATIENCE, "a refill waits for the standby", || {
                    worker(observer, IN_WAIT)
                });
            }
        }
        held
    }

    /// Until a segment of the log cannot be made: the server crashes, and cannot recover until there is room.
    fn fill_log(&mut self, observer: &mut Client) {
        let crashes = |log: &str| {
            log.matches("terminating any other active server processes")
                .count()
        };
        let before = crashes(&self.server.log());
        let filler = self.log_disk.fill();
        let write = "SELECT count(pg_logical_emit_message(false, 'filler', repeat('x', 100000))) FROM generate_series(1, 100)";
        eventually_true(PATIENCE, "the log's disk is full", || {
            observer.simple_query(write).is_err()
        });
        eventually_true(PATIENCE, "the postmaster knows of it", || {
            crashes(&self.server.log()) > before
        });
        fs::remove_file(filler).expect("make room");
        let ended = eventually(PATIENCE, "the server is back, or has ended", || {
            let ended = self.server.has_ended();
            (ended || self.server.try_connect().is_ok()).then_some(ended)
        });
        if ended {
            self.server.run();
        }
    }

    /// Its commit is in doubt then: it ends with it, and burns the range.
    fn terminate_wait(&self, observer: &mut Client) {
        let told = || self.server.log().matches(" for synchronous replication").count();
        let before = told();
        signal_worker(observer, "pg_terminate_backend");
        eventually_true(PATIENCE, "the wait is ended", || told() > before);
    }
}

/// The worker is deaf to that: a range that waits for its standby goes on waiting.
fn cancel_wait(observer: &mut Client) {
    let waiting = worker(observer, IN_WAIT);
    signal_worker(observer, "pg_cancel_backend");
    assert_eq!(worker(observer, IN_WAIT), waiting, "it goes on waiting");
}

fn signal_worker(observer: &mut Client, how: &str) {
    let signal = format!("SELECT {how}(pid) FROM pg_stat_activity WHERE {WORKER} AND {IN_WAIT}");
    assert!(sql::value::<bool>(observer, &signal), "{how}");
}

impl Held {
    fn go_on(&self) {
        if let Some(pid) = self.stopped {
            signal_pid(pid, Signal::CONT);
        }
    }

    /// A stopped process hears of the crash when it goes on, and not before; the postmaster would wait 5 s for it.
    fn let_go_when_told(&self) {
        let Some(pid) = self.stopped else { return };
        let told = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
            let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            pending.is_none_or(|mask| mask & (1 << (Signal::QUIT.as_raw() - 1)) != 0)
        };
        eventually_true(PATIENCE, "the postmaster tells of the crash", told);
        self.go_on();
    }
}

/// The process of a refill worker.
fn worker(observer: &mut Client, which: &str) -> Option<u32> {
    let query = format!("SELECT pid FROM pg_stat_activity WHERE {WORKER} AND {which} LIMIT 1");
    let found: Vec<i32> = sql::column(observer, &query);
    found.first().and_then(|pid| u32::try_from(*pid).ok())
}

/// It waits there for 100 ms only: stopped, it is looked at again.
fn stop_at_its_event(observer: &mut Client) -> Option<u32> {
    let waits =
        "pid IN (SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'idgen.audit_event'::regclass
                                            AND mode = 'RowExclusiveLock')";
    let pid = worker(observer, waits)?;
    signal_pid(pid, Signal::STOP);
    if worker(observer, waits) == Some(pid) {
        return Some(pid);
    }
    signal_pid(pid, Signal::CONT);
    None
}

/// Until the crash has reached this session.
fn cut(observer: &mut Client) {
    eventually_true(PATIENCE, "the crash reaches our session", || {
        observer.simple_query("").is_err()
    });
}
