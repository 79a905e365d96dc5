//! The lease store for production: an etcd cluster.
//!
//! ```text
//!  PREFIX/cell         the cell; never deleted
//!  PREFIX/w/ID/hw      high water and generation of a worker; never deleted, no etcd lease
//!  PREFIX/w/ID/holder  who holds it; on an etcd lease, so it goes when nobody renews
//!  PREFIX/s/ID/...     the same of a shard
//! ```
//! The token is (epoch, create revision of the holder key), the guard the mod revision of `hw`; both are
//! the revision of the transaction that wrote them, hence one number for all identities of a grant.
//!
//! Renewal is a *re-grant*: a new etcd lease and one guarded transaction that moves the holder keys onto
//! it. The keepalive stream is not used: members that were cut off answer it without asking a quorum
//! (etcd #15247, seen with 3.4.23), a transaction goes through raft. Reads are linearizable.
//!
//! What this adapter cannot see: a restore under the same cluster token while the daemon was not
//! running. The cluster id and the highest revision are pinned in memory only.

mod beacons;
#[cfg(fuzzing)]
pub mod fuzzing;
mod link;
mod pins;
mod value;

use self::beacons::BeaconValue;
use self::link::{Effect, Link};
use self::pins::Pins;
use self::value::{CellValue, Found, HighWaterValue, HolderValue, Keys, SeenCell, SeenStore, decode};
use super::beacons::Shown;
use super::store::{CellStore, Committed, HolderName, LeaseStore, Renewal, StoreError, StoreErrorKind};
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, GetResponse, KvClient, PutOptions, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::shows_claim;
use idgen_core::lease::{
    BootId, Class, Epoch, GrantPlan, Identity, Leased, Mark, Revision, Snapshot, SwitchPlan, Token,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use uuid::Uuid;

pub use self::beacons::EtcdBeacons;
pub use self::link::{EtcdSecurity, EtcdUser, Password, Secret};

type Result<T> = std::result::Result<T, StoreError>;

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
    /// The cell as last seen: whatever is written was planned on it.
    cell: SeenCell,
    /// Generations as last seen or granted.
    generations: BTreeMap<Identity, u64>,
    /// The etcd lease that the holder keys are on.
    lease_id: Option<i64>,
    revokes: JoinSet<()>,
    /// What is told the other servers beside the leases.
    shown: Shown,
}

#[derive(Clone, Copy)]
struct EtcdLease {
    id: i64,
    ttl_ms: u64,
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
            cell: SeenCell::default(),
            generations: BTreeMap::new(),
            lease_id: None,
            revokes: JoinSet::new(),
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

