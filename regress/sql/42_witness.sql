-- Another history, and grants that wait for what topic and archive know of the old one. The history is changed in what the database
-- remembers of it; what the daemon says is said here by hand.
\pset null '(null)'
\getenv dir PG_ABS_SRCDIR
\set refusal :dir '/include/refusal.sql'
-- A database of its own: what is settled here concerns all of its tags.
\set home :DBNAME
CREATE DATABASE idgen_witness;
\c idgen_witness
\set ECHO none
\i :refusal
\set ECHO all
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment(t, step => 10, max_step => 10) FROM unnest(ARRAY['a', 'b', 'c', 'd']) t;
SELECT idgen.set_safety_burn(t, 0) FROM unnest(ARRAY['a', 'b', 'c', 'd']) t;
SELECT idgen_segment(t) FROM unnest(ARRAY['a', 'b', 'c', 'd']) t;
SELECT is_witnessed, witness_wait FROM idgen.authority;

-- Without a daemon nothing waits. One that is there says how long it is to be waited for.
SELECT idgen.witness_wanted(3600);
SELECT is_witnessed, witness_wait FROM idgen.authority;
SELECT idgen.witness_wanted(NULL), idgen.witnessed(NULL), idgen.witnessed((SELECT mark FROM idgen.authority));
SELECT pg_temp.refusal($$SELECT idgen.witness_wanted(-1)$$), pg_temp.refusal($$SELECT idgen.witness_wanted(86401)$$);

-- Another history. A worker settles it, as soon as somebody asks; what is recorded from now on is of another source.
SELECT space_id, source_id AS before FROM idgen.space \gset
UPDATE idgen.authority SET timeline = timeline - 1;
SELECT idgen.witness_wanted(3600);
\set ECHO none
\o /dev/null
SELECT $$SELECT pg_sleep(0.05) WHERE (SELECT is_witnessed FROM idgen.authority)$$ FROM generate_series(1, 200) \gexec
\o
\set ECHO all
SELECT idgen.witness_wanted(3600) = mark AS asked, is_witnessed FROM idgen.authority;
SELECT source_id <> :'before' AS new_source, space_id = :'space_id' AS same_space FROM idgen.space;
SELECT kind, payload->>'cause' AS cause, payload->>'source_before' = :'before' AS source_before, source_id <> :'before' AS new_source FROM idgen.audit_event WHERE tag = '';

-- What is in memory is used up. Then tags wait, those that are made now do not, and bulk requests wait too.
SET idgen.segment_wait_ms = 300;
SELECT pg_temp.refusal($$SELECT idgen_segment('a') FROM generate_series(1, 30)$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('b', 100)$$);
SELECT authority_state FROM idgen.health;
SELECT blocker FROM idgen.segments WHERE tag = 'a';
SELECT idgen_create_segment('new', step => 10, max_step => 10), idgen_segment('new');

-- One tag has lost grants, and goes on above them. The mark of another history is no answer.
SELECT idgen.pass_over(:'space_id', 'a', 500), idgen.pass_over(:'space_id', 'b', 5), idgen.witnessed(gen_random_uuid());
SELECT pg_temp.refusal($$SELECT idgen_segment('b') FROM generate_series(1, 30)$$);
SELECT idgen.witnessed(mark) FROM idgen.authority;
SELECT idgen.witnessed(mark), idgen.witness_wanted(3600), is_witnessed FROM idgen.authority;
RESET idgen.segment_wait_ms;
SELECT min(id) AS above FROM (SELECT idgen_segment('a') AS id FROM generate_series(1, 10)) s;
SELECT lower(r) > 10 AS granted FROM unnest(idgen_segment_range('b', 100)) r;
SELECT authority_state FROM idgen.health;

-- Who is not told goes on when the time is over, with the safety burn alone; and is told later all the same.
UPDATE idgen.authority SET timeline = timeline - 1;
SELECT idgen.witness_wanted(1);
SELECT count(idgen_segment('c')) FROM generate_series(1, 30);
SELECT is_witnessed, witness_wait, idgen.witness_wanted(1) = mark AS asked FROM idgen.authority;
SELECT idgen.adopt_authority('again');
-- Two histories have ended since anybody was asked.
SELECT unheard, cardinality(sources_before) AS before FROM idgen.authority;
SELECT idgen.witness_wanted(0) = mark AS asked FROM idgen.authority;
SELECT count(idgen_segment('d')) FROM generate_series(1, 30);

-- A copy grants nothing, and asks nobody. A role needs rights.
UPDATE idgen.authority SET inode = inode + 1;
SELECT idgen.witness_wanted(0);
CREATE ROLE idgen_stranger;
GRANT USAGE ON SCHEMA idgen TO idgen_stranger;
SET ROLE idgen_stranger;
SELECT pg_temp.refusal($$SELECT idgen.witness_wanted(0)$$), pg_temp.refusal($$SELECT idgen.witnessed(gen_random_uuid())$$);
RESET ROLE;
DROP OWNED BY idgen_stranger;
DROP ROLE idgen_stranger;
-- Every number was granted once, whatever the source.
SELECT tag, count(*) - count(DISTINCT n) AS twice FROM (SELECT tag, generate_series(lo, hi) AS n FROM idgen.audit_event WHERE kind = 'segment.grant') s GROUP BY tag ORDER BY tag;
SELECT tag, max(tag_seq) = count(*) AS without_gap FROM idgen.audit_event WHERE tag <> '' GROUP BY tag ORDER BY tag;
\c :home
DROP DATABASE idgen_witness;
