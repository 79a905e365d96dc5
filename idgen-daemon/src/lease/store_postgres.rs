//! The embedded lease store: tables of a coordinator database (`sql/20-store.sql`).
//!
//! Every operation is one transaction that locks the cell's row first. So operations are serial, and a
//! commit of ours whose answer was lost is either visible to the next one or will never happen: its
//! backend holds that lock until it has ended. Expiry is judged by this database's clock.
//!
//! A commit counts only when the server said so, without a warning: a cancelled wait for synchronous
//! replication is reported as a WARNING and a successful commit, but may be lost with the primary.

use super::store::{CellStore, Committed, HolderName, LeaseStore, Renewal, StoreError, StoreErrorKind};
use crate::postgres::{PgError, PostgresUrl, Session, describe};
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::{Cell, Holder, Row};
use idgen_core::lease::{
    BootId, CellId, Class, Epoch, EpochNonce, GrantPlan, Identity, InstanceId, Mark, Revision, Snapshot,
    SwitchPlan, Token,
};
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

type Result<T> = std::result::Result<T, StoreError>;

/// Locks the cell and says whether this database may serve it.
const LOCK_CELL: &str = "
    SELECT c.cell_id, c.worker_format, c.epoch, c.epoch_nonce, c.min_floor_ms, c.sealed_reason,
           c.system_identifier, c.timeline, c.database_oid,
           i.system_identifier, i.timeline, i.database_oid
      FROM idgen.cell c CROSS JOIN idgen.store_identity() i
       FOR UPDATE OF c";

/// Makes the cell at the first use of this database. Epoch 0 leases from the lower half of the pool.
const MAKE_CELL: &str = "
    INSERT INTO idgen.cell (cell_id, worker_format, epoch, epoch_nonce,
                            system_identifier, timeline, database_oid)
    SELECT $1, 'classic', 0, $2, i.system_identifier, i.timeline, i.database_oid
      FROM idgen.store_identity() i
        ON CONFLICT DO NOTHING";

const READ_LEASES: &str = "
    SELECT identity, generation, ceiling_ms, revision, holder, holder_name, token_epoch, token_revision,
           boot_id, expires_at <= clock_timestamp()
      FROM idgen.lease WHERE kind = $1 ORDER BY identity";

const RAISE_REVISION: &str = "UPDATE idgen.cell SET revision = revision + 1 RETURNING revision";

const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";

/// The cell's row is locked, so no ceiling is raised meanwhile.
const SWITCH: &str = "
    UPDATE idgen.cell
       SET worker_format = $1, min_floor_ms = greatest(min_floor_ms, $2), revision = revision + 1
     WHERE worker_format = $4
       AND NOT EXISTS (SELECT FROM idgen.lease WHERE kind = 'worker' AND ceiling_ms >= $3)";

/// Grants the rows of the plan that are as they were seen; the caller counts them.
const GRANT: &str = "
    INSERT INTO idgen.lease AS l (kind, identity, generation, ceiling_ms, exact, revision, holder,
                                  holder_name, token_epoch, token_revision, boot_id, expires_at)
    SELECT $12, p.identity, p.generation, p.ceiling_ms, false, $1, $2, $3, $4, $1, $5,
           clock_timestamp() + $6 * interval '1 millisecond'
      FROM unnest($7::int4[], $8::int8[], $9::int8[], $10::int8[], $11::bool[])
           AS p(identity, generation, ceiling_ms, seen, replaces)
      LEFT JOIN idgen.lease o ON o.kind = $12 AND o.identity = p.identity
     WHERE o.revision IS NOT DISTINCT FROM p.seen
       AND (o.holder IS NULL OR o.expires_at <= clock_timestamp() OR (o.holder = $2 AND p.replaces))
       AND (o.ceiling_ms IS NULL OR o.ceiling_ms < p.ceiling_ms)
        ON CONFLICT (kind, identity) DO UPDATE
       SET generation = excluded.generation, ceiling_ms = excluded.ceiling_ms, exact = false,
           revision = excluded.revision, holder = excluded.holder, holder_name = excluded.holder_name,
           token_epoch = excluded.token_epoch, token_revision = excluded.token_revision,
           boot_id = excluded.boot_id, expires_at = excluded.expires_at";

/// Renews the rows that are held under the token and as they were left; the caller counts them.
const RENEW: &str = "
    UPDATE idgen.lease l
       SET ceiling_ms = p.ceiling_ms, revision = $1,
           expires_at = clock_timestamp() + $2 * interval '1 millisecond'
      FROM unnest($3::int4[], $4::int8[]) AS p(identity, ceiling_ms)
     WHERE l.kind = $10 AND l.identity = p.identity
       AND l.holder = $5 AND l.boot_id = $6 AND l.token_epoch = $7 AND l.token_revision = $8
       AND l.revision = $9 AND l.ceiling_ms <= p.ceiling_ms AND l.expires_at > clock_timestamp()";

/// Whose instance made the claim does not matter: token and boot id name it, and only whoever serves
/// that shared memory can know the exact high water.
const RELEASE: &str = "
    UPDATE idgen.lease l
       SET ceiling_ms = p.last_ms, exact = true, revision = $1, holder = NULL, holder_name = NULL,
           token_epoch = NULL, token_revision = NULL, boot_id = NULL, expires_at = NULL
      FROM unnest($2::int4[], $3::int8[], $4::int8[], $5::int8[])
           AS p(identity, last_ms, token_epoch, token_revision)
     WHERE l.kind = $7 AND l.identity = p.identity AND l.boot_id = $6
       AND l.token_epoch = p.token_epoch AND l.token_revision = p.token_revision
       AND l.ceiling_ms >= p.last_ms
    RETURNING l.identity";

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
}

