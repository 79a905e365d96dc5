//! What needs two people.

use super::{Ground, MemoryPlace, MemoryStore, Result, refused};
use idgen_core::lease::approval::{Approval, Ask, Digest, Needed, Request, RequestId};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{AdvancePlan, Order};
use idgen_daemon::lease::{Asked, RequestStore, StoreErrorKind};

/// Of another text than any request.
fn digest_of(ask: &Ask) -> Digest {
    Digest::of(&format!("{ask:?}"))
}

impl MemoryPlace {
    /// As the real ones have it, from somebody whom they have authenticated.
    pub fn approve(&self, who: &str, id: RequestId, digest: Digest) {
        let mut ground = self.ground();
        if let Some(request) = ground.books.requests.get_mut(&id) {
            request.approvals.retain(|approval| approval.approver != who);
            request.approvals.push(Approval {
                approver: who.to_owned(),
                digest,
            });
        }
    }
}

impl Ground {
    /// It is as it was judged, and nobody has used it.
    fn check_use(&self, request: &Request) -> Result<()> {
        let found = self.books.requests.get(&request.ask.id);
        if found == Some(request) && request.done.is_none() {
            return Ok(());
        }
        refused(StoreErrorKind::Conflict, "the request has changed")
    }

    fn use_up(&mut self, request: &Request, outcome: &str) {
        if let Some(request) = self.books.requests.get_mut(&request.ask.id) {
            request.done = Some(outcome.to_owned());
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<()> {
        let request = Request {
            ask: ask.clone(),
            digest: digest_of(ask),
            approvals: Vec::new(),
            done: None,
        };
        if self.books.requests.insert(ask.id, request).is_some() {
            return refused(StoreErrorKind::Conflict, "there is such a request");
        }
        Ok(())
    }

    fn force(&mut self, request: &Request, seen: &Row, order: &Order) -> Result<()> {
        self.check_use(request)?;
        let key = (order.class, seen.identity);
        let as_seen = |token| token == order.token;
        let row = self
            .books
            .rows
            .get(&key)
            .filter(|row| row.revision == seen.revision);
        let lent = row.and_then(|row| row.lent.as_ref());
        if !lent.is_some_and(|lent| as_seen(lent.token)) {
            return refused(StoreErrorKind::Conflict, "the row has changed");
        }
        let revision = self.raise_revision();
        if let Some(row) = self.books.rows.get_mut(&key) {
            row.lent = None;
            row.revision = revision;
        }
        self.books.orders.insert(key, order.clone());
        self.use_up(request, "forced");
        Ok(())
    }
}

impl RequestStore for MemoryStore {
    async fn asked(&mut self) -> Result<Asked> {
        self.look(|ground| {
            Ok(Asked {
                needed: Needed {
                    set: ground.books.approvals_needed,
                    has_two: false,
                },
                requests: ground.books.requests.values().cloned().collect(),
            })
        })
        .await
    }

    async fn ask(&mut self, ask: &Ask) -> Result<()> {
        let ask = ask.clone();
        self.change(move |ground| ground.ask(&ask)).await
    }

    async fn force_release(&mut self, request: &Request, row: &Row, order: &Order) -> Result<()> {
        let (request, row, order) = (request.clone(), row.clone(), order.clone());
        self.change(move |ground| ground.force(&request, &row, &order))
            .await
    }

    async fn advance_by(&mut self, request: &Request, plan: &AdvancePlan) -> Result<()> {
        let (request, plan) = (request.clone(), plan.clone());
        self.change(move |ground| {
            ground.check_use(&request)?;
            ground.advance(&plan)?;
            ground.use_up(&request, "advanced");
            Ok(())
        })
        .await
    }

    async fn need(&mut self, request: &Request, approvals: u32) -> Result<()> {
        let request = request.clone();
        self.change(move |ground| {
            ground.check_use(&request)?;
            ground.books.approvals_needed = Some(approvals);
            ground.use_up(&request, "needed");
            Ok(())
        })
        .await
    }
}
