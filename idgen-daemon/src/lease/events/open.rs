//! The follower of a configuration.

use super::super::open::AnyStoreConfig;
use super::super::store::{HolderName, StoreError};
use super::super::store_etcd::{EtcdLog, EtcdStore};
use super::super::store_postgres::{PostgresLog, PostgresStore};
use super::{EventLog, Follower, FollowerConfig, Present, TableSink};
use crate::config::StoreConfig;
use crate::error::{Error, Result};
use crate::metrics::EventMetrics;
use crate::postgres::PostgresUrl;
use idgen_core::lease::events::Log;
use idgen_core::lease::named::lease_timing;
use idgen_core::lease::{Class, InstanceId, Timing};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Of the lease that makes one follower the only one: so long a sink has none when that dies.
const TTL_MS: u64 = 15_000;
/// The log of an embedded store is kept short also when nobody follows it.
const KEEP_SHORT_EVERY: Duration = Duration::from_secs(3_600);

/// Whether the log of the store is followed, and where the trail is written.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// This daemon follows, or stands by.
    pub enabled: bool,
    /// The database of the trail.
    pub url: Box<PostgresUrl>,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for each request.
    pub request_timeout: Duration,
    /// Events are kept so long.
    pub keep_days: u32,
}

/// The log of either store, to be looked at.
pub struct AnyLog(Either);

enum Either {
    Postgres(Box<PostgresLog>),
    Etcd(Box<EtcdLog>),
}

impl AnyLog {
    /// Connects with the first request.
    #[must_use]
    pub fn new(store: &StoreConfig) -> Self {
        let nobody = HolderName {
            instance: InstanceId(0),
            name: "idgenctl".to_owned(),
        };
        Self(match AnyStoreConfig::new(store, Class::Worker, TTL_MS, nobody) {
            AnyStoreConfig::Postgres(store) => {
                Either::Postgres(Box::new(PostgresLog::new(PostgresStore::new(*store))))
            }
            AnyStoreConfig::Etcd(store) => Either::Etcd(Box::new(EtcdLog::new(&store))),
        })
    }

    /// What is in it.
    #[must_use]
    pub fn log(&self) -> Log {
        match &self.0 {
            Either::Postgres(_) => PostgresLog::LOG,
            Either::Etcd(_) => EtcdLog::LOG,
        }
    }

    /// The keys as they are, or were at a position.
    pub async fn present(&mut self, at: Option<u64>) -> std::result::Result<Present, StoreError> {
        match &mut self.0 {
            Either::Postgres(log) => log.present(at).await,
            Either::Etcd(log) => log.present(at).await,
        }
    }
}

/// Follows until `stop`.
pub async fn events(
    store: StoreConfig,
    config: EventsConfig,
    holder: HolderName,
    metrics: EventMetrics,
    stop: CancellationToken,
) -> Result<()> {
    let timing =
        Timing::new(lease_timing(Some(TTL_MS))).map_err(|error| Error::runtime(error.to_string()))?;
    let sink = TableSink::new(*config.url, config.connect_timeout, config.request_timeout);
    let follower = FollowerConfig {
        holder: holder.clone(),
        timing,
        keep_days: config.keep_days,
        metrics,
    };
    // Of names the class of a store says nothing.
    match AnyStoreConfig::new(&store, Class::Worker, TTL_MS, holder) {
        AnyStoreConfig::Postgres(store) => {
            let log = PostgresLog::new(PostgresStore::new(*store.clone()));
            let names = move || PostgresStore::new(*store.clone());
            Follower::new(follower, log, names, sink).run(stop).await
        }
        AnyStoreConfig::Etcd(store) => {
            let log = EtcdLog::new(&store);
            let names = move || EtcdStore::new(*store.clone());
            Follower::new(follower, log, names, sink).run(stop).await
        }
    }
}

/// Where this daemon does not follow: the log of an embedded store would grow for ever if none of them did.
pub async fn keep_short(store: StoreConfig, holder: HolderName, stop: CancellationToken) -> Result<()> {
    let AnyStoreConfig::Postgres(store) = AnyStoreConfig::new(&store, Class::Worker, TTL_MS, holder) else {
        stop.cancelled().await;
        return Ok(());
    };
    let mut log = PostgresLog::new(PostgresStore::new(*store));
    while !stop.is_cancelled() {
        if let Err(error) = log.prune().await {
            tracing::debug!("lease events: {error}");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(KEEP_SHORT_EVERY) => {}
        }
    }
    Ok(())
}
