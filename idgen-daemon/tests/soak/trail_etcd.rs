//! The commits of an etcd store, by a watch that is resumed where it broke off.
//!
//! Beside the watch, looks ask the quorum for its revision: what is above it was not committed when the look began,
//! and once the watch has passed it, everything is written down that was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, ConnectOptions, Error, EventType, GetOptions, KeyValue, WatchOptions, WatchResponse, WatchStream,
};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::arena::FILLER;
use crate::files::{ClassName, Holder, Record, Row, RowChange, Seen, TokenText};
use crate::moment;
use crate::trail::{Shared, Trail};

/// Of the daemons, who are not told another one.
pub const PREFIX: &str = "/pg_idgen/default";
const LOOK_EVERY: Duration = Duration::from_millis(40);
const COMPARE_EVERY: Duration = Duration::from_secs(4);
/// Enough to find one that is older than any commit that the watch still has to bring.
const LOOKS_KEPT: usize = 5_000;
const LIMIT: Duration = Duration::from_secs(1);

/// Begins before the first daemon does. When the store is replaced by an older one, the record goes on with what is
/// found there.
pub fn start(endpoints: Vec<String>, dir: &Path) -> Trail {
    Trail::start(dir, move |shared| {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(Recorder::new(endpoints, shared).run());
    })
}

/// An identity as its two keys show it.
#[derive(Clone, Default)]
struct Keys {
    row: Row,
    exists: bool,
}

struct Recorder {
    endpoints: Vec<String>,
    shared: Arc<Shared>,
    /// Everything up to this revision is written down.
    revision: i64,
    /// What looks found: when each began, and the revision it found. The last ones.
    looks: Vec<(u64, i64)>,
    identities: BTreeMap<(bool, u16), Keys>,
    epoch: Option<u64>,
    compared: idgen_core::history::Moment,
}

type Result<T> = std::result::Result<T, Error>;

impl Recorder {
    fn new(endpoints: Vec<String>, shared: Arc<Shared>) -> Recorder {
        Recorder {
            endpoints,
            shared,
            revision: 0,
            looks: Vec::new(),
            identities: BTreeMap::new(),
            epoch: None,
            compared: moment::now(),
        }
    }

