-- Counters: exact, per worker, shard, tag, role and SQLSTATE; reset; who sees what.
\pset null '(null)'
\getenv dir PG_ABS_SRCDIR
\set reloaded :dir '/include/reloaded.sql'
CREATE FUNCTION pg_temp.install(kind text, identity integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555',
               CASE kind WHEN 'shard' THEN 'sharded' ELSE h.worker_format END, kind, identity, 70, 1,
               c.wall_ms, c.wall_ms + 480000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c, idgen.health h
$$;
SELECT idgen.fence_lease(boot_id, kind, identity, token_epoch, token_revision) IS NOT NULL AS fenced
  FROM idgen.server_clock(), idgen.slots WHERE state <> 'fenced' GROUP BY 1;
SELECT pg_temp.install('worker', 300), pg_temp.install('shard', 77);
SELECT idgen_create_segment('stats');
SELECT idgen.grant_segment('stats', 'public');
SELECT idgen.reset_stats();
CREATE ROLE idgen_app; CREATE ROLE idgen_app2; CREATE ROLE idgen_dba IN ROLE pg_monitor;
-- A session authorised as another role, and a definer function: the role whose rights count is counted.
CREATE FUNCTION public.as_definer() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT idgen_snowflake()';
ALTER FUNCTION public.as_definer() OWNER TO idgen_app2;
SET ROLE idgen_app;
SELECT count(idgen_snowflake()) FROM generate_series(1, 10000);
SELECT count(*) FROM idgen_snowflake_batch(20000);
SELECT count(*) FROM idgen_snowflake_batch(3000, 77);
SELECT count(idgen_segment('stats')) FROM generate_series(1, 2500);
SELECT as_definer() > 0 AS minted;
-- Two statements of one transaction, the second fails: ids are gone, so they count.
BEGIN;
SELECT count(idgen_snowflake()) FROM generate_series(1, 5);
SELECT idgen_segment('no such tag');
ROLLBACK;
SELECT object, counter, value, warning FROM idgen.stats WHERE scope = 'role' AND counter = 'ids' ORDER BY object;
RESET ROLE;
SELECT scope, object, counter, value FROM idgen.stats
 WHERE scope IN ('worker', 'shard', 'tag') AND value > 0 AND counter = 'ids' ORDER BY scope, object;
SELECT scope, object, counter, value FROM idgen.stats WHERE scope = 'error' AND value > 0;
SELECT object, value FROM idgen.stats WHERE scope = 'role' AND counter = 'ids' AND object LIKE 'idgen%' ORDER BY object;
SELECT counter FROM idgen.stats WHERE scope = 'server' ORDER BY counter;
SELECT value FROM idgen.stats WHERE scope = 'server' AND counter IN ('clock_rewinds', 'burnt_ids');
SELECT kind, identity, ids FROM idgen.slots WHERE ids > 0 ORDER BY kind;
SET ROLE idgen_dba;
SELECT count(*) AS seen FROM idgen.stats WHERE scope = 'role' AND object LIKE 'idgen_app%' AND counter = 'ids';
SELECT idgen.reset_stats();
RESET ROLE;
-- Shards in turn: exact, and counted in handfuls all the same.
SELECT count(pg_temp.install('shard', shard)) FROM generate_series(60, 67) shard;
SELECT count(idgen_snowflake(60 + g % 8)) FROM generate_series(1, 8000) g;
SELECT min(ids), max(ids), count(*) FROM idgen.slots WHERE kind = 'shard' AND identity BETWEEN 60 AND 67;
-- A role that is gone is one of the others.
CREATE ROLE idgen_gone;
SET ROLE idgen_gone;
SELECT count(idgen_snowflake()) FROM generate_series(1, 100);
RESET ROLE;
DROP ROLE idgen_gone;
SELECT object, value FROM idgen.stats WHERE scope = 'role' AND counter = 'ids' AND object IN ('others', 'idgen_gone');
-- A wait that is cancelled is counted.
SELECT idgen.reset_stats();
SET statement_timeout = '100ms';
SET idgen.lease_wait_ms = '20s';
SELECT idgen_snowflake(59);
RESET statement_timeout;
RESET idgen.lease_wait_ms;
SELECT counter, value > 0 AS counted FROM idgen.stats WHERE counter IN ('lease_waits', 'waited_ms') ORDER BY counter;
-- More than a million in a second: said so.
SELECT count(*) FROM (SELECT idgen_snowflake_batch(3500000)) s;
SELECT object = current_user AS mine, warning FROM idgen.stats WHERE warning IS NOT NULL;
SELECT idgen.reset_stats();
SELECT scope, object, counter, value FROM idgen.stats WHERE value > 0 AND counter NOT IN ('counted_since_ms', 'lead_ms', 'refills');
-- Not counted when switched off.
ALTER SYSTEM SET idgen.track_ids = off;
SELECT pg_reload_conf();
\set setting idgen.track_ids
\set value off
\set ECHO none
\i :reloaded
\set ECHO all
SELECT current_setting('idgen.track_ids');
\c -
SELECT current_setting('idgen.track_ids'), count(idgen_snowflake()) FROM generate_series(1, 100);
SELECT ids FROM idgen.slots WHERE kind = 'worker' AND identity = 300;
ALTER SYSTEM RESET idgen.track_ids;
SELECT pg_reload_conf();

-- Slots for bulk: batches use the highest, single ids the others.
CREATE FUNCTION pg_temp.install(identity integer) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555', h.worker_format, 'worker', identity, 70, 1,
               c.wall_ms, c.wall_ms + 480000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c, idgen.health h
$$;
SELECT pg_temp.install(301), pg_temp.install(302);
ALTER SYSTEM SET idgen.bulk_slots = 1;
SELECT pg_reload_conf();
\set setting idgen.bulk_slots
\set value 1
\set ECHO none
\i :reloaded
\set ECHO all
\c -
SELECT current_setting('idgen.bulk_slots') AS bulk_slots;
SELECT DISTINCT (idgen_parse_registered(id, split_part(h.worker_format, '/', 1))).worker AS bulk FROM idgen.health h, idgen_snowflake_batch(30000) id;
SELECT bool_and((idgen_parse_registered(id, split_part(h.worker_format, '/', 1))).worker < 302) AS serving
  FROM idgen.health h, LATERAL (SELECT idgen_snowflake() AS id, pg_sleep(0.002) FROM generate_series(1, 20)) s;
-- Both in one session, and in one statement: they rise.
CREATE TEMP TABLE both_ways (n serial, id bigint);
DO $$ BEGIN FOR i IN 1..200 LOOP
    INSERT INTO both_ways (id) VALUES (idgen_snowflake());
    INSERT INTO both_ways (id) SELECT * FROM idgen_snowflake_batch(30);
END LOOP; END $$;
SELECT count(DISTINCT id) = count(*) AS distinct, count(*) FILTER (WHERE id <= before) AS out_of_order
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM both_ways) s;
-- One whose lease runs out keeps no batch from the others.
SELECT idgen.fence_lease(boot_id, 'worker', 302, 70, 1) IS NOT NULL AS fenced,
       idgen.install_lease(1, boot_id, '11111111-2222-4333-8444-555555555555', worker_format, 'worker', 302, 70, 2,
           wall_ms + 100, wall_ms + 60000, boottime_ms + 200, wall_ms, boottime_ms) AS for_a_moment
  FROM idgen.server_clock(), (SELECT worker_format FROM idgen.health) h;
