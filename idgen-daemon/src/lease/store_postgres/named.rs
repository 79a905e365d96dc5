//! Named leases in the tables of the embedded store (`sql/22-store-named.sql`), under the same lock of the cell's row.

use super::super::store::{Committed, StoreError, StoreErrorKind, check_plan};
use super::super::store_named::{NamedStore, StripeStore, check_raises, no_cell};
use super::{
    LockedCell, PostgresStore, Result, broken, column, ms, not_done, raise_revision, signed, unsigned,
};
use crate::postgres::Session;
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::Holder;
use idgen_core::lease::named::{
    Acquisition, ClaimPlan, Cut, Held, JoinPlan, LeaseName, NamedLook, NamedRow, Occupant, Raise,
    ReleasePlan, Stored, StripeClaim,
};
use idgen_core::lease::{BootId, Cell, Epoch, EpochNonce, InstanceId, Revision, Token};
use std::collections::BTreeMap;
use uuid::Uuid;

/// `$1`: a name, or a prefix of names; `$2`: it is a prefix.
const READ: &str = "
    SELECT name, generation, revision, holder, holder_name, token_epoch, token_revision, boot_id,
           expires_at <= clock_timestamp()
      FROM idgen.named_lease
     WHERE CASE WHEN $2 THEN starts_with(name, $1) ELSE name = $1 END ORDER BY name";

/// The row is as it was seen, and free; the caller counts.
const ACQUIRE: &str = "
    INSERT INTO idgen.named_lease AS l (name, generation, revision, holder, holder_name, token_epoch,
                                        token_revision, boot_id, expires_at)
    SELECT $1, $2, $3, $4, $5, $6, $3, $7, clock_timestamp() + $8 * interval '1 millisecond'
      FROM (SELECT) one LEFT JOIN idgen.named_lease o ON o.name = $1
     WHERE o.revision IS NOT DISTINCT FROM $9
       AND (o.holder IS NULL OR o.expires_at <= clock_timestamp())
        ON CONFLICT (name) DO UPDATE
       SET generation = excluded.generation, revision = excluded.revision, holder = excluded.holder,
           holder_name = excluded.holder_name, token_epoch = excluded.token_epoch,
           token_revision = excluded.token_revision, boot_id = excluded.boot_id,
           expires_at = excluded.expires_at";

const RENEW: &str = "
    UPDATE idgen.named_lease
       SET revision = $1, expires_at = clock_timestamp() + $2 * interval '1 millisecond'
     WHERE name = $3 AND holder = $4 AND boot_id = $5 AND token_epoch = $6 AND token_revision = $7 AND revision = $8";

const GIVE_UP: &str = "
    UPDATE idgen.named_lease
       SET revision = $1, holder = NULL, holder_name = NULL, token_epoch = NULL, token_revision = NULL,
           boot_id = NULL, expires_at = NULL
     WHERE name = $2 AND token_epoch = $3 AND token_revision = $4";

const CEILINGS: &str = "
    SELECT key, ceiling, revision FROM idgen.named_ceiling WHERE name = $1 AND key = ANY ($2)";

/// Those that are held, as they were seen and lower; the caller counts.
const RAISE: &str = "
    INSERT INTO idgen.named_ceiling AS c (name, key, ceiling, revision)
    SELECT l.name, p.key, p.ceiling, $1
      FROM unnest($2::text[], $3::int8[], $4::int8[]) AS p(key, ceiling, seen)
      JOIN idgen.named_lease l ON l.name = $5 AND l.holder = $6 AND l.boot_id = $7
                              AND l.token_epoch = $8 AND l.token_revision = $9
      LEFT JOIN idgen.named_ceiling o ON o.name = $5 AND o.key = p.key
     WHERE o.revision IS NOT DISTINCT FROM p.seen AND coalesce(o.ceiling, 0) < p.ceiling
        ON CONFLICT (name, key) DO UPDATE SET ceiling = excluded.ceiling, revision = excluded.revision";

const STRIPES: &str = "
    SELECT space_id, stripe, stripes, server, server_name, (extract(epoch FROM claimed_at) * 1000)::int8,
           claimed_by, (extract(epoch FROM released_at) * 1000)::int8, release_reason, revision, database_name,
           stripe_size, above, (extract(epoch FROM joined_at) * 1000)::int8
      FROM idgen.stripe WHERE $1::uuid IS NULL OR space_id = $1 ORDER BY space_id, stripe";

const CLAIM: &str = "
    INSERT INTO idgen.stripe AS s (space_id, stripe, stripes, server, server_name, database_name, claimed_at,
                                   claimed_by, revision, stripe_size, above)
    SELECT $2, $3, $4, $5, $6, $10, to_timestamp($7::float8 / 1000), $8, $1, $11, $12
      FROM (SELECT) one LEFT JOIN idgen.stripe o ON o.space_id = $2 AND o.stripe = $3
     WHERE o.revision IS NOT DISTINCT FROM $9
        ON CONFLICT (space_id, stripe) DO UPDATE
       SET stripes = excluded.stripes, stripe_size = excluded.stripe_size, above = excluded.above,
           server = excluded.server, server_name = excluded.server_name,
           database_name = excluded.database_name, claimed_at = excluded.claimed_at,
           claimed_by = excluded.claimed_by, released_at = NULL, release_reason = NULL,
           revision = excluded.revision";

