-- The log of the embedded lease store: what one statement does to many rows is written down row by row, in the order of their
-- identities, and counted once. Renewals are counted in the rows only. Nothing of it stays.
BEGIN;
INSERT INTO idgen.cell (cell_id, worker_format, epoch, epoch_nonce, revision, system_identifier, timeline, database_oid)
SELECT gen_random_uuid(), 'classic', 0, gen_random_uuid(), 7, i.system_identifier, i.timeline, i.database_oid
  FROM idgen.store_identity() i;
CREATE TEMP VIEW log AS
SELECT position, revision, of_table,
       coalesce(before ->> 'identity', before ->> 'shard') AS was, before ->> 'holder_name' AS was_of,
       coalesce(after ->> 'identity', after ->> 'shard') AS is, after ->> 'holder_name' AS is_of,
       coalesce(after ->> 'version', before ->> 'version') AS version
  FROM idgen.lease_change WHERE of_table <> 'cell' ORDER BY position;
CREATE TEMP VIEW counted AS
SELECT c.changes = max(l.position) AND c.changes = count(*) AS counted FROM idgen.cell c, idgen.lease_change l GROUP BY c.changes;

-- A grant of what was never leased, and of what was.
INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision)
SELECT 'shard', identity, 1, 100, 7 FROM unnest(ARRAY[30, 4]) identity;
INSERT INTO idgen.lease AS l (kind, identity, generation, ceiling_ms, revision,
                              holder, holder_name, token_epoch, token_revision, boot_id, expires_at)
SELECT 'shard', identity, 1, 200, 8, gen_random_uuid(), 'a', 0, 8, gen_random_uuid(), now() FROM unnest(ARRAY[30, 200, 4]) identity
    ON CONFLICT (kind, identity) DO UPDATE
   SET generation = l.generation + 1, ceiling_ms = excluded.ceiling_ms, holder = excluded.holder, holder_name = 'b',
       token_epoch = 0, token_revision = 8, boot_id = excluded.boot_id, expires_at = excluded.expires_at;
SELECT * FROM log;
SELECT * FROM counted;

-- A renewal.
UPDATE idgen.lease SET ceiling_ms = 300, revision = 9, expires_at = now() + interval '1 s';
SELECT count(*) FROM log WHERE version > '2';
SELECT DISTINCT version FROM idgen.lease ORDER BY version;

-- One statement that renews one, lowers another's ceiling, and takes a third one from its holder.
UPDATE idgen.cell SET revision = 10;
UPDATE idgen.lease
   SET ceiling_ms = CASE identity WHEN 30 THEN 250 ELSE 400 END,
       holder = CASE identity WHEN 200 THEN NULL ELSE holder END, holder_name = CASE identity WHEN 200 THEN NULL ELSE holder_name END,
       token_epoch = CASE identity WHEN 200 THEN NULL ELSE token_epoch END,
       token_revision = CASE identity WHEN 200 THEN NULL ELSE token_revision END,
       boot_id = CASE identity WHEN 200 THEN NULL ELSE boot_id END,
       expires_at = CASE identity WHEN 200 THEN NULL ELSE expires_at END;
SELECT * FROM log WHERE revision = 10;

-- Somebody gives rows other keys: one is gone, and another one there.
UPDATE idgen.cell SET revision = 11;
UPDATE idgen.lease SET identity = identity + 1 WHERE identity IN (4, 30);
SELECT * FROM log WHERE revision = 11;

-- Orders for shards.
UPDATE idgen.cell SET revision = 12;
INSERT INTO idgen.shard_assignment (shard, server, assigned_at, assigned_by, version)
SELECT shard, 'a', now(), 'me', 1 FROM unnest(ARRAY[7, 10, 2]) shard;
UPDATE idgen.shard_assignment SET server = 'b', version = 2 WHERE shard <> 7;
DELETE FROM idgen.shard_assignment WHERE shard > 2;
SELECT * FROM log WHERE revision = 12;
SELECT * FROM counted;

-- How many people have to approve.
UPDATE idgen.cell SET approvals_needed = 2;
UPDATE idgen.cell SET approvals_needed = 2, revision = 13;
SELECT before ->> 'approvals_needed' AS was, after ->> 'approvals_needed' AS is
  FROM idgen.lease_change WHERE of_table = 'cell' AND before IS NOT NULL ORDER BY position;

-- They cannot be switched off by a session that replays what another server has done.
SET LOCAL session_replication_role = replica;
UPDATE idgen.cell SET revision = 13;
UPDATE idgen.lease SET generation = generation + 1 WHERE identity = 200;
SELECT * FROM log WHERE revision = 13;
ROLLBACK;
