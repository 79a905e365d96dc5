-- Every way in which applications and ORMs write rows whose key comes from a DEFAULT of ours.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(320), idgen_create_segment('inserts');
CREATE TABLE item (
    id     bigint PRIMARY KEY DEFAULT idgen_snowflake(),
    uid    uuid   NOT NULL UNIQUE DEFAULT idgen_uuidv7(),
    number bigint NOT NULL UNIQUE DEFAULT idgen_segment('inserts'),
    sku    text   UNIQUE,
    n      integer);
-- Rows in the order they were made have rising keys of all three kinds.
CREATE VIEW disorder AS
SELECT count(*) FILTER (WHERE id <= last_id OR uid <= last_uid OR number <= last_number) AS out_of_order, count(*) AS rows
  FROM (SELECT id, uid, number, lag(id) OVER w AS last_id, lag(uid) OVER w AS last_uid, lag(number) OVER w AS last_number
          FROM item WINDOW w AS (ORDER BY ctid)) s;

-- RETURNING gives what was stored, row by row.
INSERT INTO item (sku, n) VALUES ('a', 1), ('b', 2), ('c', 3)
RETURNING sku, id > 0 AS id, idgen_timestamp(uid) IS NOT NULL AS uid, number > 0 AS number;
WITH made AS (INSERT INTO item (sku) VALUES ('d'), ('e') RETURNING id, uid, number)
SELECT count(*) AS came_back FROM made JOIN item USING (id, uid, number);
SELECT count(*) AS visible_later FROM item WHERE sku IN ('d', 'e');
INSERT INTO item DEFAULT VALUES RETURNING sku;
INSERT INTO item (id, uid, number) VALUES (DEFAULT, DEFAULT, DEFAULT), (DEFAULT, DEFAULT, DEFAULT);

-- ON CONFLICT: the row that is there keeps its keys; the ids that were drawn are lost, as with nextval().
SELECT id AS a_id, uid AS a_uid, number AS a_number FROM item WHERE sku = 'a' \gset
INSERT INTO item (sku, n) VALUES ('a', 9) ON CONFLICT DO NOTHING RETURNING sku;
INSERT INTO item (sku, n) VALUES ('a', 10), ('f', 11) ON CONFLICT (sku) DO UPDATE SET n = excluded.n RETURNING sku, n;
SELECT (id, uid, number) = (:a_id, :'a_uid'::uuid, :a_number) AS kept, n FROM item WHERE sku = 'a';
INSERT INTO item (sku) VALUES ('a') ON CONFLICT (sku) DO UPDATE SET id = excluded.id RETURNING id > :a_id AS a_new_id_on_demand;
DELETE FROM item WHERE sku = 'a';
INSERT INTO item (sku) SELECT 'k' || n % 5 FROM generate_series(1, 100) n ON CONFLICT (sku) DO NOTHING;
SELECT count(*) FROM item WHERE sku LIKE 'k_';

-- COPY, with the keys left out, and with some of them given.
COPY item (sku, n) FROM stdin;
copied 1	1
copied 2	2
copied 3	\N
\.
COPY item (id, sku) FROM stdin WITH (FORMAT csv);
1,given
2,given too
\.
SELECT count(*), count(DISTINCT id), min(number) > 0 AS numbered FROM item WHERE sku LIKE 'copied%' OR sku LIKE 'given%';
DELETE FROM item WHERE id < 3;
-- A line that fails takes the COPY along, not the ids of others.
COPY item (sku, n) FROM stdin WITH (FORMAT csv);
broken 1,1
broken 2,not a number
\.
SELECT count(*) FROM item WHERE sku LIKE 'broken%';

