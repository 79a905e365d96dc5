//! Who somebody is to a lease store: a file of their own, beside the configuration of a daemon that says where the store is.

use super::{Checked, RawStore, StoreConfig, etcd, parse_url};
use crate::error::{Error, Result};
use crate::lease::EtcdSecurity;
use crate::postgres::PostgresUrl;
use serde::Deserialize;
use std::path::Path;

/// What the file may say. Paths are as in `[store]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawCredentials {
    url: Option<String>,
    ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    username: Option<String>,
    password_file: Option<String>,
}

/// Credentials that fit a store.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A connection string, to the database of the store.
    Postgres(Box<PostgresUrl>),
    /// A certificate or a user of etcd.
    Etcd(EtcdSecurity),
}

impl Credentials {
    /// Reads those of a person for this store.
    pub fn load(path: &Path, store: &StoreConfig) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("read {}: {error}", path.display())))?;
        Self::parse(&text, store).map_err(|why| Error::usage(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str, store: &StoreConfig) -> Checked<Self> {
        let raw: RawCredentials = toml::from_str(text).map_err(|error| error.to_string())?;
        match store {
            StoreConfig::Postgres { .. } => {
                let url = raw.url.ok_or(
                    "url is missing: how you connect to the database of the lease store, with a login of your own",
                )?;
                Ok(Self::Postgres(Box::new(parse_url("url", &url)?)))
            }
            StoreConfig::Etcd {
                endpoints, security, ..
            } => {
                if raw.url.is_some() {
                    return Err("url is for a lease store in Postgres, and this one is an etcd".into());
                }
                let raw = RawStore {
                    ca_file: raw.ca_file.or_else(|| {
                        let ca = &security.tls.as_ref()?.ca;
                        Some(ca.to_string_lossy().into_owned())
                    }),
                    cert_file: raw.cert_file,
                    key_file: raw.key_file,
                    username: raw.username,
                    password_file: raw.password_file,
                    ..RawStore::default()
                };
                Ok(Self::Etcd(etcd::check_security(&raw, endpoints)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn etcd() -> StoreConfig {
        StoreConfig::Etcd {
            endpoints: vec!["http://127.0.0.1:1".to_owned()],
            prefix: "/p".to_owned(),
            request_timeout: Duration::from_secs(1),
            security: EtcdSecurity::default(),
            txn_ops_max: 128,
        }
    }

    #[test]
    fn credentials_fit_their_store() {
        let alice = "username = \"alice\"\npassword_file = \"/x\"";
        assert!(
            matches!(Credentials::parse(alice, &etcd()), Ok(Credentials::Etcd(security)) if security.user.is_some())
        );
        assert!(Credentials::parse("url = \"postgres://alice@h/d\"", &etcd()).is_err());
        assert!(
            Credentials::parse("name = \"alice\"", &etcd()).is_err(),
            "who one is cannot be said"
        );
        let postgres = StoreConfig::Postgres {
            url: Box::new(parse_url("url", "postgres://d@h/d").unwrap()),
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
        };
        assert!(matches!(
            Credentials::parse("url = \"postgres://alice@h/d\"", &postgres),
            Ok(Credentials::Postgres(_))
        ));
        assert!(Credentials::parse(alice, &postgres).is_err());
    }
}
