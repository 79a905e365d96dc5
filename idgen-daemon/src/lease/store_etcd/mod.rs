//! The lease store for production: an etcd cluster.
//!
//! ```text
//!  PREFIX/cell         the cell; never deleted
//!  PREFIX/w/ID/hw      high water and generation of a worker; never deleted, no etcd lease
//!  PREFIX/w/ID/holder  who holds it; on an etcd lease, so it goes when nobody renews
//!  PREFIX/s/ID/...     the same of a shard
//!  PREFIX/shards       how many shards have keys
//!  PREFIX/order/w/ID   what an operator has ordered last of a holder of the worker; PREFIX/order/s/ID of the shard
//!  PREFIX/drain/NAME   whether the server of this name is drained
//!  PREFIX/epoch/N      how epoch N began; never deleted
//!  PREFIX/request/...  what needs two people, see `requests.rs`
//!  PREFIX/named/...    named leases and their ceilings, see `named.rs`
//! ```
//! The token is (epoch, create revision of the holder key), the guard the mod revision of `hw`; both are
//! the revision of the transaction that wrote them, hence one number for all identities of a grant.
//!
//! Renewal is a *re-grant*: a new etcd lease and one guarded transaction that moves the holder keys onto
//! it. The keepalive stream is not used: members that were cut off answer it without asking a quorum
//! (etcd #15247, seen with 3.4.23), a transaction goes through raft. Reads are linearizable.
//!
//! A key that somebody deletes must not go unnoticed: the high waters of all workers are made with the cell, those of
//! shards are counted in one key, and every look compares.

mod beacons;
mod drains;
#[cfg(fuzzing)]
pub mod fuzzing;
mod leases;
mod link;
mod listen;
mod log;
mod look;
mod named;
mod orders;
mod pins;
mod requests;
mod shards;
mod stripes;
mod value;
mod watch;

use self::beacons::BeaconValue;
use self::leases::EtcdLease;
use self::link::{Effect, Link};
use self::look::header_of;
use self::named::SeenName;
use self::pins::Pins;
use self::requests::SeenRequest;
use self::value::{HighWaterValue, HolderValue, Keys, SeenCell, ShardsValue};
use super::beacons::Shown;
use super::clock::host_clock;
use super::store::{
    CellStore, Committed, Expected, HolderName, LeaseStore, Renewal, Seal, StoreError, StoreErrorKind,
    check_plan,
};
use etcd_client::{Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnResponse};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::RequestId;
use idgen_core::lease::ledger::shows_claim;
use idgen_core::lease::named::LeaseName;
use idgen_core::lease::{
    AdvancePlan, BootId, Class, Epoch, EpochNonce, GrantPlan, Identity, Leased, Mark, Orders, Revision,
    Snapshot, Survey, SwitchPlan, Tenancy, Token,
};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use uuid::Uuid;

pub use self::beacons::EtcdBeacons;
pub use self::link::{EtcdSecurity, EtcdUser, Password};
pub(crate) use self::log::EtcdLog;
pub use self::orders::EtcdOrders;
pub use self::requests::EtcdApprover;
pub use self::shards::EtcdShards;

type Result<T> = std::result::Result<T, StoreError>;

/// How many identities fit into a transaction of `ops` operations, which etcd counts apart for comparisons and for puts.
/// Two are for each identity, one compares the cell or puts the beacon, one counts new shards or compares the orders. They are granted and
/// renewed at one revision, which is their token, so a lease is never cut in two.
pub const fn identities_at_once(ops: usize) -> usize {
    ops.saturating_sub(2) / 2
}

/// What the adapter works with.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Whose keys.
    pub class: Class,
    /// Client URLs of the members.
    pub endpoints: Vec<String>,
    /// TLS and user.
    pub security: EtcdSecurity,
    /// Prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// Limit for connecting, and for each request.
    pub request_timeout: Duration,
    /// TTL of grants and renewals; whole seconds.
    pub ttl_ms: u64,
    /// Who asks.
    pub holder: HolderName,
}

