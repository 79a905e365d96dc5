-- What a user puts in front of the catalogue's objects is never called by ours: not by functions, views, triggers or
-- defaults, and not with the rights of whoever owns the extension.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(350), idgen_create_segment('path'), idgen_create_segment('others');
-- A trap for every function and operator of the catalogue, by its own name and arguments, that anything of ours could
-- mean; whichever is reached tells so by an error. Those with pseudo-types need no trap: an exact match would win.
CREATE SCHEMA trap;
CREATE FUNCTION trap.sprung(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the trap % was sprung as %', what, current_user; END $$;
DO $$
DECLARE
    f record; o record; sprung text;
BEGIN
    FOR f IN SELECT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS args, format_type(p.prorettype, NULL) AS result, p.proretset
               FROM pg_proc p
              WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
                AND p.proargmodes IS NULL
                AND p.proname IN ('now', 'clock_timestamp', 'gen_random_uuid', 'pg_current_xact_id', 'nextval', 'current_database', 'pg_current_wal_insert_lsn',
                    'pg_walfile_name', 'substr', 'format', 'to_timestamp', 'pg_has_role', 'octet_length', 'date_part', 'extract', 'quote_ident',
                    'int8', 'numeric', 'text', 'name', 'bit', 'int4')
                AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (p.proargtypes::oid[] || p.prorettype) AND t.typtype = 'p') LOOP
        sprung := format('LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.sprung(%L); END $f$', f.proname);
        EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s%s %s', f.proname, f.args, CASE WHEN f.proretset THEN 'SETOF ' ELSE '' END, f.result, sprung);
    END LOOP;
    -- Every operator that compares, adds, divides or joins texts, of the types that occur here.
    FOR o IN SELECT DISTINCT op.oprname, op.oprleft::regtype AS l, op.oprright::regtype AS r, op.oprresult::regtype AS result
               FROM pg_operator op
              WHERE op.oprnamespace = 'pg_catalog'::regnamespace AND op.oprkind = 'b' AND op.oprname IN ('=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '||')
                AND op.oprleft IN ('bigint'::regtype, 'integer'::regtype, 'numeric'::regtype, 'text'::regtype, 'name'::regtype, 'uuid'::regtype, 'oid'::regtype, 'boolean'::regtype, 'timestamptz'::regtype)
                AND op.oprright IN ('bigint'::regtype, 'integer'::regtype, 'numeric'::regtype, 'text'::regtype, 'name'::regtype, 'uuid'::regtype, 'oid'::regtype, 'boolean'::regtype, 'timestamptz'::regtype) LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.sprung(%L); END $f$',
            'operator ' || o.oprname, o.l, o.r, o.result, 'operator ' || o.oprname);
        EXECUTE format('CREATE OPERATOR trap.%s (FUNCTION = trap.%I, LEFTARG = %s, RIGHTARG = %s)', o.oprname, 'operator ' || o.oprname, o.l, o.r);
    END LOOP;
