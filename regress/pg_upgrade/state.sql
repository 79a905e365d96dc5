-- The rows of the extension's tables and what the extension consists of, in lines that majors print alike.
SET extra_float_digits = 0;
SET timezone = 'UTC';
SELECT format('SELECT %L || t::text FROM %s t ORDER BY 1', oid::regclass || ' ', oid::regclass)
  FROM pg_class WHERE relnamespace = 'idgen'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
 ORDER BY oid::regclass::text \gexec
SELECT 'day ' || inhrelid::regclass || ' ' || pg_get_expr(c.relpartbound, c.oid)
  FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'idgen.audit_event'::regclass ORDER BY 1;
SELECT 'events ' || last_value FROM idgen.audit_event_id_seq;

CREATE TEMP VIEW member AS
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_idgen';
-- Since 14 a view has a type for its rows, and so has a table; both are members only through their relation.
SELECT concat_ws(' ', 'member', pg_describe_object(classid, objid, 0), obj_description(objid, classid::regclass::name))
  FROM member WHERE classid <> 'pg_type'::regclass ORDER BY 1;
SELECT concat_ws(' ', 'function', p.oid::regprocedure, p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.procost, p.prorows,
                 p.prosupport, p.prosrc, p.probin, p.proconfig, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(p.proacl) a))
  FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid ORDER BY 1;
-- Without what the owner has: one more right since 17.
SELECT concat_ws(' ', 'column', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                 pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum), c.relpersistence,
                 (SELECT array_agg(g::text ORDER BY g::text) FROM unnest(c.relacl) g WHERE g::text NOT LIKE 'postgres=%'))
  FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 ORDER BY 1;
-- Since 18 NOT NULL is a constraint too.
SELECT concat_ws(' ', 'constraint', k.conrelid::regclass, k.conname, pg_get_constraintdef(k.oid))
  FROM pg_constraint k JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = k.conrelid WHERE k.contype <> 'n' ORDER BY 1;
SELECT concat_ws(' ', 'trigger', t.tgrelid::regclass, t.tgname, t.tgenabled, t.tgtype, t.tgfoid::regprocedure)
  FROM pg_trigger t JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = t.tgrelid AND NOT t.tgisinternal ORDER BY 1;
SELECT concat_ws(' ', 'dumped', k.oid::regclass, quote_literal(k.condition))
  FROM pg_extension e, LATERAL unnest(e.extconfig, e.extcondition) AS k (oid, condition) WHERE e.extname = 'pg_idgen' ORDER BY 1;
