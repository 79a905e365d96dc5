//! The embedded lease store: tables of a coordinator database (`sql/20-store.sql`).
//!
//! Every operation is one transaction that locks the cell's row first. So operations are serial, and a
//! commit of ours whose answer was lost is either visible to the next one or will never happen: its
//! backend holds that lock until it has ended. Expiry is judged by this database's clock.
//!
//! A commit counts only when the server said so, without a warning: a cancelled wait for synchronous
//! replication is reported as a WARNING and a successful commit, but may be lost with the primary.

mod beacons;
mod drains;
mod log;
mod named;
mod orders;
mod requests;
mod shards;
mod statements;

use self::statements::{
    ADVANCE, CLOCK, GRANT, HISTORY, LOCK_CELL, MAKE_CELL, RAISE_REVISION, READ_LEASES, RELEASE, RENEW, SEAL,
    SWITCH,
};
use super::store::{
    CellStore, Committed, Expected, HolderName, LeaseStore, Renewal, Seal, StoreError, StoreErrorKind,
    check_new, check_open, check_plan,
};
use crate::postgres::{PgError, PostgresUrl, Session, describe};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::Request;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{
    AdvancePlan, BootId, CellId, Class, Epoch, EpochChange, EpochNonce, GrantPlan, Identity, InstanceId,
    Mark, Revision, Snapshot, StoreIdentity, Survey, SwitchPlan, Token, Told,
};
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

pub use self::beacons::PostgresBeacons;
pub(crate) use self::log::PostgresLog;
pub use self::orders::PostgresOrders;
pub use self::requests::PostgresApprover;
pub use self::shards::PostgresShards;

type Result<T> = std::result::Result<T, StoreError>;

/// What the adapter works with.
#[derive(Clone, Debug)]
pub struct PostgresStoreConfig {
    /// Whose rows.
    pub class: Class,
    /// The coordinator database.
    pub url: PostgresUrl,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for each statement.
    pub request_timeout: Duration,
    /// TTL of grants and renewals.
    pub ttl_ms: u64,
    /// Who asks.
    pub holder: HolderName,
}

/// See the module.
pub struct PostgresStore {
    config: PostgresStoreConfig,
    session: Option<Session>,
    /// What a store that is empty is judged by.
    expected: Expected,
}

impl PostgresStore {
    /// Connects at the first request.
    pub fn new(config: PostgresStoreConfig) -> Self {
        Self {
            config,
            session: None,
            expected: Expected::Unknown,
        }
    }

    /// Takes the session out; it is put back only when a transaction has ended well, so that one in an
    /// unknown state is never used again.
    async fn take_session(&mut self) -> Result<Session> {
        if let Some(mut session) = self.session.take()
            && session.is_usable()
        {
            return Ok(session);
        }
        let PostgresStoreConfig {
            url,
            connect_timeout,
            request_timeout,
            ..
        } = &self.config;
        Session::open(url, "idgend store", *connect_timeout, *request_timeout)
            .await
            .map_err(|error| {
                let message = format!("connect to {}: {error}", describe(url));
                StoreError::new(StoreErrorKind::Unreachable, message)
            })
    }

    /// Commits. Anything but a plain success leaves it open whether it happened.
    async fn commit(&mut self, session: Session, warnings: u64) -> Result<()> {
        if let Err(error) = session.batch("COMMIT").await {
            // A commit that is refused with an error of its own was rolled back, unless the session was
            // torn down on the way.
            let kind = match error {
                PgError::Refused { .. } if !error.is_shutdown() => StoreErrorKind::Unreachable,
                _ => StoreErrorKind::Unknown,
            };
            return Err(StoreError::new(kind, format!("commit: {error}")));
        }
        if session.warnings() != warnings {
            return Err(StoreError::new(
                StoreErrorKind::Unknown,
                "commit: the server warned, so it may not be replicated",
            ));
        }
        self.session = Some(session);
        Ok(())
    }
}

