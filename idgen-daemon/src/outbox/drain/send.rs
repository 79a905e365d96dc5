//! How the rows of a page go to the producer, whole or as stubs.

use super::super::lease::Held;
use super::super::producer::{Sender, Sent};
use super::super::queue::{Page, Queue, Row};
use super::{Drainer, PERMIT_BYTES};
use crate::error::{Error, Result};
use crate::event::{Event, StubReason};
use crate::postgres::Session;
use idgen_core::outbox::Poison;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

impl<Q: Queue> Drainer<Q> {
    pub(super) async fn send_page(
        &mut self,
        session: &Session,
        held: Held,
        page: Page<Q::Key>,
    ) -> Result<usize> {
        let more = page.more;
        let (mut taken, mut sent) = (0, 0);
        for row in page.rows {
            if !self.flight.has(&row.key) {
                if !self.send_row(session, held, row).await? {
                    break;
                }
                sent += 1;
            }
            taken += 1;
        }
        let lowest = self.flight.lowest();
        // After a reset this is of nothing: the next look begins at the beginning.
        self.queue.took(self.now_ms(), taken, lowest);
        if let Some((_, used)) = &mut self.sender
            && sent > 0
        {
            *used = Instant::now();
        }
        // Everything of this page is in flight, and there is another one: go on at once.
        Ok(sent + usize::from(more && taken > 0))
    }

    /// Where it is too long, or was refused before, it goes as a stub. `value`: the whole of it.
    fn poison_of(&self, row: &Row<Q::Key>, value: &[u8]) -> Option<Poison> {
        let fits = |sender: &Sender| sender.fits(&row.event, value);
        let is_long = row.is_stub || !self.sender.as_ref().is_none_or(|(sender, _)| fits(sender));
        let known = self.stubs.get(&row.key).copied();
        known.or(is_long.then_some(Poison::TooLarge))
    }

    /// The whole of an event that goes as a stub is kept, once for each time that it does.
    async fn keep_dead(&mut self, session: &Session, row: &Row<Q::Key>, why: Poison) -> Result<()> {
        if self.kept.contains(&row.key) {
            return Ok(());
        }
        self.queue.keep_dead(session, row, why).await?;
        self.kept.insert(row.key);
        self.stubs.insert(row.key, why);
        self.config.metrics.count_stub();
        tracing::warn!(
            event_id = row.event.event_id,
            tag = row.event.tag,
            "{}: an event could not be sent as it is ({why:?}): a stub takes its place, and it is kept as a dead letter",
            self.config.name
        );
        Ok(())
    }

    /// False: there is no room, or it failed.
    async fn send_row(&mut self, session: &Session, held: Held, row: Row<Q::Key>) -> Result<bool> {
        let json = |event: &Event| {
            let written = event.to_json();
            written.map_err(|error| Error::retry(format!("write an event: {error}")))
        };
        let whole = json(&row.event)?;
        let poison = self.poison_of(&row, &whole);
        let stub = poison.filter(|_| !row.is_stub).map(|why| {
            let reason = match why {
                Poison::TooLarge => StubReason::TooLarge,
                Poison::Refused => StubReason::Refused,
            };
            row.event.clone().into_stub(reason)
        });
        let (event, value) = match &stub {
            Some(stub) => (stub, json(stub)?),
            None => (&row.event, whole),
        };
        let Some(permit) = self.room_for(value.len()) else {
            self.is_full = true;
            return Ok(false);
        };
        if let Some(why) = poison {
            self.keep_dead(session, &row, why).await?;
        }
        Ok(self.send((row.key, event), &value, held, permit))
    }

    fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if !self.flight.has_room_for(bytes) {
            return None;
        }
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.config.budget)
            .try_acquire_many_owned(permits)
            .ok()
    }

    fn send(
        &mut self,
        (key, event): (Q::Key, &Event),
        value: &[u8],
        held: Held,
        permit: OwnedSemaphorePermit,
    ) -> bool {
        let Some((sender, _)) = &self.sender else {
            return false;
        };
        let ticket = self.flight.add(key, value.len(), permit, self.now_ms());
        match sender.send(event, value, held.epoch, ticket) {
            Sent::Queued => true,
            Sent::Full => {
                self.flight.give_up(&key);
                self.is_full = true;
                false
            }
            Sent::Refused(fault, why) => {
                // The client says so of this very event.
                if let Some(poison) = fault.verdict().stub {
                    self.is_mended |= self.stubs.insert(key, poison).is_none();
                }
                self.reset(fault, &why);
                false
            }
        }
    }

    /// Nothing waits any more: whatever was refused is behind us.
    pub(super) fn go_back_to_batches(&mut self) {
        if self.singly && self.flight.is_empty() {
            self.singly = false;
            if let Some((sender, _)) = self.sender.take() {
                sender.purge();
            }
        }
    }
}
