-- The extension in a schema of its own, what depends on it, and two databases of one server.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(370);
DROP EXTENSION pg_idgen;
CREATE SCHEMA "My IDs";
CREATE EXTENSION pg_idgen SCHEMA "My IDs";
-- Created again is an error, or nothing.
SELECT pg_temp.refusal('CREATE EXTENSION pg_idgen');
CREATE EXTENSION IF NOT EXISTS pg_idgen;
CREATE EXTENSION IF NOT EXISTS pg_idgen SCHEMA public;
-- Every function works from there, qualified or by path, as a default too.
SELECT "My IDs".idgen_create_segment('own schema');
SET search_path = "My IDs", public;
CREATE TABLE public.kept (id bigint DEFAULT idgen_snowflake(), uid uuid DEFAULT idgen_uuidv7(), number bigint DEFAULT idgen_segment('own schema'),
    at timestamptz GENERATED ALWAYS AS (idgen_timestamp(id)) STORED, code text GENERATED ALWAYS AS (idgen_encode(id)) STORED);
RESET search_path;
INSERT INTO kept SELECT FROM generate_series(1, 100);
SELECT count(DISTINCT id), count(DISTINCT uid), max(number), count(at), count(code) FROM kept;
SELECT pg_get_expr(d.adbin, d.adrelid) AS default FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE d.adrelid = 'kept'::regclass ORDER BY a.attnum;
SELECT state FROM idgen.health;
SELECT pg_temp.refusal('SELECT idgen_snowflake()') AS not_in_the_path;
-- Not relocatable: schema idgen names itself. The schema of the generators may be renamed.
SELECT pg_temp.refusal('ALTER EXTENSION pg_idgen SET SCHEMA public');
ALTER SCHEMA "My IDs" RENAME TO ids;
INSERT INTO kept DEFAULT VALUES RETURNING id > 0 AS after_a_rename;
SELECT ids.idgen_create_segment('after a rename');

-- Members cannot be dropped, nor the extension under a table that uses it.
SELECT pg_temp.refusal(s)
  FROM unnest(ARRAY['DROP FUNCTION ids.idgen_snowflake()', 'DROP TABLE idgen.segment CASCADE', 'DROP VIEW idgen.health', 'DROP SCHEMA idgen CASCADE',
                    'DROP SEQUENCE idgen.audit_event_id_seq', 'DROP EXTENSION pg_idgen']) s;
-- CASCADE takes defaults and generated columns, never a row.
SET client_min_messages = warning;
DROP EXTENSION pg_idgen CASCADE;
RESET client_min_messages;
SELECT count(*) AS rows FROM kept;
SELECT attname FROM pg_attribute WHERE attrelid = 'kept'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
SELECT count(*) AS left_behind FROM pg_proc WHERE probin LIKE '%pg_idgen%';
DROP TABLE kept;
DROP SCHEMA ids;
-- Made and used in one transaction, as a migration does it: no worker can see its tables, so it makes the day tables itself.
BEGIN;
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('at once');
SELECT idgen_segment('at once') FROM generate_series(1, 3);
COMMIT;
SELECT idgen_segment('at once') > 3 AS goes_on;
SELECT kind, lo FROM idgen.audit_event WHERE tag = 'at once' ORDER BY tag_seq LIMIT 2;
SELECT count(*) >= 8 AS days_ahead FROM pg_inherits WHERE inhparent = 'idgen.audit_event'::regclass;
SELECT count(*) AS members FROM pg_depend d JOIN pg_inherits i ON i.inhrelid = d.objid WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e';
-- Dropped and made again in one transaction: a new tag space, or the old one after a rollback.
SELECT space_id AS old_space FROM idgen.health \gset
BEGIN;
SELECT idgen_create_segment('again');
SELECT idgen_segment('again') AS of_the_old_space;
DROP EXTENSION pg_idgen;
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('again');
SELECT idgen_segment('again') AS of_a_new_space;
SELECT space_id <> :'old_space' AS another_space FROM idgen.health;
SAVEPOINT s;
SELECT idgen_segment('again') AS then_undone;
ROLLBACK TO s;
SELECT idgen_segment('again') > 2 AS goes_on;
ROLLBACK;
SELECT space_id = :'old_space' AS back FROM idgen.health;
SELECT pg_temp.refusal('SELECT idgen_segment(''again'')') AS never_was;
SELECT idgen_segment('at once') > 4 AS goes_on;
-- Who may make it: a superuser only, into whatever schema.
CREATE ROLE idgen_maker;
DROP EXTENSION pg_idgen;
GRANT CREATE ON SCHEMA public TO idgen_maker;
SET ROLE idgen_maker;
SELECT pg_temp.refusal('CREATE EXTENSION pg_idgen');
RESET ROLE;
-- A schema that is called idgen cannot be chosen: the extension makes its own.
CREATE SCHEMA idgen;
SELECT pg_temp.refusal('CREATE EXTENSION pg_idgen SCHEMA idgen');
DROP SCHEMA idgen;
SELECT pg_temp.refusal('CREATE EXTENSION pg_idgen SCHEMA no_such_schema');
REVOKE CREATE ON SCHEMA public FROM idgen_maker;
DROP ROLE idgen_maker;
CREATE EXTENSION pg_idgen;