/// The cell's row as it was locked.
struct LockedCell {
    /// With the floor of workers.
    cell: Cell,
    shard_min_floor: UnixMs,
    sealed_reason: Option<String>,
    sealed_at: Option<UnixMs>,
    revision: Revision,
    known: Told,
    here: StoreIdentity,
}

impl LockedCell {
    /// What there is in this database; `None`: it has not been used as a store.
    async fn find(session: &Session) -> Result<Option<Self>> {
        let rows = session.rows(LOCK_CELL, &[]).await.map_err(not_done)?;
        rows.first().map(Self::decode).transpose()
    }

    fn decode(row: &tokio_postgres::Row) -> Result<Self> {
        let moment = |index| -> Result<UnixMs> { Ok(UnixMs(unsigned(column(row, index)?)?)) };
        Ok(Self {
            cell: Cell {
                cell_id: CellId(column::<Uuid>(row, 0)?.as_u128()),
                worker_format: column(row, 1)?,
                epoch: Epoch(unsigned(column(row, 2)?)?),
                epoch_nonce: EpochNonce(column::<Uuid>(row, 3)?.as_u128()),
                epoch_since: moment(4)?,
                min_floor: moment(5)?,
                identity: identity_column(row, 11)?,
            },
            shard_min_floor: moment(6)?,
            sealed_reason: column(row, 7)?,
            revision: Revision(unsigned(column(row, 8)?)?),
            known: Told {
                epoch: Epoch(unsigned(column(row, 9)?)?),
                since: moment(10)?,
                formats: column(row, 13)?,
            },
            here: identity_column(row, 12)?,
            sealed_at: column::<Option<i64>>(row, 14)?
                .map(unsigned)
                .transpose()?
                .map(UnixMs),
        })
    }

    /// May this database serve the cell?
    fn check(&self) -> Result<()> {
        check_open(&self.cell, &self.here, self.sealed_reason.as_deref())
    }

    /// As one class sees it.
    fn of(self, class: Class) -> Cell {
        let min_floor = match class {
            Class::Worker => self.cell.min_floor,
            Class::Shard => self.shard_min_floor,
        };
        Cell {
            min_floor,
            ..self.cell
        }
    }
}

/// Begins, locks the cell, and checks that this database may serve it.
async fn begin(session: &Session, expected: Expected) -> Result<LockedCell> {
    session.batch("BEGIN").await.map_err(not_done)?;
    let found = match LockedCell::find(session).await? {
        Some(found) => Some(found),
        None => {
            check_new(expected)?;
            let (cell_id, nonce) = (Uuid::new_v4(), Uuid::new_v4());
            session
                .rows(MAKE_CELL, &[&cell_id, &nonce])
                .await
                .map_err(not_done)?;
            LockedCell::find(session).await?
        }
    };
    let locked = found.ok_or_else(|| broken("the cell's row cannot be made"))?;
    locked.check()?;
    Ok(locked)
}

/// Is the cell, which is locked, the one that was planned on?
fn check_cell(cell: &Cell, epoch: Epoch, nonce: EpochNonce, formats: &str) -> Result<()> {
    check_plan(cell.is_epoch(epoch, nonce), cell.worker_format == formats)
}

/// The revision that this transaction's changes are made at.
async fn raise_revision(session: &Session) -> Result<i64> {
    let row = session.row(RAISE_REVISION, &[]).await.map_err(not_done)?;
    column(&row, 0)
}

/// Begins a transaction of somebody who has surveyed the store, and locks its cell; the revision that its changes are made at.
async fn begin_change(session: &Session) -> Result<i64> {
    session.batch("BEGIN").await.map_err(not_done)?;
    if LockedCell::find(session).await?.is_none() {
        let new = "the lease store is new";
        return Err(StoreError::new(StoreErrorKind::Conflict, new));
    }
    raise_revision(session).await
}

impl LeaseStore for PostgresStore {
    fn expect(&mut self, expected: Expected) {
        self.expected = expected;
    }

