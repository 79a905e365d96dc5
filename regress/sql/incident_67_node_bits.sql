-- INCIDENTS 67, cockroachdb/cockroach#108050, #47470: a node number above its 15 bits was XORed into the time. A worker here
-- has 10 bits: a larger one gets no lease, and every id carries the number of a leased one, and the time of its making.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT n AS worker, pg_temp.refusal(format('SELECT idgen.install_lease(1, %L, %L, ''classic'', ''worker'', %s, 100, 1, %s, %s, %s, %s, %s)', boot_id,
           coalesce(cell_id, '11111111-2222-4333-8444-555555555555'), n, wall_ms, wall_ms + 1, boottime_ms + 60000, wall_ms, boottime_ms))
  FROM unnest(ARRAY[-2147483648, -1, 1024, 1025, 2048, 32768, 2147483647]) n, idgen.server_clock();
-- The first and the last that fit, one after the other.
CREATE PROCEDURE pg_temp.close_all() LANGUAGE sql AS $$
    SELECT idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision) FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced' $$;
CREATE TEMP TABLE made (id bigint, at timestamptz DEFAULT clock_timestamp());
CALL pg_temp.close_all();
SELECT pg_temp.lease(0);
INSERT INTO made SELECT idgen_snowflake() FROM generate_series(1, 25000);
CALL pg_temp.close_all();
SELECT pg_temp.lease(1023);
INSERT INTO made SELECT idgen_snowflake() FROM generate_series(1, 25000);
SELECT (idgen_parse(id)).worker, count(*) FROM made GROUP BY 1 ORDER BY 1;
SELECT count(*) FILTER (WHERE idgen_timestamp(id) NOT BETWEEN at - interval '30 s' AND at + interval '30 s') AS time_touched, bool_and(id > 0) AS positive, count(DISTINCT id) FROM made;
-- The last id of one ms and the first of the next are neighbours, and each has its own fields.
SET timezone = 'UTC';
SELECT idgen_parse(id) FROM unnest(ARRAY[((1000::bigint << 10 | 1023) << 12) | 4095, (1001::bigint << 10 | 0) << 12]) id;
SELECT (((1000::bigint << 10 | 1023) << 12) | 4095) + 1 = (1001::bigint << 10 | 0) << 12 AS neighbours;
CALL pg_temp.close_all();
