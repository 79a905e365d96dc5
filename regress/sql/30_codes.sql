-- What other tests meet by its message is met here by its SQLSTATE, so that each has been seen
-- (idgen-daemon/tests/e2e/sqlstates.rs looks for all of them).
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SET idgen.lease_wait_ms = 0;
CREATE PROCEDURE pg_temp.close_all() LANGUAGE sql AS $$
    SELECT idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision) FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced' $$;
-- A window of one millisecond, which is over before it is used up.
CALL pg_temp.close_all();
SELECT idgen.install_lease(1, boot_id, coalesce(cell_id, '11111111-2222-4333-8444-555555555555'), 'classic', 'worker', 305, 100, 1, wall_ms, wall_ms, boottime_ms + 600000, wall_ms, boottime_ms)
  FROM idgen.server_clock();
DO $$ BEGIN WHILE (SELECT ceiling_lead_ms > -5 FROM idgen.slots WHERE identity = 305) LOOP PERFORM pg_sleep(0.001); END LOOP; END $$;
SELECT pg_temp.refusal('SELECT idgen_snowflake()');
SELECT pg_temp.refusal('SELECT * FROM idgen_snowflake_batch(3)');
-- A deadline that has passed.
CALL pg_temp.close_all();
SELECT idgen.install_lease(1, boot_id, cell_id, 'classic', 'worker', 306, 100, 1, wall_ms, wall_ms + 60000, boottime_ms + 300, wall_ms, boottime_ms) FROM idgen.server_clock();
DO $$ BEGIN WHILE (SELECT state <> 'expired' FROM idgen.slots WHERE identity = 306) LOOP PERFORM pg_sleep(0.001); END LOOP; END $$;
SELECT pg_temp.refusal('SELECT idgen_snowflake()');
CALL pg_temp.close_all();
SELECT idgen_create_segment('codes');
SELECT pg_temp.refusal($$SELECT idgen.grant_segment('codes', 'no such role')$$), pg_temp.refusal($$SELECT idgen.grant_daemon('no such role')$$);