    async fn read(&mut self) -> Result<Snapshot> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let locked = begin(&session, self.expected).await?;
        let rows = read_leases(&session, self.config.class).await?;
        let orders = orders::read_tokens(&session, self.config.class).await?;
        let drain = drains::read(&session, Some(&self.config.holder.name))
            .await?
            .pop();
        // The read counts only when the cell it may have made is there to stay.
        self.commit(session, warnings).await?;
        let revision = locked.revision;
        let snapshot = Snapshot::new(locked.of(self.config.class), revision, rows);
        Ok(snapshot.with_orders(orders).with_drain(drain))
    }

    async fn grant(&mut self, plan: &GrantPlan) -> Result<Committed> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let cell = begin(&session, self.expected).await?.cell;
        check_cell(&cell, plan.epoch, plan.epoch_nonce, &plan.formats)?;
        drains::check(&session, &self.config.holder.name).await?;
        let revision = raise_revision(&session).await?;
        let planned = &plan.grants;
        let identities: Vec<i32> = planned
            .iter()
            .map(|grant| i32::from(grant.leased.identity.0))
            .collect();
        let generations = signed_all(planned.iter().map(|grant| grant.generation))?;
        let ceilings = signed_all(planned.iter().map(|grant| grant.leased.window.ceiling.0))?;
        let seen = planned
            .iter()
            .map(|grant| grant.seen.map(|revision| signed(revision.0)).transpose())
            .collect::<Result<Vec<Option<i64>>>>()?;
        let replaces: Vec<bool> = planned.iter().map(|grant| grant.replaces.is_some()).collect();
        let granted = session
            .execute(
                GRANT,
                &[
                    &revision,
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &self.config.holder.name,
                    &signed(plan.epoch.0)?,
                    &Uuid::from_u128(plan.boot_id.0),
                    &ms(self.config.ttl_ms),
                    &identities,
                    &generations,
                    &ceilings,
                    &seen,
                    &replaces,
                    &self.config.class.name(),
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, granted, planned.len()).await?;
        Ok(Committed {
            revision: Revision(unsigned(revision)?),
            ttl_ms: self.config.ttl_ms,
        })
    }

    async fn renew(&mut self, renewal: &Renewal) -> Result<Committed> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let cell = begin(&session, self.expected).await?.cell;
        check_cell(&cell, renewal.epoch, renewal.epoch_nonce, &renewal.formats)?;
        let revision = raise_revision(&session).await?;
        let leased = &renewal.leased;
        let identities: Vec<i32> = leased.iter().map(|leased| i32::from(leased.identity.0)).collect();
        let ceilings = signed_all(leased.iter().map(|leased| leased.window.ceiling.0))?;
        let epochs = signed_all(leased.iter().map(|leased| leased.token.epoch.0))?;
        let tokens = signed_all(leased.iter().map(|leased| leased.token.revision.0))?;
        let guards = signed_all(leased.iter().map(|leased| leased.guard.0))?;
        let renewed = session
            .execute(
                RENEW,
                &[
                    &revision,
                    &ms(self.config.ttl_ms),
                    &identities,
                    &ceilings,
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &Uuid::from_u128(renewal.boot_id.0),
                    &epochs,
                    &tokens,
                    &guards,
                    &self.config.class.name(),
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, renewed, leased.len()).await?;
        Ok(Committed {
            revision: Revision(unsigned(revision)?),
            ttl_ms: self.config.ttl_ms,
        })
    }

    async fn release(&mut self, boot_id: BootId, marks: &[Mark]) -> Result<Vec<Mark>> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        // A sealed or foreign store keeps what it has: its rows are evidence.
        begin(&session, self.expected).await?;
        let revision = raise_revision(&session).await?;
        let identities: Vec<i32> = marks
            .iter()
            .map(|mark| i32::from(mark.claim.identity.0))
            .collect();
        let lasts = signed_all(marks.iter().map(|mark| mark.last.0))?;
        let epochs = signed_all(marks.iter().map(|mark| mark.claim.token.epoch.0))?;
        let revisions = signed_all(marks.iter().map(|mark| mark.claim.token.revision.0))?;
        let rows = session
            .rows(
                RELEASE,
                &[
                    &revision,
                    &identities,
                    &lasts,
                    &epochs,
                    &revisions,
                    &Uuid::from_u128(boot_id.0),
                    &self.config.class.name(),
                ],
            )
            .await
            .map_err(not_done)?;
        let released = rows
            .iter()
            .map(|row| column(row, 0))
            .collect::<Result<HashSet<i32>>>()?;
        self.commit(session, warnings).await?;
        let released = |mark: &&Mark| released.contains(&i32::from(mark.claim.identity.0));
        Ok(marks.iter().filter(released).copied().collect())
    }

    async fn seal(&mut self, seal: &Seal) -> Result<bool> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        session.batch("BEGIN").await.map_err(not_done)?;
        let found = LockedCell::find(&session).await?;
        let meant = found.filter(|locked| locked.cell.cell_id == seal.cell_id);
        let known = meant.and_then(|locked| {
            let is_sealed = locked.sealed_reason.is_some();
            locked.known.sealed_with(&seal.known, &locked.cell, is_sealed)
        });
        if let Some(known) = known {
            let (epoch, since) = (signed(known.epoch.0)?, ms(known.since.0));
            session
                .execute(SEAL, &[&seal.reason, &epoch, &since, &known.formats])
                .await
                .map_err(not_done)?;
        }
        self.commit(session, warnings).await?;
        Ok(true)
    }
}

