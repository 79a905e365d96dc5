//! Sessions that mint over every fault, and write down what they were given as binary runs.
//!
//! A file is a sequence of little-endian words. `CONNECTION, session, server, class, boot id (2)`: all that follows is
//! of this connection. `STATEMENT, invoked us, returned us, succeeded, runs n, n times (start, length)`.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use idgen_core::history::{History, Moment, Run, Statement};
use idgen_core::lease::{BootId, Class};
use postgres::types::{FromSql, Type};
use postgres::{Client, Error};
use uuid::Uuid;

use crate::kit::Server;
use crate::moment;
use crate::plan::Draws;

const CONNECTION: u64 = 1;
const STATEMENT: u64 = 2;
/// Every server lists it, so it changes hands whenever its holder is hit.
pub const SHARD: u16 = 7;
/// Between two tries to connect, or after a refusal.
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Ids of one statement of a batch.
const BATCHES: [u64; 4] = [500, 5_000, 20_000, 60_000];
/// Sessions are kept to this many ids per second: the rest of the machine is for the faults. A row of COPY is a
/// message, which costs a client fifty times as much as an element of an array.
const COPY_IDS_PER_S: u32 = 20_000;
const ARRAY_IDS_PER_S: u32 = 90_000;
const SINGLE_PAUSE: Duration = Duration::from_millis(2);
/// Header of COPY in binary form, before the length of its extension.
const COPY_HEADER: usize = 19;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Copy,
    Array,
    Single,
    Shard,
}

impl Kind {
    fn class(self) -> Class {
        match self {
            Kind::Copy | Kind::Array | Kind::Single => Class::Worker,
            Kind::Shard => Class::Shard,
        }
    }

    /// A pause after a call that was answered.
    fn rest(self, invoked: Moment, ids: u64) {
        match self {
            Kind::Copy => pause(invoked, Duration::from_secs(ids) / COPY_IDS_PER_S),
            Kind::Array => pause(invoked, Duration::from_secs(ids) / ARRAY_IDS_PER_S),
            Kind::Single | Kind::Shard => thread::sleep(SINGLE_PAUSE),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Copy => "copy",
            Kind::Array => "array",
            Kind::Single => "single",
            Kind::Shard => "shard",
        }
    }
}

/// What all sessions share.
#[derive(Default)]
pub struct Progress {
    stop: AtomicBool,
    ids: AtomicU64,
    /// When the latest call of workers began that has minted.
    minted_at: AtomicU64,
    refusals: AtomicU64,
    cuts: AtomicU64,
}

impl Progress {
    pub fn ids(&self) -> u64 {
        self.ids.load(Ordering::Relaxed)
    }

    pub fn minted_at(&self) -> Moment {
        Moment(self.minted_at.load(Ordering::Relaxed))
    }

    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The sessions of one server.
pub struct Minters {
    pub progress: Arc<Progress>,
    threads: Vec<JoinHandle<()>>,
}

impl Minters {
    pub fn start(server: &Server, number: usize, seed: u64, dir: &Path) -> Minters {
        let progress = Arc::new(Progress::default());
        let kinds = [Kind::Copy, Kind::Array, Kind::Single, Kind::Shard];
        let threads = kinds.into_iter().enumerate().map(|(nth, kind)| {
            let connect = server.connector();
            let file = dir.join(format!("mints-{number}-{nth}-{}.bin", kind.name()));
            let mut session = Session {
                server: number,
                kind,
                draws: Draws::new(seed ^ ((number * 16 + nth) as u64) << 32),
                out: Writer::create(&file),
                progress: progress.clone(),
            };
            thread::spawn(move || session.run(connect))
        });
        let threads = threads.collect();
        Minters { progress, threads }
    }

    pub fn finish(self) {
        self.progress.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a session");
        }
    }
}

struct Session {
    server: usize,
    kind: Kind,
    draws: Draws,
    out: Writer,
    progress: Arc<Progress>,
}

