//! What the adapter says to the database.

/// Locks the cell and says whether this database may serve it.
pub(super) const LOCK_CELL: &str = "
    SELECT c.cell_id, c.worker_format, c.epoch, c.epoch_nonce,
           (extract(epoch FROM c.epoch_since) * 1000)::int8,
           c.min_floor_ms, c.shard_min_floor_ms, c.sealed_reason, c.revision,
           c.epoch_known, (extract(epoch FROM c.epoch_known_since) * 1000)::int8,
           format('postgres/%s/%s/%s', c.system_identifier, c.timeline, c.database_oid),
           format('postgres/%s/%s/%s', i.system_identifier, i.timeline, i.database_oid),
           c.formats_known, (extract(epoch FROM c.sealed_at) * 1000)::int8
      FROM idgen.cell c CROSS JOIN idgen.store_identity() i
       FOR UPDATE OF c";

/// Makes the cell at the first use of this database. Epoch 0 leases from the lower half of the pool.
pub(super) const MAKE_CELL: &str = "
    INSERT INTO idgen.cell (cell_id, worker_format, epoch, epoch_nonce,
                            system_identifier, timeline, database_oid)
    SELECT $1, 'classic', 0, $2, i.system_identifier, i.timeline, i.database_oid
      FROM idgen.store_identity() i
        ON CONFLICT DO NOTHING";

pub(super) const READ_LEASES: &str = "
    SELECT identity, generation, ceiling_ms, revision, holder, holder_name, token_epoch, token_revision,
           boot_id, expires_at <= clock_timestamp()
      FROM idgen.lease WHERE kind = $1 ORDER BY identity";

pub(super) const RAISE_REVISION: &str = "UPDATE idgen.cell SET revision = revision + 1 RETURNING revision";

pub(super) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";

/// Whatever is sealed already stays as it is. The cell's row is locked, and what is known was put together from it.
pub(super) const SEAL: &str = "
    UPDATE idgen.cell
       SET sealed_reason = coalesce(sealed_reason, $1), sealed_at = coalesce(sealed_at, clock_timestamp()),
           revision = revision + 1,
           epoch_known = $2, epoch_known_since = to_timestamp($3::float8 / 1000), formats_known = $4";

/// The cell's row is locked and was found to have the epoch that this was planned on.
pub(super) const ADVANCE: &str = "
    WITH recorded AS (
        INSERT INTO idgen.epoch (epoch, began_at, store, changed_by, reason)
        VALUES ($1, to_timestamp($3::float8 / 1000), $5, $6, $7))
    UPDATE idgen.cell c
       SET epoch = $1, epoch_nonce = $2, epoch_since = to_timestamp($3::float8 / 1000), sealed_reason = NULL,
           sealed_at = NULL,
           worker_format = $9, formats_known = '{}',
           min_floor_ms = greatest(c.min_floor_ms, $8),
           shard_min_floor_ms = greatest(c.shard_min_floor_ms, $4), revision = c.revision + 1,
           system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid
      FROM idgen.store_identity() i";

pub(super) const HISTORY: &str = "
    SELECT epoch, (extract(epoch FROM began_at) * 1000)::int8, store, changed_by, reason
      FROM idgen.epoch ORDER BY epoch";

/// The cell's row is locked, so no ceiling is raised meanwhile.
pub(super) const SWITCH: &str = "
    UPDATE idgen.cell
       SET worker_format = $1, min_floor_ms = greatest(min_floor_ms, $2), revision = revision + 1
     WHERE worker_format = $4
       AND NOT EXISTS (SELECT FROM idgen.lease WHERE kind = 'worker' AND ceiling_ms >= $3)";

/// Grants the rows of the plan that are as they were seen; the caller counts them.
pub(super) const GRANT: &str = "
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

/// Renews the rows that are held under their tokens and as they were left, where no operator has ordered that the lease
/// ends; the caller counts them. One that has expired
/// is still as it was left when nobody has taken it. (This clock may have been set: an hour ahead, and every lease has
/// expired.)
pub(super) const RENEW: &str = "
    UPDATE idgen.lease l
       SET ceiling_ms = p.ceiling_ms, revision = $1,
           expires_at = clock_timestamp() + $2 * interval '1 millisecond'
      FROM unnest($3::int4[], $4::int8[], $7::int8[], $8::int8[], $9::int8[])
           AS p(identity, ceiling_ms, token_epoch, token_revision, guard)
     WHERE l.kind = $10 AND l.identity = p.identity
       AND l.holder = $5 AND l.boot_id = $6
       AND l.token_epoch = p.token_epoch AND l.token_revision = p.token_revision
       AND l.revision = p.guard AND l.ceiling_ms <= p.ceiling_ms
       AND NOT EXISTS (SELECT FROM idgen.lease_order o
                        WHERE o.kind = l.kind AND o.identity = l.identity
                          AND o.token_epoch = l.token_epoch AND o.token_revision = l.token_revision)";

/// Whose instance made the claim does not matter: token and boot id name it, and only whoever serves
/// that shared memory can know the exact high water.
pub(super) const RELEASE: &str = "
    UPDATE idgen.lease l
       SET ceiling_ms = p.last_ms, exact = true, revision = $1, holder = NULL, holder_name = NULL,
           token_epoch = NULL, token_revision = NULL, boot_id = NULL, expires_at = NULL
      FROM unnest($2::int4[], $3::int8[], $4::int8[], $5::int8[])
           AS p(identity, last_ms, token_epoch, token_revision)
     WHERE l.kind = $7 AND l.identity = p.identity AND l.boot_id = $6
       AND l.token_epoch = p.token_epoch AND l.token_revision = p.token_revision
       AND l.ceiling_ms >= p.last_ms
    RETURNING l.identity";
