-- A switch of the worker format at a moment. The last test by name: what comes after it mints in another format.
\pset null '(null)'
-- The switch. Windows of workers follow the plan of the cell; the last one here reaches over T.
CREATE FUNCTION pg_temp.install(formats text, identity integer, revision bigint, floor_in bigint, ceiling_in bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c record; detail text;
BEGIN
    SELECT * INTO c FROM idgen.server_clock();
    RETURN idgen.install_lease(1, c.boot_id, '11111111-2222-4333-8444-555555555555', formats, 'worker', identity, 60, revision,
               c.wall_ms + floor_in, c.wall_ms + ceiling_in, c.boottime_ms + 600000, c.wall_ms, c.boottime_ms);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ' ' || regexp_replace(detail, '\d{13,}', 'T', 'g');
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
-- Nor a plan by which ids would be negative, go back, or come twice; a refused one leaves nothing behind.
SELECT pg_temp.install('young(1830000000000,1,41,0,0,10,12)', 201, 1, 0, 400) AS not_yet;
SELECT pg_temp.install('short(1577836800000,1,35,0,0,16,12)', 201, 1, 0, 400) AS ended;
SELECT pg_temp.install('classic; late(1577840400000,1,41,0,0,10,12) from ' || :t, 201, 1, 0, 400) AS goes_back;
SELECT pg_temp.install('short(1577836800000,1,35,0,0,16,12); classic from ' || :t, 201, 1, 0, 400) AS gap;
SELECT pg_temp.install('classic', 203, 0, 0, 400) AS still_classic;
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
