-- What the audits ask the database: ranges that were granted twice, and columns that invite duplicates.
CREATE EXTENSION IF NOT EXISTS pg_idgen;
CREATE SCHEMA audit_test;
SET search_path = audit_test, public;
SELECT idgen_create_segment('audit orders'), idgen_create_segment('audit it''s', limit_id => 2000000000), idgen_create_segment('audit x');
-- Nothing to be said of what is as it should be, whatever index it is that makes it unique.
CREATE TABLE good (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), u uuid UNIQUE DEFAULT idgen_uuidv7(), n int UNIQUE DEFAULT idgen_segment('audit it''s'),
                   s bigint DEFAULT idgen_segment('audit orders'), other text DEFAULT 'x', made int GENERATED ALWAYS AS (1) STORED);
CREATE UNIQUE INDEX ON good (s) INCLUDE (other);
SELECT * FROM idgen.lint WHERE relation = 'good'::regclass;
CREATE TABLE bad (no_index bigint DEFAULT idgen_snowflake(), part_of_it bigint DEFAULT idgen_snowflake(), two_columns bigint DEFAULT idgen_snowflake(),
                  narrow int UNIQUE DEFAULT idgen_segment('audit orders'), narrower smallint UNIQUE DEFAULT idgen_segment('audit it''s'),
                  words varchar UNIQUE DEFAULT idgen_uuidv7(), numbers text UNIQUE DEFAULT idgen_segment('audit x'),
                  rounded float8 UNIQUE DEFAULT idgen_snowflake(), "rounded more" real UNIQUE DEFAULT idgen_snowflake(),
                  either bigint UNIQUE DEFAULT CASE WHEN random() < 0.5 THEN idgen_snowflake() ELSE idgen_segment('audit x') END);
CREATE UNIQUE INDEX ON bad (part_of_it) WHERE part_of_it > 5;
CREATE UNIQUE INDEX ON bad (two_columns, narrow);
SELECT column_name, problem, reason, mend FROM idgen.lint WHERE relation = 'bad'::regclass;
-- A table and its partitions are one; they may differ.
CREATE TABLE parted (id bigint DEFAULT idgen_segment('audit orders'), k int) PARTITION BY LIST (k);
CREATE TABLE parted_1 PARTITION OF parted (id UNIQUE) FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted (id UNIQUE) FOR VALUES IN (2);
SELECT relation, problem, mend FROM idgen.lint WHERE relation::text LIKE 'parted%';
ALTER TABLE parted_2 ALTER id SET DEFAULT idgen_segment('audit x');
SELECT relation, problem, reason, mend FROM idgen.lint WHERE relation::text LIKE 'parted%' AND problem = 'mixed';
-- What mends a thing mends it.
ALTER TABLE bad ALTER COLUMN words TYPE uuid USING words::uuid;
ALTER TABLE bad ALTER COLUMN narrow TYPE bigint;
SELECT column_name FROM idgen.lint WHERE relation = 'bad'::regclass AND column_name IN ('words', 'narrow');
-- Everybody may look.
CREATE ROLE regress_audit;
GRANT USAGE ON SCHEMA audit_test TO regress_audit;
SET ROLE regress_audit;
SELECT count(*) > 0 AS found FROM idgen.lint;
SELECT * FROM idgen.audit_overlaps('-infinity', 'infinity');
RESET ROLE;
GRANT pg_monitor TO regress_audit;
SET ROLE regress_audit;
SELECT * FROM idgen.audit_overlaps('-infinity', 'infinity');
RESET ROLE;
-- Overlap, containment, the same range twice, and one whose last id is another's first; neighbours, another space, another tag, and what
-- is no grant are none.
BEGIN;
CREATE TABLE idgen.audit_event_20200301 PARTITION OF idgen.audit_event FOR VALUES FROM ('2020-03-01 00:00:00+00') TO ('2020-03-02 00:00:00+00');
CREATE TEMP TABLE told (n int, kind text, space int, tag text, lo bigint, hi bigint);
INSERT INTO told VALUES
    (1, 'segment.grant', 1, 'a', 1, 100), (2, 'segment.grant', 1, 'a', 50, 60), (3, 'segment.grant', 1, 'a', 90, 120), (4, 'segment.grant', 1, 'a', 121, 130),
    (5, 'segment.grant', 1, 'b', 1, 10), (6, 'segment.grant', 1, 'b', 1, 10), (7, 'segment.grant', 1, 'c', 1, 10), (8, 'segment.grant', 1, 'c', 10, 20),
    (9, 'segment.grant', 2, 'a', 1, 100), (10, 'segment.burn', 1, 'a', 1, 500), (11, 'segment.grant', 1, 'd', 1, 10), (12, 'segment.grant', 1, 'd', 11, 20),
    (13, 'segment.grant', 1, 'e', 9223372036854775807, 9223372036854775807), (14, 'segment.grant', 1, 'e', 1, 9223372036854775807);
INSERT INTO idgen.audit_event (event_id, source_id, at, kind, space_id, tag, tag_seq, lo, hi)
SELECT n, '00000000-0000-0000-0000-00000000000a', '2020-03-01 00:00:00+00'::timestamptz + n * interval '1 s', kind,
       lpad(space::text, 32, '0')::uuid, tag, n, lo, hi FROM told;
SELECT tag, lo, hi, first_event, first_lo, first_hi, second_event, second_lo, second_hi, second_at > first_at AS second_is_younger
  FROM idgen.audit_overlaps('2020-03-01 00:00:00+00', '2020-03-02 00:00:00+00');
-- Another way to the same answer: every pair.
SELECT count(DISTINCT l.event_id) = (SELECT count(*) FROM idgen.audit_overlaps('2020-03-01 00:00:00+00', '2020-03-02 00:00:00+00')) AS same
  FROM idgen.audit_event e JOIN idgen.audit_event l USING (space_id, tag, kind)
 WHERE kind = 'segment.grant' AND e.at < '2020-03-02' AND l.at < '2020-03-02' AND (e.lo, e.hi, e.event_id) < (l.lo, l.hi, l.event_id) AND l.lo <= e.hi;
-- Of a time alone.
SELECT tag FROM idgen.audit_overlaps('2020-03-01 00:00:05+00', '2020-03-01 00:00:07+00');
SELECT idgen.audit_overlaps(NULL, now()) IS NULL AS strict;
ROLLBACK;
DROP SCHEMA audit_test CASCADE;
DROP ROLE regress_audit;
SELECT idgen_drop_segment(t) FROM unnest('{audit orders,"audit it''s",audit x}'::text[]) t;
