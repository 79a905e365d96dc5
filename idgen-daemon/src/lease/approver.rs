//! Somebody who approves requests in the lease store that a configuration names.

use super::store::StoreError;
use super::store_etcd::EtcdApprover;
use super::store_postgres::PostgresApprover;
use crate::config::{Credentials, StoreConfig};
use idgen_core::lease::approval::Request;

/// In either store. Who it is, the store says: by a client certificate, a password, or what else its server asks for.
pub enum AnyApprover {
    /// A role of the coordinator database.
    Postgres(Box<PostgresApprover>),
    /// A user of etcd.
    Etcd(Box<EtcdApprover>),
}

impl AnyApprover {
    /// Whoever these credentials belong to. Connects with the approval.
    pub fn new(store: &StoreConfig, credentials: Credentials) -> Result<Self, StoreError> {
        match (store.clone(), credentials) {
            (
                StoreConfig::Etcd {
                    endpoints,
                    prefix,
                    request_timeout,
                    ..
                },
                Credentials::Etcd(security),
            ) => {
                let approver = EtcdApprover::new(endpoints, prefix, request_timeout, security)?;
                Ok(Self::Etcd(Box::new(approver)))
            }
            (StoreConfig::Postgres { connect_timeout, .. }, Credentials::Postgres(url)) => {
                let approver = PostgresApprover {
                    url: *url,
                    limit: connect_timeout,
                };
                Ok(Self::Postgres(Box::new(approver)))
            }
            _ => Err(StoreError::new(
                super::StoreErrorKind::Denied,
                "these credentials are for a store of another kind",
            )),
        }
    }

    /// Approves the request with this very text; returns who that was, in the store's words.
    pub async fn approve(&mut self, request: &Request) -> Result<String, StoreError> {
        match self {
            Self::Postgres(approver) => approver.approve(request).await,
            Self::Etcd(approver) => approver.approve(request).await,
        }
    }
}
