-- What the audits ask the database itself: ranges that were granted twice, and columns that invite duplicates.

CREATE FUNCTION idgen.audit_overlaps(
    from_at timestamptz, to_at timestamptz,
    OUT space_id uuid, OUT tag text, OUT lo bigint, OUT hi bigint,
    OUT first_source uuid, OUT first_event bigint, OUT first_at timestamptz, OUT first_lo bigint, OUT first_hi bigint,
    OUT second_source uuid, OUT second_event bigint, OUT second_at timestamptz, OUT second_lo bigint, OUT second_hi bigint)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- Each grant, and of all that begin before it the one that reaches furthest: one pass in the order of the ids.
    WITH swept AS (
        SELECT e.space_id, e.tag, e.source_id, e.event_id, e.at, e.lo, e.hi,
               max(ARRAY[e.hi, e.event_id]) OVER (PARTITION BY e.space_id, e.tag ORDER BY e.lo, e.hi, e.event_id
                                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reach
          FROM idgen.audit_event e
         WHERE e.kind = 'segment.grant' AND e.at >= from_at AND e.at < to_at)
    SELECT s.space_id, s.tag, s.lo, least(s.hi, r.hi), r.source_id, r.event_id, r.at, r.lo, r.hi,
           s.source_id, s.event_id, s.at, s.lo, s.hi
      FROM swept s
     CROSS JOIN LATERAL (SELECT f.source_id, f.event_id, f.at, f.lo, f.hi
                           FROM idgen.audit_event f
                          WHERE f.kind = 'segment.grant' AND f.at >= from_at AND f.at < to_at
                            AND f.space_id = s.space_id AND f.tag = s.tag AND f.hi = s.reach[1] AND f.event_id = s.reach[2]
                          ORDER BY f.source_id LIMIT 1) r
     WHERE s.reach[1] >= s.lo
     ORDER BY s.space_id, s.tag, s.lo, s.event_id
$$;
COMMENT ON FUNCTION idgen.audit_overlaps(timestamptz, timestamptz) IS
'Ranges of ids that were granted twice, of the grants that were recorded from from_at on and before to_at: lo to hi, which both have, and both events: first the one that begins first, which need not be the older. Each grant is told once, with the one before it that reaches furthest. No row: all is well. Sees what this database has recorded, not what other masters of its space have; that is what the archive is for. Reads all grants of that time: on a large table ask for days. For members of pg_monitor.';
REVOKE ALL ON FUNCTION idgen.audit_overlaps(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idgen.audit_overlaps(timestamptz, timestamptz) TO pg_monitor;

-- A column is fed where its default calls a generator itself: what another function does inside is not seen. Partitions are those
-- of their table.
CREATE VIEW idgen.fed_columns AS
WITH RECURSIVE fed AS (
    SELECT c.oid AS relid, a.attnum, a.attname AS column_name, a.atttypid AS type_oid, c.relispartition,
           pg_catalog.array_agg(DISTINCT p.proname ORDER BY p.proname) AS generators,
           pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS expression
      FROM pg_catalog.pg_attrdef d
      JOIN pg_catalog.pg_class c ON c.oid = d.adrelid
      JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
      JOIN pg_catalog.pg_depend u ON u.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND u.objid = d.oid
           AND u.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
      JOIN pg_catalog.pg_proc p ON p.oid = u.refobjid
      JOIN pg_catalog.pg_depend x ON x.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND x.objid = p.oid AND x.deptype = 'e'
      JOIN pg_catalog.pg_extension e ON e.oid = x.refobjid AND e.extname = 'pg_idgen'
     WHERE c.relkind IN ('r', 'p') AND a.attgenerated = ''
       AND p.proname IN ('idgen_snowflake', 'idgen_segment', 'idgen_uuidv7', 'idgen_uuidv7_shifted', 'idgen_public_id')
     GROUP BY c.oid, a.attnum, a.attname, a.atttypid, c.relispartition, d.adbin, d.adrelid),
tree AS (
    SELECT f.relid AS root, f.column_name, f.relid AS member FROM fed f WHERE NOT f.relispartition
    UNION
    SELECT t.root, t.column_name, i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.member)
SELECT f.relid::pg_catalog.regclass AS relation, f.column_name, f.type_oid::pg_catalog.regtype AS type, f.generators, f.expression,
       (SELECT pg_catalog.array_agg(DISTINCT m.expression ORDER BY m.expression)
          FROM tree t JOIN fed m ON m.relid = t.member AND m.column_name = t.column_name
         WHERE t.root = f.relid AND t.column_name = f.column_name) AS expressions,
       EXISTS (SELECT FROM pg_catalog.pg_index i
                WHERE i.indrelid = f.relid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
                  AND i.indnkeyatts = 1 AND i.indkey[0] = f.attnum) AS is_unique,
       (SELECT s.limit_id
          FROM idgen.segment s
         WHERE f.generators = ARRAY['idgen_segment'::name]
           AND s.tag = pg_catalog.replace(pg_catalog.substring(f.expression, '''((?:[^'']|'''')*)''::text'), '''''', '''')) AS limit_id
  FROM fed f
 WHERE NOT f.relispartition;
COMMENT ON VIEW idgen.fed_columns IS 'Columns of tables whose default calls a generator of this extension. Partitions are counted with their table.';
COMMENT ON COLUMN idgen.fed_columns.relation IS 'The table.';
COMMENT ON COLUMN idgen.fed_columns.column_name IS 'The column.';
COMMENT ON COLUMN idgen.fed_columns.type IS 'Its type.';
COMMENT ON COLUMN idgen.fed_columns.generators IS 'Which functions its default calls.';
COMMENT ON COLUMN idgen.fed_columns.expression IS 'Its default.';
COMMENT ON COLUMN idgen.fed_columns.expressions IS 'All defaults of it: those of partitions and of tables that inherit from it may be others.';
COMMENT ON COLUMN idgen.fed_columns.is_unique IS 'A valid unique index has this column and no other, of all rows.';
COMMENT ON COLUMN idgen.fed_columns.limit_id IS 'Last id of its segment tag; NULL: it is no segment, or the default does not name the tag.';

CREATE VIEW idgen.lint AS
SELECT l.relation, l.column_name, l.problem, l.reason, l.mend
  FROM (SELECT f.relation, f.column_name, 'no unique index' AS problem,
               'nothing in the database would notice a duplicate' AS reason,
               CASE (SELECT c.relkind FROM pg_catalog.pg_class c WHERE c.oid = f.relation)
                   WHEN 'p' THEN 'a unique index of a partitioned table must have its partition key: give every partition one of its own; a duplicate across two of them is not noticed'
                   ELSE pg_catalog.format('CREATE UNIQUE INDEX CONCURRENTLY ON %s (%I)', f.relation, f.column_name) END AS mend
          FROM idgen.fed_columns f WHERE NOT f.is_unique
        UNION ALL
        SELECT f.relation, f.column_name, 'narrow type',
               pg_catalog.format('%s ends at %s, and the default makes greater ids: the insert fails with 22003 then', f.type, w.most),
               pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I TYPE bigint', f.relation, f.column_name)
          FROM idgen.fed_columns f
          JOIN (VALUES ('smallint'::pg_catalog.regtype, 32767::bigint), ('integer'::pg_catalog.regtype, 2147483647::bigint)) w (type, most) ON w.type = f.type
         WHERE f.limit_id IS NULL OR f.limit_id > w.most
        UNION ALL
        SELECT f.relation, f.column_name, 'inexact type',
               pg_catalog.format('%s rounds ids beyond %s: different ids become equal', f.type,
                                 CASE f.type WHEN 'real'::pg_catalog.regtype THEN 16777216 ELSE 9007199254740992 END),
               pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I TYPE bigint', f.relation, f.column_name)
          FROM idgen.fed_columns f WHERE f.type IN ('real'::pg_catalog.regtype, 'double precision'::pg_catalog.regtype)
        UNION ALL
        SELECT f.relation, f.column_name, 'text',
               'ids as text take two to four times the room, and numbers sort as words: 10 before 9',
               pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I TYPE %s USING %I::%s', f.relation, f.column_name, w.type, f.column_name, w.type)
          FROM idgen.fed_columns f
         CROSS JOIN LATERAL (SELECT CASE WHEN f.generators && ARRAY['idgen_uuidv7', 'idgen_uuidv7_shifted']::name[] THEN 'uuid' ELSE 'bigint' END) w (type)
         WHERE f.type IN ('text'::pg_catalog.regtype, 'varchar'::pg_catalog.regtype, 'bpchar'::pg_catalog.regtype)
           AND NOT f.generators && ARRAY['idgen_public_id'::name]
        UNION ALL
        SELECT f.relation, f.column_name, 'mixed',
               pg_catalog.format('its defaults are %s: ids of two kinds, or of two tags, may be equal', pg_catalog.array_to_string(f.expressions, ' and ')),
               pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s, and the same for its partitions and heirs', f.relation, f.column_name, f.expression)
          FROM idgen.fed_columns f
         WHERE pg_catalog.cardinality(f.expressions) > 1 OR pg_catalog.cardinality(f.generators) > 1) l
 ORDER BY l.relation::text, l.column_name, l.problem;
COMMENT ON VIEW idgen.lint IS 'Columns that are fed by this extension and invite trouble, each with the reason and the SQL that mends it. No row: all is well.';
COMMENT ON COLUMN idgen.lint.relation IS 'The table.';
COMMENT ON COLUMN idgen.lint.column_name IS 'The column.';
COMMENT ON COLUMN idgen.lint.problem IS 'no unique index; narrow type (its numbers end before the ids do); inexact type (it rounds); text; mixed (several generators or tags).';
COMMENT ON COLUMN idgen.lint.reason IS 'What comes of it.';
COMMENT ON COLUMN idgen.lint.mend IS 'SQL that mends it, or what to do. Changing a type rewrites the table under a lock.';
GRANT SELECT ON idgen.fed_columns, idgen.lint TO PUBLIC;
