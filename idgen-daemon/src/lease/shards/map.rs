//! Where each shard is, for whoever asks this daemon.

use idgen_core::lease::{Place, Revision};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// As it was last known.
#[derive(Clone, Debug)]
pub struct ShardMap {
    /// The server that says so.
    pub server: String,
    /// Every shard that somebody has or is to have.
    pub places: Vec<Place>,
    /// Revision of the store that it is true for.
    pub revision: Revision,
    /// All that there was then is known.
    pub known_at: Instant,
}

impl ShardMap {
    /// How old it may be.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.known_at)
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, now: Instant) -> Value {
        json!({
            "server": self.server,
            "store_revision": self.revision.0,
            "age_ms": u64::try_from(self.age(now).as_millis()).unwrap_or(u64::MAX),
            "shards": self.places.iter().map(place_json).collect::<Vec<_>>(),
        })
    }
}

/// One shard, as everybody writes it.
pub(crate) fn place_json(place: &Place) -> Value {
    let address = Some(&place.address).filter(|address| !address.is_empty());
    json!({
        "shard": place.shard.0,
        "server": place.server,
        "address": address,
        "state": place.state.name(),
        "goes_to": place.goes_to,
        "token": place.holding.map(|holding| holding.token.to_string()),
        "since_ms": place.holding.map(|holding| holding.since.0),
        "version": place.version,
    })
}

/// Where the newest map is.
#[derive(Clone, Debug)]
pub struct ShardBoard(watch::Sender<Option<Arc<ShardMap>>>);

impl ShardBoard {
    /// Without a map.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(super) fn set(&self, map: ShardMap) {
        self.0.send_replace(Some(Arc::new(map)));
    }

    /// The newest one; `None`: the store was not read yet.
    #[must_use]
    pub fn read(&self) -> Option<Arc<ShardMap>> {
        self.0.borrow().clone()
    }

    pub(super) fn follow(&self) -> watch::Receiver<Option<Arc<ShardMap>>> {
        self.0.subscribe()
    }
}

impl Default for ShardBoard {
    fn default() -> Self {
        Self::new()
    }
}
