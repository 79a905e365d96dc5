-- Many ids by one grant: whole, apart from the ranges that single ids come from, and repeatable by a key.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT idgen_create_segment('b', step => 10, max_step => 10);
SELECT idgen_segment_range('b', 1);
SELECT idgen_segment_range('b', 1000000);
SELECT idgen_segment('b');
SELECT step, max_step, step_hint FROM idgen.segment WHERE tag = 'b';
-- One database write each, which names who asked.
SELECT hi - lo + 1 AS ids, payload->>'issuer' AS issuer, payload->>'role' = current_user AS role,
       (payload->>'pid')::integer = pg_backend_pid() AS pid
  FROM idgen.audit_event WHERE tag = 'b' AND kind = 'segment.grant' ORDER BY tag_seq LIMIT 3;
-- As rows, in order, and no more than were asked for.
SELECT count(*), count(DISTINCT id), max(id) - min(id) + 1 AS width, bool_and(id = first + nth - 1) AS in_order
  FROM (SELECT id, nth, min(id) OVER () AS first FROM idgen_segment_batch('b', 50000) WITH ORDINALITY r (id, nth)) s;
SELECT count(*) FROM (SELECT idgen_segment_batch('b', 100000000) LIMIT 3) s;
CREATE TABLE loaded (id bigint PRIMARY KEY);
INSERT INTO loaded SELECT idgen_segment_batch('b', 1000);
INSERT INTO loaded SELECT idgen_segment('b') FROM generate_series(1, 1000);
INSERT INTO loaded SELECT idgen_segment_batch('b', 1000);
SELECT count(*) FROM loaded;
DROP TABLE loaded;
-- A rollback gives nothing back.
BEGIN;
SELECT upper(idgen_segment_range('b', 10)) AS next \gset
ROLLBACK;
SELECT lower(idgen_segment_range('b', 10)) >= :next AS above;

-- The same key, the same ids; another n is an error; another tag is another request.
SELECT idgen_segment_range('b', 100, 'job 1') AS job \gset
SELECT max_id, tag_seq FROM idgen.segment WHERE tag = 'b' \gset
SELECT idgen_segment_range('b', 100, 'job 1') = :'job' AS same, (SELECT count(*) FROM idgen_segment_batch('b', 100, 'job 1') id WHERE id <@ :'job'::int8multirange) AS ids;
SELECT max_id = :max_id AND tag_seq = :tag_seq AS nothing_granted FROM idgen.segment WHERE tag = 'b';
SELECT idgen_segment_range('b', 101, 'job 1');
SELECT idgen_segment_range('b', 100, 'job 2') = :'job' AS same;
SELECT idgen_create_segment('b2');
SELECT idgen_segment_range('b2', 7, 'job 1');
SELECT payload->>'request_key' AS request_key FROM idgen.audit_event WHERE tag = 'b2' AND kind = 'segment.grant';
-- Keys are bytes.
SELECT idgen_segment_range('b2', 1, k) FROM unnest(ARRAY['JOB 1', ' ', 'Ünïcode ✓', 'it''s "quoted"', repeat('x', 200)]) k;
SELECT count(DISTINCT idgen_segment_range('b2', 1, k)) FROM unnest(ARRAY['JOB 1', ' ', 'Ünïcode ✓', 'it''s "quoted"', repeat('x', 200)]) k;
-- Kept for 7 days, then it is another request.
UPDATE idgen.segment_request SET requested_at = requested_at - interval '7 days' WHERE request_key = 'job 1' AND tag = 'b';
SELECT idgen_segment_range('b', 3, 'job 1') = :'job' AS same;
SELECT n, requested_by = current_user AS by_whom, requested_at > now() - interval '1 minute' AS now FROM idgen.segment_request WHERE request_key = 'job 1' AND tag = 'b';

-- Inside the transaction that makes the tag.
BEGIN;
SELECT idgen_create_segment('o', step => 10, max_step => 10);
SELECT idgen_segment('o');
SELECT idgen_segment_range('o', 100), idgen_segment('o');
SELECT idgen_segment_range('o', 5, 'k'), idgen_segment_range('o', 5, 'k');
SELECT pg_temp.refusal($$SELECT idgen_segment_range('o', 6, 'k')$$);
SELECT array_agg(id) FROM idgen_segment_batch('o', 3) id;
SAVEPOINT s;
SELECT idgen_segment_range('o', 1000);
ROLLBACK TO s;
SELECT idgen_segment_range('o', 1);
COMMIT;
SELECT idgen_segment_range('o', 1);
SELECT count(*) AS overlaps FROM idgen.audit_event x JOIN idgen.audit_event y
    ON x.tag = y.tag AND x.event_id < y.event_id AND x.lo <= y.hi AND y.lo <= x.hi
 WHERE x.tag IN ('b', 'b2', 'o');

-- All or nothing at the end, and the last bigint is out of reach of a range.
SELECT idgen_create_segment('f', step => 1, max_step => 1, limit_id => 10);
SELECT idgen_segment_range('f', 11);
SELECT idgen_segment_range('f', 10);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('f', 1)$$);
SELECT idgen_create_segment('top', start_id => 9223372036854775805);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('top', 3)$$);
SELECT idgen_segment_range('top', 2);
SELECT idgen_segment('top');

-- Wrong arguments.
SELECT pg_temp.refusal(format('SELECT %s', call))
  FROM unnest(ARRAY['idgen_segment_range(''b'', 0)', 'idgen_segment_range(''b'', -1)', 'idgen_segment_range(''b'', 100000001)',
                    'idgen_segment_range(''b'', 9223372036854775807)', 'idgen_segment_range(''b'', NULL)', 'idgen_segment_range(NULL, 1)',
                    'idgen_segment_range(''b'', 1, NULL)', 'idgen_segment_range(''b'', 1, '''')', 'idgen_segment_range(''b'', 1, repeat(''x'', 201))',
                    'idgen_segment_range(''nobody'', 1)', 'idgen_segment_batch(''b'', 0)', 'idgen_segment_batch(''nobody'', 1)',
                    'idgen_segment_batch(''b'', 1, NULL)']) call;
-- Dropped with the tag: a key of before is free.
SELECT idgen_drop_segment(tag) FROM idgen.segments WHERE tag IN ('b', 'b2', 'o', 'f', 'top');
SELECT count(*) FROM idgen.segment_request;