SELECT pg_sleep(0.25);
SELECT count(*) FROM idgen_snowflake_batch(10);
SELECT idgen.fence_lease(boot_id, 'worker', 302, 70, 2) IS NOT NULL AS fenced FROM idgen.server_clock();
-- More than there are: one is left for single ids.
ALTER SYSTEM SET idgen.bulk_slots = 100;
SELECT pg_reload_conf();
\set setting idgen.bulk_slots
\set value 100
\set ECHO none
\i :reloaded
\set ECHO all
\c -
SELECT DISTINCT (idgen_parse_registered(id, split_part(h.worker_format, '/', 1))).worker > 300 AS bulk FROM idgen.health h, idgen_snowflake_batch(30000) id;
SELECT bool_and((idgen_parse_registered(id, split_part(h.worker_format, '/', 1))).worker = 300) AS serving
  FROM idgen.health h, LATERAL (SELECT idgen_snowflake() AS id, pg_sleep(0.002) FROM generate_series(1, 20)) s;
ALTER SYSTEM RESET idgen.bulk_slots;
SELECT pg_reload_conf();
SELECT idgen.fence_lease(boot_id, kind, identity, 70, 1) IS NOT NULL AS fenced
  FROM idgen.server_clock(), idgen.slots WHERE token_epoch = 70 GROUP BY 1;
DROP FUNCTION public.as_definer();
DROP ROLE idgen_app; DROP ROLE idgen_app2; DROP ROLE idgen_dba;
