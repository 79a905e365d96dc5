//! The commits of the embedded store, by logical decoding: every flushed transaction of its tables, in its order.
//!
//! Changes are peeked at and dropped afterwards, so a crash in between shows them twice rather than never; what was
//! seen before is known by its place in the WAL.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_core::history::Moment;
use postgres::types::PgLsn;
use postgres::{Client, Error};

use crate::files::{ClassName, Holder, Record, Row, RowChange, Seen, TokenText};
use crate::kit::Server;
use crate::moment;
use crate::trail::{Shared, Trail};

const LOOK_EVERY: Duration = Duration::from_millis(40);
/// Between two comparisons of the commits with the tables.
const COMPARE_EVERY: Duration = Duration::from_secs(4);
const PEEK: &str =
    "SELECT lsn, data FROM pg_logical_slot_peek_changes('soak', NULL, NULL, 'include-timestamp', 'on')";
const ROWS: &str = "SELECT kind, identity, generation, ceiling_ms, exact, holder::text, token_epoch || '/' || token_revision, \
     boot_id::text, floor(extract(epoch FROM expires_at) * 1000)::int8, revision FROM idgen.lease \
     WHERE holder_name IS DISTINCT FROM 'filler' AND generation > 0 ORDER BY kind, identity";

/// The server needs `wal_level = logical`. Begins before the first daemon does. `branch`: how many standbys were promoted
/// before; this one was the last of them.
pub fn start(server: &Server, dir: &Path, branch: u32) -> Trail {
    let connect = server.connector();
    let mut client = server.connect();
    client
        .query(
            "SELECT pg_create_logical_replication_slot('soak', 'test_decoding')",
            &[],
        )
        .expect("make the slot");
    Trail::start(dir, move |shared| {
        let mut recorder = Recorder {
            shared,
            branch,
            last: PgLsn::from(0),
            looked: moment::now().0,
            compared: moment::now(),
            transaction: Vec::new(),
            epoch: None,
        };
        recorder.begin(&mut client).expect("read the tables");
        recorder.run(connect);
    })
}

struct Recorder {
    shared: Arc<Shared>,
    branch: u32,
    /// The last change that was written down.
    last: PgLsn,
    /// When the look before this one began.
    looked: u64,
    compared: Moment,
    transaction: Vec<String>,
    epoch: Option<u64>,
}

impl Recorder {
    fn run(&mut self, connect: impl Fn() -> Result<Client, Error>) {
        while !self.shared.stopped() {
            // Until the server goes away.
            let _gone = self.follow(&connect);
            thread::sleep(LOOK_EVERY);
        }
    }

    fn follow(&mut self, connect: &impl Fn() -> Result<Client, Error>) -> Result<(), Error> {
        let (mut client, mut other) = (connect()?, connect()?);
        client.batch_execute("SET timezone = 'UTC'; SET datestyle = 'ISO'; SET synchronous_commit = off")?;
        while !self.shared.stopped() {
            self.look(&mut client)?;
            if moment::since(self.compared) > COMPARE_EVERY {
                self.compare(&mut client, &mut other)?;
            }
            thread::sleep(LOOK_EVERY);
        }
        // The last word of a run.
        self.compare(&mut client, &mut other)
    }

    fn look(&mut self, client: &mut Client) -> Result<(), Error> {
        let begun = moment::now().0;
        let rows = client.query(PEEK, &[])?;
        let seen = moment::now().0;
        let mut last = None;
        for row in &rows {
            let (lsn, line): (PgLsn, &str) = (row.get(0), row.get(1));
            if line.starts_with("BEGIN") {
                self.transaction.clear();
            } else if line.starts_with("COMMIT") {
                last = Some(lsn);
                if lsn > self.last {
                    self.write(seen, line);
                    self.last = lsn;
                }
            } else {
                self.transaction.push(line.to_owned());
            }
        }
        self.looked = begun;
        self.shared.complete(begun);
        if let Some(last) = last {
            client.execute("SELECT pg_replication_slot_advance('soak', $1)", &[&last])?;
        }
        Ok(())
    }

    /// One transaction, all of whose changes have one revision.
    fn write(&mut self, seen: u64, commit: &str) {
        let changes: Vec<Changed> = self
            .transaction
            .iter()
            .filter_map(|line| Changed::of(line))
            .collect();
        let store_ms = commit
            .split_once("(at ")
            .map(|(_, at)| unix_ms(at.trim_end_matches(')')));
        let at = |changed: &Changed| Seen {
            branch: self.branch,
            revision: changed.number("revision"),
            after: self.looked,
            seen,
            store_ms,
        };
        for changed in changes.iter().filter(|changed| changed.table == "idgen.cell") {
            let epoch = changed.number("epoch");
            if self.epoch.replace(epoch).is_some_and(|before| before < epoch) {
                self.shared.write(&Record::Epoch {
                    seen: at(changed),
                    epoch,
                });
            }
        }
        for changed in changes.iter().filter(|changed| changed.table == "idgen.lease") {
            let (class, identity, row) = changed.row();
            self.shared.write(&Record::Commit {
                seen: at(changed),
                change: RowChange::Put,
                class,
                identity,
                row,
            });
        }
    }

