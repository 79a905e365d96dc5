-- The surface as the catalogue has it: volatility, parallel marks, rights, comments, what a dump takes along.
CREATE EXTENSION pg_idgen;

-- v: volatile, i: immutable, s: stable; parallel: u unsafe, r restricted, s safe.
SELECT p.oid::regprocedure AS function, p.provolatile AS vol, p.proparallel AS par, p.proisstrict AS strict,
       p.prosecdef AS definer, has_function_privilege('pg_read_all_stats', p.oid, 'EXECUTE') AS public
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
 WHERE e.extname = 'pg_idgen' AND d.deptype = 'e'
 ORDER BY p.oid::regprocedure::text COLLATE "C";

-- Definer functions and those written in SQL must not follow the caller's search_path: no rows.
SELECT p.oid::regprocedure
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
  JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_idgen'
 WHERE (p.prosecdef OR l.lanname IN ('sql', 'plpgsql'))
   AND NOT coalesce(p.proconfig::text LIKE '%search_path=pg_catalog, pg_temp%', false);

-- Every object and every column has a comment: no rows.
WITH members AS (
    SELECT d.classid, d.objid, 0 AS objsubid
      FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
     WHERE e.extname = 'pg_idgen' AND d.deptype = 'e'
), columns AS (
    SELECT m.classid, m.objid, a.attnum::integer
      FROM members m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.relkind IN ('r', 'p', 'v')
), triggers AS (
    SELECT 'pg_trigger'::regclass::oid, t.oid, 0
      FROM members m JOIN pg_trigger t ON m.classid = 'pg_class'::regclass AND t.tgrelid = m.objid
     WHERE NOT t.tgisinternal
)
SELECT pg_describe_object(o.classid, o.objid, o.objsubid) AS without_comment
  FROM (SELECT * FROM members UNION SELECT * FROM columns UNION SELECT * FROM triggers) o (classid, objid, objsubid)
 WHERE NOT EXISTS (SELECT FROM pg_description c
                    WHERE c.classoid = o.classid AND c.objoid = o.objid AND c.objsubid = o.objsubid)
   AND pg_describe_object(o.classid, o.objid, o.objsubid) NOT LIKE 'type %'
 ORDER BY 1;

-- What pg_dump takes along.
SELECT c.oid::regclass::text COLLATE "C" AS dumped
  FROM pg_extension e CROSS JOIN unnest(e.extconfig) AS c (oid) WHERE e.extname = 'pg_idgen' ORDER BY 1;

-- No table is open to PUBLIC: no rows.
SELECT c.relname
  FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
 WHERE c.relnamespace = 'idgen'::regnamespace AND c.relkind IN ('r', 'p') AND a.grantee = 0;

-- The settings, with their limits.
SELECT name, setting, unit, context, min_val, max_val FROM pg_settings WHERE name LIKE 'idgen.%' ORDER BY name COLLATE "C";
SET idgen.no_such_setting = 1;