/// See the module.
pub struct EtcdStore {
    config: EtcdConfig,
    keys: Keys,
    link: Link,
    pins: Pins,
    /// What a store that is empty is judged by.
    expected: Expected,
    /// The cell as last seen: whatever is written was planned on it.
    cell: SeenCell,
    /// Generations as last seen or granted.
    generations: BTreeMap<Identity, u64>,
    /// Ceilings as last seen or asked for: a key's revision guards that it is as it was, not what is put there.
    ceilings: BTreeMap<Identity, UnixMs>,
    /// Mod revisions of the high waters of workers that were never leased, as last seen.
    blanks: BTreeMap<Identity, i64>,
    /// How many shards have keys, and the mod revision of that count, as last seen.
    shards: (u64, i64),
    /// What operators have ordered, and the revision of the store that it was looked for at.
    orders: Orders,
    orders_seen: i64,
    /// The etcd leases that holder keys of ours are on, and which. More than one between a grant beside others and the
    /// renewal that moves all keys onto one.
    leases: BTreeMap<i64, BTreeSet<Identity>>,
    /// The etcd leases of named leases.
    named_leases: BTreeMap<LeaseName, i64>,
    /// Names as last seen.
    names: BTreeMap<LeaseName, SeenName>,
    revokes: JoinSet<()>,
    /// Requests as last seen.
    requests_seen: BTreeMap<RequestId, SeenRequest>,
    /// What is told the other servers beside the leases.
    shown: Shown,
}

impl EtcdStore {
    /// Connects at the first request.
    pub fn new(config: EtcdConfig) -> Self {
        let keys = Keys::new(&config.prefix, config.class);
        let (endpoints, security) = (config.endpoints.clone(), config.security.clone());
        Self {
            link: Link::new(endpoints, security, config.request_timeout, keys.cell()),
            keys,
            config,
            pins: Pins::default(),
            expected: Expected::Unknown,
            cell: SeenCell::default(),
            generations: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            blanks: BTreeMap::new(),
            shards: (0, 0),
            orders: Orders::new(),
            orders_seen: 0,
            leases: BTreeMap::new(),
            named_leases: BTreeMap::new(),
            names: BTreeMap::new(),
            revokes: JoinSet::new(),
            requests_seen: BTreeMap::new(),
            shown: Shown::default(),
        }
    }

    /// Tells the other servers what this shows, with every grant and renewal.
    #[must_use]
    pub fn showing(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// What our server's clock shows now, as a change of the store.
    fn beacon(&self, lease: EtcdLease) -> Result<Option<TxnOp>> {
        let Some(beacon) = self.shown.at(Instant::now()) else {
            return Ok(None);
        };
        let key = beacons::key(
            &self.config.prefix,
            self.config.holder.instance,
            self.config.class,
        );
        let on_lease = PutOptions::new().with_lease(lease.id);
        Ok(Some(TxnOp::put(
            key,
            encode(&BeaconValue::of(beacon))?,
            Some(on_lease),
        )))
    }

    async fn client(&mut self) -> Result<Client> {
        self.link.client().await
    }

    async fn request<T>(
        &mut self,
        effect: Effect,
        request: impl Future<Output = std::result::Result<T, Error>>,
    ) -> Result<T> {
        self.link.request(effect, request).await
    }

    /// Runs a guarded transaction that puts holder keys on a new lease.
    async fn commit(
        &mut self,
        lease: EtcdLease,
        identities: BTreeSet<Identity>,
        guards: Vec<Compare>,
        mut puts: Vec<TxnOp>,
    ) -> Result<Committed> {
        puts.extend(self.beacon(lease)?);
        let answer = self.write(Txn::new().when(guards).and_then(puts)).await;
        match &answer {
            Ok(answer) if answer.succeeded() => {
                self.leave_leases(&identities).await;
                self.leases.insert(lease.id, identities);
            }
            // It may carry holder keys now; the next look tells.
            Err(error) if error.kind == StoreErrorKind::Unknown => {}
            _ => self.revoke(lease.id).await,
        }
        let answer = answer?;
        if !answer.succeeded() {
            return Err(not_as_expected());
        }
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Committed {
            revision: Revision(u64::try_from(revision).unwrap_or(0)),
            ttl_ms: lease.ttl_ms,
        })
    }

    async fn write(&mut self, txn: Txn) -> Result<TxnResponse> {
        let mut kv = self.client().await?.kv_client();
        let answer = self.request(Effect::Unknown, kv.txn(txn)).await?;
        self.judge_write(&answer)?;
        Ok(answer)
    }

    /// Writes what was planned on the last look; `Conflict` where the store is another one by now.
    async fn commit_planned(&mut self, txn: Txn) -> Result<()> {
        if self.write(txn).await?.succeeded() {
            Ok(())
        } else {
            Err(not_as_expected())
        }
    }

