-- Who may do what, and what a hostile search_path can do: nothing.
CREATE ROLE idgen_app; CREATE ROLE idgen_other; CREATE ROLE idgen_member IN ROLE idgen_app;
SELECT idgen_create_segment('supers');
SET ROLE idgen_app;
SELECT idgen_create_segment('apps');
SELECT idgen_segment('apps');
SELECT idgen_segment('supers');
SELECT tag FROM idgen.segments;
SELECT * FROM idgen.segment;
UPDATE idgen.segment SET max_id = 0;
INSERT INTO idgen.segment_grant (tag, grantee) VALUES ('supers', 'idgen_app');
SELECT 1 FROM idgen.audit_event;
RESET ROLE;
SET ROLE idgen_member;
SELECT idgen_segment('apps') AS member;
RESET ROLE;
SET ROLE idgen_other;
SELECT idgen_segment('apps');
RESET ROLE;

-- A grant takes effect at once in a session that has been refused, and goes with its row.
SELECT idgen.grant_segment('apps', 'idgen_other');
SET ROLE idgen_other;
SELECT idgen_segment('apps') AS granted;
RESET ROLE;
DELETE FROM idgen.segment_grant WHERE grantee = 'idgen_other';
SET ROLE idgen_other;
SELECT idgen_segment('apps') AS revoked;
RESET ROLE;
SELECT idgen.grant_segment('apps', 'public');
SET ROLE idgen_other;
SELECT idgen_segment('apps') AS public;
RESET ROLE;
SELECT idgen.grant_segment('no such tag', 'public');
SELECT idgen.grant_segment('apps', 'no such role');
SET SESSION AUTHORIZATION idgen_other;
SELECT idgen.grant_segment('apps', 'idgen_other');
RESET SESSION AUTHORIZATION;

-- Objects that a user has put in front of the catalogue's are never reached with the owner's rights.
CREATE SCHEMA evil AUTHORIZATION idgen_other;
SET ROLE idgen_other;
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'reached as %', current_user; END $$;
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'reached as %', current_user; END $$;
CREATE FUNCTION evil.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'reached as %', current_user; END $$;
CREATE TEMP TABLE pg_roles (oid oid, rolname name, rolsuper boolean);
SET search_path = evil, pg_temp, pg_catalog, public;
SELECT public.idgen_create_segment('evils', step => 1, max_step => 1);
SELECT public.idgen_segment('evils'), public.idgen_segment('evils'), public.idgen_segment('apps');
SELECT public.idgen_segment('supers');
SELECT current_user, current_setting('search_path');
RESET search_path;
RESET ROLE;

-- Generators are for everybody.
SET ROLE idgen_other;
SELECT idgen_snowflake() > 0 AS snowflake, idgen_uuidv7() IS NOT NULL AS uuid;
RESET ROLE;
DROP TABLE pg_temp.pg_roles;
DROP SCHEMA evil CASCADE;
DELETE FROM idgen.segment_grant;
DROP ROLE idgen_member, idgen_other, idgen_app;
-- The owner is gone: a superuser goes on, others stay out.
SELECT idgen_segment('apps') > 0 AS superuser;
