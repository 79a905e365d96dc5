//! Sessions that mint as fast as they can, over every fault, and write down what they were given.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::{Client, Error};

use super::Server;
use super::sql::describe;
use super::unique::UniquenessRecorder;
use super::wait::eventually_true;

/// Between two tries to connect, or after a refusal: a pause, not a wait for anything.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// The ids of one statement, and when it ran.
pub struct Batch {
    /// Which session of Postgres: ids rise within one, whatever happens.
    connection: u64,
    pub started: Instant,
    pub ended: Instant,
    pub snowflakes: Vec<i64>,
    pub segments: Vec<i64>,
    pub uuids: Vec<u128>,
}

/// An error that was not the end of a connection.
#[derive(Debug)]
pub struct Refusal {
    pub at: Instant,
    pub code: String,
    pub text: String,
}

#[derive(Default)]
pub struct Report {
    pub batches: Vec<Batch>,
    pub refusals: Vec<Refusal>,
    pub disconnects: usize,
}

/// What the sessions do.
#[derive(Clone)]
pub struct LoadOptions {
    pub sessions: usize,
    /// Between two statements; none: as fast as they can.
    pub pause: Duration,
    /// Run once per connection.
    pub settings: String,
    /// Snowflakes of this shard instead of the workers'.
    pub shard: Option<i32>,
}

impl LoadOptions {
    pub fn sessions(sessions: usize) -> LoadOptions {
        LoadOptions {
            sessions,
            pause: Duration::ZERO,
            // The caller's choice must not weaken what a granted range rests on.
            settings: "SET synchronous_commit = off".to_owned(),
            shard: None,
        }
    }

    /// Three ids a row, some rows a statement: a statement is cut by a crash now and then. Every other session
    /// takes a run of snowflakes.
    fn statement(&self, session: usize) -> String {
        let shard = self.shard.map(|shard| shard.to_string()).unwrap_or_default();
        let others = "idgen_segment('load'), uuid_send(idgen_uuidv7())";
        if session.is_multiple_of(2) {
            format!("SELECT idgen_snowflake({shard}), {others} FROM generate_series(1, 20)")
        } else {
            let comma = if shard.is_empty() { "" } else { ", " };
            format!("SELECT id, {others} FROM idgen_snowflake_batch(20{comma}{shard}) AS id")
        }
    }
}

pub struct Load {
    stop: Arc<AtomicBool>,
    statements: Arc<AtomicU64>,
    sessions: Vec<JoinHandle<Report>>,
}

impl Load {
    /// Makes the tag `load` and starts the sessions.
    pub fn start(server: &Server, sessions: usize) -> Load {
        Load::make_tag(server);
        Load::resume(server, sessions)
    }

    /// Segment numbers of the load come from this tag.
    pub fn make_tag(server: &Server) {
        super::sql::run(&mut server.connect(), "SELECT idgen_create_segment('load')");
    }

    /// The same on a server that has the tag already.
    pub fn resume(server: &Server, sessions: usize) -> Load {
        Load::run(server, &LoadOptions::sessions(sessions))
    }

    /// On a server that has the tag.
    pub fn run(server: &Server, options: &LoadOptions) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let statements = Arc::new(AtomicU64::new(0));
        let sessions = (0..options.sessions)
            .map(|n| {
                let (connect, stop, statements) = (server.connector(), stop.clone(), statements.clone());
                let (mint, options) = (options.statement(n), options.clone());
                thread::spawn(move || session(connect, &mint, &options, &stop, &statements))
            })
            .collect();
        Load {
            stop,
            statements,
            sessions,
        }
    }

    /// Waits until this many more statements have been answered: the load is under way.
    pub fn wait_statements(&self, more: u64) {
        let goal = self.statements.load(Ordering::Relaxed) + more;
        eventually_true(super::PATIENCE, "the load makes progress", || {
            self.statements.load(Ordering::Relaxed) >= goal
        });
    }

    /// Each session ends after the statement that it runs.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn finish(self) -> Report {
        self.ask_to_stop();
        let mut all = Report::default();
        for session in self.sessions {
            let mut report = session.join().expect("a session of the load");
            all.batches.append(&mut report.batches);
            all.refusals.append(&mut report.refusals);
            all.disconnects += report.disconnects;
        }
        all
    }
}

fn session(
    connect: impl Fn() -> Result<Client, Error>,
    mint: &str,
    options: &LoadOptions,
    stop: &AtomicBool,
    statements: &AtomicU64,
) -> Report {
    let mut report = Report::default();
    while !stop.load(Ordering::Relaxed) {
        match connect() {
            Ok(client) => mint_until_cut(client, mint, options, stop, statements, &mut report),
            Err(_) => thread::sleep(RETRY_EVERY),
        }
    }
    report
}

