//! Requests and approvals in etcd.
//!
//! ```text
//!  PREFIX/request/ID/ask       the text of a request
//!  PREFIX/request/ID/done      what came of it: it is used once
//!  PREFIX.approval/USER/ID     SHA-256 of the text, in hexadecimal, put by that user of etcd
//! ```
//! Approvals are not below `PREFIX/`, where daemons may write. Each approver may write below its own name and nowhere else,
//! so what stands there was put by it: etcd knows no right that is narrower than the beginning of a key, hence the name
//! comes before the request. Whoever may write below other names, as root may, is nobody in particular.

use super::super::requests::{read_text, text_of};
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_requests::{Asked, RequestStore};
use super::link::{Effect, EtcdSecurity, Link};
use super::value::HighWaterValue;
use super::{EtcdStore, Result, encode, not_as_expected, orders, signed};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use idgen_core::lease::approval::{Approval, Ask, Digest, Needed, Request, RequestId};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{AdvancePlan, Order};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;
use uuid::Uuid;

/// No user of etcd that approves has this name: its key is never written, only asked about.
const NOBODY: &str = "-";

/// What a request was, when it was last read.
#[derive(Default)]
pub(super) struct SeenRequest {
    /// Keys and their mod revisions, of the text and of every approval.
    keys: Vec<(String, i64)>,
}

/// `done`.
#[derive(Serialize, Deserialize)]
struct DoneValue {
    at_ms: u64,
    outcome: String,
    approved_by: Vec<String>,
}

fn requests_below(prefix: &str) -> String {
    format!("{prefix}/request/")
}

fn approvals_below(prefix: &str) -> String {
    format!("{prefix}.approval/")
}

fn approval_key(prefix: &str, user: &str, id: RequestId) -> String {
    format!("{}{user}/{}", approvals_below(prefix), Uuid::from_u128(id.0))
}

fn hex(digest: Digest) -> String {
    digest.0.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn unhex(text: &[u8]) -> Option<Digest> {
    let text = str::from_utf8(text).ok().filter(|text| text.len() == 64)?;
    let mut digest = [0; 32];
    for (byte, index) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(index..index + 2)?, 16).ok()?;
    }
    Some(Digest(digest))
}

fn id_of(text: &str) -> Option<RequestId> {
    Some(RequestId(text.parse::<Uuid>().ok()?.as_u128()))
}

/// Whose approval a key is: the name ends at the first slash, or whoever may write below one name could make up others.
fn approval_of(prefix: &str, pair: &KeyValue) -> Option<(RequestId, Approval)> {
    let key = str::from_utf8(pair.key()).ok()?;
    let (user, id) = key.strip_prefix(&approvals_below(prefix))?.split_once('/')?;
    let approval = Approval {
        approver: user.to_owned(),
        digest: unhex(pair.value())?,
    };
    Some((id_of(id)?, approval)).filter(|_| !user.is_empty() && user != NOBODY)
}

/// Requests as the keys have them, and the keys themselves.
fn read(prefix: &str, pairs: &[KeyValue]) -> Result<Vec<(Request, SeenRequest)>> {
    let mut asks: BTreeMap<RequestId, (Ask, Digest, SeenRequest)> = BTreeMap::new();
    let mut done: BTreeMap<RequestId, String> = BTreeMap::new();
    let mut approvals: BTreeMap<RequestId, Vec<Approval>> = BTreeMap::new();
    let (requests, mut of_requests) = (requests_below(prefix), Vec::new());
    for pair in pairs {
        let key = String::from_utf8_lossy(pair.key()).into_owned();
        if let Some((id, approval)) = approval_of(prefix, pair) {
            approvals.entry(id).or_default().push(approval);
            of_requests.push((id, key, pair.mod_revision()));
            continue;
        }
        let Some((id, part)) = key.strip_prefix(&requests).and_then(|key| key.split_once('/')) else {
            continue;
        };
        let Some(id) = id_of(id) else { continue };
        let text = String::from_utf8_lossy(pair.value());
        match part {
            "ask" => {
                let ask = read_text(id, &text)?;
                let seen = SeenRequest {
                    keys: vec![(key.clone(), pair.mod_revision())],
                };
                asks.insert(id, (ask, Digest::of(&text), seen));
            }
            "done" => {
                let outcome = serde_json::from_str::<DoneValue>(&text).map(|done| done.outcome);
                done.insert(id, outcome.unwrap_or_else(|_| text.into_owned()));
            }
            _ => {}
        }
    }
    for (id, key, revision) in of_requests {
        if let Some((_, _, seen)) = asks.get_mut(&id) {
            seen.keys.push((key, revision));
        }
    }
    let request = |(id, (ask, digest, seen))| {
        let request = Request {
            ask,
            digest,
            approvals: approvals.remove(&id).unwrap_or_default(),
            done: done.remove(&id),
        };
        (request, seen)
    };
    Ok(asks.into_iter().map(request).collect())
}

