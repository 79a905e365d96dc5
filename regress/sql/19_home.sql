-- Another history, a copy, rows that arrive: what burns, what refuses, and what is recorded of it. History and place are changed
-- in what the database remembers of them.
\pset null '(null)'
\getenv dir PG_ABS_SRCDIR
\set refusal :dir '/include/refusal.sql'
\set ECHO none
\i :refusal
\set ECHO all
-- A database of its own: what is settled here concerns all of its tags.
\set home :DBNAME
CREATE DATABASE idgen_home;
\c idgen_home
\set ECHO none
\i :refusal
\set ECHO all
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment(t, step => 10, max_step => 10) FROM unnest(ARRAY['a', 'b', 'c', 'small']) t;
SELECT idgen_segment(t) FROM unnest(ARRAY['a', 'b', 'c']) t;
-- Nothing has changed.
SELECT authority_state FROM idgen.health;
SELECT a.cause, a.changes, (SELECT count(*) FROM idgen.segment s WHERE s.mark IS DISTINCT FROM a.mark OR s.needs_burn) AS stale FROM idgen.authority a;
SELECT h.system_identifier = a.system_identifier AS system, h.timeline = a.timeline AS timeline, h.inode = a.inode AS inode FROM idgen.server_home() h, idgen.authority a;

-- Another timeline: every tag passes over its safety burn with its first grant, once. (What is in memory is used up before.)
UPDATE idgen.authority SET timeline = timeline - 1;
SELECT authority_state FROM idgen.health;
-- Ranges of ten were granted: two of them, and what is granted in a minute taken ten times. (On a busy machine a second range may
-- have been fetched ahead by now, here and below.)
SELECT min(id) AS in_memory, max(id) >= 51 AS after_burn FROM (SELECT idgen_segment('a') AS id FROM generate_series(1, 30)) s;
SELECT authority_state FROM idgen.health;
SELECT cause, changes FROM idgen.authority;
SELECT kind, lo IS NULL AS no_range, payload->>'cause' AS cause FROM idgen.audit_event WHERE kind IN ('authority.burn', 'segment.burn') ORDER BY event_id;
SELECT max(tag_seq) = count(*) AS without_gap, count(*) FILTER (WHERE kind = 'segment.burn') AS burns FROM idgen.audit_event WHERE tag = 'a';
SELECT bool_and(lo = before + 1) AS nothing_missing FROM (SELECT lo, lag(hi) OVER (ORDER BY lo) AS before FROM idgen.audit_event WHERE tag = 'a' AND lo IS NOT NULL) e WHERE before IS NOT NULL;
SELECT tag, mark = (SELECT mark FROM idgen.authority) AS marked FROM idgen.segment ORDER BY tag;

-- The same history in another place: nothing is granted, at once, until somebody decides.
UPDATE idgen.authority SET inode = inode + 1;
SELECT authority_state FROM idgen.health;
SELECT pg_temp.refusal($$SELECT idgen_segment('b') FROM generate_series(1, 30)$$);
SELECT pg_temp.refusal($$SELECT idgen_create_segment('own'), idgen_segment('own')$$);
SELECT pg_temp.refusal($$SELECT idgen.adopt_authority(NULL)$$), pg_temp.refusal($$SELECT idgen.adopt_authority(' ')$$);
SELECT idgen.adopt_authority('the other one was scrapped');
SELECT authority_state FROM idgen.health;
SELECT count(idgen_segment('b')) FROM generate_series(1, 30);
SELECT kind, tag, tag_seq, payload->>'cause' AS cause, payload->>'reason' AS reason FROM idgen.audit_event WHERE kind LIKE 'authority.%' ORDER BY event_id;
SELECT kind, lo IN (11, 21) AS right_above, hi > lo AS range, payload->>'cause' AS cause FROM idgen.audit_event WHERE tag = 'b' AND kind = 'segment.burn';
-- Another machine; another device while the system runs on. A device that is numbered anew with a start of the system is no copy.
UPDATE idgen.authority SET machine = 'another';
-- (A machine without a name for itself is like any other.)
SELECT (authority_state = 'copy') = (h.machine IS NOT NULL) AS by_machine FROM idgen.health, idgen.server_home() h;
UPDATE idgen.authority SET machine = h.machine, device = h.device + 1, os_boot = coalesce(h.os_boot, 'boot') FROM idgen.server_home() h;
SELECT authority_state IN ('copy', 'granting') AS by_device FROM idgen.health;
UPDATE idgen.authority SET os_boot = 'before';
SELECT authority_state FROM idgen.health;
SELECT count(idgen_segment('b')) FROM generate_series(1, 30);
SELECT h.device = a.device AS remembered_anew, a.changes FROM idgen.server_home() h, idgen.authority a;