    /// What is there. Nobody commits yet.
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        let cell = client.query_one("SELECT epoch, revision FROM idgen.cell", &[])?;
        let unsigned = |n: usize| u64::try_from(cell.get::<_, i64>(n)).expect("not negative");
        self.epoch = Some(unsigned(0));
        if self.branch > 0 {
            let seen = self.read_now(unsigned(1));
            self.shared.write(&Record::Restored { seen });
        }
        let rows = client.query(ROWS, &[])?;
        self.read(&rows, RowChange::Found);
        Ok(())
    }

    /// Nothing is committed meanwhile: every change of a lease locks the cell first.
    fn compare(&mut self, client: &mut Client, other: &mut Client) -> Result<(), Error> {
        self.compared = moment::now();
        let mut locked = other.transaction()?;
        locked.execute("SELECT FROM idgen.cell FOR UPDATE", &[])?;
        self.look(client)?;
        let rows = locked.query(ROWS, &[])?;
        self.read(&rows, RowChange::Shown);
        locked.rollback()
    }

    /// Of what is read, not committed.
    fn read_now(&self, revision: u64) -> Seen {
        let now = moment::now().0;
        Seen {
            branch: self.branch,
            revision,
            after: now,
            seen: now,
            store_ms: None,
        }
    }

    fn read(&self, rows: &[postgres::Row], change: RowChange) {
        for row in rows {
            let unsigned = |n: usize| u64::try_from(row.get::<_, i64>(n)).expect("not negative");
            let text = |n: usize| row.get::<_, Option<String>>(n);
            let holder = text(5).map(|instance| Holder {
                instance: instance.parse().expect("a uuid"),
                token: TokenText(text(6).expect("a token")),
                boot_id: text(7).and_then(|text| text.parse().ok()).expect("a boot id"),
                expires_ms: Some(unsigned(8)),
            });
            self.shared.write(&Record::Commit {
                seen: self.read_now(unsigned(9)),
                change,
                class: ClassName::of(row.get(0)),
                identity: u16::try_from(row.get::<_, i32>(1)).expect("an identity"),
                row: Row {
                    generation: unsigned(2),
                    ceiling_ms: unsigned(3),
                    exact: row.get(4),
                    version: None,
                    holder,
                },
            });
        }
    }
}

/// A change of a row as `test_decoding` shows it: `table idgen.lease: UPDATE: kind[text]:'worker' identity[integer]:5 …`
struct Changed {
    table: String,
    columns: HashMap<String, Option<String>>,
}

impl Changed {
    fn of(line: &str) -> Option<Changed> {
        let (table, change) = line.strip_prefix("table ")?.split_once(": ")?;
        let (_, mut rest) = change.split_once(": ")?;
        let mut columns = HashMap::new();
        while let Some((name, after)) = rest.trim_start().split_once('[') {
            let (_, value) = after.split_once("]:")?;
            let (value, left) = value_of(value);
            columns.insert(name.to_owned(), value);
            rest = left;
        }
        Some(Changed {
            table: table.to_owned(),
            columns,
        })
    }

    fn text(&self, name: &str) -> Option<&str> {
        let value = self.columns.get(name);
        value
            .unwrap_or_else(|| panic!("{} has no column {name}", self.table))
            .as_deref()
    }

    fn number(&self, name: &str) -> u64 {
        let text = self.text(name).expect("not null");
        text.parse()
            .unwrap_or_else(|error| panic!("{name} {text}: {error}"))
    }

    fn row(&self) -> (ClassName, u16, Row) {
        let holder = self.text("holder").map(|instance| Holder {
            instance: instance.parse().expect("a uuid"),
            token: TokenText(format!(
                "{}/{}",
                self.number("token_epoch"),
                self.number("token_revision")
            )),
            boot_id: self
                .text("boot_id")
                .and_then(|text| text.parse().ok())
                .expect("a uuid"),
            expires_ms: self.text("expires_at").map(unix_ms),
        });
        let row = Row {
            generation: self.number("generation"),
            ceiling_ms: self.number("ceiling_ms"),
            exact: self.text("exact") == Some("true"),
            version: None,
            holder,
        };
        let identity = u16::try_from(self.number("identity")).expect("an identity");
        (ClassName::of(self.text("kind").expect("a kind")), identity, row)
    }
}

/// A value and what follows it. Quotes in a value are doubled.
fn value_of(text: &str) -> (Option<String>, &str) {
    let Some(quoted) = text.strip_prefix('\'') else {
        let (value, rest) = text.split_once(' ').unwrap_or((text, ""));
        return ((value != "null").then(|| value.to_owned()), rest);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\'' && chars.next_if(|(_, next)| *next == '\'').is_none() {
            return (Some(value), &quoted[at + 1..]);
        }
        value.push(c);
    }
    (Some(value), "")
}

/// Of a time in UTC as Postgres writes it.
fn unix_ms(text: &str) -> u64 {
    let text = text.trim_end_matches("+00");
    let time: SystemTime =
        humantime::parse_rfc3339_weak(text).unwrap_or_else(|error| panic!("time {text}: {error}"));
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("a time of this century")
}

#[test]
fn a_decoded_change_is_understood() {
    let line = "table idgen.lease: UPDATE: kind[text]:'worker' identity[integer]:5 generation[bigint]:2 \
                ceiling_ms[bigint]:1800000000000 exact[boolean]:false revision[bigint]:9 \
                holder[uuid]:'8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a11' holder_name[text]:'it''s [a]: name' \
                token_epoch[bigint]:0 token_revision[bigint]:7 boot_id[uuid]:'8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a12' \
                expires_at[timestamp with time zone]:'2026-11-29 22:00:00.5+00'";
    let changed = Changed::of(line).expect("a change");
    assert_eq!(changed.text("holder_name"), Some("it's [a]: name"));
    let (_, identity, row) = changed.row();
    assert_eq!((identity, row.generation), (5, 2));
    let holder = row.holder.expect("held");
    assert_eq!(holder.token, TokenText("0/7".to_owned()));
    assert_eq!(holder.expires_ms.map(|ms| ms % 1_000), Some(500));
    assert!(Changed::of("BEGIN 7").is_none());
}
