-- INCIDENTS 64, baidu/uid-generator#100, #29, #31: time bits ran out on 2024-11-20, a cached path had no check, ids went
-- negative. Here the last id of every format is known, nothing behind it is an id, and no bound or parse turns negative.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SET timezone = 'UTC';
SELECT f.format, i.*, idgen_timestamp(last_id, f.format) AS ends, idgen_snowflake_min(idgen_timestamp(last_id, f.format), f.format) AS first_of_last_ms
  FROM (VALUES ('classic'), ('regional'), ('sharded')) f (format), LATERAL (SELECT idgen_snowflake_max('infinity', f.format) AS last_id) i;
-- One ms further: clamped to the largest bigint, which is not below anything.
SELECT f, idgen_snowflake_min(idgen_timestamp(9223372036854775807, f) + interval '1 ms', f) = 9223372036854775807 AS min_clamped,
       idgen_snowflake_max(idgen_timestamp(9223372036854775807, f) + interval '1 ms', f) = 9223372036854775807 AS max_clamped
  FROM unnest(ARRAY['classic', 'regional', 'sharded']) f;
-- Through the last hour in steps of 7 s and beyond: bounds never fall and are never negative.
SELECT f, count(*) FILTER (WHERE lowest < 0 OR highest < 0 OR lowest < before OR lowest > highest AND highest < 9223372036854775807) AS wrong
  FROM unnest(ARRAY['classic', 'regional', 'sharded']) f,
       LATERAL (SELECT idgen_snowflake_min(t, f) AS lowest, idgen_snowflake_max(t, f) AS highest, lag(idgen_snowflake_min(t, f)) OVER (ORDER BY t) AS before
                  FROM generate_series(idgen_timestamp(9223372036854775807, f) - interval '1 hour', idgen_timestamp(9223372036854775807, f) + interval '1 hour', interval '7 s') t) s
 GROUP BY 1 ORDER BY 1;
-- Times before the epoch and beyond the end do not come back as other years.
SELECT f, count(*) AS wrong FROM unnest(ARRAY['classic', 'regional', 'sharded']) f, generate_series('1900-01-01+00'::timestamptz, '2300-01-01+00', interval '1 month') t
 WHERE idgen_timestamp(idgen_snowflake_min(t, f), f) IS DISTINCT FROM least(greatest(t, '2020-01-01+00'), idgen_timestamp(9223372036854775807, f)) GROUP BY 1;
-- A window behind the end is refused by its own error, so that nothing is minted there, and the one before it stays.
SELECT pg_temp.lease(640);
SELECT pg_temp.refusal(format('SELECT idgen.install_lease(1, %L, %L, ''classic'', ''worker'', 641, 100, 1, %s, %s, %s, %s, %s)', boot_id, cell_id,
           3777551255552, 3777551255552 + 1000, boottime_ms + 600000, wall_ms, boottime_ms)) FROM idgen.server_clock();
SELECT idgen_snowflake() > 0 AS goes_on;
-- Its cursor, its text and its bound for partitions work up to the last id.
SELECT idgen_cursor_floor(9223372036854775807, '1 ms') < 9223372036854775807 AS floor, idgen_decode(idgen_encode(9223372036854775807)) AS text;
