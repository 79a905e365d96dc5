//! Reading the store, and making it.

use super::super::store::{StoreError, StoreErrorKind, check_new, check_open};
use super::value::{
    CellValue, ChangeValue, HighWaterValue, Keys, SeenCell, SeenKeys, ShardsValue, decode_keys, identity_of,
    missing, missing_cell, unsigned, value,
};
use super::{Effect, EtcdStore, Result, drains, encode, host_clock, not_as_expected, orders};
use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};
use idgen_core::lease::{AdvancePlan, Class, Identity, Orders, Snapshot, Survey};

/// Keys of one transaction that makes some; etcd takes 128 operations by default.
const MADE_AT_ONCE: usize = 64;

/// Keys at one revision.
pub(super) struct Fetched {
    pub(super) revision: i64,
    cell: Option<KeyValue>,
    shards: Option<KeyValue>,
    changes: Vec<KeyValue>,
    /// Whether the server of whoever looks is drained.
    drain: Option<KeyValue>,
    /// By class, as asked for.
    identities: Vec<(Class, Vec<KeyValue>)>,
    /// The same.
    orders: Vec<(Class, Vec<KeyValue>)>,
}

impl Fetched {
    pub(super) fn of(&self, keys: &Keys) -> Result<SeenKeys> {
        let ours = self.identities.iter().find(|(class, _)| *class == keys.class());
        decode_keys(keys, ours.map_or(&[], |(_, pairs)| pairs))
    }

    /// All of it from a heap of keys.
    #[cfg(fuzzing)]
    pub(super) fn among(keys: &Keys, pairs: &[KeyValue]) -> Self {
        let below = |prefix: String| -> Vec<KeyValue> {
            let below = pairs
                .iter()
                .filter(|pair| pair.key().starts_with(prefix.as_bytes()));
            below.cloned().collect()
        };
        let one = |key: String| pairs.iter().find(|pair| pair.key() == key.as_bytes()).cloned();
        Self {
            revision: 0,
            cell: one(keys.cell()),
            shards: one(keys.shards()),
            changes: below(keys.changes()),
            drain: None,
            identities: Class::ALL.map(|class| (class, below(keys.below(class)))).to_vec(),
            orders: Vec::new(),
        }
    }

    /// What operators have ordered of holders of the class.
    fn orders_of(&self, prefix: &str, class: Class) -> Result<Orders> {
        let ours = self.orders.iter().find(|(of, _)| *of == class);
        orders::decode(prefix, class, ours.map_or(&[], |(_, pairs)| pairs))
    }

    /// How many shards were ever leased.
    fn shards_made(&self, keys: &Keys) -> Result<u64> {
        let pair = self.shards.as_ref().ok_or_else(|| missing(&keys.shards()))?;
        Ok(value::<ShardsValue>(pair)?.made)
    }
}

/// What there is, or nothing yet.
pub(super) fn cell_of(keys: &Keys, fetched: &Fetched) -> Result<Option<CellValue>> {
    if let Some(pair) = &fetched.cell {
        return value(pair).map(Some);
    }
    // Keys of workers are made before the cell is; whatever was leased came after it.
    for class in Class::ALL {
        if !fetched.of(&keys.of(class))?.rows.is_empty() {
            return Err(missing_cell(&keys.cell()));
        }
    }
    Ok(None)
}

