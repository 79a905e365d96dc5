-- Tags are altered, moved up and dropped; each change is an event, and nothing that was granted comes again.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT idgen_create_segment('m', step => 10, max_step => 10);
SELECT array_agg(idgen_segment('m')) FROM generate_series(1, 3);

-- Up only, at once for everybody, and the next id is the one that was named.
SELECT idgen_seek_segment('m', 1000);
SELECT idgen_segment('m'), idgen_segment('m');
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('m', 1000)$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('m', 5)$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('m', -1, force => true)$$);
-- The end can be reached on purpose only.
SELECT idgen_seek_segment('m', 9223372036854775806);
SELECT idgen_seek_segment('m', 9223372036854775806, force => true);
SELECT array_agg(idgen_segment('m')) FROM generate_series(1, 2);
SELECT idgen_segment('m');
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('m', 9223372036854775807, force => true)$$);

-- What is altered stays, what is NULL is left.
SELECT idgen_create_segment('a', step => 10, max_step => 10, limit_id => 100);
SELECT idgen_alter_segment('a', max_step => 40);
SELECT idgen_alter_segment('a', step => 20, limit_id => 200, fetch_limit => 5);
SELECT step, max_step, limit_id, fetch_limit, version FROM idgen.segment WHERE tag = 'a';
SELECT idgen_alter_segment('a', fetch_limit => 0);
SELECT step, max_step, limit_id, fetch_limit, version FROM idgen.segment WHERE tag = 'a';
SELECT idgen_segment('a');
SELECT min(id), max(id), count(DISTINCT id) FROM (SELECT idgen_segment('a') AS id FROM generate_series(1, 60)) s;
SELECT hi - lo + 1 AS ids FROM idgen.audit_event WHERE tag = 'a' AND kind = 'segment.grant' ORDER BY lo LIMIT 2;
-- What is in memory is used up, then come ranges of the new size: no gap.
SELECT idgen_alter_segment('a', step => 5, max_step => 5);
SELECT min(id), max(id), count(DISTINCT id) FROM (SELECT idgen_segment('a') AS id FROM generate_series(1, 100)) s;
SELECT hi - lo + 1 AS ids FROM idgen.audit_event WHERE tag = 'a' AND kind = 'segment.grant' AND lo <= 161 ORDER BY lo DESC LIMIT 3;
SELECT ids_left BETWEEN 30 AND 44 AS ids_left FROM idgen.segments WHERE tag = 'a'; -- a range may be published after the row was read
SELECT pg_temp.refusal(format('SELECT idgen_alter_segment(%L, %s)', 'a', change))
  FROM unnest(ARRAY['step => 0', 'step => 1000001', 'max_step => 4', 'step => 6', 'limit_id => 0', 'limit_id => 160',
                    'fetch_limit => -1', 'owner => ''no such role''', 'step => NULL']) change;
-- The limit may be what is granted: it is the end then, and the end can be moved.
SELECT idgen_create_segment('e', step => 100, max_step => 100, limit_id => 1000);
SELECT idgen_alter_segment('e', limit_id => 100);
SELECT count(idgen_segment('e')) FROM generate_series(1, 99);
SELECT idgen_alter_segment('e', limit_id => 99);
SELECT idgen_alter_segment('e', limit_id => 100);
SELECT idgen_segment('e');
SELECT pg_temp.refusal($$SELECT idgen_segment('e')$$), (SELECT ids_left FROM idgen.segments WHERE tag = 'e');
SELECT idgen_alter_segment('e', limit_id => 150);
SELECT idgen_segment('e');

-- Dropped is gone; a new tag of the name begins above, and says so.
SELECT idgen_create_segment('d', step => 10, max_step => 10);
SELECT idgen_segment('d');
SELECT segment_id AS old FROM idgen.segment WHERE tag = 'd' \gset
SELECT idgen.grant_segment('d', 'public');
SELECT idgen_drop_segment('d');
SELECT max_id FROM idgen.segment WHERE tag = 'd' \gset
SELECT idgen_segment('d');
SELECT idgen_drop_segment('d');
SELECT idgen_seek_segment('d', 100);
SELECT idgen_alter_segment('d', step => 1);
SELECT idgen.grant_segment('d', 'public');
SELECT count(*) FROM idgen.segments WHERE tag = 'd';
SELECT dropped_at IS NOT NULL AS tombstone, max_id IN (10, 20) AS floor FROM idgen.segment WHERE tag = 'd';
SELECT left(pg_temp.refusal(format('SELECT idgen_create_segment(%L, limit_id => %s)', 'd', :max_id)), 5);
-- Silent: how far it had come depends on whether a range was granted ahead.
SET client_min_messages = warning;
SELECT idgen_create_segment('d');
RESET client_min_messages;
SELECT idgen_segment('d') = :max_id + 1 AS above, (SELECT segment_id <> :'old' FROM idgen.segment WHERE tag = 'd') AS another;
SELECT count(*) AS rights FROM idgen.segment_grant WHERE tag = 'd';
SELECT idgen_drop_segment('d');
SELECT idgen_create_segment('d', start_id => 5000);
SELECT idgen_segment('d');
SELECT idgen_create_segment('said', step => 7, max_step => 7, limit_id => 7);
SELECT idgen_segment('said');
SELECT idgen_drop_segment('said');
SELECT idgen_create_segment('said');
SELECT idgen_segment('said');