const JOIN: &str = "
    UPDATE idgen.stripe SET joined_at = to_timestamp($2::float8 / 1000), revision = $1
     WHERE space_id = $3 AND stripe = $4 AND revision = $5 AND released_at IS NULL";

const UNCLAIM: &str = "
    UPDATE idgen.stripe
       SET released_at = to_timestamp($2::float8 / 1000), release_reason = $3, revision = $1
     WHERE space_id = $4 AND stripe = $5 AND revision = $6 AND released_at IS NULL";

/// Begins and locks the cell, which must be there already.
async fn begin(session: &Session) -> Result<LockedCell> {
    session.batch("BEGIN").await.map_err(not_done)?;
    let locked = LockedCell::find(session).await?.ok_or_else(no_cell)?;
    locked.check()?;
    Ok(locked)
}

fn check_epoch(cell: &Cell, epoch: Epoch, nonce: EpochNonce) -> Result<()> {
    check_plan(cell.is_epoch(epoch, nonce), true)
}

impl NamedStore for PostgresStore {
    async fn look_at(&mut self, name: &LeaseName) -> Result<NamedLook> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let locked = begin(&session).await?;
        let row = read(&session, name.as_str(), false).await?.pop();
        // What a look shows must be there to stay: a standby may not have it yet.
        self.commit(session, warnings).await?;
        Ok(NamedLook {
            cell: locked.cell,
            revision: locked.revision,
            row,
        })
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<NamedRow>> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let rows = read(&session, prefix, true).await?;
        self.commit(session, warnings).await?;
        Ok(rows)
    }

    async fn acquire(&mut self, plan: &Acquisition) -> Result<Committed> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let locked = begin(&session).await?;
        check_epoch(&locked.cell, plan.epoch, plan.epoch_nonce)?;
        let revision = raise_revision(&session).await?;
        let seen = plan.seen.map(|revision| signed(revision.0)).transpose()?;
        let granted = session
            .execute(
                ACQUIRE,
                &[
                    &plan.name.as_str(),
                    &signed(plan.generation)?,
                    &revision,
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &self.config.holder.name,
                    &signed(plan.epoch.0)?,
                    &Uuid::from_u128(plan.boot_id.0),
                    &ms(self.config.ttl_ms),
                    &seen,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, granted, 1).await?;
        self.committed(revision)
    }

    async fn renew_held(&mut self, held: &Held) -> Result<Committed> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let locked = begin(&session).await?;
        check_epoch(&locked.cell, held.token.epoch, held.epoch_nonce)?;
        let revision = raise_revision(&session).await?;
        let renewed = session
            .execute(
                RENEW,
                &[
                    &revision,
                    &ms(self.config.ttl_ms),
                    &held.name.as_str(),
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &Uuid::from_u128(held.boot_id.0),
                    &signed(held.token.epoch.0)?,
                    &signed(held.token.revision.0)?,
                    &signed(held.guard.0)?,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, renewed, 1).await?;
        self.committed(revision)
    }

    async fn give_up(&mut self, name: &LeaseName, token: Token) -> Result<bool> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let revision = raise_revision(&session).await?;
        let (epoch, of_token) = (signed(token.epoch.0)?, signed(token.revision.0)?);
        let given_up = session
            .execute(GIVE_UP, &[&revision, &name.as_str(), &epoch, &of_token])
            .await
            .map_err(not_done)?;
        self.commit(session, warnings).await?;
        Ok(given_up > 0)
    }

    async fn ceilings(&mut self, name: &LeaseName, keys: &[String]) -> Result<BTreeMap<String, Stored>> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let rows = session
            .rows(CEILINGS, &[&name.as_str(), &keys])
            .await
            .map_err(not_done)?;
        self.commit(session, warnings).await?;
        let stored = |row: &tokio_postgres::Row| {
            let stored = Stored {
                ceiling: column(row, 1)?,
                revision: Revision(unsigned(column(row, 2)?)?),
            };
            Ok((column(row, 0)?, stored))
        };
        rows.iter().map(stored).collect()
    }

    async fn raise(&mut self, held: &Held, raises: &[Raise]) -> Result<Revision> {
        check_raises(raises)?;
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let locked = begin(&session).await?;
        check_epoch(&locked.cell, held.token.epoch, held.epoch_nonce)?;
        let revision = raise_revision(&session).await?;
        let keys: Vec<&str> = raises.iter().map(|raise| raise.key.as_str()).collect();
        let ceilings: Vec<i64> = raises.iter().map(|raise| raise.to).collect();
        let seen = raises
            .iter()
            .map(|raise| raise.seen.map(|seen| signed(seen.revision.0)).transpose())
            .collect::<Result<Vec<Option<i64>>>>()?;
        let raised = session
            .execute(
                RAISE,
                &[
                    &revision,
                    &keys,
                    &ceilings,
                    &seen,
                    &held.name.as_str(),
                    &Uuid::from_u128(self.config.holder.instance.0),
                    &Uuid::from_u128(held.boot_id.0),
                    &signed(held.token.epoch.0)?,
                    &signed(held.token.revision.0)?,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, raised, raises.len()).await?;
        Ok(Revision(unsigned(revision)?))
    }
}