    async fn run(&mut self) {
        for endpoint in self.endpoints.clone().iter().cycle() {
            if self.shared.stopped() {
                return;
            }
            // Until the member goes away, or stands still.
            let _gone = self.follow(endpoint).await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn follow(&mut self, endpoint: &str) -> Result<()> {
        let options = ConnectOptions::new()
            .with_connect_timeout(LIMIT)
            .with_timeout(LIMIT)
            .with_require_leader(true);
        let mut client = Client::connect([endpoint], Some(options)).await?;
        self.look(&mut client).await?;
        let from = WatchOptions::new()
            .with_prefix()
            .with_start_revision(self.revision + 1);
        let watching = limited(client.watch(PREFIX, Some(from))).await?;
        let mut watch = watching;
        loop {
            self.look(&mut client).await?;
            self.take_in_all(&mut watch).await?;
            if self.shared.stopped() {
                return self.compare(&mut client).await;
            }
            if moment::since(self.compared) > COMPARE_EVERY {
                self.compare(&mut client).await?;
            }
        }
    }

    /// Asks the quorum for its revision.
    async fn look(&mut self, client: &mut Client) -> Result<()> {
        let begun = moment::now().0;
        let options = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
        let answer = limited(client.get(PREFIX, Some(options))).await?;
        let header = answer
            .header()
            .ok_or(Error::InvalidArgs("no header".to_owned()))?;
        if self.revision == 0 || self.is_replaced(header.revision()) {
            self.begin(client).await?;
        }
        self.looks.push((begun, header.revision()));
        if self.looks.len() > 2 * LOOKS_KEPT {
            self.looks.drain(..LOOKS_KEPT);
        }
        if self.revision >= header.revision() {
            self.shared.complete(begun);
        }
        Ok(())
    }

    /// The old members may answer once more before they are killed; a restored one shows an older revision.
    fn is_replaced(&self, revision: i64) -> bool {
        let older = revision < self.revision;
        older && self.shared.replace(false)
    }

    /// Writes down what is there.
    async fn begin(&mut self, client: &mut Client) -> Result<()> {
        let first = self.revision == 0;
        let answer = limited(client.get(PREFIX, Some(GetOptions::new().with_prefix()))).await?;
        self.revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        self.looks.clear();
        self.identities.clear();
        let now = moment::now().0;
        if !first {
            self.shared.write(&Record::Restored { seen: self.seen(now) });
        }
        for pair in answer.kvs() {
            self.put(pair);
        }
        let found: Vec<(bool, u16)> = self.identities.keys().copied().collect();
        for identity in found {
            self.write(identity, RowChange::Found, now);
        }
        Ok(())
    }

    /// What the watch has, and what it brings until the next look is due.
    async fn take_in_all(&mut self, watch: &mut WatchStream) -> Result<()> {
        let until = tokio::time::Instant::now() + LOOK_EVERY;
        loop {
            match tokio::time::timeout_at(until, watch.message()).await {
                Err(_) => break,
                Ok(Ok(Some(answer))) => self.take_in(&answer)?,
                Ok(Ok(None)) => return Err(Error::WatchError("the watch has ended".to_owned())),
                Ok(Err(error)) => return Err(error),
            }
        }
        let complete = self
            .looks
            .iter()
            .rev()
            .find(|(_, revision)| *revision <= self.revision);
        if let Some((begun, _)) = complete {
            self.shared.complete(*begun);
        }
        Ok(())
    }

    fn take_in(&mut self, answer: &WatchResponse) -> Result<()> {
        assert_eq!(answer.compact_revision(), 0, "somebody compacts the store");
        if answer.canceled() {
            return Err(Error::WatchError(answer.cancel_reason().to_owned()));
        }
        let now = moment::now().0;
        let mut pairs = answer
            .events()
            .iter()
            .filter_map(|event| Some((event.event_type(), event.kv()?)))
            .peekable();
        while let Some((_, first)) = pairs.peek() {
            let revision = first.mod_revision();
            // Keys of one identity need not be neighbours.
            let mut changed = BTreeSet::new();
            let mut epoch = None;
            while let Some((what, pair)) = pairs.next_if(|(_, pair)| pair.mod_revision() == revision) {
                match what {
                    EventType::Put if pair.key().ends_with(b"/cell") => epoch = self.raised_epoch(pair),
                    EventType::Put => changed.extend(self.put(pair)),
                    EventType::Delete => changed.extend(self.delete(pair)),
                }
            }
            self.revision = revision;
            if let Some(epoch) = epoch {
                let seen = self.seen(now);
                self.shared.write(&Record::Epoch { seen, epoch });
            }
            for identity in changed {
                self.write(identity, RowChange::Put, now);
            }
        }
        Ok(())
    }

    fn seen(&self, now: u64) -> Seen {
        let before = self
            .looks
            .iter()
            .rev()
            .find(|(_, revision)| *revision < self.revision);
        Seen {
            branch: 0,
            revision: u64::try_from(self.revision).expect("not negative"),
            after: before.map_or(0, |(begun, _)| *begun),
            seen: now,
            store_ms: None,
        }
    }

    fn write(&self, identity: (bool, u16), change: RowChange, now: u64) {
        let Some(keys) = self.identities.get(&identity).filter(|keys| keys.exists) else {
            return;
        };
        if keys
            .row
            .holder
            .as_ref()
            .is_some_and(|holder| holder.instance == FILLER)
        {
            return;
        }
        self.shared.write(&Record::Commit {
            seen: self.seen(now),
            change,
            class: if identity.0 {
                ClassName::Shard
            } else {
                ClassName::Worker
            },
            identity: identity.1,
            row: keys.row.clone(),
        });
    }

    fn raised_epoch(&mut self, pair: &KeyValue) -> Option<u64> {
        let epoch = json(pair)["epoch"].as_u64().expect("an epoch");
        let before = self.epoch.replace(epoch);
        before.is_some_and(|before| before < epoch).then_some(epoch)
    }

    fn put(&mut self, pair: &KeyValue) -> Option<(bool, u16)> {
        if pair.key().ends_with(b"/cell") {
            self.raised_epoch(pair);
            return None;
        }
        let (identity, part) = part(pair)?;
        let value = json(pair);
        let keys = self.identities.entry(identity).or_default();
        let text = |name: &str| {
            value[name]
                .as_str()
                .unwrap_or_else(|| panic!("{name} in {value}"))
        };
        if part == "hw" {
            let holder = keys.row.holder.take();
            keys.exists = true;
            keys.row = Row {
                generation: value["generation"].as_u64().expect("a generation"),
                ceiling_ms: value["ceiling_ms"].as_u64().expect("a ceiling"),
                exact: value["exact"].as_bool().expect("a bool"),
                version: u64::try_from(pair.version()).ok(),
                holder,
            };
        } else if part == "holder" {
            keys.row.holder = Some(Holder {
                instance: text("holder").parse().expect("a uuid"),
                token: TokenText(format!("{}/{}", value["token_epoch"], pair.create_revision())),
                boot_id: text("boot_id").parse().expect("a uuid"),
                expires_ms: None,
            });
        }
        Some(identity)
    }

    fn delete(&mut self, pair: &KeyValue) -> Option<(bool, u16)> {
        let (identity, part) = part(pair)?;
        assert_ne!(
            part,
            "hw",
            "somebody deleted {}",
            String::from_utf8_lossy(pair.key())
        );
        let keys = self.identities.entry(identity).or_default();
        keys.row.holder = None;
        Some(identity)
    }

    /// What the store shows at the very revision that is written down.
    async fn compare(&mut self, client: &mut Client) -> Result<()> {
        self.compared = moment::now();
        let options = GetOptions::new().with_prefix().with_revision(self.revision);
        let answer = limited(client.get(PREFIX, Some(options))).await?;
        let mut shown = Recorder::new(Vec::new(), self.shared.clone());
        shown.revision = self.revision;
        for pair in answer.kvs() {
            shown.put(pair);
        }
        let now = moment::now().0;
        for identity in shown.identities.keys().copied() {
            shown.write(identity, RowChange::Shown, now);
        }
        Ok(())
    }
}

async fn limited<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(LIMIT, request).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::WatchError("no answer in time".to_owned())),
    }
}

/// Is it a shard, its number, and what the key is of it.
fn part(pair: &KeyValue) -> Option<((bool, u16), String)> {
    let key = String::from_utf8_lossy(pair.key()).into_owned();
    let mut parts = key.strip_prefix(PREFIX)?.strip_prefix('/')?.split('/');
    let is_shard = match parts.next()? {
        "w" => false,
        "s" => true,
        _ => return None,
    };
    let identity = parts.next()?.parse().ok()?;
    Some(((is_shard, identity), parts.next()?.to_owned()))
}

fn json(pair: &KeyValue) -> Value {
    serde_json::from_slice(pair.value()).expect("JSON in the store")
}
