-- The registry of formats.
\pset null '(null)'
SELECT name, compiled_in, sign_bits AS sign, ts_bits AS ts, region_bits AS region, version_bits AS version, node_bits AS node,
       seq_bits AS seq, is_shard, ids_per_ms, ends_at AT TIME ZONE 'UTC' AS ends_at, years_left > 20 AS years
  FROM idgen.formats ORDER BY name COLLATE "C";
-- Registered once; the same again is no error, another under its name is.
SELECT idgen.register_format('twitter', '2010-11-04 01:42:54.657+00', 41, 10, 12) AS registered,
       idgen.register_format('twitter', '2010-11-04 01:42:54.657+00', 41, 10, 12) AS again;
SELECT idgen.register_format('twitter', '2010-11-04 01:42:54.657+00', 41, 11, 11);
SELECT idgen.register_format('classic', '2020-01-01+00', 41, 10, 12);
SELECT idgen_timestamp_registered(1541815603606036480, 'twitter') AT TIME ZONE 'UTC' AS published, idgen_parse_registered(1541815603606036480, 'twitter');
SELECT idgen_timestamp(1541815603606036480, 'twitter');
SELECT idgen_timestamp_registered(1, 'no such format');
SELECT idgen_parse_registered(idgen_snowflake_min('2026-11-01+00'), 'classic') = idgen_parse(idgen_snowflake_min('2026-11-01+00')) AS compiled_in_too;
SELECT idgen_timestamp_registered(idgen_snowflake_min_registered('2026-11-01+00', 'twitter'), 'twitter') = '2026-11-01+00' AS min,
       idgen_snowflake_max_registered('2026-11-01+00', 'twitter') - idgen_snowflake_min_registered('2026-11-01+00', 'twitter') AS one_ms,
       idgen_snowflake_min_registered('-infinity', 'twitter') AS before, idgen_snowflake_max_registered('2010-01-01+00', 'twitter') AS before_max,
       idgen_snowflake_min_registered('infinity', 'twitter') AS after;
SELECT idgen_timestamp_registered(-1, 'twitter'), idgen_parse_registered(-1, 'twitter');
-- Every refusal.
SELECT idgen.register_format('x', '2020-01-01+00', 42, 9, 12);
SELECT idgen.register_format('x', '2020-01-01+00', 41, 9, 13);
SELECT idgen.register_format('x', '2020-01-01+00', 41, 10, 11);
SELECT idgen.register_format('x', '2020-01-01+00', 34, 16, 12, 1, 0);
SELECT idgen.register_format('x', '2020-01-01+00', 41, 10, 12, sign_bits => 2);
SELECT idgen.register_format('x', '2020-01-01+00', -1, 10, 12);
SELECT idgen.register_format('X', '2020-01-01+00', 41, 10, 12);
SELECT idgen.register_format(repeat('x', 10000000), '2020-01-01+00', 41, 10, 12);
SELECT idgen.register_format('x', '1969-12-31+00', 41, 10, 12);
SELECT idgen.register_format('x', 'infinity', 41, 10, 12);
SELECT idgen.register_format('x', '2020-01-01 00:00:00.0001+00', 41, 10, 12);
SELECT idgen.register_format('x', NULL, 41, 10, 12);
-- What was rolled back is not known, in this session neither.
BEGIN;
SELECT idgen.register_format('gone', '2024-01-01+00', 41, 10, 12);
SELECT idgen_timestamp_registered(0, 'gone') IS NOT NULL AS known;
ROLLBACK;
SELECT idgen_timestamp_registered(0, 'gone');
BEGIN;
SAVEPOINT a;
SELECT idgen.register_format('gone', '2020-01-01+00', 41, 10, 12), idgen_timestamp_registered(0, 'gone') = '2020-01-01+00' AS of_2020;
ROLLBACK TO a;
SELECT idgen.register_format('gone', '2021-01-01+00', 41, 10, 12), idgen_timestamp_registered(0, 'gone') = '2021-01-01+00' AS of_2021;
ROLLBACK;
-- For ever, by whoever.
UPDATE idgen.format SET epoch = '2000-01-01+00';
DELETE FROM idgen.format;
TRUNCATE idgen.format;
CREATE ROLE idgen_reader;
SET ROLE idgen_reader;
SELECT idgen.register_format('y', '2020-01-01+00', 41, 10, 12);
SELECT idgen_timestamp_registered(0, 'twitter') IS NOT NULL AS readable;
SELECT count(*) FROM idgen.formats WHERE name = 'twitter';
DELETE FROM idgen.format;
RESET ROLE;
DROP ROLE idgen_reader;