impl StripeStore for PostgresStore {
    async fn stripes(&mut self, space_id: Option<u128>) -> Result<Vec<StripeClaim>> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let space_id = space_id.map(Uuid::from_u128);
        let rows = session.rows(STRIPES, &[&space_id]).await.map_err(not_done)?;
        self.commit(session, warnings).await?;
        rows.iter().map(stripe_row).collect()
    }

    async fn claim_stripe(&mut self, plan: &ClaimPlan) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let revision = raise_revision(&session).await?;
        let wish = &plan.wish;
        let seen = plan.seen.map(|revision| signed(revision.0)).transpose()?;
        let claimed = session
            .execute(
                CLAIM,
                &[
                    &revision,
                    &Uuid::from_u128(wish.space_id),
                    &index(wish.stripe)?,
                    &index(wish.cut.stripes)?,
                    &wish.server.cast_signed(),
                    &wish.name,
                    &ms(wish.at.0),
                    &wish.by,
                    &seen,
                    &wish.database,
                    &signed(wish.cut.size)?,
                    &wish.cut.above,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, claimed, 1).await
    }

    async fn join_stripe(&mut self, plan: &JoinPlan) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let revision = raise_revision(&session).await?;
        let joined = session
            .execute(
                JOIN,
                &[
                    &revision,
                    &ms(plan.at.0),
                    &Uuid::from_u128(plan.space_id),
                    &index(plan.stripe)?,
                    &signed(plan.seen.0)?,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, joined, 1).await
    }

    async fn release_stripe(&mut self, plan: &ReleasePlan) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session).await?;
        let revision = raise_revision(&session).await?;
        let released = session
            .execute(
                UNCLAIM,
                &[
                    &revision,
                    &ms(plan.at.0),
                    &plan.reason,
                    &Uuid::from_u128(plan.space_id),
                    &index(plan.stripe)?,
                    &signed(plan.seen.0)?,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, released, 1).await
    }
}

impl PostgresStore {
    fn committed(&self, revision: i64) -> Result<Committed> {
        Ok(Committed {
            revision: Revision(unsigned(revision)?),
            ttl_ms: self.config.ttl_ms,
        })
    }
}

async fn read(session: &Session, name: &str, is_prefix: bool) -> Result<Vec<NamedRow>> {
    let rows = session.rows(READ, &[&name, &is_prefix]).await.map_err(not_done)?;
    rows.iter().map(named_row).collect()
}

fn named_row(row: &tokio_postgres::Row) -> Result<NamedRow> {
    let name: String = column(row, 0)?;
    let revision = Revision(unsigned(column(row, 2)?)?);
    let occupant = match column::<Option<Uuid>>(row, 3)? {
        None => None,
        Some(instance) => Some(Occupant {
            holder: Holder {
                instance: InstanceId(instance.as_u128()),
                name: column(row, 4)?,
                token: Token {
                    epoch: Epoch(unsigned(column(row, 5)?)?),
                    revision: Revision(unsigned(column(row, 6)?)?),
                },
                boot_id: BootId(column::<Uuid>(row, 7)?.as_u128()),
                expired: column(row, 8)?,
            },
            guard: revision,
        }),
    };
    Ok(NamedRow {
        name: name
            .parse()
            .map_err(|_| broken("a name of a lease cannot be read"))?,
        generation: unsigned(column(row, 1)?)?,
        revision,
        occupant,
    })
}

fn stripe_row(row: &tokio_postgres::Row) -> Result<StripeClaim> {
    let number = |at| -> Result<u32> {
        u32::try_from(column::<i32>(row, at)?).map_err(|_| broken("a stripe is negative"))
    };
    let released_at: Option<i64> = column(row, 7)?;
    let released = match (released_at, column::<Option<String>>(row, 8)?) {
        (Some(at), Some(reason)) => Some((UnixMs(unsigned(at)?), reason)),
        _ => None,
    };
    Ok(StripeClaim {
        space_id: column::<Uuid>(row, 0)?.as_u128(),
        stripe: number(1)?,
        cut: Cut {
            stripes: number(2)?,
            size: unsigned(column(row, 11)?)?,
            above: column(row, 12)?,
        },
        server: column::<i64>(row, 3)?.cast_unsigned(),
        name: column(row, 4)?,
        database: column(row, 10)?,
        at: UnixMs(unsigned(column(row, 5)?)?),
        by: column(row, 6)?,
        joined: column::<Option<i64>>(row, 13)?
            .map(unsigned)
            .transpose()?
            .map(UnixMs),
        released,
        revision: Revision(unsigned(column(row, 9)?)?),
    })
}

fn index(stripe: u32) -> Result<i32> {
    i32::try_from(stripe)
        .map_err(|_| StoreError::new(StoreErrorKind::Denied, "a stripe does not fit into integer"))
}
