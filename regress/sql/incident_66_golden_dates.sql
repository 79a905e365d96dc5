-- INCIDENTS 66, Ahoo-Wang/CosId#129, PR#1078: seconds taken for milliseconds, so ids would have ended decades early. Every
-- layout has golden dates here, reckoned by hand from its definition: (ms since 2020-01-01) shifted by the bits below.
SET timezone = 'UTC';
WITH golden (format, shift, at, id) AS (VALUES
    ('classic', 22, '2020-01-01 00:00:00.000+00'::timestamptz, 0),
    ('classic', 22, '2020-01-01 00:00:00.001+00', 4194304),
    ('classic', 22, '2020-01-01 00:00:01.000+00', 4194304000),
    ('classic', 22, '2038-01-19 03:14:07.000+00', 2389272048959488000),
    ('classic', 22, '2089-09-06 15:47:35.551+00', 9223372036850581504),
    ('regional', 22, '2020-01-01 00:00:00.001+00', 4194304),
    ('regional', 22, '2089-09-06 15:47:35.551+00', 9223372036850581504),
    ('sharded', 23, '2020-01-01 00:00:00.001+00', 8388608),
    ('sharded', 23, '2054-11-03 19:53:47.775+00', 9223372036846387200))
SELECT format, at, id, idgen_snowflake_min(at, format) = id AS min, idgen_timestamp(id, format) = at AS time,
       ((extract(epoch FROM at) * 1000)::bigint - 1577836800000) << shift = id AS by_hand
  FROM golden;
-- A millisecond is a millisecond, all through the life: adding one moves the id by one step, a second by a thousand.
SELECT f.format, count(*) FILTER (WHERE idgen_snowflake_min(t + interval '1 ms', f.format) - idgen_snowflake_min(t, f.format) <> 1::bigint << f.shift
                                     OR idgen_snowflake_min(t + interval '1 s', f.format) - idgen_snowflake_min(t, f.format) <> 1000::bigint << f.shift) AS wrong
  FROM (VALUES ('classic', 22, '2089-09-01+00'::timestamptz), ('regional', 22, '2089-09-01+00'), ('sharded', 23, '2054-11-01+00')) f (format, shift, until),
       generate_series('2020-01-01+00'::timestamptz, f.until, interval '3 days 5 hours 7 minutes 11.013 seconds') t
 GROUP BY 1 ORDER BY 1;
-- How long each lasts, in days, beside how long its bits last.
SELECT f, extract(day FROM idgen_timestamp(9223372036854775807, f) - '2020-01-01+00'::timestamptz) AS days, ((1::bigint << bits) - 1) / 86400000 AS by_bits
  FROM (VALUES ('classic', 41), ('regional', 41), ('sharded', 40)) v (f, bits);
-- UUIDs count milliseconds since 1970: the RFC's example.
SELECT idgen_timestamp('017f22e2-79b0-7cc3-98c4-dc0c0c07398f'::uuid) = '2022-02-22 19:22:22.000+00' AS rfc_9562,
       idgen_uuidv7_min('2022-02-22 19:22:22+00') = '017f22e2-79b0-7000-8000-000000000000' AS min;
-- Settings that end in _ms say so to Postgres too, and take another unit: no rows.
SELECT name, unit FROM pg_settings WHERE name LIKE 'idgen.%\_ms' AND unit IS DISTINCT FROM 'ms';
SET idgen.lease_wait_ms = '1s';
SHOW idgen.lease_wait_ms;
RESET idgen.lease_wait_ms;