    fn judge_write(&mut self, answer: &TxnResponse) -> Result<()> {
        let (cluster_id, revision) = header_of(answer.header())?;
        let judged = self.pins.judge_write(cluster_id, revision);
        judged.inspect_err(|_| self.link.rotate())
    }

    /// The revision of a look that may be believed; else another member is asked the next time.
    fn judge_look(&mut self, answer: &TxnResponse) -> Result<i64> {
        let (cluster_id, revision) = header_of(answer.header())?;
        let judged = self.pins.judge_look(cluster_id, revision);
        judged.inspect_err(|_| self.link.rotate())?;
        Ok(revision)
    }

    fn cell_unchanged(&self) -> Compare {
        Compare::mod_revision(self.keys.cell(), CompareOp::Equal, self.cell.revision)
    }

    /// The revision guards what was seen last, which may be newer than what the caller has planned with.
    fn check_cell(&self, epoch: (Epoch, EpochNonce), formats: &str) -> Result<()> {
        check_plan(self.cell.epoch == Some(epoch), self.cell.formats == formats)
    }

    /// Guards and counts the keys that a grant makes, so that one that is deleted later is missed.
    fn count_new_shards(&self, plan: &GrantPlan) -> Result<Option<(Compare, TxnOp)>> {
        let new = plan
            .grants
            .iter()
            .filter(|planned| planned.seen.is_none())
            .count() as u64;
        if new == 0 || self.keys.class() != Class::Shard {
            return Ok(None);
        }
        let (made, revision) = self.shards;
        let key = self.keys.shards();
        let counted = ShardsValue { made: made + new };
        Ok(Some((
            Compare::mod_revision(key.clone(), CompareOp::Equal, revision),
            TxnOp::put(key, encode(&counted)?, None),
        )))
    }

    /// Deletes the holder keys that the plan replaces: the token is the revision that its key was *made*
    /// at, so a new grant needs a new key. Nobody mints from them, and the high waters stay, so nothing
    /// is lost when the grant does not follow.
    async fn clear_remains(&mut self, plan: &GrantPlan) -> Result<()> {
        let mut guards = vec![self.cell_unchanged()];
        let mut deletes = Vec::new();
        for planned in &plan.grants {
            if let Some(token) = planned.replaces {
                let holder = self.keys.holder(planned.leased.identity);
                let made = signed(token.revision)?;
                guards.push(Compare::create_revision(holder.clone(), CompareOp::Equal, made));
                deletes.push(TxnOp::delete(holder, None));
            }
        }
        if deletes.is_empty() {
            return Ok(());
        }
        let mut kv = self.client().await?.kv_client();
        let clear = kv.txn(Txn::new().when(guards).and_then(deletes));
        let answer = self.request(Effect::None, clear).await?;
        self.judge_write(&answer)?;
        if answer.succeeded() {
            Ok(())
        } else {
            Err(not_as_expected())
        }
    }

    /// The holder key and the high water of one identity, as a grant or renewal writes them.
    fn puts(&self, leased: Leased, epoch: Epoch, boot_id: BootId, lease: EtcdLease) -> Result<[TxnOp; 2]> {
        let HolderName { instance, name } = &self.config.holder;
        let identity = leased.identity;
        let holder = HolderValue {
            holder: Uuid::from_u128(instance.0),
            holder_name: name.clone(),
            token_epoch: epoch.0,
            boot_id: Uuid::from_u128(boot_id.0),
            ttl_ms: Some(lease.ttl_ms),
            put_at_ms: Some(host_clock().0),
        };
        let high_water = HighWaterValue {
            generation: self.generations.get(&identity).copied().unwrap_or_default(),
            ceiling_ms: leased.window.ceiling.0,
            exact: false,
            epoch: epoch.0,
            forced: None,
        };
        let on_lease = PutOptions::new().with_lease(lease.id);
        Ok([
            TxnOp::put(self.keys.holder(identity), encode(&holder)?, Some(on_lease)),
            TxnOp::put(self.keys.high_water(identity), encode(&high_water)?, None),
        ])
    }

