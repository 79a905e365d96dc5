//! Hearing of what operators order, so that a lease ends at once and not with its next renewal. Nothing rests on it: the
//! store refuses the renewal of a lease that an order is against, whether it was heard or not.

use super::store_etcd::EtcdOrders;
use super::store_postgres::PostgresOrders;
use crate::config::StoreConfig;
use idgen_core::lease::{Class, Identity, Token};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

/// Orders that may wait for a keeper that is busy: as many as there are identities, so that those of long ago, which a
/// new listener reads first, leave room for a new one.
const WAITING_MAX: usize = 8_192;

/// Where the keeper of a class hears of orders: the identity, and the token of the lease that ends.
#[derive(Debug)]
pub struct OrdersHeard(mpsc::Receiver<(Identity, Token)>);

/// The other end of it.
#[derive(Clone, Debug)]
pub struct OrderPost(mpsc::Sender<(Identity, Token)>);

/// Both ends.
#[must_use]
pub fn order_channel() -> (OrderPost, OrdersHeard) {
    let (post, heard) = mpsc::channel(WAITING_MAX);
    (OrderPost(post), OrdersHeard(heard))
}

impl OrdersHeard {
    /// The next one; never comes when nobody listens to the store any more.
    pub(super) async fn next(&mut self) -> (Identity, Token) {
        match self.0.recv().await {
            Some(order) => order,
            None => std::future::pending().await,
        }
    }
}

/// Whom to tell, by class.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Vec<(Class, OrderPost)>);

impl FromIterator<(Class, OrderPost)> for Listeners {
    fn from_iter<T: IntoIterator<Item = (Class, OrderPost)>>(posts: T) -> Self {
        Self(posts.into_iter().collect())
    }
}

impl Listeners {
    /// False where a keeper is too busy to be told: nobody else waits for it, and it finds out with its next renewal. One
    /// that has ended needs to hear nothing.
    pub(super) fn tell(&self, class: Class, identity: Identity, token: Token) -> bool {
        let mut posts = self.0.iter().filter(|(of, _)| *of == class);
        posts.all(|(_, post)| {
            let sent = post.0.try_send((identity, token));
            !matches!(sent, Err(TrySendError::Full(_)))
        })
    }
}

/// Listens for orders in the store until `stop`. What goes wrong is tried again.
pub async fn hear_orders(config: StoreConfig, listeners: Listeners, stop: CancellationToken) {
    match config {
        StoreConfig::Postgres {
            url,
            connect_timeout,
            request_timeout,
        } => {
            let orders = PostgresOrders {
                url: *url,
                connect_timeout,
                request_timeout,
            };
            orders.listen(listeners, stop).await;
        }
        StoreConfig::Etcd {
            endpoints,
            prefix,
            request_timeout,
            security,
            ..
        } => {
            let orders = EtcdOrders {
                endpoints,
                security,
                prefix,
                request_timeout,
            };
            orders.listen(listeners, stop).await;
        }
    }
}
