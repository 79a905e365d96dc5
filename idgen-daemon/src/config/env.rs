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
        _ => return set_outbox(raw, path, value),
    }
    Ok(())
}

/// Of what hands events on.
fn set_outbox(raw: &mut RawConfig, path: &str, value: String) -> std::result::Result<(), String> {
    match path {
        "ARCHIVE__KIND" => raw.archive.kind = Some(value),
        "ARCHIVE__PATH" => raw.archive.path = Some(value),
        "ARCHIVE__BUCKET" => raw.archive.bucket = Some(value),
        "ARCHIVE__PREFIX" => raw.archive.prefix = Some(value),
        "ARCHIVE__REGION" => raw.archive.region = Some(value),
        "ARCHIVE__ENDPOINT" => raw.archive.endpoint = Some(value),
        "ARCHIVE__FORCE_PATH_STYLE" => raw.archive.force_path_style = Some(truth(&value)?),
        "ARCHIVE__KMS_KEY_ID" => raw.archive.kms_key_id = Some(value),
        "ARCHIVE__OBJECT_LOCK_DAYS" => raw.archive.object_lock_days = Some(number(&value)?),
        "ARCHIVE__CUT_SECONDS" => raw.archive.cut_seconds = Some(number(&value)?),
        "ARCHIVE__BUFFER_MIB" => raw.archive.buffer_mib = Some(number(&value)?),
        "ARCHIVE__VERIFY" => raw.archive.verify = Some(truth(&value)?),
        "KAFKA__BROKERS" => raw.kafka.brokers = Some(list(&value)),
        "KAFKA__TOPIC" => raw.kafka.topic = Some(value),
        "KAFKA__ACK_TIMEOUT_MS" => raw.kafka.ack_timeout_ms = Some(number(&value)?),
        "KAFKA__MAX_MESSAGE_BYTES" => raw.kafka.max_message_bytes = Some(number(&value)?),
        "KAFKA__CA_FILE" => raw.kafka.ca_file = Some(value),
        "KAFKA__CERT_FILE" => raw.kafka.cert_file = Some(value),
        "KAFKA__KEY_FILE" => raw.kafka.key_file = Some(value),
        "KAFKA__SASL_MECHANISM" => raw.kafka.sasl_mechanism = Some(value),
        "KAFKA__USERNAME" => raw.kafka.username = Some(value),
        "KAFKA__PASSWORD_FILE" => raw.kafka.password_file = Some(value),
        "KAFKA__PASSWORD" => raw.kafka.password = Some(value.into()),
        "OUTBOX__URL" => raw.outbox.url = Some(value.into()),
        "OUTBOX__SERVICE" => raw.outbox.service = Some(value),
        "OUTBOX__KEEP_DAYS" => raw.outbox.keep_days = Some(number(&value)?),
        _ => return set_audit(raw, path, value),
    }
    Ok(())
}

/// Of the audits, which there are as soon as any of it is set.
fn set_audit(raw: &mut RawConfig, path: &str, value: String) -> std::result::Result<(), String> {
    let Some(key) = path.strip_prefix("AUDIT__") else {
        return Err("there is no such setting".into());
    };
    let audit = raw.audit.get_or_insert_default();
    match key {
        "NIGHTLY" => audit.nightly = Some(value),
        "FULL" => audit.full = Some(value),
        "REPLICA" => audit.replica = Some(value.into()),
        "FALL_BACK" => audit.fall_back = Some(truth(&value)?),
        "RATE" => audit.rate = Some(number(&value)?),
        "LAG_MAX_MINUTES" => audit.lag_max_minutes = Some(number(&value)?),
        "PROBE" => audit.probe = Some(truth(&value)?),
        "PROMOTION_WAIT_SECONDS" => audit.promotion_wait_seconds = Some(number(&value)?),
        "CHECKPOINT_DIR" => audit.checkpoint_dir = Some(value),
        "PROBE_MEMORY_MIB" => audit.probe_memory_mib = Some(number(&value)?),
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
