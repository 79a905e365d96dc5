-- Every kind of table and column that a default, a bound or a time of ours is used in.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SET timezone = 'UTC'; SET enable_bitmapscan = off; SET enable_seqscan = off;
SELECT pg_temp.lease(330), idgen_create_segment('tables');
-- A column that is added later: every old row gets an id of its own, because the functions are volatile.
CREATE TABLE grown (n integer);
INSERT INTO grown SELECT generate_series(1, 3000);
ALTER TABLE grown ADD COLUMN s bigint DEFAULT idgen_snowflake();
ALTER TABLE grown ADD COLUMN u uuid DEFAULT idgen_uuidv7();
ALTER TABLE grown ADD COLUMN g bigint DEFAULT idgen_segment('tables');
SELECT count(*), count(DISTINCT s), count(DISTINCT u), count(DISTINCT g) FROM grown;
ALTER TABLE grown ADD PRIMARY KEY (s);
ALTER TABLE grown ALTER COLUMN u DROP DEFAULT, ALTER COLUMN g DROP DEFAULT;
INSERT INTO grown (n) VALUES (0) RETURNING s > 0 AS s, u IS NULL AS u, g IS NULL AS g;
-- An update to a new id gives each row its own as well.
UPDATE grown SET g = idgen_snowflake();
SELECT count(DISTINCT g) FROM grown;
UPDATE grown SET s = DEFAULT WHERE n < 100;
SELECT count(DISTINCT s) FROM grown;

-- LIKE copies the default, and with it the source of ids: one key space over both tables.
CREATE TABLE alike (LIKE grown INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES);
CREATE TABLE without_default (LIKE grown);
INSERT INTO alike (n) SELECT generate_series(1, 100);
SELECT count(*) AS shared FROM alike JOIN grown USING (s);
SELECT count(*) FILTER (WHERE a.atthasdef) AS defaults FROM pg_attribute a WHERE a.attrelid = 'without_default'::regclass AND a.attnum > 0;
CREATE TABLE selected AS TABLE grown;
SELECT count(*) AS defaults FROM pg_attrdef WHERE adrelid = 'selected'::regclass;
DROP TABLE alike, without_default, selected, grown;

-- Inheritance: children have the parent's default, and a parent's query sees distinct keys.
CREATE TABLE parent (id bigint DEFAULT idgen_snowflake(), n integer);
CREATE TABLE child (m integer) INHERITS (parent);
INSERT INTO parent (n) SELECT generate_series(1, 100);
INSERT INTO child (n) SELECT generate_series(1, 100);
SELECT count(*), count(DISTINCT id) FROM parent;
DROP TABLE parent CASCADE;

