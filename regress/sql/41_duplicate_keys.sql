-- Errors 23505 are counted by constraint, and those of columns that we feed are told apart.
CREATE EXTENSION IF NOT EXISTS pg_idgen;
\set VERBOSITY sqlstate
\pset null '(null)'
SELECT idgen.reset_stats();
SELECT * FROM idgen.duplicate_key_counts();
SELECT idgen_create_segment('twice');
CREATE SCHEMA twice;
SET search_path = twice, public;
CREATE TABLE fed (id bigint PRIMARY KEY DEFAULT idgen_segment('twice'), email text UNIQUE, n int);
CREATE TABLE plain (id int PRIMARY KEY);
CREATE TABLE pair (id bigint DEFAULT idgen_segment('twice'), k int, other int, UNIQUE (k, id) INCLUDE (other));
CREATE TABLE parted (id bigint DEFAULT idgen_segment('twice'), k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE UNIQUE INDEX "only some, 'quoted'" ON fed (id) WHERE n > 5;
CREATE UNIQUE INDEX included ON fed (n) INCLUDE (id);
INSERT INTO fed VALUES (7, 'a', 1), (8, 'b', 2);
INSERT INTO plain VALUES (1);
INSERT INTO pair VALUES (7, 1);
INSERT INTO parted VALUES (7, 1);
-- Each is counted, whatever the statement.
INSERT INTO fed VALUES (7);
UPDATE fed SET id = 7 WHERE id = 8;
COPY fed (id) FROM stdin;
7
\.
INSERT INTO fed VALUES (9, 'a');
INSERT INTO fed VALUES (9, 'c', 1);
INSERT INTO plain VALUES (1);
INSERT INTO pair VALUES (7, 1);
INSERT INTO parted VALUES (7, 1);
-- At the end of the transaction too, and where an index is built.
CREATE TABLE late (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED DEFAULT idgen_segment('twice'));
BEGIN;
INSERT INTO late VALUES (1), (1);
COMMIT;
CREATE TABLE two (id bigint DEFAULT idgen_segment('twice'));
INSERT INTO two VALUES (3), (3);
CREATE UNIQUE INDEX two_id ON two (id);
SELECT table_name, constraint_name, errors, last_ms >= first_ms AND first_ms > 1600000000000 AS times, others
  FROM idgen.duplicate_key_counts() WHERE schema_name = 'twice' ORDER BY table_name COLLATE "C", constraint_name COLLATE "C";
-- Of these the ones that have a column of ours. An index that was not made has no column.
SELECT relation, column_name, table_name, constraint_name, errors, last_at BETWEEN first_at AND clock_timestamp() AS times, reason
  FROM idgen.duplicate_key_errors WHERE schema_name = 'twice' ORDER BY table_name COLLATE "C", constraint_name COLLATE "C";
-- What nobody is told of is not counted: handled, avoided, not logged, of another level, another error.
DO $$ BEGIN INSERT INTO fed VALUES (7); EXCEPTION WHEN unique_violation THEN NULL; END $$;
INSERT INTO fed VALUES (7) ON CONFLICT DO NOTHING;
SET log_min_messages = fatal;
INSERT INTO fed VALUES (7);
RESET log_min_messages;
SET client_min_messages = error;
DO $$ BEGIN RAISE WARNING 'w' USING ERRCODE = 'unique_violation', SCHEMA = 'twice', TABLE = 'fed', CONSTRAINT = 'fed_pkey'; END $$;
RESET client_min_messages;
INSERT INTO fed VALUES ('x');
SELECT errors FROM idgen.duplicate_key_errors WHERE constraint_name = 'fed_pkey';
-- In a subtransaction that is rolled back by hand the error was told, so it is counted.
BEGIN;
SAVEPOINT a;
INSERT INTO fed VALUES (7);
ROLLBACK TO a;
COMMIT;
SELECT errors FROM idgen.duplicate_key_errors WHERE constraint_name = 'fed_pkey';
-- What somebody raises counts under the names that he gives: none, or one that cannot be a name.
DO $$ BEGIN RAISE unique_violation; END $$;
DO $$ BEGIN RAISE unique_violation USING CONSTRAINT = repeat('x', 64); END $$;
DO $$ BEGIN RAISE unique_violation USING CONSTRAINT = repeat('x', 63); END $$;
SELECT schema_name, table_name, left(constraint_name, 3) AS begins, length(constraint_name) AS length, errors, others
  FROM idgen.duplicate_key_counts() WHERE schema_name IS NULL ORDER BY errors, others, length;
-- An index that has another name now, or is gone, is in the counts alone.
ALTER INDEX late_id_key RENAME TO early;
SELECT count(*) FROM idgen.duplicate_key_errors WHERE constraint_name = 'late_id_key';
SELECT count(*) FROM idgen.duplicate_key_counts() WHERE constraint_name = 'late_id_key';
-- For members of pg_monitor.
CREATE ROLE regress_twice;
SET ROLE regress_twice;
SELECT * FROM idgen.duplicate_key_counts();
SELECT * FROM idgen.duplicate_key_errors;
RESET ROLE;
GRANT pg_monitor TO regress_twice;
SET ROLE regress_twice;
SELECT count(*) FROM idgen.duplicate_key_errors WHERE schema_name = 'twice';
RESET ROLE;
-- From zero again.
SELECT idgen.reset_stats();
SELECT count(*) FROM idgen.duplicate_key_counts();
INSERT INTO fed VALUES (7);
SELECT constraint_name, errors FROM idgen.duplicate_key_errors;
SET client_min_messages = warning;
DROP SCHEMA twice CASCADE;
DROP ROLE regress_twice;
SELECT idgen_drop_segment('twice');
SELECT idgen.reset_stats();
