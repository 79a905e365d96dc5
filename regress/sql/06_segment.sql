-- Segments: dense, never given back, served inside the transaction that makes the tag.
SELECT idgen_create_segment('invoices');
SELECT array_agg(idgen_segment('invoices')) FROM generate_series(1, 5);
CREATE TABLE invoices (number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'), n integer);
INSERT INTO invoices (n) SELECT generate_series(1, 20000);
SELECT count(*), min(number), max(number), count(DISTINCT number) FROM invoices;
-- One database write per range, not per id: every grant is an event, without gaps or overlaps.
SELECT count(*) < 10 AS few_grants, min(lo) = 1 AS from_start, max(hi) >= 20005 AS covers,
       bool_and(lo = before + 1 OR before IS NULL) AS dense, max(tag_seq) - min(tag_seq) + 1 = count(*) AS seq
  FROM (SELECT *, lag(hi) OVER (ORDER BY lo) AS before FROM idgen.audit_event WHERE kind = 'segment.grant' AND tag = 'invoices') e;
SELECT max_id = (SELECT max(hi) FROM idgen.audit_event WHERE tag = 'invoices') AS table_agrees, tag_seq > 1 AS counted
  FROM idgen.segment WHERE tag = 'invoices';

-- A rollback burns.
BEGIN;
SELECT idgen_segment('invoices') AS burned \gset
ROLLBACK;
SELECT idgen_segment('invoices') = :burned + 1 AS next_one;

-- Made and used in one transaction, over savepoints, and by the others after commit.
BEGIN;
SELECT idgen_create_segment('fresh', start_id => 100, step => 3, max_step => 3);
SELECT array_agg(idgen_segment('fresh')) FROM generate_series(1, 7);
SAVEPOINT s;
SELECT array_agg(idgen_segment('fresh')) FROM generate_series(1, 4);
ROLLBACK TO s;
SELECT idgen_segment('fresh') AS after_rollback;
COMMIT;
SELECT idgen_segment('fresh') AS after_commit;
SELECT kind, tag_seq, lo, hi, payload->>'issuer' AS issuer FROM idgen.audit_event WHERE tag = 'fresh' ORDER BY tag_seq LIMIT 4;
BEGIN;
SELECT idgen_create_segment('never');
SELECT idgen_segment('never');
ROLLBACK;
SELECT idgen_segment('never');
SELECT idgen_create_segment('never');
SELECT idgen_segment('never');

-- The end is an error, never a wrap; also at the end of bigint.
SELECT idgen_create_segment('small', limit_id => 3, step => 2, max_step => 2);
SELECT array_agg(idgen_segment('small')) FROM generate_series(1, 3);
SELECT idgen_segment('small');
SELECT idgen_create_segment('top', start_id => 9223372036854775806, step => 1000);
SELECT idgen_segment('top'), idgen_segment('top');
SELECT idgen_segment('top');
BEGIN;
SELECT idgen_create_segment('own top', start_id => 9223372036854775807);
SELECT idgen_segment('own top');
SELECT idgen_segment('own top');
ROLLBACK;

-- Wrong input.
SELECT idgen_segment('no such tag');
SELECT idgen_segment(NULL);
SELECT idgen_segment('');
SELECT idgen_segment(repeat('x', 10000000)) IS NULL;
SELECT idgen_create_segment('invoices');
SELECT idgen_create_segment('x', step => 0);
SELECT idgen_create_segment('x', step => -1);
SELECT idgen_create_segment('x', step => 2147483647);
SELECT idgen_create_segment('x', step => 1000001);
SELECT idgen_create_segment('x', step => 100, max_step => 99);
SELECT idgen_create_segment('x', start_id => 0);
SELECT idgen_create_segment('x', start_id => 10, limit_id => 9);
SELECT idgen_create_segment('x', step => NULL);
SELECT idgen_create_segment(NULL);
SELECT idgen_create_segment('');
SELECT idgen_create_segment(repeat('x', 201));
-- Names are bytes: quotes, spaces, case and other scripts are all different tags.
SELECT idgen_create_segment(t) FROM unnest(ARRAY['a "quoted" tag', 'it''s', 'A', 'a', 'Ünïcode ✓', repeat('x', 200), ' ']) t;
SELECT t, idgen_segment(t) FROM unnest(ARRAY['a "quoted" tag', 'it''s', 'A', 'a', 'Ünïcode ✓', repeat('x', 200), ' ']) t;
-- Many tags in turn: the cache holds more than the last one.
SELECT count(idgen_create_segment('many ' || n)) FROM generate_series(1, 50) n;
SELECT count(*), min(id), max(id) FROM (SELECT idgen_segment('many ' || n % 50 + 1) AS id FROM generate_series(1, 500) n) s;
SELECT count(*) AS in_view, count(refills) AS in_memory FROM idgen.segments WHERE tag LIKE 'many %';
SELECT idgen_create_segment('x') FROM generate_series(1, 2);
-- The leaves: UTC days with their own key and indexes, whatever the session's time zone says.
SELECT count(*) >= 8 AS days_ahead FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass;
SELECT count(DISTINCT i.indexrelid) / count(DISTINCT h.inhrelid) AS indexes_per_leaf
  FROM pg_inherits h JOIN pg_index i ON i.indrelid = h.inhrelid WHERE h.inhparent = 'idgen.audit_event'::regclass;
DROP TABLE invoices;