END $$;
-- And those that the catalogue does not have but ours could mean by what they would match exactly.
CREATE FUNCTION trap.divide(bigint, numeric) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('divide'); END $$;
CREATE OPERATOR trap./ (FUNCTION = trap.divide, LEFTARG = bigint, RIGHTARG = numeric);
CREATE FUNCTION trap.format(text, name) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('format'); END $$;
CREATE FUNCTION trap.idgen_snowflake() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('idgen_snowflake'); END $$;
CREATE FUNCTION trap.idgen_uuidv7() RETURNS uuid LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('idgen_uuidv7'); END $$;
CREATE FUNCTION trap.idgen_segment(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('idgen_segment'); END $$;
CREATE FUNCTION trap.idgen_timestamp(bigint, text) RETURNS timestamptz IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.sprung('idgen_timestamp'); END $$;
-- Tables and types, in the schema and in pg_temp, which is searched first for both unless a path says otherwise.
CREATE TABLE trap.segment (tag text); CREATE TABLE trap.segment_grant (tag text); CREATE TABLE trap.audit_event (tag text); CREATE TABLE trap.space (one boolean);
CREATE TABLE trap.cell (one boolean); CREATE TABLE trap.lease (kind text); CREATE TABLE trap.pg_database (datname text, oid integer); CREATE TABLE trap.pg_roles (rolname text);
CREATE TABLE trap.pg_class (oid integer); CREATE TABLE trap.pg_extension (extname text);
CREATE DOMAIN trap.text AS pg_catalog.text CHECK (trap.sprung('text') IS NULL);
CREATE DOMAIN trap.uuid AS pg_catalog.uuid CHECK (trap.sprung('uuid') IS NULL);
CREATE TEMP TABLE segment (tag pg_catalog.text); CREATE TEMP TABLE segment_grant (tag pg_catalog.text); CREATE TEMP TABLE audit_event (tag pg_catalog.text);
CREATE TEMP TABLE space (one boolean); CREATE TEMP TABLE cell (one boolean); CREATE TEMP TABLE lease (kind pg_catalog.text);
CREATE TEMP TABLE pg_database (datname pg_catalog.text, oid integer); CREATE TEMP TABLE pg_roles (rolname pg_catalog.text); CREATE TEMP TABLE pg_extension (extname pg_catalog.text);
CREATE DOMAIN pg_temp.name AS pg_catalog.name CHECK (trap.sprung('name') IS NULL);

CREATE TABLE kept (id bigint DEFAULT idgen_snowflake(), uid uuid DEFAULT idgen_uuidv7(), number bigint DEFAULT idgen_segment('path'), n integer,
    at timestamptz GENERATED ALWAYS AS (idgen_timestamp(id)) STORED);
CREATE ROLE idgen_mallory;
GRANT USAGE ON SCHEMA trap TO idgen_mallory;
SET search_path = trap, pg_temp, public, pg_catalog;
-- The traps work: both kinds, in this very session.
SELECT 1 + 1;
SELECT now();

-- Defaults, a generated column and triggers were bound when they were made.
INSERT INTO public.kept (n) SELECT pg_catalog.generate_series(1, 100);
SELECT pg_catalog.count(*), pg_catalog.count(DISTINCT public.kept.number), pg_catalog.count(at) FROM public.kept;
-- Functions written in C: their statements run with a path of their own.
SELECT public.idgen_create_segment('path made', step => 1, max_step => 1);
SELECT public.idgen_segment('path made'), public.idgen_segment('path made'), public.idgen_segment('path made');
SELECT idgen.grant_segment('path made', 'idgen_mallory');
BEGIN;
SELECT public.idgen_create_segment('path own', step => 1, max_step => 1);
SELECT public.idgen_segment('path own'), public.idgen_segment('path own');
SAVEPOINT s;
SELECT public.idgen_segment('path own');
ROLLBACK TO s;
COMMIT;
SELECT public.idgen_timestamp(0::pg_catalog.int8), public.idgen_parse(0::pg_catalog.int8) IS NULL AS parsed, public.idgen_encode(5), public.idgen_decode('0000000000005'),
       public.idgen_snowflake_min('2026-01-01+00'), public.idgen_uuidv7_max('2026-01-01+00'), public.idgen_cursor_floor(5, '1 s');
-- The daemon's: its definer function, its grants, its tables.
SELECT idgen.grant_daemon('idgen_mallory');
SELECT timeline FROM idgen.store_identity();
SELECT contract_version FROM idgen.server_clock();
-- Views.
SELECT state, preloaded FROM idgen.health;
SELECT pg_catalog.count(*) FROM idgen.slots WHERE NULL;
SELECT pg_catalog.count(s.ceiling_lead_ms) OPERATOR(pg_catalog.>) 0 AS slots, pg_catalog.count(s.floor) OPERATOR(pg_catalog.>) 0 AS floors FROM idgen.slots s;
SELECT max_id IS NOT NULL AS granted, step FROM idgen.segments WHERE pg_catalog.texteq(tag, 'path made');
-- As a role that is nobody, with what it may reach.
SET ROLE idgen_mallory;
SELECT public.idgen_segment('path made'), public.idgen_snowflake() IS NULL AS snowflake, public.idgen_uuidv7() IS NULL AS uuid;
SELECT state FROM idgen.health;
SELECT public.idgen_segment('others');
SELECT timeline FROM idgen.store_identity();
RESET ROLE;
-- A trigger of ours runs for a plain change of the table.
UPDATE idgen.segment SET owner = owner WHERE pg_catalog.texteq(tag, 'path made');
DELETE FROM idgen.segment_grant WHERE pg_catalog.texteq(tag, 'path made');
SET ROLE idgen_mallory;
SELECT public.idgen_segment('path made');
RESET ROLE;
RESET search_path;

-- Creating the extension runs its script with catalogue and target schema only, whatever the session's path.
DROP TABLE kept;
DROP EXTENSION pg_idgen;
SET search_path = trap, pg_temp, public, pg_catalog;
CREATE EXTENSION pg_idgen SCHEMA public;
SELECT state FROM idgen.health;
SELECT public.idgen_create_segment('path'), public.idgen_segment('path');
RESET search_path;

-- Nor does the script mean anything of the schema it creates into, where others may have been: an operator that takes
-- exactly what the script gives it would win over the catalogue's, which takes it after a conversion.
DROP EXTENSION pg_idgen;
CREATE SCHEMA target;
DO $$
DECLARE
    o record; what text;
BEGIN
    FOR o IN SELECT op.name, l.t AS l, r.t AS r
               FROM unnest(ARRAY['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '||']) op (name),
                    unnest(ARRAY['bigint', 'integer', 'numeric', 'float8', 'text', 'name', 'uuid', 'oid', 'boolean', 'timestamptz', 'interval']::regtype[]) l (t),
                    unnest(ARRAY['bigint', 'integer', 'numeric', 'float8', 'text', 'name', 'uuid', 'oid', 'boolean', 'timestamptz', 'interval']::regtype[]) r (t)
              WHERE NOT EXISTS (SELECT FROM pg_operator p WHERE p.oprname = op.name AND p.oprleft = l.t AND p.oprright = r.t) LOOP
        what := format('operator %s (%s, %s)', o.name, o.l, o.r);
        EXECUTE format('CREATE FUNCTION target.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.sprung(%L); END $f$',
            what, o.l, o.r, CASE WHEN o.name IN ('+', '-', '*', '/') THEN 'numeric' WHEN o.name = '||' THEN 'text' ELSE 'boolean' END, what);
        EXECUTE format('CREATE OPERATOR target.%s (FUNCTION = target.%I, LEFTARG = %s, RIGHTARG = %s)', o.name, what, o.l, o.r);
    END LOOP;
END $$;
CREATE EXTENSION pg_idgen SCHEMA target;
SELECT count(*) AS slots, count(floor) AS floors, count(ceiling_lead_ms) AS leads FROM idgen.slots WHERE identity = 350;
SELECT state FROM idgen.health;
SELECT target.idgen_create_segment('path'), target.idgen_segment('path');
SELECT count(max_id) FROM idgen.segments;
SELECT idgen.grant_daemon('idgen_mallory');
-- Nothing depends on it: no rows.
SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) AS ours, o.oid::regoperator AS theirs
  FROM pg_operator o JOIN pg_depend d ON d.refobjid = o.oid AND d.refclassid = 'pg_operator'::regclass WHERE o.oprnamespace = 'target'::regnamespace;
DROP EXTENSION pg_idgen;
CREATE EXTENSION pg_idgen;
DROP OWNED BY idgen_mallory;
DROP ROLE idgen_mallory;
SET client_min_messages = warning;
DROP SCHEMA target CASCADE;
DROP SCHEMA trap CASCADE;
RESET client_min_messages;
