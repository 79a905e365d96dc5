//! Sessions that draw one id of each tag at a time, over every crash, and keep what they were given.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, Error};

use super::TAGS;
use crate::kit::{Server, eventually_true, sql};

const SESSIONS: usize = 3;
/// A session that is silent for this long after a fault will not come back.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Between two tries to connect to a server that is away.
const AGAIN: Duration = Duration::from_millis(20);

/// What one session was given.
#[derive(Default)]
pub struct Drawn {
    pub ids: BTreeMap<&'static str, Vec<i64>>,
    /// Statements without an answer: each has lost an id of each tag at the most.
    pub unanswered: u64,
}

pub struct Sessions {
    stop: Arc<AtomicBool>,
    calls: Vec<Arc<AtomicU64>>,
    pids: Arc<Mutex<BTreeMap<usize, u32>>>,
    running: Vec<JoinHandle<Drawn>>,
}

impl Sessions {
    pub fn start(server: &Server) -> Sessions {
        let stop = Arc::new(AtomicBool::new(false));
        let pids = Arc::default();
        let calls: Vec<_> = (0..SESSIONS).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let running = calls
            .iter()
            .enumerate()
            .map(|(number, calls)| {
                let session = Session {
                    number,
                    stop: Arc::clone(&stop),
                    calls: Arc::clone(calls),
                    pids: Arc::clone(&pids),
                };
                let connect = server.connector();
                thread::spawn(move || session.run(connect))
            })
            .collect();
        Sessions {
            stop,
            calls,
            pids,
            running,
        }
    }

    /// Until every session has drawn as many more.
    pub fn wait_all(&self, more: u64) -> Duration {
        let goals: Vec<u64> = self
            .calls
            .iter()
            .map(|calls| calls.load(Ordering::Relaxed) + more)
            .collect();
        eventually_true(GIVE_UP, "every session draws", || {
            let mut all = self.calls.iter().zip(&goals);
            all.all(|(calls, goal)| calls.load(Ordering::Relaxed) >= *goal)
        })
    }

    /// The process of one of them.
    pub fn backend(&self) -> Option<u32> {
        let pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        pids.values().next().copied()
    }

    pub fn finish(self) -> Vec<Drawn> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.running.into_iter();
        ended.map(|session| session.join().expect("a session")).collect()
    }
}

struct Session {
    number: usize,
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    pids: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl Session {
    fn run(self, connect: impl Fn() -> Result<Client, Error>) -> Drawn {
        let mut drawn = Drawn::default();
        while !self.stop.load(Ordering::Relaxed) {
            match connect() {
                Ok(mut client) => {
                    self.draw(&mut client, &mut drawn);
                    self.pids().remove(&self.number);
                }
                Err(_) => thread::sleep(AGAIN),
            }
        }
        drawn
    }

    fn pids(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, u32>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until told to stop, or cut.
    fn draw(&self, client: &mut Client, drawn: &mut Drawn) {
        // The caller's choice must not weaken what a granted range rests on.
        let begin = "SET synchronous_commit = off";
        let Ok(pid) = client
            .batch_execute(begin)
            .and_then(|()| client.query_one("SELECT pg_backend_pid()", &[]))
        else {
            return;
        };
        let pid = u32::try_from(pid.get::<_, i32>(0)).expect("a pid");
        self.pids().insert(self.number, pid);
        let calls: Vec<String> = TAGS.iter().map(|tag| format!("idgen_segment('{tag}')")).collect();
        let Ok(statement) = client.prepare(&format!("SELECT {}", calls.join(", "))) else {
            return;
        };
        while !self.stop.load(Ordering::Relaxed) {
            match client.query_one(&statement, &[]) {
                Ok(row) => {
                    for (column, tag) in TAGS.into_iter().enumerate() {
                        drawn.ids.entry(tag).or_default().push(row.get(column));
                    }
                    self.calls.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    drawn.unanswered += 1;
                    if client.is_closed() {
                        return;
                    }
                    let code = error.code().map_or("none", |code| code.code());
                    let expected = ["IG007", "57P01", "57P02", "57P03", "none"].contains(&code);
                    assert!(expected, "session {}: {}", self.number, sql::describe(&error));
                }
            }
        }
    }
}