-- Two databases: their tags do not know each other, their snowflakes come from the same leases.
SELECT idgen_create_segment('both');
SELECT array_agg(idgen_segment('both')) FROM generate_series(1, 3);
SELECT idgen_snowflake() AS here \gset
SELECT current_database() AS here_database \gset
CREATE DATABASE idgen_second;
\c idgen_second
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('both');
SELECT array_agg(idgen_segment('both')) FROM generate_series(1, 2);
SELECT abs(extract(epoch FROM idgen_timestamp(idgen_snowflake()) - idgen_timestamp(:here))) < 60 AS same_clock, idgen_snowflake() <> :here AS another;
SELECT count(*) FROM idgen.segments;
-- A clone is a tag space of its own that goes on above what it has copied, whatever is called first in it.
SELECT idgen_segment('both') AS last \gset
SELECT space_id AS original FROM idgen.health \gset
\c :here_database
SELECT idgen_segment('both') AS goes_on;
CREATE DATABASE idgen_clone TEMPLATE idgen_second;
\c idgen_clone
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idgen_segment('both') > :last AS above;
COMMIT;
SELECT space_id <> :'original' AS another_space FROM idgen.health;
\c :here_database
DROP DATABASE idgen_clone;
CREATE DATABASE idgen_clone TEMPLATE idgen_second;
\c idgen_clone
BEGIN;
SELECT idgen_create_segment('third');
SELECT idgen_segment('third'), idgen_segment('both') > :last AS above;
COMMIT;
\c :here_database
DROP DATABASE idgen_clone;
-- Also in a transaction whose snapshot is older than what the worker does for it, and that has written before; its
-- events are of the clone, not of the original.
CREATE DATABASE idgen_clone TEMPLATE idgen_second;
\c idgen_clone
CREATE TABLE written (n integer);
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO written VALUES (1);
SELECT idgen_create_segment('fourth', step => 2, max_step => 2);
SELECT array_agg(idgen_segment('fourth')) FROM generate_series(1, 3);
SAVEPOINT s;
SELECT idgen_segment_range('fourth', 3), idgen_segment('both') > :last AS above;
ROLLBACK TO s;
SELECT idgen_segment_range('fourth', 3);
SAVEPOINT s;
SELECT idgen_segment_range('fourth', 5);
ROLLBACK TO s;
COMMIT;
SELECT kind, lo, hi, e.space_id = p.space_id AND e.source_id = p.source_id AS own FROM idgen.audit_event e, idgen.space p WHERE tag = 'fourth' ORDER BY tag_seq;
\c :here_database
DROP DATABASE idgen_clone;
DROP DATABASE idgen_second;
