//! What the commands on a lease store share.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, HolderName, StoreError, StoreErrorKind};
use crate::postgres::{Session, describe, read_anchors};
use idgen_core::clock::UnixMs;
use idgen_core::lease::timing::TTL_MS_MIN;
use idgen_core::lease::{Anchor, Class, InstanceId, Timing};
use std::time::{Duration, UNIX_EPOCH};
use uuid::Uuid;

/// Nothing is leased through it, so TTL and holder are of no consequence.
pub(super) fn open(config: &Config) -> AnyStore {
    open_as(config, "idgenctl", TTL_MS_MIN).0
}

/// For named leases with this TTL of a holder with this name, and the number that it is told by.
pub(super) fn open_as(config: &Config, name: &str, ttl_ms: u64) -> (AnyStore, InstanceId) {
    let instance = InstanceId(Uuid::new_v4().as_u128());
    let holder = HolderName {
        instance,
        name: name.to_owned(),
    };
    (
        AnyStore::new(&config.store, Class::Worker, ttl_ms, holder),
        instance,
    )
}

/// Of this server's leases; of the defaults where it has none of the class.
pub(super) fn timing(config: &Config, class: Class) -> Result<Timing> {
    let configured = config.classes.iter().find(|leases| leases.class == class);
    match configured {
        Some(leases) => Ok(leases.timing),
        None => Timing::new(class.timing(None)).map_err(|error| Error::runtime(error.to_string())),
    }
}

/// What the server of this configuration remembers. It may know of a later epoch than the store, so the epoch
/// is neither shown nor changed without it.
pub(super) async fn anchors_of(config: &Config) -> Result<Vec<Anchor>> {
    read_anchors(&server_of(config).await?, None).await
}

/// A session of that server.
pub(super) async fn server_of(config: &Config) -> Result<Session> {
    let (url, limit) = (&config.postgres.url, config.postgres.connect_timeout);
    Session::open(url, "idgenctl", limit, limit)
        .await
        .map_err(|error| {
            let error = Error::runtime(format!("read the anchors of {}: {error}", describe(url)));
            error.with_hint("use the configuration of a server of the cell that runs")
        })
}

pub(super) fn of_store(error: StoreError) -> Error {
    match error.kind {
        StoreErrorKind::Sealed | StoreErrorKind::Denied => Error::refused(format!("lease store: {error}")),
        _ => Error::retry(format!("lease store: {error}")),
    }
}

pub(super) fn rfc3339(at: UnixMs) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(at.0)).to_string()
}

/// A name or a reason was written by somebody else; it must not move the cursor of whoever looks.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Who asks, for the record.
pub(super) fn operator(config: &Config) -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok())
        .unwrap_or_else(|| "somebody".to_owned());
    format!("{user} at {}", config.name)
}
