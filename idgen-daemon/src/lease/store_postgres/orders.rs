//! Orders in the embedded store: rows of `idgen.lease_order`, and a notification for whoever listens. Anybody who can log
//! in may send one, so it says only that it is time to look at the rows.

use super::super::orders::Listeners;
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_orders::OrderStore;
use super::{PostgresStore, Result, begin_change, broken, column, ms, not_done, signed, unsigned};
use crate::postgres::{PostgresUrl, Session};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{Class, Epoch, Identity, Order, Orders, Revision, Token};
use std::collections::HashMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The channel that listeners hear of new orders by. Channels belong to one database.
pub(super) const CHANNEL: &str = "idgen_order";

/// Between two looks while nothing is heard: a connection that is dead does not say so by itself.
const PERIOD: Duration = Duration::from_secs(5);

/// Between two tries to listen.
const PAUSE: Duration = Duration::from_secs(1);

const READ_ORDERS: &str = "
    SELECT kind, identity, token_epoch, token_revision, (extract(epoch FROM ordered_at) * 1000)::int8,
           ordered_by, reason, request_id
      FROM idgen.lease_order ORDER BY kind DESC, identity";

const READ_TOKENS: &str = "
    SELECT identity, token_epoch, token_revision FROM idgen.lease_order WHERE kind = $1";

/// The cell's row is locked.
pub(super) const ORDER: &str = "
    INSERT INTO idgen.lease_order AS o (kind, identity, token_epoch, token_revision, ordered_at, ordered_by, reason,
                                        request_id, revision)
    SELECT l.kind, l.identity, l.token_epoch, l.token_revision, to_timestamp($5::float8 / 1000), $6, $7, $8, $9
      FROM idgen.lease l
     WHERE l.kind = $1 AND l.identity = $2 AND l.token_epoch = $3 AND l.token_revision = $4
        ON CONFLICT (kind, identity) DO UPDATE
       SET token_epoch = excluded.token_epoch, token_revision = excluded.token_revision,
           ordered_at = excluded.ordered_at, ordered_by = excluded.ordered_by, reason = excluded.reason,
           request_id = excluded.request_id, revision = excluded.revision";

/// Sent with the commit.
const NOTIFY: &str = "SELECT pg_notify($1, '')";

/// Writes the order down and tells listeners to look, with the commit; returns how many there were to be ordered.
pub(super) async fn record(session: &Session, order: &Order, revision: i64) -> Result<u64> {
    let recorded = session
        .execute(
            ORDER,
            &[
                &order.class.name(),
                &i32::from(order.identity.0),
                &signed(order.token.epoch.0)?,
                &signed(order.token.revision.0)?,
                &ms(order.at.0),
                &order.by,
                &order.reason,
                &order.request.map(Uuid::from_u128),
                &revision,
            ],
        )
        .await
        .map_err(not_done)?;
    session.rows(NOTIFY, &[&CHANNEL]).await.map_err(not_done)?;
    Ok(recorded)
}

/// Those of one class.
pub(super) async fn read_tokens(session: &Session, class: Class) -> Result<Orders> {
    let rows = session
        .rows(READ_TOKENS, &[&class.name()])
        .await
        .map_err(not_done)?;
    rows.iter()
        .map(|row| Ok((identity_column(row, 0)?, token_column(row, 1)?)))
        .collect()
}

pub(super) async fn read_orders(session: &Session) -> Result<Vec<Order>> {
    let rows = session.rows(READ_ORDERS, &[]).await.map_err(not_done)?;
    rows.iter().map(order_row).collect()
}

fn order_row(row: &tokio_postgres::Row) -> Result<Order> {
    let kind: String = column(row, 0)?;
    let class = Class::ALL.into_iter().find(|class| class.name() == kind);
    Ok(Order {
        class: class.ok_or_else(|| broken("an order is for no class"))?,
        identity: identity_column(row, 1)?,
        token: token_column(row, 2)?,
        at: UnixMs(unsigned(column(row, 4)?)?),
        by: column(row, 5)?,
        reason: column(row, 6)?,
        request: column::<Option<Uuid>>(row, 7)?.map(|request| request.as_u128()),
    })
}

fn identity_column(row: &tokio_postgres::Row, index: usize) -> Result<Identity> {
    let identity: i32 = column(row, index)?;
    let identity = u16::try_from(identity).map_err(|_| broken("an identity is out of range"))?;
    Ok(Identity(identity))
}

/// Two columns.
fn token_column(row: &tokio_postgres::Row, index: usize) -> Result<Token> {
    Ok(Token {
        epoch: Epoch(unsigned(column(row, index)?)?),
        revision: Revision(unsigned(column(row, index + 1)?)?),
    })
}

impl OrderStore for PostgresStore {
    async fn orders(&mut self) -> Result<Vec<Order>> {
        let session = self.take_session().await?;
        let orders = read_orders(&session).await?;
        self.session = Some(session);
        Ok(orders)
    }

    async fn order(&mut self, order: &Order) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let revision = begin_change(&session).await?;
        let ordered = record(&session, order, revision).await?;
        self.commit_all(session, warnings, ordered, 1).await
    }
}

/// Where to listen for orders.
#[derive(Clone, Debug)]
pub struct PostgresOrders {
    /// The coordinator database.
    pub url: PostgresUrl,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for each statement.
    pub request_timeout: Duration,
}

impl PostgresOrders {
    /// Tells of every order until `stop`. What goes wrong is tried again.
    pub async fn listen(self, listeners: Listeners, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                ended = self.hear(&listeners) => {
                    if let Err(error) = ended {
                        tracing::debug!("listening for orders of operators: {error}");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn hear(&self, listeners: &Listeners) -> Result<()> {
        let (connect, limit) = (self.connect_timeout, self.request_timeout);
        let opened = Session::open(&self.url, "idgend orders", connect, limit).await;
        let mut session = opened.map_err(not_done)?;
        let listen = format!("LISTEN {CHANNEL}");
        session.batch(&listen).await.map_err(not_done)?;
        let mut told = HashMap::new();
        loop {
            // Those that are in already need no look of their own.
            session.forget_notifications();
            for order in read_orders(&session).await? {
                let Order {
                    class,
                    identity,
                    token,
                    ..
                } = order;
                // They stay, and a keeper needs to hear of each but once.
                if told.get(&(class, identity)) != Some(&token) && listeners.tell(class, identity, token) {
                    told.insert((class, identity), token);
                }
            }
            if let Ok(None) = tokio::time::timeout(PERIOD, session.notified()).await {
                let why = "the session is of no use any more";
                return Err(StoreError::new(StoreErrorKind::Unreachable, why));
            }
        }
    }
}
