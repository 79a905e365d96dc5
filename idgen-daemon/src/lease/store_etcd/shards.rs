//! Shards that move, in etcd: `PREFIX/map/assigned/ID` says who is to have a shard (never deleted), and
//! `PREFIX/map/server/INSTANCE` shows a server and what it has, on an etcd lease.
//!
//! One watch over both tells of every change, in the order of the store. A server hears what it has shown itself the same
//! way, and so knows that its watch is alive and up to then.

use super::super::store_shards::{AssignmentStore, Reassignment, ShardFeed, ShardLook};
use super::link::{Effect, EtcdSecurity, Link};
use super::listen::Listening;
use super::named::{below, is_as_seen};
use super::value::{unsigned, value};
use super::{EtcdStore, Result, encode, not_as_expected};
use etcd_client::{Event, EventType, GetOptions, KeyValue, PutOptions, Txn, TxnOp, WatchOptions};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{
    Assigned, Assignment, BootId, Epoch, Holding, Identity, InstanceId, Presence, Revision, Token,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// `map/assigned/ID`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AssignmentValue {
    server: String,
    at_ms: u64,
    by: String,
    reason: String,
    version: u64,
}

/// `map/server/INSTANCE`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServerValue {
    server: String,
    boot_id: Option<Uuid>,
    address: String,
    room: usize,
    lasts_ms: u64,
    at_ms: u64,
    /// Shard, epoch and revision of the token, since when.
    holds: Vec<(u16, u64, u64, u64)>,
}

fn folder(prefix: &str) -> String {
    format!("{prefix}/map/")
}

fn record_folder(prefix: &str) -> String {
    format!("{prefix}/map/assigned/")
}

fn server_folder(prefix: &str) -> String {
    format!("{prefix}/map/server/")
}

fn server_key(prefix: &str, instance: InstanceId) -> String {
    format!("{}{}", server_folder(prefix), Uuid::from_u128(instance.0))
}

fn record(value: AssignmentValue) -> Assignment {
    Assignment {
        server: value.server,
        at: UnixMs(value.at_ms),
        by: value.by,
        reason: value.reason,
        version: value.version,
    }
}

fn presence(instance: InstanceId, value: ServerValue) -> Presence {
    let holds = value.holds.into_iter().map(|(shard, epoch, revision, since_ms)| {
        let token = Token {
            epoch: Epoch(epoch),
            revision: Revision(revision),
        };
        let since = UnixMs(since_ms);
        (Identity(shard), Holding { token, since })
    });
    Presence {
        instance,
        server: value.server,
        boot_id: value.boot_id.map(|boot_id| BootId(boot_id.as_u128())),
        address: value.address,
        room: value.room,
        lasts_ms: value.lasts_ms,
        holds: holds.collect(),
        at: UnixMs(value.at_ms),
    }
}

/// Whose key it is; `None`: it is none that we know how to read.
enum Key {
    Record(Identity),
    Server(InstanceId),
}

fn key_of(prefix: &str, pair: &KeyValue) -> Option<Key> {
    let key = str::from_utf8(pair.key()).ok()?;
    if let Some(shard) = key.strip_prefix(&record_folder(prefix)) {
        return Some(Key::Record(Identity(shard.parse().ok()?)));
    }
    let instance = key.strip_prefix(&server_folder(prefix))?;
    Some(Key::Server(InstanceId(instance.parse::<Uuid>().ok()?.as_u128())))
}

impl AssignmentStore for EtcdStore {
    async fn assignments(&mut self) -> Result<BTreeMap<Identity, Assignment>> {
        let (_, _, [found]) = self
            .look_beside_cell([below(record_folder(&self.config.prefix))])
            .await?;
        let mut records = BTreeMap::new();
        for pair in found.kvs() {
            if let Some(Key::Record(shard)) = key_of(&self.config.prefix, pair) {
                records.insert(shard, record(value(pair)?));
            }
        }
        Ok(records)
    }

    async fn assign(&mut self, records: &[Reassignment]) -> Result<()> {
        let folder = record_folder(&self.config.prefix);
        let (_, _, [found]) = self.look_beside_cell([below(folder.clone())]).await?;
        let mut seen: BTreeMap<Identity, (u64, i64)> = BTreeMap::new();
        for pair in found.kvs() {
            if let Some(Key::Record(shard)) = key_of(&self.config.prefix, pair) {
                let AssignmentValue { version, .. } = value(pair)?;
                seen.insert(shard, (version, pair.mod_revision()));
            }
        }
        let (mut guards, mut puts) = (vec![self.cell_unchanged()], Vec::new());
        for (shard, version, record) in records {
            let (there, revision) = seen.get(shard).copied().unwrap_or_default();
            if there != *version {
                return Err(not_as_expected());
            }
            let key = format!("{folder}{shard}");
            let value = AssignmentValue {
                server: record.server.clone(),
                at_ms: record.at.0,
                by: record.by.clone(),
                reason: record.reason.clone(),
                version: record.version,
            };
            guards.push(is_as_seen(key.clone(), revision));
            puts.push(TxnOp::put(key, encode(&value)?, None));
        }
        self.commit_planned(Txn::new().when(guards).and_then(puts)).await
    }
}

/// Follows the folder.
pub struct EtcdShards {
    prefix: String,
    link: Link,
    /// `None`: the next look begins one.
    watch: Option<Listening>,
    assigned: Assigned,
    revision: Revision,
    known_at: Instant,
    /// What was shown last, and when that was sent.
    shown: Option<(InstanceId, UnixMs, Instant)>,
    heard_own: Option<UnixMs>,
    lease_id: Option<i64>,
}