impl CellStore for PostgresStore {
    async fn clock(&mut self) -> Result<UnixMs> {
        let session = self.take_session().await?;
        let row = session.row(CLOCK, &[]).await.map_err(not_done)?;
        self.session = Some(session);
        Ok(UnixMs(unsigned(column(&row, 0)?)?))
    }

    async fn survey(&mut self) -> Result<Option<Survey>> {
        let now = self.clock().await?;
        let session = self.take_session().await?;
        let warnings = session.warnings();
        session.batch("BEGIN").await.map_err(not_done)?;
        let found = LockedCell::find(&session).await?;
        let workers = read_leases(&session, Class::Worker).await?;
        let shards = read_leases(&session, Class::Shard).await?;
        let history = session.rows(HISTORY, &[]).await.map_err(not_done)?;
        self.commit(session, warnings).await?;
        let history = history.iter().map(change_row).collect::<Result<_>>()?;
        Ok(found.map(|locked| Survey {
            cell: locked.cell,
            shard_min_floor: locked.shard_min_floor,
            here: locked.here,
            sealed_reason: locked.sealed_reason,
            sealed_at: locked.sealed_at,
            damage: None,
            known: locked.known,
            revision: locked.revision,
            now,
            workers,
            shards,
            history,
        }))
    }

    async fn advance(&mut self, plan: &AdvancePlan) -> Result<()> {
        self.advance_with(plan, None).await
    }

    async fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session, self.expected).await?;
        let (at, min_floor) = (signed(plan.at.0)?, signed(plan.min_floor.0)?);
        let switched = session
            .execute(SWITCH, &[&plan.formats, &min_floor, &at, &plan.seen])
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, switched, 1).await
    }
}

impl PostgresStore {
    /// Advances the epoch, by a request where one is given.
    async fn advance_with(&mut self, plan: &AdvancePlan, request: Option<&Request>) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        session.batch("BEGIN").await.map_err(not_done)?;
        let found = LockedCell::find(&session).await?;
        let as_planned = found.is_some_and(|locked| plan.is_for(&locked.cell, &locked.known, &locked.here));
        let mut advanced = 0;
        if as_planned {
            advanced = session
                .execute(
                    ADVANCE,
                    &[
                        &signed(plan.to.0)?,
                        &Uuid::from_u128(plan.nonce.0),
                        &ms(plan.since.0),
                        &signed(plan.shard_min_floor.0)?,
                        &plan.identity.as_str(),
                        &plan.by,
                        &plan.reason,
                        &signed(plan.worker_min_floor.0)?,
                        &plan.formats,
                    ],
                )
                .await
                .map_err(not_done)?;
        }
        let mut wanted = 1;
        if let Some(request) = request {
            let outcome = format!("epoch {} has begun", plan.to.0);
            advanced += requests::use_up(&session, request, &outcome).await?;
            wanted += 1;
        }
        self.commit_all(session, warnings, advanced, wanted).await
    }

    /// Commits if every row was changed; otherwise nothing of it may stay.
    async fn commit_all(
        &mut self,
        session: Session,
        warnings: u64,
        changed: u64,
        wanted: usize,
    ) -> Result<()> {
        if usize::try_from(changed) == Ok(wanted) {
            return self.commit(session, warnings).await;
        }
        session.batch("ROLLBACK").await.map_err(not_done)?;
        self.session = Some(session);
        let message = format!("{changed} of {wanted} rows are as expected");
        Err(StoreError::new(StoreErrorKind::Conflict, message))
    }
}