impl Session {
    fn run(&mut self, connect: impl Fn() -> Result<Client, Error>) {
        while !self.progress.stopped() {
            match connect() {
                Ok(client) => {
                    // However it ends, the next one is another connection.
                    let _ended = self.mint_until_cut(client);
                    self.progress.cuts.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => thread::sleep(RETRY_EVERY),
            }
        }
        self.out.flush();
    }

    fn mint_until_cut(&mut self, mut client: Client) -> Result<(), Error> {
        let row = client.query_one("SELECT boot_id::text, pg_backend_pid() FROM idgen.health", &[])?;
        let boot_id: Uuid = row.get::<_, &str>(0).parse().expect("a uuid");
        self.out.connection(self.server, self.kind.class(), boot_id);
        while !self.progress.stopped() {
            let ids = self.draws.one_of(&BATCHES);
            let invoked = moment::now();
            let mut runs = Runs::default();
            let answer = match self.kind {
                Kind::Copy => copy(&mut client, ids, &mut runs),
                Kind::Array => array(&mut client, ids, &mut runs),
                Kind::Single => single(&mut client, "SELECT idgen_snowflake()", &mut runs),
                Kind::Shard => single(
                    &mut client,
                    &format!("SELECT idgen_snowflake({SHARD})"),
                    &mut runs,
                ),
            };
            let returned = moment::now();
            self.note(invoked, returned, answer.is_ok(), &runs);
            match answer {
                Ok(()) => self.kind.rest(invoked, ids),
                Err(_) if client.is_closed() => return Ok(()),
                Err(_) => {
                    self.progress.refusals.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(RETRY_EVERY);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, invoked: Moment, returned: Moment, succeeded: bool, runs: &Runs) {
        if runs.0.is_empty() {
            return;
        }
        self.out.statement(invoked, returned, succeeded, &runs.0);
        let ids: u64 = runs.0.iter().map(|run| run.len).sum();
        self.progress.ids.fetch_add(ids, Ordering::Relaxed);
        if succeeded && self.kind.class() == Class::Worker {
            self.progress.minted_at.fetch_max(invoked.0, Ordering::Relaxed);
        }
    }
}

/// Waits until this long after the call began.
fn pause(invoked: Moment, at_least: Duration) {
    thread::sleep(at_least.saturating_sub(moment::since(invoked)));
}

/// Ids in the order in which they came, as runs.
#[derive(Default)]
pub struct Runs(pub Vec<Run>);

impl Runs {
    fn push(&mut self, id: i64) {
        let id = u64::try_from(id).expect("ids are positive");
        match self.0.last_mut().filter(|run| run.start + run.len == id) {
            Some(run) => run.len += 1,
            None => self.0.push(Run { start: id, len: 1 }),
        }
    }
}

fn single(client: &mut Client, sql: &str, runs: &mut Runs) -> io::Result<()> {
    let row = client.query_one(sql, &[]).map_err(io::Error::other)?;
    runs.push(row.get(0));
    Ok(())
}

/// What had arrived before an error counts: it was given out.
pub fn copy(client: &mut Client, ids: u64, runs: &mut Runs) -> io::Result<()> {
    let sql = format!("COPY (SELECT idgen_snowflake_batch({ids})) TO STDOUT (FORMAT binary)");
    let mut copied = client.copy_out(&sql).map_err(io::Error::other)?;
    let mut header = [0; COPY_HEADER];
    copied.read_exact(&mut header)?;
    let mut row = [0; 12];
    loop {
        let mut columns = [0; 2];
        copied.read_exact(&mut columns)?;
        if i16::from_be_bytes(columns) != 1 {
            break;
        }
        // Its length and the id.
        copied.read_exact(&mut row)?;
        let [_, _, _, _, id @ ..] = row;
        runs.push(i64::from_be_bytes(id));
    }
    // The rest of it: an error may follow the last row.
    io::copy(&mut copied, &mut io::sink())?;
    Ok(())
}

fn array(client: &mut Client, ids: u64, runs: &mut Runs) -> io::Result<()> {
    let sql = format!("SELECT array_agg(id) FROM idgen_snowflake_batch({ids}) AS id");
    let row = client.query_one(&sql, &[]).map_err(io::Error::other)?;
    let Elements(bytes) = row.get(0);
    for element in bytes.chunks_exact(12) {
        // Its length and the id.
        let element: [u8; 12] = element.try_into().expect("twelve bytes");
        let [_, _, _, _, id @ ..] = element;
        runs.push(i64::from_be_bytes(id));
    }
    Ok(())
}

/// The elements of a `bigint[]` of one dimension as they come.
struct Elements<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Elements<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        const HEADER: usize = 20;
        Ok(Elements(raw.get(HEADER..).ok_or("an empty array")?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::INT8_ARRAY
    }
}

/// Writes one file of mints.
pub struct Writer {
    out: BufWriter<File>,
}

impl Writer {
    pub fn create(path: &Path) -> Writer {
        let file = File::create(path).expect("create a file of mints");
        Writer {
            out: BufWriter::new(file),
        }
    }

    pub fn connection(&mut self, server: usize, class: Class, boot_id: Uuid) {
        static SESSIONS: AtomicU32 = AtomicU32::new(0);
        let session = u64::from(SESSIONS.fetch_add(1, Ordering::Relaxed));
        let (high, low) = boot_id.as_u64_pair();
        self.words(&[CONNECTION, session, server as u64, class as u64, high, low]);
    }

    pub fn statement(&mut self, invoked: Moment, returned: Moment, succeeded: bool, runs: &[Run]) {
        self.words(&[
            STATEMENT,
            invoked.0,
            returned.0,
            u64::from(succeeded),
            runs.len() as u64,
        ]);
        for run in runs {
            self.words(&[run.start, run.len]);
        }
    }

    fn words(&mut self, words: &[u64]) {
        for word in words {
            self.out.write_all(&word.to_le_bytes()).expect("write mints");
        }
    }

    pub fn flush(&mut self) {
        self.out.flush().expect("write mints");
    }
}

/// Reads a file of mints into a history.
pub fn read(path: &PathBuf, history: &mut History) {
    let bytes = std::fs::read(path).expect("read mints");
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let mut next = move || words.next();
    let mut connection = None;
    while let Some(tag) = next() {
        let mut word = || next().expect("a whole record");
        if tag == CONNECTION {
            let (session, server, class) = (word(), word(), word());
            let class = Class::ALL[usize::try_from(class).expect("a class")];
            let boot_id = BootId(Uuid::from_u64_pair(word(), word()).as_u128());
            connection = Some((session, server, class, boot_id));
            continue;
        }
        assert_eq!(tag, STATEMENT, "{}", path.display());
        let (session, server, class, boot_id) = connection.expect("a connection before its statements");
        let statement = Statement {
            session: u32::try_from(session).expect("a session"),
            server: u8::try_from(server).expect("a server"),
            boot_id,
            class,
            invoked: Moment(word()),
            returned: Moment(word()),
            succeeded: word() == 1,
            pieces: 0..0,
        };
        let runs: Vec<Run> = (0..word())
            .map(|_| Run {
                start: word(),
                len: word(),
            })
            .collect();
        history.add(statement, runs);
    }
}