-- A logical replica becomes the master.
SELECT source_id AS before, space_id AS space FROM idgen.health \gset
SELECT idgen.promote('the old master is fenced');
SELECT source_id <> :'before' AS new_source, space_id = :'space' AS same_space FROM idgen.health;
SELECT count(idgen_segment('c')) FROM generate_series(1, 30);
SELECT payload->>'cause' AS cause, source_id <> :'before' AS new_source FROM idgen.audit_event WHERE tag = 'c' AND kind = 'segment.burn';

-- Rows that somebody else writes: never down, and they burn first. (When no refill is under way any more.)
\set ECHO none
\o /dev/null
SELECT $$SELECT pg_sleep(0.05) WHERE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'pg_idgen refill worker' AND datname = current_database())$$ FROM generate_series(1, 100) \gexec
\o
\set ECHO all
SELECT max_id AS was FROM idgen.segment WHERE tag = 'c' \gset
UPDATE idgen.segment SET max_id = 5 WHERE tag = 'c';
SELECT max_id = :was AS not_lowered, needs_burn, mark IS NULL AS unmarked FROM idgen.segment WHERE tag = 'c';
UPDATE idgen.segment SET max_id = :was + 1000 WHERE tag = 'c' AND max_id = :was;
SELECT max_id - :was AS raised, needs_burn FROM idgen.segment WHERE tag = 'c';
UPDATE idgen.segment SET limit_id = limit_id - 1 WHERE tag = 'b';
SELECT needs_burn FROM idgen.segment WHERE tag = 'b';
COPY idgen.segment (tag, segment_id, owner, start_id, max_id, limit_id, step, max_step, needs_burn, leased) FROM stdin;
copied	aaaaaaaa-2222-4333-8444-555555555555	postgres	1	700	100000	10	10	f	t
\.
SELECT needs_burn, leased, max_id FROM idgen.segment WHERE tag = 'copied';
SELECT idgen_segment('copied');
SELECT kind, lo, hi, payload->>'cause' AS cause FROM idgen.audit_event WHERE tag = 'copied' ORDER BY tag_seq LIMIT 2;
SET session_replication_role = replica;
UPDATE idgen.segment SET max_id = 3 WHERE tag = 'copied';
SELECT pg_temp.refusal('DELETE FROM idgen.segment'), pg_temp.refusal('TRUNCATE idgen.segment CASCADE');
RESET session_replication_role;
SELECT max_id > 700 AS not_lowered, needs_burn FROM idgen.segment WHERE tag = 'copied';

-- How much is passed over can be said; one that would leave nothing is refused, and somebody has to decide.
SELECT idgen_create_segment('narrow', step => 10, max_step => 10, limit_id => 40);
SELECT idgen_segment('narrow');
UPDATE idgen.segment SET max_id = max_id + 1 WHERE tag = 'narrow';
SELECT pg_temp.refusal($$SELECT idgen_segment('narrow') FROM generate_series(1, 20)$$);
SELECT pg_temp.refusal($$SELECT idgen.set_safety_burn('narrow', -1)$$), pg_temp.refusal($$SELECT idgen.set_safety_burn('nothing', 1)$$);
CREATE ROLE idgen_stranger;
GRANT USAGE ON SCHEMA idgen TO idgen_stranger;
SET ROLE idgen_stranger;
SELECT pg_temp.refusal($$SELECT idgen.set_safety_burn('narrow', 1)$$), pg_temp.refusal($$SELECT idgen.adopt_authority('mine')$$), pg_temp.refusal($$SELECT idgen.promote('mine')$$);
SELECT authority, authority_state FROM idgen.health;
RESET ROLE;
SELECT idgen.set_safety_burn('narrow', 5);
SELECT count(idgen_segment('narrow')) FROM generate_series(1, 10);
SELECT kind, lo IN (12, 22) AS right_above, hi - lo + 1 AS ids, payload->>'safety_burn' AS set FROM idgen.audit_event WHERE tag = 'narrow' AND kind IN ('segment.burn', 'segment.alter') ORDER BY tag_seq;
SELECT pg_temp.refusal($$SELECT idgen_segment('narrow') FROM generate_series(1, 20)$$);
SELECT idgen.set_safety_burn('narrow', NULL);
SELECT safety_burn FROM idgen.segment WHERE tag = 'narrow';
DROP OWNED BY idgen_stranger;
DROP ROLE idgen_stranger;
\c :home
DROP DATABASE idgen_home;
