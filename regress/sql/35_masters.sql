-- Several masters of one space: a database grants the ids of its stripes only; what is refused, what is recorded.
\pset null '(null)'
\getenv dir PG_ABS_SRCDIR
\set refusal :dir '/include/refusal.sql'
\set home :DBNAME
CREATE DATABASE idgen_masters;
\c idgen_masters
\set ECHO none
\i :refusal
\set ECHO all
CREATE EXTENSION pg_idgen;
-- Of which ids are master 1's of 3 in stripes of 10,000.
CREATE FUNCTION pg_temp.is_own(id bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT (id - 1) / 10000 % 3 = 1 $$;
CREATE FUNCTION pg_temp.join(above bigint, of_stripe integer DEFAULT 1, of_size bigint DEFAULT 10000) RETURNS text LANGUAGE sql AS $$
    SELECT pg_temp.refusal(format('SELECT idgen.join_space(%L, %s, 3, %s, %s)', h.space_id, of_stripe, of_size, above)) FROM idgen.health h
$$;
SELECT idgen.stripe_place(id, 1, 3, 10000) FROM unnest(ARRAY[0, 10000, 10001, 20000, 20001, 40001]::bigint[]) id;
SELECT idgen.stripe_place(9, 0, 1, 1) AS one_master, idgen.stripe_place(9, 3, 3, 10000) AS no_such_master;
SELECT stripe, stripes, stripe_size FROM idgen.health;

-- Arguments.
SELECT pg_temp.refusal($$SELECT idgen.join_space(NULL, 0, 2, 10000)$$), pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 0, 1, 10000)$$),
       pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 2, 2, 10000)$$), pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), -1, 2, 10000)$$),
       pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 0, 65, 10000)$$), pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 0, 2, 9999)$$),
       pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 0, 2, 10000, -1)$$), pg_temp.refusal($$SELECT idgen.leave_space(NULL)$$);
SELECT pg_temp.refusal($$SELECT idgen.leave_space(' ')$$), pg_temp.refusal($$SELECT idgen.leave_space('alone')$$);
CREATE ROLE idgen_no_master;
SET ROLE idgen_no_master;
SELECT pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 0, 2, 10000)$$), pg_temp.refusal($$SELECT idgen.leave_space('why')$$);
RESET ROLE;
DROP ROLE idgen_no_master;

-- What was granted before may be others': the space is cut above it.
SELECT idgen_create_segment(t, step => 100, max_step => 4000) FROM unnest(ARRAY['old', 'fresh', 'bulk', 'dropped']) t;
SELECT max(id) FROM (SELECT idgen_segment('old') AS id FROM generate_series(1, 50)) s;
SELECT idgen_segment_range('old', 30, 'before') IS NOT NULL AS granted;
SELECT idgen_drop_segment('dropped');
SELECT pg_temp.join(0), pg_temp.join(49);
SELECT pg_temp.refusal($$SELECT idgen.join_space(gen_random_uuid(), 1, 3, 10000, 1000)$$);
BEGIN;
SELECT idgen_create_segment('uncommitted');
SELECT pg_temp.join(1000);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.join(1000);
ROLLBACK;
-- A rollback takes it back.
BEGIN;
SELECT pg_temp.join(1000);
SELECT pg_temp.refusal($$SELECT idgen_segment('old')$$);
ROLLBACK;
SELECT idgen_segment('old') <= 1000 AS goes_on, (SELECT stripes FROM idgen.health);
SELECT pg_temp.join(1000);
SELECT stripe, stripes, stripe_size FROM idgen.health;
SELECT pg_temp.join(1000) AS again, pg_temp.join(1001), pg_temp.join(1000, 2), pg_temp.join(1000, of_size => 20000);
SELECT kind, tag, payload->'stripe' AS stripe, payload->'stripes' AS stripes, payload->'from_stripes' AS from_stripes FROM idgen.audit_event
 WHERE kind LIKE '%.join' ORDER BY event_id;

-- Own ids only: above, in rising order, over the end of a stripe.
SELECT idgen_segment('old'), idgen_segment('fresh');
SELECT bool_and(pg_temp.is_own(id)), min(id), max(id), count(DISTINCT id) FROM (SELECT idgen_segment('fresh') AS id FROM generate_series(1, 10004)) s;
SELECT idgen_segment_range('bulk', 25000, 'key');
SELECT idgen_segment_range('bulk', 25000, 'key') AS again;
SELECT idgen_segment_range('old', 30, 'before') = int8multirange(int8range(min(id), max(id) + 1)) AS as_before_it_was_cut FROM idgen_segment_batch('old', 30, 'before') id;
SELECT count(*), min(id), max(id), bool_and(pg_temp.is_own(id)) FROM idgen_segment_batch('bulk', 7000) id;
-- A grant has an event for each run of ids; nothing of them is another master's, and no two are about one id.
SELECT lo, hi, payload->'runs' AS runs, (payload->>'grant_seq')::bigint - min(tag_seq) OVER () AS grant_nth FROM idgen.audit_event
 WHERE tag = 'bulk' AND kind = 'segment.grant' ORDER BY tag_seq;
SELECT tag, max(tag_seq) = count(*) AS without_gap, bool_and(lo IS NULL OR pg_temp.is_own(lo) AND pg_temp.is_own(hi) AND hi - lo < 10000) AS own
  FROM idgen.audit_event WHERE tag IN ('bulk', 'fresh') GROUP BY tag ORDER BY tag;
SELECT tag, sum(hi - lo + 1) = idgen.stripe_place(max(s.max_id), 1, 3, 10000) AS every_place_once
  FROM idgen.audit_event e JOIN idgen.segment s USING (tag) WHERE kind = 'segment.grant' AND tag IN ('bulk', 'fresh') GROUP BY tag ORDER BY tag;
