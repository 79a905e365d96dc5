-- What is no id, no time, no text of ours: NULL or a clear and short error, never a made-up date, and never slowly.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SET timezone = 'UTC';
-- Random numbers, by the seed that is set here: a time within the life of the format, or NULL for the negative ones.
SELECT setseed(0.28);
CREATE TEMP TABLE number AS SELECT ((random() * 2 - 1) * 9223372036854775295)::bigint AS id FROM generate_series(1, 100000);
INSERT INTO number VALUES (-1), (0), (1), (9223372036854775807), (-9223372036854775808), (4194303), (4194304), (NULL);
SELECT f.format, count(*) FILTER (WHERE id >= 0 AND at IS NULL) AS no_time, count(*) FILTER (WHERE id < 0 AND at IS NOT NULL) AS made_up,
       min(at) >= '2020-01-01+00' AS from_the_epoch, max(at) <= f.last AS to_its_end, count(*) FILTER (WHERE id IS NULL AND at IS NOT NULL) AS of_null
  FROM (VALUES ('classic', '2089-09-06 15:47:35.551+00'::timestamptz), ('regional', '2089-09-06 15:47:35.551+00'), ('sharded', '2054-11-03 19:53:47.775+00')) f (format, last),
       LATERAL (SELECT id, idgen_timestamp(id, f.format) AS at FROM number) n
 GROUP BY 1, f.last ORDER BY 1;
-- Fields in their widths, and the number put together from them again.
SELECT count(*) AS wrong FROM number, idgen_parse(id) p
 WHERE id >= 0 AND (p.worker NOT BETWEEN 0 AND 1023 OR p.sequence NOT BETWEEN 0 AND 4095 OR p.region IS NOT NULL OR p.version IS NOT NULL OR p.shard IS NOT NULL
       OR (((extract(epoch FROM p.ts) * 1000)::bigint - 1577836800000) << 22) + (p.worker << 12) + p.sequence <> id);
SELECT count(*) AS wrong FROM number, idgen_parse(id, 'regional') p
 WHERE id >= 0 AND (((extract(epoch FROM p.ts) * 1000)::bigint - 1577836800000) << 22) + (p.region << 20) + (p.version << 19) + (p.worker << 9) + p.sequence <> id;
SELECT count(*) AS wrong FROM number, idgen_parse(id, 'sharded') p
 WHERE id >= 0 AND (((extract(epoch FROM p.ts) * 1000)::bigint - 1577836800000) << 23) + (p.shard << 10) + p.sequence <> id;
SELECT count(*) AS of_negatives FROM number, idgen_parse(id) p WHERE id < 0 AND p IS DISTINCT FROM NULL AND NOT (p IS NULL);
SELECT count(*) AS wrong FROM number WHERE id >= 0 AND idgen_decode(idgen_encode(id)) <> id;

-- UUIDs of every version and variant: a time for version 7 of the RFC's variant only.
SELECT v AS version, n AS variant, count(*) FILTER (WHERE idgen_timestamp(u) IS NOT NULL) AS with_time
  FROM unnest(ARRAY['0', '1', '4', '6', '7', '8', 'f']) v, unnest(ARRAY['0', '7', '8', 'b', 'c', 'f']) n,
       LATERAL (SELECT overlay(overlay(gen_random_uuid()::text PLACING v FROM 15 FOR 1) PLACING n FROM 20 FOR 1)::uuid AS u FROM generate_series(1, 100)) s
 GROUP BY 1, 2 HAVING count(*) FILTER (WHERE idgen_timestamp(u) IS NOT NULL) > 0 ORDER BY 1, 2;
SELECT count(*) FILTER (WHERE idgen_timestamp(u) IS NOT NULL) AS of_v4, count(*) FILTER (WHERE (idgen_parse(u)).version IS NOT NULL) AS with_version
  FROM (SELECT gen_random_uuid() AS u FROM generate_series(1, 10000)) s;
-- The whole range of 48 bits of ms is a time of Postgres; nothing overflows.
SELECT idgen_timestamp('00000000-0000-7000-8000-000000000000'::uuid), idgen_timestamp('ffffffff-ffff-7fff-bfff-ffffffffffff'::uuid);

-- Times at the ends of timestamptz: bounds are clamped, and history refuses what has no UUID.
CREATE TEMP TABLE moment (at timestamptz);
INSERT INTO moment VALUES ('-infinity'), ('4713-01-01 BC'), ('1969-12-31 23:59:59.999999+00'), ('1970-01-01+00'), ('2019-12-31 23:59:59.999999+00'), ('2020-01-01+00'),
    ('2054-11-03 19:53:47.775+00'), ('2054-11-03 19:53:47.776+00'), ('2089-09-06 15:47:35.551+00'), ('2089-09-06 15:47:35.552+00'), ('10889-08-02+00'), ('10889-08-03+00'), ('294276-12-31 23:59:59.999999+00'), ('infinity'), (NULL);
SELECT at, idgen_snowflake_min(at) AS min, idgen_snowflake_max(at) AS max, idgen_snowflake_min(at, 'sharded') AS sharded_min, idgen_snowflake_max(at, 'sharded') AS sharded_max FROM moment;
SELECT at, idgen_uuidv7_min(at) AS min, idgen_uuidv7_max(at) AS max FROM moment;
SELECT at, pg_temp.refusal(format('SELECT idgen_uuidv7_at(%L)', at)) FROM moment;
-- Never the wrong way round, at any of them: a bound below is not above the bound above it.
SELECT count(*) AS wrong FROM moment a, moment b, unnest(ARRAY['classic', 'regional', 'sharded']) f
 WHERE a.at < b.at AND (idgen_snowflake_min(a.at, f) > idgen_snowflake_min(b.at, f) OR idgen_snowflake_max(a.at, f) > idgen_snowflake_max(b.at, f)
       OR idgen_uuidv7_min(a.at) > idgen_uuidv7_min(b.at) OR idgen_uuidv7_max(a.at) > idgen_uuidv7_max(b.at));