impl EtcdStore {
    /// What a grant or renewal is planned on.
    pub(super) async fn look(&mut self) -> Result<Snapshot> {
        let ours = [self.keys.class()];
        let mut fetched = self.fetch(&ours).await?;
        if fetched.cell.is_none() {
            fetched = self.fetch(&Class::ALL).await?;
            if cell_of(&self.keys, &fetched)?.is_none() {
                check_new(self.expected)?;
                self.make().await?;
                fetched = self.fetch(&ours).await?;
            }
        }
        let Some(cell) = cell_of(&self.keys, &fetched)? else {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "the cell's key cannot be made",
            ));
        };
        let here = identity_of(self.pins.cluster_id())?;
        let of_class = cell.cell(self.keys.class())?;
        check_open(&of_class, &here, cell.sealed_reason.as_deref())?;
        let seen = fetched.of(&self.keys)?;
        let sealed = |error: StoreError| error.in_epoch(of_class.epoch);
        let shards_made = fetched.shards_made(&self.keys).map_err(sealed)?;
        seen.check(&self.keys, shards_made).map_err(sealed)?;
        self.remember(&fetched, &cell)?;
        self.generations = seen
            .rows
            .iter()
            .map(|row| (row.identity, row.generation))
            .collect();
        self.ceilings = seen.rows.iter().map(|row| (row.identity, row.ceiling)).collect();
        self.blanks = seen.blanks;
        self.orders = fetched.orders_of(&self.config.prefix, self.keys.class())?;
        self.orders_seen = fetched.revision;
        let snapshot = Snapshot::new(of_class, unsigned(fetched.revision), seen.rows);
        let drain = fetched.drain.as_ref();
        let drain = drain
            .map(|pair| drains::read(&self.config.prefix, pair))
            .transpose()?;
        Ok(snapshot.with_orders(self.orders.clone()).with_drain(drain))
    }

    /// What whatever is written from now on was planned on.
    fn remember(&mut self, fetched: &Fetched, cell: &CellValue) -> Result<()> {
        let of_class = cell.cell(self.keys.class())?;
        self.cell = SeenCell {
            revision: fetched.cell.as_ref().map_or(0, KeyValue::mod_revision),
            looked_at: fetched.revision,
            formats: of_class.worker_format,
            epoch: Some((of_class.epoch, of_class.epoch_nonce)),
            value: fetched
                .cell
                .as_ref()
                .map_or_else(Vec::new, |pair| pair.value().to_vec()),
        };
        self.shards = fetched.shards.as_ref().map_or(Ok((0, 0)), |pair| {
            Ok((value::<ShardsValue>(pair)?.made, pair.mod_revision()))
        })?;
        Ok(())
    }

    /// The whole store, whatever state it is in. `None`: it is new.
    pub(super) async fn survey_keys(&mut self) -> Result<Option<(Survey, Fetched)>> {
        let fetched = self.fetch(&Class::ALL).await?;
        let Some(cell) = cell_of(&self.keys, &fetched)? else {
            return Ok(None);
        };
        let [workers, shards] = [Class::Worker, Class::Shard].map(|class| self.keys.of(class));
        let (of_workers, of_shards) = (fetched.of(&workers)?, fetched.of(&shards)?);
        let damage = of_workers
            .check(&workers, 0)
            .and_then(|()| of_shards.check(&shards, fetched.shards_made(&shards)?))
            .err();
        let of_names = self.named_damage(cell.cell(Class::Worker)?.epoch).await?;
        self.remember(&fetched, &cell)?;
        let history = fetched
            .changes
            .iter()
            .map(|pair| value::<ChangeValue>(pair)?.change());
        let survey = Survey {
            cell: cell.cell(Class::Worker)?,
            shard_min_floor: cell.shard_min_floor(),
            here: identity_of(self.pins.cluster_id())?,
            sealed_reason: cell.sealed_reason.clone(),
            sealed_at: cell.sealed_at(),
            damage: damage.map(|error| error.message).or(of_names),
            known: cell.known(),
            revision: unsigned(fetched.revision),
            now: host_clock(),
            workers: of_workers.rows,
            shards: of_shards.rows,
            history: history.collect::<Result<_>>()?,
        };
        Ok(Some((survey, fetched)))
    }

    async fn fetch(&mut self, classes: &[Class]) -> Result<Fetched> {
        let below = |key| TxnOp::get(key, Some(GetOptions::new().with_prefix()));
        let mut gets = vec![
            TxnOp::get(self.keys.cell(), None),
            TxnOp::get(self.keys.shards(), None),
            below(self.keys.changes()),
            TxnOp::get(drains::key(&self.config.prefix, &self.config.holder.name), None),
        ];
        gets.extend(classes.iter().map(|class| below(self.keys.below(*class))));
        let orders = |class: &Class| below(orders::below(&self.config.prefix, *class));
        gets.extend(classes.iter().map(orders));
        let mut kv = self.client().await?.kv_client();
        let answer = self
            .request(Effect::None, kv.txn(Txn::new().and_then(gets)))
            .await?;
        let revision = self.judge_look(&answer)?;
        let answers: Vec<GetResponse> = answer
            .op_responses()
            .into_iter()
            .filter_map(|response| match response {
                TxnOpResponse::Get(answer) => Some(answer),
                _ => None,
            })
            .collect();
        let [cell, shards, changes, drain, of_classes @ ..] = &answers[..] else {
            return Err(left_out());
        };
        let Some((identities, orders)) = of_classes
            .split_at_checked(classes.len())
            .filter(|(_, orders)| orders.len() == classes.len())
        else {
            return Err(left_out());
        };
        let by_class = |answers: &[GetResponse]| {
            let answers = classes.iter().zip(answers);
            answers
                .map(|(class, answer)| (*class, answer.kvs().to_vec()))
                .collect()
        };
        Ok(Fetched {
            revision,
            cell: cell.kvs().first().cloned(),
            shards: shards.kvs().first().cloned(),
            changes: changes.kvs().to_vec(),
            drain: drain.kvs().first().cloned(),
            identities: by_class(identities),
            orders: by_class(orders),
        })
    }

    /// Makes the cell, and before it the keys that must never be missing. Many may do it at once; whoever is cut off
    /// on the way leaves it to the next.
    async fn make(&mut self) -> Result<()> {
        let all: Vec<Identity> = (0..Class::Worker.size()).map(Identity).collect();
        self.make_blanks(&all).await?;
        let (cell, shards) = (self.keys.cell(), self.keys.shards());
        let missing = [&cell, &shards].map(|key| Compare::create_revision(key.clone(), CompareOp::Equal, 0));
        let fresh = CellValue::fresh(self.pins.cluster_id(), host_clock());
        let make = Txn::new().when(missing).and_then([
            TxnOp::put(cell, encode(&fresh)?, None),
            TxnOp::put(shards, encode(&ShardsValue::default())?, None),
        ]);
        let mut kv = self.client().await?.kv_client();
        self.request(Effect::None, kv.txn(make)).await?;
        Ok(())
    }

    /// Makes the high waters of workers that have none.
    pub(super) async fn make_blanks(&mut self, workers: &[Identity]) -> Result<()> {
        let keys = self.keys.of(Class::Worker);
        let blank = encode(&HighWaterValue::blank())?;
        for some in workers.chunks(MADE_AT_ONCE) {
            let keys = some.iter().map(|worker| keys.high_water(*worker));
            let missing = keys
                .clone()
                .map(|key| Compare::create_revision(key, CompareOp::Equal, 0));
            let puts = keys.map(|key| TxnOp::put(key, blank.clone(), None));
            let make = Txn::new()
                .when(missing.collect::<Vec<_>>())
                .and_then(puts.collect::<Vec<_>>());
            let mut kv = self.client().await?.kv_client();
            self.request(Effect::None, kv.txn(make)).await?;
        }
        Ok(())
    }

    /// Advances the epoch; `puts` go with it where the guards hold.
    pub(super) async fn advance_guarded(
        &mut self,
        plan: &AdvancePlan,
        mut guards: Vec<Compare>,
        mut puts: Vec<TxnOp>,
    ) -> Result<()> {
        let as_planned = |survey: &Survey| plan.is_for(&survey.cell, &survey.known, &survey.here);
        let Some((survey, _)) = self.survey_keys().await?.filter(|(seen, _)| as_planned(seen)) else {
            return Err(not_as_expected());
        };
        // Keys that were deleted are made again, so the seal must be in the cell before.
        if survey.sealed_reason.is_none() {
            let reason = format!("epoch {} was about to begin", plan.to.0);
            let value = self.cell.sealed(&reason, survey.now, &survey.known)?;
            let put = TxnOp::put(self.keys.cell(), value, None);
            self.change_cell(vec![put]).await?;
        }
        let Some((survey, fetched)) = self.survey_keys().await?.filter(|(seen, _)| as_planned(seen)) else {
            return Err(not_as_expected());
        };
        let gone = fetched.of(&self.keys.of(Class::Worker))?.missing;
        self.make_blanks(&gone).await?;
        let made = survey.shards.len() as u64;
        let cell = self.cell.advanced(plan, self.pins.cluster_id())?;
        puts.extend([
            TxnOp::put(self.keys.cell(), cell, None),
            TxnOp::put(self.keys.shards(), encode(&ShardsValue { made })?, None),
            TxnOp::put(self.keys.change(plan.to), encode(&ChangeValue::of(plan))?, None),
        ]);
        guards.push(self.cell_unchanged());
        self.commit_planned(Txn::new().when(guards).and_then(puts)).await
    }

    /// Runs a transaction that changes the cell, planned on the last look.
    pub(super) async fn change_cell(&mut self, puts: Vec<TxnOp>) -> Result<()> {
        let change = Txn::new().when([self.cell_unchanged()]).and_then(puts);
        self.commit_planned(change).await
    }
}

/// Cluster and revision.
pub(super) fn header_of(header: Option<&etcd_client::ResponseHeader>) -> Result<(u64, i64)> {
    let header = header.ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unreachable,
            "etcd sent an answer without a header",
        )
    })?;
    Ok((header.cluster_id(), header.revision()))
}

fn left_out() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "etcd left an answer out")
}