impl EtcdShards {
    /// Connects at the first look.
    pub fn new(endpoints: Vec<String>, security: EtcdSecurity, prefix: String, limit: Duration) -> Self {
        Self {
            link: Link::new(endpoints, security, limit, folder(&prefix)),
            prefix,
            watch: None,
            assigned: Assigned::default(),
            revision: Revision(0),
            known_at: Instant::now(),
            shown: None,
            heard_own: None,
            lease_id: None,
        }
    }

    /// Looks at everything, and watches from there.
    async fn begin(&mut self) -> Result<()> {
        let client = self.link.client().await?;
        let (mut kv, watch) = (client.kv_client(), client.watch_client());
        let folder = folder(&self.prefix);
        let asked = Instant::now();
        let all = kv.get(folder.clone(), Some(GetOptions::new().with_prefix()));
        let answer = self.link.request(Effect::None, all).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let listening = Listening::begin(&mut self.link, watch, folder, options).await?;
        self.assigned = Assigned::default();
        for pair in answer.kvs() {
            self.note(pair);
        }
        (self.revision, self.known_at) = (unsigned(revision), asked);
        self.watch = Some(listening);
        Ok(())
    }

    /// A key that was put. What cannot be read was written by a later release, and is left alone.
    fn note(&mut self, pair: &KeyValue) {
        match key_of(&self.prefix, pair) {
            Some(Key::Record(shard)) => {
                if let Ok(value) = value(pair) {
                    self.assigned.records.insert(shard, record(value));
                }
            }
            Some(Key::Server(instance)) => {
                if let Ok(value) = value(pair) {
                    self.note_server(presence(instance, value));
                }
            }
            None => {}
        }
    }

    fn note_server(&mut self, presence: Presence) {
        if let Some((instance, at, sent)) = self.shown
            && (instance, at) == (presence.instance, presence.at)
        {
            self.known_at = self.known_at.max(sent);
            self.heard_own = Some(at);
        }
        self.assigned.servers.insert(presence.instance, presence);
    }

    fn forget(&mut self, pair: &KeyValue) {
        match key_of(&self.prefix, pair) {
            Some(Key::Record(shard)) => drop(self.assigned.records.remove(&shard)),
            Some(Key::Server(instance)) => drop(self.assigned.servers.remove(&instance)),
            None => {}
        }
    }

    fn follow(&mut self, event: &Event) {
        let Some(pair) = event.kv() else { return };
        if event.event_type() == EventType::Delete {
            self.forget(pair);
        } else {
            self.note(pair);
        }
    }

    async fn put_server(&mut self, key: String, value: Vec<u8>, ttl_ms: u64) -> Result<()> {
        let client = self.link.client().await?;
        let (mut leases, mut kv) = (client.lease_client(), client.kv_client());
        let ttl_s = i64::try_from(ttl_ms.div_ceil(1_000)).unwrap_or(i64::MAX);
        let lease = self.link.request(Effect::None, leases.grant(ttl_s, None)).await?;
        let on_lease = PutOptions::new().with_lease(lease.id());
        let put = kv.put(key, value, Some(on_lease));
        self.link.request(Effect::None, put).await?;
        // The key has left it, so it ends by itself; to revoke it only keeps etcd tidy.
        if let Some(old) = self.lease_id.replace(lease.id()) {
            self.link.request(Effect::None, leases.revoke(old)).await?;
        }
        Ok(())
    }
}

impl ShardFeed for EtcdShards {
    async fn look(&mut self) -> Result<ShardLook> {
        if self.watch.is_none() {
            self.begin().await?;
        }
        Ok(ShardLook {
            assigned: self.assigned.clone(),
            revision: self.revision,
            known_at: self.known_at,
        })
    }

    async fn heard(&mut self) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let response = match watch.next(&mut self.link).await {
            Ok(Some(response)) => response,
            Ok(None) => {
                // The next look begins one by the new connection.
                self.watch = None;
                return Ok(());
            }
            Err(error) => {
                self.start_over();
                return Err(error);
            }
        };
        for event in response.events() {
            self.follow(event);
        }
        let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
        self.revision = self.revision.max(unsigned(revision));
        Ok(())
    }

    async fn show(&mut self, presence: &Presence, ttl_ms: u64, _news: bool) -> Result<()> {
        let holds = presence.holds.iter().map(|(shard, holding)| {
            let Token { epoch, revision } = holding.token;
            (shard.0, epoch.0, revision.0, holding.since.0)
        });
        let value = ServerValue {
            server: presence.server.clone(),
            boot_id: presence.boot_id.map(|boot_id| Uuid::from_u128(boot_id.0)),
            address: presence.address.clone(),
            room: presence.room,
            lasts_ms: presence.lasts_ms,
            at_ms: presence.at.0,
            holds: holds.collect(),
        };
        self.shown = Some((presence.instance, presence.at, Instant::now()));
        let key = server_key(&self.prefix, presence.instance);
        self.put_server(key, encode(&value)?, ttl_ms).await
    }

    async fn withdraw(&mut self, instance: InstanceId) -> Result<()> {
        let mut kv = self.link.client().await?.kv_client();
        let key = server_key(&self.prefix, instance);
        self.link.request(Effect::None, kv.delete(key, None)).await?;
        Ok(())
    }

    fn heard_own(&self) -> Option<UnixMs> {
        self.heard_own
    }

    fn start_over(&mut self) {
        self.watch = None;
        self.link.rotate();
    }
}