SELECT i, pg_temp.refusal(format('SELECT idgen_cursor_floor(914921407366844416, %L)', i)) FROM unnest(ARRAY['-1 microsecond', '1 day', '1 month', '1 year', '-1 day 25 hours', '9223372036854775807 microseconds']) i;
SELECT idgen_cursor_floor(914921407366844416, '9223372036854775807 microseconds') AS clamped, idgen_cursor_floor(9223372036854775807, '0') AS last, idgen_cursor_floor(0, '0') AS first;

-- Texts: what looks like a name or an id and is none.
CREATE TEMP TABLE garbage (what text, t text);
INSERT INTO garbage VALUES ('empty', ''), ('blank', ' '), ('upper case', 'CLASSIC'), ('mixed case', 'Classic'), ('trailing blank', 'classic '), ('leading blank', ' classic'),
    ('newline', E'classic\n'), ('Cyrillic c', U&'\0441lassic'), ('full width', U&'\FF43lassic'), ('zero width', U&'c\200Classic'), ('combining', U&'classic\0301'), ('right to left', U&'\202Eclassic'),
    ('quotes', '''classic'''), ('injection', '''; DROP TABLE x; --'), ('percent', '%s%n%d'), ('NULL', 'null'), ('a number', '0'), ('emoji', U&'\+01F600'), ('10 MB', repeat('x', 10000000)), ('10 MB of two bytes', repeat(U&'\00E9', 5000000));
-- How long an error is, and how long it takes.
CREATE FUNCTION pg_temp.short(statement text, argument text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text; began timestamptz := clock_timestamp(); took interval; length integer;
BEGIN
    EXECUTE statement USING argument;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    took := clock_timestamp() - began;
    length := octet_length(message) + octet_length(detail) + octet_length(hint);
    RETURN state || CASE WHEN length > 600 THEN ' but ' || length || ' bytes long' ELSE '' END || CASE WHEN took > interval '2 s' THEN ' but slow' ELSE '' END;
END $$;
SELECT what, pg_temp.short('SELECT idgen_parse(1, $1)', t) AS parse, pg_temp.short('SELECT idgen_timestamp(1, $1)', t) AS timestamp,
       pg_temp.short('SELECT idgen_snowflake_min(now(), $1)', t) AS min, pg_temp.short('SELECT idgen_snowflake_max(now(), $1)', t) AS max, pg_temp.short('SELECT idgen_decode($1)', t) AS decode
  FROM garbage;
SELECT what, pg_temp.short('SELECT idgen_segment($1)', t) AS segment, pg_temp.short('SELECT idgen.grant_segment($1, ''public'')', t) AS grant_of, pg_temp.short('SELECT idgen.grant_segment(''garbage'', $1)', t) AS grant_to,
       pg_temp.short('SELECT idgen.install_lease(1, boot_id, boot_id, $1, ''worker'', 380, 1, 1, 1, 1, 1, 1, 1) FROM idgen.server_clock()', t) AS format,
       pg_temp.short('SELECT idgen.install_lease(1, boot_id, boot_id, ''classic'', $1, 380, 1, 1, 1, 1, 1, 1, 1) FROM idgen.server_clock()', t) AS kind,
       pg_temp.short('SELECT idgen.fence_lease(boot_id, $1, 380, 1, 1) FROM idgen.server_clock()', t) AS fence
  FROM garbage;
-- As tags most of them are names like others, each its own.
SELECT what, pg_temp.short('SELECT idgen_create_segment($1)', t) AS create FROM garbage;
SELECT count(*) AS tags, count(DISTINCT idgen_segment(t)) AS all_begin_at_one FROM garbage WHERE octet_length(t) BETWEEN 1 AND 200;
-- Text forms: 13 characters, and only those of the alphabet; what people confuse is understood, what looks alike is not.
SELECT t, pg_temp.refusal(format('SELECT idgen_decode(%L)', t)) FROM unnest(ARRAY['0000000000000', '000000000000o', '000000000000O', '000000000000l', '000000000000I', '000000000000u', U&'000000000000\0430', U&'000000000000\FF10',
    '00000000000000', '000000000000', '0000000000000 ', '-0000000000000', '0-0-0-0-0-0-0-0-0-0-0-0-0', '-------------', '7ZZZZZZZZZZZZ', '8000000000000', 'ZZZZZZZZZZZZZ']) t;
-- NULL in, NULL out, or an error where a call without its argument has no sense.
SELECT idgen_parse(NULL::uuid) IS NULL AS parse, idgen_timestamp(NULL::uuid) IS NULL AS timestamp, idgen_parse(1, NULL) IS NULL AS format, idgen_encode(NULL) IS NULL AS encode, idgen_uuidv7_at(NULL) IS NULL AS at;
SELECT pg_temp.refusal('SELECT idgen_segment(NULL)'), pg_temp.refusal('SELECT * FROM idgen_snowflake_batch(NULL)'), pg_temp.refusal('SELECT idgen.grant_segment(NULL, NULL)');
SELECT n, pg_temp.refusal(format('SELECT * FROM idgen_snowflake_batch(%s) LIMIT 1', n)) AS snowflakes, pg_temp.refusal(format('SELECT * FROM idgen_uuidv7_batch(%s) LIMIT 1', n)) AS uuids
  FROM unnest(ARRAY[0, -1, -9223372036854775808]::bigint[]) n;
-- The largest batch begins at once: a set is made as it is read.
SELECT count(*) FROM (SELECT idgen_uuidv7_batch(9223372036854775807) LIMIT 3) s;
