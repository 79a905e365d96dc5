//! Orders of operators.

use super::{Ground, MemoryStore, Result, refused};
use idgen_core::lease::{Class, Order, Orders};
use idgen_daemon::lease::{OrderStore, StoreErrorKind};

impl Ground {
    pub(super) fn orders_of(&self, class: Class) -> Orders {
        let of_class = self.books.orders.values().filter(|order| order.class == class);
        of_class.map(|order| (order.identity, order.token)).collect()
    }

    fn order(&mut self, order: &Order) -> Result<()> {
        let key = (order.class, order.identity);
        let lent = self.books.rows.get(&key).and_then(|row| row.lent.as_ref());
        if lent.is_none_or(|lent| lent.token != order.token) {
            return refused(StoreErrorKind::Conflict, "it is not held under this token");
        }
        self.raise_revision();
        self.books.orders.insert(key, order.clone());
        Ok(())
    }
}

impl OrderStore for MemoryStore {
    async fn orders(&mut self) -> Result<Vec<Order>> {
        self.look(|ground| Ok(ground.books.orders.values().cloned().collect()))
            .await
    }

    async fn order(&mut self, order: &Order) -> Result<()> {
        let order = order.clone();
        self.change(move |ground| ground.order(&order)).await
    }
}
