-- The extension in a schema of its own, and a foreign schema in its way.
DROP EXTENSION pg_idgen;
SELECT count(*) AS left_behind FROM pg_namespace WHERE nspname = 'idgen';
CREATE SCHEMA idgen;
\set VERBOSITY terse
CREATE EXTENSION pg_idgen;
\set VERBOSITY default
DROP SCHEMA idgen;
CREATE SCHEMA ids;
CREATE EXTENSION pg_idgen SCHEMA ids;
SELECT ids.idgen_create_segment('x'), ids.idgen_segment('x');
SELECT ids.idgen_timestamp(ids.idgen_uuidv7()) > '2020-01-01' AS works;
SELECT preloaded FROM idgen.health;
ALTER EXTENSION pg_idgen SET SCHEMA public;
DROP EXTENSION pg_idgen;
DROP SCHEMA ids;
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('x'), idgen_segment('x') AS a_new_tag;
