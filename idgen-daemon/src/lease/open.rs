//! The lease store that a configuration names.

use super::beacons::{Heard, Shown};
use super::store::HolderName;
use super::store_etcd::{EtcdBeacons, EtcdConfig, EtcdShards, EtcdStore};
use super::store_postgres::{PostgresBeacons, PostgresShards, PostgresStore, PostgresStoreConfig};
use crate::config::StoreConfig;
use idgen_core::lease::{Class, InstanceId};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Either of them. In boxes: they differ in size.
pub enum AnyStore {
    /// Tables of a coordinator database.
    Postgres(Box<PostgresStore>),
    /// Keys of an etcd.
    Etcd(Box<EtcdStore>),
}

impl AnyStore {
    /// Tells the other servers of the store what this shows, where the store itself does that.
    #[must_use]
    pub fn showing(self, shown: Shown) -> Self {
        match self {
            Self::Etcd(store) => Self::Etcd(Box::new(store.showing(shown))),
            Self::Postgres(_) => self,
        }
    }

    /// For leases of `class` with this TTL. Connects with the first request.
    #[must_use]
    pub fn new(config: &StoreConfig, class: Class, ttl_ms: u64, holder: HolderName) -> Self {
        match AnyStoreConfig::new(config, class, ttl_ms, holder) {
            AnyStoreConfig::Postgres(config) => Self::Postgres(Box::new(PostgresStore::new(*config))),
            AnyStoreConfig::Etcd(config) => Self::Etcd(Box::new(EtcdStore::new(*config))),
        }
    }
}

/// What either of them works with.
pub(super) enum AnyStoreConfig {
    Postgres(Box<PostgresStoreConfig>),
    Etcd(Box<EtcdConfig>),
}

impl AnyStoreConfig {
    pub(super) fn new(config: &StoreConfig, class: Class, ttl_ms: u64, holder: HolderName) -> Self {
        match config.clone() {
            StoreConfig::Postgres {
                url,
                connect_timeout,
                request_timeout,
            } => Self::Postgres(Box::new(PostgresStoreConfig {
                class,
                url: *url,
                connect_timeout,
                request_timeout,
                ttl_ms,
                holder,
            })),
            StoreConfig::Etcd {
                endpoints,
                prefix,
                request_timeout,
                security,
                ..
            } => Self::Etcd(Box::new(EtcdConfig {
                class,
                endpoints,
                security,
                prefix,
                request_timeout,
                ttl_ms,
                holder,
            })),
        }
    }
}

/// What tells of shards that move, of either store.
pub enum AnyShards {
    /// Tables of a coordinator database.
    Postgres(Box<PostgresShards>),
    /// Keys of an etcd.
    Etcd(Box<EtcdShards>),
}

/// Connects with the first look. `period`: how often it looks at a store that may forget to tell.
#[must_use]
pub fn shards_of(config: &StoreConfig, period: Duration) -> AnyShards {
    match config.clone() {
        StoreConfig::Postgres {
            url,
            connect_timeout,
            request_timeout,
        } => {
            let limits = (connect_timeout, request_timeout);
            AnyShards::Postgres(Box::new(PostgresShards::new(*url, limits, period)))
        }
        StoreConfig::Etcd {
            endpoints,
            prefix,
            request_timeout,
            security,
            ..
        } => AnyShards::Etcd(Box::new(EtcdShards::new(
            endpoints,
            security,
            prefix,
            request_timeout,
        ))),
    }
}

/// Listens for the clocks of the other servers of the store, until `stop`.
pub async fn listen(
    config: StoreConfig,
    instance: InstanceId,
    shown: Shown,
    heard: Heard,
    stop: CancellationToken,
) {
    match config {
        StoreConfig::Postgres {
            url,
            connect_timeout,
            request_timeout,
        } => {
            let beacons = PostgresBeacons {
                url: *url,
                connect_timeout,
                request_timeout,
                instance,
            };
            beacons.listen(shown, heard, stop).await;
        }
        StoreConfig::Etcd {
            endpoints,
            prefix,
            request_timeout,
            security,
            ..
        } => {
            let beacons = EtcdBeacons {
                endpoints,
                security,
                prefix,
                request_timeout,
                instance,
            };
            beacons.listen(shown, heard, stop).await;
        }
    }
}
