//! What was handed to the producer and is not marked as published yet.
//!
//! A row is in flight from the moment it is sent until it is *marked*, not until it is acknowledged: in between the table
//! still shows it, and it must not be sent a second time.

use std::collections::{BTreeMap, VecDeque};

/// How much may be in flight: what a broker outage costs in memory. The rest waits in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightLimits {
    /// Rows.
    pub rows: usize,
    /// Bytes of their messages.
    pub bytes: usize,
}

impl Default for FlightLimits {
    fn default() -> Self {
        Self {
            rows: 5_000,
            bytes: 8 << 20,
        }
    }
}

#[derive(Clone, Debug)]
struct Item<T> {
    ticket: u64,
    bytes: usize,
    with: T,
    acknowledged: bool,
}

/// See the module. `K` names a row; `T` goes along with it.
#[derive(Debug)]
pub struct Flight<K, T> {
    limits: FlightLimits,
    items: BTreeMap<K, Item<T>>,
    tickets: BTreeMap<u64, K>,
    acknowledged: VecDeque<K>,
    next_ticket: u64,
    bytes: usize,
    /// Since when nothing was acknowledged although something is awaited.
    quiet_since_ms: u64,
}

impl<K: Ord + Copy, T> Flight<K, T> {
    /// Nothing is in flight.
    #[must_use]
    pub fn new(limits: FlightLimits) -> Self {
        Self {
            limits,
            items: BTreeMap::new(),
            tickets: BTreeMap::new(),
            acknowledged: VecDeque::new(),
            next_ticket: 1,
            bytes: 0,
            quiet_since_ms: 0,
        }
    }

    /// How many rows more there is room for.
    #[must_use]
    pub fn room(&self) -> usize {
        match self.bytes < self.limits.bytes {
            true => self.limits.rows.saturating_sub(self.items.len()),
            false => 0,
        }
    }

