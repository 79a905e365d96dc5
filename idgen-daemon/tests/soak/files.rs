//! Control events as JSON lines, and the whole record read back from its directory.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use idgen_core::clock::{BootMs, UnixMs};
use idgen_core::history::{
    Branch, Change, Commit, Deadline, Fault, Fence, HeldBy, History, Install, Moment, RowState, Times,
};
use idgen_core::lease::{BootId, Class, Epoch, Identity, InstanceId, Revision, Token};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::mint;
use crate::plan::StoreKind;

/// One line. Times are `CLOCK_BOOTTIME` in us, those of leases in ms.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    Run {
        store: StoreKind,
        seed: u64,
        servers: u8,
        ttl_ms: u64,
        period_ms: u64,
        shard_ttl_ms: u64,
    },
    Commit {
        #[serde(flatten)]
        seen: Seen,
        change: RowChange,
        class: ClassName,
        identity: u16,
        #[serde(flatten)]
        row: Row,
    },
    Epoch {
        #[serde(flatten)]
        seen: Seen,
        epoch: u64,
    },
    Restored {
        #[serde(flatten)]
        seen: Seen,
    },
    Deadline {
        at: u64,
        class: ClassName,
        token: TokenText,
        deadline_ms: u64,
    },
    Install {
        at: u64,
        boot_id: Uuid,
        class: ClassName,
        identity: u16,
        token: TokenText,
        floor_ms: u64,
    },
    Fence {
        at: u64,
        boot_id: Uuid,
        class: ClassName,
        identity: u16,
        token: TokenText,
        last_ms: u64,
    },
    Fault {
        name: String,
        begun: u64,
        ended: u64,
    },
    /// After the fault before it.
    Late {
        ms: u64,
    },
}

/// Where and when a commit was made, and its number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// How many standbys of the store had been promoted before.
    #[serde(default)]
    pub branch: u32,
    pub revision: u64,
    pub after: u64,
    pub seen: u64,
    pub store_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowChange {
    Put,
    Found,
    Shown,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassName {
    Worker,
    Shard,
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Class {
        match name {
            ClassName::Worker => Class::Worker,
            ClassName::Shard => Class::Shard,
        }
    }
}

impl ClassName {
    pub fn of(text: &str) -> ClassName {
        match text {
            "worker" => ClassName::Worker,
            "shard" => ClassName::Shard,
            other => panic!("no class is called {other}"),
        }
    }
}

/// As logs show it: epoch/revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenText(pub String);

impl TokenText {
    fn token(&self) -> Token {
        let (epoch, revision) = self.0.split_once('/').expect("epoch/revision");
        Token {
            epoch: Epoch(epoch.parse().expect("an epoch")),
            revision: Revision(revision.parse().expect("a revision")),
        }
    }
}

/// An identity in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub generation: u64,
    pub ceiling_ms: u64,
    pub exact: bool,
    pub version: Option<u64>,
    pub holder: Option<Holder>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub instance: Uuid,
    pub token: TokenText,
    pub boot_id: Uuid,
    pub expires_ms: Option<u64>,
}

impl Row {
    fn state(&self) -> RowState {
        RowState {
            generation: self.generation,
            ceiling: UnixMs(self.ceiling_ms),
            exact: self.exact,
            version: self.version,
            holder: self.holder.as_ref().map(|holder| HeldBy {
                instance: InstanceId(holder.instance.as_u128()),
                token: holder.token.token(),
                boot_id: BootId(holder.boot_id.as_u128()),
                expires_at: holder.expires_ms.map(UnixMs),
            }),
        }
    }
}

impl Seen {
    fn commit(self, change: Change) -> Commit {
        Commit {
            branch: Branch(self.branch),
            revision: Revision(self.revision),
            after: Moment(self.after),
            seen: Moment(self.seen),
            store_time: self.store_ms.map(UnixMs),
            change,
        }
    }
}

impl Record {
    /// Puts it where it belongs.
    fn into_history(self, history: &mut History) {
        match self {
            Record::Run {
                servers,
                ttl_ms,
                period_ms,
                shard_ttl_ms,
                ..
            } => {
                history.servers = servers;
                history.times = Times {
                    ttl_ms,
                    period_ms,
                    shard_ttl_ms,
                };
            }
            Record::Commit {
                seen,
                change,
                class,
                identity,
                row,
            } => {
                let (class, identity, row) = (class.into(), Identity(identity), row.state());
                history.trail.push(seen.commit(match change {
                    RowChange::Put => Change::Row(class, identity, row),
                    RowChange::Found => Change::Found(class, identity, row),
                    RowChange::Shown => Change::Shown(class, identity, row),
                }));
            }
            Record::Epoch { seen, epoch } => history.trail.push(seen.commit(Change::Epoch(Epoch(epoch)))),
            Record::Restored { seen } => history.trail.push(seen.commit(Change::Restored)),
            Record::Deadline {
                at,
                class,
                token,
                deadline_ms,
            } => history.deadlines.push(Deadline {
                at: Moment(at),
                class: class.into(),
                token: token.token(),
                deadline: BootMs(deadline_ms),
            }),
            Record::Fault { name, begun, ended } => history.faults.push(Fault {
                name,
                begun: Moment(begun),
                ended: Moment(ended),
                late_ms: 0,
            }),
            Record::Late { ms } => {
                let fault = history.faults.last_mut();
                fault.expect("a fault before what was late after it").late_ms = ms;
            }
            told => told.told_to_a_server(history),
        }
    }

    fn told_to_a_server(self, history: &mut History) {
        match self {
            Record::Install {
                at,
                boot_id,
                class,
                identity,
                token,
                floor_ms,
            } => history.installs.push(Install {
                at: Moment(at),
                boot_id: BootId(boot_id.as_u128()),
                class: class.into(),
                identity: Identity(identity),
                token: token.token(),
                floor: UnixMs(floor_ms),
            }),
            Record::Fence {
                at,
                boot_id,
                class,
                identity,
                token,
                last_ms,
            } => history.fences.push(Fence {
                at: Moment(at),
                boot_id: BootId(boot_id.as_u128()),
                class: class.into(),
                identity: Identity(identity),
                token: token.token(),
                last: UnixMs(last_ms),
            }),
            other => panic!("told to nobody: {other:?}"),
        }
    }
}

/// A file that grows by lines.
pub struct Lines {
    file: Mutex<File>,
}

impl Lines {
    pub fn append(path: &Path) -> Lines {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Lines {
            file: Mutex::new(file.expect("open a file of events")),
        }
    }

    pub fn write(&self, record: &Record) {
        let mut line = serde_json::to_string(record).expect("JSON");
        line.push('\n');
        let mut file = self.file.lock().expect("nobody panics while writing");
        file.write_all(line.as_bytes()).expect("write an event");
    }
}

pub const EVENTS: &str = "events.jsonl";
pub const TRAIL: &str = "trail.jsonl";
pub const TOLD: &str = "told.jsonl";

/// Everything in the directory of a run.
pub fn read(dir: &Path) -> History {
    let mut history = History::default();
    for name in [EVENTS, TRAIL, TOLD] {
        let file = File::open(dir.join(name)).unwrap_or_else(|error| panic!("open {name}: {error}"));
        for line in BufReader::new(file).lines() {
            let line = line.expect("read an event");
            let record: Record =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            record.into_history(&mut history);
        }
    }
    let mut mints: Vec<PathBuf> = fs::read_dir(dir)
        .expect("read the directory of the run")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    mints.sort();
    for path in &mints {
        mint::read(path, &mut history);
    }
    history
}