    /// Judges the header of an answer about keys.
    fn judge(&mut self, header: Option<&etcd_client::ResponseHeader>) -> Result<()> {
        let header = header.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unreachable,
                "etcd sent an answer without a header",
            )
        })?;
        let judged = self.pins.judge(header.cluster_id(), header.revision());
        if judged.is_err() {
            self.link.rotate();
        }
        judged
    }

    async fn look(&mut self) -> Result<SeenStore> {
        let mut kv = self.client().await?.kv_client();
        if let Some(seen) = self.look_once(&mut kv).await? {
            return Ok(seen);
        }
        let cell = CellValue::fresh(self.pins.cluster_id());
        let key = self.keys.cell();
        let make = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key, encode(&cell)?, None)]);
        self.request(Effect::None, kv.txn(make)).await?;
        let seen = self.look_once(&mut kv).await?;
        seen.ok_or_else(|| StoreError::new(StoreErrorKind::Unreachable, "the cell's key cannot be made"))
    }

    /// The cell and our class at one revision. `None`: there is no cell yet.
    async fn look_once(&mut self, kv: &mut KvClient) -> Result<Option<SeenStore>> {
        let count = |class| {
            let options = GetOptions::new().with_prefix().with_count_only();
            TxnOp::get(self.keys.below(class), Some(options))
        };
        let mut gets = vec![
            TxnOp::get(self.keys.cell(), None),
            TxnOp::get(self.keys.ours(), Some(GetOptions::new().with_prefix())),
        ];
        gets.extend(Class::ALL.map(count));
        let look = kv.txn(Txn::new().and_then(gets));
        let answer = self.request(Effect::None, look).await?;
        self.judge(answer.header())?;
        let answers: Vec<GetResponse> = answer
            .op_responses()
            .into_iter()
            .filter_map(|response| match response {
                TxnOpResponse::Get(answer) => Some(answer),
                _ => None,
            })
            .collect();
        let [cell, ours, counts @ ..] = &answers[..] else {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "etcd left an answer out",
            ));
        };
        let found = Found {
            cell: cell.kvs().first(),
            ours: ours.kvs(),
            leased_keys: counts.iter().map(GetResponse::count).sum(),
        };
        let Some(seen) = decode(&self.keys, &found)? else {
            return Ok(None);
        };
        self.pins.judge_cell(seen.cluster_id)?;
        if let Some(reason) = &seen.sealed_reason {
            return Err(StoreError::new(
                StoreErrorKind::Sealed,
                format!("the cell is sealed: {reason}"),
            ));
        }
        self.cell = SeenCell {
            revision: seen.cell_guard,
            looked_at: answer.header().map_or(0, etcd_client::ResponseHeader::revision),
            formats: seen.snapshot.cell.worker_format.clone(),
            value: cell
                .kvs()
                .first()
                .map_or_else(Vec::new, |pair| pair.value().to_vec()),
        };
        self.generations = seen
            .snapshot
            .rows()
            .iter()
            .map(|row| (row.identity, row.generation))
            .collect();
        Ok(Some(seen))
    }

    /// A new etcd lease. What the server grants counts, not what was asked for.
    async fn new_lease(&mut self) -> Result<EtcdLease> {
        let mut leases = self.client().await?.lease_client();
        let ttl_s = i64::try_from(self.config.ttl_ms / 1_000).unwrap_or(i64::MAX);
        let answer = self.request(Effect::None, leases.grant(ttl_s, None)).await?;
        let ttl_s = u64::try_from(answer.ttl()).unwrap_or(0);
        Ok(EtcdLease {
            id: answer.id(),
            ttl_ms: ttl_s.saturating_mul(1_000),
        })
    }

    /// In the background: a lease that is not revoked expires all the same.
    async fn revoke(&mut self, lease_id: i64) {
        while self.revokes.try_join_next().is_some() {}
        let Ok(client) = self.client().await else { return };
        let mut leases = client.lease_client();
        let limit = self.config.request_timeout;
        self.revokes.spawn(async move {
            if !matches!(
                tokio::time::timeout(limit, leases.revoke(lease_id)).await,
                Ok(Ok(_))
            ) {
                tracing::debug!(lease_id, "an etcd lease was not revoked; it expires");
            }
        });
    }

    /// Runs a guarded transaction that puts holder keys on a new lease.
    async fn commit(
        &mut self,
        lease: EtcdLease,
        guards: Vec<Compare>,
        mut puts: Vec<TxnOp>,
    ) -> Result<Committed> {
        puts.extend(self.beacon(lease)?);
        let answer = self.write(Txn::new().when(guards).and_then(puts)).await;
        match &answer {
            Ok(answer) if answer.succeeded() => {
                if let Some(old) = self.lease_id.replace(lease.id) {
                    self.revoke(old).await;
                }
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
        self.judge(answer.header())?;
        Ok(answer)
    }

    fn cell_unchanged(&self) -> Compare {
        Compare::mod_revision(self.keys.cell(), CompareOp::Equal, self.cell.revision)
    }

    /// The revision guards what was seen last, which may be newer than what the caller has planned with.
    fn check_formats(&self, planned_with: &str) -> Result<()> {
        if planned_with == self.cell.formats {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the worker format was switched",
        ))
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
        self.judge(answer.header())?;
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
        };
        let high_water = HighWaterValue {
            generation: self.generations.get(&identity).copied().unwrap_or_default(),
            ceiling_ms: leased.window.ceiling.0,
            exact: false,
            epoch: epoch.0,
        };
        let on_lease = PutOptions::new().with_lease(lease.id);
        Ok([
            TxnOp::put(self.keys.holder(identity), encode(&holder)?, Some(on_lease)),
            TxnOp::put(self.keys.high_water(identity), encode(&high_water)?, None),
        ])
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
    async fn read(&mut self) -> Result<Snapshot> {
        Ok(self.look().await?.snapshot)
    }

    async fn grant(&mut self, plan: &GrantPlan) -> Result<Committed> {
        self.check_formats(&plan.formats)?;
        self.clear_remains(plan).await?;
        let lease = self.new_lease().await?;
        let mut guards = vec![self.cell_unchanged()];
        let mut puts = Vec::with_capacity(plan.grants.len() * 2);
        for planned in &plan.grants {
            let identity = planned.leased.identity;
            // A key that does not exist has revision 0.
            let seen = planned.seen.map_or(Ok(0), signed)?;
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
        self.commit(lease, guards, puts).await
    }

    async fn renew(&mut self, renewal: &Renewal) -> Result<Committed> {
        self.check_formats(&renewal.formats)?;
        let lease = self.new_lease().await?;
        let mut guards = vec![self.cell_unchanged()];
        let mut puts = Vec::with_capacity(renewal.leased.len() * 2);
        for leased in &renewal.leased {
            guards.extend(self.held_unchanged(leased.identity, renewal.token, renewal.guard)?);
            puts.extend(self.puts(*leased, renewal.token.epoch, renewal.boot_id, lease)?);
        }
        self.commit(lease, guards, puts).await
    }

    async fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> Result<Vec<Mark>> {
        let seen = self.look().await?;
        let still = |mark: &&Mark| shows_claim(&seen.snapshot, mark.claim, boot_id);
        let released: Vec<Mark> = marks.iter().filter(still).copied().collect();
        if released.is_empty() {
            return Ok(released);
        }
        let mut guards = vec![self.cell_unchanged()];
        let mut changes = Vec::with_capacity(released.len() * 2);
        for mark in &released {
            let (identity, token) = (mark.claim.identity, mark.claim.token);
            let guard = seen
                .snapshot
                .row(identity)
                .map_or(Revision(0), |row| row.revision);
            guards.extend(self.held_unchanged(identity, token, guard)?);
            let high_water = HighWaterValue {
                generation: self.generations.get(&identity).copied().unwrap_or_default(),
                ceiling_ms: mark.last.0,
                exact: true,
                epoch: token.epoch.0,
            };
            changes.push(TxnOp::put(
                self.keys.high_water(identity),
                encode(&high_water)?,
                None,
            ));
            changes.push(TxnOp::delete(self.keys.holder(identity), None));
        }
        let answer = self.write(Txn::new().when(guards).and_then(changes)).await?;
        if !answer.succeeded() {
            return Err(not_as_expected());
        }
        if let Some(lease_id) = self.lease_id.take() {
            self.revoke(lease_id).await;
        }
        Ok(released)
    }
}

impl CellStore for EtcdStore {
    /// etcd has no clock that it would tell; hosts of one cell agree to a second or so.
    async fn clock(&mut self) -> Result<UnixMs> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }

    async fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        self.check_formats(&plan.seen)?;
        let value = self.cell.switched(&plan.formats, plan.min_floor)?;
        // One comparison for all: no key of any worker is younger than the look that this was planned on.
        let workers = self.keys.below(Class::Worker);
        let after = self.cell.looked_at + 1;
        let no_grant = Compare::mod_revision(workers, CompareOp::Less, after).with_prefix();
        let put = TxnOp::put(self.keys.cell(), value, None);
        let switch = Txn::new().when([self.cell_unchanged(), no_grant]).and_then([put]);
        if self.write(switch).await?.succeeded() {
            Ok(())
        } else {
            Err(not_as_expected())
        }
    }
}

fn not_as_expected() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "the keys are not as expected")
}

fn signed(revision: Revision) -> Result<i64> {
    i64::try_from(revision.0).map_err(|_| StoreError::new(StoreErrorKind::Denied, "a revision is too large"))
}

fn encode(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::new(StoreErrorKind::Denied, format!("write a value: {error}")))
}