/// May this connection write the key? Nothing is written: etcd judges both branches of a transaction, and takes the empty
/// one. `readable` is a key that it may read.
async fn may_write(link: &mut Link, readable: String, key: String) -> Result<bool> {
    let mut kv = link.client().await?.kv_client();
    let never = Compare::version(readable, CompareOp::Greater, i64::MAX - 1);
    let put = TxnOp::put(key, "", None);
    let probe = kv.txn(Txn::new().when([never]).and_then([put]));
    match link.request(Effect::None, probe).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind == StoreErrorKind::Denied && error.message.contains("permission denied") => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl EtcdStore {
    /// Users tell people apart only where we, who may write all else, may not write approvals.
    async fn has_approvers(&mut self) -> Result<bool> {
        let key = approval_key(&self.config.prefix, NOBODY, RequestId(0));
        Ok(!may_write(&mut self.link, self.keys.cell(), key).await?)
    }

    async fn read_requests(&mut self) -> Result<Vec<(Request, SeenRequest)>> {
        let prefix = self.config.prefix.clone();
        let below = |key| TxnOp::get(key, Some(GetOptions::new().with_prefix()));
        let look = Txn::new().and_then([below(requests_below(&prefix)), below(approvals_below(&prefix))]);
        let mut kv = self.client().await?.kv_client();
        let answer = self.request(Effect::None, kv.txn(look)).await.map_err(|error| {
            let hint = format!(
                " (hint: the role of idgend needs read on {}: see \"Who may approve\" in docs/operations.md)",
                approvals_below(&prefix)
            );
            let denied = error.kind == StoreErrorKind::Denied && error.message.contains("permission denied");
            let message = if denied {
                error.message.clone() + &hint
            } else {
                error.message.clone()
            };
            StoreError::new(error.kind, message)
        })?;
        self.judge_look(&answer)?;
        let pairs: Vec<KeyValue> = answer
            .op_responses()
            .into_iter()
            .flat_map(|response| match response {
                TxnOpResponse::Get(mut answer) => answer.take_kvs(),
                _ => Vec::new(),
            })
            .collect();
        read(&prefix, &pairs)
    }

    /// What guards the use of a request, and what uses it.
    fn used(&self, request: &Request, outcome: &str) -> Result<(Vec<Compare>, TxnOp)> {
        let id = request.ask.id;
        let seen = self.requests_seen.get(&id).ok_or_else(not_as_expected)?;
        let done = format!(
            "{}{}/done",
            requests_below(&self.config.prefix),
            Uuid::from_u128(id.0)
        );
        let as_seen =
            |(key, revision): &(String, i64)| Compare::mod_revision(key.clone(), CompareOp::Equal, *revision);
        let mut guards: Vec<Compare> = seen.keys.iter().map(as_seen).collect();
        guards.push(Compare::create_revision(done.clone(), CompareOp::Equal, 0));
        let value = DoneValue {
            at_ms: super::host_clock().0,
            outcome: outcome.to_owned(),
            approved_by: request.approvers().into_iter().collect(),
        };
        Ok((guards, TxnOp::put(done, encode(&value)?, None)))
    }
}

impl RequestStore for EtcdStore {
    async fn asked(&mut self) -> Result<Asked> {
        let read = self.read_requests().await?;
        let set = self
            .survey_keys()
            .await?
            .and_then(|_| self.cell.approvals_needed());
        let needed = Needed {
            set,
            has_two: self.has_approvers().await?,
        };
        let (mut requests, mut seen) = (Vec::new(), BTreeMap::new());
        for (request, keys) in read {
            seen.insert(request.ask.id, keys);
            requests.push(request);
        }
        self.requests_seen = seen;
        requests.sort_by_key(|request| std::cmp::Reverse(request.ask.at));
        Ok(Asked { needed, requests })
    }

    async fn ask(&mut self, ask: &Ask) -> Result<()> {
        let id = Uuid::from_u128(ask.id.0);
        let key = format!("{}{id}/ask", requests_below(&self.config.prefix));
        let new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key, text_of(ask)?, None);
        self.commit_planned(Txn::new().when([new]).and_then([put])).await
    }

    async fn force_release(&mut self, request: &Request, row: &Row, order: &Order) -> Result<()> {
        let keys = self.keys.of(order.class);
        let (holder, high_water) = (keys.holder(row.identity), keys.high_water(row.identity));
        let (mut guards, done) = self.used(request, "the identity was taken from its holder")?;
        guards.extend([
            self.cell_unchanged(),
            Compare::create_revision(holder.clone(), CompareOp::Equal, signed(order.token.revision)?),
            Compare::mod_revision(high_water.clone(), CompareOp::Equal, signed(row.revision)?),
        ]);
        let left = HighWaterValue {
            generation: row.generation,
            ceiling_ms: row.ceiling.0,
            exact: false,
            epoch: order.token.epoch.0,
            forced: Some(Uuid::from_u128(request.ask.id.0)),
        };
        let puts = vec![
            TxnOp::delete(holder, None),
            TxnOp::put(high_water, encode(&left)?, None),
            orders::put(&self.config.prefix, order)?,
            done,
        ];
        self.commit_planned(Txn::new().when(guards).and_then(puts)).await
    }

    async fn advance_by(&mut self, request: &Request, plan: &AdvancePlan) -> Result<()> {
        let outcome = format!("epoch {} has begun", plan.to.0);
        let (guards, done) = self.used(request, &outcome)?;
        self.advance_guarded(plan, guards, vec![done]).await
    }

    async fn need(&mut self, request: &Request, approvals: u32) -> Result<()> {
        let outcome = format!("{approvals} people are needed from now on");
        let (mut guards, done) = self.used(request, &outcome)?;
        guards.push(self.cell_unchanged());
        let cell = TxnOp::put(self.keys.cell(), self.cell.needing(approvals)?, None);
        self.commit_planned(Txn::new().when(guards).and_then([cell, done]))
            .await
    }
}