async fn read_leases(session: &Session, class: Class) -> Result<Vec<Row>> {
    let rows = session
        .rows(READ_LEASES, &[&class.name()])
        .await
        .map_err(not_done)?;
    rows.iter().map(lease_row).collect()
}

fn change_row(row: &tokio_postgres::Row) -> Result<EpochChange> {
    Ok(EpochChange {
        epoch: Epoch(unsigned(column(row, 0)?)?),
        at: UnixMs(unsigned(column(row, 1)?)?),
        identity: identity_column(row, 2)?,
        by: column(row, 3)?,
        reason: column(row, 4)?,
    })
}

fn identity_column(row: &tokio_postgres::Row, index: usize) -> Result<StoreIdentity> {
    StoreIdentity::new(column(row, index)?).ok_or_else(|| broken("an identity of a store cannot be read"))
}

fn lease_row(row: &tokio_postgres::Row) -> Result<Row> {
    let holder = match column::<Option<Uuid>>(row, 4)? {
        None => None,
        Some(instance) => Some(Holder {
            instance: InstanceId(instance.as_u128()),
            name: column(row, 5)?,
            token: Token {
                epoch: Epoch(unsigned(column(row, 6)?)?),
                revision: Revision(unsigned(column(row, 7)?)?),
            },
            boot_id: BootId(column::<Uuid>(row, 8)?.as_u128()),
            expired: column(row, 9)?,
        }),
    };
    let identity: i32 = column(row, 0)?;
    Ok(Row {
        identity: Identity(u16::try_from(identity).map_err(|_| broken("an identity is out of range"))?),
        generation: unsigned(column(row, 1)?)?,
        ceiling: UnixMs(unsigned(column(row, 2)?)?),
        revision: Revision(unsigned(column(row, 3)?)?),
        holder,
    })
}

/// An error before the commit: the transaction was or will be rolled back.
fn not_done(error: PgError) -> StoreError {
    match error.sqlstate() {
        Some("42P01" | "3F000" | "42883") => StoreError::new(
            StoreErrorKind::Denied,
            format!(
                "the store's database has no pg_idgen extension: {error} (hint: run CREATE EXTENSION pg_idgen there)"
            ),
        ),
        Some("42501") => StoreError::new(
            StoreErrorKind::Denied,
            format!("{error} (hint: run SELECT idgen.grant_daemon('ROLE') in the store's database)"),
        ),
        _ => StoreError::new(StoreErrorKind::Unreachable, error.to_string()),
    }
}

fn broken(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, message)
}

fn column<'r, T: FromSql<'r>>(row: &'r tokio_postgres::Row, index: usize) -> Result<T> {
    row.try_get(index)
        .map_err(|error| broken(&format!("read column {index}: {error}")))
}

fn unsigned(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| broken("the store holds a negative number"))
}

fn signed(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| broken("a number does not fit into bigint"))
}

fn signed_all(values: impl Iterator<Item = u64>) -> Result<Vec<i64>> {
    values.map(signed).collect()
}

/// As a factor of an interval, or a moment: milliseconds of this century are exact in a double.
fn ms(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64() * 1_000.0
}
