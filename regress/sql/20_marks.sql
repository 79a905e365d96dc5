-- The marks of every function that 01_install does not list, and rules that hold for all of them. A new function
-- is one more row here; a changed row is a change of the surface.
\pset null ''
CREATE TEMP VIEW member AS
SELECT p.*, l.lanname
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
  JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_idgen';

-- What the planner reckons with: type of the result, cost, rows of a set, language.
SELECT p.oid::regprocedure::text COLLATE "C" AS function,
       CASE WHEN p.proretset THEN 'setof ' ELSE '' END || format_type(p.prorettype, NULL) AS result,
       p.procost AS cost, nullif(p.prorows, 0) AS rows, p.lanname AS language
  FROM member p ORDER BY 1;
-- Rights, whoever owns the extension: EXECUTE for everybody, and grants to others than PUBLIC and the owner.
SELECT p.proname COLLATE "C" AS function, count(*) AS signatures,
       bool_and(EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                         WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE')) AS public,
       sum((SELECT count(*) FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner) OR a.is_grantable)) AS others
  FROM member p GROUP BY 1 ORDER BY 1;
SELECT c.relname COLLATE "C" AS relation, c.relkind AS kind,
       (SELECT string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type COLLATE "C") FROM aclexplode(c.relacl) a WHERE a.grantee = 0) AS public
  FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'pg_idgen'
 ORDER BY 1;

-- Rules; each query shows what breaks it: no rows.
-- What is immutable is strict, and may run in a worker.
SELECT oid::regprocedure FROM member WHERE provolatile = 'i' AND NOT (proisstrict AND proparallel = 's');
-- What makes an id is volatile: anything else would give all rows of ALTER TABLE ... ADD COLUMN one id.
SELECT oid::regprocedure FROM member
 WHERE proname ~ '^idgen_(snowflake|uuidv7|segment|public_id)(_batch|_range|_at)?$' AND provolatile <> 'v';
-- Nobody trusts them to keep secrets of rows that they have seen.
SELECT oid::regprocedure FROM member WHERE proleakproof;
-- A definer function is pinned to a search_path.
SELECT oid::regprocedure FROM member WHERE prosecdef AND proconfig IS NULL;
-- C is reached through this library only.
SELECT oid::regprocedure FROM member WHERE lanname = 'c' AND probin <> '$libdir/pg_idgen';
-- Nothing takes or gives a pseudo-type that could be anything.
SELECT oid::regprocedure FROM member
 WHERE prorettype NOT IN ('record'::regtype, 'void'::regtype, 'trigger'::regtype)
   AND EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (proargtypes::oid[] || prorettype) AND t.typtype = 'p');
-- Generators and tools are idgen_* in the extension's schema, the rest lives in schema idgen.
SELECT oid::regprocedure FROM member WHERE (pronamespace = 'idgen'::regnamespace) = starts_with(proname, 'idgen_');
-- No operator, cast or type of ours: an operator of an extension in a schema of its own can make a query ambiguous.
SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
 WHERE e.extname = 'pg_idgen' AND d.deptype = 'e'
   AND d.classid IN ('pg_operator'::regclass, 'pg_cast'::regclass, 'pg_opclass'::regclass)
 ORDER BY 1;
-- An untyped literal is not guessed at: with two overloads Postgres asks for a cast.
\set VERBOSITY sqlstate
SELECT idgen_timestamp('017f22e2-79b0-7cc3-98c4-dc0c0c07398f');
SELECT idgen_parse('914921407366844416');
\set VERBOSITY default
