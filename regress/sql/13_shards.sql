-- Logical shards: leased like workers, named by the call or by idgen.shard.
\pset null '(null)'
CREATE FUNCTION pg_temp.install(shard integer, revision bigint, ahead_ms bigint DEFAULT 0) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555', 'sharded', 'shard', shard, 50, revision,
               c.wall_ms + ahead_ms, c.wall_ms + ahead_ms + 10000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c
$$;
-- Refused at once (nobody waits for a shard that has never been here), by number, and without a number.
SET idgen.lease_wait_ms = 0;
SELECT idgen_snowflake(5);
SELECT idgen_snowflake(8192);
SELECT idgen_snowflake(-1);
SELECT idgen_snowflake(NULL);
SELECT count(*) FROM idgen_snowflake_batch(3, 5);
SELECT count(*) FROM idgen_snowflake_batch(3, NULL);
SELECT count(*) FROM idgen_snowflake_batch(0, 5);
SELECT count(*) FROM idgen_snowflake_batch(NULL, 5);
SET idgen.shard = 8192;
SET idgen.shard = -2;
-- No worker is touched by a shard, nor the other way round: both are number 5.
SELECT pg_temp.install(5, 1), pg_temp.install(8191, 1), pg_temp.install(5, 1) AS the_same_token;
SELECT kind, identity, state FROM idgen.slots WHERE kind = 'shard' ORDER BY identity;
SELECT state, open_shards FROM idgen.health;
SELECT (idgen_parse(idgen_snowflake(5), 'sharded')).shard, (idgen_parse(idgen_snowflake(8191), 'sharded')).shard;
SELECT idgen_timestamp(idgen_snowflake(5), 'sharded') BETWEEN clock_timestamp() - interval '10 s' AND clock_timestamp() + interval '1 s' AS now;
-- The setting: session, function, role.
SET idgen.shard = 5;
SELECT (idgen_parse(idgen_snowflake(NULL), 'sharded')).shard AS of_the_session,
       (idgen_parse(idgen_snowflake(8191), 'sharded')).shard AS named,
       (SELECT count(DISTINCT id) FROM idgen_snowflake_batch(5000, NULL) id) AS batch;
CREATE FUNCTION pg_temp.of_shard() RETURNS bigint LANGUAGE sql SET idgen.shard = 8191 AS 'SELECT idgen_snowflake(NULL)';
SELECT (idgen_parse(pg_temp.of_shard(), 'sharded')).shard AS of_the_function;
-- A column of one shard; single ids and batches rise together.
CREATE TABLE sharded (id bigint PRIMARY KEY DEFAULT idgen_snowflake(NULL), n integer);
INSERT INTO sharded (n) SELECT generate_series(1, 20000);
CREATE TEMP TABLE mixed (n serial, id bigint);
DO $$ BEGIN FOR i IN 1..50 LOOP
    INSERT INTO mixed (id) SELECT idgen_snowflake(5);
    INSERT INTO mixed (id) SELECT id FROM idgen_snowflake_batch(1500, 5) id;
END LOOP; END $$;
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= before) AS out_of_order, min((idgen_parse(id, 'sharded')).shard) AS shard
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM mixed) s;
SELECT count(*) = count(DISTINCT id) AS distinct FROM (SELECT id FROM sharded UNION ALL SELECT id FROM mixed) s;
-- Closed. Nobody keeps the leases of shards here (a daemon that restarts): it may come back. Somebody does, and has had
-- time to install what he has: it belongs elsewhere, so the error comes at once, however long a lease is waited for.
SELECT idgen.fence_lease(boot_id, 'shard', 5, 50, 1) IS NOT NULL AS fenced FROM idgen.server_clock();
SET idgen.lease_wait_ms = 50;
\set VERBOSITY sqlstate
SELECT idgen_snowflake(5);
SELECT sum(value) > 0 AS waited FROM idgen.stats WHERE counter = 'lease_waits';
SELECT idgen.claim_server('shard') AS claimed;
SET idgen.lease_wait_ms = 60000;
SELECT pg_sleep(2.1);
SELECT idgen_snowflake(5);
\set VERBOSITY default
SELECT pg_temp.install(5, 2, 500), idgen_snowflake(5) > (SELECT max(id) FROM mixed) AS rises;
SELECT idgen.fence_lease(boot_id, 'shard', shard, 50, revision) IS NOT NULL AS fenced
  FROM idgen.server_clock(), (VALUES (5, 2), (8191, 1)) s (shard, revision);
RESET idgen.lease_wait_ms;
DROP TABLE sharded;
