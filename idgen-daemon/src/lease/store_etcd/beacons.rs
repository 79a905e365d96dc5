//! Beacons in etcd: keys beside the leases, `PREFIX/beacon/INSTANCE/CLASS`, written by the transactions that grant and
//! renew, on their etcd lease. So they cost no raft entry of their own, and go with their daemon.
//!
//! etcd does not say when a key was written. But a watch says it at once, so what arrives is what was shown just now;
//! how late that is, our own beacons tell, which arrive in the same way.

use super::super::beacons::{Beacon, Heard, Shown};
use super::super::store::{StoreError, StoreErrorKind};
use super::link::{Effect, EtcdSecurity, Link};
use super::listen::Listening;
use etcd_client::{Event, EventType, GetOptions, KeyValue, WatchOptions};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{BootId, Class, InstanceId};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

type Result<T> = std::result::Result<T, StoreError>;

/// Between two tries to listen.
const PAUSE: Duration = Duration::from_secs(1);

/// A watch that is silent for longer may be dead; our own renewals alone come more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A beacon's value.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BeaconValue {
    boot_id: Uuid,
    wall_ms: u64,
}

impl BeaconValue {
    pub(super) fn of(beacon: Beacon) -> Self {
        Self {
            boot_id: Uuid::from_u128(beacon.boot_id.0),
            wall_ms: beacon.wall.0,
        }
    }
}

fn folder(prefix: &str) -> String {
    format!("{prefix}/beacon/")
}

/// Where the keeper of a class shows its server's clock.
pub(super) fn key(prefix: &str, instance: InstanceId, class: Class) -> String {
    format!("{}{}/{class}", folder(prefix), Uuid::from_u128(instance.0))
}

/// Whose beacon, and what it shows; `None`: it is none that we know how to read.
fn read(prefix: &str, pair: &KeyValue) -> Option<(InstanceId, Beacon)> {
    let value: BeaconValue = serde_json::from_slice(pair.value()).ok()?;
    let beacon = Beacon {
        boot_id: BootId(value.boot_id.as_u128()),
        wall: UnixMs(value.wall_ms),
    };
    Some((instance_of(prefix, pair)?, beacon))
}

fn instance_of(prefix: &str, pair: &KeyValue) -> Option<InstanceId> {
    let key = str::from_utf8(pair.key()).ok()?;
    let (instance, _) = key.strip_prefix(&folder(prefix))?.split_once('/')?;
    Some(InstanceId(instance.parse::<Uuid>().ok()?.as_u128()))
}

/// Where to listen, and who we are.
#[derive(Clone, Debug)]
pub struct EtcdBeacons {
    /// Client URLs of the members.
    pub endpoints: Vec<String>,
    /// How they are reached.
    pub security: EtcdSecurity,
    /// Prefix of all keys.
    pub prefix: String,
    /// Limit for each request.
    pub request_timeout: Duration,
    /// Our own.
    pub instance: InstanceId,
}

impl EtcdBeacons {
    /// Listens until `stop`. What goes wrong is tried again: nobody's lease depends on it.
    pub async fn listen(self, shown: Shown, heard: Heard, stop: CancellationToken) {
        let mut link = Link::new(
            self.endpoints.clone(),
            self.security.clone(),
            self.request_timeout,
            folder(&self.prefix),
        );
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                ended = self.hear(&mut link, &shown, &heard) => {
                    let Err(error) = ended else { continue };
                    tracing::debug!("listening for the clocks of peers: {error}");
                    link.rotate();
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Looks who is there, and hears them from then on, as long as the connection is the one to listen by.
    async fn hear(&self, link: &mut Link, shown: &Shown, heard: &Heard) -> Result<()> {
        let client = link.client().await?;
        let (mut kv, watch) = (client.kv_client(), client.watch_client());
        let folder = folder(&self.prefix);
        let asked = Instant::now();
        let all = kv.get(folder.clone(), Some(GetOptions::new().with_prefix()));
        let answer = link.request(Effect::None, all).await?;
        heard.late_by(asked.elapsed());
        let there = answer.kvs().iter().filter_map(|pair| read(&self.prefix, pair));
        let present = there
            .map(|(instance, beacon)| (instance, beacon.boot_id))
            .collect();
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let mut listening = Listening::begin(link, watch, folder, options).await?;
        heard.looked(Instant::now(), present);
        loop {
            let message = tokio::time::timeout(SILENCE_MAX, listening.next(link)).await;
            let silent = |_| StoreError::new(StoreErrorKind::Unreachable, "the watch is silent");
            let Some(response) = message.map_err(silent)?? else {
                return Ok(());
            };
            let now = Instant::now();
            for event in response.events() {
                self.note(event, now, shown, heard);
            }
        }
    }

    fn note(&self, event: &Event, now: Instant, shown: &Shown, heard: &Heard) {
        let Some(pair) = event.kv() else { return };
        if event.event_type() == EventType::Delete {
            if let Some(instance) = instance_of(&self.prefix, pair) {
                heard.forget(instance);
            }
            return;
        }
        let Some((instance, beacon)) = read(&self.prefix, pair) else {
            return;
        };
        if instance == self.instance
            && let Some(own) = shown.at(now)
        {
            heard.late_by(Duration::from_millis(own.wall.0.saturating_sub(beacon.wall.0)));
        }
        heard.hear(instance, beacon, now);
    }
}