-- Prepared statements: planned anew five times, then once for all.
PREPARE one (text) AS INSERT INTO item (sku) VALUES ($1) RETURNING id;
SET plan_cache_mode = force_generic_plan;
EXECUTE one('p1') \gset p1_
EXECUTE one('p2') \gset p2_
SET plan_cache_mode = force_custom_plan;
EXECUTE one('p3') \gset p3_
RESET plan_cache_mode;
SELECT :p1_id < :p2_id AND :p2_id < :p3_id AS rises;
PREPARE next AS SELECT idgen_snowflake(), idgen_uuidv7(), idgen_segment('inserts');
EXECUTE next \gset a_
EXECUTE next \gset b_
SELECT :a_idgen_snowflake < :b_idgen_snowflake AS snowflake, :'a_idgen_uuidv7'::uuid < :'b_idgen_uuidv7'::uuid AS uuid, :a_idgen_segment < :b_idgen_segment AS segment;
-- A tag as a parameter.
PREPARE tagged (text) AS SELECT idgen_segment($1) > 0 AS drawn;
EXECUTE tagged('inserts');
EXECUTE tagged(NULL);
DEALLOCATE ALL;

-- INSERT ... SELECT, with every row's id its own, from a sorted and from a grouped source.
INSERT INTO item (n) SELECT n FROM generate_series(1, 5000) n ORDER BY n DESC;
INSERT INTO item (n) SELECT n % 100 FROM generate_series(1, 5000) n GROUP BY 1;
INSERT INTO item (id, n) SELECT id, 0 FROM idgen_snowflake_batch(5000) id;
SELECT count(*), count(DISTINCT id), count(DISTINCT uid), count(DISTINCT number) FROM item;
SELECT out_of_order FROM disorder;

-- MERGE: keys for the rows it inserts, none for those it updates.
SELECT max(id) AS before FROM item \gset
MERGE INTO item t USING (VALUES ('b', 100), ('merged', 101), ('merged too', 102)) s (sku, n) ON t.sku = s.sku
 WHEN MATCHED THEN UPDATE SET n = s.n
 WHEN NOT MATCHED THEN INSERT (sku, n) VALUES (s.sku, s.n);
SELECT sku, n, id > :before AS a_new_row FROM item WHERE n >= 100 AND sku IS NOT NULL ORDER BY n;

-- From identity to ours: old rows keep their numbers, new ones come from the DEFAULT.
CREATE TABLE was_identity (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n integer);
INSERT INTO was_identity (n) SELECT generate_series(1, 10);
ALTER TABLE was_identity ALTER COLUMN id DROP IDENTITY, ALTER COLUMN id SET DEFAULT idgen_snowflake();
INSERT INTO was_identity (n) VALUES (11), (12);
SELECT count(*) FILTER (WHERE id <= 10) AS old, count(*) FILTER (WHERE id > 1000000) AS new FROM was_identity;
-- The same from serial to a dense tag that goes on above.
CREATE TABLE was_serial (id bigserial PRIMARY KEY, n integer);
INSERT INTO was_serial (n) SELECT generate_series(1, 10);
SELECT idgen_create_segment('was_serial', start_id => (SELECT max(id) + 1 FROM was_serial));
ALTER TABLE was_serial ALTER COLUMN id SET DEFAULT idgen_segment('was_serial');
INSERT INTO was_serial (n) SELECT generate_series(11, 20);
SELECT count(*), max(id) FROM was_serial;
-- An identity column refuses a second default.
SELECT pg_temp.refusal('CREATE TABLE twice (id bigint GENERATED ALWAYS AS IDENTITY DEFAULT idgen_snowflake())');

-- An id is 8 bytes: a column that is too narrow refuses, it never cuts.
CREATE TABLE narrow (id integer DEFAULT idgen_snowflake());
SELECT pg_temp.refusal('INSERT INTO narrow DEFAULT VALUES');
-- A text column takes it; so does numeric; JSON keeps every digit as text and as number.
CREATE TABLE wide (t text DEFAULT idgen_snowflake(), n numeric DEFAULT idgen_snowflake(), j jsonb DEFAULT to_jsonb(idgen_snowflake()));
INSERT INTO wide DEFAULT VALUES RETURNING t::bigint > 0 AS text, n::bigint > 0 AS number, (j::text)::bigint > 0 AS json;
DROP VIEW disorder;
DROP TABLE item, was_identity, was_serial, narrow, wide;
