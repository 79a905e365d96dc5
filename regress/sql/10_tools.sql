-- Bounds in time, batches, text forms.
SET timezone = 'UTC';
SELECT idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision) IS NULL AS none
  FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced';
SELECT bool_and(idgen.install_lease(1, c.boot_id, coalesce(c.cell_id, '11111111-2222-4333-8444-555555555555'), 'classic',
           'worker', w, 30, 1, c.wall_ms, c.wall_ms + 480000, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms))
  FROM idgen.server_clock() c, generate_series(600, 601) w;

-- A bound splits ids exactly as their times do, at every fraction of a millisecond.
SELECT t, idgen_snowflake_min(t) AS lowest, idgen_timestamp(idgen_snowflake_min(t)) >= t AS not_before,
       idgen_timestamp(idgen_snowflake_min(t) - 1) < t AS and_the_first,
       idgen_timestamp(idgen_snowflake_max(t)) <= t AS not_after, idgen_timestamp(idgen_snowflake_max(t) + 1) > t AS and_the_last
  FROM unnest(ARRAY['2026-11-01 00:00+00', '2026-11-01 00:00:00.000001+00', '2026-11-01 00:00:00.000999+00']::timestamptz[]) t;
-- Clamped: an end of the axis is never an error, and never a wrap.
SELECT f, idgen_snowflake_min('-infinity', f), idgen_snowflake_max('-infinity', f), idgen_snowflake_min('1969-12-31', f),
       idgen_snowflake_max('2019-12-31 23:59:59.999+00', f), idgen_snowflake_min('infinity', f), idgen_snowflake_max('infinity', f)
  FROM unnest(ARRAY['classic', 'regional', 'sharded']) f;
SELECT idgen_snowflake_min('2026-11-01', 'nonsense');
SELECT idgen_snowflake_min(NULL), idgen_snowflake_max(NULL), idgen_uuidv7_min(NULL), idgen_uuidv7_max(NULL);
SELECT idgen_uuidv7_min('2026-11-01 00:00:00.0005+00'), idgen_uuidv7_max('2026-11-01 00:00:00.0005+00');
SELECT t, idgen_uuidv7_min(t), idgen_uuidv7_max(t) FROM unnest(ARRAY['-infinity', '1969-12-31', 'infinity']::timestamptz[]) t;

-- The planner uses them: pruned at plan time, and an index condition.
CREATE TABLE ranged (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n integer) PARTITION BY RANGE (id);
CREATE TABLE ranged_old PARTITION OF ranged FOR VALUES FROM (idgen_snowflake_min('2026-10-01+00')) TO (idgen_snowflake_min('2026-11-01+00'));
CREATE TABLE ranged_new PARTITION OF ranged FOR VALUES FROM (idgen_snowflake_min('2026-11-01+00')) TO (idgen_snowflake_min('2089-01-01+00'));
INSERT INTO ranged (n) SELECT generate_series(1, 1000);
ANALYZE ranged;
SET enable_seqscan = off; SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT n FROM ranged WHERE id >= idgen_snowflake_min('2026-11-01+00');
EXPLAIN (COSTS OFF) SELECT n FROM ranged WHERE id < idgen_snowflake_min('2026-11-01+00');
RESET enable_seqscan; RESET enable_bitmapscan;
DROP TABLE ranged;

-- Where a cursor reads again from.
SELECT idgen_timestamp(idgen_cursor_floor(idgen_snowflake_min('2026-11-01 00:00:10+00'), '3 seconds')) AS three_seconds_before,
       idgen_cursor_floor(5, '1 hour') AS at_the_epoch, idgen_cursor_floor(-1, '1 s') AS no_id, idgen_cursor_floor(1, NULL) AS no_overlap;
SELECT idgen_cursor_floor(1, '1 day');
SELECT idgen_cursor_floor(1, '1 month');
SELECT idgen_cursor_floor(1, '-1 second');

-- Batches: distinct and rising, with the single calls too; any size in constant memory.
SELECT idgen_snowflake() AS before \gset
SELECT count(DISTINCT id), min(id) > :before AS above, bool_and(id > last OR last IS NULL) AS rising, max(id) AS highest
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS last FROM idgen_snowflake_batch(100000) WITH ORDINALITY b (id, n)) s \gset batch_
SELECT :batch_count AS rows, :'batch_above' AS above, :'batch_rising' AS rising;
SELECT idgen_snowflake() > :batch_highest AS goes_on;
SELECT count(*) FROM (SELECT idgen_snowflake_batch(3)) s;
SELECT count(*) FROM (SELECT idgen_snowflake_batch(1000000) LIMIT 5) s;
SELECT count(DISTINCT id), bool_and(id > last OR last IS NULL) AS rising
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS last FROM idgen_uuidv7_batch(100000) WITH ORDINALITY b (id, n)) s;
SELECT * FROM idgen_snowflake_batch(0);
SELECT * FROM idgen_snowflake_batch(-1);
SELECT * FROM idgen_snowflake_batch(NULL);
SELECT * FROM idgen_uuidv7_batch(0);
SELECT * FROM idgen_uuidv7_batch(NULL);
-- Two sets side by side in one row source.
SELECT count(*), count(s), count(u) FROM (SELECT idgen_snowflake_batch(2) AS s, idgen_uuidv7_batch(3) AS u) t;

-- History gets its ids late.
SELECT idgen_timestamp(idgen_uuidv7_at('2001-02-03 04:05:06.789+00')), idgen_uuidv7_at('2001-02-03') <> idgen_uuidv7_at('2001-02-03') AS distinct,
       idgen_uuidv7_at('2001-02-03+00') BETWEEN idgen_uuidv7_min('2001-02-03+00') AND idgen_uuidv7_max('2001-02-03+00') AS between;
SELECT idgen_uuidv7_at('1969-12-31');
SELECT idgen_uuidv7_at('infinity');
SELECT idgen_uuidv7_at('-infinity');
SELECT idgen_uuidv7_at('20000-01-01');
SELECT idgen_uuidv7_at(NULL);

-- Text that survives JSON.
SELECT id, idgen_encode(id), idgen_decode(idgen_encode(id)) = id AS back
  FROM unnest(ARRAY[0, 31, 32, 914921407366844416, 9223372036854775807]) id;
SELECT idgen_decode('0sck-m5gnr-0m00') AS hyphens, idgen_decode('OOOOOOOOOOOOI') AS look_alikes, idgen_decode(NULL) AS null;
SELECT idgen_encode(-1);
SELECT idgen_decode('');
SELECT idgen_decode('8000000000000');
SELECT idgen_decode('000000000000U');
SELECT idgen_decode('00000000000é');
SELECT idgen_decode(repeat('0', 10000000));
SELECT bool_and((a.id < b.id) = (idgen_encode(a.id) COLLATE "C" < idgen_encode(b.id) COLLATE "C")) AS sorts_alike
  FROM (SELECT abs(hashint8extended(n, 1)) FROM generate_series(1, 200) n) a (id), (SELECT abs(hashint8extended(n, 2)) FROM generate_series(1, 200) n) b (id);
