//! The lease store that a configuration names.

use super::store::HolderName;
use super::store_etcd::{EtcdConfig, EtcdStore};
use super::store_postgres::{PostgresStore, PostgresStoreConfig};
use crate::config::StoreConfig;
use idgen_core::lease::Class;

/// Either of them. In boxes: they differ in size.
pub enum AnyStore {
    /// Tables of a coordinator database.
    Postgres(Box<PostgresStore>),
    /// Keys of an etcd.
    Etcd(Box<EtcdStore>),
}

impl AnyStore {
    /// For leases of `class` with this TTL. Connects with the first request.
    #[must_use]
    pub fn new(config: &StoreConfig, class: Class, ttl_ms: u64, holder: HolderName) -> Self {
        match config.clone() {
            StoreConfig::Postgres {
                url,
                connect_timeout,
                request_timeout,
            } => Self::Postgres(Box::new(PostgresStore::new(PostgresStoreConfig {
                class,
                url: *url,
                connect_timeout,
                request_timeout,
                ttl_ms,
                holder,
            }))),
            StoreConfig::Etcd {
                endpoints,
                prefix,
                request_timeout,
                security,
            } => Self::Etcd(Box::new(EtcdStore::new(EtcdConfig {
                class,
                endpoints,
                security,
                prefix,
                request_timeout,
                ttl_ms,
                holder,
            }))),
        }
    }
}
