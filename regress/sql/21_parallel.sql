-- Parallel marks, shown by running: what is SAFE works in workers, what is RESTRICTED stays in the leader.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set ECHO all
SET timezone = 'UTC';
SELECT pg_temp.lease(310), idgen_create_segment('parallel');
-- Says which process evaluates it, and claims to be safe wherever that is.
CREATE FUNCTION evaluated_in() RETURNS integer LANGUAGE internal VOLATILE PARALLEL SAFE AS 'pg_backend_pid';
SELECT pg_backend_pid() AS leader \gset
CREATE TABLE par AS SELECT n AS id, idgen_uuidv7() AS u, '2026-11-01+00'::timestamptz + n * interval '1 ms' AS t FROM generate_series(1, 6000) n;
ALTER TABLE par SET (parallel_workers = 2);
ANALYZE par;
SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off; SET max_parallel_maintenance_workers = 2; SET jit = off;

-- Two workers make UUIDs at the same time, from states of their own.
EXPLAIN (COSTS OFF) SELECT idgen_uuidv7(), evaluated_in() FROM par;
CREATE TABLE made AS SELECT evaluated_in() AS pid, idgen_uuidv7() AS u FROM par;
SELECT count(*), count(DISTINCT u), count(DISTINCT pid) BETWEEN 1 AND 2 AS workers, bool_and(pid <> :leader) AS none_in_the_leader FROM made;
-- The queue of a worker keeps its order, so ids of one worker arrive rising.
SELECT count(*) AS out_of_order FROM (SELECT u, lag(u) OVER (PARTITION BY pid ORDER BY ctid) AS before FROM made) s WHERE u <= before;
DROP TABLE made;
CREATE TABLE made AS SELECT evaluated_in() AS pid, b AS u, idgen_uuidv7_at(t) AS a FROM par CROSS JOIN LATERAL idgen_uuidv7_batch(1 + par.id - par.id) b;
SELECT count(DISTINCT u) AS u, count(DISTINCT a) AS a, bool_and(pid <> :leader) AS none_in_the_leader FROM made;
DROP TABLE made;

-- The immutable ones: the same answers from workers as from the leader.
CREATE TABLE answers AS
SELECT id, evaluated_in() AS pid, idgen_timestamp(idgen_snowflake_min(t)) AS a, idgen_snowflake_max(t, 'regional') AS b, idgen_uuidv7_min(t) AS c,
       idgen_uuidv7_max(t) AS d, idgen_decode(idgen_encode(id)) AS e, idgen_parse(id::bigint << 22)::text AS f, idgen_parse(u)::text AS g, idgen_timestamp(u) AS h,
       idgen_cursor_floor(id::bigint << 22, '3 ms') AS i
  FROM par;
SELECT count(DISTINCT pid) BETWEEN 1 AND 2 AS workers, bool_and(pid <> :leader) AS none_in_the_leader FROM answers;
SET max_parallel_workers_per_gather = 0;
SELECT count(*) AS differ FROM answers w JOIN par p USING (id)
 WHERE (w.a, w.b, w.c, w.d, w.e, w.h, w.i) IS DISTINCT FROM (idgen_timestamp(idgen_snowflake_min(t)), idgen_snowflake_max(t, 'regional'), idgen_uuidv7_min(t),
        idgen_uuidv7_max(t), p.id, idgen_timestamp(p.u), idgen_cursor_floor(p.id::bigint << 22, '3 ms'))
    OR w.f IS DISTINCT FROM idgen_parse(p.id::bigint << 22)::text OR w.g IS DISTINCT FROM idgen_parse(p.u)::text;
SET max_parallel_workers_per_gather = 2;

-- Restricted: the scan is parallel, the id is made above it.
EXPLAIN (COSTS OFF) SELECT idgen_snowflake(), evaluated_in() FROM par WHERE idgen_encode(id) <> '';
CREATE TABLE made AS SELECT evaluated_in() AS pid, idgen_snowflake() AS s FROM par WHERE idgen_encode(id) <> '';
SELECT count(*), count(DISTINCT s), bool_and(pid = :leader) AS all_in_the_leader FROM made;
SELECT count(*) AS out_of_order FROM (SELECT s, lag(s) OVER (ORDER BY ctid) AS before FROM made) q WHERE s <= before;
-- Even in a filter, which a worker would like to evaluate.
EXPLAIN (COSTS OFF) SELECT id FROM par WHERE idgen_snowflake() > id;
DROP TABLE made;
-- Unsafe, as nextval(): not even the scan is parallel. A first call looks its tag up, and a tag of this very transaction
-- is granted from inline, both statements that are not allowed while workers run (viascom/nanoid-postgres#16).
EXPLAIN (COSTS OFF) SELECT idgen_segment('parallel') FROM par WHERE idgen_encode(id) <> '';
CREATE TABLE made AS SELECT idgen_segment('parallel') AS g FROM par WHERE idgen_encode(id) <> '';
SELECT count(DISTINCT g) FROM made;
DROP TABLE made;
BEGIN;
SELECT idgen_create_segment('parallel, own');
CREATE TABLE made AS SELECT idgen_segment('parallel, own') AS g FROM par WHERE idgen_encode(id) <> '';
SELECT count(DISTINCT g) FROM made;
ROLLBACK;

-- The planner's own test mode puts every plan into a worker that may be.
SELECT count(set_config(name, 'on', false)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT evaluated_in() <> :leader AS in_a_worker, idgen_uuidv7() <> idgen_uuidv7() AS distinct;
SELECT evaluated_in() = :leader AS in_the_leader, idgen_snowflake() < idgen_snowflake() AS rises, idgen_segment('parallel') > 0 AS dense;
SELECT evaluated_in() = :leader AS in_the_leader, state FROM idgen.health;
SELECT idgen_create_segment('made under test mode');
SELECT count(set_config(name, 'off', false)) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');

-- Workers build an index on the time in the id, and it agrees with the table.
CREATE TABLE stamped AS SELECT idgen_snowflake_min(t) AS id, u FROM par ORDER BY hashint4(id);
ALTER TABLE stamped SET (parallel_workers = 2);
ANALYZE stamped;
SET client_min_messages = debug1;
CREATE INDEX stamped_at ON stamped (idgen_timestamp(id));
CREATE INDEX stamped_encoded ON stamped (idgen_encode(id));
RESET client_min_messages;
SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0; SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM stamped WHERE idgen_timestamp(id) < '2026-11-01 00:00:03+00';
SELECT count(*) FROM stamped WHERE idgen_timestamp(id) < '2026-11-01 00:00:03+00';
SELECT count(*) FROM stamped WHERE idgen_encode(id) = idgen_encode(idgen_snowflake_min('2026-11-01 00:00:03+00'));
RESET ALL;
DROP TABLE par, stamped, answers;
DROP FUNCTION evaluated_in();
