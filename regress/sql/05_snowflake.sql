-- Minting: distinct, rising within a session, positive, in every place where a default is evaluated.
CREATE FUNCTION pg_temp.install(identity integer, revision bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555', 'classic', 'worker', identity, 9, revision,
               c.wall_ms, c.wall_ms + 480000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms)
      FROM idgen.server_clock() c
$$;
SELECT pg_temp.install(100, 1), pg_temp.install(101, 1);

CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n integer);
INSERT INTO orders (n) SELECT generate_series(1, 50000);
COPY orders (n) FROM stdin;
1
2
3
\.
INSERT INTO orders (n) VALUES (1) RETURNING id > 0 AS positive;
INSERT INTO orders (id, n) SELECT min(id), 2 FROM orders ON CONFLICT (id) DO NOTHING;
SELECT count(*), count(DISTINCT id), min(id) > 0 AS positive FROM orders;
SELECT DISTINCT (idgen_parse(id)).worker IN (100, 101) AS a_leased_one FROM orders;
-- Session order, at full speed: more than one slot per millisecond gives.
CREATE TEMP TABLE fast AS SELECT n, idgen_snowflake() AS id FROM generate_series(1, 100000) n;
SELECT count(DISTINCT id), count(*) FILTER (WHERE id <= before) AS out_of_order
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM fast) s;
-- … and across a change of worker, to a lower one.
SELECT max(id) AS last FROM fast \gset
SELECT idgen.fence_lease((SELECT boot_id FROM idgen.server_clock()), 'worker', w, 9, 1) IS NOT NULL FROM generate_series(100, 101) w;
SELECT pg_temp.install(3, 1);
SELECT idgen_snowflake() > :last AS still_rising;

-- Every row its own id, also where Postgres could think otherwise.
CREATE TABLE old (n integer);
INSERT INTO old SELECT generate_series(1, 1000);
ALTER TABLE old ADD COLUMN id bigint DEFAULT idgen_snowflake();
SELECT count(DISTINCT id) FROM old;
PREPARE one AS INSERT INTO orders (n) VALUES ($1);
EXECUTE one(1); EXECUTE one(2); EXECUTE one(3); EXECUTE one(4); EXECUTE one(5); EXECUTE one(6); EXECUTE one(7);
DO $$ BEGIN FOR i IN 1..100 LOOP INSERT INTO orders (n) VALUES (i); END LOOP; END $$;
SELECT count(*) = count(DISTINCT id) AS distinct FROM orders;
-- Restricted means: in the leader.
SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SELECT count(DISTINCT id) FROM (SELECT idgen_snowflake() AS id FROM orders) s;
-- A savepoint that is rolled back does not give ids back.
BEGIN;
SELECT idgen_snowflake() AS a \gset
SAVEPOINT s;
SELECT idgen_snowflake() AS b \gset
ROLLBACK TO s;
SELECT idgen_snowflake() > :b AND :b > :a AS rises;
COMMIT;
DROP TABLE orders, old;
