//! `[outbox]`: how events are called, and for how long their tables are kept.

use super::Checked;
use crate::postgres::PostgresUrl;
use crate::secret::Secret;
use idgen_core::outbox::Retention;
use serde::Deserialize;

/// Of all databases of the server.
#[derive(Clone, Debug)]
pub struct OutboxConfig {
    /// How the databases of the server are reached: a transaction pooler will do. `None`: as the daemon reaches the server.
    pub url: Option<PostgresUrl>,
    /// `service` of the events; `None`: the database's name.
    pub service: Option<String>,
    /// For how long a day stays in the database, at the least.
    pub retention: Retention,
}

impl OutboxConfig {
    /// `service` of the events of a database.
    #[must_use]
    pub fn service_of<'a>(&'a self, database: &'a str) -> &'a str {
        self.service.as_deref().unwrap_or(database)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawOutbox {
    pub(super) url: Option<Secret>,
    pub(super) service: Option<String>,
    pub(super) keep_days: Option<u64>,
}

impl RawOutbox {
    pub(super) fn check(self) -> Checked<OutboxConfig> {
        // It becomes the name of a folder.
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(service) = &self.service
            && (service.is_empty()
                || service.len() > 63
                || !service.chars().all(is_legal)
                || service.starts_with('.'))
        {
            return Err(format!(
                "outbox.service = \"{service}\" is not 1 to 63 of a-z, A-Z, 0-9, '.', '_', '-', or begins with a dot"
            ));
        }
        let retention = match self.keep_days {
            None => Retention::default(),
            Some(days) => Retention::days(days).map_err(|why| format!("outbox.keep_days: {why}"))?,
        };
        let url = match &self.url {
            Some(url) => Some(super::parse_url("outbox.url", url.expose())?),
            None => None,
        };
        Ok(OutboxConfig {
            url,
            service: self.service,
            retention,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn outbox(text: &str) -> Result<OutboxConfig, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n[outbox]\n{text}");
        let config = Config::parse("f", &text, []).map_err(|error| error.to_string())?;
        Ok(config.outbox)
    }

    #[test]
    fn a_service_is_the_database_unless_it_is_named() {
        assert_eq!(outbox("").unwrap().service_of("orders"), "orders");
        assert_eq!(outbox("service = \"eu-1\"").unwrap().service_of("orders"), "eu-1");
        assert_eq!(outbox("").unwrap().retention.in_days(), 90);
    }

    /// AUDIT.md 30: `'10'` was read as something else, and days that were recent were detached.
    #[test]
    fn a30_a_retention_is_a_number_of_days_and_at_least_a_week() {
        assert_eq!(outbox("keep_days = 7").unwrap().retention.in_days(), 7);
        for (text, part) in [
            ("keep_days = 6", "outbox.keep_days"),
            ("keep_days = \"10\"", "invalid type"),
            ("keep_days = \"10 days\"", "invalid type"),
            ("keep_days = -1", "invalid value"),
            ("keep_days = 40000", "outbox.keep_days"),
            ("service = \"a/b\"", "outbox.service"),
            ("service = \"..\"", "outbox.service"),
            ("url = \"mysql://a\"", "outbox.url"),
        ] {
            let refused = outbox(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