    /// Gives up holder keys and writes down the exact ends; false: the latter was refused. An etcd that is full takes
    /// deletes alone. Then the ceilings stay in the high waters, and the next holders begin above them.
    async fn release_exactly(
        &mut self,
        guards: Vec<Compare>,
        exact_ends: Vec<TxnOp>,
        deletes: Vec<TxnOp>,
    ) -> Result<bool> {
        let all = [exact_ends, deletes.clone()].concat();
        let (answer, exact) = match self.write(Txn::new().when(guards.clone()).and_then(all)).await {
            Ok(answer) => (answer, true),
            Err(error) if error.kind == StoreErrorKind::Denied => {
                let answer = self.write(Txn::new().when(guards).and_then(deletes)).await;
                // The first error says more.
                let answer = answer.map_err(|_| error.clone())?;
                tracing::warn!("identities are given back without their exact ends: {error}");
                (answer, false)
            }
            Err(error) => return Err(error),
        };
        if answer.succeeded() {
            Ok(exact)
        } else {
            Err(not_as_expected())
        }
    }

    /// No ceiling of these is lowered. One that was asked for and not committed is forgotten with the next look.
    fn raise_ceilings(&mut self, leased: impl Iterator<Item = Leased>) -> Result<()> {
        for Leased { identity, window } in leased {
            let known = self.ceilings.entry(identity).or_default();
            if window.ceiling < *known {
                return Err(not_as_expected());
            }
            *known = window.ceiling;
        }
        Ok(())
    }

    /// An identity is held under the token, and its high water is as it was left.
    fn held_unchanged(&self, identity: Identity, token: Token, guard: Revision) -> Result<[Compare; 2]> {
        let token = signed(token.revision)?;
        Ok([
            Compare::create_revision(self.keys.holder(identity), CompareOp::Equal, token),
            Compare::mod_revision(self.keys.high_water(identity), CompareOp::Equal, signed(guard)?),
        ])
    }
}

impl LeaseStore for EtcdStore {
    fn expect(&mut self, expected: Expected) {
        self.expected = expected;
    }

    async fn read(&mut self) -> Result<Snapshot> {
        self.look().await
    }

    async fn grant(&mut self, plan: &GrantPlan) -> Result<Committed> {
        self.check_cell((plan.epoch, plan.epoch_nonce), &plan.formats)?;
        self.raise_ceilings(plan.grants.iter().map(|planned| planned.leased))?;
        self.clear_remains(plan).await?;
        let lease = self.new_lease().await?;
        let mut guards = vec![self.cell_unchanged()];
        let mut puts = Vec::with_capacity(plan.grants.len() * 2);
        for planned in &plan.grants {
            let identity = planned.leased.identity;
            // A key that does not exist has revision 0.
            let never_leased = self.blanks.get(&identity).copied().unwrap_or(0);
            let seen = planned.seen.map_or(Ok(never_leased), signed)?;
            guards.push(Compare::create_revision(
                self.keys.holder(identity),
                CompareOp::Equal,
                0,
            ));
            guards.push(Compare::mod_revision(
                self.keys.high_water(identity),
                CompareOp::Equal,
                seen,
            ));
            self.generations.insert(identity, planned.generation);
            puts.extend(self.puts(planned.leased, plan.epoch, plan.boot_id, lease)?);
        }
        if let Some((guard, put)) = self.count_new_shards(plan)? {
            guards.push(guard);
            puts.push(put);
        }
        let identities = plan
            .grants
            .iter()
            .map(|planned| planned.leased.identity)
            .collect();
        self.commit(lease, identities, guards, puts).await
    }

    async fn renew(&mut self, renewal: &Renewal) -> Result<Committed> {
        self.check_cell((renewal.epoch, renewal.epoch_nonce), &renewal.formats)?;
        if self.orders.against(&renewal.leased).is_some() {
            return Err(ordered());
        }
        self.raise_ceilings(renewal.leased.iter().map(Tenancy::leased))?;
        let lease = self.new_lease().await?;
        let mut guards = vec![self.cell_unchanged(), self.no_new_order()];
        let mut puts = Vec::with_capacity(renewal.leased.len() * 2);
        for tenancy in &renewal.leased {
            guards.extend(self.held_unchanged(tenancy.identity, tenancy.token, tenancy.guard)?);
            puts.extend(self.puts(tenancy.leased(), renewal.epoch, renewal.boot_id, lease)?);
        }
        // Whatever else was on a lease of ours is not ours any more.
        for keys in self.leases.values_mut() {
            keys.retain(|identity| renewal.leased.iter().any(|tenancy| tenancy.identity == *identity));
        }
        let identities = renewal.leased.iter().map(|tenancy| tenancy.identity).collect();
        self.commit(lease, identities, guards, puts).await
    }