    /// Is there room for a message of so many bytes? For the first there always is.
    #[must_use]
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.items.is_empty() || (self.room() > 0 && self.bytes + bytes <= self.limits.bytes)
    }

    /// Is this row in flight?
    #[must_use]
    pub fn has(&self, key: &K) -> bool {
        self.items.contains_key(key)
    }

    /// Rows in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The lowest of them.
    #[must_use]
    pub fn lowest(&self) -> Option<K> {
        self.items.keys().next().copied()
    }

    /// A row that is sent now; returns the number that its acknowledgement has. A row that is in flight keeps its own.
    pub fn add(&mut self, key: K, bytes: usize, with: T, now_ms: u64) -> u64 {
        if let Some(item) = self.items.get(&key) {
            return item.ticket;
        }
        if self.tickets.is_empty() {
            self.quiet_since_ms = now_ms;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.bytes += bytes;
        self.tickets.insert(ticket, key);
        let item = Item {
            ticket,
            bytes,
            with,
            acknowledged: false,
        };
        self.items.insert(key, item);
        ticket
    }

    /// Numbers that are awaited.
    pub fn tickets(&self) -> impl Iterator<Item = u64> + '_ {
        self.tickets.keys().copied()
    }

    /// Which row has this number, if it is awaited.
    #[must_use]
    pub fn row_of(&self, ticket: u64) -> Option<K> {
        self.tickets.get(&ticket).copied()
    }

    /// The broker has it. Numbers that nobody awaits are passed over.
    pub fn acknowledge(&mut self, ticket: u64, now_ms: u64) {
        let Some(key) = self.tickets.remove(&ticket) else {
            return;
        };
        self.quiet_since_ms = now_ms;
        if let Some(item) = self.items.get_mut(&key) {
            item.acknowledged = true;
            self.acknowledged.push_back(key);
        }
    }

    /// How many are acknowledged and not marked.
    #[must_use]
    pub fn unmarked(&self) -> usize {
        self.acknowledged.len()
    }

    /// Acknowledged rows to be marked now. They stay in flight until [`Flight::marked`]; asked again, they are given again.
    #[must_use]
    pub fn acknowledged(&self, max: usize) -> Vec<K> {
        self.acknowledged.iter().take(max).copied().collect()
    }

    /// What goes along with a row in flight.
    #[must_use]
    pub fn with(&self, key: &K) -> Option<&T> {
        self.items.get(key).map(|item| &item.with)
    }

    /// It is marked in the table, and the table has committed.
    pub fn marked(&mut self, key: &K) {
        if self.items.get(key).is_some_and(|item| item.acknowledged)
            && let Some(item) = self.items.remove(key)
        {
            self.bytes -= item.bytes;
            // Marked in the order they were acknowledged, so it is the first.
            if let Some(at) = self.acknowledged.iter().position(|have| have == key) {
                self.acknowledged.remove(at);
            }
        }
    }

    /// It could not be sent just now, so nothing of it is awaited.
    pub fn give_up(&mut self, key: &K) {
        if self.items.get(key).is_some_and(|item| !item.acknowledged)
            && let Some(item) = self.items.remove(key)
        {
            self.bytes -= item.bytes;
            self.tickets.remove(&item.ticket);
        }
    }

    /// For how long nothing was acknowledged although something is awaited.
    #[must_use]
    pub fn quiet_ms(&self, now_ms: u64) -> u64 {
        match self.tickets.is_empty() {
            true => 0,
            false => now_ms.saturating_sub(self.quiet_since_ms),
        }
    }

    /// Nobody could have answered until now.
    pub fn restart_quiet(&mut self, now_ms: u64) {
        self.quiet_since_ms = now_ms;
    }

    /// Forgets what is awaited. What was acknowledged stays: the broker has it, and it is to be marked. Numbers go on above.
    pub fn reset(&mut self) {
        for key in std::mem::take(&mut self.tickets).into_values() {
            if let Some(item) = self.items.remove(&key) {
                self.bytes -= item.bytes;
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.reset();
        self.items.clear();
        self.acknowledged.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flight() -> Flight<i64, ()> {
        Flight::new(FlightLimits { rows: 3, bytes: 100 })
    }

    #[test]
    fn a_row_is_in_flight_until_it_is_marked() {
        let mut flight = flight();
        let ticket = flight.add(7, 10, (), 0);
        flight.acknowledge(ticket, 1);
        assert!(flight.has(&7), "the table still shows it");
        assert_eq!(flight.acknowledged(9), [7]);
        assert_eq!(flight.acknowledged(9), [7], "a mark that failed is done again");
        flight.marked(&7);
        assert!(!flight.has(&7) && flight.is_empty() && flight.unmarked() == 0);
    }

    #[test]
    fn rows_and_bytes_are_bounded_but_for_the_first() {
        let mut flight = flight();
        assert!(flight.has_room_for(1_000), "else it would never be sent");
        flight.add(1, 60, (), 0);
        assert!(flight.has_room_for(40) && !flight.has_room_for(41));
        flight.add(2, 10, (), 0);
        flight.add(3, 10, (), 0);
        assert_eq!((flight.room(), flight.has_room_for(1)), (0, false));
    }

    #[test]
    fn what_was_acknowledged_outlives_a_reset() {
        let mut flight = flight();
        let [one, _] = [1, 2].map(|key| flight.add(key, 1, (), 0));
        flight.acknowledge(one, 0);
        flight.reset();
        assert!(flight.has(&1) && !flight.has(&2));
        let again = flight.add(2, 1, (), 0);
        assert_eq!(again, 3, "an answer to what was sent before is none to this");
        flight.acknowledge(2, 0);
        assert_eq!(flight.unmarked(), 1);
    }

    #[test]
    fn silence_is_counted_from_the_last_answer_and_only_while_one_is_awaited() {
        let mut flight = flight();
        assert_eq!(flight.quiet_ms(1_000), 0);
        let one = flight.add(1, 1, (), 1_000);
        flight.add(2, 1, (), 5_000);
        assert_eq!(flight.quiet_ms(6_000), 5_000);
        flight.acknowledge(one, 6_000);
        assert_eq!(flight.quiet_ms(7_000), 1_000);
        flight.restart_quiet(50_000);
        assert_eq!(
            flight.quiet_ms(50_500),
            500,
            "with no broker there was nobody to answer"
        );
        flight.reset();
        assert_eq!(flight.quiet_ms(99_000), 0);
    }

    proptest! {
        /// Bytes are the sum of what is in flight, whatever happens.
        #[test]
        fn the_budget_comes_back(steps in prop::collection::vec((0_u8..6, 0_i64..6, 1_usize..50), 0..100)) {
            let mut flight = Flight::<i64, ()>::new(FlightLimits { rows: 4, bytes: 120 });
            for (step, key, bytes) in steps {
                match step {
                    0 | 1 => {
                        if flight.has_room_for(bytes) {
                            flight.add(key, bytes, (), 0);
                        }
                    }
                    2 => {
                        let first = flight.tickets().next();
                        if let Some(ticket) = first {
                            flight.acknowledge(ticket, 0);
                        }
                    }
                    3 => flight.marked(&key),
                    4 => flight.give_up(&key),
                    _ => flight.reset(),
                }
                prop_assert_eq!(flight.bytes, flight.items.values().map(|item| item.bytes).sum::<usize>());
                prop_assert!(flight.items.len() <= 4);
                prop_assert!(flight.bytes <= 120 || flight.items.len() == 1);
                prop_assert_eq!(flight.unmarked() + flight.tickets.len(), flight.items.len());
            }
        }
    }
}