impl PostgresStore {
    /// Connects at the first request.
    pub fn new(config: PostgresStoreConfig) -> Self {
        Self {
            config,
            session: None,
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

/// Begins, locks the cell, and checks that this database may serve it.
async fn begin(session: &Session) -> Result<Cell> {
    session.batch("BEGIN").await.map_err(not_done)?;
    let mut rows = session.rows(LOCK_CELL, &[]).await.map_err(not_done)?;
    if rows.is_empty() {
        let (cell_id, nonce) = (Uuid::new_v4(), Uuid::new_v4());
        session
            .rows(MAKE_CELL, &[&cell_id, &nonce])
            .await
            .map_err(not_done)?;
        rows = session.rows(LOCK_CELL, &[]).await.map_err(not_done)?;
    }
    let row = rows
        .first()
        .ok_or_else(|| broken("the cell's row cannot be made"))?;
    if let Some(reason) = column::<Option<String>>(row, 5)? {
        return Err(StoreError::new(
            StoreErrorKind::Sealed,
            format!("the cell is sealed: {reason}"),
        ));
    }
    let identity = |from: usize| -> Result<(i64, i32, u32)> {
        Ok((column(row, from)?, column(row, from + 1)?, column(row, from + 2)?))
    };
    let (made_for, here) = (identity(6)?, identity(9)?);
    if made_for != here {
        let show = |(system, timeline, oid)| format!("system {system}, timeline {timeline}, database {oid}");
        return Err(StoreError::new(
            StoreErrorKind::Sealed,
            format!(
                "sealed: the cell belongs to {}, this is {}: a copy, a restore or a promoted standby",
                show(made_for),
                show(here)
            ),
        ));
    }
    Ok(Cell {
        cell_id: CellId(column::<Uuid>(row, 0)?.as_u128()),
        worker_format: column(row, 1)?,
        epoch: Epoch(unsigned(column(row, 2)?)?),
        epoch_nonce: EpochNonce(column::<Uuid>(row, 3)?.as_u128()),
        min_floor: UnixMs(unsigned(column(row, 4)?)?),
    })
}

/// Is the cell, which is locked, the one that was planned on?
fn check_cell(cell: &Cell, epoch: Epoch, nonce: EpochNonce, formats: &str) -> Result<()> {
    let changed = match (cell.is_epoch(epoch, nonce), cell.worker_format == formats) {
        (true, true) => return Ok(()),
        (false, _) => "the epoch was advanced",
        (true, false) => "the worker format was switched",
    };
    Err(StoreError::new(StoreErrorKind::Conflict, changed))
}

/// The revision that this transaction's changes are made at.
async fn raise_revision(session: &Session) -> Result<i64> {
    let row = session.row(RAISE_REVISION, &[]).await.map_err(not_done)?;
    column(&row, 0)
}

impl LeaseStore for PostgresStore {
    async fn read(&mut self) -> Result<Snapshot> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let cell = begin(&session).await?;
        let kind = self.config.class.name();
        let rows = session.rows(READ_LEASES, &[&kind]).await.map_err(not_done)?;
        let rows = rows.iter().map(lease_row).collect::<Result<_>>()?;
        // The read counts only when the cell it may have made is there to stay.
        self.commit(session, warnings).await?;
        Ok(Snapshot::new(cell, rows))
    }

    async fn grant(&mut self, plan: &GrantPlan) -> Result<Committed> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let cell = begin(&session).await?;
        check_cell(&cell, plan.epoch, plan.epoch_nonce, &plan.formats)?;
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
                    &ttl(self.config.ttl_ms),
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
        let cell = begin(&session).await?;
        check_cell(&cell, renewal.token.epoch, renewal.epoch_nonce, &renewal.formats)?;
        let revision = raise_revision(&session).await?;
        let leased = &renewal.leased;
        let identities: Vec<i32> = leased.iter().map(|leased| i32::from(leased.identity.0)).collect();
        let ceilings = signed_all(leased.iter().map(|leased| leased.window.ceiling.0))?;
        let renewed = session
            .execute(
                RENEW,
                &[
                    &revision,
                    &ttl(self.config.ttl_ms),
                    &identities,
                    &ceilings,
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &Uuid::from_u128(renewal.boot_id.0),
                    &signed(renewal.token.epoch.0)?,
                    &signed(renewal.token.revision.0)?,
                    &signed(renewal.guard.0)?,
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
        begin(&session).await?;
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
}

impl CellStore for PostgresStore {
    async fn clock(&mut self) -> Result<UnixMs> {
        let session = self.take_session().await?;
        let row = session.row(CLOCK, &[]).await.map_err(not_done)?;
        self.session = Some(session);
        Ok(UnixMs(unsigned(column(&row, 0)?)?))
    }

    async fn switch(&mut self, plan: &SwitchPlan) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let (at, min_floor) = (signed(plan.at.0)?, signed(plan.min_floor.0)?);
        let switched = session
            .execute(SWITCH, &[&plan.formats, &min_floor, &at, &plan.seen])
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, switched, 1).await
    }
}

impl PostgresStore {
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

/// As a factor of an interval; a day of milliseconds is exact in a double.
fn ttl(ttl_ms: u64) -> f64 {
    std::time::Duration::from_millis(ttl_ms).as_secs_f64() * 1_000.0
}
