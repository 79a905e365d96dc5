//! Environment overrides: `IDGEND_POSTGRES__URL` is `url` of `[postgres]`.

use super::{RawConfig, RawShard};
use crate::error::{Error, Result};
use std::ffi::OsString;

const PREFIX: &str = "IDGEND_";

/// Drops variables that are not UTF-8; none of ours can be.
pub(super) fn utf8((name, value): (OsString, OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// Applies the overrides among `vars`, in any order.
pub(super) fn override_with(
    raw: &mut RawConfig,
    vars: impl IntoIterator<Item = (String, String)>,
) -> Result<()> {
    for (name, value) in vars {
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if is_service_link(path) {
            continue;
        }
        set(raw, path, value).map_err(|message| Error::usage(format!("environment {name}: {message}")))?;
    }
    Ok(())
}

/// Kubernetes gives every pod `IDGEND_SERVICE_HOST`, `IDGEND_PORT` and more when a service is called
/// idgend; they are none of our settings.
fn is_service_link(path: &str) -> bool {
    ["SERVICE_HOST", "SERVICE_PORT", "PORT"].iter().any(|link| {
        path.strip_prefix(link)
            .is_some_and(|rest| rest.is_empty() || is_suffix(rest))
    })
}

/// `_9787_TCP`, but not a level of ours.
fn is_suffix(rest: &str) -> bool {
    rest.starts_with('_') && !rest.starts_with("__")
}

fn set(raw: &mut RawConfig, path: &str, value: String) -> std::result::Result<(), String> {
    match path {
        "NAME" => raw.name = Some(value),
        "POSTGRES__URL" => raw.postgres.url = Some(value.into()),
        "POSTGRES__CONNECT_TIMEOUT_MS" => raw.postgres.connect_timeout_ms = Some(number(&value)?),
        "POSTGRES__POLL_MS" => raw.postgres.poll_ms = Some(number(&value)?),
        "STORE__KIND" => raw.store.kind = Some(value),
        "STORE__URL" => raw.store.url = Some(value.into()),
        "STORE__ENDPOINTS" => raw.store.endpoints = Some(list(&value)),
        "STORE__PREFIX" => raw.store.prefix = Some(value),
        "STORE__MAX_TXN_OPS" => raw.store.max_txn_ops = Some(number(&value)?),
        "STORE__CA_FILE" => raw.store.ca_file = Some(value),
        "STORE__CERT_FILE" => raw.store.cert_file = Some(value),
        "STORE__KEY_FILE" => raw.store.key_file = Some(value),
        "STORE__USERNAME" => raw.store.username = Some(value),
        "STORE__PASSWORD_FILE" => raw.store.password_file = Some(value),
        "STORE__PASSWORD" => raw.store.password = Some(value.into()),
        "STORE__REQUEST_TIMEOUT_MS" => raw.store.request_timeout_ms = Some(number(&value)?),
        "WORKERS__COUNT" => raw.workers.count = Some(number(&value)?),
        "WORKERS__TTL_MS" => raw.workers.ttl_ms = Some(number(&value)?),
        "WORKERS__WINDOW_MS" => raw.workers.window_ms = Some(number(&value)?),
        "WORKERS__PERIOD_MS" => raw.workers.period_ms = Some(number(&value)?),
        "SHARDS__IDS" => {
            let items = list(&value).into_iter().map(RawShard::Range);
            raw.shards.ids = Some(items.collect());
        }
        "SHARDS__ADDRESS" => raw.shards.address = Some(value),
        "SHARDS__TTL_MS" => raw.shards.ttl_ms = Some(number(&value)?),
        "SHARDS__WINDOW_MS" => raw.shards.window_ms = Some(number(&value)?),
        "SHARDS__PERIOD_MS" => raw.shards.period_ms = Some(number(&value)?),
        "AUTHORITY__LEASED" => raw.authority.leased = Some(truth(&value)?),
        "AUTHORITY__TTL_MS" => raw.authority.ttl_ms = Some(number(&value)?),
        "AUTHORITY__PERIOD_MS" => raw.authority.period_ms = Some(number(&value)?),
        "EVENTS__ENABLED" => raw.events.enabled = Some(truth(&value)?),
        "EVENTS__URL" => raw.events.url = Some(value),
        "EVENTS__KEEP_DAYS" => raw.events.keep_days = Some(number(&value)?),
        "CLOCK__CHECK" => raw.clock.check = Some(value),
        "CLOCK__CHRONY" => raw.clock.chrony = Some(value),
        "CLOCK__ACCEPT_SYNCHRONISED" => raw.clock.accept_synchronised = Some(truth(&value)?),
        "HTTP__LISTEN" => raw.http.listen = Some(value),
        "LOG__FORMAT" => raw.log.format = Some(value),
        "LOG__LEVEL" => raw.log.level = Some(value),
        _ => return Err("there is no such setting".into()),
    }
    Ok(())
}

fn number(value: &str) -> std::result::Result<u64, String> {
    value
        .trim()
        .parse()
        .map_err(|_| format!("\"{value}\" is not a whole number"))
}

fn truth(value: &str) -> std::result::Result<bool, String> {
    value
        .trim()
        .parse()
        .map_err(|_| format!("\"{value}\" is neither true nor false"))
}

/// Endpoints or shards, separated by commas.
fn list(value: &str) -> Vec<String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}
