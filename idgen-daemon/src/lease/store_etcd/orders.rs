//! Orders in etcd: keys below `PREFIX/order/`, apart from the identities, so that a renewal sees with one comparison of
//! their range whether any was given since it was last looked.

use super::super::orders::Listeners;
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_orders::OrderStore;
use super::link::{Effect, EtcdSecurity};
use super::value::value;
use super::watch::Folder;
use super::{EtcdStore, Result, encode, signed};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{Class, Epoch, Identity, Order, Orders, Revision, Token};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// `order/w/ID`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OrderValue {
    token_epoch: u64,
    token_revision: u64,
    at_ms: u64,
    by: String,
    reason: String,
    /// The request that it was a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<Uuid>,
}

impl OrderValue {
    fn token(&self) -> Token {
        Token {
            epoch: Epoch(self.token_epoch),
            revision: Revision(self.token_revision),
        }
    }
}

/// What all orders are below.
pub(super) fn folder(prefix: &str) -> String {
    format!("{prefix}/order/")
}

/// What the orders of a class are below.
pub(super) fn below(prefix: &str, class: Class) -> String {
    let letter = match class {
        Class::Worker => 'w',
        Class::Shard => 's',
    };
    format!("{}{letter}/", folder(prefix))
}

/// The order in a key; `None`: it is none that we know how to read.
pub(super) fn read(prefix: &str, pair: &KeyValue) -> Option<Order> {
    let key = str::from_utf8(pair.key()).ok()?;
    let (class, identity) = Class::ALL.into_iter().find_map(|class| {
        let identity = key.strip_prefix(&below(prefix, class))?;
        Some((class, Identity(identity.parse().ok()?)))
    })?;
    let order: OrderValue = serde_json::from_slice(pair.value()).ok()?;
    Some(Order {
        class,
        identity,
        token: order.token(),
        at: UnixMs(order.at_ms),
        by: order.by,
        reason: order.reason,
        request: order.request.map(|request| request.as_u128()),
    })
}

/// Of one class: an order that cannot be read must not be passed over.
pub(super) fn decode(prefix: &str, class: Class, pairs: &[KeyValue]) -> Result<Orders> {
    let below = below(prefix, class);
    let unreadable = |key: &str| {
        let message = format!("the key {key} is no order of an identity");
        StoreError::new(StoreErrorKind::Denied, message)
    };
    let order = |pair: &KeyValue| {
        let key = String::from_utf8_lossy(pair.key());
        let identity = key
            .strip_prefix(&below)
            .and_then(|identity| identity.parse().ok());
        let identity = Identity(identity.ok_or_else(|| unreadable(&key))?);
        Ok((identity, value::<OrderValue>(pair)?.token()))
    };
    pairs.iter().map(order).collect()
}

/// The key of an order, and what is put there.
pub(super) fn put(prefix: &str, order: &Order) -> Result<TxnOp> {
    let key = format!("{}{}", below(prefix, order.class), order.identity);
    let value = OrderValue {
        token_epoch: order.token.epoch.0,
        token_revision: order.token.revision.0,
        at_ms: order.at.0,
        by: order.by.clone(),
        reason: order.reason.clone(),
        request: order.request.map(Uuid::from_u128),
    };
    Ok(TxnOp::put(key, encode(&value)?, None))
}

impl EtcdStore {
    /// No order of the class is younger than those that were seen.
    pub(super) fn no_new_order(&self) -> Compare {
        let after = self.orders_seen + 1;
        Compare::mod_revision(
            below(&self.config.prefix, self.keys.class()),
            CompareOp::Less,
            after,
        )
        .with_prefix()
    }
}

impl OrderStore for EtcdStore {
    async fn orders(&mut self) -> Result<Vec<Order>> {
        let mut kv = self.client().await?.kv_client();
        let all = GetOptions::new().with_prefix();
        let get = TxnOp::get(folder(&self.config.prefix), Some(all));
        let look = kv.txn(Txn::new().and_then([get]));
        let answer = self.request(Effect::None, look).await?;
        self.judge_look(&answer)?;
        let pairs = answer
            .op_responses()
            .into_iter()
            .flat_map(|response| match response {
                TxnOpResponse::Get(mut answer) => answer.take_kvs(),
                _ => Vec::new(),
            });
        Ok(pairs
            .filter_map(|pair| read(&self.config.prefix, &pair))
            .collect())
    }

    async fn order(&mut self, order: &Order) -> Result<()> {
        let holder = self.keys.of(order.class).holder(order.identity);
        let held = Compare::create_revision(holder, CompareOp::Equal, signed(order.token.revision)?);
        let put = put(&self.config.prefix, order)?;
        self.commit_planned(Txn::new().when([held]).and_then([put])).await
    }
}

/// Where to listen for orders.
#[derive(Clone, Debug)]
pub struct EtcdOrders {
    /// Client URLs of the members.
    pub endpoints: Vec<String>,
    /// How they are reached.
    pub security: EtcdSecurity,
    /// Prefix of all keys.
    pub prefix: String,
    /// Limit for each request.
    pub request_timeout: Duration,
}

impl EtcdOrders {
    /// Tells of every order until `stop`.
    pub async fn listen(self, listeners: Listeners, stop: CancellationToken) {
        let folder = Folder {
            endpoints: self.endpoints,
            security: self.security,
            request_timeout: self.request_timeout,
            path: folder(&self.prefix),
            what: "orders of operators",
        };
        let tell = |pair: KeyValue| {
            let order = read(&self.prefix, &pair);
            let listeners = &listeners;
            async move {
                if let Some(order) = order {
                    let _ = listeners.tell(order.class, order.identity, order.token);
                }
            }
        };
        folder.watch(tell, stop).await;
    }
}
