-- The registry of formats, and a switch of the worker format at a moment.
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
CREATE ROLE idgen_reader;
SET ROLE idgen_reader;
SELECT idgen.register_format('y', '2020-01-01+00', 41, 10, 12);
SELECT idgen_timestamp_registered(0, 'twitter') IS NOT NULL AS readable;
SELECT count(*) FROM idgen.formats WHERE name = 'twitter';
DELETE FROM idgen.format;
RESET ROLE;
DROP ROLE idgen_reader;

-- The switch. Windows of workers follow the plan of the cell; the last one here reaches over T.
CREATE FUNCTION pg_temp.install(formats text, identity integer, revision bigint, floor_in bigint, ceiling_in bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c record; detail text;
BEGIN
    SELECT * INTO c FROM idgen.server_clock();
    RETURN idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555', formats, 'worker', identity, 60, revision,
               c.wall_ms + floor_in, c.wall_ms + ceiling_in, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ' ' || regexp_replace(detail, '\d{13}', 'T', 'g');
END $$;
-- What the tests before have left open would be too late for any switch.
SELECT idgen.fence_lease(boot_id, kind, identity, token_epoch, token_revision) IS NOT NULL AS fenced
  FROM idgen.server_clock(), idgen.slots WHERE kind = 'worker' AND state <> 'fenced' GROUP BY 1;
SELECT pg_temp.install('classic', 200, 1, 0, 1000) AS before;
SELECT wall_ms + 1500 AS t FROM idgen.server_clock() \gset
-- Not from a time for which ids may have been granted already; not another history than this server's.
SELECT pg_temp.install('classic; regional/1 from ' || :t - 1000, 201, 1, 0, 400) AS too_late;
SELECT pg_temp.install('regional/1', 201, 1, 0, 400) AS another;
SELECT pg_temp.install('regional/1; classic from ' || :t, 201, 1, 0, 400) AS another;
SELECT pg_temp.install('nonsense', 201, 1, 0, 400) AS nonsense;
SELECT pg_temp.install('classic; regional/1 from ' || :t, 201, 1, 0, 5000) AS announced;
SELECT worker_format, next_format, next_format_from = to_timestamp(:t / 1000.0) AS at_t FROM idgen.health;
SELECT name, cell FROM idgen.formats WHERE cell IS NOT NULL ORDER BY name;
SELECT pg_temp.install('classic', 202, 1, 0, 400) AS has_not_heard;
-- Minting goes on across T without a failed call; every id is in the format of its time; all rise.
CREATE TEMP TABLE across (n serial, id bigint);
CREATE TEMP TABLE switch AS SELECT to_timestamp(:t / 1000.0) AS at;
DO $$ BEGIN
    WHILE clock_timestamp() < (SELECT at FROM switch) + interval '300 ms' LOOP
        INSERT INTO across (id) VALUES (idgen_snowflake());
        INSERT INTO across (id) SELECT * FROM idgen_snowflake_batch(20);
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$;
SELECT count(DISTINCT id) = count(*) AS distinct, count(*) FILTER (WHERE id <= before) AS out_of_order
  FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM across) s;
SELECT f.format, bool_and((p.worker) IN (200, 201)) AS workers, min(p.region) AS region, bool_and(p.sequence < f.per_ms) AS fits, count(*) > 20 AS many
  FROM (VALUES ('classic', 4096), ('regional', 512)) f (format, per_ms)
  JOIN across a ON (idgen_timestamp(a.id) < to_timestamp(:t / 1000.0)) = (f.format = 'classic')
 CROSS JOIN LATERAL idgen_parse(a.id, f.format) p
 GROUP BY f.format ORDER BY f.format;
SELECT worker_format, next_format FROM idgen.health;
-- Later plans begin with what is.
SELECT pg_temp.install('regional/1', 203, 1, 0, 5000) AS simplified;
SELECT idgen.fence_lease(boot_id, 'worker', w, 60, 1) IS NOT NULL AS fenced FROM idgen.server_clock(), generate_series(200, 203) w WHERE w <> 202;
