-- Errors 23505 by constraint: what a unique index has refused, and which of it were ids of ours.

CREATE FUNCTION idgen.duplicate_key_counts(
    OUT schema_name text, OUT table_name text, OUT constraint_name text, OUT errors bigint,
    OUT first_ms bigint, OUT last_ms bigint, OUT others boolean)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'idgen_duplicate_key_counts';
COMMENT ON FUNCTION idgen.duplicate_key_counts() IS
'Errors 23505 (duplicate key) of this database by constraint, as the errors name it (NULL: it does not), since idgen.reset_stats() or the start of the server, with the times of the first and the last in Unix ms. Counted is what goes to the log of the server: not what a handler catches or ON CONFLICT avoids, and nothing with log_min_messages above error. 256 constraints of the server are counted apart; a row with others has the errors of all databases that came after them. An error that a function raises by itself with this SQLSTATE counts under the names that it gives. Without shared memory: no rows. For members of pg_monitor.';
REVOKE ALL ON FUNCTION idgen.duplicate_key_counts() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idgen.duplicate_key_counts() TO pg_monitor;

-- A constraint is found by its name of now: one that was renamed or dropped since is in the counts alone. That of a partition is
-- one of its table.
CREATE VIEW idgen.duplicate_key_errors AS
SELECT f.relation, f.column_name, c.schema_name, c.table_name, c.constraint_name, c.errors,
       pg_catalog.to_timestamp(c.first_ms OPERATOR(pg_catalog./) 1000.0) AS first_at,
       pg_catalog.to_timestamp(c.last_ms OPERATOR(pg_catalog./) 1000.0) AS last_at,
       CASE WHEN i.indnkeyatts = 1
            THEN 'a row came with an id that is there already: it was made twice, or somebody has written it by hand (a copy, a restore, the same row sent again)'
            ELSE 'a row came with an id that is there already, and with the same other columns of this constraint: it was made twice, or somebody has written it by hand (a copy, a restore, the same row sent again)'
       END AS reason
  FROM idgen.duplicate_key_counts() c
  JOIN pg_catalog.pg_namespace n ON n.nspname = c.schema_name
  JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = c.table_name
  JOIN pg_catalog.pg_class x ON x.relnamespace = n.oid AND x.relname = c.constraint_name
  JOIN pg_catalog.pg_index i ON i.indexrelid = x.oid AND i.indrelid = t.oid
 CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::smallint[]) WITH ORDINALITY k (attnum, nth)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.attnum
  JOIN idgen.fed_columns f ON f.relation = coalesce(pg_catalog.pg_partition_root(t.oid)::oid, t.oid) AND f.column_name = a.attname
 WHERE k.nth <= i.indnkeyatts;
COMMENT ON VIEW idgen.duplicate_key_errors IS 'Errors 23505 (duplicate key) of columns that this extension feeds, by constraint. No row: none was logged. What is not seen: idgen.duplicate_key_counts(). For members of pg_monitor.';
COMMENT ON COLUMN idgen.duplicate_key_errors.relation IS 'The table, as in idgen.fed_columns.';
COMMENT ON COLUMN idgen.duplicate_key_errors.column_name IS 'Its column that we feed.';
COMMENT ON COLUMN idgen.duplicate_key_errors.schema_name IS 'Schema of the table, or of its partition, as the error named it ...';
COMMENT ON COLUMN idgen.duplicate_key_errors.table_name IS '... the table or partition ...';
COMMENT ON COLUMN idgen.duplicate_key_errors.constraint_name IS '... and the constraint or unique index, which has the column.';
COMMENT ON COLUMN idgen.duplicate_key_errors.errors IS 'Errors since idgen.reset_stats() or the start of the server (a crash-restart too).';
COMMENT ON COLUMN idgen.duplicate_key_errors.first_at IS 'When the first was, by the clock of the server.';
COMMENT ON COLUMN idgen.duplicate_key_errors.last_at IS 'When the last was.';
COMMENT ON COLUMN idgen.duplicate_key_errors.reason IS 'What it means.';
GRANT SELECT ON idgen.duplicate_key_errors TO pg_monitor;