    async fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> Result<Vec<Mark>> {
        let seen = self.look().await?;
        let still = |mark: &&Mark| {
            let ceiling = seen.row(mark.claim.identity).map(|row| row.ceiling);
            shows_claim(&seen, mark.claim, boot_id) && ceiling >= Some(mark.last)
        };
        let released: Vec<Mark> = marks.iter().filter(still).copied().collect();
        if released.is_empty() {
            return Ok(released);
        }
        let mut guards = vec![self.cell_unchanged()];
        let (mut exact_ends, mut deletes) = (Vec::new(), Vec::new());
        for mark in &released {
            let (identity, token) = (mark.claim.identity, mark.claim.token);
            let guard = seen.row(identity).map_or(Revision(0), |row| row.revision);
            guards.extend(self.held_unchanged(identity, token, guard)?);
            let high_water = HighWaterValue {
                generation: self.generations.get(&identity).copied().unwrap_or_default(),
                ceiling_ms: mark.last.0,
                exact: true,
                epoch: token.epoch.0,
                forced: None,
            };
            self.ceilings.insert(identity, mark.last);
            exact_ends.push(TxnOp::put(
                self.keys.high_water(identity),
                encode(&high_water)?,
                None,
            ));
            deletes.push(TxnOp::delete(self.keys.holder(identity), None));
        }
        let exact = self.release_exactly(guards, exact_ends, deletes).await?;
        self.leave_leases(&released.iter().map(|mark| mark.claim.identity).collect())
            .await;
        Ok(if exact { released } else { Vec::new() })
    }

    async fn seal(&mut self, seal: &Seal) -> Result<bool> {
        let Some((survey, _)) = self.survey_keys().await? else {
            return Ok(true);
        };
        // A member that was paused may have answered twice with an old revision.
        if survey.is_all_that(self.keys.class(), &seal.remembered) {
            return Ok(false);
        }
        let is_sealed = survey.sealed_reason.is_some();
        let known = survey.known.sealed_with(&seal.known, &survey.cell, is_sealed);
        let Some(known) = known.filter(|_| survey.cell.cell_id == seal.cell_id) else {
            return Ok(true);
        };
        let reason = survey.sealed_reason.as_ref().unwrap_or(&seal.reason);
        let at = survey.sealed_at.unwrap_or(survey.now);
        let value = self.cell.sealed(reason, at, &known)?;
        let put = TxnOp::put(self.keys.cell(), value, None);
        self.change_cell(vec![put]).await?;
        Ok(true)
    }
}

impl CellStore for EtcdStore {
    /// etcd has no clock that it would tell; hosts of one cell agree to a second or so.
    async fn clock(&mut self) -> Result<UnixMs> {
        Ok(host_clock())
    }

    async fn survey(&mut self) -> Result<Option<Survey>> {
        Ok(self.survey_keys().await?.map(|(survey, _)| survey))
    }

    async fn advance(&mut self, plan: &AdvancePlan) -> Result<()> {
        self.advance_guarded(plan, Vec::new(), Vec::new()).await
    }

    async fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        if self.cell.formats != plan.seen {
            return Err(not_as_expected());
        }
        let value = self.cell.switched(&plan.formats, plan.min_floor)?;
        // One comparison for all: no key of any worker is younger than the look that this was planned on.
        let workers = self.keys.below(Class::Worker);
        let after = self.cell.looked_at + 1;
        let no_grant = Compare::mod_revision(workers, CompareOp::Less, after).with_prefix();
        let put = TxnOp::put(self.keys.cell(), value, None);
        let switch = Txn::new().when([self.cell_unchanged(), no_grant]).and_then([put]);
        self.commit_planned(switch).await
    }
}

fn not_as_expected() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "the keys are not as expected")
}

/// The store says it before it asks, for it has seen the order with a look.
fn ordered() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "an operator has ordered that the lease ends",
    )
}

fn signed(revision: Revision) -> Result<i64> {
    i64::try_from(revision.0).map_err(|_| StoreError::new(StoreErrorKind::Denied, "a revision is too large"))
}

fn encode(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::new(StoreErrorKind::Denied, format!("write a value: {error}")))
}
