//! `[events]`: whether this daemon follows the log of its lease store, and where it writes the trail.

use super::{Checked, PostgresConfig, StoreConfig, parse_url};
use crate::lease::events::EventsConfig;
use serde::Deserialize;

/// Events are kept so long unless configured.
const KEEP_DAYS: u64 = 90;
const KEEP_DAYS_MAX: u32 = 36_500;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawEvents {
    pub(super) enabled: Option<bool>,
    pub(super) url: Option<String>,
    pub(super) keep_days: Option<u64>,
}

impl RawEvents {
    /// Unless told, the trail lies beside the store where that is a database, and in the server itself otherwise.
    pub(super) fn check(&self, postgres: &PostgresConfig, store: &StoreConfig) -> Checked<EventsConfig> {
        let keep_days = self.keep_days.unwrap_or(KEEP_DAYS);
        let keep_days = u32::try_from(keep_days)
            .ok()
            .filter(|days| (1..=KEEP_DAYS_MAX).contains(days))
            .ok_or_else(|| format!("events.keep_days = {keep_days} is not in 1 to {KEEP_DAYS_MAX}"))?;
        let (beside, request_timeout) = match store {
            StoreConfig::Postgres {
                url, request_timeout, ..
            } => (url.as_ref(), request_timeout),
            StoreConfig::Etcd { request_timeout, .. } => (&postgres.url, request_timeout),
        };
        let url = match &self.url {
            Some(url) => parse_url("events.url", url)?,
            None => beside.clone(),
        };
        Ok(EventsConfig {
            enabled: self.enabled.unwrap_or(true),
            url: Box::new(url),
            connect_timeout: postgres.connect_timeout,
            // Of a batch with many events.
            request_timeout: *request_timeout * 5,
            keep_days,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::postgres::describe;

    fn events(text: &str) -> Result<EventsConfig, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@here/d\"\n{text}");
        let config = Config::parse("f", &text, []).map_err(|error| error.to_string())?;
        Ok(config.events)
    }

    #[test]
    fn the_trail_lies_beside_an_embedded_store_and_else_in_the_server_itself() {
        let of = |text: &str| {
            let events = events(text).unwrap();
            (events.enabled, describe(&events.url), events.keep_days)
        };
        assert_eq!(of(""), (true, "u@here:5432/d".to_owned(), 90));
        assert_eq!(
            of("[store]\nurl = \"postgres://u@store/s\""),
            (true, "u@store:5432/s".to_owned(), 90)
        );
        assert_eq!(
            of("[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]"),
            (true, "u@here:5432/d".to_owned(), 90)
        );
        assert_eq!(
            of("[events]\nenabled = false\nkeep_days = 7\nurl = \"postgres://u@trail/t\""),
            (false, "u@trail:5432/t".to_owned(), 7)
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("[events]\nkeep_days = 0", "events.keep_days = 0"),
            ("[events]\nkeep_days = 40000", "is not in 1 to 36500"),
            ("[events]\nurl = \"mysql://a\"", "events.url"),
            ("[events]\nkeep = 3", "unknown field"),
        ] {
            let refused = events(text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