/// Somebody who approves, as the user that etcd knows by these credentials.
pub struct EtcdApprover {
    link: Link,
    prefix: String,
    name: String,
}

impl EtcdApprover {
    /// Connects with the first request. An error: the credentials name nobody.
    pub fn new(
        endpoints: Vec<String>,
        prefix: String,
        limit: Duration,
        security: EtcdSecurity,
    ) -> Result<Self> {
        let nobody = |why: String| StoreError::new(StoreErrorKind::Denied, why);
        let name = security.user_name().map_err(nobody)?;
        if name.is_empty() || name.contains('/') || name == NOBODY {
            return Err(nobody(format!(
                "the user \"{name}\" cannot approve: its name is part of a key"
            )));
        }
        let probe = approval_key(&prefix, &name, RequestId(0));
        Ok(Self {
            link: Link::new(endpoints, security, limit, probe),
            prefix,
            name,
        })
    }

    /// Approves the request with this text, if it can be nobody else who does. `others`: who has approved it.
    pub async fn approve(&mut self, ask: &Request) -> Result<String> {
        let id = ask.ask.id;
        let own = approval_key(&self.prefix, &self.name, id);
        let mut others: BTreeSet<String> = ask
            .approvals
            .iter()
            .map(|approval| approval.approver.clone())
            .collect();
        others.remove(&self.name);
        others.insert(NOBODY.to_owned());
        for other in others {
            let key = approval_key(&self.prefix, &other, id);
            if may_write(&mut self.link, own.clone(), key).await? {
                let message = format!(
                    "the user {} of etcd can write approvals of others, or etcd asks nobody who they are: so it is nobody in \
                     particular (hint: see \"Who may approve\" in docs/operations.md)",
                    self.name
                );
                return Err(StoreError::new(StoreErrorKind::Denied, message));
            }
        }
        let mut client = self.link.client().await?;
        let put = client.put(own, hex(ask.digest), None);
        self.link.request(Effect::None, put).await?;
        Ok(self.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of("a");
        assert_eq!(unhex(hex(digest).as_bytes()), Some(digest));
        for wrong in [&b""[..], b"ab", &[b'x'; 64], "é".repeat(32).as_bytes()] {
            assert_eq!(unhex(wrong), None);
        }
    }
}