-- Inside one transaction: what it has made itself it goes on drawing from; what it has changed it does not.
BEGIN;
SELECT idgen_create_segment('own', step => 10, max_step => 10);
SELECT idgen_segment('own'), idgen_segment('own');
SELECT idgen_seek_segment('own', 500);
SELECT idgen_segment('own'), idgen_segment('own');
SELECT idgen_alter_segment('own', limit_id => 600);
SELECT idgen_segment('own');
SAVEPOINT s;
SELECT idgen_seek_segment('own', 550);
SELECT idgen_segment('own');
ROLLBACK TO s;
SELECT idgen_segment('own') > 550 AS never_again;
SELECT idgen_drop_segment('own');
SELECT pg_temp.refusal($$SELECT idgen_segment('own')$$);
COMMIT;
SELECT idgen_create_segment('c', step => 10, max_step => 10);
SELECT idgen_segment('c');
BEGIN;
SELECT idgen_seek_segment('c', 700);
SELECT pg_temp.refusal($$SELECT idgen_segment('c')$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('c', 5)$$);
SAVEPOINT s;
SELECT idgen_alter_segment('c', step => 5);
RELEASE s;
SELECT pg_temp.refusal($$SELECT idgen_segment('c')$$);
ROLLBACK;
-- A change that was taken back left everything as it was, ranges in memory too.
SELECT idgen_segment('c'), step, max_id < 700 AS below FROM idgen.segment WHERE tag = 'c';
BEGIN;
SAVEPOINT s;
SELECT idgen_seek_segment('c', 700);
ROLLBACK TO s;
SELECT idgen_segment('c');
COMMIT;
SELECT idgen_segment('c');
SELECT idgen_seek_segment('c', 800);
SELECT idgen_segment('c');
-- A prepared change: nothing is drawn while it is open, and what was in memory is burned.
BEGIN;
SELECT idgen_seek_segment('c', 900);
PREPARE TRANSACTION 'seek';
SET idgen.segment_wait_ms = 300;
SELECT left(pg_temp.refusal($$SELECT idgen_segment('c')$$), 5);
RESET idgen.segment_wait_ms;
COMMIT PREPARED 'seek';
SELECT idgen_segment('c');

-- Every change is an event, numbered without a gap.
SELECT lo IN (11, 21) OR force AS lo, hi, next_id, force
  FROM (SELECT tag_seq, lo, hi, payload->'next_id' AS next_id, (payload->'force')::boolean AS force FROM idgen.audit_event
         WHERE tag = 'm' AND kind = 'segment.seek') e ORDER BY tag_seq;
SELECT (payload->'before') - 'owner'::text AS before, (payload->'after') - 'owner'::text AS after FROM idgen.audit_event
 WHERE tag = 'a' AND kind = 'segment.alter' ORDER BY tag_seq LIMIT 2;
SELECT kind, payload->'above' AS above, payload->'start_id' AS start_id, payload->'max_id' AS max_id FROM idgen.audit_event
 WHERE tag = 'said' AND kind IN ('segment.create', 'segment.drop') ORDER BY tag_seq;
SELECT tag, count(*) = max(tag_seq) AS dense, max(tag_seq) = (SELECT s.tag_seq FROM idgen.segment s WHERE s.tag = e.tag) AS counted
  FROM idgen.audit_event e WHERE tag IN ('m', 'a', 'c', 'd', 'e', 'own') GROUP BY tag ORDER BY tag COLLATE "C";
-- Nothing was granted twice, and what was skipped was not granted.
SELECT count(*) AS overlaps FROM idgen.audit_event x JOIN idgen.audit_event y
    ON x.tag = y.tag AND x.event_id < y.event_id AND x.lo <= y.hi AND y.lo <= x.hi
 WHERE x.tag IN ('m', 'a', 'c', 'd', 'e');

-- Missing arguments.
SELECT pg_temp.refusal(format('SELECT %s', call))
  FROM unnest(ARRAY['idgen_alter_segment(NULL, step => 1)', 'idgen_seek_segment(NULL, 1)', 'idgen_seek_segment(''m'', NULL)',
                    'idgen_seek_segment(''m'', 1, NULL)', 'idgen_drop_segment(NULL)', 'idgen.revoke_segment(NULL, ''public'')',
                    'idgen.revoke_segment(''m'', NULL)', 'idgen.grant_segment(NULL, ''public'')', 'idgen_drop_segment('''')',
                    'idgen_drop_segment(repeat(''x'', 1000))', 'idgen_seek_segment(''nobody'', 1)']) call;
SELECT idgen_drop_segment(tag) FROM idgen.segments WHERE tag IN ('m', 'a', 'c', 'd', 'e');