-- Partitions by time, through the id: bounds from min, rows land where their time says.
CREATE TABLE log (id bigint NOT NULL DEFAULT idgen_snowflake(), what text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE log_past PARTITION OF log FOR VALUES FROM (0) TO (idgen_snowflake_min('2026-01-01+00'));
CREATE TABLE log_now PARTITION OF log FOR VALUES FROM (idgen_snowflake_min('2026-01-01+00')) TO (idgen_snowflake_min('2088-01-01+00'));
INSERT INTO log (what) SELECT 'now' FROM generate_series(1, 100);
INSERT INTO log (id, what) VALUES (idgen_snowflake_min('2025-12-31 23:59:59.999+00'), 'last of the year'),
    (idgen_snowflake_max('2025-12-31 23:59:59.999+00'), 'last of the year'), (idgen_snowflake_min('2026-01-01+00'), 'first of the year');
SELECT tableoid::regclass AS partition, what, count(*) FROM log GROUP BY 1, 2 ORDER BY 1, 2;
-- An id of before the first partition, and of after the last, is refused by Postgres, not moved.
SELECT pg_temp.refusal('INSERT INTO log (id) VALUES (idgen_snowflake_max(''-infinity''))'), pg_temp.refusal('INSERT INTO log (id) VALUES (idgen_snowflake_min(''2089-01-01+00''))');
-- A range over everything: from the smallest to the end, without a hole.
CREATE TABLE log_rest PARTITION OF log FOR VALUES FROM (idgen_snowflake_min('2088-01-01+00')) TO (MAXVALUE);
INSERT INTO log (id) VALUES (idgen_snowflake_max('infinity'));
EXPLAIN (COSTS OFF) SELECT what FROM log WHERE id BETWEEN idgen_snowflake_min('2025-01-01+00') AND idgen_snowflake_max('2025-12-31+00') AND what <> '';
DROP TABLE log;
-- The same with UUIDs.
CREATE TABLE event (id uuid NOT NULL DEFAULT idgen_uuidv7(), what text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE event_past PARTITION OF event FOR VALUES FROM (MINVALUE) TO (idgen_uuidv7_min('2026-01-01+00'));
CREATE TABLE event_now PARTITION OF event FOR VALUES FROM (idgen_uuidv7_min('2026-01-01+00')) TO (MAXVALUE);
INSERT INTO event (what) SELECT 'now' FROM generate_series(1, 100);
INSERT INTO event (id, what) SELECT idgen_uuidv7_at('2025-06-15+00'), 'history' FROM generate_series(1, 50);
SELECT tableoid::regclass AS partition, what, count(*) FROM event GROUP BY 1, 2 ORDER BY 1, 2;
EXPLAIN (COSTS OFF) SELECT what FROM event WHERE id < idgen_uuidv7_min('2025-12-01+00') AND what <> '';
-- By hash of a key of ours.
CREATE TABLE spread (id bigint DEFAULT idgen_snowflake()) PARTITION BY HASH (id);
CREATE TABLE spread_0 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE spread_1 PARTITION OF spread FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO spread SELECT FROM generate_series(1, 2000);
SELECT sum(count) AS rows, min(count) > 800 AS spread FROM (SELECT count(*) FROM spread GROUP BY tableoid) s (count);
DROP TABLE event, spread;

-- A stored column, a check, an expression index, a statistics object: what needs an immutable function.
CREATE TABLE stored (
    id bigint PRIMARY KEY DEFAULT idgen_snowflake() CHECK (idgen_timestamp(id) > '2020-01-01+00'),
    at timestamptz GENERATED ALWAYS AS (idgen_timestamp(id)) STORED,
    code text GENERATED ALWAYS AS (idgen_encode(id)) STORED UNIQUE,
    uid uuid DEFAULT idgen_uuidv7(),
    uid_at timestamptz GENERATED ALWAYS AS (idgen_timestamp(uid)) STORED,
    worker integer GENERATED ALWAYS AS ((idgen_parse(id)).worker) STORED);
INSERT INTO stored SELECT FROM generate_series(1, 1000);
SELECT count(*), count(DISTINCT code), bool_and(at = idgen_timestamp(id)) AS at, bool_and(idgen_decode(code) = id) AS code,
       bool_and(uid_at = idgen_timestamp(uid)) AS uid_at, bool_and(worker BETWEEN 0 AND 1023) AS worker FROM stored;
UPDATE stored SET id = idgen_snowflake_min('2026-11-01+00') WHERE id = (SELECT min(id) FROM stored);
SELECT at, code FROM stored ORDER BY id LIMIT 1;
SELECT pg_temp.refusal('UPDATE stored SET id = 0 WHERE id = (SELECT min(id) FROM stored)');
CREATE INDEX stored_day ON stored (date_trunc('day', idgen_timestamp(id) AT TIME ZONE 'UTC'));
CREATE INDEX stored_uid ON stored (idgen_timestamp(uid));
CREATE STATISTICS stored_stats ON (idgen_timestamp(id)), (idgen_timestamp(uid)) FROM stored;
ANALYZE stored;
-- What makes ids is volatile, and so has no place in any of them.
SELECT pg_temp.refusal('CREATE INDEX ON stored (idgen_snowflake())'), pg_temp.refusal('ALTER TABLE stored ADD x bigint GENERATED ALWAYS AS (idgen_snowflake()) STORED'),
       pg_temp.refusal('CREATE TABLE p (id bigint) PARTITION BY RANGE (idgen_snowflake())');
DROP TABLE stored;

-- A domain over bigint, with a default and a check of its own.
CREATE DOMAIN order_id AS bigint DEFAULT idgen_snowflake() NOT NULL CHECK (value > 0);
CREATE TABLE of_domain (id order_id PRIMARY KEY, ids order_id[]);
INSERT INTO of_domain (ids) SELECT ARRAY[idgen_snowflake(), idgen_snowflake()]::order_id[] FROM generate_series(1, 10);
SELECT count(DISTINCT id) FROM of_domain;
SELECT count(DISTINCT i) FROM of_domain, unnest(ids) i;
SELECT idgen_timestamp(id) IS NOT NULL AS parses FROM of_domain LIMIT 1;
SELECT pg_temp.refusal('INSERT INTO of_domain (id) VALUES (-1)');
DROP TABLE of_domain;
DROP DOMAIN order_id;

-- Foreign keys, unlogged and temporary tables.
CREATE TABLE head (id bigint PRIMARY KEY DEFAULT idgen_snowflake());
CREATE TABLE line (id uuid PRIMARY KEY DEFAULT idgen_uuidv7(), head bigint NOT NULL REFERENCES head ON DELETE CASCADE);
WITH h AS (INSERT INTO head DEFAULT VALUES RETURNING id) SELECT id AS head FROM h \gset
INSERT INTO line (head) VALUES (:head), (:head);
DELETE FROM head WHERE id = :head;
SELECT count(*) FROM line;
CREATE UNLOGGED TABLE quick (id bigint PRIMARY KEY DEFAULT idgen_snowflake());
CREATE TEMP TABLE short_lived (id bigint PRIMARY KEY DEFAULT idgen_snowflake());
INSERT INTO quick SELECT FROM generate_series(1, 10);
INSERT INTO short_lived SELECT FROM generate_series(1, 10);
SELECT count(*) FROM quick JOIN short_lived USING (id);
DROP TABLE head, line, quick, short_lived;