fn mint_until_cut(
    mut client: Client,
    mint: &str,
    options: &LoadOptions,
    stop: &AtomicBool,
    statements: &AtomicU64,
    report: &mut Report,
) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    if client.batch_execute(&options.settings).is_err() {
        report.disconnects += 1;
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        match client.query(mint, &[]) {
            Ok(rows) => {
                report.batches.push(Batch {
                    connection,
                    started,
                    ended: Instant::now(),
                    snowflakes: rows.iter().map(|row| row.get(0)).collect(),
                    segments: rows.iter().map(|row| row.get(1)).collect(),
                    uuids: rows.iter().map(|row| to_u128(row.get(2))).collect(),
                });
                statements.fetch_add(1, Ordering::Relaxed);
                thread::sleep(options.pause);
            }
            Err(error) if is_cut(&error) => {
                report.disconnects += 1;
                return;
            }
            Err(error) => {
                report.refusals.push(Refusal {
                    at: Instant::now(),
                    code: error.code().map_or("-", |code| code.code()).to_owned(),
                    text: describe(&error),
                });
                thread::sleep(RETRY_EVERY);
            }
        }
    }
}

/// Class 57: the server shuts down, has crashed or is starting.
fn is_cut(error: &Error) -> bool {
    error.is_closed() || error.code().is_none_or(|code| code.code().starts_with("57P"))
}

fn to_u128(bytes: &[u8]) -> u128 {
    u128::from_be_bytes(bytes.try_into().expect("a uuid has 16 bytes"))
}

impl Report {
    /// No id of any kind twice, here and in all `others` of the same cell and tag.
    pub fn assert_unique_with(self, others: Vec<Report>, at_least: usize) {
        let mut snowflakes = UniquenessRecorder::new();
        let mut segments = UniquenessRecorder::new();
        let mut uuids = UniquenessRecorder::new();
        for batch in others.into_iter().chain([self]).flat_map(|report| report.batches) {
            snowflakes.extend(batch.snowflakes);
            segments.extend(batch.segments);
            uuids.extend(batch.uuids);
        }
        snowflakes.assert_unique("snowflakes", at_least);
        segments.assert_unique("segment numbers", at_least);
        uuids.assert_unique("uuids", at_least);
    }

    pub fn assert_unique(self, at_least: usize) {
        self.assert_unique_with(Vec::new(), at_least);
    }

    /// All of them, session by session.
    pub fn snowflakes(&self) -> impl Iterator<Item = i64> + '_ {
        self.batches
            .iter()
            .flat_map(|batch| batch.snowflakes.iter().copied())
    }

    /// Snowflakes and uuids rise within each session, over all of its statements.
    pub fn assert_rising(&self) {
        let mut last = HashMap::new();
        for batch in &self.batches {
            let (snowflake, uuid) = last.entry(batch.connection).or_insert((0, 0));
            for id in &batch.snowflakes {
                assert!(id > snowflake, "{id} after {snowflake} in one session");
                *snowflake = *id;
            }
            for id in &batch.uuids {
                assert!(id > uuid, "uuid {id:x} after {uuid:x} in one session");
                *uuid = *id;
            }
        }
    }

    /// Every refusal of the run has this SQLSTATE, and there is one at least.
    pub fn assert_refused_only_with(&self, sqlstate: &str) {
        assert!(!self.refusals.is_empty(), "nothing was refused with {sqlstate}");
        let other = self.refusals.iter().find(|refusal| refusal.code != sqlstate);
        assert!(other.is_none(), "{other:?} beside {sqlstate}");
    }

    pub fn assert_no_refusal(&self) {
        let first: Vec<_> = self.refusals.iter().take(3).collect();
        assert!(
            first.is_empty(),
            "{} refusals, such as {first:?}",
            self.refusals.len()
        );
    }

    /// The counter of the tag never goes back: whatever is asked for after `recovered` lies above
    /// whatever was given before `fault`.
    pub fn assert_segment_rises_over(&self, fault: Instant, recovered: Instant) {
        let before = self.batches.iter().filter(|batch| batch.ended < fault);
        let after = self.batches.iter().filter(|batch| batch.started > recovered);
        let highest = before
            .flat_map(|batch| &batch.segments)
            .max()
            .expect("ids before the fault");
        let lowest = after
            .flat_map(|batch| &batch.segments)
            .min()
            .expect("ids after the fault");
        assert!(lowest > highest, "segment went back: {lowest} after {highest}");
    }

    /// When the last snowflake before `until` was given.
    pub fn last_success_before(&self, until: Instant) -> Instant {
        let ended = self
            .batches
            .iter()
            .map(|batch| batch.ended)
            .filter(|ended| *ended < until);
        ended.max().expect("ids before that moment")
    }
}