SELECT tag, stripe, stripes, stripe_size, ids_left > 3e18 AS a_third FROM idgen.segments WHERE tag = 'bulk';

-- Moved, limited, ended, made.
SELECT idgen_seek_segment('bulk', 205000);
SELECT idgen_segment('bulk');
SELECT lo, hi, (payload->>'own_from')::bigint <= 130000 AS own_from, payload->'own_to' AS own_to FROM idgen.audit_event WHERE tag = 'bulk' AND kind = 'segment.seek';
SELECT idgen_create_segment('limited', limit_id => 41000);
SELECT ids_left FROM idgen.segments WHERE tag = 'limited';
SELECT pg_temp.refusal($$SELECT idgen_segment_range('limited', 11001)$$), idgen_segment_range('limited', 11000), pg_temp.refusal($$SELECT idgen_segment('limited')$$);
SELECT idgen_alter_segment('limited', limit_id => 50000);
SELECT idgen_segment('limited');
SELECT pg_temp.refusal($$SELECT idgen_create_segment('small', limit_id => 10000)$$), pg_temp.refusal($$SELECT idgen_create_segment('small', start_id => 20001, limit_id => 40000)$$);
SELECT idgen_drop_segment('fresh'), idgen_create_segment('dropped');
SET client_min_messages = warning;
SELECT idgen_create_segment('fresh');
SELECT idgen_segment('fresh') > 40000 AS above, idgen_segment('dropped');
BEGIN;
SELECT idgen_create_segment('own', step => 6000, max_step => 6000);
SELECT min(id), max(id), bool_and(pg_temp.is_own(id)) FROM (SELECT idgen_segment('own') AS id FROM generate_series(1, 10001)) s;
SAVEPOINT s;
SELECT max(id) FROM (SELECT idgen_segment('own') AS id FROM generate_series(1, 3000)) s;
ROLLBACK TO s;
SELECT idgen_segment('own'), idgen_segment_range('own', 2);
COMMIT;
SELECT idgen_segment('own') > 44001 AS above;
SELECT max(tag_seq) = count(*) AS without_gap FROM idgen.audit_event WHERE tag = 'own';

-- Sequences: one that has given out what may be others' is not adopted, and none is given back.
CREATE TABLE small_ones (id serial);
INSERT INTO small_ones SELECT FROM generate_series(1, 9);
CREATE TABLE large_ones (id serial);
SELECT setval('large_ones_id_seq', 5000);
SELECT pg_temp.refusal($$SELECT idgen_adopt_sequence('large_ones_id_seq', 'large')$$);
SELECT action, object FROM idgen_adopt_sequence('small_ones_id_seq', 'small_ones') WHERE action = 'tag';
INSERT INTO small_ones DEFAULT VALUES RETURNING id;
SELECT pg_temp.refusal($$SELECT idgen_release_sequence('small_ones')$$);

-- The safety burn counts own ids too.
SELECT idgen_create_segment('burns', step => 10, max_step => 10);
SELECT idgen_segment('burns'), idgen.set_safety_burn('burns', 12000);
UPDATE idgen.segment SET needs_burn = true WHERE tag = 'burns';
SELECT min(id) AS in_memory, max(id) BETWEEN 42000 AND 42060 AS after_burn, bool_and(pg_temp.is_own(id)) FROM (SELECT idgen_segment('burns') AS id FROM generate_series(1, 40)) s;
SELECT lo, hi, (payload->>'own_to')::bigint - (payload->>'own_from')::bigint > 31000 AS over_others FROM idgen.audit_event WHERE tag = 'burns' AND kind = 'segment.burn';

-- A row from elsewhere is not cut: it grants nothing before it is taken in.
INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step) VALUES ('came', current_user, 1, 700, 1000000, 10, 10);
SELECT pg_temp.refusal($$SELECT idgen_segment('came')$$), pg_temp.refusal($$SELECT idgen_segment_range('came', 2)$$);
SELECT tag, stripe, stripes FROM idgen.segments WHERE tag = 'came';
SELECT pg_temp.join(1000);
SELECT pg_temp.is_own(idgen_segment('came'));
INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step) VALUES ('too high', current_user, 1, 1001, 1000000, 10, 10);
SELECT pg_temp.join(1000);
INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step, stripe_size, stripe_count) VALUES ('other stripes', current_user, 1, 1, 1000000, 10, 10, 10000, 2);
SELECT pg_temp.refusal($$SELECT idgen_segment('other stripes')$$);

-- Alone again.
SELECT space_id AS before FROM idgen.health \gset
SELECT max_id AS had FROM idgen.segment WHERE tag = 'old' \gset
SELECT idgen.leave_space('the others are gone');
SELECT stripe, stripes, stripe_size, space_id <> :'before' AS another_space FROM idgen.health;
SELECT idgen_segment('old') = :had + 1 AS goes_on, (SELECT stripes FROM idgen.segments WHERE tag = 'old'), idgen_segment('other stripes') > 1 AS taken_in;
SELECT kind, tag, payload->'from'->'stripes' AS from_stripes, payload->>'reason' AS reason FROM idgen.audit_event WHERE kind = 'space.leave';
SELECT count(*) FILTER (WHERE kind = 'segment.leave') = (SELECT count(*) FROM idgen.segment) AS each_tag FROM idgen.audit_event;
SELECT pg_temp.refusal($$SELECT idgen.leave_space('again')$$), pg_temp.join(1000);
\c :home
DROP DATABASE idgen_masters;
