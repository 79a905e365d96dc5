-- A role that has nothing but EXECUTE, as everybody has it, and INSERT on one table: no schema to create in, no
-- temporary tables, no membership. Its rows get their keys; nothing else opens.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(360), idgen_create_segment('mine'), idgen_create_segment('not mine');
CREATE ROLE idgen_bare;
CREATE FUNCTION idgen_test_as(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
    RETURN state;
END $$;
SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()) \gexec
SELECT format('GRANT TEMPORARY ON DATABASE %I TO PUBLIC', current_database()) AS give_back \gset
CREATE TABLE kept (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), uid uuid DEFAULT idgen_uuidv7(), number bigint DEFAULT idgen_segment('mine'), n integer);
GRANT INSERT (n) ON kept TO idgen_bare;
SELECT idgen.grant_segment('mine', 'idgen_bare');
SET SESSION AUTHORIZATION idgen_bare;
SELECT has_schema_privilege('public', 'CREATE') AS may_create, has_database_privilege(current_database(), 'TEMPORARY') AS may_temp;

-- As a default of a table that it may only insert into.
INSERT INTO kept (n) SELECT generate_series(1, 100);
COPY kept (n) FROM stdin;
101
\.
-- By itself.
SELECT idgen_snowflake() > 0 AS snowflake, idgen_uuidv7() IS NOT NULL AS uuid, idgen_segment('mine') > 0 AS segment,
       (SELECT count(*) FROM idgen_snowflake_batch(3)) AS snowflakes, (SELECT count(*) FROM idgen_uuidv7_batch(3)) AS uuids, idgen_uuidv7_at('2026-01-01') IS NOT NULL AS at;
SELECT idgen_timestamp(0::bigint) IS NOT NULL AS timestamp, (idgen_parse(0::bigint)).worker, idgen_decode(idgen_encode(7)) AS code, idgen_cursor_floor(0, '1 s') AS floor,
       idgen_snowflake_min('2020-01-01+00') AS min, idgen_uuidv7_min('1970-01-01+00') AS uuid_min;
-- It sees that the server mints, and no tag of others.
SELECT state FROM idgen.health;
SELECT count(*) > 0 AS slots FROM idgen.slots;
SELECT count(*) AS tags FROM idgen.segments;
-- A tag of its own is no more than a row: everybody may make one, and sees and grants his own only.
SELECT idgen_create_segment('bare''s own'), idgen_segment('bare''s own');
SELECT tag, owner FROM idgen.segments;

-- Everything else refuses, by its own code or by Postgres'.
SELECT statement, idgen_test_as(statement) AS refused
  FROM unnest(ARRAY[
    'SELECT idgen_segment(''not mine'')', 'SELECT idgen.grant_segment(''not mine'', ''idgen_bare'')', 'SELECT idgen.grant_segment(''mine'', ''public'')',
    'SELECT idgen.server_clock()', 'SELECT idgen.claim_server(''worker'')', 'SELECT idgen.store_identity()', 'SELECT idgen.grant_daemon(''idgen_bare'')',
    'SELECT idgen.install_lease(1, idgen_uuidv7(), idgen_uuidv7(), ''classic'', ''worker'', 1, 1, 1, 1, 1, 1, 1, 1)',
    'SELECT idgen.extend_lease(1, idgen_uuidv7(), ''classic'', ''worker'', 1, 1, 1, 1, 1, 1, 1)', 'SELECT idgen.fence_lease(idgen_uuidv7(), ''worker'', 1, 1, 1)', 'SELECT idgen.segment_changed()',
    'SELECT 1 FROM idgen.cell', 'SELECT 1 FROM idgen.lease', 'SELECT 1 FROM idgen.segment', 'SELECT 1 FROM idgen.segment_grant', 'SELECT 1 FROM idgen.audit_event',
    'SELECT 1 FROM idgen.space', 'SELECT nextval(''idgen.audit_event_id_seq'')', 'SELECT setval(''idgen.audit_event_id_seq'', 1)',
    'INSERT INTO idgen.segment_grant (tag, grantee) VALUES (''not mine'', ''idgen_bare'')', 'UPDATE idgen.segment SET owner = ''idgen_bare''', 'DELETE FROM idgen.segment',
    'TRUNCATE idgen.segment CASCADE', 'UPDATE idgen.lease SET ceiling_ms = 0', 'UPDATE idgen.health SET state = ''''', 'CREATE TABLE idgen.mine ()',
    'CREATE FUNCTION idgen.mine() RETURNS integer LANGUAGE sql AS ''SELECT 1''', 'CREATE TRIGGER t BEFORE INSERT ON idgen.segment FOR EACH ROW EXECUTE FUNCTION idgen.segment_changed()',
    'DROP EXTENSION pg_idgen', 'ALTER EXTENSION pg_idgen UPDATE', 'CREATE EXTENSION pg_idgen', 'ALTER FUNCTION idgen_snowflake() COST 2', 'SET idgen.max_clock_rewind_ms = 5', 'SET idgen.max_refill_workers = 1', 'SET idgen.max_segments = 20', 'SELECT id FROM kept', 'CREATE TEMP TABLE t (n integer)']) statement;
-- What anybody may set: how long a call of his own waits.
SET idgen.lease_wait_ms = 1; SET idgen.segment_wait_ms = 1;
RESET idgen.lease_wait_ms; RESET idgen.segment_wait_ms;
RESET SESSION AUTHORIZATION;
SELECT count(*), count(DISTINCT id), count(DISTINCT number) FROM kept;

-- Rights can be taken from PUBLIC and given to one; a default is evaluated as who inserts.
REVOKE EXECUTE ON FUNCTION idgen_snowflake(), idgen_uuidv7() FROM PUBLIC;
SET SESSION AUTHORIZATION idgen_bare;
SELECT idgen_test_as('INSERT INTO kept (n) VALUES (1)') AS refused;
RESET SESSION AUTHORIZATION;
GRANT EXECUTE ON FUNCTION idgen_snowflake(), idgen_uuidv7() TO idgen_bare;
SET SESSION AUTHORIZATION idgen_bare;
INSERT INTO kept (n) VALUES (102);
RESET SESSION AUTHORIZATION;
-- The tag's right counts for who inserts, too.
DELETE FROM idgen.segment_grant WHERE tag = 'mine';
SET SESSION AUTHORIZATION idgen_bare;
SELECT idgen_test_as('INSERT INTO kept (n) VALUES (1)') AS refused;
RESET SESSION AUTHORIZATION;
-- A definer function lends its owner's right, and only inside.
CREATE FUNCTION idgen_lend() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT idgen_segment('mine') $$;
SET SESSION AUTHORIZATION idgen_bare;
SELECT idgen_lend() > 0 AS lent, idgen_test_as('SELECT idgen_segment(''mine'')') AS by_itself;
RESET SESSION AUTHORIZATION;
GRANT EXECUTE ON FUNCTION idgen_snowflake(), idgen_uuidv7() TO PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen_snowflake(), idgen_uuidv7() FROM idgen_bare;
:give_back;
DROP FUNCTION idgen_lend(), idgen_test_as(text);
DROP TABLE kept;
DROP OWNED BY idgen_bare;
DROP ROLE idgen_bare;
