//! The etcd leases that holder keys are on.

use super::link::Effect;
use super::{EtcdStore, Result};
use idgen_core::lease::Identity;
use std::collections::BTreeSet;

/// As etcd has granted it.
#[derive(Clone, Copy)]
pub(super) struct EtcdLease {
    pub(super) id: i64,
    pub(super) ttl_ms: u64,
}

impl EtcdStore {
    /// A new etcd lease. What the server grants counts, not what was asked for.
    pub(super) async fn new_lease(&mut self) -> Result<EtcdLease> {
        let mut leases = self.client().await?.lease_client();
        let ttl_s = i64::try_from(self.config.ttl_ms / 1_000).unwrap_or(i64::MAX);
        let answer = self.request(Effect::None, leases.grant(ttl_s, None)).await?;
        let ttl_s = u64::try_from(answer.ttl()).unwrap_or(0);
        Ok(EtcdLease {
            id: answer.id(),
            ttl_ms: ttl_s.saturating_mul(1_000),
        })
    }

    /// In the background: a lease that is not revoked expires all the same.
    pub(super) async fn revoke(&mut self, lease_id: i64) {
        while self.revokes.try_join_next().is_some() {}
        let Ok(client) = self.client().await else { return };
        let mut leases = client.lease_client();
        let limit = self.config.request_timeout;
        self.revokes.spawn(async move {
            if !matches!(
                tokio::time::timeout(limit, leases.revoke(lease_id)).await,
                Ok(Ok(_))
            ) {
                tracing::debug!(lease_id, "an etcd lease was not revoked; it expires");
            }
        });
    }

    /// Holder keys of these are on another lease now, or gone; leases without any are revoked.
    pub(super) async fn leave_leases(&mut self, gone: &BTreeSet<Identity>) {
        for keys in self.leases.values_mut() {
            keys.retain(|identity| !gone.contains(identity));
        }
        let bare: Vec<i64> = self
            .leases
            .iter()
            .filter(|(_, keys)| keys.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for lease_id in bare {
            self.leases.remove(&lease_id);
            self.revoke(lease_id).await;
        }
    }
}
