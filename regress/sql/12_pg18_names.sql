-- PostgreSQL 18's names, on every major: made where the server does not have them, never in its way.
SET timezone = 'UTC';
SET client_min_messages = warning;
CREATE ROLE idgen_names;
CREATE SCHEMA names AUTHORIZATION idgen_names;
SET ROLE idgen_names;
CREATE TEMP TABLE made AS SELECT m::text AS function FROM idgen.create_pg18_names('names') m;
RESET ROLE;
-- The server's and ours are the four, and no name is in both.
SELECT replace(f, 'names.', '') AS function, count(*)
  FROM (SELECT function FROM made
        UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p
                   WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN ('uuidv7', 'uuid_extract_timestamp', 'uuid_extract_version')) s (f)
 GROUP BY 1 ORDER BY 1;
-- Plain functions of the caller: its own, no members of the extension.
SELECT count(*) AS not_of_the_caller FROM pg_proc WHERE pronamespace = 'names'::regnamespace AND proowner <> 'idgen_names'::regrole;
SELECT count(*) AS members FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
 WHERE p.pronamespace = 'names'::regnamespace AND d.deptype = 'e';
-- A second time it does not replace anything: an error where there is something, nothing on 18.
CREATE FUNCTION pg_temp.again() RETURNS text LANGUAGE plpgsql AS $$
DECLARE made bigint := (SELECT count(*) FROM idgen.create_pg18_names('names'));
BEGIN RETURN 'made ' || made; EXCEPTION WHEN duplicate_function THEN RETURN 'made 0'; END $$;
SELECT CASE WHEN (SELECT count(*) FROM made) = 0 THEN pg_temp.again() ELSE 'made 0' END AS on_18;
SELECT count(*) = (SELECT count(*) FROM made) AS unchanged FROM pg_proc WHERE pronamespace = 'names'::regnamespace;
SELECT count(*) AS of_null FROM idgen.create_pg18_names(NULL);

-- They do as PostgreSQL 18's do, whoever's they are; the path here, the bodies are bound without one.
SET search_path = names, pg_catalog, public;
SELECT uuid_extract_version(uuidv7()) AS version, uuidv7() < uuidv7() AS rises,
       abs(extract(epoch FROM clock_timestamp() - idgen_timestamp(uuidv7()))) < 60 AS now;
SELECT abs(extract(epoch FROM clock_timestamp() + i - idgen_timestamp(uuidv7(i)))) < 60 AS shifted, i,
       uuid_extract_version(uuidv7(i)) AS version, uuidv7(i) < uuidv7(i) AS rises
  FROM unnest(ARRAY['0', '-1 hour', '1 day', '3 years', '-20 years', '1 microsecond']::interval[]) i;
SELECT uuidv7(NULL) IS NULL AS strict;
-- RFC 9562, A.1 and A.3, and what has no version.
SELECT u, uuid_extract_version(u), uuid_extract_timestamp(u) IS NOT NULL AND uuid_extract_version(u) = 1 AS has_time_of_v1
  FROM unnest(ARRAY['C232AB00-9414-11EC-B3C8-9F6BDECED846', '919108f7-52d1-4320-9bac-f847db4148a8',
                    '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
                    '017f22e2-79b0-7cc3-18c4-dc0c0c07398f']::uuid[]) u;
SELECT uuid_extract_version(NULL), uuid_extract_timestamp(NULL);
-- Our own, which the names stand for: version 7 too, which 17 does not know.
RESET search_path;
SELECT u, idgen.uuid_version(u), idgen.uuid_timestamp(u)
  FROM unnest(ARRAY['C232AB00-9414-11EC-B3C8-9F6BDECED846', '017F22E2-79B0-7CC3-98C4-DC0C0C07398F',
                    '00000000-0000-1000-8000-000000000000', 'ffffffff-ffff-1fff-bfff-ffffffffffff',
                    'ffffffff-ffff-7fff-bfff-ffffffffffff', '919108f7-52d1-4320-9bac-f847db4148a8',
                    '00000000-0000-0000-0000-000000000000', '017f22e2-79b0-7cc3-18c4-dc0c0c07398f']::uuid[]) u;
-- Rises within a session, at one shift, over a great many.
CREATE TEMP TABLE moved AS SELECT n, idgen_uuidv7_shifted('-1 year') AS id FROM generate_series(1, 100000) n;
SELECT count(*) AS out_of_order FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM moved) s WHERE id <= before;
SELECT idgen_uuidv7_shifted('-100 years');
SELECT idgen_uuidv7_shifted('20000 years');
SELECT idgen_uuidv7_shifted('290000 years');
SELECT idgen_uuidv7_shifted(NULL) IS NULL AS strict;

-- Rights and refusals.
CREATE FUNCTION pg_temp.refusal(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE statement; RETURN 'no error'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
SET ROLE idgen_names;
SELECT CASE WHEN (SELECT count(*) FROM pg_temp.made) = 0 THEN '3F000' ELSE pg_temp.refusal($$SELECT idgen.create_pg18_names('no such schema')$$) END AS no_schema,
       CASE WHEN (SELECT count(*) FROM pg_temp.made) = 0 THEN '42501' ELSE pg_temp.refusal($$SELECT idgen.create_pg18_names('idgen')$$) END AS no_right,
       CASE WHEN (SELECT count(*) FROM pg_temp.made) = 0 THEN '42723' ELSE pg_temp.refusal($$SELECT idgen.create_pg18_names('names')$$) END AS already_there;
RESET ROLE;
RESET client_min_messages;
DROP TABLE made;
SET client_min_messages = warning;
DROP SCHEMA names CASCADE;
RESET client_min_messages;
DROP ROLE idgen_names;
