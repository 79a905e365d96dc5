//! Servers that are drained: keys `PREFIX/drain/NAME`. Each is written with the cell's key, as it is: so whatever was planned before
//! is refused, without a comparison of its own in every grant.

use super::super::store_drains::DrainStore;
use super::link::Effect;
use super::value::value;
use super::{EtcdStore, Result, encode};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, TxnOp};
use idgen_core::clock::UnixMs;
use idgen_core::lease::Drain;
use serde::{Deserialize, Serialize};

/// `drain/NAME`. Its version is the key's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct DrainValue {
    drained: bool,
    at_ms: u64,
    by: String,
    reason: String,
}

fn folder(prefix: &str) -> String {
    format!("{prefix}/drain/")
}

/// The key of one server.
pub(super) fn key(prefix: &str, server: &str) -> String {
    format!("{}{server}", folder(prefix))
}

/// A record that cannot be read must not be passed over.
pub(super) fn read(prefix: &str, pair: &KeyValue) -> Result<Drain> {
    let key = String::from_utf8_lossy(pair.key());
    let server = key.strip_prefix(&folder(prefix)).unwrap_or(&key).to_owned();
    let said: DrainValue = value(pair)?;
    Ok(Drain {
        server,
        drained: said.drained,
        at: UnixMs(said.at_ms),
        by: said.by,
        reason: said.reason,
        version: u64::try_from(pair.version()).unwrap_or_default(),
    })
}

impl DrainStore for EtcdStore {
    async fn drains(&mut self) -> Result<Vec<Drain>> {
        let mut kv = self.client().await?.kv_client();
        let prefix = self.config.prefix.clone();
        let all = Some(GetOptions::new().with_prefix());
        let answer = self.request(Effect::None, kv.get(folder(&prefix), all)).await?;
        answer.kvs().iter().map(|pair| read(&prefix, pair)).collect()
    }

    async fn set_drain(&mut self, drain: &Drain) -> Result<()> {
        let key = key(&self.config.prefix, &drain.server);
        let before = i64::try_from(drain.version - 1).unwrap_or(i64::MAX);
        let guards = vec![
            self.cell_unchanged(),
            Compare::version(key.clone(), CompareOp::Equal, before),
        ];
        let said = DrainValue {
            drained: drain.drained,
            at_ms: drain.at.0,
            by: drain.by.clone(),
            reason: drain.reason.clone(),
        };
        let puts = vec![
            TxnOp::put(key, encode(&said)?, None),
            TxnOp::put(self.keys.cell(), self.cell.value.clone(), None),
        ];
        let txn = etcd_client::Txn::new().when(guards).and_then(puts);
        self.commit_planned(txn).await
    }
}
